//! The experiments: test beds, servers, load generators, the harness that compares arms, figures.
//!
//! [`run`] does one experiment by name and hands back a [`Report`]; [`demo`] is the short one for
//! newcomers. Every comparison is interleaved: the arms take turns within a round, and rounds repeat,
//! so that a machine that drifts drifts under all arms alike (MEASURED.md tells how much it does).
//!
//! What runs where in `web`, `prefer`, `extend`, `idle`, `flood` and `demo`:
//!
//! ```text
//!   server core:  the server's processes, and in our arms the daemon's engine
//!   load core:    the load generator, and the preferred client with real-time priority
//! ```
//!
//! The load generator is a process of its own: `scoutline load …`, see [`load`]. Experiments on hosts
//! need root and iproute2; what they make on the machine goes however they end.

pub mod bridge;
pub mod load;
pub mod pattern;
pub mod plot;
pub mod process;
pub mod profile;
pub mod report;
pub mod server;
pub mod testbed;

mod callgrind;
mod cleanup;
mod conn;
mod demo;
mod dns;
mod extend;
mod flood;
mod forward;
mod harness;
mod idle;
mod local;
mod micro;
mod peer;
mod placed;
mod prefer;
mod preferred;
mod redis;
mod rr;
mod scale;
mod sched;
mod share;
mod stream;
#[allow(unsafe_code)] // the system calls that the standard library has no safe form for
mod sys;
mod trace;
mod trial;
mod udp;
mod wan;
mod web;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};

pub use crate::demo::demo;
pub use crate::peer::Peer;
pub use crate::report::{Better, Machine, Report, Row};
pub use crate::trial::{Setting, Trial};

/// How an experiment is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// A shorter run of the same cases.
    pub quick: bool,
    /// Where to draw the figure.
    pub plot: Option<PathBuf>,
    /// The program with the subcommands `up` and `run`.
    pub scoutline: PathBuf,
    /// The program with the subcommand `load`.
    pub load: PathBuf,
    /// The core of the server and of the daemon's engine.
    pub server_core: usize,
    /// The core of the load.
    pub load_core: usize,
    /// Receive steering, see [`testbed::Steer`]; `None` for the experiment's own choice.
    pub steer: Option<bool>,
    /// How long the preferred client thinks between requests, on average.
    pub think_us: u64,
    /// How often each arm is measured; `None` for the experiment's own number.
    pub rounds: Option<u32>,
    /// How long each measurement takes; `None` for the experiment's own time.
    pub seconds: Option<f64>,
    /// Only cases whose text contains this.
    pub only: Option<String>,
    /// The kernel in our place too: whatever then differs is the harness's own bias.
    pub baseline: bool,
    /// Further arms of `stream` and `rr`.
    pub peers: BTreeSet<Peer>,
    /// A further arm of ours.
    pub trial: Trial,
    /// Sample the server's core while it is measured, and tell where it spent its time.
    pub perf: bool,
    /// The same, drawn as a flame graph.
    pub flame: Option<PathBuf>,
    /// Count instructions under valgrind instead of time.
    pub callgrind: bool,
    /// A line on standard error for each measurement.
    pub progress: bool,
}

impl Default for Options {
    fn default() -> Options {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("scoutline"));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            quick: false,
            plot: None,
            scoutline: program.clone(),
            load: program,
            server_core: 0,
            load_core: usize::from(cpus > 1),
            steer: None,
            think_us: 1000,
            rounds: None,
            seconds: None,
            only: None,
            baseline: false,
            peers: BTreeSet::new(),
            trial: Trial::default(),
            perf: false,
            flame: None,
            callgrind: false,
            progress: true,
        }
    }
}

impl Options {
    /// Whether the case with this text is to be run.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.only.as_deref().is_none_or(|only| case.contains(only))
    }
}

type Experiment = fn(&Options) -> Result<Report>;

const EXPERIMENTS: [(&str, &str, Experiment); 18] = [
    ("micro", "demultiplexing and copies: what the primitives cost", micro::run),
    ("web", "throughput and response time against clients and file size", web::run),
    ("prefer", "a preferred client among standard ones", prefer::run),
    ("extend", "the same, with the threads behind the paths scheduled as the paths are", extend::run),
    ("idle", "foreground beside unlimited background over a slow link, and what background gets", idle::run),
    ("flood", "a preferred client while minimum-size packets arrive as fast as can be sent", flood::run),
    ("share", "the engine and the rest of Linux on one core, when Linux has a share of it", share::run),
    (
        "wan",
        "bulk transfer over long, lossy, reordering and policed lines, against the kernel's CUBIC",
        wan::run,
    ),
    ("sched", "the policies in virtual time, against the ideal", sched::run),
    ("stream", "bulk TCP each way, one connection and eight, in each placement", stream::run),
    ("rr", "one byte to and fro over TCP and UDP, in each placement", rr::run),
    ("conn", "connect, one request, close, in each placement", conn::run),
    ("udp", "questions and answers of 32 bytes over UDP, in each placement", udp::run),
    ("dns", "named asked by dnsperf, in each placement", dns::run),
    ("redis", "redis-server asked by redis-benchmark, in each placement", redis::run),
    ("forward", "small packets from one device to another, against ip_forward", forward::run),
    ("scale", "a hundred thousand idle connections, and tables of a million flows", scale::run),
    ("local", "two programs of one machine, against the kernel's loopback", local::run),
];

/// The names of the experiments, each with one line on what it measures.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    EXPERIMENTS.iter().map(|(name, about, _)| (*name, *about))
}

/// Runs one experiment, and draws its figure where `options.plot` says.
///
/// # Errors
/// An unknown name, missing privileges or programs (perf or valgrind, where they are asked for), a server or daemon that
/// does not start or dies.
/// Bad figures are no error.
pub fn run(name: &str, options: &Options) -> Result<Report> {
    let Some((_, _, experiment)) = EXPERIMENTS.iter().find(|(known, _, _)| *known == name) else {
        let known: Vec<&str> = names().map(|(name, _)| name).collect();
        bail!("there is no experiment `{name}`; there are: {}", known.join(", "));
    };
    trial::check(name, options)?;
    if options.callgrind {
        ensure!(name == "micro", "instructions are counted where nothing waits for a peer: in `micro`");
        return callgrind::count(options);
    }
    peer::check(name, options)?;
    profile::begin(options)?;
    let done = experiment(options);
    let profiles = profile::end(options);
    let mut report = done?;
    report.profiles = profiles?;
    if let Some(figure) = report.figure.as_mut().filter(|_| options.baseline) {
        figure.title += " (baseline: the kernel in our place too)";
    }
    if let (Some(path), Some(figure)) = (&options.plot, &report.figure) {
        plot::draw(figure, path)?;
    }
    Ok(report)
}
