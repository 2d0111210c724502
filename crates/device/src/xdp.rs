//! `xdp`: an ordinary network interface through AF_XDP, for small packets at high rates.
//!
//! - **Synopsis**: `xdp(interface)`.
//! - **Options** ([`Config`]): `interface`; `address` (ours, to warn of a clash); `ring_frames` (2,048 for each receive
//!   queue); `zero_copy` (true: where the interface's driver has it).
//! - **Counters**: see [`DeviceCounters`].
//! - **Example**: `xdp::open(id, &Config::new("eth1"))`.
//! - **See also**: `packet`, which keeps super-segments whole; MEASURED.md for what each driver can do.
//!
//! ```text
//!   wire → driver → XDP program (scoutline-bpf) → receive ring of the queue → pull: lent in its chunk
//!   push → cut, put into chunks → transmit ring → sendto → driver → wire
//! ```
//! Linux sees nothing of what arrives: no packet gets past the program. It hangs on a link that we hold, so it goes with
//! us, even by SIGKILL. Neither side has segmentation offload: on a veth the program makes the other end cut its
//! super-segments. Checksums to send are left to the kernel where it takes them (Linux 6.8, copy mode).

mod open;
mod receive;
mod ring;
mod send;
mod socket;
mod umem;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use scoutline_base::{DeviceId, Time};
use scoutline_bpf::Steer;
use scoutline_path::Burst;

use crate::partner::{DeviceCounters, DeviceError, DeviceFacts, Partner};
use crate::sys::Interface;

pub use open::{Config, open};

/// One interface, ours as long as this lives.
pub struct XdpPartner {
    interface: Interface,
    device: DeviceId,
    facts: DeviceFacts,
    receiver: receive::Receiver,
    sender: send::Sender,
    counters: DeviceCounters,
    /// When an interface that brought nothing was asked last how it is.
    asked: Time,
    /// What is slept on when there are several queues.
    all_queues: Option<OwnedFd>,
    /// Frames to groups come as long as it is open.
    _groups: Option<OwnedFd>,
    /// Gives us what arrives; detached with us.
    _steer: Steer,
}

/// How often an interface that brings nothing is asked whether it is up.
const ASK_INTERVAL: Duration = Duration::from_millis(10);

impl XdpPartner {
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

    fn counters(&self) -> DeviceCounters {
        DeviceCounters { rx_ring_drops: self.receiver.drops(), ..self.counters }
    }
}
