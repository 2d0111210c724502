//! Opening a `packet` partner: checks first, each with its remedy, then sockets, ring and the drop for Linux.

use std::sync::Arc;

use scoutline_base::DeviceId;
use scoutline_bpf::IngressDrop;

use crate::error::OpenError;
use crate::ethernet::{self, Station};
use crate::link::SegmentLimit;
use crate::packet::police::Police;
use crate::packet::ring::QUEUE_BYTES;
use crate::packet::spread::{self, Spread};
use crate::packet::{Bell, PacketPartner, receive, send};
use crate::partner::{DeviceCounters, MAX_LONG_FRAME, MAX_SUPER_FRAME, Notice, Offload};
use crate::sys::Interface;

/// How to open an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The interface, and who we are on it.
    pub station: Station,
    /// Linux's own protocols do not see what arrives.
    pub dedicated: bool,
    /// The kernel cuts super-segments and completes checksums. Off: software does.
    pub offload: bool,
    /// Frames in the receive ring, one for each packet; 2 KiB each, so 512 take 1 MiB; as many as fill whole pages.
    /// Longer packets wait whole in the
    /// kernel's own memory, up to 64 MiB of it.
    pub ring_frames: u32,
    /// Sent packets skip the interface's queueing discipline. Measured on veth (which has none): no difference;
    /// on a NIC it gives up the queue's fairness and back-pressure, so it is off.
    pub qdisc_bypass: bool,
    /// Floods are held back at the interface while they last (see [`Partner::police`](crate::Partner::police)).
    pub police: bool,
    /// Important packets can ring (see [`Important`](super::Important)).
    pub bell: bool,
    /// Several engines share the interface, each with a partner of its own.
    pub spread: Option<Spread>,
}

impl Config {
    /// The defaults for an interface.
    pub fn new(interface: impl Into<String>) -> Config {
        Config::of(Station::new(interface))
    }

    /// The defaults for a station.
    pub fn of(station: Station) -> Config {
        Config {
            station,
            dedicated: true,
            offload: true,
            ring_frames: 512,
            qdisc_bypass: false,
            police: true,
            bell: false,
            spread: None,
        }
    }
}

/// Opens an interface.
///
/// # Errors
/// See [`OpenError`]; each names the remedy.
pub fn open(id: DeviceId, config: &Config) -> Result<(PacketPartner, Vec<Notice>), OpenError> {
    let name = &config.station.interface;
    let mut found = ethernet::look_at(&config.station)?;
    let interface = &found.interface;
    let facts = found.facts(
        "packet",
        Offload {
            checksum: config.offload,
            segmentation: config.offload,
            max_segment_len: if config.offload { max_segment_len(interface) } else { MAX_SUPER_FRAME },
        },
    );

    let sender = send::Sender::open(interface, config)?;
    // Before the ring: see there.
    let bell = if config.bell { Some(Bell::open(interface)?) } else { None };
    // First deaf, then with its ring, then bound: no packet meets a socket that is not ready.
    let receiver = receive::Receiver::open(interface, config, found.trusted)?;
    if receiver.has_short_queue() {
        found.notices.push(Notice(format!(
            "{name}: few packets beyond 2 KiB may wait to be received, and bulk is lost when it comes faster than that: \
             CAP_NET_ADMIN, or raise it with `sysctl net.core.rmem_max={QUEUE_BYTES}`"
        )));
    }
    if config.station.groups {
        ethernet::receive_groups(receiver.socket(), interface)?;
    }
    let is_further = match &config.spread {
        Some(spread) => {
            spread::join(name, receiver.socket(), spread)?;
            spread.is_further()
        }
        None => false,
    };
    let ingress_drop = if config.dedicated && !is_further {
        match IngressDrop::attach(interface.index) {
            Ok(drop) => Some(drop),
            Err(error) => {
                found.notices.push(Notice(format!(
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
        police: config.police.then(|| {
            let make = || Police::new(found.interface.index);
            config.spread.as_ref().map_or_else(|| Arc::new(make()), |spread| spread.police(make))
        }),
        engine: config.spread.as_ref().map_or(0, Spread::engine),
        _ingress_drop: ingress_drop,
    };
    Ok((partner, found.notices))
}

/// The longest frame that the interface cuts for us: its `gso_ipv4_max_size` must not be reached.
fn max_segment_len(interface: &Interface) -> u32 {
    match SegmentLimit::of(interface.index) {
        Ok(Some(limit)) => limit.now.saturating_sub(1).clamp(MAX_SUPER_FRAME, MAX_LONG_FRAME),
        Ok(None) | Err(_) => MAX_SUPER_FRAME,
    }
}
