//! The header that tells about checksum and segmentation in front of a frame, on AF_PACKET (PACKET_VNET_HDR), TAP
//! (IFF_VNET_HDR) and virtio (Virtio 1.2 §5.1.6), in its modern little-endian form of 10 bytes, or 12 with the
//! number of merged buffers.

/// Length without the number of buffers, in bytes.
pub const HEADER_LEN: usize = 10;
/// Length with the number of buffers, in bytes.
pub const HEADER_LEN_MERGED: usize = 12;

/// Flag: `csum_start` and `csum_offset` say where a checksum is still to be completed.
pub const NEEDS_CHECKSUM: u8 = 1;
/// Flag: the receiver's device verified the checksum.
pub const DATA_VALID: u8 = 2;
/// `gso_type`: an ordinary packet.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: UDP fragmentation offload (old).
pub const GSO_UDP: u8 = 3;
/// `gso_type`: TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: UDP segmentation (USO).
pub const GSO_UDP_L4: u8 = 5;
/// Bit in `gso_type`: TCP with ECN.
pub const GSO_ECN: u8 = 0x80;

/// The header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`NEEDS_CHECKSUM`], [`DATA_VALID`].
    pub flags: u8,
    /// One of the `GSO_` numbers, perhaps with [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of all headers of a super-segment. A hint.
    pub hdr_len: u16,
    /// Transport payload bytes per packet.
    pub gso_size: u16,
    /// Where summing begins, from the first byte of the frame.
    pub csum_start: u16,
    /// Where the sum goes, from `csum_start`.
    pub csum_offset: u16,
}

impl Header {
    /// Reads a header from the front of `bytes`: 10 bytes, whatever follows. `None` when there are fewer.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        let fixed = bytes.first_chunk::<HEADER_LEN>()?;
        let le16 = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
        Some(Header {
            flags: fixed[0],
            gso_type: fixed[1],
            hdr_len: le16(2),
            gso_size: le16(4),
            csum_start: le16(6),
            csum_offset: le16(8),
        })
    }

    /// Writes the header to the front of `out`; with room for 12 bytes or more only the caller knows whether the
    /// two of `num_buffers` belong to it, and writes them.
    ///
    /// # Panics
    /// When `out` is shorter than 10 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[0] = self.flags;
        out[1] = self.gso_type;
        out[2..4].copy_from_slice(&self.hdr_len.to_le_bytes());
        out[4..6].copy_from_slice(&self.gso_size.to_le_bytes());
        out[6..8].copy_from_slice(&self.csum_start.to_le_bytes());
        out[8..10].copy_from_slice(&self.csum_offset.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_emits() {
        let bytes = [1, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0, 9, 9];
        let header = Header::parse(&bytes).unwrap();
        let expected = Header {
            flags: NEEDS_CHECKSUM,
            gso_type: GSO_TCPV4,
            hdr_len: 66,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
        };
        assert_eq!(header, expected);
        let mut out = [9; 12];
        header.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(Header::parse(&bytes[..9]), None);
    }
}
