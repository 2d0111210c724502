//! Memory and addresses of whoever calls. Scripts pass pointers that lead nowhere, and want `EFAULT`: so memory is read
//! and written by the kernel, which checks it (`process_vm_readv` on ourselves).

use std::ffi::c_void;
use std::mem::size_of;

use libc::{iovec, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use scoutline_base::Address;

/// `EFAULT` and the like.
pub(crate) type Errno = i32;

/// Copies out of memory that may not be there.
pub(crate) fn read(from: *const c_void, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    transfer(bytes.as_mut_ptr().cast(), from.cast_mut(), len, false)?;
    Ok(bytes)
}

/// Copies into memory that may not be there.
pub(crate) fn write(to: *mut c_void, bytes: &[u8]) -> Result<(), Errno> {
    transfer(bytes.as_ptr().cast_mut().cast(), to, bytes.len(), true)
}

fn transfer(ours: *mut c_void, theirs: *mut c_void, len: usize, write: bool) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let ours = iovec { iov_base: ours, iov_len: len };
    let theirs = iovec { iov_base: theirs, iov_len: len };
    // SAFETY: `ours` is `len` bytes of ours, only read when writing; `theirs` is checked by the kernel.
    let moved = unsafe {
        let pid = libc::getpid();
        if write {
            libc::process_vm_writev(pid, &raw const ours, 1, &raw const theirs, 1, 0)
        } else {
            libc::process_vm_readv(pid, &raw const ours, 1, &raw const theirs, 1, 0)
        }
    };
    if moved == len as isize { Ok(()) } else { Err(libc::EFAULT) }
}

/// A plain C structure from memory that may not be there.
///
/// # Safety
/// All bit patterns are a `T`.
pub(crate) unsafe fn read_as<T: Copy>(from: *const T) -> Result<T, Errno> {
    let bytes = read(from.cast(), size_of::<T>())?;
    // SAFETY: as many bytes as a `T` has, and the caller's promise.
    Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The pieces of a vector.
pub(crate) fn pieces(vector: *const iovec, count: usize) -> Result<Vec<iovec>, Errno> {
    const MOST: usize = 1024; // UIO_MAXIOV
    if count > MOST {
        return Err(libc::EMSGSIZE);
    }
    // SAFETY: all bit patterns are an `iovec`.
    (0..count).map(|index| unsafe { read_as(vector.wrapping_add(index)) }).collect()
}

/// An address as calls have it; `None`: AF_UNSPEC.
pub(crate) fn address(at: *const sockaddr, len: socklen_t) -> Result<Option<(Address, u16)>, Errno> {
    let bytes = read(at.cast(), (len as usize).min(size_of::<sockaddr_in6>()))?;
    let field = |at: usize, len: usize| bytes.get(at..at + len).ok_or(libc::EINVAL);
    let family = i32::from(u16::from_ne_bytes(field(0, 2)?.try_into().expect("two bytes")));
    let port = || field(2, 2).map(|port| u16::from_be_bytes([port[0], port[1]]));
    match family {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET => {
            let octets: [u8; 4] = field(4, 4)?.try_into().expect("four bytes");
            Ok(Some((Address::from_v4(octets.into()), port()?)))
        }
        libc::AF_INET6 => {
            Ok(Some((Address::from_octets(field(8, 16)?.try_into().expect("sixteen bytes")), port()?)))
        }
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// Tells an address, as a socket of IPv6 shows it or one of IPv4.
pub(crate) fn tell_address(
    (address, port): (Address, u16),
    inet6: bool,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    if to.is_null() || len.is_null() {
        return Ok(());
    }
    let mut bytes;
    if inet6 {
        bytes = vec![0; size_of::<sockaddr_in6>()];
        bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        bytes[8..24].copy_from_slice(&address.octets());
    } else {
        bytes = vec![0; size_of::<sockaddr_in>()];
        bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        bytes[4..8].copy_from_slice(&address.low_bits().to_be_bytes());
    }
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    // SAFETY: all bit patterns are a number.
    let room = unsafe { read_as(len) }? as usize;
    write(to.cast(), &bytes[..bytes.len().min(room)])?;
    write(len.cast(), &(bytes.len() as socklen_t).to_ne_bytes())
}
