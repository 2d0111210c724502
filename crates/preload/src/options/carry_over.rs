//! What was set on the kernel's socket before it became ours.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use libc::{IPPROTO_TCP, socklen_t, timeval};
use scoutline_abi::layout::slot_option;
use scoutline_abi::stand_in;

use super::{
    CONGESTION_NAME_LEN, DEFAULT_SEGMENT, RECEIVE_LOCKED, SEND_LOCKED, SO_BUF_LOCK, TCP_NOTSENT_LOWAT,
    congestion_number, keep, kept_bit, kernel_int, kernel_value, lesser, microseconds, of_kernel, tell,
    tell_keep_alive,
};
use crate::lock::once;
use crate::slot::{Socket, kept};
use crate::zero_copy::SO_ZEROCOPY;
use crate::{fast_open, ip_options, real, urgent};

/// Enters it into the slot, and tells the engine.
pub(crate) fn carry_over(fd: c_int, socket: Socket) {
    let slot = socket.slot;
    for (name, bit) in [
        (libc::SO_REUSEADDR, kept::REUSE_ADDRESS),
        (libc::SO_REUSEPORT, kept::REUSE_PORT),
        (libc::SO_BROADCAST, kept::BROADCAST),
        (libc::SO_OOBINLINE, kept::OOB_INLINE),
        (libc::SO_KEEPALIVE, kept::KEEP_ALIVE),
        (SO_ZEROCOPY, kept::ZERO_COPY),
    ] {
        keep(socket, bit, of_kernel(fd, name) != 0);
    }
    let none = timeval { tv_sec: 0, tv_usec: 0 };
    let us = |name| microseconds(kernel_value(fd, name, none)).unwrap_or(0);
    slot.receive_timeout_us.store(us(libc::SO_RCVTIMEO), Ordering::Relaxed);
    slot.send_timeout_us.store(us(libc::SO_SNDTIMEO), Ordering::Relaxed);
    let linger = kernel_value(fd, libc::SO_LINGER, libc::linger { l_onoff: 0, l_linger: 0 });
    let plus_one = if linger.l_onoff == 0 { 0 } else { linger.l_linger.max(0).unsigned_abs() + 1 };
    slot.linger_plus_one.store(plus_one, Ordering::Relaxed);
    slot.receive_low_water.store(of_kernel(fd, libc::SO_RCVLOWAT).unsigned_abs(), Ordering::Relaxed);
    // A stream's buffers that nobody set grow by themselves, with us as with the kernel.
    let locks = if socket.is_stream() { of_kernel(fd, SO_BUF_LOCK) } else { RECEIVE_LOCKED | SEND_LOCKED };
    // As the kernel doubled it.
    if locks & RECEIVE_LOCKED != 0 {
        let bytes = of_kernel(fd, libc::SO_RCVBUF).unsigned_abs() / 2;
        slot.asked_receive_buffer.store(bytes, Ordering::Relaxed);
    }
    if locks & SEND_LOCKED != 0 {
        let bytes = of_kernel(fd, libc::SO_SNDBUF).unsigned_abs() / 2;
        slot.asked_send_buffer.store(bytes, Ordering::Relaxed);
    }
    let owner = real::fcntl(fd, libc::F_GETOWN, 0);
    if owner != 0 && socket.is_stream() {
        urgent::set_owner(socket, libc::F_SETOWN, owner as usize);
    }
    if kept_bit(socket, kept::BROADCAST) != 0 {
        tell(socket, slot_option::BROADCAST, 1);
    }
    ip_options::carry_over(fd, socket);
    lesser::carry_over(fd, socket);
    if socket.is_stream() {
        keep(socket, kept::CORK, kernel_int(fd, IPPROTO_TCP, libc::TCP_CORK) != 0);
        if kernel_int(fd, IPPROTO_TCP, libc::TCP_NODELAY) != 0 {
            keep(socket, kept::NO_DELAY, true);
            tell(socket, slot_option::NO_DELAY, 1);
        }
        let deferred = kernel_int(fd, IPPROTO_TCP, libc::TCP_DEFER_ACCEPT);
        if deferred > 0 {
            slot.defer_accept_s.store(deferred.unsigned_abs(), Ordering::Relaxed);
            tell(socket, slot_option::DEFER_ACCEPT, u64::from(deferred.unsigned_abs()));
        }
        carry_over_transport(fd, socket);
        fast_open::carry_over(fd, socket);
        if kept_bit(socket, kept::KEEP_ALIVE) != 0 {
            let of = |name| kernel_int(fd, IPPROTO_TCP, name).unsigned_abs();
            slot.keep_alive_times[0].store(of(libc::TCP_KEEPIDLE), Ordering::Relaxed);
            let rest = of(libc::TCP_KEEPINTVL) << 16 | of(libc::TCP_KEEPCNT) & 0xffff;
            slot.keep_alive_times[1].store(rest, Ordering::Relaxed);
            tell_keep_alive(socket);
        }
    }
}

/// Options of TCP whose value differs from what a fresh socket has: somebody set them.
fn carry_over_transport(fd: c_int, socket: Socket) {
    let slot = socket.slot;
    let millis = kernel_int(fd, IPPROTO_TCP, libc::TCP_USER_TIMEOUT);
    if millis > 0 {
        slot.asked_user_timeout_ms.store(millis.unsigned_abs(), Ordering::Relaxed);
        tell(socket, slot_option::USER_TIMEOUT, millis.unsigned_abs().into());
    }
    let segment = kernel_int(fd, IPPROTO_TCP, libc::TCP_MAXSEG);
    if segment > 0 && segment != DEFAULT_SEGMENT {
        slot.asked_max_segment.store(segment.unsigned_abs(), Ordering::Relaxed);
        tell(socket, slot_option::MAX_SEGMENT, segment.unsigned_abs().into());
    }
    let unsent = kernel_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT).cast_unsigned();
    if unsent > 0 {
        slot.unsent_low_water.store(unsent, Ordering::Relaxed);
        tell(socket, slot_option::UNSENT_LOW_WATER, unsent.into());
    }
    let rate = kernel_value(fd, libc::SO_MAX_PACING_RATE, u64::MAX);
    if rate != u64::MAX && stand_in::read(rate).is_none() {
        tell(socket, slot_option::MAX_PACING_RATE, slot_option::pacing_word(rate));
    }
    let name = kernel_congestion(fd);
    if name != *once(&KERNEL_CONGESTION, fresh_congestion)
        && let Ok(number) = congestion_number(name.as_ptr().cast(), CONGESTION_NAME_LEN as socklen_t)
    {
        tell(socket, slot_option::CONGESTION, number);
    }
}

/// What the kernel gives to a socket for which nobody asked.
static KERNEL_CONGESTION: OnceLock<[u8; CONGESTION_NAME_LEN]> = OnceLock::new();

fn fresh_congestion() -> [u8; CONGESTION_NAME_LEN] {
    let fd = real::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    let name = kernel_congestion(fd);
    real::close_uncancelled(fd);
    name
}

fn kernel_congestion(fd: c_int) -> [u8; CONGESTION_NAME_LEN] {
    let mut name = [0; CONGESTION_NAME_LEN];
    let mut len = CONGESTION_NAME_LEN as socklen_t;
    real::getsockopt(fd, IPPROTO_TCP, libc::TCP_CONGESTION, name.as_mut_ptr().cast(), &raw mut len);
    name
}

/// The other way: the kernel's socket gets what was set on this one since it is ours. What [`super::set`] gives to the
/// kernel's as well it has already.
pub(crate) fn carry_back(fd: c_int, socket: Socket) {
    let slot = socket.slot;
    let set = |level: c_int, name: c_int, value: c_int| {
        let len = size_of::<c_int>() as socklen_t;
        real::setsockopt(fd, level, name, (&raw const value).cast(), len);
    };
    for (name, bit) in [
        (libc::SO_REUSEADDR, kept::REUSE_ADDRESS),
        (libc::SO_REUSEPORT, kept::REUSE_PORT),
        (libc::SO_BROADCAST, kept::BROADCAST),
        (libc::SO_OOBINLINE, kept::OOB_INLINE),
        (libc::SO_KEEPALIVE, kept::KEEP_ALIVE),
        (SO_ZEROCOPY, kept::ZERO_COPY),
    ] {
        set(libc::SOL_SOCKET, name, kept_bit(socket, bit));
    }
    carry_waits(fd, socket);
    let plus_one = slot.linger_plus_one.load(Ordering::Relaxed);
    let linger = libc::linger {
        l_onoff: c_int::from(plus_one != 0),
        l_linger: plus_one.saturating_sub(1).cast_signed(),
    };
    let len = size_of::<libc::linger>() as socklen_t;
    real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len);
    if socket.is_stream() {
        carry_back_transport(socket, set);
        let rate = lesser::pacing_rate(socket).unwrap_or(u64::MAX);
        let len = size_of::<u64>() as socklen_t;
        real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, (&raw const rate).cast(), len);
    }
    let flags = real::fcntl(fd, libc::F_GETFL, 0);
    let flags = if socket.non_blocking() { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    real::fcntl(fd, libc::F_SETFL, flags as usize);
}

/// How long calls wait, and for how much.
pub(crate) fn carry_waits(fd: c_int, socket: Socket) {
    let slot = socket.slot;
    for (name, us) in
        [(libc::SO_RCVTIMEO, &slot.receive_timeout_us), (libc::SO_SNDTIMEO, &slot.send_timeout_us)]
    {
        let us = us.load(Ordering::Relaxed).cast_signed();
        let time = timeval { tv_sec: us / 1_000_000, tv_usec: us % 1_000_000 };
        let len = size_of::<timeval>() as socklen_t;
        real::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const time).cast(), len);
    }
    let low_water = socket.low_water();
    let len = size_of::<u32>() as socklen_t;
    real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const low_water).cast(), len);
}

fn carry_back_transport(socket: Socket, set: impl Fn(c_int, c_int, c_int)) {
    let slot = socket.slot;
    set(IPPROTO_TCP, libc::TCP_NODELAY, kept_bit(socket, kept::NO_DELAY));
    set(IPPROTO_TCP, libc::TCP_CORK, kept_bit(socket, kept::CORK));
    let rest = slot.keep_alive_times[1].load(Ordering::Relaxed);
    let asked = [
        (libc::TCP_KEEPIDLE, slot.keep_alive_times[0].load(Ordering::Relaxed)),
        (libc::TCP_KEEPINTVL, rest >> 16),
        (libc::TCP_KEEPCNT, rest & 0xffff),
        (libc::TCP_DEFER_ACCEPT, slot.defer_accept_s.load(Ordering::Relaxed)),
        (libc::TCP_USER_TIMEOUT, slot.asked_user_timeout_ms.load(Ordering::Relaxed)),
        (libc::TCP_MAXSEG, slot.asked_max_segment.load(Ordering::Relaxed)),
        (TCP_NOTSENT_LOWAT, slot.unsent_low_water.load(Ordering::Relaxed)),
    ];
    for (name, value) in asked.into_iter().filter(|(_, value)| *value != 0) {
        set(IPPROTO_TCP, name, value.cast_signed());
    }
    let buffers = [
        (libc::SO_RCVBUF, slot.asked_receive_buffer.load(Ordering::Relaxed)),
        (libc::SO_SNDBUF, slot.asked_send_buffer.load(Ordering::Relaxed)),
    ];
    for (name, bytes) in buffers.into_iter().filter(|(_, bytes)| *bytes != 0) {
        set(libc::SOL_SOCKET, name, bytes.cast_signed());
    }
}
