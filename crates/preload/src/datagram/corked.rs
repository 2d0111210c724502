//! Datagrams made by several calls (MSG_MORE, UDP_CORK; udp(7)): they are held back until a call says that no more follows,
//! or the socket is corked no longer.
//!
//! What is held back stands in the send ring behind its tail, where the engine does not look: its record, and what was
//! given of it. How much that is, plus one, is in `held_from` of the slot, so that all processes that have the socket add
//! to the same datagram; it changes with the send lock held. A close drops it.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{MSG_MORE, iovec};
use scoutline_abi::datagram::{HEADER_LEN, Record};

use super::{check_len, connected_peer};
use crate::address::Name;
use crate::real::err;
use crate::slot::{Socket, kept};
use crate::stream::{gather, scatter, total};

/// No result of a call: nothing is held back any more.
pub(super) const NONE_HELD: isize = isize::MIN;

/// What came of one try.
pub(super) enum Put {
    /// The result of the call.
    Done(isize),
    /// An errno.
    Failed(c_int),
    /// So many bytes of the ring are needed.
    NoRoom(u64),
}

/// A datagram is held back.
pub(super) fn is_held(socket: Socket) -> bool {
    socket.slot.held_from.load(Ordering::Acquire) != 0
}

/// Of what is held back nothing is sent.
pub(super) fn drop_held(socket: Socket) {
    if let Ok(_held) = socket.lock_send() {
        socket.slot.held_from.store(0, Ordering::Release);
    }
}

/// More follows what this call sends.
fn more_follows(socket: Socket, flags: c_int) -> bool {
    flags & MSG_MORE != 0 || socket.slot.kept_options.load(Ordering::Relaxed) & kept::CORK != 0
}

/// Puts a datagram with this record into the ring, or adds to the one that is held back.
pub(super) fn put(socket: Socket, iov: &[iovec], record: Option<&Record>, flags: c_int) -> Put {
    let slot = socket.slot;
    let held = match socket.lock_send_in(flags) {
        Ok(held) => held,
        Err(errno) => return Put::Failed(errno),
    };
    let before = slot.held_from.load(Ordering::Relaxed).checked_sub(1);
    let ring = Ring::of(socket);
    let known = if before.is_some() { ring.record() } else { record.copied() };
    let Some(known) = known else {
        // Nothing is held back, or the ring is garbage.
        return if before.is_none() { Put::Done(NONE_HELD) } else { Put::Failed(libc::EIO) };
    };
    let len = total(iov);
    let whole = len.saturating_add(before.unwrap_or(0) as usize);
    if before.is_some()
        && let Err(errno) = check_len(socket, whole, destination(socket, &known), known.segment, None)
    {
        return Put::Failed(errno);
    }
    let step = Record::ring_len(whole);
    if step > u64::from(ring.size) {
        return Put::Failed(libc::EMSGSIZE);
    }
    if socket.sendable() < step {
        return Put::NoRoom(step);
    }
    let at = ring.tail.wrapping_add((HEADER_LEN + whole - len) as u64);
    let Some(spans) = socket.region.ring_spans(ring.offset, ring.size, at, len) else {
        return Put::Failed(libc::EIO);
    };
    gather(&spans, iov, 0);
    let more = more_follows(socket, flags);
    let done = if more { ring.write_record(&known) } else { ring.publish(known, whole) };
    if !done {
        return Put::Failed(libc::EIO);
    }
    slot.held_from.store(if more { whole as u64 + 1 } else { 0 }, Ordering::Release);
    drop(held);
    if !more {
        socket.tell();
    }
    Put::Done(len as isize)
}

/// The socket is corked no longer: what is held back goes.
pub(crate) fn push(socket: Socket) -> isize {
    if !is_held(socket) {
        return 0;
    }
    let held = match socket.lock_send() {
        Ok(held) => held,
        Err(errno) => return err(errno),
    };
    let Some(len) = socket.slot.held_from.swap(0, Ordering::AcqRel).checked_sub(1) else { return 0 };
    let ring = Ring::of(socket);
    let Some(record) = ring.record() else { return err(libc::EIO) };
    let sent = ring.publish(record, len as usize);
    drop(held);
    socket.tell();
    if sent { 0 } else { err(libc::EIO) }
}

fn destination(socket: Socket, record: &Record) -> Name {
    match record.port {
        0 => connected_peer(socket),
        port => Name { address: record.address, port, scope: record.interface },
    }
}

/// The send ring, with its lock held.
struct Ring {
    socket: Socket,
    tail: u64,
    offset: u64,
    size: u32,
}

impl Ring {
    fn of(socket: Socket) -> Ring {
        let slot = socket.slot;
        Ring {
            socket,
            tail: slot.outgoing().own_tail(),
            offset: slot.send_offset.load(Ordering::Relaxed),
            size: slot.send_size.load(Ordering::Relaxed),
        }
    }

    /// The record behind the tail.
    fn record(&self) -> Option<Record> {
        let mut header = [0u8; HEADER_LEN];
        let to = [iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER_LEN }];
        scatter(&self.socket.region.ring_spans(self.offset, self.size, self.tail, HEADER_LEN)?, &to, 0);
        Some(Record::from_bytes(header))
    }

    fn write_record(&self, record: &Record) -> bool {
        let header = record.to_bytes();
        let from = [iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: HEADER_LEN }];
        let spans = self.socket.region.ring_spans(self.offset, self.size, self.tail, HEADER_LEN);
        spans.inspect(|spans| gather(spans, &from, 0)).is_some()
    }

    /// Gives the engine what stands behind the tail, `len` bytes of data.
    fn publish(&self, record: Record, len: usize) -> bool {
        let segment = if len > usize::from(record.segment) { record.segment } else { 0 };
        let step = Record::ring_len(len);
        let fits = step <= self.socket.sendable();
        let written = fits && self.write_record(&Record { len: len as u32, segment, ..record });
        if written {
            self.socket.slot.outgoing().publish(self.tail.wrapping_add(step));
        }
        written
    }
}
