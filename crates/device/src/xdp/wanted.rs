//! What the program in the hook is to do, and what it does.
//!
//! A thread of ours makes each change, for the kernel waits when it puts a program in another's place: 8 or 16 ms on a
//! veth (one or two of its grace periods), in which the engine would stand still. Until then the rules before hold.
//!
//! The kernel may refuse a change: loading a program takes memory, and for a moment there may be none. Then the rules
//! before hold on, and what is wanted is tried again as long as it is, with the looks for news, or a flood that began at
//! such a moment would have the core until its end.

use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use scoutline_bpf::{Exempt, Limits};

use crate::aside::in_the_background;
use crate::retry::Retry;

/// What a program does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct What {
    /// What is important.
    pub(super) important: Vec<Exempt>,
    /// A flood is held back, to this.
    pub(super) limits: Option<Limits>,
    /// Single flows are held back.
    pub(super) hold: bool,
}

/// What is wanted of it.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// This,
    pub(super) what: What,
    /// and it does this.
    done: What,
    /// A thread has it do this.
    under_way: Option<(What, Receiver<io::Result<()>>)>,
    retry: Retry,
}

/// What has come of a change.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It was done; what held before.
    Done(What),
    /// It was refused, and will be tried again. Told for the first time in a row.
    Refused(io::Error),
}

impl Wanted {
    /// Says what the program does now.
    pub(super) fn done(&self) -> &What {
        &self.done
    }

    /// It does what is wanted.
    pub(super) fn is_done(&self) -> bool {
        self.under_way.is_none() && self.what == self.done
    }

    /// Has a thread change what the program does to what is wanted, unless one is at it, or that failed lately.
    pub(super) fn follow<C>(&mut self, change: C)
    where
        C: FnOnce(&What) -> io::Result<()> + Send + 'static,
    {
        if self.under_way.is_some() || self.what == self.done || !self.retry.is_due() {
            return;
        }
        let (what, (tell, told)) = (self.what.clone(), channel());
        self.under_way = Some((what.clone(), told));
        in_the_background(move || {
            // What `change` holds is gone by the time that it is said to be done.
            let changed = change(&what);
            let _ = tell.send(changed);
        });
    }

    /// Somebody looks for news: what has come of a change.
    pub(super) fn on_look(&mut self) -> Option<Outcome> {
        self.retry.on_look();
        let (_, told) = self.under_way.as_ref()?;
        let told = match told.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(io::Error::other("there is no thread to do it")),
            Ok(told) => told,
        };
        let (what, _) = self.under_way.take()?;
        match told {
            Ok(()) => {
                self.retry.on_success();
                Some(Outcome::Done(std::mem::replace(&mut self.done, what)))
            }
            Err(error) => self.retry.on_failure().then_some(Outcome::Refused(error)),
        }
    }
}

impl Drop for Wanted {
    /// The hook is free when this is gone.
    fn drop(&mut self) {
        if let Some((_, told)) = self.under_way.take() {
            let _ = told.recv();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Follows until something has come of it: after how many looks, and what people are told.
    fn outcome(wanted: &mut Wanted, change: fn(&What) -> io::Result<()>) -> (u32, Option<Outcome>) {
        let failures = wanted.retry.failures;
        for looks in 1.. {
            let was_under_way = wanted.under_way.is_some();
            let outcome = wanted.on_look();
            if outcome.is_some() || wanted.retry.failures != failures {
                return (looks, outcome);
            }
            wanted.follow(change);
            if was_under_way {
                thread::yield_now();
            }
        }
        unreachable!("there are no more numbers")
    }

    fn limits() -> Limits {
        crate::packet::LIMITS
    }

    #[test]
    fn what_fails_is_tried_again_until_it_works() {
        let mut wanted = Wanted::default();
        wanted.what.limits = Some(limits());
        let no_memory = |_: &What| Err(io::Error::from_raw_os_error(libc::ENOMEM));
        let (_, told) = outcome(&mut wanted, no_memory);
        assert!(matches!(told, Some(Outcome::Refused(_))), "people are told: {told:?}");
        assert_eq!(wanted.done().limits, None, "what there was holds on");
        for failures in 2..=4 {
            let (looks, told) = outcome(&mut wanted, no_memory);
            assert!(told.is_none(), "told once");
            assert!(looks >= 2 << failures, "{looks} looks between two of {failures}");
        }
        let (_, told) = outcome(&mut wanted, |_| Ok(()));
        assert!(matches!(told, Some(Outcome::Done(before)) if before == What::default()));
        assert_eq!(wanted.done().limits, Some(limits()));
        assert!(wanted.is_done());
        wanted.follow(|_| panic!("there is nothing to change"));
        assert!(wanted.under_way.is_none(), "done is done");
    }

    #[test]
    fn what_is_not_wanted_any_more_is_not_tried_again() {
        let mut wanted = Wanted::default();
        wanted.what.hold = true;
        let (_, told) = outcome(&mut wanted, |_| Err(io::ErrorKind::OutOfMemory.into()));
        assert!(matches!(told, Some(Outcome::Refused(_))));
        wanted.what.hold = false;
        for _ in 0..2000 {
            assert!(wanted.on_look().is_none());
            wanted.follow(|_| panic!("nobody wants it"));
        }
    }

    /// What is wanted while a thread is at it comes after that, and nobody waits.
    #[test]
    fn what_comes_meanwhile_is_done_next() {
        let mut wanted = Wanted::default();
        wanted.what.hold = true;
        let (go, may_go) = channel::<()>();
        wanted.follow(move |_| may_go.recv().map_err(io::Error::other));
        wanted.what.limits = Some(limits());
        wanted.follow(|_| panic!("one at a time"));
        assert!(wanted.on_look().is_none() && !wanted.is_done());
        go.send(()).unwrap();
        let (_, told) = outcome(&mut wanted, |_| Ok(()));
        assert!(matches!(told, Some(Outcome::Done(_))));
        assert_eq!((wanted.done().hold, wanted.done().limits), (true, None));
        let (_, told) = outcome(&mut wanted, |_| Ok(()));
        assert!(matches!(told, Some(Outcome::Done(before)) if before.hold));
        assert!(wanted.is_done() && wanted.done().limits.is_some());
    }
}
