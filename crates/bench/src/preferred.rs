//! One preferred client among standard ones: what `prefer` and `extend` measure, with different schedulers behind the arm
//! that has priorities. Four arms in turn: paths with priorities (preferred 2, standard 0), paths with equal
//! priorities, the kernel, and the kernel as an administrator can set it up at best:
//!
//! ```text
//!   standard clients ──► :80  nginx or Apache
//!   preferred client ──► :81  a second instance, all of it SCHED_FIFO, on the same core
//!                             htb on the interface: what port 81 sends goes first
//! ```
//!
//! The preferred client has real-time priority on its own side in every arm alike, so that what is compared is the
//! server side. It thinks for a millisecond on average between its requests. Were it to ask without pause, with its
//! real-time priority it would take so much of the clients' core that the standard clients could no longer fill the
//! server: the outcome would have two states (a fast preferred client that starves the others on their own side, or a
//! full server), and runs would jump between them.
//!
//! Receive steering is on: without it the clients' core does much of the server host's protocol work, becomes the
//! bottleneck, and there is no queue at the server that a priority could shorten. Bodies that the clients do not compare
//! they leave in the kernel: with large files copying would fill their core, and the server would not be what is waited
//! for. An unloaded time belongs to each case: it is measured in the same run even when `--only` leaves it out.
//!
//! Response times and throughput come from plain rounds. Between being woken and running, the threads that serve the
//! preferred client are watched in further rounds (`trace.rs`), because watching costs time.

use anyhow::Result;

use crate::harness::{Arm, Lab, Load, Measurement, Meter, SECOND, describe, order};
use crate::plot::{Figure, Panel, Series};
use crate::report::{Better, Report, Row, median};
use crate::server::{Kind, Priorities};
use crate::trace::{Trace, Tracefs, Waits};
use crate::{Options, pattern};

const STANDARD_QUICK: [usize; 2] = [0, 96];
const SIZES_KB_QUICK: [u32; 3] = [1, 50, 500];
const KINDS: [Kind; 3] = [Kind::APACHE, Kind::Nginx { workers: 1, keepalive: false }, Kind::NGINX];

const PRIORITIES: usize = 0;
const EQUAL: usize = 1;
const KERNEL: usize = 2;
const ADMINISTRATOR: usize = 3;
/// By arm.
const NAMES: [&str; 4] = ["paths priorities", "paths equal", "kernel", "kernel administered"];
const STEER: bool = true;
/// Of a traced measurement, in the quick form and in full: its record must fit the buffer.
const TRACED_SECONDS: [f64; 2] = [0.5, 1.0];

/// What is one experiment's own.
pub(crate) struct Experiment {
    pub(crate) name: &'static str,
    /// Of the figure.
    pub(crate) title: &'static str,
    /// Of the daemon in the arm with priorities.
    pub(crate) priorities: Priorities,
    /// How many standard clients; 0 gives the unloaded response time.
    pub(crate) standard: [usize; 4],
}

impl Experiment {
    fn arms(&self) -> [Arm; 4] {
        let paths = [Some(self.priorities), Some(Priorities::Equal), None, None];
        std::array::from_fn(|arm| Arm { name: NAMES[arm], paths: paths[arm] })
    }
}

struct Case {
    kind: Kind,
    size_kb: u32,
    standard: usize,
    /// False: it is only there to tell the unloaded time.
    wanted: bool,
    /// Per arm, one of each round.
    arms: [Vec<Measurement>; 4],
    /// Per arm, one of each traced round.
    waits: [Vec<Waits>; 4],
}

impl Case {
    fn text(&self) -> String {
        format!("{} {} KB, {} clients", server_name(self.kind), self.size_kb, self.standard)
    }

    fn figures(&self, arm: usize, figure: impl Fn(&Measurement) -> f64) -> Vec<f64> {
        self.arms[arm].iter().map(figure).collect()
    }

    fn is_unloaded_of(&self, other: &Case) -> bool {
        self.standard == 0 && self.kind == other.kind && self.size_kb == other.size_kb
    }
}

fn server_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Nginx { workers: 1, .. } => "nginx 1 worker",
        Kind::Nginx { .. } => "nginx 2 workers",
        Kind::ApachePrefork { .. } => "apache",
    }
}

/// The cases asked for, and the unloaded ones that they need.
fn cases(experiment: &Experiment, options: &Options) -> Vec<Case> {
    let sizes_kb: &[u32] = if options.quick { &SIZES_KB_QUICK } else { &pattern::SIZES_KB };
    let standard: &[usize] = if options.quick { &STANDARD_QUICK } else { &experiment.standard };
    let mut cases: Vec<Case> = Vec::new();
    for kind in KINDS {
        for &size_kb in sizes_kb {
            let of_size = standard.iter().map(|&standard| {
                let arms = (Default::default(), Default::default());
                let case = Case { kind, size_kb, standard, wanted: true, arms: arms.0, waits: arms.1 };
                Case { wanted: options.wants(&case.text()), ..case }
            });
            let of_size: Vec<Case> = of_size.collect();
            if of_size.iter().any(|case| case.wanted) {
                cases.extend(of_size.into_iter().filter(|case| case.wanted || case.standard == 0));
            }
        }
    }
    cases
}

pub(crate) fn run(experiment: &Experiment, options: &Options) -> Result<Report> {
    let (rounds, seconds, warmup) = if options.quick { (1, 1.0, 0.25) } else { (3, 3.0, 0.5) };
    let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
    let mut cases = cases(experiment, options);
    anyhow::ensure!(
        !cases.is_empty(),
        "no case of `{}` contains {:?}",
        experiment.name,
        options.only.as_deref().unwrap_or_default()
    );
    let mut lab = Lab::new(options, &experiment.arms(), STEER)?;
    lab.administer(ADMINISTRATOR)?;
    lab.discard_bodies();
    let wanted = cases.iter().filter(|case| case.wanted).count();
    let mut meter = Meter::new(options, (cases.len() * rounds as usize + wanted) * NAMES.len());
    let mut untraced = None;
    for round in 0..rounds {
        for case in &mut cases {
            lab.serve(case.kind)?;
            // The unloaded time needs no long run.
            let seconds = if case.standard == 0 { seconds.min(1.0) } else { seconds };
            let load =
                Load { size_kb: case.size_kb, standard: case.standard, preferred: true, seconds, warmup };
            for arm in order(NAMES.len(), round) {
                let measurement = lab.measure(arm, &load, None)?;
                let what = format!("{} · {} · round {}", case.text(), NAMES[arm], round + 1);
                meter.step(&what, &measurement);
                case.arms[arm].push(measurement);
            }
            // While this server runs: once, after the first round.
            if round == 0 && case.wanted {
                let most = TRACED_SECONDS[usize::from(!options.quick)];
                let load = Load { seconds: seconds.min(most), ..load };
                untraced = trace(&mut lab, case, &load, &mut meter)?.or(untraced);
            }
        }
    }
    let mut report = Report::new(experiment.name);
    let all: Vec<&Measurement> = cases.iter().flat_map(|case| case.arms.iter().flatten()).collect();
    describe(&mut report, options, (seconds, warmup, rounds), STEER, &all);
    methods(&mut report, options, untraced.as_deref());
    for case in cases.iter().filter(|case| case.wanted) {
        rows(case, &cases, options, untraced.as_deref(), &mut report.rows);
    }
    report.figure = Some(figure(experiment, &cases));
    Ok(report)
}

/// A traced measurement on each arm; why there is none, where this machine does not let us trace.
fn trace(lab: &mut Lab<'_>, case: &mut Case, load: &Load, meter: &mut Meter) -> Result<Option<String>> {
    let _tracefs = Tracefs::ensure();
    if let Err(error) = Trace::permitted() {
        return Ok(Some(format!("{error:#}")));
    }
    for (arm, name) in NAMES.iter().enumerate() {
        let (measurement, waits) = lab.measure_waits(arm, load)?;
        meter.step(&format!("{} · {} · traced", case.text(), name), &measurement);
        case.waits[arm].push(waits);
    }
    Ok(None)
}

fn methods(report: &mut Report, options: &Options, untraced: Option<&str>) {
    report.method(
        "servers",
        "Apache prefork with 100 processes; nginx with 1 and with 2 workers; sendfile on; no logs",
    );
    let think = options.think_us;
    report.method(
        "preferred client",
        format!(
            "a process of its own, SCHED_FIFO 50 on the load core, {think} µs between requests, in every arm"
        ),
    );
    report.method(
        "clients",
        "compare one body in 64, and leave the others in the kernel (MSG_TRUNC), so that the server is the bottleneck",
    );
    report.method("priorities", "preferred 2, standard 0; the listen path of each class as the class");
    report.method(
        "kernel administered",
        format!(
            "a second instance of the server on port {} for the preferred client, SCHED_FIFO {} (chrt), same core; \
             htb on the server's interface, that port in the class with priority",
            SECOND.port,
            SECOND.realtime.unwrap_or(0)
        ),
    );
    report.method(
        "server side is the bottleneck",
        format!(
            "1 if the server's core was at least {SATURATED} % busy and the load's core had idle time left, {LEFT} % \
             or more"
        ),
    );
    let traced = match untraced {
        Some(why) => format!("not measured: {why}"),
        None => {
            "from sched_waking to sched_switch of the thread that opened the preferred client's file, within \
                 that request; in a traced round that gives no other figures"
                .to_owned()
        }
    };
    report.method("unblock to run", traced);
}

/// A core is full from here on; the accounting is by ticks.
const SATURATED: f64 = 95.0;
/// The idle time of a core that holds nothing up.
const LEFT: f64 = 1.0;

fn server_is_bottleneck(options: &Options, seen: &Measurement) -> bool {
    let core = |core: usize| seen.busy.get(core).copied().unwrap_or(0.0);
    core(options.server_core) >= SATURATED && core(options.load_core) <= 100.0 - LEFT
}

fn rows(case: &Case, cases: &[Case], options: &Options, untraced: Option<&str>, rows: &mut Vec<Row>) {
    let unloaded = cases.iter().find(|other| other.is_unloaded_of(case));
    for peer in [EQUAL, KERNEL, ADMINISTRATOR] {
        let mut add = |metric: (&str, &str, Better), figures: &dyn Fn(usize) -> Vec<f64>| {
            let peer = (NAMES[peer], &*figures(peer));
            rows.push(Row::new(case.text(), metric, &figures(PRIORITIES), Some(peer)));
        };
        let each = |figure: fn(&Measurement) -> f64| move |arm: usize| case.figures(arm, figure);
        add(("preferred mean", "µs", Better::Lower), &each(|seen| seen.preferred.mean_us));
        add(("preferred p50", "µs", Better::Lower), &each(|seen| seen.preferred.p50_us));
        add(("preferred p99", "µs", Better::Lower), &each(|seen| seen.preferred.p99_us));
        add(("preferred max", "µs", Better::Lower), &each(|seen| seen.preferred.max_us));
        if untraced.is_none() {
            let each = |figure: fn(&Waits) -> f64| {
                move |arm: usize| case.waits[arm].iter().map(figure).collect::<Vec<f64>>()
            };
            add(("unblock to run, mean", "µs", Better::Lower), &each(Waits::mean_us));
            add(("unblock to run, p99", "µs", Better::Lower), &each(Waits::p99_us));
            let raised =
                |arm: usize| case.waits[arm].iter().filter_map(Waits::raised_us).collect::<Vec<f64>>();
            add(("unblock to run at real-time priority, mean", "µs", Better::Lower), &raised);
            add(("unblocked per preferred request", "times", Better::Lower), &each(Waits::per_request));
            add(("in the run queue per preferred request", "µs", Better::Lower), &each(Waits::queued_us));
            add(
                ("preferred requests traced", "requests", Better::Higher),
                &each(|waits| waits.requests() as f64),
            );
        }
        let core = |core: usize| {
            move |arm: usize| case.figures(arm, |seen| seen.busy.get(core).copied().unwrap_or(0.0))
        };
        add(("server core busy", "%", Better::Lower), &core(options.server_core));
        add(("load core busy", "%", Better::Lower), &core(options.load_core));
        if case.standard == 0 {
            continue;
        }
        add(("server side is the bottleneck", "1 = yes", Better::Higher), &|arm| {
            case.figures(arm, |seen| f64::from(u8::from(server_is_bottleneck(options, seen))))
        });
        if let Some(unloaded) = unloaded {
            let times = |figure: fn(&Measurement) -> f64| {
                move |arm: usize| {
                    let alone = median(&unloaded.figures(arm, |seen| seen.preferred.mean_us)).max(1.0);
                    case.figures(arm, |seen| figure(seen) / alone)
                }
            };
            let (mean, p99) = (times(|seen| seen.preferred.mean_us), times(|seen| seen.preferred.p99_us));
            add(("preferred mean over unloaded mean", "times", Better::Lower), &mean);
            add(("preferred p99 over unloaded mean", "times", Better::Lower), &p99);
        }
        add(
            ("throughput", "req/s", Better::Higher),
            &each(|seen| seen.standard.throughput() + seen.preferred.throughput()),
        );
        add(("throughput of the rest", "req/s", Better::Higher), &each(|seen| seen.standard.throughput()));
    }
    if untraced.is_some() {
        let metric =
            ("unblock to run (not measured: this machine does not let us trace)", "µs", Better::Lower);
        rows.push(Row::new(case.text(), metric, &[], None));
    }
}

fn figure(experiment: &Experiment, cases: &[Case]) -> Figure {
    let mut panels = Vec::new();
    for kind in KINDS {
        let points = |arm: usize, standard: usize, figure: fn(&Measurement) -> f64| {
            let wanted = move |case: &&Case| case.kind == kind && case.standard == standard;
            let point = move |case: &Case| (f64::from(case.size_kb), median(&case.figures(arm, figure)));
            cases.iter().filter(wanted).map(point).collect()
        };
        let mut panel = |what: &str, y_label: &str, standard: usize, figure: fn(&Measurement) -> f64| {
            let series =
                |arm: usize| Series { name: NAMES[arm].to_owned(), points: points(arm, standard, figure) };
            panels.push(Panel {
                title: format!("{}, {what}", server_name(kind)),
                x_label: "file size (KB)".into(),
                y_label: y_label.into(),
                series: [KERNEL, PRIORITIES, EQUAL, ADMINISTRATOR].map(series).into(),
                ..Panel::default()
            });
        };
        panel("beside 96 clients", "preferred client, mean (µs)", 96, |seen| seen.preferred.mean_us);
        panel("alone", "preferred client, mean (µs)", 0, |seen| seen.preferred.mean_us);
        panel("96 clients", "requests/s of all", 96, |seen| {
            seen.standard.throughput() + seen.preferred.throughput()
        });
    }
    Figure { title: experiment.title.into(), panels }
}
