//! Loss recovery: what counts as lost, what is in flight, what to send again.
//!
//! With SACK: RFC 6675 over a scoreboard of ranges. Without: NewReno (RFC 6582), duplicate acknowledgments standing
//! for one segment each that left the network (which is RFC 3042's limited transmit before recovery, and the
//! inflated window of RFC 5681 §3.2 within it). After a time-out: go back to the first unacknowledged byte.
//!
//! A recovery that proves spurious (Eifel, RFC 3522; or an acknowledgment that came sooner than any round trip) is
//! undone, and the degree of reordering that caused it becomes the new threshold.
//!
//! All positions here are sequence *units*: 0 is the SYN, 1 the first byte.

use std::ops::Range;
use std::time::Duration;

use scoutline_base::Time;

use crate::tcp::reassembly::Ranges;

/// RFC 5681 §3.2
const DUPLICATE_THRESHOLD: u32 = 3;
/// More reordering than this is taken for loss. Linux: `tcp_max_reordering`.
const MAX_DUPLICATE_THRESHOLD: u32 = 300;

/// What is going on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// No loss is known.
    #[default]
    Open,
    /// Fast recovery, until the recovery point is acknowledged.
    Fast,
    /// The retransmission timer expired; until all that was sent before is acknowledged.
    Loss,
}

/// What an acknowledgment of new data did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing special.
    Normal,
    /// Within fast recovery: more is missing (RFC 6582 §3.2 step 3, partial acknowledgment).
    Partial,
    /// Fast recovery is over.
    Recovered,
}

/// The first retransmission of an episode.
#[derive(Clone, Copy, Debug)]
struct First {
    at: Time,
    /// The timestamp it carried.
    timestamp: u32,
}

/// The state of recovery.
#[derive(Clone, Debug)]
pub struct Recovery {
    phase: Phase,
    /// Acknowledgments are selective.
    selective: bool,
    /// Duplicate acknowledgments (without SACK).
    duplicates: u32,
    /// Duplicates, or segments' worth of selectively acknowledged bytes, that mean loss.
    threshold: u32,
    /// RFC 6582 `recover`: all below was sent before the loss was found.
    point: u64,
    /// RFC 6675 `HighRxt`: what is missing below was sent again.
    retransmitted: u64,
    sacked: Ranges,
    first: Option<First>,
    /// No new data was acknowledged since the episode began.
    unanswered: bool,
}

impl Default for Recovery {
    fn default() -> Recovery {
        Recovery {
            phase: Phase::Open,
            selective: false,
            duplicates: 0,
            threshold: DUPLICATE_THRESHOLD,
            point: 0,
            retransmitted: 0,
            sacked: Ranges::default(),
            first: None,
            unanswered: false,
        }
    }
}

impl Recovery {
    /// Both ends agreed on SACK.
    pub fn set_selective(&mut self) {
        self.selective = true;
    }

    /// The phase.
    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// True when nothing is going on: no loss, no duplicate, nothing selectively acknowledged.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.phase == Phase::Open && self.duplicates == 0 && self.sacked.is_empty()
    }

    /// Duplicates that mean loss at present.
    pub fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Bytes that the peer holds out of order, as far as known.
    pub fn sacked(&self) -> u64 {
        self.sacked.count_within(0..u64::MAX)
    }

    /// Where `unit` is known to have arrived: the end of that range.
    pub fn arrived(&self, unit: u64) -> Option<u64> {
        self.sacked.containing(unit).map(|range| range.end)
    }

    /// The next unit after `unit` that is known to have arrived.
    pub fn next_arrived(&self, unit: u64) -> Option<u64> {
        self.sacked.following(unit).map(|range| range.start)
    }

    /// RFC 6675 `pipe`: bytes between `una` and `next` that are in the network.
    #[inline]
    pub fn in_flight(&self, una: u64, next: u64, segment: u32) -> u64 {
        let outstanding = next - una;
        if self.is_quiet() {
            return outstanding;
        }
        match (self.phase, self.selective) {
            (Phase::Fast, true) => {
                // Missing below the highest arrived is lost, unless it was sent again.
                let highest = self.sacked.highest().unwrap_or(una).clamp(una, next);
                let again = self.retransmitted.clamp(una, highest);
                (next - highest) + (again - una) - self.sacked.count_within(una..again)
            }
            (_, true) => outstanding - self.sacked.count_within(una..next),
            (Phase::Loss, false) => outstanding,
            // RFC 3042 and RFC 5681 §3.2 step 4: each duplicate tells of a segment that left the network.
            (Phase::Open | Phase::Fast, false) => {
                outstanding.saturating_sub(u64::from(self.duplicates) * u64::from(segment))
            }
        }
    }

    /// Takes a SACK block in units, already checked to lie within what was sent. True when it told anything new.
    pub fn on_block(&mut self, block: Range<u64>) -> bool {
        // A full scoreboard forgets: SACK is advice (RFC 2018 §8).
        self.sacked.insert(block).unwrap_or(false)
    }

    /// A duplicate acknowledgment came, or new SACK blocks. True when that means loss: see [`Recovery::enter`].
    pub fn on_duplicate(&mut self, una: u64, max: u64, segment: u32, more_to_send: bool) -> bool {
        self.duplicates = self.duplicates.saturating_add(1);
        // RFC 6582 §3.2 step 1: not for what was sent before an earlier recovery.
        if self.phase != Phase::Open || una < self.point || una == max {
            return false;
        }
        let mut threshold = self.threshold;
        if !more_to_send {
            // RFC 5827 §3: with little in flight and nothing new to send, three duplicates will never come.
            let segments = (max - una).div_ceil(u64::from(segment)).min(u64::from(u32::MAX)) as u32;
            threshold = threshold.min((segments - 1).max(1));
        }
        if self.selective {
            // RFC 6675 §4 IsLost: enough ranges, or enough bytes, above.
            let bytes = self.sacked.count_within(una..max);
            self.sacked.as_slice().len() >= threshold as usize
                || (bytes > 0 && bytes > u64::from(threshold - 1) * u64::from(segment))
        } else {
            self.duplicates >= threshold
        }
    }

    /// Begins fast recovery. What the last one sent again beyond its point (it repairs what was lost meanwhile) is
    /// still under way: it is not sent once more, and its acknowledgment does not show that the original arrived.
    pub fn enter(&mut self, una: u64, max: u64) {
        self.phase = Phase::Fast;
        self.point = max;
        self.first = None;
        self.unanswered = self.retransmitted <= una;
        self.retransmitted = self.retransmitted.max(una);
    }

    /// What fast recovery sends again next, at most `limit` units.
    pub fn next_lost(&self, una: u64, max: u64, segment: u32, limit: u64) -> Option<Range<u64>> {
        if self.phase != Phase::Fast || una >= max {
            return None;
        }
        let from = self.retransmitted.max(una);
        if self.selective && self.sacked.highest().is_some_and(|highest| from < highest) {
            let start = self.arrived(from).unwrap_or(from);
            let end = self.next_arrived(start)?;
            return Some(start..end.min(start + limit));
        }
        // RFC 6582 §3.2: the first segment, once, and again after each partial acknowledgment.
        (self.retransmitted <= una).then(|| una..(una + u64::from(segment).min(limit)).min(max))
    }

    /// What [`Recovery::next_lost`] (or a time-out) named up to `end` was sent at `now`, with this timestamp.
    pub fn on_retransmitted(&mut self, end: u64, now: Time, timestamp: u32) {
        self.retransmitted = self.retransmitted.max(end);
        if self.unanswered && self.first.is_none() {
            self.first = Some(First { at: now, timestamp });
        }
    }

    /// RFC 3522 §3.2: asked at each acknowledgment of new data, answered at the first of an episode. True when the
    /// original must have arrived: nothing was sent again yet, or the echo is older than the retransmission, or no
    /// round trip is so short.
    pub fn is_spurious(&mut self, now: Time, echo: Option<u32>, least_rtt: Option<Duration>) -> bool {
        if self.phase == Phase::Open || !std::mem::take(&mut self.unanswered) {
            return false;
        }
        let Some(first) = self.first.take() else { return true };
        let older = echo.is_some_and(|echo| (echo.wrapping_sub(first.timestamp) as i32) < 0);
        let sooner = least_rtt.is_some_and(|least| now.since(first.at) * 2 < least);
        older || sooner
    }

    /// Ends an episode that was no loss, and learns how much reordering there is.
    pub fn undo(&mut self, segment: u32) {
        let degree = (self.sacked() / u64::from(segment)).min(u64::from(u32::MAX)) as u32;
        let degree = degree.max(self.duplicates).saturating_add(1);
        self.threshold = self.threshold.max(degree.min(MAX_DUPLICATE_THRESHOLD));
        self.phase = Phase::Open;
        self.duplicates = 0;
        // What was sent again in vain says nothing about the next episode.
        self.retransmitted = 0;
    }

    /// The peer acknowledged `bytes` of new data, up to `una`.
    pub fn on_acknowledged(&mut self, una: u64, bytes: u64, segment: u32) -> Progress {
        if !self.sacked.is_empty() {
            self.sacked.trim_below(una);
        }
        if self.phase == Phase::Open {
            self.duplicates = 0;
            return Progress::Normal;
        }
        if una >= self.point {
            let was = self.phase;
            self.phase = Phase::Open;
            self.duplicates = 0;
            return if was == Phase::Fast { Progress::Recovered } else { Progress::Normal };
        }
        if self.phase == Phase::Loss {
            self.duplicates = 0;
            return Progress::Normal;
        }
        if !self.selective {
            // RFC 6582 §3.2 step 3: deflate by what was acknowledged, add back one segment.
            let segments = (bytes / u64::from(segment)).min(u64::from(u32::MAX)) as u32;
            self.duplicates = self.duplicates.saturating_sub(segments).saturating_add(1);
            self.retransmitted = una;
        }
        Progress::Partial
    }

    /// The retransmission timer expired: all up to `max` is sent again.
    pub fn on_timeout(&mut self, una: u64, max: u64) {
        if self.phase != Phase::Loss {
            self.first = None;
            self.unanswered = true;
        }
        self.phase = Phase::Loss;
        self.point = max;
        self.retransmitted = una;
        self.duplicates = 0;
        self.threshold = DUPLICATE_THRESHOLD;
        // RFC 2018 §8: the peer may have dropped what it reported.
        self.sacked.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u32 = 1000;

    fn reno() -> Recovery {
        Recovery::default()
    }

    fn selective() -> Recovery {
        let mut recovery = Recovery::default();
        recovery.set_selective();
        recovery
    }

    #[test]
    fn third_duplicate_enters_and_head_is_sent_once_per_partial_acknowledgment() {
        let mut recovery = reno();
        let (una, max) = (1, 10_001);
        assert!(!recovery.on_duplicate(una, max, SEGMENT, true));
        assert_eq!(recovery.in_flight(una, max, SEGMENT), 9_000, "limited transmit");
        assert!(!recovery.on_duplicate(una, max, SEGMENT, true));
        assert!(recovery.on_duplicate(una, max, SEGMENT, true));
        recovery.enter(una, max);
        assert_eq!(recovery.next_lost(una, max, SEGMENT, 9_999), Some(1..1_001));
        recovery.on_retransmitted(1_001, Time::ZERO, 0);
        assert_eq!(recovery.next_lost(una, max, SEGMENT, 9_999), None);
        assert_eq!(recovery.on_acknowledged(3_001, 3_000, SEGMENT), Progress::Partial);
        assert_eq!(recovery.next_lost(3_001, max, SEGMENT, 9_999), Some(3_001..4_001));
        assert_eq!(recovery.on_acknowledged(10_001, 7_000, SEGMENT), Progress::Recovered);
        assert!(recovery.is_quiet());
    }

    #[test]
    fn few_segments_need_fewer_duplicates_when_nothing_more_comes() {
        let mut recovery = reno();
        assert!(!recovery.on_duplicate(1, 2_001, SEGMENT, true));
        let mut recovery = reno();
        assert!(recovery.on_duplicate(1, 2_001, SEGMENT, false), "two segments: one duplicate");
    }

    #[test]
    fn sack_finds_every_hole_and_counts_the_pipe() {
        let mut recovery = selective();
        let (una, max) = (1, 10_001);
        assert!(recovery.on_block(2_001..3_001));
        assert!(!recovery.on_duplicate(una, max, SEGMENT, true));
        assert!(recovery.on_block(5_001..8_001));
        assert!(!recovery.on_block(5_001..8_001));
        assert!(recovery.on_duplicate(una, max, SEGMENT, true));
        recovery.enter(una, max);
        assert_eq!(recovery.in_flight(una, max, SEGMENT), 2_000, "above the highest only");
        assert_eq!(recovery.next_lost(una, max, SEGMENT, 65_000), Some(1..2_001));
        recovery.on_retransmitted(2_001, Time::ZERO, 0);
        assert_eq!(recovery.in_flight(una, max, SEGMENT), 4_000);
        assert_eq!(recovery.next_lost(una, max, SEGMENT, 1_000), Some(3_001..4_001));
        recovery.on_retransmitted(5_001, Time::ZERO, 0);
        assert_eq!(recovery.next_lost(una, max, SEGMENT, 65_000), None);
        assert_eq!(recovery.in_flight(una, max, SEGMENT), 6_000);
        assert_eq!(recovery.on_acknowledged(8_001, 8_000, SEGMENT), Progress::Partial);
        assert_eq!(recovery.next_lost(8_001, max, SEGMENT, 65_000), Some(8_001..9_001), "the head");
    }

    #[test]
    fn what_was_sent_again_stays_so_into_the_next_recovery() {
        let mut recovery = selective();
        recovery.on_block(2_001..6_001);
        recovery.enter(1, 6_001);
        // Beyond the point, 7,001 is lost too and repaired with the rest.
        recovery.on_block(8_001..11_001);
        for end in [2_001, 8_001] {
            recovery.on_retransmitted(end, Time::from_millis(10), 500);
        }
        assert!(!recovery.is_spurious(Time::from_millis(110), Some(500), None));
        assert_eq!(recovery.on_acknowledged(6_001, 6_000, SEGMENT), Progress::Recovered);
        assert!(recovery.on_duplicate(6_001, 11_001, SEGMENT, true), "a loss after the first was found");
        recovery.enter(6_001, 11_001);
        assert_eq!(recovery.next_lost(6_001, 11_001, SEGMENT, 9_999), None, "sent again a moment ago");
        assert!(!recovery.is_spurious(Time::from_millis(110), Some(500), None), "the first repair arrived");
        recovery.on_block(12_001..13_001);
        assert_eq!(recovery.next_lost(6_001, 13_001, SEGMENT, 9_999), Some(11_001..12_001));
    }

    #[test]
    fn eifel_undoes_and_raises_the_threshold() {
        let mut recovery = reno();
        for _ in 0..5 {
            recovery.on_duplicate(1, 10_001, SEGMENT, true);
        }
        recovery.enter(1, 10_001);
        recovery.on_retransmitted(1_001, Time::from_millis(10), 500);
        assert!(recovery.is_spurious(Time::from_millis(11), Some(499), None));
        recovery.undo(SEGMENT);
        assert_eq!((recovery.phase(), recovery.threshold()), (Phase::Open, 6));
        assert!(!recovery.is_spurious(Time::from_millis(12), Some(1), None), "asked once");

        recovery.enter(1, 10_001);
        assert!(recovery.is_spurious(Time::from_millis(10), None, None), "before anything was sent again");
        recovery.undo(SEGMENT);
        recovery.enter(1, 10_001);
        recovery.on_retransmitted(1_001, Time::from_millis(10), 500);
        let least = Some(Duration::from_millis(4));
        assert!(recovery.is_spurious(Time::from_millis(11), Some(500), least), "sooner than a round trip");
        recovery.undo(SEGMENT);
        recovery.enter(1, 10_001);
        recovery.on_retransmitted(1_001, Time::from_millis(10), 500);
        assert!(!recovery.is_spurious(Time::from_millis(15), Some(500), least));
        assert!(!recovery.is_spurious(Time::from_millis(15), Some(400), least));
    }

    #[test]
    fn a_timeout_forgets_and_ignores_duplicates_until_its_point() {
        let mut recovery = selective();
        recovery.on_block(2_001..3_001);
        recovery.on_timeout(1, 10_001);
        assert_eq!(recovery.phase(), Phase::Loss);
        assert_eq!(recovery.sacked(), 0);
        for _ in 0..9 {
            assert!(!recovery.on_duplicate(1, 10_001, SEGMENT, true));
        }
        assert_eq!(recovery.on_acknowledged(5_001, 5_000, SEGMENT), Progress::Normal);
        assert_eq!(recovery.phase(), Phase::Loss);
        assert_eq!(recovery.on_acknowledged(10_001, 5_000, SEGMENT), Progress::Normal);
        assert_eq!(recovery.phase(), Phase::Open);
    }
}
