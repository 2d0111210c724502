//! Datagrams in a byte ring: each is a 16-byte header and its payload, padded to a multiple of 16, so that a header
//! never wraps.

/// Bytes of a record's header.
pub const HEADER_LEN: usize = 16;

/// The header of one datagram in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Payload bytes.
    pub len: u32,
    /// The peer's IPv4 address, host byte order (receive: sender; send: destination, 0: the connected peer).
    pub address: u32,
    /// The peer's port.
    pub port: u16,
}

impl Record {
    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.port.to_le_bytes());
        bytes
    }

    /// Reads a header. Any bytes give a record: the reader checks `len` against what the ring holds.
    pub fn from_bytes(bytes: [u8; HEADER_LEN]) -> Record {
        let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        Record { len: word(0), address: word(4), port: u16::from_le_bytes([bytes[8], bytes[9]]) }
    }

    /// Bytes that the whole record takes in the ring.
    pub const fn ring_len(payload_len: usize) -> u64 {
        ((HEADER_LEN + payload_len).div_ceil(16) * 16) as u64
    }
}
