//! `tap`: an Ethernet cable into Linux itself; the kernel's stack is the peer.
//!
//! - **Synopsis**: `tap(interface)`.
//! - **Options** ([`Config`]): `interface` (created when it is not there, and then gone with us); `mtu`;
//!   `linux_address` (given to Linux's side).
//! - **Counters**: see [`DeviceCounters`].
//! - **Example**: `tap::open(id, &Config::new("scout0"))`, then `ip address add 10.0.0.1/24 dev scout0`.
//! - **See also**: `packet`.
//!
//! ```text
//!   Linux's stack → tap's queue → readv [vnet header][frame] → pull
//!   push → writev [vnet header][headers][span][span] → Linux's stack
//! ```
//! Super-segments go whole both ways (TSO); a read or write is one packet, so small packets cost a system call
//! each (1.0 Mpps, MEASURED.md) while bulk is the fastest of all drivers.

mod open;
mod receive;
mod send;

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use scoutline_base::{DeviceId, Time};
use scoutline_path::Burst;

use crate::partner::{DeviceCounters, DeviceError, DeviceFacts, Partner};

pub use open::{Config, open};

/// One tap, ours as long as this lives.
pub struct TapPartner {
    name: String,
    device: DeviceId,
    facts: DeviceFacts,
    file: OwnedFd,
    receiver: receive::Receiver,
    counters: DeviceCounters,
    full: bool,
}

impl Partner for TapPartner {
    fn name(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        self.receiver
            .pull(&self.file, burst, limit, now, self.device, &mut self.counters)
            .map_err(|error| DeviceError::from_errno(&self.name, "receive", error))
    }

    fn has_input(&self) -> bool {
        receive::is_readable(&self.file)
    }

    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        let mut done = 0;
        let result = send::push(&self.file, burst, &mut done, &mut self.counters);
        burst.drain(..done);
        let full = result.map_err(|error| DeviceError::from_errno(&self.name, "send", error))?;
        self.full = full;
        Ok(done)
    }

    fn room(&self) -> usize {
        if self.full { 1 } else { send::BATCH }
    }

    fn poll_fd(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }
}
