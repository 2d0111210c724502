//! Many seeds at a time, on all cores; one that fails is a command line.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::ValueEnum as _;

use crate::{Canary, Plan, Report, run};

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The defect that was switched on.
    pub canary: Option<Canary>,
    /// What was found.
    pub found: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n    cargo run -p scoutline-sim -- --seed {} --trace", self.found, self.seed)?;
        let value = self.canary.and_then(|canary| canary.to_possible_value());
        value.map_or(Ok(()), |value| write!(f, " --canary {}", value.get_name()))
    }
}

/// What many seeds came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Runs that found nothing.
    pub runs: u64,
    /// Packets in all of them.
    pub packets: u64,
    /// Their virtual time.
    pub virtual_ms: u64,
}

/// Runs a plan; a panic in the code under test is a finding.
///
/// # Errors
/// What was found.
pub fn run_guarded(plan: &Plan, canary: Option<Canary>, prints: bool) -> Result<Report, String> {
    catch_unwind(AssertUnwindSafe(|| run(plan, canary, prints))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

/// Runs seeds from `first` on, `count` of them, until `most_failures` have failed. `progress` is told now and then how
/// many are done.
pub fn run_many(
    first: u64,
    count: u64,
    canary: Option<Canary>,
    most_failures: usize,
    progress: impl Fn(u64) + Sync,
) -> (Sum, Vec<Failure>) {
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let sum = Mutex::new(Sum::default());
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count || failures.lock().expect("no thread panics with it").len() >= most_failures {
                return;
            }
            let seed = first + index;
            match run_guarded(&Plan::draw(seed), canary, false) {
                Ok(report) => {
                    let mut sum = sum.lock().expect("no thread panics with it");
                    sum.runs += 1;
                    sum.packets += report.packets;
                    sum.virtual_ms += report.virtual_ms;
                }
                Err(found) => {
                    failures.lock().expect("no thread panics with it").push(Failure { seed, canary, found });
                }
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let mut failures = failures.into_inner().expect("no thread panicked");
    failures.sort_by_key(|failure| failure.seed);
    (sum.into_inner().expect("no thread panicked"), failures)
}
