//! Connections whose peers have said nothing yet. Most clients speak as soon as they are connected: who accepts such a
//! connection at once finds nothing to read, sleeps again, and is woken a second time a few microseconds later, at the price
//! of two wake-ups. So while the engine would only spin, whoever accepts is told of it when the peer's first words are
//! there, or [`PATIENCE`] later. The connection is in the queue meanwhile: who looks finds it.
//!
//! Where peers let the server speak first, or need the very core that the engine spins on, that is in vain; then it is
//! tried with fewer and fewer connections.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use scoutline_base::Time;

use crate::extend::Duty;

/// How long a client takes at most that was waiting on another core: to wake up, and to send.
const PATIENCE: Duration = Duration::from_micros(40);
/// After that many in vain, one in a few hundred is waited for.
const MOST_DOUBLINGS: u32 = 8;

/// Of all programs of an engine.
#[derive(Default)]
pub(crate) struct OfAll {
    /// Whether the engine looks after those that are held.
    pub(crate) is_on: Cell<bool>,
    count: Cell<usize>,
    /// When the first of those that are held came.
    since: Cell<Time>,
    in_vain: Cell<u32>,
    /// So many are not held.
    passed: Cell<u32>,
}

impl OfAll {
    /// Nobody's words are waited for.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    /// They have been waited for in vain. Says whether somebody was.
    #[inline]
    pub(crate) fn is_over(&self, now: Time) -> bool {
        let over = !self.is_empty() && now.since(self.since.get()) >= PATIENCE;
        if over {
            let in_vain = self.in_vain.get().min(MOST_DOUBLINGS - 1) + 1;
            self.in_vain.set(in_vain);
            self.passed.set(1 << in_vain);
        }
        over
    }
}

/// A connection that nobody has been told of.
#[derive(Clone, Copy)]
pub(super) struct Early {
    pub(super) listener: u32,
    pub(super) slot: u32,
    pub(super) duty: Duty,
}

/// Those of one program.
pub(super) struct Held {
    pub(super) of_all: Rc<OfAll>,
    held: RefCell<Vec<Early>>,
}

impl Held {
    pub(super) fn new(of_all: Rc<OfAll>) -> Held {
        Held { of_all, held: RefCell::default() }
    }

    /// False: it is to be told of now.
    pub(super) fn hold(&self, early: Early, now: impl FnOnce() -> Time) -> bool {
        let of_all = &self.of_all;
        if !of_all.is_on.get() {
            return false;
        }
        if let Some(left) = of_all.passed.get().checked_sub(1) {
            of_all.passed.set(left);
            return false;
        }
        if of_all.is_empty() {
            of_all.since.set(now());
        }
        of_all.count.set(of_all.count.get() + 1);
        self.held.borrow_mut().push(early);
        true
    }

    /// The peer has said something: the connection is to be told of now, if nobody was told.
    #[inline]
    pub(super) fn on_word(&self, slot: u32) -> Option<Early> {
        if self.of_all.is_empty() {
            return None;
        }
        let mut held = self.held.borrow_mut();
        let at = held.iter().position(|early| early.slot == slot)?;
        self.of_all.in_vain.set(0);
        self.are_less_by(1);
        Some(held.remove(at))
    }

    /// All of them.
    pub(super) fn take(&self) -> Vec<Early> {
        let held = self.held.take();
        self.are_less_by(held.len());
        held
    }

    fn are_less_by(&self, connections: usize) {
        self.of_all.count.set(self.of_all.count.get() - connections);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTENER: u32 = 1;

    fn early(slot: u32) -> Early {
        Early { listener: LISTENER, slot, duty: Duty::default() }
    }

    fn start() -> Time {
        Time::ZERO
    }

    fn held() -> Held {
        let of_all = OfAll::default();
        of_all.is_on.set(true);
        Held::new(Rc::new(of_all))
    }

    #[test]
    fn nobody_is_held_by_an_engine_that_does_not_look_after_them() {
        let held = Held::new(Rc::default());
        assert!(!held.hold(early(2), start) && held.of_all.is_empty());
    }

    #[test]
    fn the_first_word_ends_the_wait_for_one() {
        let held = held();
        assert!(held.hold(early(2), start) && held.hold(early(3), start));
        assert!(held.on_word(4).is_none());
        assert_eq!(held.on_word(3).map(|early| early.slot), Some(3));
        assert!(held.on_word(3).is_none() && !held.of_all.is_empty());
        assert_eq!(held.take().len(), 1);
        assert!(held.of_all.is_empty() && !held.of_all.is_over(start() + PATIENCE));
    }

    /// How many are told of at once before one is held again.
    fn passed(held: &Held) -> u32 {
        (0..1_000).find(|_| held.hold(early(2), start)).unwrap()
    }

    #[test]
    fn fewer_and_fewer_are_held_in_vain() {
        let held = held();
        assert_eq!(passed(&held), 0);
        for expected in [2, 4, 8, 16, 32, 64, 128, 256, 256] {
            assert!(!held.of_all.is_over(start() + PATIENCE / 2));
            assert!(held.of_all.is_over(start() + PATIENCE));
            held.take();
            assert_eq!(passed(&held), expected);
        }
        assert!(held.on_word(2).is_some());
        assert_eq!(passed(&held), 0, "a client that speaks at once is believed");
    }

    #[test]
    fn a_program_that_goes_leaves_nothing_behind() {
        let of_all = Rc::new(OfAll::default());
        of_all.is_on.set(true);
        let held = Held::new(Rc::clone(&of_all));
        assert!(held.hold(early(2), start));
        drop(held);
        assert!(of_all.is_empty());
    }
}
