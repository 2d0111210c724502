//! Epolls that go on in a new program image (see [`crate::exec`]): each as words in the handoff.
//!
//! ```text
//! epoll     kernel descriptors in it, items that follow
//! item      SOCKET, its slot | CANDIDATE, 0 | NESTED, its place among the epolls; descriptor plus one, events, data (2), flags
//! ```

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{EPOLLS, Item, control, created, duplicated, kick_mark, watch_above};
use crate::slot::Socket;
use crate::table::{self, Entry as Fd};

const SOCKET: u32 = 0;
const CANDIDATE: u32 = 1;
const NESTED: u32 = 2;
/// Words of an item.
const ITEM: usize = 7;
/// Flags.
const SPENT: u32 = 1;
const WAS_READY: u32 = 2;

/// `data` of the eventfd of who handed over, who may have it in the kernel's epoll still; 0: nobody.
static FOREIGN_MARK: AtomicU64 = AtomicU64::new(0);

/// True for an event that wakes threads of ours, here or where this image comes from.
pub(super) fn is_mark(data: u64) -> bool {
    let foreign = FOREIGN_MARK.load(Ordering::Relaxed);
    data == kick_mark() || foreign != 0 && data == foreign
}

/// For the handoff: the mark of this image's wake-ups.
pub(crate) fn marks() -> [u32; 2] {
    let mark = kick_mark();
    [mark as u32, (mark >> 32) as u32]
}

/// Wake-ups of the image before this one are not events.
pub(crate) fn strip_marks([low, high]: [u32; 2]) {
    FOREIGN_MARK.store(u64::from(low) | u64::from(high) << 32, Ordering::Relaxed);
}

/// Writes what is in an epoll: sockets of which `goes_on` says so, and the epolls in it that stand in `epolls`.
pub(crate) fn hand_over(number: u32, goes_on: impl Fn(u32) -> bool, epolls: &[u32], words: &mut Vec<u32>) {
    let mut epoll = EPOLLS[number as usize].lock();
    let head = words.len();
    words.extend([epoll.kernel, 0]);
    let mut put = |kind, which, item: &Item| {
        let flag = |on, bit| if on { bit } else { 0 };
        let flags = flag(item.spent, SPENT) | flag(item.was_ready, WAS_READY);
        let (fd, data) = (item.fd_plus_one.cast_unsigned(), item.data);
        words.extend([kind, which, fd, item.events, data as u32, (data >> 32) as u32, flags]);
    };
    let mut slots = Vec::new();
    epoll.each_slot(|socket| slots.push(socket.index));
    for slot in slots.into_iter().filter(|&slot| goes_on(slot)) {
        if let Some(item) = epoll.item(slot) {
            put(SOCKET, slot, item);
        }
    }
    for (slot, item) in epoll.extra.iter().filter(|(slot, _)| goes_on(*slot)) {
        put(SOCKET, *slot, item);
    }
    for item in &epoll.candidates {
        put(CANDIDATE, 0, item);
    }
    for (inner, item) in &epoll.nested {
        if let Some(place) = epolls.iter().position(|other| other == inner) {
            put(NESTED, place as u32, item);
        }
    }
    words[head + 1] = ((words.len() - head - 2) / ITEM) as u32;
}

/// In the new image: a descriptor names an epoll, which has this number if another one has named it already.
pub(crate) fn named(fd: c_int, number: Option<u32>) -> Option<u32> {
    let Some(number) = number else { return created(fd) };
    if table::covers(fd) {
        duplicated(number);
        table::put(fd, Fd::Epoll(number));
    }
    Some(number)
}

/// In the new image: fills the epolls that descriptors name with what was written of each.
pub(crate) fn take_over(numbers: &[Option<u32>], mut words: &[u32]) {
    let mut nested = Vec::new();
    for &number in numbers {
        let Some(([kernel, count], rest)) = words.split_first_chunk() else { return };
        let (items, rest) = rest.split_at((*count as usize).saturating_mul(ITEM).min(rest.len()));
        words = rest;
        let Some(number) = number else { continue };
        EPOLLS[number as usize].lock().kernel = *kernel;
        for item in items.chunks_exact(ITEM) {
            let [kind, which, fd, events, low, high, flags] = [0, 1, 2, 3, 4, 5, 6].map(|at| item[at]);
            let item = Item {
                fd_plus_one: fd.cast_signed(),
                events,
                data: u64::from(low) | u64::from(high) << 32,
                spent: flags & SPENT != 0,
                was_ready: flags & WAS_READY != 0,
            };
            match kind {
                SOCKET => put_socket(number, which, item),
                CANDIDATE => put_candidate(number, item),
                NESTED => nested.push((number, which as usize, item)),
                _ => {}
            }
        }
    }
    for (outer, place, item) in nested {
        if let Some(inner) = numbers.get(place).copied().flatten() {
            control::renest(outer, inner, item);
        }
    }
}

fn put_socket(number: u32, slot: u32, item: Item) {
    // Only what this image holds.
    let Some(socket) = Socket::at(slot).filter(|socket| socket.is_held_here()) else { return };
    EPOLLS[number as usize].lock().insert(socket, item);
    watch_above(number, socket);
}

fn put_candidate(number: u32, item: Item) {
    let fd = item.fd_plus_one - 1;
    if matches!(table::look(fd), Fd::Candidate { .. }) {
        EPOLLS[number as usize].lock().candidates.push(item);
        table::put(fd, Fd::Candidate { watched: true });
    }
}
