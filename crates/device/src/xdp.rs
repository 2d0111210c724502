//! `xdp`: an ordinary network interface through AF_XDP, for small packets at high rates.
//!
//! - **Synopsis**: `xdp(interface)`.
//! - **Options** ([`Config`]): `interface`; `address` (ours, to warn of a clash); `ring_frames` (2,048 for each receive
//!   queue); `zero_copy` (true: where the interface's driver has it); `police` (true: a flood is held
//!   back); `bell` (false: what is important has a receive ring of its own, and rings).
//! - **Counters**: see [`DeviceCounters`].
//! - **Example**: `xdp::open(id, &Config::new("eth1"))`.
//! - **See also**: `packet`, which keeps super-segments whole; MEASURED.md for what each driver can do.
//!
//! ```text
//!   wire → driver → XDP program (scoutline-bpf) → receive ring of the queue → pull: lent in its chunk
//!   push → cut, put into chunks → transmit ring → sendto → driver → wire
//! ```
//! Linux sees nothing of what arrives: no packet gets past the program. It hangs on a link that we hold, so it goes with
//! us, even by SIGKILL. On a veth the program makes the other end cut its super-segments; ours leave whole where they can
//! (`outlet.rs`). Checksums to send are left to the kernel where it takes them (Linux 6.8, copy mode).

mod open;
mod outlet;
mod receive;
mod ring;
mod send;
mod socket;
mod umem;
mod wanted;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use scoutline_base::{DeviceId, Time};
use scoutline_bpf::{KnownAs, Limits, Peer, Rules, Steer};
use scoutline_path::Burst;

use crate::packet::{Important, LIMITS, begun};
use crate::partner::{DeviceCounters, DeviceError, DeviceFacts, Notice, Partner, Policing};
use crate::sys::Interface;
use wanted::{Outcome, Wanted, What};

pub use open::{Config, open};

/// One interface, ours as long as this lives.
pub struct XdpPartner {
    interface: Interface,
    device: DeviceId,
    facts: DeviceFacts,
    receiver: receive::Receiver,
    sender: outlet::Outlet,
    counters: DeviceCounters,
    /// When an interface that brought nothing was asked last how it is.
    asked: Time,
    /// What is slept on when there are several queues.
    all_queues: Option<OwnedFd>,
    /// Readable while something important is there.
    bell: Option<OwnedFd>,
    /// Floods may be held back.
    police: bool,
    /// What the program is to do.
    wanted: Wanted,
    /// What people should know.
    news: Option<Notice>,
    /// Frames to groups come as long as it is open.
    _groups: Option<OwnedFd>,
    /// Gives us what arrives; detached with us.
    steer: Steer,
}

/// How often an interface that brings nothing is asked whether it is up.
const ASK_INTERVAL: Duration = Duration::from_millis(10);

/// More rules than this are not compared by a program.
const MAX_RULES: usize = 64;

impl XdpPartner {
    /// Has the program follow what is wanted now: soon, by a thread of ours (see `wanted.rs`).
    fn follow(&mut self) {
        let (changer, apart) = (self.steer.changer(), self.bell.is_some());
        self.wanted.follow(move |what| {
            let What { important, limits, hold } = what;
            changer.change(&Rules { important, apart, limits: *limits, hold: *hold })
        });
    }

    /// The program does what was asked for last; for tests, which have no other way to know.
    #[doc(hidden)]
    pub fn has_followed(&mut self) -> bool {
        self.look();
        self.wanted.is_done()
    }

    /// Looks at what has come of a change, and goes on with what is wanted since.
    fn look(&mut self) {
        let name = &self.interface.name;
        let news = match self.wanted.on_look() {
            Some(Outcome::Done(before)) => told(name, before.limits, self.wanted.done().limits),
            Some(Outcome::Refused(error)) => {
                Some(format!("{name}: what is held back cannot be changed now, and is tried again: {error}"))
            }
            None => None,
        };
        // Older news that nobody has asked for yet matters more than none.
        self.news = news.map(Notice).or(self.news.take());
        self.follow();
    }

    /// The error behind a refusal: a socket says the same of an interface that is down and one that has gone.
    fn error(&self, action: &'static str, error: io::Error) -> DeviceError {
        let name = self.interface.name.clone();
        match self.interface.is_up() {
            Ok(false) => DeviceError::Down { name },
            Err(_) => DeviceError::Gone { name },
            Ok(true) => DeviceError::from_errno(&name, action, error),
        }
    }
}

impl Partner for XdpPartner {
    fn name(&self) -> &str {
        &self.interface.name
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        if self.sender.is_stuck() {
            let flushed = self.sender.flush(self.receiver.first_socket());
            flushed.map_err(|error| self.error("send", error))?;
        }
        let taken = self.receiver.pull(burst, limit, now, self.device, &mut self.counters);
        if taken == 0 && now - self.asked >= ASK_INTERVAL {
            self.asked = now;
            if !matches!(self.interface.is_up(), Ok(true)) {
                return Err(self.error("receive", io::ErrorKind::NotConnected.into()));
            }
        }
        Ok(taken)
    }

    #[inline]
    fn has_input(&self) -> bool {
        // What the kernel did not take when it was sent goes on by `pull`.
        self.receiver.has_input() || self.sender.is_stuck()
    }

    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        let pushed = self.sender.push(self.receiver.first_socket(), burst, &mut self.counters);
        pushed.map_err(|error| self.error("send", error))
    }

    fn room(&self) -> usize {
        self.sender.room()
    }

    fn standing(&self) -> Option<u64> {
        Some(self.sender.standing())
    }

    fn poll_fd(&self) -> Option<RawFd> {
        Some(self.all_queues.as_ref().unwrap_or(self.receiver.first_socket()).as_raw_fd())
    }

    fn pressed(&self) -> bool {
        self.receiver.pressed()
    }

    fn bell_fd(&self) -> Option<RawFd> {
        self.bell.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn ring_for(&mut self, rules: &[Important]) -> io::Result<()> {
        if self.bell.is_none() {
            return Ok(());
        }
        if rules.len() > MAX_RULES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "there are too many rules for one program",
            ));
        }
        self.wanted.what.important = rules.iter().map(Important::exempt).collect();
        self.look();
        Ok(())
    }

    fn police(&mut self, policing: Option<Policing<'_>>) {
        if !self.police {
            return;
        }
        if let Some(policing) = policing {
            self.wanted.what.important = policing.exempt.iter().map(Important::exempt).collect();
        }
        self.wanted.what.limits = policing.map(|policing| Limits { only_syns: policing.only_syns, ..LIMITS });
        // What fails is news, and is tried again.
        self.look();
    }

    fn know(&mut self, peer: &Peer, known: Option<KnownAs>) {
        self.steer.know(peer, known);
    }

    fn hold_back(&mut self, frame: &[u8], until: Time, owner: u64) {
        if !std::mem::replace(&mut self.wanted.what.hold, true) {
            // As above.
            self.look();
        }
        self.steer.hold(frame, until.as_nanos(), owner);
    }

    fn tell_held_back(&mut self, now: Time, each: &mut dyn FnMut(u64, u64)) {
        self.steer.tell_held(now.as_nanos(), each);
    }

    fn news(&mut self) -> Option<Notice> {
        self.look();
        self.news.take()
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters {
            rx_ring_drops: self.receiver.drops(),
            rx_policed: self.steer.policed().unwrap_or(0),
            rx_held_back: if self.wanted.done().hold { self.steer.held().unwrap_or(0) } else { 0 },
            ..self.counters
        }
    }
}

/// What people are told of a change of what is held back.
fn told(name: &str, before: Option<Limits>, now: Option<Limits>) -> Option<String> {
    if before == now {
        return None;
    }
    Some(match now {
        Some(limits) => begun(name, "where they come in", limits.only_syns),
        None => format!("{name}: the flood is over, and nothing is held back any more"),
    })
}
