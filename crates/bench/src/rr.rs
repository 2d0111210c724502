//! `rr`: one byte to and fro, the next once it is back, over TCP and UDP, in each placement. Both ends block in their
//! calls; in the case `spinning` they ask again and again, as programs do that must not sleep.
//!
//! The server is `load echo`, the client `load ping`, which runs on the kernel in all arms; a peer
//! (`--peer`) echoes itself. `engine alone` shows what
//! an engine is worth that has a core to itself and never sleeps.

use anyhow::Result;

use crate::Options;
use crate::load::LoadReport;
use crate::placed::{Bed, Case, EVERYWHERE, Load, Metric, Placement, Plan, Seen, Sides, Timing, compare};
use crate::report::{Better, Report, Target};

const METRICS: [Metric; 4] = [
    Metric::aimed(("p50", "µs", Better::Lower), |placement| {
        Some(Target::Ratio(if placement == Placement::EngineAlone { 0.8 } else { 1.1 }))
    }),
    Metric { drawn: true, ..Metric::plain(("p99", "µs", Better::Lower)) },
    Metric::plain(("mean", "µs", Better::Lower)),
    Metric::plain(("rate", "req/s", Better::Higher)),
];

/// Protocol, and whether both ends spin.
const CASES: [(&str, bool, &[Placement]); 3] =
    [("tcp", false, &EVERYWHERE), ("udp", false, &EVERYWHERE), ("tcp", true, &[Placement::Apart])];

pub(crate) fn run(options: &Options) -> Result<Report> {
    let text = |protocol: &str, spins: bool| {
        format!("{}{}", protocol.to_uppercase(), if spins { " spinning" } else { "" })
    };
    let case = |(protocol, spins, placements): (&str, bool, &'static [Placement])| Case {
        text: text(protocol, spins),
        placements,
        metrics: &METRICS,
    };
    let plan = Plan {
        name: "rr",
        title: "One byte to and fro",
        cases: CASES.map(case).into(),
        sides: Sides::TwoHosts,
        timing: [(5, 3.0, 0.5), (3, 0.7, 0.2)],
    };
    compare(options, &plan, |bed, arm, case, timing| {
        let (protocol, spins, _) = CASES[case];
        ping(bed, arm, timing, protocol, spins)
    })
}

/// One run of `load ping` against `load echo`; figures as in [`METRICS`].
pub(crate) fn ping(
    bed: &mut Bed<'_>,
    arm: usize,
    timing: Timing,
    protocol: &str,
    spins: bool,
) -> Result<Seen> {
    // A port for each kind of server.
    let port = if spins { 7100 } else { 7000 } + u16::from(protocol == "udp");
    let name = format!("echo-{port}");
    let (port_word, protocol_word) = (format!("--port={port}"), format!("--protocol={protocol}"));
    let mut server = vec!["echo", &port_word, &protocol_word];
    let mut words = vec!["ping".to_owned(), protocol_word.clone()];
    if spins {
        server.push("--spin");
        words.push("--spin".to_owned());
    }
    let by_peer = bed.serve_peer(arm, &name, (protocol, port), spins)?;
    if !by_peer {
        bed.serve_load(arm, &name, &server)?;
    }
    let (report, mut seen) = bed.load(arm, &Load { words: &words, port }, timing)?;
    if spins || by_peer {
        bed.end(arm, &name);
    }
    seen.figures = figures(&report);
    Ok(seen)
}

fn figures(report: &LoadReport) -> Vec<f64> {
    vec![report.p50_us, report.p99_us, report.mean_us, report.throughput()]
}
