//! What the engine tells of a connection: TCP_INFO whole, and single words of it that other calls need.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use libc::{IPPROTO_TCP, socklen_t};
use scoutline_abi::layout::{call_op, slot_option, slot_request, slot_state as is};

use crate::lock::once;
use crate::real::err;
use crate::slot::Socket;
use crate::{call, memory, real};

/// Length of `struct tcp_info` as we know it (Linux 6.7), in words of eight bytes; programs may ask for less.
const TCP_INFO_WORDS: usize = 31;
/// More than kernels have of it.
const MOST_TCP_INFO_WORDS: usize = 64;
/// `tcpi_state` of `struct tcp_info`: TCP_TIME_WAIT and TCP_CLOSE.
const TIME_WAIT: u64 = 6;
const CLOSE: u64 = 7;

/// TCP_INFO of a socket of ours.
pub(super) fn give_all(fd: c_int, socket: Socket, to: *mut c_void, len: *mut socklen_t) -> isize {
    let told = |mut info: [u64; TCP_INFO_WORDS]| {
        // On Linux TIME-WAIT goes on without the socket, which is closed (`tcp_time_wait`).
        if info[0] & 0xff == TIME_WAIT {
            info[0] += CLOSE - TIME_WAIT;
        }
        give(&info, fd, to, len)
    };
    tcp_info(socket).map_or_else(|failed| failed, told)
}

/// SIOCOUTQNSD: bytes of the outgoing stream that were not sent yet.
pub(crate) fn unsent(socket: Socket) -> u64 {
    // `tcpi_notsent_bytes` of `struct tcp_info`.
    const AT: u64 = 144;
    let (result, page) = ask(socket, slot_option::INFO, AT / 32);
    if result < 0 { 0 } else { page[(AT % 32 / 8) as usize] & u64::from(u32::MAX) }
}

/// What `listen` was asked for, in whichever process or image: as many may wait.
pub(crate) fn backlog(socket: Socket) -> c_int {
    // `tcpi_sacked` of `struct tcp_info`.
    let (result, page) = ask(socket, slot_option::INFO, 0);
    if result < 0 { libc::SOMAXCONN } else { (page[3] >> 32) as c_int }
}

/// SIOCOUTQ: bytes of the outgoing stream that are not acknowledged, its end being one.
pub(crate) fn unacknowledged(socket: Socket) -> u64 {
    let tail = socket.slot.send_tail.load(Ordering::Relaxed);
    let held = tail.wrapping_sub(socket.slot.send_head.load(Ordering::Acquire));
    // `tcpi_state` of `struct tcp_info`: TCP_FIN_WAIT1, TCP_LAST_ACK, TCP_CLOSING.
    let is_ending = |state: u64| matches!(state, 4 | 9 | 11);
    let ends = socket.is_stream() && socket.requests() & slot_request::SHUTDOWN != 0;
    let end = ends && matches!(ask(socket, slot_option::INFO, 0), (0, [word, ..]) if is_ending(word & 0xff));
    held + u64::from(end)
}

/// The connection has ended in both directions, and the peer knows: it is in TIME-WAIT, or gone.
pub(crate) fn has_ended(socket: Socket) -> bool {
    let is_over = |state: u64| state == TIME_WAIT || state == CLOSE;
    let both = socket.state() & is::PEER_FINISHED != 0 && socket.requests() & slot_request::SHUTDOWN != 0;
    both && matches!(ask(socket, slot_option::INFO, 0), (0, [word, ..]) if is_over(word & 0xff))
}

/// IP_MTU of a connection.
pub(crate) fn path_mtu(socket: Socket) -> c_int {
    // `tcpi_pmtu` of `struct tcp_info`.
    const AT: u64 = 60;
    let (result, page) = ask(socket, slot_option::INFO, AT / 32);
    if result < 0 { 0 } else { (page[(AT % 32 / 8) as usize] >> 32) as c_int }
}

/// What the engine says to GET_OPTION.
pub(crate) fn ask(socket: Socket, option: u64, page: u64) -> (i32, [u64; 4]) {
    call::call_for(call_op::GET_OPTION, socket.index, [option, page, 0, 0])
}

/// Linux's `struct tcp_info`, a page at a time. The pages may be of different moments.
fn tcp_info(socket: Socket) -> Result<[u64; TCP_INFO_WORDS], isize> {
    let mut info = [0; TCP_INFO_WORDS];
    for (page, words) in info.chunks_mut(4).enumerate() {
        let (result, arguments) = ask(socket, slot_option::INFO, page as u64);
        if result < 0 {
            return Err(result as isize);
        }
        words.copy_from_slice(&arguments[..words.len()]);
    }
    Ok(info)
}

/// As much of TCP_INFO as this kernel has: what later ones added (AccECN) is zeros.
fn give(known: &[u64; TCP_INFO_WORDS], fd: c_int, to: *mut c_void, len: *mut socklen_t) -> isize {
    static KERNEL_LEN: OnceLock<usize> = OnceLock::new();
    let mut info = [0u64; MOST_TCP_INFO_WORDS];
    let whole = *once(&KERNEL_LEN, || {
        let mut len = size_of_val(&info) as socklen_t;
        real::getsockopt(fd, IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len);
        len as usize
    });
    info = [0; MOST_TCP_INFO_WORDS];
    info[..known.len()].copy_from_slice(known);
    if memory::is_nowhere(to) || memory::is_nowhere(len) {
        return err(libc::EFAULT);
    }
    // SAFETY: the program vouches for `len` and `*len` bytes at `to`; no more is written, nor read than `info` has.
    unsafe {
        let room = (ptr::read_unaligned(len) as usize).min(whole.min(size_of_val(&info)));
        ptr::copy_nonoverlapping(info.as_ptr().cast::<u8>(), to.cast(), room);
        ptr::write_unaligned(len, room as socklen_t);
    }
    0
}
