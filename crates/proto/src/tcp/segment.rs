//! What goes in and out of a connection.

use std::ops::Range;

use bitflags::bitflags;
use scoutline_wire::tcp::{Flags, Header};

bitflags! {
    /// What a segment or a time-out brought about.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Events: u16 {
        /// The connection is established.
        const CONNECTED = 1;
        /// In-order data grew.
        const READABLE = 1 << 1;
        /// The peer acknowledged data: send space is free.
        const ACKNOWLEDGED = 1 << 2;
        /// The peer's FIN is in order: the stream ends at `receive_position`.
        const PEER_FINISHED = 1 << 3;
        /// The peer reset the connection.
        const RESET = 1 << 4;
        /// The peer refused the connection.
        const REFUSED = 1 << 5;
        /// The peer answered no more.
        const TIMED_OUT = 1 << 6;
        /// The connection may be destroyed, after `poll_transmit` has said `None`.
        const CLOSED = 1 << 7;
        /// The connection entered TIME-WAIT.
        const TIME_WAIT = 1 << 8;
        /// In TIME-WAIT: this SYN may start a new incarnation; the caller may give it to a listener.
        const NEW_SYN = 1 << 9;
        /// The peer told of urgent data: `urgent_mark`.
        const URGENT = 1 << 10;
    }
}

/// Why a segment (or its payload) was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Drop {
    /// The connection is closed.
    Closed,
    /// All of it lies below what is already in order: a retransmission.
    Duplicate,
    /// All of it lies beyond the window.
    OutOfWindow,
    /// Its timestamp is older than the last (RFC 7323 §5).
    Paws,
    /// Timestamps are on, and it carries none (RFC 7323 §3.2).
    MissingTimestamp,
    /// It acknowledges what was never sent, or what is too old (RFC 5961 §5).
    BadAck,
    /// It carries no ACK where one must be.
    MissingAck,
    /// A SYN within an established connection (RFC 5961 §4).
    UnexpectedSyn,
    /// A reset that is not exactly in sequence (RFC 5961 §3).
    BadReset,
    /// Out of order, and all places for ranges are taken.
    ReassemblyLimit,
    /// Payload in a state that takes none, or after the program closed.
    NoReceiver,
}

/// Where to put payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deliver {
    /// Stream position of the first byte to store.
    pub position: u64,
    /// Bytes of this payload to skip.
    pub skip: u32,
    /// Bytes to store.
    pub len: u32,
    /// After storing, the stream is complete to here.
    pub in_order_to: u64,
}

/// What came of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// Payload to store in the receive ring.
    pub deliver: Option<Deliver>,
    /// What happened.
    pub events: Events,
    /// The segment, or its payload, was dropped for this reason.
    pub drop: Option<Drop>,
}

impl Input {
    pub(crate) fn dropped(reason: Drop) -> Input {
        Input { drop: Some(reason), ..Input::default() }
    }
}

/// A segment (or super-segment) to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The header; its ports are 0, for the caller to fill.
    pub header: Header,
    /// Stream positions of the payload.
    pub payload: Option<Range<u64>>,
    /// Payload of a full segment in bytes: where the device cuts (GSO size).
    pub segment_size: u16,
    /// Some of it was sent before.
    pub retransmission: bool,
    /// It may be marked instead of dropped: it leaves with ECT(0) (RFC 3168 §5).
    pub ecn_capable: bool,
}

/// The reset that answers a segment for which there is no connection (RFC 9293 §3.10.7.1); `None` for a reset.
pub fn reset_for(header: &Header, payload_len: u32) -> Option<Header> {
    if header.flags.contains(Flags::RST) {
        return None;
    }
    let (source_port, destination_port) = (header.destination_port, header.source_port);
    let reset = if header.flags.contains(Flags::ACK) {
        Header { sequence: header.acknowledgment, flags: Flags::RST, ..Header::default() }
    } else {
        let controls = header.flags.contains(Flags::SYN) as u32 + header.flags.contains(Flags::FIN) as u32;
        let acknowledgment = header.sequence.wrapping_add(payload_len).wrapping_add(controls);
        Header { acknowledgment, flags: Flags::RST | Flags::ACK, ..Header::default() }
    };
    Some(Header { source_port, destination_port, ..reset })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_follow_the_acknowledgment_or_cover_the_segment() {
        let mut header = Header { source_port: 1, destination_port: 2, sequence: 10, ..Header::default() };
        header.flags = Flags::SYN;
        let reset = reset_for(&header, 5).unwrap();
        assert_eq!((reset.sequence, reset.acknowledgment, reset.flags), (0, 16, Flags::RST | Flags::ACK));
        assert_eq!((reset.source_port, reset.destination_port), (2, 1));
        header.flags = Flags::ACK;
        header.acknowledgment = 77;
        let reset = reset_for(&header, 5).unwrap();
        assert_eq!((reset.sequence, reset.flags), (77, Flags::RST));
        header.flags = Flags::RST | Flags::ACK;
        assert_eq!(reset_for(&header, 0), None);
    }
}
