//! The delivery rate (draft-cheng-iccrg-delivery-rate-estimation): how fast the path takes data, measured by each
//! acknowledgment over about a round trip.

use std::collections::VecDeque;
use std::time::Duration;

use scoutline_base::Time;

/// Sendings that are told apart; beyond, later ones join the last.
const MAX_MARKS: usize = 4096;

/// What is remembered of what was sent at one time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// After its last unit.
    end: u64,
    /// When it was sent.
    at: Time,
    /// P.first_sent_time: when the flight that it is part of began.
    first_sent: Time,
    /// P.delivered
    delivered: u64,
    /// P.delivered_time
    delivered_at: Time,
    /// P.is_app_limited: there was not enough to send.
    app_limited: bool,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// Bytes a second; `None` where the interval is too short to tell.
    pub(super) rate: Option<u64>,
    /// What was delivered when the data was sent that now has arrived (rs.prior_delivered).
    pub(super) prior_delivered: u64,
    /// The program had too little to send: the path may be faster.
    pub(super) app_limited: bool,
    /// The round trip of what was sent last.
    pub(super) rtt: Duration,
}

/// The estimator.
#[derive(Clone, Debug)]
pub(super) struct DeliveryRate {
    marks: VecDeque<Mark>,
    /// C.delivered
    delivered: u64,
    /// C.delivered_time
    delivered_at: Time,
    /// C.first_sent_time
    first_sent: Time,
    /// C.app_limited: until so much is delivered, samples are limited by the program. 0: they are not.
    app_limited: u64,
}

impl Default for DeliveryRate {
    /// As after a pause: what leaves first shows what the program had, not what the path takes.
    fn default() -> DeliveryRate {
        DeliveryRate {
            marks: VecDeque::new(),
            delivered: 0,
            delivered_at: Time::ZERO,
            first_sent: Time::ZERO,
            app_limited: 1,
        }
    }
}

impl DeliveryRate {
    /// Bytes delivered in all.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// New data up to the unit `end` leaves, with `in_flight` bytes in the network before it.
    pub(super) fn on_sent(&mut self, end: u64, in_flight: u64, now: Time) {
        if in_flight == 0 {
            self.first_sent = now;
            self.delivered_at = now;
        }
        let is_full = self.marks.len() >= MAX_MARKS;
        if let Some(last) = self.marks.back_mut().filter(|last| last.at == now || is_full) {
            last.end = end;
            return;
        }
        self.marks.push_back(Mark {
            end,
            at: now,
            first_sent: self.first_sent,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            app_limited: self.app_limited != 0,
        });
    }

    /// The program has nothing more to send, and the window would take more.
    pub(super) fn on_app_limited(&mut self, in_flight: u64) {
        self.app_limited = (self.delivered + in_flight).max(1);
    }

    /// So many bytes have arrived; of those sent once only, the last end at `newest`.
    pub(super) fn on_delivered(
        &mut self,
        bytes: u64,
        newest: Option<u64>,
        least: Duration,
        now: Time,
    ) -> Option<Sample> {
        self.delivered += bytes;
        self.delivered_at = now;
        if self.app_limited != 0 && self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        let newest = newest?;
        while self.marks.front().is_some_and(|mark| mark.end < newest) {
            self.marks.pop_front();
        }
        let mark = *self.marks.front()?;
        if mark.end == newest {
            self.marks.pop_front();
        }
        // What came back late, behind what was sent after it, tells of no flight.
        if mark.at < self.first_sent {
            return None;
        }
        self.first_sent = mark.at;
        let interval = mark.at.since(mark.first_sent).max(now.since(mark.delivered_at));
        let moved = u128::from(self.delivered - mark.delivered);
        let rate = (!interval.is_zero() && interval >= least)
            .then(|| (moved * 1_000_000_000 / interval.as_nanos()).min(u128::from(u64::MAX)) as u64);
        Some(Sample {
            rate,
            prior_delivered: mark.delivered,
            app_limited: mark.app_limited,
            rtt: now.since(mark.at),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    const NONE: Duration = Duration::ZERO;

    #[test]
    fn a_steady_flow_has_the_rate_of_its_acknowledgments() {
        let mut rate = DeliveryRate::default();
        // 1,000 bytes each millisecond, acknowledged 10 ms later.
        let mut last = None;
        for tick in 1..=50u64 {
            rate.on_sent(1 + tick * 1_000, if tick == 1 { 0 } else { 1_000 }, ms(tick));
            if tick > 10 {
                last = rate.on_delivered(1_000, Some(1 + (tick - 10) * 1_000), NONE, ms(tick));
            }
        }
        let sample = last.unwrap();
        assert_eq!((sample.rate, sample.rtt), (Some(1_000_000), Duration::from_millis(10)));
        assert!(!sample.app_limited);
    }

    #[test]
    fn acknowledgments_that_come_in_a_lump_do_not_exceed_the_rate_of_sending() {
        let mut rate = DeliveryRate::default();
        for tick in 1..=10u64 {
            rate.on_sent(1 + tick * 1_000, u64::from(tick > 1), ms(tick));
        }
        rate.on_delivered(1_000, Some(1_001), NONE, ms(20));
        // Nine more at once.
        let sample = rate.on_delivered(9_000, Some(10_001), NONE, ms(20)).unwrap();
        assert_eq!(sample.rate, Some(10_000 * 1_000 / 19), "since the flight began");
    }

    #[test]
    fn what_the_program_held_back_is_marked_until_it_is_delivered() {
        let mut rate = DeliveryRate::default();
        rate.on_sent(1_001, 0, ms(1));
        rate.on_app_limited(1_000);
        rate.on_sent(2_001, 1_000, ms(2));
        let first = rate.on_delivered(1_000, Some(1_001), NONE, ms(11)).unwrap();
        assert!(first.app_limited, "what came before it is not known");
        assert!(rate.on_delivered(1_000, Some(2_001), NONE, ms(12)).unwrap().app_limited);
        rate.on_sent(3_001, 0, ms(13));
        assert!(!rate.on_delivered(1_000, Some(3_001), NONE, ms(23)).unwrap().app_limited);
        assert_eq!(rate.delivered(), 3_000);
    }

    #[test]
    fn what_goes_again_gives_no_sample_and_short_intervals_no_rate() {
        let mut rate = DeliveryRate::default();
        rate.on_sent(1_001, 0, ms(1));
        assert_eq!(rate.on_delivered(1_000, None, NONE, ms(9)), None);
        rate.on_sent(2_001, 0, ms(10));
        let sample = rate.on_delivered(1_000, Some(2_001), Duration::from_millis(8), ms(12)).unwrap();
        assert_eq!(sample.rate, None);
    }
}
