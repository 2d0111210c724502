//! TCP's bytes between the program's memory and the rings.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use libc::{MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, iovec};
use scoutline_abi::Span2;
use scoutline_abi::layout::{HELD_BY_CALL, HELD_UNFINISHED, slot_request as ask, slot_state as is};

use crate::real::err;
use crate::slot::{Socket, kept};
use crate::wait::Patience;
use crate::{attach, fast_open, fruitless, memory, options, urgent, wait};

/// Bytes of an io vector, as many as one call moves.
pub(crate) fn total(iov: &[iovec]) -> usize {
    let sum = iov.iter().fold(0usize, |sum, part| sum.saturating_add(part.iov_len));
    sum.min(memory::MOST_MOVED)
}

/// Copies from `spans` into the vector, `skip` bytes into it. As much as both have.
pub(crate) fn scatter(spans: &Span2, iov: &[iovec], skip: usize) {
    walk(spans, iov, skip, |span, user, len| {
        // SAFETY: the span is mapped, the program vouches for its buffer, and they do not overlap: the region is
        // no memory of the program's.
        unsafe { scoutline_ring::copy(span, user, len) };
    });
}

/// Copies from the vector, `skip` bytes into it, to `spans`.
pub(crate) fn gather(spans: &Span2, iov: &[iovec], skip: usize) {
    walk(spans, iov, skip, |span, user, len| {
        // SAFETY: as in `scatter`.
        unsafe { scoutline_ring::copy(user, span, len) };
    });
}

fn walk(spans: &Span2, iov: &[iovec], mut skip: usize, copy: impl Fn(*mut u8, *mut u8, usize)) {
    let mut parts = iov.iter();
    let (mut user, mut room): (*mut u8, usize) = (ptr::null_mut(), 0);
    for span in spans {
        let mut at = 0;
        while at < span.len {
            while room == 0 {
                let Some(part) = parts.next() else { return };
                let step = skip.min(part.iov_len);
                skip -= step;
                user = part.iov_base.cast::<u8>().wrapping_add(step);
                room = part.iov_len - step;
            }
            let len = room.min(span.len - at);
            copy(span.memory.as_ptr().wrapping_add(at), user, len);
            at += len;
            user = user.wrapping_add(len);
            room -= len;
        }
    }
}

/// Nothing more will come, or nothing can.
fn receive_over(socket: Socket) -> bool {
    let state = socket.state();
    state & (is::PEER_FINISHED | is::FAILED) != 0
        || state & (is::CONNECTING | is::CONNECTED) == 0
        || socket.has_error()
        || socket.requests() & ask::SHUTDOWN_READ != 0
}

/// Takes up to `want` bytes that are there, `skip` bytes into the vector; how many, and whether urgent data ends the
/// call there. 0: none are.
fn take(
    socket: Socket,
    iov: &[iovec],
    skip: usize,
    want: usize,
    flags: c_int,
) -> Result<(usize, bool), c_int> {
    let slot = socket.slot;
    let _held = socket.lock_receive_in(flags)?;
    let ahead = if flags & MSG_PEEK == 0 { 0 } else { options::peek_offset(socket) };
    let head = slot.incoming().own_head().wrapping_add(ahead);
    let held = socket.received().saturating_sub(ahead);
    let mut step = urgent::Step { skip: 0, len: held.min(want as u64), ends: false };
    if socket.state() & is::URGENT != 0 {
        step = urgent::step(socket, head, held, want as u64, skip > 0);
    }
    let len = step.len as usize;
    if len == 0 {
        if step.skip > 0 && flags & MSG_PEEK == 0 {
            consume(socket, head, held, step.skip);
        }
        return Ok((0, step.ends));
    }
    let size = slot.receive_size.load(Ordering::Relaxed);
    let offset = slot.receive_offset.load(Ordering::Relaxed);
    let spans = socket.region.ring_spans(offset, size, head + step.skip, len).ok_or(libc::EIO)?;
    if flags & MSG_TRUNC == 0 {
        if memory::has_hole(iov, skip + len) {
            return Err(libc::EFAULT);
        }
        scatter(&spans, iov, skip);
    }
    if flags & MSG_PEEK == 0 {
        consume(socket, head, held, step.skip + step.len);
        options::move_peek_offset(socket, -(step.len as i64));
    }
    Ok((len, step.ends))
}

/// Advances the receive ring's head; tells the engine when the window is worth an update: the ring was at least
/// half full, or a quarter of it was passed. So a closed window always opens, and small reads cost nothing.
pub(crate) fn consume(socket: Socket, head: u64, held: u64, len: u64) {
    let size = u64::from(socket.receive_bound());
    socket.slot.incoming().free(head.wrapping_add(len));
    let quarter = (size / 4).max(1);
    if held >= size / 2 || head / quarter != head.wrapping_add(len) / quarter {
        socket.tell();
    }
}

/// `recv` and its kin.
pub(crate) fn receive(socket: Socket, iov: &[iovec], flags: c_int) -> isize {
    receive_patiently(socket, iov, flags, &mut Patience::default())
}

/// The same, in a call that goes on with what it is told of.
pub(crate) fn receive_patiently(
    socket: Socket,
    iov: &[iovec],
    flags: c_int,
    patience: &mut Patience,
) -> isize {
    // Its ring holds connections.
    if socket.state() & is::LISTENING != 0 {
        return err(libc::ENOTCONN);
    }
    if flags & MSG_OOB != 0 {
        return urgent::receive(socket, iov, flags);
    }
    let want = total(iov);
    let peek = flags & MSG_PEEK != 0;
    let target = if flags & MSG_WAITALL != 0 { want } else { want.min(socket.low_water() as usize) }.max(1);
    let mut done = 0;
    loop {
        // Looked at before the ring: what the engine put there first is then seen.
        let over = receive_over(socket);
        match take(socket, iov, done, want - done, flags) {
            // What was taken before is told, and not lost.
            Err(errno) => return if done > 0 { done as isize } else { err(errno) },
            // As Linux: who wants nothing waits until there is something.
            Ok(_) if want == 0 => {
                if socket.received() > urgent::hidden(socket) {
                    return 0;
                }
            }
            Ok((got, ends)) if peek => {
                if got >= target || (got > 0 && (over || ends || blocked(socket, flags))) {
                    options::move_peek_offset(socket, got as i64);
                    return got as isize;
                }
            }
            Ok((got, ends)) => {
                if got > 0 {
                    fruitless::found();
                }
                done += got;
                if done >= target || (got > 0 && done == want) || (done > 0 && ends) {
                    return done as isize;
                }
                if got > 0 && !over {
                    continue;
                }
            }
        }
        if attach::dead() {
            return if done > 0 { done as isize } else { err(libc::ECONNRESET) };
        }
        if over {
            match if done > 0 { Some(done as isize) } else { receive_end(socket) } {
                Some(result) => return result,
                None if blocked(socket, flags) => return err(libc::EAGAIN),
                None => continue,
            }
        }
        if blocked(socket, flags) {
            if done > 0 {
                return done as isize;
            }
            fruitless::found_nothing(socket.region);
            return err(libc::EAGAIN);
        }
        // More than the ring ever holds is waited for until the time is over, as on Linux.
        let needed = if peek { (target as u64).saturating_add(options::peek_offset(socket)) } else { 1 };
        let ready = || socket.received() >= needed + urgent::hidden(socket) || receive_over(socket);
        patience.has_part = done > 0;
        if let Err(errno) = patience.wait_for(socket, &socket.slot.receive_timeout_us, ready) {
            // A look that ends before there is all shows what is there.
            if peek && want > 0 && matches!(errno, libc::EAGAIN | libc::EINTR) {
                done = take(socket, iov, 0, want, flags).map_or(0, |(got, _)| got);
                options::move_peek_offset(socket, done as i64);
            }
            // As Linux: who wants nothing waits once.
            if want == 0 && matches!(errno, libc::EAGAIN | libc::EINTR) {
                return 0;
            }
            return if done > 0 { done as isize } else { err(errno) };
        }
    }
}

fn blocked(socket: Socket, flags: c_int) -> bool {
    flags & MSG_DONTWAIT != 0 || socket.non_blocking()
}

/// What nobody has read is for nobody.
pub(crate) fn drop_received(socket: Socket) {
    if let Ok(_held) = socket.lock_receive() {
        socket.slot.receive_head.store(socket.slot.receive_tail.load(Ordering::Acquire), Ordering::Release);
    }
}

/// What a read gives when the ring is empty and nothing will come: Linux's order of reasons. `None`: another thread has
/// heard what a router said, and the connection goes on.
fn receive_end(socket: Socket) -> Option<isize> {
    let state = socket.state();
    let is_unconnected = state & (is::CONNECTED | is::FAILED) == 0 || socket.is_unconnected_again();
    if !is_unconnected && state & is::PEER_FINISHED != 0 {
        return Some(0);
    }
    if !is_unconnected && state & is::FAILED != 0 {
        // Told once; then the stream is over.
        return Some(err(socket.take_error()));
    }
    if is_unconnected {
        let errno = socket.take_error();
        return Some(err(if errno == 0 { libc::ENOTCONN } else { errno }));
    }
    // The connection goes on (IP_RECVERR), or is shut down for reading.
    match socket.take_error() {
        0 => (socket.requests() & ask::SHUTDOWN_READ != 0).then_some(0),
        errno => Some(err(errno)),
    }
}

/// Nothing more can be sent.
fn send_over(socket: Socket) -> bool {
    let state = socket.state();
    state & is::FAILED != 0
        || state & (is::CONNECTING | is::CONNECTED) == 0
        || socket.has_error()
        || socket.requests() & ask::SHUTDOWN != 0
}

/// The error of a send that cannot be, and SIGPIPE where Linux raises it.
pub(crate) fn send_end(socket: Socket, flags: c_int) -> isize {
    let errno = socket.take_error();
    if errno != 0 && errno != libc::EPIPE {
        return err(errno);
    }
    if errno == 0 && !send_over(socket) {
        return err(libc::EAGAIN); // another thread has heard what a router said
    }
    if flags & MSG_NOSIGNAL == 0 {
        // SAFETY: raises a signal in this thread, as the kernel would.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    err(libc::EPIPE)
}

/// A connection is under way, and nothing may be sent before it stands.
fn is_connecting(socket: Socket) -> bool {
    let state = socket.state();
    state & is::CONNECTING != 0
        && state & (is::CONNECTED | is::FAILED) == 0
        && fast_open::room(socket).is_none()
}

/// The result of a call that asks for what cannot be: looked at once the connection stands (`tcp_sendmsg_locked`).
pub(crate) fn refuse(socket: Socket, flags: c_int, errno: c_int) -> isize {
    let timeout = &socket.slot.send_timeout_us;
    let stands = match is_connecting(socket) {
        true if blocked(socket, flags) => Err(libc::EAGAIN),
        true => Patience::default().wait_for(socket, timeout, || !is_connecting(socket)),
        false => Ok(()),
    };
    match stands {
        Err(errno) => err(errno),
        Ok(()) if send_over(socket) => send_end(socket, flags),
        Ok(()) => err(errno),
    }
}

/// Waits for a connection under way and for room. `Ok(true)`: there is some; `Ok(false)`: look at `send_over`.
///
/// # Errors
/// EAGAIN when that would block, or as [`wait::wait_for`].
pub(crate) fn await_room(socket: Socket, flags: c_int, patience: &mut Patience) -> Result<bool, c_int> {
    if attach::dead() {
        return Err(libc::ECONNRESET);
    }
    if send_over(socket) {
        return Ok(false);
    }
    let waits_for_peer = is_connecting(socket);
    if !waits_for_peer {
        if socket.sendable() > 0 {
            return Ok(true);
        }
        socket.slot.send_wanted.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if socket.sendable() > 0 {
            return Ok(true);
        }
    }
    if blocked(socket, flags) {
        return Err(libc::EAGAIN);
    }
    let ready = || send_over(socket) || (!is_connecting(socket) && socket.roomy_or_ask());
    patience.wait_for(socket, &socket.slot.send_timeout_us, ready)?;
    Ok(!send_over(socket))
}

/// True when the program says that more follows what it sends (TCP_CORK, MSG_MORE).
fn more_follows(socket: Socket, flags: c_int) -> bool {
    flags & MSG_MORE != 0 || socket.slot.kept_options.load(Ordering::Relaxed) & kept::CORK != 0
}

/// Gives the engine `len` bytes that were put behind `tail`; call with the send lock held. What fills no segment is held
/// back if more follows.
pub(crate) fn publish(socket: Socket, tail: u64, len: u64, flags: c_int) {
    let slot = socket.slot;
    let more = more_follows(socket, flags);
    let held = slot.held_from.load(Ordering::Relaxed);
    if more {
        let is_corked = slot.kept_options.load(Ordering::Relaxed) & kept::CORK != 0;
        let from = if held == 0 { tail.wrapping_add(1) } else { held & !(HELD_BY_CALL | HELD_UNFINISHED) };
        let who = if is_corked { 0 } else { HELD_BY_CALL };
        let last = if flags & MSG_MORE == 0 { 0 } else { HELD_UNFINISHED };
        slot.held_from.store(from | who | last, Ordering::Release);
    }
    slot.outgoing().publish(tail.wrapping_add(len));
    if held != 0 && !more {
        slot.held_from.store(0, Ordering::Release);
    }
}

/// `close` with SO_LINGER: waits until the peer has all that was written, or the time is over.
pub(crate) fn linger(socket: Socket) {
    let slot = socket.slot;
    let seconds = slot.linger_plus_one.load(Ordering::Relaxed).saturating_sub(1);
    let state = socket.state();
    if seconds == 0
        || !socket.is_held_once()
        || state & (is::CONNECTED | is::FAILED) != is::CONNECTED
        || socket.received() > 0
    {
        return;
    }
    socket.shut(ask::SHUTDOWN);
    let settled = || {
        slot.send_wanted.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        socket.state() & is::FAILED != 0 || slot.outgoing().held() == 0
    };
    // Interrupted, it ends early, as on Linux.
    let _ = wait::wait_for(socket, wait::deadline_us(u64::from(seconds) * 1_000_000), settled);
}

/// What was held back goes.
pub(crate) fn push_held(socket: Socket) {
    if socket.slot.held_from.swap(0, Ordering::AcqRel) != 0 {
        socket.tell();
    }
}

/// Tells the engine of new bytes. Where the program says that more follows, what fills no segment waits for that, and the
/// engine need not take its core back for it: it hears of it soon enough to begin the time that it waits at most.
pub(crate) fn tell_sent(socket: Socket, flags: c_int) {
    let half = socket.send_limit() / 2;
    if more_follows(socket, flags) && socket.sendable() > half {
        socket.tell_unhurried();
    } else {
        socket.tell();
    }
}

/// Puts what fits of `iov`, `skip` bytes into it.
pub(crate) fn put(
    socket: Socket,
    iov: &[iovec],
    skip: usize,
    want: usize,
    flags: c_int,
) -> Result<usize, c_int> {
    let slot = socket.slot;
    let _held = socket.lock_send_in(flags)?;
    let room = socket.sendable();
    let room = fast_open::room(socket).map_or(room, |with_syn| room.min(with_syn));
    let len = room.min(want as u64) as usize;
    if len == 0 {
        return Ok(0);
    }
    if memory::has_hole(iov, usize::MAX) {
        return Err(libc::EFAULT);
    }
    let tail = slot.outgoing().own_tail();
    let size = slot.send_size.load(Ordering::Relaxed);
    let offset = slot.send_offset.load(Ordering::Relaxed);
    let spans = socket.region.ring_spans(offset, size, tail, len).ok_or(libc::EIO)?;
    gather(&spans, iov, skip);
    urgent::announce(socket, tail.wrapping_add(len as u64), flags);
    // What does not fit leaves its part before it to go (Linux: `wait_for_space`).
    publish(socket, tail, len as u64, if len < want { flags & !MSG_MORE } else { flags });
    Ok(len)
}

/// `send` and its kin.
pub(crate) fn send(socket: Socket, iov: &[iovec], flags: c_int) -> isize {
    send_patiently(socket, iov, flags, &mut Patience::default())
}

fn send_patiently(socket: Socket, iov: &[iovec], flags: c_int, patience: &mut Patience) -> isize {
    let want = total(iov);
    let with_syn = fast_open::room(socket).is_some();
    let mut done = 0;
    loop {
        patience.has_part = done > 0;
        match await_room(socket, flags, patience) {
            Err(_) | Ok(false) if done > 0 => return done as isize,
            Err(errno) => return err(errno),
            Ok(false) => return send_end(socket, flags),
            Ok(true) => {}
        }
        if want == 0 {
            return 0;
        }
        match put(socket, iov, done, want - done, flags) {
            Err(_) if done > 0 => return done as isize,
            Err(errno) => return err(errno),
            Ok(0) => {}
            Ok(put) => {
                done += put;
                tell_sent(socket, if done < want { flags & !MSG_MORE } else { flags });
                let waits = !blocked(socket, flags);
                // What does not go with the SYN is for the next call of who does not wait, as on Linux, however soon the
                // answer comes.
                if done == want || with_syn && !waits {
                    let answered = with_syn && waits;
                    return if answered { fast_open::await_answer(socket, done) } else { done as isize };
                }
            }
        }
    }
}
