//! What to send next: retransmissions, then new data, probes, and acknowledgments that found nothing to ride on.

use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

use scoutline_base::Time;
use scoutline_wire::tcp::{Flags, Header, MAX_SACK_BLOCKS, Options, SackBlocks};

use super::halves::{Timed, Unordered};
use super::{Connection, Owed, State};
use crate::tcp::congestion::{Algorithm, Controller};
use crate::tcp::pacing;
use crate::tcp::recovery::Phase;
use crate::tcp::segment::Transmit;
use crate::tcp::timers::Timer;

/// How long TCP_CORK holds data back (tcp(7)).
const HELD_AT_MOST: Duration = Duration::from_millis(200);
/// Segments of a window that goes at once where nothing but the path's length asks for pacing: twice the initial one
/// (RFC 6928).
const SMALL_WINDOW: u32 = 20;

impl Connection {
    /// The next segment to send at `now`. Call until `None`; what is returned counts as sent. The caller may stop
    /// early and come back later.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        let transmit = self.poll_any(now)?;
        self.count_sent(&transmit);
        Some(transmit)
    }

    fn poll_any(&mut self, now: Time) -> Option<Transmit> {
        if let Some((sequence, acknowledgment)) = self.reset.take() {
            return Some(self.reset_transmit(sequence, acknowledgment, now));
        }
        match self.state {
            State::Closed | State::Listen => None,
            State::SynSent | State::SynReceived => self.poll_handshake(now),
            State::TimeWait => self.poll_acknowledgment(now),
            _ => {
                let rare = self.recovery.phase() != Phase::Open || self.tail_probe_now;
                if rare && let Some(transmit) = self.poll_repair(now) {
                    return Some(transmit);
                }
                self.poll_data(now)
                    .or_else(|| self.poll_probe(now))
                    .or_else(|| self.poll_acknowledgment(now))
                    .or_else(|| self.watch_outstanding(now))
            }
        }
    }

    /// What is lost, or may be.
    #[inline(never)]
    fn poll_repair(&mut self, now: Time) -> Option<Transmit> {
        self.poll_lost(now).or_else(|| self.poll_tail_probe(now))
    }

    /// As [`Connection::poll_transmit`], with at most so many full segments of data in one `Transmit`; with 0, only
    /// what bears none.
    pub fn poll_transmit_within(&mut self, segments: u64, now: Time) -> Option<Transmit> {
        let most = segments.saturating_mul(u64::from(self.segment()));
        self.transmit_limit = u32::try_from(most).unwrap_or(u32::MAX);
        let transmit = self.poll_transmit(now);
        self.transmit_limit = u32::MAX;
        transmit
    }

    /// True when it may have data to send, now or when acknowledgments come.
    pub fn has_data(&self) -> bool {
        let may_send = self.state.may_send() || self.is_fast();
        self.recovery.phase() != Phase::Open || may_send && self.send.next < self.data_end()
    }

    /// Nothing is left to send: what is outstanding must have a timer, whatever order of windows opening and closing
    /// (or SACK blocks of a peer that lies) led here. Without one it would wait for ever.
    #[inline]
    fn watch_outstanding(&mut self, now: Time) -> Option<Transmit> {
        if self.send.una < self.send.max
            && !self.timers.is_armed(Timer::Retransmit)
            && !self.timers.is_armed(Timer::Persist)
        {
            // RFC 6298 §5.1
            self.timers.arm(Timer::Retransmit, now + self.rtt.rto());
        }
        None
    }

    /// What is lost and goes again.
    fn poll_lost(&mut self, now: Time) -> Option<Transmit> {
        let segment = self.segment();
        if self.recovery.phase() == Phase::Open
            || self.transmit_limit < segment
            || (self.recovery.new_data().is_some() && self.send.max < self.end_unit())
        {
            return None;
        }
        let una = self.send.una;
        let burst = self.burst(now)?;
        let room = self.congestion_room();
        let whole = room.min(u64::from(self.max_len())).min(burst) / u64::from(segment) * u64::from(segment);
        let mut range =
            self.recovery.next_lost(una, self.send.max, segment, whole.max(u64::from(segment)))?;
        // RFC 5681 §3.2 step 3: the first goes whatever the window; the rest as the window has room.
        if range.start > una && whole == 0 {
            return None;
        }
        // A window that has shrunk since takes less of it.
        range.end = range.end.min(una + u64::from(self.send.window));
        if range.is_empty() {
            return None;
        }
        let timestamp = self.recovery.timestamp_again(self.timestamp(now), &self.round_trips());
        self.recovery.on_retransmitted(range.clone(), now, timestamp);
        self.pace(range.end - range.start, now);
        self.send.timed = None;
        self.probes = 0;
        self.timers.disarm(Timer::Persist);
        if !self.timers.is_armed(Timer::Retransmit) {
            self.timers.arm(Timer::Retransmit, now + self.rtt.rto());
        }
        let mut transmit = self.range_transmit(range, true, now);
        if let Some((value, _)) = &mut transmit.header.options.timestamps {
            *value = timestamp;
        }
        Some(transmit)
    }

    /// How much a paced connection may send now, in bytes; `None` when it has to wait, for a timer that is armed then.
    #[inline]
    fn burst(&mut self, now: Time) -> Option<u64> {
        if self.paced { self.paced_burst(now) } else { Some(u64::MAX) }
    }

    #[inline(never)]
    fn paced_burst(&mut self, now: Time) -> Option<u64> {
        if self.is_small() {
            return Some(u64::MAX);
        }
        if let Some(at) = self.pacer.wait(now) {
            self.timers.arm(Timer::Pace, at);
            return None;
        }
        self.timers.disarm(Timer::Pace);
        Some(self.pacing_rate().map_or(u64::MAX, |rate| pacing::burst(rate, self.segment())))
    }

    /// Paced for the path's length only, and the window is small.
    fn is_small(&self) -> bool {
        self.congestion.window() < SMALL_WINDOW * self.segment() && !self.must_pace()
    }

    /// So many bytes leave, paced or not.
    fn pace(&mut self, bytes: u64, now: Time) {
        if self.paced
            && !self.is_small()
            && let Some(rate) = self.pacing_rate()
        {
            self.pacer.on_sent(bytes, rate, now);
        }
    }

    /// At how many bytes a second data leaves, if it is paced and a round trip is known.
    pub(super) fn pacing_rate(&self) -> Option<u64> {
        if !self.paced {
            return None;
        }
        let most = self.tuned().most_paced();
        self.controlled_rate().map(|rate| rate.min(most.unwrap_or(u64::MAX))).or(most)
    }

    /// The rate that congestion control means.
    fn controlled_rate(&self) -> Option<u64> {
        let round_trip = self.rtt.smoothed();
        if self.congestion.is_model() {
            return self.congestion.rate(round_trip.unwrap_or_default());
        }
        // As Linux: twice the window in slow start, for it may double; 1.2 times later, so that it can be used up.
        let window = u64::from(self.congestion.window());
        let grows = window < u64::from(self.congestion.threshold() / 2);
        let percent = if grows { 200 } else { 120 };
        let micros = (round_trip?.as_micros() as u64).max(1);
        Some(window * percent * 10_000 / micros)
    }

    /// What congestion control lets go beside what is in the network, in bytes.
    pub(super) fn congestion_room(&self) -> u64 {
        if let Some(allowance) = self.recovery.allowance().filter(|_| !self.congestion.is_model()) {
            return allowance;
        }
        let flight = self.recovery.in_flight(self.send.una, self.send.next, self.segment());
        let room = u64::from(self.congestion.window()).saturating_sub(flight);
        room.max(self.recovery.new_data().map_or(0, u64::from))
    }

    /// New data, or all again after a time-out.
    pub(super) fn poll_data(&mut self, now: Time) -> Option<Transmit> {
        if !self.state.may_send() && !self.is_fast() {
            return None;
        }
        let end = self.end_unit();
        let next = self.send.next;
        if next >= end {
            self.note_app_limited(now);
            return None;
        }
        if self.transmit_limit < self.segment() && next < self.data_end() {
            return None;
        }
        let burst = self.burst(now)?;
        if self.path_mtu.is_due(now)
            && let Some(transmit) = self.poll_size_probe(now)
        {
            return Some(transmit);
        }
        if self.send.una == self.send.max {
            self.chronograph.on_busy(now);
            self.delivery.on_flight(now);
            if now.since(self.send.last) > self.rtt.rto() && !self.config.keeps_idle_window {
                // RFC 5681 §4.1
                self.congestion.on_idle();
            }
        }
        let overridden = self.override_now;
        let sendable = self.sendable(burst, now);
        self.override_now = false;
        let len = sendable?;
        let data_end = self.data_end();
        let window_end = self.window_end();
        let mut stop = next + len;
        // The FIN rides on the last data if the window has room for its unit.
        if stop == data_end && self.fin_queued && stop < window_end {
            stop += 1;
        }
        if stop == next {
            self.block_on_window(now);
            return None;
        }
        let again = next < self.send.max;
        self.book_sent(next..stop, len, now);
        let mut transmit = self.range_transmit(next..stop, again, now);
        if overridden && transmit.payload.is_some() {
            transmit.header.flags |= Flags::PSH;
        }
        Some(transmit)
    }

    /// How much data may go now; `None` when it must wait. 0 when only a FIN is left.
    fn sendable(&mut self, burst: u64, now: Time) -> Option<u64> {
        let segment = u64::from(self.segment());
        let next = self.send.next;
        let available = self.data_end().saturating_sub(next);
        if available == 0 {
            return Some(0);
        }
        let mut by_congestion = self.congestion_room();
        if by_congestion < segment && self.recovery.in_flight(self.send.una, next, segment as u32) == 0 {
            by_congestion = segment;
        }
        let window_end = self.window_end();
        let by_window = window_end.saturating_sub(next);
        let most = available.min(u64::from(self.max_len())).min(burst);
        let len = most.min(by_window).min(by_congestion);
        if by_congestion <= by_window && by_congestion < available {
            self.send.limited_to = self.data_end();
        }
        let whole = len - len % segment;
        if len > whole && self.send.held < self.data_end() && self.is_held_back() {
            return self.sendable_held(whole, len, now);
        }
        if len == whole || self.may_send_part(len, most, available, by_window) {
            if len > 0 {
                return Some(len);
            }
        } else if whole > 0 {
            return Some(whole);
        }
        if by_window < segment.min(available) {
            if by_congestion >= segment {
                self.chronograph.on_window_closed(now);
            }
            self.block_on_window(now);
        }
        None
    }

    /// The unit after the last that the peer's window takes. Our SYN takes no room there.
    #[inline]
    fn window_end(&self) -> u64 {
        self.send.una.max(1) + u64::from(self.send.window)
    }

    fn is_held_back(&self) -> bool {
        !self.override_now && !self.fin_queued && self.send.next == self.send.max && !self.is_urgent()
    }

    /// As [`Connection::sendable`], while the program holds back what fills no segment: the full ones (`whole` bytes of
    /// `len`), and what it wrote before it said that more follows. The rest goes after 200 ms, as in Linux (tcp(7)), or
    /// when all is acknowledged and a time-out has passed.
    #[inline(never)]
    fn sendable_held(&mut self, whole: u64, len: u64, now: Time) -> Option<u64> {
        let due = self.send.held.saturating_sub(self.send.next).min(len);
        let len = if self.nodelay || self.send.small_end <= self.send.una { whole.max(due) } else { whole };
        if len == 0 && self.send.next == self.send.una && !self.timers.is_armed(Timer::Persist) {
            self.timers.arm(Timer::Persist, now + self.rtt.rto().max(HELD_AT_MOST));
        }
        (len > 0).then_some(len)
    }

    /// Whether a segment that is not full may be sent (RFC 9293 §3.7.4 and §3.8.6.2.1).
    fn may_send_part(&self, len: u64, most: u64, available: u64, by_window: u64) -> bool {
        if self.override_now || self.send.next < self.send.max {
            return len == most.min(by_window);
        }
        if len == available {
            // Nagle, as Minshall refined it: wait only while another small segment is unacknowledged.
            return self.nodelay
                || self.fin_queued
                || self.send.small_end <= self.send.una
                || self.is_urgent();
        }
        // Sender's silly window avoidance: at least half of the largest window that the peer ever gave.
        len == by_window && len >= u64::from(self.send.max_window / 2)
    }

    /// The peer's window is the limit. With nothing in flight, no acknowledgment will come to tell that it opened.
    fn block_on_window(&mut self, now: Time) {
        if self.send.next == self.send.una && !self.timers.is_armed(Timer::Persist) {
            self.timers.disarm(Timer::Retransmit);
            self.timers.arm(Timer::Persist, now + self.probe_interval());
        }
    }

    /// New data up to the unit `end` leaves at a rate.
    #[inline(never)]
    fn book_paced(&mut self, end: u64, len: u64, now: Time) {
        if self.congestion.is_model() {
            let flight = self.recovery.in_flight(self.send.una, self.send.next, self.segment());
            self.congestion.on_sent(end, flight, now);
        }
        self.pace(len, now);
    }

    pub(super) fn book_sent(&mut self, range: Range<u64>, len: u64, now: Time) {
        let segment = u64::from(self.segment());
        if range.start < self.send.max {
            self.send.timed = None;
            let timestamp = self.timestamp(now);
            self.recovery.on_retransmitted(range.clone(), now, timestamp);
        } else {
            if self.send.timed.is_none() {
                self.send.timed = NonZeroU64::new(range.end).map(|end| Timed { end, at: now });
                self.delivery.on_marked(self.delivered());
            }
            if std::mem::take(&mut self.came) && now - self.last_heard < self.config.delayed_ack {
                (self.receive.quick, self.answers) = (0, true);
            }
        }
        if !len.is_multiple_of(segment) {
            self.send.small_end = range.end;
        }
        if self.paced {
            self.book_paced(range.end, len, now);
        }
        self.recovery.on_sent(range.clone(), now);
        self.send.next = range.end;
        self.send.max = self.send.max.max(range.end);
        let out = (range.end - self.send.una).min(u64::from(u32::MAX)) as u32;
        let is_answered = (self.send.una as u32).wrapping_sub(self.send.most_out_to) as i32 >= 0;
        if out > self.send.most_out || is_answered {
            self.send.most_out = out;
            self.send.most_out_to = range.end as u32;
        }
        self.send.last = now;
        self.probes = 0;
        self.chronograph.on_sent(now);
        self.timers.disarm(Timer::Persist);
        if !self.timers.is_armed(Timer::Retransmit) {
            // RFC 6298 §5.1
            self.timers.arm(Timer::Retransmit, now + self.rtt.rto());
        }
        self.arm_tail_probe(now);
        self.arm_user_timeout(now);
    }

    /// The acknowledgment that what came last has for itself: to be asked for after each segment, where several come at
    /// once.
    #[inline]
    pub fn poll_told(&mut self, now: Time) -> Option<Transmit> {
        let tells = self.receive.unordered.as_ref().is_some_and(|unordered| unordered.tells);
        if tells && self.reset.is_none() && self.state != State::Closed {
            self.poll_acknowledgment(now)
        } else {
            None
        }
    }

    pub(super) fn poll_acknowledgment(&mut self, now: Time) -> Option<Transmit> {
        if self.owed != Owed::Now {
            return None;
        }
        let unit = self.acceptable_unit();
        let later = self.told_later();
        let mut transmit = self.bare_transmit(unit, now);
        if let Some((len, parts)) = later.filter(|_| self.owed == Owed::Nothing) {
            self.leave_for_later(len, parts, &mut transmit.header, now);
        }
        Some(transmit)
    }

    /// The unit that a segment without data bears: SND.NXT, as far as the peer's window reaches; beyond, it would
    /// not look at the acknowledgment.
    pub(super) fn acceptable_unit(&self) -> u64 {
        self.send.max.min(self.send.una + u64::from(self.send.window))
    }

    pub(super) fn bare_transmit(&mut self, unit: u64, now: Time) -> Transmit {
        let header = self.header(unit, Flags::ACK, now);
        Transmit {
            header,
            payload: None,
            segment_size: self.negotiated.segment_payload(),
            retransmission: false,
            ecn_capable: false,
        }
    }

    pub(super) fn range_transmit(&mut self, range: Range<u64>, retransmission: bool, now: Time) -> Transmit {
        let data_end = self.data_end();
        let mut flags = Flags::ACK;
        let stop = range.end.min(data_end);
        if range.end > data_end {
            flags |= Flags::FIN;
        }
        let payload = (range.start < stop).then(|| range.start - 1..stop - 1);
        let is_last = stop == data_end
            && stop != self.send.unfinished
            && !(self.send.held_unfinished && self.send.held <= stop);
        let is_burst = stop - range.start > u64::from(self.segment())
            && (!retransmission || self.recovery.has_repaired_all());
        if payload.is_some() && (is_last || is_burst) {
            // RFC 9293 §3.9.1.2: the last of what was written, unless the program said that more follows. And the last
            // of a super-segment, as Linux does: a receiver that merges segments need not wait for more. Of what goes
            // again, after which nothing is missing: until then no segment is the last that the receiver waits for.
            flags |= Flags::PSH;
        }
        if retransmission {
            self.retransmitted += range.end - range.start;
        }
        // RFC 3168 §6.1.5: what goes again is not capable.
        let ecn_capable =
            self.ecn.is_on() && !retransmission && payload.is_some() && !self.congestion.is_model();
        if ecn_capable && self.ecn.is_reduced() {
            flags |= Flags::CWR;
            self.ecn.on_sent();
        }
        let header = self.header(range.start, flags, now);
        let segment_size = self.negotiated.mss - header.options.emitted_len() as u16;
        Transmit { header, payload, segment_size, retransmission, ecn_capable }
    }

    /// A header that acknowledges all we have, and counts as that acknowledgment.
    fn header(&mut self, unit: u64, flags: Flags, now: Time) -> Header {
        let window = self.advertise();
        let receive = &mut self.receive;
        receive.acknowledged = receive.next;
        receive.unacknowledged = 0;
        self.parts = 0;
        if receive.duplicates > 0 {
            receive.duplicates -= 1;
            self.owed = Owed::Now;
        } else {
            self.owed = Owed::Nothing;
        }
        if let Some(unordered) = &mut receive.unordered {
            unordered.merged = 0;
            unordered.tells = false;
        }
        self.timers.disarm(Timer::DelayedAck);
        let mut header = Header {
            sequence: self.send.iss.plus(unit).0,
            acknowledgment: self.receive_next().0,
            flags: flags | self.ecn.echo(),
            window,
            options: Options {
                timestamps: self.negotiated.timestamps.then(|| (self.timestamp(now), self.receive.recent)),
                sack: self.sack_blocks(now),
                ..Options::default()
            },
            ..Header::default()
        };
        if self.urgent.is_some() {
            self.mark_urgent(unit, &mut header);
        }
        header
    }

    /// The window field; moves the right edge when that is worth it.
    fn advertise(&mut self) -> u16 {
        let scale = self.negotiated.receive_scale;
        let (could, most) = (self.window_there_is_room_for(), self.receive_most());
        let receive = &mut self.receive;
        let edge = receive.next + could;
        // RFC 9293 §3.8.6.2.2: receiver's silly window avoidance; a quarter, see `tell_of_room`.
        let worth = u64::from(most / 4).min(u64::from(receive.segment));
        if edge >= receive.edge + worth.max(1) {
            receive.edge = edge;
        }
        (receive.edge.saturating_sub(receive.next) >> scale).min(u64::from(u16::MAX)) as u16
    }

    /// RFC 2018 §4: ranges that grew come first, the last one before the others; before them, once, what came a second
    /// time (RFC 2883). What has no place in this acknowledgment makes another one.
    fn sack_blocks(&mut self, now: Time) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        let Some(unordered) = &mut self.receive.unordered else { return blocks };
        if !self.negotiated.sack {
            unordered.untold.clear();
            unordered.duplicates.clear();
        }
        if unordered.is_told() && unordered.late.as_ref().is_none_or(|late| late.is_over(now)) {
            self.receive.unordered = None;
            return blocks;
        }
        if unordered.is_told() {
            **unordered = Unordered { late: unordered.late, ..Unordered::default() };
            return blocks;
        }
        if !self.negotiated.sack {
            return blocks;
        }
        // RFC 2018 §3: three fit beside timestamps.
        let most = if self.negotiated.timestamps { 3 } else { MAX_SACK_BLOCKS };
        let (irs, ranges) = (self.receive.irs, &unordered.ranges);
        // False when there is no place for it. One that is there already needs none.
        let push = |blocks: &mut SackBlocks, range: &Range<u64>, repeats: bool| {
            let (left, right) = (irs.plus(1 + range.start).0, irs.plus(1 + range.end).0);
            let there = blocks.as_slice();
            !repeats && there.contains(&(left, right)) || there.len() < most && blocks.push(left, right)
        };
        if let Some(duplicate) = unordered.duplicates.pop_front() {
            push(&mut blocks, &duplicate, true);
            // RFC 2883 §4: the block that holds it follows, even if it is no larger.
            if let Some(range) = ranges.containing(duplicate.start) {
                push(&mut blocks, &range, true);
            }
            if !unordered.duplicates.is_empty() {
                self.owed = Owed::Now;
            }
        }
        while let Some(position) = unordered.untold.pop() {
            if let Some(range) = ranges.containing(position)
                && !push(&mut blocks, &range, false)
            {
                unordered.untold.push(position);
                self.owed = Owed::Now;
                return blocks;
            }
        }
        for range in ranges
            .containing(unordered.latest)
            .iter()
            .chain(ranges.as_slice().iter().rev().take(MAX_SACK_BLOCKS))
        {
            if !push(&mut blocks, range, false) {
                break;
            }
        }
        blocks
    }

    fn reset_transmit(&self, sequence: u32, acknowledgment: Option<u32>, now: Time) -> Transmit {
        let mut header = Header { sequence, flags: Flags::RST, ..Header::default() };
        if let Some(acknowledgment) = acknowledgment {
            header.flags |= Flags::ACK;
            header.acknowledgment = acknowledgment;
            // RFC 7323 §3.2: SHOULD.
            let timestamps = || (self.timestamp(now), self.receive.recent);
            header.options.timestamps = self.negotiated.timestamps.then(timestamps);
        }
        let segment_size = self.negotiated.segment_payload();
        Transmit { header, payload: None, segment_size, retransmission: false, ecn_capable: false }
    }

    /// Most payload of one `Transmit`: whole segments, at least one.
    #[inline]
    fn max_len(&self) -> u32 {
        let segment = self.segment();
        if self.ecn.is_reduced() {
            return segment; // CWR on a segment of its own
        }
        if self.is_urgent() {
            return segment; // an urgent pointer of its own for each
        }
        let mut most = self.config.max_transmit_len.min(self.transmit_limit);
        if self.is_long {
            most = most.min(self.long_path_len());
        }
        (most / segment * segment).max(segment)
    }

    /// The same on a long path, as Linux has it: a window makes at least two acknowledgments, which clock out what
    /// follows, and a burst stands for a millisecond.
    #[inline(never)]
    fn long_path_len(&self) -> u32 {
        if self.congestion.algorithm() == Algorithm::LedbatPlusPlus {
            return u32::MAX; // finds its fair share by the queue that whole windows make (`tests/tcp_bottleneck.rs`)
        }
        let segment = self.segment();
        let burst = self.controlled_rate().map_or(u64::MAX, |rate| pacing::burst(rate, segment));
        let least = u64::from(segment) * u64::from(self.config.min_burst_segments);
        u64::from(self.congestion.window() / 2).min(burst.max(least)) as u32
    }
}
