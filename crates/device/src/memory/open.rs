//! The wire's configuration and state.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use scoutline_base::{DeviceId, Random, Time};
use scoutline_path::{Checksum, Segmentation};

use crate::memory::MemoryPartner;
use crate::partner::{DeviceCounters, DeviceFacts, MAX_SUPER_FRAME, Offload};

/// What the wire does to packets. Probabilities are 0 to 1 and per packet on the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct WireConfig {
    /// Time from one end to the other.
    pub delay: Duration,
    /// More of it, random up to this much. Keeps the order.
    pub jitter: Duration,
    /// How many are lost.
    pub loss: f64,
    /// How many are held back while others pass: by up to one more `delay`, and at least 100 µs.
    pub reorder: f64,
    /// How many arrive twice.
    pub duplicate: f64,
    /// How many have one bit flipped.
    pub corrupt: f64,
    /// Bits per second; `None` is no limit.
    pub rate_bits: Option<u64>,
    /// Packets that may wait for the rate.
    pub queue_limit: usize,
    /// What becomes of more.
    pub when_full: WhenFull,
    /// A policer in front of everything: what does not conform is lost.
    pub policer: Option<Policer>,
    /// Largest network-layer packet.
    pub mtu: u32,
    /// Both ends say that they complete checksums and cut super-segments. Off, they say that they do not (and do).
    pub offload: bool,
    /// Super-segments cross whole and partial checksums count as verified, as on a veth pair.
    pub whole: bool,
}

/// A token bucket without a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// Bits per second that it lets pass for long.
    pub rate_bits: u64,
    /// Bytes that it lets pass at once after a pause.
    pub burst_bytes: u64,
}

/// What a full queue in front of the rate does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Loses what comes, as a router does.
    #[default]
    Drop,
    /// Takes no more, as a network card does: messages stay in the burst.
    Refuse,
}

/// What a wire has done in one direction, in packets on the wire (after the cut to the MTU).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// Put on the wire, those included that were lost later.
    pub sent: u64,
    /// Lost: by chance, by the policer, or because the queue in front of the rate was full.
    pub lost: u64,
    /// Arriving twice.
    pub duplicated: u64,
    /// With a bit flipped.
    pub corrupted: u64,
    /// Arrived after one that was sent later: not all that were held back, since some are not overtaken.
    pub reordered: u64,
}

impl Default for WireConfig {
    fn default() -> WireConfig {
        WireConfig {
            delay: Duration::from_micros(10),
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            rate_bits: None,
            queue_limit: 1000,
            when_full: WhenFull::Drop,
            policer: None,
            mtu: 1500,
            offload: true,
            whole: false,
        }
    }
}

/// Makes a wire and gives its two ends, with the link addresses `02:…:01` and `02:…:02`.
pub fn wire(seed: u64, config: WireConfig) -> (MemoryPartner, MemoryPartner) {
    let (mtu, offload) = (config.mtu, config.offload);
    let direction = |number: u64| Direction {
        random: Random::new(seed.wrapping_mul(2).wrapping_add(number)),
        ..Direction::default()
    };
    let wire = Wire { now: Time::ZERO, directions: [direction(0), direction(1)], config };
    let wire = Rc::new(RefCell::new(wire));
    let end = |name, outward: usize| MemoryPartner {
        name,
        facts: DeviceFacts {
            kind: "memory",
            link_address: [2, 0, 0, 0, 0, outward as u8 + 1],
            mtu,
            offload: Offload { checksum: offload, segmentation: offload, max_segment_len: MAX_SUPER_FRAME },
            trusted_checksums: true,
            index: 0,
        },
        wire: wire.clone(),
        outward,
        counters: DeviceCounters::default(),
        scratch: Vec::new(),
    };
    (end("wire0", 0), end("wire1", 1))
}

impl MemoryPartner {
    /// The same end under an id: its messages carry it.
    #[must_use]
    pub fn with_id(self, id: DeviceId) -> MemoryPartner {
        self.wire.borrow_mut().directions[1 - self.outward].device = id;
        self
    }
}

/// The state that both ends share.
pub(super) struct Wire {
    pub(super) now: Time,
    pub(super) directions: [Direction; 2],
    pub(super) config: WireConfig,
}

/// One direction.
pub(super) struct Direction {
    pub(super) random: Random,
    /// The id that the receiving end gives to messages.
    pub(super) device: DeviceId,
    /// When the policer's bucket is full again.
    pub(super) full_at: Time,
    /// When the rate is free again.
    pub(super) busy_until: Time,
    /// When each packet that waits for the rate is through.
    pub(super) queue: VecDeque<Time>,
    /// The latest arrival so far, for those that keep their order.
    pub(super) last_arrival: Time,
    /// Numbers packets, so that equal arrivals keep their order.
    pub(super) sequence: u64,
    pub(super) flights: BinaryHeap<Reverse<Flight>>,
    /// The highest number that has arrived.
    pub(super) latest: u64,
    pub(super) counters: WireCounters,
}

impl Default for Direction {
    fn default() -> Direction {
        Direction {
            random: Random::new(0),
            device: DeviceId::default(),
            full_at: Time::ZERO,
            busy_until: Time::ZERO,
            queue: VecDeque::new(),
            last_arrival: Time::ZERO,
            sequence: 0,
            flights: BinaryHeap::new(),
            latest: 0,
            counters: WireCounters::default(),
        }
    }
}

/// A packet on its way. Ordered by arrival, then by number.
#[derive(Clone)]
pub(super) struct Flight {
    pub(super) arrival: Time,
    pub(super) sequence: u64,
    pub(super) bytes: Box<[u8]>,
    pub(super) checksum: Checksum,
    pub(super) segmentation: Option<Segmentation>,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Flight) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Flight) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    fn cmp(&self, other: &Flight) -> std::cmp::Ordering {
        (self.arrival, self.sequence).cmp(&(other.arrival, other.sequence))
    }
}

impl Wire {
    pub(super) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        for direction in &mut self.directions {
            while direction.queue.front().is_some_and(|through| *through <= now) {
                direction.queue.pop_front();
            }
        }
    }

    /// What waits for the rate, or is being sent.
    pub(super) fn standing(&self, outward: usize) -> Option<u64> {
        let rate = self.config.rate_bits?;
        let left = self.directions[outward].busy_until.since(self.now);
        Some((u128::from(rate) * left.as_nanos()).div_ceil(8_000_000_000) as u64)
    }

    pub(super) fn room(&self, outward: usize) -> usize {
        match self.config.when_full {
            WhenFull::Drop => 256,
            WhenFull::Refuse => {
                self.config.queue_limit.saturating_sub(self.directions[outward].queue.len()).min(256)
            }
        }
    }
}

impl Direction {
    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    pub(super) fn next_arrival(&self) -> Option<Time> {
        self.flights.peek().map(|flight| flight.0.arrival)
    }
}
