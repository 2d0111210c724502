//! Epolls over fork: one list and one poll set for all processes that have the descriptor, as the kernel has one interest
//! list.
//!
//! ```text
//! alone     lock of the process                          sleepers: `ppoll`, or the kernel's `epoll_wait` where the epoll
//!   │                                                      has nothing of ours; woken by an eventfd in the kernel's epoll
//!   │ fork: a set is made where there is none, nobody is left in `epoll_wait`, FORK counts the child as a holder
//!   ▼
//! shared    that lock, then `InterestList::lock`         sleepers: `ppoll`; woken through the daemon (WAKE_SET)
//!   │ the daemon sees the others give the set back, or end
//!   ▼
//! alone
//! ```
//! So an epoll that one process has costs a look at [`PollSet::holders`](scoutline_abi::layout::PollSet::holders) more. What a
//! process was doing that was killed is made good by who takes its lock over, and by the daemon, which wakes the others.
//!
//! Left out: epolls that are put into others after a fork are known to the process only that does it; a new program image
//! has a list of its own ([`super::handover`]).

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::interests::List;
use super::{EPOLLS, Epoll, USED, descriptor_of};
use crate::lock::{Guard, back_off};
use crate::wait::Set;
use crate::{attach, real};

/// A fork does not wait for longer than this for others, which may be stopped, or be what a signal handler that forks has
/// interrupted.
const PATIENCE_NS: u64 = 50_000_000;

/// Threads that are about to fork: what is prepared for it stays so.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// The thread that has all locks, for a fork; 0: none.
static LOCKED_BY: AtomicU64 = AtomicU64::new(0);
/// How many these are: others may have come since.
static LOCKED: AtomicU32 = AtomicU32::new(0);

/// An epoll, alone in all processes.
pub(super) struct Entered {
    epoll: Guard<'static, Epoll>,
    /// Its list, where others have it too.
    list: Option<List>,
}

impl Deref for Entered {
    type Target = Epoll;
    fn deref(&self) -> &Epoll {
        &self.epoll
    }
}

impl DerefMut for Entered {
    fn deref_mut(&mut self) -> &mut Epoll {
        &mut self.epoll
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(list) = self.list {
            leave(list);
        }
    }
}

impl Entered {
    /// Frees it: this process has no descriptor of it any more.
    pub(super) fn free(mut self) {
        // Not after it is given back: the list may be another's then.
        if let Some(list) = self.list.take() {
            leave(list);
        }
        self.epoll.free();
    }
}

/// Waits until the epoll with this number is ours.
#[inline]
pub(super) fn lock(number: u32) -> Entered {
    of(EPOLLS[number as usize].lock())
}

/// A handler has jumped out of who had it: what that was doing is made good, as of one that was ended.
#[cfg(target_arch = "x86_64")]
pub(super) fn put_in_order(epoll: Guard<'static, Epoll>) {
    let epoll = of(epoll);
    if let Some(set) = epoll.set {
        look_at_all_again(&epoll, set);
    }
}

#[inline]
fn of(mut epoll: Guard<'static, Epoll>) -> Entered {
    let is_shared = epoll.set.is_some_and(|set| set.shared.holders.load(Ordering::Acquire) > 1);
    let list = if is_shared || epoll.shared { enter(&mut epoll, is_shared) } else { None };
    Entered { epoll, list }
}

/// The list of an epoll that is shared, or was.
#[cold]
fn enter(epoll: &mut Epoll, is_shared: bool) -> Option<List> {
    let (set, list) = (epoll.set?, epoll.list?);
    if !is_shared {
        if FORKING.load(Ordering::SeqCst) == 0 {
            alone_again(epoll, set, list);
        }
        return None;
    }
    epoll.shared = true;
    let me = attach::process() + 1;
    let mut tries = 0u32;
    while let Err(holder) = list.0.lock.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
        // Our own number: of a process that had our record before us, since this one is kept out by its own lock. A number
        // of nobody: the daemon has seen the holder end.
        let is_dead = holder == me
            || (tries.is_multiple_of(256) && {
                let holder = attach::region()?.process(holder.wrapping_sub(1));
                holder.is_none_or(|process| process.alive.load(Ordering::Acquire) == 0)
            });
        if is_dead && list.0.lock.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            look_at_all_again(epoll, set);
            break;
        }
        back_off(tries);
        tries += 1;
    }
    Some(list)
}

fn leave(list: List) {
    // Only our own: it may have been taken over while we were taken for dead.
    let me = attach::process() + 1;
    let _ = list.0.lock.compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed);
}

/// Whoever had it before us was ended in the midst of a look, or of a change.
fn look_at_all_again(epoll: &Epoll, set: Set) {
    if let Some(list) = epoll.list {
        list.count_again();
    }
    epoll.each_slot(|socket| socket.region.ready(set.shared).set(socket.index as usize));
    set.bell().drained();
}

/// No other process has it any more: what they have left is put in order.
fn alone_again(epoll: &mut Epoll, set: Set, list: List) {
    if epoll.in_kernel > 0 {
        return; // they come out first
    }
    epoll.shared = false;
    if list.0.lock.swap(0, Ordering::AcqRel) != 0 {
        look_at_all_again(epoll, set);
    }
    // Those of others that slept when they were ended.
    set.shared.sleepers.store(epoll.waiters, Ordering::SeqCst);
}

/// A fork is to come: the child will have what this process has, and nobody may be in the midst of it.
pub(crate) fn before_fork() {
    let begun = real::now_ns();
    let is_over = || real::now_ns() - begun > PATIENCE_NS;
    FORKING.fetch_add(1, Ordering::SeqCst);
    for number in 0..USED.load(Ordering::Acquire) {
        prepare(number, is_over);
    }
    let mut tries = 0;
    while !try_all() {
        if is_over() {
            return;
        }
        back_off(tries);
        tries += 1;
    }
    LOCKED_BY.store(this_thread(), Ordering::Relaxed);
}

/// An epoll that is not shared yet is made ready for it.
fn prepare(number: u32, is_over: impl Fn() -> bool) {
    let mut tries = 0;
    loop {
        let Some(mut epoll) = EPOLLS[number as usize].try_lock() else {
            if is_over() {
                return;
            }
            back_off(tries);
            tries += 1;
            continue;
        };
        if epoll.fds == 0 || epoll.ready_set().is_none() {
            return;
        }
        let first = !epoll.shared;
        epoll.shared = true;
        if epoll.in_kernel == 0 || is_over() {
            return;
        }
        // Sleepers in the kernel's `epoll_wait` do not hear the set's pipe.
        if first && let Some(epfd) = descriptor_of(number) {
            epoll.kick(epfd);
        }
        drop(epoll);
        back_off(tries);
        tries += 1;
    }
}

/// Takes the locks of all epolls, or none: others take the lock of one within another.
fn try_all() -> bool {
    let used = USED.load(Ordering::Acquire) as usize;
    let mut held: Vec<Guard<'static, Epoll>> = Vec::with_capacity(used);
    for epoll in &EPOLLS[..used] {
        match epoll.try_lock() {
            Some(guard) => held.push(guard),
            None => return false,
        }
    }
    held.into_iter().for_each(std::mem::forget);
    LOCKED.store(used as u32, Ordering::Relaxed);
    true
}

fn this_thread() -> u64 {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() as u64 }
}

/// In the parent. Where there is no child after all, [`enter`] sees that nobody shares.
pub(crate) fn after_fork() {
    if LOCKED_BY.compare_exchange(this_thread(), 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        for epoll in &EPOLLS[..LOCKED.load(Ordering::Relaxed) as usize] {
            epoll.give_back();
        }
    }
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// Whether a poll set is an epoll's that this process has. In a child, before [`in_child`].
pub(crate) fn keeps(set: u32) -> bool {
    EPOLLS[..USED.load(Ordering::Acquire) as usize].iter().any(|epoll| {
        epoll.give_back();
        let epoll = epoll.lock();
        epoll.fds > 0 && epoll.set.is_some_and(|own| own.number == set)
    })
}

/// In the child: eventfds are the parent's; threads in the middle of something are not here. `goes_on`: it has the sets, too.
pub(crate) fn in_child(goes_on: bool) {
    LOCKED_BY.store(0, Ordering::Relaxed);
    FORKING.store(0, Ordering::Relaxed);
    for epoll in &EPOLLS[..USED.load(Ordering::Acquire) as usize] {
        epoll.give_back();
        let mut epoll = epoll.lock();
        if epoll.fds == 0 {
            *epoll = Epoll::NEW; // kept by threads that are not here
            continue;
        }
        epoll.kick = None;
        epoll.waiters = 0;
        epoll.in_kernel = 0;
        epoll.shared &= goes_on;
        if !goes_on && let Some(set) = &mut epoll.set {
            set.pipe = -1; // closed, as all of the parent's
        }
    }
}
