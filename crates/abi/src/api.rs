//! The JSON API of the control socket: one request a line, one answer a line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Request {
    /// All paths.
    Ps,
    /// Totals of the engine, devices and classes.
    Stat,
    /// The module graph and the live paths.
    Graph,
    /// The classes in the order of their rules.
    Classes,
    /// A class comes.
    ClassAdd {
        /// Its name.
        name: String,
        /// Keys of the configuration file and their values, in the notation of `scoutline class`: lists with commas.
        keys: Vec<(String, String)>,
        /// The class that it comes before; without it, it is the last with conditions.
        before: Option<String>,
    },
    /// Keys of a class change.
    ClassSet {
        /// Which class.
        name: String,
        /// As for [`Request::ClassAdd`]; an empty value puts a key back to its default.
        keys: Vec<(String, String)>,
    },
    /// A class goes; its paths go to the classes that their rules now give.
    ClassRemove {
        /// Which class.
        name: String,
    },
    /// A class takes another place in the order.
    ClassMove {
        /// Which class.
        name: String,
        /// The class that it goes before; without it, it becomes the last with conditions.
        before: Option<String>,
    },
    /// The settings that can be changed live.
    Settings,
    /// Some of them change.
    Set {
        /// Their names and values; an empty value puts one back to its default.
        keys: Vec<(String, String)>,
    },
    /// Read the configuration file again.
    Reload,
    /// Stop the daemon.
    Stop,
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Request::Ps`].
    Paths {
        /// One entry per path.
        paths: Vec<PathRow>,
    },
    /// To [`Request::Stat`].
    Stat(Stat),
    /// To [`Request::Graph`].
    Graph(Graph),
    /// To [`Request::Classes`].
    Classes {
        /// In the order of their rules.
        classes: Vec<ClassKeys>,
    },
    /// To [`Request::Settings`].
    Settings {
        /// In the order of the configuration file.
        settings: Vec<SettingRow>,
    },
    /// To [`Request::Reload`].
    Reloaded(Reloaded),
    /// Done.
    Done,
    /// Refused.
    Error {
        /// Why.
        message: String,
    },
}

/// One path, as `scoutline ps` shows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PathRow {
    /// Its id, `index.generation`; of several engines `engine:index.generation`.
    pub id: String,
    /// The engine that serves it.
    #[serde(default)]
    pub engine: u32,
    /// Its name, such as `tcp 10.0.0.1:80 <- 10.0.0.2:41000`.
    pub name: String,
    /// Names of its stages, device side first.
    pub stages: Vec<String>,
    /// Class name.
    pub class: String,
    /// Priority; `None`: it has another policy, or the idle level.
    pub priority: Option<u8>,
    /// Which policy serves it.
    #[serde(flatten)]
    pub scheduling: Scheduling,
    /// The device on which its packets come; `local`: they are of programs of this machine.
    #[serde(default)]
    pub device: String,
    /// Our address and port.
    pub local: Option<String>,
    /// The peer's.
    pub peer: Option<String>,
    /// State of the protocol (`ESTABLISHED`).
    pub state: Option<String>,
    /// The program's name and process id.
    pub program: Option<String>,
    /// Packets waiting in the input queue.
    pub queue_packets: u64,
    /// Bytes waiting in the receive and the send ring.
    pub receive_queue_bytes: u64,
    /// See `receive_queue_bytes`.
    pub send_queue_bytes: u64,
    /// Packets and bytes from and to the device.
    pub packets_in: u64,
    /// See `packets_in`.
    pub packets_out: u64,
    /// See `packets_in`.
    pub bytes_in: u64,
    /// See `packets_in`.
    pub bytes_out: u64,
    /// CPU time, nanoseconds.
    pub cpu_ns: u64,
    /// CPU time in cycles of the time-stamp counter.
    pub cycles: u64,
    /// Times run.
    pub runs: u64,
    /// Times that its program was woken.
    pub wakeups: u64,
    /// Requests that were read on it, where its class follows the request.
    pub requests: u64,
    /// Drops by reason.
    pub drops: BTreeMap<String, u64>,
    /// What the stages say of themselves (`srtt`, `cwnd`, …).
    pub details: BTreeMap<String, String>,
}

/// How a path is scheduled. But for `policy`, what is there depends on it; the names are those of the
/// configuration's keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scheduling {
    /// `priority`, `idle`, `edf`, `wfq` or `bert`.
    pub policy: String,
    /// Of EDF and of real-time work in BERT: microseconds in which work is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<u32>,
    /// Engine time that it then takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_us: Option<u32>,
    /// Of WFQ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Of BERT: its share of the engine's CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// Of BERT: it is never stolen from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub important: Option<bool>,
}

/// Totals.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stat {
    /// Version of the daemon.
    pub version: String,
    /// Seconds since start.
    pub uptime_s: f64,
    /// Engine totals by name: nanoseconds busy, spinning, asleep, away (Linux's quanta); bursts; wake-ups.
    pub engine: BTreeMap<String, u64>,
    /// The same of each, where there are several.
    #[serde(default)]
    pub engines: Vec<BTreeMap<String, u64>>,
    /// Per device: counters by name.
    pub devices: BTreeMap<String, BTreeMap<String, u64>>,
    /// Per class: what its paths, finished ones included, spent.
    pub classes: Vec<ClassRow>,
    /// Per policy: what it may give, and has given.
    pub policies: Vec<PolicyRow>,
    /// Drops that belong to no path, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Programs attached: name, process id, sockets held.
    pub programs: Vec<ProgramRow>,
    /// What is degraded here and why.
    pub notices: Vec<String>,
    /// Our addresses.
    #[serde(default)]
    pub addresses: Vec<AddressRow>,
    /// The ways to networks, the best first.
    #[serde(default)]
    pub routes: Vec<RouteRow>,
    /// What the stages of each module have cost on all paths, while `measure` is on.
    #[serde(default)]
    pub stages: Vec<StageRow>,
}

/// What the stages of one module have cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageRow {
    /// The module.
    pub module: String,
    /// From the device to the program.
    pub inward: StageCost,
    /// From the program to the device.
    pub outward: StageCost,
    /// Time-outs; a "packet" is one that was due.
    pub timeouts: StageCost,
}

/// What stages cost in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageCost {
    /// Nanoseconds in all.
    pub ns: u64,
    /// Packets that came.
    pub packets: u64,
    /// Bursts in which they came.
    pub bursts: u64,
}

/// One of our addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRow {
    /// The device.
    pub device: String,
    /// With the length of its network's prefix.
    pub address: String,
    /// `preferred`, or what IPv6 has beside that.
    pub state: String,
}

/// One way to a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRow {
    /// The network.
    pub to: String,
    /// `link`, `via` or how it is refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// The router.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The device; none where packets are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Of two to the same network the smaller one's is taken.
    pub metric: u32,
    /// Bytes of a packet that the way carries at most, where the route says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// The segment size that peers are told, where the route says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u16>,
    /// The initial congestion window in segments, where the route says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initcwnd: Option<u16>,
    /// The window that a SYN tells at most, in segments, where the route says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initrwnd: Option<u16>,
}

/// One class.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClassRow {
    /// Name.
    pub name: String,
    /// Priority of its paths; `None`: they have another policy, or the idle level.
    pub priority: Option<u8>,
    /// Which policy serves them.
    #[serde(flatten)]
    pub scheduling: Scheduling,
    /// Live paths.
    pub paths: u64,
    /// Of those, TCP connections that are open or half-open: what the class's limit is about.
    pub connections: u64,
    /// Bytes that the rings of its sockets hold.
    pub memory_bytes: u64,
    /// Of the engine's CPU, what is promised to its paths: in EDF by budgets, in BERT by shares.
    pub promised_percent: f64,
    /// CPU time, nanoseconds.
    pub cpu_ns: u64,
    /// Packets and bytes.
    pub packets_in: u64,
    /// See `packets_in`.
    pub packets_out: u64,
    /// See `packets_in`.
    pub bytes_in: u64,
    /// See `packets_in`.
    pub bytes_out: u64,
    /// Requests that were read, where the class follows the request; pipelined ones count where the most important of
    /// them stands.
    pub requests: u64,
    /// Drops by reason.
    pub drops: BTreeMap<String, u64>,
}

/// One policy of the schedule.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PolicyRow {
    /// `priority`, `edf`, `wfq` or `bert`.
    pub name: String,
    /// What of the engine's CPU it can promise.
    pub share_percent: f64,
    /// What of that is promised.
    pub promised_percent: f64,
    /// CPU time of its paths, nanoseconds.
    pub cpu_ns: u64,
    /// Deadlines that were missed.
    pub missed: u64,
    /// Bytes that the rings of its sockets hold.
    pub memory_bytes: u64,
}

/// What was said of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassKeys {
    /// Its name.
    pub name: String,
    /// The keys that do not have their defaults, as the configuration file has them.
    #[serde(flatten)]
    pub keys: BTreeMap<String, serde_json::Value>,
}

/// A setting that can be changed live.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SettingRow {
    /// `section.key`, as in the configuration file.
    pub key: String,
    /// What it is now; null: not set.
    pub value: serde_json::Value,
    /// What it is when nothing is said.
    pub default: serde_json::Value,
    /// Of the value; empty: it has none.
    pub unit: String,
    /// Which values there are.
    pub range: String,
    /// What it means.
    pub about: String,
}

/// What reading the configuration file again has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Classes that came.
    pub added: Vec<String>,
    /// Classes whose keys changed.
    pub changed: Vec<String>,
    /// Classes that went.
    pub removed: Vec<String>,
    /// Those that are still there stand in another order.
    pub reordered: bool,
    /// Settings that changed, as `scoutline set` names them.
    #[serde(default)]
    pub settings: Vec<String>,
    /// Keys that differ from what the daemon was started with, and need a restart.
    pub restart: Vec<String>,
}

impl std::fmt::Display for Reloaded {
    /// One line for people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lists = [("added", &self.added), ("changed", &self.changed), ("removed", &self.removed)];
        let mut parts: Vec<String> = lists
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(what, names)| format!("{what} {}", names.join(", ")))
            .collect();
        if self.reordered {
            parts.push("reordered".to_owned());
        }
        if parts.is_empty() {
            parts.push("no class has changed".to_owned());
        } else {
            parts[0].insert_str(0, "classes: ");
        }
        if !self.settings.is_empty() {
            parts.push(format!("settings: {}", self.settings.join(", ")));
        }
        if !self.restart.is_empty() {
            parts.push(format!("these need a restart: {}", self.restart.join(", ")));
        }
        f.write_str(&parts.join("; "))
    }
}

/// One program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProgramRow {
    /// Name.
    pub name: String,
    /// Process id of its first process.
    pub pid: u32,
    /// Live processes.
    pub processes: u64,
    /// Sockets.
    pub sockets: u64,
    /// How often it wanted io_uring and was refused.
    #[serde(default)]
    pub rings_refused: u64,
    /// How many rings it was let have.
    #[serde(default)]
    pub rings_left: u64,
    /// How many sockets have become the kernel's, or stayed so, or have a stand-in, because a ring's operation named them.
    #[serde(default)]
    pub ring_sockets: u64,
    /// System calls about its sockets that it made past the C library, and that were served.
    #[serde(default)]
    pub calls_dispatched: u64,
}

/// The module graph and the live paths.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Graph {
    /// Modules.
    pub modules: Vec<String>,
    /// Links, upper end first: (`TCP.down`, `IP4.up`).
    pub links: Vec<(String, String)>,
    /// Live paths.
    pub paths: Vec<PathRow>,
}
