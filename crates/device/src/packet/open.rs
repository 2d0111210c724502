//! Opening a `packet` partner: checks first, each with its remedy, then sockets, ring and the drop for Linux.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use scoutline_base::DeviceId;
use scoutline_bpf::IngressDrop;

use crate::error::OpenError;
use crate::link::SegmentLimit;
use crate::packet::{PacketPartner, bell, police, receive, send};
use crate::partner::{DeviceCounters, DeviceFacts, MAX_LONG_FRAME, MAX_SUPER_FRAME, Notice, Offload};
use crate::sys::{self, Interface};

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

/// Kernel drivers whose partial checksums come from a local sender or a hypervisor that vouches for them.
const TRUSTED_DRIVERS: [&str; 12] = [
    "veth",
    "tun",
    "virtio_net",
    "loopback",
    "bridge",
    "dummy",
    "macvlan",
    "ipvlan",
    "ifb",
    "802.1Q VLAN Support",
    "vmxnet3",
    "xen_netfront",
];

/// Opens an interface.
///
/// # Errors
/// See [`OpenError`]; each names the remedy.
pub fn open(id: DeviceId, config: &Config) -> Result<(PacketPartner, Vec<Notice>), OpenError> {
    let name = &config.interface;
    let interface = Interface::find(name)?;
    let (kind, link_address) = interface.link_address()?;
    if kind != sys::ARPHRD_ETHER {
        return Err(OpenError::NotEthernet { name: name.clone(), kind });
    }
    if !interface.is_up()? {
        return Err(OpenError::Down { name: name.clone() });
    }
    let mut notices = Vec::new();
    let ours = config.address.into_iter().map(IpAddr::V4);
    let ours = ours.chain(config.addresses6.iter().copied().map(IpAddr::V6));
    let theirs = interface.linux_addresses();
    for address in ours.filter(|address| theirs.contains(address)) {
        notices.push(Notice(format!(
            "{name}: Linux has our address {address} too and may answer for it: remove it with \
             `ip address del {address} dev {name}` or choose another"
        )));
    }
    let driver = interface.driver();
    let trusted = driver.as_deref().is_some_and(|driver| TRUSTED_DRIVERS.contains(&driver));
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
        receive_groups(receiver.socket(), interface.index)
            .map_err(|error| OpenError::system(name, "receive its multicast frames", error))?;
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

/// Frames to all groups come until the socket is closed (packet(7)).
fn receive_groups(socket: &OwnedFd, ifindex: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: ifindex as i32,
        mr_type: libc::PACKET_MR_ALLMULTI as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// An AF_PACKET socket that receives nothing until it is bound.
pub(super) fn raw_socket(name: &str) -> Result<OwnedFd, OpenError> {
    sys::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0)
        .map_err(|error| OpenError::system(name, "open a raw packet socket", error))
}

/// Binds a packet socket to an interface; it receives packets of `protocol` from then on (0: none).
pub(super) fn bind(socket: &OwnedFd, ifindex: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: plain data for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex as i32;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` is a `sockaddr_ll` of `len` bytes.
    let status = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
