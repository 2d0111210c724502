//! Segments as messages, both ways: read from what came, made of what TCP wants to send.
//!
//! A checksum over stream bytes is always left partial: nobody but the device that gathers them sees them all, so
//! every device completes partial checksums itself, in software if need be.

use scoutline_path::{
    Body, Checksum, DropReason, Facts, FlowKey, HeaderWishes, Message, Segmentation, SegmentationKind,
};
use scoutline_wire::tcp::{CHECKSUM_OFFSET, Header, ParseError};
use scoutline_wire::{checksum, ipv4};

use super::Transmit;
use crate::Interface;
use crate::eth::frame_start;
use crate::udp::checksum_vouched;

/// Reads the header of an incoming segment and verifies the checksum: the header, and its length.
pub(super) fn parse(interface: &Interface, message: &Message) -> Result<(Header, usize), DropReason> {
    let bytes = message.bytes();
    let parsed = Header::parse(bytes).map_err(|error| match error {
        ParseError::Truncated { .. } => DropReason::Truncated,
        _ => DropReason::Malformed,
    })?;
    if !checksum_vouched(interface, &message.facts) {
        let (Some(source), Some(destination)) = (message.facts.source, message.facts.destination) else {
            return Err(DropReason::Malformed);
        };
        let pseudo = checksum::pseudo_header(source, destination, ipv4::PROTOCOL_TCP, bytes.len());
        // RFC 9293 §3.1 (MUST-3)
        if !checksum::is_valid(checksum::add(pseudo, checksum::sum(bytes))) {
            return Err(DropReason::BadChecksum);
        }
    }
    Ok(parsed)
}

/// The message as it came from the device, to be run through another path from the link stage on. The transport
/// checksum was verified.
pub(super) fn restored(mut message: Message) -> Message {
    let start = frame_start(&message.facts);
    if let Body::Block { range, .. } = &mut message.body {
        range.start = start.min(range.start);
    }
    let Facts { device, arrival, segmentation, tos, .. } = message.facts;
    let checksum = Checksum::Verified;
    message.facts = Facts { device, arrival, segmentation, tos, checksum, ..Facts::default() };
    message
}

/// Turns what TCP wants to send into messages.
pub(super) struct Emitter<'a> {
    pub(super) interface: &'a Interface,
    pub(super) key: &'a FlowKey,
    /// What the program said of the headers.
    pub(super) headers: HeaderWishes,
}

impl Emitter<'_> {
    /// A segment of the connection.
    #[inline]
    pub(super) fn segment(&self, transmit: &Transmit) -> Message {
        let header = Header {
            source_port: self.key.local_port,
            destination_port: self.key.remote_port,
            ..transmit.header
        };
        let payload = transmit.payload.clone().filter(|range| !range.is_empty());
        let payload_len = payload.as_ref().map_or(0, |range| (range.end - range.start) as usize);
        let body = payload.map_or(Body::Empty, |range| Body::Stream { range, memory: None });
        let mut message = self.message(&header, payload_len, body);
        if transmit.ecn_capable {
            message.facts.tos |= ipv4::ECN_CAPABLE;
        }
        if payload_len > usize::from(transmit.segment_size) {
            message.facts.segmentation = Some(Segmentation {
                kind: if self.key.remote.is_v4() { SegmentationKind::Tcp4 } else { SegmentationKind::Tcp6 },
                size: transmit.segment_size,
                header_len: header.emitted_len() as u16,
            });
        }
        message
    }

    /// A message with this header in front of `body`.
    #[inline]
    pub(super) fn message(&self, header: &Header, payload_len: usize, body: Body) -> Message {
        let key = self.key;
        let mut message = Message { body, ..Message::default() };
        let header_len = header.emitted_len();
        let out = message.head.prepend(header_len);
        header.emit(out);
        let mut sum =
            checksum::pseudo_header(key.local, key.remote, ipv4::PROTOCOL_TCP, header_len + payload_len);
        let partial = payload_len > 0 || self.interface.offload.get().checksum;
        if !partial {
            sum = checksum::finish(checksum::add(sum, checksum::sum(out)));
        }
        out[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&sum.to_be_bytes());
        self.headers.apply(&mut message.facts);
        message.facts.device = self.interface.device;
        message.facts.source = Some(key.local);
        message.facts.destination = Some(key.remote);
        message.facts.checksum = if partial {
            Checksum::Partial { start: 0, offset: CHECKSUM_OFFSET as u16 }
        } else {
            Checksum::Complete
        };
        message
    }
}
