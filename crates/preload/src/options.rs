//! Socket options of our sockets. What the engine needs is told to it, what programs read back is kept in the slot,
//! and what we do not know goes to the kernel's socket, which also checks it.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use libc::{IPPROTO_TCP, SOL_SOCKET, socklen_t, timeval};
use scoutline_abi::layout::{call_op, slot_option, slot_request, slot_state as is};
use scoutline_scout::SOL_SCOUT;

use crate::real::err;
use crate::slot::{Socket, kept};
use crate::zero_copy::SO_ZEROCOPY;
use crate::{bind, call, fast_open, headers, ip_options, memory, real, scout, stream};

mod carry_over;
mod information;
mod lesser;
mod looks;

pub(crate) use carry_over::{carry_back, carry_over, carry_waits};
pub(crate) use information::{ask, backlog, has_ended, path_mtu, unacknowledged, unsent};
pub(crate) use lesser::{
    binds_without_port, may_be_bound_to_device, may_be_ours, move_peek_offset, note, note_any, peek_mark,
    peek_offset, queued, refusal,
};
pub(crate) use looks::PathMtu;

/// The variants of 64-bit time that 32-bit programs use; the same numbers everywhere but on a few machines.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
/// Buffers as Linux gives them to TCP before a program asks.
const DEFAULT_RECEIVE_BUFFER: u32 = 131_072;
const DEFAULT_SEND_BUFFER: u32 = 16_384;
/// Not in `libc` for every target.
const TCP_NOTSENT_LOWAT: c_int = 25;
/// What stands for a waiting time below zero: over before anybody looks.
const NO_TIME_US: u64 = 1;
/// From here on SO_RCVTIMEO and SO_SNDTIMEO are for ever.
const MAX_PATIENCE_S: i64 = i64::MAX / 1_000_000;
/// SO_BUF_LOCK (Linux 5.14): which buffers a program has set; and its bits SOCK_SNDBUF_LOCK and SOCK_RCVBUF_LOCK.
const SO_BUF_LOCK: c_int = 72;
const SEND_LOCKED: c_int = 1;
const RECEIVE_LOCKED: c_int = 2;
/// TCP_CA_NAME_MAX of Linux.
const CONGESTION_NAME_LEN: usize = 16;
/// TCP_MIN_MSS and MAX_TCP_WINDOW of Linux: the bounds of TCP_MAXSEG.
const LEAST_SEGMENT: c_int = 88;
const MOST_SEGMENT: c_int = 32767;
/// TCP_MSS_DEFAULT: what the kernel says of a socket without a connection.
const DEFAULT_SEGMENT: c_int = 536;
/// What has rings, or makes them.
const IN_USE: u32 = is::LISTENING | is::CONNECTING | is::CONNECTED;
const KEEP_IDLE_S: u32 = 7200;
const KEEP_INTERVAL_S: u32 = 75;
const KEEP_COUNT: u32 = 9;

/// Reads a C value of the program's.
pub(crate) fn value<T: Copy>(from: *const c_void, len: socklen_t) -> Result<T, isize> {
    // In this order, as Linux: of nothing no place is looked at.
    if (len as usize) < size_of::<T>() {
        return Err(err(libc::EINVAL));
    }
    if memory::is_nowhere(from) {
        return Err(err(libc::EFAULT));
    }
    // SAFETY: the program vouches for `len` bytes, which is enough.
    Ok(unsafe { ptr::read_unaligned(from.cast()) })
}

/// Writes a C value to the program, cut to its room.
pub(crate) fn give<T: Copy>(from: T, to: *mut c_void, len: *mut socklen_t) -> isize {
    if memory::is_nowhere(to) || memory::is_nowhere(len) {
        return err(libc::EFAULT);
    }
    // SAFETY: the program vouches for `len` and `*len` bytes at `to`; no more is written.
    unsafe {
        let room = (ptr::read_unaligned(len) as usize).min(size_of::<T>());
        ptr::copy_nonoverlapping((&raw const from).cast::<u8>(), to.cast(), room);
        ptr::write_unaligned(len, room as socklen_t);
    }
    0
}

/// The same of a number of IPv4, which is an octet where there is no room for more (`do_ip_getsockopt`).
fn give_of_ip(value: c_int, to: *mut c_void, len: *mut socklen_t) -> isize {
    // SAFETY: the program vouches for its length.
    let room = if memory::is_nowhere(len) { 0 } else { unsafe { ptr::read_unaligned(len) } };
    match u8::try_from(value) {
        Ok(octet) if (1..4).contains(&room) => give(octet, to, len),
        _ => give(value, to, len),
    }
}

pub(crate) fn keep(socket: Socket, bit: u32, on: bool) {
    if on {
        socket.slot.kept_options.fetch_or(bit, Ordering::AcqRel);
    } else {
        socket.slot.kept_options.fetch_and(!bit, Ordering::AcqRel);
    }
}

pub(crate) fn kept_bit(socket: Socket, bit: u32) -> c_int {
    c_int::from(socket.slot.kept_options.load(Ordering::Acquire) & bit != 0)
}

pub(crate) fn tell(socket: Socket, option: u64, value: u64) -> isize {
    call::call(call_op::OPTION, socket.index, [option, value, 0, 0]).min(0) as isize
}

/// Idle seconds, interval seconds, count, as set or by default.
fn keep_alive(socket: Socket) -> (u32, u32, u32) {
    let or = |value, default| if value == 0 { default } else { value };
    let rest = socket.slot.keep_alive_times[1].load(Ordering::Relaxed);
    (
        or(socket.slot.keep_alive_times[0].load(Ordering::Relaxed), KEEP_IDLE_S),
        or(rest >> 16, KEEP_INTERVAL_S),
        or(rest & 0xffff, KEEP_COUNT),
    )
}

fn tell_keep_alive(socket: Socket) -> isize {
    let (idle, interval, count) = keep_alive(socket);
    let on = kept_bit(socket, kept::KEEP_ALIVE) != 0;
    let value = u64::from(idle.min(0xf_ffff)) | u64::from(interval) << 20 | u64::from(count) << 40;
    tell(socket, slot_option::KEEP_ALIVE, if on { value } else { 0 })
}

/// What a waiting time means, in microseconds; 0: for ever.
fn patience(time: timeval) -> Result<u64, isize> {
    if !(0..1_000_000).contains(&time.tv_usec) {
        return Err(err(libc::EDOM));
    }
    match time.tv_sec {
        // Linux: no time at all.
        ..0 => Ok(NO_TIME_US),
        // Beyond what it can count.
        MAX_PATIENCE_S.. => Ok(0),
        _ => Ok(microseconds(time).unwrap_or(0)),
    }
}

/// TCP_DEFER_ACCEPT is kept as a number of retransmissions (`secs_to_retrans` of Linux): how long those take, in seconds.
fn retransmission_times(seconds: c_int) -> u32 {
    const MOST_S: u32 = 120;
    const MOST: u32 = 255;
    let (mut count, mut interval, mut period) = (1, 1, 1u32);
    if seconds <= 0 {
        return 0;
    }
    while seconds.unsigned_abs() > period && count < MOST {
        count += 1;
        interval = (2 * interval).min(MOST_S);
        period += interval;
    }
    period
}

fn microseconds(time: timeval) -> Option<u64> {
    let (Ok(s), Ok(us)) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec)) else { return None };
    (us < 1_000_000).then(|| s.saturating_mul(1_000_000).saturating_add(us))
}

/// `setsockopt` on a socket of ours.
pub(crate) fn set(
    fd: c_int,
    socket: Socket,
    level: c_int,
    name: c_int,
    from: *const c_void,
    len: socklen_t,
) -> isize {
    set_inner(fd, socket, level, name, from, len).unwrap_or_else(|failed| failed)
}

fn set_inner(
    fd: c_int,
    socket: Socket,
    level: c_int,
    name: c_int,
    from: *const c_void,
    len: socklen_t,
) -> Result<isize, isize> {
    if let Some(result) = ip_options::set(fd, socket, level, name, from, len) {
        return Ok(result);
    }
    let slot = socket.slot;
    let int = || value::<c_int>(from, len);
    if len.cast_signed() < 0 {
        return Err(err(libc::EINVAL));
    }
    if let Some(result) = lesser::set(fd, socket, (level, name), from, len) {
        return result;
    }
    match (level, name) {
        (SOL_SCOUT, _) => return scout::set(socket, name, from, len),
        (SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_REUSEPORT) => {
            let bit = if name == libc::SO_REUSEADDR { kept::REUSE_ADDRESS } else { kept::REUSE_PORT };
            keep(socket, bit, int()? != 0);
            if socket.state() & is::BOUND != 0 {
                return Ok(tell(socket, slot_option::SHARING, bind::sharing(socket)));
            }
        }
        (SOL_SOCKET, libc::SO_OOBINLINE) => keep(socket, kept::OOB_INLINE, int()? != 0),
        (SOL_SOCKET, SO_ZEROCOPY) => {
            let on = int()?;
            if !(0..=1).contains(&on) {
                return Err(err(libc::EINVAL));
            }
            keep(socket, kept::ZERO_COPY, on != 0);
        }
        (SOL_SOCKET, libc::SO_BROADCAST) => {
            let on = int()? != 0;
            keep(socket, kept::BROADCAST, on);
            return Ok(tell(socket, slot_option::BROADCAST, u64::from(on)));
        }
        (SOL_SOCKET, libc::SO_KEEPALIVE) => {
            keep(socket, kept::KEEP_ALIVE, int()? != 0);
            return Ok(tell_keep_alive(socket));
        }
        (SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => {
            let us = patience(value(from, len)?)?;
            slot.receive_timeout_us.store(us, Ordering::Release);
        }
        (SOL_SOCKET, libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW) => {
            let us = patience(value(from, len)?)?;
            slot.send_timeout_us.store(us, Ordering::Release);
        }
        (SOL_SOCKET, libc::SO_RCVLOWAT) => {
            // The kernel knows its bounds.
            let result = real::ours(real::setsockopt(fd, level, name, from, len) as isize);
            if result < 0 {
                return Err(result);
            }
            slot.receive_low_water.store(of_kernel(fd, name).unsigned_abs(), Ordering::Release);
            socket.tell(); // the ring may have to grow
        }
        (SOL_SOCKET, libc::SO_LINGER) => {
            let linger: libc::linger = value(from, len)?;
            let plus_one = if linger.l_onoff == 0 { 0 } else { linger.l_linger.max(0).unsigned_abs() + 1 };
            slot.linger_plus_one.store(plus_one, Ordering::Release);
        }
        // The rings are the engine's, and grow as far as this says; of a send ring that is larger, less is filled from now
        // on. The kernel knows its bounds.
        (SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE | libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
            let result = real::ours(real::setsockopt(fd, level, name, from, len) as isize);
            if result < 0 {
                return Err(result);
            }
            let (field, of) = match name {
                libc::SO_RCVBUF | libc::SO_RCVBUFFORCE => (&slot.asked_receive_buffer, libc::SO_RCVBUF),
                _ => (&slot.asked_send_buffer, libc::SO_SNDBUF),
            };
            let asked = of_kernel(fd, of).unsigned_abs() / 2;
            let before = field.swap(asked, Ordering::SeqCst);
            if of == libc::SO_RCVBUF && socket.is_stream() && socket.state() & IN_USE != 0 {
                // A ring does not shrink: less of it is offered.
                return Ok(tell(socket, slot_option::RECEIVE_BUFFER, asked.into()));
            }
            if of == libc::SO_SNDBUF && asked > before && socket.is_stream() {
                // As Linux's sock_setsockopt: who waits for room may have it now.
                return Ok(tell(socket, slot_option::SEND_BUFFER, 0));
            }
        }
        // The kernel's socket is not bound, and would take it.
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)
            if socket.is_inet6() && slot.local_port.load(Ordering::Relaxed) != 0 =>
        {
            return Err(err(libc::EINVAL));
        }
        (IPPROTO_TCP, _) if !socket.is_stream() => return Err(err(libc::ENOPROTOOPT)),
        (IPPROTO_TCP, _) if fast_open::is_option(name) => return fast_open::set(socket, name, from, len),
        (IPPROTO_TCP, libc::TCP_NODELAY) => {
            let on = int()? != 0;
            let had = kept_bit(socket, kept::NO_DELAY) != 0;
            keep(socket, kept::NO_DELAY, on);
            if on {
                // Linux: that pushes what is there even where it is corked.
                stream::push_held(socket);
            }
            return Ok(if on == had { 0 } else { tell(socket, slot_option::NO_DELAY, u64::from(on)) });
        }
        (IPPROTO_TCP, libc::TCP_CORK) => {
            let on = int()? != 0;
            keep(socket, kept::CORK, on);
            if !on {
                stream::push_held(socket);
            }
        }
        (IPPROTO_TCP, libc::TCP_QUICKACK) => {
            let on = int()? != 0;
            keep(socket, kept::QUICK_ACK_OFF, !on);
            return Ok(tell(socket, slot_option::QUICK_ACK, u64::from(on)));
        }
        (IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let number = congestion_number(from, len)?;
            return Ok(tell(socket, slot_option::CONGESTION, number));
        }
        (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            let millis = u32::try_from(int()?).map_err(|_| err(libc::EINVAL))?;
            slot.asked_user_timeout_ms.store(millis, Ordering::Relaxed);
            return Ok(tell(socket, slot_option::USER_TIMEOUT, u64::from(millis)));
        }
        (IPPROTO_TCP, libc::TCP_MAXSEG) => {
            let bytes = int()?;
            if bytes != 0 && !(LEAST_SEGMENT..=MOST_SEGMENT).contains(&bytes) {
                return Err(err(libc::EINVAL));
            }
            slot.asked_max_segment.store(bytes.unsigned_abs(), Ordering::Relaxed);
            return Ok(tell(socket, slot_option::MAX_SEGMENT, bytes.unsigned_abs().into()));
        }
        (SOL_SOCKET, libc::SO_MAX_PACING_RATE) if socket.is_stream() => {
            let rate = pacing_rate(from, len)?;
            return Ok(tell(socket, slot_option::MAX_PACING_RATE, rate));
        }
        (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => {
            let seconds = retransmission_times(int()?);
            slot.defer_accept_s.store(seconds, Ordering::Relaxed);
            return Ok(tell(socket, slot_option::DEFER_ACCEPT, u64::from(seconds)));
        }
        (IPPROTO_TCP, TCP_NOTSENT_LOWAT) => {
            let bytes = int()?.cast_unsigned();
            slot.unsent_low_water.store(bytes, Ordering::Release);
            return Ok(tell(socket, slot_option::UNSENT_LOW_WATER, bytes.into()));
        }
        (IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            let seconds = int()?;
            if !(1..=32767).contains(&seconds) {
                return Err(err(libc::EINVAL));
            }
            slot.keep_alive_times[0].store(seconds.unsigned_abs(), Ordering::Relaxed);
            return Ok(if kept_bit(socket, kept::KEEP_ALIVE) == 0 { 0 } else { tell_keep_alive(socket) });
        }
        (IPPROTO_TCP, libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) => {
            let given = int()?;
            let most = if name == libc::TCP_KEEPCNT { 127 } else { 32767 };
            if !(1..=most).contains(&given) {
                return Err(err(libc::EINVAL));
            }
            let (_, interval, count) = keep_alive(socket);
            let (interval, count) = if name == libc::TCP_KEEPCNT {
                (interval, given.unsigned_abs())
            } else {
                (given.unsigned_abs(), count)
            };
            slot.keep_alive_times[1].store(interval << 16 | count, Ordering::Relaxed);
            return Ok(if kept_bit(socket, kept::KEEP_ALIVE) == 0 { 0 } else { tell_keep_alive(socket) });
        }
        _ => return Ok(real::ours(real::setsockopt(fd, level, name, from, len) as isize)),
    }
    Ok(0)
}

/// A name of congestion control, as the program gave it.
fn congestion_number(from: *const c_void, len: socklen_t) -> Result<u64, isize> {
    if len < 1 {
        return Err(err(libc::EINVAL));
    }
    if memory::is_nowhere(from) {
        return Err(err(libc::EFAULT));
    }
    let len = (len as usize).min(CONGESTION_NAME_LEN - 1);
    // SAFETY: the program vouches for its bytes.
    let name = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) };
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(len);
    let known = slot_option::CONGESTION_NAMES.iter().position(|known| known.as_bytes() == &name[..end]);
    known.map(|index| index as u64 + 1).ok_or(err(libc::ENOENT))
}

/// SO_MAX_PACING_RATE: 32 or 64 bits; all of them set: no limit.
fn pacing_rate(from: *const c_void, len: socklen_t) -> Result<u64, isize> {
    let rate = if len as usize >= size_of::<u64>() {
        value::<u64>(from, len)?
    } else {
        let short: u32 = value(from, len)?;
        if short == u32::MAX { u64::MAX } else { u64::from(short) }
    };
    Ok(slot_option::pacing_word(rate))
}

/// `getsockopt` on a socket of ours.
pub(crate) fn get(
    fd: c_int,
    socket: Socket,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut socklen_t,
) -> isize {
    let slot = socket.slot;
    let int = |value: c_int| give(value, to, len);
    let time = |us: u64| {
        // No time at all reads as for ever, as on Linux.
        let us = if us == NO_TIME_US { 0 } else { us };
        let time = timeval { tv_sec: (us / 1_000_000) as i64, tv_usec: (us % 1_000_000) as i64 };
        give(time, to, len)
    };
    // The level of IPv6 takes it for very much.
    if !memory::is_nowhere(len) && (level != libc::IPPROTO_IPV6 || !socket.is_inet6()) {
        // SAFETY: the program vouches for its length.
        let room = unsafe { ptr::read_unaligned(len) };
        // IPv4 has no such level.
        if room.cast_signed() < 0 && level == libc::IPPROTO_IPV6 {
            return err(libc::EOPNOTSUPP);
        }
        if room.cast_signed() < 0 {
            return err(libc::EINVAL);
        }
    }
    // Linux doubles what was asked, for its own overhead.
    let buffer = |asked: u32, default: u32| int(if asked == 0 { default } else { asked * 2 } as c_int);
    let of_few = lesser::get(socket, (level, name), to, len);
    if let Some(result) = of_few.or_else(|| looks::get(socket, (level, name), to, len)) {
        return result;
    }
    match (level, name) {
        (SOL_SCOUT, _) => scout::get(socket, name, to, len),
        (SOL_SOCKET, libc::SO_ERROR) => {
            let errno = if crate::attach::dead() { libc::ECONNRESET } else { socket.take_any_error() };
            int(errno)
        }
        (SOL_SOCKET, libc::SO_TYPE) => {
            int(if socket.is_stream() { libc::SOCK_STREAM } else { libc::SOCK_DGRAM })
        }
        (SOL_SOCKET, libc::SO_DOMAIN) => int(if socket.is_inet6() { libc::AF_INET6 } else { libc::AF_INET }),
        (SOL_SOCKET, libc::SO_PROTOCOL) => {
            int(if socket.is_stream() { libc::IPPROTO_TCP } else { libc::IPPROTO_UDP })
        }
        (SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            let is_shut = socket.requests() & slot_request::SHUTDOWN_READ != 0;
            int(c_int::from(socket.state() & is::LISTENING != 0 && !is_shut))
        }
        (SOL_SOCKET, libc::SO_REUSEADDR) => int(kept_bit(socket, kept::REUSE_ADDRESS)),
        (SOL_SOCKET, libc::SO_REUSEPORT) => int(kept_bit(socket, kept::REUSE_PORT)),
        (SOL_SOCKET, SO_ZEROCOPY) => int(kept_bit(socket, kept::ZERO_COPY)),
        (SOL_SOCKET, libc::SO_OOBINLINE) => int(kept_bit(socket, kept::OOB_INLINE)),
        (SOL_SOCKET, libc::SO_BROADCAST) => int(kept_bit(socket, kept::BROADCAST)),
        (SOL_SOCKET, libc::SO_KEEPALIVE) => int(kept_bit(socket, kept::KEEP_ALIVE)),
        (SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => {
            time(slot.receive_timeout_us.load(Ordering::Relaxed))
        }
        (SOL_SOCKET, libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW) => {
            time(slot.send_timeout_us.load(Ordering::Relaxed))
        }
        (SOL_SOCKET, libc::SO_RCVLOWAT) => {
            int(slot.receive_low_water.load(Ordering::Relaxed).max(1).cast_signed())
        }
        (SOL_SOCKET, libc::SO_LINGER) => {
            let plus_one = slot.linger_plus_one.load(Ordering::Relaxed);
            let linger = libc::linger {
                l_onoff: c_int::from(plus_one != 0),
                l_linger: plus_one.saturating_sub(1) as c_int,
            };
            give(linger, to, len)
        }
        (SOL_SOCKET, libc::SO_RCVBUF) => {
            buffer(slot.asked_receive_buffer.load(Ordering::Relaxed), DEFAULT_RECEIVE_BUFFER)
        }
        (SOL_SOCKET, libc::SO_SNDBUF) => {
            buffer(slot.asked_send_buffer.load(Ordering::Relaxed), DEFAULT_SEND_BUFFER)
        }
        // `do_ip_getsockopt`
        (IPPROTO_TCP, _) if !socket.is_stream() && !socket.is_inet6() => err(libc::EOPNOTSUPP),
        (IPPROTO_TCP, _) if !socket.is_stream() => err(libc::ENOPROTOOPT),
        (IPPROTO_TCP, _) if fast_open::is_option(name) => fast_open::get(socket, name, to, len),
        (IPPROTO_TCP, libc::TCP_NODELAY) => int(kept_bit(socket, kept::NO_DELAY)),
        (IPPROTO_TCP, libc::TCP_CORK) => int(kept_bit(socket, kept::CORK)),
        (IPPROTO_TCP, libc::TCP_QUICKACK) => int(1 - kept_bit(socket, kept::QUICK_ACK_OFF)),
        (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => {
            int(slot.defer_accept_s.load(Ordering::Relaxed).cast_signed())
        }
        (IPPROTO_TCP, TCP_NOTSENT_LOWAT) => int(slot.unsent_low_water.load(Ordering::Relaxed).cast_signed()),
        (IPPROTO_TCP, libc::TCP_KEEPIDLE) => int(keep_alive(socket).0 as c_int),
        (IPPROTO_TCP, libc::TCP_KEEPINTVL) => int(keep_alive(socket).1 as c_int),
        (IPPROTO_TCP, libc::TCP_KEEPCNT) => int(keep_alive(socket).2 as c_int),
        (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            int(slot.asked_user_timeout_ms.load(Ordering::Relaxed) as c_int)
        }
        (IPPROTO_TCP, libc::TCP_MAXSEG) => {
            let asked = slot.asked_max_segment.load(Ordering::Relaxed) as c_int;
            if asked != 0 && socket.state() & is::CONNECTED == 0 {
                return int(asked);
            }
            let (bytes, _) = ask(socket, slot_option::MAX_SEGMENT, 0);
            if bytes < 0 { bytes as isize } else { int(bytes) }
        }
        (IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let (number, _) = ask(socket, slot_option::CONGESTION, 0);
            if number < 0 {
                return number as isize;
            }
            let name = slot_option::CONGESTION_NAMES.get((number - 1) as usize).copied().unwrap_or_default();
            let mut bytes = [0; CONGESTION_NAME_LEN];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            give(bytes, to, len)
        }
        (IPPROTO_TCP, libc::TCP_INFO) => information::give_all(fd, socket, to, len),
        _ => match ip_options::get(socket, level, name) {
            Some(Ok(value)) if level == libc::IPPROTO_IP => give_of_ip(value, to, len),
            Some(Ok(value)) => int(value),
            Some(Err(errno)) => err(errno),
            None => real::ours(real::getsockopt(fd, level, name, to, len) as isize),
        },
    }
}

pub(crate) fn kernel_int(fd: c_int, level: c_int, name: c_int) -> c_int {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    if real::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) < 0 { 0 } else { value }
}

fn kernel_value<T: Copy>(fd: c_int, name: c_int, mut value: T) -> T {
    let mut len = size_of::<T>() as socklen_t;
    real::getsockopt(fd, SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len);
    value
}

/// True when SO_BROADCAST is on.
pub(crate) fn may_broadcast(fd: c_int) -> bool {
    match Socket::of(fd) {
        Some(socket) => kept_bit(socket, kept::BROADCAST) != 0,
        None => of_kernel(fd, libc::SO_BROADCAST) != 0,
    }
}

/// True of TCP's sockets, ours or the kernel's.
pub(crate) fn is_stream(fd: c_int) -> bool {
    match Socket::of(fd) {
        Some(socket) => socket.is_stream(),
        None => of_kernel(fd, libc::SO_TYPE) == libc::SOCK_STREAM,
    }
}

/// An option of the kernel's socket, 0 when it has none.
pub(crate) fn of_kernel(fd: c_int, name: c_int) -> c_int {
    kernel_int(fd, SOL_SOCKET, name)
}

/// True when an AF_INET6 socket of the kernel's takes IPv6 only.
pub(crate) fn is_v6_only(fd: c_int) -> bool {
    kernel_int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) != 0
}

/// The kernel's socket says of itself that it takes IPv6 only.
pub(crate) fn take_v6_only(fd: c_int) {
    let on: c_int = 1;
    let size = size_of::<c_int>() as socklen_t;
    real::setsockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, (&raw const on).cast(), size);
}

/// `listen` forgets TCP_QUICKACK, as on Linux.
pub(crate) fn on_listen(socket: Socket) {
    if kept_bit(socket, kept::QUICK_ACK_OFF) != 0 {
        keep(socket, kept::QUICK_ACK_OFF, false);
        tell(socket, slot_option::QUICK_ACK, 1);
    }
}

/// What Linux lets an accepted socket inherit. (The engine inherits what it was told by `OPTION`.)
pub(crate) fn inherit(from: Socket, to: Socket) {
    headers::inherit(from, to);
    let (old, new) = (from.slot, to.slot);
    let of_its_life = kept::CONNECT_PENDING | kept::STUCK | kept::BEGINS_AGAIN | kept::DISCONNECTED;
    let shared = !(of_its_life | kept::COMPLETES);
    new.kept_options.store(old.kept_options.load(Ordering::Relaxed) & shared, Ordering::Relaxed);
    new.receive_timeout_us.store(old.receive_timeout_us.load(Ordering::Relaxed), Ordering::Relaxed);
    new.send_timeout_us.store(old.send_timeout_us.load(Ordering::Relaxed), Ordering::Relaxed);
    for (old, new) in [
        (&old.linger_plus_one, &new.linger_plus_one),
        (&old.receive_low_water, &new.receive_low_water),
        (&old.asked_receive_buffer, &new.asked_receive_buffer),
        (&old.asked_send_buffer, &new.asked_send_buffer),
        (&old.asked_user_timeout_ms, &new.asked_user_timeout_ms),
        (&old.asked_max_segment, &new.asked_max_segment),
        (&old.unsent_low_water, &new.unsent_low_water),
        (&old.defer_accept_s, &new.defer_accept_s),
        (&old.peek_offset_inverted, &new.peek_offset_inverted),
        (&old.keep_alive_times[0], &new.keep_alive_times[0]),
        (&old.keep_alive_times[1], &new.keep_alive_times[1]),
    ] {
        new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
