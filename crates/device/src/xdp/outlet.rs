//! The two ways out: packets by the ring, and super-segments whole by a packet socket, where that is the same queue.
//!
//! In copy mode the kernel makes a socket buffer of each packet in the ring. One that it makes of a whole super-segment
//! stands for up to 64 of them, and the interface or the other end of a veth cuts it, or nobody does.

use std::io;
use std::os::fd::OwnedFd;

use scoutline_path::{Burst, Message};

use crate::error::OpenError;
use crate::link;
use crate::packet;
use crate::partner::DeviceCounters;
use crate::sys::Interface;
use crate::xdp::send::Sender;

/// Sends, in the order in which it is told to.
pub(super) struct Outlet {
    ring: Sender,
    whole: Option<packet::Sender>,
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
    pub(super) fn new(ring: Sender, whole: Option<packet::Sender>) -> Outlet {
        Outlet { ring, whole }
    }

    /// How many messages would find room; one to try with after the device was full.
    pub(super) fn room(&self) -> usize {
        self.ring.room().min(self.whole.as_ref().map_or(usize::MAX, packet::Sender::room))
    }

    /// Bytes that have not left yet.
    pub(super) fn standing(&self) -> u64 {
        self.ring.standing() + self.whole.as_ref().and_then(packet::Sender::standing).unwrap_or(0)
    }

    /// True when the kernel has left packets in the ring and must be told again.
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        self.ring.is_stuck()
    }

    /// Gives the kernel what is in the ring. What it does not take now stays there.
    pub(super) fn flush(&mut self, socket: &OwnedFd) -> io::Result<()> {
        self.ring.flush(socket)
    }

    /// Sends what there is room for and takes it out of the burst; says how many messages.
    pub(super) fn push(
        &mut self,
        socket: &OwnedFd,
        burst: &mut Burst,
        counters: &mut DeviceCounters,
    ) -> io::Result<usize> {
        let mut done = 0;
        let result = self.push_runs(socket, burst, &mut done, counters);
        burst.drain(..done);
        result.map(|()| done)
    }

    fn push_runs(
        &mut self,
        socket: &OwnedFd,
        burst: &Burst,
        done: &mut usize,
        counters: &mut DeviceCounters,
    ) -> io::Result<()> {
        let Some(whole) = &mut self.whole else { return self.ring.push(socket, burst, done, counters) };
        while *done < burst.len() {
            let is_super = burst[*done].facts.segmentation.is_some();
            let alike = |message: &&Message| message.facts.segmentation.is_some() == is_super;
            let end = *done + burst[*done..].iter().take_while(alike).count();
            if !is_super {
                self.ring.push(socket, &burst[..end], done, counters)?;
            } else if self.ring.is_taken() {
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
}
