//! `scale`: what a hundred thousand idle connections cost, in memory and to those that are active beside them; and the
//! engine's own tables with a million flows.
//!
//! ```text
//!   client host, load core                            server host, server core
//!   8 × `load hold`: 100 to 100,000 connections ────►  8 × `load answer`, each at a port of its own
//!   16 clients, keep-alive ────────────────────────►  the first of them
//! ```
//! There are eight programs because one often may have 20,000 files at most. Memory is what the server host's
//! processes hold, the daemon's included: see [`memory`].
//!
//! Others on the machine may look through all descriptors (the first process of the sandbox that this was written in
//! does, at nice −10, and takes a tenth of a core and more). So the fewest connections are also measured while
//! [`strangers`] have as many descriptors as there will be: what is then left of a difference is the neighbours'.
//!
//! A million paths of real UDP sockets: see [`paths`]. A million flows are in a table and on an engine in this process, as in
//! `micro`.

mod memory;
mod paths;

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddrV4;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use scoutline_base::Random;
use scoutline_engine::{PathCost, path_cost};
use scoutline_path::FlowTable;

use crate::harness::{Measurement, Meter, describe_conditions, order};
use crate::placed::{ARMS, Bed, KERNEL, Load, PATHS, Placement, Seen, Sides, Timing};
use crate::plot::{Figure, Panel, Series};
use crate::process::Process;
use crate::report::{Better, Report, Row, Target, median, number};
use crate::server::Daemon;
use crate::{Options, micro};

use self::memory::Groups;

/// Idle connections.
const IDLE: [usize; 3] = [100, 10_000, 100_000];
const PROGRAMS: u16 = 8;
const PORT: u16 = 8000;
const CLIENTS: usize = 16;
/// Descriptors of a connection: each arm has its own, and both of its ends are on this machine.
const ENDS: usize = 2 * ARMS.len();
/// Descriptors of one stranger: fewer than a program may have, as with [`PROGRAMS`].
const OF_A_STRANGER: usize = 10_000;
/// How long it is looked at while nothing happens.
const REST: Duration = Duration::from_secs(3);
/// How long the connections may take to open.
const PATIENCE: Duration = Duration::from_secs(120);

const FLOWS: u32 = 1_000_000;
const PATHS_AT_ONCE: u32 = 20_000;
const MIB: f64 = 1024.0 * 1024.0;

/// One arm beside a number of idle connections.
#[derive(Default)]
struct Level {
    idle: usize,
    /// Bytes that opening them took by arm: of the server's processes, and of the kernel for them (0: it does not
    /// tell).
    processes: [f64; 2],
    kernel: [f64; 2],
    /// Figures: requests per second, p99.
    seen: [Vec<Seen>; 2],
    /// The same while strangers have as many descriptors as there will be; of the first level.
    among_strangers: Option<[Vec<Seen>; 2]>,
    /// What of a core the daemon takes while nothing happens, in percent.
    at_rest: f64,
}

pub(crate) fn run(options: &Options) -> Result<Report> {
    let (rounds, seconds, warmup) = if options.quick { (2, 0.7, 0.2) } else { (5, 3.0, 0.5) };
    let timing = Timing {
        rounds: options.rounds.unwrap_or(rounds),
        seconds: options.seconds.unwrap_or(seconds),
        warmup,
    };
    let mut report = Report::new("scale");
    let idle: Vec<usize> = IDLE.into_iter().filter(|idle| options.wants(&idle_text(*idle))).collect();
    let mut levels = Vec::new();
    if !idle.is_empty() {
        // They go after what is in them.
        let groups = Groups::new(&["paths", "kernel"]);
        levels = connections(options, &idle, timing, groups.as_ref().ok())?;
        if let Err(error) = &groups {
            report.method("memory", format!("the kernel's part is not counted: {error:#}"));
        }
        for level in &levels {
            rows(options, level, levels.first(), &mut report.rows);
        }
        if levels.iter().any(|level| level.among_strangers.is_some()) {
            let text = "programs of neither arm that have as many descriptors as all connections will have";
            report.method("strangers", text);
        }
        report.figure = Some(figure(&levels));
    }
    if options.wants(paths::CASE) {
        paths::run(options, timing.rounds.min(3), timing.seconds, &mut report)?;
    }
    tables(options, &mut report)?;
    ensure!(
        !report.rows.is_empty(),
        "no case of `scale` contains {:?}",
        options.only.as_deref().unwrap_or_default()
    );
    report.method(
        "timing",
        format!("{} rounds, arms in turn; {} s each; medians", timing.rounds, timing.seconds),
    );
    report.method(
        "placement",
        format!("servers and engine on core {}, clients on core {}", options.server_core, options.load_core),
    );
    let all = || {
        let strangers = levels.iter().flat_map(|level| level.among_strangers.iter().flatten());
        strangers.chain(levels.iter().flat_map(|level| &level.seen)).flatten()
    };
    let errors = all().map(|seen| seen.errors).sum();
    let others = all().map(|seen| seen.others).fold(0.0, f64::max);
    describe_conditions(&mut report, options, false, (errors, "requests"), others);
    Ok(report)
}

fn idle_text(idle: usize) -> String {
    format!("{} idle connections", number(idle as f64))
}

/// Measures both arms beside more and more idle connections.
fn connections(
    options: &Options,
    idle: &[usize],
    timing: Timing,
    groups: Option<&Groups>,
) -> Result<Vec<Level>> {
    // The first level is there a second time, among strangers.
    let steps = idle.len() + usize::from(idle.len() > 1);
    let mut meter = Meter::new(options, steps * ARMS.len() * timing.rounds as usize);
    let mut bed = Bed::new(options, Placement::Apart, Sides::TwoHosts)?;
    for arm in [PATHS, KERNEL] {
        for program in 0..PROGRAMS {
            let port = format!("--port={}", PORT + program);
            bed.serve_load(arm, &server_name(program), &["answer", &port])?;
        }
        for process in server_processes(&bed, arm) {
            groups.map_or(Ok(()), |groups| groups.take(arm, process))?;
        }
    }
    let own = |bed: &Bed<'_>, arm: usize| -> Result<f64> {
        server_processes(bed, arm).map(memory::of_process).sum()
    };
    let kernels = |arm: usize| groups.map_or(Ok(0.0), |groups| groups.kernel_bytes(arm));
    let mut held: [Vec<Process>; 2] = [Vec::new(), Vec::new()];
    let mut levels: Vec<Level> = Vec::new();
    for &count in idle {
        // What was opened before stays open, and counts on.
        let (opened, processes, kernel) = levels
            .last()
            .map_or((0, [0.0; 2], [0.0; 2]), |before| (before.idle, before.processes, before.kernel));
        let mut level = Level { idle: count, processes, kernel, ..Level::default() };
        for arm in [PATHS, KERNEL] {
            let more = count - opened;
            let (processes, kernel) = (own(&bed, arm)?, kernels(arm)?);
            held[arm].extend(hold(&bed, arm, more).with_context(|| format!("arm `{}`", ARMS[arm]))?);
            level.processes[arm] += own(&bed, arm)? - processes;
            level.kernel[arm] += kernels(arm)? - kernel;
        }
        level.seen = active(&mut bed, timing, &idle_text(count), &mut meter)?;
        if levels.is_empty() && idle.len() > 1 {
            let most = idle.iter().max().map_or(0, |most| most - count);
            let _strangers = strangers(&bed, ENDS * most)?;
            let case = format!("{}, strangers", idle_text(count));
            level.among_strangers = Some(active(&mut bed, timing, &case, &mut meter)?);
        }
        level.at_rest = at_rest(&bed)?;
        levels.push(level);
    }
    for process in held.iter_mut().flatten() {
        process.check()?;
    }
    Ok(levels)
}

/// What is active beside the connections that are there: both arms, in turn.
fn active(bed: &mut Bed<'_>, timing: Timing, case: &str, meter: &mut Meter) -> Result<[Vec<Seen>; 2]> {
    let words = [format!("--clients={CLIENTS}"), "--keepalive".to_owned()];
    let mut all = [Vec::new(), Vec::new()];
    for round in 0..timing.rounds {
        for arm in order(ARMS.len(), round) {
            let (load, mut seen) = bed.load(arm, &Load { words: &words, port: PORT }, timing)?;
            bed.check(arm).with_context(|| format!("arm `{}`", ARMS[arm]))?;
            seen.figures = vec![load.throughput(), load.p99_us];
            let busy = Measurement {
                busy: seen.busy.clone(),
                others: seen.others,
                standard: load,
                ..Measurement::default()
            };
            meter.step(&format!("{case} · {} · round {}", ARMS[arm], round + 1), &busy);
            all[arm].push(seen);
        }
    }
    Ok(all)
}

/// What of a core the daemon takes while nothing happens, in percent; 0 without one.
fn at_rest(bed: &Bed<'_>) -> Result<f64> {
    let Some(daemon) = bed.daemon().map(Daemon::process_id) else { return Ok(0.0) };
    // What the measurements left behind (TIME-WAIT, delayed acknowledgments) settles.
    thread::sleep(REST);
    let (before, begin) = (cpu_ns(daemon)?, Instant::now());
    thread::sleep(REST);
    Ok(100.0 * (cpu_ns(daemon)? - before) / begin.elapsed().as_nanos() as f64)
}

/// CPU time of all threads of a process (sched-stats.rst: the first figure), in nanoseconds.
fn cpu_ns(process: u32) -> Result<f64> {
    let mut sum = 0.0;
    for thread in fs::read_dir(format!("/proc/{process}/task")).context("the daemon is gone")? {
        let text = fs::read_to_string(thread?.path().join("schedstat")).context("a thread is gone")?;
        let ran: Option<f64> = text.split_whitespace().next().and_then(|ran| ran.parse().ok());
        sum += ran.context("schedstat has no figures")?;
    }
    Ok(sum)
}

fn server_name(program: u16) -> String {
    format!("answer{program}-")
}

/// Opens so many connections more, evenly over the programs.
fn hold(bed: &Bed<'_>, arm: usize, count: usize) -> Result<Vec<Process>> {
    let programs = usize::from(PROGRAMS);
    let start = |program: u16| {
        // What does not divide goes to the first programs.
        let count = count / programs + usize::from(usize::from(program) < count % programs);
        let address = SocketAddrV4::new(bed.address(arm), PORT + program);
        start_holder(bed, arm, &format!("hold{program}-"), count, Some(address))
    };
    holding((0..PROGRAMS).map(start).collect::<Result<_>>()?)
}

/// Programs that have so many descriptors, and nothing to do with either arm.
fn strangers(bed: &Bed<'_>, count: usize) -> Result<Vec<Process>> {
    let start = |at: usize| {
        let count = OF_A_STRANGER.min(count - at);
        start_holder(bed, KERNEL, &format!("stranger{at}-"), count, None)
    };
    holding((0..count).step_by(OF_A_STRANGER).map(start).collect::<Result<_>>()?)
}

fn start_holder(
    bed: &Bed<'_>,
    arm: usize,
    name: &str,
    count: usize,
    connect: Option<SocketAddrV4>,
) -> Result<Process> {
    let mut command: Vec<OsString> = bed.load_command();
    command.extend(["hold".into(), format!("--count={count}").into()]);
    command.extend(connect.map(|address| format!("--connect={address}").into()));
    bed.client(arm, name, &command)
}

/// Waits until all of them have what they shall hold.
fn holding(mut started: Vec<Process>) -> Result<Vec<Process>> {
    let deadline = Instant::now() + PATIENCE;
    for process in &mut started {
        match process.line(deadline)? {
            Some(line) if line == "holding" => {}
            _ => bail!("the connections do not all open{}", process.log_tail()),
        }
    }
    Ok(started)
}

/// An arm's servers, and its daemon.
fn server_processes(bed: &Bed<'_>, arm: usize) -> impl Iterator<Item = u32> {
    let servers =
        (0..PROGRAMS).filter_map(move |program| bed.server(arm, &server_name(program))).map(Process::id);
    servers.chain(bed.daemon().filter(|_| arm == PATHS).map(Daemon::process_id))
}

fn rows(options: &Options, level: &Level, first: Option<&Level>, rows: &mut Vec<Row>) {
    let case = idle_text(level.idle);
    // Few connections are less than what else happens on the machine.
    if level.idle >= 10_000 {
        let mut held = |name, [ours, kernels]: [f64; 2]| {
            let peer = [kernels / MIB];
            let row = Row::new(
                case.clone(),
                (name, "MiB", Better::Lower),
                &[ours / MIB],
                Some((ARMS[KERNEL], &peer)),
            );
            rows.push(row.aiming_at((level.idle == 100_000).then_some(Target::Ours(300.0))));
        };
        let (processes, kernel) = (level.processes, level.kernel);
        if kernel[KERNEL] > 0.0 {
            held("memory", [PATHS, KERNEL].map(|arm| processes[arm] + kernel[arm]));
        }
        held("memory without the kernel's", processes);
    }
    let mut add = |metric, target: Option<Target>, figure: &dyn Fn(&Seen) -> f64| {
        let of = |arm: usize| level.seen[arm].iter().map(figure).collect::<Vec<f64>>();
        let row = Row::new(case.clone(), metric, &of(PATHS), Some((ARMS[KERNEL], &of(KERNEL))));
        rows.push(row.aiming_at(target));
    };
    add(("throughput beside them", "req/s", Better::Higher), None, &|seen| seen.figures[0]);
    add(("p99 beside them", "µs", Better::Lower), None, &|seen| seen.figures[1]);
    for (name, core) in [("server core busy", options.server_core), ("load core busy", options.load_core)] {
        add((name, "%", Better::Lower), None, &|seen| seen.busy.get(core).copied().unwrap_or(0.0));
    }
    if !options.baseline {
        let metric = ("daemon while nothing happens", "% of a core", Better::Lower);
        rows.push(Row::new(case.clone(), metric, &[level.at_rest], None).aiming_at(Some(Target::Ours(0.5))));
    }
    let Some(first) = first.filter(|first| first.idle < level.idle) else { return };
    let mut kept = |name: &str, of: &[Vec<Seen>; 2], target| {
        let part = |arm: usize| [100.0 * throughput(&level.seen[arm]) / throughput(&of[arm]).max(1e-9)];
        let metric = (name, "%", Better::Higher);
        let row = Row::new(case.clone(), metric, &part(PATHS), Some((ARMS[KERNEL], &part(KERNEL))));
        rows.push(row.aiming_at(target));
    };
    let target = (level.idle == 100_000).then_some(Target::Ours(90.0));
    let name = format!("kept of that beside {}", first.idle);
    kept(&name, &first.seen, target);
    if let Some(seen) = first.among_strangers.as_ref().filter(|_| level.idle == 100_000) {
        kept(&format!("{name} among strangers"), seen, None);
    }
}

fn throughput(seen: &[Seen]) -> f64 {
    median(&seen.iter().map(|seen| seen.figures[0]).collect::<Vec<_>>())
}

fn figure(levels: &[Level]) -> Figure {
    let series = |arm: usize| Series {
        name: ARMS[arm].into(),
        points: levels.iter().map(|level| (level.idle as f64, throughput(&level.seen[arm]))).collect(),
    };
    let panel = Panel {
        title: format!("{CLIENTS} clients, keep-alive"),
        x_label: "idle connections".into(),
        y_label: "requests/s".into(),
        series: vec![series(KERNEL), series(PATHS)],
        ..Panel::default()
    };
    Figure { title: "Active connections beside idle ones".into(), panels: vec![panel] }
}

/// The flow table and the engine with a million flows. There is no peer.
fn tables(options: &Options, report: &mut Report) -> Result<()> {
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 3 });
    let flows = number(f64::from(FLOWS));
    let cases = [
        format!("demux hit, {flows} flows, bursts of {}", micro::BURST),
        format!("demux hit, {flows} flows, one by one"),
    ];
    if cases.iter().any(|case| options.wants(case)) {
        let mut random = Random::new(1);
        let frames = micro::frames_of(&mut random, 0, FLOWS);
        let mut table = FlowTable::new(random.next_u64());
        for flow in 0..FLOWS {
            table.insert(&micro::key(flow), micro::path(flow));
        }
        let [bursts, single] = cases;
        let mut add = |case: String, target, measure: &dyn Fn() -> f64| {
            if options.wants(&case) {
                let times: Vec<f64> = (0..rounds).map(|_| measure()).collect();
                let row = Row::new(case, ("time", "ns", Better::Lower), &times, None);
                report.rows.push(row.aiming_at(target));
            }
        };
        // Packets come in bursts where a look-up matters, so that is what the target is for.
        add(bursts, Some(Target::Ours(30.0)), &|| micro::demux_bursts(&table, &frames));
        add(single, None, &|| micro::demux(&table, &frames, true));
    }
    let case = format!("path create and destroy, {flows} others");
    if options.wants(&case) {
        let cost = |_| path_cost(FLOWS, PATHS_AT_ONCE).context("the engine does not fit together");
        let costs: Result<Vec<_>> = (0..rounds).map(cost).collect();
        let costs = costs?;
        let of = |what: fn(&PathCost) -> Duration| -> Vec<f64> {
            costs.iter().map(|cost| what(cost).as_nanos() as f64).collect()
        };
        let times = of(|cost| cost.create + cost.destroy);
        let row = Row::new(case.clone(), ("time", "ns", Better::Lower), &times, None);
        report.rows.push(row.aiming_at(Target::Ours(2000.0)));
        let longest = of(|cost| cost.longest);
        report.rows.push(Row::new(
            case,
            ("longest create while they came", "ns", Better::Lower),
            &longest,
            None,
        ));
    }
    Ok(())
}
