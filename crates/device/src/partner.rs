//! The symmetric interface of everything at the edge of a path (DESIGN.md §4; Snow's partner): bursts of messages
//! are pulled from it and pushed to it, and neither call ever waits.

use std::fmt;
use std::io;
use std::os::fd::RawFd;

use scoutline_base::Time;
use scoutline_bpf::{KnownAs, Peer};
use scoutline_path::Burst;

use crate::packet::Important;

/// Buffers for packets that a driver has ready from the start: 512 KiB, more than one burst takes.
pub(crate) const BUFFERS_READY: u32 = 256;

/// A device at the edge: packets come from it (`pull`) and go to it (`push`).
///
/// Order of calls: `pull` while [`has_input`](Partner::has_input), `push` whenever there is something to send, and
/// sleep on [`poll_fd`](Partner::poll_fd) when neither. One engine owns a partner; it never leaves its thread.
pub trait Partner {
    /// The name that people know it by (an interface, a file).
    fn name(&self) -> &str;

    /// What it is and can do; constant while it is open.
    fn facts(&self) -> &DeviceFacts;

    /// Appends up to `limit` received messages to `burst` and says how many. Device, arrival, checksum and
    /// segmentation facts are set. Never waits.
    ///
    /// # Errors
    /// When the device is down or gone. The partner stays usable: it works again when the device does.
    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError>;

    /// True when `pull` would bring something now. Without a system call where the driver has a ring; a driver
    /// without one asks the kernel (100 ns), so call it before sleeping, not in the inner loop.
    fn has_input(&self) -> bool;

    /// Sends from the front as many as the device takes, and removes those; the rest stays, in order. Returns how
    /// many left the burst, those included that can never be sent (counted in [`DeviceCounters`]). Sent blocks
    /// and stream memory are free again on return: the device has its own copy or reference.
    ///
    /// # Errors
    /// When the device is down or gone: nothing is removed beyond what had been sent before.
    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError>;

    /// How many messages it would take now: a hint that bounds what is produced ahead of the device.
    fn room(&self) -> usize;

    /// Bytes that were sent and have not left the machine yet, as the kernel accounts for them (some more than the
    /// packets themselves have); `None`: it cannot tell. May be a system call.
    fn standing(&self) -> Option<u64> {
        None
    }

    /// What to sleep on for input. To be watched **edge-triggered** (EPOLLET) with a look at `has_input` before
    /// each sleep: a packet socket stays readable while a long packet waits beside its ring.
    fn poll_fd(&self) -> Option<RawFd>;

    /// For devices without a descriptor (simulated wires, replayed files): when the next input is there.
    fn next_event(&self) -> Option<Time> {
        None
    }

    /// True when lent blocks stand in the way of receiving: holders should copy what they want to keep.
    fn pressed(&self) -> bool {
        false
    }

    /// Becomes readable when a packet comes that matters: see [`Partner::ring_for`]. `None`: it cannot tell.
    fn bell_fd(&self) -> Option<RawFd> {
        None
    }

    /// From now on these packets ring, and no others.
    ///
    /// # Errors
    /// As the kernel says.
    fn ring_for(&mut self, _rules: &[Important]) -> io::Result<()> {
        Ok(())
    }

    /// Takes what rang.
    fn silence_bell(&mut self) {}

    /// Packets come that nobody wants, more than can be sorted (see [`Partner::counters`] for how many). From now on
    /// what [`Policing`] does not except is held back at the interface, as far as the device can; without it, no more.
    /// Returns at once and takes effect soon.
    fn police(&mut self, _policing: Option<Policing<'_>>) {}

    /// A connection stands with this peer, or has become important or ordinary; without a word as what it has ended. While
    /// a flood is held back it has limits of its own, or none, and its peer may connect again, as far as the device can
    /// tell them apart. Makes no system call.
    fn know(&mut self, _peer: &Peer, _known: Option<KnownAs>) {}

    /// The path of this frame has no room: until then the device drops what comes of the same flow, as far as it can, so
    /// that it costs less. It need not. `owner` is anything that the caller knows the path by.
    fn hold_back(&mut self, _frame: &[u8], _until: Time, _owner: u64) {}

    /// How many packets were [held back](Partner::hold_back) for each owner since this was last asked.
    fn tell_held_back(&mut self, _now: Time, _each: &mut dyn FnMut(u64, u64)) {}

    /// Something that people should know of what happened since.
    fn news(&mut self) -> Option<Notice> {
        None
    }

    /// What has happened so far. May be a system call.
    fn counters(&self) -> DeviceCounters;
}

/// What is held back while a flood lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policing<'a> {
    /// Never these.
    pub exempt: &'a [Important],
    /// Nothing but SYNs: the flood is one of them.
    pub only_syns: bool,
}

/// What a device is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The driver: `packet`, `xdp`, `tap`, `memory`, `pcap`.
    pub kind: &'static str,
    /// Our link address on it.
    pub link_address: [u8; 6],
    /// Largest network-layer packet on the wire, in bytes (1500, say).
    pub mtu: u32,
    /// What it does for us when sending.
    pub offload: Offload,
    /// Incoming partial checksums are vouched for by a local sender (veth, tap, virtio): accepted as verified.
    pub trusted_checksums: bool,
    /// Linux's number of the interface: the scope of link-local addresses on it. 0: there is none.
    pub index: u32,
}

/// What a device does for the sender. What it does not do, its driver does in software: every partner takes
/// partial checksums and super-segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Completes partial transport checksums without cost to us.
    pub checksum: bool,
    /// Cuts TCP/IPv4 super-segments without cost to us.
    pub segmentation: bool,
    /// Longest frame that is cut, by the device or by its driver, link header included.
    pub max_segment_len: u32,
}

/// Longest frame that AF_PACKET, tap and the wire take: below 64 KiB, because a device's `gso_max_size` counts the
/// link header and must not be reached (net/core/dev.c, `gso_features_check`).
pub const MAX_SUPER_FRAME: u32 = 65_535;
/// Longest frame that we send on an interface that takes more than 64 KiB: 135 segments of an Ethernet link. nginx,
/// 500 KB pages, 96 clients, of the kernel's requests/s: 0.77 with 64 KiB, 0.85 with 128, 0.92 with 192. A segment
/// is one system call, one interrupt for the receiver's core, one acknowledgment and its interrupt for ours.
pub const MAX_LONG_FRAME: u32 = 196_607;

/// What has happened on a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Messages received (a super-segment is one).
    pub rx_packets: u64,
    /// Bytes received, link header included.
    pub rx_bytes: u64,
    /// Messages sent (a super-segment is one).
    pub tx_packets: u64,
    /// Bytes sent, link header included.
    pub tx_bytes: u64,
    /// Packets that the kernel or wire dropped because we did not take them in time.
    pub rx_ring_drops: u64,
    /// Packets held back at the interface, see [`Partner::police`]. They are in no other count.
    pub rx_policed: u64,
    /// Packets held back at the interface because their paths had no room, see [`Partner::hold_back`]. In no other count.
    pub rx_held_back: u64,
    /// Packets received by rings of their own, see [`Partner::ring_for`]; among the others too.
    pub rx_important: u64,
    /// Packets that came truncated or could not be understood by the driver, and were dropped.
    pub rx_malformed: u64,
    /// Packets copied out of the receive ring to give its memory back, where it is lent (`xdp`).
    pub rx_relief_copies: u64,
    /// Bytes copied once between the device and a path on their way in: small packets, those of the count above, packets
    /// that had to be cut, and what was set aside for others (`packet`). All others of `rx_bytes` stay where the device put
    /// them until they reach the program.
    pub rx_copied_bytes: u64,
    /// Bytes copied to be sent, where the device cannot gather them from the memory of programs and files.
    pub tx_copied_bytes: u64,
    /// Pushes that found the device full; nothing was lost.
    pub tx_full: u64,
    /// Messages dropped because the device refused them as too large.
    pub tx_too_large: u64,
    /// Messages dropped because they are no frame that can be sent (a cut or checksum out of bounds).
    pub tx_malformed: u64,
    /// Messages dropped because of any other refusal.
    pub tx_refused: u64,
    /// Messages cut or completed in software because the device cannot.
    pub tx_software: u64,
}

/// Why a device cannot be used now.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The interface is down; it may come back.
    #[error("{name} is down: bring it up with `ip link set {name} up`")]
    Down {
        /// The interface.
        name: String,
    },
    /// The interface has been removed.
    #[error("{name} does not exist any more: make it again and restart the daemon")]
    Gone {
        /// The interface.
        name: String,
    },
    /// The kernel refused for another reason.
    #[error("{name}: cannot {action}: {source}")]
    System {
        /// The interface or file.
        name: String,
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A capture file is damaged or cannot be written.
    #[error("{name}: {source}")]
    File {
        /// The file.
        name: String,
        /// What is wrong with it.
        source: crate::pcap::FileError,
    },
}

impl DeviceError {
    pub(crate) fn from_errno(name: &str, action: &'static str, source: impl Into<Refusal>) -> DeviceError {
        let (name, Refusal(source)) = (name.to_owned(), source.into());
        match source.raw_os_error() {
            Some(libc::ENETDOWN) => DeviceError::Down { name },
            Some(libc::ENXIO | libc::ENODEV) => DeviceError::Gone { name },
            _ => DeviceError::System { name, action, source },
        }
    }
}

/// An error of a system call, from its number or as `std` has it.
pub(crate) struct Refusal(io::Error);

impl From<i32> for Refusal {
    fn from(errno: i32) -> Refusal {
        Refusal(io::Error::from_raw_os_error(errno))
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal(error)
    }
}

/// Something that is not as it should be and does not stop us: one line for a person, with the consequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice(pub String);

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
