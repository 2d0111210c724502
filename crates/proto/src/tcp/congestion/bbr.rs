//! BBR (draft-cardwell-iccrg-bbr-congestion-control-00, version 1): a model of the path in place of losses.
//!
//! The model is the bottleneck's bandwidth (the highest delivery rate of the last ten round trips) and the round trip
//! without queues (the least of the last ten seconds). Data leaves at a multiple of the bandwidth (pacing), and the
//! window is a multiple of their product.
//!
//! ```text
//!  startup ── bandwidth grows no more ──► drain ── queue is empty ──► probe bandwidth: 5/4, 3/4, 1, 1, 1, 1, 1, 1
//!                                                                        ▲          │ no lower round trip for 10 s
//!                                                                        └── probe round trip: 4 segments, 200 ms
//! ```
//! Loss changes nothing in the model; in the first round trip of a recovery as much leaves as arrives. Marks (ECN) mean
//! nothing to it, so its packets are not sent as capable of them.
//!
//! Left out: Linux's long-term sampling for policers, and its allowance for aggregated acknowledgments beyond three
//! bursts.

mod rate;

use std::time::Duration;

use scoutline_base::Time;

use self::rate::{DeliveryRate, Sample};
use super::window::{MAX_WINDOW, Window};
use super::{Acknowledged, Controller, Moved};
use crate::tcp::pacing;

/// 2/ln 2: the least gain with which the rate of sending can double each round trip.
const HIGH_GAIN: f64 = 2.885;
/// The window's gain while probing for bandwidth: allows for delayed acknowledgments.
const WINDOW_GAIN: f64 = 2.0;
/// One round trip each: probe, drain what the probe queued, cruise.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// The bandwidth filter forgets after so many round trips.
const BANDWIDTH_ROUNDS: usize = 10;
/// The least round trip is looked for anew after so long.
const RTT_LIFETIME: Duration = Duration::from_secs(10);
/// So long the window stays at its least for that.
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
/// BBRMinPipeCwnd
const LEAST_SEGMENTS: u32 = 4;
/// The pipe is full when the bandwidth did not grow by this in so many round trips.
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u8 = 3;
/// The rate leaves this part of the bandwidth free, so that queues drain (Linux: `bbr_pacing_margin_percent`).
const MARGIN: f64 = 0.99;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Startup,
    Drain,
    ProbeBandwidth {
        phase: usize,
        since: Time,
    },
    /// `until`: known once the window is small; `round`: what was delivered when that began.
    ProbeRtt {
        until: Option<Time>,
        round: u64,
    },
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Bbr {
    base: Window,
    rate: DeliveryRate,
    mode: Mode,
    /// The highest delivery rate of each of the last round trips that told of the path. Those in which the program had
    /// too little to send do not count, or ten small requests would forget what the path can do.
    bandwidths: [u64; BANDWIDTH_ROUNDS],
    round: usize,
    /// A round trip has ended since the last measurement that was taken.
    is_next_round: bool,
    /// The least rate of startup: the initial window within a round trip, and whatever rate was reached since.
    fastest: u64,
    first_window: u32,
    /// A round trip ends when what was sent after so much was delivered arrives.
    round_ends: u64,
    /// The least round trip, and when it was seen.
    least: Option<Duration>,
    least_at: Time,
    /// The bandwidth at which growth is measured, and round trips without.
    full_bandwidth: u64,
    full_rounds: u8,
    full: bool,
    /// The window before recovery, a time-out or a probe of the round trip.
    saved: u32,
    recovering: bool,
    /// In the first round trip of a recovery.
    conserving: bool,
    lost_in_round: bool,
    /// Nothing was in flight when the last data left, and nothing has been acknowledged since.
    restarted: bool,
}

impl Bbr {
    /// Goes on from this window, and round trip if one is known.
    pub(super) fn new(base: Window, least: Option<Duration>, now: Time) -> Bbr {
        Bbr {
            first_window: base.window,
            base: Window { threshold: u32::MAX, ..base },
            rate: DeliveryRate::default(),
            mode: Mode::Startup,
            bandwidths: [0; BANDWIDTH_ROUNDS],
            round: 0,
            is_next_round: false,
            fastest: 0,
            round_ends: 0,
            least,
            least_at: now,
            full_bandwidth: 0,
            full_rounds: 0,
            full: false,
            saved: 0,
            recovering: false,
            conserving: false,
            lost_in_round: false,
            restarted: false,
        }
    }

    /// BBR.BtlBw, in bytes a second; 0 before it is known.
    fn bandwidth(&self) -> u64 {
        self.bandwidths.iter().copied().max().unwrap_or(0)
    }

    fn gain(&self) -> f64 {
        match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => 1.0 / HIGH_GAIN,
            Mode::ProbeBandwidth { phase, .. } => CYCLE[phase],
            Mode::ProbeRtt { .. } => 1.0,
        }
    }

    fn window_gain(&self) -> f64 {
        match self.mode {
            Mode::Startup | Mode::Drain => HIGH_GAIN,
            Mode::ProbeBandwidth { .. } | Mode::ProbeRtt { .. } => WINDOW_GAIN,
        }
    }

    /// What is in flight at `gain` times the product of bandwidth and round trip, with room for bursts (draft
    /// §4.2.3.2); `None` before both are known.
    fn target(&self, gain: f64) -> Option<u32> {
        let (bandwidth, least) = (self.bandwidth(), self.least?);
        if bandwidth == 0 {
            return None;
        }
        let product = bandwidth as f64 * least.as_secs_f64() * gain;
        let burst = pacing::burst(bandwidth, u32::from(self.base.segment));
        Some((product as u64 + 3 * burst).min(u64::from(MAX_WINDOW)) as u32)
    }

    fn least_window(&self) -> u32 {
        LEAST_SEGMENTS * u32::from(self.base.segment)
    }

    /// Takes a measurement; true when a round trip has ended.
    fn on_sample(&mut self, sample: &Sample, now: Time) -> bool {
        let ended = sample.prior_delivered >= self.round_ends;
        if ended {
            self.round_ends = self.rate.delivered();
            self.is_next_round = true;
            self.conserving = false;
        }
        if let Some(rate) = sample.rate
            && (!sample.app_limited || rate >= self.bandwidth())
        {
            self.take(rate);
        }
        if ended && !self.full && !sample.app_limited {
            self.check_full();
        }
        let expired = now.since(self.least_at) > RTT_LIFETIME;
        // What comes back from an empty path is such a probe already.
        let is_probed = matches!(self.mode, Mode::ProbeRtt { .. }) || self.restarted;
        if expired && !is_probed && self.least.is_some() {
            self.save();
            self.mode = Mode::ProbeRtt { until: None, round: 0 };
        }
        if expired || self.least.is_none_or(|least| sample.rtt <= least) {
            self.least = Some(sample.rtt);
            self.least_at = now;
        }
        self.restarted = false;
        if !self.full {
            self.fastest = self.fastest.max(self.model_rate());
        }
        ended
    }

    fn take(&mut self, rate: u64) {
        if std::mem::take(&mut self.is_next_round) {
            self.round = (self.round + 1) % BANDWIDTH_ROUNDS;
            self.bandwidths[self.round] = 0;
        }
        let best = &mut self.bandwidths[self.round];
        *best = rate.max(*best);
    }

    fn model_rate(&self) -> u64 {
        (self.gain() * self.bandwidth() as f64 * MARGIN) as u64
    }

    fn check_full(&mut self) {
        let bandwidth = self.bandwidth();
        if bandwidth as f64 >= self.full_bandwidth as f64 * FULL_GROWTH {
            self.full_bandwidth = bandwidth;
            self.full_rounds = 0;
            return;
        }
        self.full_rounds += 1;
        self.full = self.full_rounds >= FULL_ROUNDS;
    }

    fn turn(&mut self, in_flight: u64, now: Time) {
        if self.mode == Mode::Startup && self.full {
            self.mode = Mode::Drain;
        }
        let drained = self.target(1.0).is_some_and(|target| in_flight <= u64::from(target));
        match self.mode {
            Mode::Drain if drained => self.probe_bandwidth(now),
            Mode::ProbeBandwidth { phase, since } => {
                let long = self.least.is_some_and(|least| now.since(since) > least);
                let gain = CYCLE[phase];
                let next = if gain > 1.0 {
                    let reached = self.target(gain).is_some_and(|target| in_flight >= u64::from(target));
                    long && (self.lost_in_round || reached)
                } else {
                    long || (gain < 1.0 && drained)
                };
                if next {
                    self.mode = Mode::ProbeBandwidth { phase: (phase + 1) % CYCLE.len(), since: now };
                    self.lost_in_round = false;
                }
            }
            Mode::ProbeRtt { until: None, .. } if in_flight <= u64::from(self.least_window()) => {
                let round = self.rate.delivered();
                self.mode = Mode::ProbeRtt { until: Some(now + PROBE_RTT_TIME), round };
            }
            Mode::ProbeRtt { until: Some(until), round } if now >= until && self.round_ends > round => {
                self.least_at = now;
                self.base.window = self.base.window.max(self.saved);
                if self.full {
                    self.probe_bandwidth(now);
                } else {
                    self.mode = Mode::Startup;
                }
            }
            _ => {}
        }
    }

    fn probe_bandwidth(&mut self, now: Time) {
        // Flows that began together shall not probe together: any phase but the one that drains.
        let phase = (2 + now.as_nanos() / 1000 % 7) as usize % CYCLE.len();
        self.mode = Mode::ProbeBandwidth { phase, since: now };
    }

    fn save(&mut self) {
        self.saved = if self.recovering || matches!(self.mode, Mode::ProbeRtt { .. }) {
            self.saved.max(self.base.window)
        } else {
            self.base.window
        };
    }

    fn set_window(&mut self, moved: &Moved) {
        let bytes = moved.bytes.min(u64::from(MAX_WINDOW)) as u32;
        let in_flight = moved.in_flight.min(u64::from(MAX_WINDOW)) as u32;
        if moved.recovering != self.recovering {
            if moved.recovering {
                self.save();
                self.conserving = true;
                self.lost_in_round = true;
                self.base.window = in_flight + bytes;
            } else {
                self.base.window = self.base.window.max(self.saved);
                self.conserving = false;
            }
            self.recovering = moved.recovering;
        }
        let window = self.base.window;
        let target = self.target(self.window_gain());
        self.base.window = match target {
            _ if self.conserving => window.max(in_flight + bytes),
            Some(target) if self.full => window.saturating_add(bytes).min(target),
            Some(target)
                if window >= target
                    && self.rate.delivered() >= u64::from(self.base.initial(self.base.segment)) =>
            {
                window
            }
            _ => window.saturating_add(bytes),
        };
        if let Mode::ProbeRtt { .. } = self.mode {
            self.base.window = self.base.window.min(self.least_window());
        }
        self.base.window = self.base.window.clamp(self.least_window(), MAX_WINDOW);
    }
}

impl Controller for Bbr {
    fn base(&self) -> &Window {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Window {
        &mut self.base
    }

    /// All is in [`Controller::on_moved`].
    fn on_acknowledged(&mut self, _acknowledged: &Acknowledged) {}

    fn on_sent(&mut self, end: u64, in_flight: u64, now: Time) {
        self.restarted |= in_flight == 0;
        self.rate.on_sent(end, in_flight, now);
    }

    fn on_app_limited(&mut self, in_flight: u64) {
        self.rate.on_app_limited(in_flight);
    }

    fn on_moved(&mut self, moved: &Moved) {
        let least = self.least.unwrap_or_default();
        if let Some(sample) = self.rate.on_delivered(moved.bytes, moved.newest, least, moved.now) {
            self.on_sample(&sample, moved.now);
        }
        self.turn(moved.in_flight, moved.now);
        self.set_window(moved);
    }

    /// Losses are no part of the model; see [`Bbr::set_window`] for what recovery does.
    fn on_loss(&mut self, _flight: u32) {}

    fn on_timeout(&mut self, _flight: u32) {
        self.save();
        self.base.before = Some((self.base.window, self.base.threshold));
        self.base.window = u32::from(self.base.segment);
    }

    fn on_recovered(&mut self, _flight: u32) {}

    fn on_idle(&mut self) {}

    fn rate(&self, round_trip: Duration) -> Option<u64> {
        if self.full {
            return Some(self.model_rate());
        }
        // Draft §4.2.1 (BBRInitPacingRate, BBRSetPacingRateWithGain): the initial window within a round trip, or a
        // millisecond where none is known; and no less until the pipe was full once, for the little that a program sent
        // so far says nothing of the path.
        let round_trip = if round_trip.is_zero() { Duration::from_millis(1) } else { round_trip };
        let first = (HIGH_GAIN * f64::from(self.first_window) / round_trip.as_secs_f64()) as u64;
        Some(first.max(self.fastest))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const SEGMENT: u16 = 1_000;

    /// A path of some delay with the controller alone on it, which sends what its window takes, at its rate.
    struct Path {
        bbr: Bbr,
        now: Time,
        free_at: Time,
        delay: Duration,
        pacer: pacing::Pacer,
        next: u64,
        under_way: VecDeque<(Time, u64)>,
    }

    impl Path {
        fn new() -> Path {
            let bbr = Bbr::new(Window::new(SEGMENT, None), None, Time::ZERO);
            let begin = Time::from_millis(1);
            let delay = Duration::from_millis(40);
            let pacer = pacing::Pacer::default();
            Path { bbr, now: begin, free_at: begin, delay, pacer, next: 1, under_way: VecDeque::new() }
        }

        fn in_flight(&self) -> u64 {
            self.under_way.len() as u64 * 1_000
        }

        fn send(&mut self, rate: u64) {
            self.bbr.on_sent(self.next + 1_000, self.in_flight(), self.now);
            self.next += 1_000;
            self.pacer.on_sent(1_000, self.bbr.rate(self.delay).unwrap(), self.now);
            let takes = Duration::from_nanos(1_000 * 1_000_000_000 / rate);
            self.free_at = self.free_at.max(self.now) + takes;
            self.under_way.push_back((self.free_at + self.delay, self.next));
        }

        /// Goes on for so long, at so many bytes a second.
        fn run(&mut self, millis: u64, rate: u64, recovering: bool) {
            let end = self.now + Duration::from_millis(millis);
            while self.now < end {
                if self.in_flight() + 1_000 <= u64::from(self.bbr.window()) {
                    let Some(wait) = self.pacer.wait(self.now) else {
                        self.send(rate);
                        continue;
                    };
                    if self.under_way.front().is_none_or(|(at, _)| wait < *at) {
                        self.now = wait;
                        continue;
                    }
                }
                let (at, unit) = self.under_way.pop_front().unwrap();
                self.now = at;
                let in_flight = self.in_flight();
                self.bbr.on_moved(&Moved {
                    bytes: 1_000,
                    newest: Some(unit),
                    in_flight,
                    recovering,
                    now: at,
                });
            }
        }
    }

    #[test]
    fn startup_fills_the_pipe_then_drains_and_cruises() {
        let mut path = Path::new();
        assert_eq!(path.bbr.window(), 10_000);
        path.run(45, 1_000_000, false);
        assert!((14_000..=20_000).contains(&path.bbr.window()), "it doubles: {}", path.bbr.window());
        path.run(2_000, 1_000_000, false);
        assert!(path.bbr.full);
        assert!(matches!(path.bbr.mode, Mode::ProbeBandwidth { .. }), "{:?}", path.bbr.mode);
        let bandwidth = path.bbr.bandwidth();
        assert!((900_000..=1_010_000).contains(&bandwidth), "{bandwidth}");
        // Twice 41 ms at that rate, and three bursts.
        assert!((80_000..=95_000).contains(&path.bbr.window()), "{}", path.bbr.window());
        let rate = path.bbr.rate(Duration::ZERO).unwrap();
        assert!((650_000..=1_260_000).contains(&rate), "{rate}");
    }

    #[test]
    fn losses_change_the_window_only_while_they_are_repaired() {
        let mut path = Path::new();
        path.run(2_000, 1_000_000, false);
        let window = path.bbr.window();
        path.bbr.on_loss(window);
        assert_eq!(path.bbr.window(), window);
        path.run(60, 1_000_000, true);
        path.run(60, 1_000_000, false);
        assert!(path.bbr.window() >= window * 9 / 10, "{} after {window}", path.bbr.window());
        path.bbr.on_timeout(window);
        assert_eq!(path.bbr.window(), 1_000);
        path.bbr.undo();
        assert!(path.bbr.window() >= window * 9 / 10);
    }

    #[test]
    fn a_slower_path_is_believed_after_ten_round_trips_and_a_faster_one_at_once() {
        let mut path = Path::new();
        path.run(2_000, 1_000_000, false);
        path.run(4_000, 500_000, false);
        assert!(path.bbr.bandwidth() <= 520_000, "{}", path.bbr.bandwidth());
        path.run(200, 2_000_000, false);
        assert!(path.bbr.bandwidth() > 520_000);
    }

    #[test]
    fn the_round_trip_is_probed_after_ten_seconds() {
        let mut path = Path::new();
        path.run(2_000, 1_000_000, false);
        // The path is longer from now on: nothing shows that but waiting.
        path.delay = Duration::from_millis(60);
        let began = path.now;
        while !matches!(path.bbr.mode, Mode::ProbeRtt { .. }) {
            path.run(10, 1_000_000, false);
            assert!(path.now < began + Duration::from_secs(12));
        }
        let small = path.now;
        while matches!(path.bbr.mode, Mode::ProbeRtt { .. }) {
            path.run(10, 1_000_000, false);
            assert!(path.now < small + Duration::from_secs(1));
        }
        assert!(path.now.since(small) >= PROBE_RTT_TIME, "{:?}", path.now.since(small));
        assert!(path.bbr.window() > 40_000, "and what was before returns: {}", path.bbr.window());
    }
    /// A program that sends so many bytes each round trip of 20 ms, and waits for them to arrive.
    fn echo(path: &mut Path, bytes: u64, times: u64) {
        for _ in 0..times {
            path.next += bytes;
            path.bbr.on_sent(path.next, 0, path.now);
            path.bbr.on_app_limited(bytes);
            path.now += Duration::from_millis(20);
            let newest = Some(path.next);
            path.bbr.on_moved(&Moved { bytes, newest, in_flight: 0, recovering: false, now: path.now });
            path.bbr.on_app_limited(0);
        }
    }

    #[test]
    fn small_requests_do_not_slow_the_start() {
        let mut path = Path::new();
        let round_trip = Duration::from_millis(20);
        for (bytes, times) in [(1, 30), (100, 2), (1_460, 1)] {
            echo(&mut path, bytes, times);
            assert!(!path.bbr.full);
            let rate = path.bbr.rate(round_trip).unwrap();
            assert!(rate >= 1_440_000, "{rate} after {times} times {bytes}: 2.885 * 10,000 bytes in 20 ms");
        }
        path.bbr.on_timeout(1_000);
        let rate = path.bbr.rate(round_trip).unwrap();
        assert!(rate >= 1_440_000, "{rate} after a time-out");
    }

    #[test]
    fn small_requests_do_not_forget_what_the_path_can_do() {
        let mut path = Path::new();
        path.run(2_000, 1_000_000, false);
        while let Some((at, unit)) = path.under_way.pop_front() {
            path.now = at;
            let in_flight = path.in_flight();
            let moved = Moved { bytes: 1_000, newest: Some(unit), in_flight, recovering: false, now: at };
            path.bbr.on_moved(&moved);
            path.bbr.on_app_limited(in_flight);
        }
        let before = path.bbr.bandwidth();
        echo(&mut path, 100, 1_000);
        assert_eq!(path.bbr.bandwidth(), before);
        // Twenty seconds of them are themselves probes of the round trip: no window of four segments for that.
        assert!(matches!(path.bbr.mode, Mode::ProbeBandwidth { .. }), "{:?}", path.bbr.mode);
    }
}
