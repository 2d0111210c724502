//! accept: connections are taken from a listening socket's queue, the most important first.
//!
//! The queue is the listening socket's receive ring; its entries are slots. Threads and processes take from it at the
//! same time, and the record of a process says what it is taking, so that its death in between loses nothing.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{sockaddr, socklen_t};
use scoutline_abi::layout::{SLOT_COUNT, slot_flag, slot_request as ask, slot_state as is};

use crate::life::{close, left, remote};
use crate::lock::{Section, undisturbed};
use crate::real::err;
use crate::slot::{Socket, kept};
use crate::table::Entry;
use crate::wait::Patience;
use crate::{address, attach, fruitless, options, real, serve, table};

/// One thread at a time uses the record's `claiming`.
static CLAIMS: Section = Section::new();
/// Forks of signal handlers that have interrupted their own thread's claim or fork, one in another. The claimer's alone.
static FORKS_WITHIN: AtomicUsize = AtomicUsize::new(0);
/// Entries of an accept queue among which the most important is taken first.
const LOOK_FORWARD: u64 = 64;

/// Nobody may be claiming while the process is copied.
pub(crate) fn before_fork() {
    let claiming = CLAIMS.enter();
    FORKS_WITHIN.fetch_add(claiming.is_none().into(), Ordering::Relaxed);
    std::mem::forget(claiming);
}

/// See [`before_fork`].
pub(crate) fn after_fork() {
    let within = FORKS_WITHIN.load(Ordering::Relaxed) > 0;
    FORKS_WITHIN.fetch_sub(within.into(), Ordering::Relaxed);
    if !within {
        CLAIMS.give_back();
    }
}

/// See [`Section::jumped_out`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_jump(leaves: impl Fn(usize) -> bool) {
    CLAIMS.jumped_out(leaves);
}

/// `accept` and `accept4` on a socket of ours.
pub(crate) fn accept(
    fd: c_int,
    socket: Socket,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> isize {
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        return err(libc::EINVAL);
    }
    if !socket.is_stream() {
        return err(libc::EOPNOTSUPP);
    }
    accept_patiently(fd, socket, (address, len), flags, &mut Patience::default())
}

fn accept_patiently(
    fd: c_int,
    socket: Socket,
    (address, len): (*mut sockaddr, *mut socklen_t),
    flags: c_int,
    patience: &mut Patience,
) -> isize {
    loop {
        if attach::dead() {
            return err(socket.tell_dead(socket.non_blocking()));
        }
        if socket.state() & is::LISTENING == 0 || socket.requests() & ask::SHUTDOWN_READ != 0 {
            return err(libc::EINVAL);
        }
        if socket.received() > 0 {
            // The descriptor first: without one the connection stays in the queue, as on Linux.
            let new_fd = new_descriptor(fd, socket, flags & libc::SOCK_CLOEXEC);
            if new_fd < 0 {
                return err(real::errno());
            }
            let claimed = take(socket, flags);
            if let Ok(Some(accepted)) = claimed {
                left(new_fd, table::put(new_fd, Entry::Socket(accepted.index)));
                let named = address::write(remote(accepted), accepted.is_inet6(), address, len);
                if named < 0 {
                    // As Linux: the connection is lost.
                    close(new_fd);
                    return named;
                }
                serve::took(accepted);
                fruitless::found();
                return new_fd as isize;
            }
            real::close_uncancelled(new_fd);
            if let Err(errno) = claimed {
                return err(errno);
            }
            continue;
        }
        if socket.non_blocking() {
            fruitless::found_nothing(socket.region);
            return err(libc::EAGAIN);
        }
        let ready = || {
            socket.received() > 0
                || socket.state() & is::LISTENING == 0
                || socket.requests() & ask::SHUTDOWN_READ != 0
        };
        match patience.wait_for(socket, &socket.slot.receive_timeout_us, ready) {
            Err(errno) if !attach::dead() => return err(errno),
            _ => {}
        }
    }
}

/// A connection that waits, held, for a descriptor with these flags; see [`claim`].
pub(crate) fn take(listener: Socket, flags: c_int) -> Result<Option<Socket>, c_int> {
    let claimed = claim(listener);
    if let Ok(Some(accepted)) = claimed {
        options::inherit(listener, accepted);
        options::keep(accepted, kept::ACCEPTED, true);
        let mut ours = listener.slot.flags.load(Ordering::Relaxed) & slot_flag::INET6;
        if flags & libc::SOCK_NONBLOCK != 0 {
            ours |= slot_flag::NONBLOCK;
        }
        accepted.slot.flags.store(ours, Ordering::Release);
    }
    claimed
}

/// A descriptor for a connection: a duplicate of its listener's, and of a fresh socket of the kernel's where another thread
/// has closed that while this one accepts. -1: there is none.
fn new_descriptor(fd: c_int, listener: Socket, close_on_exec: c_int) -> c_int {
    let is_listener = || table::socket(fd) == Some(listener.index);
    if is_listener() {
        let how = if close_on_exec == 0 { libc::F_DUPFD } else { libc::F_DUPFD_CLOEXEC };
        let new_fd = real::fcntl(fd, how, 0);
        if is_listener() {
            return new_fd;
        }
        // What had the number by then may have been something else.
        if new_fd >= 0 {
            real::close_uncancelled(new_fd);
        }
    }
    let family = if listener.is_inet6() { libc::AF_INET6 } else { libc::AF_INET };
    real::socket(family, libc::SOCK_STREAM | close_on_exec, 0)
}

/// Takes one connection from the queue, if there is one. The record says what is being taken, so that a death in between
/// loses nothing.
///
/// A signal handler may do so in the midst of its own thread's claim, under the locks that the thread has. What is taken
/// moves the queue's head, so the thread finds that its look is old, and looks again; the record is given back as it was.
///
/// # Errors
/// EAGAIN in a handler that has interrupted another call that has the queue's lock.
fn claim(listener: Socket) -> Result<Option<Socket>, c_int> {
    let Some(record) = attach::record(listener.region) else { return Ok(None) };
    let slot = listener.slot;
    let alone = CLAIMS.enter();
    let within = alone.is_none(); // a handler's, which has interrupted it
    // Other processes take from the same queue, and entries change places. A thread that is interrupted may have the lock.
    let held = listener.lock_receive_in(0);
    if let Err(errno) = held
        && !(within && listener.receives_here())
    {
        return Err(errno);
    }
    // Of what a handler has interrupted.
    let before = (record.claiming_from.load(Ordering::Relaxed), record.claiming.load(Ordering::Relaxed));
    loop {
        let head = slot.receive_head.load(Ordering::Acquire);
        let waiting = slot.receive_tail.load(Ordering::Acquire).wrapping_sub(head);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > 1 && u32::from(slot.importance.load(Ordering::Relaxed)) > serve::ORDINARY {
            // For a moment one of two entries stands there twice.
            undisturbed(|| bring_forward(listener, head, waiting));
        }
        // SAFETY: a mapped entry.
        let Some(index) = entry(listener, head).map(|at| unsafe { at.read_volatile() }) else {
            return Ok(None);
        };
        // A handler that jumped out of this would leave a connection that nobody has.
        let accepted = undisturbed(|| {
            let valid = (index as usize) < SLOT_COUNT;
            if valid {
                record.claiming_from.store(listener.index + 1, Ordering::Relaxed);
                record.claiming.store(index + 1, Ordering::SeqCst);
            }
            let won = slot
                .receive_head
                .compare_exchange(head, head.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
            let accepted = if won && valid { Socket::at(index) } else { None };
            if let Some(accepted) = accepted {
                accepted.hold(false);
            }
            record.claiming_from.store(before.0, Ordering::Relaxed);
            record.claiming.store(before.1, Ordering::SeqCst);
            accepted
        });
        if accepted.is_some() {
            return Ok(accepted);
        }
    }
}

/// Where an entry of the queue stands.
fn entry(listener: Socket, position: u64) -> Option<*mut u32> {
    let slot = listener.slot;
    let offset = slot.receive_offset.load(Ordering::Relaxed);
    let size = slot.receive_size.load(Ordering::Relaxed);
    // Entries are aligned to four bytes and never wrap.
    let spans = listener.region.ring_spans(offset, size, position.wrapping_mul(4), 4)?;
    Some(spans[0].memory.as_ptr().cast())
}

/// The most important connection among those that wait, and its place; the first of equals.
fn most_important(listener: Socket, head: u64, waiting: u64) -> (u32, u64) {
    let (mut most, mut place) = (0, head);
    for position in head..head.wrapping_add(waiting.min(LOOK_FORWARD)) {
        // SAFETY: a mapped entry.
        let index = entry(listener, position).map(|at| unsafe { at.read_volatile() });
        let importance = index
            .and_then(Socket::at)
            .map_or(0, |socket| socket.slot.importance.load(Ordering::Relaxed).into());
        if importance > most {
            (most, place) = (importance, position);
        }
    }
    (most, place)
}

/// How important it is to accept, where the engine has said that something important (`told`) may wait.
#[cold]
pub(crate) fn waiting_importance(listener: Socket, told: u32) -> u32 {
    let slot = listener.slot;
    let head = slot.receive_head.load(Ordering::Acquire);
    let waiting = slot.receive_tail.load(Ordering::Acquire).wrapping_sub(head);
    let (most, _) = most_important(listener, head, waiting);
    if most < told {
        // It has been accepted. Should another have come just now, it waits its turn among the rest.
        let (told, least) = (told as u16, most as u16);
        let _ = slot.importance.compare_exchange(told, least, Ordering::Relaxed, Ordering::Relaxed);
    }
    most
}

/// The most important connection that waits changes places with the first. Under the queue's lock: the engine only adds
/// behind the tail.
fn bring_forward(listener: Socket, head: u64, waiting: u64) {
    let (_, place) = most_important(listener, head, waiting);
    if place == head {
        return;
    }
    if let (Some(one), Some(other)) = (entry(listener, head), entry(listener, place)) {
        // SAFETY: two mapped entries.
        unsafe {
            let (index, better) = (one.read_volatile(), other.read_volatile());
            one.write_volatile(better);
            other.write_volatile(index);
        }
    }
}
