//! Constants by name.

/// The value of a constant of the socket interface.
pub(super) fn value(name: &str) -> Option<i64> {
    macro_rules! constants {
        ($($name:ident)*) => {
            match name {
                $(stringify!($name) => libc::$name as i64,)*
                _ => return extra(name),
            }
        };
    }
    Some(constants!(
        AF_INET AF_UNSPEC SOCK_STREAM SOCK_DGRAM SOCK_NONBLOCK SOCK_CLOEXEC IPPROTO_TCP IPPROTO_UDP IPPROTO_IP
        SOL_SOCKET SO_REUSEADDR SO_REUSEPORT SO_KEEPALIVE SO_LINGER SO_RCVTIMEO SO_SNDTIMEO SO_RCVLOWAT SO_RCVBUF
        SO_SNDBUF SO_OOBINLINE SO_ERROR SO_ACCEPTCONN SO_TYPE SO_BROADCAST TCP_NODELAY TCP_CORK TCP_QUICKACK TCP_MAXSEG
        TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_DEFER_ACCEPT TCP_USER_TIMEOUT TCP_CONGESTION TCP_INFO
        SO_MAX_PACING_RATE TCP_FASTOPEN TCP_FASTOPEN_CONNECT MSG_FASTOPEN TCP_SYNCNT TCP_LINGER2 TCP_WINDOW_CLAMP IP_TOS IP_TTL IP_MTU_DISCOVER IP_MTU IP_RECVERR IP_ADD_MEMBERSHIP IP_DROP_MEMBERSHIP IP_ADD_SOURCE_MEMBERSHIP IP_DROP_SOURCE_MEMBERSHIP SHUT_RD SHUT_WR SHUT_RDWR MSG_OOB MSG_PEEK
        MSG_WAITALL MSG_DONTWAIT MSG_MORE MSG_NOSIGNAL MSG_TRUNC F_GETFL F_SETFL O_RDWR O_NONBLOCK POLLIN POLLOUT
        POLLERR POLLHUP POLLPRI POLLRDHUP POLLNVAL FIONREAD TIOCOUTQ
    ))
}

fn extra(name: &str) -> Option<i64> {
    Some(match name {
        "SOL_TCP" => i64::from(libc::IPPROTO_TCP),
        "SIOCINQ" => libc::FIONREAD as i64,
        "SIOCOUTQ" => libc::TIOCOUTQ as i64,
        "SIOCATMARK" => 0x8905,
        "TCP_NOTSENT_LOWAT" => 25,
        "TCP_FASTOPEN_KEY" => 33,
        "TCP_FASTOPEN_NO_COOKIE" => 34,
        _ => return None,
    })
}

const ERRORS: &[(&str, i32)] = &[
    ("EAGAIN", libc::EAGAIN),
    ("EWOULDBLOCK", libc::EAGAIN),
    ("EPIPE", libc::EPIPE),
    ("ECONNRESET", libc::ECONNRESET),
    ("ECONNREFUSED", libc::ECONNREFUSED),
    ("ECONNABORTED", libc::ECONNABORTED),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("EINPROGRESS", libc::EINPROGRESS),
    ("EALREADY", libc::EALREADY),
    ("EISCONN", libc::EISCONN),
    ("ENOTCONN", libc::ENOTCONN),
    ("EINVAL", libc::EINVAL),
    ("EBADF", libc::EBADF),
    ("EADDRINUSE", libc::EADDRINUSE),
    ("EADDRNOTAVAIL", libc::EADDRNOTAVAIL),
    ("EHOSTUNREACH", libc::EHOSTUNREACH),
    ("ENETUNREACH", libc::ENETUNREACH),
    ("ENOPROTOOPT", libc::ENOPROTOOPT),
    ("EPROTO", libc::EPROTO),
    ("EMSGSIZE", libc::EMSGSIZE),
    ("EDESTADDRREQ", libc::EDESTADDRREQ),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EACCES", libc::EACCES),
    ("EDOM", libc::EDOM),
    ("ENOBUFS", libc::ENOBUFS),
];

/// An error by name.
pub(super) fn errno(name: &str) -> Option<i32> {
    ERRORS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// The name of an error.
pub(super) fn errno_name(number: i32) -> String {
    let known = ERRORS.iter().find(|(_, known)| *known == number);
    known.map_or_else(|| format!("errno {number}"), |(name, _)| (*name).to_owned())
}
