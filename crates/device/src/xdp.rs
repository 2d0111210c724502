//! `xdp`: an ordinary network interface through AF_XDP, for small packets at high rates.
//!
//! - **Synopsis**: `xdp(interface)`.
//! - **Options** ([`Config`]): `interface`; `address` (ours, to warn of a clash); `ring_frames` (2,048 for each receive
//!   queue, divided among the engines); `zero_copy` (true: where the interface's driver has it); `police` (true: a flood
//!   is held back); `bell` (false: what is important has a receive ring of its own, and rings); `spread` (none: several
//!   engines share the interface).
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
//! (`outlet.rs`). Checksums to send are left to the kernel where it takes them (Linux 6.8, copy mode). Several engines have
//! each a socket at each queue (`spread.rs`).

mod fill;
mod hook;
mod open;
mod outlet;
mod receive;
mod ring;
mod send;
mod socket;
mod sockets;
mod spread;
mod umem;
mod wanted;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use scoutline_base::{DeviceId, Time};
use scoutline_bpf::{Held, KnownAs, Limits, Peer};
use scoutline_path::Burst;

use crate::packet::{Important, LIMITS};
use crate::partner::{DeviceCounters, DeviceError, DeviceFacts, Notice, Partner, Policing};
use crate::sys::Interface;
use hook::Hook;

pub use open::{Config, open};
pub use spread::Spread;

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
    /// Whose it is, of several engines.
    engine: usize,
    /// The program was asked to hold single flows back,
    holds: bool,
    /// and these are ours.
    held: Held,
    /// The program, of all engines.
    hook: Arc<Hook>,
}

/// How often an interface that brings nothing is asked whether it is up.
const ASK_INTERVAL: Duration = Duration::from_millis(10);

/// More rules than this are not compared by a program.
const MAX_RULES: usize = 64;

impl XdpPartner {
    /// The program does what was asked for last; for tests, which have no other way to know.
    #[doc(hidden)]
    pub fn has_followed(&mut self) -> bool {
        self.hook.has_followed()
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
            let flushed = self.sender.flush(&self.receiver);
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
        let pushed = self.sender.push(&self.receiver, burst, &mut self.counters);
        pushed.map_err(|error| self.error("send", error))
    }

    fn room(&self) -> usize {
        self.sender.room()
    }

    fn standing(&self) -> Option<u64> {
        Some(self.sender.standing())
    }

    fn poll_fd(&self) -> Option<RawFd> {
        Some(self.all_queues.as_ref().unwrap_or(self.receiver.socket(0)).as_raw_fd())
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
        self.hook.ring_for(rules.iter().map(Important::exempt).collect());
        Ok(())
    }

    fn police(&mut self, policing: Option<Policing<'_>>) {
        if !self.police {
            return;
        }
        let important = policing.map(|policing| policing.exempt.iter().map(Important::exempt).collect());
        let limits = policing.map(|policing| Limits { only_syns: policing.only_syns, ..LIMITS });
        self.hook.police(self.engine, important, limits);
    }

    fn know(&mut self, peer: &Peer, known: Option<KnownAs>) {
        self.hook.know(peer, known);
    }

    fn hold_back(&mut self, frame: &[u8], until: Time, owner: u64) {
        if !std::mem::replace(&mut self.holds, true) {
            self.hook.hold();
        }
        self.held.hold(frame, until.as_nanos(), owner);
    }

    fn tell_held_back(&mut self, now: Time, each: &mut dyn FnMut(u64, u64)) {
        self.held.tell(now.as_nanos(), each);
    }

    fn news(&mut self) -> Option<Notice> {
        self.hook.news()
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters {
            rx_ring_drops: self.receiver.drops(),
            // Each engine has to see what its flood is held back to; who reports takes the first one's.
            rx_policed: self.hook.policed(),
            rx_held_back: if self.engine == 0 { self.hook.held() } else { 0 },
            ..self.counters
        }
    }
}

impl Drop for XdpPartner {
    /// What this engine wants is wanted no more, if others go on.
    fn drop(&mut self) {
        if Arc::strong_count(&self.hook) > 1 {
            self.hook.police(self.engine, None, None);
        }
    }
}
