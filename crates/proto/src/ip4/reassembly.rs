//! Reassembly of fragments (RFC 791 §3.2, RFC 815's task), pure, with limits; of both families, which differ in what
//! tells that pieces belong together ([`Fragmented`]).
//!
//! A datagram whose fragments overlap or contradict each other is dropped whole, and what else comes for it until
//! its time is over (RFC 5722 §4, which Linux applies to IPv4 as well): overlaps are attacks, not accidents. What
//! brings again bytes that have come, and only these, is an accident and is ignored: whoever cut the datagram anew on
//! another way. A congestion mark on one of them is a mark on the whole (RFC 3168 §5.3, [`whole_ecn`]).

use std::time::Duration;

use scoutline_base::{Address, Time};
use scoutline_path::DropReason;
use scoutline_wire::ipv4::{ECN_CE, ECN_MASK, Header, MIN_HEADER_LEN};

/// What reassembly may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Datagrams in progress.
    pub datagrams: usize,
    /// Of these, from one source.
    pub datagrams_per_source: usize,
    /// Pieces of one datagram.
    pub pieces: usize,
    /// Payload bytes over all.
    pub bytes: usize,
    /// From the first fragment on. RFC 1122 §3.3.2 asks for 60 to 120 s; Linux takes 30, and for IPv6 60.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            datagrams: 256,
            datagrams_per_source: 64,
            // The smallest MTU that IPv4 hosts can rely on (RFC 791: 576) makes 119 of the largest datagram.
            pieces: 128,
            bytes: 4 << 20,
            time: Duration::from_secs(30),
        }
    }
}

/// What an error must tell of a payload at least (RFC 792).
pub(super) const QUOTED: usize = 8;

/// What became of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Offered<H = Header> {
    /// It waits for the others.
    Kept,
    /// It was there already.
    Duplicate,
    /// It was the last: the header of the whole datagram, and its payload.
    Complete(H, Vec<u8>),
    /// It was dropped, perhaps with all that it belonged to.
    Refused(DropReason),
}

/// RFC 791 §3.2: fragments with these four in common belong together; in IPv6 the protocol is 0 (RFC 8200 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// From whom.
    pub source: Address,
    /// To whom.
    pub destination: Address,
    /// As its sender numbered it.
    pub identification: u32,
    /// What the whole carries.
    pub protocol: u8,
}

/// The header of a fragment.
pub trait Fragmented: Copy {
    /// What it belongs to.
    fn key(&self) -> Key;
    /// Where its payload stands in the whole, in bytes.
    fn offset(&self) -> usize;
    /// It is not the last.
    fn more(&self) -> bool;
    /// Its ECN field (RFC 3168 §5).
    fn ecn(&self) -> u8;
    /// The longest payload of a whole.
    const MAX_LEN: usize;
    /// The header of the whole, of which this is the first piece, whose payload has `len` bytes and whose ECN field is
    /// `ecn`.
    #[must_use]
    fn of_whole(&self, len: usize, ecn: u8) -> Self;
}

impl Fragmented for Header {
    const MAX_LEN: usize = u16::MAX as usize - MIN_HEADER_LEN;

    fn key(&self) -> Key {
        Key {
            source: self.source.into(),
            destination: self.destination.into(),
            identification: u32::from(self.identification),
            protocol: self.protocol,
        }
    }

    fn offset(&self) -> usize {
        usize::from(self.fragment_offset)
    }

    fn more(&self) -> bool {
        self.more_fragments
    }

    fn ecn(&self) -> u8 {
        self.tos & ECN_MASK
    }

    fn of_whole(&self, len: usize, ecn: u8) -> Header {
        Header {
            tos: self.tos & !ECN_MASK | ecn,
            header_len: MIN_HEADER_LEN as u8,
            total_len: (len + MIN_HEADER_LEN) as u16,
            more_fragments: false,
            fragment_offset: 0,
            dont_fragment: false,
            ..*self
        }
    }
}

#[derive(Debug)]
struct Datagram<H> {
    key: Key,
    deadline: Time,
    /// Header of the piece at offset 0, once it came.
    first: Option<H>,
    /// Length of the whole payload, once the last piece came.
    len: Option<usize>,
    /// By offset, without overlap.
    pieces: Vec<(usize, Box<[u8]>)>,
    bytes: usize,
    /// Which ECN fields the pieces had: bit n for field n.
    ecn: u8,
    /// An overlap was seen: everything that still comes is refused.
    poisoned: bool,
}

/// A datagram whose time was over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired<H = Header> {
    /// Header and payload, eight bytes at least, of its first fragment, when that had come: what an error quotes.
    pub first: Option<(H, Box<[u8]>)>,
}

/// The datagrams in progress.
#[derive(Debug)]
pub struct Reassembler<H = Header> {
    limits: Limits,
    /// Oldest first, so deadlines are in order.
    datagrams: Vec<Datagram<H>>,
    bytes: usize,
}

impl<H: Fragmented> Reassembler<H> {
    /// With nothing in progress.
    pub fn new(limits: Limits) -> Reassembler<H> {
        Reassembler { limits, datagrams: Vec::new(), bytes: 0 }
    }

    /// Takes a fragment: its header, and its payload.
    pub fn offer(&mut self, header: &H, payload: &[u8], now: Time) -> Offered<H> {
        let (start, more) = (header.offset(), header.more());
        let end = start + payload.len();
        // RFC 791 §3.2: pieces but the last are multiples of eight; nothing reaches beyond what a length can tell.
        let uneven = more && !payload.len().is_multiple_of(8);
        if payload.is_empty() || uneven || end > H::MAX_LEN {
            return Offered::Refused(DropReason::Malformed);
        }
        let index = match self.find(header, now) {
            Ok(index) => index,
            Err(reason) => return Offered::Refused(reason),
        };
        let datagram = &mut self.datagrams[index];
        if datagram.poisoned {
            return Offered::Refused(DropReason::FragmentOverlap);
        }
        match datagram.place(start, end, payload, more) {
            Place::Duplicate => return Offered::Duplicate,
            Place::Contradiction => {
                self.bytes -= datagram.poison();
                return Offered::Refused(DropReason::FragmentOverlap);
            }
            Place::At(_) if datagram.pieces.len() >= self.limits.pieces => {
                self.bytes -= datagram.poison();
                return Offered::Refused(DropReason::FragmentLimit);
            }
            Place::At(_) if self.bytes + payload.len() > self.limits.bytes => {
                return Offered::Refused(DropReason::FragmentLimit);
            }
            Place::At(at) => datagram.pieces.insert(at, (start, payload.into())),
        }
        datagram.bytes += payload.len();
        datagram.ecn |= 1 << header.ecn();
        self.bytes += payload.len();
        if !more {
            datagram.len = Some(end);
        }
        if start == 0 {
            datagram.first = Some(*header);
        }
        match (datagram.first, datagram.len) {
            // Without overlap, as many bytes as the whole has means that none is missing.
            (Some(first), Some(len)) if datagram.bytes == len => self.complete(index, first),
            _ => Offered::Kept,
        }
    }

    /// When [`Reassembler::on_timeout`] has work.
    pub fn next_timeout(&self) -> Option<Time> {
        self.datagrams.first().map(|datagram| datagram.deadline)
    }

    /// Gives up what took too long; datagrams that were dropped before, for an overlap, are not told again.
    pub fn on_timeout(&mut self, now: Time) -> Vec<Expired<H>> {
        let over = self.datagrams.partition_point(|datagram| datagram.deadline <= now);
        let mut expired = Vec::new();
        for datagram in self.datagrams.drain(..over) {
            self.bytes -= datagram.bytes;
            if !datagram.poisoned {
                let start = datagram.pieces.into_iter().next().map(|(_, piece)| piece);
                let start = start.filter(|piece| piece.len() >= QUOTED);
                expired.push(Expired { first: datagram.first.zip(start) });
            }
        }
        expired
    }

    /// Datagrams in progress.
    pub fn datagrams(&self) -> usize {
        self.datagrams.len()
    }

    /// Payload bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The datagram of a fragment; a new one when it is the first and there is room.
    fn find(&mut self, header: &H, now: Time) -> Result<usize, DropReason> {
        let key = header.key();
        if let Some(index) = self.datagrams.iter().position(|datagram| datagram.key == key) {
            return Ok(index);
        }
        let of_source = self.datagrams.iter().filter(|datagram| datagram.key.source == key.source).count();
        if self.datagrams.len() >= self.limits.datagrams || of_source >= self.limits.datagrams_per_source {
            return Err(DropReason::FragmentLimit);
        }
        // Time never goes back, so the end of the list keeps the deadlines in order.
        self.datagrams.push(Datagram {
            key,
            deadline: now + self.limits.time,
            first: None,
            len: None,
            pieces: Vec::new(),
            bytes: 0,
            ecn: 0,
            poisoned: false,
        });
        Ok(self.datagrams.len() - 1)
    }

    fn complete(&mut self, index: usize, first: H) -> Offered<H> {
        let datagram = self.datagrams.remove(index);
        self.bytes -= datagram.bytes;
        let Some(ecn) = whole_ecn(first.ecn(), datagram.ecn) else {
            return Offered::Refused(DropReason::Malformed);
        };
        let mut payload = Vec::with_capacity(datagram.bytes);
        for (_, piece) in &datagram.pieces {
            payload.extend_from_slice(piece);
        }
        Offered::Complete(first.of_whole(payload.len(), ecn), payload)
    }
}

/// The ECN field of a whole whose first piece has `first`, and whose pieces had the fields of `seen`, bit n for field n.
///
/// RFC 3168 §5.3: CE on one piece is CE on the whole, and a whole some of whose pieces could not be marked is
/// dropped (`None`): who reads a mark there would answer one that its sender never allowed. As Linux does, that holds
/// for every mix with Not-ECT; of ECT(0) and ECT(1) the first piece's stands.
fn whole_ecn(first: u8, seen: u8) -> Option<u8> {
    const NOT_ECT_SEEN: u8 = 1;
    const CE_SEEN: u8 = 1 << ECN_CE;
    if seen & NOT_ECT_SEEN != 0 {
        return (seen == NOT_ECT_SEEN).then_some(first);
    }
    Some(if seen & CE_SEEN != 0 { ECN_CE } else { first })
}

enum Place {
    At(usize),
    Duplicate,
    Contradiction,
}

impl<H> Datagram<H> {
    /// Where a piece goes among the others.
    fn place(&self, start: usize, end: usize, payload: &[u8], more: bool) -> Place {
        let at = self.pieces.partition_point(|&(other, _)| other < start);
        let is_last = !more;
        let same_end = self.len.is_some_and(|len| len == end) == is_last;
        if same_end && self.holds(start, payload) {
            return Place::Duplicate;
        }
        if self.pieces.get(at).is_some_and(|&(other, _)| other < end) {
            return Place::Contradiction;
        }
        let overlaps_before = at > 0 && {
            let (other, piece) = &self.pieces[at - 1];
            other + piece.len() > start
        };
        // The last piece tells the length: there is one, and nothing lies behind it.
        let contradicts_len = match self.len {
            Some(len) => is_last || end > len,
            None => is_last && at < self.pieces.len(),
        };
        if overlaps_before || contradicts_len { Place::Contradiction } else { Place::At(at) }
    }

    /// True when all these bytes have come, the same ones, without a gap.
    fn holds(&self, start: usize, payload: &[u8]) -> bool {
        // The last piece that begins at `start` or before it may have the first of them.
        let from = self.pieces.partition_point(|&(other, _)| other <= start).saturating_sub(1);
        let mut wanted = payload;
        for (other, piece) in &self.pieces[from..] {
            let at = start + payload.len() - wanted.len();
            let Some(piece) = at.checked_sub(*other).and_then(|skip| piece.get(skip..)) else { return false };
            let len = wanted.len().min(piece.len());
            if wanted[..len] != piece[..len] {
                return false;
            }
            wanted = &wanted[len..];
            if wanted.is_empty() {
                return true;
            }
        }
        false
    }

    /// Forgets the pieces and refuses more of them: how many bytes came free.
    fn poison(&mut self) -> usize {
        self.poisoned = true;
        self.pieces = Vec::new();
        std::mem::take(&mut self.bytes)
    }
}
