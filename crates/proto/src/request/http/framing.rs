//! How long a body is (RFC 9112 §6), and reading past it.

use crate::request::Opaque;

/// What the fields of a head say about framing and the connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts<'a> {
    pub(super) host: Option<&'a [u8]>,
    pub(super) content_length: Option<u64>,
    pub(super) transfer: Transfer,
    /// Connection: close.
    pub(super) close: bool,
    /// Connection: keep-alive.
    pub(super) keep_alive: bool,
    /// There is an Upgrade field.
    pub(super) upgrade: bool,
    /// What makes the message ambiguous.
    pub(super) ambiguity: Option<Opaque>,
}

/// The Transfer-Encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Transfer {
    #[default]
    None,
    /// Chunked is the last coding, and nowhere else.
    Chunked,
    /// Any other.
    Unknown,
}

impl<'a> Facts<'a> {
    /// Of all fields of a head.
    pub(super) fn of(fields: &[httparse::Header<'a>]) -> Facts<'a> {
        let mut facts = Facts::default();
        for field in fields {
            let is = |name: &str| field.name.eq_ignore_ascii_case(name);
            // Most fields are none of these: the length tells.
            match field.name.len() {
                4 if is("host") => facts.on_host(field.value),
                7 if is("upgrade") => facts.upgrade = true,
                10 if is("connection") => facts.on_connection(field.value),
                14 if is("content-length") => facts.on_content_length(field.value),
                17 if is("transfer-encoding") => facts.on_transfer_encoding(field.value),
                _ => {}
            }
        }
        // RFC 9112 §6.3, rule 3: both may be an attempt at smuggling.
        if facts.content_length.is_some() && facts.transfer != Transfer::None {
            facts.ambiguity = Some(Opaque::AmbiguousLength);
        }
        facts
    }

    /// RFC 9112 §3.2: a request with several is answered by 400.
    fn on_host(&mut self, value: &'a [u8]) {
        if self.host.replace(value).is_some() {
            self.ambiguity.get_or_insert(Opaque::AmbiguousHost);
        }
    }

    fn on_connection(&mut self, value: &[u8]) {
        for option in elements(value) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    /// RFC 9112 §6.3, rule 5, without the leave to take equal repetitions for one.
    fn on_content_length(&mut self, value: &[u8]) {
        let length = decimal(value);
        if length.is_none() || self.content_length.is_some() {
            self.ambiguity = Some(Opaque::AmbiguousLength);
        }
        self.content_length = Some(length.unwrap_or(0));
    }

    /// RFC 9112 §6.1; an empty element or chunked before another coding is not ours to interpret.
    fn on_transfer_encoding(&mut self, value: &[u8]) {
        for coding in elements(value) {
            let is_chunked = coding.eq_ignore_ascii_case(b"chunked");
            if self.transfer == Transfer::Chunked || coding.is_empty() {
                self.ambiguity = Some(Opaque::AmbiguousLength);
            }
            self.transfer = if is_chunked { Transfer::Chunked } else { Transfer::Unknown };
        }
    }
}

/// The elements of a list (RFC 9110 §5.6.1), without the whitespace around them.
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

/// 1*DIGIT that fit 64 bits.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |sum, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// What is left of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// So many bytes.
    Length(u64),
    /// RFC 9112 §7.1.
    Chunked(Chunked),
    /// All that comes.
    UntilClose,
}

impl Body {
    /// Takes the body's bytes off `piece`; true when it is over.
    pub(super) fn on_bytes(&mut self, piece: &mut &[u8], limit: usize) -> Result<bool, Opaque> {
        match self {
            Body::Length(left) => {
                *left -= take(piece, *left);
                Ok(*left == 0)
            }
            Body::Chunked(chunked) => chunked.on_bytes(piece, limit),
            Body::UntilClose => {
                *piece = &[];
                Ok(false)
            }
        }
    }

    /// So many of the next bytes need not be shown: [`Body::skip`] does as well.
    pub(super) fn unread(&self) -> u64 {
        match self {
            Body::Length(left) | Body::Chunked(Chunked { part: Part::Data, size: left, .. }) => *left,
            Body::Chunked(_) => 0,
            Body::UntilClose => u64::MAX,
        }
    }

    /// Passes bytes that are not shown; true when the body is over with them.
    pub(super) fn skip(&mut self, len: u64) -> Result<bool, Opaque> {
        let left = match self {
            Body::Length(left) => left,
            Body::Chunked(Chunked { part: Part::Data, size, .. }) => size,
            Body::Chunked(_) if len == 0 => return Ok(false),
            Body::Chunked(_) => return Err(Opaque::Unseen),
            Body::UntilClose => return Ok(false),
        };
        *left = left.checked_sub(len).ok_or(Opaque::Unseen)?;
        Ok(*self == Body::Length(0))
    }
}

fn take(piece: &mut &[u8], most: u64) -> u64 {
    let len = piece.len().min(usize::try_from(most).unwrap_or(usize::MAX));
    *piece = &piece[len..];
    len as u64
}

/// Within a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunked {
    part: Part,
    /// Of the chunk: what was read of its size, then what is left of its data.
    size: u64,
    /// Digits of the size, then bytes of extensions and trailer fields since the last data.
    overhead: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Size,
    /// Whitespace behind the size: bad (RFC 9112 §7.1.1) and common, and read by all alike.
    Padding,
    Extension,
    SizeLineFeed,
    Data,
    DataReturn,
    DataLineFeed,
    /// At the start of a line of the trailer section.
    Trailer,
    TrailerLine,
    TrailerLineFeed,
    LastLineFeed,
}

/// Hexadecimal digits of 64 bits.
const MAX_SIZE_DIGITS: usize = 16;

impl Chunked {
    /// Before the first chunk.
    pub(super) const START: Chunked = Chunked { part: Part::Size, size: 0, overhead: 0 };

    fn on_bytes(&mut self, piece: &mut &[u8], limit: usize) -> Result<bool, Opaque> {
        loop {
            match self.part {
                Part::Data => {
                    self.size -= take(piece, self.size);
                    if self.size > 0 {
                        return Ok(false);
                    }
                    self.part = Part::DataReturn;
                }
                Part::Extension | Part::TrailerLine => self.pass_text(piece, limit)?,
                _ => {}
            }
            let Some((&byte, rest)) = piece.split_first() else { return Ok(false) };
            *piece = rest;
            if self.part == Part::LastLineFeed && byte == b'\n' {
                return Ok(true);
            }
            self.part = self.step(byte)?;
        }
    }

    /// Up to the end of a line, whose text means nothing to us.
    fn pass_text(&mut self, piece: &mut &[u8], limit: usize) -> Result<(), Opaque> {
        let text = memchr::memchr2(b'\r', b'\n', piece).unwrap_or(piece.len());
        if self.overhead + text > limit {
            return Err(Opaque::HeadTooLong);
        }
        self.overhead += text;
        *piece = &piece[text..];
        Ok(())
    }

    /// The part after this byte.
    fn step(&mut self, byte: u8) -> Result<Part, Opaque> {
        let has_size = self.overhead > 0;
        Ok(match (self.part, byte) {
            (Part::Size, _) if byte.is_ascii_hexdigit() && self.overhead < MAX_SIZE_DIGITS => {
                self.size = self.size << 4 | u64::from((byte as char).to_digit(16).unwrap_or(0));
                self.overhead += 1;
                Part::Size
            }
            (Part::Size, b' ' | b'\t') if has_size => Part::Padding,
            (Part::Padding, b' ' | b'\t') => Part::Padding,
            (Part::Size, b';') if has_size => Part::Extension,
            (Part::Padding, b';') => Part::Extension,
            (Part::Size, b'\r') if has_size => Part::SizeLineFeed,
            (Part::Padding | Part::Extension, b'\r') => Part::SizeLineFeed,
            (Part::SizeLineFeed, b'\n') => {
                self.overhead = 0;
                if self.size == 0 { Part::Trailer } else { Part::Data }
            }
            (Part::DataReturn, b'\r') => Part::DataLineFeed,
            (Part::DataLineFeed, b'\n') => {
                *self = Chunked::START;
                Part::Size
            }
            (Part::Trailer, b'\r') => Part::LastLineFeed,
            (Part::TrailerLine, b'\r') => Part::TrailerLineFeed,
            (Part::TrailerLineFeed, b'\n') => Part::Trailer,
            (Part::Trailer, _) if byte != b'\n' => {
                self.overhead += 1;
                Part::TrailerLine
            }
            _ => return Err(Opaque::MalformedChunk),
        })
    }
}
