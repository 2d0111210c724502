//! The server name of a TLS connection, out of its ClientHello (RFC 8446 §4.1.2, §5.1; RFC 6066 §3).
//!
//! ```text
//! record    type 22, version 3.x, length (u16) │ a piece of the handshake stream
//! handshake type  1, length (u24) │ version, random, session id, cipher suites, compressions, extensions
//! extension type  0, length (u16) │ list length (u16) │ name type 0, length (u16), host name
//! ```
//!
//! The versions 1.0 to 1.3 begin alike. With Encrypted Client Hello the name read is that of the outer hello, the
//! client-facing server's. The client's word is taken: nothing here authenticates it.

use super::{Limits, Opaque};

/// RFC 8446 §5.1: the type of handshake records; no HTTP request begins with this byte.
pub const HANDSHAKE: u8 = 22;

/// Reads the start of one connection.
#[derive(Clone, Debug)]
pub struct ClientHello {
    limit: usize,
    record: Record,
    /// The handshake message as far as it came.
    message: Vec<u8>,
    outcome: Option<Result<ServerName, NoName>>,
}

/// A DNS name of 1 to 255 bytes in lower case, without a dot at the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerName(Box<str>);

impl ServerName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why there is no server name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoName {
    /// Not a handshake record of TLS, or not a ClientHello in it.
    #[error("not a ClientHello")]
    NotClientHello,
    /// Longer than [`Limits::hello_bytes`].
    #[error("ClientHello too long")]
    TooLong,
    /// Lengths in the ClientHello contradict each other, or the extension comes twice.
    #[error("malformed ClientHello")]
    Malformed,
    /// The client names no server.
    #[error("not sent")]
    NotSent,
    /// The name is none that DNS could have.
    #[error("not a DNS name")]
    BadName,
}

impl From<NoName> for Opaque {
    fn from(reason: NoName) -> Opaque {
        Opaque::Unnamed(reason)
    }
}

/// Where in the records.
#[derive(Clone, Copy, Debug)]
enum Record {
    Header { bytes: [u8; RECORD_HEADER_LEN], len: usize },
    Payload { left: usize },
}

const RECORD_HEADER_LEN: usize = 5;
/// RFC 8446 §5.1: of a record's plaintext.
const MAX_RECORD_LEN: usize = 1 << 14;
const MESSAGE_HEADER_LEN: usize = 4;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// RFC 1035 §2.3.4.
const MAX_NAME_LEN: usize = 255;

impl Record {
    const START: Record = Record::Header { bytes: [0; RECORD_HEADER_LEN], len: 0 };
}

impl ClientHello {
    /// At the start of a stream.
    pub fn new(limits: &Limits) -> ClientHello {
        ClientHello { limit: limits.hello_bytes, record: Record::START, message: Vec::new(), outcome: None }
    }

    /// Takes the next bytes; the outcome, once it is certain, stays.
    pub fn on_bytes(&mut self, mut piece: &[u8]) -> Option<&Result<ServerName, NoName>> {
        while self.outcome.is_none() && !piece.is_empty() {
            self.outcome = self.advance(&mut piece);
            if self.outcome.is_some() {
                self.message = Vec::new();
            }
        }
        self.outcome.as_ref()
    }

    /// Bytes of memory held besides itself.
    pub fn held(&self) -> usize {
        self.message.capacity()
    }

    /// A step over part of a record.
    fn advance(&mut self, piece: &mut &[u8]) -> Option<Result<ServerName, NoName>> {
        match &mut self.record {
            Record::Header { bytes, len } => {
                bytes[*len] = piece[0];
                *len += 1;
                *piece = &piece[1..];
                if *len == RECORD_HEADER_LEN {
                    match payload_len(*bytes) {
                        Some(left) => self.record = Record::Payload { left },
                        None => return Some(Err(NoName::NotClientHello)),
                    }
                }
                None
            }
            Record::Payload { left } => {
                let wanted = match message_len(&self.message) {
                    Ok(len) => len.unwrap_or(MESSAGE_HEADER_LEN),
                    Err(reason) => return Some(Err(reason)),
                };
                let taken = (*left).min(wanted - self.message.len()).min(piece.len());
                self.message.reserve_exact(wanted - self.message.len());
                self.message.extend_from_slice(&piece[..taken]);
                *piece = &piece[taken..];
                *left -= taken;
                if *left == 0 {
                    self.record = Record::START;
                }
                self.judge()
            }
        }
    }

    /// What the message says, when enough of it is there.
    fn judge(&self) -> Option<Result<ServerName, NoName>> {
        match message_len(&self.message) {
            Err(reason) => Some(Err(reason)),
            Ok(None) => None,
            Ok(Some(len)) if len > self.limit => Some(Err(NoName::TooLong)),
            Ok(Some(len)) if len > self.message.len() => None,
            Ok(Some(_)) => Some(server_name(&self.message[MESSAGE_HEADER_LEN..])),
        }
    }
}

fn payload_len(header: [u8; RECORD_HEADER_LEN]) -> Option<usize> {
    let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
    // RFC 8446 §5.1: no empty handshake records. Minor versions: RFC 8446 says 1 or 3, old clients anything.
    let valid = header[0] == HANDSHAKE && header[1] == 3 && (1..=MAX_RECORD_LEN).contains(&len);
    valid.then_some(len)
}

/// Length of the whole message with its header, once that is there.
fn message_len(message: &[u8]) -> Result<Option<usize>, NoName> {
    match message {
        [CLIENT_HELLO, high, middle, low, ..] => {
            let len = u32::from_be_bytes([0, *high, *middle, *low]);
            Ok(Some(MESSAGE_HEADER_LEN + len as usize))
        }
        [] | [CLIENT_HELLO, ..] => Ok(None),
        _ => Err(NoName::NotClientHello),
    }
}

/// RFC 8446 §4.1.2: from the version to the end of the extensions.
fn server_name(body: &[u8]) -> Result<ServerName, NoName> {
    let mut input = Input(body);
    input.take(2 + 32)?;
    let _session_id = input.vector8()?;
    let _cipher_suites = input.vector16()?;
    let _compressions = input.vector8()?;
    // Up to TLS 1.2 extensions may be left out.
    if input.0.is_empty() {
        return Err(NoName::NotSent);
    }
    let mut extensions = input.vector16()?;
    if !input.0.is_empty() {
        return Err(NoName::Malformed);
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let data = extensions.vector16()?;
        // RFC 8446 §4.2: no type twice.
        if kind == SERVER_NAME && found.replace(data).is_some() {
            return Err(NoName::Malformed);
        }
    }
    host_name(found.ok_or(NoName::NotSent)?)
}

/// RFC 6066 §3: a list, of which no type comes twice, and of which only one type was ever defined.
fn host_name(mut extension: Input<'_>) -> Result<ServerName, NoName> {
    let mut list = extension.vector16()?;
    if !extension.0.is_empty() || list.u8()? != HOST_NAME {
        return Err(NoName::Malformed);
    }
    let name = list.vector16()?.0;
    if !list.0.is_empty() {
        return Err(NoName::Malformed);
    }
    // RFC 6066 §3: ASCII without a dot at the end; some send one, and it means the same.
    let name = name.strip_suffix(b".").unwrap_or(name);
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if name.is_empty() || name.len() > MAX_NAME_LEN || !name.iter().all(allowed) {
        return Err(NoName::BadName);
    }
    let name = name.iter().map(|byte| char::from(byte.to_ascii_lowercase())).collect();
    Ok(ServerName(name))
}

/// Bytes read from the front.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], NoName> {
        let (front, rest) = self.0.split_at_checked(len).ok_or(NoName::Malformed)?;
        self.0 = rest;
        Ok(front)
    }

    fn u8(&mut self) -> Result<u8, NoName> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, NoName> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A vector with a length of one byte (RFC 8446 §3.4).
    fn vector8(&mut self) -> Result<Input<'a>, NoName> {
        let len = self.u8()?;
        Ok(Input(self.take(usize::from(len))?))
    }

    /// A vector with a length of two bytes.
    fn vector16(&mut self) -> Result<Input<'a>, NoName> {
        let len = self.u16()?;
        Ok(Input(self.take(usize::from(len))?))
    }
}

#[cfg(test)]
mod tests;
