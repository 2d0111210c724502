//! How large the buffers of a socket must be for the flow not to wait for them: dynamic right-sizing (Fisk and Feng,
//! "Dynamic Right-Sizing in TCP", 2001), which Linux's `tcp_rcv_space_adjust` follows.
//!
//! What passes in a round trip is what the buffer has held for it; twice that lets a sender in slow start double. It is
//! measured alike in both directions: inward what the program has taken, outward what the peer has acknowledged. A
//! sender whose buffer is the limit has all of it outstanding, so twice as much follows, and so on until something else
//! is the limit.
//!
//! Inward over a long path that is too little while what passes grows: by the time a sender feels a window, it has doubled
//! twice. Who has to wait for windows in slow start sends each as a burst, and does not see how full the line's queue is
//! (RFC 9406), until that overflows. So where more passes than ever before, the buffer leads by two more such steps, each a
//! doubling at most; Linux's leads by the last step, too. What comes back after a pause or a loss is nothing new.
//!
//! The round trip is the least one. Were it the present one, a flow that fills a queue (the peer's backlog, or the run
//! queue between us and a program) would have its buffers grow for the queue to grow.

use std::time::Duration;

use scoutline_base::Time;

/// A measurement takes this long at least: segments come in lumps of up to 192 KiB, and machines work in quanta.
const LEAST_INTERVAL: Duration = Duration::from_millis(1);

/// What is less than this need not be told: every socket has it.
const LEAST: u32 = 64 << 10;
/// Segments beyond what passes, as Linux has it: the start of a flow is small.
const SLACK_SEGMENTS: u128 = 16;

/// From this round trip on it pays to lead: over shorter ones flows start in no time.
const LEADS_FROM: Duration = Duration::from_millis(5);
/// Of what twice the present size is to a buffer that leads by two doublings: the rest.
const LEAD: u128 = 2 * 4 - 2;

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizing {
    /// Where the stream was when the measurement began.
    from: u64,
    /// When that was.
    at: Time,
    /// The most that passed in a round trip before, in bytes.
    most: u64,
    /// The largest need that was told.
    told: u32,
    /// It leads a flow that doubles.
    leads: bool,
}

impl Sizing {
    /// For what the peer may send.
    pub(super) fn leading() -> Sizing {
        Sizing { leads: true, ..Sizing::default() }
    }

    /// The stream has come to `position`. The answer is the size that is needed, if that is more than ever before.
    pub(super) fn on_passed(
        &mut self,
        position: u64,
        round_trip: Option<Duration>,
        segment: u32,
        now: Time,
    ) -> Option<u32> {
        let (elapsed, round_trip) = (now.since(self.at), round_trip?);
        if elapsed < round_trip.max(LEAST_INTERVAL) {
            return None;
        }
        let passed = position.saturating_sub(self.from);
        (self.from, self.at) = (position, now);
        let within = u128::from(passed) * round_trip.as_nanos() / elapsed.as_nanos().max(1);
        let slack = SLACK_SEGMENTS * u128::from(segment);
        let mut need = 2 * within + slack;
        if self.leads && round_trip >= LEADS_FROM {
            let most = u128::from(self.most);
            // Of the first round trip nobody knows what it grew from.
            let grown = within.saturating_sub(most).min(most);
            need += LEAD * within * grown / most.max(1);
            self.most = self.most.max(within as u64);
        }
        let need = u32::try_from(need).unwrap_or(u32::MAX).min(1 << 31).next_power_of_two();
        (need > self.told.max(LEAST)).then(|| {
            self.told = need;
            need
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Option<Duration> = Some(Duration::from_millis(100));

    #[test]
    fn a_flow_that_fills_its_buffer_needs_twice_as_much() {
        let mut sizing = Sizing::default();
        let mut now = Time::from_millis(1_000);
        assert_eq!(sizing.on_passed(0, ROUND, 1_000, now), None, "nothing has passed");
        let (mut position, mut size) = (0, 65_536);
        for _ in 0..4 {
            now += Duration::from_millis(100);
            position += size;
            let need = sizing.on_passed(position, ROUND, 1_000, now).unwrap();
            assert!(u64::from(need) >= 2 * size, "{need} after {size}");
            size = u64::from(need);
        }
    }

    /// At the end of a round trip in which so much passed the sender is sending twice as much, and the next acknowledgments
    /// let it send four times as much.
    #[test]
    fn a_flow_that_doubles_over_a_long_path_never_meets_its_window() {
        let (long, short) = (ROUND, Some(Duration::from_millis(1)));
        let (inward, outward) = (Sizing::leading(), Sizing::default());
        for (mut sizing, round, leads) in
            [(inward, long, true), (inward, short, false), (outward, long, false)]
        {
            let mut now = Time::from_millis(1_000);
            sizing.on_passed(0, round, 1_000, now);
            let (mut position, mut passed) = (0, 20_000);
            for step in 0..8 {
                now += round.unwrap();
                position += passed;
                let need = sizing.on_passed(position, round, 1_000, now).map_or(64 << 10, u64::from);
                let does = need >= 8 * passed && need <= 16 * passed + 32_000;
                assert_eq!(does, leads && step > 0, "{need} after {passed}");
                passed *= 2;
            }
            // It goes on as it is, with losses and pauses: nothing more.
            for (rounds, of) in [(1, 2), (1, 2), (1, 20), (1, 2), (9, 2), (1, 3), (1, 2)] {
                now += round.unwrap() * rounds;
                position += passed / of;
                let more = sizing.on_passed(position, round, 1_000, now);
                assert_eq!(more, None, "after {passed}");
            }
        }
    }

    #[test]
    fn what_is_slower_than_its_buffer_needs_no_more() {
        let mut sizing = Sizing::default();
        let mut now = Time::from_millis(1_000);
        sizing.on_passed(0, ROUND, 1_000, now);
        for step in 1..100 {
            now += Duration::from_millis(10);
            // 20,000 bytes in a round trip.
            let need = sizing.on_passed(2_000 * step, ROUND, 1_000, now);
            assert_eq!(need, None);
        }
    }

    #[test]
    fn a_pause_dilutes_and_a_lump_counts_by_its_time() {
        let round = Some(Duration::from_micros(50));
        let mut sizing = Sizing::default();
        let mut now = Time::from_millis(1_000);
        sizing.on_passed(0, round, 1_000, now);
        now += Duration::from_micros(60);
        assert_eq!(sizing.on_passed(200_000, round, 1_000, now), None, "too soon to tell");
        now += Duration::from_micros(940);
        // 1 MB in a millisecond is 50,000 bytes in a round trip.
        assert_eq!(sizing.on_passed(1_000_000, round, 1_000, now), Some(131_072));
        assert_eq!(sizing.on_passed(1_000_000, None, 1_000, now), None, "no round trip is known");
    }
}
