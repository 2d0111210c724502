//! Arms side by side: their hosts, daemons and servers; one measurement; the order of measurements;
//! how busy the cores were; progress.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::load::{LoadReport, Progress};
use crate::process::{Place, Process};
use crate::report::{Report, number};
use crate::server::{Daemon, Instance, Kind, Priorities, Server};
use crate::testbed::{Client, Owner, Steer, Testbed};
use crate::trace::{Trace, Waits};
use crate::{Options, pattern, profile, sys, trial};

/// From starting the load generators to their common beginning.
const LEAD: Duration = Duration::from_millis(80);
/// What a load generator may take longer than told.
const SLACK: Duration = Duration::from_secs(15);
/// The preferred client's priority on its own side, in every arm alike.
const PREFERRED_REALTIME: i32 = 50;
/// The preferred client's own server in an arm that was set up by [`Lab::administer`]: above all ordinary threads,
/// and below what the kernel's own real-time threads have.
pub(crate) const SECOND: Instance = Instance { port: 81, realtime: Some(10), lowered: &[] };

/// One side of a comparison.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arm {
    /// Its name in tables.
    pub(crate) name: &'static str,
    /// `None`: the kernel serves.
    pub(crate) paths: Option<Priorities>,
}

/// One load on one arm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) size_kb: u32,
    /// Standard clients, all in one process.
    pub(crate) standard: usize,
    /// Whether one preferred client, in a process of its own, is there too.
    pub(crate) preferred: bool,
    pub(crate) seconds: f64,
    pub(crate) warmup: f64,
}

/// What one measurement has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurement {
    pub(crate) standard: LoadReport,
    pub(crate) preferred: LoadReport,
    /// How busy each core was, in percent.
    pub(crate) busy: Vec<f64>,
    /// Processor time that processes of others took, in percent of one core.
    pub(crate) others: f64,
}

impl Measurement {
    pub(crate) fn error_count(&self) -> u64 {
        self.standard.error_count() + self.preferred.error_count()
    }
}

/// The hosts, daemons and servers of all arms; idle ones cost nothing while another is measured.
pub(crate) struct Lab<'a> {
    options: &'a Options,
    arms: Vec<Arm>,
    /// The servers' core and the load's; `None`: any.
    cores: Option<Steer>,
    // Dropped in this order: servers, daemons, hosts.
    servers: Vec<Server>,
    /// By arm: the preferred client's own server, in arms of [`Lab::administer`].
    second: HashMap<usize, Server>,
    administered: Vec<usize>,
    discard: bool,
    think_us: u64,
    keepalive: bool,
    daemons: Vec<Option<Daemon>>,
    testbed: Testbed,
}

impl<'a> Lab<'a> {
    /// Hosts for these arms, with their daemons running.
    ///
    /// `steer` is the experiment's own choice, see [`Steer`]; the options may say otherwise.
    pub(crate) fn new(options: &'a Options, arms: &[Arm], steer: bool) -> Result<Lab<'a>> {
        let cores = Steer { server_core: options.server_core, client_core: options.load_core };
        Lab::placed(options, arms, Some(cores), options.steer.unwrap_or(steer).then_some(cores))
    }

    /// The same where everybody runs where Linux puts him, and the engine, too, is an ordinary thread.
    pub(crate) fn free(options: &'a Options, arms: &[Arm]) -> Result<Lab<'a>> {
        Lab::placed(options, arms, None, None)
    }

    fn placed(
        options: &'a Options,
        arms: &[Arm],
        cores: Option<Steer>,
        steer: Option<Steer>,
    ) -> Result<Lab<'a>> {
        let paths = |arm: &Arm| arm.paths.filter(|_| !options.baseline);
        let owner = |arm| if paths(arm).is_some() { Owner::Daemon } else { Owner::Kernel };
        let owners: Vec<Owner> = arms.iter().map(owner).collect();
        let testbed = Testbed::new(&owners, steer)?;
        let server_core = cores.map(|cores| cores.server_core);
        let mut daemons = Vec::new();
        for (index, arm) in arms.iter().enumerate() {
            let start = |priorities| {
                let text = Daemon::configuration(&testbed, index, server_core, priorities);
                let tried = Some(&options.trial).filter(|_| arm.name == trial::NAME);
                let text = tried.map_or(Ok(text.clone()), |trial| trial.apply(&text))?;
                let program = tried.map_or_else(|| options.scoutline.clone(), |trial| trial.program(options));
                Daemon::start_with(&testbed, index, &program, server_core, &text)
            };
            daemons.push(paths(arm).map(start).transpose().with_context(|| format!("arm `{}`", arm.name))?);
        }
        Ok(Lab {
            options,
            arms: arms.to_vec(),
            cores,
            servers: Vec::new(),
            second: HashMap::new(),
            administered: Vec::new(),
            discard: false,
            think_us: options.think_us,
            keepalive: false,
            daemons,
            testbed,
        })
    }

    /// Makes of an arm of the kernel's what an administrator can: the preferred client gets a server of its own on
    /// its own port, with real-time priority on the same core, and what that port sends goes first.
    pub(crate) fn administer(&mut self, arm: usize) -> Result<()> {
        self.testbed.prioritise(arm, SECOND.port)?;
        self.administered.push(arm);
        Ok(())
    }

    /// Has the clients leave bodies that they do not compare in the kernel: their core then does less than the
    /// server's also with large files.
    pub(crate) fn discard_bodies(&mut self) {
        self.discard = true;
    }

    /// How long the preferred client thinks from now on.
    pub(crate) fn think(&mut self, think_us: u64) {
        self.think_us = think_us;
    }

    /// Whether clients keep their connections from now on.
    pub(crate) fn keep_connections(&mut self, keep: bool) {
        self.keepalive = keep;
    }

    /// The hosts.
    pub(crate) fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    /// The daemon of an arm, where the arm has one.
    pub(crate) fn daemon(&self, arm: usize) -> Option<&Daemon> {
        self.daemons[arm].as_ref()
    }

    pub(crate) fn arms(&self) -> &[Arm] {
        &self.arms
    }

    /// Has this server running on every arm, and no other.
    pub(crate) fn serve(&mut self, kind: Kind) -> Result<()> {
        if self.servers.iter().all(|server| server.kind() == kind) && !self.servers.is_empty() {
            return Ok(());
        }
        self.servers.clear();
        self.second.clear();
        for &arm in &self.administered {
            let core = self.options.server_core;
            let server = Server::start_instance(&self.testbed, arm, kind, core, None, SECOND)
                .with_context(|| format!("the second server of arm `{}`", self.arms[arm].name))?;
            self.second.insert(arm, server);
        }
        for (index, arm) in self.arms.iter().enumerate() {
            let paths = self.daemons[index].as_ref().map(|daemon| (daemon.program(), daemon));
            let core = self.cores.map(|cores| cores.server_core);
            let server = Server::start(&self.testbed, index, kind, core, paths)
                .with_context(|| format!("arm `{}`", arm.name))?;
            self.servers.push(server);
        }
        Ok(())
    }

    /// Puts a load on the arm with this index and measures. `live` gets what the standard and the
    /// preferred clients have done lately, a few times a second.
    pub(crate) fn measure(
        &mut self,
        arm: usize,
        load: &Load,
        live: Option<&mut dyn FnMut(Option<Progress>, Option<Progress>)>,
    ) -> Result<Measurement> {
        self.measure_as(arm, load, false, live)
    }

    /// As [`Lab::measure`], and how long those threads waited between being woken and running that served the
    /// preferred client. Tracing costs time: the other figures of such a run are of no use.
    ///
    /// # Errors
    /// Also where tracing is not to be had.
    pub(crate) fn measure_waits(&mut self, arm: usize, load: &Load) -> Result<(Measurement, Waits)> {
        let server = self.second.get_mut(&arm).unwrap_or(&mut self.servers[arm]);
        let processes = processes_of(server.process().id());
        let cores = [self.options.server_core, self.options.load_core];
        let trace = Trace::start(&processes, &pattern::traced_name(load.size_kb), &cores)?;
        let measurement = self.measure_as(arm, load, true, None)?;
        let waits = trace.finish()?.within(&measurement.preferred.spans);
        Ok((measurement, waits))
    }

    /// As [`Lab::measure`], with `watch` called at both ends of the window of measurement.
    pub(crate) fn measure_watched<T: Send>(
        &mut self,
        arm: usize,
        load: &Load,
        watch: impl Fn(&Testbed) -> T + Sync,
    ) -> Result<(Measurement, T, T)> {
        let ends = Mutex::new(Vec::new());
        let note = |testbed: &Testbed| {
            let seen = watch(testbed);
            ends.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        };
        let measurement = self.measure_with(arm, load, false, None, &note)?;
        let mut ends = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (last, first) = (ends.pop(), ends.pop());
        let (first, last) = first.zip(last).context("the window of measurement had no two ends")?;
        Ok((measurement, first, last))
    }

    fn measure_as(
        &mut self,
        arm: usize,
        load: &Load,
        traced: bool,
        live: Option<&mut dyn FnMut(Option<Progress>, Option<Progress>)>,
    ) -> Result<Measurement> {
        self.measure_with(arm, load, traced, live, &|_| {})
    }

    fn measure_with(
        &mut self,
        arm: usize,
        load: &Load,
        traced: bool,
        mut live: Option<&mut dyn FnMut(Option<Progress>, Option<Progress>)>,
        watch: &(dyn Fn(&Testbed) + Sync),
    ) -> Result<Measurement> {
        let begin = sys::monotonic_ns() + LEAD.as_nanos() as u64;
        let progress = live.is_some();
        let mut standard = match load.standard {
            0 => None,
            _ => Some(self.start_load(arm, load, Client::Standard, begin, (progress, false))?),
        };
        let mut preferred = if load.preferred {
            Some(self.start_load(arm, load, Client::Preferred, begin, (progress, traced))?)
        } else {
            None
        };
        let from = begin + (load.warmup * 1e9) as u64;
        let to = from + (load.seconds * 1e9) as u64;
        let ours: Vec<u32> = standard.iter().chain(&preferred).map(Process::id).collect();
        let mut measurement = Measurement::default();
        let deadline = Instant::now() + Duration::from_secs_f64(load.warmup + load.seconds) + SLACK;
        let (name, testbed) = (self.arms[arm].name, &self.testbed);
        thread::scope(|scope| -> Result<()> {
            let sampler = scope.spawn(move || busy_between(name, (from, to), &ours, || watch(testbed)));
            let mut last = None;
            if let Some(process) = &mut standard {
                measurement.standard = follow(process, deadline, |seen| {
                    if let Some(live) = &mut live {
                        let news = preferred.as_mut().and_then(latest);
                        last = news.or(last);
                        live(Some(seen), last);
                    }
                })?;
            }
            if let Some(process) = &mut preferred {
                measurement.preferred = follow(process, deadline, |seen| {
                    if let (Some(live), 0) = (&mut live, load.standard) {
                        live(None, Some(seen));
                    }
                })?;
            }
            (measurement.busy, measurement.others) = sampler.join().unwrap_or_default();
            Ok(())
        })
        .with_context(|| format!("load on arm `{name}`"))?;
        for server in self.servers.get_mut(arm).into_iter().chain(self.second.get_mut(&arm)) {
            server.check().with_context(|| format!("arm `{name}`"))?;
        }
        if let Some(daemon) = &mut self.daemons[arm] {
            daemon.check().with_context(|| format!("arm `{name}`"))?;
        }
        Ok(measurement)
    }

    fn start_load(
        &self,
        arm: usize,
        load: &Load,
        client: Client,
        begin: u64,
        (progress, traced): (bool, bool),
    ) -> Result<Process> {
        let preferred = client == Client::Preferred;
        let mut server = self.testbed.server_address(arm);
        if preferred && self.second.contains_key(&arm) {
            server.set_port(SECOND.port);
        }
        let name = if traced { pattern::traced_name } else { pattern::file_name };
        let mut arguments = vec![
            "load".to_owned(),
            format!("--connect={server}"),
            format!("--source={}", self.testbed.client_address(arm, client)),
            format!("--path=/{}", name(load.size_kb)),
            format!("--clients={}", if preferred { 1 } else { load.standard }),
            format!("--seconds={}", load.seconds),
            format!("--warmup={}", load.warmup),
            format!("--at={begin}"),
            "--json".to_owned(),
        ];
        if let Some(cores) = self.cores {
            arguments.push(format!("--cpu={}", cores.client_core));
        }
        if preferred {
            arguments.push(format!("--realtime={PREFERRED_REALTIME}"));
            arguments.push(format!("--think={}", self.think_us));
        }
        if traced {
            arguments.push("--spans".to_owned());
        }
        if self.keepalive {
            arguments.push("--keepalive".to_owned());
        }
        if self.discard {
            arguments.push("--discard".to_owned());
        }
        if progress {
            arguments.push("--progress=250".to_owned());
        }
        let name = if preferred { "preferred" } else { "standard" };
        let log = self.testbed.directory().join(format!("load-{name}.log"));
        let place = Place { namespace: Some(self.testbed.client().namespace()?), core: None };
        Process::spawn(&format!("{name} load"), &self.options.load, arguments, place, &log)
    }
}

/// Reads a load generator's lines up to its report.
fn follow(process: &mut Process, deadline: Instant, mut seen: impl FnMut(Progress)) -> Result<LoadReport> {
    loop {
        let Some(line) = process.line(deadline)? else {
            process.finish(deadline)?;
            anyhow::bail!("the load generator ended without a report{}", process.log_tail());
        };
        if let Ok(progress) = serde_json::from_str::<Progress>(&line) {
            seen(progress);
        } else {
            let report = serde_json::from_str(&line).with_context(|| format!("not a report: {line}"))?;
            process.finish(deadline)?;
            return Ok(report);
        }
    }
}

/// The last line of progress that is there already. The report stays unread.
fn latest(process: &mut Process) -> Option<Progress> {
    let mut last = None;
    while let Some(progress) = process.line_if(|line| serde_json::from_str(line).ok()) {
        last = Some(progress);
    }
    last
}

/// How busy each core is from one time of the monotonic clock to another, in percent, and what processes of others,
/// outside these groups and our own, take of one. `watch` is called at both ends. A profile of the arm is recorded if
/// profiles are asked for.
pub(crate) fn busy_between(
    arm: &str,
    (from, to): (u64, u64),
    ours: &[u32],
    watch: impl Fn(),
) -> (Vec<f64>, f64) {
    sleep_until(from);
    let recording = profile::record(arm);
    let before = Sample::read();
    watch();
    sleep_until(to);
    let seen = Sample::read().since(&before, ours);
    watch();
    if let Some(recording) = recording {
        recording.finish();
    }
    seen
}

/// As [`busy_between`], while `work` is done.
pub(crate) fn busy_while<T>(arm: &str, work: impl FnOnce() -> T) -> (T, Vec<f64>, f64) {
    let recording = profile::record(arm);
    let before = Sample::read();
    let done = work();
    let (busy, others) = Sample::read().since(&before, &[]);
    if let Some(recording) = recording {
        recording.finish();
    }
    (done, busy, others)
}

fn sleep_until(time_ns: u64) {
    thread::sleep(Duration::from_nanos(time_ns.saturating_sub(sys::monotonic_ns())));
}

/// What the kernel has accounted up to now.
#[derive(Debug, Default)]
struct Sample {
    time_ns: u64,
    /// For how long each core was [`away_ns`].
    cores: Vec<u64>,
    /// Per process: its group and its ticks.
    processes: HashMap<u32, (u32, u64)>,
}

/// The kernel counts time in ticks of this many nanoseconds for programs (USER_HZ).
const TICK_NS: u64 = 10_000_000;

/// For how long each core was idle, or taken away by the machine's host.
///
/// The rest of the time it was busy. Busy ticks tell less: an idle core has none, whatever it does in interrupts.
pub(crate) fn away_ns() -> Vec<u64> {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let cores = text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    cores
        .map(|line| {
            let ticks: Vec<u64> = line.split_whitespace().skip(1).flat_map(str::parse).collect();
            // user nice system idle iowait irq softirq steal (proc(5)).
            TICK_NS * [3, 4, 7].into_iter().filter_map(|field| ticks.get(field)).sum::<u64>()
        })
        .collect()
}

impl Sample {
    fn read() -> Sample {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let processes = pids.filter_map(|pid| Some((pid, process_ticks(pid)?))).collect();
        Sample { time_ns: sys::monotonic_ns(), cores: away_ns(), processes }
    }

    /// Percent busy of each core since `before`, and percent of a core that processes neither in these
    /// groups nor children of ours took.
    fn since(&self, before: &Sample, ours: &[u32]) -> (Vec<f64>, f64) {
        let passed = self.time_ns - before.time_ns;
        let percent = |part: u64| 100.0 * part as f64 / passed.max(1) as f64;
        let cores = self.cores.iter().zip(&before.cores);
        let busy =
            cores.map(|(now, then)| percent(passed.saturating_sub(now.saturating_sub(*then)))).collect();
        let own_group = self.processes.get(&std::process::id()).map(|process| process.0);
        let mut others = 0;
        for (pid, (group, ticks)) in &self.processes {
            if !ours.contains(group) && Some(*group) != own_group && !crate::cleanup::started(*group) {
                others += ticks.saturating_sub(before.processes.get(pid).map_or(0, |process| process.1));
            }
        }
        (busy, percent(others * TICK_NS))
    }
}

/// The group of a process, and its user and system ticks.
fn process_ticks(pid: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The name, in parentheses, may hold spaces: the numbers begin after the last parenthesis.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let tick = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some((fields.get(2)?.parse().ok()?, tick(11)? + tick(12)?))
}

/// The processes of a group.
fn processes_of(group: u32) -> Vec<u32> {
    let processes = Sample::read().processes;
    processes.into_iter().filter(|(_, (of, _))| *of == group).map(|(process, _)| process).collect()
}

/// The order in which `arms` are measured in a round: there in even rounds, back in odd ones, so that
/// none is always the first.
pub(crate) fn order(arms: usize, round: u32) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..arms).collect() } else { (0..arms).rev().collect() }
}

/// Tells on standard error where a long run is.
pub(crate) struct Meter {
    silent: bool,
    begin: Instant,
    done: u32,
    total: u32,
}

impl Meter {
    pub(crate) fn new(options: &Options, total: usize) -> Meter {
        Meter { silent: !options.progress, begin: Instant::now(), done: 0, total: total as u32 }
    }

    /// One measurement more.
    pub(crate) fn step(&mut self, what: &str, measurement: &Measurement) {
        self.done += 1;
        if self.silent {
            return;
        }
        let elapsed = self.begin.elapsed();
        let left = elapsed / self.done * (self.total - self.done.min(self.total));
        let mut text = String::new();
        let load = &measurement.standard;
        if load.seconds > 0.0 {
            let _ = write!(text, " · {}/s, p50 {} µs", number(load.throughput()), number(load.p50_us));
        }
        let load = &measurement.preferred;
        if load.seconds > 0.0 {
            let _ = write!(text, " · preferred mean {} µs", number(load.mean_us));
        }
        let busy: Vec<String> = measurement.busy.iter().map(|percent| format!("{percent:.0}")).collect();
        let errors = match measurement.error_count() {
            0 => String::new(),
            count => {
                format!(
                    " · {count} ERRORS {:?}{:?}",
                    measurement.standard.errors, measurement.preferred.errors
                )
            }
        };
        let others = match measurement.others {
            others if others >= 10.0 => format!(" · DISTURBED by others: {others:.0} %"),
            _ => String::new(),
        };
        eprintln!(
            "[{:>3}/{}] {what}{text} · cores {} %{errors}{others}   ({} so far, {} left)",
            self.done,
            self.total,
            busy.join(" "),
            clock(elapsed),
            clock(left)
        );
    }
}

/// 0:07, 12:30.
pub(crate) fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// Adds to the method what is the same in all experiments with servers.
pub(crate) fn describe(
    report: &mut Report,
    options: &Options,
    (seconds, warmup, rounds): (f64, f64, u32),
    steer: bool,
    measurements: &[&Measurement],
) {
    report.method(
        "placement",
        format!(
            "server (and the daemon's engine) on core {}, load on core {}",
            options.server_core, options.load_core
        ),
    );
    report.method(
        "timing",
        format!("{rounds} rounds, arms in turn; {seconds} s each after {warmup} s of warm-up; medians"),
    );
    report.method(
        "network",
        "network namespaces, a veth pair per arm, offloads on, cubic on every route and client socket",
    );
    let errors = measurements.iter().map(|measurement| measurement.error_count()).sum();
    let others = measurements.iter().map(|measurement| measurement.others).fold(0.0, f64::max);
    describe_conditions(report, options, steer, (errors, "requests"), others);
}

/// Under what conditions an experiment ran: `steer` is its own choice, `others` what processes of others took at most,
/// in percent of a core.
pub(crate) fn describe_conditions(
    report: &mut Report,
    options: &Options,
    steer: bool,
    (errors, of_what): (u64, &str),
    others: f64,
) {
    let steered = if options.steer.unwrap_or(steer) {
        "receive steering on: each host's protocol work is done on its own core (the daemon takes its own interface \
         out of it: the core that sends puts packets into its ring)"
    } else {
        "receive steering off: a veth pair does the receiver's work on the sender's core"
    };
    report.method("steering", steered);
    if errors > 0 {
        report.method("errors", format!("{errors} {of_what} failed"));
    }
    if others >= 10.0 {
        report.method(
            "disturbed",
            format!("processes of others took up to {others:.0} % of a core: the figures are not clean"),
        );
    }
    if options.baseline {
        report.method("baseline", "the kernel stands in our place too: ratios show the harness's own bias");
    }
}
