//! Registrations of sockets that change hands: from the kernel to paths, back, and from one slot to another.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::{fs, ptr};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, epoll_event};

use super::sharing::lock;
use super::{EDGE, EPOLLS, EXCLUSIVE, Item, ONCE, USED, descriptor_of, interests, watch_above};
use crate::slot::Socket;
use crate::{cancel, real, table};

/// A candidate became ours: what the kernel's epolls knew of it moves over.
pub(crate) fn adopt(fd: c_int, socket: Socket) {
    for number in 0..USED.load(Ordering::Acquire) {
        let mut epoll = lock(number);
        let Some(at) = epoll.candidates.iter().position(|item| item.fd_plus_one == fd + 1) else { continue };
        let mut item = epoll.candidates.swap_remove(at);
        let Some(epfd) = descriptor_of(number) else { continue };
        item.spent = item.events & ONCE != 0 && is_spent(epfd, fd);
        real::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, ptr::null_mut());
        epoll.note_kernel(EPOLL_CTL_DEL);
        epoll.insert(socket, item);
        epoll.kick(epfd);
        drop(epoll);
        watch_above(number, socket);
    }
}

/// Whether the kernel has told the one event of this registration: what is left of its events is how it is to be told
/// (`EP_PRIVATE_BITS`).
fn is_spent(epfd: c_int, fd: c_int) -> bool {
    let told =
        cancel::uncancelled(|| fs::read_to_string(format!("/proc/self/fdinfo/{epfd}"))).unwrap_or_default();
    let events = told.lines().find_map(|line| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        (words.next()?.parse() == Ok(fd)).then(|| words.nth(1))?
    });
    let how = EDGE | ONCE | EXCLUSIVE | libc::EPOLLWAKEUP as u32;
    events.is_some_and(|events| u32::from_str_radix(events, 16).is_ok_and(|events| events & !how == 0))
}

/// A descriptor goes back to the kernel's socket: what our epolls knew of it moves to the kernel's.
pub(crate) fn go_back(fd: c_int, socket: Socket) {
    for number in 0..USED.load(Ordering::Acquire) {
        let mut epoll = lock(number);
        let Some(entry) = epoll.list.and_then(|list| list.find(socket, fd)) else { continue };
        let item = entry.item();
        epoll.remove(socket, fd);
        let Some(epfd) = descriptor_of(number) else { continue };
        let mut event = epoll_event { events: item.events, u64: item.data };
        if real::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &raw mut event) == 0 {
            epoll.note_kernel(EPOLL_CTL_ADD);
            epoll.candidates.push(Item { spent: false, ..item });
            table::watch(fd);
        }
    }
}

/// A socket goes on in another slot: its registrations go along.
pub(crate) fn renewed(old: Socket, new: Socket) {
    for number in 0..USED.load(Ordering::Acquire) {
        let mut epoll = lock(number);
        let Some(list) = epoll.list.filter(|list| list.is_of(old)) else { continue };
        let items: Vec<Item> = list.chain(old.index).map(interests::Entry::item).collect();
        let mut moved = false;
        for item in items {
            epoll.remove(old, item.fd_plus_one - 1);
            moved |= epoll.insert(new, item);
        }
        if !moved {
            continue;
        }
        if let Some(epfd) = descriptor_of(number) {
            epoll.kick(epfd);
        }
        drop(epoll);
        watch_above(number, new);
    }
}

/// A candidate was closed or stays the kernel's.
pub(crate) fn drop_candidate(fd: c_int) {
    for lock in &EPOLLS[..USED.load(Ordering::Acquire) as usize] {
        lock.lock().candidates.retain(|item| item.fd_plus_one != fd + 1);
    }
}
