//! `wan`: bulk transfer over lines such as the Internet has them, ours against the kernel's CUBIC.
//!
//! ```text
//!   server host, core 0             bridge: the line                client host, core 1
//!   our sender or the kernel's ═══ loss, reordering, policer ═══ the kernel's receiver
//!   our receiver or the kernel's ══        delay             ═══ the kernel's sender
//! ```
//! Each arm has hosts and a line of its own, of the same kind and seed; they take turns. Offloads are off at the hosts,
//! so that a loss hits one packet of MTU size (`bridge.rs`). Congestion control is CUBIC in both arms, at both ends.
//! The programs are those of `load/bulk.rs`. What a line carries at best is a row of its own (`of the line's rate`), so
//! that a line that is slower than it says would show in the kernel's arm.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use scoutline_device::memory::{Policer, WireConfig, WireCounters};

use crate::bridge::{Line, Passed};
use crate::harness::{Measurement, Meter, busy_between, describe_conditions, order};
use crate::load::bulk::{BulkReport, ETHERNET_MTU, Protocol, SendReport};
use crate::plot::{Figure, Panel, Series};
use crate::process::{Place, Process};
use crate::report::{Better, Report, Row, mean};
use crate::server::Daemon;
use crate::testbed::{Client, Host, Owner, Testbed};
use crate::{Options, sys};

const PORT: u16 = 5001;
/// From starting the programs to their common beginning: they connect before, over a long line.
const LEAD: Duration = Duration::from_millis(1200);
/// What a program may take longer than told.
const SLACK: Duration = Duration::from_secs(15);
const SEED: u64 = 11;
/// Ours first.
const ARMS: [&str; 2] = ["paths", "kernel cubic"];

/// A kind of line.
struct Kind {
    name: &'static str,
    /// In each direction.
    wire: fn() -> WireConfig,
    /// What it carries for long, in bits per second.
    rate: u64,
    connections: usize,
}

/// Loss at random bounds a connection to some 4 Mbit/s (RFC 9438 §5.2), a loss every two or three seconds: eight average
/// over their luck. The rate is there so that slow start cannot be faster than the bridge.
const KINDS: [Kind; 3] = [
    Kind {
        name: "100 ms, 0.1 % loss",
        wire: || WireConfig {
            delay: Duration::from_millis(50),
            loss: 0.001,
            rate_bits: Some(200_000_000),
            queue_limit: 2_000,
            ..WireConfig::default()
        },
        rate: 200_000_000,
        connections: 8,
    },
    Kind {
        name: "40 ms, 2 % reordered",
        wire: || WireConfig {
            delay: Duration::from_millis(20),
            reorder: 0.02,
            rate_bits: Some(100_000_000),
            queue_limit: 400,
            ..WireConfig::default()
        },
        rate: 100_000_000,
        connections: 2,
    },
    Kind {
        name: "40 ms, policer 50 Mbit/s",
        wire: || WireConfig {
            delay: Duration::from_millis(20),
            policer: Some(Policer { rate_bits: 50_000_000, burst_bytes: 128 << 10 }),
            ..WireConfig::default()
        },
        rate: 50_000_000,
        connections: 2,
    },
];

/// Who sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Send,
    Receive,
}

const WAYS: [Way; 2] = [Way::Send, Way::Receive];

fn case_text(kind: &Kind, way: Way) -> String {
    format!("{}, {}", kind.name, if way == Way::Send { "sending" } else { "receiving" })
}

/// One measurement.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Bits of payload per second.
    rate: f64,
    /// Packets put on the wire in the direction of the data, and lost there.
    wire: WireCounters,
    /// Packets that the bridge has lost and the line has not.
    mishaps: u64,
    messages: u64,
    errors: u64,
    busy: Vec<f64>,
    others: f64,
}

/// All measurements of a case, by arm.
struct Case<'a> {
    kind: &'a Kind,
    way: Way,
    seen: [Vec<Seen>; 2],
}

pub(crate) fn run(options: &Options) -> Result<Report> {
    let (rounds, seconds, warmup) = if options.quick { (2, 3.0, 2.0) } else { (6, 10.0, 4.0) };
    let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
    let wanted: Vec<(&Kind, Way)> = KINDS
        .iter()
        .flat_map(|kind| WAYS.map(|way| (kind, way)))
        .filter(|(kind, way)| options.wants(&case_text(kind, *way)))
        .collect();
    ensure!(
        !wanted.is_empty(),
        "no case of `wan` contains {:?}",
        options.only.as_deref().unwrap_or_default()
    );
    let mut meter = Meter::new(options, wanted.len() * ARMS.len() * rounds as usize);
    let mut cases = Vec::new();
    for kind in &KINDS {
        let ways: Vec<Way> =
            wanted.iter().filter(|(of, _)| of.name == kind.name).map(|(_, way)| *way).collect();
        if ways.is_empty() {
            continue;
        }
        let mut beds = [Bed::new(options, kind, 0)?, Bed::new(options, kind, 1)?];
        for way in ways {
            let mut case = Case { kind, way, seen: [Vec::new(), Vec::new()] };
            for round in 0..rounds {
                for arm in order(ARMS.len(), round) {
                    let text = case_text(kind, way);
                    let seen = beds[arm].measure(way, seconds, warmup);
                    let seen = seen.with_context(|| format!("{text} on arm `{}`", ARMS[arm]))?;
                    let (name, rate, lost) = (ARMS[arm], seen.rate / 1e6, seen.wire.lost);
                    let measurement = Measurement {
                        busy: seen.busy.clone(),
                        others: seen.others,
                        ..Measurement::default()
                    };
                    meter.step(
                        &format!("{text} · {name} · round {} · {rate:.1} Mbit/s, {lost} lost", round + 1),
                        &measurement,
                    );
                    case.seen[arm].push(seen);
                }
            }
            cases.push(case);
        }
    }
    Ok(report(options, &cases, (rounds, seconds, warmup)))
}

fn report(options: &Options, cases: &[Case<'_>], (rounds, seconds, warmup): (u32, f64, f64)) -> Report {
    let mut report = Report::new("wan");
    report.method(
        "placement",
        format!(
            "sender or receiver of the server host and the daemon's engine on core {}, the other end on core {}; the \
             bridge is SCHED_FIFO and on any",
            options.server_core, options.load_core
        ),
    );
    report.method(
        "timing",
        format!(
            "{rounds} rounds, arms in turn; {seconds} s each after {warmup} s of warm-up; means, and for ours the 95 % \
             confidence interval (Student's t) as the spread"
        ),
    );
    let lines: Vec<String> = KINDS.iter().map(|kind| format!("{}: {}", kind.name, about(kind))).collect();
    report.method("lines", lines.join("; "));
    report.method("congestion control", "cubic in both arms, at both ends");
    for case in cases {
        rows(case, options, &mut report.rows);
    }
    report.figure = Some(figure(cases));
    let all = || cases.iter().flat_map(|case| case.seen.iter().flatten());
    let mishaps: u64 = all().map(|seen| seen.mishaps).sum();
    if mishaps > 0 {
        report.method(
            "bridge",
            format!("too slow now and then: it has lost {mishaps} packets that the lines had not"),
        );
    }
    let errors = all().map(|seen| seen.errors).sum();
    let others = all().map(|seen| seen.others).fold(0.0, f64::max);
    describe_conditions(&mut report, options, false, (errors, "messages"), others);
    report
}

fn about(kind: &Kind) -> String {
    let wire = (kind.wire)();
    let limit = wire.policer.map_or_else(
        || format!("{} Mbit/s, queue of {} packets", kind.rate / 1_000_000, wire.queue_limit),
        |policer| format!("token bucket of {} KiB without a queue", policer.burst_bytes >> 10),
    );
    format!("{} ms each way, {limit}, {} connections", wire.delay.as_millis(), kind.connections)
}

fn rows(case: &Case<'_>, options: &Options, rows: &mut Vec<Row>) {
    let name = case_text(case.kind, case.way);
    let mut add = |metric: (&str, &str, Better), figure: &dyn Fn(&Seen) -> f64| {
        let of = |arm: usize| case.seen[arm].iter().map(figure).collect::<Vec<f64>>();
        rows.push(Row::with_confidence(name.clone(), metric, &of(0), Some((ARMS[1], &of(1)))));
    };
    let rate = case.kind.rate as f64;
    add(("throughput", "Mbit/s", Better::Higher), &|seen| seen.rate / 1e6);
    let frame = Protocol::Tcp.frame_len(ETHERNET_MTU) as f64 / Protocol::Tcp.message_len(ETHERNET_MTU) as f64;
    add(("of the line's rate", "%", Better::Higher), &|seen| 100.0 * seen.rate * frame / rate);
    add(("lost on the line", "%", Better::Lower), &|seen| {
        100.0 * seen.wire.lost as f64 / seen.wire.sent.max(1) as f64
    });
    // Losses are sent again, and what was reordered may be in vain.
    add(("sent beyond what was lost and what arrived", "%", Better::Lower), &|seen| {
        let needed = seen.messages + seen.wire.lost;
        100.0 * seen.wire.sent.saturating_sub(needed) as f64 / needed.max(1) as f64
    });
    for (metric, core) in [("server core busy", options.server_core), ("load core busy", options.load_core)] {
        add((metric, "%", Better::Lower), &|seen| seen.busy.get(core).copied().unwrap_or(0.0));
    }
}

fn figure(cases: &[Case<'_>]) -> Figure {
    let points = |arm: usize| -> Vec<(f64, f64)> {
        let rate =
            |case: &Case<'_>| mean(&case.seen[arm].iter().map(|seen| seen.rate / 1e6).collect::<Vec<_>>());
        cases.iter().enumerate().map(|(at, case)| (at as f64, rate(case))).collect()
    };
    let panel = Panel {
        title: "throughput".into(),
        y_label: "Mbit/s".into(),
        categories: cases.iter().map(|case| case_text(case.kind, case.way)).collect(),
        series: (0..ARMS.len()).map(|arm| Series { name: ARMS[arm].into(), points: points(arm) }).collect(),
        ..Panel::default()
    };
    Figure { title: "Bulk transfer over bad lines".into(), panels: vec![panel] }
}

/// The hosts of one arm.
struct Bed<'a> {
    options: &'a Options,
    connections: usize,
    // In the order in which they have to go.
    daemon: Option<Daemon>,
    testbed: Testbed,
}

impl<'a> Bed<'a> {
    fn new(options: &'a Options, kind: &Kind, arm: usize) -> Result<Bed<'a>> {
        let ours = arm == 0 && !options.baseline;
        let line = Line { wire: (kind.wire)(), seed: SEED };
        let testbed = Testbed::over(line, if ours { Owner::Daemon } else { Owner::Kernel })?;
        let core = options.server_core;
        let text = format!(
            "[[device]]\nname = \"eth0\"\naddress = \"{}/24\"\n[engine]\ncpu = {core}\n",
            testbed.server_address(0).ip()
        );
        let daemon = ours
            .then(|| Daemon::start_with(&testbed, 0, &options.scoutline, Some(core), &text))
            .transpose()?;
        Ok(Bed { options, connections: kind.connections, daemon, testbed })
    }

    fn measure(&mut self, way: Way, seconds: f64, warmup: f64) -> Result<Seen> {
        let at = sys::monotonic_ns() + LEAD.as_nanos() as u64;
        let deadline = Instant::now() + LEAD + Duration::from_secs_f64(seconds + warmup) + SLACK;
        let (from, to) = (at + (warmup * 1e9) as u64, at + ((warmup + seconds) * 1e9) as u64);
        let server = *self.testbed.server_address(0).ip();
        let target = if way == Way::Send { self.testbed.client_address(0, Client::Standard) } else { server };
        let mut receiver = self.start(way != Way::Send, "receive", &receive_words(at, seconds, warmup))?;
        receiver.await_ready(deadline)?;
        let words = self.send_words(target, at, seconds + warmup);
        let mut sender = self.start(way == Way::Send, "send", &words)?;
        sender.await_ready(deadline)?;
        let ours = [sender.id(), receiver.id()];
        let passed = || self.passed(way);
        let arm = ARMS[usize::from(self.daemon.is_none())];
        let before = std::cell::RefCell::new(Vec::new());
        let (busy, others) = busy_between(arm, (from, to), &ours, || before.borrow_mut().push(passed()));
        let passed: Result<Vec<(WireCounters, u64)>> = before.into_inner().into_iter().collect();
        let passed = passed?;
        let [(first, mishaps_before), (last, mishaps)] = passed[..] else {
            unreachable!("both ends of the window")
        };
        let report: BulkReport = receiver.report(deadline)?;
        // It may find its receiver gone.
        let _: Result<SendReport> = sender.report(deadline);
        if let Some(daemon) = &mut self.daemon {
            daemon.check()?;
        }
        let wire = WireCounters { sent: last.sent - first.sent, lost: last.lost - first.lost, ..last };
        Ok(Seen {
            rate: report.foreground.bytes as f64 * 8.0 / report.seconds,
            wire,
            mishaps: mishaps - mishaps_before,
            messages: report.foreground.messages,
            errors: report.foreground.errors,
            busy,
            others,
        })
    }

    /// What the line has done in the direction of the data, and what the bridge has lost that the line did not.
    fn passed(&self, way: Way) -> Result<(WireCounters, u64)> {
        let passed: Passed = self.testbed.bridge().context("a test bed with a bridge")?.passed()?;
        Ok((if way == Way::Send { passed.to_client } else { passed.to_server }, passed.mishaps()))
    }

    fn send_words(&self, target: Ipv4Addr, at: u64, seconds: f64) -> Vec<String> {
        vec![
            format!("--connect={}", SocketAddrV4::new(target, PORT)),
            "--protocol=tcp".to_owned(),
            "--shape=full".to_owned(),
            "--rate=0".to_owned(),
            format!("--connections={}", self.connections),
            format!("--at={at}"),
            format!("--seconds={seconds}"),
        ]
    }

    /// Starts a program of `load` on the server host, on paths if there is a daemon, or on the client host.
    fn start(&self, at_server: bool, what: &str, words: &[String]) -> Result<Process> {
        let host: &Host = if at_server { self.testbed.server(0) } else { self.testbed.client() };
        let core = if at_server { self.options.server_core } else { self.options.load_core };
        let mut command: Vec<OsString> = Vec::new();
        if let Some(daemon) = self.daemon.as_ref().filter(|_| at_server) {
            command.extend([self.options.scoutline.clone().into(), "run".into(), "--control".into()]);
            command.extend([daemon.control().as_os_str().to_owned(), "--".into()]);
        }
        command.extend([self.options.load.clone().into(), "load".into(), what.into()]);
        command.extend(words.iter().map(Into::into));
        let place = Place { namespace: Some(host.namespace()?), core: Some(core) };
        let log = self.testbed.directory().join(format!("{what}.log"));
        Process::spawn(what, Path::new(&command[0]), &command[1..], place, &log)
    }
}

fn receive_words(at: u64, seconds: f64, warmup: f64) -> [String; 5] {
    [
        format!("--foreground={PORT}"),
        format!("--background={}", PORT + 1),
        format!("--at={at}"),
        format!("--warmup={warmup}"),
        format!("--seconds={seconds}"),
    ]
}
