//! Making the link.

use std::collections::VecDeque;

use scoutline_base::DeviceId;
use scoutline_ring::Pool;

use crate::local::LocalPartner;
use crate::partner::{DeviceCounters, DeviceFacts, Offload};

/// What people know it by.
pub(super) const NAME: &str = "local";
/// The link address at both ends: locally administered, and nobody's on any wire.
const LINK_ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 0];
/// The longest datagram that an IPv4 header can tell.
const MTU: u32 = 65_535;
/// The longest frame.
pub(super) const MAX_FRAME: usize = MTU as usize + 14;
/// Packets that may be on the link, and bytes: the engine takes them at its next turn.
pub(super) const MAX_QUEUED: usize = 256;
pub(super) const MAX_QUEUED_LEN: usize = 1 << 20;
/// Blocks of the pools: what receivers' queues hold of them, the heap makes up for.
const SHORT: (u32, u32) = (2048, 1024);
const LONG: (u32, u32) = (MAX_FRAME as u32, 32);

/// Makes the link.
pub fn open(device: DeviceId) -> LocalPartner {
    LocalPartner {
        device,
        facts: DeviceFacts {
            kind: "local",
            link_address: LINK_ADDRESS,
            mtu: MTU,
            offload: Offload { checksum: true, segmentation: true, max_segment_len: MAX_FRAME as u32 },
            trusted_checksums: true,
            index: 0,
        },
        queue: VecDeque::new(),
        queued: 0,
        short: Pool::new(SHORT.0, SHORT.1),
        long: Pool::new(LONG.0, LONG.1),
        counters: DeviceCounters::default(),
    }
}
