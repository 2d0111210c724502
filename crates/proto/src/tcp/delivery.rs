//! How fast the path delivers, for who asks (`tcpi_delivery_rate` of Linux's TCP_INFO): draft-cheng-iccrg-delivery-rate-
//! estimation, measured over one segment at a time, about once a round trip, where BBR's estimator
//! ([`congestion`](super::congestion)) measures each acknowledgment.
//!
//! ```text
//!   first sent         marked segment sent    …    the mark is acknowledged
//!       ├──── send interval ───┤
//!                 ├ delivered before ──── ack interval ──────┤
//! ```
//! The rate is what was delivered from the one acknowledgment to the other, by the longer interval. Counted in bytes and
//! microseconds of 32 bits, for there is one of these in each connection.

use std::time::Duration;

use scoutline_base::Time;

/// What is delivered, and when, modulo 2³².
fn low(position: u64) -> u32 {
    position as u32
}

fn micros(now: Time) -> u32 {
    // Wraps after 71 minutes; a connection that rests longer begins a flight anew.
    now.as_micros() as u32
}

/// The estimator.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// C.delivered_time
    delivered_at: u32,
    /// C.first_sent_time: when what was marked last was sent.
    first_sent: u32,
    /// P.delivered, P.delivered_time and P.first_sent_time of the marked segment.
    prior: u32,
    prior_at: u32,
    prior_first_sent: u32,
    /// C.app_limited: until so much is delivered, what is sent is limited by the program.
    limited_to: u32,
    /// The rate of now: bytes and microseconds.
    bytes: u32,
    interval: u32,
    /// `limited_to` counts.
    is_limited: bool,
    /// P.is_app_limited of the marked segment.
    prior_limited: bool,
    /// The rate of now was limited by the program, as it is before there is one.
    rate_limited: bool,
}

impl Default for Delivery {
    fn default() -> Delivery {
        Delivery {
            delivered_at: 0,
            first_sent: 0,
            prior: 0,
            prior_at: 0,
            prior_first_sent: 0,
            limited_to: 0,
            bytes: 0,
            interval: 0,
            is_limited: true,
            prior_limited: false,
            rate_limited: true,
        }
    }
}

impl Delivery {
    /// A flight begins: nothing was outstanding.
    #[inline]
    pub(super) fn on_flight(&mut self, now: Time) {
        self.delivered_at = micros(now);
        self.first_sent = self.delivered_at;
    }

    /// What leaves now is marked; `delivered` bytes have arrived so far.
    #[inline]
    pub(super) fn on_marked(&mut self, delivered: u64) {
        self.prior = low(delivered);
        self.prior_at = self.delivered_at;
        self.prior_first_sent = self.first_sent;
        self.prior_limited = self.is_limited;
    }

    /// Something has arrived, `delivered` bytes in all.
    #[inline]
    pub(super) fn on_delivered(&mut self, delivered: u64, now: Time) {
        self.delivered_at = micros(now);
        if self.is_limited && low(delivered).wrapping_sub(self.limited_to) as i32 > 0 {
            self.is_limited = false;
        }
    }

    /// The program has nothing more to send though the path would take it: so until `end`, which is what was delivered and
    /// what is under way.
    #[inline]
    pub(super) fn on_app_limited(&mut self, end: u64) {
        self.is_limited = true;
        self.limited_to = low(end);
    }

    /// What was marked, and sent at `sent`, has arrived, after [`Delivery::on_delivered`]. `least`: the least round trip;
    /// a shorter interval tells nothing.
    pub(super) fn on_mark_delivered(&mut self, delivered: u64, sent: Time, least: Duration, now: Time) {
        self.first_sent = micros(sent);
        let sending = self.first_sent.wrapping_sub(self.prior_first_sent);
        let interval = sending.max(micros(now).wrapping_sub(self.prior_at));
        if interval == 0 || u128::from(interval) < least.as_micros() {
            return;
        }
        let bytes = low(delivered).wrapping_sub(self.prior);
        // As Linux: the last that the program did not limit, or the highest.
        let is_higher =
            u64::from(bytes) * u64::from(self.interval) >= u64::from(self.bytes) * u64::from(interval);
        if !self.prior_limited || is_higher {
            (self.bytes, self.interval) = (bytes, interval);
            self.rate_limited = self.prior_limited;
        }
    }

    /// Bytes a second; 0 before anything was measured.
    pub fn rate(&self) -> u64 {
        u64::from(self.bytes) * 1_000_000 / u64::from(self.interval.max(1))
    }

    /// The program had too little to send: the path may be faster.
    pub fn is_app_limited(&self) -> bool {
        self.rate_limited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    const LEAST: Duration = Duration::from_millis(10);

    /// A flight of `bytes` that is sent at `at` whole, its first segment marked, and acknowledged 10 ms later.
    fn flight(delivery: &mut Delivery, delivered: &mut u64, bytes: u64, at: u64, limited: bool) {
        delivery.on_flight(ms(at));
        delivery.on_marked(*delivered);
        *delivered += bytes;
        if limited {
            delivery.on_app_limited(*delivered);
        }
        delivery.on_delivered(*delivered, ms(at + 10));
        delivery.on_mark_delivered(*delivered, ms(at), LEAST, ms(at + 10));
    }

    #[test]
    fn a_flight_by_its_round_trip() {
        let (mut delivery, mut delivered) = (Delivery::default(), 0);
        assert_eq!((delivery.rate(), delivery.is_app_limited()), (0, true));
        flight(&mut delivery, &mut delivered, 10_000, 5, false);
        assert_eq!(delivery.rate(), 1_000_000);
        assert!(delivery.is_app_limited(), "what goes before the first acknowledgment, as Linux has it");
        flight(&mut delivery, &mut delivered, 5_000, 40, false);
        assert_eq!((delivery.rate(), delivery.is_app_limited()), (500_000, false), "the last counts");
    }

    #[test]
    fn what_the_program_limits_counts_if_it_is_more() {
        let (mut delivery, mut delivered) = (Delivery::default(), 0);
        flight(&mut delivery, &mut delivered, 1_000, 5, false);
        flight(&mut delivery, &mut delivered, 10_000, 20, true);
        assert!(!delivery.is_app_limited(), "it was sent before the program had no more");
        flight(&mut delivery, &mut delivered, 4_000, 40, true);
        assert_eq!((delivery.rate(), delivery.is_app_limited()), (1_000_000, false), "less, and limited");
        flight(&mut delivery, &mut delivered, 20_000, 60, true);
        assert_eq!((delivery.rate(), delivery.is_app_limited()), (2_000_000, true));
    }

    #[test]
    fn acknowledgments_in_a_lump_tell_no_more_than_the_sending() {
        let mut delivery = Delivery::default();
        delivery.on_flight(ms(0));
        delivery.on_marked(0);
        delivery.on_delivered(1_000, ms(20));
        delivery.on_mark_delivered(1_000, ms(0), LEAST, ms(20));
        // Marked at 30 ms, 30 ms after the flight began; acknowledged with all before it, 12 ms after the last.
        delivery.on_marked(1_000);
        delivery.on_delivered(31_000, ms(32));
        delivery.on_mark_delivered(31_000, ms(30), LEAST, ms(32));
        assert_eq!(delivery.rate(), 1_000_000, "30,000 bytes in the 30 ms that they were sent in");
    }

    #[test]
    fn counters_wrap_and_short_intervals_tell_nothing() {
        let mut delivery = Delivery::default();
        let (wrap, mut delivered) = ((1u64 << 32) / 1000 - 5, (1u64 << 32) - 3_000);
        flight(&mut delivery, &mut delivered, 10_000, wrap, false);
        assert_eq!(delivery.rate(), 1_000_000);
        delivery.on_flight(ms(wrap + 30));
        delivery.on_marked(delivered);
        delivery.on_delivered(delivered + 50_000, ms(wrap + 31));
        delivery.on_mark_delivered(delivered + 50_000, ms(wrap + 30), LEAST, ms(wrap + 31));
        assert_eq!(delivery.rate(), 1_000_000, "no round trip is so short");
    }
}
