//! The engine's clock: CLOCK_MONOTONIC as [`Time`].

use scoutline_base::Time;

/// Now. 20 ns (vDSO), so it is read once per run of a path, not per packet.
#[inline]
pub(crate) fn now() -> Time {
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
