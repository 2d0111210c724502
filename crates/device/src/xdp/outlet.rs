//! The two ways out: packets by the ring, and super-segments whole by a packet socket, where that is the same queue.
//!
//! In copy mode the kernel makes a socket buffer of each packet in the ring. One that it makes of a whole super-segment
//! stands for up to 64 of them, and the interface or the other end of a veth cuts it, or nobody does.
//!
//! Of several engines, one that has no transmit queue of its own sends all by a packet socket.

use std::io;
use std::os::fd::OwnedFd;

use scoutline_path::{Burst, Message};

use crate::error::OpenError;
use crate::link;
use crate::packet;
use crate::partner::{DeviceCounters, MAX_SUPER_FRAME, Offload};
use crate::sys::Interface;
use crate::xdp::receive::Receiver;
use crate::xdp::send::Sender;

/// Sends, in the order in which it is told to.
#[expect(clippy::large_enum_variant, reason = "one of each device, and the larger one is the hot one")]
pub(super) enum Outlet {
    /// By the ring of the socket at a queue; super-segments by the other, if they can leave whole.
    Ring { ring: Sender, queue: usize, whole: Option<packet::Sender> },
    /// All by a packet socket: every transmit queue is another engine's.
    Socket(packet::Sender),
}

/// Opens the way for super-segments, where packets cannot overtake them: on a single transmit queue, and without the
/// queueing discipline that the ring passes by.
///
/// A socket that passes it by as well (PACKET_QDISC_BYPASS) would not do: it drops what the kernel has to cut.
pub(super) fn open_whole(interface: &Interface) -> Result<Option<packet::Sender>, OpenError> {
    if interface.transmit_queues() != Some(1) || !link::sends_at_once(interface.index) {
        return Ok(None);
    }
    packet::Sender::open(interface, &packet::Config::new(&*interface.name)).map(Some)
}

impl Outlet {
    /// What it does for us where the kernel takes requests to complete checksums, or does not.
    pub(super) fn offload(&self, metadata: bool) -> Offload {
        let (checksum, segmentation) = match self {
            Outlet::Ring { whole, .. } => (metadata, whole.is_some()),
            Outlet::Socket(_) => (true, true),
        };
        Offload { checksum, segmentation, max_segment_len: MAX_SUPER_FRAME }
    }

    /// How many messages would find room; one to try with after the device was full.
    pub(super) fn room(&self) -> usize {
        match self {
            Outlet::Ring { ring, whole, .. } => {
                ring.room().min(whole.as_ref().map_or(usize::MAX, packet::Sender::room))
            }
            Outlet::Socket(socket) => socket.room(),
        }
    }

    /// Bytes that have not left yet.
    pub(super) fn standing(&self) -> u64 {
        let of = |socket: &packet::Sender| socket.standing().unwrap_or(0);
        match self {
            Outlet::Ring { ring, whole, .. } => ring.standing() + whole.as_ref().map_or(0, of),
            Outlet::Socket(socket) => of(socket),
        }
    }

    /// True when the kernel has left packets in the ring and must be told again.
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        matches!(self, Outlet::Ring { ring, .. } if ring.is_stuck())
    }

    /// Gives the kernel what is in the ring. What it does not take now stays there.
    pub(super) fn flush(&mut self, receiver: &Receiver) -> io::Result<()> {
        match self {
            Outlet::Ring { ring, queue, .. } => ring.flush(receiver.socket(*queue)),
            Outlet::Socket(_) => Ok(()),
        }
    }

    /// Sends what there is room for and takes it out of the burst; says how many messages.
    pub(super) fn push(
        &mut self,
        receiver: &Receiver,
        burst: &mut Burst,
        counters: &mut DeviceCounters,
    ) -> io::Result<usize> {
        let mut done = 0;
        let result = match self {
            Outlet::Ring { ring, queue, whole: Some(whole) } => {
                push_runs((ring, whole), receiver.socket(*queue), burst, &mut done, counters)
            }
            Outlet::Ring { ring, queue, whole: None } => {
                ring.push(receiver.socket(*queue), burst, &mut done, counters)
            }
            Outlet::Socket(socket) => socket.push_offloaded(burst, &mut done, counters),
        };
        burst.drain(..done);
        result.map(|()| done)
    }
}

fn push_runs(
    (ring, whole): (&mut Sender, &mut packet::Sender),
    socket: &OwnedFd,
    burst: &Burst,
    done: &mut usize,
    counters: &mut DeviceCounters,
) -> io::Result<()> {
    while *done < burst.len() {
        let is_super = burst[*done].facts.segmentation.is_some();
        let alike = |message: &&Message| message.facts.segmentation.is_some() == is_super;
        let end = *done + burst[*done..].iter().take_while(alike).count();
        if !is_super {
            ring.push(socket, &burst[..end], done, counters)?;
        } else if ring.is_taken() {
            whole.push_offloaded(&burst[..end], done, counters)?;
        } else {
            // It would overtake what the kernel has left in the ring.
            counters.tx_full += 1;
        }
        if *done < end {
            break;
        }
    }
    Ok(())
}
