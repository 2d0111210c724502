//! Network addresses of both families in one type of sixteen bytes.
//!
//! An IPv4 address is kept in its IPv4-mapped form, `::ffff:a.b.c.d` (RFC 4291 §2.5.5.2), so equality, order and
//! hashing need no look at the family. Such an address never stands on an IPv6 wire; to people it is shown as IPv4,
//! and others in the form of RFC 5952.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::str::FromStr;

/// Bits in front of an IPv4 address: a prefix of `n` bits of IPv4 is one of `96 + n` here.
pub const V4_PREFIX_LEN: u8 = 96;

/// What stands in front of an IPv4 address in the low word.
const V4_MARK: u64 = 0xffff << 32;

/// An IPv4 or IPv6 address, of 128 bits in two words: the first 64 of the text in the first. Words and not bytes,
/// because what is put together byte by byte and read as a whole waits for the memory (50 ns a packet, measured).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u64, u64);

impl Address {
    /// 0.0.0.0.
    pub const UNSPECIFIED_V4: Address = Address::from_v4(Ipv4Addr::UNSPECIFIED);
    /// `::`.
    pub const UNSPECIFIED_V6: Address = Address(0, 0);

    /// By its sixteen bytes.
    #[inline]
    pub const fn from_octets(octets: [u8; 16]) -> Address {
        Address::from_bits(u128::from_be_bytes(octets))
    }

    /// By its 128 bits, the first of the text the highest.
    #[inline]
    pub const fn from_bits(bits: u128) -> Address {
        Address((bits >> 64) as u64, bits as u64)
    }

    /// The 128 bits.
    #[inline]
    pub const fn to_bits(self) -> u128 {
        (self.0 as u128) << 64 | self.1 as u128
    }

    /// The bits in two words.
    #[inline]
    pub const fn words(self) -> [u64; 2] {
        [self.0, self.1]
    }

    /// From two words: the other way round.
    #[inline]
    pub const fn from_words([high, low]: [u64; 2]) -> Address {
        Address(high, low)
    }

    /// The sixteen bytes, the first of the text first.
    #[inline]
    pub const fn octets(self) -> [u8; 16] {
        self.to_bits().to_be_bytes()
    }

    /// An IPv4 address.
    #[inline]
    pub const fn from_v4(address: Ipv4Addr) -> Address {
        Address(0, V4_MARK | address.to_bits() as u64)
    }

    /// True for IPv4.
    #[inline]
    pub const fn is_v4(self) -> bool {
        self.0 == 0 && self.1 >> 32 == V4_MARK >> 32
    }

    /// The IPv4 address, if it is one.
    #[inline]
    pub fn as_v4(self) -> Option<Ipv4Addr> {
        self.is_v4().then_some(Ipv4Addr::from_bits(self.1 as u32))
    }

    /// The IPv6 address, if it is one.
    #[inline]
    pub fn as_v6(self) -> Option<Ipv6Addr> {
        (!self.is_v4()).then_some(Ipv6Addr::from_bits(self.to_bits()))
    }

    /// The bits of an IPv4 address; of an IPv6 address the last 32.
    #[inline]
    pub const fn low_bits(self) -> u32 {
        self.1 as u32
    }

    /// As the standard library has it.
    pub fn to_ip(self) -> IpAddr {
        self.as_v4().map_or_else(|| IpAddr::V6(Ipv6Addr::from_bits(self.to_bits())), IpAddr::V4)
    }

    /// The unspecified address of the same family.
    #[inline]
    #[must_use]
    pub fn unspecified(self) -> Address {
        if self.is_v4() { Address::UNSPECIFIED_V4 } else { Address::UNSPECIFIED_V6 }
    }

    /// True for 0.0.0.0 and `::`.
    #[inline]
    pub fn is_unspecified(self) -> bool {
        self == Address::UNSPECIFIED_V6 || self == Address::UNSPECIFIED_V4
    }

    /// True for 127.0.0.0/8 and `::1`.
    pub fn is_loopback(self) -> bool {
        self.to_ip().is_loopback()
    }

    /// True for groups.
    pub fn is_multicast(self) -> bool {
        self.as_v4().map_or(self.0 >> 56 == 0xff, |address| address.is_multicast())
    }

    /// True for IPv6 addresses that mean something on one link only (RFC 4291 §2.5.6).
    #[inline]
    pub fn is_link_local(self) -> bool {
        self.0 >> 54 == 0xfe80 >> 6
    }

    /// True when the first `prefix_len` of the 128 bits are those of `network`, which is of the same family.
    #[inline]
    pub fn is_within(self, network: Address, prefix_len: u8) -> bool {
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix_len.min(128))).unwrap_or(0);
        (self.to_bits() ^ network.to_bits()) & mask == 0 && self.is_v4() == network.is_v4()
    }
}

impl Default for Address {
    /// 0.0.0.0.
    fn default() -> Address {
        Address::UNSPECIFIED_V4
    }
}

impl From<Ipv4Addr> for Address {
    #[inline]
    fn from(address: Ipv4Addr) -> Address {
        Address::from_v4(address)
    }
}

impl From<Ipv6Addr> for Address {
    /// An IPv4-mapped address becomes that IPv4 address.
    #[inline]
    fn from(address: Ipv6Addr) -> Address {
        Address::from_bits(address.to_bits())
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Address {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl FromStr for Address {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Address, AddrParseError> {
        text.parse::<IpAddr>().map(Address::from)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip().fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address and a port.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The address.
    pub address: Address,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    /// This port of this address.
    #[inline]
    pub fn new(address: impl Into<Address>, port: u16) -> Endpoint {
        Endpoint { address: address.into(), port }
    }

    /// As the standard library has it.
    pub fn to_socket(self) -> SocketAddr {
        match self.address.to_ip() {
            IpAddr::V4(address) => SocketAddr::V4(SocketAddrV4::new(address, self.port)),
            IpAddr::V6(address) => SocketAddr::V6(SocketAddrV6::new(address, self.port, 0, 0)),
        }
    }
}

impl From<SocketAddrV4> for Endpoint {
    fn from(socket: SocketAddrV4) -> Endpoint {
        Endpoint::new(*socket.ip(), socket.port())
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(socket: SocketAddr) -> Endpoint {
        Endpoint::new(socket.ip(), socket.port())
    }
}

impl FromStr for Endpoint {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Endpoint, AddrParseError> {
        text.parse::<SocketAddr>().map(Endpoint::from)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_socket().fmt(f)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn families_and_texts() {
        let v4 = address("10.0.0.1");
        assert!(v4.is_v4() && v4 == address("::ffff:10.0.0.1"));
        assert_eq!((v4.to_string(), v4.as_v4()), ("10.0.0.1".to_owned(), Some(Ipv4Addr::new(10, 0, 0, 1))));
        assert_eq!((v4.as_v6(), v4.low_bits()), (None, 0x0a00_0001));
        let v6 = address("2001:db8:0:0:0:0:0:1");
        assert!(!v6.is_v4());
        // RFC 5952 §4.2.
        assert_eq!(v6.to_string(), "2001:db8::1");
        assert_eq!(Endpoint::new(v6, 80).to_string(), "[2001:db8::1]:80");
        assert_eq!(Endpoint::new(v4, 80).to_string(), "10.0.0.1:80");
        assert_eq!("[::]:53".parse(), Ok(Endpoint::new(Address::UNSPECIFIED_V6, 53)));
        assert!(!address("::1.2.3.4").is_v4(), "IPv4-compatible addresses are IPv6 (RFC 4291 §2.5.5.1)");
    }

    #[test]
    fn kinds() {
        assert!(Address::UNSPECIFIED_V4.is_unspecified() && Address::UNSPECIFIED_V6.is_unspecified());
        assert_ne!(Address::UNSPECIFIED_V4, Address::UNSPECIFIED_V6);
        assert!(address("127.1.2.3").is_loopback() && address("::1").is_loopback());
        assert!(address("ff02::1").is_multicast() && address("224.0.0.1").is_multicast());
        assert!(address("fe80::1").is_link_local() && address("febf::1").is_link_local());
        assert!(!address("fec0::1").is_link_local() && !address("10.0.0.1").is_link_local());
    }

    #[test]
    fn prefixes() {
        let within = |text: &str, network: &str, len| address(text).is_within(address(network), len);
        assert!(within("2001:db8::77", "2001:db8::", 64) && !within("2001:db8:0:1::", "2001:db8::", 64));
        assert!(within("10.0.0.77", "10.0.0.0", V4_PREFIX_LEN + 24));
        assert!(!within("10.0.1.0", "10.0.0.0", V4_PREFIX_LEN + 24));
        assert!(within("1.2.3.4", "0.0.0.0", V4_PREFIX_LEN));
        assert!(within("::1", "::1", 128) && !within("::2", "::1", 128));
        assert!(within("2001::", "::", 0) && !within("1.2.3.4", "::", 0), "::/0 is every IPv6 address");
    }
}
