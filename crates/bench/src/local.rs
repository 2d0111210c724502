//! `local`: two programs of one machine, both on paths, against both on the kernel's loopback: iperf3 over one connection
//! and over eight, and one byte to and fro, in each placement.
//!
//! `engine alone` has both programs on one core and the engine on the other. In `spinning` neither program sleeps; that
//! is the latency which is to be half of the kernel's.

use anyhow::Result;

use crate::Options;
use crate::placed::{Case, EVERYWHERE, Metric, Placement, Plan, Sides, compare};
use crate::report::{Better, Report, Target};
use crate::{rr, stream};

const THROUGHPUT: [Metric; 1] =
    [Metric::aimed(("throughput", "Gbit/s", Better::Higher), |_| Some(Target::Ratio(3.0)))];
const LATENCY: [Metric; 4] = latency(|_| None);
const SPINNING: [Metric; 4] = latency(|_| Some(Target::Ratio(0.5)));

/// In the order of [`rr::ping`]'s figures.
const fn latency(target: fn(Placement) -> Option<Target>) -> [Metric; 4] {
    [
        Metric::aimed(("p50", "µs", Better::Lower), target),
        Metric::plain(("p99", "µs", Better::Lower)),
        Metric::plain(("mean", "µs", Better::Lower)),
        Metric::plain(("rate", "req/s", Better::Higher)),
    ]
}

#[derive(Clone, Copy)]
enum Work {
    Stream { connections: u32 },
    Ping { protocol: &'static str, spins: bool },
}

const WORK: [(&str, Work); 5] = [
    ("stream, 1 connection", Work::Stream { connections: 1 }),
    ("stream, 8 connections", Work::Stream { connections: 8 }),
    ("to and fro, TCP", Work::Ping { protocol: "tcp", spins: false }),
    ("to and fro, UDP", Work::Ping { protocol: "udp", spins: false }),
    ("to and fro, TCP spinning", Work::Ping { protocol: "tcp", spins: true }),
];

pub(crate) fn run(options: &Options) -> Result<Report> {
    let case = |(text, work): (&str, Work)| {
        let (placements, metrics): (&[Placement], &[Metric]) = match work {
            Work::Stream { .. } => (&Placement::ALL, &THROUGHPUT),
            Work::Ping { spins: false, .. } => (&EVERYWHERE, &LATENCY),
            Work::Ping { spins: true, .. } => (&[Placement::Apart], &SPINNING),
        };
        Case { text: text.to_owned(), placements, metrics }
    };
    let plan = Plan {
        name: "local",
        title: "Two programs of one machine",
        cases: WORK.map(case).into(),
        sides: Sides::OneHost,
        timing: stream::TIMING,
    };
    let mut report = compare(options, &plan, |bed, arm, case, timing| match WORK[case].1 {
        Work::Stream { connections } => stream::iperf(bed, arm, timing, connections, false),
        Work::Ping { protocol, spins } => rr::ping(bed, arm, timing, protocol, spins),
    })?;
    report.method("programs", "iperf3 at both ends; `load echo` and `load ping` of one byte");
    Ok(report)
}
