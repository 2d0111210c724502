//! The acknowledgment field, SACK blocks and the send window (RFC 9293 §3.10.7.4, "fifth").

use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

use scoutline_base::Time;
use scoutline_wire::tcp::{Flags, Header};

use super::halves::Timed;
use super::{Connection, Owed, State};
use crate::tcp::congestion::{Acknowledged, Controller, Moved};
use crate::tcp::flight::Delivered;
use crate::tcp::frto::Verdict;
use crate::tcp::rack::Times;
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
        let opens = self.state == State::SynReceived;
        if opens {
            if !self.on_opening_acknowledgment(header, delta, now, input) {
                return false;
            }
            delta -= 1;
        }
        // RFC 5961 §5.2: (SND.UNA - MAX.SND.WND) =< SEG.ACK =< SND.NXT
        if delta > acknowledgable || delta < -i64::from(self.send.max_window) {
            self.challenge(now);
            input.drop = Some(Drop::BadAck);
            return false;
        }
        if header.flags.contains(Flags::CWR) && self.ecn.is_on() && occupies {
            // A sender that has just reduced its window waits for each acknowledgment.
            self.owed = Owed::Now;
        }
        self.release_held();
        let acknowledged = self.send.una + delta.max(0) as u64;
        if self.ecn.on_flags(header.flags, acknowledged, self.send.max)
            && self.recovery.phase() == Phase::Open
        {
            self.begin_reduction();
        }
        let unheard = self.recovery.unheard_of(delta.max(0) as u64, self.segment());
        let was_quiet = self.recovery.is_quiet();
        let mut delivered = Delivered::default();
        let duplicate_block = self.take_blocks(header, delta, &mut delivered);
        let window = self.send.window;
        if delta >= 0 {
            self.take_window(header);
            // Any acknowledgment in range answers a probe (RFC 9293 §3.8.6.1: never give up on a closed window).
            self.attempts = 0;
        }
        if delta > 0 {
            self.on_new_acknowledgment(delta as u64, header, now, input, &mut delivered);
        }
        if !self.state.may_send() {
            return true;
        }
        let probe = self.send.tail_probe;
        if probe.is_some() {
            self.judge_tail_probe(delta, occupies, duplicate_block.as_ref());
            self.arm_tail_probe(now);
        }
        if let Some(block) = duplicate_block {
            let by_probe = probe.is_some_and(|end| self.send.tail_probe_again && end.get() == block.end);
            self.on_duplicate_block(&block, by_probe);
        }
        // RFC 5681 §2: a duplicate.
        let duplicate =
            delta == 0 && !occupies && !opens && self.send.window == window && self.send.una < self.send.max;
        if delta > 0 || duplicate || delivered.units > 0 {
            self.judge_timeout(delta > 0, &mut delivered);
        }
        if !self.negotiated.sack {
            if duplicate {
                self.on_duplicate();
            }
        } else if !was_quiet || !self.recovery.is_quiet() {
            let times = self.loss_times(header, now);
            self.detect_loss(&delivered, delta > 0, &times, now);
        }
        if self.recovery.is_reducing() {
            let arrived = match self.negotiated.sack {
                // Nothing out of order: the scoreboard was not asked.
                true if was_quiet && delivered.units == 0 => unheard,
                true => delivered.units,
                // A duplicate stands for a segment that has arrived.
                false if duplicate => u64::from(self.segment()),
                false => unheard,
            };
            self.reduce_for_echo(arrived, header.flags.contains(Flags::ECE));
        }
        if delta <= 0 && delivered.units > 0 {
            self.delivery.on_delivered(self.delivered(), now);
        }
        if self.congestion.is_model() && delivered.units > 0 {
            self.tell_model(delivered.units, delivered.newest.map(|piece| piece.end), now);
        }
        true
    }

    /// The acknowledgment of our SYN opens the connection; false when it is none.
    fn on_opening_acknowledgment(
        &mut self,
        header: &Header,
        delta: i64,
        now: Time,
        input: &mut Input,
    ) -> bool {
        if delta <= 0 || delta > (self.send.max - self.send.una) as i64 {
            // RFC 9293 §3.10.7.4: <SEQ=SEG.ACK><CTL=RST>
            self.reset = Some((header.acknowledgment, None));
            input.drop = Some(Drop::BadAck);
            return false;
        }
        if !self.is_fast() {
            input.events |= Events::CONNECTED;
        }
        self.establish(now);
        // RFC 9293: SND.WND, SND.WL1 and SND.WL2 from this segment.
        self.send.window = u32::from(header.window) << self.negotiated.send_scale;
        self.send.max_window = self.send.max_window.max(self.send.window);
        self.send.wl1 = SeqNumber(header.sequence);
        self.send.wl2 = 1;
        true
    }

    /// An echo of congestion is answered as a loss would be, but that nothing has to go again (RFC 3168 §6.1.2).
    #[inline(never)]
    fn begin_reduction(&mut self) {
        self.congestion.on_loss(self.outstanding());
        self.recovery.forget_undo();
        if !self.congestion.is_model() && self.send.una < self.send.max {
            self.recovery.begin_reduction(self.send.una, self.send.max);
        }
    }

    /// Within such a reduction: so many bytes have arrived.
    #[inline(never)]
    fn reduce_for_echo(&mut self, arrived: u64, echoed: bool) {
        let segment = self.segment();
        let pipe = self.recovery.in_flight(self.send.una, self.send.next, segment);
        self.recovery.reduce_for_echo(arrived, pipe, self.congestion.threshold(), segment, echoed);
    }

    /// What has arrived is news for a model of the path.
    fn tell_model(&mut self, bytes: u64, newest: Option<u64>, now: Time) {
        let in_flight = self.recovery.in_flight(self.send.una, self.send.next, self.segment());
        let recovering = self.recovery.phase() != Phase::Open;
        self.congestion.on_moved(&Moved { bytes, newest, in_flight, recovering, now });
    }

    /// Takes the SACK blocks that lie within what is outstanding. The answer is a block that tells of a duplicate
    /// (RFC 2883). `delta`: what the segment acknowledges beyond SND.UNA.
    fn take_blocks(&mut self, header: &Header, delta: i64, delivered: &mut Delivered) -> Option<Range<u64>> {
        if header.options.sack.is_empty() || !self.negotiated.sack {
            return None;
        }
        let una = self.send.iss.plus(self.send.una);
        let outstanding = (self.send.max - self.send.una) as i64;
        let offset = |number: u32| SeqNumber(number).offset_from(una);
        let mut duplicate = None;
        let blocks = header.options.sack.as_slice();
        for (index, &(left, right)) in blocks.iter().enumerate() {
            let (left, right) = (offset(left), offset(right));
            if left >= right || right > outstanding {
                continue; // garbage
            }
            let covers = |&(outer_left, outer_right): &(u32, u32)| {
                offset(outer_left) <= left && right <= offset(outer_right)
            };
            // RFC 2883 §4: the first block, below the acknowledgment or within the second block.
            if index == 0 && (right <= delta || blocks.get(1).is_some_and(covers)) {
                let start = self.send.una as i64 + left;
                if start > 0 {
                    duplicate = Some(start as u64..(start + right - left) as u64);
                }
            } else if left >= 0 {
                self.recovery.on_block(self.send.una + left as u64..self.send.una + right as u64, delivered);
            }
        }
        duplicate
    }

    /// RFC 9293 §3.10.7.4: old segments must not change the window. One that acknowledges new data is not old, whatever
    /// its sequence number (a retransmission, say): else the window of before would count from the new SND.UNA on, and
    /// more would be sent than was offered (RFC 9293 §3.8.6). So does Linux.
    #[inline]
    pub(super) fn take_window(&mut self, header: &Header) {
        let sequence = SeqNumber(header.sequence);
        let news = SeqNumber(header.acknowledgment).offset_from(self.send.iss.plus(self.send.una));
        let acknowledgment = self.send.una + news.max(0) as u64;
        if news > 0
            || self.send.wl1.is_before(sequence)
            || (self.send.wl1 == sequence && self.send.wl2 <= acknowledgment)
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
        delivered: &mut Delivered,
    ) {
        let before = self.acknowledged();
        let segment = self.segment();
        let quiet = self.recovery.is_quiet();
        // RFC 7661 §4: a window that was not used is not validated. In slow start one counts as used of which more than
        // half was, in this round trip, as in Linux: acknowledgments of merged segments come in lumps.
        let window = self.congestion.window();
        let window_limited = self.send.una < self.send.limited_to
            || (window < self.congestion.threshold() && window / 2 < self.send.most_out);
        self.send.una += delta;
        self.send.next = self.send.next.max(self.send.una);
        self.attempts = 0;
        if self.path_mtu.is_answered(self.send.una) {
            self.on_size_probe_answered(now);
        }
        let echo = header.options.timestamps.filter(|_| self.negotiated.timestamps).map(|(_, echo)| echo);
        let marked = self.send.timed;
        let sample = self.measure(echo, now);
        if quiet {
            self.recovery.advance_quietly(self.send.una, now);
        } else {
            self.recovery.advance(self.send.una, delivered);
        }
        self.measure_delivery(marked, now);
        if self.congestion.is_model() && (quiet || !self.negotiated.sack) {
            let newest = (self.send.timed.is_some() || quiet).then_some(self.send.una);
            self.tell_model(delta, newest, now);
        }
        let mut bytes = delta;
        if self.recovery.phase() != Phase::Open && self.recovery.is_spurious(now, echo, self.rtt.least()) {
            self.undo();
            // It was the original that arrived.
            delivered.newest_again = None;
        } else if !quiet {
            // What was known to have arrived before is no news: the window has grown of it already, or shall not.
            bytes =
                if self.negotiated.sack { delivered.units } else { self.recovery.unheard_of(delta, segment) };
        }
        match self.recovery.on_acknowledged(self.send.una, delta, segment) {
            Progress::Normal => self.congestion.on_acknowledged(&Acknowledged {
                bytes: bytes.min(u64::from(u32::MAX)) as u32,
                now,
                rtt: self.rtt.smoothed().unwrap_or_default(),
                sample,
                window_limited,
                una: self.send.una,
                next: self.send.next,
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
            Some(timed) if self.send.una >= timed.end.get() => {
                let sample = now.since(timed.at);
                self.rtt.on_sample(sample, self.config.min_rto);
                self.send.timed = None;
                if self.paced || self.is_long {
                    // It may prove shorter than its first round trip.
                    self.set_paced();
                }
                return Some(sample);
            }
            Some(_) => self.rtt.reset_backoff(),
            // It may be of a timestamp that was older (`timestamp_again`).
            None if self.recovery.reorderings() > 0 => {
                self.rtt.reset_backoff();
                return None;
            }
            // RFC 7323 §4.1: after a retransmission only the echo tells which copy was answered.
            None => match coarse.filter(|elapsed| *elapsed >= LEAST_TIMESTAMP_RTT) {
                Some(elapsed) => self.rtt.on_sample(elapsed, self.config.min_rto),
                None => self.rtt.reset_backoff(),
            },
        }
        coarse.map(|elapsed| elapsed + TICK)
    }

    /// What has arrived tells of the path's rate, if the segment that was `marked` is among it.
    #[inline]
    fn measure_delivery(&mut self, marked: Option<Timed>, now: Time) {
        let delivered = self.delivered();
        self.delivery.on_delivered(delivered, now);
        if let Some(Timed { end, at }) = marked
            && self.send.una >= end.get()
        {
            let least = self.rtt.least().unwrap_or_default();
            self.delivery.on_mark_delivered(delivered, at, least, now);
        }
        self.chronograph.on_room(now);
    }

    #[inline]
    fn rearm_after_progress(&mut self, now: Time) {
        if self.send.una == self.send.max {
            if self.send.una >= self.end_unit() {
                self.chronograph.on_idle(now);
            }
            self.arm_tail_probe(now);
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
        self.arm_tail_probe(now);
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
                    input.events |= self.wait_as_orphan(now);
                    // Of an acknowledgment, as in RFC 9293 §3.5.2, group 1.
                    if let Some((_, acknowledgment)) = &mut self.reset {
                        *acknowledgment = None;
                    }
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

    /// RFC 8985 §7.4: whether a probe has repaired a loss, which must not go unanswered by congestion control.
    fn judge_tail_probe(&mut self, delta: i64, occupies: bool, duplicate: Option<&Range<u64>>) {
        let Some(end) = self.send.tail_probe.map(NonZeroU64::get) else { return };
        if self.send.una < end {
            return;
        }
        if !self.send.tail_probe_again {
            self.send.tail_probe = None; // new data, which has arrived
        } else if duplicate.is_some_and(|block| block.end == end) {
            self.send.tail_probe = None; // both copies have arrived
        } else if self.send.una > end {
            // One copy has, and no word of another: the other was lost.
            self.send.tail_probe = None;
            self.congestion.on_loss(self.outstanding());
            self.recovery.forget_undo();
        } else if delta == 0 && !occupies {
            self.send.tail_probe = None; // a peer without DSACK says so
        }
    }

    /// The peer got something twice.
    fn on_duplicate_block(&mut self, block: &Range<u64>, by_probe: bool) {
        self.duplicates = self.duplicates.saturating_add(1);
        if self.recovery.on_duplicate_block(block, self.send.una, self.send.max, by_probe) {
            self.undo();
        }
    }

    /// RFC 4015 §3.2: what was before the loss that was none returns, and new data goes next.
    fn undo(&mut self) {
        self.congestion.undo();
        self.send.next = self.send.max;
        self.recovery.undo(self.segment());
    }

    /// RFC 5682: whether the last time-out was spurious.
    fn judge_timeout(&mut self, advances: bool, delivered: &mut Delivered) {
        if self.recovery.phase() != Phase::Loss {
            return;
        }
        let window_end = self.send.una + u64::from(self.send.window);
        let more = self.send.max < self.end_unit() && self.send.max < window_end;
        let sent_new = self.recovery.new_data().is_some();
        let segment = self.segment();
        match self.recovery.judge_timeout(advances, delivered, more, segment) {
            Verdict::SendNew => self.send.next = self.send.max,
            Verdict::Spurious => {
                self.undo();
                delivered.newest_again = None;
            }
            // Without SACK: on with what comes after the segment that was sent again.
            Verdict::Conventional if sent_new && !self.negotiated.sack => self.send.next = self.send.una,
            Verdict::Conventional | Verdict::Undecided => {}
        }
    }

    fn loss_times(&self, header: &Header, now: Time) -> Times {
        let echo = header.options.timestamps.filter(|_| self.negotiated.timestamps).map(|(_, echo)| echo);
        let age = echo.map(|echo| self.timestamp(now).wrapping_sub(echo)).filter(|age| *age < 1 << 30);
        let echo_age = age.map(|age| Duration::from_millis(u64::from(age)));
        Times { echo_age, ..self.round_trips() }
    }

    /// What is known of round trips, for the detection of loss.
    pub(super) fn round_trips(&self) -> Times {
        Times {
            least: self.rtt.least().unwrap_or_default(),
            smoothed: self.rtt.smoothed().unwrap_or_default(),
            echo_age: None,
        }
    }

    /// RFC 8985 §6.2: what is lost by now, and when to look again.
    pub(super) fn detect_loss(&mut self, delivered: &Delivered, advances: bool, times: &Times, now: Time) {
        let segment = self.segment();
        let (more_lost, again_at) = self.recovery.detect(delivered, self.send.una, segment, times, now);
        let is_probe = more_lost && self.is_size_probe_lost(now);
        if self.recovery.should_enter() {
            self.begin_recovery(!is_probe);
        }
        let safe = advances && !more_lost;
        self.recovery.reduce(delivered.units, self.congestion.threshold(), segment, safe);
        if self.recovery.is_quiet() {
            self.arm_tail_probe(now);
            return;
        }
        match again_at {
            Some(at) => self.timers.arm(Timer::LossDetection, at),
            None => self.timers.disarm(Timer::LossDetection),
        }
    }

    /// RFC 5681 FlightSize.
    fn outstanding(&self) -> u32 {
        (self.send.next - self.send.una).min(u64::from(u32::MAX)) as u32
    }

    fn begin_recovery(&mut self, reduces: bool) {
        // Once for a window of data, whether it is marks or losses that tell of congestion (RFC 3168 §6.1.2).
        let reduces = reduces && !self.recovery.is_reducing();
        if reduces {
            // RFC 5681 §3.2 step 2 and RFC 6675 §5 step 4.2
            self.congestion.on_loss(self.outstanding());
            self.ecn.on_reduced(self.send.max);
        }
        self.recovery.enter(self.send.una, self.send.max);
        if !reduces {
            self.recovery.forget_undo();
        }
    }

    fn on_duplicate(&mut self) {
        let more =
            self.send.max < self.end_unit() && self.send.next - self.send.una < u64::from(self.send.window);
        let (una, max, segment) = (self.send.una, self.send.max, self.segment());
        if self.recovery.on_duplicate(una, max, segment, more) {
            self.begin_recovery(true);
        }
    }
}
