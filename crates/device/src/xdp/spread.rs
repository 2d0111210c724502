//! Several engines at one interface: the first opens it for all, and the others take their parts.
//!
//! ```text
//!   receive queue q ─► program: whose flow? ─► socket (q, e), or (q, e, important) ─► engine e
//!   engine e ─► socket (e, e) ─► transmit queue e          has none: a packet socket
//! ```
//! A completion ring has one reader, so each transmit queue has one engine. What they share is the memory with its fill
//! rings (`fill.rs`) and the program (`hook.rs`); both go with the last of them.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scoutline_bpf::Held;

use crate::xdp::fill::Fill;
use crate::xdp::hook::Hook;
use crate::xdp::receive::Queue;
use crate::xdp::ring::{Consumer, Producer};
use crate::xdp::umem::Memory;

/// An interface that several engines share. They open it in their order.
#[derive(Clone, Debug)]
pub struct Spread {
    common: Arc<Common>,
    engine: usize,
}

struct Common {
    engines: usize,
    /// What each engine has not taken yet, by its number.
    parts: Mutex<Vec<Option<Part>>>,
}

impl Spread {
    /// For so many engines; this one is the first's.
    pub fn new(engines: usize) -> Spread {
        Spread { common: Arc::new(Common { engines: engines.max(1), parts: Mutex::default() }), engine: 0 }
    }

    /// The same interface, for this engine.
    #[must_use]
    pub fn of_engine(&self, engine: usize) -> Spread {
        Spread { common: Arc::clone(&self.common), engine }
    }

    /// Which engine it is for.
    pub(super) fn engine(&self) -> usize {
        self.engine
    }

    /// How many there are.
    pub(super) fn engines(&self) -> usize {
        self.common.engines
    }

    /// The first engine has opened it.
    pub(super) fn on_opened(&self, parts: Vec<Part>) {
        *self.parts() = parts.into_iter().map(Some).collect();
    }

    /// This engine's part, if it was opened.
    pub(super) fn take(&self) -> Option<Part> {
        self.parts().get_mut(self.engine)?.take()
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Option<Part>>> {
        self.common.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for Spread {
    fn eq(&self, other: &Spread) -> bool {
        Arc::ptr_eq(&self.common, &other.common) && self.engine == other.engine
    }
}

impl Eq for Spread {}

impl fmt::Debug for Common {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Common").field("engines", &self.engines).finish_non_exhaustive()
    }
}

/// What one engine has of an interface.
pub(super) struct Part {
    pub(super) shared: Shared,
    /// By receive queue.
    pub(super) queues: Vec<Queue>,
    /// `None`: there is no transmit queue for it.
    pub(super) way_out: Option<WayOut>,
    /// Chunks that it may lend.
    pub(super) most_lent: u32,
    pub(super) held: Held,
    /// The kernel takes requests to complete checksums.
    pub(super) metadata: bool,
    pub(super) zero_copy: bool,
}

/// What all engines have.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) memory: Arc<Memory>,
    pub(super) fill: Arc<Fill>,
    pub(super) hook: Arc<Hook>,
}

/// The rings to send by, of the socket at this queue.
pub(super) struct WayOut {
    pub(super) queue: usize,
    pub(super) transmit: Producer<libc::xdp_desc>,
    pub(super) completion: Consumer<u64>,
    pub(super) chunks: Range<u32>,
}
