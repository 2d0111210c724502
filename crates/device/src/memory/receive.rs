//! Taking packets off the wire.

use scoutline_path::{Burst, Facts, Message};
use scoutline_ring::Block;

use crate::memory::open::Wire;
use crate::partner::DeviceCounters;

/// Appends what has arrived by now.
pub(super) fn pull(
    wire: &mut Wire,
    inward: usize,
    burst: &mut Burst,
    limit: usize,
    counters: &mut DeviceCounters,
) -> usize {
    let now = wire.now;
    let direction = &mut wire.directions[inward];
    let mut taken = 0;
    while taken < limit && direction.next_arrival().is_some_and(|at| at <= now) {
        let Some(flight) = direction.flights.pop() else { break };
        let flight = flight.0;
        direction.counters.reordered += u64::from(flight.sequence < direction.latest);
        direction.latest = direction.latest.max(flight.sequence);
        let len = flight.bytes.len() as u32;
        counters.rx_packets += 1;
        counters.rx_bytes += u64::from(len);
        let facts = Facts {
            device: direction.device,
            arrival: now,
            checksum: flight.checksum,
            segmentation: flight.segmentation,
            ..Facts::default()
        };
        burst.push(Message::received(Block::from_bytes(flight.bytes), 0..len, facts));
        taken += 1;
    }
    taken
}
