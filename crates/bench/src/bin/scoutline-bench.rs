//! The experiments without the rest of scoutline: what `scoutline bench`, `scoutline demo` and
//! `scoutline load` call, for work on the experiments themselves and for their tests.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use scoutline_bench::Options;

#[derive(Parser)]
#[command(about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one experiment
    Bench {
        /// Its name
        name: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Run the demonstration
    Demo {
        #[command(flatten)]
        common: Common,
    },
    /// Generate load (hidden in scoutline)
    #[command(disable_help_flag = true)]
    Load {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

#[derive(clap::Args)]
struct Common {
    /// A shorter run of the same cases
    #[arg(long)]
    quick: bool,
    /// Where to draw the figure
    #[arg(long)]
    plot: Option<PathBuf>,
    /// The program with `up` and `run`
    #[arg(long)]
    scoutline: Option<PathBuf>,
    /// Only cases whose text contains this
    #[arg(long)]
    only: Option<String>,
    /// Receive steering on or off, against the experiment's own choice
    #[arg(long)]
    steer: Option<bool>,
    /// How long the preferred client thinks between requests, in microseconds
    #[arg(long)]
    think: Option<u64>,
    /// How often each arm is measured
    #[arg(long)]
    rounds: Option<u32>,
    /// How long each measurement takes
    #[arg(long)]
    seconds: Option<f64>,
    /// The kernel in our place too
    #[arg(long)]
    baseline: bool,
    /// Where the server's core spends its time
    #[arg(long)]
    perf: bool,
    /// The same as a flame graph
    #[arg(long)]
    flame: Option<PathBuf>,
}

impl Common {
    fn options(self) -> Options {
        let own = Options::default();
        Options {
            quick: self.quick,
            plot: self.plot,
            scoutline: self.scoutline.unwrap_or(own.scoutline),
            only: self.only,
            steer: self.steer,
            think_us: self.think.unwrap_or(own.think_us),
            rounds: self.rounds,
            seconds: self.seconds,
            baseline: self.baseline,
            perf: self.perf,
            flame: self.flame,
            ..Options::default()
        }
    }
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Bench { name, json, common } => {
            let report = scoutline_bench::run(&name, &common.options())?;
            if json {
                println!("{}", report.to_json()?);
            } else {
                print!("{report}");
            }
            Ok(())
        }
        Command::Demo { common } => scoutline_bench::demo(&common.options()),
        Command::Load { arguments } => {
            scoutline_bench::load::main_from_args(std::iter::once("load".to_owned()).chain(arguments))
        }
    }
}
