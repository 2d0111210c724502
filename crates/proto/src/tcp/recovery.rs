//! Loss recovery: what counts as lost, what is in flight, what to send again.
//!
//! With SACK: a scoreboard of pieces ([`flight`](super::flight)) in which RACK ([`rack`](super::rack), RFC 8985) finds
//! what is lost, RFC 6675's `pipe` over it, and proportional rate reduction ([`prr`](super::prr), RFC 9937). After a
//! time-out the first segment and what is older than a round trip go again, and the scoreboard stays (RFC 8985 §6.3),
//! unless the peer has given up what it held (RFC 2018 §8).
//!
//! Without SACK: NewReno (RFC 6582), duplicate acknowledgments standing for one segment each that left the network
//! (which is RFC 3042's limited transmit before recovery, and the inflated window of RFC 5681 §3.2 within it). After a
//! time-out: back to the first unacknowledged byte.
//!
//! A recovery that proves spurious is undone: by Eifel (RFC 3522), by an acknowledgment that came sooner than any round
//! trip, by DSACK for all that was sent again (RFC 3708), by F-RTO ([`frto`](super::frto), RFC 5682). Without SACK the
//! degree of reordering that caused it becomes the new threshold; with it, RACK allows for reordering from then on.
//!
//! All positions here are sequence *units*: 0 is the SYN, 1 the first byte.

use std::ops::Range;
use std::time::Duration;

use scoutline_base::Time;

use crate::tcp::flight::{Delivered, Flight};
use crate::tcp::frto::{Frto, Seen, Verdict};
use crate::tcp::prr::Prr;
use crate::tcp::rack::{Rack, Times};
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
    /// Within fast recovery: more is missing (RFC 6582 §3.2 step 3, partial acknowledgment). Or within a reduction that an
    /// echo of congestion asked for.
    Partial,
    /// Fast recovery is over.
    Recovered,
}

/// What is known of the loss that goes on, or was last. Most connections never have one.
#[derive(Clone, Debug, Default)]
struct Episode {
    prr: Prr,
    /// Until this is acknowledged an echo of congestion is being answered.
    reduced_until: u64,
    frto: Frto,
    first: Option<First>,
    /// Where it began: what is above and was sent again was sent again in it.
    marker: u64,
    /// Units that were sent again in it and not reported as duplicates; `None`: nothing to undo.
    in_doubt: Option<u64>,
    /// The last timestamp of what was sent again, in any of them.
    told: Option<u32>,
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
    /// Duplicates that mean loss (without SACK).
    threshold: u32,
    /// RFC 6582 `recover`: all below was sent before the loss was found.
    point: u64,
    /// What is missing below was sent again (without SACK).
    retransmitted: u64,
    flight: Flight,
    sacked: Ranges,
    rack: Rack,
    /// No new data was acknowledged since the episode began.
    unanswered: bool,
    /// An echo of congestion is being answered.
    reducing: bool,
    episode: Option<Box<Episode>>,
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
            flight: Flight::default(),
            sacked: Ranges::default(),
            rack: Rack::default(),
            unanswered: false,
            reducing: false,
            episode: None,
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

    /// By how many segments something was late, as far as seen; at least the duplicates that mean loss.
    pub fn reordering(&self, segment: u32) -> u32 {
        self.threshold.max(self.rack.degree().div_ceil(segment.max(1)).min(MAX_DUPLICATE_THRESHOLD))
    }

    /// Of `delta` units that are acknowledged now, those that duplicates have not told of before (without SACK): each
    /// stands for one segment. Something is news, or it would not be acknowledged.
    pub fn unheard_of(&self, delta: u64, segment: u32) -> u64 {
        let heard = u64::from(self.duplicates) * u64::from(segment);
        delta.saturating_sub(heard).max(delta.min(u64::from(segment)))
    }

    /// How often reordering was seen (with SACK).
    pub fn reorderings(&self) -> u32 {
        self.rack.reorderings()
    }

    /// The timestamp of what goes again at `now`: as old as what may still be under way where reordering was seen, for the
    /// peer drops what is older than the last that it got in order (RFC 7323 §5.3 R1; see `tcp/late.rs`). But
    /// none is older than the one before, and by half a round trip at least it is newer than the original's, so that an echo
    /// still tells the two apart.
    pub fn timestamp_again(&self, now: u32, times: &Times) -> u32 {
        let patience = self.rack.patience(times).as_millis() as u32;
        let told = self.episode.as_ref().and_then(|episode| episode.told);
        let age = told.map_or(patience, |told| now.wrapping_sub(told).min(patience));
        now.wrapping_sub(age)
    }

    /// RACK.reo_wnd_mult.
    #[cfg(test)]
    pub(super) fn rack_multiplier(&self) -> u32 {
        self.rack.multiplier()
    }

    /// Bytes that the peer holds out of order, as far as known.
    pub fn sacked(&self) -> u64 {
        self.sacked.count_within(0..u64::MAX)
    }

    /// Bytes that are lost and were not sent again (with SACK).
    pub fn lost(&self) -> u64 {
        self.flight.lost()
    }

    /// All that was lost is under way again (with SACK).
    pub fn has_repaired_all(&self) -> bool {
        self.selective && self.phase != Phase::Open && self.flight.lost() == 0
    }

    /// Bytes that were lost and are under way again (with SACK).
    pub fn again(&self) -> u64 {
        if self.phase == Phase::Open { 0 } else { self.flight.again() }
    }

    /// What was sent last of all that is outstanding, at one time (with SACK).
    pub fn last_sent(&self) -> Option<Range<u64>> {
        self.flight.last().map(|piece| piece.start..piece.end)
    }

    /// All of these units are taken for lost (with SACK).
    pub fn is_lost(&self, range: &Range<u64>) -> bool {
        self.flight.is_lost(range)
    }

    /// The peer is known to hold `unit`.
    pub fn has_arrived(&self, unit: u64) -> bool {
        self.sacked.containing(unit).is_some()
    }

    /// RFC 6675 `pipe`: bytes between `una` and `next` that are in the network.
    #[inline]
    pub fn in_flight(&self, una: u64, next: u64, segment: u32) -> u64 {
        let outstanding = next - una;
        if self.is_quiet() {
            return outstanding;
        }
        if self.selective {
            return self.flight.in_network();
        }
        match self.phase {
            Phase::Loss => outstanding,
            // RFC 3042 and RFC 5681 §3.2 step 4: each duplicate tells of a segment that left the network.
            Phase::Open | Phase::Fast => {
                outstanding.saturating_sub(u64::from(self.duplicates) * u64::from(segment))
            }
        }
    }

    /// What proportional rate reduction lets go now; `None` where the window decides.
    #[inline]
    pub fn allowance(&self) -> Option<u64> {
        let reduces = self.phase == Phase::Fast && self.selective || self.is_reducing();
        let episode = self.episode.as_ref().filter(|_| reduces);
        episode.map(|episode| episode.prr.allowance())
    }

    /// The window is being reduced though nothing is lost: Linux's TCP_CA_CWR.
    #[inline]
    pub fn is_reducing(&self) -> bool {
        self.reducing
    }

    /// The peer echoes congestion, with `una` to `max` outstanding: sending goes on in proportion to what arrives, as in
    /// fast recovery, instead of standing still until as much has arrived as the window has lost (RFC 9937 §1).
    pub fn begin_reduction(&mut self, una: u64, max: u64) {
        self.reducing = true;
        let episode = self.episode.get_or_insert_default();
        episode.reduced_until = max;
        episode.prr = Prr::new(max - una);
    }

    /// While [reducing](Recovery::is_reducing): so many bytes were delivered, with `pipe` in the network after that.
    /// `echoed`: of further congestion, which is nothing safe to send more on.
    pub fn reduce_for_echo(&mut self, delivered: u64, pipe: u64, threshold: u32, segment: u32, echoed: bool) {
        if let Some(episode) = &mut self.episode {
            episode.prr.on_delivered(delivered, pipe, u64::from(threshold), u64::from(segment), !echoed);
        }
    }

    /// New data was sent at `now`.
    #[inline]
    pub fn on_sent(&mut self, range: Range<u64>, now: Time) {
        if (self.phase != Phase::Open || self.is_reducing())
            && let Some(episode) = &mut self.episode
        {
            episode.frto.on_sent(range.end - range.start);
            episode.prr.on_sent(range.end - range.start);
        }
        if self.selective {
            self.flight.on_sent(range, now);
        }
    }

    /// Takes a SACK block in units, already checked to lie within what was sent. True when it told anything new.
    pub fn on_block(&mut self, block: Range<u64>, delivered: &mut Delivered) -> bool {
        // A full scoreboard forgets: SACK is advice (RFC 2018 §8).
        let news = self.sacked.insert(block.clone()).unwrap_or(false);
        if news {
            self.flight.deliver(block, delivered);
        }
        news
    }

    /// The peer got these units twice (RFC 2883), with all up to `una` acknowledged and `next` the next to be sent. True
    /// when all that the last episode sent again was in vain (RFC 3708 §2). `probe`: a tail loss probe was the other copy,
    /// which says nothing of reordering (as Linux has it: `FLAG_DSACK_TLP`).
    pub fn on_duplicate_block(&mut self, block: &Range<u64>, una: u64, next: u64, probe: bool) -> bool {
        if !probe {
            self.rack.on_duplicate(una, next);
        }
        let Some(episode) = &mut self.episode else { return false };
        let Some(left) = episode.in_doubt.as_mut().filter(|left| **left > 0) else { return false };
        if block.start < episode.marker {
            return false;
        }
        *left = left.saturating_sub(block.end - block.start);
        *left == 0
    }

    /// A duplicate acknowledgment came, without SACK. True when that means loss: see [`Recovery::enter`].
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
        self.duplicates >= threshold
    }

    /// With SACK: learns from what has arrived, and takes what is lost for lost. Whether anything was, and when to look
    /// again, if nothing comes.
    pub fn detect(
        &mut self,
        delivered: &Delivered,
        una: u64,
        segment: u32,
        times: &Times,
        now: Time,
    ) -> (bool, Option<Time>) {
        self.rack.on_delivered(delivered, times, now);
        // RFC 6675 §4 IsLost: enough ranges, or enough bytes, above.
        let enough = u64::from(DUPLICATE_THRESHOLD - 1) * u64::from(segment);
        let evident = self.phase != Phase::Open
            || self.sacked.as_slice().len() >= DUPLICATE_THRESHOLD as usize
            || self.sacked.count_within(una..u64::MAX) > enough;
        self.rack.detect(&mut self.flight, evident, times, now)
    }

    /// Something is lost, and no recovery goes on.
    pub fn should_enter(&self) -> bool {
        self.phase == Phase::Open && self.flight.lost() > 0
    }

    /// Begins fast recovery. What the last one sent again beyond its point (it repairs what was lost meanwhile) is
    /// still under way: its acknowledgment does not show that the original arrived.
    pub fn enter(&mut self, una: u64, max: u64) {
        self.phase = Phase::Fast;
        self.point = max;
        self.unanswered = if self.selective { !self.flight.has_again() } else { self.retransmitted <= una };
        self.retransmitted = self.retransmitted.max(una);
        let goes_on = std::mem::take(&mut self.reducing);
        let episode = self.begin(una);
        if !goes_on {
            episode.prr = Prr::new(max - una);
        }
    }

    /// An episode begins at `una`.
    fn begin(&mut self, una: u64) -> &mut Episode {
        let episode = self.episode.get_or_insert_default();
        episode.first = None;
        episode.marker = una;
        episode.in_doubt = Some(0);
        episode
    }

    /// In fast recovery with SACK: so many bytes were delivered; the aim is `threshold`. `safe`: the window advanced, and
    /// nothing more is lost.
    pub fn reduce(&mut self, delivered: u64, threshold: u32, segment: u32, safe: bool) {
        if self.phase == Phase::Fast
            && let Some(episode) = &mut self.episode
        {
            episode.prr.on_delivered(
                delivered,
                self.flight.in_network(),
                u64::from(threshold),
                u64::from(segment),
                safe,
            );
        }
    }

    /// What is sent again next, at most `limit` units.
    pub fn next_lost(&self, una: u64, max: u64, segment: u32, limit: u64) -> Option<Range<u64>> {
        if self.phase == Phase::Open || una >= max {
            return None;
        }
        if self.selective {
            return self.flight.next_lost(limit);
        }
        // RFC 6582 §3.2: the first segment, once, and again after each partial acknowledgment.
        (self.phase == Phase::Fast && self.retransmitted.max(una) <= una)
            .then(|| una..(una + u64::from(segment).min(limit)).min(max))
    }

    /// These units were sent again at `now`, with this timestamp.
    pub fn on_retransmitted(&mut self, range: Range<u64>, now: Time, timestamp: u32) {
        let len = range.end - range.start;
        if let Some(episode) = &mut self.episode {
            episode.told = Some(timestamp);
            if let Some(units) = &mut episode.in_doubt {
                *units += len;
            }
            if self.unanswered && episode.first.is_none() {
                episode.first = Some(First { at: now, timestamp });
            }
            if self.selective && self.phase == Phase::Fast {
                episode.prr.on_sent(len);
            }
        }
        if self.selective {
            self.flight.on_sent_again(range, now);
        } else {
            self.retransmitted = self.retransmitted.max(range.end);
        }
    }

    /// RFC 3522 §3.2: asked at each acknowledgment of new data, answered at the first of an episode. True when the
    /// original must have arrived: nothing was sent again yet, or the echo is older than the retransmission, or no
    /// round trip is so short.
    pub fn is_spurious(&mut self, now: Time, echo: Option<u32>, least_rtt: Option<Duration>) -> bool {
        if self.phase == Phase::Open || !std::mem::take(&mut self.unanswered) {
            return false;
        }
        let Some(first) = self.episode.as_mut().and_then(|episode| episode.first.take()) else { return true };
        let older = echo.is_some_and(|echo| (echo.wrapping_sub(first.timestamp) as i32) < 0);
        let sooner = least_rtt.is_some_and(|least| now.since(first.at) * 2 < least);
        older || sooner
    }

    /// Ends an episode that was no loss, and learns how much reordering there is.
    pub fn undo(&mut self, segment: u32) {
        if self.phase == Phase::Fast {
            self.rack.set_reordering();
        }
        let degree = self.duplicates.saturating_add(1);
        self.threshold = self.threshold.max(degree.min(MAX_DUPLICATE_THRESHOLD));
        self.phase = Phase::Open;
        self.duplicates = 0;
        // What was sent again in vain says nothing about the next episode.
        self.retransmitted = 0;
        if let Some(episode) = &mut self.episode {
            episode.in_doubt = None;
            episode.frto = Frto::Off;
        }
        self.flight.find_all();
        debug_assert!(segment > 0);
    }

    /// The window was reduced for another reason, or not at all: the last episode can no longer be undone.
    pub fn forget_undo(&mut self) {
        if let Some(episode) = &mut self.episode {
            episode.in_doubt = None;
        }
        self.unanswered = false;
    }

    /// All up to `una` is acknowledged, while [quiet](Recovery::is_quiet): the first step of
    /// [`Recovery::on_acknowledged`].
    #[inline]
    pub fn advance_quietly(&mut self, una: u64, now: Time) {
        // Without SACK it is empty.
        if let Some((at, end)) = self.flight.acknowledge(una) {
            self.rack.on_acknowledged(at, end, now);
        }
    }

    /// The same, while something is going on.
    pub fn advance(&mut self, una: u64, delivered: &mut Delivered) {
        if self.selective {
            self.sacked.trim_below(una);
            self.flight.deliver(0..una, delivered);
        }
    }

    /// The peer acknowledged `bytes` of new data, up to `una`.
    pub fn on_acknowledged(&mut self, una: u64, bytes: u64, segment: u32) -> Progress {
        if self.phase == Phase::Open {
            self.duplicates = 0;
            if self.reducing && self.episode.as_ref().is_some_and(|episode| una < episode.reduced_until) {
                return Progress::Partial;
            }
            self.reducing = false;
            return Progress::Normal;
        }
        if una >= self.point {
            let was = self.phase;
            self.phase = Phase::Open;
            self.duplicates = 0;
            if let Some(episode) = &mut self.episode {
                episode.frto = Frto::Off;
            }
            self.rack.on_recovered();
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

    /// An acknowledgment after a time-out: whether that was spurious (RFC 5682). `more`: there is new data that may go.
    pub fn judge_timeout(
        &mut self,
        advances: bool,
        delivered: &Delivered,
        more: bool,
        segment: u32,
    ) -> Verdict {
        let loses = self.phase == Phase::Loss;
        let Some(episode) = self.episode.as_mut().filter(|episode| loses && episode.frto != Frto::Off) else {
            return Verdict::Undecided;
        };
        let original = delivered.first.is_some_and(|(start, _)| start < self.point);
        let seen = Seen { advances, completes: false, original, selective: self.selective, more, segment };
        episode.frto.on_acknowledgment(&seen)
    }

    /// New data goes before what is lost, so much whatever the window (RFC 5682 step 2b); `None`: it does not.
    #[inline]
    pub fn new_data(&self) -> Option<u32> {
        self.episode.as_ref()?.frto.new_data()
    }

    /// The retransmission timer expired. What is outstanding ends at `next`; `max` is the highest ever sent.
    pub fn on_timeout(&mut self, una: u64, next: u64, max: u64, segment: u32, times: &Times, now: Time) {
        self.lose(una, max);
        if !self.selective {
            return;
        }
        if self.has_arrived(una) {
            // RFC 2018 §8: the peer has dropped what it reported.
            self.sacked.clear();
            self.flight.lose_everything(una, next);
            return;
        }
        self.rack.on_timeout(&mut self.flight, times, now);
        self.flight.lose(una..una + u64::from(segment));
    }

    /// The timer expired behind a closed window: all may be lost, but not by congestion.
    pub fn on_closed_window(&mut self, una: u64, next: u64, max: u64) {
        self.lose(una, max);
        if let Some(episode) = &mut self.episode {
            episode.frto = Frto::Off;
            episode.in_doubt = None;
        }
        if self.selective {
            self.flight.lose(una..next);
        }
    }

    fn lose(&mut self, una: u64, max: u64) {
        let is_first = self.phase != Phase::Loss;
        if is_first {
            self.unanswered = true;
            self.begin(una);
        }
        self.episode.get_or_insert_default().frto.on_timeout(is_first);
        self.phase = Phase::Loss;
        self.reducing = false;
        self.point = max;
        self.retransmitted = una;
        self.duplicates = 0;
        self.threshold = DUPLICATE_THRESHOLD;
    }

    /// The connection is over.
    pub fn clear(&mut self) {
        self.flight.clear();
        self.sacked.clear();
    }
}

#[cfg(test)]
mod tests;
