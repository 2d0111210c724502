//! Opening a `packet` partner: checks first, each with its remedy, then sockets, ring and the drop for Linux.

use std::net::{Ipv4Addr, Ipv6Addr};

use scoutline_base::DeviceId;
use scoutline_bpf::IngressDrop;

use crate::error::OpenError;
use crate::ethernet;
use crate::link::SegmentLimit;
use crate::packet::{PacketPartner, bell, police, receive, send};
use crate::partner::{DeviceCounters, DeviceFacts, MAX_LONG_FRAME, MAX_SUPER_FRAME, Notice, Offload};
use crate::sys::Interface;

/// How to open an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its name, in the caller's network namespace.
    pub interface: String,
    /// Our own address on it, to warn when Linux has it too.
    pub address: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub addresses6: Vec<Ipv6Addr>,
    /// Frames to groups of stations come too, whichever the interface's hardware would keep: IPv6 lives on them.
    pub groups: bool,
    /// Linux's own protocols do not see what arrives.
    pub dedicated: bool,
    /// The kernel cuts super-segments and completes checksums. Off: software does.
    pub offload: bool,
    /// Frames in the receive ring, 64 KiB each: 512 take 36 MiB of kernel memory and hold half a millisecond of
    /// small packets at full rate. Fewer stay warmer in the cache (bulk between two partners, Gbit/s: 120 frames
    /// 56, 240 56, 512 44, 1,020 44) but lose packets when the engine has to wait for its core: a lost packet costs
    /// more than the cache does.
    pub ring_frames: u32,
    /// Sent packets skip the interface's queueing discipline. Measured on veth (which has none): no difference;
    /// on a NIC it gives up the queue's fairness and back-pressure, so it is off.
    pub qdisc_bypass: bool,
    /// Floods are held back at the interface while they last (see [`Partner::police`](crate::Partner::police)).
    pub police: bool,
    /// Important packets can ring (see [`Important`](super::Important)).
    pub bell: bool,
}

impl Config {
    /// The defaults for an interface.
    pub fn new(interface: impl Into<String>) -> Config {
        Config {
            interface: interface.into(),
            address: None,
            addresses6: Vec::new(),
            groups: false,
            dedicated: true,
            offload: true,
            ring_frames: 512,
            qdisc_bypass: false,
            police: true,
            bell: false,
        }
    }
}

/// Opens an interface.
///
/// # Errors
/// See [`OpenError`]; each names the remedy.
pub fn open(id: DeviceId, config: &Config) -> Result<(PacketPartner, Vec<Notice>), OpenError> {
    let name = &config.interface;
    let (interface, link_address) = ethernet::find(name)?;
    let mut notices = ethernet::clashes(&interface, config.address, &config.addresses6);
    let trusted = ethernet::is_trusted(&interface);
    let facts = DeviceFacts {
        kind: "packet",
        link_address,
        mtu: interface.mtu()?,
        offload: Offload {
            checksum: config.offload,
            segmentation: config.offload,
            max_segment_len: if config.offload { max_segment_len(&interface) } else { MAX_SUPER_FRAME },
        },
        trusted_checksums: trusted,
        index: interface.index,
    };

    let sender = send::Sender::open(&interface, config)?;
    // Before the ring: see there.
    let bell = if config.bell { Some(bell::open(&interface)?) } else { None };
    // First deaf, then with its ring, then bound: no packet meets a socket that is not ready.
    let receiver = receive::Receiver::open(&interface, config, trusted)?;
    if config.groups {
        ethernet::receive_groups(receiver.socket(), &interface)?;
    }
    let ingress_drop = if config.dedicated {
        match IngressDrop::attach(interface.index) {
            Ok(drop) => Some(drop),
            Err(error) => {
                notices.push(Notice(format!(
                    "{name}: Linux cannot be kept from seeing our packets: {error}; as long as it has no address \
                     on {name} it stays silent, else it answers too (resets, port unreachable)"
                )));
                None
            }
        }
    } else {
        None
    };
    let partner = PacketPartner {
        name: name.clone(),
        device: id,
        facts,
        receiver,
        sender,
        counters: DeviceCounters::default(),
        bell,
        police: config.police.then(|| police::Police::new(interface.index)),
        _ingress_drop: ingress_drop,
    };
    Ok((partner, notices))
}

/// The longest frame that the interface cuts for us: its `gso_ipv4_max_size` must not be reached.
fn max_segment_len(interface: &Interface) -> u32 {
    match SegmentLimit::of(interface.index) {
        Ok(Some(limit)) => limit.now.saturating_sub(1).clamp(MAX_SUPER_FRAME, MAX_LONG_FRAME),
        Ok(None) | Err(_) => MAX_SUPER_FRAME,
    }
}
