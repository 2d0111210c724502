//! The load generator: closed-loop HTTP clients in one process.
//!
//! Each client does one thing at a time, with an optional time to think between requests: connect (a new connection per request, unless keep-alive is
//! asked for), ask for a file, read it to its end, wait for the server's close, close, again. The
//! response time runs from the call of `connect` (with keep-alive: from sending the request) to the
//! last byte of the body. One request in 64 is compared byte for byte with what the file must hold; the
//! length of each is checked.
//!
//! The server closes first, as servers do, so TIME_WAIT lies there and this side does not run out of
//! ports. Should it still, the client waits and the case is counted as `no port`.
//!
//! It runs as the hidden subcommand `scoutline load …`, started by the harness inside the client host. The further
//! words `flood` and `sink` make it the ends of a flood, see [`flood`]; `send` and `receive` those of bulk traffic, see
//! [`bulk`]; `pour` sends datagrams from a socket, see [`pour`]; [`ping`] and [`query`] ask [`echo`]; [`hold`] keeps
//! connections, [`herd`] connected UDP sockets; [`answer`] is a server for this generator.

pub mod answer;
pub mod bulk;
pub mod echo;
pub mod flood;
pub mod herd;
pub mod hold;
pub mod ping;
pub mod pour;
pub mod query;

mod client;
mod window;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::load::client::{Client, Shared};
use crate::{pattern, sys};

/// What `scoutline load` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load", about = "Closed-loop HTTP clients", long_about = None)]
pub struct Arguments {
    /// The server's address and port.
    #[arg(long)]
    pub connect: SocketAddrV4,
    /// What to ask for.
    #[arg(long, default_value = "/1k")]
    pub path: String,
    /// How many clients.
    #[arg(long, default_value_t = 1)]
    pub clients: usize,
    /// The clients' own address.
    #[arg(long)]
    pub source: Option<Ipv4Addr>,
    /// How long to measure.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// How long to run before measuring.
    #[arg(long, default_value_t = 1.0)]
    pub warmup: f64,
    /// Keep connections and send request after request.
    #[arg(long)]
    pub keepalive: bool,
    /// How long a client thinks between requests, in microseconds on average
    #[arg(long, default_value_t = 0)]
    pub think: u64,
    /// Run as SCHED_FIFO with this priority (1 to 99).
    #[arg(long)]
    pub realtime: Option<i32>,
    /// Run on this core only.
    #[arg(long)]
    pub cpu: Option<usize>,
    /// The congestion control of our side; empty for the system's default.
    #[arg(long, default_value = "cubic")]
    pub congestion: String,
    /// Begin at this time of CLOCK_MONOTONIC, in nanoseconds, so that several processes begin as one.
    #[arg(long)]
    pub at: Option<u64>,
    /// Print a line of progress so often, in milliseconds.
    #[arg(long)]
    pub progress: Option<u64>,
    /// Leave bodies that are not compared in the kernel, uncopied.
    #[arg(long)]
    pub discard: bool,
    /// Report when each request began and ended.
    #[arg(long)]
    pub spans: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What one load generator has seen within its window of measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadReport {
    /// Requests answered in full.
    pub requests: u64,
    /// Of those, how many were compared byte for byte.
    pub verified: u64,
    /// What went wrong, by kind.
    pub errors: BTreeMap<String, u64>,
    /// Bytes of bodies.
    pub bytes: u64,
    /// How long was measured.
    pub seconds: f64,
    /// Processor time used in that window, in seconds.
    pub cpu_seconds: f64,
    /// Mean response time, in microseconds.
    pub mean_us: f64,
    /// Median response time.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// When each request began and ended, in nanoseconds of CLOCK_MONOTONIC; empty unless asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<(u64, u64)>,
}

impl LoadReport {
    /// Requests per second.
    pub fn throughput(&self) -> f64 {
        if self.seconds > 0.0 { self.requests as f64 / self.seconds } else { 0.0 }
    }

    /// All errors of every kind.
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// A line of progress: what happened since the line before.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Seconds since the start of the warm-up.
    pub progress_s: f64,
    /// Requests per second.
    pub throughput: f64,
    /// Mean response time.
    pub mean_us: f64,
}

/// The subcommand: parses, runs, prints.
///
/// `arguments` starts with the program's name, as [`std::env::args_os`] does.
///
/// # Errors
/// Wrong arguments, a refused priority or congestion control, a core that is not there. Errors of
/// requests are no error here: they are counted in the report.
pub fn main_from_args(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<()> {
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("flood") => return flood::flood(&parse(&arguments[1..])),
        Some("send") => return bulk::send(&parse(&arguments[1..])),
        Some("receive") => return bulk::receive(&parse(&arguments[1..])),
        Some("sink") => return flood::sink(&parse(&arguments[1..])),
        Some("herd") => return herd::herd(&parse(&arguments[1..])),
        Some("hold") => return hold::hold(&parse(&arguments[1..])),
        Some("ping") => return ping::ping(&parse(&arguments[1..])),
        Some("query") => return query::query(&parse(&arguments[1..])),
        Some("echo") => return echo::echo(&parse(&arguments[1..])),
        Some("answer") => return answer::answer(&parse(&arguments[1..])),
        Some("pour") => return pour::pour(&parse(&arguments[1..])),
        _ => {}
    }
    let arguments: Arguments = parse(&arguments);
    let json = arguments.json;
    let report = run(&arguments)?;
    if json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!(
            "{} requests in {:.1} s ({:.0}/s), mean {:.0} p50 {:.0} p90 {:.0} p99 {:.0} max {:.0} µs, \
             {} verified, errors {:?}",
            report.requests,
            report.seconds,
            report.throughput(),
            report.mean_us,
            report.p50_us,
            report.p90_us,
            report.p99_us,
            report.max_us,
            report.verified,
            report.errors
        );
    }
    Ok(())
}

/// `arguments` starts with the program's name.
fn parse<T: Parser>(arguments: &[OsString]) -> T {
    T::try_parse_from(arguments).unwrap_or_else(|error| error.exit())
}

/// Runs the clients to the end and reports.
pub fn run(arguments: &Arguments) -> Result<LoadReport> {
    if let Some(core) = arguments.cpu {
        sys::set_core(core).with_context(|| format!("cannot use core {core}"))?;
    }
    if let Some(priority) = arguments.realtime {
        sys::set_realtime(priority).with_context(|| {
            format!(
                "real-time priority {priority} is refused (in a cgroup-v1 child: write cpu.rt_runtime_us)"
            )
        })?;
    }
    let mut shared = Shared::new(arguments, pattern::bytes(1 << 20))?;
    let mut poll = sys::Poll::new(arguments.clients)?;
    let mut clients: Vec<Client> = (0..arguments.clients).map(Client::new).collect();
    if let Some(at) = arguments.at {
        thread::sleep(Duration::from_nanos(at.saturating_sub(sys::monotonic_ns())));
    }
    let begin = Instant::now();
    let measure_from = begin + Duration::from_secs_f64(arguments.warmup);
    let end = measure_from + Duration::from_secs_f64(arguments.seconds);
    let mut ticker = arguments.progress.map(|every| Ticker::new(begin, Duration::from_millis(every)));
    let mut cpu_before = 0;
    let mut measuring = false;
    for client in &mut clients {
        client.begin(&mut shared, &poll, begin);
    }
    loop {
        let timeout = shared.on_time(&mut clients, &poll, end);
        let count = poll.wait(timeout).context("epoll_pwait2")?;
        for index in 0..count {
            let event = poll.event(index);
            clients[event.token].on_event(&mut shared, &poll, event.closed);
        }
        let now = Instant::now();
        if let Some(ticker) = &mut ticker {
            ticker.tick(now, &shared);
        }
        if !measuring && now >= measure_from {
            measuring = true;
            cpu_before = cpu_ns();
            shared.start_measuring();
            if let Some(ticker) = &mut ticker {
                ticker.restart();
            }
        }
        if now >= end {
            let seconds = (now - measure_from).as_secs_f64();
            return Ok(shared.report(seconds, (cpu_ns() - cpu_before) as f64 / 1e9));
        }
    }
}

/// Processor time of this process so far.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn sleep_until(time_ns: u64) {
    thread::sleep(Duration::from_nanos(time_ns.saturating_sub(sys::monotonic_ns())));
}

/// Prints progress.
struct Ticker {
    begin: Instant,
    every: Duration,
    last: Instant,
    requests: u64,
    total_ns: u64,
}

impl Ticker {
    fn new(begin: Instant, every: Duration) -> Ticker {
        Ticker { begin, every, last: begin, requests: 0, total_ns: 0 }
    }

    fn tick(&mut self, now: Instant, shared: &Shared) {
        let passed = now - self.last;
        if passed < self.every {
            return;
        }
        let (requests, total_ns) = (shared.requests() - self.requests, shared.total_ns() - self.total_ns);
        let line = Progress {
            progress_s: (now - self.begin).as_secs_f64(),
            throughput: requests as f64 / passed.as_secs_f64(),
            mean_us: total_ns as f64 / 1e3 / requests.max(1) as f64,
        };
        if let Ok(line) = serde_json::to_string(&line) {
            println!("{line}");
        }
        (self.requests, self.total_ns, self.last) = (shared.requests(), shared.total_ns(), now);
    }

    /// The counters begin again.
    fn restart(&mut self) {
        (self.requests, self.total_ns) = (0, 0);
    }
}

fn microseconds(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}
