//! Two TCP connections over a wire whose every misdeed the input decides: loss, duplication, reordering, delay,
//! splitting, and corruption of header fields. The streams are bytes through rings; each is checked at its position.
//!
//! While the input lasts, both programs do what it says. Then the wire is clean, the programs finish, and (unless a
//! field was corrupted, or a program ended rudely) both streams must arrive whole and both ends come to rest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use scoutline_base::Time;
use scoutline_proto::tcp::{Algorithm, Config, Connection, Events, State, reset_for};
use scoutline_wire::tcp::{Flags, Header};

use crate::bytes::{Bytes, Target};

/// The target of this file.
pub const TARGETS: &[Target] = &[("tcp_pair", run)];

/// Steps by the input, at most, and steps to finish.
const MAX_STEPS: usize = 600;
const MAX_FINISHING_STEPS: usize = 60_000;
/// Bytes that one program writes in all, at most.
const MAX_WRITTEN: u64 = 60_000;

/// A segment under way: when it arrives, a number to break ties, the host it goes to, its bytes.
type Flying = Reverse<(Time, u64, usize, Vec<u8>)>;

/// The byte at a position of a stream.
fn byte(stream: usize, position: u64) -> u8 {
    let mixed = (position ^ (stream as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

struct Host {
    connection: Connection,
    ring: Vec<u8>,
    send_size: u64,
    written: u64,
    consumed: u64,
    is_shut: bool,
    /// It was closed or aborted: what the peer still sends is refused.
    is_rude: bool,
    events: Events,
    last: (u64, u64),
}

struct Pair {
    hosts: [Host; 2],
    now: Time,
    queue: BinaryHeap<Flying>,
    sent: u64,
    edges: [Option<u32>; 2],
    split: bool,
    /// A field was corrupted: streams need not arrive whole.
    corrupted: bool,
    /// A field was corrupted that says where bytes belong: they need not be right.
    misplaced: bool,
}

/// What the wire does to one segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pass,
    Lose,
    Duplicate,
    Delay(u8),
    Corrupt(u8, u8),
}

fn config(choice: u8, sizes: u8) -> Config {
    let receive_buffer = [20_000, 500, 3_000, 70_000][usize::from(sizes & 3)];
    Config {
        receive_buffer,
        receive_buffer_max: if choice & 1 == 0 { receive_buffer } else { 1 << 20 },
        send_buffer: [30_000, 400, 5_000, 80_000][usize::from(sizes >> 2 & 3)],
        mss: [1460, 536, 100, 9_000][usize::from(sizes >> 4 & 3)],
        max_transmit_len: if sizes & 64 == 0 { 65_160 } else { 1_460 },
        window_scaling: sizes & 128 == 0,
        timestamps: choice & 2 == 0,
        selective_ack: choice & 4 == 0,
        congestion: if choice & 8 == 0 { Algorithm::Cubic } else { Algorithm::NewReno },
        nagle: choice & 16 == 0,
        ..Config::default()
    }
}

/// One input.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let configs = [config(bytes.u8(), bytes.u8()), config(bytes.u8(), bytes.u8())];
    let opening = bytes.u8();
    let mut pair = Pair::new(&configs, opening);
    for _ in 0..MAX_STEPS {
        if bytes.is_empty() {
            break;
        }
        pair.program(&mut bytes);
        pair.transmit(&mut bytes);
        pair.step(&mut bytes);
    }
    pair.finish();
}

impl Host {
    fn new(connection: Connection, config: &Config) -> Host {
        Host {
            connection,
            ring: vec![0xee; config.receive_buffer as usize],
            send_size: u64::from(config.send_buffer),
            written: 0,
            consumed: 0,
            is_shut: false,
            is_rude: false,
            events: Events::empty(),
            last: (0, 0),
        }
    }

    fn write(&mut self, more: u64) {
        let room = self.connection.acknowledged() + self.send_size - self.written;
        let more = more.min(room).min(MAX_WRITTEN - self.written);
        if !self.is_shut && more > 0 {
            self.written += more;
            self.connection.on_written(self.written);
        }
    }

    fn read(&mut self, stream: usize, most: u64, check: bool) {
        let there = self.connection.receive_position() - self.consumed;
        let take = there.min(most);
        if check {
            for position in self.consumed..self.consumed + take {
                let got = self.ring[(position % self.ring.len() as u64) as usize];
                assert_eq!(got, byte(stream, position), "byte {position} of stream {stream}");
            }
        }
        self.consumed += take;
        self.connection.on_consumed(self.consumed);
    }

    /// A segment came in; what the end of a closed connection answers goes back.
    fn take(&mut self, frame: &[u8], now: Time) -> Option<Header> {
        let (header, len) = Header::parse(frame).ok()?;
        let payload = &frame[len..];
        if self.connection.state() == State::Closed {
            return reset_for(&header, payload.len() as u32);
        }
        let input = self.connection.on_segment(&header, payload.len() as u32, now);
        let size = self.ring.len() as u64;
        if let Some(deliver) = input.deliver {
            assert!(u64::from(deliver.skip) + u64::from(deliver.len) <= payload.len() as u64);
            let end = deliver.position + u64::from(deliver.len);
            assert!(end <= self.consumed + size, "within the ring");
            assert!(deliver.position >= self.last.1, "not over what is in order");
            for (position, &got) in (deliver.position..end).zip(&payload[deliver.skip as usize..]) {
                self.ring[(position % size) as usize] = got;
            }
            assert_eq!(deliver.in_order_to, self.connection.receive_position());
        }
        self.events |= input.events;
        self.check();
        None
    }

    fn check(&mut self) {
        let now = (self.connection.acknowledged(), self.connection.receive_position());
        assert!(now.0 >= self.last.0 && now.1 >= self.last.1, "positions only grow");
        assert!(now.0 <= self.written);
        let info = self.connection.info();
        assert!(u64::from(info.rcv_wnd) <= self.ring.len() as u64);
        assert!(info.sacked <= info.unacked);
        self.last = now;
    }
}

impl Pair {
    fn new(configs: &[Config; 2], opening: u8) -> Pair {
        let now = Time::from_millis(1);
        let issues: [u32; 2] =
            if opening & 1 == 0 { [100, 900_000] } else { [u32::MAX - 300, u32::MAX - 9_000] };
        let mut client = Connection::connect(configs[0].clone(), issues[0], 77, now);
        let mut queue = BinaryHeap::new();
        let server = if opening & 2 == 0 {
            let syn = client.poll_transmit(now).expect("a SYN").header;
            Connection::accept(configs[1].clone(), issues[1], 7, &syn, now)
        } else {
            // Both at once.
            queue.clear();
            Connection::connect(configs[1].clone(), issues[1], 7, now)
        };
        let hosts = [Host::new(client, &configs[0]), Host::new(server, &configs[1])];
        Pair {
            hosts,
            now,
            queue,
            sent: 0,
            edges: [None; 2],
            split: opening & 4 == 0,
            corrupted: false,
            misplaced: false,
        }
    }

    /// The programs' turn.
    fn program(&mut self, bytes: &mut Bytes<'_>) {
        let choice = bytes.u8();
        let side = usize::from(choice & 1);
        let check = !self.misplaced;
        let now = self.now;
        let host = &mut self.hosts[side];
        match choice >> 1 & 15 {
            0..=4 => host.write(u64::from(bytes.u8()) * 40 + 1),
            5 => host.write(u64::MAX),
            6..=8 => host.read(1 - side, u64::from(bytes.u8()) * 20, check),
            9 => host.read(1 - side, u64::MAX, check),
            10 if choice & 0xc0 == 0xc0 => {
                host.connection.shutdown();
                host.is_shut = true;
            }
            11 if choice & 0xe0 == 0xe0 => {
                (host.is_shut, host.is_rude) = (true, true);
                host.events |= match bytes.u8() {
                    0..=200 => host.connection.close(now),
                    _ => host.connection.abort(),
                };
            }
            12 => {
                let nodelay = choice & 0x80 == 0;
                host.connection.set_nodelay(nodelay);
            }
            _ => {}
        }
        host.check();
    }

    /// Both hosts send what they have, unless the input holds one back.
    fn transmit(&mut self, bytes: &mut Bytes<'_>) {
        let limit = match bytes.u8() {
            0..=199 => 10_000,
            few => usize::from(few - 200) / 8,
        };
        for side in 0..2 {
            self.transmit_from(side, limit, bytes);
        }
    }

    fn transmit_from(&mut self, from: usize, limit: usize, bytes: &mut Bytes<'_>) {
        for round in 0..limit {
            assert!(round < 9_999, "poll_transmit comes to an end");
            let host = &mut self.hosts[from];
            let Some(transmit) = host.connection.poll_transmit(self.now) else { break };
            let range = transmit.payload.clone().unwrap_or(0..0);
            assert!(range.is_empty() || range.start >= host.connection.acknowledged(), "in the send ring");
            assert!(range.end <= host.written, "never beyond what was written");
            assert!(range.end - range.start <= 65_535 - 60 && transmit.segment_size > 0);
            let header = transmit.header;
            self.check_window(from, &header);
            let size = if self.split { u64::from(transmit.segment_size) } else { u64::MAX };
            let mut start = range.start;
            loop {
                let stop = range.end.min(start.saturating_add(size));
                let mut piece = header;
                piece.sequence = header.sequence.wrapping_add((start - range.start) as u32);
                if stop < range.end {
                    piece.flags.remove(Flags::FIN | Flags::PSH);
                }
                let payload = (start..stop).map(|position| byte(from, position));
                self.launch(from, piece, payload, bytes);
                start = stop;
                if start >= range.end {
                    break;
                }
            }
        }
    }

    /// The right edge never moves left, but for what scaling rounds away.
    fn check_window(&mut self, from: usize, header: &Header) {
        if header.flags.intersects(Flags::RST | Flags::SYN) || self.corrupted {
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

    fn launch(
        &mut self,
        from: usize,
        mut header: Header,
        payload: impl Iterator<Item = u8>,
        bytes: &mut Bytes<'_>,
    ) {
        let fate = match bytes.u8() {
            0..=179 => Fate::Pass,
            180..=209 => Fate::Lose,
            210..=221 => Fate::Duplicate,
            222..=249 => Fate::Delay(bytes.u8()),
            _ => Fate::Corrupt(bytes.u8(), bytes.u8()),
        };
        if let Fate::Corrupt(what, how) = fate {
            self.corrupt(&mut header, what, how);
        }
        let mut frame = vec![0; header.emitted_len()];
        header.emit(&mut frame);
        frame.extend(payload);
        let mut at = self.now + Duration::from_micros(50);
        match fate {
            Fate::Lose => return,
            Fate::Duplicate => self.push(at + Duration::from_micros(30), from, frame.clone()),
            Fate::Delay(by) => at += Duration::from_micros(u64::from(by) * u64::from(by) * 20),
            Fate::Pass | Fate::Corrupt(..) => {}
        }
        self.push(at, from, frame);
    }

    fn push(&mut self, at: Time, from: usize, frame: Vec<u8>) {
        self.sent += 1;
        self.queue.push(Reverse((at, self.sent, 1 - from, frame)));
    }

    fn corrupt(&mut self, header: &mut Header, what: u8, how: u8) {
        self.corrupted = true;
        let by = u32::from(how) << (what >> 4);
        match what & 15 {
            0..=2 => header.window ^= by as u16,
            3..=5 => header.acknowledgment = header.acknowledgment.wrapping_sub(by),
            6 => header.acknowledgment = header.acknowledgment.wrapping_add(by),
            7 => {
                header.flags.toggle(Flags::from_bits_retain(how));
                self.misplaced = true;
            }
            8 => header.flags.toggle(Flags::PSH | Flags::URG),
            9 => header.flags.toggle(Flags::ACK),
            10 => header.flags.insert(Flags::RST),
            11 => {
                header.sequence = header.sequence.wrapping_add(by);
                self.misplaced = true;
            }
            12 => header.options.timestamps = header.options.timestamps.map(|(v, e)| (v.wrapping_sub(by), e)),
            13 => header.options.timestamps = header.options.timestamps.map(|(v, e)| (v, e.wrapping_add(by))),
            14 => header.options.timestamps = None,
            _ => {
                let acknowledgment = header.acknowledgment;
                header
                    .options
                    .sack
                    .push(acknowledgment.wrapping_add(by), acknowledgment.wrapping_add(2 * by));
            }
        }
    }

    /// The earliest of frames and time-outs happens. False when nothing will.
    fn step(&mut self, bytes: &mut Bytes<'_>) -> bool {
        let frame = self.queue.peek().map(|Reverse((at, ..))| *at);
        let timeouts = self.hosts.iter().filter_map(|host| host.connection.next_timeout());
        let Some(next) = timeouts.chain(frame).min() else { return false };
        self.now = self.now.max(next);
        let mut batch = 1 + bytes.u8() % 8;
        while batch > 0 && self.queue.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            batch -= 1;
            let Some(Reverse((_, _, to, frame))) = self.queue.pop() else { break };
            if let Some(mut answer) = self.hosts[to].take(&frame, self.now) {
                (answer.source_port, answer.destination_port) = (0, 0);
                self.launch(to, answer, std::iter::empty(), bytes);
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

    /// A clean wire, and programs that read, shut down, and go.
    fn finish(&mut self) {
        let mut nothing = Bytes::new(&[]);
        let check = !self.misplaced;
        for step in 0..MAX_FINISHING_STEPS {
            // RFC 9293's SND.WL1 believes a corrupted sequence number, and updates of the window then seem old: what
            // remains is sent by probes, a byte each.
            if self.corrupted && step > 2_000 {
                return;
            }
            for side in 0..2 {
                let host = &mut self.hosts[side];
                host.read(1 - side, u64::MAX, check);
                if host.events.contains(Events::CONNECTED) && !host.is_shut {
                    host.connection.shutdown();
                    host.is_shut = true;
                }
                self.transmit_from(side, 10_000, &mut nothing);
            }
            if !self.step(&mut nothing) {
                return self.finished();
            }
        }
        let infos = [self.hosts[0].connection.info(), self.hosts[1].connection.info()];
        panic!("never comes to rest: {infos:#?}");
    }

    fn finished(&self) {
        let [a, b] = &self.hosts;
        let gave_up = (a.events | b.events).contains(Events::TIMED_OUT);
        if self.corrupted || a.is_rude || b.is_rude || gave_up {
            return;
        }
        for (host, other) in [(a, b), (b, a)] {
            let info = host.connection.info();
            assert_eq!(info.state, State::Closed, "{info:#?} {:?}", host.events);
            assert_eq!(other.consumed, host.written, "all of the stream: {info:#?}");
            assert!(host.events.contains(Events::CONNECTED | Events::PEER_FINISHED), "{:?}", host.events);
            assert!(!host.events.intersects(Events::RESET | Events::REFUSED), "{:?}", host.events);
        }
    }
}
