//! Taking packets off the link.

use scoutline_base::Time;
use scoutline_path::Burst;

use crate::local::LocalPartner;

/// Appends what was sent; says how many there were.
pub(super) fn pull(link: &mut LocalPartner, burst: &mut Burst, limit: usize, now: Time) -> usize {
    let count = link.queue.len().min(limit);
    for mut message in link.queue.drain(..count) {
        message.facts.arrival = now;
        link.queued -= message.body_len();
        link.counters.rx_packets += 1;
        link.counters.rx_bytes += message.body_len() as u64;
        burst.push(message);
    }
    count
}
