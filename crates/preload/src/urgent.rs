//! Urgent data as programs see it (tcp(7), MSG_OOB of send(2) and recv(2), sockatmark(3)): one byte of the stream is out
//! of band, the last urgent one.
//!
//! It stands in the receive ring like every other; the engine says where (`urgent_mark`). Reading stops before it, and
//! goes on behind it; MSG_OOB gives it, once. With SO_OOBINLINE it is read in its place, and reading stops before it
//! all the same. As in Linux, a mark is forgotten when reading has passed it.
//!
//! SIGURG: the socket's owner (F_SETOWN) owns the reading end of a pipe whose other end the engine has, with O_ASYNC.
//! So the kernel signals, and decides who may signal whom.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{MSG_OOB, MSG_PEEK, MSG_TRUNC, iovec};
use scoutline_abi::layout::{slot_request as ask, slot_state as is};

use crate::cancel;
use crate::lock::{Lock, undisturbed};
use crate::real::{self, err};
use crate::slot::{Socket, kept};
use crate::stream::{scatter, total};
use crate::wait::{self, Set};

/// F_SETSIG of Linux.
const F_SETSIG: c_int = 10;
/// F_SETOWN_EX of Linux.
pub(crate) const F_SETOWN_EX: c_int = 15;

/// The pipes of sockets that have an owner, by slot. Few programs have any.
static OWNED: Lock<Vec<(u32, Set)>> = Lock::new(Vec::new());

/// Nobody may be among the owners while the process is copied.
pub(crate) fn before_fork() {
    OWNED.take_over_fork();
}

/// See [`before_fork`].
pub(crate) fn after_fork() {
    OWNED.give_back();
}

/// The pipes are the parent's, which goes on to be told: as in Linux the owner is the socket's, whoever has it.
pub(crate) fn in_child() {
    OWNED.lock().clear();
}

/// How far the urgent byte is from what is read next at `head`, unless reading has passed it or there is none.
fn distance(socket: Socket, head: u64) -> Option<u64> {
    if socket.state() & is::URGENT == 0 {
        return None;
    }
    let mark = socket.slot.urgent_mark.load(Ordering::Acquire).checked_sub(1)?;
    mark.checked_sub(head + overtaken(socket, head))
}

/// Bytes at `head` that were urgent and are not given any more, since others have overtaken them. Behind the mark, which
/// the engine writes after this.
fn overtaken(socket: Socket, head: u64) -> u64 {
    if is_inline(socket) {
        return 0;
    }
    socket.slot.urgent_passed().load(Ordering::Acquire).saturating_sub(head)
}

fn is_inline(socket: Socket) -> bool {
    socket.slot.kept_options.load(Ordering::Relaxed) & kept::OOB_INLINE != 0
}

/// What one step of reading may take.
pub(crate) struct Step {
    /// Bytes to pass without giving them: the urgent one, or none.
    pub(crate) skip: u64,
    /// Bytes to give.
    pub(crate) len: u64,
    /// The mark follows: nothing more is read by this call.
    pub(crate) ends: bool,
}

/// A step from `head` on, of at most `want` of the `held` bytes; `begun`: the call has given some already.
#[cold]
pub(crate) fn step(socket: Socket, head: u64, held: u64, want: u64, begun: bool) -> Step {
    let distance = distance(socket, head);
    let lead = overtaken(socket, head).min(held);
    let held = held - lead;
    let free = Step { skip: lead, len: held.min(want), ends: false };
    match distance {
        Some(0) if begun => Step { skip: lead, len: 0, ends: true },
        Some(0) if !is_inline(socket) => {
            let skip = held.min(1);
            Step { skip: lead + skip, len: (held - skip).min(want), ends: false }
        }
        Some(distance @ 1..) if distance <= free.len => Step { skip: lead, len: distance, ends: true },
        _ => free,
    }
}

/// The urgent byte is there and nobody has read it: POLLPRI.
pub(crate) fn is_waiting(socket: Socket) -> bool {
    let slot = socket.slot;
    let head = slot.receive_head.load(Ordering::Acquire);
    let mark = slot.urgent_mark.load(Ordering::Acquire);
    distance(socket, head).is_some_and(|distance| overtaken(socket, head) + distance < socket.received())
        && slot.urgent_taken.load(Ordering::Relaxed) != mark
}

/// Bytes that must be there before any can be read: more when the next are urgent.
pub(crate) fn hidden(socket: Socket) -> u64 {
    let head = socket.slot.receive_head.load(Ordering::Acquire);
    overtaken(socket, head) + u64::from(distance(socket, head) == Some(0) && !is_inline(socket))
}

/// SIOCATMARK: reading has come to the mark.
pub(crate) fn is_at_mark(socket: Socket) -> bool {
    distance(socket, socket.slot.receive_head.load(Ordering::Acquire)) == Some(0)
}

/// FIONREAD: what one call can read.
pub(crate) fn readable(socket: Socket) -> u64 {
    let head = socket.slot.receive_head.load(Ordering::Acquire);
    let held = socket.received().saturating_sub(overtaken(socket, head));
    match distance(socket, head) {
        Some(distance) if !is_inline(socket) => held.min(distance),
        _ => held,
    }
}

/// `recv` with MSG_OOB.
pub(crate) fn receive(socket: Socket, iov: &[iovec], flags: c_int) -> isize {
    let slot = socket.slot;
    let _held = match socket.lock_receive() {
        Ok(held) => held,
        Err(errno) => return err(errno),
    };
    let head = slot.receive_head.load(Ordering::Relaxed);
    let mark = slot.urgent_mark.load(Ordering::Acquire);
    let taken = slot.urgent_taken.load(Ordering::Relaxed) == mark;
    let Some(distance) = distance(socket, head).filter(|_| !taken && !is_inline(socket)) else {
        return err(libc::EINVAL);
    };
    if socket.state() & (is::FAILED | is::PEER_FINISHED) == is::FAILED {
        return err(libc::ENOTCONN);
    }
    drain_owner(socket);
    let distance = distance + overtaken(socket, head);
    if distance >= socket.received() {
        let over = socket.state() & (is::PEER_FINISHED | is::FAILED) != 0
            || socket.requests() & ask::SHUTDOWN_READ != 0;
        return if over { 0 } else { err(libc::EAGAIN) };
    }
    let (offset, size) =
        (slot.receive_offset.load(Ordering::Relaxed), slot.receive_size.load(Ordering::Relaxed));
    let Some(spans) = socket.region.ring_spans(offset, size, head + distance, 1) else {
        return err(libc::EIO);
    };
    let room = total(iov);
    if room > 0 && flags & MSG_TRUNC == 0 {
        scatter(&spans, iov, 0);
    }
    if flags & MSG_PEEK == 0 {
        slot.urgent_taken.store(mark, Ordering::Relaxed);
    }
    room.min(1) as isize
}

/// What is about to be written up to `end` is urgent, if these flags say so. Call with the send lock held.
pub(crate) fn announce(socket: Socket, end: u64, flags: c_int) {
    if flags & MSG_OOB != 0 {
        socket.slot.urgent_to.store(end, Ordering::Release);
        socket.slot.requests.fetch_or(ask::URGENT, Ordering::AcqRel);
    }
}

/// F_SETOWN and F_SETOWN_EX: whom SIGURG goes to. The kernel's answer.
pub(crate) fn set_owner(socket: Socket, command: c_int, argument: usize) -> c_int {
    undisturbed(|| own(socket, command, argument))
}

fn own(socket: Socket, command: c_int, argument: usize) -> c_int {
    let mut owned = OWNED.lock();
    let known = owned.iter().find(|(slot, _)| *slot == socket.index).map(|&(_, set)| set);
    let Some(set) = known.or_else(|| wait::new_set(true)) else {
        real::set_errno(libc::ENOBUFS);
        return -1;
    };
    let result = real::fcntl(set.pipe, command, argument);
    if result < 0 {
        if known.is_none() {
            wait::give_back(set);
        }
        return result;
    }
    if known.is_none() {
        real::fcntl(set.pipe, F_SETSIG, libc::SIGURG as usize);
        real::fcntl(set.pipe, libc::F_SETFL, (libc::O_NONBLOCK | libc::O_ASYNC) as usize);
        owned.push((socket.index, set));
    }
    socket.slot.owner_set.store(set.number + 1, Ordering::Release);
    result
}

/// No descriptor of this process names the socket any more.
pub(crate) fn forget_owner(socket: Socket) {
    if socket.slot.owner_set.load(Ordering::Relaxed) == 0 {
        return;
    }
    let set = undisturbed(|| {
        let mut owned = OWNED.lock();
        let at = owned.iter().position(|(slot, _)| *slot == socket.index)?;
        Some(owned.swap_remove(at).1)
    });
    if let Some(set) = set {
        let mine = set.number + 1;
        let _ = socket.slot.owner_set.compare_exchange(mine, 0, Ordering::AcqRel, Ordering::Relaxed);
        real::fcntl(set.pipe, libc::F_SETFL, libc::O_NONBLOCK as usize);
        real::fcntl(set.pipe, F_SETSIG, 0);
        cancel::uncancelled(|| set.drain());
        wait::give_back(set);
    }
}

/// Takes what told of urgent data, so that the pipe never fills up.
fn drain_owner(socket: Socket) {
    if socket.slot.owner_set.load(Ordering::Relaxed) != 0 {
        undisturbed(|| {
            if let Some((_, set)) = OWNED.lock().iter().find(|(slot, _)| *slot == socket.index) {
                cancel::uncancelled(|| set.drain());
            }
        });
    }
}
