//! Packets: headers, options and marks.

use super::super::{Arp, Body, Ecn, Icmp, Options, Packet, Tcp, TcpOption, flag};
use super::{Cursor, Result};

impl Cursor<'_> {
    pub(super) fn packet(&mut self) -> Result<Packet> {
        let ports = self.ports()?;
        let mut about = None;
        let mut ecn = None;
        if self.eat("[") {
            match self.look_word() {
                word if word.starts_with(|first: char| first.is_ascii_digit()) => {
                    about = Some(self.range()?);
                }
                _ => ecn = Some(self.ecn()?),
            }
            self.expect("]")?;
        }
        let body = match self.look_word() {
            "udp" => {
                self.word()?;
                Body::Udp(self.len()?)
            }
            "icmp" => {
                self.word()?;
                Body::Icmp(self.icmp(about)?)
            }
            "arp" => {
                self.word()?;
                Body::Arp(self.arp()?)
            }
            "igmp" => {
                self.word()?;
                Body::Igmp(self.igmp()?)
            }
            "ip6" => {
                self.word()?;
                Body::Ip6(self.ip6()?)
            }
            _ => Body::Tcp(self.tcp()?),
        };
        Ok(Packet { ports, ecn, body, marks: self.marks()? })
    }

    /// `40001>8080`, but not the `1:1(0)` of a segment.
    fn ports(&mut self) -> Result<Option<(u16, u16)>> {
        self.skip_blank();
        let rest = &self.text[self.at..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || rest.get(digits) != Some(&b'>') {
            return Ok(None);
        }
        let from = self.narrow()?;
        self.expect(">")?;
        Ok(Some((from, self.narrow()?)))
    }

    fn ecn(&mut self) -> Result<Ecn> {
        match self.word()?.as_str() {
            "noecn" => Ok(Ecn::Not),
            "ect0" => Ok(Ecn::Ect0),
            "ect1" => Ok(Ecn::Ect1),
            "ce" => Ok(Ecn::Ce),
            _ => Err(self.error("noecn, ect0, ect1 or ce")),
        }
    }

    fn len(&mut self) -> Result<u32> {
        self.expect("(")?;
        let len = self.narrow()?;
        self.expect(")")?;
        Ok(len)
    }

    /// `first:end(len)`
    fn range(&mut self) -> Result<(u32, u32)> {
        let first: u32 = self.narrow()?;
        self.expect(":")?;
        let end: u32 = self.narrow()?;
        let len = self.len()?;
        if end.wrapping_sub(first) != len {
            return Err(self.error("first + length to be the end"));
        }
        Ok((first, len))
    }

    fn flags(&mut self) -> Result<u8> {
        self.skip_blank();
        let mut flags = 0;
        let start = self.at;
        loop {
            flags |= match self.peek() {
                b'F' => flag::FIN,
                b'S' => flag::SYN,
                b'R' => flag::RST,
                b'P' => flag::PSH,
                b'.' => flag::ACK,
                b'U' => flag::URG,
                b'E' => flag::ECE,
                b'W' => flag::CWR,
                b'-' => 0,
                _ if self.at > start => return Ok(flags),
                _ => {
                    return Err(self.error("a packet: flags (S, F, R, P, ., U, E, W or -), udp, icmp or arp"));
                }
            };
            self.at += 1;
        }
    }

    fn tcp(&mut self) -> Result<Tcp> {
        let flags = self.flags()?;
        let (sequence, len) = self.range()?;
        let mut tcp = Tcp {
            flags,
            sequence,
            len,
            acknowledgment: None,
            window: None,
            urgent: None,
            options: Options::List(Vec::new()),
        };
        if self.eat_word("ack") {
            tcp.acknowledgment = Some(self.narrow()?);
        }
        if self.eat_word("win") {
            tcp.window = Some(self.narrow()?);
        }
        if self.eat_word("urg") {
            tcp.urgent = Some(self.narrow()?);
        }
        if self.eat("<") {
            tcp.options = self.options()?;
        }
        Ok(tcp)
    }

    fn options(&mut self) -> Result<Options> {
        if self.eat("...") {
            self.expect(">")?;
            return Ok(Options::Any);
        }
        let mut list = Vec::new();
        while !self.eat(">") {
            if !list.is_empty() {
                self.expect(",")?;
            }
            list.push(self.option()?);
        }
        Ok(Options::List(list))
    }

    fn or_any<T: TryFrom<i64>>(&mut self) -> Result<Option<T>> {
        if self.eat("*") { Ok(None) } else { self.narrow().map(Some) }
    }

    fn option(&mut self) -> Result<TcpOption> {
        Ok(match self.word()?.as_str() {
            "eol" => TcpOption::End,
            "nop" => TcpOption::Nop,
            "mss" => TcpOption::Mss(self.or_any()?),
            "wscale" => TcpOption::WindowScale(self.or_any()?),
            "sackOK" => TcpOption::SackPermitted,
            "sack" => {
                let mut blocks = Vec::new();
                loop {
                    self.skip_blank();
                    if !self.peek().is_ascii_digit() {
                        return Ok(TcpOption::Sack(blocks));
                    }
                    let first = self.narrow()?;
                    self.expect(":")?;
                    blocks.push((first, self.narrow()?));
                }
            }
            "TS" => {
                self.expect("val")?;
                let value = self.or_any()?;
                self.expect("ecr")?;
                TcpOption::Timestamps(value, self.or_any()?)
            }
            "kind" => TcpOption::Other(self.narrow()?, self.bytes()?),
            "raw" => TcpOption::Raw(self.bytes()?),
            _ => return Err(self.error("an option: mss, wscale, sackOK, sack, TS, nop, eol, kind or raw")),
        })
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            self.skip_blank();
            if !self.peek().is_ascii_digit() {
                return Ok(bytes);
            }
            bytes.push(self.narrow()?);
        }
    }

    fn icmp(&mut self, about: Option<(u32, u32)>) -> Result<Icmp> {
        let kind = match self.word()?.as_str() {
            word @ ("echo" | "reply") => {
                self.expect("id")?;
                let id = self.narrow()?;
                self.expect("seq")?;
                return Ok(Icmp::Echo(word == "echo", id, self.narrow()?, self.len()?));
            }
            "unreachable" => 3,
            "source_quench" => 4,
            "redirect" => 5,
            "time_exceeded" => 11,
            "parameter_problem" => 12,
            _ => return Err(self.error("an ICMP message")),
        };
        let code = match (kind, self.look_word()) {
            (3, "net_unreachable") | (11, "ttl") | (12, "pointer") => 0,
            (3, "host_unreachable") | (11, "reassembly") => 1,
            (3, "protocol_unreachable") => 2,
            (3, "port_unreachable") => 3,
            (3, "frag_needed") => 4,
            (3, "source_route_failed") => 5,
            (3, "admin_prohibited") => 13,
            _ => u8::MAX,
        };
        let code = if code == u8::MAX { 0 } else { self.word().map(|_| code)? };
        let mtu = if self.eat_word("mtu") { Some(self.narrow()?) } else { None };
        Ok(Icmp::Error { kind, code, mtu, about })
    }

    fn arp(&mut self) -> Result<Arp> {
        let request = match self.word()?.as_str() {
            "request" => true,
            "reply" => false,
            _ => return Err(self.error("request or reply")),
        };
        self.expect("from")?;
        let sender = self.address()?;
        self.expect("for")?;
        Ok(Arp { request, sender, target: self.address()? })
    }

    fn address(&mut self) -> Result<std::net::Ipv4Addr> {
        self.skip_blank();
        let start = self.at;
        while self.peek().is_ascii_digit() || self.peek() == b'.' {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        text.parse().map_err(|_| self.error("an address"))
    }

    fn marks(&mut self) -> Result<Vec<(String, Option<String>)>> {
        let mut marks = Vec::new();
        if !self.eat("{") {
            return Ok(marks);
        }
        while !self.eat("}") {
            if !marks.is_empty() {
                self.expect(",")?;
            }
            let name = self.word()?;
            self.skip_blank();
            let start = self.at;
            while !matches!(self.peek(), b',' | b'}' | b'\n' | 0) {
                self.at += 1;
            }
            let value = String::from_utf8_lossy(&self.text[start..self.at]).trim().to_owned();
            marks.push((name, (!value.is_empty()).then_some(value)));
        }
        Ok(marks)
    }
}
