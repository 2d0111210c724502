//! Values with a notation of their own: sizes, networks, ports, modes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use toml::Spanned;

use super::dscp::Dscp;

/// A default: it stands at no line.
pub(super) fn unplaced<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

/// The values of a condition: a list that has some. An empty one would ask for nothing, which its writer hardly meant.
pub(super) fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() {
        return Err(de::Error::custom(
            "`[]` holds for everything; say what it is about, or take the key out",
        ));
    }
    Ok(list)
}

/// A number of bytes: `262144`, `"256KiB"`, `"4GiB"`, `"100kB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let fault = || format!("`{text}` is no size; write it like \"256KiB\", \"4GiB\" or 65536");
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u64 = text[..digits].parse().map_err(|_| fault())?;
        let unit: u64 = match text[digits..].trim() {
            "" | "B" => 1,
            "kB" | "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "KiB" | "K" | "k" => 1 << 10,
            "MiB" | "M" => 1 << 20,
            "GiB" | "G" => 1 << 30,
            _ => return Err(fault()),
        };
        number.checked_mul(unit).map(Size).ok_or_else(fault)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (unit, shift) in units {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// An IPv6 address with the length of its network's prefix: `2001:db8::1/64`. Without a length: `/128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network6 {
    /// The address as written, host part included.
    pub address: Ipv6Addr,
    /// 0 to 128.
    pub prefix: u8,
}

impl FromStr for Network6 {
    type Err = String;

    fn from_str(text: &str) -> Result<Network6, String> {
        match text.parse()? {
            AnyNetwork { address: IpAddr::V6(address), prefix } => Ok(Network6 { address, prefix }),
            AnyNetwork { .. } => {
                Err(format!("`{text}` is no IPv6 network; write it like \"2001:db8::1/64\""))
            }
        }
    }
}

impl fmt::Display for Network6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A network of either family, as conditions of classes have it. Without a length: the address alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnyNetwork {
    /// The address as written, host part included.
    pub address: IpAddr,
    /// 0 to 32, or to 128.
    pub prefix: u8,
}

impl AnyNetwork {
    /// The network's own address.
    pub fn base(self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => Network { address, prefix: self.prefix }.base().into(),
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        }
    }
}

impl FromStr for AnyNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<AnyNetwork, String> {
        if !text.contains(':') {
            let Network { address, prefix } = text.parse()?;
            return Ok(AnyNetwork { address: address.into(), prefix });
        }
        let (address, prefix) = text.split_once('/').unwrap_or((text, "128"));
        let address = address
            .parse()
            .map_err(|_| format!("`{text}` is no IPv6 network; write it like \"2001:db8::1/64\""))?;
        match prefix.parse() {
            Ok(prefix @ 0..=128) => Ok(AnyNetwork { address: IpAddr::V6(address), prefix }),
            _ => {
                Err(format!("`{text}`: the length of the prefix must be 0 to 128, as in \"2001:db8::1/64\""))
            }
        }
    }
}

impl fmt::Display for AnyNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// An address with the length of its network's prefix: `10.0.0.1/24`. Without a length: `/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The address as written, host part included.
    pub address: Ipv4Addr,
    /// 0 to 32.
    pub prefix: u8,
}

impl Network {
    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }

    /// The network's own address.
    pub fn base(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() & self.mask())
    }

    /// The network's broadcast address.
    pub fn broadcast(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() | !self.mask())
    }

    /// Whether an address lies in it.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.address.to_bits()) & self.mask() == 0
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let address = address
            .parse()
            .map_err(|_| format!("`{text}` is no IPv4 network; write it like \"10.0.0.1/24\""))?;
        match prefix.parse() {
            Ok(prefix @ 0..=32) => Ok(Network { address, prefix }),
            _ => Err(format!("`{text}`: the length of the prefix must be 0 to 32, as in \"10.0.0.1/24\"")),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Networks: one, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Networks(pub Vec<Network>);

impl<'de> Deserialize<'de> for Networks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Networks, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Networks;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a network such as \"10.0.0.1/24\", or a list of them")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Networks, E> {
                text.parse().map(|network| Networks(vec![network])).map_err(E::custom)
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Networks, A::Error> {
                let mut networks = Vec::new();
                while let Some(network) = list.next_element()? {
                    networks.push(network);
                }
                Ok(Networks(networks))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

/// Cores: one, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(pub Vec<usize>);

impl<'de> Deserialize<'de> for Cores {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cores, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Cores;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a core such as 0, or a list of them, an engine for each")
            }
            fn visit_i64<E: de::Error>(self, core: i64) -> Result<Cores, E> {
                let core = usize::try_from(core)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(core), &self))?;
                Ok(Cores(vec![core]))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Cores, A::Error> {
                let mut cores = Vec::new();
                while let Some(core) = list.next_element()? {
                    cores.push(core);
                }
                Ok(Cores(cores))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

/// A rate in bits per second: `"100Mbit/s"`, `"1.5Gbit/s"`, `64000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let fault = || {
            format!(
                "`{text}` is no rate; write it like \"100Mbit/s\", \"1Gbit/s\" or 64000 (bits per second)"
            )
        };
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (whole, part) = text[..digits].split_once('.').unwrap_or((&text[..digits], ""));
        let unit: u64 = match text[digits..].trim().trim_end_matches("/s") {
            "" | "bit" => 1,
            "kbit" => 1_000,
            "Mbit" => 1_000_000,
            "Gbit" => 1_000_000_000,
            _ => return Err(fault()),
        };
        if part.len() > 9 || part.contains('.') || (part.is_empty() && text.contains('.')) {
            return Err(fault());
        }
        let whole: u64 = whole.parse().map_err(|_| fault())?;
        let parts: u64 = if part.is_empty() { 0 } else { part.parse().map_err(|_| fault())? };
        let bits = whole.checked_mul(unit).ok_or_else(fault)? + parts * unit / 10_u64.pow(part.len() as u32);
        Ok(Rate(bits))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1_000)];
        match units.into_iter().find(|(_, unit)| self.0 != 0 && self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}bit/s", self.0),
        }
    }
}

/// Microseconds, or `"auto"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// As what is seen suggests.
    Auto,
    /// So many microseconds.
    Us(u32),
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Interval, String> {
        match text {
            "auto" => Ok(Interval::Auto),
            _ => Err(format!("`{text}`: write \"auto\", or a number of microseconds (0: plain priority)")),
        }
    }
}

/// A port or a range of ports: `80`, `"8000-8100"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(pub RangeInclusive<u16>);

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Ports, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let fault = || format!("`{text}` is no port or range of ports; write 80 or \"8000-8100\"");
        let first: u16 = first.trim().parse().map_err(|_| fault())?;
        let last: u16 = last.trim().parse().map_err(|_| fault())?;
        if first == 0 || last == 0 {
            return Err(format!("`{text}`: ports begin at 1"));
        }
        if first > last {
            return Err(format!(
                "`{text}`: the first port of a range must be the lower; write \"{last}-{first}\""
            ));
        }
        Ok(Ports(first..=last))
    }
}

/// A user, by name or number: `"www-data"`, `33`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User(pub u32);

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<User, String> {
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let found = users.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(text)).then(|| fields.nth(1)?.parse().ok()).flatten()
        });
        found.or_else(|| text.parse().ok()).map(User).ok_or_else(|| {
            format!("`{text}`: there is no such user in /etc/passwd; make it with `useradd {text}`, or write a number")
        })
    }
}

/// Permission bits: `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        match u32::from_str_radix(text.trim_start_matches("0o"), 8) {
            Ok(mode) if mode <= 0o777 => Ok(Mode(mode)),
            _ => Err(format!("`{text}` is no mode; write it in octal, like \"0660\"")),
        }
    }
}

/// Reads a value from a string, or from a number where its type has such a notation.
struct Notation<T> {
    expecting: &'static str,
    number: fn(i64) -> Option<T>,
}

impl<T: FromStr<Err = String>> Visitor<'_> for Notation<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        (self.number)(number).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self.expecting))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        let number = |bytes: i64| u64::try_from(bytes).ok().map(Size);
        deserializer.deserialize_any(Notation { expecting: "a size such as \"256KiB\" or 65536", number })
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
        let number = |bits: i64| u64::try_from(bits).ok().map(Rate);
        let expecting = "a rate such as \"100Mbit/s\" or 64000 (bits per second)";
        deserializer.deserialize_any(Notation { expecting, number })
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Interval, D::Error> {
        let number = |us: i64| u32::try_from(us).ok().filter(|&us| us <= 10_000_000).map(Interval::Us);
        deserializer.deserialize_any(Notation { expecting: "\"auto\" or 0 to 10000000 microseconds", number })
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
        deserializer
            .deserialize_any(Notation { expecting: "a network such as \"10.0.0.1/24\"", number: |_| None })
    }
}

impl<'de> Deserialize<'de> for Network6 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network6, D::Error> {
        let expecting = "an IPv6 network such as \"2001:db8::1/64\"";
        deserializer.deserialize_any(Notation { expecting, number: |_| None })
    }
}

impl<'de> Deserialize<'de> for AnyNetwork {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AnyNetwork, D::Error> {
        let expecting = "a network such as \"10.0.0.1/24\" or \"2001:db8::1/64\"";
        deserializer.deserialize_any(Notation { expecting, number: |_| None })
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ports, D::Error> {
        let number =
            |port: i64| u16::try_from(port).ok().filter(|&port| port > 0).map(|port| Ports(port..=port));
        deserializer.deserialize_any(Notation {
            expecting: "a port (1 to 65535) or a range such as \"8000-8100\"",
            number,
        })
    }
}

impl<'de> Deserialize<'de> for User {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<User, D::Error> {
        let number = |id: i64| u32::try_from(id).ok().map(User);
        deserializer
            .deserialize_any(Notation { expecting: "a user such as \"www-data\" or its number", number })
    }
}

impl<'de> Deserialize<'de> for Dscp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Dscp, D::Error> {
        let expecting = "a DSCP (0 to 63, or a name such as \"EF\")";
        deserializer.deserialize_any(Notation { expecting, number: Dscp::of })
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
        deserializer
            .deserialize_any(Notation { expecting: "a mode in octal such as \"0660\"", number: |_| None })
    }
}
