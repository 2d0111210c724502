//! When something that has failed is tried again.

/// Looks after a failure before it is tried again; twice as many after each further one.
const PAUSE_LOOKS: u32 = 8;
const LONGEST_PAUSE_LOOKS: u32 = 1024;

/// Counted by somebody who looks now and then.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// In a row.
    pub(crate) failures: u32,
    /// Looks until it is tried again.
    pause: u32,
}

impl Retry {
    /// It may be tried.
    pub(crate) fn is_due(&self) -> bool {
        self.pause == 0
    }

    /// Somebody has looked.
    pub(crate) fn on_look(&mut self) {
        self.pause = self.pause.saturating_sub(1);
    }

    /// It failed. True for the first time in a row: then people are told.
    pub(crate) fn on_failure(&mut self) -> bool {
        self.pause = PAUSE_LOOKS.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE_LOOKS);
        self.failures += 1;
        self.failures == 1
    }

    /// It worked.
    pub(crate) fn on_success(&mut self) {
        *self = Retry::default();
    }
}
