//! Spaced acknowledgments: a burst that came over a long path is told in parts, a millisecond apart.
//!
//! ```text
//!   came       ▌▌▌▌▌▌▌▌▌▌▌▌▌▌▌▌
//!   told       ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪      within a quarter of the round trip
//! ```
//! What one acknowledgment tells of, a sender that does not pace sends as one burst, and where no queue spreads it, it
//! comes as one again: once together, always together. A policer drops what its bucket cannot hold of it, however low
//! the rate. So the receiver spreads it (C. Partridge, *ACK Spacing for High Delay-Bandwidth Paths with Insufficient
//! Buffering*, 1998). What came spread is told at once, as ever, so this happens a few times in a transfer's life.
//!
//! Not while something is missing (each acknowledgment tells of it), at the start of a connection or of what the program
//! wants told quickly, or after a FIN; and what leaves with data of ours tells of everything.

use std::time::Duration;

use scoutline_base::Time;
use scoutline_wire::tcp::Header;

use super::{Connection, Owed, State};
use crate::tcp::timers::Timer;

/// Between parts: the tick of the engine's wheel.
const SPACE: Duration = Duration::from_millis(1);
/// Full segments that are a burst.
const BURST: u64 = 8;
/// Most parts: nothing waits longer than a delayed acknowledgment does.
const MOST_PARTS: u8 = 40;

impl Connection {
    /// What the acknowledgment that is about to leave had better not tell of: bytes, and the parts in which they are
    /// told by others.
    pub(super) fn told_later(&self) -> Option<(u32, u8)> {
        let receive = &self.receive;
        let came = receive.next - receive.acknowledged;
        let full = u64::from(receive.segment);
        if !self.is_long || (self.parts == 0 && came < BURST * full) {
            return None;
        }
        let is_told = receive.unordered.as_ref().is_none_or(|unordered| unordered.is_told());
        let is_plain = is_told && receive.fin_end.is_none() && !self.fin_received;
        if !is_plain || receive.quick > 0 || receive.duplicates > 0 || self.state != State::Established {
            return None;
        }
        let parts = match self.parts {
            0 => (self.rtt.least()?.as_nanos() / 4 / SPACE.as_nanos()).min(MOST_PARTS.into()) as u8,
            left => left,
        };
        // RFC 5681 §4.2: two segments are worth an acknowledgment.
        let part = came.div_ceil(u64::from(parts.max(1))).max(2 * full);
        let later = came.saturating_sub(part);
        // A lone last segment goes with the others.
        (later > full).then(|| (later as u32, parts - 1))
    }

    /// Takes these last bytes out of an acknowledgment of everything.
    pub(super) fn leave_for_later(&mut self, len: u32, parts: u8, header: &mut Header, now: Time) {
        self.parts = parts;
        self.owed = Owed::Part;
        self.receive.acknowledged -= u64::from(len);
        self.receive.unacknowledged = len;
        self.timers.arm(Timer::DelayedAck, now + SPACE);
        header.acknowledgment = header.acknowledgment.wrapping_sub(len);
        // The same right edge.
        let open =
            self.receive.edge.saturating_sub(self.receive.acknowledged) >> self.negotiated.receive_scale;
        header.window = open.min(u64::from(u16::MAX)) as u16;
    }
}
