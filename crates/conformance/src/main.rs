//! `scoutline-conformance`: runs packet scripts against our stack, or the kernel's.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use scoutline_conformance::run::{How, Manner};
use scoutline_conformance::suite::{
    Arm, Choice, Outcome, Verdict, is_ours_alone, is_within, root, run_all, scripts,
};

/// Runs packet scripts: which packets come, which must leave and when, what calls return.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    /// Files or folders; none: all scripts of this crate. Names below its `scripts` folder will do.
    paths: Vec<PathBuf>,
    /// Against the kernel, in network namespaces and real time (needs root).
    #[arg(long)]
    kernel: bool,
    /// Only scripts whose path contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Only scripts that take at most so many seconds.
    #[arg(long)]
    longest: Option<u32>,
    /// What everything random follows from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Scripts at a time. [default: the cores; with --kernel, where most of the time is waiting, 8]
    #[arg(long)]
    jobs: Option<usize>,
    /// Scripts written for packetdrill: what leaves after the last event does not matter.
    #[arg(long)]
    foreign: bool,
    /// One JSON object for each script.
    #[arg(long)]
    json: bool,
    /// Print each packet as it leaves.
    #[arg(long)]
    trace: bool,
    /// Also name those that pass.
    #[arg(long, short)]
    verbose: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let root = root();
    let mut paths = Vec::new();
    let given = if arguments.paths.is_empty() { vec![root.clone()] } else { arguments.paths.clone() };
    for path in given {
        let path = if path.exists() { path } else { root.join(path) };
        paths.extend(scripts(&path).with_context(|| format!("{}", path.display()))?);
    }
    paths.retain(|path| path.display().to_string().contains(&arguments.filter));
    let arm = if arguments.kernel { Arm::Kernel } else { Arm::Ours };
    if arguments.kernel {
        paths.retain(|path| !is_ours_alone(path, &root));
    }
    if let Some(longest) = arguments.longest {
        paths.retain(|path| is_within(path, &root, arm, longest));
    }
    let manner = if arguments.foreign { Manner::Foreign } else { Manner::Strict };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.unwrap_or(if arguments.kernel { 8 } else { cores });
    let choice =
        Choice { arm, how: How { manner, seed: arguments.seed, trace: arguments.trace }, differs: false };
    let tell = |verdict: &Verdict| tell(verdict, arguments.json, arguments.verbose);
    let verdicts = run_all(&paths, &root, choice, jobs, &tell);
    let count = |what: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| what(verdict)).count();
    let unexpected = count(|verdict| !verdict.is_expected());
    if !arguments.json {
        println!(
            "{} scripts: {} passed, {} known not to, {unexpected} not as they should be",
            verdicts.len(),
            count(|verdict| verdict.outcome == Outcome::Passed && verdict.known.is_none()),
            count(|verdict| verdict.outcome != Outcome::Passed && verdict.known.is_some()),
        );
    }
    Ok(if unexpected == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(verdict: &Verdict, json: bool, verbose: bool) {
    if json {
        if let Ok(line) = serde_json::to_string(verdict) {
            println!("{line}");
        }
        return;
    }
    let name = &verdict.script;
    match (&verdict.outcome, &verdict.known) {
        (Outcome::Passed, None) if verbose => println!("ok    {name}"),
        (Outcome::Passed, None) => {}
        (Outcome::Passed, Some(reason)) => println!("PASSES, though listed: {name} ({reason})"),
        (Outcome::Failed(_) | Outcome::Unsupported(_), Some(reason)) => {
            if verbose {
                println!("known {name}: {reason}");
            }
        }
        (Outcome::Failed(text), None) => println!("FAIL  {name}\n      {text}"),
        (Outcome::Unsupported(text), None) => println!("CANNOT {name}\n      {text}"),
    }
}
