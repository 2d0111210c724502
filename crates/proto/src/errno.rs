//! The Linux errno values that protocols report (`Control::Failed`); Linux' numbers on every architecture that we
//! run on.

/// Permission denied: a route prohibits it.
pub const EACCES: i32 = 13;
/// Invalid argument: a route drops it in silence.
pub const EINVAL: i32 = 22;
/// Protocol not available: an ICMP protocol unreachable.
pub const ENOPROTOOPT: i32 = 92;
/// Network is unreachable.
pub const ENETUNREACH: i32 = 101;
/// Connection reset by peer.
pub const ECONNRESET: i32 = 104;
/// Connection timed out.
pub const ETIMEDOUT: i32 = 110;
/// Connection refused.
pub const ECONNREFUSED: i32 = 111;
/// No route to host.
pub const EHOSTUNREACH: i32 = 113;
/// Message too long.
pub const EMSGSIZE: i32 = 90;

/// Machine is not on the network.
pub const ENONET: i32 = 64;
/// Protocol error: an ICMP parameter problem.
pub const EPROTO: i32 = 71;
/// Operation not supported: a source route failed.
pub const EOPNOTSUPP: i32 = 95;
/// Host is down.
pub const EHOSTDOWN: i32 = 112;

use scoutline_wire::{icmp, icmpv6};

/// What an ICMP error about a datagram means, and whether a program that asks for no details hears of it: Linux's
/// `icmp_err_convert`, `__udp4_lib_err`. `None`: nothing.
pub fn of_datagram(kind: u8, code: u8) -> Option<(i32, bool)> {
    use icmp::unreachable as code_of;
    Some(match (kind, code) {
        (icmp::UNREACHABLE, code_of::NETWORK | 11) => (ENETUNREACH, false),
        (icmp::UNREACHABLE, code_of::HOST | 12) => (EHOSTUNREACH, false),
        (icmp::UNREACHABLE, code_of::PROTOCOL) => (ENOPROTOOPT, true),
        (icmp::UNREACHABLE, code_of::PORT) => (ECONNREFUSED, true),
        (icmp::UNREACHABLE, code_of::FRAGMENTATION_NEEDED) => (EMSGSIZE, true),
        (icmp::UNREACHABLE, code_of::SOURCE_ROUTE) => (EOPNOTSUPP, false),
        (icmp::UNREACHABLE, 6 | 9) => (ENETUNREACH, true),
        (icmp::UNREACHABLE, 7) => (EHOSTDOWN, true),
        (icmp::UNREACHABLE, 8) => (ENONET, true),
        (icmp::UNREACHABLE, 10 | 13..=15) => (EHOSTUNREACH, true),
        (icmp::UNREACHABLE | icmp::TIME_EXCEEDED, _) => (EHOSTUNREACH, false),
        (icmp::PARAMETER_PROBLEM, _) => (EPROTO, true),
        _ => return None,
    })
}

/// The same for ICMPv6: Linux's `icmpv6_err_convert`, `__udp6_lib_err`.
pub fn of_datagram6(kind: u8, code: u8) -> Option<(i32, bool)> {
    use icmpv6::unreachable as code_of;
    Some(match (kind, code) {
        (icmpv6::UNREACHABLE, code_of::NO_ROUTE) => (ENETUNREACH, false),
        (icmpv6::UNREACHABLE, code_of::PORT) => (ECONNREFUSED, true),
        (icmpv6::UNREACHABLE, code_of::ADMINISTRATIVE | code_of::POLICY | code_of::REJECT) => (EACCES, true),
        (icmpv6::UNREACHABLE | icmpv6::TIME_EXCEEDED, _) => (EHOSTUNREACH, false),
        (icmpv6::PACKET_TOO_BIG, _) => (EMSGSIZE, true),
        (icmpv6::PARAMETER_PROBLEM, _) => (EPROTO, true),
        _ => return None,
    })
}

/// What an ICMP error means to a connection (`tcp_v4_err`, `tcp_v6_err`), those of ICMPv6 in the words of ICMP
/// ([`crate::icmp6`]); `None` when nothing.
pub fn of_connection(kind: u8, code: u8, over_v6: bool) -> Option<i32> {
    use icmp::unreachable as code_of;
    match (kind, code) {
        (icmp::UNREACHABLE, code_of::PROTOCOL) if over_v6 => Some(EPROTO),
        (icmp::UNREACHABLE, code) if over_v6 && code == code_of::ADMINISTRATIVE[2] => Some(EACCES),
        _ => of_datagram(kind, code).map(|(errno, _)| errno),
    }
}
