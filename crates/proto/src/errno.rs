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

use scoutline_wire::icmp;

/// What an ICMP error means to a program, as Linux translates it (`icmp_err_convert`); `None` when nothing.
pub fn of_icmp(kind: u8, code: u8) -> Option<i32> {
    use icmp::unreachable as code_of;
    match (kind, code) {
        (icmp::UNREACHABLE, code_of::NETWORK | 6 | 9 | 11) => Some(ENETUNREACH),
        (icmp::UNREACHABLE, code_of::PROTOCOL) => Some(ENOPROTOOPT),
        (icmp::UNREACHABLE, code_of::PORT) => Some(ECONNREFUSED),
        (icmp::UNREACHABLE, code_of::FRAGMENTATION_NEEDED) => Some(EMSGSIZE),
        (icmp::UNREACHABLE | icmp::TIME_EXCEEDED, _) => Some(EHOSTUNREACH),
        _ => None,
    }
}
