//! RACK: a segment is lost when one that was sent later has arrived, and time enough has passed for reordering
//! (RFC 8985 §6).
//!
//! The detector says which pieces of the [`Flight`] are lost, and when to look again. The reordering window is nothing
//! until reordering is seen, then a fourth of the least round trip, and grows with each round in which the peer told of
//! duplicates (DSACK), for sixteen recoveries.

use std::time::Duration;

use scoutline_base::Time;

use crate::tcp::flight::{Delivered, Flight, Piece};

/// RFC 8985 §6.2 step 4: so many recoveries without DSACK bring the window back to its start.
const PERSISTENCE: u8 = 16;
/// Beyond this the cap, a smoothed round trip, is reached.
const MAX_MULTIPLIER: u8 = 16;

/// What bounds the reordering window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// The least round trip seen.
    pub least: Duration,
    /// The smoothed one.
    pub smoothed: Duration,
    /// The age of the timestamp that the peer echoed, if it did.
    pub echo_age: Option<Duration>,
}

/// The detector.
#[derive(Clone, Debug, Default)]
pub struct Rack {
    /// RACK.xmit_ts: when the last-sent of all that has arrived was sent.
    at: Time,
    /// RACK.end_seq: its end.
    end: u64,
    /// RACK.rtt: the round trip that it took, in nanoseconds.
    rtt_ns: u64,
    /// RACK.fack: the highest that has arrived.
    highest: u64,
    /// What was seen of reordering. Most connections never see any.
    reordered: Option<Box<Reordered>>,
}

/// What was seen of reordering, and what the window became by it.
#[derive(Clone, Copy, Debug, Default)]
struct Reordered {
    /// RACK.reordering_seen, and how often.
    count: u32,
    /// By how many units, at most.
    degree: u32,
    /// RACK.reo_wnd_mult less one.
    more: u8,
    /// RACK.reo_wnd_persist
    persist: u8,
    /// RACK.dsack_round: until this is acknowledged, further DSACKs count as one.
    round: u64,
}

impl Rack {
    /// By how many units something has arrived late, at most.
    pub fn degree(&self) -> u32 {
        self.reordered().degree
    }

    /// Reordering was seen on this connection.
    pub fn is_reordering(&self) -> bool {
        self.reorderings() > 0
    }

    /// How often (`tcpi_reord_seen`).
    pub fn reorderings(&self) -> u32 {
        self.reordered().count
    }

    fn reordered(&self) -> Reordered {
        self.reordered.as_deref().copied().unwrap_or_default()
    }

    /// Reordering made us send in vain.
    pub fn set_reordering(&mut self) {
        let reordered = self.reordered.get_or_insert_default();
        reordered.count = reordered.count.saturating_add(1);
    }

    fn rtt(&self) -> Duration {
        Duration::from_nanos(self.rtt_ns)
    }

    /// RACK.reo_wnd_mult.
    pub(super) fn multiplier(&self) -> u32 {
        u32::from(self.reordered().more) + 1
    }

    /// The common case of [`Rack::on_delivered`]: all up to `end`, the last of it sent at `at`.
    #[inline]
    pub fn on_acknowledged(&mut self, at: Time, end: u64, now: Time) {
        self.at = at;
        self.end = end;
        self.rtt_ns = now.since(at).as_nanos() as u64;
    }

    /// RFC 8985 §6.2, steps 2 and 3.
    pub fn on_delivered(&mut self, delivered: &Delivered, times: &Times, now: Time) {
        // In the order of the stream, for the round trip is that of the last.
        let mut newest = [delivered.newest, delivered.newest_again];
        newest.sort_unstable_by_key(|piece| piece.map(|piece| piece.end));
        for piece in newest.into_iter().flatten() {
            if piece.again && is_answer_to_an_earlier_copy(&piece, self.patience(times), times, now) {
                continue;
            }
            self.rtt_ns = now.since(piece.at).as_nanos() as u64;
            if piece.is_sent_after(self.at, self.end) {
                self.at = piece.at;
                self.end = piece.end;
            }
        }
        if let Some((start, _)) = delivered.first.filter(|&(_, end)| end < self.highest) {
            self.set_reordering();
            let degree = (self.highest - start).min(u64::from(u32::MAX)) as u32;
            let reordered = self.reordered.get_or_insert_default();
            reordered.degree = reordered.degree.max(degree);
        }
        let highest =
            [delivered.newest, delivered.newest_again].into_iter().flatten().map(|piece| piece.end).max();
        self.highest = self.highest.max(highest.unwrap_or(0));
    }

    /// RFC 8985 §6.2 step 4: the peer got something twice, with all up to `una` acknowledged and `next` the next to be
    /// sent.
    pub fn on_duplicate(&mut self, una: u64, next: u64) {
        let reordered = self.reordered.get_or_insert_default();
        if una >= reordered.round {
            reordered.round = next;
            reordered.more = (reordered.more + 1).min(MAX_MULTIPLIER);
            reordered.persist = PERSISTENCE;
        }
    }

    /// A recovery is over.
    pub fn on_recovered(&mut self) {
        if let Some(reordered) = &mut self.reordered {
            reordered.persist = reordered.persist.saturating_sub(1);
            if reordered.persist == 0 {
                reordered.more = 0;
            }
        }
    }

    /// The reordering window (RFC 8985 §6.2 step 4). `evident`: in recovery, or enough was selectively acknowledged
    /// that without reordering the loss is certain.
    fn window(&self, evident: bool, times: &Times) -> Duration {
        if !self.is_reordering() && evident {
            return Duration::ZERO;
        }
        (times.least / 4 * self.multiplier()).min(times.smoothed)
    }

    /// The same where reordering was seen, up to half of the least round trip, and nothing where it was not.
    pub fn patience(&self, times: &Times) -> Duration {
        if self.is_reordering() { self.window(true, times).min(times.least / 2) } else { Duration::ZERO }
    }

    /// RFC 8985 §6.2 step 5: takes what is lost for lost. Whether anything was, and when to look again.
    pub fn detect(
        &self,
        flight: &mut Flight,
        evident: bool,
        times: &Times,
        now: Time,
    ) -> (bool, Option<Time>) {
        let patience = self.rtt() + self.window(evident, times);
        let mut again_at = None;
        let found = flight.lose_where(|piece| {
            if piece.is_sent_after(self.at, self.end) {
                // What follows and was sent once was sent later still; what was sent again may have been sent before.
                return if piece.again || piece.at == self.at { Some(false) } else { None };
            }
            let due = piece.at + patience;
            if due > now {
                again_at = again_at.max(Some(due));
            }
            Some(due <= now)
        });
        (found, again_at)
    }

    /// RFC 8985 §6.3: which pieces a time-out takes for lost beside the first.
    pub fn on_timeout(&self, flight: &mut Flight, times: &Times, now: Time) {
        let patience = self.rtt().max(times.smoothed) + self.window(false, times);
        flight.lose_where(|piece| Some(piece.at + patience <= now));
    }
}

/// RFC 8985 §6.2 step 2: the echo is older than what was sent last, which may have borne a timestamp by `patience` older than
/// that (an earlier copy is a round trip older), or no round trip is so short.
fn is_answer_to_an_earlier_copy(piece: &Piece, patience: Duration, times: &Times, now: Time) -> bool {
    // Timestamps count milliseconds.
    let age = Duration::from_millis(now.as_millis() - piece.at.as_millis().min(now.as_millis()));
    times.echo_age.is_some_and(|echo| echo > age + patience) || now.since(piece.at) < times.least
}

#[cfg(test)]
mod tests;
