//! The hosts of a comparison in one placement, with what serves on them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::iter::repeat_n;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::{ARMS, KERNEL, PATHS, Placement, Seen, Timing, arm_names};
use crate::harness::{busy_between, busy_while};
use crate::load::LoadReport;
use crate::peer::Peer;
use crate::process::{Place, Process};
use crate::server::Daemon;
use crate::testbed::{Client, Owner, Steer, Testbed};
use crate::{Options, sys};

/// From starting a load generator to its beginning.
const LEAD: Duration = Duration::from_millis(80);
/// What a program may take longer than told.
const SLACK: Duration = Duration::from_secs(20);

/// Where the other side's program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sides {
    /// On the client host, on the kernel.
    TwoHosts,
    /// On the server host: on paths too, or on the kernel over its own loopback.
    OneHost,
}

impl Sides {
    pub(super) fn method(self) -> &'static str {
        match self {
            Sides::TwoHosts => "network namespaces, a veth pair per arm, offloads on, cubic on every route",
            Sides::OneHost => "both ends on one host: on paths both, or the kernel's loopback; cubic in both",
        }
    }
}

/// A load generator of ours, as it is started.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    /// The words after `scoutline load`, without times and address.
    pub(crate) words: &'a [String],
    /// Where its server listens.
    pub(crate) port: u16,
}

/// Hosts, daemon and servers of all arms.
pub(crate) struct Bed<'a> {
    options: &'a Options,
    placement: Placement,
    sides: Sides,
    // In the order in which they have to go.
    servers: BTreeMap<(usize, String), Process>,
    /// By arm: ours, but in a baseline, and what is tried.
    daemons: BTreeMap<usize, Daemon>,
    testbed: Testbed,
}

impl<'a> Bed<'a> {
    pub(crate) fn new(options: &'a Options, placement: Placement, sides: Sides) -> Result<Bed<'a>> {
        Bed::with(options, placement, sides, "")
    }

    /// The same with more settings of the engine, for a placement that has some.
    pub(crate) fn with(
        options: &'a Options,
        placement: Placement,
        sides: Sides,
        settings: &str,
    ) -> Result<Bed<'a>> {
        let ours = if options.baseline { Owner::Kernel } else { Owner::Daemon };
        let cores = Steer { server_core: options.server_core, client_core: options.load_core };
        let steer = options.steer.unwrap_or(false).then_some(cores);
        let others = arm_names(options).len() - ARMS.len();
        let owners: Vec<Owner> =
            [ours, Owner::Kernel].into_iter().chain(repeat_n(Owner::Daemon, others)).collect();
        let testbed = Testbed::new(&owners, steer)?;
        let mut bed =
            Bed { options, placement, sides, servers: BTreeMap::new(), daemons: BTreeMap::new(), testbed };
        if !options.baseline {
            bed.start(PATHS, &options.scoutline, &bed.configuration(PATHS, settings))?;
        }
        if options.trial.is_asked_for() {
            let (arm, trial) = (owners.len() - 1, &options.trial);
            let configuration = trial.apply(&bed.configuration(arm, settings))?;
            bed.start(arm, &trial.program(options), &configuration)?;
        }
        Ok(bed)
    }

    fn configuration(&self, arm: usize, settings: &str) -> String {
        let engine = self.placement.engine(self.options);
        format!("[[device]]\nname = \"eth0\"\naddress = \"{}/24\"\n{engine}{settings}", self.address(arm))
    }

    fn start(&mut self, arm: usize, program: &Path, configuration: &str) -> Result<()> {
        let core = (self.placement != Placement::Free).then_some(self.options.server_core);
        let daemon = Daemon::start_with(&self.testbed, arm, program, core, configuration)
            .with_context(|| format!("arm `{}`", self.arm_name(arm)))?;
        self.daemons.insert(arm, daemon);
        Ok(())
    }

    /// Where the server of an arm is reached.
    pub(crate) fn address(&self, arm: usize) -> Ipv4Addr {
        *self.testbed.server_address(arm).ip()
    }

    /// A directory for files, which goes with the bed.
    pub(crate) fn directory(&self) -> &Path {
        self.testbed.directory()
    }

    /// The daemon of our arm.
    pub(crate) fn daemon(&self) -> Option<&Daemon> {
        self.daemons.get(&PATHS)
    }

    /// The process of a server that [`Bed::serve`] has started.
    pub(crate) fn server(&self, arm: usize, name: &str) -> Option<&Process> {
        self.servers.get(&(arm, name.to_owned()))
    }

    /// Has the server of this name running on an arm, until the bed goes: on paths in ours. It serves once it has
    /// printed a line that contains `ready`, or, where `ready` is empty, at once.
    pub(crate) fn serve(&mut self, arm: usize, name: &str, ready: &str, command: &[OsString]) -> Result<()> {
        if self.servers.contains_key(&(arm, name.to_owned())) {
            return Ok(());
        }
        let core = self.core_of(arm);
        let mut server = self.spawn(arm, name, true, core, command)?;
        if !ready.is_empty() {
            let deadline = Instant::now() + SLACK;
            loop {
                match server.line(deadline)? {
                    Some(line) if line.contains(ready) => break,
                    Some(_) => {}
                    None => bail!("{name} ended before it served{}", server.log_tail()),
                }
            }
        }
        self.servers.insert((arm, name.to_owned()), server);
        Ok(())
    }

    /// As [`Bed::serve`], for a program of `scoutline load`.
    pub(crate) fn serve_load(&mut self, arm: usize, name: &str, words: &[&str]) -> Result<()> {
        let mut command = self.load_command();
        command.extend(words.iter().map(Into::into));
        self.serve(arm, name, "ready", &command)
    }

    /// As [`Bed::serve`], on a peer's arm: its own program serves (`tcp`, `udp` or `iperf3`, at a port). False on other
    /// arms. One at a time has the interface, so it is to be ended ([`Bed::end`]) once it is measured.
    pub(crate) fn serve_peer(
        &mut self,
        arm: usize,
        name: &str,
        (service, port): (&str, u16),
        spins: bool,
    ) -> Result<bool> {
        let Some(peer) = self.peer(arm) else { return Ok(false) };
        let mut command: Vec<OsString> = vec![peer.program(self.options).into(), "eth0".into()];
        command.extend([self.address(arm).to_string(), format!("{service}:{port}")].map(Into::into));
        if spins || self.placement == Placement::EngineAlone {
            command.push("spin".into());
        }
        self.serve(arm, name, "ready", &command)?;
        Ok(true)
    }

    fn peer(&self, arm: usize) -> Option<Peer> {
        self.options.peers.iter().copied().nth(arm.checked_sub(KERNEL + 1)?)
    }

    /// Of an arm's programs. In a baseline the kernel is where ours would be.
    fn core_of(&self, arm: usize) -> Option<usize> {
        self.placement.program(arm == PATHS || self.daemons.contains_key(&arm), self.options)
    }

    fn arm_name(&self, arm: usize) -> &'static str {
        arm_names(self.options)[arm]
    }

    /// How a program of `scoutline load` is started.
    pub(crate) fn load_command(&self) -> Vec<OsString> {
        vec![self.options.load.clone().into(), "load".into()]
    }

    /// Ends a server that would disturb what is measured next.
    pub(crate) fn end(&mut self, arm: usize, name: &str) {
        self.servers.remove(&(arm, name.to_owned()));
    }

    /// Starts a program where an arm's servers are: on paths in ours.
    pub(crate) fn program(&self, arm: usize, name: &str, command: &[OsString]) -> Result<Process> {
        self.spawn(arm, name, true, self.core_of(arm), command)
    }

    /// Starts a program on the other side.
    pub(crate) fn client(&self, arm: usize, name: &str, command: &[OsString]) -> Result<Process> {
        self.spawn(arm, name, false, self.placement.other_side(self.options), command)
    }

    fn spawn(
        &self,
        arm: usize,
        name: &str,
        server: bool,
        core: Option<usize>,
        command: &[OsString],
    ) -> Result<Process> {
        let here = server || self.sides == Sides::OneHost;
        let host = if here { self.testbed.server(arm) } else { self.testbed.client() };
        let mut whole: Vec<OsString> = Vec::new();
        if let Some(daemon) = self.daemons.get(&arm).filter(|_| here) {
            whole.extend([daemon.program().into(), "run".into(), "--control".into()]);
            whole.extend([daemon.control().as_os_str().to_owned(), "--".into()]);
        }
        whole.extend_from_slice(command);
        let place = Place { namespace: Some(host.namespace()?), core };
        let log = self.testbed.directory().join(format!("{name}{arm}.log"));
        Process::spawn(name, Path::new(&whole[0]), &whole[1..], place, &log)
    }

    /// Runs a load generator of ours against an arm's server.
    pub(crate) fn load(&self, arm: usize, load: &Load<'_>, timing: Timing) -> Result<(LoadReport, Seen)> {
        let Timing { seconds, warmup, .. } = timing;
        let at = sys::monotonic_ns() + LEAD.as_nanos() as u64;
        let deadline = Instant::now() + LEAD + Duration::from_secs_f64(seconds + warmup) + SLACK;
        let mut command = self.load_command();
        command.extend(load.words.iter().map(Into::into));
        command.extend(
            [
                format!("--connect={}", SocketAddrV4::new(self.address(arm), load.port)),
                format!("--at={at}"),
                format!("--warmup={warmup}"),
                format!("--seconds={seconds}"),
                "--json".to_owned(),
            ]
            .map(OsString::from),
        );
        let mut client = self.client(arm, "load", &command)?;
        let (from, to) = (at + (warmup * 1e9) as u64, at + ((warmup + seconds) * 1e9) as u64);
        let (busy, others) = busy_between(self.arm_name(arm), (from, to), &[], || {});
        let report: LoadReport = client.report(deadline)?;
        let errors = report.error_count();
        Ok((report, Seen { busy, others, errors, ..Seen::default() }))
    }

    /// Runs a program on the other side to its end, and hands back what it printed.
    pub(crate) fn ask(
        &self,
        arm: usize,
        name: &str,
        command: &[OsString],
        limit: Duration,
    ) -> Result<(String, Seen)> {
        let work = || -> Result<String> {
            let deadline = Instant::now() + limit + SLACK;
            let mut client = self.client(arm, name, command)?;
            let mut text = String::new();
            while let Some(line) = client.line(deadline)? {
                text += &line;
                text.push('\n');
            }
            client.finish(deadline).with_context(|| format!("it printed: {text}"))?;
            Ok(text)
        };
        let (text, busy, others) = busy_while(self.arm_name(arm), work);
        Ok((text?, Seen { busy, others, ..Seen::default() }))
    }

    /// Does `work` on the client host.
    pub(crate) fn on_client_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        self.testbed.client().enter(work)
    }

    /// An error when something of an arm no longer runs.
    pub(crate) fn check(&mut self, arm: usize) -> Result<()> {
        for ((of, _), server) in &mut self.servers {
            if *of == arm {
                server.check()?;
            }
        }
        self.daemons.get_mut(&arm).map_or(Ok(()), Daemon::check)
    }

    /// The client host's own address towards an arm's server.
    pub(crate) fn client_address(&self, arm: usize) -> Ipv4Addr {
        self.testbed.client_address(arm, Client::Standard)
    }
}
