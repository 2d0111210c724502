//! What a connection asks for, read from its bytes as they pass: the class follows the request (DESIGN.md §6).
//!
//! An [`Exchange`] stands beside one TCP connection of a server whose class may depend on what is asked. It sees
//! the bytes that come in and those that the program writes, in order, changes none of them, and says when the
//! connection's class changes:
//!
//! ```text
//! inward  ─► detect ─┬─ TLS:  ClientHello ─► server name ───────┐
//!                    └─ HTTP: RequestReader ─► head ────────────┤
//!                             │ method, asks to switch          ▼
//! outward ─────────────────► ResponseReader ─► answered ─► Exchange ─► class     Matcher: which class is it
//! ```
//!
//! It only looks on, so it never repairs: where two parsers could read the bytes in two ways, it stops looking
//! ([`Opaque`] says why), and the class stays as it was. Bytes are hostile: every function is total, work is linear
//! in the bytes, and memory is bounded by [`Limits`]. Between requests nothing is held.
//!
//! Left out on purpose: HTTP/2 and what TLS hides, HTTP/0.9, and the programs' own leniencies. Obsolete line folding
//! and bare line feeds are legal to take (RFC 9112 §2.2, §5.2), but not everybody takes them alike.

pub mod exchange;
pub mod http;
pub mod matcher;
pub mod tls;

pub use exchange::Exchange;
pub use matcher::Matcher;

/// What one connection may make us hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a message's head; also of a chunk's extensions, and of a trailer section.
    pub head_bytes: usize,
    /// Bytes of a TLS ClientHello.
    pub hello_bytes: usize,
    /// Requests that were read and not answered.
    pub outstanding: usize,
    /// Interim responses (1xx) to one request.
    pub interim: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // nginx takes 8 KiB a line and 32 KiB in all, Apache 8 KiB a line; browsers stay below 4 KiB.
            head_bytes: 16 << 10,
            // With post-quantum key shares about 2 KiB; with a session ticket of the largest sort, below 8.
            hello_bytes: 16 << 10,
            // A receive buffer of 64 KiB full of the shortest requests.
            outstanding: 1024,
            // 100, a few 103 and a 102 now and then are what there is; RFC 9110 §15.2 sets no limit.
            interim: 64,
        }
    }
}

/// Why a connection is not looked into any more. Its class stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Opaque {
    /// The ClientHello has been read; the rest is encrypted.
    #[error("encrypted")]
    Encrypted,
    /// The ClientHello gave no server name.
    #[error("no TLS server name: {0}")]
    Unnamed(tls::NoName),
    /// A tunnel or another protocol was agreed on (CONNECT, Upgrade).
    #[error("the connection switched to another protocol")]
    Switched,
    /// HTTP/2 without TLS (RFC 9113 §3.4).
    #[error("HTTP/2")]
    Http2,
    /// Neither TLS nor HTTP/1.0 or 1.1.
    #[error("not HTTP/1")]
    NotHttp,
    /// The server spoke without having been asked.
    #[error("bytes of the server that answer no request")]
    Unsolicited,
    /// Bytes were skipped that decide where the next message begins.
    #[error("bytes were not shown that frame messages")]
    Unseen,
    /// More bytes than [`Limits::head_bytes`] in a head, an extension or a trailer section.
    #[error("head too long")]
    HeadTooLong,
    /// More fields than [`http::MAX_FIELDS`].
    #[error("too many fields")]
    TooManyFields,
    /// More requests than [`Limits::outstanding`].
    #[error("too many outstanding requests")]
    TooManyOutstanding,
    /// More interim responses to a request than [`Limits::interim`].
    #[error("too many interim responses")]
    TooManyInterim,
    /// A head that RFC 9112 does not allow; also obsolete line folding, and whitespace before a colon.
    #[error("malformed head")]
    Malformed,
    /// A line of a head that ends without carriage return.
    #[error("a line ends without carriage return")]
    BareLineFeed,
    /// Several Host fields, or one that contradicts itself.
    #[error("more than one host")]
    AmbiguousHost,
    /// A body whose length can be read in two ways (RFC 9112 §6.3).
    #[error("ambiguous body length")]
    AmbiguousLength,
    /// A chunk that RFC 9112 §7.1 does not allow.
    #[error("malformed chunk")]
    MalformedChunk,
    /// Bytes behind a request to switch protocols, before its answer: whose they are is not decided.
    #[error("bytes before a switch of protocols was answered")]
    EarlyBytes,
}

impl Opaque {
    /// True when a client can bring this about as it likes, so that the class was, perhaps, left or kept on purpose:
    /// a caller that distrusts clients goes back to the class that the connection had before it was looked into.
    pub fn is_suspect(self) -> bool {
        !matches!(
            self,
            Opaque::Encrypted | Opaque::Unnamed(_) | Opaque::Switched | Opaque::Unsolicited | Opaque::Unseen
        )
    }
}
