//! The key of a flow, the exact-match table that stands in front of the modular demultiplexing (DESIGN.md §2), and
//! the single pass that reads the key of a common frame.

mod table;

use std::net::Ipv4Addr;

use scoutline_base::DeviceId;

pub use table::FlowTable;

/// A flow as seen by this host: `local` is our end whichever way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The peer's address.
    pub remote: Ipv4Addr,
    /// Our address.
    pub local: Ipv4Addr,
    /// The peer's port; 0 where the protocol has none.
    pub remote_port: u16,
    /// Our port; 0 where the protocol has none.
    pub local_port: u16,
    /// The device it arrives on.
    pub device: DeviceId,
    /// IP protocol number.
    pub protocol: u8,
}

impl Default for FlowKey {
    fn default() -> Self {
        FlowKey {
            remote: Ipv4Addr::UNSPECIFIED,
            local: Ipv4Addr::UNSPECIFIED,
            remote_port: 0,
            local_port: 0,
            device: DeviceId::default(),
            protocol: 0,
        }
    }
}

/// IPv4's EtherType.
const ETHERTYPE_IP4: [u8; 2] = [0x08, 0x00];
/// Version 4, header of five words: no options.
const VERSION_AND_LENGTH: u8 = 0x45;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// The key of a frame of the common kind: Ethernet, IPv4 without options and not a fragment, TCP or UDP.
///
/// `None` says nothing about the frame but that the modules have to be asked. Where this gives a key, asking the
/// modules would give the same one; what only they check (link address, checksums, the rest of the headers) the
/// path's stages check again.
#[inline]
pub fn flow_of_frame(bytes: &[u8], device: DeviceId) -> Option<FlowKey> {
    // Ethernet 14, IPv4 20, and the ports and length or sequence number of UDP or TCP: one bounds check for all.
    let head: &[u8; 42] = bytes.first_chunk()?;
    let ip = &head[14..];
    // DF may be set; the reserved bit, MF and an offset make it a case for the modules.
    let plain =
        head[12..14] == ETHERTYPE_IP4 && ip[0] == VERSION_AND_LENGTH && ip[6] & 0xbf == 0 && ip[7] == 0;
    if !plain {
        return None;
    }
    let total_len = u16::from_be_bytes([ip[2], ip[3]]) as usize;
    let protocol = ip[9];
    let shortest = match protocol {
        PROTOCOL_TCP => 20 + 20,
        PROTOCOL_UDP => 20 + 8,
        _ => return None,
    };
    if total_len < shortest || total_len > bytes.len() - 14 {
        return None;
    }
    Some(FlowKey {
        remote: Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]),
        local: Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]),
        remote_port: u16::from_be_bytes([ip[20], ip[21]]),
        local_port: u16::from_be_bytes([ip[22], ip[23]]),
        device,
        protocol,
    })
}

#[cfg(test)]
mod tests;
