//! Arbitrary operations and hostile segments against one TCP connection.
//!
//! The peer is a liar that knows our numbers: segments are right, nearly right, or garbage. What must hold: no
//! panic; positions grow only; no byte outside the rings is named, none is sent that was not written, none counts as
//! acknowledged that was not sent; the window's edge never moves left; states follow RFC 9293 §3.3.2; a time-out
//! makes progress; left alone, the connection comes to rest.

use std::time::Duration;

use scoutline_base::Time;
use scoutline_proto::tcp::fast_open::Start;
use scoutline_proto::tcp::{Algorithm, Config, Connection, Events, Input, Keepalive, State, Transmit};
use scoutline_wire::tcp::{FastOpen, Flags, Header, Options};

use crate::bytes::{Bytes, Target};

/// The target of this file.
pub const TARGETS: &[Target] = &[("tcp_operations", run)];

/// Operations of one input, at most: more find nothing that these do not.
const MAX_OPERATIONS: usize = 400;

struct Subject {
    connection: Connection,
    now: Time,
    /// What our headers said: the peer's next sequence number, and where we are.
    expected: u32,
    ours: u32,
    /// The peer's clock, and ours as last seen.
    timestamp: u32,
    echo: u32,
    /// Where the program's ring ends are, as clamped.
    consumed: u64,
    written: u64,
    receive_ring: u64,
    send_ring: u64,
    /// The stream position after the last byte ever sent.
    sent: u64,
    finished_at: Option<u64>,
    /// The window's right edge as last told.
    edge: Option<u32>,
    has_shut: bool,
    last: (u64, u64),
    state: State,
}

fn config(choice: u8, sizes: u8) -> Config {
    let second = Duration::from_secs(1);
    let receive_buffer = [20_000, 300, 4_096, 200_000][usize::from(sizes & 3)];
    Config {
        receive_buffer,
        receive_buffer_max: if choice & 1 == 0 { receive_buffer } else { 1 << 22 },
        send_buffer: [50_000, 200, 8_000, 300_000][usize::from(sizes >> 2 & 3)],
        mss: [1460, 536, 88, 9_000][usize::from(sizes >> 4 & 3)],
        max_transmit_len: if sizes & 64 == 0 { 65_160 } else { 1_460 },
        window_scaling: sizes & 128 == 0,
        timestamps: choice & 2 == 0,
        selective_ack: choice & 4 == 0,
        congestion: if choice & 8 == 0 { Algorithm::Cubic } else { Algorithm::NewReno },
        keepalive: (choice & 16 != 0).then_some(Keepalive { idle: second, interval: second, count: 2 }),
        user_timeout: (choice & 32 != 0).then_some(30 * second),
        nagle: choice & 64 == 0,
        ..Config::default()
    }
}

/// One input.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let (choice, sizes, opening) = (bytes.u8(), bytes.u8(), bytes.u8());
    let config = config(choice, sizes);
    let (iss, irs) = match opening >> 4 & 3 {
        0 => (1_000, 2_000),
        1 => (u32::MAX - 500, u32::MAX - 700),
        2 => (u32::MAX >> 1, 0),
        _ => (bytes.u32(), bytes.u32()),
    };
    let now = Time::from_millis(5);
    let syn = Header {
        sequence: irs,
        flags: Flags::SYN,
        window: 30_000,
        options: Options {
            mss: (opening & 64 == 0).then_some(1460),
            window_scale: (opening & 128 == 0).then_some(3),
            sack_permitted: true,
            timestamps: (opening & 8 == 0).then_some((1000, 0)),
            ..Options::default()
        },
        ..Header::default()
    };
    let passive = opening & 1 != 0;
    let (receive_ring, send_ring) = (u64::from(config.receive_buffer), u64::from(config.send_buffer));
    // Data with the SYN (RFC 7413).
    let is_fast = opening & 6 == 2;
    let connection = match (passive, is_fast) {
        (true, false) => Connection::accept(config, iss, 9, &syn, now),
        (false, false) => Connection::connect(config, iss, 9, now),
        (true, true) => {
            let cookie = FastOpen::cookie(&[7; 8]);
            let mut connection = Connection::accept_answering(config, iss, 9, &syn, cookie, now);
            connection.begin_fast(700);
            connection
        }
        (false, true) => {
            let start = Start { option: FastOpen::cookie(&[7; 8]), room: 700, waits: false };
            Connection::connect_fast(config, iss, 9, &start, now)
        }
    };
    let state = connection.state();
    let mut subject = Subject {
        connection,
        now,
        expected: irs,
        ours: iss,
        timestamp: 1000,
        echo: 0,
        consumed: 0,
        written: 0,
        receive_ring,
        send_ring,
        sent: 0,
        finished_at: None,
        edge: None,
        has_shut: false,
        last: (0, 0),
        state,
    };
    if opening & 6 != 6 && !is_fast {
        subject.open(passive, &syn, iss);
    }
    for _ in 0..MAX_OPERATIONS {
        if bytes.is_empty() {
            break;
        }
        subject.operation(&mut bytes);
        subject.check();
    }
    subject.leave_alone();
}

/// The moves that a segment, a time-out or the program can bring about, several at a time.
fn may_follow(from: State, to: State) -> bool {
    use State::{
        CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, Listen, SynReceived, SynSent,
        TimeWait,
    };
    from == to
        || match to {
            Closed => true,
            SynSent | Listen => false,
            SynReceived => from == SynSent,
            Established => matches!(from, SynSent | SynReceived),
            FinWait1 => matches!(from, SynSent | SynReceived | Established),
            FinWait2 => matches!(from, SynReceived | FinWait1),
            CloseWait => matches!(from, SynSent | SynReceived | Established),
            Closing => matches!(from, SynSent | SynReceived | FinWait1),
            LastAck => matches!(from, SynSent | SynReceived | CloseWait),
            TimeWait => matches!(from, SynReceived | FinWait1 | FinWait2 | Closing),
        }
}

impl Subject {
    fn open(&mut self, passive: bool, syn: &Header, iss: u32) {
        self.poll(1);
        let mut answer = *syn;
        answer.flags = Flags::ACK;
        answer.acknowledgment = iss.wrapping_add(1);
        if passive {
            answer.sequence = syn.sequence.wrapping_add(1);
            let timestamps = syn.options.timestamps.is_some() && self.connection.info().timestamps;
            answer.options =
                Options { timestamps: timestamps.then_some((1000, self.echo)), ..Options::default() };
        } else {
            answer.flags |= Flags::SYN;
            answer.options.timestamps = syn.options.timestamps.map(|_| (1000, self.echo));
        }
        self.segment(&answer, 0);
        assert_eq!(self.connection.state(), State::Established);
        self.ours = iss.wrapping_add(1);
        self.expected = syn.sequence.wrapping_add(1);
        self.check();
    }

    fn operation(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.u8() % 32 {
            0..=9 => self.nearly_right(bytes),
            10 => {
                let raw = bytes.take(60);
                let len = u32::from(bytes.u16());
                if let Ok((header, _)) = Header::parse(raw) {
                    self.segment(&header, len);
                }
            }
            11..=13 => {
                let more = u64::from(bytes.u16());
                self.write(self.written + more);
            }
            14 => {
                let position = bytes.u64();
                self.write(position);
            }
            15..=17 => {
                let more = u64::from(bytes.u16());
                self.consume(self.consumed + more);
            }
            18 => {
                let position = bytes.u64();
                self.consume(position);
            }
            19 | 20 => self.wait(u64::from(bytes.u16()) * 100),
            21 => self.wait(u64::from(bytes.u32())),
            22 | 23 => {
                if let Some(at) = self.connection.next_timeout() {
                    self.now = self.now.max(at);
                    self.time_out();
                }
            }
            24..=26 => {
                let rounds = u32::from(bytes.u8());
                self.poll(rounds);
            }
            27 => self.poll(u32::MAX),
            28 => self.end(bytes.u8()),
            29 => self.settings(bytes),
            // Everything sent so far is acknowledged: how a connection gets anywhere.
            _ => {
                let window = bytes.u16();
                let header = Header {
                    sequence: self.expected,
                    acknowledgment: self.ours,
                    flags: Flags::ACK,
                    window,
                    options: self.options(0),
                    ..Header::default()
                };
                let len = u32::from(bytes.u8()) * 8;
                self.segment(&header, len);
            }
        }
    }

    fn options(&self, offset: i32) -> Options {
        let timestamps = self.connection.info().timestamps;
        let value = (self.timestamp.wrapping_add_signed(offset), self.echo);
        Options { timestamps: timestamps.then_some(value), ..Options::default() }
    }

    fn nearly_right(&mut self, bytes: &mut Bytes<'_>) {
        let (sequence, acknowledgment) = (bytes.near(), bytes.near());
        let shape = bytes.u8();
        let flags = match shape & 15 {
            0..=5 => Flags::ACK,
            6 | 7 => Flags::ACK | Flags::PSH,
            8 | 9 => Flags::ACK | Flags::FIN,
            10 => Flags::SYN,
            11 => Flags::SYN | Flags::ACK,
            12 => Flags::RST,
            13 => Flags::RST | Flags::ACK,
            _ => Flags::from_bits_retain(bytes.u8()),
        };
        let mut options = self.options(bytes.near() / 64);
        if shape & 16 != 0 {
            options.timestamps = None;
        }
        if shape & 32 != 0 {
            for _ in 0..bytes.u8() & 3 {
                let (left, len) = (bytes.near(), bytes.near());
                let left = self.ours.wrapping_add_signed(left);
                options.sack.push(left, left.wrapping_add_signed(len));
            }
        }
        if flags.contains(Flags::SYN) {
            options.mss = (shape & 64 == 0).then(|| bytes.u16());
            options.window_scale = (shape & 128 == 0).then(|| bytes.u8());
            options.sack_permitted = true;
        }
        let len = match bytes.u8() {
            0..=79 => 0,
            short @ 80..=199 => u32::from(short - 79) * 12,
            _ => u32::from(bytes.u16()),
        };
        let header = Header {
            sequence: self.expected.wrapping_add_signed(sequence),
            acknowledgment: self.ours.wrapping_add_signed(acknowledgment),
            flags,
            window: bytes.u16(),
            urgent: u16::from(shape),
            options,
            ..Header::default()
        };
        self.segment(&header, len);
    }

    fn write(&mut self, position: u64) {
        if !self.has_shut {
            let limit = self.connection.acknowledged() + self.send_ring;
            self.written = self.written.max(position.min(limit));
        }
        self.connection.on_written(position);
    }

    fn consume(&mut self, position: u64) {
        self.consumed = self.consumed.max(position.min(self.connection.receive_position()));
        self.connection.on_consumed(position);
    }

    fn wait(&mut self, micros: u64) {
        self.now += Duration::from_micros(micros);
        self.timestamp = self.timestamp.wrapping_add((micros / 1000) as u32);
        self.time_out();
    }

    fn end(&mut self, how: u8) {
        match how % 8 {
            0..=3 => {
                self.connection.shutdown();
                self.has_shut = true;
            }
            4 | 5 => {
                let events = self.connection.close(self.now);
                self.has_shut = true;
                self.on_events(events);
            }
            6 => {
                let events = self.connection.abort();
                self.has_shut = true;
                assert_eq!(self.connection.state(), State::Closed);
                self.on_events(events);
            }
            _ => {
                let events = self.connection.on_unreachable(how & 8 != 0, self.now);
                self.on_events(events);
            }
        }
    }

    fn settings(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.u8() % 5 {
            0 => {
                let size = bytes.u32() % (1 << 20);
                self.receive_ring = self.receive_ring.max(u64::from(size));
                self.connection.set_receive_buffer(size);
            }
            1 => {
                let size = bytes.u32() % (1 << 20);
                self.send_ring = self.send_ring.max(u64::from(size));
                self.connection.set_send_buffer(size);
            }
            2 => self.connection.set_nodelay(bytes.u8() & 1 == 1),
            3 => {
                let (idle, interval, count) = (bytes.u8(), bytes.u8(), bytes.u8());
                let keepalive = Keepalive {
                    idle: Duration::from_secs(u64::from(idle) % 100 + 1),
                    interval: Duration::from_secs(u64::from(interval) % 100 + 1),
                    count,
                };
                self.connection.set_keepalive((count & 1 == 0).then_some(keepalive), self.now);
            }
            _ => {
                let timeout = u64::from(bytes.u16());
                self.connection.set_user_timeout(Some(Duration::from_millis(timeout)));
            }
        }
    }

    fn segment(&mut self, header: &Header, len: u32) {
        let was_closed = self.connection.state() == State::Closed;
        let before = self.connection.receive_position();
        let input: Input = self.connection.on_segment(header, len, self.now);
        if was_closed {
            assert!(input.deliver.is_none() && self.connection.state() == State::Closed);
        }
        if let Some(deliver) = input.deliver {
            assert!(deliver.len > 0);
            assert!(u64::from(deliver.skip) + u64::from(deliver.len) <= u64::from(len), "within the payload");
            assert!(deliver.position >= before, "only beyond what is in order");
            let end = deliver.position + u64::from(deliver.len);
            assert!(end <= self.consumed + self.receive_ring, "within the ring");
            assert_eq!(deliver.in_order_to, self.connection.receive_position());
        } else {
            assert_eq!(self.connection.receive_position(), before, "nothing grows without payload");
        }
        self.on_events(input.events);
    }

    fn on_events(&mut self, events: Events) {
        if events.contains(Events::CLOSED) {
            assert_eq!(self.connection.state(), State::Closed, "{events:?}");
        }
        if events.contains(Events::PEER_FINISHED) {
            assert!(self.connection.is_peer_finished());
        }
        if events.contains(Events::TIME_WAIT) {
            assert!(matches!(self.connection.state(), State::TimeWait | State::Closed));
        }
    }

    fn poll(&mut self, rounds: u32) {
        for round in 0..rounds {
            assert!(round < 20_000, "poll_transmit comes to an end");
            let Some(transmit) = self.connection.poll_transmit(self.now) else { break };
            self.on_transmit(&transmit);
        }
    }

    fn on_transmit(&mut self, transmit: &Transmit) {
        let header = transmit.header;
        let mut bytes = [0; 60];
        let len = header.emit(&mut bytes);
        let (read, read_len) = Header::parse(&bytes[..len]).expect("our own header");
        assert_eq!((read, read_len), (header, len), "what we send is what we mean");
        assert!(transmit.segment_size > 0);
        let mut payload_len = 0;
        if let Some(range) = &transmit.payload {
            assert!(range.start < range.end);
            assert!(range.start >= self.connection.acknowledged(), "{range:?} is still in the send ring");
            assert!(range.end <= self.written, "{range:?} was written: {}", self.written);
            assert!(range.end - range.start <= 65_535 - 60 - 40);
            self.sent = self.sent.max(range.end);
            payload_len = (range.end - range.start) as u32;
        }
        if header.flags.contains(Flags::RST) {
            assert_eq!(payload_len, 0);
        } else {
            let controls = header.flags.intersection(Flags::SYN | Flags::FIN).bits().count_ones();
            let end = header.sequence.wrapping_add(payload_len + controls);
            self.ours = end;
            if header.flags.contains(Flags::ACK) {
                self.expected = header.acknowledgment;
                self.check_window(&header);
            }
        }
        if let Some((value, _)) = header.options.timestamps {
            self.echo = value;
        }
    }

    /// RFC 9293 §3.8.6: the right edge does not move left, but for what scaling rounds away.
    fn check_window(&mut self, header: &Header) {
        let info = self.connection.info();
        let scale = if header.flags.contains(Flags::SYN) { 0 } else { info.rcv_wscale };
        let edge = header.acknowledgment.wrapping_add(u32::from(header.window) << scale);
        if header.flags.contains(Flags::SYN) || info.state == State::Closed {
            return;
        }
        if let Some(before) = self.edge {
            let moved = edge.wrapping_sub(before) as i32;
            // The FIN of the peer takes a number, not a byte of window.
            assert!(moved >= -(1 << scale), "the window shrank by {moved}");
        }
        self.edge = Some(edge);
    }

    fn time_out(&mut self) {
        if self.connection.next_timeout().is_some_and(|at| at <= self.now) {
            let events = self.connection.on_timeout(self.now);
            self.on_events(events);
            let next = self.connection.next_timeout();
            assert!(next.is_none_or(|at| at > self.now), "a time-out makes progress");
        }
    }

    fn check(&mut self) {
        let connection = &self.connection;
        let now = (connection.acknowledged(), connection.receive_position());
        assert!(now.0 >= self.last.0 && now.1 >= self.last.1, "positions only grow");
        assert!(now.0 <= self.sent, "acknowledged {} of {} sent", now.0, self.sent);
        assert!(now.1 <= self.consumed + self.receive_ring);
        self.last = now;
        let info = connection.info();
        assert!(info.cwnd > 0 && u64::from(info.rcv_wnd) <= self.receive_ring);
        assert!(info.sacked <= info.unacked, "{} sacked of {}", info.sacked, info.unacked);
        assert!(may_follow(self.state, info.state), "{:?} after {:?}", info.state, self.state);
        self.state = info.state;
        if connection.is_peer_finished() {
            assert_eq!(*self.finished_at.get_or_insert(now.1), now.1, "nothing follows a FIN");
        } else {
            assert!(self.finished_at.is_none());
        }
        match info.state {
            State::Closed => assert_eq!(connection.next_timeout(), None),
            State::TimeWait => assert!(connection.next_timeout().is_some(), "TIME-WAIT ends"),
            State::CloseWait | State::LastAck | State::Closing => assert!(connection.is_peer_finished()),
            State::Established | State::FinWait1 | State::FinWait2 => {
                assert!(!connection.is_peer_finished());
            }
            _ => {}
        }
    }

    /// Whoever has something to say keeps trying.
    fn at_rest(&self) {
        let info = self.connection.info();
        let is_open = !matches!(info.state, State::Closed);
        assert!(!is_open || self.connection.is_acknowledged_all(), "rests with work to do: {info:?}");
        assert!(!matches!(info.state, State::SynSent | State::SynReceived), "waits for ever: {info:?}");
    }

    /// With a silent peer it rests or gives up.
    fn leave_alone(&mut self) {
        self.poll(u32::MAX);
        // Keepalive looks in every second while retransmission goes on, for up to half an hour.
        for _ in 0..5_000 {
            let Some(at) = self.connection.next_timeout() else { return self.at_rest() };
            self.now = self.now.max(at);
            self.time_out();
            self.poll(u32::MAX);
            self.check();
        }
        panic!("never rests: {:?}", self.connection.info());
    }
}
