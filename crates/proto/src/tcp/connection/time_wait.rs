//! TIME-WAIT: until no old segment can be about (RFC 9293 §3.6.1), as safe as Linux's.
//!
//! ```text
//!  RST                      dropped (RFC 1337 §3, F1)
//!  SYN, newer               gives way to a new connection (RFC 6191 §2, RFC 1122 §4.2.2.13)
//!  SYN, older               a challenge (RFC 5961 §4.2)
//!  FIN                      acknowledged again; the wait begins again
//!  data, or another number  acknowledged again
//! ```
//! Nothing is kept for it but the connection itself: whoever needs its place, or follows it by [`Tcp::succeed`], knows from
//! [`Connection::in_time_wait_for`] and [`Connection::next_initial`] whether and how.
//!
//! [`Tcp::succeed`]: crate::tcp::Tcp

use std::time::Duration;

use scoutline_base::Time;
use scoutline_wire::tcp::{Flags, Header};

use super::{Connection, Owed, State};
use crate::tcp::segment::{Drop, Events, Input};
use crate::tcp::sequence::SeqNumber;
use crate::tcp::timers::Timer;

impl Connection {
    /// How long it has been in TIME-WAIT; `None` in any other state.
    pub fn in_time_wait_for(&self, now: Time) -> Option<Duration> {
        let ends = self.timers.deadline(Timer::Linger).filter(|_| self.state == State::TimeWait)?;
        Some((now + self.config.time_wait).since(ends))
    }

    /// The initial sequence number of a connection that follows this one at once: behind every number of this one, and
    /// of a window that the peer may think it has (as Linux).
    pub fn next_initial(&self) -> u32 {
        self.send.iss.plus(self.send.max + u64::from(u16::MAX) + 2).0
    }

    pub(super) fn enter_time_wait(&mut self, now: Time, input: &mut Input) {
        self.state = State::TimeWait;
        self.timers.clear();
        self.timers.arm(Timer::Linger, now + self.config.time_wait);
        input.events |= Events::TIME_WAIT;
    }

    pub(super) fn on_time_wait(&mut self, header: &Header, len: u32, now: Time) -> Input {
        if header.flags.contains(Flags::RST) {
            // RFC 1337 §3, fix F1: a reset must not end TIME-WAIT.
            return Input::dropped(Drop::BadReset);
        }
        let offset = SeqNumber(header.sequence).offset_from(self.receive_next());
        if header.flags.contains(Flags::SYN) && !header.flags.contains(Flags::ACK) {
            // RFC 6191 §2: newer by timestamp, or else by sequence number (RFC 1122 §4.2.2.13).
            let newer = match header.options.timestamps {
                Some((value, _)) if self.negotiated.timestamps => {
                    let age = value.wrapping_sub(self.receive.recent) as i32;
                    age > 0 || (age == 0 && offset > 0)
                }
                _ => offset > 0,
            };
            if newer {
                return Input { events: Events::NEW_SYN, ..Input::default() };
            }
            self.challenge(now);
            return Input::dropped(Drop::UnexpectedSyn);
        }
        if header.flags.contains(Flags::FIN) {
            // RFC 9293 §3.10.7.4: our last acknowledgment was lost; begin the wait again.
            self.owed = Owed::Now;
            self.timers.arm(Timer::Linger, now + self.config.time_wait);
        } else if len > 0 || offset != 0 {
            self.challenge(now);
        }
        Input::dropped(Drop::Duplicate)
    }
}
