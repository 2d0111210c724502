//! The messages of neighbour discovery (RFC 4861 §4) and their options, behind the ICMPv6 header.
//!
//! Options that are not known here are passed over (§4.6).

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::ethernet;
use crate::icmpv6::HEADER_LEN;
use crate::ipv6::address_at;

/// Type: router solicitation.
pub const ROUTER_SOLICITATION: u8 = 133;
/// Type: router advertisement.
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// Type: neighbour solicitation.
pub const NEIGHBOUR_SOLICITATION: u8 = 135;
/// Type: neighbour advertisement.
pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Type: redirect.
pub const REDIRECT: u8 = 137;

/// The hop limit of every message, so that none comes from beyond the link (RFC 4861 §7.1.1).
pub const HOP_LIMIT: u8 = 255;
/// All nodes of the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers of the link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Prefixes of one advertisement that are looked at.
pub const MAX_PREFIXES: usize = 16;
/// Length of a solicitation or advertisement of a neighbour with its link-address option, in bytes.
pub const NEIGHBOUR_LEN: usize = HEADER_LEN + 16 + 8;

const OPTION_SOURCE_LINK: u8 = 1;
const OPTION_TARGET_LINK: u8 = 2;
const OPTION_PREFIX: u8 = 3;
const OPTION_MTU: u8 = 5;

const FLAG_ROUTER: u8 = 0x80;
const FLAG_SOLICITED: u8 = 0x40;
const FLAG_OVERRIDE: u8 = 0x20;
const PREFIX_ON_LINK: u8 = 0x80;
const PREFIX_AUTONOMOUS: u8 = 0x40;

/// Why bytes are no message of neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than the message is.
    #[error("{got} bytes cannot hold the message, of {need}")]
    Truncated {
        /// Bytes there were.
        got: usize,
        /// Bytes there should be.
        need: usize,
    },
    /// A code other than 0 (RFC 4861 §7.1).
    #[error("code {0} is not 0")]
    Code(u8),
    /// An option of length 0, or beyond the message, or a link address that is none of Ethernet's.
    #[error("an option of impossible length")]
    Option,
    /// The target is a group.
    #[error("the target is a multicast address")]
    Target,
}

/// The group of stations that may have `address` (RFC 4291 §2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a as u16, (b as u16) << 8 | c as u16)
}

/// The address that a station with this link address gives itself in a network of 64 bits (RFC 4291 Appendix A).
pub const fn interface_address(network: Ipv6Addr, link: ethernet::Address) -> Ipv6Addr {
    let [a, b, c, d, e, f, g, h, ..] = network.octets();
    let [l0, l1, l2, l3, l4, l5] = link;
    let octets = [a, b, c, d, e, f, g, h, l0 ^ 2, l1, l2, 0xff, 0xfe, l3, l4, l5];
    Ipv6Addr::from_bits(u128::from_be_bytes(octets))
}

/// A neighbour solicitation (§4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicitation {
    /// Whose link address is asked for.
    pub target: Ipv6Addr,
    /// The asker's; none while it only looks whether the address is in use.
    pub source_link: Option<ethernet::Address>,
}

impl Solicitation {
    /// Reads a whole ICMPv6 message.
    ///
    /// # Errors
    /// What RFC 4861 §7.1.1 has a host drop it for, addresses and hop limit apart.
    pub fn parse(message: &[u8]) -> Result<Solicitation, ParseError> {
        let target = target_of(message)?;
        let source_link = only_link(&message[HEADER_LEN + 16..], OPTION_SOURCE_LINK)?;
        Ok(Solicitation { target, source_link })
    }

    /// Writes what follows the ICMPv6 header and says how much.
    ///
    /// # Panics
    /// When `out` is shorter than 24 bytes.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        out[..16].copy_from_slice(&self.target.octets());
        self.source_link.map_or(16, |link| put_link(out, OPTION_SOURCE_LINK, link))
    }
}

/// A neighbour advertisement (§4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// The sender forwards.
    pub router: bool,
    /// It answers a solicitation.
    pub solicited: bool,
    /// It is to replace what is known.
    pub overrides: bool,
    /// Whose link address is told.
    pub target: Ipv6Addr,
    /// The link address.
    pub target_link: Option<ethernet::Address>,
}

impl Advertisement {
    /// Reads a whole ICMPv6 message.
    ///
    /// # Errors
    /// What RFC 4861 §7.1.2 has a host drop it for, addresses and hop limit apart.
    pub fn parse(message: &[u8]) -> Result<Advertisement, ParseError> {
        let target = target_of(message)?;
        let flags = message[4];
        let target_link = only_link(&message[HEADER_LEN + 16..], OPTION_TARGET_LINK)?;
        Ok(Advertisement {
            router: flags & FLAG_ROUTER != 0,
            solicited: flags & FLAG_SOLICITED != 0,
            overrides: flags & FLAG_OVERRIDE != 0,
            target,
            target_link,
        })
    }

    /// The flags, as the rest of the ICMPv6 header has them.
    pub fn flags(&self) -> [u8; 4] {
        let flag = |on, bit| if on { bit } else { 0 };
        let flags = flag(self.router, FLAG_ROUTER)
            | flag(self.solicited, FLAG_SOLICITED)
            | flag(self.overrides, FLAG_OVERRIDE);
        [flags, 0, 0, 0]
    }

    /// Writes what follows the ICMPv6 header and says how much.
    ///
    /// # Panics
    /// When `out` is shorter than 24 bytes.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        out[..16].copy_from_slice(&self.target.octets());
        self.target_link.map_or(16, |link| put_link(out, OPTION_TARGET_LINK, link))
    }
}

/// A prefix of a router advertisement (§4.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The network.
    pub network: Ipv6Addr,
    /// Its bits that count.
    pub prefix_len: u8,
    /// Its addresses are on this link.
    pub on_link: bool,
    /// Hosts may make addresses in it (RFC 4862).
    pub autonomous: bool,
    /// How long it is valid; `None`: for ever.
    pub valid: Option<Duration>,
    /// How long addresses from it are preferred; `None`: for ever.
    pub preferred: Option<Duration>,
}

/// A router advertisement (§4.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterAdvertisement {
    /// For outgoing packets; `None`: not said.
    pub hop_limit: Option<u8>,
    /// How long it is a default router; zero: it is none.
    pub lifetime: Duration,
    /// How long a neighbour is believed to be reachable.
    pub reachable_time: Option<Duration>,
    /// Between solicitations.
    pub retransmit_time: Option<Duration>,
    /// The router's.
    pub source_link: Option<ethernet::Address>,
    /// The link's.
    pub mtu: Option<u32>,
    /// At most [`MAX_PREFIXES`] of them.
    pub prefixes: Vec<Prefix>,
}

impl RouterAdvertisement {
    /// Reads a whole ICMPv6 message.
    ///
    /// # Errors
    /// What RFC 4861 §6.1.2 has a host drop it for, addresses and hop limit apart.
    pub fn parse(message: &[u8]) -> Result<RouterAdvertisement, ParseError> {
        const LEN: usize = HEADER_LEN + 8;
        let fixed = first::<LEN>(message)?;
        let milliseconds = |at: usize| {
            let ms = be32(fixed, at);
            (ms != 0).then(|| Duration::from_millis(u64::from(ms)))
        };
        let mut advertisement = RouterAdvertisement {
            hop_limit: (fixed[4] != 0).then_some(fixed[4]),
            lifetime: Duration::from_secs(u64::from(u16::from_be_bytes([fixed[6], fixed[7]]))),
            reachable_time: milliseconds(8),
            retransmit_time: milliseconds(12),
            source_link: None,
            mtu: None,
            prefixes: Vec::new(),
        };
        each_option(&message[LEN..], |kind, body| match kind {
            OPTION_SOURCE_LINK => advertisement.source_link = link_of(body),
            OPTION_MTU if body.len() == 6 => advertisement.mtu = Some(be32(body, 2)),
            OPTION_PREFIX if body.len() == 30 && advertisement.prefixes.len() < MAX_PREFIXES => {
                advertisement.prefixes.push(prefix_of(body));
            }
            _ => {}
        })?;
        Ok(advertisement)
    }
}

/// A redirect (§4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The better first hop: a router's address, or the destination itself.
    pub target: Ipv6Addr,
    /// For packets that go there.
    pub destination: Ipv6Addr,
    /// The target's link address.
    pub target_link: Option<ethernet::Address>,
}

impl Redirect {
    /// Reads a whole ICMPv6 message.
    ///
    /// # Errors
    /// What RFC 4861 §8.1 has a host drop it for, addresses and hop limit apart.
    pub fn parse(message: &[u8]) -> Result<Redirect, ParseError> {
        const LEN: usize = HEADER_LEN + 32;
        let fixed = first::<LEN>(message)?;
        let target = target_of(message)?;
        let mut target_link = None;
        each_option(&message[LEN..], |kind, body| {
            if kind == OPTION_TARGET_LINK {
                target_link = link_of(body);
            }
        })?;
        Ok(Redirect { target, destination: address_at(fixed, HEADER_LEN + 16), target_link })
    }
}

fn prefix_of(body: &[u8]) -> Prefix {
    let seconds = |at| {
        let s = be32(body, at);
        (s != u32::MAX).then(|| Duration::from_secs(u64::from(s)))
    };
    Prefix {
        network: address_at(body, 14),
        prefix_len: body[0].min(128),
        on_link: body[1] & PREFIX_ON_LINK != 0,
        autonomous: body[1] & PREFIX_AUTONOMOUS != 0,
        valid: seconds(2),
        preferred: seconds(6),
    }
}

fn first<const N: usize>(message: &[u8]) -> Result<&[u8; N], ParseError> {
    let fixed = message.first_chunk::<N>().ok_or(ParseError::Truncated { got: message.len(), need: N })?;
    if fixed[1] != 0 {
        return Err(ParseError::Code(fixed[1]));
    }
    Ok(fixed)
}

fn target_of(message: &[u8]) -> Result<Ipv6Addr, ParseError> {
    let fixed = first::<{ HEADER_LEN + 16 }>(message)?;
    let target = address_at(fixed, HEADER_LEN);
    if target.is_multicast() { Err(ParseError::Target) } else { Ok(target) }
}

/// Hands each option's kind, and its body behind kind and length, to `each`. A message holds no more options than its
/// length divided by eight.
fn each_option(mut bytes: &[u8], mut each: impl FnMut(u8, &[u8])) -> Result<(), ParseError> {
    while !bytes.is_empty() {
        let &[kind, units, ..] = bytes else { return Err(ParseError::Option) };
        let len = 8 * usize::from(units);
        // RFC 4861 §4.6: the message is dropped.
        if len == 0 || len > bytes.len() {
            return Err(ParseError::Option);
        }
        each(kind, &bytes[2..len]);
        bytes = &bytes[len..];
    }
    Ok(())
}

/// The link address in options of this kind; one of another link's length is an error, as for Linux (`ndisc_recv_ns`).
fn only_link(options: &[u8], of: u8) -> Result<Option<ethernet::Address>, ParseError> {
    let mut link = Ok(None);
    each_option(options, |kind, body| {
        if kind == of {
            link = link_of(body).map(Some).ok_or(ParseError::Option);
        }
    })?;
    link
}

fn link_of(body: &[u8]) -> Option<ethernet::Address> {
    body.try_into().ok()
}

fn put_link(out: &mut [u8], kind: u8, link: ethernet::Address) -> usize {
    out[16..18].copy_from_slice(&[kind, 1]);
    out[18..24].copy_from_slice(&link);
    24
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TARGET: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x12, 0x3456);
    const LINK: ethernet::Address = [2, 0, 0, 0, 0, 9];

    fn message(kind: u8, rest: [u8; 4], body: &[u8]) -> Vec<u8> {
        let mut message = vec![kind, 0, 0, 0];
        message.extend_from_slice(&rest);
        message.extend_from_slice(body);
        message
    }

    #[test]
    fn addresses_that_follow_from_others() {
        assert_eq!(solicited_node(TARGET).to_string(), "ff02::1:ff12:3456");
        let network = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
        let made = interface_address(network, [0x9c, 0xe6, 0x87, 0xaa, 0xe3, 0x60]);
        assert_eq!(made.to_string(), "fe80::9ee6:87ff:feaa:e360");
    }

    #[test]
    fn neighbours_ask_and_answer() {
        for source_link in [None, Some(LINK)] {
            let solicitation = Solicitation { target: TARGET, source_link };
            let mut body = [0; 24];
            let len = solicitation.emit(&mut body);
            let message = message(NEIGHBOUR_SOLICITATION, [0; 4], &body[..len]);
            assert_eq!(Solicitation::parse(&message), Ok(solicitation));
        }
        let advertisement = Advertisement {
            router: false,
            solicited: true,
            overrides: true,
            target: TARGET,
            target_link: Some(LINK),
        };
        let mut body = [0; 24];
        advertisement.emit(&mut body);
        let mut message = message(NEIGHBOUR_ADVERTISEMENT, advertisement.flags(), &body);
        assert_eq!(Advertisement::parse(&message), Ok(advertisement));
        message[25] = 0;
        assert_eq!(Advertisement::parse(&message), Err(ParseError::Option), "an option of length 0");
        message[25] = 2;
        assert_eq!(Advertisement::parse(&message), Err(ParseError::Option), "one that reaches out");
        message[1] = 1;
        assert_eq!(Advertisement::parse(&message), Err(ParseError::Code(1)));
        message[1] = 0;
        message[8] = 0xff;
        assert_eq!(Advertisement::parse(&message), Err(ParseError::Target));
        let short = Err(ParseError::Truncated { got: 23, need: 24 });
        assert_eq!(Advertisement::parse(&message[..23]), short);
    }

    #[test]
    fn a_router_tells_what_it_knows() {
        let mut body = vec![0, 0, 0x75, 0x30, 0, 0, 0, 0];
        body.extend_from_slice(&[1, 1, 2, 0, 0, 0, 0, 9]);
        body.extend_from_slice(&[5, 1, 0, 0, 0, 0, 5, 0]);
        body.extend_from_slice(&[3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        body.extend_from_slice(&Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0).octets());
        body.extend_from_slice(&[25, 1, 0, 0, 0, 0, 0, 0]); // RDNSS: passed over
        let message = message(ROUTER_ADVERTISEMENT, [64, 0, 7, 8], &body);
        let advertisement = RouterAdvertisement::parse(&message).unwrap();
        assert_eq!(advertisement.hop_limit, Some(64));
        assert_eq!(advertisement.lifetime, Duration::from_secs(1800));
        assert_eq!(advertisement.reachable_time, Some(Duration::from_secs(30)));
        assert_eq!(advertisement.retransmit_time, None);
        assert_eq!((advertisement.source_link, advertisement.mtu), (Some(LINK), Some(1280)));
        let [prefix] = advertisement.prefixes[..] else { panic!("{advertisement:?}") };
        assert_eq!((prefix.prefix_len, prefix.on_link, prefix.autonomous), (64, true, true));
        assert_eq!((prefix.valid, prefix.preferred), (Some(Duration::from_secs(3600)), None));
    }

    #[test]
    fn a_redirect_names_the_better_hop() {
        let destination = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
        let mut body = [TARGET.octets(), destination.octets()].concat();
        let plain = message(REDIRECT, [0; 4], &body);
        assert_eq!(Redirect::parse(&plain), Ok(Redirect { target: TARGET, destination, target_link: None }));
        assert_eq!(Redirect::parse(&plain[..39]), Err(ParseError::Truncated { got: 39, need: 40 }));
        body.extend_from_slice(&[2, 1, 2, 0, 0, 0, 0, 9]);
        body.extend_from_slice(&[4, 1, 0, 0, 0, 0, 0, 0]); // the packet that went the longer way: passed over
        let told = Redirect::parse(&message(REDIRECT, [0; 4], &body)).unwrap();
        assert_eq!(told.target_link, Some(LINK));
        body.truncate(36);
        assert_eq!(
            Redirect::parse(&message(REDIRECT, [0; 4], &[&body[..32], &[2, 0]].concat())),
            Err(ParseError::Option)
        );
    }

    #[test]
    fn prefixes_beyond_the_limit_are_left() {
        let mut body = vec![0; 8];
        for _ in 0..40 {
            body.extend_from_slice(&[3, 4]);
            body.extend_from_slice(&[0; 30]);
        }
        let message = message(ROUTER_ADVERTISEMENT, [0; 4], &body);
        assert_eq!(RouterAdvertisement::parse(&message).unwrap().prefixes.len(), MAX_PREFIXES);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_err(mut bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
            if let Some(code) = bytes.get_mut(1) { *code = 0; }
            let _ = Solicitation::parse(&bytes);
            let _ = Advertisement::parse(&bytes);
            let _ = RouterAdvertisement::parse(&bytes);
            let _ = Redirect::parse(&bytes);
        }
    }
}
