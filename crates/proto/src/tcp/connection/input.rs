//! Segments in synchronised states (RFC 9293 §3.10.7.4): prediction, checks, payload.

use std::time::Duration;

use scoutline_base::Time;
use scoutline_wire::tcp::{Flags, Header};

use super::halves::Unordered;
use super::{Connection, Owed, State};
use crate::tcp::flight::Delivered;
use crate::tcp::segment::{Deliver, Drop, Events, Input};
use crate::tcp::sequence::SeqNumber;
use crate::tcp::timers::Timer;

/// The peer's full segment until one is seen. Linux: `TCP_MSS_DEFAULT`.
pub(super) const INITIAL_SEGMENT: u16 = 536;
/// Acknowledgments without delay at the start, so that the peer's window opens, and behind a gap that was filled: what came
/// of it meanwhile was told late. Linux: `TCP_MAX_QUICKACKS`.
pub(super) const QUICK_ACKS: u8 = 16;
/// At the start, a small segment's acknowledgment waits this long for an answer to ride on: enough for a server's
/// reply, too little for a peer that waits (Nagle) to notice.
const QUICK_DELAY: Duration = Duration::from_millis(1);
/// RFC 5681 §3.2: by so many duplicates a peer without RACK sees a loss.
const TOLD_AT_ONCE: u8 = 3;
/// Segments behind a gap that have no acknowledgment of their own before one has.
const MOST_MERGED: u8 = 3;
/// What their acknowledgment waits at most. The tick of the engine's wheel comes on top: together Linux's millisecond.
const LONGEST_MERGE: Duration = Duration::from_micros(50);
/// RFC 7323 §5.5: a timestamp older than this says nothing.
const RECENT_LIFETIME: Duration = Duration::from_secs(24 * 24 * 3600);
/// More ranges than this that grew at once are told when they happen to be among the highest.
const MAX_UNTOLD: usize = 64;
/// More duplicate acknowledgments than this at once tell the peer nothing more.
const MAX_OWED_DUPLICATES: u8 = 8;

impl Unordered {
    /// The range at `position` has grown, which acknowledgments are to tell. Of a burst with many holes one
    /// acknowledgment cannot tell all.
    fn note_untold(&mut self, position: u64) {
        let range = self.ranges.containing(position);
        let is_told = self.untold.last().is_some_and(|last| range.is_some_and(|range| range.contains(last)));
        if !is_told && self.untold.len() < MAX_UNTOLD {
            self.untold.push(position);
        }
    }
}

impl Connection {
    /// Header prediction: the next data in order, or an acknowledgment of new data, in ESTABLISHED, with nothing
    /// unusual going on. `None` when it is anything else; nothing has changed then.
    #[inline]
    pub(super) fn predicted(&mut self, header: &Header, len: u32, now: Time) -> Option<Input> {
        if self.state != State::Established
            || header.flags.difference(Flags::PSH) != Flags::ACK
            || header.sequence != self.receive_next().0
            || self.receive.has_gap()
            || self.receive.fin_end.is_some()
            || self.orphan
            || !self.recovery.is_quiet()
            || self.recovery.is_reducing()
            || self.send.tail_probe.is_some()
            || !header.options.sack.is_empty()
        {
            return None;
        }
        let delta = SeqNumber(header.acknowledgment).offset_from(self.send.iss.plus(self.send.una));
        let acknowledgable = (self.send.max - self.send.una) as i64;
        if delta < 0
            || delta > acknowledgable
            || (delta == 0 && len == 0)
            || u64::from(len) > self.window_left()
        {
            return None;
        }
        if self.negotiated.timestamps {
            let (value, _) = header.options.timestamps?;
            if (value.wrapping_sub(self.receive.recent) as i32) < 0 {
                return None;
            }
            self.take_timestamp(header, 0, now);
        }
        let mut input = Input::default();
        self.heard(now);
        self.attempts = 0;
        self.release_held();
        self.take_window(header);
        if delta > 0 {
            self.on_new_acknowledgment(delta as u64, header, now, &mut input, &mut Delivered::default());
        }
        if len > 0 {
            let position = self.receive.next;
            self.receive.next += u64::from(len);
            self.schedule_acknowledgment(len, header.flags.contains(Flags::PSH), now);
            input.deliver = Some(Deliver { position, skip: 0, len, in_order_to: self.receive.next });
            input.events |= Events::READABLE;
        }
        Some(input)
    }

    pub(super) fn on_unpredicted(&mut self, header: &Header, len: u32, now: Time) -> Input {
        match self.state {
            State::Closed | State::Listen => Input::dropped(Drop::Closed),
            State::SynSent => self.on_syn_sent(header, now),
            State::TimeWait => self.on_time_wait(header, len, now),
            _ => self.on_synchronized(header, len, now),
        }
    }

    /// The order of checks is that of RFC 9293 §3.10.7.4, with RFC 5961's resets and SYNs before it.
    fn on_synchronized(&mut self, header: &Header, mut len: u32, now: Time) -> Input {
        let mut offset = SeqNumber(header.sequence).offset_from(self.receive_next());
        let mut flags = header.flags;
        let is_syn = flags.contains(Flags::SYN) && SeqNumber(header.sequence) == self.receive.irs;
        if self.state == State::SynReceived && is_syn {
            if !flags.contains(Flags::ACK) {
                // The peer's SYN again: our SYN-ACK was lost.
                self.send.next = 0;
                return Input::dropped(Drop::Duplicate);
            }
            // Simultaneous open: only its acknowledgment is new.
            flags.remove(Flags::SYN | Flags::FIN);
            offset = 0;
            len = 0;
        }
        if flags.contains(Flags::RST) {
            return self.on_reset(offset, now);
        }
        if flags.contains(Flags::SYN) {
            // RFC 5961 §4.2
            self.challenge(now);
            return Input::dropped(Drop::UnexpectedSyn);
        }
        let fin = flags.contains(Flags::FIN);
        if let Err(reason) = self.check_timestamp(header, len, now) {
            // Of what came a second time the peer is told all the same (RFC 2883), as by Linux.
            let next = self.receive.next;
            if let Some(start) = next.checked_add_signed(offset).filter(|start| *start < next)
                && reason == Drop::Paws
                && len > 0
                && self.negotiated.sack
            {
                self.receive.note_duplicate(start, next.min(start + u64::from(len)));
            }
            return Input::dropped(reason);
        }
        if let Err(reason) = self.check_sequence(offset, len, fin, now) {
            return Input::dropped(reason);
        }
        if !flags.contains(Flags::ACK) {
            return Input::dropped(Drop::MissingAck);
        }
        self.heard(now);
        let mut input = Input::default();
        if !self.on_acknowledgment(header, len > 0 || fin, now, &mut input) {
            return input;
        }
        self.take_timestamp(header, offset, now);
        if flags.contains(Flags::URG) && self.state.may_receive() {
            self.take_urgent(header, offset, &mut input);
        }
        if (len > 0 || fin) && self.state.may_receive() && !self.fin_received {
            // Not below `next`: the segment passed the check of its sequence numbers.
            let end = (self.receive.next as i64 + offset + i64::from(len)) as u64;
            if fin && end <= self.receive.edge {
                let earliest = self.receive.fin_at().map_or(end, |earlier| earlier.min(end));
                self.receive.set_fin_at(Some(earliest));
            }
            if len > 0 {
                if self.refuses_data() && end > self.receive.next {
                    return self.refuse_data(header, input);
                }
                self.accept_payload(offset, len, header.flags.contains(Flags::PSH), now, &mut input);
            }
            if self.receive.fin_at() == Some(self.receive.next) {
                self.on_fin(now, &mut input);
            } else if fin {
                self.hold_fin(end);
                self.owed = Owed::Now;
            }
        } else if len > 0 {
            input.drop = Some(Drop::NoReceiver);
            self.owed = Owed::Now;
        }
        input
    }

    /// RFC 7323 §5.3 R1 and §3.2.
    fn check_timestamp(&mut self, header: &Header, len: u32, now: Time) -> Result<(), Drop> {
        if !self.negotiated.timestamps {
            return Ok(());
        }
        let Some((value, _)) = header.options.timestamps else { return Err(Drop::MissingTimestamp) };
        let receive = &self.receive;
        let older = (value.wrapping_sub(receive.recent) as i32) < 0;
        let is_late = older && receive.late().is_some_and(|late| late.permits(value, now));
        if older && !is_late && now.since(receive.recent_at) < RECENT_LIFETIME {
            if len > 0 {
                self.owed = Owed::Now;
            } else {
                self.challenge(now);
            }
            return Err(Drop::Paws);
        }
        Ok(())
    }

    /// RFC 7323 §4.3 (2): remembered only from a segment that begins at or before our last acknowledgment.
    #[inline]
    fn take_timestamp(&mut self, header: &Header, offset: i64, now: Time) {
        let Some((value, echo)) = header.options.timestamps else { return };
        self.receive.echo = echo;
        if self.negotiated.timestamps
            && self.receive.next as i64 + offset <= self.receive.acknowledged as i64
            && ((value.wrapping_sub(self.receive.recent) as i32) >= 0
                || now.since(self.receive.recent_at) >= RECENT_LIFETIME)
        {
            let receive = &mut self.receive;
            if value != receive.recent && receive.has_gap() {
                receive.unordered.get_or_insert_default().note_filled(receive.recent, now);
            }
            receive.recent = value;
            receive.recent_at = now;
        }
    }

    /// RFC 9293 §3.4, the four cases of acceptability.
    fn check_sequence(&mut self, offset: i64, len: u32, fin: bool, now: Time) -> Result<(), Drop> {
        let window = self.window_left() as i64;
        let segment_len = i64::from(len) + i64::from(fin);
        if segment_len == 0 {
            // One more than the standard at the right edge: the acknowledgment that follows a window's worth of
            // data may overtake it.
            if offset < 0 || offset > window {
                // Answered, within limits: two ends that disagree must not answer each other for ever. This is
                // also the answer to a keepalive probe (RFC 9293 §3.8.4).
                self.heard(now);
                self.challenge(now);
                return Err(if offset < 0 { Drop::Duplicate } else { Drop::OutOfWindow });
            }
            return Ok(());
        }
        if offset + segment_len <= 0 {
            self.owed = Owed::Now;
            self.note_duplicate(offset, offset + segment_len);
            self.heard(now);
            return Err(Drop::Duplicate);
        }
        // A closed window takes no data, but the acknowledgment of a probe at its edge counts (RFC 9293
        // §3.10.7.4), and a FIN needs no room.
        if offset > window || (offset == window && window > 0 && len > 0) {
            self.owed = Owed::Now;
            return Err(Drop::OutOfWindow);
        }
        Ok(())
    }

    /// What lies between these offsets from RCV.NXT has come again (RFC 2883): to be told once.
    fn note_duplicate(&mut self, from: i64, to: i64) {
        let next = self.receive.next + u64::from(self.fin_received);
        let place = |offset: i64| next.checked_add_signed(offset.min(0));
        if let (true, Some(start), Some(end)) = (from < to, place(from), place(to)) {
            self.receive.note_duplicate(start, end);
        }
    }

    /// A FIN ahead of data that are missing. It has a place among the sequence numbers, of which SACK tells as of data's
    /// (RFC 2018 §3).
    fn hold_fin(&mut self, at: u64) {
        if self.receive.fin_at() != Some(at) {
            return;
        }
        let unordered = self.receive.unordered.get_or_insert_default();
        match unordered.ranges.insert(at..at + 1) {
            Ok(true) => {
                unordered.latest = at;
                unordered.note_untold(at);
            }
            Ok(false) => unordered.note_duplicate(at..at + 1),
            Err(_) => {}
        }
    }

    /// Takes the part of the payload that is new and lies within the window.
    fn accept_payload(&mut self, offset: i64, len: u32, is_pushed: bool, now: Time, input: &mut Input) {
        let receive = &mut self.receive;
        let skip = (-offset).max(0) as u64;
        let position = receive.next + offset.max(0) as u64;
        let end = receive.fin_at().unwrap_or(u64::MAX).min(receive.edge);
        let wanted = u64::from(len).saturating_sub(skip);
        let take = wanted.min(end.saturating_sub(position));
        if skip > 0 {
            // RFC 2883 §4.1
            receive.note_duplicate(receive.next.saturating_sub(skip), receive.next);
        }
        if take == 0 {
            if wanted > 0 {
                input.drop = Some(Drop::OutOfWindow);
            }
            self.owed = Owed::Now;
            return;
        }
        if let Some(unordered) = &mut receive.unordered {
            unordered.note_overlaps(position..position + take);
        }
        if offset > 0 {
            let unordered = receive.unordered.get_or_insert_default();
            match unordered.ranges.insert(position..position + take) {
                Ok(true) => {
                    unordered.latest = position;
                    unordered.note_untold(position);
                }
                Ok(false) => input.drop = Some(Drop::Duplicate),
                Err(_) => input.drop = Some(Drop::ReassemblyLimit),
            }
            // RFC 5681 §4.2: at once. Without SACK the peer counts them, so none may be merged.
            if self.owed == Owed::Now && !self.negotiated.sack {
                receive.duplicates = (receive.duplicates + 1).min(MAX_OWED_DUPLICATES);
            }
            if input.drop.is_some() {
                self.owed = Owed::Now;
                return;
            }
            self.tell_of_gap(now);
        } else if !receive.has_gap() {
            receive.next = position + take;
            if take < wanted || skip > 0 {
                self.owed = Owed::Now;
            }
            self.schedule_acknowledgment(take as u32, is_pushed, now);
            input.events |= Events::READABLE;
        } else {
            // RFC 5681 §4.2: a segment that fills a gap is acknowledged at once.
            let next = receive.unordered.as_mut().map_or(position + take, |unordered| {
                unordered.tells = true;
                unordered.ranges.advance(position + take)
            });
            if next > position + take && !self.answers {
                receive.quick = receive.quick.max(QUICK_ACKS);
            }
            // Not over the place of the FIN that waits for them.
            receive.next = receive.fin_at().map_or(next, |fin| fin.min(next));
            self.owed = Owed::Now;
            input.events |= Events::READABLE;
        }
        let in_order_to = self.receive.next;
        input.deliver = Some(Deliver { position, skip: skip as u32, len: take as u32, in_order_to });
    }

    /// RFC 5681 §4.2: what leaves a gap is acknowledged at once. With SACK one acknowledgment says what several would; so
    /// of a gap the first ones go at once, by which the peer sees a loss, and then every fourth, or what came in a moment:
    /// else each segment behind a gap that lasts a round trip costs a packet. Not fewer: a sender's slow start ends by the
    /// round-trip times of the first eight acknowledgments of a round (RFC 9406 §4.2), and meanwhile grows by all that they
    /// tell of. Merged by the millisecond alone they let it overrun the queue of a line. Quick ones are not merged.
    /// The first ones are one for each segment, also of a burst ([`Connection::poll_told`]): the peer then sends a burst's
    /// worth again in parts, and not all in the moment that lost some of it, as behind a policer.
    fn tell_of_gap(&mut self, now: Time) {
        let next = self.receive.next;
        let moment = self.rtt.smoothed().map(|rtt| (rtt / 20).min(LONGEST_MERGE));
        let unordered = self.receive.unordered.get_or_insert_default();
        if unordered.told_of != next {
            (unordered.told_of, unordered.told_at_once) = (next, 0);
        }
        let merges = self.negotiated.sack
            && self.receive.quick == 0
            && self.owed != Owed::Now
            && unordered.told_at_once >= TOLD_AT_ONCE
            && unordered.merged < MOST_MERGED;
        let Some(moment) = moment.filter(|_| merges) else {
            unordered.told_at_once = unordered.told_at_once.saturating_add(1);
            unordered.tells = self.negotiated.sack;
            self.receive.quick = self.receive.quick.saturating_sub(1);
            self.owed = Owed::Now;
            return;
        };
        unordered.merged += 1;
        self.owed = Owed::Later;
        let due = now + moment;
        if self.timers.deadline(Timer::DelayedAck).is_none_or(|armed| armed > due) {
            self.timers.arm(Timer::DelayedAck, due);
        }
    }

    /// Delayed acknowledgments (RFC 9293 §3.8.6.3, RFC 5681 §4.2): at least for every second full segment, where a
    /// super-segment counts as the segments that it is made of. Each that is small, or (`is_pushed`) ends a write, where nothing
    /// of ours answers it: the peer may wait with the next one (Nagle). Linux does it when the program has read all
    /// (`tcp_measure_rcv_mss`, `__tcp_cleanup_rbuf`).
    #[inline]
    fn schedule_acknowledgment(&mut self, len: u32, is_pushed: bool, now: Time) {
        let receive = &mut self.receive;
        receive.unacknowledged = receive.unacknowledged.saturating_add(len);
        if len > u32::from(receive.segment) {
            receive.segment = len.min(u32::from(self.config.mss)).max(u32::from(INITIAL_SEGMENT)) as u16;
        }
        let full = u32::from(receive.segment);
        let quick = receive.quick > 0;
        receive.quick = receive.quick.saturating_sub(1);
        self.came = true;
        let is_awaited = if quick { len >= full } else { (len < full || is_pushed) && !self.answers };
        if self.owed == Owed::Part {
            // Comes with the next one.
        } else if receive.unacknowledged >= 2 * full || is_awaited {
            self.owed = Owed::Now;
        } else if self.owed == Owed::Nothing {
            self.owed = Owed::Later;
            let delay = self.config.delayed_ack;
            let delay = if quick { delay.min(QUICK_DELAY) } else { delay };
            self.timers.arm(Timer::DelayedAck, now + delay);
        }
    }

    /// The peer is alive.
    #[inline]
    fn heard(&mut self, now: Time) {
        self.last_heard = now;
        self.keepalive_probes = 0;
    }
}
