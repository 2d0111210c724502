//! What happens in one simulated run, as plain data: it follows from a seed, and can be kept in a file when it shows a
//! defect (a seed means something else once the way it is read changes; a plan does not).

mod draw;

use std::time::Duration;

use scoutline_device::memory::{WhenFull, WireConfig};
use serde::{Deserialize, Serialize};

/// Where programs listen, in both families, and in IPv4 only.
pub const DUAL_PORT: u16 = 80;
/// See [`DUAL_PORT`].
pub const V4_PORT: u16 = 81;
/// Where nobody does.
pub const NOBODY_PORT: u16 = 82;
/// Where datagrams are sent back.
pub const ECHO_PORT: u16 = 90;

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Everything random that is not in the plan follows from it.
    pub seed: u64,
    /// A third host between the two passes packets on.
    pub router: bool,
    /// Super-segments cross the wires whole, as between veths.
    pub whole: bool,
    /// The two hosts.
    pub hosts: [HostPlan; 2],
    /// What the wires do, from when on. The last entry of each is fair.
    pub weather: Vec<Weather>,
    /// The connections.
    pub flows: Vec<FlowPlan>,
    /// The exchanges of datagrams.
    pub chats: Vec<ChatPlan>,
    /// What else happens.
    pub events: Vec<Event>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostPlan {
    /// Bytes of receive rings.
    pub receive_buffer: u32,
    /// Bytes of send rings.
    pub send_buffer: u32,
    /// What its device may send.
    pub rate_kbit: Option<u64>,
    /// Data leaves at a rate.
    pub pacing: bool,
    /// Explicit congestion notification is offered.
    pub ecn: bool,
    /// TIME-WAIT.
    pub time_wait_s: u64,
}

/// What a wire does from a moment on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weather {
    /// From when.
    pub at_ms: u64,
    /// Which wire: behind the router is wire 1.
    pub link: usize,
    /// One way.
    pub delay_us: u64,
    /// More of it.
    pub jitter_us: u64,
    /// Part of the packets that is lost.
    pub loss: f64,
    /// Held back.
    pub reorder: f64,
    /// Arriving twice.
    pub duplicate: f64,
    /// With a bit flipped.
    pub corrupt: f64,
    /// What the wire carries.
    pub rate_kbit: Option<u64>,
    /// Packets that wait for that.
    pub queue: usize,
    /// What is longer is lost.
    pub mtu: u32,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowPlan {
    /// When it is opened.
    pub at_ms: u64,
    /// By which host, to the other one.
    pub from: usize,
    /// Over IPv6.
    pub ip6: bool,
    /// To which port.
    pub port: u16,
    /// TCP_NODELAY.
    pub no_delay: bool,
    /// TCP_CONGESTION, as `slot_option::CONGESTION` has it; 0: not set.
    pub congestion: u8,
    /// The client opens with MSG_FASTOPEN. Only where nothing on the wire comes twice and no program or host stops
    /// ([`Plan::may_fast_open`]): there data with a SYN may reach a program twice, and programs have to bear that (RFC
    /// 7413 §6.1).
    #[serde(default)]
    pub fast_open: bool,
    /// Priority that the client asks for, if it does.
    pub priority: Option<u8>,
    /// What the client does.
    pub client: Side,
    /// What the server does.
    pub server: Side,
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Bytes that it writes.
    pub bytes: u64,
    /// At most so many at a time.
    pub write: u32,
    /// With so long between two writes.
    pub write_pause_us: u64,
    /// Bytes that it reads at a time.
    pub read: u32,
    /// With so long between two reads: a slow reader.
    pub read_pause_us: u64,
    /// How it ends.
    pub stop: Stop,
}

/// How one end of a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// Writes all, `shutdown`, reads to the end, closes.
    Finish,
    /// Writes all, and closes whatever may still come.
    Close,
    /// Writes all, and resets.
    Reset,
}

/// Datagrams, each sent back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatPlan {
    /// When.
    pub at_ms: u64,
    /// From which host, to the other one.
    pub from: usize,
    /// Over IPv6.
    pub ip6: bool,
    /// How many.
    pub count: u32,
    /// Payload bytes of the longest.
    pub size: u32,
    /// Time between two.
    pub gap_us: u64,
    /// The socket is connected.
    pub connected: bool,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at_ms: u64,
    /// At which host.
    pub host: usize,
    /// What.
    pub what: What,
}

/// See [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Other classes (their number: see `host::classes`).
    Classes(u8),
    /// The program is killed; another starts at once.
    Kill,
    /// The host is off for so long, and starts again knowing nothing.
    Restart {
        /// Milliseconds.
        down_ms: u64,
        /// Its connections are reset first.
        orderly: bool,
    },
    /// The listening sockets are closed, and opened again.
    Relisten,
}

impl Weather {
    /// A wire without faults.
    pub fn fair(at_ms: u64, link: usize, delay_us: u64) -> Weather {
        Weather {
            at_ms,
            link,
            delay_us,
            jitter_us: 0,
            loss: 0.0,
            reorder: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            rate_kbit: None,
            queue: 1000,
            mtu: 1500,
        }
    }

    /// As the wire takes it.
    pub(crate) fn config(&self, whole: bool) -> WireConfig {
        WireConfig {
            delay: Duration::from_micros(self.delay_us),
            jitter: Duration::from_micros(self.jitter_us),
            loss: self.loss,
            reorder: self.reorder,
            duplicate: self.duplicate,
            corrupt: self.corrupt,
            rate_bits: self.rate_kbit.map(|rate| rate * 1000),
            queue_limit: self.queue,
            when_full: WhenFull::Drop,
            mtu: self.mtu,
            whole,
            ..WireConfig::default()
        }
    }
}

impl Plan {
    /// When the last fault of a wire is over.
    pub fn fair_from_ms(&self) -> u64 {
        self.weather.iter().map(|weather| weather.at_ms).max().unwrap_or(0)
    }

    /// Whether a neighbour's answers may be lost three times in a row: of a wire, or of a host that is off.
    pub fn is_silent_at_times(&self) -> bool {
        let is_off = |event: &Event| matches!(event.what, What::Restart { .. });
        self.weather.iter().any(|weather| weather.loss > 0.0 || weather.corrupt > 0.0)
            || self.events.iter().any(is_off)
    }

    /// Data with a SYN come to one program once at most.
    pub fn may_fast_open(&self) -> bool {
        !self.duplicates() && self.events.iter().all(|event| matches!(event.what, What::Classes(_)))
    }

    /// Whether packets may arrive twice.
    pub fn duplicates(&self) -> bool {
        self.weather.iter().any(|weather| weather.duplicate > 0.0)
    }
}
