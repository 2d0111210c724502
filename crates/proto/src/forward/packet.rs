//! What forwarding looks at in a packet, of either version of IP.

use scoutline_base::Address;
use scoutline_path::{Checksum, DropReason};
use scoutline_wire::{checksum, ipv4, ipv6, tcp, udp};

/// The facts of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) source: Address,
    pub(super) destination: Address,
    /// Type of service, or traffic class.
    pub(super) tos: u8,
    /// Hops left.
    pub(super) hops: u8,
    /// Bytes without what the link added.
    pub(super) total_len: usize,
    /// Where the transport header stands, or data of a piece.
    pub(super) upper_at: usize,
    /// What stands there.
    pub(super) protocol: u8,
    /// A router may cut it: IPv4 whose sender allows it, without options (which only some pieces would bear). In IPv6
    /// only senders cut (RFC 8200 §5).
    pub(super) divisible: bool,
    /// The transport header of a whole packet of TCP or UDP.
    pub(super) transport: Option<Transport>,
}

/// A transport header that has a checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transport {
    /// Where the checksum stands in it.
    field: u16,
    /// How long it is.
    pub(super) len: usize,
}

impl Packet {
    /// Reads the headers; nothing else is checked than that they are some.
    pub(super) fn parse(bytes: &[u8]) -> Result<Packet, DropReason> {
        match bytes.first() {
            Some(first) if first >> 4 == 6 => Packet::parse6(bytes),
            _ => Packet::parse4(bytes),
        }
    }

    fn parse4(bytes: &[u8]) -> Result<Packet, DropReason> {
        let header = ipv4::Header::parse(bytes).map_err(crate::ip4::reason)?;
        let header_len = usize::from(header.header_len);
        if !ipv4::checksum_is_valid(&bytes[..header_len]) {
            return Err(DropReason::BadChecksum);
        }
        // A fragment that ends behind the longest datagram.
        if usize::from(header.fragment_offset) + usize::from(header.total_len) > usize::from(u16::MAX) {
            return Err(DropReason::Malformed);
        }
        let whole = !header.is_fragment();
        let total_len = usize::from(header.total_len);
        Ok(Packet {
            source: header.source.into(),
            destination: header.destination.into(),
            tos: header.tos,
            hops: header.ttl,
            total_len,
            upper_at: header_len,
            protocol: header.protocol,
            divisible: !header.dont_fragment && header_len == ipv4::MIN_HEADER_LEN,
            transport: Transport::find(&bytes[header_len..total_len], header.protocol).filter(|_| whole),
        })
    }

    fn parse6(bytes: &[u8]) -> Result<Packet, DropReason> {
        let header = ipv6::Header::parse(bytes).map_err(crate::ip6::reason)?;
        let (source, destination) = (Address::from(header.source), Address::from(header.destination));
        // RFC 4291 §2.5.5.2: what stands for an IPv4 address never comes off a wire.
        if source.is_v4() || destination.is_v4() {
            return Err(DropReason::Malformed);
        }
        let packet = &bytes[..header.total_len()];
        // RFC 8200 §4: extension headers are the destination's matter. Where they cannot be followed the packet is passed
        // on all the same, and its transport header is not known.
        let upper = ipv6::skip(packet).ok();
        let whole = upper.is_some_and(|upper| upper.fragment.is_none());
        let (upper_at, protocol) =
            upper.map_or((packet.len(), ipv6::NO_NEXT_HEADER), |upper| (upper.offset, upper.protocol));
        Ok(Packet {
            source,
            destination,
            tos: header.traffic_class,
            hops: header.hop_limit,
            total_len: header.total_len(),
            upper_at,
            protocol,
            divisible: false,
            transport: packet
                .get(upper_at..)
                .and_then(|upper| Transport::find(upper, protocol))
                .filter(|_| whole),
        })
    }

    /// Bytes in front of the transport's data.
    pub(super) fn headers_len(&self) -> usize {
        self.upper_at + self.transport.map_or(0, |transport| transport.len)
    }

    /// One hop less (RFC 1812 §5.3.1, RFC 8200 §3), and an IPv4 header's checksum with it (RFC 1624).
    pub(super) fn age(&self, packet: &mut [u8]) {
        const TTL_AT: usize = 8;
        if !self.source.is_v4() {
            packet[ipv6::HOP_LIMIT_AT] -= 1;
            return;
        }
        let word = |packet: &[u8], at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let old = word(packet, TTL_AT);
        packet[TTL_AT] -= 1;
        let sum = checksum::update(word(packet, 10), old, word(packet, TTL_AT));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    /// Leaves the transport checksum to the device, where there is one: the field gets the pseudo-header's sum.
    pub(super) fn make_partial(&self, packet: &mut [u8]) -> Checksum {
        if self.has_no_checksum(packet) {
            return Checksum::Complete;
        }
        self.begin_checksum(packet)
    }

    /// The same for a packet whose field says nothing.
    pub(super) fn begin_checksum(&self, packet: &mut [u8]) -> Checksum {
        let Some(Transport { field, .. }) = self.transport else { return Checksum::Complete };
        let len = packet.len() - self.upper_at;
        let sum = checksum::pseudo_header(self.source, self.destination, self.protocol, len);
        let at = self.upper_at + usize::from(field);
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        Checksum::Partial { start: self.upper_at as u16, offset: field }
    }

    /// Whether its checksum is right; there has to be one.
    pub(super) fn is_intact(&self, packet: &[u8]) -> bool {
        let upper = &packet[self.upper_at..];
        let pseudo = checksum::pseudo_header(self.source, self.destination, self.protocol, upper.len());
        !self.has_no_checksum(packet) && checksum::is_valid(checksum::add(pseudo, checksum::sum(upper)))
    }

    /// A datagram whose sender made no checksum (RFC 768; RFC 6935 for tunnels over IPv6).
    fn has_no_checksum(&self, packet: &[u8]) -> bool {
        let at = self.upper_at + udp::CHECKSUM_OFFSET;
        self.protocol == ipv4::PROTOCOL_UDP && packet.get(at..at + 2) == Some(&[0, 0])
    }
}

impl Transport {
    /// `None` for other protocols, and when the packet ends before.
    fn find(upper: &[u8], protocol: u8) -> Option<Transport> {
        match protocol {
            ipv4::PROTOCOL_TCP => {
                let len = usize::from(*upper.get(12)? >> 4) * 4;
                let fits = len >= 20 && len <= upper.len();
                fits.then_some(Transport { field: tcp::CHECKSUM_OFFSET as u16, len })
            }
            ipv4::PROTOCOL_UDP => {
                let transport = Transport { field: udp::CHECKSUM_OFFSET as u16, len: udp::HEADER_LEN };
                (upper.len() >= udp::HEADER_LEN).then_some(transport)
            }
            _ => None,
        }
    }
}
