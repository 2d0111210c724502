//! `redis`: redis-server asked by redis-benchmark with 50 connections, one command at a time and 16 in a pipeline, in
//! each placement.
//!
//! redis-benchmark ends after a number of commands, not after a time: a short run before each measurement tells how
//! many it takes.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::Options;
use crate::placed::{Bed, Case, Metric, Plan, Seen, Sides, compare};
use crate::report::{Better, Report, Target};

const METRICS: [Metric; 3] = [
    Metric::aimed(("rate", "commands/s", Better::Higher), |_| Some(Target::Ratio(1.3))),
    Metric::plain(("p50", "µs", Better::Lower)),
    Metric::plain(("p99", "µs", Better::Lower)),
];

/// Command, and how many of them in a pipeline.
const CASES: [(&str, u32); 4] = [("get", 1), ("set", 1), ("get", 16), ("set", 16)];
const PORT: u16 = 6379;
/// Commands of the short run.
const PROBE: u32 = 10_000;

pub(crate) fn run(options: &Options) -> Result<Report> {
    let text = |(command, pipeline): (&str, u32)| {
        let how =
            if pipeline == 1 { "one at a time".to_owned() } else { format!("{pipeline} in a pipeline") };
        format!("{command}, {how}")
    };
    let plan = Plan {
        name: "redis",
        title: "redis",
        cases: CASES.map(|case| Case::everywhere(text(case), &METRICS)).into(),
        sides: Sides::TwoHosts,
        timing: [(5, 3.0, 0.0), (3, 0.7, 0.0)],
    };
    let mut report = compare(options, &plan, |bed, arm, case, timing| {
        let directory = bed.directory().as_os_str().to_owned();
        let quiet =
            ["--save", "", "--appendonly", "no", "--protected-mode", "no", "--bind", "0.0.0.0", "--dir"];
        let mut server: Vec<OsString> = vec!["redis-server".into()];
        server.extend(quiet.map(OsString::from));
        server.push(directory);
        bed.serve(arm, "redis-server", "Ready to accept connections", &server)?;
        let (probe, _) = benchmark(bed, arm, CASES[case], PROBE)?;
        let count = (probe * timing.seconds).max(f64::from(PROBE)) as u32;
        let (_, seen) = benchmark(bed, arm, CASES[case], count)?;
        Ok(seen)
    })?;
    report
        .method("programs", "redis-server without persistence; redis-benchmark, 50 connections, one thread");
    Ok(report)
}

/// Runs redis-benchmark for so many commands: their rate, and what was seen.
fn benchmark(bed: &Bed<'_>, arm: usize, (command, pipeline): (&str, u32), count: u32) -> Result<(f64, Seen)> {
    let mut words: Vec<OsString> = vec!["redis-benchmark".into(), "-h".into()];
    words.push(bed.address(arm).to_string().into());
    words.extend(["-p", &PORT.to_string(), "-c", "50", "--csv", "-t", command].map(OsString::from));
    words.extend(["-P", &pipeline.to_string(), "-n", &count.to_string()].map(OsString::from));
    let (text, mut seen) = bed.ask(arm, "redis-benchmark", &words, Duration::from_secs(120))?;
    // "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms",…
    let line = text.lines().find(|line| line.to_lowercase().starts_with(&format!("\"{command}\"")));
    let line = line.with_context(|| format!("redis-benchmark printed: {text}"))?;
    let cell = |index: usize| -> Result<f64> {
        let cell = line.split(',').nth(index).map(|cell| cell.trim_matches('"'));
        cell.and_then(|cell| cell.parse().ok()).with_context(|| format!("redis-benchmark printed: {line}"))
    };
    seen.figures = vec![cell(1)?, cell(4)? * 1e3, cell(6)? * 1e3];
    Ok((cell(1)?, seen))
}
