//! Two whole engines over a deterministic wire in virtual time, with model programs that use the shared regions as
//! the shim does. Everything repeats from the seed.

use std::io::Write as _;
use std::os::fd::{AsFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use scoutline_abi::Region;
use scoutline_abi::api::Request;
use scoutline_abi::datagram::{HEADER_LEN, Record};
use scoutline_abi::layout::{EXTENT_COUNT, Slot, call_op, call_state, slot_kind, slot_request, slot_state};
use scoutline_base::{DeviceId, Random, Time};
use scoutline_device::memory::{MemoryPartner, WireConfig, wire};
use scoutline_device::{DeviceConfig, DeviceCounters, DeviceError, DeviceFacts, Driver, Partner};
use scoutline_path::Burst;
use scoutline_sched::transmit::Preemption;
use scoutline_sched::{Entry, Policy};

use super::Core;
use crate::command::{Command, RegionId};
use crate::file::FileMap;
use crate::settings::{DeviceSettings, EngineSettings, ProgramFacts};

/// A memory partner that is asked at every turn: its idea of the time moves with `pull`.
struct Polled(MemoryPartner);

impl Partner for Polled {
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
        true
    }
    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        self.0.push(burst)
    }
    fn room(&self) -> usize {
        self.0.room()
    }
    fn poll_fd(&self) -> Option<RawFd> {
        None
    }
    fn next_event(&self) -> Option<Time> {
        self.0.next_event()
    }
    fn standing(&self) -> Option<u64> {
        self.0.standing()
    }
    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

/// One host: an engine and the region of its only program.
struct Host {
    core: Core,
    region: Arc<Region>,
}

impl Host {
    fn new(address: [u8; 4], device: MemoryPartner, rings: u32) -> Host {
        Host::with(address, device, rings, |_| {})
    }

    /// A host with these settings.
    fn with(
        address: [u8; 4],
        device: MemoryPartner,
        rings: u32,
        change: impl FnOnce(&mut EngineSettings),
    ) -> Host {
        let program = ProgramFacts { name: "model".into(), ..ProgramFacts::default() };
        Host::made(program, address, device, rings, change)
    }

    /// A host with this program.
    fn of(program: ProgramFacts, address: [u8; 4], device: MemoryPartner, rings: u32) -> Host {
        Host::made(program, address, device, rings, |_| {})
    }

    fn made(
        program: ProgramFacts,
        address: [u8; 4],
        device: MemoryPartner,
        rings: u32,
        change: impl FnOnce(&mut EngineSettings),
    ) -> Host {
        let mut settings = EngineSettings {
            devices: vec![device_settings(0, address)],
            receive_buffer: rings,
            send_buffer: rings,
            max_paths: 1000,
            spin: Duration::ZERO,
            ..EngineSettings::default()
        };
        change(&mut settings);
        Host::over(Box::new(Polled(device)), program, settings)
    }

    /// A host with this device and program.
    fn over(device: Box<dyn Partner>, program: ProgramFacts, settings: EngineSettings) -> Host {
        let core = Core::with_devices(settings, vec![device], Time::ZERO).unwrap();
        Host::around(core, program)
    }

    /// A host with this engine and program.
    fn around(mut core: Core, program: ProgramFacts) -> Host {
        let (region, _fd) = Region::create().unwrap();
        let region = Arc::new(region);
        core.obey(
            Command::AddRegion {
                id: RegionId(1),
                region: Arc::clone(&region),
                program,
                pid: 1,
                key: None,
                bells: Vec::new(),
            },
            Time::ZERO,
        );
        region.process(0).unwrap().alive.store(1, Ordering::Release);
        Host { core, region }
    }

    /// Runs until nothing is left to do at `now`.
    fn settle(&mut self, now: Time) {
        settle(&mut self.core, now);
    }

    fn call(&mut self, op: u32, slot: u32, arguments: [u64; 4], now: Time) -> i32 {
        let call = self.region.call(0).unwrap();
        call.op.store(op, Ordering::Relaxed);
        call.slot.store(slot, Ordering::Relaxed);
        call.process.store(1, Ordering::Relaxed);
        call.set.store(0, Ordering::Relaxed);
        for (cell, value) in call.arguments.iter().zip(arguments) {
            cell.store(value, Ordering::Relaxed);
        }
        call.state.store(call_state::POSTED, Ordering::Release);
        self.region.header().calls_pending[0].0[0].fetch_or(1, Ordering::SeqCst);
        self.core.listen_to_programs(now);
        let call = self.region.call(0).unwrap();
        assert_eq!(call.state.load(Ordering::Acquire), call_state::DONE);
        call.result.load(Ordering::Relaxed)
    }

    fn open(&mut self, kind: u32, now: Time) -> u32 {
        let slot = self.call(call_op::OPEN, 0, [u64::from(kind), 0, 0, 0], now);
        assert!(slot >= 0, "OPEN: {slot}");
        slot as u32
    }

    fn slot(&self, index: u32) -> &Slot {
        self.region.slot(index).unwrap()
    }

    fn state(&self, index: u32) -> u32 {
        self.slot(index).state.load(Ordering::Acquire)
    }

    fn mark(&self, index: u32) {
        self.region.dirty().set(index as usize);
    }

    fn request(&self, index: u32, bits: u32) {
        self.slot(index).requests.fetch_or(bits, Ordering::SeqCst);
        self.mark(index);
    }

    /// Writes what fits of `bytes`.
    fn write(&self, index: u32, bytes: &[u8]) -> usize {
        let slot = self.slot(index);
        let tail = slot.send_tail.load(Ordering::Relaxed);
        let size = slot.send_size.load(Ordering::Acquire);
        let held = tail - slot.send_head.load(Ordering::Acquire);
        let free = u64::from(slot.send_limit(size)).saturating_sub(held);
        let count = bytes.len().min(free as usize);
        let offset = slot.send_offset.load(Ordering::Relaxed);
        let spans = self.region.ring_spans(offset, size, tail, count).unwrap();
        let (first, second) = bytes[..count].split_at(spans[0].len);
        // SAFETY: the spans lie in the mapping that `self.region` keeps.
        unsafe {
            std::ptr::copy_nonoverlapping(first.as_ptr(), spans[0].memory.as_ptr(), first.len());
            std::ptr::copy_nonoverlapping(second.as_ptr(), spans[1].memory.as_ptr(), second.len());
        }
        slot.send_tail.store(tail + count as u64, Ordering::Release);
        self.mark(index);
        count
    }

    /// Takes up to `limit` bytes.
    fn read(&self, index: u32, limit: usize) -> Vec<u8> {
        let slot = self.slot(index);
        let head = slot.receive_head.load(Ordering::Relaxed);
        let count = ((slot.receive_tail.load(Ordering::Acquire) - head) as usize).min(limit);
        let mut bytes = vec![0; count];
        let (offset, size) =
            (slot.receive_offset.load(Ordering::Relaxed), slot.receive_size.load(Ordering::Relaxed));
        if count > 0 {
            let spans = self.region.ring_spans(offset, size, head, count).unwrap();
            let (first, second) = bytes.split_at_mut(spans[0].len);
            // SAFETY: as in `write`.
            unsafe {
                spans[0].copy_to(first);
                spans[1].copy_to(second);
            }
            slot.receive_head.store(head + count as u64, Ordering::Release);
            self.mark(index);
        }
        bytes
    }

    /// The slot of the next accepted connection.
    fn accept(&self, listener: u32) -> Option<u32> {
        let slot = self.slot(listener);
        let head = slot.receive_head.load(Ordering::Relaxed);
        if head == slot.receive_tail.load(Ordering::Acquire) {
            return None;
        }
        let size = slot.receive_size.load(Ordering::Relaxed);
        let spans = self.region.ring_spans(slot.receive_offset.load(Ordering::Relaxed), size, head * 4, 4);
        let mut bytes = [0; 4];
        // SAFETY: as in `write`; four bytes never wrap in a ring of such entries.
        unsafe { spans.unwrap()[0].copy_to(&mut bytes) };
        slot.receive_head.store(head + 1, Ordering::Release);
        Some(u32::from_le_bytes(bytes))
    }

    /// Paths beside those that serve the interface.
    fn socket_paths(&self) -> usize {
        self.core.paths.len() - self.core.nets[0].modules.service_paths().len()
    }
}

/// Runs an engine until nothing is left to do at `now`.
fn settle(core: &mut Core, now: Time) {
    loop {
        core.pull(now);
        let spoken = core.listen_to_programs(now);
        core.fire_timers(now);
        core.pace(now);
        while core.sweep(now) {}
        match core.schedule.dequeue(now) {
            Some(decision) => {
                if let Entry::Path(id) = decision.entry {
                    core.run_path(id, &decision, now);
                }
            }
            None if spoken => {}
            None => {
                core.flush_all(now);
                if core.schedule.is_idle() && !core.has_own_input() {
                    return;
                }
            }
        }
    }
}

fn device_settings(id: u16, address: [u8; 4]) -> DeviceSettings {
    DeviceSettings {
        device: DeviceConfig {
            id: DeviceId(id),
            driver: Driver::Tap(scoutline_device::tap::Config::new("unused")),
        },
        address: address.into(),
        prefix: 24,
        gateway: None,
        ip6: None,
        rate: None,
        preemption: Preemption::default(),
    }
}

struct Pair {
    client: Host,
    server: Host,
    now: Time,
}

/// 10.0.0.1 as calls have it.
const SERVER: u64 = 0xffff_0a00_0001;
const RINGS: u32 = 64 * 1024;

impl Pair {
    fn new(seed: u64, config: WireConfig) -> Pair {
        let (a, b) = wire(seed, config);
        Pair {
            client: Host::new([10, 0, 0, 2], a, RINGS),
            server: Host::new([10, 0, 0, 1], b, RINGS),
            now: Time::from_millis(1),
        }
    }

    /// Two hosts whose programs are background.
    fn in_background(seed: u64, config: WireConfig) -> Pair {
        let (a, b) = wire(seed, config);
        let program = ProgramFacts { name: "backup".into(), background: true, ..ProgramFacts::default() };
        Pair {
            client: Host::of(program.clone(), [10, 0, 0, 2], a, RINGS),
            server: Host::of(program, [10, 0, 0, 1], b, RINGS),
            now: Time::from_millis(1),
        }
    }

    /// Lets both settle, then goes to the next event. False when nothing will ever happen by itself.
    fn step(&mut self) -> bool {
        self.client.settle(self.now);
        self.server.settle(self.now);
        self.client.settle(self.now);
        let next = [self.client.core.next_timeout(self.now), self.server.core.next_timeout(self.now)];
        let Some(next) = next.into_iter().flatten().min() else { return false };
        self.now = next.max(self.now + Duration::from_micros(10));
        true
    }

    fn listen(&mut self, port: u64) -> u32 {
        let now = self.now;
        let listener = self.server.open(slot_kind::STREAM, now);
        assert_eq!(self.server.call(call_op::BIND, listener, [0, port, 0, 0], now), 0);
        assert_eq!(self.server.call(call_op::LISTEN, listener, [16, 0, 0, 0], now), 0);
        listener
    }

    fn connect(&mut self, port: u64) -> u32 {
        let now = self.now;
        let slot = self.client.open(slot_kind::STREAM, now);
        assert_eq!(self.client.call(call_op::CONNECT, slot, [SERVER, port, 0, 0], now), 0);
        slot
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Pair) -> bool) {
        let limit = self.now + Duration::from_secs(600);
        while !done(self) {
            let alive = self.step() && self.now < limit;
            if !alive && !done(self) {
                let rows = |host: &Host| format!("{:#?}", host.core.answer_query(&Request::Ps, self.now));
                panic!("never: {what}\n{}\n{}", rows(&self.client), rows(&self.server));
            }
            if !alive {
                return;
            }
        }
    }

    fn established(&mut self, port: u64) -> (u32, u32, u32) {
        let listener = self.listen(port);
        let client = self.connect(port);
        let mut accepted = None;
        self.until("accept", |pair| {
            accepted = accepted.or_else(|| pair.server.accept(listener));
            accepted.is_some() && pair.client.state(client) & slot_state::CONNECTED != 0
        });
        (listener, client, accepted.unwrap())
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.next_u32() as u8).collect()
}

/// The wire: 5 % loss, reordering, duplication, 100 ms.
fn hard_wire() -> WireConfig {
    WireConfig {
        delay: Duration::from_millis(50),
        jitter: Duration::from_millis(2),
        loss: 0.05,
        reorder: 0.05,
        duplicate: 0.02,
        ..WireConfig::default()
    }
}

fn transfer_both_ways(seed: u64, config: WireConfig, len: usize) {
    let mut pair = Pair::new(seed, config);
    let (listener, client, server) = pair.established(80);
    let (up, down) = (pattern(len, seed), pattern(len, seed + 1));
    let (mut sent_up, mut sent_down) = (0, 0);
    let (mut got_up, mut got_down) = (Vec::new(), Vec::new());
    pair.until("transfer", |pair| {
        sent_up += pair.client.write(client, &up[sent_up..]);
        sent_down += pair.server.write(server, &down[sent_down..]);
        // Once all of it stands in the ring nothing may be due any more: the rest in one go.
        let most = if pair.client.slot(client).outgoing().held() == 0 { usize::MAX } else { 10_000 };
        got_up.extend(pair.server.read(server, most));
        got_down.extend(pair.client.read(client, usize::MAX));
        got_up.len() == len && got_down.len() == len
    });
    assert!(got_up == up && got_down == down, "seed {seed}: the streams differ");
    pair.client.request(client, slot_request::CLOSE);
    pair.until("end of file", |pair| pair.server.state(server) & slot_state::PEER_FINISHED != 0);
    pair.server.request(server, slot_request::CLOSE);
    pair.server.request(listener, slot_request::CLOSE);
    pair.until("both gone", |pair| pair.client.socket_paths() + pair.server.socket_paths() == 0);
    for host in [&pair.client, &pair.server] {
        let program = host.core.programs.values().next().unwrap();
        assert_eq!((program.ends().len(), program.ring_bytes()), (0, 0), "everything returns");
        assert_eq!(host.core.paths.budget().buffer_bytes(), 0);
    }
}

#[test]
fn a_clean_wire() {
    transfer_both_ways(1, WireConfig::default(), 3_000_000);
}

#[test]
fn loss_reordering_duplication_and_delay() {
    for seed in 0..8 {
        transfer_both_ways(seed, hard_wire(), 400_000);
    }
}

#[test]
fn refused_and_killed() {
    let mut pair = Pair::new(3, WireConfig::default());
    let refused = pair.connect(81);
    pair.until("refused", |pair| pair.client.state(refused) & slot_state::FAILED != 0);
    assert_eq!(pair.client.slot(refused).error.load(Ordering::Relaxed), libc::ECONNREFUSED);
    pair.client.request(refused, slot_request::CLOSE);

    let (_, client, server) = pair.established(80);
    ends::hold(&pair, server);
    let now = pair.now;
    let program = pair.server.core.programs.values().next().unwrap().clone();
    let holds = pair.server.region.holds(0).unwrap();
    assert_ne!(holds[0].load(Ordering::Relaxed), 0, "the listener is held");
    pair.server.core.on_process_gone(&program, 0, now);
    pair.until("the end", |pair| pair.client.state(client) & slot_state::PEER_FINISHED != 0);
    pair.client.request(client, slot_request::CLOSE);
    pair.until("gone", |pair| pair.server.socket_paths() == 0);
}

#[test]
fn a_hostile_region_loses_only_itself() {
    let mut pair = Pair::new(4, WireConfig::default());
    let (_, client, server) = pair.established(80);
    let mut random = Random::new(4);
    for _ in 0..2_000 {
        let slot = pair.server.slot(server);
        slot.send_tail.store(random.next_u64(), Ordering::Relaxed);
        slot.receive_head.store(random.next_u64(), Ordering::Relaxed);
        slot.send_offset.store(random.next_u64(), Ordering::Relaxed);
        slot.receive_size.store(random.next_u32(), Ordering::Relaxed);
        slot.sets_summary.store(random.next_u32(), Ordering::Relaxed);
        if random.chance(0.1) {
            slot.extents_tail.fetch_add(random.below(4), Ordering::Relaxed);
            let extent = &slot.extents[random.below(2) as usize];
            extent.position.store(random.next_u64(), Ordering::Relaxed);
            extent.len.store(random.next_u32(), Ordering::Relaxed);
            extent.file.store(random.below(3), Ordering::Relaxed);
        }
        slot.sets[random.below(16) as usize].store(random.next_u64(), Ordering::Relaxed);
        pair.server.region.dirty().set(random.below(20_000) as usize);
        pair.client.write(client, b"still here");
        let now = pair.now;
        let call = pair.server.region.call(random.below(256)).unwrap();
        call.op.store(random.below(8), Ordering::Relaxed);
        call.slot.store(random.below(64), Ordering::Relaxed);
        call.process.store(random.next_u32(), Ordering::Relaxed);
        call.set.store(random.next_u32(), Ordering::Relaxed);
        call.arguments[0].store(u64::from(random.next_u32()), Ordering::Relaxed);
        call.state.store(call_state::POSTED, Ordering::Relaxed);
        for word in &pair.server.region.header().calls_pending[0].0 {
            word.store(random.next_u64(), Ordering::Relaxed);
        }
        pair.server.core.listen_to_programs(now);
        pair.step();
    }
    let now = pair.now;
    pair.server.core.obey(Command::RemoveRegion(RegionId(1)), now);
    pair.until("reset", |pair| {
        pair.client.state(client) & (slot_state::FAILED | slot_state::PEER_FINISHED) != 0
    });
    pair.until("gone", |pair| pair.server.socket_paths() == 0);
}

/// Who has not finished the handshake has no listener to finish it with any more.
#[test]
fn half_open_connections_go_with_their_listener() {
    let mut pair = Pair::new(3, WireConfig { delay: Duration::from_millis(50), ..WireConfig::default() });
    let listener = pair.listen(80);
    let client = pair.connect(80);
    pair.until("half open", |pair| pair.server.socket_paths() == 2);
    pair.server.request(listener, slot_request::CLOSE);
    let now = pair.now;
    pair.server.core.listen_to_programs(now);
    assert_eq!(pair.server.socket_paths(), 0);
    pair.until("reset", |pair| pair.client.state(client) & slot_state::FAILED != 0);
    assert_eq!(pair.server.socket_paths(), 0);
}

/// What has come and waits in a path's queue when the listening socket is closed is refused like what comes later: a client
/// that has finished the handshake may have nothing more to send.
#[test]
fn what_waits_when_the_listener_goes_is_refused() {
    let mut pair = Pair::new(4, WireConfig::default());
    let listener = pair.listen(80);
    let last_step = pair.connect(80);
    while pair.client.state(last_step) & slot_state::CONNECTED == 0 {
        pair.server.settle(pair.now);
        pair.now += Duration::from_micros(10);
        pair.client.settle(pair.now);
    }
    let syn = pair.connect(80);
    pair.client.settle(pair.now);
    pair.now += Duration::from_micros(10);
    let now = pair.now;
    pair.server.core.pull(now);
    let queued: usize = pair.server.core.paths.iter().map(|path| path.queue().len()).sum();
    assert_eq!(queued, 2);
    pair.server.request(listener, slot_request::CLOSE);
    pair.server.core.listen_to_programs(now);
    pair.until("both are refused", |pair| {
        [last_step, syn].iter().all(|&client| pair.client.state(client) & slot_state::FAILED != 0)
    });
    assert!(pair.now - now < Duration::from_millis(500), "only when the SYN was sent again");
    assert_eq!(pair.server.socket_paths(), 0);
}

/// A stream whose pieces lie in the ring and in a file by turns arrives as if it had been copied.
#[test]
fn pieces_of_files_in_the_stream() {
    let bytes = pattern(300_000, 9);
    let mut file = tempfile();
    file.write_all(&bytes).unwrap();
    let map = Arc::new(FileMap::new(file.as_fd()).unwrap());
    for seed in 0..4 {
        let mut pair = Pair::new(seed, hard_wire());
        let (_, client, server) = pair.established(80);
        let now = pair.now;
        pair.server.core.obey(Command::AddFile { region: RegionId(1), file: 7, map: Arc::clone(&map) }, now);
        let mut expected: Vec<u8> = Vec::new();
        let mut got = Vec::new();
        for (turn, (offset, len)) in
            [(0u64, 20_000usize), (5, 299_995), (100_000, 16_384)].into_iter().enumerate()
        {
            let head = pattern(100 + turn * 1000, seed);
            let mut sent = 0;
            pair.until("room for the header", |pair| {
                let slot = pair.server.slot(server);
                let ahead = slot.send_tail.load(Ordering::Relaxed) - slot.send_head.load(Ordering::Relaxed);
                got.extend(pair.client.read(client, usize::MAX));
                if ahead + head.len() as u64 <= u64::from(RINGS) {
                    sent += pair.server.write(server, &head[sent..]);
                }
                sent == head.len()
            });
            let slot = pair.server.slot(server);
            let (tail, pushed) =
                (slot.send_tail.load(Ordering::Relaxed), slot.extents_tail.load(Ordering::Relaxed));
            let extent = &slot.extents[pushed as usize % EXTENT_COUNT];
            extent.position.store(tail, Ordering::Relaxed);
            extent.offset.store(offset, Ordering::Relaxed);
            extent.len.store(len as u32, Ordering::Relaxed);
            extent.file.store(7, Ordering::Relaxed);
            slot.extents_tail.store(pushed + 1, Ordering::Release);
            slot.send_tail.store(tail + len as u64, Ordering::Release);
            pair.server.mark(server);
            expected.extend(&head);
            expected.extend(&bytes[offset as usize..offset as usize + len]);
        }
        pair.until("all of it", |pair| {
            got.extend(pair.client.read(client, usize::MAX));
            got.len() >= expected.len()
        });
        assert!(got == expected, "seed {seed}: the stream differs");
    }
}

/// A file where programs have theirs, which goes with its descriptor.
fn tempfile() -> std::fs::File {
    let name = format!("scoutline-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(name);
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[test]
fn a_class_keeps_within_its_memory() {
    let mut pair = Pair::new(6, WireConfig::default());
    let memory = pair.client.core.policy.class(0).memory.clone();
    memory.set_limits(u32::MAX, u64::from(RINGS) * 2 * 2);
    pair.listen(80);
    let (first, _second) = (pair.connect(80), pair.connect(80));
    let now = pair.now;
    let third = pair.client.open(slot_kind::STREAM, now);
    assert_eq!(pair.client.call(call_op::CONNECT, third, [SERVER, 80, 0, 0], now), -libc::ENOBUFS);
    pair.client.request(first, slot_request::ABORT);
    pair.until("the first is gone", |_| memory.buffer_bytes() == u64::from(RINGS) * 2);
    let now = pair.now;
    assert_eq!(pair.client.call(call_op::CONNECT, third, [SERVER, 80, 0, 0], now), 0);
}

#[test]
fn datagrams_there_and_back() {
    let mut pair = Pair::new(5, WireConfig::default());
    let now = pair.now;
    let server = pair.server.open(slot_kind::DATAGRAM, now);
    assert_eq!(pair.server.call(call_op::BIND, server, [0, 53, 0, 0], now), 0);
    let client = pair.client.open(slot_kind::DATAGRAM, now);
    assert_eq!(pair.client.call(call_op::CONNECT, client, [SERVER, 53, 0, 0], now), 0);
    let send = |host: &Host, slot: u32, record: Record, payload: &[u8]| {
        let mut bytes = record.to_bytes().to_vec();
        bytes.extend(payload);
        bytes.resize(Record::ring_len(payload.len()) as usize, 0);
        assert_eq!(host.write(slot, &bytes), bytes.len());
    };
    for len in [0usize, 1, 100, 1472, 1473, 9000] {
        let question = pattern(len, len as u64);
        send(
            &pair.client,
            client,
            Record {
                len: len as u32,
                address: scoutline_base::Address::default(),
                port: 0,
                ..Record::default()
            },
            &question,
        );
        let mut asked = Vec::new();
        pair.until("question", |pair| {
            asked.extend(pair.server.read(server, usize::MAX));
            !asked.is_empty()
        });
        let record = Record::from_bytes(asked[..HEADER_LEN].try_into().unwrap());
        assert_eq!((record.len as usize, record.address), (len, "10.0.0.2".parse().unwrap()));
        assert_eq!(asked[HEADER_LEN..HEADER_LEN + len], question);
        send(&pair.server, server, record, &question);
        let mut answer = Vec::new();
        pair.until("answer", |pair| {
            answer.extend(pair.client.read(client, usize::MAX));
            !answer.is_empty()
        });
        assert_eq!(answer[HEADER_LEN..HEADER_LEN + len], question);
    }
    pair.client.request(client, slot_request::CLOSE);
    pair.server.request(server, slot_request::CLOSE);
    pair.step();
    assert_eq!(pair.client.socket_paths() + pair.server.socket_paths(), 0);
}

mod admission;
mod classes;
mod datagrams;
mod defer;
mod ends;
mod failures;
mod floods;
mod forward;
mod growth;
mod ip6;
mod late;
mod lost;
mod own_link;
mod passing;
mod policies;
mod requests;
mod transmit;
mod vlan;
mod wishes;
