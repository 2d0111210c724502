//! `forward`: packets of minimum size from one device to another, on paths (cut-through) against the kernel's
//! `ip_forward`.
//!
//! ```text
//!   load core                       server core                             load core
//!   sender of frames ── veth ─►  router: our daemon, or the kernel ── veth ─►  counts, drops
//! ```
//! The sender offers more than either router carries. Ours would take what it has to drop for a flood and hold it back
//! at the interface, so that is switched off (`police_floods`).
//!
//! Receive steering is on: what a router does it does, and pays for, on its own core. The figure that counts is packets
//! per second of that core's time: a router that is not given all that it could carry is not to look worse for it.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::harness::{Measurement, Meter, busy_between, describe_conditions, order};
use crate::placed::{ARMS, KERNEL, PATHS, Seen};
use crate::plot::{Figure, Panel, Series};
use crate::process::{Place, Process};
use crate::report::{Better, Report, Row, Target, median, number};
use crate::server::Daemon;
use crate::testbed::{Client, Host, Owner, Steer, Testbed};
use crate::{Options, sys};

/// How our router takes and sends packets, and how many of the kernel's packets per second of a core it should carry.
const DRIVERS: [(&str, f64); 2] = [("packet", 1.0), ("xdp", 1.5)];
const STEER: bool = true;
const PORT: u16 = 9000;
/// Until a sender sends.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is measured of each.
const METRICS: [(&str, &str, Better); 3] = [
    ("forwarded, per core", "packets/s", Better::Higher),
    ("forwarded", "packets/s", Better::Higher),
    ("offered", "packets/s", Better::Higher),
];

pub(crate) fn run(options: &Options) -> Result<Report> {
    let (rounds, seconds) = if options.quick { (3, 0.7) } else { (5, 3.0) };
    let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
    let drivers: Vec<_> = DRIVERS.into_iter().filter(|(driver, _)| options.wants(driver)).collect();
    ensure!(
        !drivers.is_empty(),
        "no case of `forward` contains {:?}",
        options.only.as_deref().unwrap_or_default()
    );
    let mut meter = Meter::new(options, drivers.len() * ARMS.len() * rounds as usize);
    let mut all: Vec<(&str, [Vec<Seen>; 2])> = Vec::new();
    let mut report = Report::new("forward");
    for (driver, target) in drivers {
        let mut bed = Bed::new(options, driver).with_context(|| format!("driver `{driver}`"))?;
        let mut seen = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            for arm in order(ARMS.len(), round) {
                let one = bed.measure(arm, seconds).with_context(|| format!("arm `{}`", ARMS[arm]))?;
                let rate = number(one.figures[0]);
                let text =
                    format!("{driver} · {} · round {} · {rate} packets/s per core", ARMS[arm], round + 1);
                let busy =
                    Measurement { busy: one.busy.clone(), others: one.others, ..Measurement::default() };
                meter.step(&text, &busy);
                seen[arm].push(one);
            }
        }
        rows(options, driver, target, &seen, &mut report.rows);
        all.push((driver, seen));
    }
    report.method(
        "placement",
        format!("router on core {}, sender and sink on core {}", options.server_core, options.load_core),
    );
    report.method("timing", format!("{rounds} rounds, arms in turn; {seconds} s each; medians"));
    report.method("packets", "datagrams in frames of 60 bytes, one flow, as fast as one core sends them");
    let others = all.iter().flat_map(|(_, seen)| seen.iter().flatten()).map(|seen| seen.others);
    describe_conditions(&mut report, options, STEER, (0, "packets"), others.fold(0.0, f64::max));
    report.figure = Some(figure(&all));
    Ok(report)
}

fn rows(options: &Options, driver: &str, target: f64, seen: &[Vec<Seen>; 2], rows: &mut Vec<Row>) {
    let mut add = |metric, target: Option<Target>, figure: &dyn Fn(&Seen) -> f64| {
        let of = |arm: usize| seen[arm].iter().map(figure).collect::<Vec<f64>>();
        let row = Row::new(driver, metric, &of(PATHS), Some((ARMS[KERNEL], &of(KERNEL))));
        rows.push(row.aiming_at(target));
    };
    for (index, metric) in METRICS.into_iter().enumerate() {
        add(metric, (index == 0).then_some(Target::Ratio(target)), &|seen| seen.figures[index]);
    }
    for (name, core) in [("router core busy", options.server_core), ("load core busy", options.load_core)] {
        add((name, "%", Better::Lower), None, &|seen| seen.busy.get(core).copied().unwrap_or(0.0));
    }
}

fn figure(all: &[(&str, [Vec<Seen>; 2])]) -> Figure {
    let series = |arm: usize| {
        let middle =
            |seen: &[Vec<Seen>; 2]| median(&seen[arm].iter().map(|seen| seen.figures[0]).collect::<Vec<_>>());
        let points = all.iter().enumerate().map(|(at, (_, seen))| (at as f64, middle(seen)));
        Series { name: ARMS[arm].into(), points: points.collect() }
    };
    let panel = Panel {
        title: METRICS[0].0.into(),
        y_label: METRICS[0].1.into(),
        categories: all.iter().map(|(driver, _)| (*driver).to_owned()).collect(),
        series: vec![series(KERNEL), series(PATHS)],
        ..Panel::default()
    };
    Figure { title: "From one device to another".into(), panels: vec![panel] }
}

/// The hosts of both arms, and our daemon.
struct Bed<'a> {
    options: &'a Options,
    // In the order in which they have to go.
    daemon: Option<Daemon>,
    testbed: Testbed,
}

impl Bed<'_> {
    fn new<'a>(options: &'a Options, driver: &str) -> Result<Bed<'a>> {
        let ours = if options.baseline { Owner::Kernel } else { Owner::Daemon };
        let cores = Steer { server_core: options.server_core, client_core: options.load_core };
        let steer = options.steer.unwrap_or(STEER).then_some(cores);
        let testbed = Testbed::through_routers(&[ours, Owner::Kernel], steer)?;
        let core = options.server_core;
        let text = format!("{}[engine]\ncpu = {core}\n", testbed.router_configuration(PATHS, driver));
        let router = testbed.router(PATHS);
        let start = || Daemon::start_on(&testbed, router, "router", &options.scoutline, Some(core), &text);
        let daemon = (!options.baseline).then(start).transpose()?;
        Ok(Bed { options, daemon, testbed })
    }

    /// Has a sender send through an arm's router for so long, and counts what arrives behind it.
    fn measure(&mut self, arm: usize, seconds: f64) -> Result<Seen> {
        let mut sender = self.start_sender(arm)?;
        // The first packets wait for neighbours to be found.
        let from = sys::monotonic_ns() + 200_000_000;
        let to = from + (seconds * 1e9) as u64;
        let counts = RefCell::new(Vec::new());
        let (server, router) = (self.testbed.server(arm), self.testbed.router(arm));
        let look = || -> Result<(u64, Received, Received)> {
            Ok((sys::monotonic_ns(), received(server, "eth0")?, received(router, "out")?))
        };
        let (busy, others) = busy_between(ARMS[arm], (from, to), &[], || counts.borrow_mut().push(look()));
        sender.check()?;
        if let Some(daemon) = &mut self.daemon {
            daemon.check()?;
        }
        let counts: Result<Vec<(u64, Received, Received)>> = counts.into_inner().into_iter().collect();
        let [first, last] = counts?[..] else { bail!("the window of measurement had no two ends") };
        let passed = (last.0 - first.0) as f64 / 1e9;
        let [behind, before] = [last.1 - first.1, last.2 - first.2];
        let (forwarded, offered) = (behind.datagrams(before) / passed, before.packets / passed);
        ensure!(forwarded > 0.0, "nothing of {offered:.0} packets/s is forwarded");
        let share = busy.get(self.options.server_core).copied().unwrap_or(100.0) / 100.0;
        let figures = vec![forwarded / share.max(0.01), forwarded, offered];
        Ok(Seen { figures, busy, others, errors: 0 })
    }

    fn start_sender(&self, arm: usize) -> Result<Process> {
        let testbed = &self.testbed;
        let mac =
            testbed.router(arm).enter(|| sys::link_address("out"))?.context("no link address of `out`")?;
        let mac: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        let target = SocketAddrV4::new(*testbed.server_address(arm).ip(), PORT);
        let arguments = [
            "load".to_owned(),
            "flood".to_owned(),
            format!("--device=eth{arm}"),
            format!("--mac={}", mac.join(":")),
            format!("--source={}", testbed.client_address(arm, Client::Standard)),
            format!("--target={target}"),
            format!("--cpu={}", self.options.load_core),
        ];
        let place = Place { namespace: Some(testbed.client().namespace()?), core: None };
        let log = testbed.directory().join("flood.log");
        let mut sender = Process::spawn("flood", &self.options.load, arguments, place, &log)?;
        match sender.line(Instant::now() + PATIENCE)? {
            Some(line) if line == "sending" => Ok(sender),
            _ => bail!("the sender does not send{}", sender.log_tail()),
        }
    }
}

/// What a device has received, with link headers.
#[derive(Clone, Copy)]
struct Received {
    packets: f64,
    bytes: f64,
}

impl Received {
    /// How many packets like those that were offered: one that has been put together counts as what it was, though its
    /// headers stand there once.
    fn datagrams(self, offered: Received) -> f64 {
        /// Ethernet, IPv4 and UDP.
        const HEADERS: f64 = 14.0 + 20.0 + 8.0;
        let data = offered.bytes / offered.packets.max(1.0) - HEADERS;
        (self.bytes - self.packets * HEADERS) / data.max(1.0)
    }
}

impl std::ops::Sub for Received {
    type Output = Received;

    fn sub(self, before: Received) -> Received {
        Received { packets: self.packets - before.packets, bytes: self.bytes - before.bytes }
    }
}

fn received(host: &Host, device: &str) -> Result<Received> {
    host.enter(|| {
        let text = fs::read_to_string("/proc/thread-self/net/dev")?;
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'));
        let mut numbers = line.into_iter().flat_map(str::split_whitespace).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(bytes)), Some(Ok(packets))) => Ok(Received { packets, bytes }),
            _ => bail!("no counters of {device}"),
        }
    })?
}
