//! What the wire can make a whole host hold, as far as it takes a whole host to see it (ARCHITECTURE.md, "What the wire
//! can make us hold", names the tests of the rest).

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use scoutline_abi::Region;
use scoutline_abi::api::{Answer, Request, Stat};
use scoutline_abi::datagram::Record;
use scoutline_abi::layout::{call_op, slot_kind};
use scoutline_base::{Address, Time};
use scoutline_device::memory::{MemoryPartner, WireConfig, wire};
use scoutline_engine::{Driven, EngineSettings, RegionId};
use scoutline_sim::model::{self, End, Socket};

const RING: u32 = 1 << 14;
const SERVER: [u8; 4] = [10, 0, 0, 1];
const CLIENT: [u8; 4] = [10, 0, 0, 2];
const AF_INET: u64 = 2;

struct Host {
    engine: Driven,
    region: Arc<Region>,
}

struct Pair {
    server: Host,
    client: Host,
    now: Time,
}

fn host(address: [u8; 4], end: MemoryPartner, now: Time) -> Host {
    let settings = EngineSettings {
        devices: vec![model::device(0, address.into(), 24, None)],
        receive_buffer: RING,
        send_buffer: RING,
        spin: Duration::ZERO,
        extension: None,
        seed: Some(u64::from(address[3])),
        ..EngineSettings::default()
    };
    let mut engine = Driven::new(settings, vec![Box::new(End::new("wire", end))], now).unwrap();
    let region = model::attach(&mut engine, RegionId(1), "program", now);
    Host { engine, region }
}

fn at(address: [u8; 4], port: u16) -> [u64; 4] {
    let [high, low] = Address::from(Ipv4Addr::from(address)).words();
    [low, u64::from(port), 0, high]
}

impl Host {
    fn call(&mut self, op: u32, slot: u32, arguments: [u64; 4], now: Time) -> u32 {
        let result = model::call(&self.region, &mut self.engine, now, op, slot, arguments);
        u32::try_from(result).unwrap()
    }

    fn open(&mut self, kind: u32, now: Time) -> u32 {
        self.call(call_op::OPEN, 0, [u64::from(kind), AF_INET, 0, 0], now)
    }

    fn stat(&self, now: Time) -> Stat {
        match self.engine.query(&Request::Stat, now) {
            Answer::Stat(stat) => stat,
            other => panic!("{other:?}"),
        }
    }

    fn socket(&self, slot: u32) -> Socket<'_> {
        Socket::at(&self.region, slot)
    }
}

impl Pair {
    fn new() -> Pair {
        let now = Time::from_millis(1_000);
        let (one, other) = wire(1, WireConfig::default());
        Pair { server: host(SERVER, one, now), client: host(CLIENT, other, now), now }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.server.engine.settle(self.now);
            self.client.engine.settle(self.now);
            if self.now >= until {
                return;
            }
            let next = [self.server.engine.next_timeout(self.now), self.client.engine.next_timeout(self.now)];
            let next = next.into_iter().flatten().min().unwrap_or(until);
            self.now = next.max(self.now + Duration::from_micros(1)).min(until);
        }
    }
}

fn drops(stat: &Stat, reason: &str) -> u64 {
    stat.classes.iter().filter_map(|class| class.drops.get(reason)).sum()
}

#[test]
fn datagrams_that_nobody_reads_stay_within_the_ring() {
    let mut pair = Pair::new();
    let now = pair.now;
    let taker = pair.server.open(slot_kind::DATAGRAM, now);
    pair.server.call(call_op::BIND, taker, at([0; 4], 53), now);
    let sender = pair.client.open(slot_kind::DATAGRAM, now);
    pair.client.call(call_op::CONNECT, sender, at(SERVER, 53), now);
    let payload = [7; 1000];
    let mut record =
        Record { len: 1000, address: Address::UNSPECIFIED_V4, ..Record::default() }.to_bytes().to_vec();
    record.extend(payload);
    record.resize(Record::ring_len(payload.len()) as usize, 0);
    for _ in 0..200 {
        assert_eq!(pair.client.socket(sender).put(&record, None), record.len());
        pair.client.socket(sender).tell();
        pair.pass(Duration::from_millis(1));
    }
    let held = pair.server.socket(taker).received();
    assert!(held <= u64::from(RING) && held + record.len() as u64 > u64::from(RING), "{held} bytes");
    let stat = pair.server.stat(pair.now);
    let kept = held / record.len() as u64;
    assert_eq!(drops(&stat, "receive-buffer-full"), 200 - kept, "{stat:?}");
    let memory: u64 = stat.classes.iter().map(|class| class.memory_bytes).sum();
    assert_eq!(memory, u64::from(2 * RING));
}

/// Or a soak of many runs, and a fuzzer, would fill the machine.
#[test]
fn an_engine_that_is_dropped_holds_nothing() {
    let mut pair = Pair::new();
    let now = pair.now;
    let listener = pair.server.open(slot_kind::STREAM, now);
    pair.server.call(call_op::BIND, listener, at([0; 4], 80), now);
    pair.server.call(call_op::LISTEN, listener, [4, 0, 0, 0], now);
    let slot = pair.client.open(slot_kind::STREAM, now);
    pair.client.call(call_op::CONNECT, slot, at(SERVER, 80), now);
    pair.pass(Duration::from_millis(5));
    let regions = [Arc::clone(&pair.server.region), Arc::clone(&pair.client.region)];
    drop(pair);
    assert_eq!(regions.map(|region| Arc::strong_count(&region)), [1, 1]);
}

#[test]
fn connections_that_nobody_accepts_stay_within_the_backlog() {
    const BACKLOG: u64 = 4;
    /// As on Linux one more than was asked for may wait.
    const WAIT: u64 = BACKLOG + 1;
    let mut pair = Pair::new();
    let now = pair.now;
    let before = pair.server.stat(now).engine["paths"];
    let listener = pair.server.open(slot_kind::STREAM, now);
    pair.server.call(call_op::BIND, listener, at([0; 4], 80), now);
    pair.server.call(call_op::LISTEN, listener, [BACKLOG, 0, 0, 0], now);
    for _ in 0..100 {
        let slot = pair.client.open(slot_kind::STREAM, pair.now);
        pair.client.call(call_op::CONNECT, slot, at(SERVER, 80), pair.now);
        pair.pass(Duration::from_millis(1));
    }
    pair.pass(Duration::from_secs(20));
    let stat = pair.server.stat(pair.now);
    assert_eq!(pair.server.socket(listener).received(), WAIT);
    assert!(stat.engine["paths"] <= before + 1 + WAIT, "{stat:?}");
    assert!(stat.engine["timers-set"] <= stat.engine["paths"]);
    let memory: u64 = stat.classes.iter().map(|class| class.memory_bytes).sum();
    assert!(memory <= WAIT * u64::from(2 * RING), "{memory} bytes");
}
