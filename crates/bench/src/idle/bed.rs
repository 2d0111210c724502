//! Hosts, arms, and one measurement.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::{
    STEER, Seen, Traffic, WEB_BACKGROUND_CLIENTS, WEB_BACKGROUND_KB, WEB_SIZE_KB, WEB_THINK_US, Work,
};
use crate::harness::busy_between;
use crate::load::LoadReport;
use crate::load::bulk::{BulkReport, Protocol, SendReport, Shape, Side};
use crate::process::{Place, Process};
use crate::server::{Daemon, Instance, Kind, Server};
use crate::testbed::{Client, Link, Owner, Steer, Testbed};
use crate::{Options, pattern, sys};

/// Where the receiver takes foreground and background.
const FOREGROUND_PORT: u16 = 5001;
const BACKGROUND_PORT: u16 = 5002;
/// Where nginx serves background, in arms that know it by its server.
const WEB_BACKGROUND_PORT: u16 = 81;
const WEB: Kind = Kind::Nginx { workers: 1, keepalive: false };
/// From starting the programs to their common beginning: they connect before.
const LEAD: Duration = Duration::from_millis(400);
/// What a program may take longer than told.
const SLACK: Duration = Duration::from_secs(15);
/// The receiver's priority, in every arm alike: what it sees late is not the sender's doing.
const RECEIVER_REALTIME: i32 = 50;
/// The foreground sender's, in every arm alike: below the engine, and above whatever else the machine does, so that
/// what delays a message is the network.
const FOREGROUND_REALTIME: i32 = 10;
/// Congestion controls of Linux that leave the path to others.
const YIELDING: [&str; 2] = ["ledbat", "lp"];

/// One side of the comparison.
#[derive(Clone, Debug)]
pub(super) struct Arm {
    /// Its name in tables.
    pub(super) name: &'static str,
    /// Ours.
    pub(super) paths: bool,
    /// What background is started with.
    lowered: &'static [&'static str],
    /// htb at the sender.
    shaped: bool,
    /// The congestion control of background.
    congestion: &'static str,
}

/// Ours first.
pub(super) fn arms() -> Vec<Arm> {
    let kernel = Arm { name: "no mechanism", paths: false, lowered: &[], shaped: false, congestion: "" };
    let mut arms = vec![
        Arm { name: "paths", paths: true, ..kernel.clone() },
        kernel.clone(),
        Arm { name: "nice", lowered: &["nice", "-n", "19"], ..kernel.clone() },
        Arm { name: "SCHED_IDLE", lowered: &["chrt", "-i", "0"], ..kernel.clone() },
        Arm { name: "htb", shaped: true, ..kernel.clone() },
    ];
    if let Some(congestion) = yielding() {
        arms.push(Arm { name: congestion, congestion, ..kernel });
    }
    arms
}

/// The congestion control of this kernel that yields, if it has one.
pub(super) fn yielding() -> Option<&'static str> {
    let list = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    YIELDING.into_iter().find(|name| list.split_whitespace().any(|other| other == *name))
}

/// Hosts for all arms, with their links and daemons.
pub(super) struct Bed<'a> {
    options: &'a Options,
    link: Link,
    arms: Vec<Arm>,
    // Dropped in this order: servers, daemons, hosts.
    web: HashMap<usize, Vec<Server>>,
    daemons: Vec<Option<Daemon>>,
    testbed: Testbed,
}

/// What is running during one measurement, and when.
struct Window {
    at: u64,
    seconds: f64,
    warmup: f64,
    deadline: Instant,
}

impl Window {
    fn new(seconds: f64, warmup: f64) -> Window {
        let at = sys::monotonic_ns() + LEAD.as_nanos() as u64;
        let deadline = Instant::now() + LEAD + Duration::from_secs_f64(seconds + warmup) + SLACK;
        Window { at, seconds, warmup, deadline }
    }

    fn from(&self) -> u64 {
        self.at + (self.warmup * 1e9) as u64
    }

    fn to(&self) -> u64 {
        self.from() + (self.seconds * 1e9) as u64
    }
}

impl<'a> Bed<'a> {
    pub(super) fn new(options: &'a Options, arms: &[Arm], link: Link) -> Result<Bed<'a>> {
        let ours = |arm: &Arm| arm.paths && !options.baseline;
        let owner = |arm| if ours(arm) { Owner::Daemon } else { Owner::Kernel };
        let owners: Vec<Owner> = arms.iter().map(owner).collect();
        let cores = Steer { server_core: options.server_core, client_core: options.load_core };
        let steer = options.steer.unwrap_or(STEER).then_some(cores);
        let testbed = Testbed::over_links(&owners, link, steer)?;
        let mut bed =
            Bed { options, link, arms: arms.to_vec(), web: HashMap::new(), daemons: Vec::new(), testbed };
        for (index, arm) in arms.iter().enumerate() {
            let daemon = ours(arm).then(|| bed.start_daemon(index)).transpose();
            bed.daemons.push(daemon.with_context(|| format!("arm `{}`", arm.name))?);
            if arm.shaped {
                bed.testbed.prioritise_over_link(index, link, &[BACKGROUND_PORT, WEB_BACKGROUND_PORT])?;
            }
        }
        Ok(bed)
    }

    fn start_daemon(&self, index: usize) -> Result<Daemon> {
        let address = *self.testbed.server_address(index).ip();
        let (gateway, rate) = (self.testbed.gateway(index), self.link.rate);
        let background = self.testbed.client_address(index, Client::Standard);
        let core = self.options.server_core;
        let text = format!(
            "[[device]]
name = \"eth0\"
address = \"{address}/24\"
gateway = \"{gateway}\"
rate = {rate}

[engine]
cpu = {core}

[[class]]
name = \"background\"
idle = true
source = [\"{background}/32\"]
"
        );
        Daemon::start_with(&self.testbed, index, &self.options.scoutline, Some(core), &text)
    }

    /// Puts this on the arm with this index and measures.
    pub(super) fn measure(&mut self, arm: usize, work: Work, seconds: f64, warmup: f64) -> Result<Seen> {
        let seen = match work {
            Work::Bulk { foreground, background } => {
                self.measure_bulk(arm, (foreground, background), seconds, warmup)
            }
            Work::Web { foreground, background } => {
                self.measure_web(arm, (foreground, background), seconds, warmup)
            }
        };
        let seen = seen.with_context(|| format!("{} on arm `{}`", work.text(), self.arms[arm].name))?;
        if let Some(daemon) = &mut self.daemons[arm] {
            daemon.check().with_context(|| format!("arm `{}`", self.arms[arm].name))?;
        }
        Ok(seen)
    }

    fn measure_bulk(
        &self,
        arm: usize,
        (foreground, background): (Option<(Protocol, Shape)>, Option<Protocol>),
        seconds: f64,
        warmup: f64,
    ) -> Result<Seen> {
        let window = Window::new(seconds, warmup);
        let mut receiver = self.start_receiver(&window)?;
        receiver.await_ready(window.deadline)?;
        let background =
            background.map(|protocol| self.start_sender(arm, &window, (protocol, Shape::Full), true));
        let foreground = foreground.map(|traffic| self.start_sender(arm, &window, traffic, false));
        let sides = [background.transpose()?, foreground.transpose()?];
        let protocols = [sides[0].as_ref().map(|side| side.1), sides[1].as_ref().map(|side| side.1)];
        let mut senders: Vec<Process> = sides.into_iter().flatten().map(|(process, _)| process).collect();
        for sender in &mut senders {
            sender.await_ready(window.deadline)?;
        }
        let ours: Vec<u32> = senders.iter().chain([&receiver]).map(Process::id).collect();
        let (busy, others) = busy_between(self.arms[arm].name, (window.from(), window.to()), &ours, || {});
        for sender in &mut senders {
            let _: SendReport = sender.report(window.deadline)?;
        }
        let report: BulkReport = receiver.report(window.deadline)?;
        let traffic = |side: &Side, protocol: Option<Protocol>| {
            let mtu = self.link.mtu as usize;
            let frame = protocol.map_or(0, |protocol| protocol.frame_len(mtu)) as f64;
            let rate = side.messages as f64 * frame * 8.0 / report.seconds;
            Traffic { rate, p50_us: side.p50_us, p99_us: side.p99_us }
        };
        Ok(Seen {
            background: traffic(&report.background, protocols[0]),
            foreground: traffic(&report.foreground, protocols[1]),
            yield_p50_us: report.yield_p50_us,
            yield_p99_us: report.yield_p99_us,
            reclaim_p50_us: report.reclaim_p50_us,
            reclaim_p99_us: report.reclaim_p99_us,
            errors: report.foreground.errors + report.background.errors,
            busy,
            others,
        })
    }

    fn start_receiver(&self, window: &Window) -> Result<Process> {
        let arguments = [
            "load".to_owned(),
            "receive".to_owned(),
            format!("--foreground={FOREGROUND_PORT}"),
            format!("--background={BACKGROUND_PORT}"),
            format!("--at={}", window.at),
            format!("--warmup={}", window.warmup),
            format!("--seconds={}", window.seconds),
            format!("--cpu={}", self.options.load_core),
            format!("--realtime={RECEIVER_REALTIME}"),
            format!("--mtu={}", self.link.mtu),
        ];
        let place = Place { namespace: Some(self.testbed.client().namespace()?), core: None };
        let log = self.testbed.directory().join("receive.log");
        Process::spawn("receiver", &self.options.load, arguments, place, &log)
    }

    fn start_sender(
        &self,
        arm: usize,
        window: &Window,
        (protocol, shape): (Protocol, Shape),
        background: bool,
    ) -> Result<(Process, Protocol)> {
        let port = if background { BACKGROUND_PORT } else { FOREGROUND_PORT };
        // The other address is background's by its class; here the program says what it is.
        let target = SocketAddrV4::new(self.testbed.client_address(arm, Client::Preferred), port);
        let name = if background { "background" } else { "foreground" };
        let words = [
            format!("--connect={target}"),
            format!("--protocol={}", protocol.name().to_lowercase()),
            format!("--shape={}", if shape == Shape::Full { "full" } else { "bursty" }),
            format!("--rate={}", self.link.rate),
            format!("--mtu={}", self.link.mtu),
            format!("--at={}", window.at),
            format!("--seconds={}", window.seconds + window.warmup),
            format!("--cpu={}", self.options.server_core),
        ];
        let mut command = self.prefix(arm, background);
        command.extend([self.options.load.clone().into_os_string(), "load".into(), "send".into()]);
        command.extend(words.map(Into::into));
        if !background {
            command.push(format!("--realtime={FOREGROUND_REALTIME}").into());
        }
        let congestion = self.arms[arm].congestion;
        if background && protocol == Protocol::Tcp && !congestion.is_empty() {
            command.push(format!("--congestion={congestion}").into());
        }
        let place = Place { namespace: Some(self.testbed.server(arm).namespace()?), core: None };
        let log = self.testbed.directory().join(format!("{name}{arm}.log"));
        let process = Process::spawn(name, Path::new(&command[0]), &command[1..], place, &log)?;
        Ok((process, protocol))
    }

    /// What a sender of this arm is started with.
    fn prefix(&self, arm: usize, background: bool) -> Vec<OsString> {
        if let Some(daemon) = &self.daemons[arm] {
            let mut command = vec![self.options.scoutline.clone().into_os_string(), "run".into()];
            command.extend(["--control".into(), daemon.control().as_os_str().to_owned()]);
            if background {
                command.push("--background".into());
            }
            command.push("--".into());
            return command;
        }
        let lowered = if background { self.arms[arm].lowered } else { &[] };
        lowered.iter().map(Into::into).collect()
    }

    fn measure_web(
        &mut self,
        arm: usize,
        (foreground, background): (bool, bool),
        seconds: f64,
        warmup: f64,
    ) -> Result<Seen> {
        self.serve(arm)?;
        let window = Window::new(seconds, warmup);
        let clients = [(foreground, Client::Preferred), (background, Client::Standard)];
        let mut loads = Vec::new();
        for (_, client) in clients.into_iter().filter(|(there, _)| *there) {
            loads.push((client, self.start_clients(arm, client, &window)?));
        }
        let ours: Vec<u32> = loads.iter().map(|(_, process)| process.id()).collect();
        let (busy, others) = busy_between(self.arms[arm].name, (window.from(), window.to()), &ours, || {});
        let mut seen = Seen { busy, others, ..Seen::default() };
        for (client, process) in &mut loads {
            let report: LoadReport = process.report(window.deadline)?;
            let rate = report.bytes as f64 * 8.0 / report.seconds.max(1e-9);
            let traffic = Traffic { rate, p50_us: report.p50_us, p99_us: report.p99_us };
            seen.errors += report.error_count();
            match client {
                Client::Preferred => seen.foreground = traffic,
                Client::Standard => seen.background = traffic,
            }
        }
        for server in self.web.get_mut(&arm).into_iter().flatten() {
            server.check()?;
        }
        Ok(seen)
    }

    /// Starts nginx, once: one server where background is known by its packets or not at all, else two.
    fn serve(&mut self, arm: usize) -> Result<()> {
        if self.web.contains_key(&arm) {
            return Ok(());
        }
        let paths = self.daemons[arm].as_ref().map(|daemon| (self.options.scoutline.as_path(), daemon));
        let core = self.options.server_core;
        let mut servers = vec![Server::start(&self.testbed, arm, WEB, core, paths)?];
        if self.has_second_server(arm) {
            let lowered = self.arms[arm].lowered;
            let instance = Instance { port: WEB_BACKGROUND_PORT, realtime: None, lowered };
            servers.push(Server::start_instance(&self.testbed, arm, WEB, core, paths, instance)?);
        }
        self.web.insert(arm, servers);
        Ok(())
    }

    fn has_second_server(&self, arm: usize) -> bool {
        let arm = &self.arms[arm];
        !arm.paths && (arm.shaped || !arm.lowered.is_empty())
    }

    fn start_clients(&self, arm: usize, client: Client, window: &Window) -> Result<Process> {
        let mut server = self.testbed.server_address(arm);
        let background = client == Client::Standard;
        if background && self.has_second_server(arm) {
            server.set_port(WEB_BACKGROUND_PORT);
        }
        let source: Ipv4Addr = self.testbed.client_address(arm, client);
        let size_kb = if background { WEB_BACKGROUND_KB } else { WEB_SIZE_KB };
        let mut arguments = vec![
            "load".to_owned(),
            format!("--connect={server}"),
            format!("--source={source}"),
            format!("--path=/{}", pattern::file_name(size_kb)),
            format!("--clients={}", if background { WEB_BACKGROUND_CLIENTS } else { 1 }),
            format!("--seconds={}", window.seconds),
            format!("--warmup={}", window.warmup),
            format!("--cpu={}", self.options.load_core),
            format!("--at={}", window.at),
            "--discard".to_owned(),
            "--json".to_owned(),
        ];
        if !background {
            arguments.push(format!("--think={WEB_THINK_US}"));
            arguments.push(format!("--realtime={RECEIVER_REALTIME}"));
        }
        let name = if background { "background" } else { "foreground" };
        let place = Place { namespace: Some(self.testbed.client().namespace()?), core: None };
        let log = self.testbed.directory().join(format!("{name}-clients.log"));
        Process::spawn(&format!("{name} clients"), &self.options.load, arguments, place, &log)
    }
}
