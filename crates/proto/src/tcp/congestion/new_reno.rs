//! NewReno: RFC 5681 with the loss response of RFC 6582.

use super::window::{MAX_WINDOW, Window};
use super::{Acknowledged, Controller};

/// RFC 5681 with the loss response of RFC 6582.
#[derive(Clone, Debug)]
pub struct NewReno {
    pub(super) base: Window,
}

impl Controller for NewReno {
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
        let rest = self.base.slow_start(acknowledged.bytes);
        // RFC 5681 §3.1: one segment per window's worth of acknowledged bytes.
        self.base.credit = self.base.credit.saturating_add(rest);
        while self.base.credit >= self.base.window && self.base.window < MAX_WINDOW {
            self.base.credit -= self.base.window;
            self.base.window += u32::from(self.base.segment);
        }
    }
}
