//! Epolls within an epoll.
//!
//! The inner one stands in the kernel's outer one too, for what it has of the kernel's. An event of the kernel's about it
//! and one of ours are about one registration, so the kernel's carries a mark instead of the program's data: by it we know
//! what we have told already. What is told follows the kernel's (`fs/eventpoll.c`, `ep_poll_callback` and `ep_send_events`):
//!
//! ```text
//! level      at each look, while the inner one has something
//! edge       once for all that came to the inner one since the last look, if it has something then
//! one-shot   once, whoever tells it, until the registration is changed
//! ```
//! Marks are the same numbers in all images and processes, since the kernel's epoll may be shared among them.
//!
//! Left out: a socket that stands in both, level-triggered in the outer one, has an edge-triggered inner one told at each look.
//! Who has such an outer one without this library's knowing (by SCM_RIGHTS, in a static program) finds marks as data.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN, EPOLLRDNORM, epoll_event};

use super::sharing::{Entered, lock};
use super::{EDGE, Epoll, Item, ONCE, descriptor_of, each_socket};
use crate::table::{self, Entry as Fd};
use crate::{attach, real, wait};

/// Upper half of `data` in the kernel's epolls where it is ours. No address, and hardly a program's number.
const MARK: u64 = 0xd3a6_5c19 << 32;
/// What an epoll has for one that it is in.
const READABLE: u32 = (EPOLLIN | EPOLLRDNORM) as u32;

/// `data` of the eventfd that wakes sleepers.
pub(super) const WAKE_UP: u64 = MARK;

/// An event that is ours to read.
pub(super) enum Mark {
    /// Of the eventfd that wakes sleepers.
    WakeUp,
    /// Of an epoll within, by the number of its registration.
    Nested(u32),
}

/// What an event of the kernel's says to us; `None`: it is the program's.
pub(super) fn mark_of(data: u64) -> Option<Mark> {
    match (data & !0xffff_ffff == MARK, data as u32) {
        (false, _) => None,
        (true, 0) => Some(Mark::WakeUp),
        (true, id) => Some(Mark::Nested(id)),
    }
}

/// A registration of an epoll in another one.
pub(super) struct Nested {
    /// The number of the inner one.
    pub(super) inner: u32,
    pub(super) item: Item,
    /// What its mark says.
    pub(super) id: u32,
    /// Something came to it since it was looked at last.
    came: bool,
    /// Told in this look, by the kernel.
    told: bool,
}

impl Nested {
    pub(super) fn new(inner: u32, item: Item, id: u32) -> Nested {
        // As the kernel has it, what is there when it is added or changed has come.
        Nested { inner, item, id, came: true, told: false }
    }

    fn is_named(&self, inner: u32, fd: c_int) -> bool {
        self.inner == inner && self.item.fd_plus_one == fd + 1
    }

    /// A number for a registration that none of these has. It holds the process's own, which others do not give.
    fn fresh_id(known: &[Nested]) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            // SAFETY: no arguments.
            let process = unsafe { libc::getpid() }.cast_unsigned() << 10;
            let id = process | NEXT.fetch_add(1, Ordering::Relaxed) & 0x3ff;
            if id != 0 && known.iter().all(|other| other.id != id) {
                return id;
            }
        }
    }

    /// Whether our sockets make it ready; `seen`: something for it waits to be looked at.
    fn is_ready(&self, seen: bool) -> bool {
        !self.item.spent
            && self.item.events & READABLE != 0
            && (self.item.events & EDGE == 0 || self.came || seen)
            && lock(self.inner).peek()
    }
}

/// Whether a socket is in an epoll, or in one within it. For who may hold the locks of those above it.
fn contains(number: u32, slot: u32) -> bool {
    let epoll = lock(number);
    epoll.list.is_some_and(|list| list.at(slot).is_some())
        || epoll.nested.iter().any(|nested| contains(nested.inner, slot))
}

/// Something came to a socket: to the epolls with it among these, too.
pub(super) fn note(nested: &mut [Nested], slot: u32) {
    for nested in nested.iter_mut().filter(|nested| !nested.came) {
        nested.came = contains(nested.inner, slot);
    }
}

impl Epoll {
    /// A look begins.
    pub(super) fn forget_told(&mut self) {
        for nested in &mut self.nested {
            nested.told = false;
        }
    }

    /// The kernel tells of an epoll within: the program's event, if it is to have it.
    pub(super) fn told_by_kernel(&mut self, id: u32, event: epoll_event) -> Option<epoll_event> {
        let nested = self.nested.iter_mut().find(|nested| nested.id == id && !nested.item.spent)?;
        nested.told = true;
        nested.came = false;
        nested.item.spent = nested.item.events & ONCE != 0;
        Some(epoll_event { events: event.events, u64: nested.item.data })
    }

    /// Events of epolls within this one that our sockets make ready.
    pub(super) fn take_nested(&mut self, out: &mut [epoll_event]) -> usize {
        let mut n = 0;
        for nested in &mut self.nested {
            if n == out.len() {
                break;
            }
            let is_ready = !nested.told && nested.is_ready(false);
            nested.came = false;
            if is_ready {
                out[n] = epoll_event { events: READABLE & nested.item.events, u64: nested.item.data };
                n += 1;
                nested.item.spent = nested.item.events & ONCE != 0;
            }
        }
        n
    }

    /// Whether one of those within is ready; takes nothing.
    pub(super) fn peek_nested(&mut self) -> bool {
        let bits = self.set.zip(attach::region()).map(|(set, region)| region.ready(set.shared));
        self.nested.iter().any(|nested| {
            let mut seen = false;
            if nested.item.events & EDGE != 0
                && !nested.came
                && let Some(bits) = bits
            {
                bits.visit(0, |slot| {
                    seen = contains(nested.inner, slot as u32);
                    !seen
                });
            }
            nested.is_ready(seen)
        })
    }

    /// The event by which the kernel is told of an epoll within, and the number of the registration.
    pub(super) fn marked(&self, inner: u32, fd: c_int, events: u32) -> (epoll_event, u32) {
        let known = self.nested.iter().find(|nested| nested.is_named(inner, fd));
        let id = known.map_or_else(|| Nested::fresh_id(&self.nested), |nested| nested.id);
        (epoll_event { events, u64: MARK | u64::from(id) }, id)
    }
}

/// An epoll is in another one from now on with this registration, or no more.
pub(super) fn nest(
    mut epoll: Entered,
    (epfd, number): (c_int, u32),
    (fd, inner): (c_int, u32),
    new: Option<Nested>,
) {
    epoll.nested.retain(|nested| !nested.is_named(inner, fd));
    if let Some(new) = new {
        epoll.nested.push(new);
        epoll.kick(epfd);
    }
    let is_within = epoll.nested.iter().any(|nested| nested.inner == inner);
    let set = if is_within { epoll.ready_set() } else { None };
    drop(epoll);
    let mut within = lock(inner);
    within.parents.retain(|parent| *parent != number);
    if set.is_some() {
        within.parents.push(number);
    }
    drop(within);
    if let Some(set) = set {
        each_socket(inner, &mut |socket| wait::watch(socket, set.number));
    }
}

/// In a new program image: an epoll is in another one as before, if the kernel says so, too. It has no circles.
pub(super) fn renest(outer: u32, new: Nested) {
    let (fd, inner) = (new.item.fd_plus_one - 1, new.inner);
    let Some(epfd) = descriptor_of(outer).filter(|_| table::look(fd) == Fd::Epoll(inner)) else { return };
    let mut none = epoll_event { events: 0, u64: 0 };
    if real::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &raw mut none) == 0 {
        real::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, &raw mut none);
    } else if real::errno() == libc::EEXIST {
        nest(lock(outer), (epfd, outer), (fd, inner), Some(new));
    }
}
