//! The queue of errors about datagrams (MSG_ERRQUEUE; ip(7), IP_RECVERR; recv(2)), in which notices of
//! [`zero_copy`] stand, too.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{IPPROTO_IP, IPPROTO_IPV6, MSG_ERRQUEUE, MSG_TRUNC, iovec, msghdr};
use scoutline_abi::Span2;
use scoutline_abi::datagram::{ERROR_COUNT, ERROR_HEADER_LEN, ERROR_LEN, ErrorRecord, origin};
use scoutline_abi::layout::{call_op, datagram_flag as want, slot_option, slot_state as is};

use crate::address::{self, Name};
use crate::control::{Extended, Writer};
use crate::slot::Socket;
use crate::stream::{scatter, total};
use crate::{call, options, zero_copy};

impl Socket {
    /// Errors that wait. Garbage from the other side counts as nothing.
    pub(crate) fn errors_waiting(self) -> u32 {
        let slot = self.slot;
        if slot.errors_queued.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let waiting =
            slot.errors_tail.load(Ordering::Acquire).wrapping_sub(slot.errors_head.load(Ordering::Acquire));
        if waiting as usize > ERROR_COUNT { 0 } else { waiting }
    }

    /// The error with this number: its header, and where what it quotes stands.
    fn error_at(self, number: u32) -> Option<(ErrorRecord, Span2)> {
        let at = u64::from(number) % ERROR_COUNT as u64 * ERROR_LEN as u64;
        let size = (ERROR_COUNT * ERROR_LEN) as u32;
        let offset = self.slot.errors_offset.load(Ordering::Relaxed);
        let spans = self.region.ring_spans(offset, size, at, ERROR_HEADER_LEN)?;
        let mut bytes = [0u8; ERROR_HEADER_LEN];
        scatter(&spans, &[iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: ERROR_HEADER_LEN }], 0);
        let error = ErrorRecord::from_bytes(bytes);
        let quoted = at + ERROR_HEADER_LEN as u64;
        Some((error, self.region.ring_spans(offset, size, quoted, error.quoted_len as usize)?))
    }
}

/// Takes the oldest error, with what it quotes; never waits. With it the pending error (SO_ERROR) becomes that of the
/// next, as Linux's `sock_dequeue_err_skb` has it.
fn take(socket: Socket, iov: &[iovec]) -> Option<ErrorRecord> {
    let _held = socket.lock_receive().ok()?;
    if socket.errors_waiting() == 0 {
        return None;
    }
    let head = socket.slot.errors_head.load(Ordering::Relaxed);
    let (error, quoted) = socket.error_at(head)?;
    scatter(&quoted, iov, 0);
    let from_wire = |error: &ErrorRecord| error.origin != origin::LOCAL;
    socket.slot.errors_head.store(head.wrapping_add(1), Ordering::Release);
    let next = (socket.errors_waiting() > 0).then(|| socket.error_at(head.wrapping_add(1))).flatten();
    match next.map(|(next, _)| next).filter(from_wire) {
        Some(next) => socket.slot.error.store(next.errno.cast_signed(), Ordering::Release),
        None if from_wire(&error) => socket.slot.error.store(0, Ordering::Release),
        None => {}
    }
    Some(error)
}

/// A receiving call with MSG_ERRQUEUE: what the error quotes, and into `message`, where its datagram was to go and the
/// error, or notice, beside it. How many bytes were copied.
pub(crate) fn receive(socket: Socket, iov: &[iovec], message: &mut msghdr) -> Result<usize, c_int> {
    let taken = take(socket, iov).map(|error| (error, 0)).or_else(|| zero_copy::take(socket));
    let (error, data) = taken.ok_or(libc::EAGAIN)?;
    let quoted_len = error.quoted_len as usize;
    let copied = quoted_len.min(total(iov));
    let inet6 = socket.is_inet6();
    let is_notice = error.origin == origin::ZERO_COPY;
    if message.msg_name.is_null() || is_notice {
        message.msg_namelen = 0;
    } else {
        let to = Name { address: error.address, port: error.port, scope: error.interface };
        address::write(to, inet6, message.msg_name.cast(), &raw mut message.msg_namelen);
    }
    message.msg_flags = MSG_ERRQUEUE | if copied < quoted_len { MSG_TRUNC } else { 0 };
    let mut writer = Writer::new(message);
    // What this machine says itself has no offender: an address of no family.
    let offender = Name { address: error.offender, port: 0, scope: error.interface };
    let offender = Some(offender).filter(|_| error.origin != origin::LOCAL && !is_notice);
    if inet6 {
        let none = libc::sockaddr_in6 { sin6_family: 0, ..address::sockaddr_v6(Name::default()) };
        let offender = offender.map_or(none, address::sockaddr_v6);
        writer.put(IPPROTO_IPV6, libc::IPV6_RECVERR, &extended(&error, data, offender));
    } else {
        let none = libc::sockaddr_in { sin_family: 0, ..address::sockaddr_v4(Name::default()) };
        let offender = offender.map_or(none, address::sockaddr_v4);
        writer.put(IPPROTO_IP, libc::IP_RECVERR, &extended(&error, data, offender));
    }
    writer.finish(message);
    Ok(copied)
}

fn extended<A: Copy>(error: &ErrorRecord, data: u32, offender: A) -> Extended<A> {
    Extended {
        errno: error.errno,
        origin: error.origin,
        kind: error.kind,
        code: error.code,
        pad: 0,
        info: error.info,
        data,
        offender,
    }
}

/// A datagram was too long to be sent whole: queued for who asks for errors, as Linux's `ip_local_error`.
pub(crate) fn too_long(socket: Socket, to: Name, mtu: u32) {
    let wanted = if to.address.is_v4() { want::ERRORS } else { want::ERRORS6 };
    if socket.slot.datagram_flags.load(Ordering::Relaxed) & wanted != 0 {
        let [high, low] = to.address.words();
        // `ip_local_error` is told the connected peer's.
        let by_port = !to.address.is_v4() || socket.state() & is::CONNECTED != 0;
        let port = if by_port { to.port } else { 0 };
        call::call(call_op::TOO_LONG, socket.index, [low, u64::from(port) | u64::from(mtu) << 16, 0, high]);
    }
}

/// Has the engine make room for errors.
pub(crate) fn want_queue(socket: Socket) -> isize {
    options::tell(socket, slot_option::QUEUE_ERRORS, 1)
}
