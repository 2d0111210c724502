//! `local`: the machine's link with itself. What is sent comes back, so that two programs on paths of one machine
//! talk through the same demultiplexing, queues, classes and accounts as with anybody else, and without a device.
//!
//! - **Synopsis**: `local::open(id)`; the engine makes one beside its devices.
//! - **Options**: none.
//! - **Counters**: see [`DeviceCounters`]; a push that finds the link full is `tx_full`, and nothing is lost.
//! - **Example**: `let mut link = local::open(DeviceId(1));`
//! - **See also**: `memory`, a wire with two ends and faults.
//!
//! ```text
//!   push: headers and short data ─► one block ─► queue ─► pull
//!         long data stay in the sender's ring: the packet has a tail that says where
//! ```
//! Long data are copied once, from the sender's ring into the receiver's. Segments cross whole, as long as a datagram can
//! tell, and partial checksums are never completed: nothing on the way could harm them. The link is bounded in packets
//! and bytes, so who sends waits for who receives. The copy is made by the engine itself, so streams on this link must not
//! lie in files, which may shrink.

mod open;
mod receive;
mod send;

use std::collections::VecDeque;
use std::os::fd::RawFd;

use scoutline_base::{DeviceId, Time};
use scoutline_path::{Burst, Message};
use scoutline_ring::Pool;

use crate::partner::{DeviceCounters, DeviceError, DeviceFacts, Partner};

pub use open::open;

/// The link.
pub struct LocalPartner {
    device: DeviceId,
    facts: DeviceFacts,
    /// What was sent and not yet taken.
    queue: VecDeque<Message>,
    /// Bytes in the queue.
    queued: usize,
    /// Blocks for what an Ethernet link would carry, and for all else.
    short: Pool,
    long: Pool,
    counters: DeviceCounters,
}

impl Partner for LocalPartner {
    fn name(&self) -> &str {
        open::NAME
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        Ok(receive::pull(self, burst, limit, now))
    }

    fn has_input(&self) -> bool {
        !self.queue.is_empty()
    }

    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        let done = send::push(self, burst);
        burst.drain(..done);
        Ok(done)
    }

    fn room(&self) -> usize {
        if self.queued >= open::MAX_QUEUED_LEN { 0 } else { open::MAX_QUEUED - self.queue.len() }
    }

    fn standing(&self) -> Option<u64> {
        Some(self.queued as u64)
    }

    fn poll_fd(&self) -> Option<RawFd> {
        None
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
