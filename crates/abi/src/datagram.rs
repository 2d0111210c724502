//! Datagrams in a byte ring: each is a 64-byte header and its payload, padded to a multiple of 64, so that a header
//! never wraps and takes one cache line. Beside the payload it has all that control messages tell (RFC 3542 §4, ip(7)).
//!
//! Errors about datagrams (IP_RECVERR) stand in a small ring of their own, [`ErrorRecord`].

use scoutline_base::Address;

/// Bytes of a record's header.
pub const HEADER_LEN: usize = 64;

/// Bits of [`Record::flags`], outward but for the last one.
pub mod record_flag {
    /// `hop_limit` is meant, 0 too.
    pub const HOP_LIMIT: u8 = 1 << 0;
    /// It must not be fragmented on its way (IP_PMTUDISC_DO and _PROBE).
    pub const DONT_FRAGMENT: u8 = 1 << 1;
    /// To a group: members on this machine do not get it (IP_MULTICAST_LOOP off).
    pub const NO_LOOP: u8 = 1 << 2;
    /// IPv4: it may be fragmented on its way (IP_PMTUDISC_DONT, _INTERFACE and _OMIT).
    pub const DIVISIBLE: u8 = 1 << 3;
    /// Inward, by the program itself: an empty one was looked at (SO_PEEK_OFF passes over it then).
    pub const LOOKED_AT: u8 = 1 << 4;
}

/// The header of one datagram in a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Payload bytes.
    pub len: u32,
    /// The peer's address (receive: sender; send: destination).
    pub address: Address,
    /// The peer's port; send: 0: to the connected peer.
    pub port: u16,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// TTL, or hop limit; send: see [`record_flag::HOP_LIMIT`].
    pub hop_limit: u8,
    /// Linux's number of the interface on which it came or shall leave; send: 0: not said.
    pub interface: u32,
    /// Payload bytes of each packet of several that stand here together (UDP_GRO, UDP_SEGMENT); 0: it is one.
    pub segment: u16,
    /// Bits of [`record_flag`].
    pub flags: u8,
    /// Our address: to which it was sent, or from which it shall be; send: `::`: not said.
    pub own: Address,
    /// When it came, CLOCK_MONOTONIC.
    pub arrival_ns: u64,
    /// Datagrams lost before it for want of room in the ring (SO_RXQ_OVFL), modulo 2^32.
    pub lost: u32,
    /// Send, over IPv6: if it has to be cut, into packets no longer than this (IPV6_MTU); 0: as the way carries.
    pub most: u16,
}

impl Record {
    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.port.to_le_bytes());
        bytes[6] = self.tos;
        bytes[7] = self.hop_limit;
        bytes[8..12].copy_from_slice(&self.interface.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.segment.to_le_bytes());
        bytes[14] = self.flags;
        bytes[16..32].copy_from_slice(&self.address.octets());
        bytes[32..48].copy_from_slice(&self.own.octets());
        bytes[48..56].copy_from_slice(&self.arrival_ns.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.lost.to_le_bytes());
        bytes[60..62].copy_from_slice(&self.most.to_le_bytes());
        bytes
    }

    /// Reads a header. Any bytes give a record: the reader checks `len` against what the ring holds.
    pub fn from_bytes(bytes: [u8; HEADER_LEN]) -> Record {
        Record {
            len: u32::from_le_bytes(part(&bytes, 0)),
            port: u16::from_le_bytes(part(&bytes, 4)),
            tos: bytes[6],
            hop_limit: bytes[7],
            interface: u32::from_le_bytes(part(&bytes, 8)),
            segment: u16::from_le_bytes(part(&bytes, 12)),
            flags: bytes[14],
            address: Address::from_octets(part(&bytes, 16)),
            own: Address::from_octets(part(&bytes, 32)),
            arrival_ns: u64::from_le_bytes(part(&bytes, 48)),
            lost: u32::from_le_bytes(part(&bytes, 56)),
            most: u16::from_le_bytes(part(&bytes, 60)),
        }
    }

    /// Bytes that the whole record takes in the ring.
    pub const fn ring_len(payload_len: usize) -> u64 {
        ((HEADER_LEN + payload_len).div_ceil(HEADER_LEN) * HEADER_LEN) as u64
    }
}

/// How a socket sends to one family unless a datagram says otherwise, as one word of its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// IP_TOS, IPV6_TCLASS.
    pub tos: u8,
    /// IP_TTL, IPV6_UNICAST_HOPS; `None`: what the host has.
    pub hop_limit: Option<u8>,
    /// IP_MULTICAST_TTL, IPV6_MULTICAST_HOPS; `None`: 1.
    pub group_hop_limit: Option<u8>,
    /// IP_MTU_DISCOVER, IPV6_MTU_DISCOVER as Linux numbers them, 0 to 5; `None`: not said.
    pub discover: Option<u8>,
    /// IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP are off.
    pub no_loop: bool,
}

impl SendOptions {
    /// As a word; 0 is the default.
    pub fn to_word(self) -> u64 {
        let plus_one = |said: Option<u8>| said.map_or(0, |said| u64::from(said) + 1);
        u64::from(self.tos)
            | plus_one(self.hop_limit) << 8
            | plus_one(self.group_hop_limit) << 24
            | plus_one(self.discover) << 40
            | u64::from(self.no_loop) << 56
    }

    /// From a word; any word gives options.
    pub fn from_word(word: u64) -> SendOptions {
        let less_one = |at: u32| u8::try_from((word >> at & 0xffff).wrapping_sub(1)).ok();
        SendOptions {
            tos: word as u8,
            hop_limit: less_one(8),
            group_hop_limit: less_one(24),
            discover: less_one(40),
            no_loop: word >> 56 & 1 != 0,
        }
    }
}

/// Bytes of an error in its ring: a header and what the error quotes.
pub const ERROR_LEN: usize = 1024;
/// Errors that may wait; more are lost, as when Linux's queue is full.
pub const ERROR_COUNT: usize = 16;
/// Bytes of an error's header.
pub const ERROR_HEADER_LEN: usize = 64;
/// The most that an error quotes of its datagram's data: all that ICMP for IPv4 carries (RFC 1812 §4.3.2.3).
pub const MAX_QUOTED: usize = ERROR_LEN - ERROR_HEADER_LEN;

/// An error about a datagram that was sent: what `struct sock_extended_err` tells, and beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorRecord {
    /// An errno.
    pub errno: u32,
    /// Who found it ([`origin`]).
    pub origin: u8,
    /// Type and code of the ICMP message.
    pub kind: u8,
    /// See `kind`.
    pub code: u8,
    /// The MTU, for EMSGSIZE.
    pub info: u32,
    /// Who sent the ICMP message.
    pub offender: Address,
    /// Where the datagram was to go.
    pub address: Address,
    /// See `address`.
    pub port: u16,
    /// Linux's number of the interface on which the message came.
    pub interface: u32,
    /// Bytes behind the header: what the message quotes of the datagram's data, [`MAX_QUOTED`] at most.
    pub quoted_len: u32,
}

/// SO_EE_ORIGIN_ of Linux (`linux/errqueue.h`).
pub mod origin {
    /// This machine.
    pub const LOCAL: u8 = 1;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 2;
    /// ICMPv6.
    pub const ICMP6: u8 = 3;
    /// No error: sends with MSG_ZEROCOPY are complete. Never in the ring.
    pub const ZERO_COPY: u8 = 5;
}

impl ErrorRecord {
    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; ERROR_HEADER_LEN] {
        let mut bytes = [0; ERROR_HEADER_LEN];
        bytes[0..4].copy_from_slice(&self.errno.to_le_bytes());
        bytes[4..7].copy_from_slice(&[self.origin, self.kind, self.code]);
        bytes[8..12].copy_from_slice(&self.info.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.quoted_len.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.offender.octets());
        bytes[32..48].copy_from_slice(&self.address.octets());
        bytes[48..50].copy_from_slice(&self.port.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.interface.to_le_bytes());
        bytes
    }

    /// Reads a header. Any bytes give an error.
    pub fn from_bytes(bytes: [u8; ERROR_HEADER_LEN]) -> ErrorRecord {
        ErrorRecord {
            errno: u32::from_le_bytes(part(&bytes, 0)),
            origin: bytes[4],
            kind: bytes[5],
            code: bytes[6],
            info: u32::from_le_bytes(part(&bytes, 8)),
            quoted_len: u32::from_le_bytes(part(&bytes, 12)).min(MAX_QUOTED as u32),
            offender: Address::from_octets(part(&bytes, 16)),
            address: Address::from_octets(part(&bytes, 32)),
            port: u16::from_le_bytes(part(&bytes, 48)),
            interface: u32::from_le_bytes(part(&bytes, 52)),
        }
    }
}

/// `N` bytes from `at` on. The offsets here are constants within the headers.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let record = Record {
            len: 70_000,
            address: "10.0.0.2".parse().unwrap(),
            port: 53,
            tos: 0xb8,
            hop_limit: 3,
            interface: 7,
            segment: 1400,
            flags: record_flag::DONT_FRAGMENT,
            own: "2001:db8::1".parse().unwrap(),
            arrival_ns: u64::MAX - 1,
            lost: 9,
            most: 1300,
        };
        assert_eq!(Record::from_bytes(record.to_bytes()), record);
        assert_eq!((Record::ring_len(0), Record::ring_len(1)), (64, 128));
        let error = ErrorRecord {
            errno: 111,
            origin: origin::ICMP,
            kind: 3,
            code: 3,
            info: 1400,
            offender: "10.0.0.9".parse().unwrap(),
            address: "10.0.0.2".parse().unwrap(),
            port: 53,
            interface: 7,
            quoted_len: 40,
        };
        assert_eq!(ErrorRecord::from_bytes(error.to_bytes()), error);
        let scribbled = ErrorRecord::from_bytes([0xff; ERROR_HEADER_LEN]);
        assert_eq!(scribbled.quoted_len as usize, MAX_QUOTED);
    }

    #[test]
    fn options_are_a_word() {
        assert_eq!(SendOptions::default().to_word(), 0);
        assert_eq!(SendOptions::from_word(0), SendOptions::default());
        let options = SendOptions {
            tos: 0xff,
            hop_limit: Some(255),
            group_hop_limit: Some(0),
            discover: Some(2),
            no_loop: true,
        };
        assert_eq!(SendOptions::from_word(options.to_word()), options);
        SendOptions::from_word(u64::MAX);
    }
}
