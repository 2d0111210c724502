//! Holding a flood back at the interface: attaches [`scoutline_bpf::Policer`] and takes it away.
//!
//! The kernel waits for its receive side to come to rest when a program is attached in a driver or detached, some 20 ms:
//! a thread of ours does it, and the engine goes on. While a veth has the program, its other end cuts its
//! super-segments itself.

use std::sync::mpsc::{Receiver, channel};
use std::thread;

use scoutline_bpf::{AttachError, Exempt, Limits, Mode, Policer};

use crate::partner::Notice;

/// While a flood lasts: a flow is a client's, or the flood's; together they cost a receiving core some 7 % of its time
/// (0.7 µs a packet).
const LIMITS: Limits = Limits { flow: 10_000, total: 100_000 };

/// The policer of one interface, there or not.
pub(super) struct Police {
    ifindex: u32,
    policer: Option<Policer>,
    /// A thread is changing it.
    change: Option<Receiver<Changed>>,
    /// What it should be like then, if something else.
    wanted: Option<Wanted>,
    /// What those before this one have dropped.
    dropped_before: u64,
    /// It was refused: said once.
    refused: bool,
}

enum Wanted {
    /// A policer that lets these pass.
    On(Vec<Exempt>),
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
        Police { ifindex, policer: None, change: None, wanted: None, dropped_before: 0, refused: false }
    }

    /// From now on what is not exempt is held back, or nothing any more. Takes effect soon.
    pub(super) fn want(&mut self, exempt: Option<Vec<Exempt>>) {
        self.wanted = Some(exempt.map_or(Wanted::Off, Wanted::On));
        self.go_on();
    }

    fn go_on(&mut self) {
        if self.change.is_some() || self.refused {
            return;
        }
        let Some(wanted) = self.wanted.take() else { return };
        let (ifindex, before) = (self.ifindex, self.policer.take());
        let (tell, told) = channel();
        let work = move || {
            let dropped = before.map_or(0, Policer::detach);
            let attached = match wanted {
                Wanted::On(exempt) => Some(Policer::attach(ifindex, &exempt, LIMITS)),
                Wanted::Off => None,
            };
            // Nobody listens when the device was closed in the meantime: then it goes at once.
            let _ = tell.send(Changed { dropped, attached });
        };
        // Without a thread the flood goes on as before.
        self.change = in_the_background(work).then_some(told);
    }

    /// What has come of it, once: for people.
    pub(super) fn news(&mut self, name: &str) -> Option<Notice> {
        let changed = self.change.as_ref()?.try_recv().ok()?;
        self.change = None;
        self.dropped_before += changed.dropped;
        let news = match changed.attached {
            None => format!("{name}: the flood is over, and nothing is held back any more"),
            Some(Ok(policer)) => {
                let place = match policer.mode() {
                    Mode::Native => "in its driver",
                    Mode::Generic => "in front of our queue (its driver has no XDP)",
                };
                self.policer = Some(policer);
                format!(
                    "{name}: a flood of packets that nobody wants is held back {place}: beside important classes, {} \
                     packets/s of a flow and {} in all pass",
                    LIMITS.flow, LIMITS.total
                )
            }
            Some(Err(error)) => {
                self.refused = true;
                format!("{name}: a flood cannot be held back at the interface: {error}")
            }
        };
        self.go_on();
        Some(Notice(news))
    }

    /// Packets dropped so far; while it changes, those of the one that goes are not known.
    pub(super) fn dropped(&self) -> u64 {
        let now = self.policer.as_ref().map_or(0, |policer| policer.dropped().unwrap_or(0));
        self.dropped_before + now
    }
}

/// Runs something in an ordinary thread on any core: the engine's own is real-time, and pinned. False when there can be
/// no thread.
fn in_the_background(work: impl FnOnce() + Send + 'static) -> bool {
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
    thread::Builder::new().name("scoutline-police".into()).spawn(run).is_ok()
}
