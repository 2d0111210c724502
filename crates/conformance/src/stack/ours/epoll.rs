//! The model program's epoll: a poll set of the region, in which the engine marks slots where something happened, and
//! the shim's rules for what of it is an event (`scoutline-preload`: epoll.rs). Without nesting, sharing and importance.

use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;

use scoutline_abi::Region;
use scoutline_ring::Bitmap;
use scoutline_sim::model::Socket;

use super::descriptor::Fd;

/// What cannot be left out of the events asked for.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// One epoll descriptor.
#[derive(Debug)]
pub(super) struct Epoll {
    set: u32,
    items: HashMap<i32, Item>,
}

/// A socket in it.
#[derive(Clone, Copy, Debug)]
struct Item {
    slot: u32,
    low_water: u32,
    oob_inline: bool,
    events: u32,
    data: u64,
    /// EPOLLONESHOT, and it has told its event.
    spent: bool,
}

impl Epoll {
    /// With a poll set that nobody else uses.
    pub(super) fn new(set: u32) -> Epoll {
        Epoll { set, items: HashMap::new() }
    }

    fn ready<'a>(&self, region: &'a Region) -> Bitmap<'a> {
        region.ready(region.set(self.set).expect("a region has poll sets"))
    }

    /// `epoll_ctl`.
    pub(super) fn control(
        &mut self,
        region: &Region,
        op: i32,
        (number, fd): (i32, &Fd),
        (events, data): (u32, u64),
    ) -> Result<(), i32> {
        let held = self.items.contains_key(&number);
        match op {
            libc::EPOLL_CTL_ADD if held => return Err(libc::EEXIST),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !held => return Err(libc::ENOENT),
            libc::EPOLL_CTL_DEL => {
                self.items.remove(&number);
                return Ok(());
            }
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {}
            _ => return Err(libc::EINVAL),
        }
        let (slot, low_water, oob_inline) = (fd.slot, fd.low_water, fd.oob_inline);
        let item = Item { slot, low_water, oob_inline, events, data, spent: false };
        self.items.insert(number, item);
        let slot = Socket::at(region, fd.slot).slot;
        let word = self.set as usize / 64;
        slot.sets[word].fetch_or(1 << (self.set % 64), SeqCst);
        slot.sets_summary.fetch_or(1 << word, SeqCst);
        // What is ready already is told as well.
        self.ready(region).set(fd.slot as usize);
        Ok(())
    }

    /// The descriptor was closed.
    pub(super) fn forget(&mut self, number: i32) {
        self.items.remove(&number);
    }

    /// What there is to tell, `most` at most: events and data.
    pub(super) fn collect(&mut self, region: &Region, most: usize) -> Vec<(u32, u64)> {
        let ready = self.ready(region);
        let mut told = Vec::new();
        let mut numbers: Vec<i32> = self.items.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            let Some(item) = self.items.get_mut(&number) else { continue };
            // Cleared first, set again if level-triggered and still ready.
            if told.len() == most || !ready.clear(item.slot as usize) || item.spent {
                continue;
            }
            let interest = item.events | ALWAYS;
            let socket = Socket::at(region, item.slot);
            if interest & libc::EPOLLOUT as u32 != 0 && !socket.roomy() {
                socket.slot.send_wanted.store(1, SeqCst);
            }
            let found = u32::from(socket.readiness(item.low_water, item.oob_inline) as u16) & interest;
            if found == 0 {
                continue;
            }
            told.push((found, item.data));
            item.spent = item.events & libc::EPOLLONESHOT as u32 != 0;
            if item.events & (libc::EPOLLET | libc::EPOLLONESHOT) as u32 == 0 {
                ready.set(item.slot as usize);
            }
        }
        told
    }
}
