//! A thread that may not be raised is tried again, ever more seldom.
//!
//! Each by itself: whether the kernel allows it depends on the thread (its user, its limits, its control group) as well as
//! on us, and may change.

use std::time::Duration;

use scoutline_base::Time;

/// How long the first refusal counts.
const FIRST: Duration = Duration::from_millis(100);
/// How long one counts at most: an attempt costs a few microseconds.
const MOST: Duration = Duration::from_secs(10);

/// Whether a thread was refused, and until when that counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refusal(Option<(Time, Duration)>);

impl Refusal {
    /// It is not to be tried now.
    pub(super) fn holds(self, now: Time) -> bool {
        self.0.is_some_and(|(until, _)| now < until)
    }

    /// It was tried in vain.
    pub(super) fn again(&mut self, now: Time) {
        let wait = self.0.map_or(FIRST, |(_, last)| (last * 2).min(MOST));
        self.0 = Some((now + wait, wait));
    }
}
