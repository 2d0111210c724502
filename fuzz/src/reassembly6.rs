//! Reassembly of IPv6 against that of IPv4: the same pieces of the same datagrams, told to both, come to the same.
//! (`reassembly` holds IPv4's against an oracle.)

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use scoutline_base::Time;
use scoutline_proto::ip4::{Limits, Offered, Reassembler};
use scoutline_proto::ip6::Piece;
use scoutline_wire::{ipv4, ipv6};

use crate::bytes::{Bytes, Target};

/// The target of this file.
pub const TARGETS: &[Target] = &[("reassembly6", run)];

const MAX_OPERATIONS: usize = 300;

/// A piece, for both.
struct Told {
    which: u8,
    offset: u16,
    more: bool,
    payload: Vec<u8>,
}

impl Told {
    fn read(bytes: &mut Bytes<'_>) -> Told {
        let (what, which) = (bytes.u8(), bytes.u8());
        let (offset, len) = match what >> 1 & 3 {
            0 | 1 => (u16::from(bytes.u8() & 7) * 8, usize::from(bytes.u8() & 3) * 8 + 8),
            2 => (u16::from(bytes.u8()) * 8, usize::from(bytes.u8())),
            _ => (bytes.u16() & !7, usize::from(bytes.u16()) % 3_000),
        };
        // Longer is too long for IPv4 alone.
        let len = len.min(65_515usize.saturating_sub(usize::from(offset)));
        let payload = (0..len).map(|at| ((at * 31) >> 3) as u8 ^ which ^ (what & 16)).collect();
        Told { which, offset, more: what & 1 == 0, payload }
    }

    fn v4(&self) -> ipv4::Header {
        ipv4::Header {
            header_len: 20,
            tos: 0,
            total_len: (20 + self.payload.len()) as u16,
            identification: u16::from(self.which & 3),
            dont_fragment: false,
            more_fragments: self.more,
            fragment_offset: self.offset,
            ttl: 64,
            protocol: 17,
            source: Ipv4Addr::new(10, 0, 0, self.which >> 2 & 3),
            destination: Ipv4Addr::new(10, 0, 0, 99),
        }
    }

    fn v6(&self) -> Piece {
        Piece {
            header: ipv6::Header {
                traffic_class: 0,
                flow_label: 0,
                payload_len: (8 + self.payload.len()) as u16,
                next_header: 44,
                hop_limit: 64,
                source: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(self.which >> 2 & 3)),
                destination: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 99),
            },
            fragment: ipv6::Fragment {
                next_header: 17,
                offset: self.offset,
                more: self.more,
                identification: u32::from(self.which & 3),
            },
        }
    }
}

/// One input.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let small =
        Limits { datagrams: 5, datagrams_per_source: 3, pieces: 6, bytes: 5_000, ..Limits::default() };
    let limits = if bytes.u8() & 1 == 0 { small } else { Limits::default() };
    let (mut v4, mut v6) = (Reassembler::new(limits), Reassembler::<Piece>::new(limits));
    let mut now = Time::from_millis(1);
    for _ in 0..MAX_OPERATIONS {
        if bytes.is_empty() {
            break;
        }
        if bytes.u8() < 16 {
            now += Duration::from_millis(u64::from(bytes.u8()) * 200);
        } else {
            let told = Told::read(&mut bytes);
            let four = v4.offer(&told.v4(), &told.payload, now);
            let six = v6.offer(&told.v6(), &told.payload, now);
            compare(four, six);
        }
        assert_eq!(v4.on_timeout(now).len(), v6.on_timeout(now).len());
        assert_eq!((v4.datagrams(), v4.bytes()), (v6.datagrams(), v6.bytes()));
        assert_eq!(v4.next_timeout(), v6.next_timeout());
        assert!(v6.bytes() <= limits.bytes && v6.datagrams() <= limits.datagrams);
    }
    v6.on_timeout(now + limits.time);
    assert_eq!((v6.datagrams(), v6.bytes(), v6.next_timeout()), (0, 0, None));
}

fn compare(four: Offered, six: Offered<Piece>) {
    match (four, six) {
        (Offered::Kept, Offered::Kept) | (Offered::Duplicate, Offered::Duplicate) => {}
        (Offered::Refused(one), Offered::Refused(other)) => assert_eq!(one, other),
        (Offered::Complete(_, one), Offered::Complete(piece, other)) => {
            assert_eq!(one, other);
            assert_eq!(usize::from(piece.header.payload_len), other.len());
            assert_eq!((piece.header.next_header, piece.fragment.more), (17, false));
        }
        (four, six) => panic!("{four:?}, but {six:?}"),
    }
}
