//! Opening: SYN-SENT and SYN-RECEIVED (RFC 9293 §3.5).

use std::num::NonZeroU64;

use scoutline_base::Time;
use scoutline_wire::tcp::{Flags, Header};

use super::halves::Timed;
use super::{Connection, Owed, State};
use crate::tcp::congestion::Controller;
use crate::tcp::segment::{Drop, Events, Input, Transmit};
use crate::tcp::sequence::SeqNumber;
use crate::tcp::timers::Timer;

impl Connection {
    /// Takes what a SYN or SYN-ACK tells.
    pub(super) fn take_syn(&mut self, syn: &Header, now: Time) {
        self.receive.irs = SeqNumber(syn.sequence);
        self.negotiated.accept(&syn.options);
        if self.negotiated.sack {
            self.recovery.set_selective();
        }
        self.congestion.set_segment(self.negotiated.segment_payload());
        if let Some((value, _)) = syn.options.timestamps {
            self.receive.recent = value;
            self.receive.recent_at = now;
        }
        // RFC 7323 §2.2: the window of a SYN is never scaled.
        self.send.window = u32::from(syn.window);
        self.send.max_window = self.send.window;
        self.send.wl1 = SeqNumber(syn.sequence);
        self.send.wl2 = 0;
    }

    /// RFC 9293 §3.10.7.3
    pub(super) fn on_syn_sent(&mut self, header: &Header, now: Time) -> Input {
        let acknowledges = header.flags.contains(Flags::ACK);
        let offset = SeqNumber(header.acknowledgment).offset_from(self.send.iss);
        // RFC 7413 §4.2.2: the SYN, and perhaps data that went with it.
        let most = 1 + self.sent_with_syn() as i64;
        let acceptable = acknowledges && (1..=most).contains(&offset) && self.send.max == 1;
        if acknowledges && !acceptable {
            if !header.flags.contains(Flags::RST) {
                self.reset = Some((header.acknowledgment, None));
            }
            return Input::dropped(Drop::BadAck);
        }
        if header.flags.contains(Flags::RST) {
            if !acceptable {
                return Input::dropped(Drop::BadReset);
            }
            self.enter_closed();
            return Input { events: Events::REFUSED | Events::CLOSED, ..Input::default() };
        }
        if !header.flags.contains(Flags::SYN) {
            return Input::dropped(Drop::MissingAck);
        }
        self.take_syn(header, now);
        if acceptable {
            self.ecn.on_syn_ack(header.flags);
        }
        if !acceptable {
            // Simultaneous open (RFC 9293 §3.5, figure 8): our SYN goes again, with an ACK.
            self.state = State::SynReceived;
            self.send.next = 0;
            return Input::default();
        }
        self.establish(now);
        // Data or a FIN beside the SYN is not taken; the peer sends it again.
        self.owed = Owed::Now;
        let mut input = Input { events: Events::CONNECTED, ..Input::default() };
        if self.fast_open.is_some() {
            self.on_syn_data_answered(header, offset as u64 - 1, now, &mut input);
        }
        input
    }

    /// Our SYN is acknowledged.
    pub(super) fn establish(&mut self, now: Time) {
        self.send.una = 1;
        if self.send.next == 0 {
            // A SYN-ACK was to go again. Data that a fast open has sent behind it has gone, and does not go anew: the
            // scoreboard has it.
            self.send.next = self.send.max.max(1);
        }
        self.state = if self.fin_queued { State::FinWait1 } else { State::Established };
        self.end_fast_open();
        self.timers.disarm(Timer::Retransmit);
        self.attempts = 0;
        self.keepalive_probes = 0;
        match self.send.timed {
            Some(Timed { end: NonZeroU64::MIN, at }) => {
                self.send.timed = None;
                self.rtt.on_sample(now.since(at), self.config.min_rto);
            }
            // Karn: a SYN that went twice gives none, whatever is timed of the data behind it (passive fast open).
            _ => self.rtt.after_lost_syn(),
        }
        self.set_paced();
        self.send.last = now;
        self.last_heard = now;
        self.arm_keepalive(now);
    }

    /// The SYN or SYN-ACK, when it is due.
    pub(super) fn poll_handshake(&mut self, now: Time) -> Option<Transmit> {
        if self.send.next > 0 {
            if self.is_fast()
                && let Some(transmit) = self.poll_data(now)
            {
                return Some(transmit);
            }
            return if self.state == State::SynReceived { self.poll_acknowledgment(now) } else { None };
        }
        if self.is_deferred() {
            return None;
        }
        let again = self.send.max > 0;
        // Karn: a SYN that was sent twice is not timed.
        self.send.timed = (!again).then_some(Timed { end: NonZeroU64::MIN, at: now });
        // Data that a fast open has sent behind it does not go again with it.
        self.send.max = self.send.max.max(1);
        self.send.next = self.send.max;
        self.timers.arm(Timer::Retransmit, now + self.rtt.rto());
        // RFC 7323 §2.2: not scaled.
        let (limit, most) = (self.window_limit(), self.receive_most());
        let receive = &mut self.receive;
        let could = (receive.consumed + u64::from(most)).saturating_sub(receive.next).min(limit);
        receive.edge = receive.edge.max(receive.next + u64::from(self.config.syn_window(could)));
        receive.acknowledged = receive.next;
        let window = self.window_left().min(u64::from(u16::MAX));
        let mut header = Header {
            sequence: self.send.iss.0,
            flags: Flags::SYN,
            window: window as u16,
            options: self
                .negotiated
                .syn_options(self.config.told_mss(), (self.timestamp(now), self.receive.recent)),
            ..Header::default()
        };
        if self.state == State::SynReceived {
            header.flags |= Flags::ACK;
            header.acknowledgment = self.receive_next().0;
            header.flags |= self.ecn.syn_ack();
            self.owed = Owed::Nothing;
        } else {
            header.flags |= self.ecn.syn(self.config.ecn, again);
        }
        let mut transmit = Transmit {
            header,
            payload: None,
            segment_size: self.negotiated.segment_payload(),
            retransmission: again,
            ecn_capable: false,
        };
        if self.fast_open.is_some() {
            self.add_fast_open(&mut transmit, now);
        }
        Some(transmit)
    }
}
