//! Sending to a tap: one `writev` a packet, gathered from its parts.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use scoutline_path::Burst;

use crate::partner::DeviceCounters;
use crate::vnet::{NO_PART, PARTS, VNET_LEN, VnetHeader, gather};

/// What one push is advised to bring.
pub(super) const BATCH: usize = 64;

/// Sends from the front; `done` counts what left. True when the tap was full.
pub(super) fn push(
    file: &OwnedFd,
    burst: &Burst,
    done: &mut usize,
    counters: &mut DeviceCounters,
) -> io::Result<bool> {
    for message in burst {
        let mut parts = [NO_PART; PARTS];
        let Some((extra, len)) = gather(message, &mut parts[1..]) else {
            counters.tx_malformed += 1;
            *done += 1;
            continue;
        };
        let mut header = VnetHeader::for_sending(message);
        parts[0] = libc::iovec { iov_base: (&raw mut header).cast(), iov_len: VNET_LEN };
        // SAFETY: the parts point to `header` and to the message, both alive; the kernel only reads them.
        let written = unsafe { libc::writev(file.as_raw_fd(), parts.as_ptr(), 1 + extra as libc::c_int) };
        if written >= 0 {
            counters.tx_packets += 1;
            counters.tx_bytes += len as u64;
            *done += 1;
            continue;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {
                counters.tx_full += 1;
                return Ok(true);
            }
            // EIO is what a tap that is down says.
            Some(libc::EIO) => return Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
            Some(libc::EBADF | libc::EBADFD | libc::ENODEV) => return Err(error),
            Some(libc::EMSGSIZE) => counters.tx_too_large += 1,
            _ => counters.tx_refused += 1,
        }
        *done += 1;
    }
    Ok(false)
}
