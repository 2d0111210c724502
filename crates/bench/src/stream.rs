//! `stream`: bulk TCP each way over one connection and over eight, iperf3 at both ends, in each placement. A peer
//! (`--peer`) does itself what iperf3's client asks of a server.
//!
//! The throughput is what the receiving iperf3 counted after its warm-up, which it measures in whole seconds. A side
//! that sleeps makes the kernel bimodal here (MEASURED.md), so look at the spreads as well as at the medians.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::Options;
use crate::placed::{Bed, Case, Metric, Plan, Seen, Sides, Timing, compare};
use crate::report::{Better, Report, Target};

const METRICS: [Metric; 1] =
    [Metric::aimed(("throughput", "Gbit/s", Better::Higher), |_| Some(Target::Ratio(1.0)))];

/// iperf3's own.
const PORT: u16 = 5201;

/// How many connections, and whether the server sends.
const CASES: [(u32, bool); 4] = [(1, true), (1, false), (8, true), (8, false)];

/// Rounds, seconds and warm-up, full and quick; also those of `local`.
pub(crate) const TIMING: [(u32, f64, f64); 2] = [(7, 3.0, 1.0), (3, 1.0, 1.0)];

pub(crate) fn run(options: &Options) -> Result<Report> {
    let text = |(connections, sends): (u32, bool)| {
        let plural = if connections == 1 { "" } else { "s" };
        format!("{connections} connection{plural}, {}", if sends { "sending" } else { "receiving" })
    };
    let plan = Plan {
        name: "stream",
        title: "Bulk TCP",
        cases: CASES.map(|case| Case::everywhere(text(case), &METRICS)).into(),
        sides: Sides::TwoHosts,
        timing: TIMING,
    };
    let mut report = compare(options, &plan, |bed, arm, case, timing| {
        let (connections, sends) = CASES[case];
        iperf(bed, arm, timing, connections, sends)
    })?;
    report.method("programs", "iperf3 at both ends; `sending` is the server side's (-R)");
    Ok(report)
}

/// One run of iperf3.
pub(crate) fn iperf(
    bed: &mut Bed<'_>,
    arm: usize,
    timing: Timing,
    connections: u32,
    server_sends: bool,
) -> Result<Seen> {
    let by_peer = bed.serve_peer(arm, "iperf3", ("iperf3", PORT), false)?;
    if !by_peer {
        bed.serve(arm, "iperf3", "listening", &["iperf3", "-s", "--forceflush"].map(Into::into))?;
    }
    let (seconds, warmup) = (timing.seconds.ceil().max(1.0), timing.warmup.ceil());
    let mut words = vec!["iperf3".to_owned(), "-c".to_owned(), bed.address(arm).to_string()];
    words.extend(["-J", "-C", "cubic"].map(str::to_owned));
    for (option, value) in [("-t", seconds), ("-O", warmup), ("-P", f64::from(connections))] {
        words.extend([option.to_owned(), value.to_string()]);
    }
    if server_sends {
        words.push("-R".to_owned());
    }
    let words: Vec<_> = words.into_iter().map(Into::into).collect();
    let limit = Duration::from_secs_f64(seconds + warmup);
    let (text, mut seen) = bed.ask(arm, "iperf3-client", &words, limit)?;
    if by_peer {
        bed.end(arm, "iperf3");
    }
    let report: Value = serde_json::from_str(&text).with_context(|| format!("iperf3 printed: {text}"))?;
    if let Some(error) = report.get("error") {
        anyhow::bail!("iperf3: {error}");
    }
    let rate = &report["end"]["sum_received"]["bits_per_second"];
    seen.figures = vec![rate.as_f64().context("iperf3 tells no rate")? / 1e9];
    Ok(seen)
}
