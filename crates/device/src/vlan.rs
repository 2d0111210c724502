//! `vlan`: a network of its own on another device, told apart by tags (IEEE 802.1Q §9.6).
//!
//! - **Synopsis**: `vlan::share(parent)` makes a device one that several own; `vlan::open(id, &config, &shared)` a
//!   network on it.
//! - **Options** ([`Config`]): `parent`, the device; `vlan`, 1 to 4094; `priority`, 0 to 7, of what is sent.
//! - **Counters**: those of what is sent here; what comes is counted by the parent.
//! - **Example**: `let shared = vlan::share(parent); let network = vlan::open(DeviceId(1), &config, &shared);`
//! - **See also**: `packet`, whose kernel takes tags off frames and tells them beside: they are put back there.
//!
//! ```text
//!   parent: pull ─► tagged? ─► untag ─► sorted as what came on the network's own device
//!   network: push ─► tag ─► parent's push
//! ```
//! Who sorts packets finds the network of a tag ([`tag_of`]) and takes the tag off ([`untag`]): twelve bytes are moved.
//! Tags within tags (802.1ad) are left out.

mod open;
mod receive;
mod send;

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::rc::Rc;

use scoutline_base::Time;
use scoutline_bpf::{KnownAs, Peer};
use scoutline_path::Burst;

use crate::packet::Important;
use crate::partner::{DeviceCounters, DeviceError, DeviceFacts, Notice, Partner, Policing};

pub use open::{Config, Shared, open, share};
pub use receive::{Tag, tag_of, untag};

/// Bytes of a tag.
pub const TAG_LEN: usize = 4;

/// A network on a shared device.
pub struct VlanPartner {
    name: String,
    facts: DeviceFacts,
    parent: Rc<RefCell<Box<dyn Partner>>>,
    /// What its packets are tagged with.
    tci: u16,
    counters: DeviceCounters,
}

impl Partner for VlanPartner {
    fn name(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// What comes, comes on the parent.
    fn pull(&mut self, _burst: &mut Burst, _limit: usize, _now: Time) -> Result<usize, DeviceError> {
        Ok(0)
    }

    fn has_input(&self) -> bool {
        false
    }

    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        send::push(self, burst)
    }

    fn room(&self) -> usize {
        self.parent.borrow().room()
    }

    fn standing(&self) -> Option<u64> {
        self.parent.borrow().standing()
    }

    fn poll_fd(&self) -> Option<RawFd> {
        None
    }

    fn pressed(&self) -> bool {
        self.parent.borrow().pressed()
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }
}

/// The device itself, for its untagged packets and for sorting the others.
impl Partner for Shared {
    fn name(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        self.parent.borrow_mut().pull(burst, limit, now)
    }

    fn has_input(&self) -> bool {
        self.parent.borrow().has_input()
    }

    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        self.parent.borrow_mut().push(burst)
    }

    fn room(&self) -> usize {
        self.parent.borrow().room()
    }

    fn standing(&self) -> Option<u64> {
        self.parent.borrow().standing()
    }

    fn poll_fd(&self) -> Option<RawFd> {
        self.parent.borrow().poll_fd()
    }

    fn next_event(&self) -> Option<Time> {
        self.parent.borrow().next_event()
    }

    fn pressed(&self) -> bool {
        self.parent.borrow().pressed()
    }

    fn bell_fd(&self) -> Option<RawFd> {
        self.parent.borrow().bell_fd()
    }

    fn ring_for(&mut self, rules: &[Important]) -> std::io::Result<()> {
        self.parent.borrow_mut().ring_for(rules)
    }

    fn silence_bell(&mut self) {
        self.parent.borrow_mut().silence_bell();
    }

    fn police(&mut self, policing: Option<Policing<'_>>) {
        self.parent.borrow_mut().police(policing);
    }

    fn know(&mut self, peer: &Peer, known: Option<KnownAs>) {
        self.parent.borrow_mut().know(peer, known);
    }

    fn hold_back(&mut self, frame: &[u8], until: Time, owner: u64) {
        self.parent.borrow_mut().hold_back(frame, until, owner);
    }

    fn tell_held_back(&mut self, now: Time, each: &mut dyn FnMut(u64, u64)) {
        self.parent.borrow_mut().tell_held_back(now, each);
    }

    fn news(&mut self) -> Option<Notice> {
        self.parent.borrow_mut().news()
    }

    fn counters(&self) -> DeviceCounters {
        self.parent.borrow().counters()
    }
}

#[cfg(test)]
mod tests;
