//! What is kept for one attached program: process records and poll sets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use scoutline_abi::Region;
use scoutline_abi::interest::LEFT;
use scoutline_abi::layout::{PROCESS_COUNT, SET_COUNT};

/// What a process record is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Free,
    Used,
    /// Its process is gone; the engine still reads it.
    Leaving,
}

/// One program: its first process and all that it forked. What stands in the shared memory is only written here
/// (but for `alive`, and a program that sets that by itself confuses none but itself).
pub(super) struct Program {
    pub(super) region: Arc<Region>,
    /// Its first process.
    pub(super) pid: u32,
    records: Vec<Record>,
    /// How many processes know each poll set.
    holders: Vec<u32>,
    /// Files that it sends from, and their bytes.
    files: u32,
    file_bytes: u64,
}

/// Bytes of files that one program may have mapped with us: address space is not endless.
const MAX_FILE_BYTES: u64 = 256 << 30;

/// Files that one program may have mapped with us; what is more is copied through the rings.
const MAX_FILES: u32 = 1024;

impl Program {
    pub(super) fn new(region: Arc<Region>, pid: u32) -> Program {
        Program { region, pid, records: Vec::new(), holders: Vec::new(), files: 0, file_bytes: 0 }
    }

    /// The number of its next file; `None` when it has too many.
    pub(super) fn next_file(&self) -> Option<u32> {
        (self.files < MAX_FILES).then_some(self.files)
    }

    /// That file is mapped.
    pub(super) fn on_file(&mut self, len: u64) {
        self.files += 1;
        self.file_bytes += len;
    }

    /// Whether a file of this length may be added.
    pub(super) fn has_room_for(&self, len: u64) -> bool {
        len <= MAX_FILE_BYTES - self.file_bytes
    }

    /// Live processes.
    pub(super) fn live(&self) -> usize {
        self.records.iter().filter(|&&record| record == Record::Used).count()
    }

    /// A record for a new process, cleared and alive; `None` when all are in use.
    pub(super) fn take_record(&mut self, pid: u32) -> Option<u32> {
        for index in 0..self.records.len() {
            let alive = self.region.process(index as u32)?.alive.load(Ordering::Acquire);
            if self.records[index] == Record::Leaving && alive == 0 {
                self.records[index] = Record::Free;
            }
        }
        let index =
            self.records.iter().position(|&record| record == Record::Free).unwrap_or(self.records.len());
        if index == PROCESS_COUNT {
            return None;
        }
        if index == self.records.len() {
            self.records.push(Record::Free);
        }
        self.records[index] = Record::Used;
        let (record, holds) = (self.region.process(index as u32)?, self.region.holds(index as u32)?);
        // Here and below a program that says it has used less confuses none but itself.
        for word in self.region.words_used() {
            holds[word].store(0, Ordering::Relaxed);
        }
        record.claiming.store(0, Ordering::Relaxed);
        record.claiming_from.store(0, Ordering::Relaxed);
        record.closing.store(0, Ordering::Relaxed);
        record.pid.store(pid, Ordering::Relaxed);
        record.alive.store(1, Ordering::Release);
        Some(index as u32)
    }

    /// The process was never told of its record.
    pub(super) fn give_back_unused(&mut self, index: u32) {
        self.records[index as usize] = Record::Free;
        if let Some(record) = self.region.process(index) {
            record.alive.store(0, Ordering::Release);
        }
    }

    /// The process is gone. Its record is free again once the engine has cleared `alive`.
    pub(super) fn leave(&mut self, index: u32) {
        self.records[index as usize] = Record::Leaving;
        if let Some(record) = self.region.process(index) {
            // Should the program have cleared it, the record must still wait for the engine.
            record.alive.store(1, Ordering::Release);
        }
    }

    /// A child's process id is known once it speaks.
    pub(super) fn learn_pid(&self, index: u32, pid: u32) {
        if let Some(record) = self.region.process(index) {
            let _ = record.pid.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// A poll set, cleared, with one holder; `None` when all are in use.
    pub(super) fn take_set(&mut self) -> Option<u32> {
        let index = self.holders.iter().position(|&holders| holders == 0).unwrap_or(self.holders.len());
        if index == SET_COUNT {
            return None;
        }
        if index == self.holders.len() {
            self.holders.push(0);
        } else {
            self.clear_watches(index);
        }
        self.holders[index] = 1;
        self.region.clear_interests(index as u32);
        let set = self.region.set(index as u32)?;
        set.holders.store(1, Ordering::Relaxed);
        set.sleepers.store(0, Ordering::Relaxed);
        for word in self.region.words_used() {
            set.ready_words[word].store(0, Ordering::Relaxed);
        }
        for word in &set.ready_summary {
            word.store(0, Ordering::Relaxed);
        }
        set.signalled.store(0, Ordering::Release);
        Some(index as u32)
    }

    /// A holder that was killed has not taken its set off what it watched; the next holder must not be chosen for
    /// connections that it does not wait for.
    fn clear_watches(&self, index: usize) {
        let (word, bit) = (index / 64, 1u64 << (index % 64));
        for slot in self.region.slots_used().filter_map(|slot| self.region.slot(slot)) {
            if slot.sets_summary.load(Ordering::Relaxed) >> word & 1 != 0 {
                slot.sets[word].fetch_and(!bit, Ordering::SeqCst);
            }
        }
    }

    /// One more process knows the set.
    pub(super) fn share_set(&mut self, index: u32) {
        self.holders[index as usize] += 1;
        self.tell_holders(index);
    }

    /// The shims take a lock in an epoll that several processes have.
    fn tell_holders(&self, index: u32) {
        if let Some(set) = self.region.set(index) {
            set.holders.store(self.holders[index as usize], Ordering::SeqCst);
        }
    }

    /// A process that had the set was ended in the midst of whatever it did: a byte that it took from the pipe, and nobody
    /// knows of. Others are to be woken as ever.
    pub(super) fn forget_signal(&self, index: u32) {
        if let Some(set) = self.region.set(index) {
            set.signalled.store(0, Ordering::SeqCst);
        }
    }

    /// The process of this record was ended, perhaps while it was in the list of an epoll.
    pub(super) fn forget_in_list(&self, set: u32, record: u32) {
        if let Some(list) = self.region.interests(set) {
            let _ = list.lock.compare_exchange(record + 1, LEFT, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// One process fewer; true when it was the last.
    pub(super) fn drop_set(&mut self, index: u32) -> bool {
        self.holders[index as usize] -= 1;
        self.tell_holders(index);
        self.holders[index as usize] == 0
    }
}
