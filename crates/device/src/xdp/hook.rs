//! The program at the interface, as all engines that share it have it: one program does what any of them wants.
//!
//! What is important is the same for all: classes are. A flood that one of them has is held back for all, until none has
//! one; where one has a flood of anything, it is all that is held back and not only SYNs.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use scoutline_bpf::{Exempt, KnownAs, Limits, Peer, Rules, Steer};

use crate::packet::begun;
use crate::partner::Notice;
use crate::xdp::wanted::{Outcome, Wanted, What};

/// The program, for as long as this lives.
pub(super) struct Hook {
    name: String,
    /// What is important has sockets of its own.
    apart: bool,
    wishes: Mutex<Wishes>,
    /// Who writes what is known of peers: one at a time, for some stores.
    knows: Mutex<()>,
    /// Frames to groups come as long as it is open.
    _groups: Option<OwnedFd>,
    /// Gives us what arrives; detached with us.
    steer: Steer,
}

/// What it is to do.
#[derive(Default)]
struct Wishes {
    /// How floods are held back that engines have.
    limits: Vec<(usize, Limits)>,
    wanted: Wanted,
    /// What people should know.
    news: Option<Notice>,
}

impl Hook {
    pub(super) fn new(name: &str, apart: bool, steer: Steer, groups: Option<OwnedFd>) -> Hook {
        Hook {
            name: name.to_owned(),
            apart,
            wishes: Mutex::default(),
            knows: Mutex::default(),
            _groups: groups,
            steer,
        }
    }

    /// From now on this is important.
    pub(super) fn ring_for(&self, important: Vec<Exempt>) {
        let mut wishes = self.wishes();
        wishes.wanted.what.important = important;
        self.look(&mut wishes);
    }

    /// From now on this engine has a flood that is to be held back to `limits`, or none any more.
    pub(super) fn police(&self, engine: usize, important: Option<Vec<Exempt>>, limits: Option<Limits>) {
        let mut wishes = self.wishes();
        if let Some(important) = important {
            wishes.wanted.what.important = important;
        }
        wishes.police(engine, limits);
        // What fails is news, and is tried again.
        self.look(&mut wishes);
    }

    /// From now on single flows are held back.
    pub(super) fn hold(&self) {
        let mut wishes = self.wishes();
        wishes.wanted.what.hold = true;
        // As above.
        self.look(&mut wishes);
    }

    /// A connection stands, or has ended: see [`crate::Partner::know`].
    pub(super) fn know(&self, peer: &Peer, known: Option<KnownAs>) {
        let _one = self.knows.lock().unwrap_or_else(PoisonError::into_inner);
        self.steer.know(peer, known);
    }

    /// What has come of it, once, whoever asks.
    pub(super) fn news(&self) -> Option<Notice> {
        let mut wishes = self.wishes();
        self.look(&mut wishes);
        wishes.news.take()
    }

    /// The program does what was asked for last.
    pub(super) fn has_followed(&self) -> bool {
        let mut wishes = self.wishes();
        self.look(&mut wishes);
        wishes.wanted.is_done()
    }

    /// Packets of all engines that were dropped beyond the limits.
    pub(super) fn policed(&self) -> u64 {
        self.steer.policed().unwrap_or(0)
    }

    /// Packets of all engines that were dropped because their paths had no room.
    pub(super) fn held(&self) -> u64 {
        // Asks the kernel, so only where there can be any.
        if self.wishes().wanted.done().hold { self.steer.held().unwrap_or(0) } else { 0 }
    }

    /// Held for a moment, some hundred times a second at most.
    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what has come of a change, and goes on with what is wanted since.
    fn look(&self, wishes: &mut Wishes) {
        let name = &self.name;
        let news = match wishes.wanted.on_look() {
            Some(Outcome::Done(before)) => told(name, before.limits, wishes.wanted.done().limits),
            Some(Outcome::Refused(error)) => {
                Some(format!("{name}: what is held back cannot be changed now, and is tried again: {error}"))
            }
            None => None,
        };
        // Older news that nobody has asked for yet matters more than none.
        wishes.news = news.map(Notice).or(wishes.news.take());
        // Soon, by a thread of ours (see `wanted.rs`).
        let (changer, apart) = (self.steer.changer(), self.apart);
        wishes.wanted.follow(move |what| {
            let What { important, limits, hold } = what;
            changer.change(&Rules { important, apart, limits: *limits, hold: *hold })
        });
    }
}

impl Wishes {
    fn police(&mut self, engine: usize, limits: Option<Limits>) {
        self.limits.retain(|&(other, _)| other != engine);
        self.limits.extend(limits.map(|limits| (engine, limits)));
        let only_syns = self.limits.iter().all(|(_, limits)| limits.only_syns);
        self.wanted.what.limits = self.limits.last().map(|&(_, limits)| Limits { only_syns, ..limits });
    }
}

/// What people are told of a change of what is held back.
fn told(name: &str, before: Option<Limits>, now: Option<Limits>) -> Option<String> {
    if before == now {
        return None;
    }
    Some(match now {
        Some(limits) => begun(name, "where they come in", limits.only_syns),
        None => format!("{name}: the flood is over, and nothing is held back any more"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::LIMITS;

    #[test]
    fn what_several_engines_want_is_one_wish() {
        let mut wishes = Wishes::default();
        let mut want = |engine, syns: Option<bool>| {
            wishes.police(engine, syns.map(|only_syns| Limits { only_syns, ..LIMITS }));
            wishes.wanted.what.limits.map(|limits| limits.only_syns)
        };
        assert_eq!(want(0, Some(true)), Some(true));
        assert_eq!(want(1, Some(false)), Some(false), "one of them has a flood of anything");
        assert_eq!(want(0, Some(true)), Some(false));
        assert_eq!(want(1, None), Some(true), "it is over there, and not here");
        assert_eq!(want(0, None), None);
    }
}
