//! Probes: of the tail of what was sent (RFC 8985 §7), of a closed window, of a peer that is silent.

use std::num::NonZeroU64;
use std::ops::Range;

use scoutline_base::Time;

use super::Connection;
use crate::tcp::segment::Transmit;
use crate::tcp::timers::Timer;

impl Connection {
    /// RFC 8985 §7.3: a segment of new data if there is one, else the last one again, whatever the congestion
    /// window. Its selective acknowledgment tells that what came before is lost.
    pub(super) fn poll_tail_probe(&mut self, now: Time) -> Option<Transmit> {
        if !std::mem::take(&mut self.tail_probe_now)
            || !self.recovery.is_quiet()
            || self.send.una == self.send.max
            || self.send.next != self.send.max
        {
            return None;
        }
        let segment = u64::from(self.segment());
        let next = self.send.next;
        let window_end = self.send.una + u64::from(self.send.window);
        let fresh = next..self.data_end().min(next + segment);
        let again = fresh.is_empty() || fresh.end > window_end;
        let range = if again { self.last_segment() } else { fresh };
        if again {
            self.send.timed = None;
            let timestamp = self.timestamp(now);
            self.recovery.on_retransmitted(range.clone(), now, timestamp);
        } else {
            self.book_sent(range.clone(), range.end - range.start, now);
        }
        self.send.tail_probe = NonZeroU64::new(range.end);
        self.send.tail_probe_again = again;
        self.timers.disarm(Timer::LossDetection);
        // RFC 8985 §7.3: the time-out counts from the probe.
        self.timers.arm(Timer::Retransmit, now + self.rtt.rto());
        Some(self.range_transmit(range, again, now))
    }

    /// What was sent last, the last segment of it at most: perhaps a FIN alone.
    fn last_segment(&self) -> Range<u64> {
        let (segment, next) = (u64::from(self.segment()), self.send.next);
        let sent_last = self.recovery.last_sent().filter(|range| range.end == next);
        let start = sent_last.map_or(next.saturating_sub(segment), |range| range.start).max(self.send.una);
        let data = self.data_end().min(next).saturating_sub(start);
        start + data.saturating_sub(1) / segment * segment..next
    }

    /// A zero-window or keepalive probe.
    pub(super) fn poll_probe(&mut self, now: Time) -> Option<Transmit> {
        if std::mem::take(&mut self.probe_now) && self.send.una < self.end_unit() {
            // RFC 9293 §3.8.6.1: one octet of new data, or the FIN. `next` stays, so that all of it goes again once
            // the window opens.
            let range = self.send.una..self.send.una + 1;
            let again = self.send.max > self.send.una;
            self.send.max = self.send.max.max(range.end);
            self.send.timed = None;
            self.arm_user_timeout(now);
            let probe = self.range_transmit(range, again, now);
            // RFC 3168 §6.1.6
            return Some(Transmit { ecn_capable: false, ..probe });
        }
        if std::mem::take(&mut self.keepalive_now) {
            // RFC 9293 §3.8.4: SEG.SEQ = SND.NXT - 1, which the peer must answer.
            return Some(self.bare_transmit(self.send.una - 1, now));
        }
        None
    }
}
