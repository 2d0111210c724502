//! `web`: static files over a new connection per request, against size and number of clients; nginx with two workers and
//! Apache prefork with a hundred processes; the kernel (cubic) and ours in turn. nginx also with connections that are kept,
//! with one worker, and where nobody is pinned (`free`; the engine is no real-time thread then, and receive steering off).
//!
//! Receive steering is on, as in `prefer`: each host's protocol work is done on its own core, as on two
//! machines, and the server side is the bottleneck. Without it the clients' core does the kernel server's
//! receive work, and is itself what the kernel waits for (100 % busy, the server's 82 to 99 %); the kernel
//! then has more of both cores than ours has: with Apache up to twice the figure. `--steer false` shows that.

use anyhow::Result;

use crate::harness::{Arm, Lab, Load, Measurement, Meter, describe, order};
use crate::plot::{Figure, Panel, Series};
use crate::report::{Better, Report, Row, Target, median};
use crate::server::{Kind, Priorities};
use crate::{Options, pattern, trial};

/// How many standard clients.
const CLIENTS: [usize; 4] = [1, 16, 48, MANY];
const ENDS: [usize; 2] = [1, MANY];
const MANY: usize = 96;
const OURS: usize = 0;
const KERNEL: usize = 1;
const TRIED: usize = 2;
const STEER: bool = true;

/// A server, how it is asked, and where it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Variant {
    kind: Kind,
    is_pinned: bool,
    /// With how many clients.
    clients: &'static [usize],
}

impl Variant {
    const fn nginx(workers: u32, keepalive: bool, is_pinned: bool, clients: &'static [usize]) -> Variant {
        Variant { kind: Kind::Nginx { workers, keepalive }, is_pinned, clients }
    }

    fn name(self) -> String {
        let mut name = self.kind.name().to_owned();
        if let Kind::Nginx { workers, keepalive } = self.kind {
            name.push_str(if workers == 1 { ", 1 worker" } else { "" });
            name.push_str(if keepalive { ", kept connections" } else { "" });
        }
        name + if self.is_pinned { "" } else { ", free" }
    }

    /// How much more than the kernel ours is to serve many clients.
    fn aim(self, size_kb: u32) -> Option<f64> {
        let Kind::Nginx { keepalive, .. } = self.kind else { return None };
        Some(match size_kb {
            1 => 1.5,
            _ if keepalive => 1.0,
            16 => 1.5,
            50 | 100 => 1.2,
            _ => 1.0,
        })
    }
}

/// In the order in which they are measured, those that are pinned first.
const VARIANTS: [Variant; 9] = [
    Variant::nginx(2, false, true, &CLIENTS),
    Variant { kind: Kind::APACHE, is_pinned: true, clients: &CLIENTS },
    Variant::nginx(2, true, true, &ENDS),
    Variant::nginx(1, false, true, &ENDS),
    Variant::nginx(1, true, true, &ENDS),
    Variant::nginx(2, false, false, &ENDS),
    Variant::nginx(2, true, false, &ENDS),
    Variant::nginx(1, false, false, &ENDS),
    Variant::nginx(1, true, false, &ENDS),
];

struct Case {
    variant: Variant,
    size_kb: u32,
    clients: usize,
    /// Per arm, one of each round.
    arms: Vec<Vec<Measurement>>,
}

impl Case {
    fn text(&self) -> String {
        let plural = if self.clients == 1 { "" } else { "s" };
        format!("{} {} KB, {} client{plural}", self.variant.name(), self.size_kb, self.clients)
    }

    fn figures(&self, arm: usize, figure: impl Fn(&Measurement) -> f64) -> Vec<f64> {
        self.arms[arm].iter().map(figure).collect()
    }
}

pub(crate) fn run(options: &Options) -> Result<Report> {
    let (rounds, seconds, warmup) = if options.quick { (1, 0.9, 0.25) } else { (3, 3.0, 0.5) };
    let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
    let ours = Arm { name: "paths", paths: Some(Priorities::Equal) };
    let mut arms = vec![ours, Arm { name: "kernel", paths: None }];
    if options.trial.is_asked_for() {
        arms.push(Arm { name: trial::NAME, ..ours });
    }
    let mut cases = Vec::new();
    for variant in VARIANTS {
        for size_kb in pattern::SIZES_KB {
            for &clients in variant.clients {
                let case = Case { variant, size_kb, clients, arms: vec![Vec::new(); arms.len()] };
                if options.wants(&case.text()) {
                    cases.push(case);
                }
            }
        }
    }
    anyhow::ensure!(
        !cases.is_empty(),
        "no case of `web` contains {:?}",
        options.only.as_deref().unwrap_or_default()
    );
    let mut meter = Meter::new(options, cases.len() * arms.len() * rounds as usize);
    for is_pinned in [true, false] {
        let mut here: Vec<_> = cases.iter_mut().filter(|case| case.variant.is_pinned == is_pinned).collect();
        if here.is_empty() {
            continue;
        }
        let mut lab = if is_pinned { Lab::new(options, &arms, STEER)? } else { Lab::free(options, &arms)? };
        for round in 0..rounds {
            for case in &mut here {
                measure(&mut lab, case, round, (seconds, warmup), &mut meter)?;
            }
        }
    }
    let mut report = Report::new("web");
    let all: Vec<&Measurement> = cases.iter().flat_map(|case| case.arms.iter().flatten()).collect();
    describe(&mut report, options, (seconds, warmup, rounds), STEER, &all);
    report.method(
        "servers",
        "nginx with 2 workers where nothing else is said; Apache prefork with 100 processes; sendfile on; no logs",
    );
    if options.trial.is_asked_for() {
        report.method(trial::NAME, options.trial.method());
    }
    for case in &cases {
        rows(case, options, &mut report.rows);
    }
    report.figure = Some(figure(&cases));
    Ok(report)
}

/// One round of a case, on each arm.
fn measure(
    lab: &mut Lab<'_>,
    case: &mut Case,
    round: u32,
    (seconds, warmup): (f64, f64),
    meter: &mut Meter,
) -> Result<()> {
    lab.serve(case.variant.kind)?;
    lab.keep_connections(matches!(case.variant.kind, Kind::Nginx { keepalive: true, .. }));
    for arm in order(case.arms.len(), round) {
        let load = Load { size_kb: case.size_kb, standard: case.clients, preferred: false, seconds, warmup };
        let measurement = lab.measure(arm, &load, None)?;
        let text = format!("{} · {} · round {}", case.text(), lab.arms()[arm].name, round + 1);
        meter.step(&text, &measurement);
        case.arms[arm].push(measurement);
    }
    Ok(())
}

fn rows(case: &Case, options: &Options, rows: &mut Vec<Row>) {
    let mut add = |metric: (&str, &str, Better), aim: Option<f64>, figure: &dyn Fn(&Measurement) -> f64| {
        for (arm, name) in [(KERNEL, "kernel"), (TRIED, trial::NAME)].into_iter().take(case.arms.len() - 1) {
            let (ours, other) = (case.figures(OURS, figure), case.figures(arm, figure));
            let row = Row::new(case.text(), metric, &ours, Some((name, &other)));
            rows.push(row.aiming_at(aim.filter(|_| arm == KERNEL).map(Target::Ratio)));
        }
    };
    let aim = case.variant.aim(case.size_kb);
    let (among_many, alone) = (aim.filter(|_| case.clients == MANY), aim.filter(|_| case.clients == 1));
    add(("throughput", "req/s", Better::Higher), among_many, &|seen| seen.standard.throughput());
    add(("response time mean", "µs", Better::Lower), alone.map(|_| 1.1), &|seen| seen.standard.mean_us);
    add(("response time p50", "µs", Better::Lower), None, &|seen| seen.standard.p50_us);
    add(("response time p99", "µs", Better::Lower), among_many.map(|_| 1.0), &|seen| seen.standard.p99_us);
    for (metric, core) in [("server core busy", options.server_core), ("load core busy", options.load_core)] {
        add((metric, "%", Better::Lower), None, &|seen| seen.busy.get(core).copied().unwrap_or(0.0));
    }
}

fn figure(cases: &[Case]) -> Figure {
    let mut panels = Vec::new();
    for variant in VARIANTS {
        if !cases.iter().any(|case| case.variant == variant) {
            continue;
        }
        let series = |arm: usize, name: &str, points: &dyn Fn(&Case) -> Option<(f64, f64)>| Series {
            name: name.to_owned(),
            points: cases
                .iter()
                .filter(|case| case.variant == variant && !case.arms[arm].is_empty())
                .filter_map(points)
                .collect(),
        };
        let throughput = |arm: usize| {
            move |case: &Case| {
                let middle = median(&case.figures(arm, |seen| seen.standard.throughput()));
                (case.clients == MANY).then_some((f64::from(case.size_kb), middle))
            }
        };
        let response = |arm: usize, size_kb: u32| {
            move |case: &Case| {
                let middle = median(&case.figures(arm, |seen| seen.standard.mean_us));
                (case.size_kb == size_kb).then_some((case.clients as f64, middle))
            }
        };
        panels.push(Panel {
            title: format!("{}, {MANY} clients", variant.name()),
            x_label: "file size (KB)".into(),
            y_label: "requests/s".into(),
            series: vec![
                series(KERNEL, "kernel", &throughput(KERNEL)),
                series(OURS, "paths", &throughput(OURS)),
            ],
            ..Panel::default()
        });
        panels.push(Panel {
            title: format!("{}, response time", variant.name()),
            x_label: "clients".into(),
            y_label: "mean response time (µs)".into(),
            series: vec![
                series(KERNEL, "kernel, 1 KB", &response(KERNEL, 1)),
                series(OURS, "paths, 1 KB", &response(OURS, 1)),
                series(KERNEL, "kernel, 100 KB", &response(KERNEL, 100)),
                series(OURS, "paths, 100 KB", &response(OURS, 100)),
            ],
            ..Panel::default()
        });
    }
    Figure { title: "Unmodified web servers on paths and on the kernel".into(), panels }
}
