//! `idle`: what foreground keeps of its speed beside unlimited background, and what background gets of the rest
//! (Eggert and Touch, "End-System Support for Idle-Time Networking", 2001, §II.C and §V).
//!
//! ```text
//!   server host, core 0                     forwarding host         client host, core 1
//!   foreground sender, 3 flows ──┐          tbf: 100 Mbit/s,
//!   background sender, 3 flows ──┴─ eth0 ═► or 1 Gbit/s ══════════► receiver of both
//! ```
//! Foreground is TCP or UDP, as much as goes ("full") or 10 ms in every 100 ("bursty"); background is TCP or UDP, as
//! much as goes. In a further case foreground is silent, and in another both are the clients of nginx. The senders are
//! the same program in every arm (`load/bulk.rs`). Arms, in turn within each round:
//!
//! - *paths*: background is started with `scoutline run --background` (for nginx: a class with `idle = true`), and the
//!   device has `rate`, the link's;
//! - *no mechanism*; *nice* 19; *SCHED_IDLE*: the kernel, background started so;
//! - *htb*: the kernel, and an administrator's two classes at the link's rate, background's last;
//! - a congestion control of the kernel's that yields (TCP-LP, LEDBAT), where it has one.
//!
//! A share is one of what the same arm does alone in the same round. Beyond the paper: latency, what background gets,
//! and how fast it goes and comes.

mod bed;
mod rows;

use std::collections::HashMap;

use anyhow::Result;

use crate::Options;
use crate::harness::{Measurement, Meter, order};
use crate::load::bulk::{Protocol, Shape};
use crate::report::Report;
use crate::testbed::Link;

use bed::Bed;

/// The faster link has jumbo frames: this machine cannot forward and receive the 170,000 small ones a second that twice
/// its rate comes to, on one core, in any arm.
const LINKS: [Link; 2] = [Link::new(100_000_000, 1500), Link::new(1_000_000_000, 9000)];
const LINKS_QUICK: [Link; 1] = [LINKS[0]];
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
const SHAPES: [Shape; 2] = [Shape::Full, Shape::Bursty];
/// What a client of nginx in the foreground asks for, and how long it thinks on average, in microseconds.
const WEB_SIZE_KB: u32 = 50;
const WEB_THINK_US: u64 = 20_000;
/// What clients in the background ask for, without a thought.
const WEB_BACKGROUND_KB: u32 = 500;
const WEB_BACKGROUND_CLIENTS: usize = 8;
/// Behind our device's queues nothing is steered, so that each side pays for its own work.
const STEER: bool = true;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// By the senders of `load/bulk.rs`.
    Bulk { foreground: Option<(Protocol, Shape)>, background: Option<Protocol> },
    /// By nginx.
    Web { foreground: bool, background: bool },
}

impl Work {
    fn text(self) -> String {
        let side = |protocol: Option<Protocol>| protocol.map_or("nothing", Protocol::name);
        match self {
            Work::Bulk { foreground: Some((protocol, shape)), background } => {
                let shape = if shape == Shape::Full { "full" } else { "bursty" };
                format!("{} {shape} beside {}", protocol.name(), side(background))
            }
            Work::Bulk { foreground: None, background } => format!("silence beside {}", side(background)),
            Work::Web { foreground, background } => {
                let foreground =
                    if foreground { format!("nginx {WEB_SIZE_KB} KB") } else { "silence".into() };
                let background = if background {
                    format!("{WEB_BACKGROUND_CLIENTS} clients of {WEB_BACKGROUND_KB} KB")
                } else {
                    "nothing".to_owned()
                };
                format!("{foreground} beside {background}")
            }
        }
    }

    /// The foreground of this case, alone.
    fn alone(self) -> Option<Work> {
        match self {
            Work::Bulk { foreground, .. } => foreground.map(|_| Work::Bulk { foreground, background: None }),
            Work::Web { .. } => Some(Work::Web { foreground: true, background: false }),
        }
    }

    /// The background of this case, alone; where the capacity of the link does not tell what it could have got.
    fn unlimited(self) -> Option<Work> {
        match self {
            Work::Bulk { .. } => None,
            Work::Web { .. } => Some(Work::Web { foreground: false, background: true }),
        }
    }

    /// The cases of one link.
    fn all() -> Vec<Work> {
        let mut all = Vec::new();
        for shape in SHAPES {
            for foreground in PROTOCOLS {
                let foreground = Some((foreground, shape));
                all.extend(
                    PROTOCOLS.map(|background| Work::Bulk { foreground, background: Some(background) }),
                );
            }
        }
        all.extend(PROTOCOLS.map(|background| Work::Bulk { foreground: None, background: Some(background) }));
        all.push(Work::Web { foreground: true, background: true });
        all
    }
}

/// What one side of a measurement came to.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    /// Bits per second on the link, headers included; of nginx those of bodies.
    rate: f64,
    p50_us: f64,
    p99_us: f64,
}

/// One measurement.
#[derive(Clone, Debug, Default)]
struct Seen {
    foreground: Traffic,
    background: Traffic,
    yield_p50_us: f64,
    yield_p99_us: f64,
    reclaim_p50_us: f64,
    reclaim_p99_us: f64,
    errors: u64,
    busy: Vec<f64>,
    others: f64,
}

/// All measurements of one link: by what was sent and by arm, one of each round.
#[derive(Default)]
struct Results {
    seen: HashMap<Work, Vec<Vec<Seen>>>,
}

impl Results {
    fn add(&mut self, work: Work, arm: usize, seen: Seen) {
        let arms = self.seen.entry(work).or_default();
        if arms.len() <= arm {
            arms.resize_with(arm + 1, Vec::new);
        }
        arms[arm].push(seen);
    }

    /// The rounds of one arm.
    fn of(&self, work: Work, arm: usize) -> &[Seen] {
        self.seen.get(&work).and_then(|arms| arms.get(arm)).map_or(&[], Vec::as_slice)
    }
}

/// The cases of one link that are asked for, and all that must be measured for them.
struct Plan {
    link: Link,
    cases: Vec<Work>,
    works: Vec<Work>,
}

impl Plan {
    fn new(options: &Options, link: Link) -> Plan {
        let cases: Vec<Work> =
            Work::all().into_iter().filter(|case| options.wants(&case_text(link, *case))).collect();
        let mut works = Vec::new();
        for case in &cases {
            for work in case.alone().into_iter().chain(case.unlimited()).chain([*case]) {
                if !works.contains(&work) {
                    works.push(work);
                }
            }
        }
        Plan { link, cases, works }
    }
}

fn case_text(link: Link, work: Work) -> String {
    let rate = match link.rate {
        rate if rate >= 1_000_000_000 => format!("{} Gbit/s", rate / 1_000_000_000),
        rate => format!("{} Mbit/s", rate / 1_000_000),
    };
    format!("{rate}, {}", work.text())
}

pub(crate) fn run(options: &Options) -> Result<Report> {
    let (rounds, seconds, warmup) = if options.quick { (2, 1.0, 0.5) } else { (10, 2.0, 1.0) };
    let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
    let links: &[Link] = if options.quick { &LINKS_QUICK } else { &LINKS };
    let plans: Vec<Plan> = links.iter().map(|&link| Plan::new(options, link)).collect();
    anyhow::ensure!(
        plans.iter().any(|plan| !plan.cases.is_empty()),
        "no case of `idle` contains {:?}",
        options.only.as_deref().unwrap_or_default()
    );
    let arms = bed::arms();
    let total: usize = plans.iter().map(|plan| plan.works.len()).sum();
    let mut meter = Meter::new(options, total * arms.len() * rounds as usize);
    let mut done = Vec::new();
    for plan in plans.into_iter().filter(|plan| !plan.cases.is_empty()) {
        let mut bed = Bed::new(options, &arms, plan.link)?;
        let mut results = Results::default();
        for round in 0..rounds {
            for &work in &plan.works {
                for arm in order(arms.len(), round) {
                    let seen = bed.measure(arm, work, seconds, warmup)?;
                    let case = case_text(plan.link, work);
                    meter.step(
                        &format!("{case} · {} · round {}{}", arms[arm].name, round + 1, brief(&seen)),
                        &Measurement {
                            busy: seen.busy.clone(),
                            others: seen.others,
                            ..Measurement::default()
                        },
                    );
                    results.add(work, arm, seen);
                }
            }
        }
        done.push((plan, results));
    }
    let mut report = Report::new("idle");
    rows::methods(&mut report, options, &arms, (seconds, warmup, rounds), &done);
    for (plan, results) in &done {
        for &case in &plan.cases {
            rows::rows(plan.link, case, results, &arms, options, &mut report.rows);
        }
    }
    report.figure = Some(rows::figure(&done, &arms));
    Ok(report)
}

/// A measurement in a few words, for the one who waits.
fn brief(seen: &Seen) -> String {
    let side = |name: &str, traffic: &Traffic| match traffic.rate {
        rate if rate > 0.0 => {
            format!(
                " · {name} {:.1} Mbit/s, p50 {:.0} p99 {:.0} µs",
                rate / 1e6,
                traffic.p50_us,
                traffic.p99_us
            )
        }
        _ => String::new(),
    };
    side("fg", &seen.foreground) + &side("bg", &seen.background)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_cases_of_bulk_traffic_with_all_that_they_are_compared_to() {
        let pairs = |work: &Work| matches!(work, Work::Bulk { foreground: Some(_), background: Some(_) });
        assert_eq!(Work::all().iter().filter(|work| pairs(work)).count(), 8);
        let options = Options { only: Some("1 Gbit/s, TCP bursty beside UDP".into()), ..Options::default() };
        let plan = Plan::new(&options, LINKS[1]);
        let texts: Vec<String> = plan.works.iter().map(|work| work.text()).collect();
        assert_eq!(texts, ["TCP bursty beside nothing", "TCP bursty beside UDP"]);
        assert!(Plan::new(&options, LINKS[0]).works.is_empty());
        let options = Options { only: Some("nginx".into()), ..Options::default() };
        assert_eq!(Plan::new(&options, LINKS[0]).works.len(), 3);
    }
}
