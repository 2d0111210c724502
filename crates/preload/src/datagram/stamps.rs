//! When the last datagram came that was read (SIOCGSTAMP, SIOCGSTAMPNS; socket(7)).

use std::ffi::c_ulong;
use std::ptr;
use std::sync::atomic::Ordering;

use libc::timespec;
use scoutline_abi::datagram::Record;
use scoutline_abi::layout::datagram_flag as want;

use crate::real::err;
use crate::slot::{Socket, kept};
use crate::{control, memory, options, real};

/// SIOCGSTAMP and SIOCGSTAMPNS of `asm/sockios.h` and `linux/sockios.h`, by their old numbers and by those of 64-bit time.
/// On 64-bit machines both tell the same.
const IN_MICROSECONDS: [c_ulong; 2] = [0x8906, 0x8010_8906];
const IN_NANOSECONDS: [c_ulong; 2] = [0x8907, 0x8010_8907];

/// Read, and nobody had asked when it came.
const NOT_NOTED: u64 = 1;
const NS: u64 = 1_000_000_000;

/// One of these requests.
pub(crate) fn is_request(request: c_ulong) -> bool {
    IN_MICROSECONDS.contains(&request) || IN_NANOSECONDS.contains(&request)
}

/// A datagram is read. It is not noted where its time is told beside it (`sock_recv_cmsgs`).
pub(super) fn note(socket: Socket, record: &Record) {
    let slot = socket.slot;
    if slot.datagram_flags.load(Ordering::Relaxed) & (want::TIME | want::TIMING) != 0 {
        return;
    }
    if slot.kept_options.load(Ordering::Relaxed) & kept::NOTES_TIMES != 0 {
        let time = control::wall_time(record.arrival_ns);
        slot.last_read().store(time.tv_sec as u64 * NS + time.tv_nsec as u64, Ordering::Relaxed);
    } else if slot.last_read().load(Ordering::Relaxed) == 0 {
        slot.last_read().store(NOT_NOTED, Ordering::Relaxed);
    }
}

/// Answers such a request: from the first one on times are noted; that of what was read before is now (`sock_gettstamp`).
pub(crate) fn tell(socket: Socket, request: c_ulong, argument: usize) -> isize {
    options::keep(socket, kept::NOTES_TIMES, true);
    let slot = socket.slot;
    let noted = if socket.is_stream() { 0 } else { slot.last_read().load(Ordering::Relaxed) };
    let ns = match noted {
        0 => return err(libc::ENOENT),
        NOT_NOTED => {
            let now = real::wall_ns();
            slot.last_read().store(now, Ordering::Relaxed);
            now
        }
        ns => ns,
    };
    let to = ptr::with_exposed_provenance_mut::<timespec>(argument);
    if memory::is_nowhere(to) {
        return err(libc::EFAULT);
    }
    let divisor = if IN_MICROSECONDS.contains(&request) { 1000 } else { 1 };
    let time = timespec { tv_sec: (ns / NS) as i64, tv_nsec: (ns % NS / divisor) as i64 };
    // SAFETY: the program vouches for its place.
    unsafe { ptr::write_unaligned(to, time) };
    0
}

/// SO_TIMESTAMP and its kin have it noted, too, when they are switched off again.
pub(crate) fn on_times_wanted(socket: Socket) {
    options::keep(socket, kept::NOTES_TIMES, true);
}
