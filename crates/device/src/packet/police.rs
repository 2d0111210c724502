//! Holding a flood back at the interface: attaches [`scoutline_bpf::Policer`] and takes it away.
//!
//! The kernel waits for its receive side to come to rest when a program is attached in a driver or detached, some 20 ms:
//! a thread of ours does it, and the engine goes on. Rules change by exchange, so that there is no moment without any.
//! While a veth has the program, its other end cuts its super-segments itself.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scoutline_bpf::{AttachError, Exempt, Known, KnownAs, Limits, Mode, Peer, Policer};

use crate::aside::in_the_background;
use crate::partner::Notice;
use crate::retry::Retry;

/// While a flood lasts: a flow is a client's, or the flood's; together they cost a receiving core some 7 % of its time
/// (0.7 µs a packet). A SYN costs an answer besides, which may take four times that, and as good as all of those that
/// did not come before are forged: with a tenth of them passing, a server was half busy with answering nobody. Of clients
/// that are known no more are let in than a server makes connections: whose address is forged has one of 4,096 places
/// for each. A connection that stands is nobody's forgery: together they have what a core can take.
pub(crate) const LIMITS: Limits = Limits {
    flow: 10_000,
    total: 100_000,
    syns: 10_000,
    client_syns: 20_000,
    known_syns: 50_000,
    standing_flow: 100_000,
    standing: 500_000,
    only_syns: false,
};

/// What attaches, or changes what is attached: another one in tests.
type Attach = fn(u32, &What, Option<&Policer>, Option<Arc<Known>>) -> Result<Option<Policer>, AttachError>;

/// What a policer is made for.
#[derive(Clone, Debug)]
pub(super) struct What {
    /// It lets these pass.
    pub(super) exempt: Vec<Exempt>,
    /// And all but SYNs.
    pub(super) only_syns: bool,
}

/// What holds floods back at an interface; common to the engines that share it.
pub(super) struct Police {
    /// Who is known; `None` where there can be no such table.
    known: Option<Arc<Known>>,
    changing: Mutex<Changing>,
}

impl Police {
    pub(super) fn new(ifindex: u32) -> Police {
        Police::with(ifindex, Known::new().ok().map(Arc::new), |ifindex, what, before, known| {
            let limits = Limits { only_syns: what.only_syns, ..LIMITS };
            match before {
                Some(policer) => policer.change(&what.exempt, limits).map(|()| None),
                None => Policer::attach(ifindex, known, &what.exempt, limits).map(Some),
            }
        })
    }

    fn with(ifindex: u32, known: Option<Arc<Known>>, attach: Attach) -> Police {
        Police { known: known.clone(), changing: Mutex::new(Changing::new(ifindex, known, attach)) }
    }

    /// A connection stands, or has ended: see [`crate::Partner::know`].
    pub(super) fn know(&self, peer: &Peer, known: Option<KnownAs>) {
        if let Some(table) = &self.known {
            match known {
                Some(known) => table.know(peer, known),
                None => table.forget(peer),
            }
        }
    }

    /// From now on this engine wants this to be held back, or nothing any more. Takes effect soon.
    pub(super) fn want(&self, engine: usize, what: Option<What>) {
        self.changing().want(engine, what);
    }

    /// What has come of it, once: for people. Asked now and then while a flood lasts.
    pub(super) fn news(&self, name: &str) -> Option<Notice> {
        self.changing().news(name)
    }

    /// Packets dropped so far; while it goes, its own are not known.
    pub(super) fn dropped(&self) -> u64 {
        self.changing().dropped()
    }

    /// Held for a moment, some hundred times a second at most.
    fn changing(&self) -> MutexGuard<'_, Changing> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The policer of one interface, there or not.
struct Changing {
    ifindex: u32,
    attach: Attach,
    known: Option<Arc<Known>>,
    policer: Option<Arc<Policer>>,
    /// A thread is changing it.
    change: Option<Receiver<Changed>>,
    /// What engines want it to be like.
    wanting: Vec<(usize, What)>,
    /// What it should be like.
    wanted: Wanted,
    /// It is, or a thread is about to make it so.
    begun: bool,
    /// What those before this one have dropped.
    dropped_before: u64,
    retry: Retry,
}

#[derive(Clone)]
enum Wanted {
    /// This policer.
    On(What),
    /// None.
    Off,
}

/// What a thread has done.
enum Changed {
    /// It is attached, or the one that was there follows other rules: then it is not given again.
    On(Result<Option<Policer>, AttachError>),
    /// It is gone; all that it had dropped.
    Off(u64),
}

impl Changing {
    fn new(ifindex: u32, known: Option<Arc<Known>>, attach: Attach) -> Changing {
        Changing {
            ifindex,
            attach,
            known,
            policer: None,
            change: None,
            wanting: Vec::new(),
            wanted: Wanted::Off,
            begun: true,
            dropped_before: 0,
            retry: Retry::default(),
        }
    }

    fn want(&mut self, engine: usize, what: Option<What>) {
        self.wanting.retain(|&(other, _)| other != engine);
        self.wanting.extend(what.map(|what| (engine, what)));
        // Classes are the same for all engines. Where one has a flood of anything, it is all that is held back.
        let only_syns = self.wanting.iter().all(|(_, what)| what.only_syns);
        let latest = self.wanting.last().map(|(_, what)| What { only_syns, ..what.clone() });
        self.wanted = latest.map_or(Wanted::Off, Wanted::On);
        self.begun = false;
        self.go_on();
    }

    fn go_on(&mut self) {
        if self.change.is_some() || self.begun || !self.retry.is_due() {
            return;
        }
        self.begun = true;
        let (ifindex, attach) = (self.ifindex, self.attach);
        let (tell, told) = channel();
        let work = match self.wanted.clone() {
            Wanted::On(what) => {
                let (before, known) = (self.policer.clone(), self.known.clone());
                Box::new(move || {
                    let changed = attach(ifindex, &what, before.as_deref(), known);
                    drop(before);
                    // Nobody listens when the device was closed in the meantime: then it goes at once.
                    let _ = tell.send(Changed::On(changed));
                }) as Box<dyn FnOnce() + Send>
            }
            Wanted::Off => {
                let before = self.policer.take().and_then(Arc::into_inner);
                Box::new(move || {
                    let _ = tell.send(Changed::Off(before.map_or(0, Policer::detach)));
                })
            }
        };
        // Without a thread nobody tells anything: that is seen with the next look.
        in_the_background(work);
        self.change = Some(told);
    }

    fn news(&mut self, name: &str) -> Option<Notice> {
        let told = self.change.as_ref().map(Receiver::try_recv);
        let news = match told {
            None | Some(Err(TryRecvError::Empty)) => {
                self.retry.on_look();
                None
            }
            Some(Err(TryRecvError::Disconnected)) => {
                self.change = None;
                self.on_failure(name, "the thread that does it has failed or could not be started")
            }
            Some(Ok(changed)) => {
                self.change = None;
                self.on_changed(name, changed)
            }
        };
        self.go_on();
        news.map(Notice)
    }

    fn on_changed(&mut self, name: &str, changed: Changed) -> Option<String> {
        match changed {
            Changed::Off(dropped) => {
                self.dropped_before += dropped;
                Some(format!("{name}: the flood is over, and nothing is held back any more"))
            }
            Changed::On(Ok(attached)) => {
                self.policer = attached.map(Arc::new).or(self.policer.take());
                self.retry.on_success();
                let place = match self.policer.as_ref()?.mode() {
                    Mode::Native => "in its driver",
                    Mode::Generic => "in front of our queue (its driver has no XDP)",
                };
                let only_syns = matches!(&self.wanted, Wanted::On(what) if what.only_syns);
                Some(begun(name, place, only_syns))
            }
            Changed::On(Err(error)) => self.on_failure(name, &error.to_string()),
        }
    }

    /// It is tried again as long as it is wanted; said once, until it has worked.
    fn on_failure(&mut self, name: &str, why: &str) -> Option<String> {
        self.begun = false;
        self.retry.on_failure().then(|| {
            format!("{name}: a flood cannot be held back at the interface now, and is tried again while it lasts: {why}")
        })
    }

    fn dropped(&self) -> u64 {
        let now = self.policer.as_ref().map_or(0, |policer| policer.dropped().unwrap_or(0));
        self.dropped_before + now
    }
}

/// What people are told when a flood is held back from now on.
pub(crate) fn begun(name: &str, place: &str, only_syns: bool) -> String {
    let Limits { flow, total, syns, .. } = LIMITS;
    if only_syns {
        return format!(
            "{name}: a flood of SYNs is held back {place}: those of clients that were connected pass, {syns}/s of others, \
             and those that come again"
        );
    }
    format!(
        "{name}: a flood of packets that nobody wants is held back {place}: beside important classes and \
         connections that stand, {flow} packets/s of a flow and {total} in all pass"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    static CALLS: AtomicU32 = AtomicU32::new(0);

    /// Panics, then is refused.
    fn faulty(
        _: u32,
        what: &What,
        _: Option<&Policer>,
        _: Option<Arc<Known>>,
    ) -> Result<Option<Policer>, AttachError> {
        let call = CALLS.fetch_add(1, Ordering::SeqCst);
        assert!(call > 0, "a fault of the first call, as the test wants it");
        assert_eq!(what.exempt.len(), 2, "what is wanted by now, not what was at first");
        Err(AttachError::NoInterface)
    }

    /// Looks for news until there has been some, or `calls` calls were made.
    fn look(police: &mut Changing, calls: u32) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut said = Vec::new();
        while CALLS.load(Ordering::SeqCst) < calls {
            assert!(Instant::now() < deadline, "it is not tried again: {said:?}");
            said.extend(police.news("eth9").map(|notice| notice.0));
            thread::yield_now();
        }
        said
    }

    #[test]
    fn a_thread_that_fails_is_not_the_end_of_it() {
        let exempt = || Exempt {
            source: std::net::Ipv4Addr::new(10, 0, 0, 1).into(),
            prefix_len: 32,
            local_port: None,
        };
        let mut police = Changing::new(1, None, faulty);
        police.want(0, Some(What { exempt: vec![exempt()], only_syns: true }));
        // The rules change meanwhile.
        police.want(0, Some(What { exempt: vec![exempt(), exempt()], only_syns: true }));
        let said = look(&mut police, 4);
        assert_eq!(said.len(), 1, "said once: {said:?}");
        assert!(said[0].starts_with("eth9: a flood cannot be held back at the interface now"), "{}", said[0]);
        assert!(police.retry.failures >= 3 && police.dropped() == 0);
    }

    #[test]
    fn what_several_engines_want_is_one_wish() {
        let mut police = Changing::new(1, None, |_, _, _, _| Err(AttachError::NoInterface));
        let only_syns = |police: &Changing| match &police.wanted {
            Wanted::On(what) => Some(what.only_syns),
            Wanted::Off => None,
        };
        let mut want = |engine, syns: Option<bool>| {
            police.want(engine, syns.map(|only_syns| What { exempt: Vec::new(), only_syns }));
            only_syns(&police)
        };
        assert_eq!(want(0, Some(true)), Some(true));
        assert_eq!(want(1, Some(false)), Some(false), "one of them has a flood of anything");
        assert_eq!(want(0, Some(true)), Some(false));
        assert_eq!(want(1, None), Some(true), "it is over there, and not here");
        assert_eq!(want(0, None), None);
    }
}
