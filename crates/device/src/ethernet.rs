//! What the drivers of ordinary interfaces have in common: who we are there, the checks before one is opened, each with
//! its remedy, and what it tells of itself.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::OpenError;
use crate::partner::{DeviceFacts, Notice, Offload};
use crate::sys::{self, Interface};

/// An ordinary interface, and who we are on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Station {
    /// Its name, in the caller's network namespace.
    pub interface: String,
    /// Our own address on it, to warn when Linux has it too.
    pub address: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub addresses6: Vec<Ipv6Addr>,
    /// Frames to groups of stations come too, whichever the interface's hardware would keep: IPv6 lives on them.
    pub groups: bool,
}

impl Station {
    /// Nobody yet, on this interface.
    pub fn new(interface: impl Into<String>) -> Station {
        Station { interface: interface.into(), ..Station::default() }
    }
}

/// An interface that can be used.
pub(crate) struct Found {
    pub(crate) interface: Interface,
    link_address: [u8; 6],
    pub(crate) mtu: u32,
    /// Its driver vouches for partial checksums.
    pub(crate) trusted: bool,
    /// What people should know.
    pub(crate) notices: Vec<Notice>,
}

impl Found {
    /// What the device that is made of it tells of itself.
    pub(crate) fn facts(&self, kind: &'static str, offload: Offload) -> DeviceFacts {
        DeviceFacts {
            kind,
            link_address: self.link_address,
            mtu: self.mtu,
            offload,
            trusted_checksums: self.trusted,
            index: self.interface.index,
        }
    }
}

/// Looks at the interface of a station.
///
/// # Errors
/// It cannot be used.
pub(crate) fn look_at(station: &Station) -> Result<Found, OpenError> {
    let (interface, link_address) = find(&station.interface)?;
    let notices = clashes(&interface, station.address, &station.addresses6);
    Ok(Found { mtu: interface.mtu()?, trusted: is_trusted(&interface), interface, link_address, notices })
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

/// An interface that carries Ethernet frames and is up, and its link address.
pub(crate) fn find(name: &str) -> Result<(Interface, [u8; 6]), OpenError> {
    let interface = Interface::find(name)?;
    let (kind, link_address) = interface.link_address()?;
    if kind != sys::ARPHRD_ETHER {
        return Err(OpenError::NotEthernet { name: name.to_owned(), kind });
    }
    if !interface.is_up()? {
        return Err(OpenError::Down { name: name.to_owned() });
    }
    Ok((interface, link_address))
}

/// True when the interface's driver vouches for partial checksums.
fn is_trusted(interface: &Interface) -> bool {
    interface.driver().is_some_and(|driver| TRUSTED_DRIVERS.contains(&driver.as_str()))
}

/// Says of which of our addresses Linux believes that they are its own.
fn clashes(interface: &Interface, address: Option<Ipv4Addr>, addresses6: &[Ipv6Addr]) -> Vec<Notice> {
    let ours = address.into_iter().map(IpAddr::V4);
    let ours = ours.chain(addresses6.iter().copied().map(IpAddr::V6));
    let (theirs, name) = (interface.linux_addresses(), &interface.name);
    let clash = |address| {
        Notice(format!(
            "{name}: Linux has our address {address} too and may answer for it: remove it with \
             `ip address del {address} dev {name}` or choose another"
        ))
    };
    ours.filter(|address| theirs.contains(address)).map(clash).collect()
}

/// An AF_PACKET socket that receives nothing until it is bound.
pub(crate) fn raw_socket(name: &str) -> Result<OwnedFd, OpenError> {
    sys::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0)
        .map_err(|error| OpenError::system(name, "open a raw packet socket", error))
}

/// Binds a packet socket to an interface; it receives packets of `protocol` from then on (0: none).
pub(crate) fn bind(socket: &OwnedFd, ifindex: u32, protocol: u16) -> io::Result<()> {
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

/// Frames to all groups come on the interface until this packet socket is closed (packet(7)).
pub(crate) fn receive_groups(socket: &OwnedFd, interface: &Interface) -> Result<(), OpenError> {
    let request = libc::packet_mreq {
        mr_ifindex: interface.index as i32,
        mr_type: libc::PACKET_MR_ALLMULTI as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
        .map_err(|error| OpenError::system(&interface.name, "receive its multicast frames", error))
}
