//! HyStart++: slow start that ends before the queue of the bottleneck overflows (RFC 9406).
//!
//! ```text
//!  slow start ──── the least round trip of this round is longer ────► conservative slow start, a fourth as fast
//!      ▲                                                                │                │
//!      └────────────── it was not the queue: shorter again ─────────────┘       five rounds: congestion avoidance
//! ```
//! For the first slow start of a connection only (§4.3). Growth is not limited to eight segments for an acknowledgment
//! (§4.2, L), since receivers acknowledge 64 KiB at once, see [`super`].

use std::time::Duration;

use super::Acknowledged;

/// RFC 9406 §4.3
const MIN_RTT_THRESH: Duration = Duration::from_millis(4);
const MAX_RTT_THRESH: Duration = Duration::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

/// What to do with an acknowledgment in slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// The window grows by so many bytes.
    By(u32),
    /// Slow start is over.
    Exit,
}

/// The state. Round trips in microseconds; `u32::MAX` is RFC 9406's infinity.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// windowEnd: the round is over when this is acknowledged.
    window_end: u64,
    /// lastRoundMinRTT
    last: u32,
    /// currentRoundMinRTT
    current: u32,
    /// cssBaselineMinRtt; infinite in slow start.
    baseline: u32,
    /// rttSampleCount
    samples: u8,
    /// Rounds of conservative slow start.
    rounds: u8,
}

impl Default for HyStart {
    fn default() -> HyStart {
        HyStart {
            window_end: 0,
            last: u32::MAX,
            current: u32::MAX,
            baseline: u32::MAX,
            samples: 0,
            rounds: 0,
        }
    }
}

impl HyStart {
    fn is_conservative(&self) -> bool {
        self.baseline != u32::MAX
    }

    /// RFC 9406 §4.2
    pub(super) fn on_acknowledged(&mut self, acknowledged: &Acknowledged) -> Growth {
        if acknowledged.una >= self.window_end {
            self.last = self.current;
            self.current = u32::MAX;
            self.samples = 0;
            self.window_end = acknowledged.next;
            if self.is_conservative() {
                self.rounds += 1;
                // The round in which it began counts, though it was none in full.
                if self.rounds >= CSS_ROUNDS {
                    return Growth::Exit;
                }
            }
        }
        if let Some(sample) = acknowledged.sample {
            self.current = self.current.min(u32::try_from(sample.as_micros()).unwrap_or(u32::MAX));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= N_RTT_SAMPLE {
            if self.is_conservative() {
                if self.current < self.baseline {
                    // It was no queue of ours.
                    self.baseline = u32::MAX;
                }
            } else if self.last != u32::MAX && self.current >= self.last.saturating_add(threshold(self.last))
            {
                self.baseline = self.current;
                self.rounds = 0;
            }
        }
        let divisor = if self.is_conservative() { CSS_GROWTH_DIVISOR } else { 1 };
        Growth::By(acknowledged.bytes / divisor)
    }
}

/// How much longer a round trip means a queue.
fn threshold(last: u32) -> u32 {
    let micros = |time: Duration| time.as_micros() as u32;
    (last / MIN_RTT_DIVISOR).clamp(micros(MIN_RTT_THRESH), micros(MAX_RTT_THRESH))
}

#[cfg(test)]
mod tests {
    use scoutline_base::Time;

    use super::*;

    /// A round of so many acknowledgments of 1,000 bytes with this round trip. The last answer, or that it is over.
    fn round(hystart: &mut HyStart, una: &mut u64, count: u64, rtt_ms: u64) -> Growth {
        let next = *una + 1_000 * count + 500;
        let mut growth = Growth::By(0);
        for _ in 0..count {
            *una += 1_000;
            growth = hystart.on_acknowledged(&Acknowledged {
                bytes: 1_000,
                now: Time::ZERO,
                rtt: Duration::from_millis(rtt_ms),
                sample: Some(Duration::from_millis(rtt_ms)),
                window_limited: true,
                una: *una,
                next,
            });
            if growth == Growth::Exit {
                break;
            }
        }
        growth
    }

    #[test]
    fn a_queue_slows_growth_and_ends_it_after_five_rounds() {
        let (mut hystart, mut una) = (HyStart::default(), 0);
        assert_eq!(round(&mut hystart, &mut una, 10, 40), Growth::By(1_000));
        assert_eq!(round(&mut hystart, &mut una, 10, 44), Growth::By(1_000), "less than an eighth");
        assert_eq!(round(&mut hystart, &mut una, 10, 52), Growth::By(250));
        for _ in 0..4 {
            assert_eq!(round(&mut hystart, &mut una, 10, 52), Growth::By(250));
        }
        assert_eq!(round(&mut hystart, &mut una, 10, 52), Growth::Exit);
    }

    #[test]
    fn what_passes_was_no_queue() {
        let (mut hystart, mut una) = (HyStart::default(), 0);
        round(&mut hystart, &mut una, 10, 40);
        assert_eq!(round(&mut hystart, &mut una, 10, 60), Growth::By(250));
        assert_eq!(round(&mut hystart, &mut una, 10, 40), Growth::By(1_000));
    }

    /// A peer's echo can tell of any round trip.
    #[test]
    fn a_round_trip_of_an_hour_is_only_long() {
        let (mut hystart, mut una) = (HyStart::default(), 0);
        round(&mut hystart, &mut una, 10, 4_294_966);
        assert_eq!(round(&mut hystart, &mut una, 10, 4_294_966), Growth::By(1_000));
    }

    #[test]
    fn few_samples_and_short_paths_mean_nothing() {
        let (mut hystart, mut una) = (HyStart::default(), 0);
        round(&mut hystart, &mut una, 4, 40);
        assert_eq!(round(&mut hystart, &mut una, 4, 90), Growth::By(1_000));
        let (mut hystart, mut una) = (HyStart::default(), 0);
        round(&mut hystart, &mut una, 10, 1);
        assert_eq!(round(&mut hystart, &mut una, 10, 4), Growth::By(1_000), "machines are late by that");
    }
}
