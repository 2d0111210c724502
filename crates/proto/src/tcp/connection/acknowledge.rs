//! The acknowledgment field, SACK blocks and the send window (RFC 9293 §3.10.7.4, "fifth").

use std::time::Duration;

use scoutline_base::Time;
use scoutline_wire::tcp::Header;

use super::{Connection, State};
use crate::tcp::congestion::{Acknowledged, Controller};
use crate::tcp::recovery::{Phase, Progress};
use crate::tcp::segment::{Drop, Events, Input};
use crate::tcp::sequence::SeqNumber;
use crate::tcp::timers::Timer;

/// What a difference of timestamps may lack.
const TICK: Duration = Duration::from_millis(1);
/// A round trip measured by timestamps counts only when their tick of 1 ms is a tenth of it or less.
const LEAST_TIMESTAMP_RTT: Duration = Duration::from_millis(10);

impl Connection {
    /// Takes the acknowledgment. `occupies`: the segment carries data or a FIN. False when the segment must not be
    /// looked at further; `input` says why.
    pub(super) fn on_acknowledgment(
        &mut self,
        header: &Header,
        occupies: bool,
        now: Time,
        input: &mut Input,
    ) -> bool {
        let acknowledgable = (self.send.max - self.send.una) as i64;
        let mut delta = SeqNumber(header.acknowledgment).offset_from(self.send.iss.plus(self.send.una));
        if self.state == State::SynReceived {
            if delta <= 0 || delta > acknowledgable {
                // RFC 9293 §3.10.7.4: <SEQ=SEG.ACK><CTL=RST>
                self.reset = Some((header.acknowledgment, None));
                input.drop = Some(Drop::BadAck);
                return false;
            }
            self.establish(now);
            input.events |= Events::CONNECTED;
            // RFC 9293: SND.WND, SND.WL1 and SND.WL2 from this segment.
            self.send.window = u32::from(header.window) << self.negotiated.send_scale;
            self.send.max_window = self.send.max_window.max(self.send.window);
            self.send.wl1 = SeqNumber(header.sequence);
            self.send.wl2 = 1;
            delta -= 1;
        }
        // RFC 5961 §5.2: (SND.UNA - MAX.SND.WND) =< SEG.ACK =< SND.NXT
        if delta > acknowledgable || delta < -i64::from(self.send.max_window) {
            self.challenge(now);
            input.drop = Some(Drop::BadAck);
            return false;
        }
        let news = self.take_blocks(header);
        let window = self.send.window;
        if delta >= 0 {
            self.take_window(header);
            // Any acknowledgment in range answers a probe (RFC 9293 §3.8.6.1: never give up on a closed window).
            self.attempts = 0;
        }
        if delta > 0 {
            self.on_new_acknowledgment(delta as u64, header, now, input);
        }
        // RFC 5681 §2: a duplicate; RFC 6675 §2: an acknowledgment with new selective information.
        let duplicate = if self.negotiated.sack {
            news
        } else {
            delta == 0 && !occupies && self.send.window == window && self.send.una < self.send.max
        };
        if self.send.tail_probe.is_some() {
            self.judge_tail_probe();
        }
        if duplicate && self.state.may_send() {
            self.on_duplicate();
        }
        if news {
            // From here on, recovery or its absence is known: no probe is needed.
            self.timers.disarm(Timer::TailProbe);
        }
        true
    }

    /// Takes the SACK blocks that lie within what is outstanding. True when they told anything new.
    fn take_blocks(&mut self, header: &Header) -> bool {
        if header.options.sack.is_empty() || !self.negotiated.sack {
            return false;
        }
        let mut news = false;
        let una = self.send.iss.plus(self.send.una);
        let outstanding = (self.send.max - self.send.una) as i64;
        for &(left, right) in header.options.sack.as_slice() {
            let (left, right) = (SeqNumber(left).offset_from(una), SeqNumber(right).offset_from(una));
            // Below SND.UNA it is a DSACK (RFC 2883) or old; above SND.NXT it is garbage.
            if left >= 0 && left < right && right <= outstanding {
                news |= self.recovery.on_block(self.send.una + left as u64..self.send.una + right as u64);
            }
        }
        news
    }

    /// RFC 9293 §3.10.7.4: old segments must not change the window.
    #[inline]
    pub(super) fn take_window(&mut self, header: &Header) {
        let sequence = SeqNumber(header.sequence);
        let acknowledgment = SeqNumber(header.acknowledgment).offset_from(self.send.iss.plus(self.send.una));
        let acknowledgment = self.send.una + acknowledgment.max(0) as u64;
        if self.send.wl1.is_before(sequence) || (self.send.wl1 == sequence && self.send.wl2 <= acknowledgment)
        {
            self.send.window = u32::from(header.window) << self.negotiated.send_scale;
            self.send.max_window = self.send.max_window.max(self.send.window);
            self.send.wl1 = sequence;
            self.send.wl2 = acknowledgment;
        }
    }

    /// The peer acknowledged `delta` more units.
    pub(super) fn on_new_acknowledgment(
        &mut self,
        delta: u64,
        header: &Header,
        now: Time,
        input: &mut Input,
    ) {
        let before = self.acknowledged();
        let segment = self.segment();
        let flight = self.recovery.in_flight(self.send.una, self.send.next, segment);
        let window = u64::from(self.congestion.window());
        // RFC 7661 §4: a window that was not used is not validated. In slow start half of it counts as used, for
        // acknowledgments of merged segments come in lumps.
        let window_limited = self.send.una < self.send.limited_to
            || (window < u64::from(self.congestion.threshold()) && 2 * flight >= window);
        self.send.una += delta;
        self.send.next = self.send.next.max(self.send.una);
        self.attempts = 0;
        let echo = header.options.timestamps.filter(|_| self.negotiated.timestamps).map(|(_, echo)| echo);
        let sample = self.measure(echo, now);
        if self.recovery.phase() != Phase::Open && self.recovery.is_spurious(now, echo, self.rtt.least()) {
            // RFC 4015 §3.2: restore, and go on with new data.
            self.congestion.undo();
            self.send.next = self.send.max;
            self.recovery.undo(segment);
        }
        match self.recovery.on_acknowledged(self.send.una, delta, segment) {
            Progress::Normal => self.congestion.on_acknowledged(&Acknowledged {
                bytes: delta.min(u64::from(u32::MAX)) as u32,
                now,
                rtt: self.rtt.smoothed().unwrap_or_default(),
                sample,
                window_limited,
            }),
            Progress::Partial => {}
            Progress::Recovered => {
                if !self.negotiated.sack {
                    let flight = (self.send.next - self.send.una).min(u64::from(u32::MAX));
                    self.congestion.on_recovered(flight as u32);
                }
            }
        }
        self.rearm_after_progress(now);
        if self.acknowledged() > before {
            input.events |= Events::ACKNOWLEDGED;
        }
        if self.fin_queued && self.send.una >= self.end_unit() {
            self.on_fin_acknowledged(now, input);
        }
    }

    /// Takes a sample of the round-trip time if this acknowledgment gives one. The answer is the round trip that it
    /// tells, however coarse, and never less than the true one: two flows whose base delays differ by a part of a
    /// tick would share a bottleneck very unevenly (LEDBAT++).
    #[inline]
    fn measure(&mut self, echo: Option<u32>, now: Time) -> Option<Duration> {
        let elapsed =
            echo.map(|echo| self.timestamp(now).wrapping_sub(echo)).filter(|elapsed| *elapsed < 1 << 30);
        let coarse = elapsed.map(|elapsed| Duration::from_millis(u64::from(elapsed)));
        match self.send.timed {
            Some((end, at)) if self.send.una >= end => {
                let sample = now.since(at);
                self.rtt.on_sample(sample);
                self.send.timed = None;
                return Some(sample);
            }
            Some(_) => self.rtt.reset_backoff(),
            // RFC 7323 §4.1: after a retransmission only the echo tells which copy was answered.
            None => match coarse.filter(|elapsed| *elapsed >= LEAST_TIMESTAMP_RTT) {
                Some(elapsed) => self.rtt.on_sample(elapsed),
                None => self.rtt.reset_backoff(),
            },
        }
        coarse.map(|elapsed| elapsed + TICK)
    }

    #[inline]
    fn rearm_after_progress(&mut self, now: Time) {
        if self.send.tail_probe.is_some_and(|end| self.send.una >= end) {
            self.send.tail_probe = None;
        }
        self.arm_tail_probe(now);
        if self.send.una == self.send.max {
            // RFC 6298 §5.2
            self.timers.disarm(Timer::Retransmit);
            self.timers.disarm(Timer::User);
            self.timers.disarm(Timer::Persist);
            return;
        }
        if self.send.window > 0 || !self.timers.is_armed(Timer::Persist) {
            // RFC 6298 §5.3. A probe stands in for it only while the window is closed: what is outstanding may be
            // lost, and a window that has opened gives no other reason to send.
            self.timers.arm(Timer::Retransmit, now + self.rtt.rto());
        }
        if let Some(timeout) = self.config.user_timeout {
            self.timers.arm(Timer::User, now + timeout);
        }
    }

    /// Our FIN is acknowledged.
    fn on_fin_acknowledged(&mut self, now: Time, input: &mut Input) {
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.orphan {
                    // Not in the standard; as Linux does: a peer that never closes holds nothing for ever.
                    self.timers.arm(Timer::Linger, now + self.config.orphan_timeout);
                }
            }
            State::Closing => self.enter_time_wait(now, input),
            State::LastAck => {
                self.enter_closed();
                input.events |= Events::CLOSED;
            }
            _ => {}
        }
    }

    /// RFC 8985 §7.4. A probe that repaired the only loss leaves the window as it is: without DSACK nothing tells
    /// it from one that was in vain.
    fn judge_tail_probe(&mut self) {
        let Some(end) = self.send.tail_probe else { return };
        if self.send.una >= end {
            self.send.tail_probe = None;
        } else if self.recovery.phase() == Phase::Open && self.recovery.arrived(end - 1).is_some() {
            // Sent two round trips after all that is missing below.
            self.send.tail_probe = None;
            self.begin_recovery();
        }
    }

    fn begin_recovery(&mut self) {
        // RFC 5681 §3.2 step 2 and RFC 6675 §5 step 4.2
        let flight = (self.send.next - self.send.una).min(u64::from(u32::MAX)) as u32;
        self.congestion.on_loss(flight);
        self.recovery.enter(self.send.una, self.send.max);
    }

    fn on_duplicate(&mut self) {
        let more =
            self.send.max < self.end_unit() && self.send.next - self.send.una < u64::from(self.send.window);
        let (una, max, segment) = (self.send.una, self.send.max, self.segment());
        if self.recovery.on_duplicate(una, max, segment, more) {
            self.begin_recovery();
        }
    }
}
