//! The key of a flow, the exact-match table that stands in front of the modular demultiplexing (DESIGN.md §2), and
//! the single pass that reads the key of a common frame.

mod table;

use scoutline_base::{Address, DeviceId};

use crate::Message;

pub use table::{FlowTable, Probe};

/// A flow as seen by this host: `local` is our end whichever way a packet goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The peer's address.
    pub remote: Address,
    /// Our address.
    pub local: Address,
    /// The peer's port; 0 where the protocol has none.
    pub remote_port: u16,
    /// Our port; 0 where the protocol has none.
    pub local_port: u16,
    /// The device it arrives on.
    pub device: DeviceId,
    /// IP protocol number.
    pub protocol: u8,
}

/// IPv4's EtherType.
const ETHERTYPE_IP4: [u8; 2] = [0x08, 0x00];
/// IPv6's.
const ETHERTYPE_IP6: [u8; 2] = [0x86, 0xdd];
/// Version 4, header of five words: no options.
const VERSION_AND_LENGTH: u8 = 0x45;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// The key of a frame of the common kind: Ethernet, IPv4 without options and not a fragment or IPv6 without extension
/// headers, TCP or UDP.
///
/// `None` says nothing about the frame but that the modules have to be asked. Where this gives a key, asking the
/// modules would give the same one; what only they check (link address, checksums, the rest of the headers) the
/// path's stages check again.
#[inline(always)]
pub fn flow_of_frame(bytes: &[u8], device: DeviceId) -> Option<FlowKey> {
    flow_of(bytes, bytes.len(), device)
}

/// The same for a frame as it came, whose end may lie elsewhere.
#[inline(always)]
pub fn flow_of_message(message: &Message, device: DeviceId) -> Option<FlowKey> {
    flow_of(message.bytes(), message.body_len(), device)
}

/// The same for the beginning of a frame that is `len` long.
#[inline(always)]
fn flow_of(bytes: &[u8], len: usize, device: DeviceId) -> Option<FlowKey> {
    // Ethernet 14, IPv4 20, and the ports and length or sequence number of UDP or TCP: one bounds check for all.
    let head: &[u8; 42] = bytes.first_chunk()?;
    let ip = &head[14..];
    // DF may be set; the reserved bit, MF and an offset make it a case for the modules.
    // What was sent to a group of stations, too.
    let plain = head[12..14] == ETHERTYPE_IP4
        && head[0] & 1 == 0
        && ip[0] == VERSION_AND_LENGTH
        && ip[6] & 0xbf == 0
        && ip[7] == 0;
    if !plain {
        return flow_of_ip6(bytes, len, device);
    }
    let total_len = u16::from_be_bytes([ip[2], ip[3]]) as usize;
    let protocol = ip[9];
    let shortest = match protocol {
        PROTOCOL_TCP => 20 + 20,
        PROTOCOL_UDP => 20 + 8,
        _ => return None,
    };
    if total_len < shortest || total_len > len - 14 {
        return None;
    }
    Some(FlowKey {
        remote: std::net::Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]).into(),
        local: std::net::Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]).into(),
        remote_port: u16::from_be_bytes([ip[20], ip[21]]),
        local_port: u16::from_be_bytes([ip[22], ip[23]]),
        device,
        protocol,
    })
}

#[inline(always)] // so that neither family's key goes through memory: 40 ns, measured
fn flow_of_ip6(bytes: &[u8], len: usize, device: DeviceId) -> Option<FlowKey> {
    // Ethernet 14, IPv6 40, the ports and length or sequence number.
    let head: &[u8; 62] = bytes.first_chunk()?;
    let ip = &head[14..];
    if head[12..14] != ETHERTYPE_IP6 || ip[0] >> 4 != 6 {
        return None;
    }
    let payload_len = u16::from_be_bytes([ip[4], ip[5]]) as usize;
    let protocol = ip[6];
    let shortest = match protocol {
        PROTOCOL_TCP => 20,
        PROTOCOL_UDP => 8,
        _ => return None,
    };
    if payload_len < shortest || payload_len > len - 54 {
        return None;
    }
    let word = |at: usize| {
        u64::from_be_bytes([
            ip[at],
            ip[at + 1],
            ip[at + 2],
            ip[at + 3],
            ip[at + 4],
            ip[at + 5],
            ip[at + 6],
            ip[at + 7],
        ])
    };
    let (remote, local) = ([word(8), word(16)], [word(24), word(32)]);
    let (remote, local) = (Address::from_words(remote), Address::from_words(local));
    // What means an IPv4 address to us must never come off an IPv6 wire (RFC 4038 §4.2): it would be another's flow.
    if remote.is_v4() || local.is_v4() {
        return None;
    }
    Some(FlowKey {
        remote,
        local,
        remote_port: u16::from_be_bytes([ip[40], ip[41]]),
        local_port: u16::from_be_bytes([ip[42], ip[43]]),
        device,
        protocol,
    })
}

#[cfg(test)]
mod tests;
