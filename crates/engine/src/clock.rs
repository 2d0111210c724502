//! The engine's clock: CLOCK_MONOTONIC as [`Time`].

use scoutline_base::Time;

/// Now. 20 ns (vDSO), so it is read once per run of a path, not per packet.
#[inline]
pub(crate) fn now() -> Time {
    #[cfg(test)]
    if let Some(time) = pretended::read() {
        return time;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure we give; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Time::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Cycles of the time-stamp counter per 1,024 nanoseconds, measured once over a millisecond; 1,024 where the
/// processor has none, so that a "cycle" is then a nanosecond.
pub(crate) fn cycles_per_1024_ns() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::sync::OnceLock;
        static RATE: OnceLock<u64> = OnceLock::new();
        *RATE.get_or_init(|| {
            // SAFETY: every x86-64 processor has RDTSC.
            let cycles = || unsafe { core::arch::x86_64::_rdtsc() };
            let (start, from) = (now(), cycles());
            loop {
                let elapsed = now().since(start).as_nanos() as u64;
                if elapsed >= 1_000_000 {
                    return (cycles() - from) * 1024 / elapsed;
                }
            }
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        1024
    }
}

/// For tests in which it matters what a run costs: a clock of the thread that moves by so much with each look.
#[cfg(test)]
pub(crate) mod pretended {
    use std::cell::Cell;
    use std::time::Duration;

    use scoutline_base::Time;

    thread_local! {
        static CLOCK: Cell<Option<(Time, Duration)>> = const { Cell::new(None) };
    }

    pub(crate) fn start(at: Time, each_look: Duration) {
        CLOCK.set(Some((at, each_look)));
    }

    pub(super) fn read() -> Option<Time> {
        let (now, each_look) = CLOCK.get()?;
        CLOCK.set(Some((now + each_look, each_look)));
        Some(now)
    }
}
