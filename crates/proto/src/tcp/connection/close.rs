//! Ending: shutdown, close, abort, resets, ICMP errors.

use scoutline_base::Time;
use scoutline_wire::tcp::Header;

use super::{Connection, Owed, State};
use crate::tcp::segment::{Drop, Events, Input};
use crate::tcp::sequence::SeqNumber;
use crate::tcp::timers::Timer;

impl Connection {
    /// No more will be written: a FIN follows what was (RFC 9293 §3.10.4). Receiving goes on.
    pub fn shutdown(&mut self) {
        match self.state {
            // The FIN waits for the handshake.
            State::SynSent | State::SynReceived => self.fin_queued = true,
            State::Established => {
                self.fin_queued = true;
                self.state = State::FinWait1;
            }
            State::CloseWait => {
                self.fin_queued = true;
                self.state = State::LastAck;
            }
            _ => {}
        }
    }

    /// No more will be read. What comes is kept all the same while the program may write; data behind its end are refused
    /// (`tcp_rcv_state_process` of Linux).
    pub fn shutdown_read(&mut self) {
        self.reads_no_more = true;
    }

    /// The program is gone, as in Linux's `close`: what was written is still delivered, in the background; data
    /// unread, or arriving later, is answered by a reset (RFC 2525 §2.17, RFC 1122 §4.2.2.13). The events have
    /// CLOSED when nothing is left to wait for.
    pub fn close(&mut self, now: Time) -> Events {
        match self.state {
            State::Closed | State::Listen => return Events::CLOSED,
            State::SynSent => {
                self.enter_closed();
                return Events::CLOSED;
            }
            _ => {}
        }
        if self.resets_on_close() {
            return self.abort();
        }
        self.orphan = true;
        self.shutdown();
        if self.state == State::FinWait2 { self.wait_as_orphan(now) } else { Events::empty() }
    }

    /// In FIN-WAIT-2 nobody here waits for the peer's FIN any more. Not in the standard; as Linux does: a peer that never
    /// closes holds nothing for ever.
    pub(super) fn wait_as_orphan(&mut self, now: Time) -> Events {
        match self.orphan_wait() {
            Some(wait) => {
                self.timers.arm(Timer::Linger, now + wait);
                Events::empty()
            }
            None => self.abort(),
        }
    }

    /// [`Connection::close`] would be a reset, for data that nobody has read.
    pub fn resets_on_close(&self) -> bool {
        let unread = self.receive.consumed < self.receive.next;
        unread && !matches!(self.state, State::Closing | State::LastAck | State::TimeWait)
    }

    /// Ends at once: a reset goes to the peer where RFC 9293 §3.10.5 asks for one, by `poll_transmit`. The
    /// events have CLOSED.
    pub fn abort(&mut self) -> Events {
        if matches!(
            self.state,
            State::SynReceived
                | State::Established
                | State::FinWait1
                | State::FinWait2
                | State::CloseWait
                | State::Closing
                | State::LastAck
        ) && self.send.max > 0
        {
            let sequence = self.send.iss.plus(self.acceptable_unit()).0;
            self.reset = Some((sequence, Some(self.receive_next().0)));
        }
        self.enter_closed();
        Events::CLOSED
    }

    /// An ICMP error came for this connection; the caller has checked that it quotes a sequence number in flight
    /// (RFC 5927 §4.1). `hard`: protocol or port unreachable.
    pub fn on_unreachable(&mut self, hard: bool, _now: Time) -> Events {
        if hard && self.state == State::SynSent {
            self.enter_closed();
            return Events::REFUSED | Events::CLOSED;
        }
        // RFC 5927 §5.2: in a synchronised state even a hard error is a hint only.
        self.soft_error = true;
        Events::empty()
    }

    /// A segment that begins with this sequence number may be under way (RFC 5927 §4.1).
    pub fn is_outstanding(&self, sequence: u32) -> bool {
        let offset = SeqNumber(sequence).offset_from(self.send.iss.plus(self.send.una));
        (0..=(self.send.max - self.send.una) as i64).contains(&offset)
    }

    /// RFC 5961 §3.2
    pub(super) fn on_reset(&mut self, offset: i64, now: Time) -> Input {
        // Besides the exact number, one less is taken after the peer's FIN: some count it, some do not.
        if offset == 0 || (offset == -1 && self.fin_received) {
            let refused = self.state == State::SynReceived && !self.passive;
            self.enter_closed();
            let cause = if refused { Events::REFUSED } else { Events::RESET };
            return Input { events: cause | Events::CLOSED, ..Input::default() };
        }
        if offset > 0 && offset < self.window_left() as i64 {
            self.challenge(now);
        }
        Input::dropped(Drop::BadReset)
    }

    /// The peer's FIN is in order.
    pub(super) fn on_fin(&mut self, now: Time, input: &mut Input) {
        self.fin_received = true;
        self.receive.fin_end = None;
        if let Some(unordered) = &mut self.receive.unordered {
            unordered.ranges.clear();
        }
        self.owed = Owed::Now;
        input.events |= Events::PEER_FINISHED;
        match self.state {
            State::Established => self.state = State::CloseWait,
            // Had this segment acknowledged our FIN, we would be in FIN-WAIT-2 by now.
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(now, input),
            _ => {}
        }
    }

    /// Whether nobody will take new data (RFC 1122 §4.2.2.13).
    pub(super) fn refuses_data(&self) -> bool {
        self.orphan || self.reads_no_more && matches!(self.state, State::FinWait1 | State::FinWait2)
    }

    /// Data for a program that has closed, or that has shut down both directions and hears of the reset. That has the number
    /// that its sender awaits (RFC 9293 §3.5.2, group 3), so that it is taken without a challenge, whatever of ours is
    /// still under way.
    pub(super) fn refuse_data(&mut self, header: &Header, mut input: Input) -> Input {
        if !self.orphan {
            input.events |= Events::RESET;
        }
        input.events |= self.abort();
        self.reset = Some((header.acknowledgment, None));
        input.drop = Some(Drop::NoReceiver);
        input
    }
}
