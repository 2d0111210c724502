//! When a generator measures, and what it has seen of response times then.

use std::collections::BTreeMap;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::{LoadReport, cpu_ns, microseconds};

/// When to begin and how long to measure, as the harness tells it.
#[derive(Clone, Debug, clap::Args)]
pub struct Window {
    /// Begin at this time of CLOCK_MONOTONIC, in nanoseconds.
    #[arg(long)]
    pub at: u64,
    /// How long to run before measuring.
    #[arg(long)]
    pub warmup: f64,
    /// How long to measure.
    #[arg(long)]
    pub seconds: f64,
}

impl Window {
    /// From when to when is measured, in nanoseconds of CLOCK_MONOTONIC.
    pub(super) fn bounds(&self) -> (u64, u64) {
        let from = self.at + (self.warmup * 1e9) as u64;
        (from, from + (self.seconds * 1e9) as u64)
    }
}

/// Response times, and the processor time of this process while they were measured.
pub(super) struct Times {
    histogram: Histogram<u64>,
    total_ns: u64,
    cpu_before: Option<u64>,
}

impl Times {
    pub(super) fn new() -> Result<Times> {
        // 10 ns to 100 s with three digits.
        let histogram = Histogram::new_with_bounds(10, 100_000_000_000, 3)?;
        Ok(Times { histogram, total_ns: 0, cpu_before: None })
    }

    /// Measuring has begun; told as often as is convenient.
    pub(super) fn begin(&mut self) {
        self.cpu_before.get_or_insert_with(cpu_ns);
    }

    pub(super) fn record(&mut self, passed_ns: u64) {
        self.histogram.saturating_record(passed_ns);
        self.total_ns += passed_ns;
    }

    /// What was seen: answers of so many bytes each, and what went wrong, by kind.
    pub(super) fn report(&self, window: &Window, bytes: usize, errors: &[(&str, u64)]) -> LoadReport {
        let cpu = cpu_ns() - self.cpu_before.unwrap_or_default();
        let requests = self.histogram.len();
        let errors = errors.iter().filter(|(_, count)| *count > 0);
        LoadReport {
            requests,
            errors: errors.map(|&(kind, count)| (kind.to_owned(), count)).collect::<BTreeMap<_, _>>(),
            bytes: requests * bytes as u64,
            seconds: window.seconds,
            cpu_seconds: cpu as f64 / 1e9,
            mean_us: self.total_ns as f64 / 1e3 / requests.max(1) as f64,
            p50_us: microseconds(&self.histogram, 0.5),
            p90_us: microseconds(&self.histogram, 0.9),
            p99_us: microseconds(&self.histogram, 0.99),
            max_us: self.histogram.max() as f64 / 1e3,
            ..LoadReport::default()
        }
    }
}
