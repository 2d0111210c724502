//! How large the buffers of a socket must be for the flow not to wait for them: dynamic right-sizing (Fisk and Feng,
//! "Dynamic Right-Sizing in TCP", 2001), which Linux's `tcp_rcv_space_adjust` follows.
//!
//! What passes in a round trip is what the buffer has held for it; twice that lets a sender in slow start double. It is
//! measured alike in both directions: inward what the program has taken, outward what the peer has acknowledged. A
//! sender whose buffer is the limit has all of it outstanding, so twice as much follows, and so on until something else
//! is the limit.
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

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizing {
    /// Where the stream was when the measurement began.
    from: u64,
    /// When that was.
    at: Time,
    /// The largest need that was told.
    told: u32,
}

impl Sizing {
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
        let need = 2 * within + SLACK_SEGMENTS * u128::from(segment);
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
