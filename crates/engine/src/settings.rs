//! What an engine is told when it starts. The daemon makes this from its configuration file.

mod parts;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use scoutline_base::DeviceId;
use scoutline_device::Driver;
use scoutline_proto::ip6::Host6Config;
use scoutline_proto::request::matcher::Conditions;
use scoutline_proto::route::Route;
use scoutline_proto::tcp::{Algorithm, Pacing, ecn, fast_open};
use scoutline_sched::schedule::{Linux, Shares};
use scoutline_sched::transmit::{BitRate, Preemption};
use scoutline_sched::{Level, Weight};

use crate::extend::ExtensionSettings;
use crate::link_use::LinkUse;
use crate::scheduling::{Asks, Stands};

/// Everything an engine needs to know.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// The devices, each with the address that it owns.
    pub devices: Vec<DeviceSettings>,
    /// What of the host is beyond one device.
    pub host: HostSettings,
    /// Two programs on paths of this machine talk to each other; `None`: they do not.
    pub own_link: Option<OwnLink>,
    /// Which packets for others are passed on.
    pub forwards: Vec<Forward>,
    /// The classes, in the order of their rules: the first match wins. The last one matches everything.
    pub classes: Vec<ClassSettings>,
    /// What programs may ask for beyond what the classes give them.
    pub permissions: Vec<PermissionSettings>,
    /// The core to run on; `None` leaves it to Linux.
    pub cpu: Option<usize>,
    /// SCHED_FIFO priority to ask for; `None` keeps the ordinary policy.
    pub realtime_priority: Option<u8>,
    /// True: not getting `realtime_priority` is an error; false: a notice.
    pub realtime_required: bool,
    /// How long to spin for more work before sleeping, at most.
    pub spin: Duration,
    /// How long to sleep between two looks while short packets that are passed on come densely, and nothing else does.
    pub forward_pause: Duration,
    /// Bytes of a socket's receive ring (a power of two): of a datagram socket, and of a connection whose program is
    /// busy otherwise now and then.
    pub receive_buffer: u32,
    /// The same of its send ring.
    pub send_buffer: u32,
    /// Bytes to which a connection's receive ring may grow, where the path is long (a power of two).
    pub receive_buffer_max: u32,
    /// The same of its send ring.
    pub send_buffer_max: u32,
    /// Connections begin with small rings, which grow; if not, they have those of `receive_buffer` and `send_buffer`: for
    /// simulation, where windows are compared.
    pub buffers_grow: bool,
    /// Paths that may exist.
    pub max_paths: u32,
    /// Buffer bytes that all paths together may hold.
    pub max_buffer_bytes: u64,
    /// How long a closed connection stays in TIME-WAIT.
    pub time_wait: Duration,
    /// How connections behave.
    pub tcp: TcpSettings,
    /// Packets that may wait in a path's input queue.
    pub queue_packets: u32,
    /// Apply the measuring rule to new paths.
    pub measure: bool,
    /// How the CPU is divided among the policies.
    pub shares: Shares,
    /// Buffer bytes that the sockets of each policy may hold together: priority, EDF, WFQ, BERT.
    pub policy_memory: [Option<u64>; 4],
    /// Where the Linux thread stands.
    pub linux: Linux,
    /// At which level, if it stands among the priorities; and above which level what comes rings for the engine.
    pub linux_level: Level,
    /// How long Linux may run at most before the engine looks again.
    pub linux_quantum: Duration,
    /// How much time paths of Linux's level may take between two of its turns.
    pub linux_interval: Duration,
    /// How threads of programs are raised with their paths; `None`: they are not.
    pub extension: Option<ExtensionSettings>,
    /// Level of ARP, ICMP, reassembly and reset paths.
    pub system_level: Level,
    /// What everything random follows from: for simulation, where a run must repeat. `None`, as ever else: from the
    /// system.
    pub seed: Option<u64>,
    /// What the engines of one daemon have in common: addresses and keys of sockets follow from it. `None`: there is one.
    pub shared_secret: Option<u64>,
    /// For each device, what its engines tell each other of its link; empty: there is one.
    pub link_use: Vec<Arc<LinkUse>>,
}

impl Default for EngineSettings {
    fn default() -> EngineSettings {
        EngineSettings {
            devices: Vec::new(),
            host: HostSettings::default(),
            own_link: None,
            forwards: Vec::new(),
            classes: Vec::new(),
            permissions: Vec::new(),
            cpu: None,
            realtime_priority: None,
            realtime_required: false,
            spin: Duration::from_micros(200),
            forward_pause: Duration::from_micros(50),
            receive_buffer: 256 << 10,
            send_buffer: 256 << 10,
            receive_buffer_max: 4 << 20,
            send_buffer_max: 4 << 20,
            buffers_grow: true,
            max_paths: 200_000,
            max_buffer_bytes: 4 << 30,
            time_wait: Duration::from_secs(60),
            tcp: TcpSettings::default(),
            queue_packets: 256,
            measure: false,
            shares: Shares::default(),
            policy_memory: [None; 4],
            linux: Linux::default(),
            linux_level: Level::Priority(0),
            linux_quantum: Duration::from_millis(2),
            linux_interval: Duration::from_micros(200),
            extension: Some(ExtensionSettings::default()),
            system_level: Level::Priority(3),
            seed: None,
            shared_secret: None,
            link_use: Vec::new(),
        }
    }
}

impl EngineSettings {
    /// The networks on other devices, by device and number.
    pub(crate) fn vlans(&self) -> BTreeMap<(usize, u16), usize> {
        let of = |(index, device): (usize, &DeviceSettings)| match &device.device.driver {
            Driver::Vlan(options) => Some(((usize::from(options.parent.0), options.vlan), index)),
            _ => None,
        };
        self.devices.iter().enumerate().filter_map(of).collect()
    }

    /// What of it can change while the engine runs.
    pub fn live(&self) -> LiveSettings {
        LiveSettings {
            spin: self.spin,
            forward_pause: self.forward_pause,
            queue_packets: self.queue_packets,
            shares: self.shares,
            linux: self.linux,
            linux_quantum: self.linux_quantum,
            linux_interval: self.linux_interval,
            extension: self.extension,
            host: self.host.clone(),
            links: self.devices.iter().map(|device| (device.rate, device.preemption)).collect(),
        }
    }
}

/// What of [`EngineSettings`] can change while the engine runs; each means what it means there.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveSettings {
    /// How long to spin for more work.
    pub spin: Duration,
    /// How long to sleep between two looks while forwarded datagrams come densely.
    pub forward_pause: Duration,
    /// Packets that may wait in a path's input queue.
    pub queue_packets: u32,
    /// How the CPU is divided among the policies.
    pub shares: Shares,
    /// Where the Linux thread stands.
    pub linux: Linux,
    /// How long it may run at most.
    pub linux_quantum: Duration,
    /// What paths of its level may take between two of its turns.
    pub linux_interval: Duration,
    /// How threads of programs are raised with their paths.
    pub extension: Option<ExtensionSettings>,
    /// What of the host is beyond one device.
    pub host: HostSettings,
    /// Of each device: what the link carries, and how long background keeps away.
    pub links: Vec<(Option<BitRate>, Preemption)>,
}

/// How TCP connections behave, unless their program says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpSettings {
    /// Congestion control.
    pub congestion: Algorithm,
    /// Explicit congestion notification.
    pub ecn: ecn::Policy,
    /// Whether data leaves at a rate, whatever the congestion control.
    pub pacing: Pacing,
    /// Timestamps (RFC 7323) are not offered.
    pub no_timestamps: bool,
    /// A window that was not used for long stays as it is, other than RFC 5681 §4.1 says (Linux:
    /// `tcp_slow_start_after_idle`).
    pub keeps_idle_window: bool,
    /// So many segments may leave as one however slow the path, if that is not what TCP takes by itself (Linux:
    /// `tcp_min_tso_segs`).
    pub min_burst_segments: Option<u8>,
    /// Programs write while less than this is unsent, in bytes, unless they set TCP_NOTSENT_LOWAT; 0: there is no bound
    /// (Linux: `tcp_notsent_lowat`).
    pub unsent_low_water: u32,
    /// What is allowed of fast open (RFC 7413); nothing by default (Linux: `tcp_fastopen`).
    pub fast_open: fast_open::Policy,
    /// What makes cookies of fast open where no program says; else it is made at the start (Linux: `tcp_fastopen_key`).
    pub fast_open_keys: Option<fast_open::Keys>,
}

/// Packets that come on one device, and are for others, leave by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Where they come in.
    pub from: DeviceId,
    /// Where they leave.
    pub to: DeviceId,
}

/// Addresses and ways beyond those that a device has by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// IPv4 addresses beside the first of their device, each with the length of its network's prefix.
    pub others: Vec<(DeviceId, Ipv4Addr, u8)>,
    /// Routes beside the gateways.
    pub routes: Vec<RouteSettings>,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteSettings {
    /// By which device; `None`: it leads nowhere.
    pub device: Option<DeviceId>,
    /// The route.
    pub route: Route,
}

/// The machine's link with itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnLink {
    /// Loopback addresses belong to paths: programs bind to them there. Else they are the kernel's, and a connection to
    /// one goes to whoever listens on paths at every address, if anybody does.
    pub loopback: bool,
}

/// One device.
#[derive(Clone, Debug)]
pub struct DeviceSettings {
    /// What to open.
    pub device: scoutline_device::DeviceConfig,
    /// Our first IPv4 address on it; the unspecified one: there is none.
    pub address: Ipv4Addr,
    /// Prefix length of its network.
    pub prefix: u8,
    /// Where packets for other networks go.
    pub gateway: Option<Ipv4Addr>,
    /// IPv6 on it; `None`: there is none.
    pub ip6: Option<Host6Config>,
    /// What the link carries, frames counted from the link header on; `None`: as much as the device takes.
    pub rate: Option<BitRate>,
    /// How long background keeps away after a foreground packet.
    pub preemption: Preemption,
}

/// One class. An empty condition matches everything; conditions of different kinds must all hold, of one kind any.
#[derive(Clone, Debug)]
pub struct ClassSettings {
    /// Its name: what stays the same when classes are changed live.
    pub name: String,
    /// Where its paths stand among the priorities. Of a class that asks for something else, what its paths count as;
    /// the engine fills that in.
    pub level: Level,
    /// Where its listen paths stand.
    pub listen_level: Level,
    /// What its paths ask of the schedule.
    pub asks: Asks,
    /// What its listen paths ask.
    pub listen_asks: Asks,
    /// Networks of the peer: address and prefix length.
    pub sources: Vec<(IpAddr, u8)>,
    /// Networks of our own address.
    pub destinations: Vec<(IpAddr, u8)>,
    /// Our ports.
    pub local_ports: Vec<RangeInclusive<u16>>,
    /// The peer's ports.
    pub remote_ports: Vec<RangeInclusive<u16>>,
    /// DSCPs of the first packet that comes. A connection that a program here opens has no such packet.
    pub dscps: Vec<u8>,
    /// Devices.
    pub interfaces: Vec<DeviceId>,
    /// Programs by name (the last part of the path of the executable).
    pub programs: Vec<String>,
    /// Users, as whom the program attached.
    pub users: Vec<u32>,
    /// Control groups that the program was in when it attached, or their parents: absolute paths.
    pub cgroups: Vec<String>,
    /// What is asked on a connection: its class follows the request.
    pub request: Conditions,
    /// On which connections.
    pub requests: Requests,
    /// Packets that may wait in a path's input queue; `None`: the engine's default.
    pub queue_packets: Option<u32>,
    /// Buffer bytes that the paths of the class may hold together.
    pub memory: Option<u64>,
    /// TCP connections that the class may have at a time, half-open ones included.
    pub connections: Option<u32>,
    /// With a deadline: what the thread that serves a path may run in it, in microseconds.
    pub thread_budget_us: Option<u32>,
    /// Millionths of the CPU that may be promised to its paths together.
    pub cpu_limit: Option<u64>,
    /// The DSCP that packets of its paths leave with.
    pub mark: Option<u8>,
    /// Program threads may be scheduled with its paths.
    pub extend: bool,
    /// Its part of a device among the classes of its level.
    pub weight: Weight,
    /// What its paths may send at most through one device.
    pub rate: Option<BitRate>,
}

/// Whose requests give a connection its class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requests {
    /// Those of peers: what they ask of programs here.
    #[default]
    Incoming,
    /// Those of programs here: what they ask of peers.
    Outgoing,
    /// All.
    Both,
}

impl Requests {
    /// Whether those of programs here (`outgoing`) or of peers do.
    pub(crate) fn are_looked_at(self, outgoing: bool) -> bool {
        match self {
            Requests::Incoming => !outgoing,
            Requests::Outgoing => outgoing,
            Requests::Both => true,
        }
    }
}

impl ClassSettings {
    /// A class that takes everything, with every default.
    pub fn new(name: &str) -> ClassSettings {
        ClassSettings {
            name: name.to_owned(),
            level: Level::default(),
            listen_level: Level::default(),
            asks: Asks::default(),
            listen_asks: Asks::default(),
            sources: Vec::new(),
            destinations: Vec::new(),
            local_ports: Vec::new(),
            remote_ports: Vec::new(),
            dscps: Vec::new(),
            interfaces: Vec::new(),
            programs: Vec::new(),
            users: Vec::new(),
            cgroups: Vec::new(),
            request: Conditions::default(),
            requests: Requests::default(),
            queue_packets: None,
            memory: None,
            connections: None,
            thread_budget_us: None,
            cpu_limit: None,
            mark: None,
            extend: true,
            weight: Weight::default(),
            rate: None,
        }
    }

    /// Where its paths stand.
    pub fn stands(&self) -> Stands {
        Stands { level: self.level, asks: self.asks }
    }

    /// Where its listen paths stand.
    pub fn listen_stands(&self) -> Stands {
        Stands { level: self.listen_level, asks: self.listen_asks }
    }

    /// Fills in what its paths count as when Linux stands at this level.
    pub(crate) fn settle(&mut self, linux: Level) {
        self.level = self.asks.counts_as(self.level, linux);
        self.listen_level = self.listen_asks.counts_as(self.listen_level, linux);
    }
}

/// What programs may ask for, for their sockets, beyond what the classes give them. An empty condition holds for all
/// programs; conditions of different kinds must all hold, of one kind any.
#[derive(Clone, Debug, Default)]
pub struct PermissionSettings {
    /// Programs by name.
    pub programs: Vec<String>,
    /// Users, as whom the program attached.
    pub users: Vec<u32>,
    /// Control groups of the program, or their parents.
    pub cgroups: Vec<String>,
    /// Up to which priority.
    pub priority: Option<u8>,
    /// Down to which deadline, in microseconds.
    pub deadline_us: Option<u32>,
    /// Up to which weight among the paths of WFQ.
    pub weight: Option<Weight>,
    /// Into which classes, by name.
    pub classes: Vec<String>,
    /// That their threads are scheduled with the path where the class says that they are not.
    pub extend: bool,
}

/// What is known of a program, for people and for the conditions of classes. The control thread finds it out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramFacts {
    /// Last part of the path of its executable.
    pub name: String,
    /// The user as whom it attached, if that is known.
    pub user: Option<u32>,
    /// Its control groups, one path for each hierarchy.
    pub cgroups: Vec<String>,
    /// It was started as background (`scoutline run --background`): its paths stand at the idle level, whatever
    /// their class.
    pub background: bool,
    /// Ports below this one are not for it (bind(2), EACCES): it has not the privilege.
    pub first_port: u16,
}
