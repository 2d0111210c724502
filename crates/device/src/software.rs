//! What a device cannot do, done in software: cutting super-segments and completing checksums.
//!
//! Shared by every driver whose device lacks the offload. Works on whole frames in private memory: stream bodies
//! are copied first, so another process that changes its send ring meanwhile cannot make a checksum wrong.

use scoutline_path::{Body, Checksum, Message, Segmentation, SegmentationKind};

/// Why a message can never be sent, by any device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsendable {
    /// It holds no packet: a control message, or a stream range without its memory.
    #[error("the message holds no packet")]
    NoPacket,
    /// Its checksum field lies outside of it.
    #[error("the checksum field lies outside the frame")]
    Checksum,
    /// It cannot be cut: not what its segmentation says, or a size of zero.
    #[error("the frame cannot be cut as its segmentation says")]
    Segmentation,
}

/// Length of the whole frame: headers and body.
#[inline]
pub fn frame_len(message: &Message) -> usize {
    message.head.as_slice().len() + message.body_len()
}

/// Appends the whole frame, headers and body, to `out`.
///
/// # Errors
/// [`Unsendable::NoPacket`].
pub fn assemble(message: &Message, out: &mut Vec<u8>) -> Result<(), Unsendable> {
    let body: [&[u8]; 1] = match &message.body {
        Body::Empty => [&[]],
        Body::Block { .. } => [message.bytes()],
        Body::Stream { range, memory: Some(memory) } => {
            out.extend_from_slice(message.head.as_slice());
            for span in memory.spans(range.clone()).iter() {
                let at = out.len();
                out.resize(at + span.len, 0);
                // SAFETY: `memory`, which the message holds, keeps its spans mapped.
                unsafe { span.copy_to(&mut out[at..]) };
            }
            return Ok(());
        }
        Body::Stream { memory: None, .. } | Body::Control(_) => return Err(Unsendable::NoPacket),
    };
    out.extend_from_slice(message.head.as_slice());
    out.extend_from_slice(body[0]);
    Ok(())
}

/// Turns a message into complete packets as they stand on the wire and hands each to `emit`. `scratch` is reused
/// memory. Says how many there were.
///
/// # Errors
/// Nothing was emitted then.
pub fn packets(
    message: &Message,
    scratch: &mut Vec<u8>,
    mut emit: impl FnMut(&[u8]),
) -> Result<usize, Unsendable> {
    scratch.clear();
    assemble(message, scratch)?;
    if let Some(segmentation) = message.facts.segmentation {
        return segment(scratch, segmentation, emit);
    }
    if let Checksum::Partial { start, offset } = message.facts.checksum {
        complete(scratch, start, offset)?;
    }
    emit(scratch);
    Ok(1)
}

/// Completes a partial checksum: the field at `start + offset` holds the pseudo-header sum; the ones' complement
/// sum from `start` to the end goes in its place (virtio 1.2 §5.1.6.2).
///
/// # Errors
/// [`Unsendable::Checksum`] when the field lies outside the frame.
pub fn complete(frame: &mut [u8], start: u16, offset: u16) -> Result<(), Unsendable> {
    let (start, field) = (start as usize, start as usize + offset as usize);
    if field + 2 > frame.len() {
        return Err(Unsendable::Checksum);
    }
    let checksum = checksum_of(sum(&frame[start..]));
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// The checksum for such a sum. RFC 768: zero means "no checksum", so a sum of zero is sent as its other form.
pub(crate) fn checksum_of(sum: u64) -> u16 {
    match !fold(sum) {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// What the headers of a received TCP or UDP packet say about its checksum and cutting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transport {
    /// Its field holds the sum of the pseudo-header alone: a sender on this machine has left the rest to its device.
    pub(crate) is_partial: bool,
    /// Which cut would make such a packet.
    pub(crate) kind: SegmentationKind,
    /// Length of all headers.
    pub(crate) headers: usize,
}

/// Reads the headers of a whole TCP or UDP packet that was received, without extension headers; `None`: it is another.
pub(crate) fn transport(frame: &[u8]) -> Option<Transport> {
    let mut ip = 14;
    while matches!(read16(frame, ip - 2)?, 0x8100 | 0x88a8) {
        ip += 4;
    }
    let v6 = *frame.get(ip)? >> 4 == 6;
    let kind = match (v6, *frame.get(ip + if v6 { 6 } else { 9 })?) {
        (false, 6) => SegmentationKind::Tcp4,
        (true, 6) => SegmentationKind::Tcp6,
        (_, 17) => SegmentationKind::Udp,
        _ => return None,
    };
    let layout = Layout::of(frame, kind)?;
    let transport = layout.transport;
    let (field, protocol) = if kind == SegmentationKind::Udp { (6, 17) } else { (16, 6) };
    let len = if v6 {
        u64::from(read16(frame, ip + 4)?)
    } else {
        u64::from(read16(frame, ip + 2)?).checked_sub((transport - ip) as u64)?
    };
    let addresses = if v6 { ip + 8..ip + 40 } else { ip + 12..ip + 20 };
    let pseudo = fold(sum(frame.get(addresses)?) + protocol + len);
    let is_partial = read16(frame, transport + field)? == pseudo;
    Some(Transport { is_partial, kind, headers: layout.payload })
}

/// Cuts a super-segment of TCP or UDP over IPv4 or IPv6 into packets with `size` bytes of payload each, checksums complete,
/// and hands each to `emit`. Says how many there were.
///
/// # Errors
/// [`Unsendable::Segmentation`]; nothing was emitted then.
pub fn segment(
    frame: &[u8],
    segmentation: Segmentation,
    mut emit: impl FnMut(&[u8]),
) -> Result<usize, Unsendable> {
    let layout = Layout::of(frame, segmentation.kind).ok_or(Unsendable::Segmentation)?;
    let size = segmentation.size as usize;
    if size == 0 {
        return Err(Unsendable::Segmentation);
    }
    let (headers, payload) = frame.split_at(layout.payload);
    let count = payload.len().div_ceil(size).max(1);
    let mut packet = Vec::with_capacity(layout.payload + size);
    for index in 0..count {
        let chunk = &payload[index * size..payload.len().min((index + 1) * size)];
        packet.clear();
        packet.extend_from_slice(headers);
        packet.extend_from_slice(chunk);
        layout.rewrite(&mut packet, index, size, index + 1 == count);
        emit(&packet);
    }
    Ok(count)
}

/// True when [`segment`] would cut it.
pub fn can_segment(frame: &[u8], segmentation: Segmentation) -> bool {
    segmentation.size > 0 && Layout::of(frame, segmentation.kind).is_some()
}

/// Where the headers of a super-segment stand, from the first byte of the frame.
pub(crate) struct Layout {
    kind: SegmentationKind,
    v6: bool,
    ip: usize,
    transport: usize,
    /// Length of all headers.
    pub(crate) payload: usize,
}

/// Longest headers that [`Layout::of`] understands: Ethernet, two tags, IPv4 and TCP with all options.
pub(crate) const MAX_HEADERS: usize = 14 + 8 + 60 + 60;

impl Layout {
    /// Reads the headers at the start of a frame.
    pub(crate) fn of(frame: &[u8], kind: SegmentationKind) -> Option<Layout> {
        let mut ip = 14;
        while matches!(read16(frame, ip - 2)?, 0x8100 | 0x88a8) {
            ip += 4;
        }
        let first = *frame.get(ip)?;
        let v6 = first >> 4 == 6;
        let (protocol, transport) = if v6 {
            // RFC 8200 §3. What has extension headers is never made into a super-segment.
            (*frame.get(ip + 6)?, ip + 40)
        } else {
            // RFC 791 §3.1: five words at least; a fragment (offset or more-fragments set) is never a super-segment.
            if first >> 4 != 4 || first & 15 < 5 || read16(frame, ip + 6)? & 0x3fff != 0 {
                return None;
            }
            (*frame.get(ip + 9)?, ip + (first & 15) as usize * 4)
        };
        let header_len = match (kind, protocol) {
            (SegmentationKind::Tcp4, 6) if !v6 => (*frame.get(transport + 12)? >> 4) as usize * 4,
            (SegmentationKind::Tcp6, 6) if v6 => (*frame.get(transport + 12)? >> 4) as usize * 4,
            (SegmentationKind::Udp, 17) => 8,
            _ => return None,
        };
        let minimum = if kind == SegmentationKind::Udp { 8 } else { 20 };
        let payload = transport + header_len;
        (header_len >= minimum && payload <= frame.len()).then_some(Layout {
            kind,
            v6,
            ip,
            transport,
            payload,
        })
    }

    /// Makes packet number `index` true, checksums included (as Linux's `inet_gso_segment` and `tcp_gso_segment` do).
    fn rewrite(&self, packet: &mut [u8], index: usize, size: usize, last: bool) {
        let len = packet.len();
        let (start, field) = self.rewrite_headers(packet, len, index, size, last);
        // The field was just found inside the packet.
        let _ = complete(packet, start, field);
    }

    /// The same for its headers alone, of a packet of `len` bytes; its transport checksum becomes partial: where summing
    /// begins, and where the field stands from there.
    pub(crate) fn rewrite_headers(
        &self,
        headers: &mut [u8],
        len: usize,
        index: usize,
        size: usize,
        last: bool,
    ) -> (u16, u16) {
        let (ip, transport) = (self.ip, self.transport);
        if self.v6 {
            write16(headers, ip + 4, (len - transport) as u16);
        } else {
            write16(headers, ip + 2, (len - ip) as u16);
            let id = read16(headers, ip + 4).unwrap_or(0).wrapping_add(index as u16);
            write16(headers, ip + 4, id);
            write16(headers, ip + 10, 0);
            let header_sum = !fold(sum(&headers[ip..transport]));
            write16(headers, ip + 10, header_sum);
        }

        let transport_len = (len - transport) as u64;
        let field = match self.kind {
            SegmentationKind::Tcp4 | SegmentationKind::Tcp6 => {
                const FIN_PSH: u8 = 0x09;
                const CWR: u8 = 0x80;
                let at = transport + 4;
                let sequence =
                    u32::from_be_bytes([headers[at], headers[at + 1], headers[at + 2], headers[at + 3]]);
                let sequence = sequence.wrapping_add((index * size) as u32);
                headers[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
                if !last {
                    headers[transport + 13] &= !FIN_PSH;
                }
                if index > 0 {
                    headers[transport + 13] &= !CWR; // RFC 3168 §6.1.2: once per window
                }
                16
            }
            SegmentationKind::Udp => {
                write16(headers, transport + 4, transport_len as u16);
                6
            }
        };
        let (protocol, addresses) =
            if self.v6 { (headers[ip + 6], ip + 8..ip + 40) } else { (headers[ip + 9], ip + 12..ip + 20) };
        let pseudo = fold(sum(&headers[addresses]) + u64::from(protocol) + transport_len);
        write16(headers, transport + field, pseudo);
        (transport as u16, field as u16)
    }
}

fn read16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn write16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The sum of the 16-bit big-endian words of `bytes`, an odd last byte padded with zero (RFC 1071), unfolded.
///
/// Words are taken four at a time in any order: ones' complement addition is associative (RFC 1071 §2).
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut total: u64 = 0;
    for chunk in chunks {
        let word = u64::from_be_bytes(*chunk);
        // Two 32-bit halves: 2^32 of them fit before the 64-bit total overflows.
        total += (word >> 32) + (word & 0xffff_ffff);
    }
    let mut tail = [0; 8];
    tail[..rest.len()].copy_from_slice(rest);
    let word = u64::from_be_bytes(tail);
    total + (word >> 32) + (word & 0xffff_ffff)
}

/// Folds a sum to 16 bits.
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests;
