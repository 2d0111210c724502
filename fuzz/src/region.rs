//! A hostile program: it writes anything to its region, at any time, while the engine runs. It may lose its own sockets.
//! The engine goes on, an honest program beside it keeps its connection, and once it is gone its memory has returned
//! (DESIGN.md §3, §9).
//!
//! ```text
//!  hostile program ─ region ─┐
//!                            ├─ engine ─ wire ─ engine ─ region ─ peer: listens, and talks to the honest one
//!  honest program ── region ─┘
//! ```

use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use scoutline_abi::Region;
use scoutline_abi::api::{Answer, Request, Stat};
use scoutline_abi::layout::{call_op, call_state, slot_kind, slot_state};
use scoutline_base::{Address, Time};
use scoutline_device::memory::{WireConfig, wire};
use scoutline_engine::{Command, Driven, EngineSettings, RegionId};
use scoutline_sim::model::{self, End, Socket};

use crate::bytes::{Bytes, Target};

/// The target of this file.
pub const TARGETS: &[Target] = &[("region", run)];

const MAX_OPERATIONS: usize = 120;
/// Slots, calls and poll sets that the hostile program writes to.
const SLOTS: u32 = 6;
const RING: u32 = 4096;
const PORT: u16 = 80;
/// Longer than anything is kept for a program that is gone: TIME-WAIT, orphans.
const AFTERWARDS: Duration = Duration::from_secs(400);
const HOSTILE: RegionId = RegionId(1);

struct Host {
    engine: Driven,
    honest: Arc<Region>,
}

struct World {
    host: Host,
    peer: Host,
    hostile: Arc<Region>,
    now: Time,
}

fn host(seed: u64, address: [u8; 4], end: scoutline_device::memory::MemoryPartner, now: Time) -> Host {
    let settings = EngineSettings {
        devices: vec![model::device(0, address.into(), 24, None)],
        receive_buffer: RING,
        send_buffer: RING,
        max_paths: 64,
        spin: Duration::ZERO,
        extension: None,
        seed: Some(seed),
        ..EngineSettings::default()
    };
    let mut engine = Driven::new(settings, vec![Box::new(End::new("wire", end))], now).expect("an engine");
    let honest = model::attach(&mut engine, RegionId(2), "honest", now);
    Host { engine, honest }
}

/// The arguments of BIND and CONNECT.
fn at(address: [u8; 4], port: u16) -> [u64; 4] {
    let [high, low] = Address::from(std::net::Ipv4Addr::from(address)).words();
    [low, u64::from(port), 0, high]
}

impl Host {
    fn call(&mut self, op: u32, slot: u32, arguments: [u64; 4], now: Time) -> u32 {
        let result = model::call(&self.honest, &mut self.engine, now, op, slot, arguments);
        u32::try_from(result).unwrap_or_else(|_| panic!("call {op}: {result}"))
    }

    fn open(&mut self, now: Time) -> u32 {
        self.call(call_op::OPEN, 0, [u64::from(slot_kind::STREAM), libc_inet(), 0, 0], now)
    }

    fn stat(&self, now: Time) -> Stat {
        match self.engine.query(&Request::Stat, now) {
            Answer::Stat(stat) => stat,
            other => panic!("{other:?}"),
        }
    }
}

/// AF_INET.
const fn libc_inet() -> u64 {
    2
}

/// One input.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let mut world = World::new();
    let (ours, theirs) = world.connect();
    for _ in 0..MAX_OPERATIONS {
        if bytes.is_empty() {
            break;
        }
        world.operate(&mut bytes);
    }
    world.exchange(ours, theirs);
    world.host.engine.obey(Command::ProcessGone { region: HOSTILE, process: 0 }, world.now);
    world.host.engine.obey(Command::RemoveRegion(HOSTILE), world.now);
    world.pass(AFTERWARDS);
    world.exchange(ours, theirs);
    let stat = world.host.stat(world.now);
    let held: u64 = stat.classes.iter().map(|class| class.memory_bytes).sum();
    assert_eq!(held, u64::from(2 * RING), "what the honest program's connection has, and no more");
    assert_eq!(stat.programs.len(), 1);
    assert_eq!(Arc::strong_count(&world.hostile), 1, "the engine let go of the region");
}

impl World {
    fn new() -> World {
        let now = Time::from_millis(1_000);
        let (one, other) = wire(1, WireConfig { queue_limit: 10_000, ..WireConfig::default() });
        let mut host = host(1, [10, 0, 0, 1], one, now);
        let peer = self::host(2, [10, 0, 0, 2], other, now);
        let hostile = model::attach(&mut host.engine, HOSTILE, "hostile", now);
        World { host, peer, hostile, now }
    }

    /// Both engines, until neither has something to do for `time`.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        for steps in 0.. {
            assert!(steps < 200_000, "the engines are never done");
            self.host.engine.settle(self.now);
            self.peer.engine.settle(self.now);
            if self.now >= until {
                return;
            }
            let next = [self.host.engine.next_timeout(self.now), self.peer.engine.next_timeout(self.now)];
            let next = next.into_iter().flatten().min().unwrap_or(until);
            self.now = next.max(self.now + Duration::from_micros(1)).min(until);
        }
    }

    /// The peer's program listens; the honest one connects to it. Their slots.
    fn connect(&mut self) -> (u32, u32) {
        let now = self.now;
        let listener = self.peer.open(now);
        self.peer.call(call_op::BIND, listener, at([0; 4], PORT), now);
        self.peer.call(call_op::LISTEN, listener, [16, 0, 0, 0], now);
        let ours = self.host.open(now);
        self.host.call(call_op::CONNECT, ours, at([10, 0, 0, 2], PORT), now);
        self.pass(Duration::from_millis(100));
        let accepting = Socket::at(&self.peer.honest, listener);
        assert_eq!(accepting.received(), 1, "a connection");
        let entry = accepting.copy_out(0, 4).try_into().expect("four bytes");
        accepting.slot.receive_head.store(1, Ordering::Release);
        let theirs = u32::from_le_bytes(entry);
        Socket::at(&self.peer.honest, theirs).slot.references.fetch_add(1, Ordering::SeqCst);
        (ours, theirs)
    }

    /// The honest connection still carries data, both ways.
    fn exchange(&mut self, ours: u32, theirs: u32) {
        for back in [false, true] {
            let regions = [&self.host.honest, &self.peer.honest].map(Arc::clone);
            let (from, to) = if back { (1, 0) } else { (0, 1) };
            let slots = [ours, theirs];
            let writer = Socket::at(&regions[from], slots[from]);
            assert_eq!(writer.state() & slot_state::FAILED, 0, "the honest connection failed");
            assert_eq!(writer.put(b"as if nothing had happened", None), 26);
            writer.tell();
            self.pass(Duration::from_secs(3));
            let read = Socket::at(&regions[to], slots[to]).take(100, false);
            assert_eq!(read, b"as if nothing had happened");
        }
    }

    fn operate(&mut self, bytes: &mut Bytes<'_>) {
        let region = Arc::clone(&self.hostile);
        let (what, which) = (bytes.u8(), u32::from(bytes.u8()) % SLOTS);
        match what % 12 {
            0 => self.pass(Duration::from_millis(u64::from(bytes.u8()))),
            1 => self.pass(Duration::from_millis(u64::from(bytes.u16()))),
            2 | 3 => scribble(words(region.slot(which).expect("a slot")), bytes),
            4 => scribble(words(region.call(which).expect("a call")), bytes),
            5 => scribble(words(region.set(which).expect("a set")), bytes),
            6 => scribble(words(region.process(0).expect("a record")), bytes),
            7 => scribble(words(region.header()), bytes),
            8 => {
                for _ in 0..bytes.u8() & 15 {
                    region.dirty().set(usize::from(bytes.u16()) % 70);
                }
            }
            9 => {
                // A call with anything in it; its answer is not waited for.
                let call = region.call(which).expect("a call");
                call.op.store(u32::from(bytes.u8()) % 10, Ordering::Relaxed);
                call.slot.store(u32::from(bytes.u8()) % SLOTS, Ordering::Relaxed);
                call.process.store(u32::from(bytes.u8()) & 1, Ordering::Relaxed);
                for argument in &call.arguments {
                    argument.store(bytes.u64(), Ordering::Relaxed);
                }
                call.state.store(call_state::POSTED, Ordering::Release);
                region.header().calls_pending[0].0[0].fetch_or(1 << which, Ordering::SeqCst);
            }
            _ => self.call_properly(which, bytes),
        }
        self.pass(Duration::ZERO);
    }

    /// A call that makes sense, so that there are sockets to do mischief with.
    fn call_properly(&mut self, slot: u32, bytes: &mut Bytes<'_>) {
        let port = PORT + u16::from(bytes.u8() & 3);
        let kind = if bytes.u8() & 1 == 0 { slot_kind::STREAM } else { slot_kind::DATAGRAM };
        let (op, arguments) = match bytes.u8() % 6 {
            0 => (call_op::OPEN, [u64::from(kind), libc_inet(), 0, 0]),
            1 => (call_op::BIND, at([0; 4], port)),
            2 => (call_op::LISTEN, [4, 0, 0, 0]),
            3 => (call_op::OPTION, [u64::from(bytes.u8()) % 40, bytes.u64(), 0, 0]),
            _ => (call_op::CONNECT, at([10, 0, 0, 2], port)),
        };
        let call = self.hostile.call(0).expect("a call");
        call.op.store(op, Ordering::Relaxed);
        call.slot.store(slot, Ordering::Relaxed);
        call.process.store(1, Ordering::Relaxed);
        call.set.store(0, Ordering::Relaxed);
        for (cell, value) in call.arguments.iter().zip(arguments) {
            cell.store(value, Ordering::Relaxed);
        }
        call.state.store(call_state::POSTED, Ordering::Release);
        self.hostile.header().calls_pending[0].0[0].fetch_or(1, Ordering::SeqCst);
    }
}

/// A part of a region as words.
fn words<T>(part: &T) -> &[AtomicU32] {
    // SAFETY: the parts of a region consist of atomics, for which any bytes are valid; they are aligned to 4 at least,
    // and the slice covers the part and no more.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(part).cast(), size_of::<T>() / 4) }
}

/// Puts a number somewhere: near what stands there, near a limit, or any.
fn scribble(words: &[AtomicU32], bytes: &mut Bytes<'_>) {
    let word = &words[usize::from(bytes.u16()) % words.len()];
    let value = match bytes.u8() % 6 {
        0 => word.load(Ordering::Relaxed).wrapping_add_signed(bytes.near()),
        1 => RING.wrapping_add_signed(bytes.near()),
        2 => 1 << (bytes.u8() & 31),
        3 => u32::MAX,
        4 => u32::from(bytes.u8()),
        _ => bytes.u32(),
    };
    word.store(value, Ordering::SeqCst);
}
