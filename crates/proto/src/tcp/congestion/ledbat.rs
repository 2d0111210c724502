//! LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus): for background traffic, which yields to everything else.
//!
//! LEDBAT (RFC 6817) keeps the queue that it builds at a bottleneck near a target. LEDBAT++ mends its faults: round
//! trips in the place of one-way delays (no clocks to compare), slower growth on short paths, multiplicative
//! decrease, a slow start that ends before the queue is full, and *slowdowns*: every now and then the sender all but
//! stops, so that the queue drains and every flow sees the true base delay. Without them a newcomer takes the queue
//! of those before it for part of the path, and never lets them in again.
//!
//! ```text
//!               delay > 3/4 target, loss            2 round trips, then 9 × the last slowdown
//!   slow start ──────────────────────────► avoidance ────────────────────────────────► frozen: 2 segments
//!                                              ▲                                          │ 2 round trips
//!                                              └─────────── regrowth: slow start ◄────────┘
//!                                                        to the window before
//! ```
//! Samples of the delay come with acknowledgments: each gives one with timestamps (in their coarse unit of 1 ms,
//! against a target of 60), one each round trip without. On loss and time-out it does as Reno.
//!
//! Left out: the draft's limits for round trips that delayed acknowledgments inflate; the least of four samples
//! passes over those.

mod delays;

use std::time::Duration;

use scoutline_base::Time;

use self::delays::Delays;
use super::window::{MAX_WINDOW, Window};
use super::{Acknowledged, Controller};

/// The queueing delay aimed at.
const TARGET: Duration = Duration::from_millis(60);
/// RFC 6817 §2.4.1 INIT_CWND, and the window of a slowdown; also the least (MIN_CWND).
const LEAST_SEGMENTS: u32 = 2;
/// The gain is one segment each round trip divided by this at most, on paths that are short beside the target.
const MOST_DIVISOR: u32 = 16;
/// How long a slowdown lasts, and how long after slow start the first comes, in round trips.
const SLOWDOWN_ROUND_TRIPS: u32 = 2;
/// The time from one slowdown to the next, in the time that the last took: a tenth is lost at most.
const SLOWDOWN_INTERVAL: u32 = 9;

/// The controller.
#[derive(Clone, Debug)]
pub struct LedbatPlusPlus {
    base: Window,
    delays: Delays,
    phase: Phase,
    /// Growth or shrinking that is less than a byte so far.
    fraction: f64,
}

/// Where in the cycle of slowdowns a sender is. Whether it is in slow start, window and threshold tell.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Before the threshold is known for the first time.
    SlowStart,
    /// The next slowdown comes then; `None`: two round trips after the next acknowledgment.
    Avoidance { slowdown_at: Option<Time> },
    /// The queue drains.
    Frozen { since: Time, until: Time },
    /// Back to the window before.
    Regrowth { since: Time },
}

impl LedbatPlusPlus {
    /// A new connection's.
    pub(super) fn new(segment: u16) -> LedbatPlusPlus {
        let mut base = Window::new(segment, None);
        base.window = LEAST_SEGMENTS * u32::from(segment);
        LedbatPlusPlus { base, delays: Delays::default(), phase: Phase::SlowStart, fraction: 0.0 }
    }

    /// Goes on from the window of another controller. The least round-trip time seen counts as a sample of the base
    /// delay; whether there is a queue of ours in it, the first slowdown tells.
    pub(super) fn resume(mut base: Window, least_rtt: Option<Duration>, now: Time) -> LedbatPlusPlus {
        if base.is_initial() {
            return LedbatPlusPlus::new(base.segment);
        }
        base.window = base.window.max(LEAST_SEGMENTS * u32::from(base.segment));
        let mut delays = Delays::default();
        if let Some(least) = least_rtt {
            delays.on_base(least, now);
        }
        let phase = if base.threshold == u32::MAX {
            Phase::SlowStart
        } else {
            Phase::Avoidance { slowdown_at: None }
        };
        LedbatPlusPlus { base, delays, phase, fraction: 0.0 }
    }

    fn least(&self) -> u32 {
        LEAST_SEGMENTS * u32::from(self.base.segment)
    }

    /// A loss while the queue drains is one of what was sent before: it halves the window to which regrowth goes back.
    /// What is outstanding now says nothing of that window, and half of it would end the regrowth where it begins.
    fn reduce_frozen(&mut self, window: u32) {
        self.base.reduce(self.base.threshold / 2, window);
    }

    /// One segment is divided by this: 2 · target / base delay, between 1 and 16.
    fn gain_divisor(&self) -> u32 {
        let base = self.delays.base().unwrap_or_default().as_micros().max(1);
        (2 * TARGET.as_micros()).div_ceil(base).min(u128::from(MOST_DIVISOR)) as u32
    }

    /// Moves through the cycle. True when the window stays as it is.
    fn turn(&mut self, now: Time, rtt: Duration) -> bool {
        let over = self.base.window >= self.base.threshold;
        self.phase = match self.phase {
            Phase::Avoidance { slowdown_at: Some(at) } if now >= at => {
                // On the way back to the threshold (after a pause, a time-out) that is what it goes back to.
                if over {
                    self.base.threshold = self.base.window.max(self.least());
                }
                self.base.window = self.least();
                self.fraction = 0.0;
                self.base.credit = 0;
                Phase::Frozen { since: now, until: now + rtt * SLOWDOWN_ROUND_TRIPS }
            }
            Phase::Frozen { since, until } if now >= until => Phase::Regrowth { since },
            Phase::SlowStart | Phase::Avoidance { slowdown_at: None } if over => {
                Phase::Avoidance { slowdown_at: Some(now + rtt * SLOWDOWN_ROUND_TRIPS) }
            }
            Phase::Regrowth { since } if over => {
                Phase::Avoidance { slowdown_at: Some(now + now.since(since) * SLOWDOWN_INTERVAL) }
            }
            phase => phase,
        };
        matches!(self.phase, Phase::Frozen { .. })
    }

    /// Slow start, slower by the gain. The first also ends by delay; those after a slowdown end at the window before.
    fn slow_start(&mut self, bytes: u32) {
        let queueing = self.delays.queueing().unwrap_or_default();
        if self.base.threshold == u32::MAX && queueing > TARGET * 3 / 4 {
            self.base.threshold = self.base.window;
            return;
        }
        let divisor = self.gain_divisor();
        let credit = self.base.credit.saturating_add(bytes);
        self.base.credit = credit % divisor;
        self.base.slow_start(credit / divisor);
    }

    /// Below the target, one segment times the gain each round trip more; above, less in proportion to the window
    /// and the excess, but half at most.
    fn avoid(&mut self, acknowledged: &Acknowledged) {
        let Some(queueing) = self.delays.queueing() else { return };
        let window = f64::from(self.base.window);
        let gain = f64::from(self.base.segment) / f64::from(self.gain_divisor());
        let excess = queueing.as_secs_f64() / TARGET.as_secs_f64() - 1.0;
        let each_round_trip = (gain - window * excess.max(0.0)).max(-window / 2.0);
        if each_round_trip > 0.0 && !acknowledged.window_limited {
            return;
        }
        self.fraction += each_round_trip * f64::from(acknowledged.bytes.min(self.base.window)) / window;
        let whole = self.fraction.trunc();
        self.fraction -= whole;
        let next = (window + whole).clamp(f64::from(self.least()), f64::from(MAX_WINDOW));
        self.base.window = next as u32;
        // A window that shrinks must not find itself in slow start.
        self.base.threshold = self.base.threshold.min(self.base.window);
    }
}

impl Controller for LedbatPlusPlus {
    fn base(&self) -> &Window {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Window {
        &mut self.base
    }

    fn on_acknowledged(&mut self, acknowledged: &Acknowledged) {
        if let Some(sample) = acknowledged.sample {
            self.delays.on_sample(sample, acknowledged.now);
        }
        if self.turn(acknowledged.now, acknowledged.rtt) {
            return;
        }
        if self.base.window >= self.base.threshold {
            self.avoid(acknowledged);
        } else if acknowledged.window_limited {
            self.slow_start(acknowledged.bytes);
        }
    }

    fn on_loss(&mut self, flight: u32) {
        match self.phase {
            Phase::Frozen { .. } => self.reduce_frozen(self.least()),
            _ => self.base.on_loss(self.base.used(flight) / 2),
        }
    }

    fn on_timeout(&mut self, flight: u32) {
        let segment = u32::from(self.base.segment);
        match self.phase {
            Phase::Frozen { .. } => self.reduce_frozen(segment),
            _ => self.base.reduce(self.base.used(flight) / 2, segment),
        }
    }

    fn on_recovered(&mut self, flight: u32) {
        self.base.on_recovered(flight);
        if let Phase::Frozen { .. } = self.phase {
            self.base.window = self.base.window.min(self.least());
        }
    }

    fn on_idle(&mut self) {
        self.base.on_idle();
        self.base.window = self.base.window.min(self.least());
    }

    fn set_segment(&mut self, segment: u16) {
        let is_initial = self.base.window == self.least();
        self.base.set_segment(segment);
        if is_initial {
            self.base.window = self.least();
        }
    }
}

#[cfg(test)]
mod tests;
