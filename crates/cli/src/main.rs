//! The scoutline program: the daemon, the launcher, and the tools to look at paths.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no daemon reached; `run` itself: 126 the program cannot run on
//! paths, 127 there is no such program, else the program's own.

mod allocator;
mod arguments;
mod class;
mod client;
mod doctor;
mod elf;
mod experiment;
mod failure;
mod graph;
mod manual;
mod output;
mod ps;
mod run;
mod set;
mod stat;
mod top;
mod trap;
mod up;

use std::process::ExitCode;

/// A connection of a request's length is some forty allocations: with that of the C library nginx makes a tenth fewer
/// connections of 1 KB.
#[global_allocator]
static ALLOCATOR: allocator::Mimalloc = allocator::Mimalloc;

use clap::Parser;

use crate::arguments::{Arguments, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    let Err(failure) = dispatch(Arguments::parse().command) else { return ExitCode::SUCCESS };
    if !failure.message.is_empty() {
        eprintln!("scoutline: {}", failure.message);
    }
    ExitCode::from(failure.code)
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(arguments) => up::up(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Ps(arguments) => ps::ps(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Stat(arguments) => stat::stat(&arguments),
        Command::Graph(arguments) => graph::graph(&arguments),
        Command::Class(arguments) => class::class(&arguments.command),
        Command::Set(arguments) => set::set(&arguments),
        Command::Reload(arguments) => class::reload(&arguments),
        Command::Stop(arguments) => client::Client::connect(&arguments.control)?.stop(),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Demo(arguments) => experiment::demo(&arguments),
        Command::Bench(arguments) => experiment::bench(&arguments),
        Command::Load { arguments } => experiment::load(arguments),
        Command::Supervise { pid, detach } => trap::supervise(pid, detach),
        Command::Guard => up::guard(),
        Command::Man { dir } => manual::man(&dir),
        Command::Completions { shell } => manual::completions(shell),
    }
}
