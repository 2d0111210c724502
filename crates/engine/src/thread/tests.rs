//! In which order the loop hears and looks, and when it rests.

use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, channel};

use scoutline_base::DeviceId;
use scoutline_base::spread::EPHEMERAL_FROM;
use scoutline_device::memory::{MemoryPartner, WireConfig, wire};
use scoutline_device::{DeviceConfig, Driver, Partner};
use scoutline_path::{Burst, Checksum, Facts, FlowKey, Message};
use scoutline_ring::Block;
use scoutline_sched::transmit::Preemption;
use scoutline_wire::ipv4::PROTOCOL_TCP;

use super::*;
use crate::rest::REST;
use crate::settings::{DeviceSettings, EngineSettings};
use crate::several::{Crossing, Mouth, Packet, Said, Several};
use crate::sys;

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER_PORT: u16 = 80;
/// Of two engines the first has the packets for it.
const LOCAL_PORT: u16 = EPHEMERAL_FROM;

/// The loop of the first of two engines, which nobody runs; the second as the others know it, and what it is told; and
/// the other end of the wire.
fn first_of_two() -> (Loop, Several, Receiver<Command>, MemoryPartner) {
    let (device, peer) = wire(1, WireConfig::default());
    let settings = EngineSettings {
        devices: vec![DeviceSettings {
            device: DeviceConfig {
                id: DeviceId(0),
                driver: Driver::Tap(scoutline_device::tap::Config::new("unused")),
            },
            address: OURS,
            prefix: 24,
            gateway: None,
            ip6: None,
            rate: None,
            preemption: Preemption::default(),
        }],
        spin: Duration::ZERO,
        ..EngineSettings::default()
    };
    let mut core = Core::with_devices(settings, vec![Box::new(device)], Time::ZERO).unwrap();
    let (to_first, commands) = channel();
    let (to_second, told) = channel();
    let mouths = [to_first, to_second].map(|commands| Mouth::new(commands, sys::eventfd().unwrap())).to_vec();
    core.several = Several::new(0, mouths.clone());
    let bells = Bells::new(sys::eventfd().unwrap()).unwrap();
    let ends = (Sleeper::new().unwrap(), Alarm::new().unwrap());
    (Loop::new(core, commands, bells, ends, None), Several::new(1, mouths), told, peer)
}

/// A packet of another engine, which is nobody's.
fn packet() -> Said {
    let bytes = vec![0; 60].into_boxed_slice();
    Said::Packet(Packet { net: 0, bytes, checksum: Checksum::Unverified, segmentation: None })
}

/// The answer to a SYN, for a station.
fn answer(station: [u8; 6]) -> Vec<u8> {
    let mut frame = [station, [2, 0, 0, 0, 0, 9]].concat();
    frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, PROTOCOL_TCP, 0, 0]);
    frame.extend([PEER.octets(), OURS.octets()].concat());
    let sum: u32 = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend([PEER_PORT.to_be_bytes(), LOCAL_PORT.to_be_bytes()].concat());
    frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 0xff, 0xff, 0, 0, 0, 0]);
    frame
}

/// The flow of a connection was told before the answer to its SYN came; so was much else.
#[test]
fn an_answer_is_no_stray_while_what_was_told_before_it_is_unheard() {
    let (mut first, second, told, mut peer) = first_of_two();
    let key = FlowKey {
        remote: PEER.into(),
        local: OURS.into(),
        remote_port: PEER_PORT,
        local_port: LOCAL_PORT,
        device: DeviceId(0),
        protocol: PROTOCOL_TCP,
    };
    assert!((0..3 * TAKEN_AT_ONCE).all(|_| second.give(0, packet())));
    second.tell(0, Said::Elsewhere { key, engine: Some(1) });

    let now = Time::from_millis(1);
    let frame = answer(first.core.nets[0].device.facts().link_address);
    let (len, mut burst) = (frame.len() as u32, Burst::new());
    burst.push(Message::received(
        Block::from_bytes(frame.clone().into_boxed_slice()),
        0..len,
        Facts { arrival: now, checksum: Checksum::Verified, ..Facts::default() },
    ));
    peer.push(&mut burst).unwrap();
    let mut arrived = false;
    for turn in 1..100 {
        let now = now + Duration::from_millis(turn);
        peer.advance(now);
        first.hear(now);
        arrived |= first.core.pull(now);
        // More comes all the time.
        second.give(0, packet());
    }
    assert!(arrived, "the wire has brought it");
    let handed_on: Vec<_> = told
        .try_iter()
        .filter_map(|command| match command {
            Command::Crossing(Crossing(Said::Packet(packet))) => Some(packet.bytes.to_vec()),
            _ => None,
        })
        .collect();
    assert_eq!(handed_on, [frame], "to the engine whose connection it is");
}

/// Where so much comes that not all is ever heard, what is nobody's is given up all the same.
#[test]
fn a_stray_is_given_up_once_what_came_before_it_is_heard() {
    let (mut first, second, told, mut peer) = first_of_two();
    let fill = || (0..2 * TAKEN_AT_ONCE).for_each(|_| _ = second.give(0, packet()));
    let frame = answer(first.core.nets[0].device.facts().link_address);
    let (len, mut burst) = (frame.len() as u32, Burst::new());
    let facts = Facts { checksum: Checksum::Verified, ..Facts::default() };
    burst.push(Message::received(Block::from_bytes(frame.into_boxed_slice()), 0..len, facts));
    peer.push(&mut burst).unwrap();
    let mut had_strays = false;
    for turn in 1..100 {
        let now = Time::from_millis(turn);
        peer.advance(now);
        fill();
        first.hear(now);
        assert!(first.core.several.is_given(), "some are left in each turn");
        first.core.pull(now);
        had_strays |= first.core.has_strays();
    }
    assert!(had_strays && !first.core.has_strays());
    assert_eq!(told.try_iter().count(), 0);
}

/// The engine has no core of its own here.
#[test]
fn it_rests_behind_much_work() {
    let (mut first, ..) = first_of_two();
    assert!(!first.rests(clock::now()), "nothing was done");
    let begun = clock::now();
    while clock::now().since(begun) < REST {
        std::hint::spin_loop();
    }
    (0..100_000).for_each(|index| first.rest.on_turn(PathId { index, generation: 1 }));
    let now = clock::now();
    assert!(first.rests(now) && clock::now().since(now) >= REST && first.last_work >= now + REST);
    assert!(!first.rests(clock::now()), "and looks then");
}
