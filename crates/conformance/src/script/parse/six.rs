//! IPv6 packets and messages of IGMP, byte by byte.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::Ip6;
use super::{Cursor, Result};

impl Cursor<'_> {
    /// `next from address to address [hop n] [ bytes ]`
    pub(super) fn ip6(&mut self) -> Result<Ip6> {
        let next = self.narrow()?;
        self.expect("from")?;
        let source = self.address6()?;
        self.expect("to")?;
        let destination = self.address6()?;
        let hop = if self.eat_word("hop") { Some(self.narrow()?) } else { None };
        self.expect("[")?;
        let mut bytes = Vec::new();
        while !self.eat("]") {
            if self.eat("..") {
                bytes.push(None);
            } else if self.eat("@") {
                bytes.extend(self.address6()?.octets().map(Some));
            } else if self.eat("(") {
                // So many bytes of the pattern that payload has.
                let len: u16 = self.narrow()?;
                self.expect(")")?;
                bytes.extend(crate::packet::pattern_at(false, 0, usize::from(len)).into_iter().map(Some));
            } else {
                bytes.push(Some(self.hex_byte()?));
            }
        }
        Ok(Ip6 { next, source, destination, hop, bytes })
    }

    /// `[ bytes ]`, among them `@` addresses of IPv4.
    pub(super) fn igmp(&mut self) -> Result<Vec<Option<u8>>> {
        self.expect("[")?;
        let mut bytes = Vec::new();
        while !self.eat("]") {
            if self.eat("..") {
                bytes.push(None);
            } else if self.eat("@") {
                bytes.extend(self.address4()?.octets().map(Some));
            } else {
                bytes.push(Some(self.hex_byte()?));
            }
        }
        Ok(bytes)
    }

    fn address4(&mut self) -> Result<Ipv4Addr> {
        let start = self.at;
        while self.peek().is_ascii_digit() || self.peek() == b'.' {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        text.parse().map_err(|_| self.error("an address of IPv4"))
    }

    fn hex_byte(&mut self) -> Result<u8> {
        self.skip_blank();
        let text = self.text.get(self.at..self.at + 2).and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = text.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let byte = byte
            .ok_or_else(|| self.error("two hexadecimal digits, `..`, `@` address, `(` length `)` or `]`"))?;
        self.at += 2;
        Ok(byte)
    }

    fn address6(&mut self) -> Result<Ipv6Addr> {
        self.skip_blank();
        let start = self.at;
        while self.peek().is_ascii_hexdigit() || self.peek() == b':' {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        text.parse().map_err(|_| self.error("an address of IPv6"))
    }
}
