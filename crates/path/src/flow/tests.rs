//! The table against a `HashMap`, and which frames the single pass takes.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use proptest::prelude::*;
use scoutline_base::{Address, DeviceId, PathId};

use super::{FlowKey, FlowTable, flow_of_frame};

/// A few of each family, some with the same last 32 bits.
fn address() -> impl Strategy<Value = Address> {
    (0u128..3, prop_oneof![Just(0xffff_u128 << 32), Just(0), Just(1 << 127), Just(0x2001 << 112)])
        .prop_map(|(low, high)| Address::from_bits(high | low))
}

/// Few enough keys that operations meet, differing in every field.
fn key() -> impl Strategy<Value = FlowKey> {
    key_among(4)
}

/// The same with so many ports: many enough that pages are divided.
fn key_among(ports: u16) -> impl Strategy<Value = FlowKey> {
    (address(), address(), 0..ports, 0u16..2, 0u16..2, prop_oneof![Just(6u8), Just(17)]).prop_map(
        |(remote, local, remote_port, local_port, device, protocol)| FlowKey {
            remote,
            local,
            remote_port,
            local_port: local_port << 15,
            device: DeviceId(device),
            protocol,
        },
    )
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(FlowKey, u32),
    Remove(FlowKey),
    RemoveIf(FlowKey, u32),
    Lookup(FlowKey),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => (key(), any::<u32>()).prop_map(|(key, path)| Operation::Insert(key, path)),
        2 => key().prop_map(Operation::Remove),
        1 => (key(), any::<u32>()).prop_map(|(key, path)| Operation::RemoveIf(key, path)),
        2 => key().prop_map(Operation::Lookup),
    ]
}

fn id(number: u32) -> PathId {
    PathId { index: number, generation: !number }
}

proptest! {
    #[test]
    fn agrees_with_a_hash_map(seed in any::<u64>(), operations in prop::collection::vec(operation(), 0..1_000)) {
        let mut table = FlowTable::new(seed);
        let mut oracle = HashMap::new();
        for operation in operations {
            match operation {
                Operation::Insert(key, path) => {
                    prop_assert_eq!(table.insert(&key, id(path)), oracle.insert(key, id(path)));
                }
                Operation::Remove(key) => prop_assert_eq!(table.remove(&key), oracle.remove(&key)),
                Operation::RemoveIf(key, path) => {
                    let is_its = oracle.get(&key) == Some(&id(path));
                    prop_assert_eq!(table.remove_if(&key, id(path)), is_its);
                    if is_its {
                        oracle.remove(&key);
                    }
                }
                Operation::Lookup(key) => {
                    prop_assert_eq!(table.lookup(&key), oracle.get(&key).copied());
                }
            }
            prop_assert_eq!(table.len(), oracle.len());
        }
        prop_assert_eq!(table.iter().collect::<HashMap<_, _>>(), oracle);
    }

    /// With pages that are divided, and removals that shift flows back across the end of a page.
    #[test]
    fn agrees_with_a_hash_map_while_it_grows(
        seed in any::<u64>(),
        keys in prop::collection::vec(key_among(10_000), 2_000..6_000),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..3_000),
    ) {
        let mut table = FlowTable::new(seed);
        let mut oracle = HashMap::new();
        for (number, key) in keys.iter().enumerate() {
            prop_assert_eq!(table.insert(key, id(number as u32)), oracle.insert(*key, id(number as u32)));
        }
        for at in removed {
            let key = at.get(&keys);
            prop_assert_eq!(table.remove(key), oracle.remove(key));
        }
        prop_assert!(keys.iter().all(|key| table.lookup(key) == oracle.get(key).copied()));
        prop_assert_eq!(table.len(), oracle.len());
        prop_assert_eq!(table.iter().collect::<HashMap<_, _>>(), oracle);
    }

    #[test]
    fn any_bytes_are_taken_or_left(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        flow_of_frame(&bytes, DeviceId(0));
    }
}

/// Pages are divided some two hundred times, in both families.
#[test]
fn holds_many_flows_while_it_grows() {
    let v6 = |n: u32| Address::from_bits(0x2001 << 112 | u128::from(n));
    let flow = |n: u32| FlowKey {
        remote: if n.is_multiple_of(3) {
            v6(n / 1_000)
        } else {
            Ipv4Addr::from(0x0a00_0000 + n / 1_000).into()
        },
        local: if n.is_multiple_of(3) { v6(1 << 20) } else { Ipv4Addr::new(10, 1, 0, 1).into() },
        remote_port: (n % 1_000) as u16,
        local_port: 80,
        device: DeviceId(1),
        protocol: 6,
    };
    let mut table = FlowTable::new(1);
    for n in 0..50_000 {
        assert_eq!(table.insert(&flow(n), id(n)), None);
        assert_eq!(table.lookup(&flow(n / 2)), Some(id(n / 2)), "whatever was divided meanwhile");
    }
    assert_eq!(table.iter().count(), 50_000);
    assert!((0..50_000).all(|n| table.lookup(&flow(n)) == Some(id(n))));
    assert!((50_000..60_000).all(|n| table.lookup(&flow(n)).is_none()));
    for n in (0..50_000).step_by(2) {
        assert_eq!(table.remove(&flow(n)), Some(id(n)));
    }
    assert!((0..50_000).all(|n| table.lookup(&flow(n)).is_some() == (n % 2 == 1)));
}

/// A frame of the common kind: TCP with 4 bytes of data and 2 of link padding.
fn frame() -> Vec<u8> {
    let mut frame = vec![0xee; 14 + 44 + 2];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&44u16.to_be_bytes());
    frame[20..22].copy_from_slice(&[0x40, 0]);
    frame[23] = 6;
    frame[26..30].copy_from_slice(&[10, 0, 0, 2]);
    frame[30..34].copy_from_slice(&[10, 0, 0, 1]);
    frame[34..36].copy_from_slice(&4321u16.to_be_bytes());
    frame[36..38].copy_from_slice(&80u16.to_be_bytes());
    frame
}

#[test]
fn reads_the_key_of_a_common_frame() {
    let expected = FlowKey {
        remote: Ipv4Addr::new(10, 0, 0, 2).into(),
        local: Ipv4Addr::new(10, 0, 0, 1).into(),
        remote_port: 4321,
        local_port: 80,
        device: DeviceId(5),
        protocol: 6,
    };
    assert_eq!(flow_of_frame(&frame(), DeviceId(5)), Some(expected));
}

#[test]
fn leaves_every_other_frame_to_the_modules() {
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = frame();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let cases = [
        ("another EtherType", with(12, &[8, 6])),
        ("a VLAN tag", with(12, &[0x81, 0])),
        ("options", with(14, &[0x46])),
        ("IPv6", with(14, &[0x65])),
        ("more fragments", with(20, &[0x20, 0])),
        ("a fragment", with(20, &[0, 1])),
        ("the reserved bit", with(20, &[0x80, 0])),
        ("another protocol", with(23, &[1])),
        ("shorter than its headers", with(16, &39u16.to_be_bytes())),
        ("longer than the frame", with(16, &47u16.to_be_bytes())),
        ("cut off", frame()[..41].to_vec()),
        ("nothing", Vec::new()),
    ];
    for (what, frame) in cases {
        assert_eq!(flow_of_frame(&frame, DeviceId(0)), None, "{what}");
    }
}

/// The same with IPv6.
fn frame6() -> Vec<u8> {
    let mut frame = vec![0xee; 14 + 40 + 24 + 2];
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame[14..18].copy_from_slice(&[0x6b, 0x80, 0, 0]);
    frame[18..20].copy_from_slice(&24u16.to_be_bytes());
    frame[20] = 6;
    frame[22..54].fill(0);
    frame[22] = 0x20;
    frame[37] = 2;
    frame[38] = 0x20;
    frame[53] = 1;
    frame[54..56].copy_from_slice(&4321u16.to_be_bytes());
    frame[56..58].copy_from_slice(&80u16.to_be_bytes());
    frame
}

#[test]
fn reads_the_key_of_a_common_ipv6_frame() {
    let expected = FlowKey {
        remote: "2000::2".parse().unwrap(),
        local: "2000::1".parse().unwrap(),
        remote_port: 4321,
        local_port: 80,
        device: DeviceId(5),
        protocol: 6,
    };
    assert_eq!(flow_of_frame(&frame6(), DeviceId(5)), Some(expected));
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = frame6();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    let cases = [
        ("version 4", with(14, &[0x45])),
        ("an extension header", with(20, &[60])),
        ("shorter than its header", with(18, &19u16.to_be_bytes())),
        ("longer than the frame", with(18, &27u16.to_be_bytes())),
        ("an IPv4 address as source", with(22, &mapped)),
        ("an IPv4 address as destination", with(38, &mapped)),
        ("cut off", frame6()[..61].to_vec()),
    ];
    for (what, frame) in cases {
        assert_eq!(flow_of_frame(&frame, DeviceId(0)), None, "{what}");
    }
}
