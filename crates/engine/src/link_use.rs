//! What the engines of one daemon tell each other of a device's link: whether anybody has background there, and until when
//! foreground uses it (DESIGN.md §5, "one counter, checked before protocol work").

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use scoutline_base::Time;

/// One device's, common to its engines. Written only while there is background.
#[derive(Debug, Default)]
pub struct LinkUse {
    /// Engines that have background paths.
    with_background: AtomicU32,
    /// When foreground of all of them is over, in nanoseconds.
    quiet_at: AtomicU64,
}

impl LinkUse {
    /// An engine has its first background path, or has lost its last.
    pub(crate) fn set_background(&self, has: bool) {
        if has {
            self.with_background.fetch_add(1, Ordering::Relaxed);
        } else {
            self.with_background.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether foreground has to be told of.
    #[inline]
    pub(crate) fn has_background(&self) -> bool {
        self.with_background.load(Ordering::Relaxed) > 0
    }

    /// Foreground of one engine is active until then.
    #[inline]
    pub(crate) fn on_foreground(&self, quiet_at: Time) {
        self.quiet_at.fetch_max(quiet_at.as_nanos(), Ordering::Relaxed);
    }

    /// From when on background may be sent.
    #[inline]
    pub(crate) fn quiet_at(&self) -> Time {
        Time::from_nanos(self.quiet_at.load(Ordering::Relaxed))
    }
}
