//! Receiving from a tap: one `readv` a packet, large packets lent in the buffer that they were read into.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use scoutline_base::{DeviceId, Time};
use scoutline_path::{Burst, Facts, Message};
use scoutline_ring::{Block, Pool};

use crate::partner::{BUFFERS_READY, DeviceCounters};
use crate::vnet::{VNET_LEN, VnetHeader};

/// Room for a 64 KiB super-segment with its Ethernet header and a VLAN tag.
const LARGE_LEN: u32 = 65_664;
/// Large buffers: 33 MiB when all are out; made on demand.
const LARGE_LIMIT: u32 = 512;
/// Packets up to this length are copied to a buffer of this size, and the large one is used again.
const SMALL_LEN: u32 = 2048;
/// Small buffers: what a burst plus all path queues may hold before packets stay in the tap's queue.
const SMALL_LIMIT: u32 = 16_384;

/// The receiving half.
pub(super) struct Receiver {
    small: Pool,
    large: Pool,
    /// Read into next.
    buffer: Option<Block>,
}

impl Receiver {
    pub(super) fn new() -> Receiver {
        let (small, large) =
            (Pool::with_ready(SMALL_LEN, SMALL_LIMIT, BUFFERS_READY), Pool::new(LARGE_LEN, LARGE_LIMIT));
        Receiver { small, large, buffer: None }
    }

    pub(super) fn pull(
        &mut self,
        file: &OwnedFd,
        burst: &mut Burst,
        limit: usize,
        now: Time,
        device: DeviceId,
        counters: &mut DeviceCounters,
    ) -> io::Result<usize> {
        let mut taken = 0;
        while taken < limit {
            // Without a buffer the packets stay in the tap's queue, which Linux bounds.
            let Some(mut buffer) = self.buffer.take().or_else(|| self.large.take()) else { break };
            let (header, len) = match read(file, &mut buffer) {
                Ok(packet) => packet,
                Err(error) => {
                    self.buffer = Some(buffer);
                    match error.raw_os_error() {
                        Some(libc::EAGAIN) => break,
                        Some(libc::EINTR) => continue,
                        // EIO is what a tap that is down says.
                        Some(libc::EIO) => return Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
                        _ => return Err(error),
                    }
                }
            };
            if !(14..=LARGE_LEN as usize).contains(&len) {
                counters.rx_malformed += 1;
                self.buffer = Some(buffer);
                continue;
            }
            let small = if len <= SMALL_LEN as usize { self.small.take() } else { None };
            let block = if let Some(mut small) = small {
                small[..len].copy_from_slice(&buffer[..len]);
                self.buffer = Some(buffer);
                small
            } else {
                buffer
            };
            let (checksum, segmentation) = header.received(true);
            let facts = Facts { device, arrival: now, checksum, segmentation, ..Facts::default() };
            burst.push(Message::received(block, 0..len as u32, facts));
            counters.rx_packets += 1;
            counters.rx_bytes += len as u64;
            taken += 1;
        }
        Ok(taken)
    }
}

fn read(file: &OwnedFd, buffer: &mut Block) -> io::Result<(VnetHeader, usize)> {
    let mut header = [0u8; VNET_LEN];
    let parts = [
        libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: VNET_LEN },
        libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() },
    ];
    // SAFETY: both parts are ours to write, for their whole length.
    let len = unsafe { libc::readv(file.as_raw_fd(), parts.as_ptr(), 2) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((VnetHeader::read(&header), (len as usize).saturating_sub(VNET_LEN)))
}

/// Asks the kernel whether a read would bring something.
pub(super) fn is_readable(file: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one `pollfd`, read and written; no waiting.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 && poll.revents & libc::POLLIN != 0 }
}
