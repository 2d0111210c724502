//! The Linux thread (SILK §3.2): an entry in the schedule whose running means that the engine gives up its core.
//!
//! SILK's kernel task yields and gets control back after one other task has run. From user space nobody tells us
//! when Linux has nothing more to run, so a *sentinel* does: a thread of the lowest policy (SCHED_IDLE) on the
//! engine's core. The engine wakes the sentinel and sleeps; the sentinel gets to run once everything else on the
//! core has blocked, and rings the engine's doorbell. A slice that finds Linux idle costs 4 to 5 µs here
//! (two switches, three system calls), one that does not ends with the quantum.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The sentinel's handle.
pub(crate) struct Sentinel {
    start: OwnedFd,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Set by the sentinel when it ran: the core was idle.
    idle: AtomicBool,
    stop: AtomicBool,
}

impl Sentinel {
    /// A sentinel on `cpu` that rings `doorbell`.
    ///
    /// # Errors
    /// When the thread cannot be made, pinned or lowered.
    pub(crate) fn start(cpu: usize, doorbell: OwnedFd) -> std::io::Result<Sentinel> {
        // SAFETY: no arguments that could be wrong; the result is checked.
        let start = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if start < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: just made, owned by nobody else.
        let start = unsafe { OwnedFd::from_raw_fd(start) };
        let shared = Arc::new(Shared { idle: AtomicBool::new(false), stop: AtomicBool::new(false) });
        let (theirs, their_shared) = (start.try_clone()?, Arc::clone(&shared));
        let (report, ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("scl-sentinel".into()).spawn(move || {
            let prepared = crate::sys::pin(cpu).and_then(|()| crate::sys::set_idle_policy());
            let failed = prepared.is_err();
            let _ = report.send(prepared);
            if !failed {
                watch(&theirs, &doorbell, &their_shared);
            }
        })?;
        ready.recv().map_err(|_| std::io::Error::other("the sentinel thread ended"))??;
        Ok(Sentinel { start, shared, thread: Some(thread) })
    }

    /// Begins a slice: from now on [`Sentinel::is_idle`] tells whether the core ran out of work.
    pub(crate) fn arm(&self) {
        self.shared.idle.store(false, Ordering::SeqCst);
        crate::sys::ring(self.start.as_raw_fd());
    }

    /// True once everything else on the core has blocked.
    pub(crate) fn is_idle(&self) -> bool {
        self.shared.idle.load(Ordering::Acquire)
    }
}

fn watch(start: &OwnedFd, doorbell: &OwnedFd, shared: &Shared) {
    loop {
        crate::sys::wait_rung(start.as_raw_fd());
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        // Where something else is ready, a yield forfeits a slice (Linux 6.18: with this weight a second), so that what
        // comes next is the truth. Before 6.18 the engine's own doubts have to do.
        std::thread::yield_now();
        shared.idle.store(true, Ordering::Release);
        crate::sys::ring(doorbell.as_raw_fd());
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        crate::sys::ring(self.start.as_raw_fd());
        if let Some(thread) = self.thread.take() {
            // It runs as soon as we block here, or another core has time.
            let _ = thread.join();
        }
    }
}
