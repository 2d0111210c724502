//! `prefer`: one preferred client among standard ones. Three arms in turn: the kernel, paths with equal
//! priorities, and paths with priorities (preferred 2, listen 1, standard 0). The preferred client has
//! real-time priority on its own side in every arm alike, so that what is compared is the server side.
//!
//! The preferred client thinks for a millisecond on average between its requests. Were it to ask without
//! pause, with its real-time priority it would take so much of the clients' core that the standard
//! clients could no longer fill the server: the outcome would have two states (a fast preferred client
//! that starves the others on their own side, or a full server), and runs would jump between them.
//!
//! Receive steering is on: without it the clients' core does much of the server host's protocol work,
//! becomes the bottleneck, and there is no queue at the server that a priority could shorten.

use anyhow::Result;

use crate::harness::{Arm, Lab, Load, Measurement, Meter, describe, order};
use crate::plot::{Figure, Panel, Series};
use crate::report::{Better, Report, Row, median};
use crate::server::{Kind, Priorities};
use crate::{Options, pattern};

/// How many standard clients; 0 gives the unloaded response time.
const STANDARD: [usize; 4] = [0, 16, 48, 96];
const STANDARD_QUICK: [usize; 2] = [0, 96];

/// The arms; ours are the first and the last.
pub(crate) const ARMS: [Arm; 3] = [
    Arm { name: "paths priorities", paths: Some(Priorities::Preferred) },
    Arm { name: "kernel", paths: None },
    Arm { name: "paths equal", paths: Some(Priorities::Equal) },
];
pub(crate) const PRIORITIES: usize = 0;
pub(crate) const KERNEL: usize = 1;
pub(crate) const EQUAL: usize = 2;
pub(crate) const STEER: bool = true;

struct Case {
    kind: Kind,
    size_kb: u32,
    standard: usize,
    arms: [Vec<Measurement>; 3],
}

impl Case {
    fn text(&self) -> String {
        format!("{} {} KB, {} standard clients", self.kind.name(), self.size_kb, self.standard)
    }

    fn figures(&self, arm: usize, figure: impl Fn(&Measurement) -> f64) -> Vec<f64> {
        self.arms[arm].iter().map(figure).collect()
    }
}

pub(crate) fn run(options: &Options) -> Result<Report> {
    let (rounds, seconds, warmup) = if options.quick { (1, 1.0, 0.25) } else { (3, 4.0, 0.5) };
    let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
    let standard: &[usize] = if options.quick { &STANDARD_QUICK } else { &STANDARD };
    let mut cases = Vec::new();
    for kind in [Kind::APACHE, Kind::NGINX] {
        for size_kb in pattern::SIZES_KB {
            for standard in standard {
                let case = Case { kind, size_kb, standard: *standard, arms: Default::default() };
                if options.wants(&case.text()) {
                    cases.push(case);
                }
            }
        }
    }
    anyhow::ensure!(
        !cases.is_empty(),
        "no case of `prefer` contains {:?}",
        options.only.as_deref().unwrap_or_default()
    );
    let mut lab = Lab::new(options, &ARMS, STEER)?;
    let mut meter = Meter::new(options, cases.len() * ARMS.len() * rounds as usize);
    for round in 0..rounds {
        for case in &mut cases {
            lab.serve(case.kind)?;
            for arm in order(ARMS.len(), round) {
                // The unloaded time needs no long run.
                let seconds = if case.standard == 0 { seconds.min(1.0) } else { seconds };
                let load =
                    Load { size_kb: case.size_kb, standard: case.standard, preferred: true, seconds, warmup };
                let measurement = lab.measure(arm, &load, None)?;
                meter.step(
                    &format!("{} · {} · round {}", case.text(), ARMS[arm].name, round + 1),
                    &measurement,
                );
                case.arms[arm].push(measurement);
            }
        }
    }
    let mut report = Report::new("prefer");
    let all: Vec<&Measurement> = cases.iter().flat_map(|case| case.arms.iter().flatten()).collect();
    describe(&mut report, options, (seconds, warmup, rounds), STEER, &all);
    report.method("servers", "Apache prefork with 100 processes; nginx with 2 workers; sendfile on; no logs");
    let think = options.think_us;
    report.method(
        "preferred client",
        format!(
            "a process of its own, SCHED_FIFO 50 on the load core, {think} µs between requests, in every arm"
        ),
    );
    report.method("priorities", "preferred 2 (its listen path too), listen 1, standard 0");
    for case in &cases {
        rows(case, &cases, options, &mut report.rows);
    }
    report.figure = Some(figure(&cases));
    Ok(report)
}

fn rows(case: &Case, cases: &[Case], options: &Options, rows: &mut Vec<Row>) {
    let pairs = [(PRIORITIES, EQUAL), (PRIORITIES, KERNEL), (EQUAL, KERNEL)];
    for (ours, peer) in pairs {
        let case_text = if ours == EQUAL { format!("{}, equal", case.text()) } else { case.text() };
        let mut add = |metric: (&str, &str, Better), figure: &dyn Fn(&Measurement) -> f64| {
            let peer = (ARMS[peer].name, &*case.figures(peer, figure));
            rows.push(Row::new(case_text.clone(), metric, &case.figures(ours, figure), Some(peer)));
        };
        add(("preferred mean", "µs", Better::Lower), &|seen| seen.preferred.mean_us);
        add(("preferred p99", "µs", Better::Lower), &|seen| seen.preferred.p99_us);
        add(("preferred max", "µs", Better::Lower), &|seen| seen.preferred.max_us);
        if case.standard == 0 {
            continue;
        }
        add(("throughput", "req/s", Better::Higher), &|seen| {
            seen.standard.throughput() + seen.preferred.throughput()
        });
        add(("throughput of the rest", "req/s", Better::Higher), &|seen| seen.standard.throughput());
        let core = |core: usize| move |seen: &Measurement| seen.busy.get(core).copied().unwrap_or(0.0);
        add(("server core busy", "%", Better::Lower), &core(options.server_core));
        add(("load core busy", "%", Better::Lower), &core(options.load_core));
        let unloaded =
            |other: &&Case| other.standard == 0 && other.kind == case.kind && other.size_kb == case.size_kb;
        if let Some(unloaded) = cases.iter().find(unloaded) {
            let times = |arm: usize| -> Vec<f64> {
                let alone = median(&unloaded.figures(arm, |seen| seen.preferred.mean_us)).max(1.0);
                case.figures(arm, |seen| seen.preferred.mean_us / alone)
            };
            let metric = ("preferred mean over unloaded", "times", Better::Lower);
            let peer = (ARMS[peer].name, &*times(peer));
            rows.push(Row::new(case_text.clone(), metric, &times(ours), Some(peer)));
        }
    }
}

fn figure(cases: &[Case]) -> Figure {
    let mut panels = Vec::new();
    for kind in [Kind::APACHE, Kind::NGINX] {
        for (title, most) in [("beside 96 standard clients", true), ("alone", false)] {
            let points = |arm: usize| {
                let wanted =
                    move |case: &&Case| case.kind == kind && case.standard == if most { 96 } else { 0 };
                let point = move |case: &Case| {
                    let middle = median(&case.figures(arm, |seen| seen.preferred.mean_us));
                    (f64::from(case.size_kb), middle)
                };
                cases.iter().filter(wanted).map(point).collect()
            };
            let series = |arm: usize| Series { name: ARMS[arm].name.to_owned(), points: points(arm) };
            panels.push(Panel {
                title: format!("{}, {title}", kind.name()),
                x_label: "file size (KB)".into(),
                y_label: "preferred client, mean (µs)".into(),
                series: [KERNEL, PRIORITIES, EQUAL].map(series).into(),
                ..Panel::default()
            });
        }
    }
    Figure { title: "A preferred client among standard ones".into(), panels }
}
