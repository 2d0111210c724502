//! Epolls that go on in a new program image (see [`crate::exec`]): each as words in the handoff.
//!
//! ```text
//! epoll     kernel descriptors in it, items that follow
//! item      SOCKET, its slot | CANDIDATE, 0 | NESTED, its place among the epolls;
//!           descriptor plus one, events, data (2), SPENT or 0, what its mark says
//! ```
//! What is read is a stranger's word ([`crate::exec`]): an item counts if it is about what this image has.

use std::ffi::c_int;

use super::nested::{Nested, renest};
use super::sharing::lock;
use super::{Item, control, created, duplicated, watch_above};
use crate::attach;
use crate::slot::Socket;
use crate::table::{self, Entry as Fd};

const SOCKET: u32 = 0;
const CANDIDATE: u32 = 1;
const NESTED: u32 = 2;
/// Words of an item.
const ITEM: usize = 8;
/// A flag.
const SPENT: u32 = 1;

/// Writes what is in an epoll: sockets of which `goes_on` says so, and the epolls in it that stand in `epolls`.
pub(crate) fn hand_over(number: u32, goes_on: impl Fn(u32) -> bool, epolls: &[u32], words: &mut Vec<u32>) {
    let epoll = lock(number);
    let head = words.len();
    words.extend([epoll.kernel(), 0]);
    let mut put = |kind, which, item: &Item, id| {
        let flags = if item.spent { SPENT } else { 0 };
        let (fd, data) = (item.fd_plus_one.cast_unsigned(), item.data);
        words.extend([kind, which, fd, item.events, data as u32, (data >> 32) as u32, flags, id]);
    };
    let mut slots = Vec::new();
    epoll.each_slot(|socket| slots.push(socket.index));
    for slot in slots.into_iter().filter(|&slot| goes_on(slot)) {
        for entry in epoll.list.iter().flat_map(|list| list.chain(slot)) {
            put(SOCKET, slot, &entry.item(), 0);
        }
    }
    for item in &epoll.candidates {
        put(CANDIDATE, 0, item, 0);
    }
    for nested in &epoll.nested {
        if let Some(place) = epolls.iter().position(|other| *other == nested.inner) {
            put(NESTED, place as u32, &nested.item, nested.id);
        }
    }
    words[head + 1] = ((words.len() - head - 2) / ITEM) as u32;
}

/// Whether this descriptor is an epoll's.
pub(crate) fn is_one(fd: c_int) -> bool {
    control::look_at(fd, attach::connection()).is_ok()
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
        lock(number).set_kernel((*kernel).min(table::LEN as u32));
        for item in items.chunks_exact(ITEM) {
            let [kind, which, fd, events, low, high, flags, id] = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| item[at]);
            if !(1..=table::LEN as u32).contains(&fd) {
                continue;
            }
            let item = Item {
                fd_plus_one: fd.cast_signed(),
                events,
                data: u64::from(low) | u64::from(high) << 32,
                spent: flags & SPENT != 0,
            };
            match kind {
                SOCKET => put_socket(number, which, item),
                CANDIDATE => put_candidate(number, item),
                NESTED if id != 0 => nested.push((number, which as usize, item, id)),
                _ => {}
            }
        }
    }
    for (outer, place, item, id) in nested {
        if let Some(inner) = numbers.get(place).copied().flatten() {
            renest(outer, Nested::new(inner, item, id));
        }
    }
}

fn put_socket(number: u32, slot: u32, item: Item) {
    // Only what this image holds.
    let Some(socket) = Socket::at(slot).filter(|socket| socket.is_held_here()) else { return };
    let mut epoll = lock(number);
    let is_known = epoll.list.is_some_and(|list| list.find(socket, item.fd_plus_one - 1).is_some());
    if is_known || !epoll.insert(socket, item) {
        return;
    }
    drop(epoll);
    watch_above(number, socket);
}

fn put_candidate(number: u32, item: Item) {
    let fd = item.fd_plus_one - 1;
    let mut epoll = lock(number);
    let is_new = epoll.candidates.iter().all(|other| other.fd_plus_one != item.fd_plus_one);
    if is_new && matches!(table::look(fd), Fd::Candidate { .. }) {
        epoll.candidates.push(item);
        table::watch(fd);
    }
}
