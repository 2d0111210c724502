//! MSG_ZEROCOPY (Linux's `Documentation/networking/msg_zerocopy.rst`): taken, and told to be complete.
//!
//! Bytes are always copied into the socket's ring, so the program's memory is its own again when the call returns. It
//! is told at once, and each notice says that a copy was made (SO_EE_CODE_ZEROCOPY_COPIED): a program that looks at
//! that does not ask again. Linux says the same of what stays on the machine.
//!
//! A notice names the sends that it is about, counted from 0 on, and what waits is merged as Linux merges neighbours.
//! Since all are alike, the queue is two numbers in the slot. On Linux notices and errors about datagrams come in one
//! order; here the errors come first.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::MSG_ZEROCOPY;
use scoutline_abi::datagram::{ErrorRecord, origin};

use crate::slot::{Socket, kept};

/// Not in `libc` for every target.
pub(crate) const SO_ZEROCOPY: c_int = 60;
/// SO_EE_CODE_ZEROCOPY_COPIED of `linux/errqueue.h`.
const COPIED: u8 = 1;

/// A call with these flags has sent so much (below 0: it has failed): it is complete, if its program wants to hear of
/// that. Answers what it is given.
#[inline]
pub(crate) fn sent(socket: Socket, flags: c_int, result: isize) -> isize {
    // A datagram without data is sent, too.
    if flags & MSG_ZEROCOPY != 0 && (result > 0 || result == 0 && !socket.is_stream()) {
        complete(socket);
    }
    result
}

#[cold]
fn complete(socket: Socket) {
    let slot = socket.slot;
    if slot.kept_options.load(Ordering::Acquire) & kept::ZERO_COPY == 0 {
        return;
    }
    slot.zero_copy_done.fetch_add(1, Ordering::AcqRel);
    slot.kept_options.fetch_or(kept::COMPLETES, Ordering::AcqRel);
    socket.wake_all();
}

/// Notices wait.
#[inline]
pub(crate) fn is_waiting(socket: Socket) -> bool {
    let slot = socket.slot;
    slot.kept_options.load(Ordering::Relaxed) & kept::COMPLETES != 0
        && slot.zero_copy_done.load(Ordering::Acquire) != slot.zero_copy_told.load(Ordering::Acquire)
}

/// Takes what waits, as one notice, and the number of the last send that it is about; its `info` is that of the first.
pub(crate) fn take(socket: Socket) -> Option<(ErrorRecord, u32)> {
    let slot = socket.slot;
    if !is_waiting(socket) {
        return None;
    }
    let _held = socket.lock_receive().ok()?;
    let done = slot.zero_copy_done.load(Ordering::Acquire);
    let first = slot.zero_copy_told.swap(done, Ordering::AcqRel);
    let notice =
        ErrorRecord { origin: origin::ZERO_COPY, code: COPIED, info: first, ..ErrorRecord::default() };
    (first != done).then(|| (notice, done.wrapping_sub(1)))
}
