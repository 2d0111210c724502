//! `web`: static files over a new connection per request, against size and number of clients; nginx
//! with two workers and Apache prefork with a hundred processes; the kernel (cubic) and ours in turn.
//!
//! Receive steering is on, as in `prefer`: each host's protocol work is done on its own core, as on two
//! machines, and the server side is the bottleneck. Without it the clients' core does the kernel server's
//! receive work, and is itself what the kernel waits for (100 % busy, the server's 82 to 99 %); the kernel
//! then has more of both cores than ours has: with Apache up to twice the figure. `--steer false` shows that.

use anyhow::Result;

use crate::harness::{Arm, Lab, Load, Measurement, Meter, describe, order};
use crate::plot::{Figure, Panel, Series};
use crate::report::{Better, Report, Row, median};
use crate::server::{Kind, Priorities};
use crate::{Options, pattern};

/// How many standard clients.
const CLIENTS: [usize; 4] = [1, 16, 48, 96];
const OURS: usize = 0;
const KERNEL: usize = 1;
const STEER: bool = true;

struct Case {
    kind: Kind,
    size_kb: u32,
    clients: usize,
    /// Per arm, one of each round.
    arms: [Vec<Measurement>; 2],
}

impl Case {
    fn text(&self) -> String {
        let plural = if self.clients == 1 { "" } else { "s" };
        format!("{} {} KB, {} client{plural}", self.kind.name(), self.size_kb, self.clients)
    }

    fn figures(&self, arm: usize, figure: impl Fn(&Measurement) -> f64) -> Vec<f64> {
        self.arms[arm].iter().map(figure).collect()
    }
}

pub(crate) fn run(options: &Options) -> Result<Report> {
    let (rounds, seconds, warmup) = if options.quick { (1, 0.9, 0.25) } else { (3, 3.0, 0.5) };
    let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
    let mut cases = Vec::new();
    for kind in [Kind::NGINX, Kind::APACHE] {
        for size_kb in pattern::SIZES_KB {
            for clients in CLIENTS {
                let case = Case { kind, size_kb, clients, arms: [Vec::new(), Vec::new()] };
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
    let arms = [Arm { name: "paths", paths: Some(Priorities::Equal) }, Arm { name: "kernel", paths: None }];
    let mut lab = Lab::new(options, &arms, STEER)?;
    let mut meter = Meter::new(options, cases.len() * arms.len() * rounds as usize);
    for round in 0..rounds {
        for case in &mut cases {
            lab.serve(case.kind)?;
            for arm in order(arms.len(), round) {
                let load =
                    Load { size_kb: case.size_kb, standard: case.clients, preferred: false, seconds, warmup };
                let measurement = lab.measure(arm, &load, None)?;
                meter.step(
                    &format!("{} · {} · round {}", case.text(), arms[arm].name, round + 1),
                    &measurement,
                );
                case.arms[arm].push(measurement);
            }
        }
    }
    let mut report = Report::new("web");
    let all: Vec<&Measurement> = cases.iter().flat_map(|case| case.arms.iter().flatten()).collect();
    describe(&mut report, options, (seconds, warmup, rounds), STEER, &all);
    report.method("servers", "nginx with 2 workers; Apache prefork with 100 processes; sendfile on; no logs");
    for case in &cases {
        rows(case, options, &mut report.rows);
    }
    report.figure = Some(figure(&cases));
    Ok(report)
}

fn rows(case: &Case, options: &Options, rows: &mut Vec<Row>) {
    let mut add = |metric: (&str, &str, Better), figure: &dyn Fn(&Measurement) -> f64| {
        let (ours, kernel) = (case.figures(OURS, figure), case.figures(KERNEL, figure));
        rows.push(Row::new(case.text(), metric, &ours, Some(("kernel", &kernel))));
    };
    add(("throughput", "req/s", Better::Higher), &|seen| seen.standard.throughput());
    add(("response time mean", "µs", Better::Lower), &|seen| seen.standard.mean_us);
    add(("response time p50", "µs", Better::Lower), &|seen| seen.standard.p50_us);
    add(("response time p99", "µs", Better::Lower), &|seen| seen.standard.p99_us);
    for (metric, core) in [("server core busy", options.server_core), ("load core busy", options.load_core)] {
        add((metric, "%", Better::Lower), &|seen| seen.busy.get(core).copied().unwrap_or(0.0));
    }
}

fn figure(cases: &[Case]) -> Figure {
    let mut panels = Vec::new();
    for kind in [Kind::NGINX, Kind::APACHE] {
        let series = |arm: usize, name: &str, points: &dyn Fn(&Case) -> Option<(f64, f64)>| Series {
            name: name.to_owned(),
            points: cases
                .iter()
                .filter(|case| case.kind == kind && !case.arms[arm].is_empty())
                .filter_map(points)
                .collect(),
        };
        let throughput = |arm: usize| {
            move |case: &Case| {
                let middle = median(&case.figures(arm, |seen| seen.standard.throughput()));
                (case.clients == 96).then_some((f64::from(case.size_kb), middle))
            }
        };
        let response = |arm: usize, size_kb: u32| {
            move |case: &Case| {
                let middle = median(&case.figures(arm, |seen| seen.standard.mean_us));
                (case.size_kb == size_kb).then_some((case.clients as f64, middle))
            }
        };
        panels.push(Panel {
            title: format!("{}, 96 clients", kind.name()),
            x_label: "file size (KB)".into(),
            y_label: "requests/s".into(),
            series: vec![
                series(KERNEL, "kernel", &throughput(KERNEL)),
                series(OURS, "paths", &throughput(OURS)),
            ],
            ..Panel::default()
        });
        panels.push(Panel {
            title: format!("{}, response time", kind.name()),
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
