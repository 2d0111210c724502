//! `flood`: a preferred client of nginx (1 KB, a class of its own) while minimum-size datagrams from another address, or
//! SYNs from forged ones, arrive as fast as the clients' core can send them beside it. Three arms in turn: paths with
//! priorities, paths with equal priorities, the kernel.
//!
//! ```text
//!   load core                                     server core
//!   preferred client, SCHED_FIFO ──────────────►  nginx
//!   sender, in what time that leaves ──┬───────►  :9000 a program that takes one datagram a millisecond
//!                                      ├───────►  :9001 nobody
//!                                      └───────►  :80   SYNs for nginx itself
//! ```
//!
//! Under the flood of SYNs the client is once on a connection that stands, and once makes one for each request. With
//! equal priorities it is nobody important, so nothing but the stack's own care keeps it going. It has had connections
//! before the flood, so paths know it (`bpf/known.rs`); how strangers fare is seen by the test `syn_flood`.
//!
//! Receive steering is on: what the server host does with a packet it does, and pays for, on its own core, as behind
//! a network card. Without it (`--steer false`) the sender's own core does that work, and the flood slows itself.
//! What arrives beyond the room of the core's backlog (`net.core.netdev_max_backlog`) the kernel drops before
//! anybody can tell whose it was; the rows show how much that is.
//!
//! Datagrams are as many on every arm. The faster a client is served the less of its core it leaves to the sender: so what the
//! sender can do beside it is measured on every arm first, and then it sends at nine tenths of the least of that on all.
//! SYNs are offered at a million a second, as many as people ask about; `flood sent` says how many there were. Where the
//! server answers them these answers take from the load core, and there may be fewer, which flatters that arm.
//!
//! Every arm is its own measure: the request rate without the flood comes from the same round. A client that thinks
//! hides delays in its rate, so each case is there with the usual pause between requests and without any.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddrV4;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::harness::{Arm, Lab, Load, Measurement, Meter, describe, order};
use crate::load::flood::{Means, Sent};
use crate::plot::{Figure, Panel, Series};
use crate::process::{Place, Process};
use crate::report::{Better, Report, Row, median};
use crate::server::{Kind, Priorities};
use crate::testbed::{Client, Testbed};
use crate::{Options, sys};

const PRIORITIES: usize = 0;
const EQUAL: usize = 1;
const KERNEL: usize = 2;
const ARMS: [Arm; 3] = [
    Arm { name: "paths priorities", paths: Some(Priorities::Extended) },
    Arm { name: "paths equal", paths: Some(Priorities::Equal) },
    Arm { name: "kernel", paths: None },
];
const STEER: bool = true;
const SIZE_KB: u32 = 1;
/// Where the slow program listens, and where nobody does.
const SINK_PORT: u16 = 9000;
const CLOSED_PORT: u16 = 9001;
const SERVER_PORT: u16 = 80;
/// SYNs a second that are offered: an arm on which the sender cannot do so many beside the client has fewer.
const SYNS_OFFERED: f64 = 1e6;
/// How much of what it can do the sender does, so that it keeps to it.
const OFFERED: f64 = 0.9;
/// For how long what it can do is measured, at most.
const CALIBRATED_SECONDS: f64 = 0.5;
/// A connection that is to stand under a flood is made under it: its SYN may have to come thrice (RFC 6298 §2).
const UNTIL_IT_STANDS: f64 = 3.5;
/// In the rates: what the sender was told to send a second, and what it has sent.
const FLOOD_OFFERED: &str = "flood offered";
const FLOOD_SENT: &str = "flood sent";
/// Until a sender sends, and a daemon under a flood answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// At whom the flood is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Another path, whose program does not keep up.
    SlowReader,
    /// No path.
    ClosedPort,
    /// The client's own server, by SYNs from forged addresses.
    Server {
        /// The client's connection stands.
        kept: bool,
    },
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Target::SlowReader => "another path",
            Target::ClosedPort => "no path",
            Target::Server { kept: true } => "the server, SYNs, a connection that stands",
            Target::Server { kept: false } => "the server, SYNs, connections anew",
        }
    }

    fn port(self) -> u16 {
        match self {
            Target::SlowReader => SINK_PORT,
            Target::ClosedPort => CLOSED_PORT,
            Target::Server { .. } => SERVER_PORT,
        }
    }
}

/// Counters by name, a second.
type Rates = BTreeMap<String, f64>;

struct Case {
    target: Target,
    think_us: u64,
    /// Datagrams a second; `None` before they are known.
    offered: Option<f64>,
    /// Who sent them, each once.
    means: Vec<Means>,
    /// Per arm, one of each round.
    alone: [Vec<Measurement>; 3],
    flooded: [Vec<Measurement>; 3],
    rates: [Vec<Rates>; 3],
}

impl Case {
    fn text(&self) -> String {
        let pause = match self.think_us {
            0 => "no pause between requests".to_owned(),
            think => format!("{think} µs between requests"),
        };
        format!("nginx {SIZE_KB} KB, flood for {}, {pause}", self.target.name())
    }

    /// The request rate under the flood, in percent of that without, round by round.
    fn kept(&self, arm: usize) -> Vec<f64> {
        let rate = |seen: &Measurement| seen.preferred.throughput();
        let rounds = self.flooded[arm].iter().zip(&self.alone[arm]);
        rounds.map(|(flooded, alone)| 100.0 * rate(flooded) / rate(alone).max(1e-9)).collect()
    }
}

pub(crate) fn run(options: &Options) -> Result<Report> {
    let (rounds, seconds, warmup) = if options.quick { (1, 1.0, 0.3) } else { (3, 3.0, 0.5) };
    let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
    let mut cases = cases(options);
    anyhow::ensure!(
        !cases.is_empty(),
        "no case of `flood` contains {:?}",
        options.only.as_deref().unwrap_or_default()
    );
    let mut lab = Lab::new(options, &ARMS, STEER)?;
    lab.testbed().receive_with_napi()?;
    // Whether a connection is kept is the client's choice.
    lab.serve(Kind::Nginx { workers: 2, keepalive: true })?;
    let sinks: Result<Vec<Process>> = (0..ARMS.len()).map(|arm| start_sink(&lab, options, arm)).collect();
    let mut sinks = sinks?;
    let unknown = cases.iter().filter(|case| case.offered.is_none()).count();
    let mut meter = Meter::new(options, (2 * rounds as usize * cases.len() + unknown) * ARMS.len());
    let load = Load { size_kb: SIZE_KB, standard: 0, preferred: true, seconds, warmup };
    for round in 0..rounds {
        for case in &mut cases {
            lab.think(case.think_us);
            lab.keep_connections(case.target == Target::Server { kept: true });
            let offered = match case.offered {
                Some(offered) => offered,
                None => calibrate(&mut lab, options, case, &load, &mut meter)?,
            };
            case.offered = Some(offered);
            for arm in order(ARMS.len(), round) {
                let what = format!("{} · {} · round {}", case.text(), ARMS[arm].name, round + 1);
                let alone = lab.measure(arm, &load, None)?;
                meter.step(&format!("{what} · without the flood"), &alone);
                case.alone[arm].push(alone);
                let Flooded { measurement, rates, means } =
                    measure_flooded(&mut lab, options, arm, (case.target, Some(offered)), &load)?;
                meter.step(&what, &measurement);
                case.flooded[arm].push(measurement);
                case.rates[arm].push(rates);
                if !case.means.contains(&means) {
                    case.means.push(means);
                }
                sinks[arm].check().with_context(|| format!("arm `{}`", ARMS[arm].name))?;
            }
        }
    }
    let mut report = Report::new("flood");
    let all: Vec<&Measurement> =
        cases.iter().flat_map(|case| case.alone.iter().chain(&case.flooded).flatten()).collect();
    describe(&mut report, options, (seconds, warmup, rounds), STEER, &all);
    methods(&mut report, &cases);
    for case in &cases {
        rows(case, options, &mut report.rows);
    }
    report.figure = Some(figure(&cases));
    Ok(report)
}

fn cases(options: &Options) -> Vec<Case> {
    let mut pauses = vec![options.think_us, 0];
    pauses.dedup();
    let mut cases = Vec::new();
    let server = [true, false].map(|kept| Target::Server { kept });
    for target in [Target::SlowReader, Target::ClosedPort].into_iter().chain(server) {
        for &think_us in &pauses {
            let case = Case {
                target,
                think_us,
                offered: matches!(target, Target::Server { .. }).then_some(SYNS_OFFERED),
                means: Vec::new(),
                alone: Default::default(),
                flooded: Default::default(),
                rates: Default::default(),
            };
            if options.wants(&case.text()) {
                cases.push(case);
            }
        }
    }
    cases
}

/// What is offered to every arm of this case.
fn calibrate(
    lab: &mut Lab<'_>,
    options: &Options,
    case: &Case,
    load: &Load,
    meter: &mut Meter,
) -> Result<f64> {
    let load = Load { seconds: load.seconds.min(CALIBRATED_SECONDS), ..*load };
    let mut least = f64::INFINITY;
    for (arm, Arm { name, .. }) in ARMS.iter().enumerate() {
        let Flooded { measurement, rates, .. } =
            measure_flooded(lab, options, arm, (case.target, None), &load)?;
        meter.step(&format!("{} · {name} · how much can be sent", case.text()), &measurement);
        least = least.min(rates[FLOOD_SENT]);
    }
    Ok(least * OFFERED)
}

/// The program that the flood is for, on the server host and on its core; on paths in those arms.
fn start_sink(lab: &Lab<'_>, options: &Options, arm: usize) -> Result<Process> {
    let mut command: Vec<PathBuf> = Vec::new();
    if let Some(daemon) = lab.daemon(arm) {
        command.extend([&options.scoutline, Path::new("run"), Path::new("--control")].map(Into::into));
        command.extend([daemon.control(), Path::new("--")].map(Into::into));
    }
    command.extend([&options.load, Path::new("load"), Path::new("sink")].map(Into::into));
    command.push(format!("--port={SINK_PORT}").into());
    let place =
        Place { namespace: Some(lab.testbed().server(arm).namespace()?), core: Some(options.server_core) };
    let log = lab.testbed().directory().join(format!("sink{arm}.log"));
    let mut sink = Process::spawn("sink", &command[0], &command[1..], place, &log)?;
    wait_for_line(&mut sink, "ready")?;
    Ok(sink)
}

fn start_flood(
    lab: &Lab<'_>,
    options: &Options,
    arm: usize,
    (target, offered): (Target, Option<f64>),
) -> Result<Process> {
    let testbed = lab.testbed();
    let address = SocketAddrV4::new(*testbed.server_address(arm).ip(), target.port());
    let mac = testbed.server(arm).enter(|| sys::link_address("eth0"))?.context("no link address of eth0")?;
    let mac: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut arguments = vec![
        "load".to_owned(),
        "flood".to_owned(),
        format!("--device=eth{arm}"),
        format!("--mac={}", mac.join(":")),
        format!("--source={}", testbed.client_address(arm, Client::Standard)),
        format!("--target={address}"),
        format!("--cpu={}", options.load_core),
    ];
    if matches!(target, Target::Server { .. }) {
        arguments.push("--syn".to_owned());
    }
    arguments.extend(offered.map(|rate| format!("--rate={rate}")));
    let place = Place { namespace: Some(testbed.client().namespace()?), core: None };
    let log = testbed.directory().join("flood.log");
    let mut flood = Process::spawn("flood", &options.load, arguments, place, &log)?;
    wait_for_line(&mut flood, "sending")?;
    Ok(flood)
}

fn wait_for_line(process: &mut Process, word: &str) -> Result<()> {
    match process.line(Instant::now() + PATIENCE)? {
        Some(line) if line == word => Ok(()),
        _ => bail!("it did not say `{word}`{}", process.log_tail()),
    }
}

/// What was seen in a flood.
struct Flooded {
    measurement: Measurement,
    rates: Rates,
    means: Means,
}

fn measure_flooded(
    lab: &mut Lab<'_>,
    options: &Options,
    arm: usize,
    flood: (Target, Option<f64>),
    load: &Load,
) -> Result<Flooded> {
    let offered = flood.1;
    let mut load = *load;
    if flood.0 == (Target::Server { kept: true }) {
        load.warmup = load.warmup.max(UNTIL_IT_STANDS);
    }
    let mut flood = start_flood(lab, options, arm, flood)?;
    let control = lab.daemon(arm).map(|daemon| daemon.control().to_owned());
    let watch = |testbed: &Testbed| Snapshot::take(testbed, arm, options.server_core, control.as_deref());
    let (measurement, first, last) = lab.measure_watched(arm, &load, watch)?;
    flood.check()?;
    let (first, last) = (first?, last?);
    let mut rates = last.since(&first);
    let sent = std::iter::from_fn(|| flood.line_if(|line| serde_json::from_str(line).ok()));
    let (sent, means) =
        sent_between(sent, first.kernel_s, last.kernel_s).context("the sender does not say what it sends")?;
    rates.insert(FLOOD_SENT.to_owned(), sent);
    rates.extend(offered.map(|offered| (FLOOD_OFFERED.to_owned(), offered)));
    Ok(Flooded { measurement, rates, means })
}

/// Datagrams a second, by what the sender said between two times, and who that was.
fn sent_between(said: impl Iterator<Item = Sent>, from_s: f64, to_s: f64) -> Option<(f64, Means)> {
    let within = said.filter(|sent| (from_s..=to_s).contains(&(sent.at_ns as f64 / 1e9)));
    let within: Vec<Sent> = within.collect();
    let (first, last) = within.first().zip(within.last())?;
    let seconds = (last.at_ns - first.at_ns) as f64 / 1e9;
    (seconds > 0.0).then(|| ((last.count - first.count) as f64 / seconds, last.means))
}

/// What was counted up to a moment, by the kernel and by our daemon; each has its own moment, because a daemon under
/// a flood may answer late.
#[derive(Debug, Default)]
struct Snapshot {
    kernel_s: f64,
    kernel: BTreeMap<String, u64>,
    daemon_s: f64,
    daemon: BTreeMap<String, u64>,
}

impl Snapshot {
    fn take(testbed: &Testbed, arm: usize, core: usize, control: Option<&Path>) -> Result<Snapshot> {
        let mut snapshot = Snapshot { kernel_s: sys::monotonic_ns() as f64 / 1e9, ..Snapshot::default() };
        let kernel = &mut snapshot.kernel;
        // Of the thread's namespace, not of the process's.
        let read =
            |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        let sent = testbed.client().enter(|| read("dev"))?;
        if let Some([_, _, sent, refused]) = device(&sent, &format!("eth{arm}")) {
            kernel.insert("flood and requests sent".into(), sent + refused);
        }
        let (received, protocols) = testbed.server(arm).enter(|| (read("dev"), read("snmp")))?;
        if let Some([arrived, ..]) = device(&received, "eth0") {
            kernel.insert("arrived".into(), arrived);
        }
        kernel.insert("dropped, the core's backlog full".into(), backlog_drops(core));
        for (counter, name) in
            [("NoPorts", "dropped, kernel: no port"), ("RcvbufErrors", "dropped, kernel: socket buffer full")]
        {
            kernel.insert(name.into(), protocol_counter(&protocols, "Udp:", counter));
        }
        if let Some(control) = control {
            (snapshot.daemon_s, snapshot.daemon) = daemon_counters(control)?;
        }
        Ok(snapshot)
    }

    fn since(&self, before: &Snapshot) -> Rates {
        let parts = [
            (&self.kernel, &before.kernel, self.kernel_s - before.kernel_s),
            (&self.daemon, &before.daemon, self.daemon_s - before.daemon_s),
        ];
        let mut rates = Rates::new();
        for (now, then, seconds) in parts {
            for (name, count) in now {
                let count = count.saturating_sub(then.get(name).copied().unwrap_or(0));
                rates.insert(name.clone(), count as f64 / seconds.max(1e-3));
            }
        }
        rates
    }
}

/// What our daemon counted, by reason, and its own time.
fn daemon_counters(control: &Path) -> Result<(f64, BTreeMap<String, u64>)> {
    let stat = ask_stat(control).with_context(|| format!("no totals from {}", control.display()))?;
    let mut counters = BTreeMap::new();
    let device = &stat["devices"]["eth0"];
    counters.insert("arrived at the engine".to_owned(), device["rx-packets"].as_u64().unwrap_or(0));
    counters.insert("held back at the interface".to_owned(), device["rx-policed"].as_u64().unwrap_or(0));
    counters.insert("dropped, packet ring full".to_owned(), device["rx-ring-drops"].as_u64().unwrap_or(0));
    let classes = stat["classes"].as_array().into_iter().flatten().map(|class| &class["drops"]);
    for drops in classes.chain([&stat["drops"]]) {
        for (reason, count) in drops.as_object().into_iter().flatten() {
            *counters.entry(format!("dropped, {reason}")).or_default() += count.as_u64().unwrap_or(0);
        }
    }
    Ok((stat["uptime_s"].as_f64().context("totals without a time")?, counters))
}

fn ask_stat(control: &Path) -> Result<Value> {
    let mut stream = UnixStream::connect(control)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"{\"command\":\"stat\"}\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Packets received and dropped on receipt, sent and dropped on sending, of one line of `/proc/net/dev`.
pub(crate) fn device(text: &str, name: &str) -> Option<[u64; 4]> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    let fields: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
    Some([*fields.get(1)?, *fields.get(3)?, *fields.get(9)?, *fields.get(11)?])
}

/// One counter of `/proc/net/snmp`: a line of names, then a line of values.
fn protocol_counter(text: &str, protocol: &str, counter: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs.find(|(name, _)| *name == counter).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// The second column of a core's line in softnet_stat: packets for which its backlog had no room.
fn backlog_drops(core: usize) -> u64 {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let column = text.lines().nth(core).and_then(|line| line.split_whitespace().nth(1));
    column.and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0)
}

fn methods(report: &mut Report, cases: &[Case]) {
    report.method("servers", "nginx with 2 workers; sendfile on; no logs");
    report.method(
        "preferred client",
        "a process of its own, SCHED_FIFO 50 on the load core, its own class, in every arm; it has had connections before \
         the flood",
    );
    report.method(
        "flood",
        "one sender on the load core, in the time that the preferred client leaves; in every arm at the rate \
         `flood offered`: of SYNs a million a second, of datagrams nine tenths of the most that it could send on each of \
         them; what it was held up by it makes up for (`flood sent`): frames of 64 bytes (UDP) from another address; \
         for port 9000, where a program (on paths in those arms) takes one datagram a millisecond, or for port 9001, where nobody listens; or SYNs with all of Linux's options to \
         the server's own port, each from an address and port drawn anew (RFC 2544's network, to which the server's \
         answers have a way)",
    );
    let mut means: Vec<&str> =
        cases.iter().flat_map(|case| &case.means).map(|means| means.describe()).collect();
    means.sort_unstable();
    means.dedup();
    report.method("the flood's sender", means.join("; in others "));
    report.method(
        "receipt",
        "the servers' interfaces have GRO on, in every arm: as with a network card, frames come by NAPI; without it live \
         frames do not arrive. A program at the hook in the driver runs on the sender's core, though, since a veth has no \
         interrupt of its own: what it costs is no part of the server's core",
    );
    report.method(
        "response times",
        "of requests answered within the window; where none was, the window's length stands for what took longer",
    );
    report.method(
        "drops",
        "ours by reason, in all classes and without a path; what is held back at the interface (`police_floods`) is in \
         no other count; a packet for no path is dropped as no-path, and its answer \
         (ICMP) beyond the limit of those as rate-limited; packets that found the packet ring or the core's backlog \
         full were never seen by the engine",
    );
    report.method("priorities", "preferred 2, standard 0; the listen path of each class as the class");
}

/// A response time; where no request was answered, the whole window, which is less than it took.
fn at_least(seen: &Measurement, time_us: f64) -> f64 {
    if seen.preferred.requests == 0 { seen.preferred.seconds * 1e6 } else { time_us }
}

fn rows(case: &Case, options: &Options, rows: &mut Vec<Row>) {
    let mut reasons: Vec<&String> = case.rates.iter().flatten().flat_map(BTreeMap::keys).collect();
    reasons.sort();
    reasons.dedup();
    for peer in [EQUAL, KERNEL] {
        let mut add = |metric: (&str, &str, Better), figures: &dyn Fn(usize) -> Vec<f64>| {
            let peer = (ARMS[peer].name, &*figures(peer));
            rows.push(Row::new(case.text(), metric, &figures(PRIORITIES), Some(peer)));
        };
        add(("request rate kept", "%", Better::Higher), &|arm| case.kept(arm));
        let of = |seen: &[Measurement], figure: fn(&Measurement) -> f64| -> Vec<f64> {
            seen.iter().map(figure).collect()
        };
        let rate: fn(&Measurement) -> f64 = |seen| seen.preferred.throughput();
        add(("request rate", "req/s", Better::Higher), &|arm| of(&case.flooded[arm], rate));
        add(("request rate without the flood", "req/s", Better::Higher), &|arm| of(&case.alone[arm], rate));
        let mean: fn(&Measurement) -> f64 = |seen| at_least(seen, seen.preferred.mean_us);
        let p99: fn(&Measurement) -> f64 = |seen| at_least(seen, seen.preferred.p99_us);
        add(("preferred mean", "µs", Better::Lower), &|arm| of(&case.flooded[arm], mean));
        add(("preferred p99", "µs", Better::Lower), &|arm| of(&case.flooded[arm], p99));
        add(("preferred mean without the flood", "µs", Better::Lower), &|arm| of(&case.alone[arm], mean));
        add(("preferred p99 without the flood", "µs", Better::Lower), &|arm| of(&case.alone[arm], p99));
        let failed: fn(&Measurement) -> f64 = |seen| seen.error_count() as f64;
        add(("failed requests", "requests", Better::Lower), &|arm| of(&case.flooded[arm], failed));
        for (metric, core) in
            [("server core busy", options.server_core), ("load core busy", options.load_core)]
        {
            add((metric, "%", Better::Lower), &|arm| {
                case.flooded[arm].iter().map(|seen| seen.busy.get(core).copied().unwrap_or(0.0)).collect()
            });
        }
        for reason in &reasons {
            let rates = |arm: usize| -> Vec<f64> {
                case.rates[arm].iter().map(|rates| rates.get(*reason).copied().unwrap_or(0.0)).collect()
            };
            let seen = rates(PRIORITIES).iter().chain(&rates(peer)).any(|rate| *rate > 0.0);
            let better = if reason.starts_with("dropped") { Better::Lower } else { Better::Higher };
            if seen {
                add((reason, "packets/s", better), &rates);
            }
        }
    }
}

fn figure(cases: &[Case]) -> Figure {
    let panel = |title: &str, y_label: &str, figures: &dyn Fn(&Case, usize) -> Vec<f64>| Panel {
        title: title.to_owned(),
        y_label: y_label.to_owned(),
        categories: cases
            .iter()
            .map(|case| {
                format!("{}, {}", case.target.name(), if case.think_us == 0 { "no pause" } else { "pause" })
            })
            .collect(),
        series: [KERNEL, PRIORITIES, EQUAL]
            .map(|arm| Series {
                name: ARMS[arm].name.to_owned(),
                points: cases
                    .iter()
                    .enumerate()
                    .map(|(index, case)| (index as f64, median(&figures(case, arm))))
                    .collect(),
            })
            .into(),
        ..Panel::default()
    };
    Figure {
        title: "A preferred client under a flood of minimum-size packets".into(),
        panels: vec![
            panel("request rate kept", "% of that without the flood", &|case, arm| case.kept(arm)),
            panel("preferred client, mean", "response time (µs)", &|case, arm| {
                case.flooded[arm].iter().map(|seen| at_least(seen, seen.preferred.mean_us)).collect()
            }),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::{Snapshot, device, protocol_counter, sent_between};
    use crate::load::flood::{Means, Sent};

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "Inter-|   Receive\n face |bytes\n  eth1: 9 8 0 0 0 0 0 0 7 6 0 0 0 0 0 0\n eth10:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(device(text, "eth1"), Some([8, 0, 6, 0]));
        assert_eq!(device(text, "eth10"), Some([2, 4, 10, 12]));
        assert_eq!(device(text, "eth0"), None);
        let text = "Udp: InDatagrams NoPorts\nUdp: 5 17\nUdpLite: InDatagrams NoPorts\nUdpLite: 0 1\n";
        assert_eq!(protocol_counter(text, "Udp:", "NoPorts"), 17);
        assert_eq!(protocol_counter(text, "Udp:", "RcvbufErrors"), 0);
    }

    #[test]
    fn what_was_sent_is_counted_within_the_window() {
        let means = Means::Socket;
        let sent = |count, at_ms: u64| Sent { count, at_ns: at_ms * 1_000_000, means };
        let said = [sent(0, 900), sent(100, 1000), sent(300, 1500), sent(400, 2000), sent(9000, 2100)];
        assert_eq!(sent_between(said.into_iter(), 0.95, 2.05), Some((300.0, means)));
        assert_eq!(sent_between(said.into_iter(), 0.95, 1.05), None, "one line says nothing");
    }

    #[test]
    fn kernel_and_daemon_are_counted_over_their_own_time() {
        let counters = |name: &str, count: u64| [(name.to_owned(), count)].into();
        let before =
            Snapshot { kernel_s: 1.0, daemon_s: 1.0, kernel: counters("a", 10), ..Snapshot::default() };
        let after =
            Snapshot { kernel_s: 3.0, kernel: counters("a", 30), daemon_s: 5.0, daemon: counters("b", 8) };
        let rates = after.since(&before);
        assert!((rates["a"] - 10.0).abs() < 1e-9 && (rates["b"] - 2.0).abs() < 1e-9, "{rates:?}");
    }
}
