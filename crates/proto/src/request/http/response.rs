//! Responses: their status, and where they begin and end.

use std::mem::MaybeUninit;

use super::framing::{Body, Chunked, Facts, Transfer};
use super::head::Head;
use super::reader::Reader;
use super::{MAX_FIELDS, Phase, RequestKind, Span, State};
use crate::request::{Limits, Opaque};

/// Reads the responses of one connection.
///
/// It must be told what kind of request each response answers: the framing depends on it.
#[derive(Clone, Debug)]
pub struct ResponseReader {
    reader: Reader,
    /// The response that is being read is an interim one.
    is_interim: bool,
}

/// What a piece brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEvent {
    /// A head is complete.
    Head {
        /// Position of the response's first byte.
        first: u64,
        /// 100 to 999.
        status: u16,
    },
    /// An interim response (1xx) is complete: the request has no answer yet.
    Interim(Span),
    /// A final response is complete: what follows answers the next request.
    End(Span),
}

impl ResponseReader {
    /// At the start of a stream.
    pub fn new(limits: &Limits) -> ResponseReader {
        ResponseReader { reader: Reader::new(limits), is_interim: false }
    }

    /// Takes bytes off `piece` up to the next event. To be called until it gives `None`: then all were taken.
    ///
    /// `answers` is the kind of the oldest request without a final answer, before each call anew; `None` when there
    /// is none.
    pub fn on_bytes(&mut self, piece: &mut &[u8], answers: Option<RequestKind>) -> Option<ResponseEvent> {
        self.reader.head.release();
        match self.reader.phase {
            Phase::Head => self.on_head(piece, answers),
            Phase::Body(_) => {
                let over = self.reader.on_body(piece)?;
                Some(self.on_end(over))
            }
            Phase::Waiting | Phase::Last | Phase::Opaque(_) => {
                *piece = &[];
                None
            }
        }
    }

    /// Passes bytes that cannot be shown (sendfile). They must belong to the body that is being read.
    pub fn skip(&mut self, len: u64) -> Option<ResponseEvent> {
        let over = self.reader.skip(len)?;
        Some(self.on_end(over))
    }

    /// What it is about; never [`State::Waiting`] nor [`State::Last`].
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

    fn on_head(&mut self, piece: &mut &[u8], answers: Option<RequestKind>) -> Option<ResponseEvent> {
        if piece.is_empty() {
            return None;
        }
        let reader = &mut self.reader;
        let Some(kind) = answers else {
            reader.give_up(Opaque::Unsolicited, piece);
            return None;
        };
        if reader.head.is_empty() {
            reader.first = reader.position;
        }
        let before = piece.len();
        let scanned = reader.head.scan(piece, reader.head_bytes, judge);
        reader.position = reader.position.saturating_add((before - piece.len()) as u64);
        let read = match scanned {
            Ok(None) => return None,
            Ok(Some(head)) => read(head, kind),
            Err(reason) => Err(reason),
        };
        match read {
            Ok((status, phase)) => {
                reader.phase = phase;
                self.is_interim = status < 200;
                Some(ResponseEvent::Head { first: reader.first, status })
            }
            Err(reason) => {
                reader.give_up(reason, piece);
                None
            }
        }
    }

    /// The response is complete.
    fn on_end(&mut self, span: Span) -> ResponseEvent {
        self.reader.phase = Phase::Head;
        if self.is_interim { ResponseEvent::Interim(span) } else { ResponseEvent::End(span) }
    }
}

/// Is this the first line of a response that we read?
fn judge(line: &[u8]) -> Result<(), Opaque> {
    match line {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1', b' ', ..] => Ok(()),
        _ => Err(Opaque::NotHttp),
    }
}

fn read(head: Head<'_>, kind: RequestKind) -> Result<(u16, Phase), Opaque> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut parsed, head.bytes, &mut fields) {
        Ok(httparse::Status::Complete(len)) if len == head.bytes.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Opaque::TooManyFields),
        _ => return Err(Opaque::Malformed),
    }
    let (Some(status @ 100..), Some(minor_version)) = (parsed.code, parsed.version) else {
        return Err(Opaque::Malformed);
    };
    let phase = match body(&Facts::of(parsed.headers), status, minor_version, kind) {
        _ if head.has_bare_line_feed => Phase::Opaque(Opaque::BareLineFeed),
        Ok(body) => Phase::Body(body),
        Err(reason) => Phase::Opaque(reason),
    };
    Ok((status, phase))
}

/// RFC 9112 §6.3, for responses.
fn body(facts: &Facts<'_>, status: u16, minor_version: u8, kind: RequestKind) -> Result<Body, Opaque> {
    match (status, kind) {
        // RFC 9110 §15.2.2, §9.3.6.
        (101, _) | (200..300, RequestKind::Connect) => return Err(Opaque::Switched),
        // Rule 1, whatever the fields say.
        (100..200 | 204 | 304, _) | (_, RequestKind::Head) => return Ok(Body::Length(0)),
        _ => {}
    }
    // Several Host fields mean nothing in a response.
    if facts.ambiguity == Some(Opaque::AmbiguousLength) {
        return Err(Opaque::AmbiguousLength);
    }
    match (facts.transfer, facts.content_length) {
        (Transfer::Chunked, _) if minor_version > 0 => Ok(Body::Chunked(Chunked::START)),
        // RFC 9112 §6.1: in HTTP/1.0 the framing is faulty.
        (Transfer::Chunked, _) => Err(Opaque::AmbiguousLength),
        (Transfer::None, Some(length)) => Ok(Body::Length(length)),
        (Transfer::None, None) | (Transfer::Unknown, _) => Ok(Body::UntilClose),
    }
}
