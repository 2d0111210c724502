//! Opening a tap (Documentation/networking/tuntap.rst).

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use scoutline_base::DeviceId;

use crate::error::OpenError;
use crate::partner::{DeviceCounters, DeviceFacts, MAX_SUPER_FRAME, Notice, Offload};
use crate::sys::{self, Interface};
use crate::tap::{TapPartner, receive};
use crate::vnet::VNET_LEN;

/// How to open a tap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its name; created when it is not there.
    pub interface: String,
    /// Its MTU, where it shall differ from what it is (1500 for a new one).
    pub mtu: Option<u32>,
    /// An address and prefix length for Linux's side.
    pub linux_address: Option<(Ipv4Addr, u8)>,
}

impl Config {
    /// The defaults for a tap.
    pub fn new(interface: impl Into<String>) -> Config {
        Config { interface: interface.into(), mtu: None, linux_address: None }
    }
}

/// Opens a tap: attaches to a persistent one of that name or makes one that lives as long as we do; brings it up.
///
/// # Errors
/// See [`OpenError`]; each names the remedy.
pub fn open(id: DeviceId, config: &Config) -> Result<(TapPartner, Vec<Notice>), OpenError> {
    let name = &config.interface;
    sys::check_name(name)?;
    // SAFETY: a C string; a fresh descriptor comes back.
    let file =
        unsafe { libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC) };
    if file < 0 {
        let action = "open /dev/net/tun (`modprobe tun`)";
        return Err(OpenError::system(name, action, io::Error::last_os_error()));
    }
    // SAFETY: just opened, owned by nobody else.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    attach(&file, name)?;
    set_header_len(&file).map_err(|error| OpenError::system(name, "set its vnet header's length", error))?;
    let mut notices = Vec::new();
    let offload = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // Datagram super-segments since Linux 6.2; without them Linux cuts before us.
    let datagrams = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    if set_offload(&file, offload | datagrams).is_err()
        && let Err(error) = set_offload(&file, offload)
    {
        notices.push(Notice(format!("{name}: no offload from Linux ({error}): bulk transfers will be slow")));
    }

    let interface = Interface::find(name)?;
    if let Some(mtu) = config.mtu {
        interface.set_mtu(mtu)?;
    }
    interface.set_up()?;
    if let Some((address, prefix)) = config.linux_address {
        interface.set_address(address, prefix)?;
    }
    let (_, theirs) = interface.link_address()?;
    // Linux has the tap's own address; ours is another one, locally administered, not a group (IEEE 802 §8.2).
    let mut ours = theirs;
    ours[0] = (ours[0] | 0x02) & !0x01;
    ours[5] ^= 0x01;
    let facts = DeviceFacts {
        kind: "tap",
        link_address: ours,
        mtu: interface.mtu()?,
        offload: Offload { checksum: true, segmentation: true, max_segment_len: MAX_SUPER_FRAME },
        trusted_checksums: true,
        index: interface.index,
    };
    let partner = TapPartner {
        name: name.clone(),
        device: id,
        facts,
        file,
        receiver: receive::Receiver::new(),
        counters: DeviceCounters::default(),
        full: false,
    };
    Ok((partner, notices))
}

fn attach(file: &OwnedFd, name: &str) -> Result<(), OpenError> {
    // SAFETY: plain data for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an `ifreq`.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if status < 0 {
        return Err(OpenError::system(name, "make or attach to this tap", io::Error::last_os_error()));
    }
    Ok(())
}

fn set_offload(file: &OwnedFd, offload: libc::c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offload)) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A persistent tap keeps what its last user chose.
fn set_header_len(file: &OwnedFd) -> io::Result<()> {
    let len = VNET_LEN as libc::c_int;
    // SAFETY: TUNSETVNETHDRSZ reads an int.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
