//! Work beside the engine: what would make it wait is done by a thread of its own.

use std::thread;

/// Runs something in an ordinary thread on any core: the engine's own is real-time, and pinned. When there can be no
/// thread, `work` is dropped.
pub(crate) fn in_the_background(work: impl FnOnce() + Send + 'static) {
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
