//! `setsockopt` and `getsockopt` of the model program.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use scoutline_abi::layout::{call_op, datagram_flag, membership, slot_option, slot_state as is};
use scoutline_base::Address;
use scoutline_sim::model::Socket;

use super::{Caller, Fd};
use crate::stack::Answer;

/// Linux, linux/tcp.h.
const TCP_NOTSENT_LOWAT: i32 = 25;
/// Linux, linux/tcp.h.
const TCP_CC_INFO: i32 = 26;
/// Linux, linux/tcp.h.
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
/// Linux, asm-generic/socket.h.
const SO_MEMINFO: i32 = 55;
/// Words of SO_MEMINFO (linux/sock_diag.h: SK_MEMINFO_VARS).
const MEMORY_WORDS: usize = 9;
/// Bytes of `struct tcp_info` as Linux 6.18 has it. What is behind ours, of accurate ECN, is nothing.
const TCP_INFO_LEN: usize = 280;

/// What an option about groups does ([`membership`]).
fn membership_of((level, name): (i32, i32)) -> Option<u64> {
    match name {
        _ if level != libc::IPPROTO_IP => None,
        libc::IP_ADD_MEMBERSHIP => Some(membership::JOIN),
        libc::IP_DROP_MEMBERSHIP => Some(membership::LEAVE),
        libc::IP_ADD_SOURCE_MEMBERSHIP => Some(membership::JOIN_SOURCE),
        libc::IP_DROP_SOURCE_MEMBERSHIP => Some(membership::LEAVE_SOURCE),
        _ => None,
    }
}

impl Caller<'_> {
    fn tell_option(&mut self, fd: &Fd, option: u64, value: u64) -> Result<Answer, i32> {
        match self.call(call_op::OPTION, fd.slot, [option, value, 0, 0]) {
            result if result < 0 => Err(-result),
            _ => Ok(Answer::of(0)),
        }
    }

    fn tell_keep_alive(&mut self, fd: &Fd) -> Result<Answer, i32> {
        let or = |value, default: u32| u64::from(if value == 0 { default } else { value });
        let (idle, interval, count) = fd.keep_alive_times;
        let value = or(idle, 7200) | or(interval, 75) << 20 | or(count, 9) << 40;
        self.tell_option(fd, slot_option::KEEP_ALIVE, if fd.keep_alive { value } else { 0 })
    }

    pub(super) fn set_option(
        &mut self,
        fd: &mut Fd,
        option: (i32, i32),
        value: &[u8],
    ) -> Result<Answer, i32> {
        if option == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
            let names = slot_option::CONGESTION_NAMES;
            let number = names.iter().position(|name| name.as_bytes() == value).ok_or(libc::ENOENT)?;
            return self.tell_option(fd, slot_option::CONGESTION, number as u64 + 1);
        }
        if let Some(what) = membership_of(option) {
            return self.change_membership(fd, what, value);
        }
        let word = |index: usize| {
            let bytes = value.get(index * 4..index * 4 + 4)?.try_into().ok()?;
            Some(i32::from_ne_bytes(bytes))
        };
        // Options of IP may be a byte long.
        let byte =
            (option.0 == libc::IPPROTO_IP).then(|| value.first().map(|byte| i32::from(*byte))).flatten();
        let number = word(0).or(byte).ok_or(libc::EINVAL)?;
        let count = number.max(0).unsigned_abs();
        match option {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => fd.reuse |= u64::from(number != 0),
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => fd.reuse |= u64::from(number != 0) << 1,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                fd.keep_alive = number != 0;
                return self.tell_keep_alive(fd);
            }
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => fd.oob_inline = number != 0,
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => fd.low_water = count,
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                fd.linger_plus_one =
                    if number == 0 { 0 } else { word(1).ok_or(libc::EINVAL)?.unsigned_abs() + 1 };
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => fd.receive_timeout_us = timeval(value)?,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => fd.send_timeout_us = timeval(value)?,
            // The rings are the engine's, and so is when acknowledgments go. Zero copy is the kernel's to promise.
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_ZEROCOPY)
            | (libc::IPPROTO_TCP, libc::TCP_QUICKACK)
            // As the shim has it: of a stream these are kept by the kernel's socket.
            | (libc::IPPROTO_IP, libc::IP_TOS | libc::IP_MTU_DISCOVER) => {}
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                let before = self.at(fd).slot.asked_send_buffer.swap(count, SeqCst);
                if self.at(fd).is_stream() && count > before {
                    return self.tell_option(fd, slot_option::SEND_BUFFER, 0);
                }
            }
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
                return self.tell_option(fd, slot_option::MAX_PACING_RATE, slot_option::pacing_word(count.into()));
            }
            (libc::IPPROTO_IP, libc::IP_RECVERR) => {
                let flags = &self.at(fd).slot.datagram_flags;
                flags.store(if number == 0 { 0 } else { datagram_flag::ERRORS }, Release);
            }
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                fd.no_delay = number != 0;
                if fd.no_delay && self.at(fd).slot.held_from.swap(0, AcqRel) != 0 {
                    self.at(fd).tell();
                }
                return self.tell_option(fd, slot_option::NO_DELAY, u64::from(number != 0));
            }
            (libc::IPPROTO_TCP, libc::TCP_CORK) => {
                fd.cork = number != 0;
                if !fd.cork && self.at(fd).slot.held_from.swap(0, AcqRel) != 0 {
                    self.at(fd).tell();
                }
            }
            (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => {
                let count = number.cast_unsigned(); // 2^32-1: no limit
                self.at(fd).slot.unsent_low_water.store(count, Release);
                return self.tell_option(fd, slot_option::UNSENT_LOW_WATER, u64::from(count));
            }
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => {
                return self.tell_option(fd, slot_option::FAST_OPEN, u64::from(count));
            }
            (libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) => {
                return self.tell_option(fd, slot_option::FAST_OPEN_NO_COOKIE, u64::from(count));
            }
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => {
                let answer = self.tell_option(fd, slot_option::FAST_OPEN_CONNECT, u64::from(count))?;
                fd.fast_open_connect = number != 0;
                return Ok(answer);
            }
            (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => {
                return self.tell_option(fd, slot_option::DEFER_ACCEPT, u64::from(count));
            }
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                return self.tell_option(fd, slot_option::USER_TIMEOUT, u64::from(count));
            }
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => {
                return self.tell_option(fd, slot_option::SYN_COUNT, u64::from(count));
            }
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => {
                let seconds = if number < 0 { slot_option::AS_CLASS } else { u64::from(count) };
                return self.tell_option(fd, slot_option::ORPHAN_WAIT, seconds);
            }
            (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => {
                return self.tell_option(fd, slot_option::WINDOW_CLAMP, u64::from(count));
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                fd.max_segment = count;
                return self.tell_option(fd, slot_option::MAX_SEGMENT, u64::from(count));
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                fd.keep_alive_times.0 = count;
                return self.tell_keep_alive(fd);
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => {
                fd.keep_alive_times.1 = count;
                return self.tell_keep_alive(fd);
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => {
                fd.keep_alive_times.2 = count;
                return self.tell_keep_alive(fd);
            }
            _ => return Err(libc::ENOPROTOOPT),
        }
        Ok(Answer::of(0))
    }

    /// A group, our address, and of some a source (ip(7)).
    fn change_membership(&mut self, fd: &Fd, what: u64, value: &[u8]) -> Result<Answer, i32> {
        let address = |at: usize| {
            let octets: Option<[u8; 4]> = value.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            octets.map_or(Address::UNSPECIFIED_V4, |octets| Ipv4Addr::from(octets).into())
        };
        let ([a, b], [c, d]) = (address(0).words(), address(8).words());
        self.program.region.call(0).expect("a region has calls").more.store(what, Release);
        match self.call(call_op::MEMBERSHIP, fd.slot, [a, b, c, d]) {
            result if result < 0 => Err(-result),
            _ => Ok(Answer::of(0)),
        }
    }

    /// What the engine says to GET_OPTION.
    fn asked_option(&mut self, fd: &Fd, option: u64, page: u64) -> (i32, [u64; 4]) {
        let result = self.call(call_op::GET_OPTION, fd.slot, [option, page, 0, 0]);
        let call = self.program.region.call(0).expect("a region has calls");
        (result, std::array::from_fn(|index| call.arguments[index].load(Relaxed)))
    }

    /// `struct tcp_info`, a page at a time.
    fn tcp_info(&mut self, fd: &Fd) -> Result<Answer, i32> {
        let mut bytes = Vec::new();
        while bytes.len() < slot_option::INFO_LEN {
            let page = (bytes.len() / 32) as u64;
            match self.asked_option(fd, slot_option::INFO, page) {
                (result, _) if result < 0 => return Err(-result),
                (_, words) => bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes())),
            }
        }
        bytes.resize(TCP_INFO_LEN, 0);
        Ok(Answer { bytes, ..Answer::of(0) })
    }

    /// SO_MEMINFO: what lies in the rings, and how large they are. There is no other memory, and no backlog.
    fn memory(socket: Socket<'_>) -> Answer {
        let slot = socket.slot;
        let queued = slot.send_tail.load(Relaxed).wrapping_sub(slot.send_head.load(Acquire)) as u32;
        let mut words = [0; MEMORY_WORDS];
        words[0] = socket.received() as u32; // RMEM_ALLOC
        words[1] = slot.receive_size.load(Relaxed); // RCVBUF
        words[2] = queued; // WMEM_ALLOC
        words[3] = slot.send_size.load(Relaxed); // SNDBUF
        words[5] = queued; // WMEM_QUEUED
        let bytes = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        Answer { bytes, ..Answer::of(0) }
    }

    pub(super) fn option(&mut self, fd: &Fd, option: (i32, i32)) -> Result<Answer, i32> {
        let socket = self.at(fd);
        let value = match option {
            (libc::IPPROTO_TCP, libc::TCP_INFO) => return self.tcp_info(fd),
            // As Linux answers where the congestion control has nothing to tell.
            (libc::IPPROTO_TCP, TCP_CC_INFO) => return Ok(Answer::of(0)),
            (libc::SOL_SOCKET, SO_MEMINFO) => return Ok(Self::memory(socket)),
            (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => {
                socket.slot.unsent_low_water.load(Relaxed).cast_signed()
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => match socket.slot.asked_send_buffer.load(Relaxed) {
                0 => socket.slot.send_size.load(Relaxed) as i32,
                asked => asked.saturating_mul(2) as i32, // as Linux tells it back
            },
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => socket.slot.receive_size.load(Relaxed) as i32,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG)
                if fd.max_segment == 0 || socket.state() & is::CONNECTED != 0 =>
            {
                match self.asked_option(fd, slot_option::MAX_SEGMENT, 0) {
                    (result, _) if result < 0 => return Err(-result),
                    (bytes, _) => bytes,
                }
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => fd.max_segment as i32,
            (libc::SOL_SOCKET, libc::SO_ERROR) => socket.take_any_error(),
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => i32::from(socket.state() & is::LISTENING != 0),
            (libc::SOL_SOCKET, libc::SO_TYPE) => {
                if socket.is_stream() {
                    libc::SOCK_STREAM
                } else {
                    libc::SOCK_DGRAM
                }
            }
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => i32::from(fd.no_delay),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => i32::from(fd.cork),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => i32::from(fd.keep_alive),
            _ => return Err(libc::ENOPROTOOPT),
        };
        Ok(Answer { bytes: value.to_ne_bytes().to_vec(), ..Answer::of(0) })
    }
}

fn timeval(value: &[u8]) -> Result<u64, i32> {
    let part =
        |at: usize| -> Option<i64> { Some(i64::from_ne_bytes(value.get(at..at + 8)?.try_into().ok()?)) };
    let (seconds, micros) = part(0).zip(part(8)).ok_or(libc::EINVAL)?;
    u64::try_from(seconds * 1_000_000 + micros).map_err(|_| libc::EDOM)
}
