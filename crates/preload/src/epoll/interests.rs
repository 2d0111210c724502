//! What an epoll has of our sockets: the list in the region ([`scoutline_abi::interest`]), which all processes share that
//! have its descriptor.
//!
//! A registration stays, as on Linux, until it is removed or the last descriptor of its socket in all processes is closed.
//! Who closes the last one takes it out of its own epolls ([`super::forget`]); in those that it does not know it is found to
//! be of nobody when it is looked at, by the socket's references and by the generation of its slot.
//!
//! All here is for who has the epoll's lock; other processes are kept out by [`super::lock`].

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use scoutline_abi::Region;
use scoutline_abi::interest::{INTEREST_COUNT, Interest, InterestList};
use scoutline_abi::layout::SLOT_COUNT;

use super::{ALWAYS, EDGE, EXCLUSIVE, Item, ONCE};
use crate::attach;
use crate::slot::Socket;

/// What says how events are told, not which. Where nothing else is left, a one-shot registration was told (`EP_PRIVATE_BITS`).
const HOW: u32 = EDGE | ONCE | EXCLUSIVE | libc::EPOLLWAKEUP as u32;

#[inline]
fn load(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}

#[inline]
fn store(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Relaxed);
}

/// The list of an epoll.
#[derive(Clone, Copy)]
pub(super) struct List(pub(super) &'static InterestList);

/// What became of a registration that was to be removed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Removed {
    /// There was none.
    Nothing,
    /// Others of the same socket are left.
    One,
    /// It was the socket's last.
    Last,
}

/// One registration.
#[derive(Clone, Copy)]
pub(super) struct Entry(&'static Interest);

impl Entry {
    /// The events that it asks for, those that everybody is told among them; 0: it is one-shot, and shot.
    #[inline]
    pub(super) fn interest(self) -> u32 {
        load(&self.0.events) & !HOW
    }

    /// How they are told, and which.
    #[inline]
    pub(super) fn events(self) -> u32 {
        load(&self.0.events)
    }

    #[inline]
    pub(super) fn data(self) -> u64 {
        self.0.data.load(Ordering::Relaxed)
    }

    /// It was told, and is one-shot.
    pub(super) fn spend(self) {
        store(&self.0.events, self.events() & HOW);
    }

    /// Changes it.
    pub(super) fn set(self, item: Item) {
        let asked = if item.spent { item.events & HOW } else { item.events | ALWAYS };
        store(&self.0.events, asked);
        self.0.data.store(item.data, Ordering::Relaxed);
    }

    /// Whether it is of this socket, and that of somebody.
    #[inline]
    pub(super) fn is_of(self, socket: Socket) -> bool {
        load(&self.0.generation) == socket.generation() && socket.is_held()
    }

    #[inline]
    fn fd_plus_one(self) -> u32 {
        load(&self.0.fd_plus_one)
    }

    fn write(self, item: Item, socket: Socket) {
        self.set(item);
        store(&self.0.generation, socket.generation());
        store(&self.0.fd_plus_one, item.fd_plus_one.cast_unsigned());
    }

    fn copy_from(self, other: Entry) {
        store(&self.0.events, other.events());
        self.0.data.store(other.data(), Ordering::Relaxed);
        store(&self.0.generation, load(&other.0.generation));
        store(&self.0.fd_plus_one, other.fd_plus_one());
        store(&self.0.next, load(&other.0.next));
    }

    /// It as it is written elsewhere.
    pub(super) fn item(self) -> Item {
        Item {
            fd_plus_one: self.fd_plus_one().cast_signed(),
            events: self.events(),
            data: self.data(),
            spent: self.interest() == 0,
        }
    }
}

impl List {
    #[inline]
    fn entry(self, place: u32) -> Option<Entry> {
        self.0.entries.get(place as usize).map(Entry)
    }

    /// Slots that have a registration; some of these sockets may be closed.
    #[inline]
    pub(super) fn count(self) -> u32 {
        load(&self.0.count)
    }

    /// Sets that right: who was ended between an entry and its count has left it wrong.
    pub(super) fn count_again(self) {
        let used = attach::region().into_iter().flat_map(Region::slots_used);
        let count = used.filter(|&slot| self.at(slot).is_some()).count();
        store(&self.0.count, count as u32);
    }

    pub(super) fn word_of_exclusive(self) -> &'static AtomicU32 {
        &self.0.exclusive
    }

    /// Kernel descriptors in the epoll, at most.
    pub(super) fn kernel(self) -> u32 {
        load(&self.0.kernel)
    }

    pub(super) fn set_kernel(self, count: u32) {
        self.touch();
        store(&self.0.kernel, count);
    }

    fn touch(self) {
        if load(&self.0.touched) == 0 {
            self.0.touched.store(1, Ordering::Release);
        }
    }

    /// The first registration at a slot, whatever socket it is of.
    #[inline]
    pub(super) fn at(self, slot: u32) -> Option<Entry> {
        self.entry(slot).filter(|first| first.fd_plus_one() != 0)
    }

    /// Whether what stands at its slot is of this socket, and of one that somebody has.
    #[inline]
    pub(super) fn is_of(self, socket: Socket) -> bool {
        self.at(socket.index).is_some_and(|first| first.is_of(socket))
    }

    /// All registrations at a slot.
    pub(super) fn chain(self, slot: u32) -> impl Iterator<Item = Entry> {
        self.chain_from(self.at(slot))
    }

    /// The same, where the first is known.
    #[inline]
    pub(super) fn chain_from(self, first: Option<Entry>) -> impl Iterator<Item = Entry> {
        let mut next = first;
        // Bounded: whatever another process writes, nobody goes round.
        let mut left = INTEREST_COUNT;
        std::iter::from_fn(move || {
            let entry = next?;
            left -= 1;
            next = match load(&entry.0.next).checked_sub(1) {
                Some(place) if left > 0 => self.entry(place),
                _ => None,
            };
            Some(entry)
        })
    }

    /// A descriptor's registration.
    pub(super) fn find(self, socket: Socket, fd: c_int) -> Option<Entry> {
        let fd_plus_one = fd.cast_unsigned() + 1;
        let first = self.at(socket.index).filter(|first| first.is_of(socket))?;
        if first.fd_plus_one() == fd_plus_one {
            return Some(first);
        }
        self.chain_from(Some(first)).find(|entry| entry.fd_plus_one() == fd_plus_one)
    }

    /// Adds one. False: there is no room.
    pub(super) fn add(self, socket: Socket, item: Item) -> bool {
        self.touch();
        let Some(first) = self.entry(socket.index) else { return false };
        if self.at(socket.index).is_some() && !self.is_of(socket) {
            self.drop_slot(socket.index);
        }
        if first.fd_plus_one() == 0 {
            first.write(item, socket);
            store(&first.0.next, 0);
            store(&self.0.count, self.count().wrapping_add(1));
            return true;
        }
        let Some((place, entry)) = self.take_place() else { return false };
        entry.write(item, socket);
        store(&entry.0.next, load(&first.0.next));
        store(&first.0.next, place + 1);
        true
    }

    /// Removes one.
    pub(super) fn remove(self, socket: Socket, fd: c_int) -> Removed {
        let fd_plus_one = fd.cast_unsigned() + 1;
        let Some(first) = self.at(socket.index) else { return Removed::Nothing };
        if first.fd_plus_one() == fd_plus_one {
            let next = load(&first.0.next).checked_sub(1);
            let Some((place, next)) = next.and_then(|place| Some((place, self.entry(place)?))) else {
                store(&first.0.fd_plus_one, 0);
                store(&self.0.count, self.count().saturating_sub(1));
                return Removed::Last;
            };
            first.copy_from(next);
            self.give_place(place, next);
            return Removed::One;
        }
        let mut before = first;
        for entry in self.chain(socket.index).skip(1) {
            if entry.fd_plus_one() == fd_plus_one {
                let place = load(&before.0.next).wrapping_sub(1);
                store(&before.0.next, load(&entry.0.next));
                self.give_place(place, entry);
                return Removed::One;
            }
            before = entry;
        }
        Removed::Nothing
    }

    /// Removes all at a slot.
    pub(super) fn drop_slot(self, slot: u32) {
        let Some(first) = self.at(slot) else { return };
        while let Some((place, next)) =
            load(&first.0.next).checked_sub(1).and_then(|place| Some((place, self.entry(place)?)))
        {
            if next.fd_plus_one() == 0 {
                break; // not ours to follow
            }
            store(&first.0.next, load(&next.0.next));
            self.give_place(place, next);
        }
        store(&first.0.next, 0);
        store(&first.0.fd_plus_one, 0);
        store(&self.0.count, self.count().saturating_sub(1));
    }

    fn take_place(self) -> Option<(u32, Entry)> {
        if let Some(place) = load(&self.0.spare).checked_sub(1) {
            let entry = self.entry(place).filter(|entry| entry.fd_plus_one() == 0)?;
            store(&self.0.spare, load(&entry.0.next));
            return Some((place, entry));
        }
        let used = load(&self.0.extras);
        let place = (SLOT_COUNT as u32).checked_add(used)?;
        let entry = self.entry(place)?;
        store(&self.0.extras, used + 1);
        Some((place, entry))
    }

    fn give_place(self, place: u32, entry: Entry) {
        store(&entry.0.fd_plus_one, 0);
        store(&entry.0.next, load(&self.0.spare));
        store(&self.0.spare, place + 1);
    }

    /// Calls `visit` for each socket in it.
    pub(super) fn each_socket(self, mut visit: impl FnMut(Socket)) {
        let mut left = self.count();
        for slot in attach::region().into_iter().flat_map(Region::slots_used) {
            if left == 0 {
                break;
            }
            if self.at(slot).is_some() {
                left -= 1;
                if let Some(socket) = Socket::at(slot).filter(|socket| self.is_of(*socket)) {
                    visit(socket);
                }
            }
        }
    }
}
