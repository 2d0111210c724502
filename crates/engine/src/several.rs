//! Several engines: what one knows of the others, and what passes between them.
//!
//! Each engine owns its paths, slots and devices' ends; nothing that changes is shared. The device gives each packet to
//! the engine that a rule names ([`scoutline_base::spread`]), and a socket lives in the engine to which the packets for its
//! port come. What cannot be so is handed over, as a command:
//!
//! ```text
//! listen               a listening socket has a *shadow* in each other engine: same slot, no queue
//! a connection there   Accepted to the listener's engine, which puts it into the queue; Orphaned back if it cannot
//! fragments, the link  Packet: put together by the first engine, or sent by a program to one of another engine
//! neighbours, groups   Packet, to all: the first engine hears them for all; Looped: members on this machine
//! an ICMP error        Told: the first engine has read it
//! connect, bound       Elsewhere: the rule names another engine, which hands on what comes
//! ```
//! The order is kept: what an engine has told another before it sends a packet is known there before the answer to that
//! packet is given up as a stray ([`Core::look_again`](crate::core::Core)).

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use scoutline_base::Endpoint;
use scoutline_base::spread::{engine_of_flow, engine_of_port};
use scoutline_path::{Checksum, Control, Facts, FlowKey, Segmentation, Tuning};
use scoutline_proto::tcp::fast_open::Keys;
use scoutline_wire::ipv4::PROTOCOL_TCP;

use crate::command::{Command, RegionId};
use crate::socket::Standing;
use crate::sys;
use crate::wishes::Wishes;

/// Packets on their way to an engine, at most; more are dropped. It takes so many in a turn, so that they keep neither its
/// devices nor what is important waiting.
const MOST_UNDER_WAY: usize = 1024;
pub(crate) const TAKEN_AT_ONCE: usize = 64;

/// The way to an engine.
#[derive(Clone)]
pub(crate) struct Mouth {
    commands: Sender<Command>,
    doorbell: Arc<OwnedFd>,
    /// Packets that it has not taken yet.
    under_way: Arc<AtomicUsize>,
}

impl Mouth {
    pub(crate) fn new(commands: Sender<Command>, doorbell: OwnedFd) -> Mouth {
        Mouth { commands, doorbell: Arc::new(doorbell), under_way: Arc::default() }
    }

    /// Hands over a command and rings. Lost when the engine has ended.
    pub(crate) fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            sys::ring(self.doorbell.as_raw_fd());
        }
    }

    /// Hands over what came as a packet: false when too many are under way.
    fn send_packet(&self, said: Said) -> bool {
        let before = self.under_way.fetch_add(1, Ordering::AcqRel);
        if before >= MOST_UNDER_WAY {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            return false;
        }
        // While others are under way it does not sleep.
        if self.commands.send(Command::Crossing(Crossing(said))).is_ok() && before == 0 {
            sys::ring(self.doorbell.as_raw_fd());
        }
        true
    }
}

/// All engines of a daemon, as one of them sees them.
#[derive(Clone, Default)]
pub(crate) struct Several {
    /// Which one it is.
    pub(crate) index: usize,
    /// The ways to all, in order; none where there is but one.
    mouths: Vec<Mouth>,
    /// Packets of others that it has taken.
    taken: Cell<u64>,
}

impl Crossing {
    /// It counts among the packets under way.
    pub(crate) fn is_packet(&self) -> bool {
        matches!(self.0, Said::Packet(_) | Said::Looped { .. } | Said::Told { .. })
    }
}

impl Several {
    pub(crate) fn new(index: usize, mouths: Vec<Mouth>) -> Several {
        Several { index, mouths, taken: Cell::new(0) }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.mouths.len().max(1)
    }

    /// There are others.
    pub(crate) fn is_several(&self) -> bool {
        self.mouths.len() > 1
    }

    /// What is done once for all, this one does.
    pub(crate) fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Whose a flow is by the rule, if it is another's.
    pub(crate) fn other_of(&self, key: &FlowKey) -> Option<usize> {
        if !self.is_several() {
            return None;
        }
        let stream = key.protocol == PROTOCOL_TCP;
        let peer = key.remote.to_ip();
        let of = engine_of_flow(stream, peer, key.remote_port, key.local_port, self.count());
        (of != self.index).then_some(of)
    }

    /// Whether packets to this port of ours come to this engine, whoever sends them.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        engine_of_port(port, self.count()) == self.index
    }

    /// Gives one of the others a packet, or a part of one's work; false: it has too many.
    pub(crate) fn give(&self, engine: usize, said: Said) -> bool {
        self.mouths.get(engine).is_some_and(|mouth| mouth.send_packet(said))
    }

    /// Gives it to all others, as far as they have room.
    pub(crate) fn give_all(&self, said: impl Fn() -> Said) {
        for engine in (0..self.mouths.len()).filter(|&engine| engine != self.index) {
            self.give(engine, said());
        }
    }

    /// Packets are under way to this engine.
    pub(crate) fn is_given(&self) -> bool {
        self.mouths.get(self.index).is_some_and(|mouth| mouth.under_way.load(Ordering::Acquire) > 0)
    }

    /// How many packets it had been given by now, or may have been: what another engine has told before is not behind the
    /// next one.
    pub(crate) fn given(&self) -> u64 {
        let under_way =
            self.mouths.get(self.index).map_or(0, |mouth| mouth.under_way.load(Ordering::Acquire));
        self.taken.get() + under_way as u64
    }

    /// How many of them it has taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// One of them has been taken.
    pub(crate) fn took(&self) {
        self.taken.set(self.taken.get() + 1);
        if let Some(mouth) = self.mouths.get(self.index) {
            mouth.under_way.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Tells one of the others.
    pub(crate) fn tell(&self, engine: usize, said: Said) {
        if let Some(mouth) = self.mouths.get(engine) {
            mouth.send(Command::Crossing(Crossing(said)));
        }
    }

    /// Tells all others.
    pub(crate) fn tell_all(&self, said: impl Fn() -> Said) {
        for engine in (0..self.mouths.len()).filter(|&engine| engine != self.index) {
            self.tell(engine, said());
        }
    }

    /// What concerns all in their order goes on to the next one.
    pub(crate) fn pass_on(&self, command: Command) {
        if let Some(mouth) = self.mouths.get(self.index + 1) {
            mouth.send(command);
        }
    }

    /// None comes behind it.
    pub(crate) fn is_last(&self) -> bool {
        self.index + 1 >= self.mouths.len()
    }
}

/// What one engine tells another.
pub struct Crossing(pub(crate) Said);

/// See [`Crossing`].
pub(crate) enum Said {
    /// A packet for a path of the other's.
    Packet(Packet),
    /// A datagram that went out to a group, for members of this machine.
    Looped { net: usize, bytes: Box<[u8]>, facts: Facts },
    /// What an ICMP error says to the path of this flow.
    Told { net: usize, key: FlowKey, control: Control },
    /// A socket listens, or its options have changed.
    Listens(Box<Shadow>),
    /// It listens no more.
    Unlistens(Listener),
    /// A connection of a shadow stands: it is to wait in the listener's queue.
    Accepted { listener: Listener, slot: u32, standing: Standing },
    /// Its place in the queue has become more important.
    Stands { listener: Listener, slot: u32, standing: Standing },
    /// A connection that nobody will accept.
    Orphaned { listener: Listener, slot: u32 },
    /// The packets of this flow belong to that engine, whatever the rule says; `None`: they do no longer.
    Elsewhere { key: FlowKey, engine: Option<usize> },
}

/// A listening socket, and which listening of its slot: slots are used again, and so is a socket that ceased to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) region: RegionId,
    pub(crate) slot: u32,
    pub(crate) listening: u32,
}

/// A packet on its way to another engine.
#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) net: usize,
    pub(crate) bytes: Box<[u8]>,
    pub(crate) checksum: Checksum,
    pub(crate) segmentation: Option<Segmentation>,
}

/// A listening socket, for the engines beside its own.
pub(crate) struct Shadow {
    pub(crate) of: Listener,
    pub(crate) local: Endpoint,
    pub(crate) v6_only: bool,
    pub(crate) backlog: u32,
    pub(crate) no_delay: bool,
    pub(crate) keep_alive: u64,
    pub(crate) tuning: Tuning,
    pub(crate) headers: u64,
    pub(crate) defer_accept: u32,
    pub(crate) wishes: Option<Wishes>,
    /// TCP_FASTOPEN, if it was said: how many may be pending, whether without cookies, with what keys.
    pub(crate) fast_open: Option<(u32, bool, Option<Keys>)>,
}

/// Whether what comes to the first engine is to be heard by all: an answer of a neighbour (RFC 826, RFC 4861), what a
/// router says, probes for an address (RFC 4862), and questions about groups (RFC 3376, RFC 3810). Questions about
/// neighbours the first one answers alone.
pub(crate) fn is_for_all(frame: &[u8]) -> bool {
    const ARP: [u8; 2] = [0x08, 0x06];
    const IP4: [u8; 2] = [0x08, 0x00];
    const IP6: [u8; 2] = [0x86, 0xdd];
    const REPLY: [u8; 2] = [0, 2];
    const IGMP: u8 = 2;
    const ICMPV6: u8 = 58;
    let octets = |at: usize| frame.get(at..at + 2);
    match octets(12) {
        Some(kind) if kind == ARP => octets(20) == Some(&REPLY[..]),
        Some(kind) if kind == IP4 => frame.get(23) == Some(&IGMP),
        Some(kind) if kind == IP6 => match frame.get(20) {
            // Router advertisements, neighbour advertisements, redirects; and who probes for an address of ours.
            Some(&ICMPV6) => match frame.get(54) {
                Some(135) => frame.get(22..38) == Some(&[0; 16][..]),
                kind => matches!(kind, Some(134 | 136 | 137)),
            },
            // Questions about listeners come behind a hop-by-hop header with the router alert (RFC 3810 §5).
            Some(&0) => frame.get(54) == Some(&ICMPV6) && frame.get(62) == Some(&130),
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_for_all;

    #[test]
    fn answers_of_neighbours_are_for_all_and_questions_are_not() {
        let frame = |kind: [u8; 2], at: &[(usize, u8)]| {
            let mut frame = vec![0; 80];
            frame[12..14].copy_from_slice(&kind);
            for &(at, octet) in at {
                frame[at] = octet;
            }
            frame
        };
        let arp = |operation| frame([8, 6], &[(21, operation)]);
        assert!(is_for_all(&arp(2)) && !is_for_all(&arp(1)));
        let icmp6 = |kind| frame([0x86, 0xdd], &[(20, 58), (54, kind)]);
        assert!([134, 136, 137].into_iter().all(|kind| is_for_all(&icmp6(kind))));
        assert!([1, 128, 133].into_iter().all(|kind| !is_for_all(&icmp6(kind))));
        assert!(is_for_all(&icmp6(135)), "a probe for an address");
        assert!(!is_for_all(&frame([0x86, 0xdd], &[(20, 58), (22, 0xfe), (54, 135)])), "a question");
        assert!(is_for_all(&frame([0x86, 0xdd], &[(54, 58), (62, 130)])), "a question about listeners");
        assert!(is_for_all(&frame([8, 0], &[(23, 2)])) && !is_for_all(&frame([8, 0], &[(23, 6)])));
        assert!(!is_for_all(&[0; 13]) && !is_for_all(&arp(2)[..21]), "short");
    }
}
