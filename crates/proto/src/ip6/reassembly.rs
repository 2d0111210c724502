//! What tells that fragments of IPv6 belong together (RFC 8200 §4.5). The rest is [`crate::ip4::Reassembler`], which
//! drops a packet whose pieces overlap as RFC 5722 asks.

use scoutline_wire::ipv4::ECN_MASK;
use scoutline_wire::ipv6::{Fragment, Header};

use crate::ip4::{Fragmented, Key};

/// The headers of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The IPv6 header.
    pub header: Header,
    /// The fragment header.
    pub fragment: Fragment,
}

impl Fragmented for Piece {
    const MAX_LEN: usize = u16::MAX as usize;

    fn key(&self) -> Key {
        Key {
            source: self.header.source.into(),
            destination: self.header.destination.into(),
            identification: self.fragment.identification,
            protocol: 0,
        }
    }

    fn offset(&self) -> usize {
        usize::from(self.fragment.offset)
    }

    fn more(&self) -> bool {
        self.fragment.more
    }

    fn ecn(&self) -> u8 {
        self.header.traffic_class & ECN_MASK
    }

    /// The extension headers in front of the fragment header were looked at, and are not kept.
    fn of_whole(&self, len: usize, ecn: u8) -> Piece {
        let header = Header {
            traffic_class: self.header.traffic_class & !ECN_MASK | ecn,
            payload_len: len as u16,
            next_header: self.fragment.next_header,
            ..self.header
        };
        Piece { header, fragment: Fragment { offset: 0, more: false, ..self.fragment } }
    }
}
