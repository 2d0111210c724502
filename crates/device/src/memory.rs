//! `memory`: a deterministic wire between two partners, in virtual time.
//!
//! - **Synopsis**: `memory::wire(seed, config)` gives its two ends.
//! - **Options** ([`WireConfig`]): delay, jitter, loss, reorder, duplicate, corrupt, rate, queue, policer, MTU, offload.
//! - **Counters**: see [`DeviceCounters`]; what the wire loses counts as the receiver's `rx_ring_drops`. And
//!   [`WireCounters`]: what the wire did.
//! - **Example**: `let (client, server) = memory::wire(7, WireConfig { loss: 0.05, ..WireConfig::default() });`
//! - **See also**: `pcap`.
//!
//! ```text
//!   push → cut to MTU → [policer] → [queue → rate] → loss, duplicate, corrupt → delay + jitter (+ reorder) → pull
//! ```
//! Everything follows from the seed, the configuration, and the calls with their times: a run repeats exactly. The
//! two directions draw from generators of their own, so traffic one way does not change the other way's fate.

mod open;
mod receive;
mod send;

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::rc::Rc;

use scoutline_base::Time;
use scoutline_path::Burst;

use crate::partner::{DeviceCounters, DeviceError, DeviceFacts, Partner};

pub use open::{Policer, WhenFull, WireConfig, WireCounters, wire};

/// One end of a wire.
pub struct MemoryPartner {
    name: &'static str,
    facts: DeviceFacts,
    wire: Rc<RefCell<open::Wire>>,
    /// Which direction we send into; the other one we receive from.
    outward: usize,
    counters: DeviceCounters,
    scratch: Vec<u8>,
}

impl MemoryPartner {
    /// Lets virtual time reach `now`: what is pushed after it leaves then. It never goes back.
    pub fn advance(&mut self, now: Time) {
        self.wire.borrow_mut().advance(now);
    }

    /// From now on the wire is like this, both ways; what is on its way arrives as it would have. What the ends say of
    /// themselves ([`Partner::facts`]: MTU, offloads) stays as it was.
    pub fn reshape(&mut self, config: WireConfig) {
        self.wire.borrow_mut().config = config;
    }

    /// What the wire has done to the packets for this end.
    pub fn wire_counters(&self) -> WireCounters {
        self.wire.borrow().directions[1 - self.outward].counters
    }

    /// Packets on their way to this end.
    pub fn in_flight(&self) -> usize {
        self.wire.borrow().directions[1 - self.outward].in_flight()
    }
}

impl Partner for MemoryPartner {
    fn name(&self) -> &str {
        self.name
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        let mut wire = self.wire.borrow_mut();
        wire.advance(now);
        Ok(receive::pull(&mut wire, 1 - self.outward, burst, limit, &mut self.counters))
    }

    fn has_input(&self) -> bool {
        let wire = self.wire.borrow();
        wire.directions[1 - self.outward].next_arrival().is_some_and(|at| at <= wire.now)
    }

    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        let mut wire = self.wire.borrow_mut();
        let done = send::push(&mut wire, self.outward, burst, &mut self.scratch, &mut self.counters);
        burst.drain(..done);
        Ok(done)
    }

    fn room(&self) -> usize {
        self.wire.borrow().room(self.outward)
    }

    fn standing(&self) -> Option<u64> {
        self.wire.borrow().standing(self.outward)
    }

    fn poll_fd(&self) -> Option<RawFd> {
        None
    }

    fn next_event(&self) -> Option<Time> {
        self.wire.borrow().directions[1 - self.outward].next_arrival()
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters { rx_ring_drops: self.wire_counters().lost, ..self.counters }
    }
}
