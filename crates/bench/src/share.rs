//! `share`: the engine and the rest of Linux on one core that both want all of, when Linux has a share of it
//! (`[linux] share`).
//!
//! ```text
//!   load core                          server core
//!   two programs that send datagrams ─► the engine, SCHED_FIFO: takes them and sends them on
//!   through paths, as fast as can be    a loop without end, SCHED_OTHER: all of Linux there is
//! ```
//!
//! Times are the kernel's own, of the engine's thread, of the loop and of the core (`/proc/PID/schedstat`,
//! `/proc/stat`). What is neither the engine's nor idle is Linux's, so whatever else runs there counts as Linux too.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::harness::away_ns;
use crate::process::{Place, Process};
use crate::report::{Better, Report, Row};
use crate::server::Daemon;
use crate::testbed::{Client, Owner, Testbed};
use crate::{Options, sys};

/// Linux's shares, in per cent.
const SHARES: [u8; 3] = [50, 25, 75];
const PORTS: [u16; 2] = [7001, 7002];
/// Until a program runs and sends.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whose paths they are: the share must not depend on that.
const CLASSES: [(&str, &str); 2] =
    [("priorities", ""), ("weights", "[[class]]\nname = \"all\"\npolicy = \"wfq\"\n")];

pub(crate) fn run(options: &Options) -> Result<Report> {
    let (rounds, seconds) = if options.quick { (1, 1.0) } else { (5, 3.0) };
    let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
    let mut report = Report::new("share");
    for share in SHARES {
        for (name, classes) in CLASSES {
            let case = format!("Linux at {share} %, paths with {name}");
            if !options.wants(&case) {
                continue;
            }
            let mut lab = Lab::new(options, share, classes).with_context(|| case.clone())?;
            let seen: Result<Vec<Parts>> = (0..rounds).map(|_| lab.measure(seconds)).collect();
            rows(&mut report, &case, share, &seen.with_context(|| case.clone())?);
        }
    }
    ensure!(
        !report.rows.is_empty(),
        "no case of `share` contains {:?}",
        options.only.as_deref().unwrap_or_default()
    );
    let text = format!(
        "engine and loop on core {}, senders on core {}; {rounds} rounds of {seconds} s; CPU times as the kernel \
         counts them; `asked` is what the configuration says",
        options.server_core, options.load_core
    );
    report.method("placement", text);
    Ok(report)
}

fn rows(report: &mut Report, case: &str, share: u8, seen: &[Parts]) {
    let of = |part: fn(&Parts) -> f64| -> Vec<f64> { seen.iter().map(part).collect() };
    let asked = |percent: u8| vec![f64::from(percent); seen.len()];
    let (linux, engine) = (asked(share), asked(100 - share));
    let metric = |name| (name, "% of the core", Better::Higher);
    let rows = [
        Row::new(case, metric("engine"), &of(|it| it.engine), Some(("asked", &engine))),
        Row::new(case, metric("rest of Linux"), &of(|it| it.linux), Some(("asked", &linux))),
        Row::new(case, metric("of that, the loop"), &of(|it| it.hog), None),
        Row::new(case, ("sent", "packets/s", Better::Higher), &of(|it| it.packets), None),
    ];
    report.rows.extend(rows);
}

/// Who had the core, in per cent of what was neither idle nor stolen by the machine's host.
struct Parts {
    engine: f64,
    linux: f64,
    hog: f64,
    packets: f64,
}

struct Lab<'a> {
    options: &'a Options,
    // In the order in which they have to go.
    senders: Vec<Process>,
    hog: Process,
    daemon: Daemon,
    testbed: Testbed,
}

impl Lab<'_> {
    fn new<'a>(options: &'a Options, share: u8, classes: &str) -> Result<Lab<'a>> {
        let testbed = Testbed::new(&[Owner::Daemon], None)?;
        let address = testbed.server_address(0);
        let text = format!(
            "[[device]]\nname = \"eth0\"\naddress = \"{}/24\"\n[engine]\ncpu = {}\nrealtime = \"on\"\n\
             send_buffer = \"1MiB\"\n[linux]\nshare = {share}\n{classes}",
            address.ip(),
            options.server_core
        );
        let daemon = Daemon::start_with(&testbed, 0, &options.scoutline, None, &text)?;
        let target = format!("{}:7000", testbed.client_address(0, Client::Standard));
        let senders: Result<Vec<Process>> =
            PORTS.iter().map(|port| sender(options, &testbed, &daemon, *port, &target)).collect();
        let place = Place { namespace: None, core: Some(options.server_core) };
        let log = testbed.directory().join("hog.log");
        let hog = Process::spawn("hog", "/bin/sh".as_ref(), ["-c", "while :; do :; done"], place, &log)?;
        Ok(Lab { options, senders: senders?, hog, daemon, testbed })
    }

    fn measure(&mut self, seconds: f64) -> Result<Parts> {
        let engine = engine_thread(self.daemon.process().id())?;
        let hog = format!("/proc/{}", self.hog.id());
        let core = self.options.server_core;
        let sent = || self.testbed.client().enter(|| received("eth0"));
        let look = || -> Result<_> { Ok((ran_ns(&engine)?, ran_ns(&hog)?, busy_ns(core)?, sent()?)) };
        // The senders fill their rings first.
        thread::sleep(Duration::from_millis(300));
        let start = look()?;
        thread::sleep(Duration::from_secs_f64(seconds));
        let end = look()?;
        for process in self.senders.iter_mut().chain([&mut self.hog]) {
            process.check()?;
        }
        self.daemon.check()?;
        let all = (end.2 - start.2).max(1.0);
        let engine = 100.0 * (end.0 - start.0) / all;
        Ok(Parts {
            engine,
            linux: 100.0 - engine,
            hog: 100.0 * (end.1 - start.1) / all,
            packets: (end.3 - start.3) / seconds,
        })
    }
}

fn sender(options: &Options, testbed: &Testbed, daemon: &Daemon, port: u16, target: &str) -> Result<Process> {
    let run = [options.scoutline.clone(), "run".into(), "--control".into(), daemon.control().to_owned()];
    let mut command: Vec<PathBuf> = run.to_vec();
    command.extend(["--".into(), options.load.clone(), "load".into(), "pour".into()]);
    command.extend([format!("--port={port}").into(), format!("--target={target}").into()]);
    let place = Place { namespace: Some(testbed.server(0).namespace()?), core: Some(options.load_core) };
    let log = testbed.directory().join(format!("pour{port}.log"));
    let mut sender = Process::spawn("pour", &command[0], &command[1..], place, &log)?;
    match sender.line(Instant::now() + PATIENCE)? {
        Some(line) if line == "sending" => Ok(sender),
        _ => bail!("a sender does not send{}", sender.log_tail()),
    }
}

/// The directory of the engine's thread.
fn engine_thread(process: u32) -> Result<String> {
    let mut children = vec![process];
    // `scoutline up` itself, or what it was started by.
    while let Some(process) = children.pop() {
        for thread in fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
            let path = thread.path();
            if fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "scl-engine") {
                return Ok(path.display().to_string());
            }
            let of_thread = fs::read_to_string(path.join("children")).unwrap_or_default();
            children.extend(of_thread.split_whitespace().flat_map(str::parse::<u32>));
        }
    }
    bail!("the daemon has no engine thread")
}

/// How long a thread or process has run.
fn ran_ns(directory: &str) -> Result<f64> {
    let text = fs::read_to_string(format!("{directory}/schedstat"))?;
    let first = text.split_whitespace().next().and_then(|field| field.parse().ok());
    first.with_context(|| format!("{directory}/schedstat tells nothing: CONFIG_SCHED_INFO is off"))
}

/// How long a core was neither idle nor taken away by the machine's host.
fn busy_ns(core: usize) -> Result<f64> {
    let wall = sys::monotonic_ns() as f64;
    let away = *away_ns().get(core).context("no such core")?;
    Ok(wall - away as f64)
}

fn received(device: &str) -> f64 {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0.0)
}
