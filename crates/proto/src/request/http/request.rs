//! Requests: their heads, and where they begin and end.

use std::mem::MaybeUninit;

use super::framing::{Body, Chunked, Facts, Transfer};
use super::head::Head;
use super::reader::Reader;
use super::{MAX_FIELDS, Phase, Span, State};
use crate::request::{Limits, Opaque};

/// Reads the requests of one connection.
///
/// ```
/// use scoutline_proto::request::Limits;
/// use scoutline_proto::request::http::{RequestEvent, RequestReader};
///
/// let mut reader = RequestReader::new(&Limits::default());
/// let mut piece = &b"GET /a HTTP/1.1\r\nHost: example.org\r\n\r\n"[..];
/// while let Some(event) = reader.on_bytes(&mut piece) {
///     if let RequestEvent::Head { request, .. } = event {
///         assert_eq!((request.method, request.path()), ("GET", Some("/a")));
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct RequestReader {
    reader: Reader,
    /// The request that is being read asks for a tunnel or another protocol.
    asks_to_switch: bool,
    /// The server reads no request behind the one that is being read.
    is_last: bool,
}

/// What a piece brought.
#[derive(Clone, Copy, Debug)]
pub enum RequestEvent<'a> {
    /// A head is complete.
    Head {
        /// Position of the request's first byte.
        first: u64,
        /// What it asks.
        request: Request<'a>,
    },
    /// The request whose head was told last is complete.
    End(Span),
}

/// What a response's framing needs to know of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// HEAD: the response has no body.
    Head,
    /// CONNECT: a response that agrees opens a tunnel.
    Connect,
    /// Any other.
    Other,
}

/// A request's head.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// As sent; methods are case-sensitive (RFC 9110 §9.1).
    pub method: &'a str,
    /// The request target as sent.
    pub target: &'a str,
    /// 0 or 1: HTTP/1.0 or 1.1.
    pub minor_version: u8,
    /// The authority of a target in absolute form, else the Host field's value; a port is still there.
    pub host: Option<&'a [u8]>,
    /// The lines of the fields.
    section: &'a [u8],
}

impl RequestReader {
    /// At the start of a stream.
    pub fn new(limits: &Limits) -> RequestReader {
        RequestReader { reader: Reader::new(limits), asks_to_switch: false, is_last: false }
    }

    /// Takes bytes off `piece` up to the next event. To be called until it gives `None`: then all were taken.
    pub fn on_bytes<'a, 'p: 'a>(&'a mut self, piece: &mut &'p [u8]) -> Option<RequestEvent<'a>> {
        self.reader.head.release();
        match self.reader.phase {
            Phase::Head => self.on_head(piece),
            Phase::Body(_) => {
                let over = self.reader.on_body(piece)?;
                Some(RequestEvent::End(self.on_end(over)))
            }
            Phase::Waiting if !piece.is_empty() => {
                self.reader.give_up(Opaque::EarlyBytes, piece);
                None
            }
            Phase::Waiting | Phase::Last | Phase::Opaque(_) => {
                *piece = &[];
                None
            }
        }
    }

    /// Passes bytes that cannot be shown. They must belong to the body that is being read.
    pub fn skip(&mut self, len: u64) -> Option<Span> {
        let over = self.reader.skip(len)?;
        Some(self.on_end(over))
    }

    /// The request that was read last has its final answer, and the protocol is still HTTP/1.
    pub fn on_answered(&mut self) {
        self.asks_to_switch = false;
        if self.reader.phase == Phase::Waiting {
            self.reader.phase = Phase::Head;
        }
    }

    /// What it is about.
    pub fn state(&self) -> State {
        self.reader.state()
    }

    /// So many of the next bytes need not be shown: skipping them does as well.
    pub fn unread(&self) -> u64 {
        self.reader.unread()
    }

    /// Bytes of memory held besides itself.
    pub fn held(&self) -> usize {
        self.reader.held()
    }

    fn on_head<'a, 'p: 'a>(&'a mut self, piece: &mut &'p [u8]) -> Option<RequestEvent<'a>> {
        let reader = &mut self.reader;
        if reader.head.is_empty() {
            // RFC 9112 §2.2: an empty line before a request is ignored. Servers ignore any number.
            let empty = piece.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            *piece = &piece[empty..];
            reader.position = reader.position.saturating_add(empty as u64);
            reader.first = reader.position;
        }
        let before = piece.len();
        let scanned = reader.head.scan(piece, reader.head_bytes, judge);
        reader.position = reader.position.saturating_add((before - piece.len()) as u64);
        let read = match scanned {
            Ok(None) => return None,
            Ok(Some(head)) => read(head),
            Err(reason) => Err(reason),
        };
        match read {
            Ok(read) => {
                reader.phase = read.phase;
                self.asks_to_switch = read.asks_to_switch;
                self.is_last = read.is_last;
                Some(RequestEvent::Head { first: reader.first, request: read.request })
            }
            Err(reason) => {
                reader.phase = Phase::Opaque(reason);
                *piece = &[];
                None
            }
        }
    }

    /// The request is complete.
    fn on_end(&mut self, span: Span) -> Span {
        self.reader.phase = match (self.asks_to_switch, self.is_last) {
            (true, _) => Phase::Waiting,
            (false, true) => Phase::Last,
            (false, false) => Phase::Head,
        };
        span
    }
}

/// Is this the first line of a request that we read?
fn judge(line: &[u8]) -> Result<(), Opaque> {
    match line.strip_suffix(b"HTTP/1.1").or_else(|| line.strip_suffix(b"HTTP/1.0")) {
        Some([.., b' ']) => Ok(()),
        // RFC 9113 §3.4: the preface of a client that knows beforehand.
        None if line == b"PRI * HTTP/2.0" => Err(Opaque::Http2),
        _ => Err(Opaque::NotHttp),
    }
}

/// A head, read.
struct Read<'a> {
    request: Request<'a>,
    phase: Phase,
    asks_to_switch: bool,
    is_last: bool,
}

fn read(head: Head<'_>) -> Result<Read<'_>, Opaque> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(head.bytes, &mut fields) {
        Ok(httparse::Status::Complete(len)) if len == head.bytes.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Opaque::TooManyFields),
        _ => return Err(Opaque::Malformed),
    }
    let (Some(method), Some(target), Some(minor_version)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(Opaque::Malformed);
    };
    let facts = Facts::of(parsed.headers);
    let line = memchr::memchr(b'\n', head.bytes).map_or(0, |at| at + 1);
    // RFC 9112 §3.2.2: the target's authority goes before the Host field.
    let host = authority(target).map(str::as_bytes).or(facts.host);
    let request = Request { method, target, minor_version, host, section: &head.bytes[line..] };
    let phase = match body(&facts, minor_version) {
        _ if head.has_bare_line_feed => Phase::Opaque(Opaque::BareLineFeed),
        Ok(body) => Phase::Body(body),
        Err(reason) => Phase::Opaque(reason),
    };
    Ok(Read {
        request,
        phase,
        asks_to_switch: facts.upgrade || request.kind() == RequestKind::Connect,
        // RFC 9112 §9.3.
        is_last: facts.close || (minor_version == 0 && !facts.keep_alive),
    })
}

/// RFC 9112 §6.3, for requests.
fn body(facts: &Facts<'_>, minor_version: u8) -> Result<Body, Opaque> {
    if let Some(reason) = facts.ambiguity {
        return Err(reason);
    }
    match facts.transfer {
        Transfer::None => Ok(Body::Length(facts.content_length.unwrap_or(0))),
        // RFC 9112 §6.1: in HTTP/1.0 the framing is faulty.
        Transfer::Chunked if minor_version > 0 => Ok(Body::Chunked(Chunked::START)),
        Transfer::Chunked | Transfer::Unknown => Err(Opaque::AmbiguousLength),
    }
}

/// The authority of a target in absolute form, without user information.
fn authority(target: &str) -> Option<&str> {
    let (_, rest) = absolute(target)?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = &rest[..end];
    Some(authority.rsplit_once('@').map_or(authority, |(_, host)| host))
}

/// Scheme, and what follows `://`.
fn absolute(target: &str) -> Option<(&str, &str)> {
    // The common form is known by its first byte.
    if target.starts_with('/') {
        return None;
    }
    let (scheme, rest) = target.split_once("://")?;
    scheme
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        .then_some((scheme, rest))
}

impl<'a> Request<'a> {
    /// The target's path as sent, without query; `None` for the asterisk and the authority form (RFC 9112 §3.2).
    pub fn path(&self) -> Option<&'a str> {
        let path = match absolute(self.target) {
            Some((_, rest)) => &rest[rest.find(['/', '?', '#']).unwrap_or(rest.len())..],
            None if self.target.starts_with('/') => self.target,
            None => return None,
        };
        let end = memchr::memchr2(b'?', b'#', path.as_bytes()).unwrap_or(path.len());
        // RFC 9110 §4.2.3: an empty path is that of the root.
        Some(if end == 0 { "/" } else { &path[..end] })
    }

    /// The fields in order.
    pub fn fields(&self) -> Fields<'a> {
        Fields { rest: self.section }
    }

    /// The values of all fields of this name.
    pub fn field(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.fields()
            .filter(move |(other, _)| other.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// Name and value of each cookie, as sent (RFC 6265 §4.2.1).
    pub fn cookies(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let pairs = self.field("cookie").flat_map(|value| value.split(|&byte| byte == b';'));
        pairs.filter_map(|pair| {
            let at = memchr::memchr(b'=', pair)?;
            Some((pair[..at].trim_ascii(), pair[at + 1..].trim_ascii()))
        })
    }

    /// What the response's framing needs to know.
    pub fn kind(&self) -> RequestKind {
        match self.method {
            "HEAD" => RequestKind::Head,
            "CONNECT" => RequestKind::Connect,
            _ => RequestKind::Other,
        }
    }
}

/// Name and value of each field; made by [`Request::fields`].
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    /// Lines that have been judged, up to and with the empty one.
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let end = memchr::memchr(b'\n', self.rest)?;
        let line = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        let colon = memchr::memchr(b':', line)?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    }
}
