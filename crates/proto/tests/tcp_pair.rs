//! Two connections over a deterministic wire in virtual time: delay, loss, reordering, duplication, splitting of
//! super-segments. The streams are real bytes through real rings, so every position is checked byte for byte.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use scoutline_base::{Random, Time};
use scoutline_proto::tcp::{Algorithm, Config, Connection, Events, Info, Pacing, State};
use scoutline_wire::tcp::{Flags, Header};

/// What the wire does to segments.
#[derive(Clone, Copy)]
struct Wire {
    delay: Duration,
    /// Added to some, evenly spread up to this.
    jitter: Duration,
    jittered: f64,
    loss: f64,
    duplication: f64,
    /// Cut super-segments as a device does.
    split: bool,
}

const CLEAN: Wire = Wire {
    delay: Duration::from_micros(50),
    jitter: Duration::ZERO,
    jittered: 0.0,
    loss: 0.0,
    duplication: 0.0,
    split: false,
};

const BAD: Wire = Wire {
    delay: Duration::from_millis(100),
    jitter: Duration::from_millis(5),
    jittered: 0.05,
    loss: 0.05,
    duplication: 0.02,
    split: true,
};

/// The byte at a position of a stream.
fn byte(stream: u8, position: u64) -> u8 {
    let mixed = (position ^ u64::from(stream) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// A frame under way: when it arrives, a number to break ties, the host it goes to, its bytes.
type Flying = Reverse<(Time, u64, usize, Vec<u8>)>;

/// A program's end.
struct Host {
    name: u8,
    connection: Connection,
    receive_size: u64,
    send_size: u64,
    ring: Vec<u8>,
    /// What the program wants to write in all, and how much of it at a time.
    to_write: u64,
    chunk: u64,
    written: u64,
    consumed: u64,
    /// Bytes the reader takes each time it looks, and how often it looks; `None` for all at once.
    reader: Option<(u64, Duration)>,
    next_read: Time,
    shutdown_after: bool,
    events: Events,
    transmits: u64,
    retransmissions: u64,
    last: (u64, u64),
}

impl Host {
    fn new(name: u8, connection: Connection, config: &Config) -> Host {
        Host {
            name,
            connection,
            receive_size: u64::from(config.receive_buffer),
            send_size: u64::from(config.send_buffer),
            ring: vec![0xee; config.receive_buffer as usize],
            to_write: 0,
            chunk: u64::MAX,
            written: 0,
            consumed: 0,
            reader: None,
            next_read: Time::ZERO,
            shutdown_after: true,
            events: Events::empty(),
            transmits: 0,
            retransmissions: 0,
            last: (0, 0),
        }
    }

    fn is_reading(&self) -> bool {
        self.consumed < self.connection.receive_position()
    }

    /// The program's turn.
    fn run(&mut self, now: Time) {
        let room = self.connection.acknowledged() + self.send_size - self.written;
        let more = room.min(self.to_write - self.written).min(self.chunk);
        if more > 0 {
            self.written += more;
            self.connection.on_written(self.written);
        }
        if self.shutdown_after && self.written == self.to_write && self.events.contains(Events::CONNECTED) {
            self.connection.shutdown();
        }
        if now >= self.next_read {
            let there = self.connection.receive_position() - self.consumed;
            let take = there.min(self.reader.map_or(u64::MAX, |(take, _)| take));
            for position in self.consumed..self.consumed + take {
                let got = self.ring[(position % self.receive_size) as usize];
                assert_eq!(got, byte(self.name ^ 1, position), "byte {position} at host {}", self.name);
            }
            self.consumed += take;
            self.connection.on_consumed(self.consumed);
            if let Some((_, every)) = self.reader {
                self.next_read = now + every;
            }
        }
    }

    fn take(&mut self, frame: &[u8], now: Time) {
        let (header, len) = Header::parse(frame).unwrap();
        let payload = &frame[len..];
        let input = self.connection.on_segment(&header, payload.len() as u32, now);
        if let Some(deliver) = input.deliver {
            assert!(u64::from(deliver.skip) + u64::from(deliver.len) <= payload.len() as u64);
            let end = deliver.position + u64::from(deliver.len);
            assert!(end <= self.consumed + self.receive_size, "within the ring");
            assert!(deliver.position >= self.consumed, "not over what is unread");
            for (position, &got) in (deliver.position..end).zip(&payload[deliver.skip as usize..]) {
                self.ring[(position % self.receive_size) as usize] = got;
            }
            assert_eq!(deliver.in_order_to, self.connection.receive_position());
        }
        self.events |= input.events;
        self.check();
    }

    fn check(&mut self) {
        let now = (self.connection.acknowledged(), self.connection.receive_position());
        assert!(now.0 >= self.last.0 && now.1 >= self.last.1, "positions only grow");
        assert!(now.0 <= self.written);
        assert!(u64::from(self.connection.info().rcv_wnd) <= self.receive_size);
        self.last = now;
    }
}

struct Pair {
    hosts: [Host; 2],
    wire: Wire,
    random: Random,
    now: Time,
    queue: BinaryHeap<Flying>,
    sent: u64,
    /// Right edge of the window that each host last told, by sequence number.
    edges: [Option<u32>; 2],
}

impl Pair {
    /// A client whose SYN has reached the server.
    fn new(configs: [&Config; 2], wire: Wire, seed: u64) -> Pair {
        let mut random = Random::new(seed);
        let (iss, offset) = (random.next_u32(), random.next_u32());
        let mut client = Connection::connect(configs[0].clone(), iss, offset, Time::ZERO);
        // Sequence numbers that wrap within the transfer.
        let server_iss = u32::MAX - random.below(200_000);
        let syn = client.poll_transmit(Time::ZERO).unwrap().header;
        let server = Connection::accept(configs[1].clone(), server_iss, 7, &syn, Time::ZERO);
        let hosts = [Host::new(0, client, configs[0]), Host::new(1, server, configs[1])];
        Pair { hosts, wire, random, now: Time::ZERO, queue: BinaryHeap::new(), sent: 0, edges: [None; 2] }
    }

    fn alike(config: &Config, wire: Wire, seed: u64) -> Pair {
        Pair::new([config, config], wire, seed)
    }

    fn send(&mut self, from: usize, frame: &[u8]) {
        if self.random.chance(self.wire.loss) {
            return;
        }
        let copies = 1 + usize::from(self.random.chance(self.wire.duplication));
        for _ in 0..copies {
            let mut at = self.now + self.wire.delay;
            if self.random.chance(self.wire.jittered) {
                at += Duration::from_nanos(u64::from(
                    self.random.below(self.wire.jitter.as_nanos() as u32 + 1),
                ));
            }
            self.sent += 1;
            self.queue.push(Reverse((at, self.sent, 1 - from, frame.to_vec())));
        }
    }

    /// Lets a host send all it has.
    fn transmit(&mut self, from: usize) {
        for round in 0.. {
            assert!(round < 10_000, "poll_transmit comes to an end");
            let host = &mut self.hosts[from];
            let Some(transmit) = host.connection.poll_transmit(self.now) else { break };
            host.transmits += 1;
            host.retransmissions += u64::from(transmit.retransmission);
            let range = transmit.payload.clone().unwrap_or(0..0);
            let (acknowledged, written) = (host.connection.acknowledged(), host.written);
            assert!(range.is_empty() || range.start >= acknowledged, "still in the send ring");
            assert!(range.end <= written, "never beyond what was written");
            assert!(range.end - range.start <= 65_535 - 60);
            assert!(transmit.segment_size > 0);
            let name = host.name;
            let header = transmit.header;
            self.check_header(from, &header);
            let size = u64::from(transmit.segment_size);
            let mut start = range.start;
            loop {
                let stop = if self.wire.split { range.end.min(start + size) } else { range.end };
                let mut piece = header;
                piece.sequence = header.sequence.wrapping_add((start - range.start) as u32);
                if stop < range.end {
                    piece.flags.remove(Flags::FIN | Flags::PSH);
                }
                let mut frame = vec![0; piece.emitted_len()];
                piece.emit(&mut frame);
                frame.extend((start..stop).map(|position| byte(name, position)));
                self.send(from, &frame);
                start = stop;
                if start >= range.end {
                    break;
                }
            }
        }
    }

    /// The window's right edge never moves left (but for what scaling rounds away).
    fn check_header(&mut self, from: usize, header: &Header) {
        if header.flags.intersects(Flags::RST | Flags::SYN) {
            return;
        }
        let scale = self.hosts[from].connection.info().rcv_wscale;
        let edge = header.acknowledgment.wrapping_add(u32::from(header.window) << scale);
        if let Some(before) = self.edges[from] {
            let moved = edge.wrapping_sub(before) as i32;
            assert!(moved >= -(1 << scale), "window shrank by {moved}");
        }
        self.edges[from] = Some(edge);
    }

    /// One event: the earliest frame, time-out or reader. False when nothing will ever happen.
    fn step(&mut self) -> bool {
        for side in 0..2 {
            self.hosts[side].run(self.now);
            self.transmit(side);
        }
        let frame = self.queue.peek().map(|Reverse((at, ..))| *at);
        let timeouts = self.hosts.iter().filter_map(|host| host.connection.next_timeout());
        let readers = self
            .hosts
            .iter()
            .filter(|host| host.reader.is_some() && host.is_reading())
            .map(|host| host.next_read);
        let Some(next) = frame.into_iter().chain(timeouts).chain(readers).min() else { return false };
        self.now = self.now.max(next);
        while self.queue.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Reverse((_, _, to, frame)) = self.queue.pop().unwrap();
            self.hosts[to].take(&frame, self.now);
            // Batches of one and of many both happen.
            if self.random.chance(0.5) {
                break;
            }
        }
        for host in &mut self.hosts {
            if host.connection.next_timeout().is_some_and(|at| at <= self.now) {
                host.events |= host.connection.on_timeout(self.now);
                let after = host.connection.next_timeout();
                assert!(after.is_none_or(|at| at > self.now), "a time-out makes progress");
            }
            host.check();
        }
        true
    }

    fn run_until(&mut self, limit: Duration, done: impl Fn(&Pair) -> bool) {
        let end = self.now + limit;
        let mut steps = 0u64;
        while !done(self) {
            steps += 1;
            let more = self.step();
            if !more || self.now > end || steps > 3_000_000 {
                let infos: Vec<Info> = self.hosts.iter().map(|host| host.connection.info()).collect();
                let written: Vec<_> = self
                    .hosts
                    .iter()
                    .map(|host| (host.written, host.connection.acknowledged(), host.consumed, host.events))
                    .collect();
                panic!("stuck at {:?} after {steps} steps: {infos:#?} {written:?}", self.now);
            }
        }
    }

    fn transferred(&self) -> bool {
        (0..2).all(|side| self.hosts[side].consumed == self.hosts[1 - side].to_write)
    }

    fn states(&self) -> (State, State) {
        (self.hosts[0].connection.state(), self.hosts[1].connection.state())
    }

    fn both_over(&self) -> bool {
        let over = |state| matches!(state, State::Closed | State::TimeWait);
        over(self.states().0) && over(self.states().1)
    }
}

fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3600)
}

#[test]
fn clean_wire_moves_both_streams_and_closes() {
    let mut pair = Pair::alike(&Config::default(), CLEAN, 1);
    pair.hosts[0].to_write = 10_000_000;
    pair.hosts[1].to_write = 3_000_000;
    pair.run_until(hours(1), |pair| pair.transferred() && pair.both_over());
    assert_eq!(pair.hosts[0].retransmissions + pair.hosts[1].retransmissions, 0);
    assert!(pair.now < Time::from_millis(1_000), "{:?}", pair.now);
    let info = pair.hosts[0].connection.info();
    assert!(info.timestamps && info.sack && info.snd_mss == 1448);
    assert!(pair.hosts[0].events.contains(Events::CONNECTED | Events::PEER_FINISHED));
}

const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::Cubic, Algorithm::NewReno, Algorithm::LedbatPlusPlus, Algorithm::Bbr];

#[test]
fn loss_reordering_and_duplication_leave_the_streams_intact() {
    for seed in 0..40 {
        let config = Config {
            congestion: ALGORITHMS[seed as usize / 3 % 4],
            timestamps: seed % 3 != 0,
            selective_ack: seed % 4 < 2,
            window_scaling: seed % 5 != 0,
            nagle: seed % 7 != 0,
            pacing: if seed % 11 == 0 { Pacing::Always } else { Pacing::LongPaths },
            ..Config::default()
        };
        let wire = Wire { split: seed % 6 != 0, ..BAD };
        let mut pair = Pair::alike(&config, wire, seed);
        pair.hosts[0].to_write = 200_000 + seed * 1000;
        pair.hosts[1].to_write = 150_000;
        if seed % 3 == 1 {
            pair.hosts[0].chunk = 700;
        }
        pair.run_until(hours(2), |pair| pair.transferred() && pair.both_over());
    }
}

#[test]
fn tiny_windows_and_slow_readers_get_through() {
    for seed in 0..12 {
        let buffer = [500, 1_000, 3_000, 9_000][seed as usize % 4];
        let config = Config {
            receive_buffer: buffer,
            receive_buffer_max: buffer,
            send_buffer: 5_000,
            ..Config::default()
        };
        let wire = Wire { loss: if seed % 2 == 0 { 0.0 } else { 0.05 }, ..BAD };
        let mut pair = Pair::alike(&config, Wire { delay: Duration::from_millis(1), ..wire }, seed);
        pair.hosts[0].to_write = 30_000;
        pair.hosts[1].to_write = 20_000;
        pair.hosts[1].reader = Some((700, Duration::from_millis(40)));
        pair.run_until(hours(12), |pair| pair.transferred() && pair.both_over());
    }
}

#[test]
fn a_closed_window_is_probed_for_hours_and_reopens() {
    let config = Config { receive_buffer: 20_000, receive_buffer_max: 20_000, ..Config::default() };
    let mut pair = Pair::alike(&config, CLEAN, 3);
    pair.hosts[0].to_write = 100_000;
    pair.hosts[1].next_read = Time::ZERO + hours(3);
    pair.hosts[1].reader = Some((u64::MAX, Duration::ZERO));
    pair.run_until(hours(4), Pair::transferred);
    assert!(pair.now >= Time::ZERO + hours(3));
    assert!(pair.hosts[0].transmits < 300, "probes back off: {}", pair.hosts[0].transmits);
}

/// No faster than others may be, and not much slower: at a loss of p in a round trip R, 1.22 · segment / (R · √p)
/// (Mathis et al., 1997), here 79 KB/s; CUBIC at so small a window is Reno's equal (RFC 9438 §4.3).
#[test]
fn loss_sets_the_pace() {
    let lossy = Wire { delay: Duration::from_millis(50), loss: 0.05, split: true, ..CLEAN };
    let mixed = Wire { jittered: 0.05, jitter: lossy.delay, duplication: 0.02, ..lossy };
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        for (wire, seed) in [(lossy, 1), (lossy, 2), (lossy, 3), (mixed, 4), (mixed, 5), (mixed, 6)] {
            let config = Config { congestion: algorithm, ..Config::default() };
            let mut pair = Pair::alike(&config, wire, seed);
            pair.hosts[0].to_write = 4_000_000;
            pair.run_until(hours(1), Pair::transferred);
            let rate = 4_000_000 / pair.now.as_millis(); // bytes a millisecond: KB/s
            assert!((40..=115).contains(&rate), "{algorithm:?}, seed {seed}: {rate} KB/s");
        }
    }
}

#[test]
fn wide_reordering_without_loss_keeps_the_window() {
    let wire = Wire {
        jitter: Duration::from_micros(100),
        jittered: 0.3,
        delay: Duration::from_millis(2),
        split: true,
        ..CLEAN
    };
    for selective_ack in [true, false] {
        let config =
            Config { selective_ack, send_buffer: 1 << 20, receive_buffer: 1 << 20, ..Config::default() };
        let mut pair = Pair::alike(&config, wire, 9);
        pair.hosts[0].to_write = 20_000_000;
        pair.run_until(hours(1), Pair::transferred);
        let info = pair.hosts[0].connection.info();
        assert!(pair.now < Time::from_millis(2_000), "{selective_ack}: {:?} {info:?}", pair.now);
    }
}

/// Runs until both ends are over, whatever was transferred.
fn finish(pair: &mut Pair) {
    pair.run_until(hours(3), Pair::both_over);
}

#[test]
fn closing_in_every_order_ends_on_both_sides() {
    for seed in 0..60 {
        let wire = if seed % 2 == 0 { CLEAN } else { BAD };
        let mut pair = Pair::alike(&Config::default(), wire, seed);
        for host in &mut pair.hosts {
            host.shutdown_after = false;
            host.to_write = 20_000;
        }
        pair.run_until(hours(1), Pair::transferred);
        let now = pair.now;
        match seed % 6 {
            // One after the other, by half close.
            0 => {
                pair.hosts[0].connection.shutdown();
                pair.run_until(hours(1), |pair| pair.hosts[1].events.contains(Events::PEER_FINISHED));
                pair.hosts[1].to_write += 50_000;
                pair.run_until(hours(1), Pair::transferred);
                pair.hosts[1].connection.shutdown();
            }
            // At once.
            1 => {
                pair.hosts[0].connection.shutdown();
                pair.hosts[1].connection.shutdown();
            }
            2 => {
                pair.hosts[1].connection.close(now);
                pair.run_until(hours(1), |pair| pair.hosts[0].events.contains(Events::PEER_FINISHED));
                pair.hosts[0].connection.close(now);
            }
            3 => {
                pair.hosts[0].connection.close(now);
                pair.hosts[1].connection.close(now);
            }
            // One aborts. If the reset is lost, only data of the other's finds out: the caller answers for us.
            4 => {
                pair.wire.loss = 0.0;
                pair.hosts[0].connection.abort();
            }
            // One is gone while the other still writes.
            _ => {
                pair.wire.loss = 0.0;
                pair.hosts[0].connection.close(now);
                pair.hosts[1].to_write += 50_000;
            }
        }
        finish(&mut pair);
        if seed % 6 == 4 {
            assert!(pair.hosts[1].events.contains(Events::RESET));
        }
        // TIME-WAIT passes.
        while pair.states() != (State::Closed, State::Closed) {
            assert!(pair.step(), "{:?}", pair.states());
        }
    }
}

#[test]
fn simultaneous_open_connects_and_transfers() {
    for seed in 0..20 {
        let wire = if seed % 2 == 0 { CLEAN } else { BAD };
        let config = Config::default();
        let mut pair = Pair::alike(&config, wire, seed);
        let start = |iss| Connection::connect(config.clone(), iss, iss, Time::ZERO);
        pair.hosts = [Host::new(0, start(seed as u32), &config), Host::new(1, start(u32::MAX), &config)];
        pair.hosts[0].to_write = 50_000;
        pair.hosts[1].to_write = 60_000;
        pair.run_until(hours(2), |pair| pair.transferred() && pair.both_over());
    }
}

#[test]
fn a_dead_wire_times_out() {
    let mut pair = Pair::alike(&Config::default(), CLEAN, 5);
    pair.hosts[0].to_write = 1_000_000;
    pair.run_until(hours(1), |pair| pair.hosts[1].consumed > 100_000);
    pair.wire.loss = 1.0;
    pair.run_until(hours(1), |pair| pair.hosts[0].events.contains(Events::TIMED_OUT));
    assert!(pair.now > Time::ZERO + Duration::from_secs(100), "RFC 9293 R2: {:?}", pair.now);
}

/// Rings that grow while the stream runs: the window follows, up to what the scale was chosen for.
#[test]
fn buffers_may_grow() {
    let config = Config { receive_buffer: 8_192, receive_buffer_max: 1 << 20, ..Config::default() };
    let mut pair = Pair::alike(&config, CLEAN, 6);
    pair.hosts[0].to_write = 500_000;
    pair.run_until(hours(1), |pair| pair.hosts[1].consumed > 50_000);
    assert!(pair.hosts[1].connection.info().rcv_wnd <= 8_192);
    // A ring grows while it is empty.
    pair.run_until(hours(1), |pair| !pair.hosts[1].is_reading());
    let size = 1 << 20;
    pair.hosts[1].connection.set_receive_buffer(size);
    let host = &mut pair.hosts[1];
    let mut ring = vec![0; size as usize];
    for position in host.consumed..host.consumed + host.receive_size {
        ring[(position % u64::from(size)) as usize] = host.ring[(position % host.receive_size) as usize];
    }
    host.ring = ring;
    host.receive_size = u64::from(size);
    pair.run_until(hours(1), Pair::transferred);
    assert!(pair.hosts[1].connection.info().rcv_wnd > 500_000);
}
