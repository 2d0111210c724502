//! Datagrams in a byte ring: each is a 32-byte header and its payload, padded to a multiple of 32, so that a header
//! never wraps.

use scoutline_base::Address;

/// Bytes of a record's header.
pub const HEADER_LEN: usize = 32;

/// The header of one datagram in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Payload bytes.
    pub len: u32,
    /// The peer's address (receive: sender; send: destination).
    pub address: Address,
    /// The peer's port; send: 0: to the connected peer.
    pub port: u16,
}

impl Record {
    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.port.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.address.octets());
        bytes
    }

    /// Reads a header. Any bytes give a record: the reader checks `len` against what the ring holds.
    pub fn from_bytes(bytes: [u8; HEADER_LEN]) -> Record {
        let [a, b, c, d, e, f, ..] = bytes;
        let mut address = [0; 16];
        address.copy_from_slice(&bytes[16..]);
        Record {
            len: u32::from_le_bytes([a, b, c, d]),
            address: Address::from_octets(address),
            port: u16::from_le_bytes([e, f]),
        }
    }

    /// Bytes that the whole record takes in the ring.
    pub const fn ring_len(payload_len: usize) -> u64 {
        ((HEADER_LEN + payload_len).div_ceil(HEADER_LEN) * HEADER_LEN) as u64
    }
}
