//! What a fork and a new program image need of the daemon, and who may do nothing meanwhile.

use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicI32, Ordering};

use scoutline_abi::attach::{Message, flag, kind};
use scoutline_abi::layout::ENGINE_COUNT;

use super::{
    CONNECTION, DOORBELLS, ForImage, GENERATION, MEMORY, PROCESS, REQUESTS, dead, exchange, own_process,
    record, region, request, set_dead,
};
use crate::{accept, dispatch, epoll, exec, family, limits, own, real, rings, serve, slot, urgent, wait};

thread_local! {
    /// The signals that the thread had blocked before it forked, as a word.
    static BLOCKED: Cell<u64> = const { Cell::new(0) };
}

/// What the daemon gave for a child.
#[derive(Clone, Copy)]
pub(super) struct Child {
    process: u32,
    connection: c_int,
}

/// No other thread forks, claims or asks the daemon until it is dropped.
pub(crate) struct Alone;

/// See [`Alone`].
pub(crate) fn alone() -> Alone {
    rings::before_fork();
    lock_for_fork();
    REQUESTS.take_over_fork();
    Alone
}

impl Drop for Alone {
    fn drop(&mut self) {
        REQUESTS.give_back();
        unlock_after_fork();
        rings::after_fork();
    }
}

/// A process record and descriptors for a new program image, open there. For who is [`alone`].
pub(crate) fn for_image() -> Option<ForImage> {
    let mut message = Message::new(kind::FORK, 0);
    message.flags |= flag::NEW_IMAGE;
    let (answer, [connection, ..]) = request(message, true).ok()?;
    if connection < 0 {
        return None;
    }
    let open = |known: &AtomicI32| match known.load(Ordering::Relaxed) {
        -1 => -1,
        fd => own::copy_up(fd, libc::F_DUPFD),
    };
    let image = ForImage {
        process: answer.value,
        connection: own::move_up_open(connection),
        doorbells: std::array::from_fn(|engine| open(&DOORBELLS[engine])),
        memory: open(&MEMORY),
    };
    if let Some(record) = region()?.process(image.process)
        && image.doorbells[..region()?.engines()].iter().all(|&doorbell| doorbell >= 0)
        && image.memory >= 0
    {
        // Who takes it over writes its own.
        record.pid.store(0, Ordering::Release);
        return Some(image);
    }
    image.close();
    None
}

/// Nobody may be in the shim's tables while the process is copied.
fn lock_for_fork() {
    accept::before_fork();
    urgent::before_fork();
    wait::before_fork();
    exec::before_fork();
    dispatch::before_fork();
    slot::before_fork();
}

/// See [`lock_for_fork`].
fn unlock_after_fork() {
    slot::after_fork();
    dispatch::after_fork();
    exec::after_fork();
    wait::after_fork();
    urgent::after_fork();
    accept::after_fork();
}

pub(super) extern "C" fn before() {
    let Some(region) = region() else { return };
    // A handler here would wait for its own thread wherever it needs what that has locked.
    BLOCKED.set(dispatch::hold_signals());
    family::meet_all();
    exec::children_before_fork();
    // First of all: who has one may want any of those that follow.
    rings::before_fork();
    epoll::before_fork();
    lock_for_fork();
    // From the exchange until the process is copied no set comes or goes: the daemon gives the child the sets that
    // stand in the table.
    let mut held = REQUESTS.lock();
    let child = || match request(Message::new(kind::FORK, 0), true) {
        Ok((answer, [connection, ..])) if connection >= 0 && region.process(answer.value).is_some() => {
            Some(Child { process: answer.value, connection })
        }
        _ => None,
    };
    let child = child().or_else(|| if dead() { None } else { limits::beyond(child) });
    *held = child;
    std::mem::forget(held);
    if let Some(child) = child {
        slot::share_with_child(region, child.process);
        family::share_candidates();
    }
}

pub(super) extern "C" fn after() {
    if region().is_none() {
        return;
    }
    exec::children_after_fork();
    REQUESTS.give_back();
    // The child has its own copy now. Without a child this is the last one, and the daemon releases what the
    // record holds.
    let child = REQUESTS.lock().take();
    if let Some(child) = child {
        real::close_uncancelled(child.connection);
    }
    unlock_after_fork();
    epoll::after_fork();
    rings::after_fork();
    dispatch::set_mask(BLOCKED.get());
}

pub(super) extern "C" fn in_child() {
    let Some(region) = region() else { return };
    exec::children_after_fork();
    REQUESTS.give_back();
    let child = REQUESTS.lock().take();
    own_process();
    GENERATION.fetch_add(1, Ordering::Relaxed);
    unlock_after_fork();
    rings::after_fork();
    rings::in_child(region);
    // Pipes of the parent's sets, and the parent's connection, whose last copy must be the parent's.
    let kept: [c_int; 1 + ENGINE_COUNT] =
        std::array::from_fn(|at| DOORBELLS.get(at).unwrap_or(&MEMORY).load(Ordering::Relaxed));
    let connection = child.map_or(-1, |child| own::move_up(child.connection));
    own::each(|fd, set| {
        // An epoll has one poll set in all processes.
        if kept.contains(&fd) || connection >= 0 && set.is_some_and(epoll::keeps) {
            return;
        }
        own::discard(fd);
        if let Some(set) = set.filter(|_| connection >= 0) {
            // The daemon counts the parent's sets as the child's too.
            let _ = exchange(connection, Message::new(kind::FREE_SET, set), false);
        }
    });
    dispatch::in_child();
    serve::in_child();
    wait::in_child();
    urgent::in_child();
    epoll::in_child(connection >= 0);
    slot::in_child(region);
    if let Some(child) = child {
        PROCESS.store(child.process, Ordering::Relaxed);
        CONNECTION.store(own::enter(connection, None), Ordering::Relaxed);
        if let Some(record) = record(region) {
            // SAFETY: no arguments.
            record.pid.store(unsafe { libc::getpid() } as u32, Ordering::Relaxed);
        }
        // Another thread of the parent was closing it, and has closed its descriptor already; or it was only waited for.
        slot::drop_unheld(region);
    } else {
        CONNECTION.store(-1, Ordering::Relaxed);
        if !dead() {
            real::say(&[
                b"no process record is left: the sockets of this child fail, new ones stay with the kernel",
            ]);
        }
        set_dead();
    }
    dispatch::set_mask(BLOCKED.get());
}

/// A fork that is not the C library's, which would call the handlers.
pub(crate) fn fork_by(fork: impl FnOnce() -> c_long) -> c_long {
    before();
    let result = fork();
    let errno = real::errno();
    if result == 0 {
        in_child();
    } else {
        after();
    }
    real::set_errno(errno);
    result
}
