//! The timers of a connection: a table of deadlines, from which the next time-out is derived in one place.

use scoutline_base::Time;

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// Retransmission (RFC 6298).
    Retransmit,
    /// While nothing is missing, the tail loss probe (RFC 8985 §7); else the end of the reordering window (§6.2): there
    /// is never need of both.
    LossDetection,
    /// Zero-window probe (RFC 9293 §3.8.6.1); also overrides sender's silly window avoidance (RFC 1122 §4.2.3.4).
    Persist,
    /// Delayed acknowledgment (RFC 1122 §4.2.3.2).
    DelayedAck,
    /// Keepalive probe (RFC 9293 §3.8.4).
    KeepAlive,
    /// End of TIME-WAIT (RFC 9293 §3.6.1), or of an orphan's FIN-WAIT-2: a connection is never in both.
    Linger,
    /// The next burst of a paced connection.
    Pace,
    /// User time-out (RFC 9293 §3.8.3, RFC 5482).
    User,
}

impl Timer {
    /// All of them, in the order in which they fire: a tail loss probe goes before the time-out in whose place it stands.
    pub const ALL: [Timer; 8] = [
        Timer::User,
        Timer::Linger,
        Timer::LossDetection,
        Timer::Retransmit,
        Timer::Persist,
        Timer::Pace,
        Timer::DelayedAck,
        Timer::KeepAlive,
    ];
}

/// One deadline per timer. `Time::MAX` marks one that is not armed, so that the minimum needs no branches.
#[derive(Clone, Copy, Debug)]
pub struct Timers {
    deadlines: [Time; Timer::ALL.len()],
}

impl Default for Timers {
    fn default() -> Timers {
        Timers { deadlines: [Time::MAX; Timer::ALL.len()] }
    }
}

impl Timers {
    /// Arms a timer, replacing its deadline.
    #[inline]
    pub fn arm(&mut self, timer: Timer, deadline: Time) {
        self.deadlines[timer as usize] = deadline;
    }

    /// Disarms a timer.
    #[inline]
    pub fn disarm(&mut self, timer: Timer) {
        self.deadlines[timer as usize] = Time::MAX;
    }

    /// Disarms all.
    pub fn clear(&mut self) {
        *self = Timers::default();
    }

    /// True when the timer is armed.
    #[inline]
    pub fn is_armed(&self, timer: Timer) -> bool {
        self.deadlines[timer as usize] != Time::MAX
    }

    /// When the timer fires.
    pub fn deadline(&self, timer: Timer) -> Option<Time> {
        self.is_armed(timer).then_some(self.deadlines[timer as usize])
    }

    /// The earliest deadline.
    #[inline]
    pub fn next(&self) -> Option<Time> {
        let earliest = self.deadlines.iter().copied().min().unwrap_or(Time::MAX);
        (earliest != Time::MAX).then_some(earliest)
    }

    /// Disarms and returns one timer that is due at `now`.
    pub fn take_due(&mut self, now: Time) -> Option<Timer> {
        let due = Timer::ALL
            .into_iter()
            .find(|&timer| self.is_armed(timer) && self.deadlines[timer as usize] <= now)?;
        self.disarm(due);
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_is_the_earliest_and_due_ones_are_taken_once() {
        let mut timers = Timers::default();
        assert_eq!(timers.next(), None);
        assert_eq!(timers.take_due(Time::from_millis(1)), None);
        timers.arm(Timer::KeepAlive, Time::from_millis(5));
        timers.arm(Timer::Retransmit, Time::from_millis(3));
        assert_eq!(timers.next(), Some(Time::from_millis(3)));
        assert_eq!(timers.take_due(Time::from_millis(2)), None);
        assert_eq!(timers.take_due(Time::from_millis(9)), Some(Timer::Retransmit));
        assert_eq!(timers.take_due(Time::from_millis(9)), Some(Timer::KeepAlive));
        assert_eq!(timers.take_due(Time::from_millis(9)), None);
        timers.arm(Timer::User, Time::from_millis(1));
        assert_eq!(timers.deadline(Timer::User), Some(Time::from_millis(1)));
        timers.clear();
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn every_timer_has_its_own_place() {
        let mut places: Vec<usize> = Timer::ALL.iter().map(|&timer| timer as usize).collect();
        places.sort_unstable();
        assert_eq!(places, (0..Timer::ALL.len()).collect::<Vec<_>>());
    }
}
