//! Data in a handshake (RFC 7413 §4.2): what goes with our SYN, and a connection that begins with a peer's.
//!
//! Data on our SYN is a gamble that is kept apart from the stream: unit 1 is the first to be sent until a SYN-ACK covers
//! more than the SYN. Then so much counts as sent with it; what it does not cover goes at once, as what never was.
//!
//! A connection that is accepted on the word of a cookie is in SYN-RECEIVED, and its program reads and writes already.
//! Until the peer has acknowledged the SYN only that goes again when the timer expires.

use std::sync::Arc;

use scoutline_base::Time;
use scoutline_wire::tcp::{FastOpen, Header};

use super::{Config, Connection, State};
use crate::tcp::fast_open::{Outcome, Start};
use crate::tcp::flight::Delivered;
use crate::tcp::options::DEFAULT_MSS;
use crate::tcp::segment::{Deliver, Events, Input, Transmit};

/// What fast open needs until the handshake is complete.
#[derive(Clone, Debug, Default)]
pub(super) struct Opening {
    /// Of our first SYN or SYN-ACK.
    option: Option<FastOpen>,
    /// How much may go with our SYN, in bytes.
    room: u32,
    /// Our SYN waits for the first that is written.
    waits: bool,
    /// How much went with our SYN, in bytes, and when.
    sent: u64,
    sent_at: Option<Time>,
    /// The peer's SYN began the connection: the program has it.
    is_accepted: bool,
    /// How an active one began.
    outcome: Option<Outcome>,
}

impl Connection {
    /// As [`Connection::connect`], with a cookie and data, or asking for a cookie.
    pub fn connect_fast(
        config: impl Into<Arc<Config>>,
        iss: u32,
        ts_offset: u32,
        start: &Start,
        now: Time,
    ) -> Connection {
        let mut connection = Connection::connect(config, iss, ts_offset, now);
        let &Start { option, room, waits } = start;
        connection.fast_open = Some(Box::new(Opening { option, room, waits, ..Opening::default() }));
        connection
    }

    /// As [`Connection::accept`], on a SYN that asked for a cookie or brought one: `answer` goes with the SYN-ACK.
    pub fn accept_answering(
        config: impl Into<Arc<Config>>,
        iss: u32,
        ts_offset: u32,
        syn: &Header,
        answer: Option<FastOpen>,
        now: Time,
    ) -> Connection {
        let mut connection = Connection::accept(config, iss, ts_offset, syn, now);
        connection.fast_open =
            answer.map(|option| Box::new(Opening { option: Some(option), ..Opening::default() }));
        connection
    }

    /// The connection begins now, in SYN-RECEIVED, with the `payload_len` bytes on its SYN (RFC 7413 §4.2.2). Only just
    /// after [`Connection::accept`].
    pub fn begin_fast(&mut self, payload_len: u32) -> Input {
        self.fast_open.get_or_insert_default().is_accepted = true;
        let len = payload_len.min(self.receive.buffer);
        self.receive.next = u64::from(len);
        self.syn_data = len > 0;
        let mut input = Input { events: Events::CONNECTED, ..Input::default() };
        if len > 0 {
            let in_order_to = self.receive.next;
            input.deliver = Some(Deliver { position: 0, skip: 0, len, in_order_to });
            input.events |= Events::READABLE;
        }
        input
    }

    /// The program has it, though the peer has not acknowledged our SYN.
    #[inline]
    pub(super) fn is_fast(&self) -> bool {
        self.state == State::SynReceived && self.fast_open.as_ref().is_some_and(|opening| opening.is_accepted)
    }

    /// Our SYN waits for the first that is written (TCP_FASTOPEN_CONNECT).
    pub(super) fn is_deferred(&self) -> bool {
        let waits = self.fast_open.as_ref().is_some_and(|opening| opening.waits);
        waits && self.state == State::SynSent && self.send.written == 0 && !self.fin_queued
    }

    /// How much went with our SYN, in bytes.
    pub(super) fn sent_with_syn(&self) -> u64 {
        self.fast_open.as_ref().map_or(0, |opening| opening.sent)
    }

    /// Puts into our first SYN or SYN-ACK what fast open has for it. Those that go again are ordinary: something on the
    /// way may have dropped the first for it (RFC 7413 §4.1.3.1).
    pub(super) fn add_fast_open(&mut self, transmit: &mut Transmit, now: Time) {
        let (written, is_active) = (self.send.written, self.state == State::SynSent);
        let Some(opening) = &mut self.fast_open else { return };
        if transmit.retransmission {
            return;
        }
        transmit.header.options.fast_open = opening.option;
        let len = written.min(u64::from(opening.room));
        if is_active && len > 0 {
            (opening.sent, opening.sent_at) = (len, Some(now));
            transmit.payload = Some(0..len);
            transmit.segment_size = opening.room as u16;
        }
    }

    /// A SYN-ACK has come that acknowledges `taken` bytes beside our SYN.
    pub(super) fn on_syn_data_answered(&mut self, header: &Header, taken: u64, now: Time, input: &mut Input) {
        let is_again = self.retransmits > 0;
        let Some(opening) = &mut self.fast_open else { return };
        let (sent, sent_at) = (opening.sent, opening.sent_at.unwrap_or(now));
        let asked = opening.option.is_some();
        let cookie = header.options.fast_open.filter(|option| asked && !option.is_request());
        opening.outcome = Some(Outcome {
            mss: header.options.mss.unwrap_or(DEFAULT_MSS),
            cookie,
            is_taken: taken > 0,
            is_lost: is_again && sent > 0 && taken == 0 && cookie.is_none(),
        });
        self.syn_data = sent > 0 && taken == sent;
        if taken > 0 {
            self.send.next = 1 + taken;
            self.send.max = 1 + taken;
            self.recovery.on_sent(1..1 + taken, sent_at);
            self.on_new_acknowledgment(taken, header, now, input, &mut Delivered::default());
        }
    }

    /// How an active open with fast open went; told once.
    pub fn take_fast_open_outcome(&mut self) -> Option<Outcome> {
        if self.state == State::SynReceived {
            return None;
        }
        self.fast_open.take()?.outcome
    }

    /// The peer has acknowledged our SYN: nothing of a passive fast open is needed any more.
    pub(super) fn end_fast_open(&mut self) {
        if self.passive {
            self.fast_open = None;
        }
    }
}
