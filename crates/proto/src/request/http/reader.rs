//! What reading requests and reading responses have in common: where the stream stands, and the way through bodies.

use super::head::HeadScanner;
use super::{Phase, Span, State};
use crate::request::{Limits, Opaque};

/// The stream of messages in one direction.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) head_bytes: usize,
    /// Of the next byte.
    pub(super) position: u64,
    /// Of the first byte of the message that is being read.
    pub(super) first: u64,
    pub(super) phase: Phase,
    pub(super) head: HeadScanner,
}

impl Reader {
    /// At the start of a stream.
    pub(super) fn new(limits: &Limits) -> Reader {
        Reader {
            head_bytes: limits.head_bytes,
            position: 0,
            first: 0,
            phase: Phase::Head,
            head: HeadScanner::default(),
        }
    }

    /// Goes on through a body; the message, when it is over. Its phase is the caller's to change then.
    pub(super) fn on_body(&mut self, piece: &mut &[u8]) -> Option<Span> {
        let Phase::Body(body) = &mut self.phase else { return None };
        let before = piece.len();
        let over = body.on_bytes(piece, self.head_bytes);
        self.position = self.position.saturating_add((before - piece.len()) as u64);
        self.after_body(over, piece)
    }

    /// Passes bytes that cannot be shown, and so must belong to the body that is being read.
    pub(super) fn skip(&mut self, len: u64) -> Option<Span> {
        self.head.release();
        let over = match &mut self.phase {
            Phase::Body(body) => body.skip(len),
            Phase::Head | Phase::Waiting if len > 0 => Err(Opaque::Unseen),
            _ => return None,
        };
        self.position = self.position.saturating_add(len);
        self.after_body(over, &mut &[][..])
    }

    fn after_body(&mut self, over: Result<bool, Opaque>, piece: &mut &[u8]) -> Option<Span> {
        match over {
            Ok(false) => None,
            Ok(true) => Some(Span { first: self.first, last: self.position.saturating_sub(1) }),
            Err(reason) => {
                self.give_up(reason, piece);
                None
            }
        }
    }

    /// Looks no more, whatever comes.
    pub(super) fn give_up(&mut self, reason: Opaque, piece: &mut &[u8]) {
        self.phase = Phase::Opaque(reason);
        *piece = &[];
    }

    pub(super) fn state(&self) -> State {
        self.phase.state()
    }

    pub(super) fn unread(&self) -> u64 {
        self.phase.unread()
    }

    pub(super) fn held(&self) -> usize {
        self.head.held()
    }
}
