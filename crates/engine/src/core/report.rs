//! What the engine tells people: the answers of the JSON API.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::api::{
    Answer, ClassRow, Graph, PathRow, PolicyRow, ProgramRow, Request, Scheduling, StageCost, StageRow, Stat,
};
use scoutline_base::Time;
use scoutline_path::{Account, Cost, Measurements, Name, Path, Value};
use scoutline_sched::{Level, Policy};

use super::paths::socket_of;
use super::{Core, Extra};
use crate::admission::{Millionths, POLICIES};
use crate::clock;
use crate::policy::Class;
use crate::scheduling::{Asks, Stands};

/// What an engine did, for `stat`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) pulls: u64,
    pub(crate) packets: u64,
    pub(crate) flow_hits: u64,
    pub(crate) pushes: u64,
    pub(crate) pushed: u64,
    pub(crate) runs: u64,
    pub(crate) doorbells: u64,
    /// Bytes that were copied to programs which are gone.
    pub(crate) stored: u64,
    pub(crate) calls: u64,
    pub(crate) timers: u64,
    pub(crate) paths_made: u64,
    /// For want of room, CPU or memory: paths, connections, and moves to another class.
    pub(crate) paths_refused: u64,
    /// Packets that were another engine's.
    pub(crate) handed_over: u64,
}

impl Core {
    /// Answers a question.
    pub(crate) fn answer_query(&self, request: &Request, now: Time) -> Answer {
        match request {
            Request::Ps => Answer::Paths { paths: self.path_rows() },
            Request::Stat => Answer::Stat(self.stat(now)),
            Request::Graph => Answer::Graph(self.graph()),
            _ => Answer::Error { message: "this is no question to the engine".into() },
        }
    }

    fn path_rows(&self) -> Vec<PathRow> {
        self.paths.iter().map(|path| self.path_row(path)).collect()
    }

    fn path_row(&self, path: &Path) -> PathRow {
        let account = &path.account;
        let attributes = &path.attributes;
        let address = |name| attributes.address(name).map(|a| a.to_string());
        let Extra { level, asks, net, .. } = self.extras[path.id().index];
        let stands = Stands { level, asks };
        let mut row = PathRow {
            device: self.nets[usize::from(net)].device.name().to_owned(),
            id: path.id().to_string(),
            class: self.policy.class(u32::from(path.class())).settings.name.clone(),
            priority: priority_of(stands),
            scheduling: scheduling_of(stands),
            local: address(Name::Local),
            peer: address(Name::Remote),
            queue_packets: path.queue().len() as u64,
            packets_in: account.packets_in,
            packets_out: account.packets_out,
            bytes_in: account.bytes_in,
            bytes_out: account.bytes_out,
            cpu_ns: account.cpu_ns,
            cycles: (u128::from(account.cpu_ns) * u128::from(clock::cycles_per_1024_ns()) / 1024) as u64,
            runs: account.runs,
            wakeups: account.wakeups,
            requests: account.requests,
            drops: drops(account),
            ..PathRow::default()
        };
        for stage in path.describe() {
            row.stages.push(stage.module.to_owned());
            for (name, value) in stage.facts {
                if name == "state" {
                    row.state = Some(value);
                } else if name.ends_with("-ns-per-packet") {
                    // The measuring rule says the same of every stage.
                    row.details.insert(format!("{}-{name}", stage.module.to_lowercase()), value);
                } else {
                    row.details.insert(name.to_owned(), value);
                }
            }
        }
        let listener = self.listeners.borrow().get(&path.id()).cloned();
        if let Some(end) = socket_of(path).or(listener) {
            let slot = end.shared();
            row.program = Some(format!("{}/{}", end.program.facts.name, end.program.pid));
            row.receive_queue_bytes =
                end.received.get().saturating_sub(slot.receive_head.load(Ordering::Relaxed));
            row.send_queue_bytes = slot.send_tail.load(Ordering::Relaxed).saturating_sub(end.freed.get());
        }
        row.name = match attributes.value(Name::PathName) {
            Some(Value::Text(name)) => name.to_string(),
            _ => name_of(&row),
        };
        row
    }

    fn stat(&self, now: Time) -> Stat {
        let counters = &self.counters;
        let charged = self.schedule.charged();
        let finished: u64 = self.finished.iter().map(|finished| finished.account.wakeups).sum();
        let living: u64 = self.paths.iter().map(|path| path.account_in_class().wakeups).sum();
        let engine = [
            ("wake-ups", finished + living),
            ("pulls", counters.pulls),
            ("packets-pulled", counters.packets),
            ("flow-table-hits", counters.flow_hits),
            ("pushes", counters.pushes),
            ("packets-pushed", counters.pushed),
            ("runs", counters.runs),
            ("doorbells", counters.doorbells),
            ("stored-bytes", counters.stored + self.programs.values().map(|p| p.stored.get()).sum::<u64>()),
            ("calls", counters.calls),
            ("timers", counters.timers),
            ("timers-set", self.wheel.len() as u64),
            ("paths", self.paths.len() as u64),
            ("paths-made", counters.paths_made),
            ("paths-refused", counters.paths_refused),
            ("handed-over", counters.handed_over),
            ("busy-ns", charged.paths.as_nanos() as u64),
            ("linux-ns", charged.linux.as_nanos() as u64),
            ("buffer-bytes", self.paths.budget().buffer_bytes()),
            ("ring-bytes", self.programs.values().map(|p| p.ring_bytes()).sum()),
        ];
        let is_first = self.several.is_first();
        Stat {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.uptime(now).as_secs_f64(),
            engine: engine.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            devices: self.nets.iter().map(|net| device_counters(net, is_first, now)).collect(),
            classes: self.class_rows(),
            policies: self.policy_rows(),
            drops: drops(&self.unowned),
            programs: self.programs.values().map(|program| program_row(program)).collect(),
            notices: self.extension.notices().into_iter().chain(self.failures()).collect(),
            addresses: self.address_rows(),
            routes: self.route_rows(),
            stages: self.stage_rows(),
            ..Stat::default()
        }
    }

    fn stage_rows(&self) -> Vec<StageRow> {
        let mut sums: BTreeMap<&'static str, Measurements> = BTreeMap::new();
        for (module, measurements) in self.nets.iter().flat_map(|net| net.stage_totals.all()) {
            let sum = sums.entry(module).or_default();
            *sum = sum.and(measurements);
        }
        let cost = |cost: Cost| StageCost { ns: cost.ns, packets: cost.packets, bursts: cost.bursts };
        let row = |(module, measurements): (&str, Measurements)| StageRow {
            module: module.to_owned(),
            inward: cost(measurements.inward),
            outward: cost(measurements.outward),
            timeouts: cost(measurements.timeouts),
        };
        sums.into_iter().map(row).collect()
    }

    fn policy_rows(&self) -> Vec<PolicyRow> {
        let Core { schedule, promises, policy_memory, .. } = self;
        let charged = [
            schedule.fixed().charged(),
            schedule.edf().charged(),
            schedule.wfq().charged(),
            schedule.bert().charged(),
        ];
        let missed = [0, schedule.edf().missed(), 0, schedule.bert().missed()];
        let row = |(index, name): (usize, &&str)| {
            let (share, promised) = promises.all()[index];
            PolicyRow {
                name: (*name).to_owned(),
                share_percent: percent(share),
                promised_percent: percent(promised),
                cpu_ns: charged[index].paths.as_nanos() as u64,
                missed: missed[index],
                memory_bytes: policy_memory.all()[index].buffer_bytes(),
            }
        };
        POLICIES.iter().enumerate().map(row).collect()
    }

    fn class_rows(&self) -> Vec<ClassRow> {
        let mut sums: BTreeMap<u32, (u64, Account)> = BTreeMap::new();
        for (class, finished) in self.finished.iter().enumerate() {
            sums.entry(class as u32).or_default().1.fold(&finished.account);
        }
        for path in self.paths.iter() {
            let sum = sums.entry(u32::from(path.class())).or_default();
            sum.0 += 1;
            sum.1.fold(&path.account_in_class());
        }
        let row = |class: &Rc<Class>| {
            let (paths, account) = sums.remove(&class.number).unwrap_or_default();
            ClassRow {
                name: class.settings.name.clone(),
                priority: priority_of(class.settings.stands()),
                scheduling: scheduling_of(class.settings.stands()),
                paths,
                connections: u64::from(class.connections()),
                memory_bytes: class.memory.buffer_bytes(),
                promised_percent: percent(class.promised.get()),
                cpu_ns: account.cpu_ns,
                packets_in: account.packets_in,
                packets_out: account.packets_out,
                bytes_in: account.bytes_in,
                bytes_out: account.bytes_out,
                requests: account.requests,
                drops: drops(&account),
            }
        };
        self.policy.classes().iter().map(row).collect()
    }

    fn graph(&self) -> Graph {
        let Some(net) = self.nets.first() else { return Graph::default() };
        Graph {
            modules: net.graph.modules().map(|(_, module)| module.name().to_owned()).collect(),
            links: net
                .graph
                .links()
                .map(|link| {
                    let end = |module: &str, service: &str| format!("{module}.{service}");
                    (end(link.from_module, link.from_service), end(link.to_module, link.to_service))
                })
                .collect(),
            paths: self.path_rows(),
        }
    }
}

fn priority_of(stands: Stands) -> Option<u8> {
    match stands {
        Stands { level: Level::Priority(priority), asks: Asks::Level } => Some(priority),
        _ => None,
    }
}

fn percent(millionths: Millionths) -> f64 {
    millionths as f64 / 1e4
}

/// What is asked of the schedule, as people see it.
fn scheduling_of(Stands { level, asks }: Stands) -> Scheduling {
    let some = |us: u32| (us > 0).then_some(us);
    let mut row = Scheduling { policy: asks.policy(level).to_owned(), ..Scheduling::default() };
    match asks {
        Asks::Level => {}
        Asks::Deadline { within_us, budget_us } => {
            (row.deadline_us, row.budget_us) = (Some(within_us), some(budget_us));
        }
        Asks::Weight(weight) => row.weight = Some(weight.value()),
        Asks::Rate { rate, important, job } => {
            row.cpu_percent = Some(f64::from(rate.value()) / 100.0);
            row.important = Some(important);
            (row.deadline_us, row.budget_us) = job.map(|job| (job.within_us, job.budget_us)).unzip();
        }
    }
    row
}

fn drops(account: &Account) -> BTreeMap<String, u64> {
    account.all_drops().map(|(reason, count)| (reason.as_str().to_owned(), u64::from(count))).collect()
}

fn name_of(row: &PathRow) -> String {
    let last = row.stages.iter().rev().find(|stage| *stage != "SOCKET").map_or("path", String::as_str);
    match (&row.local, &row.peer) {
        (Some(local), Some(peer)) => format!("{} {local} {peer}", last.to_lowercase()),
        (Some(local), None) => format!("{} {local}", last.to_lowercase()),
        _ => last.to_lowercase(),
    }
}

fn device_counters(net: &super::Net, is_first: bool, now: Time) -> (String, BTreeMap<String, u64>) {
    let c = net.device.counters();
    let rows = [
        ("rx-packets", c.rx_packets),
        ("rx-bytes", c.rx_bytes),
        ("tx-packets", c.tx_packets),
        ("tx-bytes", c.tx_bytes),
        ("rx-ring-drops", c.rx_ring_drops),
        // Of all engines of the device.
        ("rx-policed", if is_first { c.rx_policed } else { 0 }),
        ("rx-held-back", c.rx_held_back),
        ("rx-important", c.rx_important),
        ("rx-malformed", c.rx_malformed),
        ("rx-relief-copies", c.rx_relief_copies),
        ("rx-copied-bytes", c.rx_copied_bytes),
        ("tx-copied-bytes", c.tx_copied_bytes),
        ("tx-full", c.tx_full),
        ("tx-too-large", c.tx_too_large),
        ("tx-malformed", c.tx_malformed),
        ("tx-refused", c.tx_refused),
        ("tx-software", c.tx_software),
        ("address-conflicts", net.interface().address_conflicts.get()),
    ];
    let rows =
        rows.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(net.transmit.counters(now));
    (net.device.name().to_owned(), rows.collect())
}

fn program_row(program: &crate::program::Program) -> ProgramRow {
    let alive = (0..).map_while(|i| program.region.process(i));
    ProgramRow {
        name: program.facts.name.clone(),
        pid: program.pid,
        processes: alive.filter(|record| record.alive.load(Ordering::Relaxed) != 0).count() as u64,
        sockets: program.ends().iter().filter(|end| !end.is_shadow).count() as u64,
        rings_refused: program.region.header().rings_refused.load(Ordering::Relaxed).into(),
        rings_left: program.region.header().rings_left.load(Ordering::Relaxed).into(),
        ring_sockets: program.region.header().ring_sockets.load(Ordering::Relaxed).into(),
        calls_dispatched: program.region.header().calls_dispatched.0[0].load(Ordering::Relaxed),
    }
}
