//! What a link can tell us (ARP, RFC 826; neighbour discovery, RFC 4861; addresses by advertisements, RFC 4862): caches
//! and lists stay within their limits, each message that waits comes back exactly once, and every timer ends.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use scoutline_base::{DeviceId, Time};
use scoutline_path::{Body, Facts, Message};
use scoutline_proto::ip6::Host6Config;
use scoutline_proto::neighbour::{Cache, Claim, Found};
use scoutline_proto::{Interface, InterfaceConfig, Offload};
use scoutline_ring::Block;
use scoutline_wire::nd::{Prefix, RouterAdvertisement};

use crate::bytes::{Bytes, Target};

/// The target of this file.
pub const TARGETS: &[Target] = &[("neighbours", run)];

const MAX_OPERATIONS: usize = 400;
/// Longer than any question is asked, and longer than a silence is remembered.
const LONG: Duration = Duration::from_secs(60);
/// The limits of proto: entries of a cache; addresses of a host.
const MAX_ENTRIES: usize = 4096;
const MAX_ADDRESSES: usize = 16;
const MAX_WAITING_BYTES: usize = 1 << 20;
/// Of a message that waits.
const LONGEST: usize = 60_000;

/// Both caches, and the messages that wait in each.
struct Link {
    arp: Cache,
    nd: Cache,
    interface: Rc<Interface>,
    now: Time,
    next: u16,
    waiting: [Vec<u16>; 2],
}

fn v4(which: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, which & 15)
}

fn v6(which: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(which & 15))
}

fn number(message: &Message) -> u16 {
    u16::from_le_bytes(message.bytes()[..2].try_into().expect("two bytes"))
}

/// One input.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let config = Host6Config { autoconfigure: bytes.u8() & 1 == 0, ..Host6Config::default() };
    let mut link = Link {
        arp: Cache::default(),
        nd: Cache::default(),
        interface: Interface::new(&InterfaceConfig {
            device: DeviceId(0),
            link_address: [2, 0, 0, 0, 0, 1],
            address: Ipv4Addr::new(10, 0, 0, 1),
            prefix_len: 24,
            gateway: None,
            ip6: Some(config),
            seed: 7,
            mtu: 1500,
            trusted_checksums: false,
            offload: Offload::default(),
        }),
        now: Time::from_millis(1),
        next: 0,
        waiting: [Vec::new(), Vec::new()],
    };
    for _ in 0..MAX_OPERATIONS {
        if bytes.is_empty() {
            break;
        }
        link.operate(&mut bytes);
        link.check();
    }
    // Nothing waits for ever, and nothing asks for ever.
    for _ in 0..200 {
        link.pass(LONG / 100);
    }
    assert!(link.waiting.iter().all(Vec::is_empty), "{:?} still wait", link.waiting);
    assert_eq!(link.arp.next_timeout(), None);
    assert_eq!(link.nd.next_timeout(), None);
}

impl Link {
    fn message(&mut self) -> Message {
        self.next = self.next.wrapping_add(1);
        let mut bytes = self.next.to_le_bytes().to_vec();
        // Of all lengths: what waits is bounded by bytes.
        bytes.resize(2 + usize::from(self.next.wrapping_mul(40_503)) % LONGEST, 0);
        let (facts, len) = (Facts::default(), bytes.len() as u32);
        Message { body: Body::block(Block::from_bytes(bytes.into()), 0..len), facts, ..Message::default() }
    }

    fn back(&mut self, family: usize, messages: Vec<Message>) {
        for message in messages {
            let number = number(&message);
            let at = self.waiting[family].iter().position(|other| *other == number);
            self.waiting[family].remove(at.expect("a message that waited, once"));
        }
    }

    fn operate(&mut self, bytes: &mut Bytes<'_>) {
        let (what, which) = (bytes.u8(), bytes.u8());
        let link = [2, 0, 0, 0, 1, bytes.u8() & 3];
        match what % 10 {
            0 => self.pass(Duration::from_millis(u64::from(bytes.u16()))),
            1 | 2 => {
                if let Found::Unknown { .. } = self.arp.find(v4(which), self.now) {
                    let message = self.message();
                    self.waiting[0].push(number(&message));
                    let back = self.arp.hold(v4(which), message);
                    self.back(0, back.into_iter().collect());
                }
            }
            3 | 4 => {
                if let Found::Unknown { .. } = self.nd.find(v6(which), self.now) {
                    let message = self.message();
                    self.waiting[1].push(number(&message));
                    let back = self.nd.hold(v6(which), message);
                    self.back(1, back.into_iter().collect());
                }
            }
            5 => {
                let back = self.arp.learn(v4(which), link, what & 64 == 0, self.now);
                self.back(0, back);
            }
            6 => {
                let back = self.nd.on_source(v6(which), link, self.now);
                self.back(1, back);
            }
            7 => {
                let flags = bytes.u8();
                let claim = Claim {
                    link: (flags & 8 != 0).then_some(link),
                    solicited: flags & 2 != 0,
                    overrides: flags & 4 != 0,
                };
                let back = self.nd.on_claim(v6(which), claim, self.now);
                self.back(1, back);
            }
            8 => self.advertise(which, bytes),
            _ => {
                let number = bytes.u16();
                let destination = match number & 1 {
                    0 => Ipv6Addr::from(u128::from(number)).into(),
                    _ => Ipv4Addr::from(u32::from(number)).into(),
                };
                self.interface.on_too_big(destination, bytes.u32(), self.now);
                self.interface.ip6.on_duplicate(v6(which));
            }
        }
    }

    fn advertise(&mut self, which: u8, bytes: &mut Bytes<'_>) {
        let seconds = |value: u32| Duration::from_secs(u64::from(value));
        let prefixes = (0..bytes.u8() & 7)
            .map(|_| Prefix {
                network: Ipv6Addr::new(0x2001, 0xdb8, u16::from(bytes.u8()), 0, 0, 0, 0, 0),
                prefix_len: if bytes.u8().is_multiple_of(4) { bytes.u8() % 129 } else { 64 },
                on_link: bytes.u8() & 1 == 0,
                autonomous: bytes.u8() & 1 == 0,
                valid: Some(seconds(bytes.u32() >> (bytes.u8() & 31))),
                preferred: Some(seconds(bytes.u32() >> (bytes.u8() & 31))),
            })
            .collect();
        let said = RouterAdvertisement {
            hop_limit: Some(bytes.u8()),
            lifetime: seconds(u32::from(bytes.u16())),
            reachable_time: None,
            retransmit_time: None,
            source_link: None,
            mtu: (bytes.u8() & 1 == 0).then(|| bytes.u32() >> (bytes.u8() & 31)),
            prefixes,
        };
        self.interface.ip6.on_router_advertisement(v6(which), &said, self.now);
    }

    /// Time goes by, from timer to timer.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        for turns in 0.. {
            assert!(turns < 10_000, "timers without end");
            let next = [self.arp.next_timeout(), self.nd.next_timeout(), self.interface.ip6.next_timeout()];
            let Some(due) = next.into_iter().flatten().min().filter(|due| *due <= until) else { break };
            self.now = self.now.max(due);
            let back = self.arp.on_timeout(self.now, |_| {});
            self.back(0, back);
            let back = self.nd.on_timeout(self.now, |_| {});
            self.back(1, back);
            self.interface.ip6.on_timeout(self.now, |_| {});
            let again = self.interface.ip6.next_timeout();
            assert!(again.is_none_or(|at| at > self.now), "a timer that does not go on: {again:?}");
        }
        self.now = until;
    }

    fn check(&self) {
        assert!(self.arp.entries().count() <= MAX_ENTRIES && self.nd.entries().count() <= MAX_ENTRIES);
        assert!(
            self.arp.waiting_bytes() <= MAX_WAITING_BYTES && self.nd.waiting_bytes() <= MAX_WAITING_BYTES
        );
        let waits = [&self.arp, &self.nd].map(|cache| cache.waiting_bytes() > 0);
        assert_eq!(waits, [0, 1].map(|family: usize| !self.waiting[family].is_empty()));
        assert!(self.interface.ip6.addresses().len() <= MAX_ADDRESSES);
        assert!(self.interface.ip6.mtu() >= 1280, "RFC 8200 §5");
        assert!(self.interface.path_mtu(Ipv6Addr::from(2).into(), self.now) >= 1280);
        assert!(self.interface.path_mtu(Ipv4Addr::from(1).into(), self.now) >= 552);
    }
}
