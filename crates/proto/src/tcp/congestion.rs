//! Congestion control: one trait, NewReno (RFC 5681) and CUBIC (RFC 9438).
//!
//! All sizes are bytes. Growth counts acknowledged bytes, not acknowledgments (RFC 3465 without its limit per
//! acknowledgment: receivers that merge segments acknowledge 64 KiB at once), and happens only while the window
//! is what limits the sender (RFC 7661 §4).

use std::time::Duration;

use scoutline_base::Time;

/// RFC 9438 §4.6: the window is multiplied by this on loss.
const CUBIC_BETA: f64 = 0.7;
/// RFC 9438 §5: how fast the cubic grows, in segments per second cubed.
const CUBIC_C: f64 = 0.4;
/// No path needs more; keeps the arithmetic far from its limits.
const MAX_WINDOW: u32 = 1 << 30;

/// Which controller a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// RFC 5681 and RFC 6582.
    NewReno,
    /// RFC 9438.
    #[default]
    Cubic,
}

/// New data was acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// How much, in bytes.
    pub bytes: u32,
    /// When.
    pub now: Time,
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// The window was used up when the data was sent.
    pub window_limited: bool,
}

/// A congestion controller.
pub trait Controller {
    /// The congestion window in bytes.
    fn window(&self) -> u32;
    /// The slow-start threshold in bytes; `u32::MAX` before the first loss.
    fn threshold(&self) -> u32;
    /// New data was acknowledged outside of fast recovery.
    fn on_acknowledged(&mut self, acknowledged: &Acknowledged);
    /// Loss was inferred from duplicate acknowledgments with `flight` bytes outstanding.
    fn on_loss(&mut self, flight: u32);
    /// The retransmission timer expired for the first time on this data.
    fn on_timeout(&mut self, flight: u32);
    /// Fast recovery is over, with `flight` bytes outstanding.
    fn on_recovered(&mut self, flight: u32);
    /// The last loss proved to be none: what was before it returns (RFC 4015 §3.2).
    fn undo(&mut self);
    /// Nothing was sent for longer than a retransmission time-out (RFC 5681 §4.1).
    fn on_idle(&mut self);
    /// The payload of a full segment changed (the handshake ended, or the path MTU fell).
    fn set_segment(&mut self, segment: u16);
}

/// What both algorithms have.
#[derive(Clone, Copy, Debug)]
struct Window {
    window: u32,
    threshold: u32,
    segment: u16,
    /// Bytes acknowledged toward the next segment of growth.
    credit: u32,
    /// Window and threshold before the last loss.
    before: Option<(u32, u32)>,
}

impl Window {
    fn new(segment: u16) -> Window {
        Window { window: initial_window(segment), threshold: u32::MAX, segment, credit: 0, before: None }
    }

    /// Slow start (RFC 5681 §3.1): the bytes left for congestion avoidance.
    fn slow_start(&mut self, bytes: u32) -> u32 {
        if self.window >= self.threshold {
            return bytes;
        }
        let grow = bytes.min(self.threshold - self.window).min(MAX_WINDOW - self.window.min(MAX_WINDOW));
        self.window += grow;
        bytes - grow
    }

    /// The part of the window that `flight` (RFC 5681 FlightSize) has used. More is outstanding than the window when
    /// data beyond a hole has left the network and others took its place; a reduction of that sum would be none.
    fn used(&self, flight: u32) -> u32 {
        flight.min(self.window)
    }

    fn reduce(&mut self, threshold: u32, window: u32) {
        self.before = Some((self.window, self.threshold));
        // RFC 5681 §3.1, equation 4: never below two segments.
        self.threshold = threshold.max(2 * u32::from(self.segment));
        self.window = window.min(self.window).max(u32::from(self.segment));
        self.credit = 0;
    }

    fn on_loss(&mut self, threshold: u32) {
        self.reduce(threshold, threshold.max(2 * u32::from(self.segment)));
    }

    fn on_recovered(&mut self, flight: u32) {
        // RFC 6582 §3.2 step 3, option 1: no burst when little is left outstanding.
        let segment = u32::from(self.segment);
        self.window = self.threshold.min(flight.max(segment).saturating_add(segment));
    }

    fn undo(&mut self) {
        if let Some((window, threshold)) = self.before.take() {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(threshold);
        }
    }

    fn on_idle(&mut self) {
        // RFC 5681 §4.1: the restart window. The threshold remembers where slow start may end again.
        if self.threshold != u32::MAX {
            self.threshold = self.threshold.max(self.window / 4 * 3);
        }
        self.window = self.window.min(initial_window(self.segment));
    }

    fn set_segment(&mut self, segment: u16) {
        if self.window == initial_window(self.segment) {
            self.window = initial_window(segment);
        }
        self.segment = segment;
        self.window = self.window.max(u32::from(segment));
    }
}

/// RFC 6928 §2
fn initial_window(segment: u16) -> u32 {
    let segment = u32::from(segment);
    (10 * segment).min((2 * segment).max(14_600))
}

/// RFC 5681 with the loss response of RFC 6582.
#[derive(Clone, Debug)]
pub struct NewReno {
    base: Window,
}

impl Controller for NewReno {
    fn window(&self) -> u32 {
        self.base.window
    }

    fn threshold(&self) -> u32 {
        self.base.threshold
    }

    fn on_acknowledged(&mut self, acknowledged: &Acknowledged) {
        if !acknowledged.window_limited {
            return;
        }
        let rest = self.base.slow_start(acknowledged.bytes);
        // RFC 5681 §3.1: one segment per window's worth of acknowledged bytes.
        self.base.credit = self.base.credit.saturating_add(rest);
        while self.base.credit >= self.base.window && self.base.window < MAX_WINDOW {
            self.base.credit -= self.base.window;
            self.base.window += u32::from(self.base.segment);
        }
    }

    fn on_loss(&mut self, flight: u32) {
        self.base.on_loss(self.base.used(flight) / 2);
    }

    fn on_timeout(&mut self, flight: u32) {
        self.base.reduce(self.base.used(flight) / 2, u32::from(self.base.segment));
    }

    fn on_recovered(&mut self, flight: u32) {
        self.base.on_recovered(flight);
    }

    fn undo(&mut self) {
        self.base.undo();
    }

    fn on_idle(&mut self) {
        self.base.on_idle();
    }

    fn set_segment(&mut self, segment: u16) {
        self.base.set_segment(segment);
    }
}

/// RFC 9438.
#[derive(Clone, Debug)]
pub struct Cubic {
    base: Window,
    /// Window before the last reduction, after fast convergence; bytes. 0 before the first.
    w_max: u32,
    w_max_before: u32,
    /// Window just before the last reduction: where the Reno estimate starts to grow as fast as Reno does.
    w_prior: u32,
    /// When this stretch of congestion avoidance began.
    epoch: Option<Time>,
    /// Seconds from the epoch to `w_max`.
    k: f32,
    /// What Reno would have by now, in bytes.
    w_est: f32,
}

impl Cubic {
    /// Congestion avoidance (RFC 9438 §4.2 to §4.5).
    fn avoid(&mut self, bytes: u32, now: Time, rtt: Duration) {
        let segment = f64::from(self.base.segment);
        let window = f64::from(self.base.window);
        let epoch = *self.epoch.get_or_insert_with(|| {
            if self.w_max <= self.base.window {
                self.w_max = self.base.window;
                self.k = 0.0;
            } else {
                let distance = f64::from(self.w_max - self.base.window) / segment;
                self.k = (distance / CUBIC_C).cbrt() as f32;
            }
            self.w_est = self.base.window as f32;
            now
        });
        // RFC 9438 §4.2: where the cubic will be one round trip from now, within [1, 1.5] windows.
        let t = (now.since(epoch) + rtt).as_secs_f64() - f64::from(self.k);
        let target = (CUBIC_C * t * t * t * segment + f64::from(self.w_max)).clamp(window, 1.5 * window);
        // RFC 9438 §4.3: the Reno-friendly region.
        let alpha = if self.w_est >= self.w_prior as f32 {
            1.0
        } else {
            3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA)
        };
        self.w_est += (alpha * f64::from(bytes) / window * segment) as f32;
        let cubic = window + (target - window) / window * f64::from(bytes.min(self.base.window));
        let next = cubic.max(f64::from(self.w_est));
        self.base.window = (next as u32).clamp(self.base.window, MAX_WINDOW);
    }

    fn remember(&mut self) {
        self.w_max_before = self.w_max;
        self.w_prior = self.base.window;
        // RFC 9438 §4.7: fast convergence leaves room for newcomers.
        self.w_max = if self.base.window < self.w_max {
            (f64::from(self.base.window) * (1.0 + CUBIC_BETA) / 2.0) as u32
        } else {
            self.base.window
        };
        self.epoch = None;
    }
}

impl Controller for Cubic {
    fn window(&self) -> u32 {
        self.base.window
    }

    fn threshold(&self) -> u32 {
        self.base.threshold
    }

    fn on_acknowledged(&mut self, acknowledged: &Acknowledged) {
        if !acknowledged.window_limited {
            return;
        }
        let rest = self.base.slow_start(acknowledged.bytes);
        // Fractions of a byte are lost to rounding in `avoid`: let small acknowledgments add up.
        self.base.credit = self.base.credit.saturating_add(rest);
        if rest > 0 && self.base.credit >= u32::from(self.base.segment) {
            let bytes = std::mem::take(&mut self.base.credit);
            self.avoid(bytes, acknowledged.now, acknowledged.rtt);
        }
    }

    fn on_loss(&mut self, flight: u32) {
        self.remember();
        self.base.on_loss((f64::from(self.base.used(flight)) * CUBIC_BETA) as u32);
    }

    fn on_timeout(&mut self, flight: u32) {
        self.remember();
        self.base
            .reduce((f64::from(self.base.used(flight)) * CUBIC_BETA) as u32, u32::from(self.base.segment));
    }

    fn on_recovered(&mut self, flight: u32) {
        self.base.on_recovered(flight);
    }

    fn undo(&mut self) {
        if self.base.before.is_some() {
            self.w_max = self.w_max_before;
            self.epoch = None;
        }
        self.base.undo();
    }

    fn on_idle(&mut self) {
        // RFC 9438 §4.2: idle time is no time for the cubic.
        self.epoch = None;
        self.base.on_idle();
    }

    fn set_segment(&mut self, segment: u16) {
        self.base.set_segment(segment);
    }
}

/// The controller of a connection: an enum, so that it lies within the connection.
#[derive(Clone, Debug)]
pub enum Congestion {
    /// RFC 5681.
    NewReno(NewReno),
    /// RFC 9438.
    Cubic(Cubic),
}

impl Congestion {
    /// A controller with the initial window of `segment` bytes of payload.
    pub fn new(algorithm: Algorithm, segment: u16) -> Congestion {
        let base = Window::new(segment);
        match algorithm {
            Algorithm::NewReno => Congestion::NewReno(NewReno { base }),
            Algorithm::Cubic => Congestion::Cubic(Cubic {
                base,
                w_max: 0,
                w_max_before: 0,
                w_prior: 0,
                epoch: None,
                k: 0.0,
                w_est: 0.0,
            }),
        }
    }

    fn base(&self) -> &Window {
        match self {
            Congestion::NewReno(controller) => &controller.base,
            Congestion::Cubic(controller) => &controller.base,
        }
    }

    fn inner(&mut self) -> &mut dyn Controller {
        match self {
            Congestion::NewReno(controller) => controller,
            Congestion::Cubic(controller) => controller,
        }
    }
}

impl Controller for Congestion {
    #[inline]
    fn window(&self) -> u32 {
        self.base().window
    }

    fn threshold(&self) -> u32 {
        self.base().threshold
    }

    fn on_acknowledged(&mut self, acknowledged: &Acknowledged) {
        match self {
            Congestion::NewReno(controller) => controller.on_acknowledged(acknowledged),
            Congestion::Cubic(controller) => controller.on_acknowledged(acknowledged),
        }
    }

    fn on_loss(&mut self, flight: u32) {
        self.inner().on_loss(flight);
    }

    fn on_timeout(&mut self, flight: u32) {
        self.inner().on_timeout(flight);
    }

    fn on_recovered(&mut self, flight: u32) {
        self.inner().on_recovered(flight);
    }

    fn undo(&mut self) {
        self.inner().undo();
    }

    fn on_idle(&mut self) {
        self.inner().on_idle();
    }

    fn set_segment(&mut self, segment: u16) {
        self.inner().set_segment(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u16 = 1448;

    fn acknowledged(bytes: u32, millis: u64, window_limited: bool) -> Acknowledged {
        Acknowledged { bytes, now: Time::from_millis(millis), rtt: Duration::from_millis(20), window_limited }
    }

    #[test]
    fn both_start_with_ten_segments_and_double_per_window() {
        for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
            let mut controller = Congestion::new(algorithm, SEGMENT);
            assert_eq!(controller.window(), 14_480);
            controller.on_acknowledged(&acknowledged(14_480, 1, false));
            assert_eq!(controller.window(), 14_480, "no growth while the window is not used");
            controller.on_acknowledged(&acknowledged(14_480, 1, true));
            assert_eq!(controller.window(), 28_960);
        }
        assert_eq!(initial_window(9000), 18_000);
        assert_eq!(initial_window(500), 5_000);
    }

    #[test]
    fn reno_halves_and_then_adds_one_segment_per_window() {
        let mut controller = Congestion::new(Algorithm::NewReno, SEGMENT);
        controller.on_acknowledged(&acknowledged(100_000, 1, true));
        let window = controller.window();
        controller.on_loss(window);
        assert_eq!((controller.window(), controller.threshold()), (window / 2, window / 2));
        controller.on_acknowledged(&acknowledged(window / 2, 2, true));
        assert_eq!(controller.window(), window / 2 + u32::from(SEGMENT));
    }

    #[test]
    fn what_piled_up_behind_a_hole_does_not_soften_the_reduction() {
        for (algorithm, factor) in [(Algorithm::NewReno, 0.5), (Algorithm::Cubic, CUBIC_BETA)] {
            for timeout in [false, true] {
                let mut controller = Congestion::new(algorithm, SEGMENT);
                controller.on_acknowledged(&acknowledged(100_000, 1, true));
                let window = controller.window();
                if timeout {
                    controller.on_timeout(5 * window);
                } else {
                    controller.on_loss(5 * window);
                }
                let reduced = (f64::from(window) * factor) as u32;
                let now = if timeout { u32::from(SEGMENT) } else { reduced };
                assert_eq!((controller.window(), controller.threshold()), (now, reduced), "{algorithm:?}");
            }
        }
    }

    #[test]
    fn cubic_returns_to_the_old_window_at_k_and_then_passes_it() {
        let mut controller = Congestion::new(Algorithm::Cubic, SEGMENT);
        controller.on_acknowledged(&acknowledged(1_000_000, 0, true));
        let before = controller.window();
        controller.on_loss(before);
        let low = controller.window();
        assert!((low as f64 - before as f64 * 0.7).abs() < 2.0);
        // K = cbrt(0.3 W / C): about 8 s for 700 segments.
        let k = (f64::from(before - low) / f64::from(SEGMENT) / 0.4).cbrt();
        let mut at_k = 0;
        for step in 0..1_000u64 {
            let millis = step * 20;
            controller.on_acknowledged(&acknowledged(controller.window(), millis, true));
            if (millis as f64) < k * 1000.0 {
                at_k = controller.window();
            }
        }
        let error = (f64::from(at_k) - f64::from(before)).abs() / f64::from(before);
        assert!(error < 0.05, "{at_k} against {before}");
        assert!(controller.window() > before + before / 10);
    }

    #[test]
    fn timeouts_leave_one_segment_and_undo_restores() {
        for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
            let mut controller = Congestion::new(algorithm, SEGMENT);
            controller.on_acknowledged(&acknowledged(100_000, 1, true));
            let (window, threshold) = (controller.window(), controller.threshold());
            controller.on_timeout(window);
            assert_eq!(controller.window(), u32::from(SEGMENT));
            controller.undo();
            assert_eq!((controller.window(), controller.threshold()), (window, threshold));
            controller.undo();
            assert_eq!(controller.window(), window);
            controller.on_idle();
            assert_eq!(controller.window(), 14_480);
            controller.on_loss(10);
            assert_eq!(controller.threshold(), 2 * u32::from(SEGMENT));
        }
    }
}
