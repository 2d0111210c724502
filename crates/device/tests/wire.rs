//! The deterministic wire: what it does to packets, and that it does it again.

use std::time::Duration;

use scoutline_base::Time;
use scoutline_device::memory::{self, WhenFull, WireConfig, WireCounters};
use scoutline_device::{DeviceCounters, Partner};
use scoutline_path::{Burst, Checksum, Facts, Message};
use scoutline_ring::Block;

/// Sends `count` numbered packets 10 µs apart and gives (number, arrival in ns, intact) of what arrives.
fn run(seed: u64, config: WireConfig, count: u32) -> (Vec<(u32, u64, bool)>, DeviceCounters) {
    let (arrived, counters, _) = observe(seed, config, count);
    (arrived, counters)
}

/// The same, and what the wire itself counts.
fn observe(
    seed: u64,
    config: WireConfig,
    count: u32,
) -> (Vec<(u32, u64, bool)>, DeviceCounters, WireCounters) {
    let (mut one, mut two) = memory::wire(seed, config);
    for number in 0..count {
        one.advance(Time::from_micros(u64::from(number) * 10));
        let mut bytes = vec![0; 100];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        let facts = Facts { checksum: Checksum::Complete, ..Facts::default() };
        let mut burst = vec![Message::received(Block::from_bytes(bytes.into()), 0..100, facts)];
        one.push(&mut burst).unwrap();
        assert!(burst.is_empty());
    }
    let mut arrived = Vec::new();
    let mut burst = Burst::new();
    while let Some(at) = two.next_event() {
        two.pull(&mut burst, 1, at).unwrap();
        for message in burst.drain(..) {
            let bytes = message.bytes();
            let number = u32::from_be_bytes(bytes[..4].try_into().unwrap());
            let intact = number < count && bytes[4..].iter().all(|byte| *byte == 0);
            arrived.push((number, at.as_nanos(), intact));
        }
    }
    (arrived, two.counters(), two.wire_counters())
}

fn numbers(arrived: &[(u32, u64, bool)]) -> Vec<u32> {
    arrived.iter().map(|packet| packet.0).collect()
}

fn all_faults() -> WireConfig {
    WireConfig {
        delay: Duration::from_millis(100),
        jitter: Duration::from_millis(3),
        loss: 0.05,
        reorder: 0.1,
        duplicate: 0.02,
        corrupt: 0.01,
        ..WireConfig::default()
    }
}

#[test]
fn a_run_repeats_from_its_seed() {
    assert_eq!(run(7, all_faults(), 2000).0, run(7, all_faults(), 2000).0);
    assert_ne!(run(7, all_faults(), 2000).0, run(8, all_faults(), 2000).0);
}

#[test]
fn faults_come_as_often_as_told() {
    let base = WireConfig { delay: Duration::from_millis(1), ..WireConfig::default() };
    let (clean, _) = run(1, base.clone(), 5000);
    assert_eq!(numbers(&clean), (0..5000).collect::<Vec<_>>());
    assert!(
        clean.iter().all(|(number, at, intact)| *at == u64::from(*number) * 10_000 + 1_000_000 && *intact)
    );

    let (lossy, counters) = run(1, WireConfig { loss: 0.05, ..base.clone() }, 5000);
    assert_eq!(lossy.len() as u64 + counters.rx_ring_drops, 5000);
    assert!((200..300).contains(&counters.rx_ring_drops), "{counters:?}");

    let (twice, _) = run(1, WireConfig { duplicate: 0.1, ..base.clone() }, 5000);
    assert!((5400..5600).contains(&twice.len()), "{}", twice.len());

    let (flipped, _) = run(1, WireConfig { corrupt: 0.1, ..base.clone() }, 5000);
    let damaged = flipped.iter().filter(|packet| !packet.2).count();
    assert!((350..600).contains(&damaged), "{damaged}");

    let (mixed, _) = run(1, WireConfig { reorder: 0.1, ..base.clone() }, 5000);
    let late = mixed.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();
    assert!((300..600).contains(&late), "{late}");

    let (jittered, _) = run(1, WireConfig { jitter: Duration::from_millis(5), ..base }, 5000);
    assert_eq!(numbers(&jittered), (0..5000).collect::<Vec<_>>(), "jitter keeps the order");
    assert_ne!(jittered[10].1 - jittered[9].1, 10_000);
}

/// The wire's own counters against what a receiver sees.
#[test]
fn the_wire_counts_what_it_does() {
    const COUNT: u32 = 3000;
    let (arrived, _, counters) = observe(5, WireConfig { corrupt: 0.0, ..all_faults() }, COUNT);
    let order = numbers(&arrived);
    let mut latest = 0;
    let late = order.iter().filter(|number| {
        latest = latest.max(**number);
        **number < latest
    });
    let late = late.count() as u64;
    let mut distinct = order.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let seen = WireCounters {
        sent: u64::from(COUNT),
        lost: u64::from(COUNT) - distinct.len() as u64,
        duplicated: (order.len() - distinct.len()) as u64,
        corrupted: 0,
        reordered: late,
    };
    assert_eq!(counters, seen);
    assert!(seen.lost > 0 && seen.duplicated > 0 && seen.reordered > 0, "{seen:?}");

    let (arrived, _, counters) = observe(5, WireConfig { corrupt: 0.05, ..WireConfig::default() }, COUNT);
    let damaged = |(at, packet): (usize, &(u32, u64, bool))| packet.0 != at as u32 || !packet.2;
    assert_eq!(
        counters.corrupted,
        arrived.iter().enumerate().filter(|packet| damaged(*packet)).count() as u64
    );
}

#[test]
fn a_rate_spaces_packets_and_its_queue_drops() {
    // 100 bytes at 8 Mbit/s take 100 µs; packets come every 10 µs.
    let config = WireConfig {
        rate_bits: Some(8_000_000),
        queue_limit: 10,
        when_full: WhenFull::Drop,
        ..WireConfig::default()
    };
    let (arrived, counters) = run(1, config, 1000);
    assert!(arrived.windows(2).all(|pair| pair[1].1 - pair[0].1 >= 100_000));
    assert!((100..120).contains(&arrived.len()), "{}", arrived.len());
    assert_eq!(arrived.len() as u64 + counters.rx_ring_drops, 1000);
}

#[test]
fn what_exceeds_the_mtu_is_counted_and_gone() {
    let (mut one, mut two) = memory::wire(1, WireConfig::default());
    let message = Message::received(Block::from_bytes(vec![0; 1600].into()), 0..1600, Facts::default());
    assert_eq!(one.push(&mut vec![message]).unwrap(), 1);
    assert_eq!(one.counters().tx_too_large, 1);
    assert_eq!(two.pull(&mut Burst::new(), 9, Time::MAX).unwrap(), 0);
}

#[test]
fn a_policer_lets_a_burst_and_then_its_rate_pass() {
    // 100 bytes each 10 µs are 80 Mbit/s.
    let policer = memory::Policer { rate_bits: 40_000_000, burst_bytes: 1_000 };
    let config = WireConfig { policer: Some(policer), ..WireConfig::default() };
    let (arrived, _, counters) = observe(1, config, 1_000);
    let numbers = numbers(&arrived);
    // The bucket of ten packets empties by half a packet each.
    assert_eq!(numbers[..19], (0..19).collect::<Vec<u32>>());
    assert!((505..=515).contains(&numbers.len()), "{}", numbers.len());
    assert_eq!(counters.lost, 1_000 - numbers.len() as u64);
    let gaps: Vec<u32> = numbers[100..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| *gap == 2), "no queue: every second one, at once");
    assert!(arrived.iter().all(|&(number, at, _)| at == (u64::from(number) * 10 + 10) * 1_000));
}
