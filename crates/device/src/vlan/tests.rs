use std::os::fd::RawFd;

use scoutline_base::{DeviceId, Time};
use scoutline_bpf::{KnownAs, Peer};
use scoutline_path::{Body, Burst, Checksum, Message, Segmentation, SegmentationKind};
use scoutline_ring::Block;

use super::{Config, Tag, open, share, tag_of, untag};
use crate::memory::{MemoryPartner, WireConfig, wire};
use crate::partner::{DeviceCounters, DeviceError, DeviceFacts, Partner};

const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];

fn config(vlan: u16, priority: u8) -> Config {
    Config { name: "eth1.7".into(), parent: DeviceId(0), vlan, priority, by_kernel: true }
}

/// Twelve bytes behind a link header.
fn packet() -> Message {
    let body = Body::block(Block::from_bytes((0..12).collect()), 0..12);
    let mut message = Message { body, ..Message::default() };
    message.head.prepend(14).copy_from_slice(&HEADER);
    message
}

fn arrived(other: &mut MemoryPartner) -> Burst {
    let mut burst = Burst::new();
    other.pull(&mut burst, 10, Time::from_millis(1000)).unwrap();
    burst
}

#[test]
fn tagged_on_the_way_out_and_untagged_on_the_way_in() {
    let (parent, mut other) = wire(1, WireConfig::default());
    let mut shared = share(Box::new(parent));
    let mut network = open(&config(7, 5), &shared);
    assert_eq!((network.name(), network.facts().mtu), ("eth1.7", shared.facts().mtu));
    network.push(&mut vec![packet()]).unwrap();
    shared.push(&mut vec![packet()]).unwrap();
    let mut came = arrived(&mut other);
    assert_eq!(came[0].bytes()[..12], HEADER[..12]);
    assert_eq!(came[0].bytes()[12..18], [0x81, 0x00, 0xa0, 7, 0x08, 0x00]);
    assert_eq!(tag_of(came[0].bytes()), Some(Tag { vlan: 7, priority: 5 }));
    assert_eq!(tag_of(came[1].bytes()), None);
    assert_eq!(tag_of(&came[0].bytes()[..17]), None, "cut short");
    untag(&mut came[0]);
    assert_eq!(came[0].bytes(), came[1].bytes());
    assert_eq!((network.counters().tx_packets, network.counters().tx_bytes), (1, 30));
}

/// A device that tells what it was told of flows.
struct Told(MemoryPartner, std::sync::mpsc::Sender<String>);

impl Partner for Told {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn facts(&self) -> &DeviceFacts {
        self.0.facts()
    }

    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        self.0.pull(burst, limit, now)
    }

    fn has_input(&self) -> bool {
        self.0.has_input()
    }

    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        self.0.push(burst)
    }

    fn room(&self) -> usize {
        self.0.room()
    }

    fn poll_fd(&self) -> Option<RawFd> {
        self.0.poll_fd()
    }

    fn know(&mut self, peer: &Peer, known: Option<KnownAs>) {
        self.1.send(format!("{} as {known:?}", peer.source_port)).unwrap();
    }

    fn hold_back(&mut self, frame: &[u8], until: Time, owner: u64) {
        self.1.send(format!("{} bytes until {} for {owner}", frame.len(), until.as_millis())).unwrap();
    }

    fn tell_held_back(&mut self, _: Time, each: &mut dyn FnMut(u64, u64)) {
        each(9, 17);
    }

    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

/// Who is known in a flood of a device's untagged packets is also known where there are tagged ones beside them.
#[test]
fn a_shared_device_is_told_of_flows() {
    let (parent, _other) = wire(1, WireConfig::default());
    let (tell, told) = std::sync::mpsc::channel();
    let mut shared = share(Box::new(Told(parent, tell)));
    let peer = Peer { source: std::net::Ipv4Addr::new(10, 0, 0, 2).into(), source_port: 7, local_port: 80 };
    shared.know(&peer, Some(KnownAs::Standing));
    shared.hold_back(&HEADER, Time::from_millis(3), 9);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["7 as Some(Standing)", "14 bytes until 3 for 9"]);
    let mut counted = Vec::new();
    shared.tell_held_back(Time::ZERO, &mut |owner, dropped| counted.push((owner, dropped)));
    assert_eq!(counted, [(9, 17)]);
}

/// What the parent does not take stays in the burst, and has one tag when it comes again.
#[test]
fn a_full_parent_gets_each_tag_once() {
    use crate::memory::WhenFull;
    let limited = WireConfig {
        rate_bits: Some(1_000_000),
        queue_limit: 1,
        when_full: WhenFull::Refuse,
        ..WireConfig::default()
    };
    let (parent, mut other) = wire(1, limited);
    let mut shared = share(Box::new(parent));
    let mut network = open(&config(9, 0), &shared);
    let mut burst = vec![packet(), packet()];
    assert_eq!(network.push(&mut burst).unwrap(), 1);
    shared.pull(&mut Burst::new(), 1, Time::from_millis(500)).unwrap();
    assert_eq!(network.push(&mut burst).unwrap(), 1);
    for message in arrived(&mut other) {
        assert_eq!(message.bytes()[12..18], [0x81, 0x00, 0, 9, 0x08, 0x00]);
    }
}

#[test]
fn what_counts_from_the_start_of_the_frame_moves() {
    let (parent, mut other) = wire(1, WireConfig { whole: true, ..WireConfig::default() });
    let shared = share(Box::new(parent));
    let mut network = open(&config(7, 0), &shared);
    let mut message = packet();
    message.facts.checksum = Checksum::Partial { start: 14, offset: 2 };
    // No super-segment by itself, so it crosses as one packet.
    message.facts.segmentation =
        Some(Segmentation { kind: SegmentationKind::Tcp4, size: 1000, header_len: 14 });
    network.push(&mut vec![message]).unwrap();
    assert_eq!(arrived(&mut other)[0].facts.checksum, Checksum::Verified);
    let body = Body::block(Block::from_bytes(vec![0; 100].into()), 0..100);
    let mut received = Message { body, ..Message::default() };
    received.facts.segmentation =
        Some(Segmentation { kind: SegmentationKind::Tcp4, size: 10, header_len: 58 });
    untag(&mut received);
    assert_eq!(received.facts.segmentation.unwrap().header_len, 54);
    assert_eq!(received.bytes().len(), 96);
}
