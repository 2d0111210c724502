//! What a script says: events at moments, in the order of the file.
//!
//! The shape is packetdrill's, since people know it; the grammar is in `parse.rs`. One file shows one behaviour:
//!
//! ```text
//! // RFC 9293 §3.10.7.4: the clause that is tested comes first
//! include common/accepted.pkt
//!  +.1 < P. 1:101(100) ack 1 win 257        // a packet that comes
//! +.04 > . 1:1(0) ack 101                   // a packet that must leave, then and not before
//!   +0 read(4, ..., 200) = 100              // a call and its result
//!  +10 quiet                                // nothing has left since the last event
//! ```

mod parse;

use std::rc::Rc;

pub use parse::{ParseError, load};

/// A script with what it includes.
#[derive(Clone, Debug)]
pub struct Script {
    /// Its file.
    pub name: String,
    /// The comment at its head: what is tested and by which clause.
    pub about: String,
    /// `--name=value` lines.
    pub options: Vec<(String, String)>,
    /// What happens.
    pub events: Vec<Event>,
}

impl Script {
    /// The value of an option; the last one counts.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }
}

impl Script {
    /// How long it takes, in microseconds, as far as it says.
    pub fn duration(&self) -> i64 {
        self.events
            .iter()
            .fold((0, 0), |(now, latest): (i64, i64), event| {
                let base = if event.when.relative { now } else { 0 };
                let at = base + event.when.from;
                (at, latest.max(at).max(base + event.when.to.unwrap_or(0)))
            })
            .1
    }
}

/// Where an event stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// File.
    pub file: Rc<str>,
    /// Line, from 1.
    pub line: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Where it stands.
    pub place: Place,
    /// When it happens.
    pub when: When,
    /// What.
    pub what: What,
}

/// A moment, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// From the beginning (`0.1`) or from the event before (`+.1`).
    pub relative: bool,
    /// The moment; the first of a range.
    pub from: i64,
    /// The last moment of a range (`+.1~+.3`); for a call that blocks (`+0...0.2`), when it returns.
    pub to: Option<i64>,
    /// `to` is when a call returns.
    pub returns: bool,
    /// Any time (`*`).
    pub any: bool,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum What {
    /// A packet comes.
    In(Packet),
    /// A packet must leave.
    Out(Packet),
    /// A call.
    Call(Call),
    /// Nothing may have left since the event before.
    Quiet,
    /// A shell command (foreign scripts only).
    Command(String),
    /// A block of code (foreign scripts only).
    Code(String),
}

/// A packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Source and destination port, where they are not those of the script's one connection.
    pub ports: Option<(u16, u16)>,
    /// `[ect0]` and its like in front.
    pub ecn: Option<Ecn>,
    /// What is in it.
    pub body: Body,
    /// `{name value, …}` behind it: what is unusual about it.
    pub marks: Vec<(String, Option<String>)>,
}

impl Packet {
    /// The value of a mark: `None` when it is not there, `Some("")` when it has no value.
    pub fn mark(&self, name: &str) -> Option<&str> {
        self.marks.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_deref().unwrap_or(""))
    }
}

/// The ECN field of the IP header (RFC 3168 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// 00
    Not,
    /// 01
    Ect1,
    /// 10
    Ect0,
    /// 11
    Ce,
}

/// What a packet carries.
#[derive(Clone, Debug)]
pub enum Body {
    /// A TCP segment.
    Tcp(Tcp),
    /// A datagram with so many bytes.
    Udp(u32),
    /// An ICMP message.
    Icmp(Icmp),
    /// An ARP packet.
    Arp(Arp),
    /// A message of IGMP, byte by byte (`None`: any, or a checksum to be made).
    Igmp(Vec<Option<u8>>),
    /// A packet of IPv6, byte by byte.
    Ip6(Ip6),
}

/// Bits of the flags octet, and beyond it.
pub mod flag {
    /// FIN
    pub const FIN: u8 = 1;
    /// SYN
    pub const SYN: u8 = 2;
    /// RST
    pub const RST: u8 = 4;
    /// PSH
    pub const PSH: u8 = 8;
    /// ACK
    pub const ACK: u8 = 16;
    /// URG
    pub const URG: u8 = 32;
    /// ECE
    pub const ECE: u8 = 64;
    /// CWR
    pub const CWR: u8 = 128;
}

/// A TCP segment, in the script's sequence numbers.
#[derive(Clone, Debug)]
pub struct Tcp {
    /// See [`flag`].
    pub flags: u8,
    /// First sequence number.
    pub sequence: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Acknowledgment.
    pub acknowledgment: Option<u32>,
    /// Window field.
    pub window: Option<u16>,
    /// Urgent pointer.
    pub urgent: Option<u16>,
    /// Options.
    pub options: Options,
}

/// The options of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Options {
    /// `<...>`: whatever.
    Any,
    /// These.
    List(Vec<TcpOption>),
}

/// One option. `None` stands for `*`: any value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// Kind 0
    End,
    /// Kind 1
    Nop,
    /// Kind 2
    Mss(Option<u16>),
    /// Kind 3
    WindowScale(Option<u8>),
    /// Kind 4
    SackPermitted,
    /// Kind 5
    Sack(Vec<(u32, u32)>),
    /// Kind 8
    Timestamps(Option<u32>, Option<u32>),
    /// Any other: kind, and its bytes behind the length.
    Other(u8, Vec<u8>),
    /// Bytes as they are, for broken ones.
    Raw(Vec<u8>),
}

/// An ICMP message.
#[derive(Clone, Debug)]
pub enum Icmp {
    /// An error about a segment that we sent, or (outward) that came.
    Error {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// Next-hop MTU.
        mtu: Option<u16>,
        /// First sequence number and length of the TCP segment in it; else it is about the last datagram.
        about: Option<(u32, u32)>,
    },
    /// Echo request (`true`) or reply: identifier, sequence number, bytes.
    Echo(bool, u16, u16, u32),
}

/// An ARP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arp {
    /// A request, not a reply.
    pub request: bool,
    /// Sender's address.
    pub sender: std::net::Ipv4Addr,
    /// Target's address.
    pub target: std::net::Ipv4Addr,
}

/// A packet of IPv6: `ip6 58 from fe80::2 to ff02::1 hop 255 [ 80 00 .. .. 00 01 00 02 (8) ]`. In brackets stand bytes,
/// `@` addresses, so many bytes of payload, and `..`: any byte, or a checksum to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip6 {
    /// Next header.
    pub next: u8,
    /// Source address.
    pub source: std::net::Ipv6Addr,
    /// Destination address.
    pub destination: std::net::Ipv6Addr,
    /// Hop limit; when it comes and this is missing, 64.
    pub hop: Option<u8>,
    /// What stands behind the header; `None`: any.
    pub bytes: Vec<Option<u8>>,
}

/// A call as written.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<Value>,
    /// What it must return; `None`: anything.
    pub result: Option<i64>,
    /// The error that it must fail with.
    pub errno: Option<String>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `...`
    Any,
    /// A number.
    Number(i64),
    /// Names, joined by `|`.
    Names(Vec<String>),
    /// `"text"`
    Text(String),
    /// `[a, b]`
    List(Vec<Value>),
    /// `{name=value, value}`
    Structure(Vec<(Option<String>, Value)>),
    /// `htons(8080)`
    Apply(String, Vec<Value>),
}

impl Value {
    /// As a number.
    pub fn number(&self) -> Option<i64> {
        match self {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// A field of a structure.
    pub fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Structure(fields) => {
                fields.iter().find(|(given, _)| given.as_deref() == Some(name)).map(|(_, value)| value)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
