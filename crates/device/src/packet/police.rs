//! Holding a flood back at the interface: attaches [`scoutline_bpf::Policer`] and takes it away.
//!
//! The kernel waits for its receive side to come to rest when a program is attached in a driver or detached, some 20 ms:
//! a thread of ours does it, and the engine goes on. While a veth has the program, its other end cuts its
//! super-segments itself.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use scoutline_bpf::{AttachError, Exempt, Limits, Mode, Policer};

use crate::partner::Notice;
use crate::retry::Retry;

/// While a flood lasts: a flow is a client's, or the flood's; together they cost a receiving core some 7 % of its time
/// (0.7 µs a packet). A SYN costs an answer besides, which may take four times that, and as good as all of those that
/// did not come before are forged: with a tenth of them passing, a server was half busy with answering nobody.
pub(crate) const LIMITS: Limits = Limits { flow: 10_000, total: 100_000, syns: 10_000, only_syns: false };

/// What attaches: another one in tests.
type Attach = fn(u32, &What) -> Result<Policer, AttachError>;

/// What a policer is made for.
#[derive(Clone, Debug)]
pub(super) struct What {
    /// It lets these pass.
    pub(super) exempt: Vec<Exempt>,
    /// And all but SYNs.
    pub(super) only_syns: bool,
}

/// The policer of one interface, there or not.
pub(super) struct Police {
    ifindex: u32,
    attach: Attach,
    policer: Option<Policer>,
    /// A thread is changing it.
    change: Option<Receiver<Changed>>,
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
struct Changed {
    /// All that the policer before has dropped.
    dropped: u64,
    /// The one that is there now.
    attached: Option<Result<Policer, AttachError>>,
}

impl Police {
    pub(super) fn new(ifindex: u32) -> Police {
        Police::with(ifindex, |ifindex, what| {
            Policer::attach(ifindex, &what.exempt, Limits { only_syns: what.only_syns, ..LIMITS })
        })
    }

    fn with(ifindex: u32, attach: Attach) -> Police {
        Police {
            ifindex,
            attach,
            policer: None,
            change: None,
            wanted: Wanted::Off,
            begun: true,
            dropped_before: 0,
            retry: Retry::default(),
        }
    }

    /// From now on this is held back, or nothing any more. Takes effect soon.
    pub(super) fn want(&mut self, what: Option<What>) {
        self.wanted = what.map_or(Wanted::Off, Wanted::On);
        self.begun = false;
        self.go_on();
    }

    fn go_on(&mut self) {
        if self.change.is_some() || self.begun || !self.retry.is_due() {
            return;
        }
        self.begun = true;
        let (ifindex, attach) = (self.ifindex, self.attach);
        let (wanted, before) = (self.wanted.clone(), self.policer.take());
        let (tell, told) = channel();
        let work = move || {
            let dropped = before.map_or(0, Policer::detach);
            let attached = match wanted {
                Wanted::On(what) => Some(attach(ifindex, &what)),
                Wanted::Off => None,
            };
            // Nobody listens when the device was closed in the meantime: then it goes at once.
            let _ = tell.send(Changed { dropped, attached });
        };
        // Without a thread nobody tells anything: that is seen with the next look.
        in_the_background(work);
        self.change = Some(told);
    }

    /// What has come of it, once: for people. Asked now and then while a flood lasts.
    pub(super) fn news(&mut self, name: &str) -> Option<Notice> {
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
                self.dropped_before += changed.dropped;
                self.on_changed(name, changed.attached)
            }
        };
        self.go_on();
        news.map(Notice)
    }

    fn on_changed(&mut self, name: &str, attached: Option<Result<Policer, AttachError>>) -> Option<String> {
        match attached {
            None => Some(format!("{name}: the flood is over, and nothing is held back any more")),
            Some(Ok(policer)) => {
                let place = match policer.mode() {
                    Mode::Native => "in its driver",
                    Mode::Generic => "in front of our queue (its driver has no XDP)",
                };
                self.policer = Some(policer);
                self.retry.on_success();
                let only_syns = matches!(&self.wanted, Wanted::On(what) if what.only_syns);
                Some(begun(name, place, only_syns))
            }
            Some(Err(error)) => self.on_failure(name, &error.to_string()),
        }
    }

    /// It is tried again as long as it is wanted; said once, until it has worked.
    fn on_failure(&mut self, name: &str, why: &str) -> Option<String> {
        self.begun = false;
        self.retry.on_failure().then(|| {
            format!("{name}: a flood cannot be held back at the interface now, and is tried again while it lasts: {why}")
        })
    }

    /// Packets dropped so far; while it changes, those of the one that goes are not known.
    pub(super) fn dropped(&self) -> u64 {
        let now = self.policer.as_ref().map_or(0, |policer| policer.dropped().unwrap_or(0));
        self.dropped_before + now
    }
}

/// Runs something in an ordinary thread on any core: the engine's own is real-time, and pinned. When there can be no
/// thread, `work` is dropped.
fn in_the_background(work: impl FnOnce() + Send + 'static) {
    let run = move || {
        // SAFETY: plain data; 0 is the calling thread, whose policy and cores may always be lowered and widened.
        unsafe {
            let ordinary: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary);
            let mut everywhere: libc::cpu_set_t = std::mem::zeroed();
            for core in 0..libc::CPU_SETSIZE as usize {
                libc::CPU_SET(core, &mut everywhere);
            }
            libc::sched_setaffinity(0, size_of_val(&everywhere), &raw const everywhere);
        }
        work();
    };
    let _ = thread::Builder::new().name("scoutline-police".into()).spawn(run);
}

/// What people are told when a flood is held back from now on.
pub(crate) fn begun(name: &str, place: &str, only_syns: bool) -> String {
    let Limits { flow, total, syns, .. } = LIMITS;
    if only_syns {
        return format!(
            "{name}: a flood of SYNs is held back {place}: {syns}/s pass, and those that come again"
        );
    }
    format!(
        "{name}: a flood of packets that nobody wants is held back {place}: beside important classes, {flow} packets/s of \
         a flow and {total} in all pass"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    static CALLS: AtomicU32 = AtomicU32::new(0);

    /// Panics, then is refused.
    fn faulty(_: u32, what: &What) -> Result<Policer, AttachError> {
        let call = CALLS.fetch_add(1, Ordering::SeqCst);
        assert!(call > 0, "a fault of the first call, as the test wants it");
        assert_eq!(what.exempt.len(), 2, "what is wanted by now, not what was at first");
        Err(AttachError::NoInterface)
    }

    /// Looks for news until there has been some, or `calls` calls were made.
    fn look(police: &mut Police, calls: u32) -> Vec<String> {
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
        let mut police = Police::with(1, faulty);
        police.want(Some(What { exempt: vec![exempt()], only_syns: true }));
        // The rules change meanwhile.
        police.want(Some(What { exempt: vec![exempt(), exempt()], only_syns: true }));
        let said = look(&mut police, 4);
        assert_eq!(said.len(), 1, "said once: {said:?}");
        assert!(said[0].starts_with("eth9: a flood cannot be held back at the interface now"), "{}", said[0]);
        assert!(police.retry.failures >= 3 && police.dropped() == 0);
    }
}
