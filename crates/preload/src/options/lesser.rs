//! Options that few programs set: how a connection begins and ends, what it offers, from where a look without taking
//! begins, by which interface all goes; and those that are refused, because nothing here does what they ask for.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{IPPROTO_IP, IPPROTO_TCP, SOL_SOCKET, socklen_t};
use scoutline_abi::layout::{slot_option, slot_state as is};

use super::{ask, give, keep, kept_bit, kernel_int, of_kernel, tell, value};
use crate::real::err;
use crate::slot::{Socket, kept};
use crate::table::{self, Entry};
use crate::{engines, memory, reach, real};

/// Of `linux/tcp.h` and `asm-generic/socket.h`, where `libc` lacks them.
const TCP_SAVE_SYN: c_int = 27;
const TCP_MD5SIG_EXT: c_int = 32;
const TCP_INQ: c_int = 36;
const TCP_AO_ADD_KEY: c_int = 38;
const TCP_AO_INFO: c_int = 40;
const SO_BINDTOIFINDEX: c_int = 62;
/// Of `linux/in.h` and `linux/in6.h`.
const IP_BIND_ADDRESS_NO_PORT: c_int = 24;
const IP_LOCAL_PORT_RANGE: c_int = 51;
/// TCP_CM_INQ.
const INQ_MESSAGE: c_int = TCP_INQ;

/// MAX_TCP_SYNCNT, and `tcp_syn_retries` by default.
const MOST_SYNS: c_int = 127;
const USUAL_SYNS: c_int = 6;
/// TCP_FIN_TIMEOUT_MAX, and `tcp_fin_timeout` by default, in seconds.
const MOST_ORPHAN_S: c_int = 120;
const USUAL_ORPHAN_S: c_int = 60;
/// Half of SOCK_MIN_RCVBUF: the least TCP_WINDOW_CLAMP.
const LEAST_CLAMP: c_int = 1152;

/// What neither rings nor paths do: filters of what comes, or of who gets it; the SYN kept; signatures; a connection's
/// state taken apart. Taken in silence they would promise what does not hold.
const REFUSED: [(c_int, c_int); 10] = [
    (SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (SOL_SOCKET, libc::SO_ATTACH_BPF),
    (SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF),
    (SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF),
    (IPPROTO_TCP, TCP_SAVE_SYN),
    (IPPROTO_TCP, libc::TCP_MD5SIG),
    (IPPROTO_TCP, TCP_MD5SIG_EXT),
    (IPPROTO_TCP, TCP_AO_ADD_KEY),
    (IPPROTO_TCP, TCP_AO_INFO),
    (IPPROTO_TCP, libc::TCP_REPAIR),
];

/// Such an option was set on some socket while it was the kernel's: those that become ours are looked at.
static ANY_SET: AtomicBool = AtomicBool::new(false);

/// What is said to an option that is refused on a socket that is ours, or may become so; `None`: it is not.
pub(crate) fn refusal(
    fd: c_int,
    level: c_int,
    name: c_int,
    from: *const c_void,
    len: socklen_t,
) -> Option<isize> {
    if !REFUSED.contains(&(level, name)) {
        return None;
    }
    let is_stream = match table::look(fd) {
        Entry::Socket(slot) => Socket::at(slot).is_some_and(Socket::is_stream),
        Entry::Candidate { .. } => of_kernel(fd, libc::SO_TYPE) == libc::SOCK_STREAM,
        _ => return None,
    };
    let given = value::<c_int>(from, len);
    let is_refused = match (level, name) {
        // As to who may not.
        (IPPROTO_TCP, libc::TCP_REPAIR) if is_stream => return Some(given.err().unwrap_or(err(libc::EPERM))),
        (IPPROTO_TCP, TCP_SAVE_SYN) => is_stream && given.is_ok_and(|on| on != 0),
        (IPPROTO_TCP, _) => is_stream,
        _ => true,
    };
    is_refused.then(|| given.err().unwrap_or(err(libc::ENOPROTOOPT)))
}

/// `setsockopt` on a socket that is still the kernel's.
pub(crate) fn note(level: c_int, name: c_int) {
    let here = match level {
        SOL_SOCKET => matches!(
            name,
            libc::SO_PEEK_OFF | libc::SO_BINDTODEVICE | SO_BINDTOIFINDEX | libc::SO_INCOMING_CPU
        ),
        IPPROTO_TCP => {
            matches!(name, libc::TCP_SYNCNT | libc::TCP_LINGER2 | libc::TCP_WINDOW_CLAMP | TCP_INQ)
        }
        IPPROTO_IP => matches!(name, IP_BIND_ADDRESS_NO_PORT | IP_LOCAL_PORT_RANGE),
        _ => false,
    };
    if here {
        note_any();
    }
}

/// Sockets of the kernel's came with what somebody else has set.
pub(crate) fn note_any() {
    ANY_SET.store(true, Ordering::Relaxed);
}

/// False while no socket is known to be bound to an interface (SO_BINDTODEVICE), which takes a call of the kernel's to find
/// out of one.
pub(crate) fn may_be_bound_to_device() -> bool {
    ANY_SET.load(Ordering::Relaxed)
}

/// False for a socket of the kernel's that is bound to an interface which paths do not serve (SO_BINDTODEVICE).
pub(crate) fn may_be_ours(fd: c_int) -> bool {
    if !ANY_SET.load(Ordering::Relaxed) {
        return true;
    }
    let device = of_kernel(fd, SO_BINDTOIFINDEX).unsigned_abs();
    device == 0 || reach::is_served_interface(device)
}

/// What was set on the kernel's socket before it became ours.
pub(super) fn carry_over(fd: c_int, socket: Socket) {
    if !ANY_SET.load(Ordering::Relaxed) {
        return;
    }
    let device = of_kernel(fd, SO_BINDTOIFINDEX).unsigned_abs();
    if device != 0 {
        tell(socket, slot_option::DEVICE, device.into());
    }
    keep_offset(socket, super::kernel_value(fd, libc::SO_PEEK_OFF, -1));
    take_over_range(fd, socket);
    if !socket.is_stream() {
        return;
    }
    let core = super::kernel_value(fd, libc::SO_INCOMING_CPU, -1);
    if core >= 0 {
        tell_incoming_cpu(socket, core);
    }
    keep(socket, kept::TELLS_QUEUED, kernel_int(fd, IPPROTO_TCP, TCP_INQ) != 0);
    let fresh = real::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    if fresh < 0 {
        return; // what is configured holds
    }
    for name in [libc::TCP_SYNCNT, libc::TCP_LINGER2, libc::TCP_WINDOW_CLAMP] {
        let set = kernel_int(fd, IPPROTO_TCP, name);
        if set != kernel_int(fresh, IPPROTO_TCP, name) {
            tell_transport(socket, name, set);
        }
    }
    real::close_uncancelled(fresh);
}

/// Whether `bind` leaves the port open (IP_BIND_ADDRESS_NO_PORT), which the kernel's socket keeps.
pub(crate) fn binds_without_port(fd: c_int) -> bool {
    ANY_SET.load(Ordering::Relaxed) && kernel_int(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT) != 0
}

fn take_over_range(fd: c_int, socket: Socket) {
    let range = kernel_int(fd, IPPROTO_IP, IP_LOCAL_PORT_RANGE);
    socket.slot.port_range().store(range.cast_unsigned(), Ordering::Relaxed);
}

/// Options that the kernel's socket checks and keeps, and of which we have to know.
fn take_over(fd: c_int, socket: Socket, name: c_int, from: *const c_void, len: socklen_t) -> isize {
    let result = real::ours(real::setsockopt(fd, IPPROTO_IP, name, from, len) as isize);
    note_any();
    if result == 0 && name == IP_LOCAL_PORT_RANGE {
        take_over_range(fd, socket);
    }
    result
}

/// The core of the engine that serves a connection; `None`: it has not that of a connection, but what was set.
fn incoming_cpu(socket: Socket) -> Option<c_int> {
    if !socket.is_stream() || socket.state() & is::CONNECTED == 0 {
        return None;
    }
    let engine = engines::of_slot(socket.region, socket.index);
    let plus_one = engines::all(socket.region)[engine].cpu_plus_one.load(Ordering::Relaxed);
    Some(plus_one.cast_signed().wrapping_sub(1))
}

/// SO_INCOMING_CPU, which says of a connection where it is, whatever was set (`sk_incoming_cpu_update`). The kernel's socket
/// keeps it.
fn set_incoming_cpu(fd: c_int, socket: Socket, from: *const c_void, len: socklen_t) -> Result<isize, isize> {
    let core = value::<c_int>(from, len)?;
    if incoming_cpu(socket).is_some() {
        return Ok(0);
    }
    let result = real::ours(real::setsockopt(fd, SOL_SOCKET, libc::SO_INCOMING_CPU, from, len) as isize);
    if result == 0 && socket.is_stream() {
        return Ok(tell_incoming_cpu(socket, core));
    }
    Ok(result)
}

fn tell_incoming_cpu(socket: Socket, core: c_int) -> isize {
    let plus_one = u64::try_from(core).map_or(0, |core| core + 1);
    tell(socket, slot_option::INCOMING_CPU, plus_one)
}

/// Tells the engine of an option whose value was checked.
fn tell_transport(socket: Socket, name: c_int, value: c_int) -> isize {
    let (option, none) = match name {
        libc::TCP_SYNCNT => (slot_option::SYN_COUNT, 0),
        libc::TCP_LINGER2 => (slot_option::ORPHAN_WAIT, slot_option::AS_CLASS),
        _ => (slot_option::WINDOW_CLAMP, 0),
    };
    tell(socket, option, u64::try_from(value).unwrap_or(none))
}

/// `setsockopt` on a socket of ours; `None` where that is somebody else's affair.
pub(super) fn set(
    fd: c_int,
    socket: Socket,
    (level, name): (c_int, c_int),
    from: *const c_void,
    len: socklen_t,
) -> Option<Result<isize, isize>> {
    let int = || value::<c_int>(from, len);
    Some(match (level, name) {
        (SOL_SOCKET, libc::SO_BINDTODEVICE | SO_BINDTOIFINDEX) => bind_to(fd, socket, name, from, len),
        (SOL_SOCKET, libc::SO_INCOMING_CPU) => set_incoming_cpu(fd, socket, from, len),
        (SOL_SOCKET, libc::SO_PEEK_OFF) => int().map(|offset| {
            keep_offset(socket, offset);
            0
        }),
        (IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT | IP_LOCAL_PORT_RANGE) => {
            Ok(take_over(fd, socket, name, from, len))
        }
        _ if level != IPPROTO_TCP || !socket.is_stream() => return None,
        (_, TCP_INQ) => int().and_then(|on| {
            if !(0..=1).contains(&on) {
                return Err(err(libc::EINVAL));
            }
            keep(socket, kept::TELLS_QUEUED, on != 0);
            Ok(0)
        }),
        // The kernel's socket has no connection.
        (_, libc::TCP_QUEUE_SEQ)
            if socket.state() & (is::LISTENING | is::CONNECTING | is::CONNECTED) != 0 =>
        {
            Err(int().err().unwrap_or(err(libc::EPERM)))
        }
        (_, libc::TCP_SYNCNT) => int().and_then(|count| match count {
            1..=MOST_SYNS => Ok(tell_transport(socket, name, count)),
            _ => Err(err(libc::EINVAL)),
        }),
        (_, libc::TCP_LINGER2) => {
            int().map(|seconds| tell_transport(socket, name, seconds.clamp(-1, MOST_ORPHAN_S)))
        }
        (_, libc::TCP_WINDOW_CLAMP) => int().and_then(|bytes| match bytes {
            0 if socket.state() & (is::LISTENING | is::CONNECTING | is::CONNECTED) != 0 => {
                Err(err(libc::EINVAL))
            }
            0 => Ok(tell_transport(socket, name, 0)),
            _ => Ok(tell_transport(socket, name, bytes.max(LEAST_CLAMP))),
        }),
        _ => return None,
    })
}

/// The interface that a program names, by Linux's number; 0: none.
fn interface(name: c_int, from: *const c_void, len: socklen_t) -> Result<u32, isize> {
    if name == SO_BINDTOIFINDEX {
        return value::<c_int>(from, len).map(|number| number.max(0).unsigned_abs());
    }
    if len > 0 && memory::is_nowhere(from) {
        return Err(err(libc::EFAULT));
    }
    let mut text: [c_char; libc::IF_NAMESIZE] = [0; libc::IF_NAMESIZE];
    let len = (len as usize).min(text.len() - 1);
    // SAFETY: the program vouches for its bytes; they fit, and a zero stays behind them.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast(), text.as_mut_ptr(), len);
        if text[0] == 0 {
            return Ok(0);
        }
        match libc::if_nametoindex(CStr::from_ptr(text.as_ptr()).as_ptr()) {
            0 => Err(err(libc::ENODEV)),
            number => Ok(number),
        }
    }
}

/// A socket of ours cannot leave its paths any more, nor those that it has by being bound.
fn bind_to(
    fd: c_int,
    socket: Socket,
    name: c_int,
    from: *const c_void,
    len: socklen_t,
) -> Result<isize, isize> {
    let device = interface(name, from, len)?;
    let has = of_kernel(fd, SO_BINDTOIFINDEX).unsigned_abs();
    if device != 0 && !reach::is_served_interface(device) {
        return Err(err(libc::ENODEV));
    }
    if device != has && socket.state() & is::BOUND != 0 && reach::serves_several() {
        return Err(err(libc::EINVAL));
    }
    // The kernel knows who may, and tells what is set.
    let result = real::ours(real::setsockopt(fd, SOL_SOCKET, name, from, len) as isize);
    if result < 0 {
        return Err(result);
    }
    note_any();
    Ok(tell(socket, slot_option::DEVICE, device.into()))
}

/// `getsockopt` on a socket of ours; `None` where the kernel's socket knows.
pub(super) fn get(
    socket: Socket,
    (level, name): (c_int, c_int),
    to: *mut c_void,
    len: *mut socklen_t,
) -> Option<isize> {
    if (level, name) == (SOL_SOCKET, libc::SO_COOKIE) {
        return cookie(socket, to, len);
    }
    if (level, name) == (SOL_SOCKET, libc::SO_PEEK_OFF) {
        let offset = !socket.slot.peek_offset_inverted.load(Ordering::Relaxed).cast_signed();
        return Some(give(offset, to, len));
    }
    if (level, name) == (SOL_SOCKET, libc::SO_INCOMING_CPU) {
        return incoming_cpu(socket).map(|core| give(core, to, len));
    }
    if !socket.is_stream() {
        return None;
    }
    if (level, name) == (SOL_SOCKET, libc::SO_MAX_PACING_RATE) {
        return Some(max_pacing_rate(socket, to, len));
    }
    let (option, usual) = match (level, name) {
        (IPPROTO_TCP, TCP_INQ) => return Some(give(kept_bit(socket, kept::TELLS_QUEUED), to, len)),
        (IPPROTO_TCP, libc::TCP_SYNCNT) => (slot_option::SYN_COUNT, USUAL_SYNS),
        (IPPROTO_TCP, libc::TCP_LINGER2) => (slot_option::ORPHAN_WAIT, USUAL_ORPHAN_S),
        (IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) if socket.state() & is::CONNECTED == 0 => {
            (slot_option::WINDOW_CLAMP, 0)
        }
        // Where nothing was set Linux has what it chose when the connection began.
        (IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => {
            let ring = socket.slot.receive_size.load(Ordering::Relaxed);
            (slot_option::WINDOW_CLAMP, ring.cast_signed())
        }
        _ => return None,
    };
    let (answer, _) = ask(socket, option, 0);
    if answer < 0 {
        return Some(answer as isize);
    }
    // As nothing below 0 can be answered, that of TCP_LINGER2 is one more.
    let set = if option == slot_option::ORPHAN_WAIT { answer - 1 } else { answer };
    Some(give(if set == 0 { usual } else { set }, to, len))
}

/// The engine has it from who was set or accepted; the kernel's socket behind may say something else by it, see
/// `abi::stand_in`.
///
/// # Errors
/// What the engine says.
pub(super) fn pacing_rate(socket: Socket) -> Result<u64, isize> {
    // `tcpi_max_pacing_rate` of `struct tcp_info`.
    const AT: u64 = 112;
    let (answer, page) = ask(socket, slot_option::INFO, AT / 32);
    if answer < 0 { Err(answer as isize) } else { Ok(page[(AT % 32 / 8) as usize]) }
}

/// SO_MAX_PACING_RATE: as many bits as there is room for (`sk_getsockopt`).
fn max_pacing_rate(socket: Socket, to: *mut c_void, len: *mut socklen_t) -> isize {
    let rate = match pacing_rate(socket) {
        Ok(rate) => rate,
        Err(answer) => return answer,
    };
    // SAFETY: the program vouches for its length.
    let is_long =
        !memory::is_nowhere(len) && unsafe { std::ptr::read_unaligned(len) } as usize >= size_of::<u64>();
    if is_long { give(rate, to, len) } else { give(u32::try_from(rate).unwrap_or(u32::MAX), to, len) }
}

/// SO_COOKIE. Who has a kernel socket of its own has had that one's since it was made.
fn cookie(socket: Socket, to: *mut c_void, len: *mut socklen_t) -> Option<isize> {
    if kept_bit(socket, kept::ACCEPTED) == 0 {
        return None;
    }
    if !memory::is_nowhere(len) {
        // SAFETY: the program vouches for its length.
        let room = unsafe { std::ptr::read_unaligned(len) };
        if (room as usize) < size_of::<u64>() {
            return Some(err(libc::EINVAL));
        }
    }
    Some(give(socket.cookie(), to, len))
}

fn keep_offset(socket: Socket, offset: c_int) {
    socket.slot.peek_offset_inverted.store((!offset).cast_unsigned(), Ordering::Relaxed);
}

/// From where in what is there MSG_PEEK looks (SO_PEEK_OFF).
pub(crate) fn peek_offset(socket: Socket) -> u64 {
    peek_mark(socket).map_or(0, |mark| mark as u64)
}

/// The same, if the program has said so.
pub(crate) fn peek_mark(socket: Socket) -> Option<usize> {
    let offset = !socket.slot.peek_offset_inverted.load(Ordering::Relaxed).cast_signed();
    usize::try_from(offset).ok()
}

/// So many bytes were looked at (above 0), or taken: the next look begins behind them (`sk_peek_offset_fwd`, `_bwd`).
pub(crate) fn move_peek_offset(socket: Socket, by: i64) {
    let offset = !socket.slot.peek_offset_inverted.load(Ordering::Relaxed).cast_signed();
    if offset >= 0 {
        let moved = (i64::from(offset) + by).clamp(0, c_int::MAX.into());
        keep_offset(socket, moved as c_int);
    }
}

/// TCP_INQ: what a `recvmsg` tells of what is left to read, as level, kind and value.
pub(crate) fn queued(socket: Socket) -> Option<(c_int, c_int, c_int)> {
    if kept_bit(socket, kept::TELLS_QUEUED) == 0 {
        return None;
    }
    let left = crate::urgent::readable(socket).min(c_int::MAX.cast_unsigned().into()) as c_int;
    // After a FIN there is something to read, too: the end (`tcp_inq_hint`).
    let ended = left == 0 && socket.state() & is::PEER_FINISHED != 0;
    Some((IPPROTO_TCP, INQ_MESSAGE, left.max(c_int::from(ended))))
}
