//! What the program in the hook is to do, and what it does.
//!
//! The kernel may refuse a change: loading a program takes memory, and for a moment there may be none. Then the rules
//! before hold on, and what is wanted is tried again as long as it is, with the looks for news, or a flood that began at
//! such a moment would have the core until its end.

use std::io;

use scoutline_bpf::{Exempt, Limits};

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
    retry: Retry,
}

impl Wanted {
    /// Says what the program does now.
    pub(super) fn done(&self) -> &What {
        &self.done
    }

    /// Has the program follow what is wanted, if it does not.
    ///
    /// # Errors
    /// As `change` says; and whether it is the first one in a row.
    pub(super) fn follow(
        &mut self,
        change: impl FnOnce(&What) -> io::Result<()>,
    ) -> Result<(), (io::Error, bool)> {
        if self.what != self.done {
            change(&self.what).map_err(|error| (error, self.retry.on_failure()))?;
            self.done.clone_from(&self.what);
        }
        self.retry.on_success();
        Ok(())
    }

    /// Somebody looks for news: whether what failed is to be tried again.
    pub(super) fn on_look(&mut self) -> bool {
        self.retry.on_look();
        self.what != self.done && self.retry.is_due()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_again_until_it_works() {
        let mut wanted = Wanted::default();
        let limits = Limits { flow: 1, total: 2, syns: 3, only_syns: false };
        wanted.what.limits = Some(limits);
        let no_memory = |_: &What| Err(io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(wanted.follow(no_memory).unwrap_err().1, "people are told");
        assert_eq!(wanted.done().limits, None, "what there was holds on");
        let mut pauses = Vec::new();
        for _ in 0..3 {
            let looks = (1..2000).find(|_| wanted.on_look()).expect("is tried again");
            pauses.push(looks);
            assert!(!wanted.follow(no_memory).unwrap_err().1, "told once");
        }
        assert_eq!(pauses, [8, 16, 32]);
        assert!((0..2000).any(|_| wanted.on_look()));
        wanted.follow(|_| Ok(())).expect("works");
        assert_eq!(wanted.done().limits, Some(limits));
        assert!((0..2000).all(|_| !wanted.on_look()), "done is done");
        wanted.follow(|_| panic!("there is nothing to change")).expect("as it is");
    }

    #[test]
    fn what_is_not_wanted_any_more_is_not_tried_again() {
        let mut wanted = Wanted::default();
        wanted.what.hold = true;
        wanted.follow(|_| Err(io::ErrorKind::OutOfMemory.into())).unwrap_err();
        wanted.what.hold = false;
        assert!((0..2000).all(|_| !wanted.on_look()));
    }
}
