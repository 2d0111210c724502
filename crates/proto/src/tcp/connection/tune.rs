//! What a program, or policy, sets: options of the socket, congestion control, pacing, keep-alive, time-outs.

use std::sync::Arc;
use std::time::Duration;

use scoutline_base::Time;
use scoutline_path::Tuning;

use super::{Connection, Owed, input};
use crate::tcp::config::{Keepalive, Pacing};
use crate::tcp::congestion::Algorithm;
use crate::tcp::timers::Timer;

/// The least of TCP_KEEPIDLE and TCP_KEEPINTVL.
const LEAST_KEEPALIVE: Duration = Duration::from_secs(1);

/// The least round trip of a path where connections are paced for its length: ten bursts.
const LONG_PATH: Duration = Duration::from_millis(10);

impl Connection {
    /// `TCP_NODELAY`.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.nodelay = nodelay;
    }

    /// What the connection carries is background from now on, and yields to all else (LEDBAT++), or is not any more.
    pub fn set_background(&mut self, background: bool, now: Time) {
        let algorithm = if background { Algorithm::LedbatPlusPlus } else { self.config.congestion };
        self.switch(algorithm, now);
    }

    /// `TCP_CONGESTION`. What is background stays so until it is not any more.
    pub fn set_congestion(&mut self, algorithm: Algorithm, now: Time) {
        let is_background = self.congestion.algorithm() == Algorithm::LedbatPlusPlus
            && self.config.congestion != Algorithm::LedbatPlusPlus;
        Arc::make_mut(&mut self.config).congestion = algorithm;
        if !is_background {
            self.switch(algorithm, now);
        }
    }

    fn switch(&mut self, algorithm: Algorithm, now: Time) {
        self.congestion.switch(algorithm, self.rtt.least(), now);
        self.set_paced();
    }

    pub(super) fn set_paced(&mut self) {
        self.is_long = self.rtt.least().is_some_and(|least| least >= LONG_PATH);
        self.paced = (self.is_long && self.config.pacing == Pacing::LongPaths) || self.must_pace();
    }

    /// Paced whatever the path and the window.
    pub(super) fn must_pace(&self) -> bool {
        self.config.pacing == Pacing::Always
            || self.congestion.is_model()
            || self.tuned().max_pacing_rate != 0
    }

    /// What the program has set.
    #[inline]
    pub(super) fn tuned(&self) -> Tuning {
        self.tuned.as_deref().copied().unwrap_or_default()
    }

    /// What the program set. What is as before changes nothing.
    pub fn tune(&mut self, tuning: &Tuning, now: Time) {
        let before = self.tuned();
        self.tuned = (*tuning != Tuning::default()).then(|| Box::new(*tuning));
        if tuning.congestion != before.congestion
            && let Some(algorithm) = Algorithm::by_number(tuning.congestion)
        {
            self.set_congestion(algorithm, now);
        }
        if tuning.user_timeout_ms != before.user_timeout_ms {
            let timeout = Duration::from_millis(u64::from(tuning.user_timeout_ms));
            self.set_user_timeout((!timeout.is_zero()).then_some(timeout));
        }
        if tuning.max_pacing_rate != before.max_pacing_rate {
            self.set_paced();
        }
        if tuning.quick_ack_said != before.quick_ack_said {
            self.set_quick_ack(tuning.quick_ack == 1);
        }
    }

    /// `TCP_QUICKACK`: what is owed goes at once, and what comes next is acknowledged at once for a while; or not.
    fn set_quick_ack(&mut self, on: bool) {
        self.receive.quick = if on { input::QUICK_ACKS } else { 0 };
        if on && self.owed == Owed::Later {
            self.owed = Owed::Now;
        }
    }

    /// `SO_KEEPALIVE` and its times. A program may have said them without any check: none is less than a second
    /// (tcp(7)), or the timer would be due again as soon as it has expired.
    pub fn set_keepalive(&mut self, keepalive: Option<Keepalive>, now: Time) {
        let keepalive = keepalive.map(|times| Keepalive {
            idle: times.idle.max(LEAST_KEEPALIVE),
            interval: times.interval.max(LEAST_KEEPALIVE),
            ..times
        });
        Arc::make_mut(&mut self.config).keepalive = keepalive;
        self.timers.disarm(Timer::KeepAlive);
        self.arm_keepalive(now);
    }

    /// `TCP_USER_TIMEOUT`.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        Arc::make_mut(&mut self.config).user_timeout = timeout;
        self.timers.disarm(Timer::User);
    }
}
