//! Figures of the path model alone: `cargo run --release -p scoutline-path --example micro`.
//!
//! Creation and destruction of a path with four trivial stages, a run of one packet through it, and look-ups in a
//! flow table of 100,000 entries in random order. Medians of several rounds.

#![allow(clippy::disallowed_methods)] // an example measures; the crate does not

use std::any::Any;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

use scoutline_base::{Address, DeviceId, Endpoint, PathId, Random, Time};
use scoutline_path::{
    Arity, Attributes, Budget, Burst, ClassAccounts, Context, CreateError, FlowKey, FlowTable, Grant, Graph,
    GraphBuilder, Limits, Message, Module, Name, Next, PathTable, Runner, Service, ServiceKind, Side, Stage,
    Step, Value, Verdict, View, flow_of_frame,
};

const UP: Service = Service {
    name: "up",
    kind: ServiceKind::Net,
    side: Side::Upper,
    arity: Arity::Many,
    initialise_first: false,
};
const DOWN: Service = Service { name: "down", side: Side::Lower, arity: Arity::Optional, ..UP };

/// Passes everything on. As large as a small protocol's stage.
struct Trivial {
    module: &'static str,
    _state: [u64; 8],
}

impl Stage for Trivial {
    fn module(&self) -> &'static str {
        self.module
    }
    fn inward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}
    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

struct Plain(&'static str);

impl Module for Plain {
    fn name(&self) -> &'static str {
        self.0
    }
    fn services(&self) -> &'static [Service] {
        &[UP, DOWN]
    }
    fn create_stage(&self, _attributes: &mut Attributes) -> Result<Step, CreateError> {
        let next = if self.0 == "ETH" { Next::End } else { Next::Through("down") };
        Ok(Step { stage: Some(Box::new(Trivial { module: self.0, _state: [0; 8] })), next })
    }
    fn demux(&self, _view: &mut View<'_>) -> Verdict {
        Verdict::NoPath
    }
}

fn graph() -> Graph {
    let graph = ["SOCKET", "TCP", "IP4", "ETH"]
        .into_iter()
        .fold(GraphBuilder::new(), |graph, name| graph.module(Box::new(Plain(name))));
    graph
        .link("SOCKET.down", "TCP.up")
        .link("TCP.down", "IP4.up")
        .link("IP4.down", "ETH.up")
        .build()
        .expect("the graph is sound")
}

/// The median nanoseconds of `work`, for one of its `count` repetitions.
fn measure(what: &str, count: u32, mut work: impl FnMut()) {
    let mut rounds: Vec<f64> = (0..15)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_nanos() as f64 / f64::from(count)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what:<60} {:>8.1} ns  [{:.1} to {:.1}]", rounds[7], rounds[0], rounds[14]);
}

fn attributes() -> Attributes {
    Attributes::new()
        .with(Name::Local, Value::Address(Endpoint::new(Ipv4Addr::new(10, 0, 0, 1), 80)))
        .with(Name::Remote, Value::Address(Endpoint::new(Ipv4Addr::new(10, 0, 0, 2), 4321)))
        .with(Name::Class, Value::Number(1))
        .with(Name::Priority, Value::Number(2))
        .with(Name::Device, Value::Device(DeviceId(1)))
}

fn paths() {
    const COUNT: u32 = 10_000;
    let graph = graph();
    let mut classes = ClassAccounts::default();
    let mut table = PathTable::new(Budget::new(200_000, 1 << 30));
    let create = |table: &mut PathTable| {
        let new = graph.path_create("SOCKET", attributes()).expect("it can be made");
        table.insert(new, Limits::default()).expect("it is admitted")
    };
    measure("create and destroy, 4 stages, one at a time", COUNT, || {
        for _ in 0..COUNT {
            let id = create(&mut table);
            table.destroy(black_box(id), &mut classes);
        }
    });
    let resident: Vec<PathId> = (0..100_000).map(|_| create(&mut table)).collect();
    measure("create and destroy beside 100,000 others, 1,000 at a time", COUNT, || {
        for _ in 0..COUNT / 1_000 {
            let made: Vec<_> = (0..1_000).map(|_| create(&mut table)).collect();
            for id in made {
                table.destroy(id, &mut classes);
            }
        }
    });
    let path = table.get_mut(resident[0]).expect("it lives");
    let mut runner = Runner::new();
    let grant = Grant::new(Time::ZERO, 64, 64);
    for burst in [1, 32] {
        measure(&format!("offer and run inward through 4 stages, {burst} at a time"), COUNT, || {
            for _ in 0..COUNT / burst {
                for _ in 0..burst {
                    path.offer(Message::default()).expect("there is room");
                }
                black_box(path.run_inward(&mut runner, grant));
            }
        });
    }
    println!(
        "a path without its stages' state: {} bytes; a message: {}",
        size_of_val(path),
        size_of::<Message>()
    );
}

fn flows() {
    const FLOWS: u32 = 100_000;
    let mut random = Random::new(1);
    let keys: Vec<FlowKey> = (0..FLOWS)
        .map(|n| FlowKey {
            remote: Ipv4Addr::from(0x0a00_0000 | random.next_u32() >> 8).into(),
            local: Ipv4Addr::new(10, 1, 0, 1).into(),
            remote_port: n as u16,
            local_port: 80,
            device: DeviceId(1),
            protocol: 6,
        })
        .collect();
    let mut table = FlowTable::new(7);
    measure("flow table: insert and remove 100,000", FLOWS * 2, || {
        for (n, key) in keys.iter().enumerate() {
            table.insert(key, PathId { index: n as u32, generation: 0 });
        }
        for key in &keys {
            table.remove(key);
        }
    });
    for (n, key) in keys.iter().enumerate() {
        table.insert(key, PathId { index: n as u32, generation: 0 });
    }
    let order: Vec<FlowKey> = (0..FLOWS).map(|_| keys[random.below(FLOWS) as usize]).collect();
    measure("flow table: hit among 100,000", FLOWS, || {
        for key in &order {
            black_box(table.lookup(key));
        }
    });
    measure("flow table: hit among 100,000, each waiting for the last", FLOWS, || {
        let mut last = 0;
        for key in &order {
            let mut key = *key;
            key.protocol |= (last >> 31) as u8; // always 0: only a dependency
            last = table.lookup(&key).map_or(0, |path| path.index);
        }
        black_box(last);
    });
    let frames: Vec<[u8; 64]> = order.iter().map(frame).collect();
    measure("frame to path: flow_of_frame and hit among 100,000", FLOWS, || {
        for frame in &frames {
            let key = flow_of_frame(frame, DeviceId(1)).expect("a common frame");
            black_box(table.lookup(&key)).expect("its flow is there");
        }
    });
}

fn flows_of_ip6() {
    const FLOWS: u32 = 100_000;
    let mut random = Random::new(1);
    let address = |low: u32| Address::from_bits(0x2001 << 112 | u128::from(low));
    let keys: Vec<FlowKey> = (0..FLOWS)
        .map(|n| FlowKey {
            remote: address(random.next_u32()),
            local: address(1),
            remote_port: n as u16,
            local_port: 80,
            device: DeviceId(1),
            protocol: 6,
        })
        .collect();
    let mut table = FlowTable::new(7);
    for (n, key) in keys.iter().enumerate() {
        table.insert(key, PathId { index: n as u32, generation: 0 });
    }
    let frames: Vec<[u8; 78]> =
        (0..FLOWS).map(|_| frame_of_ip6(&keys[random.below(FLOWS) as usize])).collect();
    measure("frame to path over IPv6: flow_of_frame and hit among 100,000", FLOWS, || {
        for frame in &frames {
            let key = flow_of_frame(frame, DeviceId(1)).expect("a common frame");
            black_box(table.lookup(&key)).expect("its flow is there");
        }
    });
}

fn frame_of_ip6(key: &FlowKey) -> [u8; 78] {
    let mut frame = [0; 78];
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame[14] = 0x60;
    frame[19] = 24;
    frame[20] = key.protocol;
    frame[22..38].copy_from_slice(&key.remote.octets());
    frame[38..54].copy_from_slice(&key.local.octets());
    frame[54..56].copy_from_slice(&key.remote_port.to_be_bytes());
    frame[56..58].copy_from_slice(&key.local_port.to_be_bytes());
    frame
}

fn frame(key: &FlowKey) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[17] = 40;
    frame[23] = key.protocol;
    frame[26..30].copy_from_slice(&key.remote.octets()[12..]);
    frame[30..34].copy_from_slice(&key.local.octets()[12..]);
    frame[34..36].copy_from_slice(&key.remote_port.to_be_bytes());
    frame[36..38].copy_from_slice(&key.local_port.to_be_bytes());
    frame
}

fn main() {
    paths();
    flows();
    flows_of_ip6();
}
