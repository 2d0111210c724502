//! epoll: the program's descriptor stays the kernel's and carries the kernel's descriptors; ours stand beside it.
//!
//! Per epoll descriptor (and process) there is a table of our sockets by slot, and a poll set whose ready bits say where to
//! look (see [`ready`]).
//!
//! - A thread that sleeps sleeps in `ppoll` on both the kernel's descriptor and the set's pipe.
//! - Another thread that adds something ready wakes it through an eventfd inside the kernel's epoll, whose events
//!   (by their `data`) never reach the program.
//! - After a fork the child gets a set of its own for its copy of the table: registrations made later are not
//!   shared between the two, unlike Linux's.
//! - A new program image has what [`handover`] tells it.
//! - A socket that is added before it is known whose it is (`socket`, `epoll_ctl`, `connect`) is the kernel's at
//!   first, and moves over when it becomes ours.

mod control;
mod handover;
mod nested;
mod ready;
mod waiting;

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT,
    epoll_event,
};
use scoutline_abi::layout::{SLOT_COUNT, slot_state};

pub(crate) use control::control;
pub(crate) use handover::{hand_over, is_one, named, take_over};
pub(crate) use waiting::{Answer, await_events};

use nested::{Mark, Nested};

use crate::lock::Lock;
use crate::serve::{self, Hold};
use crate::slot::{Socket, kept};
use crate::table::Entry as Fd;
use crate::wait::{self, Set};
use crate::{attach, own, real, table};

/// Epoll descriptors that can carry our sockets.
const EPOLL_COUNT: usize = 1024;
/// The kernel's part is looked at this often while ours has events.
const KERNEL_LOOK_NS: u64 = 50_000;
const ALWAYS: u32 = (EPOLLERR | EPOLLHUP) as u32;
const EDGE: u32 = EPOLLET as u32;
const ONCE: u32 = EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = EPOLLEXCLUSIVE as u32;

static EPOLLS: [Lock<Epoll>; EPOLL_COUNT] = [const { Lock::new(Epoll::NEW) }; EPOLL_COUNT];
/// One past the highest number in use ever.
static USED: AtomicU32 = AtomicU32::new(0);
/// How many entries each slot has in all tables of this process.
static WATCHED: [AtomicU16; SLOT_COUNT] = [const { AtomicU16::new(0) }; SLOT_COUNT];

/// One descriptor in an epoll.
#[derive(Clone, Copy)]
struct Item {
    /// The descriptor plus one; 0: none.
    fd_plus_one: c_int,
    events: u32,
    data: u64,
    /// One-shot, and shot.
    spent: bool,
}

/// Whether EPOLLEXCLUSIVE holds for the listening sockets in an epoll. The set says so for all of them, and so of an epoll
/// that has listening sockets of both kinds all who wait are woken, always.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exclusive {
    /// Nothing was added with it.
    Unused,
    Used,
    /// A listening socket was added without it.
    Mixed,
}

struct Epoll {
    /// Descriptors of this process that name it; 0: free.
    fds: u32,
    set: Option<Set>,
    /// [`attach::generation`] of `set`.
    generation: u32,
    /// A table by slot (address space only until touched).
    items: *mut Item,
    count: u32,
    /// Further descriptors of the same slots (`dup`).
    extra: Vec<(u32, Item)>,
    /// Kernel sockets that may become ours: their registrations.
    candidates: Vec<Item>,
    /// Epolls within this one.
    nested: Vec<Nested>,
    /// Epolls that this one is in.
    parents: Vec<u32>,
    exclusive: Exclusive,
    /// Kernel descriptors, at most (closing removes them unseen).
    kernel: u32,
    rotate: u32,
    hold: Hold,
    /// The most important event that `collect` gave last.
    given: u32,
    kernel_seen_ns: u64,
    /// Threads asleep in it.
    waiters: u32,
    /// Those of them in the kernel's `epoll_wait`, deaf to the set's pipe.
    in_kernel: u32,
    kick: Option<c_int>,
    dead_told: bool,
}

// SAFETY: the raw pointer is to a mapping that this object owns.
unsafe impl Send for Epoll {}

impl Epoll {
    const NEW: Epoll = Epoll {
        fds: 0,
        set: None,
        generation: 0,
        items: ptr::null_mut(),
        count: 0,
        extra: Vec::new(),
        candidates: Vec::new(),
        nested: Vec::new(),
        parents: Vec::new(),
        exclusive: Exclusive::Unused,
        kernel: 0,
        rotate: 0,
        hold: Hold::NONE,
        given: 0,
        kernel_seen_ns: 0,
        waiters: 0,
        in_kernel: 0,
        kick: None,
        dead_told: false,
    };

    /// True when the kernel alone cannot answer.
    fn is_ours(&self) -> bool {
        self.count > 0 || !self.nested.is_empty()
    }

    fn item(&mut self, slot: u32) -> Option<&mut Item> {
        if self.items.is_null() || slot as usize >= SLOT_COUNT {
            return None;
        }
        // SAFETY: the mapping has SLOT_COUNT items, zeros are valid ones, and `&mut self` makes access unique.
        Some(unsafe { &mut *self.items.add(slot as usize) })
    }

    fn make_table(&mut self) -> bool {
        if self.items.is_null() {
            // SAFETY: a fresh anonymous mapping.
            let memory = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    SLOT_COUNT * size_of::<Item>(),
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if memory == libc::MAP_FAILED {
                return false;
            }
            self.items = memory.cast();
        }
        true
    }

    /// Calls `visit` for each slot in the table.
    fn each_slot(&mut self, mut visit: impl FnMut(Socket)) {
        let mut left = self.count;
        for slot in 0..SLOT_COUNT as u32 {
            if left == 0 {
                break;
            }
            if self.item(slot).is_some_and(|item| item.fd_plus_one != 0) {
                left -= 1;
                if let Some(socket) = Socket::at(slot) {
                    visit(socket);
                }
            }
        }
    }

    /// The set of this process, with every slot of the table in it.
    fn ready_set(&mut self) -> Option<Set> {
        let generation = attach::generation();
        if let Some(set) = self.set
            && self.generation == generation
        {
            return Some(set);
        }
        let set = wait::new_set(true)?;
        self.set = Some(set);
        self.generation = generation;
        self.tell_exclusive();
        self.each_slot(|socket| {
            wait::watch(socket, set.number);
            socket.region.ready(set.shared).set(socket.index as usize);
        });
        for nested in &self.nested {
            each_socket(nested.inner, &mut |socket| wait::watch(socket, set.number));
        }
        Some(set)
    }

    /// The engine hears whether one of those who wait is enough.
    fn tell_exclusive(&self) {
        if let Some(set) = self.set {
            set.shared.one_takes.store(u32::from(self.exclusive == Exclusive::Used), Ordering::Release);
        }
    }

    /// Something is added with these events.
    fn note_exclusive(&mut self, socket: Socket, events: u32) {
        if events & EXCLUSIVE != 0 && self.exclusive == Exclusive::Unused {
            self.exclusive = Exclusive::Used;
        } else if events & EXCLUSIVE == 0 && may_listen(socket) {
            self.exclusive = Exclusive::Mixed;
        } else {
            return;
        }
        self.tell_exclusive();
    }

    /// Finds a descriptor's registration for a slot.
    fn find(&mut self, slot: u32, fd: c_int) -> Option<&mut Item> {
        if self.item(slot).is_some_and(|item| item.fd_plus_one == fd + 1) {
            return self.item(slot);
        }
        self.extra.iter_mut().find(|(s, item)| *s == slot && item.fd_plus_one == fd + 1).map(|(_, item)| item)
    }

    fn insert(&mut self, socket: Socket, item: Item) -> bool {
        if !self.make_table() {
            return false;
        }
        let Some(set) = self.ready_set() else { return false };
        // Before it is watched: no connection may wake too many.
        self.note_exclusive(socket, item.events);
        let Some(place) = self.item(socket.index) else { return false };
        if place.fd_plus_one == 0 {
            *place = item;
            self.count += 1;
        } else {
            self.extra.push((socket.index, item));
        }
        WATCHED[socket.index as usize].fetch_add(1, Ordering::Relaxed);
        wait::watch(socket, set.number);
        socket.region.ready(set.shared).set(socket.index as usize);
        true
    }

    fn remove(&mut self, socket: Socket, fd: c_int) -> bool {
        let slot = socket.index;
        if self.item(slot).is_some_and(|item| item.fd_plus_one == fd + 1) {
            let next = self.extra.iter().position(|(s, _)| *s == slot).map(|at| self.extra.swap_remove(at).1);
            let Some(place) = self.item(slot) else { return false };
            if let Some(next) = next {
                *place = next;
            } else {
                place.fd_plus_one = 0;
                self.count -= 1;
                if let Some(set) = self.set {
                    wait::unwatch(socket, set);
                }
            }
        } else if let Some(at) = self.extra.iter().position(|(s, i)| *s == slot && i.fd_plus_one == fd + 1) {
            self.extra.swap_remove(at);
        } else {
            return false;
        }
        WATCHED[slot as usize].fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// The calling thread goes on with `n` events.
    fn go_on(&mut self, n: usize) {
        serve::serve(if n > 0 { self.given } else { 0 });
    }

    /// Wakes the threads that sleep in it: something was added.
    fn kick(&mut self, epfd: c_int) {
        if self.waiters == 0 {
            return;
        }
        if self.kick.is_none() {
            // SAFETY: plain system call.
            let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if fd < 0 {
                return;
            }
            let fd = own::protect(fd);
            let mut event = epoll_event { events: EPOLLIN as u32, u64: nested::WAKE_UP };
            real::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &raw mut event);
            self.kick = Some(fd);
        }
        if let Some(fd) = self.kick {
            let one = 1u64;
            real::uncancelled(|| real::write(fd, (&raw const one).cast(), 8));
        }
    }

    /// Who leaves with `n` of at most `most` events wakes the next sleeper for the rest, unless the set's pipe does.
    fn pass_on(&mut self, epfd: c_int, n: usize, most: usize) {
        let told = self.set.is_some_and(|set| set.shared.signalled.load(Ordering::SeqCst) != 0);
        if (n == most || n == serve::BATCH) && self.waiters > 0 && !told && self.has_more() {
            self.kick(epfd);
        }
    }

    /// Takes our own wake-up out of what the kernel gave, and reads what it says of epolls within. The wake-up stays until
    /// no thread is in the kernel's `epoll_wait`.
    fn strip(&mut self, events: &mut [epoll_event], n: usize) -> usize {
        let mut kept = 0;
        for i in 0..n {
            let told = match nested::mark_of(events[i].u64) {
                None => Some(events[i]),
                Some(Mark::Nested(id)) => self.told_by_kernel(id, events[i]),
                Some(Mark::WakeUp) => {
                    if let Some(fd) = self.kick.filter(|_| self.in_kernel == 0) {
                        let mut count = 0u64;
                        real::uncancelled(|| real::read(fd, (&raw mut count).cast(), 8));
                    }
                    None
                }
            };
            if let Some(event) = told {
                events[kept] = event;
                kept += 1;
            }
        }
        kept
    }

    fn look_at_kernel(&mut self, epfd: c_int, out: &mut [epoll_event], now: u64) -> usize {
        self.kernel_seen_ns = now;
        if out.is_empty() {
            return 0;
        }
        // The caller holds our lock.
        let n = real::uncancelled(|| real::epoll_wait(epfd, out.as_mut_ptr(), out.len() as c_int, 0));
        self.strip(out, n.max(0) as usize)
    }

    fn free(&mut self) {
        let set = self.set.take().filter(|_| self.generation == attach::generation());
        self.each_slot(|socket| {
            WATCHED[socket.index as usize].fetch_sub(1, Ordering::Relaxed);
            if let Some(set) = set {
                wait::unwatch(socket, set);
            }
        });
        for (slot, _) in &self.extra {
            WATCHED[*slot as usize].fetch_sub(1, Ordering::Relaxed);
        }
        if !self.items.is_null() {
            // SAFETY: our mapping of this length, used by nobody any more.
            unsafe { libc::munmap(self.items.cast(), SLOT_COUNT * size_of::<Item>()) };
        }
        if let Some(fd) = self.kick {
            own::discard(fd);
        }
        if let Some(set) = set {
            wait::give_back(set);
        }
        *self = Epoll::NEW;
    }
}

/// A new epoll descriptor of the program.
pub(crate) fn created(epfd: c_int) -> Option<u32> {
    attach::region()?;
    if !table::covers(epfd) {
        return None;
    }
    for number in 0..EPOLL_COUNT as u32 {
        let mut epoll = EPOLLS[number as usize].lock();
        if epoll.fds == 0 {
            epoll.fds = 1;
            USED.fetch_max(number + 1, Ordering::AcqRel);
            drop(epoll);
            table::put(epfd, Fd::Epoll(number));
            return Some(number);
        }
    }
    None
}

/// A further descriptor names it.
pub(crate) fn duplicated(number: u32) {
    EPOLLS[number as usize].lock().fds += 1;
}

/// A descriptor of it is gone.
pub(crate) fn closed(number: u32) {
    let mut epoll = EPOLLS[number as usize].lock();
    epoll.fds = epoll.fds.saturating_sub(1);
    if epoll.fds > 0 {
        return;
    }
    let parents = std::mem::take(&mut epoll.parents);
    let inner: Vec<u32> = epoll.nested.iter().map(|nested| nested.inner).collect();
    epoll.free();
    drop(epoll);
    for parent in parents {
        EPOLLS[parent as usize].lock().nested.retain(|nested| nested.inner != number);
    }
    for inner in inner {
        EPOLLS[inner as usize].lock().parents.retain(|parent| *parent != number);
    }
}

/// The last descriptor of a socket in this process is gone.
pub(crate) fn forget(socket: Socket) {
    if WATCHED[socket.index as usize].load(Ordering::Relaxed) == 0 {
        return;
    }
    for lock in &EPOLLS[..USED.load(Ordering::Acquire) as usize] {
        let mut epoll = lock.lock();
        while let Some(fd_plus_one) =
            epoll.item(socket.index).map(|item| item.fd_plus_one).filter(|fd| *fd != 0)
        {
            epoll.remove(socket, fd_plus_one - 1);
        }
    }
}

/// A candidate became ours: what the kernel's epolls knew of it moves over.
pub(crate) fn adopt(fd: c_int, socket: Socket) {
    for number in 0..USED.load(Ordering::Acquire) {
        let mut epoll = EPOLLS[number as usize].lock();
        let Some(at) = epoll.candidates.iter().position(|item| item.fd_plus_one == fd + 1) else { continue };
        let item = epoll.candidates.swap_remove(at);
        let Some(epfd) = descriptor_of(number) else { continue };
        real::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, ptr::null_mut());
        epoll.kernel = epoll.kernel.saturating_sub(1);
        epoll.insert(socket, item);
        epoll.kick(epfd);
        drop(epoll);
        watch_above(number, socket);
    }
}

/// A descriptor of an epoll.
fn descriptor_of(number: u32) -> Option<c_int> {
    (0..=table::highest()).find(|&fd| table::look(fd) == Fd::Epoll(number))
}

/// A socket goes on in another slot: its registrations go along.
pub(crate) fn renewed(old: Socket, new: Socket) {
    if WATCHED[old.index as usize].load(Ordering::Relaxed) == 0 {
        return;
    }
    for number in 0..USED.load(Ordering::Acquire) {
        let mut epoll = EPOLLS[number as usize].lock();
        let mut moved = false;
        while let Some(item) = epoll.item(old.index).copied().filter(|item| item.fd_plus_one != 0) {
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

/// A pipe of ours was moved.
pub(crate) fn relocated(from: c_int, to: c_int) {
    for lock in &EPOLLS[..USED.load(Ordering::Acquire) as usize] {
        let mut epoll = lock.lock();
        if let Some(set) = &mut epoll.set
            && set.pipe == from
        {
            set.pipe = to;
        }
        if epoll.kick == Some(from) {
            epoll.kick = Some(to);
        }
    }
}

/// The sets and eventfds are the parent's; threads in the middle of something are not here.
pub(crate) fn in_child() {
    for lock in &EPOLLS[..USED.load(Ordering::Acquire) as usize] {
        lock.give_back();
        let mut epoll = lock.lock();
        epoll.set = None;
        epoll.kick = None;
        epoll.waiters = 0;
        epoll.in_kernel = 0;
    }
}

/// The epolls around `number` want to hear of this socket too.
fn watch_above(number: u32, socket: Socket) {
    let parents = EPOLLS[number as usize].lock().parents.clone();
    for parent in parents {
        if let Some(set) = EPOLLS[parent as usize].lock().ready_set() {
            wait::watch(socket, set.number);
        }
        watch_above(parent, socket);
    }
}

/// All sockets of an epoll, and of those within it.
pub(crate) fn each_socket(number: u32, visit: &mut dyn FnMut(Socket)) {
    let inner: Vec<u32> = {
        let mut epoll = EPOLLS[number as usize].lock();
        epoll.each_slot(&mut *visit);
        epoll.nested.iter().map(|nested| nested.inner).collect()
    };
    for inner in inner {
        each_socket(inner, visit);
    }
}

/// True when the kernel alone cannot say whether the epoll is readable.
pub(crate) fn is_ours(number: u32) -> bool {
    EPOLLS[number as usize].lock().is_ours()
}

/// True when one of our sockets in it is ready.
pub(crate) fn peek(number: u32) -> bool {
    EPOLLS[number as usize].lock().peek()
}

/// A stream that listens, or may come to: one that is neither connected nor about to be.
fn may_listen(socket: Socket) -> bool {
    socket.is_stream()
        && socket.state() & (slot_state::CONNECTED | slot_state::FAILED) == 0
        && socket.slot.kept_options.load(Ordering::Acquire) & kept::CONNECT_PENDING == 0
}
