//! Whether foreground uses a device (Eggert, Touch: "End-System Support for Idle-Time Networking", §IV.B.3): while it
//! does, background is suspended.
//!
//! ```text
//!   foreground packets   ▮ ▮▮ ▮ ▮       ▮▮ ▮
//!   gaps within a burst   ─ ─ ─          ─
//!   preemption interval         ├──┤      ├──┤     after the last packet of a burst
//!   background                      ▯▯▯▯       ▯▯▯▯▯▯▯
//! ```
//! One moment for each device: foreground is active until then. Each foreground packet in either direction moves it;
//! so does a foreground connection whose data the peer has not acknowledged: it waits for the network only, the
//! paper's "queued data in its send buffer". Both are bounded, so a dead peer does not keep background away.

use std::time::Duration;

use scoutline_base::Time;

/// A longer gap is between two bursts, not within one: background may be sent there. The least at which a person or a
/// protocol would speak of a pause on a local network.
const LONGEST_GAP: Duration = Duration::from_millis(1);
/// The interval as a multiple of the mean gap: of gaps with an exponential distribution, one in fifty is longer.
const GAPS: u32 = 4;
/// At least and at most.
const LEAST: Duration = Duration::from_micros(50);
const MOST: Duration = Duration::from_millis(2);
/// A gap counts for so much of the mean: a burst of some dozen packets is learned at once.
const GAIN: u64 = 16;
/// How long a connection is believed to wait for the network: a wide-area round trip, and below the least time-out.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// How long background keeps away after a foreground packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preemption {
    /// So long; zero is plain priority: background waits only while foreground is there to be sent.
    Fixed(Duration),
    /// Four times the mean gap between packets of a burst, and while a foreground connection waits for
    /// acknowledgments.
    #[default]
    Auto,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    preemption: Preemption,
    last: Option<Time>,
    mean_gap_ns: u64,
    until: Time,
}

impl Activity {
    /// Nothing has been seen yet.
    pub fn new(preemption: Preemption) -> Activity {
        // A first guess that the first burst corrects.
        let mean_gap_ns = (LONGEST_GAP / GAPS).as_nanos() as u64;
        Activity { preemption, last: None, mean_gap_ns, until: Time::ZERO }
    }

    /// A foreground packet came, or was made.
    pub fn on_foreground(&mut self, now: Time) {
        if let Some(last) = self.last {
            let gap = now.since(last);
            // Packets of one turn of the engine are one event.
            if !gap.is_zero() && gap <= LONGEST_GAP {
                self.mean_gap_ns += gap.as_nanos() as u64 / GAIN;
                self.mean_gap_ns -= (self.mean_gap_ns / GAIN).min(self.mean_gap_ns);
            }
        }
        self.last = Some(now);
        self.until = self.until.max(now + self.interval());
    }

    /// A foreground connection waits for acknowledgments, which should be there within `time`.
    pub fn on_waiting(&mut self, now: Time, time: Duration) {
        if self.preemption == Preemption::Auto {
            self.until = self.until.max(now + time.min(LONGEST_WAIT));
        }
    }

    /// Another way to find the interval; it holds from the next packet on.
    pub fn set_preemption(&mut self, preemption: Preemption) {
        self.preemption = preemption;
    }

    /// The preemption interval of now.
    pub fn interval(&self) -> Duration {
        match self.preemption {
            Preemption::Fixed(interval) => interval,
            Preemption::Auto => (Duration::from_nanos(self.mean_gap_ns) * GAPS).clamp(LEAST, MOST),
        }
    }

    /// From when on background may be sent, if nothing comes before.
    #[inline]
    pub fn quiet_at(&self) -> Time {
        self.until
    }

    /// True while foreground uses the device.
    #[inline]
    pub fn is_active(&self, now: Time) -> bool {
        now < self.until
    }
}
