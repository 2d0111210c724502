//! What expired.

use std::time::Duration;

use scoutline_base::Time;

use super::{Connection, Owed, State};
use crate::tcp::congestion::Controller;
use crate::tcp::flight::Delivered;
use crate::tcp::segment::Events;
use crate::tcp::timers::Timer;

/// RFC 9293 §3.8.6.1: probes back off exponentially; Linux: `TCP_RTO_MAX`.
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(120);
/// Peers are scheduled in milliseconds: an earlier probe would mostly be in vain.
const MIN_TAIL_PROBE: Duration = Duration::from_millis(5);
/// RFC 8985 §7.2 TLP.max_ack_delay: so long a peer may delay the acknowledgment of a single segment. Linux: TCP_RTO_MIN.
const MAX_ACK_DELAY: Duration = Duration::from_millis(200);

impl Connection {
    /// Handles all that is due at `now`; then call `poll_transmit`. No timer is armed again for `now`.
    pub fn on_timeout(&mut self, now: Time) -> Events {
        let mut events = Events::empty();
        while let Some(timer) = self.timers.take_due(now) {
            events |= match timer {
                Timer::Retransmit => self.on_retransmit_timeout(now),
                Timer::LossDetection => {
                    self.on_loss_detection_timeout(now);
                    Events::empty()
                }
                Timer::Persist => self.on_persist_timeout(now),
                // What waited is sent by the `poll_transmit` that follows.
                Timer::Pace => Events::empty(),
                Timer::DelayedAck => {
                    // The answer has not come.
                    self.answers &= self.owed != Owed::Later;
                    self.owed = Owed::Now;
                    Events::empty()
                }
                Timer::KeepAlive => self.on_keepalive_timeout(now),
                Timer::Linger => {
                    self.enter_closed();
                    Events::CLOSED
                }
                // RFC 9293 §3.10.8: nothing is sent. The peer has not answered for long.
                Timer::User => self.give_up(false),
            };
        }
        events
    }

    fn on_retransmit_timeout(&mut self, now: Time) -> Events {
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        if !opening && self.send.una == self.send.max {
            return Events::empty();
        }
        let limit = if opening { self.syn_limit() } else { self.attempt_limit() };
        self.attempts = self.attempts.saturating_add(1);
        if self.attempts > limit {
            return self.give_up(false);
        }
        self.send.timed = None;
        self.send.tail_probe = None;
        self.tail_probe_now = false;
        self.timers.disarm(Timer::LossDetection);
        if opening {
            self.send.next = 0;
            self.rtt.back_off();
            self.timers.arm(Timer::Retransmit, now + self.rtt.rto());
            return Events::empty();
        }
        self.suspect_black_hole(now);
        let (una, max) = (self.send.una, self.send.max);
        if self.send.window == 0 {
            // The window closed over what was in flight: that is no congestion.
            self.recovery.on_closed_window(una, self.send.next, max);
            self.go_back();
            self.probe_now = true;
            self.timers.arm(Timer::Persist, now + self.probe_interval());
            return Events::empty();
        }
        if self.attempts == 1 {
            // RFC 5681 §3.1: once for the same data, however often its timer expires.
            let flight = (self.send.next - una).min(u64::from(u32::MAX)) as u32;
            self.congestion.on_timeout(flight);
            self.ecn.on_reduced(max);
        }
        let (segment, times) = (self.segment(), self.round_trips());
        self.recovery.on_timeout(una, self.send.next, max, segment, &times, now);
        // RFC 6298 §5.4 to §5.6: the earliest unacknowledged goes first, and the rest as the window opens.
        self.go_back();
        self.rtt.back_off();
        self.timers.arm(Timer::Retransmit, now + self.rtt.rto());
        Events::empty()
    }

    /// Without SACK all goes again from the first that is missing; with it, what the scoreboard says.
    pub(super) fn go_back(&mut self) {
        if !self.negotiated.sack {
            self.send.next = self.send.una;
        }
    }

    fn on_loss_detection_timeout(&mut self, now: Time) {
        if self.recovery.is_quiet() {
            self.tail_probe_now = true;
            // RFC 8985 §7.3: the time-out counts from the probe, which may stand in its place.
            self.timers.arm(Timer::Retransmit, now + self.rtt.rto());
            return;
        }
        let times = self.round_trips();
        self.detect_loss(&Delivered::default(), false, &times, now);
    }

    fn on_persist_timeout(&mut self, now: Time) -> Events {
        if !self.state.may_send() || self.send.una >= self.end_unit() {
            return Events::empty();
        }
        if self.send.window > 0 {
            // RFC 9293 §3.8.6.2.1: the override time-out; send what the window takes.
            self.override_now = true;
            return Events::empty();
        }
        self.attempts = self.attempts.saturating_add(1);
        if self.attempts > self.attempt_limit() {
            return self.give_up(false);
        }
        if self.orphan && self.probes >= self.config.max_orphan_retransmits {
            // As Linux's tcp_probe_timer: however well the peer answers, nobody here would end it.
            return self.give_up(true);
        }
        self.probes = self.probes.saturating_add(1);
        self.probe_now = true;
        self.timers.arm(Timer::Persist, now + self.probe_interval());
        Events::empty()
    }

    fn on_keepalive_timeout(&mut self, now: Time) -> Events {
        let Some(keepalive) = self.config.keepalive else { return Events::empty() };
        let silent = now.since(self.last_heard);
        let busy = self.send.una < self.end_unit();
        if busy || silent < keepalive.idle {
            // Data in flight has its own timer.
            let next = if busy { now + keepalive.idle } else { self.last_heard + keepalive.idle };
            self.timers.arm(Timer::KeepAlive, next);
            return Events::empty();
        }
        // tcp(7), RFC 5482 §4.2: with a user timeout it is that which says when, whatever the count.
        let is_enough = match self.config.user_timeout {
            Some(timeout) => self.keepalive_probes > 0 && silent >= timeout,
            None => self.keepalive_probes >= keepalive.count,
        };
        if is_enough {
            return self.give_up(true);
        }
        self.keepalive_probes += 1;
        self.keepalive_now = true;
        self.timers.arm(Timer::KeepAlive, now + keepalive.interval.max(Duration::from_millis(1)));
        Events::empty()
    }

    /// The peer answers no more.
    fn give_up(&mut self, reset: bool) -> Events {
        if reset {
            self.reset = Some((self.send.iss.plus(self.acceptable_unit()).0, Some(self.receive_next().0)));
        }
        self.enter_closed();
        Events::TIMED_OUT | Events::CLOSED
    }

    fn attempt_limit(&self) -> u8 {
        if self.orphan { self.config.max_orphan_retransmits } else { self.config.max_retransmits }
    }

    pub(super) fn probe_interval(&self) -> Duration {
        let interval = self.rtt.rto() * (1 << self.probes.min(10));
        interval.min(MAX_PROBE_INTERVAL)
    }

    /// RFC 8985 §7.2. A single segment's probe waits for the peer's delayed acknowledgment, and so mostly stands in the
    /// place of the time-out.
    #[inline]
    pub(super) fn arm_tail_probe(&mut self, now: Time) {
        if !self.recovery.is_quiet() {
            return; // the timer stands for something else
        }
        let worth = self.negotiated.sack
            && self.send.tail_probe.is_none()
            && self.send.next == self.send.max
            && self.send.next > self.send.una;
        match self.rtt.smoothed() {
            Some(smoothed) if worth => {
                let is_single = self.send.next - self.send.una <= u64::from(self.segment());
                let wait = (2 * smoothed).max(MIN_TAIL_PROBE);
                let at = now + if is_single { wait + MAX_ACK_DELAY } else { wait };
                let timeout = self.timers.deadline(Timer::Retransmit).unwrap_or(Time::MAX);
                self.timers.arm(Timer::LossDetection, at.min(timeout));
            }
            _ => self.timers.disarm(Timer::LossDetection),
        }
    }

    pub(super) fn arm_user_timeout(&mut self, now: Time) {
        if let Some(timeout) = self.config.user_timeout
            && !self.timers.is_armed(Timer::User)
        {
            self.timers.arm(Timer::User, now + timeout);
        }
    }

    pub(super) fn arm_keepalive(&mut self, now: Time) {
        if let Some(keepalive) = self.config.keepalive
            && !matches!(
                self.state,
                State::Closed | State::Listen | State::SynSent | State::SynReceived | State::TimeWait
            )
        {
            self.timers.arm(Timer::KeepAlive, now + keepalive.idle);
        }
    }
}
