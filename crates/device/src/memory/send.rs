//! Putting packets on the wire.

use std::cmp::Reverse;
use std::time::Duration;

use scoutline_base::Time;
use scoutline_path::{Burst, Checksum, Message, Segmentation};

use crate::memory::open::{Direction, Flight, Policer, WhenFull, Wire, WireConfig};
use crate::partner::DeviceCounters;
use crate::software;

/// Ethernet header and VLAN tag, which the MTU does not count.
const LINK_LEN: usize = 18;
/// A reordered packet is held back by up to the wire's delay, and this at least.
const LEAST_HOLD: Duration = Duration::from_micros(100);

/// Sends from the front; says how many left the burst.
pub(super) fn push(
    wire: &mut Wire,
    outward: usize,
    burst: &Burst,
    scratch: &mut Vec<u8>,
    counters: &mut DeviceCounters,
) -> usize {
    for (done, message) in burst.iter().enumerate() {
        if wire.config.when_full == WhenFull::Refuse && wire.room(outward) == 0 {
            counters.tx_full += 1;
            return done;
        }
        let (now, config) = (wire.now, &wire.config);
        let direction = &mut wire.directions[outward];
        let mut cut = 0u64;
        let result = if config.whole {
            whole(message, scratch).map(|(checksum, segmentation)| {
                direction.put(now, config, scratch.as_slice(), checksum, segmentation);
            })
        } else {
            // Every packet is checked against the MTU where it would be on a real wire: after the cut.
            let limit = config.mtu as usize + LINK_LEN;
            let mut too_large = 0;
            let result = software::packets(message, scratch, |packet| {
                cut += 1;
                if packet.len() > limit {
                    too_large += 1;
                } else {
                    direction.put(now, config, packet, Checksum::Unverified, None);
                }
            });
            counters.tx_too_large += too_large;
            result.map(|_| ())
        };
        match result {
            Ok(()) => {
                counters.tx_packets += 1;
                counters.tx_bytes += software::frame_len(message) as u64;
                counters.tx_software += u64::from(cut > 1 && !config.offload);
            }
            Err(_) => counters.tx_malformed += 1,
        }
    }
    burst.len()
}

/// A frame that crosses as it is, and what the other end may believe of it.
fn whole(
    message: &Message,
    scratch: &mut Vec<u8>,
) -> Result<(Checksum, Option<Segmentation>), software::Unsendable> {
    scratch.clear();
    software::assemble(message, scratch)?;
    let segmentation = message.facts.segmentation.filter(|how| {
        let headers = message.head.as_slice().len().max(how.header_len as usize);
        scratch.len() > headers + how.size as usize
    });
    // What could not be cut anywhere must not pass for a super-segment.
    if segmentation.is_some_and(|how| !software::can_segment(scratch, how)) {
        return Err(software::Unsendable::Segmentation);
    }
    match message.facts.checksum {
        Checksum::Partial { start, offset } => {
            // The field must lie inside; the sum itself stays partial.
            if start as usize + offset as usize + 2 > scratch.len() {
                return Err(software::Unsendable::Checksum);
            }
            Ok((Checksum::Verified, segmentation))
        }
        _ => Ok((Checksum::Unverified, segmentation)),
    }
}

impl Direction {
    /// Takes `len` bytes' worth of tokens if they are there. The bucket is kept as the time when it will be full.
    fn conforms(&mut self, policer: Policer, len: u64, now: Time) -> bool {
        let time_of = |bytes: u64| {
            let nanoseconds = u128::from(bytes) * 8_000_000_000 / u128::from(policer.rate_bits.max(1));
            Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
        };
        let full_at = self.full_at.max(now) + time_of(len);
        let conforms = full_at.since(now) <= time_of(policer.burst_bytes);
        if conforms {
            self.full_at = full_at;
        }
        conforms
    }

    fn put(
        &mut self,
        now: Time,
        config: &WireConfig,
        bytes: &[u8],
        checksum: Checksum,
        segmentation: Option<Segmentation>,
    ) {
        if bytes.len() < 14 {
            return; // no Ethernet header
        }
        self.counters.sent += 1;
        if config.policer.is_some_and(|policer| !self.conforms(policer, bytes.len() as u64, now)) {
            self.counters.lost += 1;
            return;
        }
        let mut leaves = now;
        if let Some(rate) = config.rate_bits {
            if config.when_full == WhenFull::Drop && self.queue.len() >= config.queue_limit {
                self.counters.lost += 1;
                return;
            }
            let takes = bytes.len() as u64 * 8 * 1_000_000_000 / rate.max(1);
            leaves = self.busy_until.max(now) + Duration::from_nanos(takes);
            self.busy_until = leaves;
            self.queue.push_back(leaves);
        }
        // The same draws for every packet, whatever becomes of it.
        let lost = self.random.chance(config.loss);
        let twice = self.random.chance(config.duplicate);
        let flipped = self.random.chance(config.corrupt);
        let held = self.random.chance(config.reorder);
        let (jitter, hold, bit) = (self.random.next_u64(), self.random.next_u64(), self.random.next_u32());
        // A bit flipped under a partial checksum could not be found out; a device would not pass such a frame on.
        if lost || (flipped && checksum == Checksum::Verified) {
            self.counters.lost += 1;
            return;
        }
        let mut arrival = leaves + config.delay + part(config.jitter, jitter);
        if held {
            arrival += part(config.delay.max(LEAST_HOLD), hold);
        } else {
            arrival = arrival.max(self.last_arrival);
            self.last_arrival = arrival;
        }
        let mut bytes: Box<[u8]> = bytes.into();
        if flipped {
            self.counters.corrupted += 1;
            let bit = bit as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let sequence = self.sequence;
        self.sequence += 2;
        let flight = Flight { arrival, sequence, bytes, checksum, segmentation };
        if twice {
            self.counters.duplicated += 1;
            self.flights.push(Reverse(Flight { sequence: sequence + 1, ..flight.clone() }));
        }
        self.flights.push(Reverse(flight));
    }
}

/// A random part of a duration.
fn part(whole: Duration, random: u64) -> Duration {
    let nanoseconds = whole.as_nanos() as u64;
    Duration::from_nanos(((u128::from(nanoseconds) * u128::from(random)) >> 64) as u64)
}
