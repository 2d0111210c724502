//! Super-segments beyond 64 KiB ("BIG TCP"), which a peer's or our interface may be set to: longer than a frame of the
//! ring, and with an IP header that cannot say how long they are. They are cut into super-segments that can.
//!
//! That costs two copies and a checksum over all bytes, 10 µs for 128 KiB; nothing sends so unless it has been set to.

use scoutline_path::{Checksum, Segmentation, SegmentationKind};

use crate::software;
use crate::vnet::VnetHeader;

/// Longest frame whose IP header can say its length.
pub(super) const MAX_HONEST_LEN: u32 = 65_535 + 14;
/// Bytes of headers at most: Ethernet with two tags, IP and TCP with all options.
const MAX_HEADERS: usize = 22 + 60 + 60;

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
