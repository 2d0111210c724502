//! Reassembly against an oracle that keeps every piece it was told was kept: what comes out has exactly those bytes,
//! nothing complete is held back, every refusal has its reason, and the limits hold.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use scoutline_base::Time;
use scoutline_path::DropReason;
use scoutline_proto::ip4::{Limits, Offered, Reassembler};
use scoutline_wire::ipv4::Header;

use crate::bytes::{Bytes, Target};

/// The target of this file.
pub const TARGETS: &[Target] = &[("reassembly", run)];

const MAX_OPERATIONS: usize = 500;

/// A datagram in progress, as the oracle knows it.
struct Progress {
    deadline: Time,
    /// Offset, bytes, more fragments.
    pieces: Vec<(usize, Vec<u8>, bool)>,
    /// Their ECN fields.
    ecn: Vec<u8>,
    first: Option<Header>,
    poisoned: bool,
}

impl Progress {
    fn len(&self) -> usize {
        self.pieces.iter().map(|(_, bytes, _)| bytes.len()).sum()
    }

    /// The whole, when the pieces are all there.
    fn whole(&self) -> Option<Vec<u8>> {
        let mut pieces: Vec<_> = self.pieces.iter().collect();
        pieces.sort_by_key(|(start, ..)| *start);
        let mut whole = Vec::new();
        let mut is_over = false;
        for (start, bytes, more) in pieces {
            if *start != whole.len() || is_over {
                return None;
            }
            whole.extend_from_slice(bytes);
            is_over = !more;
        }
        is_over.then_some(whole)
    }

    /// All that this piece says has been said, by one piece or by several.
    fn says(&self, start: usize, payload: &[u8], more: bool) -> bool {
        let end = start + payload.len();
        let ends = |(from, bytes, more): &(usize, Vec<u8>, bool)| !more && from + bytes.len() == end;
        let held = |at: usize| {
            let has = |(from, bytes, _): &(usize, Vec<u8>, bool)| Some(*bytes.get(at.checked_sub(*from)?)?);
            self.pieces.iter().find_map(has)
        };
        self.pieces.iter().any(ends) != more
            && payload.iter().enumerate().all(|(at, byte)| held(start + at) == Some(*byte))
    }

    /// The ECN field of the whole (RFC 3168 §5.3); `None`: it is dropped.
    fn whole_ecn(&self, first: u8) -> Option<u8> {
        let of = |field: u8| self.ecn.contains(&field);
        match (of(0), of(1) || of(2) || of(3)) {
            (true, mixed) => (!mixed).then_some(0),
            (false, _) => Some(if of(3) { 3 } else { first }),
        }
    }

    /// A piece that cannot belong to one datagram with those kept.
    fn contradicts(&self, start: usize, len: usize, more: bool) -> bool {
        let end = start + len;
        self.pieces.iter().any(|(other, bytes, other_more)| {
            let other_end = other + bytes.len();
            let overlaps = start < other_end && *other < end;
            let behind_the_last = (!other_more && end > other_end) || (!more && other_end > end);
            overlaps || behind_the_last || (!more && !other_more)
        })
    }
}

type Key = (Ipv4Addr, Ipv4Addr, u16, u8);

struct Oracle {
    limits: Limits,
    now: Time,
    datagrams: BTreeMap<Key, Progress>,
}

/// One input.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let choice = bytes.u8();
    let small = Limits {
        datagrams: 5,
        datagrams_per_source: 3,
        pieces: 6,
        bytes: 5_000,
        time: Duration::from_secs(30),
    };
    let limits = if choice & 1 == 0 { small } else { Limits::default() };
    let mut reassembler = Reassembler::new(limits);
    let mut oracle = Oracle { limits, now: Time::from_millis(1), datagrams: BTreeMap::new() };
    for _ in 0..MAX_OPERATIONS {
        if bytes.is_empty() {
            break;
        }
        match bytes.u8() {
            0..=15 => {
                oracle.now += Duration::from_millis(u64::from(bytes.u8()) * 200);
                oracle.expire(&mut reassembler);
            }
            what => oracle.fragment(&mut reassembler, what, &mut bytes),
        }
        oracle.check(&reassembler);
    }
    // In the end nothing is held.
    oracle.now += limits.time;
    oracle.expire(&mut reassembler);
    oracle.check(&reassembler);
    assert_eq!((reassembler.datagrams(), reassembler.bytes()), (0, 0));
    assert_eq!(reassembler.next_timeout(), None);
}

impl Oracle {
    fn fragment(&mut self, reassembler: &mut Reassembler, what: u8, bytes: &mut Bytes<'_>) {
        let which = bytes.u8();
        let more = what & 1 == 0;
        // Mostly pieces of eight-byte steps near the start; at times anything.
        let (offset, len) = match what >> 1 & 7 {
            0..=4 => (u16::from(bytes.u8() & 7) * 8, usize::from(bytes.u8() & 3) * 8 + 8),
            5 => (u16::from(bytes.u8()) * 8, usize::from(bytes.u8())),
            6 => (bytes.u16() & !7, usize::from(bytes.u16()) % 3_000),
            _ => (bytes.u16() & !7, 65_535 - usize::from(bytes.u8())),
        };
        let header = Header {
            header_len: 20,
            // Most pieces of a datagram have one ECN field, some are marked.
            tos: if what >> 5 == 7 { which | 3 } else { which },
            total_len: (20 + len).min(65_535) as u16,
            identification: u16::from(which & 3),
            dont_fragment: which & 64 != 0,
            more_fragments: more,
            fragment_offset: offset,
            ttl: 64,
            protocol: if which & 4 == 0 { 17 } else { 6 },
            source: Ipv4Addr::new(10, 0, 0, which >> 3 & 3),
            destination: Ipv4Addr::new(10, 0, 0, 99),
        };
        // Honest pieces agree where they overlap; a lying one does not.
        let lie = u8::from(what & 16 != 0) * bytes.u8();
        let start = usize::from(offset);
        let payload: Vec<u8> = (start..start + len).map(|at| ((at * 31) >> 3) as u8 ^ which ^ lie).collect();
        let offered = reassembler.offer(&header, &payload, self.now);
        self.judge(header, &payload, offered);
    }

    fn judge(&mut self, header: Header, payload: &[u8], offered: Offered) {
        let key: Key = (header.source, header.destination, header.identification, header.protocol);
        let (start, more) = (usize::from(header.fragment_offset), header.more_fragments);
        let unusable = payload.is_empty()
            || (more && !payload.len().is_multiple_of(8))
            || start + payload.len() + 20 > 65_535;
        if unusable {
            assert_eq!(offered, Offered::Refused(DropReason::Malformed));
            return;
        }
        let held: usize = self.datagrams.values().map(Progress::len).sum();
        let of_source = self.datagrams.keys().filter(|other| other.0 == key.0).count();
        let is_new = !self.datagrams.contains_key(&key);
        let full =
            self.datagrams.len() >= self.limits.datagrams || of_source >= self.limits.datagrams_per_source;
        if is_new && full {
            assert_eq!(offered, Offered::Refused(DropReason::FragmentLimit));
            return;
        }
        let deadline = self.now + self.limits.time;
        let progress = self.datagrams.entry(key).or_insert_with(|| Progress {
            deadline,
            pieces: Vec::new(),
            ecn: Vec::new(),
            first: None,
            poisoned: false,
        });
        let same = progress.says(start, payload, more);
        let contradicts = progress.contradicts(start, payload.len(), more);
        match offered {
            _ if progress.poisoned => {
                assert_eq!(offered, Offered::Refused(DropReason::FragmentOverlap));
            }
            Offered::Duplicate => assert!(same, "called a duplicate"),
            Offered::Refused(DropReason::FragmentOverlap) => {
                assert!(contradicts && !same, "called an overlap");
                progress.poisoned = true;
                progress.pieces.clear();
            }
            Offered::Refused(DropReason::FragmentLimit) => {
                assert!(!contradicts);
                if progress.pieces.len() >= self.limits.pieces {
                    progress.poisoned = true;
                    progress.pieces.clear();
                } else {
                    assert!(held + payload.len() > self.limits.bytes, "refused below the limits");
                }
            }
            Offered::Refused(DropReason::Malformed) => {
                progress.pieces.push((start, payload.to_vec(), more));
                progress.ecn.push(header.tos & 3);
                assert!(progress.whole().is_some(), "refused before it was whole");
                let first = if start == 0 { header } else { progress.first.expect("the piece at 0") };
                assert_eq!(progress.whole_ecn(first.tos & 3), None, "refused for its ECN fields");
                self.datagrams.remove(&key);
            }
            Offered::Refused(reason) => panic!("{reason:?}"),
            Offered::Kept | Offered::Complete(..) => {
                assert!(!contradicts, "took what contradicts the rest");
                progress.pieces.push((start, payload.to_vec(), more));
                progress.ecn.push(header.tos & 3);
                if start == 0 {
                    progress.first = Some(header);
                }
                let whole = progress.whole();
                if let Offered::Complete(header, bytes) = offered {
                    assert_eq!(Some(&bytes), whole.as_ref(), "not the bytes that came");
                    let first = progress.first.expect("the piece at 0");
                    assert_eq!(usize::from(header.total_len), bytes.len() + 20);
                    let tos = progress.whole_ecn(first.tos & 3).map(|ecn| first.tos & !3 | ecn);
                    assert!(!header.is_fragment() && header.header_len == 20 && Some(header.tos) == tos);
                    assert_eq!((header.source, header.destination), (key.0, key.1));
                    assert_eq!((header.identification, header.protocol), (key.2, key.3));
                    self.datagrams.remove(&key);
                } else {
                    assert_eq!(whole, None, "holds back what is complete");
                }
            }
        }
    }

    fn expire(&mut self, reassembler: &mut Reassembler) {
        let over: Vec<Key> = self
            .datagrams
            .iter()
            .filter(|(_, progress)| progress.deadline <= self.now)
            .map(|(key, _)| *key)
            .collect();
        let mut expected = Vec::new();
        for key in over {
            let progress = self.datagrams.remove(&key).expect("just found");
            if !progress.poisoned {
                expected.push(progress.first.map(|first| first.tos));
            }
        }
        let due = reassembler.next_timeout().is_some_and(|at| at <= self.now);
        let expired = reassembler.on_timeout(self.now);
        assert!(due || expired.is_empty());
        let mut told: Vec<_> =
            expired.iter().map(|one| one.first.as_ref().map(|(first, _)| first.tos)).collect();
        told.sort_unstable();
        expected.sort_unstable();
        assert_eq!(told, expected);
        assert!(reassembler.next_timeout().is_none_or(|at| at > self.now));
    }

    fn check(&self, reassembler: &Reassembler) {
        let held: usize = self.datagrams.values().map(Progress::len).sum();
        assert_eq!(reassembler.bytes(), held);
        assert_eq!(reassembler.datagrams(), self.datagrams.len());
        assert!(held <= self.limits.bytes && self.datagrams.len() <= self.limits.datagrams);
        let next = self.datagrams.values().map(|progress| progress.deadline).min();
        assert_eq!(reassembler.next_timeout(), next);
    }
}
