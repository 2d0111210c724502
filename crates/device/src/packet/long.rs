//! Super-segments beyond 64 KiB ("BIG TCP"), which a peer's or our interface may be set to: longer than a frame of the
//! ring, and with an IP header that cannot say how long they are. They are cut into super-segments that can.
//!
//! The kernel puts the whole packet into the socket's own queue besides its beginning into the ring
//! (PACKET_COPY_THRESH, packet_mmap.rst), in the same order. The detour costs two copies and a checksum over all
//! bytes, 10 µs for 128 KiB; nothing sends so unless it has been set to.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use scoutline_path::{Checksum, Segmentation, SegmentationKind};

use crate::software;
use crate::vnet::{VNET_LEN, VnetHeader};

/// The longest there is: GSO_MAX_SIZE (include/linux/netdevice.h) and an Ethernet header with two tags.
const MAX_LEN: usize = 8 * 65_535 + 22;
/// Longest frame whose IP header can say its length.
pub(super) const MAX_HONEST_LEN: u32 = 65_535 + 14;
/// Bytes of headers at most: Ethernet with two tags, IP and TCP with all options.
const MAX_HEADERS: usize = 22 + 60 + 60;

/// Takes the next whole packet from the socket's queue into `buffer`, behind its vnet header; `None` when there is
/// none, or it is longer than any can be.
pub(super) fn take<'a>(socket: &OwnedFd, buffer: &'a mut Vec<u8>) -> Option<(VnetHeader, &'a [u8])> {
    buffer.resize(VNET_LEN + MAX_LEN, 0);
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the kernel writes at most the buffer's length.
    let got = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error()).ok()?;
    let bytes = buffer.get(..got)?;
    (got > VNET_LEN).then(|| (VnetHeader::read(bytes), &bytes[VNET_LEN..]))
}

/// Cuts a long super-segment into super-segments of at most 64 KiB with complete checksums, and hands each to `emit`.
/// False for what is none, or whose checksum nobody vouches for (ours would make it look right).
pub(super) fn cut(vnet: VnetHeader, trusted: bool, bytes: &[u8], emit: impl FnMut(&[u8])) -> bool {
    let (Checksum::Verified, Some(how)) = vnet.received(trusted) else { return false };
    if how.kind != SegmentationKind::Tcp4 {
        return false;
    }
    let room = MAX_HONEST_LEN as usize - MAX_HEADERS;
    let size = room / usize::from(how.size) * usize::from(how.size);
    software::segment(bytes, Segmentation { size: size as u16, ..how }, emit).is_ok()
}
