//! AF_XDP sockets: options, binding, statistics (Documentation/networking/af_xdp.rst).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::OpenError;
use crate::sys;
use crate::xdp::ring::{Consumer, Producer};

/// A queue stays busy for a moment after its socket was closed: the kernel takes it down in a work queue and tells
/// nobody when it is done.
const BUSY_LIMIT: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// What a socket shares.
#[derive(Clone, Copy)]
pub(super) enum Shares<'a> {
    /// Nothing; in the modes that these flags allow.
    Nothing(u16),
    /// The memory of this socket; and, if it is bound to the same queue, its fill and completion ring.
    Memory(&'a OwnedFd),
}

pub(super) fn open(name: &str) -> Result<OwnedFd, OpenError> {
    sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(|error| {
        if error.raw_os_error() == Some(libc::EAFNOSUPPORT) {
            return OpenError::NoXdp { name: name.to_owned() };
        }
        OpenError::system(name, "open a raw AF_XDP socket", error)
    })
}

/// Sets one ring up and maps it.
fn map<R>(
    socket: &OwnedFd,
    option: libc::c_int,
    size: u32,
    make: impl FnOnce(&OwnedFd, &libc::xdp_mmap_offsets) -> io::Result<R>,
) -> io::Result<R> {
    sys::set_option(socket, libc::SOL_XDP, option, &size)?;
    make(socket, &offsets(socket)?)
}

pub(super) fn receive_ring(socket: &OwnedFd, size: u32) -> io::Result<Consumer<libc::xdp_desc>> {
    map(socket, libc::XDP_RX_RING, size, |socket, at| {
        Consumer::new(socket, libc::XDP_PGOFF_RX_RING, size, at.rx)
    })
}

pub(super) fn transmit_ring(socket: &OwnedFd, size: u32) -> io::Result<Producer<libc::xdp_desc>> {
    map(socket, libc::XDP_TX_RING, size, |socket, at| {
        Producer::new(socket, libc::XDP_PGOFF_TX_RING, size, at.tx)
    })
}

pub(super) fn fill_ring(socket: &OwnedFd, size: u32) -> io::Result<Producer<u64>> {
    map(socket, libc::XDP_UMEM_FILL_RING, size, |socket, at| {
        Producer::new(socket, libc::XDP_UMEM_PGOFF_FILL_RING as i64, size, at.fr)
    })
}

pub(super) fn completion_ring(socket: &OwnedFd, size: u32) -> io::Result<Consumer<u64>> {
    map(socket, libc::XDP_UMEM_COMPLETION_RING, size, |socket, at| {
        Consumer::new(socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64, size, at.cr)
    })
}

fn offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    option(socket, libc::XDP_MMAP_OFFSETS)
}

/// What the kernel has counted on a socket since it was made.
pub(super) fn statistics(socket: &OwnedFd) -> io::Result<libc::xdp_statistics> {
    option(socket, libc::XDP_STATISTICS)
}

/// Reads an option of plain data.
fn option<T>(socket: &OwnedFd, option: libc::c_int) -> io::Result<T> {
    // SAFETY: only used for structures of integers, for which zeros are valid.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, and the length to `len`.
    let status = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, value, &raw mut len)
    };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    // A shorter structure would mean a ring without flags (before Linux 5.4).
    if (len as usize) < size_of::<T>() {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    Ok(value)
}

/// Binds a socket to a receive queue of an interface; waits while a socket that was closed just now still has it.
pub(super) fn bind(socket: &OwnedFd, ifindex: u32, queue: u32, shares: Shares<'_>) -> io::Result<()> {
    let (flags, shared) = match shares {
        Shares::Nothing(flags) => (flags, 0),
        Shares::Memory(of) => (libc::XDP_SHARED_UMEM, of.as_raw_fd() as u32),
    };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared,
    };
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    let until = Instant::now() + BUSY_LIMIT;
    loop {
        // SAFETY: `address` is a `sockaddr_xdp` of `len` bytes.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() >= until {
            return Err(error);
        }
        thread::sleep(BUSY_PAUSE);
    }
}

/// Has the kernel look at the transmit ring.
pub(super) fn kick_transmit(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: no pointers; a message of no bytes.
    let status = unsafe {
        libc::sendto(socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has the kernel look at the fill ring.
pub(super) fn kick_fill(socket: &OwnedFd) {
    // It says EAGAIN or EBUSY when it cannot right now; the ring goes on asking for it then.
    // SAFETY: no pointers; a message of no bytes.
    unsafe {
        let (none, no_len) = (std::ptr::null_mut(), std::ptr::null_mut());
        libc::recvfrom(socket.as_raw_fd(), std::ptr::null_mut(), 0, libc::MSG_DONTWAIT, none, no_len)
    };
}
