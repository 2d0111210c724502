//! `udp`: questions and answers of 32 bytes over UDP, 128 of them on their way, in each placement; the server takes
//! and sends one datagram with each call (`recvfrom`, `sendto`), or up to 32 (`recvmmsg`, `sendmmsg`).
//!
//! The server is `load echo`, the client `load query`, which does 32 with a call itself, on the kernel in both arms.

use anyhow::Result;

use crate::Options;
use crate::placed::{Case, Load, Metric, Plan, Sides, compare};
use crate::report::{Better, Report, Target};

const METRICS: [Metric; 3] = [
    Metric::aimed(("rate", "queries/s", Better::Higher), |_| Some(Target::Ratio(1.5))),
    Metric::plain(("p50", "µs", Better::Lower)),
    Metric::plain(("p99", "µs", Better::Lower)),
];

/// What the server calls, how many datagrams with one call, at which port.
const CASES: [(&str, usize, u16); 2] = [("recvfrom", 1, 7200), ("recvmmsg", 32, 7232)];

pub(crate) fn run(options: &Options) -> Result<Report> {
    let plan = Plan {
        name: "udp",
        title: "Questions and answers over UDP",
        cases: CASES.map(|(call, _, _)| Case::everywhere(call.to_owned(), &METRICS)).into(),
        sides: Sides::TwoHosts,
        timing: [(5, 3.0, 0.5), (3, 0.7, 0.2)],
    };
    compare(options, &plan, |bed, arm, case, timing| {
        let (call, batch, port) = CASES[case];
        let (port_word, batch_word) = (format!("--port={port}"), format!("--batch={batch}"));
        bed.serve_load(arm, call, &["echo", "--protocol=udp", &port_word, &batch_word])?;
        let (report, mut seen) = bed.load(arm, &Load { words: &["query".to_owned()], port }, timing)?;
        seen.figures = vec![report.throughput(), report.p50_us, report.p99_us];
        Ok(seen)
    })
}
