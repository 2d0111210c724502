//! Ours and the kernel in turn, in each placement: what `stream`, `rr`, `conn`, `udp`, `dns`, `redis` and `local` are
//! made of. An experiment lists its cases and metrics in a [`Plan`] and says how one case is measured on one arm of a
//! [`Bed`]; [`compare`] does the rest: order, rounds, rows, figure.
//!
//! ```text
//!   placement      program and engine    the other side's program
//!   pinned apart   core a                core b
//!   free           any                   any               the engine is not pinned, so not real-time either
//!   one core       core a                core a
//!   engine alone   engine core a,        core b            the engine spins; the kernel's arm is as in `pinned apart`,
//!                  program core b                          since there too each side has what it asks for; a
//!                                                          peer, stack and program in one, spins on core a
//! ```
//! Both arms run the same programs with the same arguments; peers ([`crate::peer`]), where they are asked for, do the
//! same work in a program of their own. The other side is the kernel's in all (save in `local`);
//! congestion control is cubic by the routes. Receive steering is off, as on a machine that nobody has tuned: the
//! kernel's receive work of a side is done on the core that sends. `--steer true` shows the other way.

mod bed;

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};

use crate::harness::{Measurement, Meter, describe_conditions, order};
use crate::plot::{Figure, Panel, Series};
use crate::report::{Better, Report, Row, Target, median, number};
use crate::{Options, trial};

pub(crate) use bed::{Bed, Load, Sides};

/// Ours is the first arm.
pub(crate) const PATHS: usize = 0;
/// The kernel is the second.
pub(crate) const KERNEL: usize = 1;
/// Their names, by arm. Peers follow.
pub(crate) const ARMS: [&str; 2] = ["paths", "kernel"];

/// Who runs on which core; see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Apart,
    Free,
    OneCore,
    EngineAlone,
}

/// All placements; most is measured in [`Placement::ALL`] only.
pub(crate) const EVERYWHERE: [Placement; 4] =
    [Placement::Apart, Placement::Free, Placement::OneCore, Placement::EngineAlone];

impl Placement {
    /// Those in which everything is measured.
    pub(crate) const ALL: [Placement; 3] = [Placement::Apart, Placement::Free, Placement::OneCore];

    /// Its name in cases.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Placement::Apart => "pinned apart",
            Placement::Free => "free",
            Placement::OneCore => "one core",
            Placement::EngineAlone => "engine alone",
        }
    }

    /// The core of the program under test; `ours`: on an arm with an engine.
    fn program(self, ours: bool, options: &Options) -> Option<usize> {
        match self {
            Placement::Free => None,
            Placement::EngineAlone if ours => Some(options.load_core),
            _ => Some(options.server_core),
        }
    }

    /// The core of the other side.
    fn other_side(self, options: &Options) -> Option<usize> {
        match self {
            Placement::Free => None,
            Placement::OneCore => Some(options.server_core),
            Placement::Apart | Placement::EngineAlone => Some(options.load_core),
        }
    }

    /// The `[engine]` part of the daemon's configuration.
    fn engine(self, options: &Options) -> String {
        let cpu = options.server_core;
        match self {
            Placement::Free => String::new(),
            Placement::Apart | Placement::OneCore => format!("[engine]\ncpu = {cpu}\n"),
            // The most that may be asked for: it never sleeps while requests come.
            Placement::EngineAlone => format!("[engine]\ncpu = {cpu}\nspin_us = 10000\n"),
        }
    }
}

/// One figure of each case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    /// Name, unit, good direction.
    pub(crate) what: (&'static str, &'static str, Better),
    /// What it ought to be, by placement.
    pub(crate) target: fn(Placement) -> Option<Target>,
    /// Whether the figure shows it.
    pub(crate) drawn: bool,
}

impl Metric {
    /// One that is drawn and should be at least (or, where less is better, at most) so many times the kernel's.
    pub(crate) const fn aimed(
        what: (&'static str, &'static str, Better),
        target: fn(Placement) -> Option<Target>,
    ) -> Metric {
        Metric { what, target, drawn: true }
    }

    /// One without a target, in the table only.
    pub(crate) const fn plain(what: (&'static str, &'static str, Better)) -> Metric {
        Metric { what, target: |_| None, drawn: false }
    }
}

/// One thing to compare.
pub(crate) struct Case {
    /// Its name; that of the placement is added.
    pub(crate) text: String,
    /// Where it is measured.
    pub(crate) placements: &'static [Placement],
    /// What is measured of it.
    pub(crate) metrics: &'static [Metric],
}

impl Case {
    /// One in each of [`Placement::ALL`].
    pub(crate) fn everywhere(text: String, metrics: &'static [Metric]) -> Case {
        Case { text, placements: &Placement::ALL, metrics }
    }
}

/// An experiment.
pub(crate) struct Plan {
    /// Its name.
    pub(crate) name: &'static str,
    /// Above its figure.
    pub(crate) title: &'static str,
    /// What is compared.
    pub(crate) cases: Vec<Case>,
    /// Where both sides are.
    pub(crate) sides: Sides,
    /// Rounds, seconds and warm-up: full, and quick.
    pub(crate) timing: [(u32, f64, f64); 2],
}

/// One measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// By metric of the case.
    pub(crate) figures: Vec<f64>,
    /// How busy each core was, in percent.
    pub(crate) busy: Vec<f64>,
    /// What processes of others took of a core.
    pub(crate) others: f64,
    /// Requests that failed.
    pub(crate) errors: u64,
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) rounds: u32,
    pub(crate) seconds: f64,
    pub(crate) warmup: f64,
}

impl Timing {
    fn new(options: &Options, [full, quick]: [(u32, f64, f64); 2]) -> Timing {
        let (rounds, seconds, warmup) = if options.quick { quick } else { full };
        Timing {
            rounds: options.rounds.unwrap_or(rounds),
            seconds: options.seconds.unwrap_or(seconds),
            warmup: warmup.min(options.seconds.unwrap_or(warmup)),
        }
    }
}

/// A case in one placement, with what was seen on each arm.
struct Placed<'p> {
    case: &'p Case,
    /// Which of the plan's cases.
    index: usize,
    placement: Placement,
    text: String,
    /// By arm.
    seen: Vec<Vec<Seen>>,
}

/// The names of all arms.
fn arm_names(options: &Options) -> Vec<&'static str> {
    let peers = options.peers.iter().map(|peer| peer.name());
    ARMS.into_iter().chain(peers).chain(options.trial.is_asked_for().then_some(trial::NAME)).collect()
}

/// Measures all cases of a plan. `measure` gets the bed, the arm, the case's index in the plan, and how long; it
/// returns one figure for each metric.
pub(crate) fn compare(
    options: &Options,
    plan: &Plan,
    mut measure: impl FnMut(&mut Bed<'_>, usize, usize, Timing) -> Result<Seen>,
) -> Result<Report> {
    let timing = Timing::new(options, plan.timing);
    let arms = arm_names(options);
    let mut cases = cases(options, plan, arms.len());
    let name = plan.name;
    ensure!(
        !cases.is_empty(),
        "no case of `{name}` contains {:?}",
        options.only.as_deref().unwrap_or_default()
    );
    let mut meter = Meter::new(options, cases.len() * arms.len() * timing.rounds as usize);
    for placement in EVERYWHERE {
        let mut here: Vec<&mut Placed<'_>> =
            cases.iter_mut().filter(|placed| placed.placement == placement).collect();
        if here.is_empty() {
            continue;
        }
        let mut bed = Bed::new(options, placement, plan.sides)?;
        for round in 0..timing.rounds {
            for placed in &mut here {
                for arm in order(arms.len(), round) {
                    let seen = measure(&mut bed, arm, placed.index, timing)
                        .and_then(|seen| bed.check(arm).map(|()| seen))
                        .with_context(|| format!("{} on arm `{}`", placed.text, arms[arm]))?;
                    step(&mut meter, placed, (arms[arm], round), &seen);
                    placed.seen[arm].push(seen);
                }
            }
        }
    }
    Ok(report(options, plan, timing, (&arms, &cases)))
}

fn cases<'p>(options: &Options, plan: &'p Plan, arms: usize) -> Vec<Placed<'p>> {
    let mut cases = Vec::new();
    for (index, case) in plan.cases.iter().enumerate() {
        for &placement in case.placements {
            let text = format!("{}, {}", case.text, placement.name());
            if options.wants(&text) {
                cases.push(Placed { case, index, placement, text, seen: vec![Vec::new(); arms] });
            }
        }
    }
    cases
}

fn step(meter: &mut Meter, placed: &Placed<'_>, (arm, round): (&str, u32), seen: &Seen) {
    let mut text = format!("{} · {} · round {}", placed.text, arm, round + 1);
    for (metric, figure) in placed.case.metrics.iter().zip(&seen.figures).take(3) {
        let _ = write!(text, " · {} {} {}", metric.what.0, number(*figure), metric.what.1);
    }
    if seen.errors > 0 {
        let _ = write!(text, " · {} ERRORS", seen.errors);
    }
    meter
        .step(&text, &Measurement { busy: seen.busy.clone(), others: seen.others, ..Measurement::default() });
}

fn report(options: &Options, plan: &Plan, timing: Timing, (arms, cases): (&[&str], &[Placed<'_>])) -> Report {
    let mut report = Report::new(plan.name);
    let Timing { rounds, seconds, warmup } = timing;
    report.method(
        "timing",
        format!("{rounds} rounds, arms in turn; {seconds} s each after {warmup} s of warm-up; medians"),
    );
    let (a, b) = (options.server_core, options.load_core);
    report.method(
        "placement",
        format!(
            "server (and the daemon's engine) and client: pinned apart on cores {a} and {b}; free; one core, {a}; engine \
             alone: a spinning engine on {a}, both programs on {b} (the kernel's as pinned apart)"
        ),
    );
    report.method("network", plan.sides.method());
    for peer in &options.peers {
        report.method(peer.name(), peer.method());
    }
    if options.trial.is_asked_for() {
        report.method(trial::NAME, options.trial.method());
    }
    for placed in cases {
        rows(options, placed, arms, &mut report.rows);
    }
    let all = || cases.iter().flat_map(|placed| placed.seen.iter().flatten());
    let others = all().map(|seen| seen.others).fold(0.0, f64::max);
    let errors = all().map(|seen| seen.errors).sum();
    describe_conditions(&mut report, options, false, (errors, "requests"), others);
    report.figure = Some(figure(plan, arms, cases));
    report
}

fn rows(options: &Options, placed: &Placed<'_>, arms: &[&str], rows: &mut Vec<Row>) {
    let mut add = |what, target: Option<Target>, figure: &dyn Fn(&Seen) -> f64| {
        let of = |arm: usize| placed.seen[arm].iter().map(figure).collect::<Vec<f64>>();
        for (arm, name) in arms.iter().enumerate().skip(KERNEL) {
            let row = Row::new(placed.text.clone(), what, &of(PATHS), Some((name, &of(arm))));
            // Targets are of the kernel's figure.
            rows.push(row.aiming_at(target.filter(|_| arm == KERNEL)));
        }
    };
    for (index, metric) in placed.case.metrics.iter().enumerate() {
        add(metric.what, (metric.target)(placed.placement), &|seen| seen.figures[index]);
    }
    for (name, core) in [("server core busy", options.server_core), ("load core busy", options.load_core)] {
        let busy = |seen: &Seen| seen.busy.get(core).copied().unwrap_or(0.0);
        add((name, "%", Better::Lower), None, &busy);
    }
}

/// A panel of bars for each drawn metric in each placement.
fn figure(plan: &Plan, arms: &[&str], cases: &[Placed<'_>]) -> Figure {
    let mut drawn: Vec<(&str, &str)> = Vec::new();
    for metric in plan.cases.iter().flat_map(|case| case.metrics).filter(|metric| metric.drawn) {
        let name = (metric.what.0, metric.what.1);
        if !drawn.contains(&name) {
            drawn.push(name);
        }
    }
    let mut panels = Vec::new();
    for (name, unit) in drawn {
        let index_in = |case: &Case| case.metrics.iter().position(|metric| metric.what.0 == name);
        for placement in EVERYWHERE {
            let here: Vec<(&Placed<'_>, usize)> = cases
                .iter()
                .filter(|placed| placed.placement == placement)
                .filter_map(|placed| Some((placed, index_in(placed.case)?)))
                .collect();
            let drawn = [KERNEL, PATHS].into_iter().chain(KERNEL + 1..arms.len());
            let series = drawn.map(|arm| {
                let middle = |(placed, index): &(&Placed<'_>, usize)| {
                    let figures = placed.seen[arm].iter().map(|seen| seen.figures[*index]);
                    median(&figures.collect::<Vec<_>>())
                };
                let points = here.iter().enumerate().map(|(at, placed)| (at as f64, middle(placed)));
                Series { name: arms[arm].into(), points: points.collect() }
            });
            panels.push(Panel {
                title: format!("{name}, {}", placement.name()),
                y_label: unit.into(),
                categories: here.iter().map(|(placed, _)| placed.case.text.clone()).collect(),
                series: series.collect(),
                ..Panel::default()
            });
        }
    }
    Figure { title: plan.title.into(), panels }
}
