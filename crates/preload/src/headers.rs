//! What a program says of the network headers of a stream: IP_TOS, IP_TTL, IP_MTU_DISCOVER, IP_MINTTL and their IPv6 kin
//! (ip(7), ipv6(7)). The engine puts it into what leaves; a listening socket's connections have it from their SYN-ACK on. And
//! whether it wants to hear of ICMP errors that a connection outlives (IP_RECVERR, IPV6_RECVERR).
//!
//! An accepted socket shares its kernel socket with its listener, so the slot keeps the values, and the kernel's socket only
//! checks them. What few sockets have is in the words of datagram sockets' options (`send_options`):
//!
//! ```text
//!  39          32 31             24 23           8 7             0
//! ┌──────────────┬─────────────────┬──────────────┬───────────────┐
//! │ least hops   │ discovery + 1   │ hops + 1     │ service       │   0: not said
//! └──────────────┴─────────────────┴──────────────┴───────────────┘
//! ```
//! Left out: with IP_PMTUDISC_PROBE and _INTERFACE the path's MTU is heeded as ever; an IPV6_UNICAST_HOPS of 0, with which
//! nobody is reached, can be read back, and packets leave as if it had not been said.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use libc::{IPPROTO_IP, IPPROTO_IPV6, socklen_t};
use scoutline_abi::layout::{datagram_flag, slot_option, slot_state as is};

use crate::ip_options::USUAL_HOPS;
use crate::options;
use crate::real;
use crate::slot::Socket;

/// The lowest two bits of the type of service are ECN's: TCP's own.
const ECN_BITS: u32 = 0b11;

/// One of the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Service,
    Hops,
    Discovery,
    /// That packets must have left (RFC 5082).
    LeastHops,
}

impl Field {
    /// Which one it is, and the family's word.
    fn of(level: c_int, name: c_int) -> Option<(Field, usize)> {
        Some(match (level, name) {
            (IPPROTO_IP, libc::IP_TOS) => (Field::Service, 0),
            (IPPROTO_IP, libc::IP_TTL) => (Field::Hops, 0),
            (IPPROTO_IP, libc::IP_MTU_DISCOVER) => (Field::Discovery, 0),
            (IPPROTO_IP, libc::IP_MINTTL) => (Field::LeastHops, 0),
            (IPPROTO_IPV6, libc::IPV6_TCLASS) => (Field::Service, 1),
            (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => (Field::Hops, 1),
            (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => (Field::Discovery, 1),
            (IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT) => (Field::LeastHops, 1),
            _ => return None,
        })
    }

    fn shift(self) -> u32 {
        match self {
            Field::Service => 0,
            Field::Hops => 8,
            Field::Discovery => 24,
            Field::LeastHops => 32,
        }
    }

    /// Its bits, at the word's end.
    fn mask(self) -> u32 {
        if self == Field::Hops { 0xffff } else { 0xff }
    }

    /// What stands in a word.
    fn part(self, word: u64) -> u32 {
        (word >> self.shift()) as u32 & self.mask()
    }

    /// As it is to stand there. The kernel has found it good; -1 is the default.
    fn bits(self, value: c_int, family: usize) -> u32 {
        match self {
            // IP_TOS is an octet, whatever stands in front of it.
            Field::Service if family == 0 => value.cast_unsigned() & 0xff & !ECN_BITS,
            Field::Service => value.max(0).unsigned_abs() & !ECN_BITS,
            Field::Hops => (value + 1).unsigned_abs(),
            Field::LeastHops => value.unsigned_abs(),
            Field::Discovery => value.unsigned_abs() + 1,
        }
    }

    /// As a program reads it.
    fn value(self, bits: u32) -> c_int {
        match (self, bits) {
            (Field::Hops, 0) => USUAL_HOPS,
            (Field::Discovery, 0) => libc::IP_PMTUDISC_WANT,
            (Field::Hops | Field::Discovery, said) => said.cast_signed() - 1,
            (Field::Service | Field::LeastHops, said) => said.cast_signed(),
        }
    }
}

/// `setsockopt` on a stream; `None` where that is somebody else's affair.
pub(crate) fn set(
    fd: c_int,
    socket: Socket,
    level: c_int,
    name: c_int,
    from: *const c_void,
    len: socklen_t,
) -> Option<isize> {
    let of = Field::of(level, name);
    let flag = errors_flag(level, name);
    if of.is_none() && flag.is_none() {
        return None;
    }
    let checked = real::ours(real::setsockopt(fd, level, name, from, len) as isize);
    if checked < 0 {
        return Some(checked);
    }
    // The options of IPv4 may be given as an octet, or as nothing, which is 0 (`do_ip_setsockopt`).
    // To IPv6 nowhere is 0 (`do_ipv6_setsockopt`).
    let given = match len {
        0 => Ok(0),
        _ if level == IPPROTO_IPV6 && from.is_null() => Ok(0),
        1..4 => options::value::<u8>(from, len).map(c_int::from),
        _ => options::value::<c_int>(from, len),
    };
    Some(match (given, of, flag) {
        (Err(failed), ..) => failed,
        (Ok(value), Some((field, family)), _) => keep(socket, family, field, value),
        (Ok(value), None, flag) => {
            want_errors(socket, flag.unwrap_or(0), value != 0);
            0
        }
    })
}

/// The bit of IP_RECVERR and its kin.
fn errors_flag(level: c_int, name: c_int) -> Option<u32> {
    match (level, name) {
        (IPPROTO_IP, libc::IP_RECVERR) => Some(datagram_flag::ERRORS),
        (IPPROTO_IPV6, libc::IPV6_RECVERR) => Some(datagram_flag::ERRORS6),
        _ => None,
    }
}

fn want_errors(socket: Socket, flag: u32, on: bool) {
    let flags = &socket.slot.datagram_flags;
    if on {
        flags.fetch_or(flag, Ordering::Release);
    } else {
        flags.fetch_and(!flag, Ordering::Release);
    }
}

/// Enters a value, and tells the engine.
fn keep(socket: Socket, family: usize, field: Field, value: c_int) -> isize {
    let word = &socket.slot.send_options[family];
    let bits = u64::from(field.bits(value, family)) << field.shift();
    let others = !(u64::from(field.mask()) << field.shift());
    // Threads set different fields at the same time.
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| Some(word & others | bits));
    tell(socket)
}

/// The engine hears what is set.
pub(crate) fn tell(socket: Socket) -> isize {
    let [v4, v6] = socket.slot.send_options.each_ref().map(|word| for_engine(word.load(Ordering::Relaxed)));
    options::tell(socket, slot_option::HEADERS, v6 << 32 | v4)
}

/// A word as [`slot_option::HEADERS`] has it.
fn for_engine(word: u64) -> u64 {
    let hops = Field::Hops.part(word).saturating_sub(1);
    let discovery = Field::Discovery.value(Field::Discovery.part(word));
    // As Linux's `ip_dont_fragment`.
    let indivisible = matches!(discovery, libc::IP_PMTUDISC_WANT | libc::IP_PMTUDISC_DO);
    let least = Field::LeastHops.part(word);
    u64::from(Field::Service.part(word) | hops << 8 | least << 24) | u64::from(!indivisible) << 16
}

/// `getsockopt` on a stream; `None` where that is somebody else's affair.
pub(crate) fn get(socket: Socket, level: c_int, name: c_int) -> Option<Result<c_int, c_int>> {
    if level == IPPROTO_IPV6 && !socket.is_inet6() {
        return None;
    }
    if let (IPPROTO_IP, libc::IP_MTU) | (IPPROTO_IPV6, libc::IPV6_MTU) = (level, name) {
        let state = socket.state();
        let connected = state & is::CONNECTED != 0 && state & is::FAILED == 0;
        return Some(if connected { Ok(options::path_mtu(socket)) } else { Err(libc::ENOTCONN) });
    }
    if let Some(flag) = errors_flag(level, name) {
        return Some(Ok(c_int::from(socket.slot.datagram_flags.load(Ordering::Relaxed) & flag != 0)));
    }
    let (field, family) = Field::of(level, name)?;
    let word = socket.slot.send_options[family].load(Ordering::Relaxed);
    Some(Ok(field.value(field.part(word))))
}

/// What was set on the kernel's socket before it became ours.
pub(crate) fn carry_over(fd: c_int, socket: Socket) {
    let usual = [
        (Field::Service, 0),
        (Field::Hops, USUAL_HOPS),
        (Field::Discovery, libc::IP_PMTUDISC_WANT),
        (Field::LeastHops, 0),
    ];
    for (level, names) in [
        (IPPROTO_IP, [libc::IP_TOS, libc::IP_TTL, libc::IP_MTU_DISCOVER, libc::IP_MINTTL]),
        (
            IPPROTO_IPV6,
            [libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS, libc::IPV6_MTU_DISCOVER, libc::IPV6_MINHOPCOUNT],
        ),
    ] {
        if level == IPPROTO_IPV6 && !socket.is_inet6() {
            continue;
        }
        for (name, (field, default)) in names.into_iter().zip(usual) {
            let value = options::kernel_int(fd, level, name);
            if value != default {
                keep(socket, usize::from(level == IPPROTO_IPV6), field, value);
            }
        }
        let name = if level == IPPROTO_IP { libc::IP_RECVERR } else { libc::IPV6_RECVERR };
        if options::kernel_int(fd, level, name) != 0 {
            want_errors(socket, errors_flag(level, name).unwrap_or(0), true);
        }
    }
}

/// An accepted socket has what its listener has. The engine knows that by itself.
pub(crate) fn inherit(from: Socket, to: Socket) {
    for (old, new) in from.slot.send_options.iter().zip(&to.slot.send_options) {
        new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let flags = from.slot.datagram_flags.load(Ordering::Relaxed);
    to.slot.datagram_flags.store(flags, Ordering::Relaxed);
}
