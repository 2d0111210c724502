//! epoll: the program's descriptor stays the kernel's and carries the kernel's descriptors; ours stand beside it.
//!
//! Per epoll there is a list of our sockets by slot ([`interests`]), and a poll set whose ready bits say where to look (see
//! [`ready`]). Both lie in the region, and a forked child has the same ones ([`sharing`]).
//!
//! - A thread that sleeps sleeps in `ppoll` on both the kernel's descriptor and the set's pipe.
//! - Another thread that adds something ready wakes it through an eventfd inside the kernel's epoll, whose events
//!   (by their `data`) never reach the program.
//! - A new program image has what [`handover`] tells it.
//! - A socket that is added before it is known whose it is (`socket`, `epoll_ctl`, `connect`) is the kernel's at
//!   first, and moves over when it becomes ours.

mod control;
mod handover;
mod hands;
mod interests;
mod nested;
mod ready;
mod sharing;
mod waiting;

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT,
    epoll_event,
};
use scoutline_abi::layout::slot_state;

pub(crate) use control::control;
pub(crate) use handover::{hand_over, is_one, named, take_over};
pub(crate) use hands::{adopt, drop_candidate, go_back, renewed};
pub(crate) use sharing::{after_fork, before_fork, in_child, keeps};
pub(crate) use waiting::{Answer, await_events};

use interests::{List, Removed};
use nested::{Mark, Nested};
use sharing::{Entered, lock};

use crate::lock::Lock;
use crate::serve::{self, Hold};
use crate::slot::{Socket, kept};
use crate::table::Entry as Fd;
use crate::wait::{self, Set};
use crate::{attach, cancel, limits, own, real, table};

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
mod exclusive {
    /// Nothing was added with it.
    pub(super) const UNUSED: u32 = 0;
    pub(super) const USED: u32 = 1;
    /// A listening socket was added without it.
    pub(super) const MIXED: u32 = 2;
}

struct Epoll {
    /// Descriptors of this process that name it; 0, with no `waiters`: free.
    fds: u32,
    set: Option<Set>,
    /// The list of `set`.
    list: Option<List>,
    /// Kernel sockets that may become ours: their registrations.
    candidates: Vec<Item>,
    /// Epolls within this one.
    nested: Vec<Nested>,
    /// Epolls that this one is in.
    parents: Vec<u32>,
    /// Kernel descriptors, while there is no list to say so.
    kernel: u32,
    rotate: u32,
    hold: Hold,
    /// The most important event that `collect` gave last.
    given: u32,
    kernel_seen_ns: u64,
    /// Threads of this process asleep in it.
    waiters: u32,
    /// Those of them in the kernel's `epoll_wait`, deaf to the set's pipe.
    in_kernel: u32,
    kick: Option<c_int>,
    dead_told: bool,
    /// Other processes had it when it was looked at last, or are about to.
    shared: bool,
}

impl Epoll {
    const NEW: Epoll = Epoll {
        fds: 0,
        set: None,
        list: None,
        candidates: Vec::new(),
        nested: Vec::new(),
        parents: Vec::new(),
        kernel: 0,
        rotate: 0,
        hold: Hold::NONE,
        given: 0,
        kernel_seen_ns: 0,
        waiters: 0,
        in_kernel: 0,
        kick: None,
        dead_told: false,
        shared: false,
    };

    /// True when the kernel alone cannot answer: other processes may add sockets at any time.
    fn is_ours(&self) -> bool {
        self.shared || self.count() > 0 || !self.nested.is_empty()
    }

    /// Slots in the list.
    fn count(&self) -> u32 {
        self.list.map_or(0, List::count)
    }

    /// Kernel descriptors in it, at most (closing removes them unseen).
    fn kernel(&self) -> u32 {
        self.list.map_or(self.kernel, List::kernel)
    }

    fn set_kernel(&mut self, count: u32) {
        match self.list {
            Some(list) => list.set_kernel(count),
            None => self.kernel = count,
        }
    }

    /// What `op` has done with a descriptor of the kernel's.
    fn note_kernel(&mut self, op: c_int) {
        match op {
            EPOLL_CTL_ADD => self.set_kernel(self.kernel().wrapping_add(1)),
            EPOLL_CTL_DEL => self.set_kernel(self.kernel().saturating_sub(1)),
            _ => {}
        }
    }

    /// Calls `visit` for each socket in the list.
    fn each_slot(&self, visit: impl FnMut(Socket)) {
        if let Some(list) = self.list {
            list.each_socket(visit);
        }
    }

    /// Its set, made at first use.
    fn ready_set(&mut self) -> Option<Set> {
        if self.set.is_some() {
            return self.set;
        }
        let set = wait::new_set(true)?;
        let list = List(attach::region()?.interests(set.number)?);
        self.set = Some(set);
        self.list = Some(list);
        if self.kernel > 0 {
            list.set_kernel(self.kernel);
        }
        for nested in &self.nested {
            each_socket(nested.inner, &mut |socket| wait::watch(socket, set.number));
        }
        Some(set)
    }

    /// Something is added with these events: the engine hears whether one of those who wait is enough.
    fn note_exclusive(&mut self, socket: Socket, events: u32) {
        let (Some(set), Some(list)) = (self.set, self.list) else { return };
        let word = list.word_of_exclusive();
        if events & EXCLUSIVE != 0 && word.load(Ordering::Relaxed) == exclusive::UNUSED {
            word.store(exclusive::USED, Ordering::Relaxed);
        } else if events & EXCLUSIVE == 0 && may_listen(socket) {
            word.store(exclusive::MIXED, Ordering::Relaxed);
        } else {
            return;
        }
        let is_used = word.load(Ordering::Relaxed) == exclusive::USED;
        set.shared.one_takes.store(u32::from(is_used), Ordering::Release);
    }

    fn insert(&mut self, socket: Socket, item: Item) -> bool {
        // It takes a descriptor, which Linux's needs not.
        let set = self.ready_set().or_else(|| limits::beyond(|| self.ready_set()));
        let (Some(set), Some(list)) = (set, self.list) else { return false };
        // Before it is watched: no connection may wake too many.
        self.note_exclusive(socket, item.events);
        if !list.add(socket, item) {
            return false;
        }
        wait::watch(socket, set.number);
        ready::mark(set, socket, item);
        true
    }

    fn remove(&mut self, socket: Socket, fd: c_int) -> bool {
        let (Some(set), Some(list)) = (self.set, self.list) else { return false };
        let removed = list.remove(socket, fd);
        if removed == Removed::Last {
            wait::unwatch(socket, set);
        }
        removed != Removed::Nothing
    }

    /// The calling thread goes on with `n` events.
    fn go_on(&mut self, n: usize) {
        serve::serve(if n > 0 { self.given } else { 0 });
    }

    /// Others than the calling thread sleep in it.
    fn others_sleep(&self) -> bool {
        match self.set.filter(|_| self.shared) {
            Some(set) => set.shared.sleepers.load(Ordering::SeqCst) != 0 || self.in_kernel > 0,
            None => self.waiters > 0,
        }
    }

    /// Wakes the threads that sleep in it: something was added.
    #[inline]
    fn kick(&mut self, epfd: c_int) {
        if self.shared || self.waiters > 0 {
            self.kick_others(epfd);
        }
    }

    #[cold]
    fn kick_others(&mut self, epfd: c_int) {
        if !self.others_sleep() {
            return;
        }
        if let Some(set) =
            self.set.filter(|_| epfd < 0 || self.fds == 0 || self.shared && self.in_kernel == 0)
        {
            // An event in the kernel's epoll would be seen by all processes, and could be taken away by one; without a
            // descriptor there is none to be made.
            attach::wake_set(set.number);
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
            cancel::uncancelled(|| real::write(fd, (&raw const one).cast(), 8));
        }
    }

    /// Who leaves with `n` of at most `most` events wakes the next sleeper for the rest, unless the set's pipe does.
    fn pass_on(&mut self, epfd: c_int, n: usize, most: usize) {
        if n != most && n != serve::BATCH {
            return;
        }
        let told = self.set.is_some_and(|set| set.shared.signalled.load(Ordering::SeqCst) != 0);
        if !told && self.others_sleep() && self.has_more() {
            self.kick(epfd);
        }
    }

    /// What names this epoll, which `epfd` named before a sleep; -1: nothing does any more, and the kernel's part is out of
    /// reach.
    fn still_named(&self, number: u32, epfd: c_int) -> c_int {
        match table::look(epfd) {
            Fd::Epoll(same) if same == number => epfd,
            _ if self.fds == 0 => -1,
            _ => descriptor_of(number).unwrap_or(-1),
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
                        cancel::uncancelled(|| real::read(fd, (&raw mut count).cast(), 8));
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
        let n = cancel::uncancelled(|| real::epoll_wait(epfd, out.as_mut_ptr(), out.len() as c_int, 0));
        self.strip(out, n.max(0) as usize)
    }

    fn free(&mut self) {
        if let (Some(set), Some(region)) = (self.set.take(), attach::region()) {
            if self.shared || attach::dead() {
                // Others go on with it; the daemon sees to the rest.
                attach::free_set(set.number, set.pipe);
            } else {
                self.each_slot(|socket| wait::unwatch(socket, set));
                region.clear_interests(set.number);
                wait::give_back(set);
            }
        }
        if let Some(fd) = self.kick {
            own::discard(fd);
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
        if epoll.fds == 0 && epoll.waiters == 0 {
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
    let mut epoll = lock(number);
    epoll.fds = epoll.fds.saturating_sub(1);
    let_go(epoll, number);
}

/// The calling thread is done with an epoll. It is freed by the last: of those that close it, and of those that sleep in it,
/// whom it goes on to wake (epoll_wait(2) holds the file).
fn let_go(mut epoll: Entered, number: u32) {
    if epoll.fds > 0 || epoll.waiters > 0 {
        return;
    }
    let parents = std::mem::take(&mut epoll.parents);
    let inner: Vec<u32> = epoll.nested.iter().map(|nested| nested.inner).collect();
    Entered::free(epoll);
    for parent in parents {
        EPOLLS[parent as usize].lock().nested.retain(|nested| nested.inner != number);
    }
    for inner in inner {
        EPOLLS[inner as usize].lock().parents.retain(|parent| *parent != number);
    }
}

/// Nobody has a descriptor of a socket any more.
pub(crate) fn forget(socket: Socket) {
    if !wait::is_watched(socket) {
        return;
    }
    for number in 0..USED.load(Ordering::Acquire) {
        // Most have never had one.
        if EPOLLS[number as usize].lock().count() == 0 {
            continue;
        }
        let epoll = lock(number);
        if let (Some(set), Some(list)) = (epoll.set, epoll.list)
            && list.at(socket.index).is_some()
        {
            list.drop_slot(socket.index);
            wait::unwatch(socket, set);
        }
    }
}

/// See [`crate::lock::Lock::jumped_out`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_jump(leaves: impl Fn(usize) -> bool) {
    let epolls = &EPOLLS[..USED.load(Ordering::Acquire) as usize];
    epolls.iter().filter_map(|epoll| epoll.jumped_out(&leaves)).for_each(sharing::put_in_order);
}

/// A descriptor of an epoll.
fn descriptor_of(number: u32) -> Option<c_int> {
    (0..=table::highest()).find(|&fd| table::look(fd) == Fd::Epoll(number))
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

/// The epolls around `number` want to hear of this socket too.
fn watch_above(number: u32, socket: Socket) {
    let parents = EPOLLS[number as usize].lock().parents.clone();
    for parent in parents {
        if let Some(set) = lock(parent).ready_set() {
            wait::watch(socket, set.number);
        }
        watch_above(parent, socket);
    }
}

/// All sockets of an epoll, and of those within it.
pub(crate) fn each_socket(number: u32, visit: &mut dyn FnMut(Socket)) {
    let inner: Vec<u32> = {
        let epoll = lock(number);
        epoll.each_slot(&mut *visit);
        epoll.nested.iter().map(|nested| nested.inner).collect()
    };
    for inner in inner {
        each_socket(inner, visit);
    }
}

/// True when the kernel alone cannot say whether the epoll is readable.
pub(crate) fn is_ours(number: u32) -> bool {
    lock(number).is_ours()
}

/// True when one of our sockets in it is ready.
pub(crate) fn peek(number: u32) -> bool {
    lock(number).peek()
}

/// A stream that listens, or may come to: one that is neither connected nor about to be.
fn may_listen(socket: Socket) -> bool {
    socket.is_stream()
        && socket.state() & (slot_state::CONNECTED | slot_state::FAILED) == 0
        && socket.slot.kept_options.load(Ordering::Acquire) & kept::CONNECT_PENDING == 0
}
