//! Connections whose peers have said nothing yet. Most clients speak as soon as they are connected: who accepts such a
//! connection at once finds nothing to read, sleeps again, and is woken a second time a few microseconds later, at the price
//! of two wake-ups. So while the engine would only spin, whoever accepts is told of it when the peer's first words are
//! there, or [`PATIENCE`] later. The connection is in the queue meanwhile: `accept` and `poll` find it, an epoll when its
//! program is told.
//!
//! Where peers let the server speak first, or need the very core that the engine spins on, that is in vain; then it is
//! tried with fewer and fewer connections.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use scoutline_base::Time;

use crate::clock;
use crate::extend::Duty;
use crate::program::Program;
use crate::socket::SocketEnd;

/// How long a client takes at most that was waiting on another core: to wake up, and to send. 20 µs in a trace of nginx with
/// one client; `../shared/MEASURED.md` has 31 for the wake-up on a slower day.
const PATIENCE: Duration = Duration::from_micros(40);
/// After that many in vain, one in a few hundred is waited for.
const MOST_DOUBLINGS: u32 = 8;

/// Those of one engine.
#[derive(Default)]
pub(crate) struct Early {
    /// Whether the engine looks after those that are held.
    pub(crate) is_on: Cell<bool>,
    trust: Cell<Trust>,
    /// In the order in which they came.
    held: RefCell<Vec<Held>>,
}

/// A connection that nobody has been told of.
struct Held {
    program: Weak<Program>,
    listener: u32,
    slot: u32,
    since: Time,
}

/// Whether first words are worth waiting for.
#[derive(Clone, Copy, Default)]
struct Trust {
    in_vain: u32,
    /// So many are not waited for.
    passed: u32,
}

impl Early {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.borrow().is_empty()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.held.borrow().len()
    }

    /// A connection waits in a listening socket's queue: tells who accepts, now or when the peer has said something. What is
    /// said to another engine is not heard here.
    pub(crate) fn tell(&self, listener: &SocketEnd, slot: u32, duty: Duty) {
        let mut trust = self.trust.get();
        let waits = self.is_on.get() && listener.program.serves(slot) && trust.waits();
        self.trust.set(trust);
        if !waits {
            return listener.signal_waiting(slot, duty);
        }
        let program = Rc::downgrade(&listener.program);
        let held = Held { program, listener: listener.slot, slot, since: clock::now() };
        self.held.borrow_mut().push(held);
    }

    /// The peer of this connection has said something, or all that it says.
    #[inline]
    pub(crate) fn on_word(&self, end: &SocketEnd) {
        if self.is_empty() {
            return;
        }
        let is_it = |held: &Held| held.slot == end.slot && held.program.as_ptr() == Rc::as_ptr(&end.program);
        let found = self.held.borrow().iter().position(is_it);
        if let Some(at) = found {
            self.trust.set(Trust::default());
            let held = self.held.borrow_mut().remove(at);
            held.tell();
        }
    }

    /// Tells of all connections that nobody has been told of.
    pub(crate) fn tell_all(&self) {
        if !self.is_empty() {
            self.held.take().iter().for_each(Held::tell);
        }
    }

    /// Tells of those whose first words have been waited for long enough; true if there were any.
    pub(crate) fn tell_overdue(&self, now: Time) -> bool {
        if self.is_empty() {
            return false;
        }
        let overdue: Vec<_> = {
            let mut held = self.held.borrow_mut();
            let count = held.partition_point(|held| now.since(held.since) >= PATIENCE);
            held.drain(..count).collect()
        };
        overdue.iter().for_each(Held::tell);
        !overdue.is_empty()
    }

    /// The same; all that has come was looked at, so it was in vain.
    pub(crate) fn end_patience(&self, now: Time) -> bool {
        let is_over = self.tell_overdue(now);
        if is_over {
            self.trust.set(self.trust.get().less());
        }
        is_over
    }
}

impl Held {
    /// It may have been accepted by now, and the listening socket or its program may be gone.
    fn tell(&self) {
        let Some(program) = self.program.upgrade() else { return };
        if let Some(listener) = program.end(self.listener)
            && listener.waiting() > 0
        {
            let duty = program.end(self.slot).map_or(Duty::default(), |end| end.duty.get());
            listener.signal_waiting(self.slot, duty);
        }
    }
}

impl Trust {
    /// Whether the next one is waited for.
    fn waits(&mut self) -> bool {
        let left = self.passed.checked_sub(1);
        self.passed = left.unwrap_or(0);
        left.is_none()
    }

    fn less(self) -> Trust {
        let in_vain = self.in_vain.min(MOST_DOUBLINGS - 1) + 1;
        Trust { in_vain, passed: 1 << in_vain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_and_fewer_are_waited_for_in_vain() {
        let mut trust = Trust::default();
        for expected in [2, 4, 8, 16, 32, 64, 128, 256, 256] {
            assert!(trust.waits());
            trust = trust.less();
            assert_eq!((0..1_000).find(|_| trust.waits()), Some(expected));
        }
    }
}
