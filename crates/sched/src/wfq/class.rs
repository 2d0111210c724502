//! The entries of one class: which numbers they have among themselves, and whose turn it is.

use std::time::Duration;

use crate::fair::Fair;

/// A fair schedule of the members of one class, among which the class's time is divided.
pub(super) struct Class {
    fair: Fair,
    /// The slot of each member.
    slots: Vec<u32>,
    /// Numbers of members that have gone.
    free: Vec<u32>,
}

impl Class {
    pub(super) fn new() -> Class {
        Class { fair: Fair::new(), slots: Vec::new(), free: Vec::new() }
    }

    /// Takes in whoever has this slot. Its number is dense, for vectors are indexed with it, and a class may have few of
    /// very many paths.
    pub(super) fn join(&mut self, slot: u32) -> u32 {
        if let Some(member) = self.free.pop() {
            self.slots[member as usize] = slot;
            return member;
        }
        self.slots.push(slot);
        self.slots.len() as u32 - 1
    }

    /// A member goes, and leaves nothing to whoever gets its number.
    pub(super) fn leave(&mut self, member: u32) {
        self.fair.forget(member);
        self.free.push(member);
    }

    pub(super) fn wake(&mut self, member: u32, weight: u32, quantum: Duration) {
        self.fair.wake(member, weight, quantum);
    }

    /// Takes out the member whose turn it is: its slot.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.fair.take().map(|member| self.slots[member as usize])
    }

    pub(super) fn end_turn(&mut self) {
        self.fair.end_turn();
    }

    pub(super) fn charge(&mut self, member: u32, spent: Duration) {
        self.fair.charge(member, spent);
    }

    pub(super) fn sleep(&mut self, member: u32) {
        self.fair.sleep(member);
    }

    pub(super) fn is_ready(&self, member: u32) -> bool {
        self.fair.is_ready(member)
    }

    /// Whether any member is ready.
    pub(super) fn has_ready(&self) -> bool {
        self.fair.ready() > 0
    }

    pub(super) fn lag(&self, member: u32) -> i64 {
        self.fair.lag(member)
    }
}
