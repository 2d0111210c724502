//! The window that every controller moves, and RFC 5681's ways of moving it.

use std::num::NonZeroU16;

/// No path needs more; keeps the arithmetic far from its limits.
pub(super) const MAX_WINDOW: u32 = 1 << 30;

/// What all algorithms have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(super) window: u32,
    pub(super) threshold: u32,
    pub(super) segment: u16,
    /// The initial window in segments, where a route says so.
    pub(super) initial: Option<NonZeroU16>,
    /// Bytes acknowledged toward the next segment of growth.
    pub(super) credit: u32,
    /// Window and threshold before the last loss.
    pub(super) before: Option<(u32, u32)>,
}

impl Window {
    pub(super) fn new(segment: u16, initial: Option<u16>) -> Window {
        let initial = initial.and_then(NonZeroU16::new);
        let mut window = Window { window: 0, threshold: u32::MAX, segment, initial, credit: 0, before: None };
        window.window = window.initial(segment);
        window
    }

    /// The initial window with segments of this size.
    pub(super) fn initial(&self, segment: u16) -> u32 {
        let said = |count: NonZeroU16| (u32::from(count.get()) * u32::from(segment)).min(MAX_WINDOW);
        self.initial.map_or_else(|| initial_window(segment), said)
    }

    /// True before anything has happened.
    pub(super) fn is_initial(&self) -> bool {
        self.window == self.initial(self.segment) && self.threshold == u32::MAX
    }

    /// The same, for another algorithm to go on from.
    pub(super) fn resumed(&self) -> Window {
        Window { credit: 0, before: None, ..*self }
    }

    /// Slow start (RFC 5681 §3.1): the bytes left for congestion avoidance.
    pub(super) fn slow_start(&mut self, bytes: u32) -> u32 {
        if self.window >= self.threshold {
            return bytes;
        }
        let grow = bytes.min(self.threshold - self.window).min(MAX_WINDOW - self.window.min(MAX_WINDOW));
        self.window += grow;
        bytes - grow
    }

    /// The part of the window that `flight` (RFC 5681 FlightSize) has used. More is outstanding than the window when
    /// data beyond a hole has left the network and others took its place; a reduction of that sum would be none.
    pub(super) fn used(&self, flight: u32) -> u32 {
        flight.min(self.window)
    }

    pub(super) fn reduce(&mut self, threshold: u32, window: u32) {
        self.before = Some((self.window, self.threshold));
        // RFC 5681 §3.1, equation 4: never below two segments.
        self.threshold = threshold.max(2 * u32::from(self.segment));
        self.window = window.min(self.window).max(u32::from(self.segment));
        self.credit = 0;
    }

    pub(super) fn on_loss(&mut self, threshold: u32) {
        self.reduce(threshold, threshold.max(2 * u32::from(self.segment)));
    }

    pub(super) fn on_recovered(&mut self, flight: u32) {
        // RFC 6582 §3.2 step 3, option 1: no burst when little is left outstanding.
        let segment = u32::from(self.segment);
        self.window = self.threshold.min(flight.max(segment).saturating_add(segment));
    }

    pub(super) fn undo(&mut self) {
        if let Some((window, threshold)) = self.before.take() {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(threshold);
        }
    }

    pub(super) fn on_idle(&mut self) {
        // RFC 5681 §4.1: the restart window. The threshold remembers where slow start may end again.
        if self.threshold != u32::MAX {
            self.threshold = self.threshold.max(self.window / 4 * 3);
        }
        self.window = self.window.min(self.initial(self.segment));
    }

    pub(super) fn set_segment(&mut self, segment: u16) {
        if self.window == self.initial(self.segment) {
            self.window = self.initial(segment);
        }
        self.segment = segment;
        self.window = self.window.max(u32::from(segment));
    }
}

/// RFC 6928 §2
pub(super) fn initial_window(segment: u16) -> u32 {
    let segment = u32::from(segment);
    (10 * segment).min((2 * segment).max(14_600))
}
