//! What a program, or policy, sets: options of the socket, congestion control, pacing, keep-alive, time-outs.

use std::sync::Arc;
use std::time::Duration;

use scoutline_base::Time;
use scoutline_path::{Sent, Tuning};

use super::{Connection, Owed, input};
use crate::tcp::config::{Keepalive, Pacing};
use crate::tcp::congestion::Algorithm;
use crate::tcp::timers::Timer;

/// The least of TCP_KEEPIDLE and TCP_KEEPINTVL.
const LEAST_KEEPALIVE: Duration = Duration::from_secs(1);

/// Half of Linux's `SOCK_MIN_RCVBUF`.
const LEAST_RECEIVE: u32 = 1152;

/// Linux: `tcp_fin_time`. FIN-WAIT-2 takes three and a half time-outs at least.
const ORPHAN_TIMEOUTS_HALVES: u32 = 7;

/// A program has set nothing, as most.
const NOTHING: Tuning = Tuning {
    congestion: 0,
    max_segment: 0,
    user_timeout_ms: 0,
    max_pacing_rate: 0,
    quick_ack: 0,
    quick_ack_said: 0,
    unsent_low_water: 0,
    window_clamp: 0,
    receive_most: 0,
    syn_count: 0,
    orphan_wait_s: 0,
    device: 0,
    incoming_cpu: 0,
};

/// What is written behind something unsent at once, at most (Linux: `GSO_LEGACY_MAX_SIZE`).
const LONGEST_STEP: u32 = 64 << 10;

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
            || self.tuned().most_paced().is_some()
    }

    /// What the program has set.
    #[inline]
    pub(super) fn tuned(&self) -> &Tuning {
        self.tuned.as_deref().unwrap_or(&NOTHING)
    }

    /// What the program set. What is as before changes nothing.
    pub fn tune(&mut self, tuning: &Tuning, now: Time) {
        let before = *self.tuned();
        self.tuned = (*tuning != NOTHING).then(|| Box::new(*tuning));
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

    /// How often a SYN, or a SYN-ACK, goes again (`TCP_SYNCNT`).
    pub(super) fn syn_limit(&self) -> u8 {
        if self.tuned().syn_count == 0 { self.config.max_syn_retransmits } else { self.tuned().syn_count }
    }

    /// How long FIN-WAIT-2 lasts once the program has closed (`TCP_LINGER2`); `None`: it is left at once.
    pub(super) fn orphan_wait(&self) -> Option<Duration> {
        match u64::try_from(self.tuned().orphan_wait_s) {
            Err(_) => None,
            Ok(0) => Some(self.config.orphan_timeout),
            Ok(seconds) => {
                Some(Duration::from_secs(seconds).max(self.rtt.rto() * ORPHAN_TIMEOUTS_HALVES / 2))
            }
        }
    }

    /// How far the stream has been sent, for a program with a bound on what is not, if that is other than it was told.
    #[inline]
    pub fn news_of_sent(&self, told: &Sent) -> Option<Sent> {
        let is_bounded = self.unsent_low_water() != 0 || told.low_water != 0;
        if is_bounded && self.state.may_send() {
            Some(self.sent_and_bound()).filter(|sent| sent != told)
        } else {
            None
        }
    }

    /// The bound on what is written and not sent, in bytes (TCP_NOTSENT_LOWAT); 0: there is none.
    #[inline]
    fn unsent_low_water(&self) -> u32 {
        match self.tuned().unsent_low_water {
            0 => self.config.unsent_low_water,
            u32::MAX => 0,
            bytes => bytes,
        }
    }

    /// The program may write whole bursts, as Linux lets it: half of the largest window that the peer has offered, in full
    /// segments (`tcp_bound_to_half_wnd`).
    fn sent_and_bound(&self) -> Sent {
        let (low_water, segment) = (self.unsent_low_water(), self.segment());
        let burst = (self.send.max_window / 2).min(LONGEST_STEP);
        let burst = (burst / segment * segment).max(segment);
        let most = u64::from(low_water).next_multiple_of(burst.into()).min(u32::MAX.into()) as u32;
        Sent { position: self.sent(), low_water, most }
    }

    /// The most that the window field may say (`TCP_WINDOW_CLAMP`).
    #[inline]
    pub(super) fn window_limit(&self) -> u64 {
        let clamp = match self.tuned().window_clamp {
            0 => u64::MAX,
            bytes => u64::from(bytes),
        };
        clamp.min(u64::from(u16::MAX) << self.negotiated.receive_scale)
    }

    /// So much may have come and not be read: what the ring holds, or less where the program has said so since there is one
    /// (`SO_RCVBUF`).
    #[inline]
    pub(super) fn receive_most(&self) -> u32 {
        match self.tuned().receive_most {
            0 => self.receive.buffer,
            bytes => self.receive.buffer.min(bytes.max(LEAST_RECEIVE)),
        }
    }

    /// `TCP_QUICKACK`: what is owed goes at once, and what comes next is acknowledged at once for a while; or not.
    fn set_quick_ack(&mut self, on: bool) {
        self.receive.quick = if on { input::QUICK_ACKS } else { 0 };
        self.answers = !on;
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
