//! HTTP/1.0 and 1.1 on a stream: heads, and where each message begins and ends (RFC 9112, RFC 9110).
//!
//! ```text
//!            blank line                     body read
//!   Head ───────────────► Body ─────────────────────────► Head
//!     │                    │        asked to switch
//!     │                    ├────────────────────────────► Waiting ── answered ──► Head     (requests)
//!     │                    │        last of the connection
//!     │                    └────────────────────────────► Last                             (requests)
//!     └── does not parse, or ambiguous ─► Opaque
//! ```
//!
//! Both readers are pulled: `on_bytes` takes from the front of a piece what it needs up to the next event. The
//! result does not depend on where the stream is cut.
//!
//! `httparse` judges the heads: names, values, line ends. What it tolerates and we do not (bare line feeds) is seen
//! while the end of the head is looked for.

mod framing;
mod head;
mod reader;
mod request;
mod response;

pub use request::{Fields, Request, RequestEvent, RequestKind, RequestReader};
pub use response::{ResponseEvent, ResponseReader};

use super::Opaque;

/// Fields that a head may have. Apache's limit is 100.
pub const MAX_FIELDS: usize = 128;

/// Where a message stands in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Position of its first byte, from the start of the stream.
    pub first: u64,
    /// Position of its last byte.
    pub last: u64,
}

/// What a reader is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In a head, or before one.
    Head,
    /// In a body.
    Body,
    /// Behind a request to switch protocols that is not answered yet.
    Waiting,
    /// Behind the last request of the connection: what follows is nobody's.
    Last,
    /// It has given up.
    Opaque(Opaque),
}

/// The state, and what is left of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Head,
    Body(framing::Body),
    Waiting,
    Last,
    Opaque(Opaque),
}

impl Phase {
    fn state(self) -> State {
        match self {
            Phase::Head => State::Head,
            Phase::Body(_) => State::Body,
            Phase::Waiting => State::Waiting,
            Phase::Last => State::Last,
            Phase::Opaque(reason) => State::Opaque(reason),
        }
    }

    /// So many of the next bytes need not be shown.
    fn unread(self) -> u64 {
        match self {
            Phase::Head | Phase::Waiting => 0,
            Phase::Body(body) => body.unread(),
            Phase::Last | Phase::Opaque(_) => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests;
