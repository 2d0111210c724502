//! `packet`: an ordinary network interface through AF_PACKET, 64 KiB super-segments in both directions.
//!
//! - **Synopsis**: `packet(interface)`: the default for veth, virtual and ordinary NICs.
//! - **Options** ([`Config`]): `interface`; `address` (ours, to warn of a clash); `dedicated` (true: Linux's own
//!   protocols do not see what arrives); `offload` (true); `ring_frames` (512); `qdisc_bypass` (false);
//!   `police` (true: a flood is held back by XDP, see `police.rs`).
//! - **Counters**: see [`DeviceCounters`].
//! - **Example**: `packet::open(id, &Config::new("veth0"))`.
//! - **See also**: `tap`; MEASURED.md for what each driver can do.
//!
//! ```text
//!   wire → driver → tap ──→ TPACKET_V2 ring (mapped) → pull: frames copied out; what is longer waits beside the ring
//!                     └───→ tcx ingress: dropped for Linux (dedicated mode; scoutline-bpf)
//!   push → sendmmsg [vnet header][headers][span][span] → AF_PACKET (protocol 0: receives nothing) → driver → wire
//! ```
//!
//! Ring or `recvmmsg`? Measured on veth (MEASURED.md): bulk from the kernel 78 Gbit/s with the ring, 59 without;
//! 64-byte packets 1.13 and 0.96 Mpps; and a look at the ring for new input costs no system call. So: the ring.
//! To send it is the other way round: `sendmmsg` 53 Gbit/s, a transmit ring 39 to 43 (we would have to
//! copy the payload into it, and it needs a system call per batch all the same).

mod bell;
mod long;
mod open;
mod police;
mod queue;
mod receive;
mod ring;
mod send;
mod spread;

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use scoutline_base::{DeviceId, Time};
use scoutline_bpf::{IngressDrop, KnownAs, Peer};
use scoutline_path::Burst;

use crate::partner::{DeviceCounters, DeviceError, DeviceFacts, Notice, Partner, Policing};

use bell::Bell;
pub use bell::Important;
pub use open::{Config, open};
use police::Police;
pub(crate) use police::{LIMITS, begun};
pub(crate) use send::Sender;
pub use spread::Spread;

/// One interface, ours as long as this lives.
pub struct PacketPartner {
    name: String,
    device: DeviceId,
    facts: DeviceFacts,
    receiver: receive::Receiver,
    sender: send::Sender,
    counters: DeviceCounters,
    bell: Option<Bell>,
    /// Present when floods may be held back.
    police: Option<Arc<Police>>,
    /// Whose it is, of several engines.
    engine: usize,
    /// Keeps Linux from answering; detached with us.
    _ingress_drop: Option<IngressDrop>,
}

impl Partner for PacketPartner {
    fn name(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        let taken = self.receiver.pull(burst, limit, now, self.device, &mut self.counters);
        if taken == 0
            && let Some(error) = self.receiver.error(now)
        {
            return Err(DeviceError::from_errno(&self.name, "receive", error));
        }
        Ok(taken)
    }

    #[inline]
    fn has_input(&self) -> bool {
        self.receiver.has_input()
    }

    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        self.sender
            .push(burst, &mut self.counters)
            .map_err(|error| DeviceError::from_errno(&self.name, "send", error))
    }

    fn room(&self) -> usize {
        self.sender.room()
    }

    fn standing(&self) -> Option<u64> {
        self.sender.standing()
    }

    fn poll_fd(&self) -> Option<RawFd> {
        Some(self.receiver.socket().as_raw_fd())
    }

    fn pressed(&self) -> bool {
        self.receiver.pressed()
    }

    fn bell_fd(&self) -> Option<RawFd> {
        self.bell.as_ref().map(Bell::fd)
    }

    fn ring_for(&mut self, rules: &[Important]) -> io::Result<()> {
        self.bell.as_ref().map_or(Ok(()), |bell| bell.listen_for(rules))
    }

    fn silence_bell(&mut self) {
        if let Some(bell) = &self.bell {
            bell.silence();
        }
    }

    fn police(&mut self, policing: Option<Policing<'_>>) {
        let Some(police) = &self.police else { return };
        police.want(
            self.engine,
            policing.map(|policing| {
                let exempt = policing.exempt.iter().map(Important::exempt).collect();
                police::What { exempt, only_syns: policing.only_syns }
            }),
        );
    }

    fn know(&mut self, peer: &Peer, known: Option<KnownAs>) {
        if let Some(police) = &self.police {
            police.know(peer, known);
        }
    }

    fn news(&mut self) -> Option<Notice> {
        self.police.as_ref()?.news(&self.name)
    }

    fn counters(&self) -> DeviceCounters {
        let rx_policed = self.police.as_ref().map_or(0, |police| police.dropped());
        DeviceCounters { rx_ring_drops: self.receiver.drops(), rx_policed, ..self.counters }
    }
}
