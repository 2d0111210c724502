//! CUBIC (RFC 9438), with HyStart++ (RFC 9406).

use std::time::Duration;

use scoutline_base::Time;

use super::hystart::{Growth, HyStart};
use super::window::{MAX_WINDOW, Window};
use super::{Acknowledged, Controller};

/// RFC 9438 §4.6: the window is multiplied by this on loss.
pub(super) const CUBIC_BETA: f64 = 0.7;
/// RFC 9438 §5: how fast the cubic grows, in segments per second cubed.
const CUBIC_C: f64 = 0.4;

/// RFC 9438.
#[derive(Clone, Debug)]
pub struct Cubic {
    pub(super) base: Window,
    /// Window before the last reduction, after fast convergence; bytes. 0 before the first.
    w_max: u32,
    w_max_before: u32,
    /// Window just before the last reduction: where the Reno estimate starts to grow as fast as Reno does.
    w_prior: u32,
    /// When this stretch of congestion avoidance began; `Time::MAX`: it is still to begin.
    epoch: Time,
    /// Seconds from the epoch to `w_max`.
    k: f32,
    /// What Reno would have by now, in bytes.
    w_est: f32,
    /// The first slow start.
    hystart: HyStart,
}

impl Cubic {
    /// Goes on from this window.
    pub(super) fn new(base: Window) -> Cubic {
        Cubic {
            base,
            w_max: 0,
            w_max_before: 0,
            w_prior: 0,
            epoch: Time::MAX,
            k: 0.0,
            w_est: 0.0,
            hystart: HyStart::default(),
        }
    }

    /// Congestion avoidance (RFC 9438 §4.2 to §4.5).
    fn avoid(&mut self, bytes: u32, now: Time, rtt: Duration) {
        let segment = f64::from(self.base.segment);
        let window = f64::from(self.base.window);
        if self.epoch == Time::MAX {
            if self.w_max <= self.base.window {
                self.w_max = self.base.window;
                self.k = 0.0;
            } else {
                let distance = f64::from(self.w_max - self.base.window) / segment;
                self.k = (distance / CUBIC_C).cbrt() as f32;
            }
            self.w_est = self.base.window as f32;
            self.epoch = now;
        }
        // RFC 9438 §4.2: where the cubic will be one round trip from now, within [1, 1.5] windows.
        let t = (now.since(self.epoch) + rtt).as_secs_f64() - f64::from(self.k);
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

    /// What a loss leaves of the window: of all of it, as RFC 9438 §4.6 allows where a window that is not used does not
    /// grow, and as Linux does. One segment lost of a connection that had little to say costs it no more than that.
    fn reduced(&self) -> u32 {
        (f64::from(self.base.window) * CUBIC_BETA) as u32
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
        self.epoch = Time::MAX;
    }
}

impl Controller for Cubic {
    fn base(&self) -> &Window {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Window {
        &mut self.base
    }

    fn on_acknowledged(&mut self, acknowledged: &Acknowledged) {
        if !acknowledged.window_limited {
            return;
        }
        if self.base.threshold == u32::MAX {
            // RFC 9406 §4.3: the first slow start.
            match self.hystart.on_acknowledged(acknowledged) {
                Growth::By(bytes) => {
                    self.base.slow_start(bytes);
                }
                Growth::Exit => self.base.threshold = self.base.window,
            }
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

    fn on_loss(&mut self, _flight: u32) {
        self.remember();
        self.base.on_loss(self.reduced());
    }

    fn on_timeout(&mut self, _flight: u32) {
        self.remember();
        self.base.reduce(self.reduced(), u32::from(self.base.segment));
    }

    fn undo(&mut self) {
        if self.base.before.is_some() {
            self.w_max = self.w_max_before;
            self.epoch = Time::MAX;
        }
        self.base.undo();
    }

    fn on_idle(&mut self) {
        // RFC 9438 §4.2: idle time is no time for the cubic.
        self.epoch = Time::MAX;
        self.base.on_idle();
    }
}
