//! Congestion control: one trait, NewReno (RFC 5681), CUBIC (RFC 9438), BBR, and LEDBAT++ for background traffic.
//!
//! All sizes are bytes. Growth counts acknowledged bytes, not acknowledgments (RFC 3465 without its limit per
//! acknowledgment: receivers that merge segments acknowledge 64 KiB at once), and happens only while the window
//! is what limits the sender (RFC 7661 §4).

mod bbr;
mod cubic;
mod hystart;
mod ledbat;
mod new_reno;
mod window;

use std::time::Duration;

use scoutline_base::Time;

pub use bbr::Bbr;
pub use cubic::Cubic;
pub use ledbat::LedbatPlusPlus;
pub use new_reno::NewReno;
use window::Window;

/// Which controller a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// RFC 5681 and RFC 6582.
    NewReno,
    /// RFC 9438.
    #[default]
    Cubic,
    /// draft-cardwell-iccrg-bbr-congestion-control-00: version 1. Paces.
    Bbr,
    /// draft-irtf-iccrg-ledbat-plus-plus: what is left over by others.
    LedbatPlusPlus,
}

impl Algorithm {
    /// By name, as Linux has them (`TCP_CONGESTION`).
    pub fn by_name(name: &str) -> Option<Algorithm> {
        Some(match name {
            "cubic" => Algorithm::Cubic,
            "reno" => Algorithm::NewReno,
            "bbr" => Algorithm::Bbr,
            "ledbat++" => Algorithm::LedbatPlusPlus,
            _ => return None,
        })
    }

    /// By the number that [`scoutline_path::Tuning`] has.
    pub const fn by_number(number: u8) -> Option<Algorithm> {
        Some(match number {
            1 => Algorithm::Cubic,
            2 => Algorithm::NewReno,
            3 => Algorithm::Bbr,
            4 => Algorithm::LedbatPlusPlus,
            _ => return None,
        })
    }

    /// Its number, from 1 on.
    pub const fn number(self) -> u8 {
        match self {
            Algorithm::Cubic => 1,
            Algorithm::NewReno => 2,
            Algorithm::Bbr => 3,
            Algorithm::LedbatPlusPlus => 4,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Cubic => "cubic",
            Algorithm::NewReno => "reno",
            Algorithm::Bbr => "bbr",
            Algorithm::LedbatPlusPlus => "ledbat++",
        }
    }
}

/// Something has arrived at the peer, in recovery or not: what a model of the path is made from.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// How much, in bytes.
    pub bytes: u64,
    /// Of what was sent once only, the end of what was sent last, in units.
    pub newest: Option<u64>,
    /// What is in the network after it, in bytes.
    pub in_flight: u64,
    /// Losses are being repaired.
    pub recovering: bool,
    /// When.
    pub now: Time,
}

/// New data was acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// How much, in bytes.
    pub bytes: u32,
    /// When.
    pub now: Time,
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// The round-trip time that this acknowledgment tells, if it tells one; of timestamps, in milliseconds.
    pub sample: Option<Duration>,
    /// The window was used up when the data was sent.
    pub window_limited: bool,
    /// All up to this unit is acknowledged.
    pub una: u64,
    /// The next unit to be sent.
    pub next: u64,
}

/// A congestion controller. What it does not do its own way it does as RFC 5681 has it.
pub(crate) trait Controller {
    /// The window that it moves.
    fn base(&self) -> &Window;
    /// The same, to be moved.
    fn base_mut(&mut self) -> &mut Window;
    /// New data was acknowledged outside of fast recovery.
    fn on_acknowledged(&mut self, acknowledged: &Acknowledged);

    /// The congestion window in bytes.
    #[inline]
    fn window(&self) -> u32 {
        self.base().window
    }

    /// The slow-start threshold in bytes; `u32::MAX` before the first loss.
    fn threshold(&self) -> u32 {
        self.base().threshold
    }

    /// Loss was inferred from duplicate acknowledgments with `flight` bytes outstanding.
    fn on_loss(&mut self, flight: u32) {
        let base = self.base_mut();
        base.on_loss(base.used(flight) / 2);
    }

    /// The retransmission timer expired for the first time on this data.
    fn on_timeout(&mut self, flight: u32) {
        let base = self.base_mut();
        base.reduce(base.used(flight) / 2, u32::from(base.segment));
    }

    /// Fast recovery is over, with `flight` bytes outstanding.
    fn on_recovered(&mut self, flight: u32) {
        self.base_mut().on_recovered(flight);
    }

    /// The last loss proved to be none: what was before it returns (RFC 4015 §3.2).
    fn undo(&mut self) {
        self.base_mut().undo();
    }

    /// Nothing was sent for longer than a retransmission time-out (RFC 5681 §4.1).
    fn on_idle(&mut self) {
        self.base_mut().on_idle();
    }

    /// The payload of a full segment changed (the handshake ended, or the path MTU fell).
    fn set_segment(&mut self, segment: u16) {
        self.base_mut().set_segment(segment);
    }

    /// New data up to the unit `end` leaves, with `in_flight` bytes in the network before it. For models of the path.
    fn on_sent(&mut self, _end: u64, _in_flight: u64, _now: Time) {}

    /// There is nothing more to send, and the window would take more. For models of the path.
    fn on_app_limited(&mut self, _in_flight: u64) {}

    /// Something arrived. For models of the path.
    fn on_moved(&mut self, _moved: &Moved) {}

    /// At how many bytes a second data is to leave, if this controller says so.
    fn rate(&self, _round_trip: Duration) -> Option<u64> {
        None
    }
}

/// The controller of a connection: an enum, so that it lies within the connection.
#[derive(Clone, Debug)]
pub enum Congestion {
    /// RFC 5681.
    NewReno(NewReno),
    /// RFC 9438.
    Cubic(Cubic),
    /// A model of the path; apart, as the next.
    Bbr(Box<Bbr>),
    /// For background traffic; apart, because it is larger and rarer than the others.
    LedbatPlusPlus(Box<LedbatPlusPlus>),
}

impl Congestion {
    /// A controller with the initial window, in segments of so many bytes of payload; `None`: RFC 6928's.
    pub fn new(algorithm: Algorithm, segment: u16, initial: Option<u16>) -> Congestion {
        let base = Window::new(segment, initial);
        match algorithm {
            Algorithm::NewReno => Congestion::NewReno(NewReno { base }),
            Algorithm::Cubic => Congestion::Cubic(Cubic::new(base)),
            Algorithm::Bbr => Congestion::Bbr(Box::new(Bbr::new(base, None, Time::ZERO))),
            Algorithm::LedbatPlusPlus => Congestion::LedbatPlusPlus(Box::new(LedbatPlusPlus::new(segment))),
        }
    }

    /// Which algorithm it is.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Congestion::NewReno(_) => Algorithm::NewReno,
            Congestion::Cubic(_) => Algorithm::Cubic,
            Congestion::Bbr(_) => Algorithm::Bbr,
            Congestion::LedbatPlusPlus(_) => Algorithm::LedbatPlusPlus,
        }
    }

    /// Goes on with another algorithm, from the window and threshold of now. `least_rtt` is the least round-trip time
    /// seen so far.
    pub fn switch(&mut self, algorithm: Algorithm, least_rtt: Option<Duration>, now: Time) {
        if self.algorithm() == algorithm {
            return;
        }
        let base = self.base().resumed();
        *self = match algorithm {
            Algorithm::NewReno => Congestion::NewReno(NewReno { base }),
            Algorithm::Cubic => Congestion::Cubic(Cubic::new(base)),
            Algorithm::Bbr => Congestion::Bbr(Box::new(Bbr::new(base, least_rtt, now))),
            Algorithm::LedbatPlusPlus => {
                let controller = LedbatPlusPlus::resume(base, least_rtt, now);
                Congestion::LedbatPlusPlus(Box::new(controller))
            }
        };
    }

    /// It keeps a model of the path: it wants to know of all that is sent and arrives, sends in recovery as its window
    /// says, and does not heed marks.
    #[inline]
    pub fn is_model(&self) -> bool {
        matches!(self, Congestion::Bbr(_))
    }

    fn inner(&mut self) -> &mut dyn Controller {
        match self {
            Congestion::Bbr(controller) => controller.as_mut(),
            Congestion::NewReno(controller) => controller,
            Congestion::Cubic(controller) => controller,
            Congestion::LedbatPlusPlus(controller) => controller.as_mut(),
        }
    }
}

impl Controller for Congestion {
    #[inline]
    fn base(&self) -> &Window {
        match self {
            Congestion::NewReno(controller) => &controller.base,
            Congestion::Cubic(controller) => &controller.base,
            Congestion::Bbr(controller) => controller.base(),
            Congestion::LedbatPlusPlus(controller) => controller.base(),
        }
    }

    fn base_mut(&mut self) -> &mut Window {
        self.inner().base_mut()
    }

    fn on_acknowledged(&mut self, acknowledged: &Acknowledged) {
        match self {
            Congestion::NewReno(controller) => controller.on_acknowledged(acknowledged),
            Congestion::Cubic(controller) => controller.on_acknowledged(acknowledged),
            Congestion::Bbr(controller) => controller.on_acknowledged(acknowledged),
            Congestion::LedbatPlusPlus(controller) => controller.on_acknowledged(acknowledged),
        }
    }

    fn on_loss(&mut self, flight: u32) {
        self.inner().on_loss(flight);
    }

    fn on_timeout(&mut self, flight: u32) {
        self.inner().on_timeout(flight);
    }

    fn undo(&mut self) {
        self.inner().undo();
    }

    fn on_idle(&mut self) {
        self.inner().on_idle();
    }

    fn set_segment(&mut self, segment: u16) {
        self.inner().set_segment(segment);
    }

    fn on_recovered(&mut self, flight: u32) {
        self.inner().on_recovered(flight);
    }

    fn on_sent(&mut self, end: u64, in_flight: u64, now: Time) {
        self.inner().on_sent(end, in_flight, now);
    }

    fn on_app_limited(&mut self, in_flight: u64) {
        self.inner().on_app_limited(in_flight);
    }

    fn on_moved(&mut self, moved: &Moved) {
        self.inner().on_moved(moved);
    }

    fn rate(&self, round_trip: Duration) -> Option<u64> {
        match self {
            Congestion::Bbr(controller) => controller.rate(round_trip),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
