//! Bulk and bursty senders, and their receiver: what the experiment `idle` loads a link with.
//!
//! ```text
//!   scoutline load send …                                    scoutline load receive …
//!   full:    as much as goes                     the link    throughput of each side, latency of each message,
//!   bursty:  10 ms in 100, paced  ── 3 flows ──► ═════════►  how long background comes in after a burst begins,
//!                                                            and how soon again after its end
//! ```
//! A stream or datagram is made of *messages* of one frame each, with a number and a time in front: when the message
//! was due, by the machine's monotonic clock, which hosts made of namespaces share. So what a sender could not send in
//! time counts as latency. Numbers that do not follow each other in a stream are errors.

mod receive;
mod send;

pub use receive::{BulkReport, ReceiveArguments, Side, receive};
pub use send::{SendArguments, SendReport, send};

use clap::ValueEnum;

/// How a sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Shape {
    /// TCP: whatever the sockets take. UDP: twice the link's rate, and what a socket refuses is dropped.
    Full,
    /// Evenly spaced messages at nine tenths of the link's rate for a tenth of the time; all of them are sent.
    Bursty,
}

/// Which protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Protocol {
    /// A stream.
    Tcp,
    /// Datagrams.
    Udp,
}

impl Protocol {
    /// Bytes of a message, the payload of one frame, on a link with this MTU. TCP's with timestamps; UDP's leaves some
    /// room.
    pub const fn message_len(self, mtu: usize) -> usize {
        match self {
            Protocol::Tcp => mtu - 52,
            Protocol::Udp => mtu - 100,
        }
    }

    /// Bytes of the frame of one message, as queueing disciplines count them: Ethernet, IP, TCP or UDP.
    pub const fn frame_len(self, mtu: usize) -> usize {
        let headers = match self {
            Protocol::Tcp => 14 + 20 + 32,
            Protocol::Udp => 14 + 20 + 8,
        };
        self.message_len(mtu) + headers
    }

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        }
    }
}

/// The MTU of a link of which nothing else is said.
pub const ETHERNET_MTU: usize = 1500;

/// From one burst to the next, in nanoseconds (the paper's time quantum).
pub const PERIOD_NS: u64 = 100_000_000;
/// How long a burst is.
pub const BURST_NS: u64 = 10_000_000;

/// The longest that a bursty sender or the receiver sleeps at a time. An idle core of a virtual machine takes 2 to 4 ms
/// to wake from a long sleep (measured here), which would be a burst's whole latency; from short ones, some 50 µs.
const NAP_NS: u64 = 100_000;

const MAGIC: u64 = 0x5c07_11e0_b01d_face;

/// What stands in front of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    /// Counts the messages of one flow.
    number: u64,
    /// When it was due, in nanoseconds of the monotonic clock.
    due_ns: u64,
}

impl Stamp {
    fn write(self, message: &mut [u8]) {
        message[..8].copy_from_slice(&MAGIC.to_le_bytes());
        message[8..16].copy_from_slice(&self.number.to_le_bytes());
        message[16..24].copy_from_slice(&self.due_ns.to_le_bytes());
    }

    /// `None` when this is no message of ours.
    fn read(message: &[u8]) -> Option<Stamp> {
        let word = |at: usize| Some(u64::from_le_bytes(*message.get(at..at + 8)?.first_chunk()?));
        (word(0)? == MAGIC).then_some(())?;
        Some(Stamp { number: word(8)?, due_ns: word(16)? })
    }
}

#[cfg(test)]
mod tests;
