//! NewReno: RFC 5681 with the loss response of RFC 6582.

use super::window::{MAX_WINDOW, Window};
use super::{Acknowledged, Controller};

/// RFC 5681 with the loss response of RFC 6582.
#[derive(Clone, Debug)]
pub struct NewReno {
    pub(super) base: Window,
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
