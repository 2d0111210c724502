//! accept: connections are taken from a listening socket's queue, the most important first.
//!
//! The queue is the listening socket's receive ring; its entries are slots. Threads and processes take from it at the
//! same time, and the record of a process says what it is taking, so that its death in between loses nothing.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{sockaddr, socklen_t};
use scoutline_abi::layout::{SLOT_COUNT, slot_flag, slot_request as ask, slot_state as is};

use crate::life::{left, remote};
use crate::lock::Lock;
use crate::real::err;
use crate::slot::Socket;
use crate::table::Entry;
use crate::wait::Patience;
use crate::{address, attach, options, real, serve, table, wait};

/// One thread at a time uses the record's `claiming`.
static CLAIM: Lock<()> = Lock::new(());
/// Entries of an accept queue among which the most important is taken first.
const LOOK_FORWARD: u64 = 64;

/// Nobody may be claiming while the process is copied.
pub(crate) fn before_fork() {
    CLAIM.take_over_fork();
}

/// See [`before_fork`].
pub(crate) fn after_fork() {
    CLAIM.give_back();
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
    wait::patiently(socket, |patience| accept_patiently(fd, socket, (address, len), flags, patience))
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
            let how = if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
            let new_fd = real::fcntl(fd, how, 0);
            if new_fd < 0 {
                return err(real::errno());
            }
            if let Some(accepted) = claim(socket) {
                options::inherit(socket, accepted);
                let mut ours = socket.slot.flags.load(Ordering::Relaxed) & slot_flag::INET6;
                if flags & libc::SOCK_NONBLOCK != 0 {
                    ours |= slot_flag::NONBLOCK;
                }
                accepted.slot.flags.store(ours, Ordering::Release);
                left(new_fd, table::put(new_fd, Entry::Socket(accepted.index)));
                address::write(remote(accepted), accepted.is_inet6(), address, len);
                serve::took(accepted);
                return new_fd as isize;
            }
            real::close(new_fd);
            continue;
        }
        if socket.non_blocking() {
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

/// Takes one connection from the queue. The record says what is being taken, so that a death in between loses
/// nothing.
fn claim(listener: Socket) -> Option<Socket> {
    let record = attach::record(listener.region)?;
    let slot = listener.slot;
    let _alone = CLAIM.lock();
    // Other processes take from the same queue, and entries change places.
    let _held = listener.lock_receive().ok()?;
    loop {
        let head = slot.receive_head.load(Ordering::Acquire);
        let waiting = slot.receive_tail.load(Ordering::Acquire).wrapping_sub(head);
        if waiting == 0 {
            return None;
        }
        if waiting > 1 && slot.importance.load(Ordering::Relaxed) > serve::ORDINARY {
            bring_forward(listener, head, waiting);
        }
        // SAFETY: a mapped entry.
        let index = unsafe { entry(listener, head)?.read_volatile() };
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
        record.claiming.store(0, Ordering::SeqCst);
        if accepted.is_some() {
            return accepted;
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
        let importance =
            index.and_then(Socket::at).map_or(0, |socket| socket.slot.importance.load(Ordering::Relaxed));
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
        let _ = slot.importance.compare_exchange(told, most, Ordering::Relaxed, Ordering::Relaxed);
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
