//! Which of our sockets in an epoll are ready, in the order of importance.
//!
//! The set's ready bits say where to look; whether a socket is ready is then read from its slot. A level-triggered bit
//! stays while its socket is ready; an edge-triggered or one-shot one is cleared before looking.

use libc::epoll_event;
use scoutline_abi::Region;
use scoutline_abi::layout::SLOT_COUNT;

use super::interests::{Entry, List};
use super::{ALWAYS, EDGE, Epoll, Item, ONCE, nested};
use crate::serve::{self, Hold};
use crate::slot::Socket;
use crate::wait::Set;
use crate::{attach, real, wait};

impl Epoll {
    /// What an event must have to be given now; 0: nothing. Less important ones wait behind more important ones, for
    /// a bounded time.
    fn least_importance(&mut self, set: Set, region: &Region) -> u32 {
        let (mut most, mut others) = (0, false);
        let list = self.list;
        region.ready(set.shared).visit(0, |slot| {
            let Some(socket) = Socket::at(slot as u32) else { return true };
            let importance = socket.importance();
            if importance <= serve::ORDINARY {
                others = true;
            } else if importance > most
                && let Some(first) = list.and_then(|list| list.at(slot as u32))
                && socket.readiness(first.interest()) & first.interest() != 0
            {
                others |= most > 0;
                most = importance;
            }
            true
        });
        if most == 0 {
            // Nothing is held back, nor was it until now.
            self.hold = Hold::NONE;
            return 0;
        }
        if self.hold.holds(others, real::now_ns()) { most } else { 0 }
    }

    /// Our events that are there now.
    pub(super) fn collect(&mut self, out: &mut [epoll_event]) -> usize {
        let (Some(set), Some(region)) = (self.ready_set(), attach::region()) else { return 0 };
        if attach::dead() && !self.dead_told {
            self.dead_told = true;
            serve::orphaned();
            self.each_slot(|socket| region.ready(set.shared).set(socket.index as usize));
        }
        let least = self.least_importance(set, region);
        self.given = 0;
        let most = if serve::has_important() && least == 0 { serve::BATCH } else { usize::MAX };
        let most = most.min(out.len());
        let out = &mut out[..most];
        let mut n = self.take_sockets(set, region, least, out);
        if n == 0 && least > 0 {
            // What the others were held back for has been taken by another thread since that look. They may be all that there
            // is, and nobody tells of them again.
            n = self.take_sockets(set, region, 0, out);
        }
        n + self.take_nested(&mut out[n..])
    }

    /// Events of sockets of at least this importance, from where the last look ended.
    fn take_sockets(&mut self, set: Set, region: &Region, least: u32, out: &mut [epoll_event]) -> usize {
        let bits = region.ready(set.shared);
        let mut n = 0;
        let from = self.rotate as usize;
        let (list, nested) = (self.list, &mut self.nested);
        let given = &mut self.given;
        let mut next = None;
        bits.visit(from, |slot| {
            if n == out.len() {
                next = Some(slot as u32);
                return false;
            }
            let first = list.and_then(|list| list.at(slot as u32));
            let (Some(list), Some(first), Some(socket)) = (list, first, Socket::at(slot as u32)) else {
                bits.clear(slot);
                nested::note(nested, slot as u32);
                return true;
            };
            if least > 0 && socket.importance() < least {
                return true; // stays for later
            }
            // Cleared first, set again if level-triggered and still ready: an event in between is not lost.
            bits.clear(slot);
            nested::note(nested, slot as u32);
            let (mut taken, mut again) = take(socket, list.chain_from(Some(first)), &mut out[n..]);
            if taken > 0 && !first.is_of(socket) {
                // What was ready is another's who has the slot now, or nobody has it any more.
                (taken, again) = (0, false);
                forget(list, set, socket);
            }
            if taken > 0 {
                n += taken;
                *given = (*given).max(socket.importance());
            }
            if again {
                bits.set(slot);
            }
            next = Some(slot as u32 + 1);
            true
        });
        if let Some(next) = next {
            self.rotate = next % SLOT_COUNT as u32;
        }
        n
    }

    /// True when `collect` would find something; takes nothing.
    pub(super) fn peek(&mut self) -> bool {
        let (Some(set), Some(region)) = (self.ready_set(), attach::region()) else { return false };
        let mut found = attach::dead() && !self.dead_told && self.count() > 0;
        let list = self.list;
        region.ready(set.shared).visit(0, |slot| {
            if let (Some(list), Some(socket)) = (list, Socket::at(slot as u32)) {
                found |= list.chain(slot as u32).any(|entry| {
                    let interest = entry.interest();
                    interest != 0 && socket.readiness(interest) & interest != 0
                }) && list.is_of(socket);
            }
            !found
        });
        found || self.peek_nested()
    }

    /// True when there may be more events than were just taken.
    pub(super) fn has_more(&self) -> bool {
        let (Some(set), Some(region)) = (self.set, attach::region()) else { return false };
        !region.ready(set.shared).is_empty() || !self.nested.is_empty()
    }
}

/// Whether a socket has now what a registration asks for.
pub(super) fn has_event(socket: Socket, item: Item) -> bool {
    let interest = item.events | ALWAYS;
    socket.readiness(interest) & interest != 0
}

/// A socket was registered with a set that watches it: marks it if it has what is asked for. Only then: beside a mark from
/// before, what comes is found between its arrival and its own mark, and an edge is told twice.
pub(super) fn mark(set: Set, socket: Socket, item: Item) -> bool {
    set.bell().before_look();
    let is_ready = has_event(socket, item);
    if is_ready {
        socket.region.ready(set.shared).set(socket.index as usize);
    }
    is_ready
}

/// A list has a registration of a socket that nobody has any more.
#[cold]
fn forget(list: List, set: Set, socket: Socket) {
    list.drop_slot(socket.index);
    wait::unwatch(socket, set);
}

/// The events of one socket, by each descriptor that names it: how many, and whether it is to be looked at again.
fn take(socket: Socket, entries: impl Iterator<Item = Entry>, out: &mut [epoll_event]) -> (usize, bool) {
    let (mut n, mut again) = (0, false);
    for entry in entries {
        let interest = entry.interest();
        if interest == 0 {
            continue;
        }
        let ready = socket.readiness(interest) & interest;
        if ready == 0 {
            continue;
        }
        if n == out.len() {
            again = true;
            break;
        }
        out[n] = epoll_event { events: ready, u64: entry.data() };
        n += 1;
        if entry.events() & ONCE != 0 {
            entry.spend();
        } else if entry.events() & EDGE == 0 {
            again = true;
        }
    }
    (n, again)
}
