//! Lines of the log about who was refused: one a second at most, and how many were left out. Who may connect could fill
//! the log otherwise.

use std::time::{Duration, Instant};

/// Between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// What was said, and when.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    said: Option<Instant>,
    left_out: u32,
}

impl Complaints {
    /// Says this, or counts it.
    pub(super) fn add(&mut self, line: impl FnOnce() -> String) {
        if let Some(line) = self.line_at(Instant::now(), line) {
            log::warn!("attach: {line}");
        }
    }

    /// Says how many were left out, once that may be said.
    pub(super) fn tell_the_rest(&mut self) {
        if self.left_out > 0
            && let Some(line) = self.rest_at(Instant::now())
        {
            log::warn!("attach: {line}");
        }
    }

    fn line_at(&mut self, now: Instant, line: impl FnOnce() -> String) -> Option<String> {
        if !self.is_time(now) {
            self.left_out += 1;
            return None;
        }
        self.said = Some(now);
        Some(match std::mem::take(&mut self.left_out) {
            0 => line(),
            more => format!("{}; {more} more like it before", line()),
        })
    }

    fn rest_at(&mut self, now: Instant) -> Option<String> {
        if self.left_out == 0 || !self.is_time(now) {
            return None;
        }
        self.said = Some(now);
        Some(format!("{} more were refused or disconnected", std::mem::take(&mut self.left_out)))
    }

    fn is_time(&self, now: Instant) -> bool {
        self.said.is_none_or(|said| now.saturating_duration_since(said) >= PAUSE)
    }
}

impl Drop for Complaints {
    fn drop(&mut self) {
        if self.left_out > 0 {
            log::warn!("attach: {} more were refused or disconnected", self.left_out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_and_the_others_are_counted() {
        let (start, mut complaints) = (Instant::now(), Complaints::default());
        let mut at = |ms, name: &str| {
            complaints.line_at(start + Duration::from_millis(ms), || format!("pid {name} is refused"))
        };
        assert_eq!(at(0, "1").as_deref(), Some("pid 1 is refused"));
        assert_eq!((at(1, "2"), at(500, "3"), at(999, "4")), (None, None, None));
        assert_eq!(at(1000, "5").as_deref(), Some("pid 5 is refused; 3 more like it before"));
        assert_eq!(at(1001, "6"), None);
        assert_eq!(complaints.rest_at(start + Duration::from_millis(1999)), None);
        let rest = complaints.rest_at(start + Duration::from_secs(2));
        assert_eq!(rest.as_deref(), Some("1 more were refused or disconnected"));
        assert_eq!(complaints.rest_at(start + Duration::from_secs(9)), None, "once");
    }
}
