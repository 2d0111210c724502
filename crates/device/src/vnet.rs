//! The virtio network header (virtio 1.2 §5.1.6) that AF_PACKET and tap put in front of each frame, and the
//! gathering of a message into the parts that one system call sends.

use scoutline_path::{Body, Checksum, Message, Segmentation, SegmentationKind};

/// `struct virtio_net_hdr` in the machine's byte order (legacy form, which AF_PACKET and tap speak by default).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VnetHeader {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

/// Length of the header.
pub(crate) const VNET_LEN: usize = size_of::<VnetHeader>();
const _: () = assert!(VNET_LEN == 10);

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

impl VnetHeader {
    /// What the device must know to send this message.
    #[inline]
    pub(crate) fn for_sending(message: &Message) -> VnetHeader {
        let mut header = VnetHeader::default();
        if let Checksum::Partial { start, offset } = message.facts.checksum {
            header.flags = NEEDS_CSUM;
            header.csum_start = start;
            header.csum_offset = offset;
        }
        if let Some(segmentation) = message.facts.segmentation {
            // A frame that needs no cut must not claim to: the kernel would keep it whole, but count it as cut.
            let headers = match segmentation.header_len {
                0 => message.head.as_slice().len(),
                len => len as usize,
            };
            let frame = crate::software::frame_len(message);
            if frame > headers + segmentation.size as usize {
                header.gso_type = match segmentation.kind {
                    SegmentationKind::Tcp4 => GSO_TCPV4,
                    SegmentationKind::Tcp6 => GSO_TCPV6,
                    SegmentationKind::Udp => GSO_UDP_L4,
                };
                header.gso_size = segmentation.size;
                header.hdr_len = headers as u16;
            }
        }
        header
    }

    /// What the device says about a received frame. `trusted`: its partial checksums come from a local sender.
    #[inline]
    pub(crate) fn received(self, trusted: bool) -> (Checksum, Option<Segmentation>) {
        let kind = match self.gso_type & !GSO_ECN {
            GSO_TCPV4 => Some(SegmentationKind::Tcp4),
            GSO_TCPV6 => Some(SegmentationKind::Tcp6),
            GSO_UDP_L4 => Some(SegmentationKind::Udp),
            _ => None,
        };
        // Linux puts the length of its linear part in hdr_len (virtio_net_hdr_from_skb), which is not the headers'.
        let segmentation = kind.filter(|_| self.gso_size > 0).map(|kind| Segmentation {
            kind,
            size: self.gso_size,
            header_len: 0,
        });
        // A frame merged by the kernel's GRO is partial too, but each of its packets was verified before.
        let vouched =
            self.flags & DATA_VALID != 0 || (self.flags & NEEDS_CSUM != 0 && (trusted || self.gso_type != 0));
        (if vouched { Checksum::Verified } else { Checksum::Unverified }, segmentation)
    }

    /// Reads a header from the start of `bytes` (at least [`VNET_LEN`] long).
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> VnetHeader {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        VnetHeader {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }
}

/// Parts of one message for a gathering system call: vnet header, headers, and the spans of the body.
pub(crate) const PARTS: usize = 2 + scoutline_ring::MAX_SPANS;

/// An empty part.
pub(crate) const NO_PART: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Fills `parts` with the message's headers and body and says how many there are and how long they are together;
/// `None` when the message holds no packet. The parts point into the message: they must not outlive it.
#[inline]
pub(crate) fn gather(message: &Message, parts: &mut [libc::iovec]) -> Option<(usize, usize)> {
    let mut count = 0;
    let mut total = 0;
    let mut add = |memory: *const u8, len: usize| {
        if len > 0 {
            parts[count] = libc::iovec { iov_base: memory.cast_mut().cast(), iov_len: len };
            count += 1;
            total += len;
        }
    };
    let head = message.head.as_slice();
    add(head.as_ptr(), head.len());
    match &message.body {
        Body::Empty => {}
        Body::Block { .. } => {
            let bytes = message.bytes();
            add(bytes.as_ptr(), bytes.len());
        }
        Body::Stream { range, memory: Some(memory) } => {
            for span in memory.spans(range.clone()).iter() {
                add(span.memory.as_ptr(), span.len);
            }
        }
        Body::Stream { memory: None, .. } | Body::Control(_) => return None,
    }
    (count > 0).then_some((count, total))
}
