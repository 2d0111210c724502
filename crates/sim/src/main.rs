//! `scoutline-sim`: many seeds, or one again.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;

use scoutline_sim::{Canary, Plan, seeds};

/// Failures that are shown before a soak ends.
const MOST_FAILURES: usize = 10;

/// Whole hosts and links in virtual time: runs many seeds, or one again.
#[derive(Parser)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run this one only.
    #[arg(long, conflicts_with_all = ["seeds", "first", "plan"])]
    seed: Option<u64>,
    /// Run a kept plan only.
    #[arg(long)]
    plan: Option<PathBuf>,
    /// Print each thing that happens (of one seed or plan).
    #[arg(long)]
    trace: bool,
    /// Write the plan of the seed to a file, to be kept in crates/sim/kept.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Switch a defect on.
    #[arg(long)]
    canary: Option<Canary>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let one = match (&arguments.plan, arguments.seed) {
        (Some(file), _) => {
            let text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
            Some(serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?)
        }
        (None, Some(seed)) => Some(Plan::draw(seed)),
        (None, None) => None,
    };
    match one {
        Some(plan) => run_one(&plan, &arguments),
        None => Ok(run_many(&arguments)),
    }
}

fn run_one(plan: &Plan, arguments: &Arguments) -> Result<ExitCode> {
    if let Some(file) = &arguments.keep {
        let text = serde_json::to_string_pretty(plan)?;
        fs::write(file, text + "\n").with_context(|| format!("{}", file.display()))?;
    }
    if arguments.trace {
        println!("{plan:#?}");
    }
    match seeds::run_guarded(plan, arguments.canary, arguments.trace) {
        Ok(report) => {
            println!("seed {}: {report:?}", plan.seed);
            Ok(ExitCode::SUCCESS)
        }
        Err(found) => {
            println!("seed {}: {found}", plan.seed);
            Ok(ExitCode::FAILURE)
        }
    }
}

fn run_many(arguments: &Arguments) -> ExitCode {
    let began = Instant::now();
    let count = arguments.seeds;
    let progress = |done: u64| {
        if done.is_multiple_of(1000) {
            eprintln!("{done} of {count} seeds, {:.0} s", began.elapsed().as_secs_f64());
        }
    };
    let (sum, failures) = seeds::run_many(arguments.first, count, arguments.canary, MOST_FAILURES, progress);
    println!(
        "{} seeds without a finding: {} packets, {:.1} days of virtual time, in {:.1} s",
        sum.runs,
        sum.packets,
        sum.virtual_ms as f64 / 86_400_000.0,
        began.elapsed().as_secs_f64()
    );
    for failure in &failures {
        println!("seed {}: {failure}", failure.seed);
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
