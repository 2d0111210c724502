//! Random operations and random, nearly right, or garbage segments against one connection: it never panics, its
//! positions only grow, it never names bytes outside the rings, and its timers make progress.

use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::Time;
use scoutline_proto::tcp::ecn::Policy;
use scoutline_proto::tcp::fast_open::Start;
use scoutline_proto::tcp::{Algorithm, Config, Connection, Keepalive, Pacing, State};
use scoutline_wire::tcp::{FastOpen, Flags, Header, Options, SackBlocks};

const RECEIVE: u32 = 20_000;
const SEND: u32 = 50_000;

#[derive(Clone, Debug)]
enum Operation {
    Segment {
        sequence: i32,
        acknowledgment: i32,
        flags: u8,
        window: u16,
        len: u32,
        timestamp: i32,
        sack: Vec<(i32, i32)>,
    },
    Garbage {
        header: Vec<u8>,
        len: u32,
    },
    Write(u64),
    Consume(u64),
    Wait(u32),
    TimeOut,
    /// Poll this often.
    Poll(u8),
    Shutdown,
    ShutdownRead,
    Close,
    Abort,
    Unreachable(bool),
    GrowReceive(u32),
    Mark,
    Switch(u8),
}

/// Mostly near the right number, at times anywhere.
fn near() -> impl Strategy<Value = i32> {
    prop_oneof![6 => Just(0), 3 => -3000..3000i32, 2 => -70_000..70_000i32, 1 => any::<i32>()]
}

fn flags() -> impl Strategy<Value = u8> {
    prop_oneof![8 => Just(0x10u8), 3 => Just(0x18), 2 => Just(0x11), 1 => Just(0x12), 1 => Just(0x02), 1 => Just(0x14), 1 => any::<u8>()]
}

fn operation() -> impl Strategy<Value = Operation> {
    let len = prop_oneof![3 => Just(0u32), 3 => 1..1500u32, 1 => 0..65_535u32];
    let sack = proptest::collection::vec((near(), near()), 0..4);
    prop_oneof![
        12 => (near(), near(), flags(), any::<u16>(), len, near(), sack).prop_map(
            |(sequence, acknowledgment, flags, window, len, timestamp, sack)| Operation::Segment {
                sequence, acknowledgment, flags, window, len, timestamp, sack
            }
        ),
        1 => (proptest::collection::vec(any::<u8>(), 20..60), 0..65_535u32)
            .prop_map(|(header, len)| Operation::Garbage { header, len }),
        4 => prop_oneof![(0..100_000u64).boxed(), any::<u64>().boxed()].prop_map(Operation::Write),
        4 => prop_oneof![(0..100_000u64).boxed(), any::<u64>().boxed()].prop_map(Operation::Consume),
        3 => (0..2_000_000u32).prop_map(Operation::Wait),
        4 => Just(Operation::TimeOut),
        8 => any::<u8>().prop_map(Operation::Poll),
        1 => prop_oneof![Just(Operation::Shutdown), Just(Operation::ShutdownRead), Just(Operation::Close), Just(Operation::Abort)],
        1 => any::<bool>().prop_map(Operation::Unreachable),
        1 => (0..2 * RECEIVE).prop_map(Operation::GrowReceive),
        1 => Just(Operation::Mark),
        1 => any::<u8>().prop_map(Operation::Switch),
    ]
}

/// What the outside can see, so that segments come near to being right.
struct Subject {
    connection: Connection,
    now: Time,
    /// What our headers said: the peer's next sequence number, and where we are.
    expected: u32,
    ours: u32,
    timestamp: u32,
    echo: u32,
    consumed: u64,
    ring: u64,
    last: (u64, u64),
}

impl Subject {
    fn poll(&mut self, times: u32) {
        for round in 0..times {
            assert!(round < 20_000, "poll_transmit comes to an end");
            let Some(transmit) = self.connection.poll_transmit(self.now) else { break };
            let header = transmit.header;
            let mut bytes = [0; 60];
            assert!(header.emit(&mut bytes) <= 60);
            if let Some(range) = &transmit.payload {
                assert!(range.start < range.end);
                assert!(range.start >= self.connection.acknowledged(), "{range:?}");
                assert!(range.end <= self.connection.acknowledged() + u64::from(SEND), "{range:?}");
                assert!(range.end - range.start <= 65_535 - 60 - 40);
            }
            assert!(transmit.segment_size > 0);
            if header.flags.contains(Flags::ACK) {
                self.expected = header.acknowledgment;
            }
            let len = transmit.payload.map_or(0, |range| (range.end - range.start) as u32);
            if !header.flags.contains(Flags::RST) {
                self.ours = header.sequence.wrapping_add(len);
            }
            if let Some((value, _)) = header.options.timestamps {
                self.echo = value;
            }
        }
    }

    fn segment(&mut self, header: &Header, len: u32) {
        let input = self.connection.on_segment(header, len, self.now);
        if let Some(deliver) = input.deliver {
            assert!(deliver.len > 0);
            assert!(u64::from(deliver.skip) + u64::from(deliver.len) <= u64::from(len));
            assert!(deliver.position >= self.last.1, "only beyond what is in order");
            assert!(
                deliver.position + u64::from(deliver.len) <= self.consumed + self.ring,
                "within the ring"
            );
            assert_eq!(deliver.in_order_to, self.connection.receive_position());
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Segment { sequence, acknowledgment, flags, window, len, timestamp, sack } => {
                let base = self.expected.wrapping_add_signed(sequence);
                let mut blocks = SackBlocks::default();
                for (left, right) in sack {
                    blocks.push(self.ours.wrapping_add_signed(left), self.ours.wrapping_add_signed(right));
                }
                let syn = flags & 0x02 != 0;
                let header = Header {
                    sequence: base,
                    acknowledgment: self.ours.wrapping_add_signed(acknowledgment),
                    flags: Flags::from_bits_retain(flags),
                    window,
                    options: Options {
                        timestamps: Some((self.timestamp.wrapping_add_signed(timestamp / 64), self.echo)),
                        sack: blocks,
                        mss: syn.then_some(window),
                        window_scale: syn.then_some(7),
                        sack_permitted: syn,
                        fast_open: None,
                    },
                    ..Header::default()
                };
                self.segment(&header, len);
            }
            Operation::Garbage { header, len } => {
                if let Ok((header, _)) = Header::parse(&header) {
                    self.segment(&header, len);
                }
            }
            Operation::Write(position) => self.connection.on_written(position),
            Operation::Consume(position) => {
                self.consumed = self.consumed.max(position.min(self.connection.receive_position()));
                self.connection.on_consumed(position);
            }
            Operation::Wait(micros) => {
                self.now += Duration::from_micros(u64::from(micros));
                self.timestamp = self.timestamp.wrapping_add(micros / 1000);
                self.time_out();
            }
            Operation::TimeOut => {
                if let Some(at) = self.connection.next_timeout() {
                    self.now = self.now.max(at);
                    self.time_out();
                }
            }
            Operation::Poll(times) => self.poll(u32::from(times)),
            Operation::Shutdown => self.connection.shutdown(),
            Operation::ShutdownRead => self.connection.shutdown_read(),
            Operation::Close => drop(self.connection.close(self.now)),
            Operation::Abort => drop(self.connection.abort()),
            Operation::Unreachable(hard) => drop(self.connection.on_unreachable(hard, self.now)),
            Operation::Mark => self.connection.on_congestion_experienced(),
            Operation::Switch(which) => {
                let all = [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Bbr, Algorithm::LedbatPlusPlus];
                self.connection.set_congestion(all[usize::from(which) % 4], self.now);
            }
            Operation::GrowReceive(size) => {
                self.ring = self.ring.max(u64::from(size));
                self.connection.set_receive_buffer(size);
            }
        }
        let now = (self.connection.acknowledged(), self.connection.receive_position());
        assert!(now.0 >= self.last.0 && now.1 >= self.last.1, "positions only grow");
        assert!(now.1 <= self.consumed + self.ring);
        self.last = now;
        let info = self.connection.info();
        assert!(info.cwnd >= 76 && u64::from(info.rcv_wnd) <= self.ring);
        if info.state == State::Closed {
            assert_eq!(self.connection.next_timeout(), None);
        }
    }

    fn time_out(&mut self) {
        if self.connection.next_timeout().is_some_and(|at| at <= self.now) {
            self.connection.on_timeout(self.now);
            let next = self.connection.next_timeout();
            assert!(next.is_none_or(|at| at > self.now), "a time-out makes progress");
        }
    }
}

fn config(choice: u8) -> Config {
    let second = Duration::from_secs(1);
    Config {
        receive_buffer: RECEIVE,
        receive_buffer_max: if choice & 1 == 0 { RECEIVE } else { 1 << 22 },
        send_buffer: SEND,
        timestamps: choice & 2 == 0,
        selective_ack: choice & 4 == 0,
        congestion: match choice >> 3 & 3 {
            0 => Algorithm::Cubic,
            1 => Algorithm::Bbr,
            2 => Algorithm::LedbatPlusPlus,
            _ => Algorithm::NewReno,
        },
        ecn: if choice.is_multiple_of(4) { Policy::Offer } else { Policy::Accept },
        pacing: match choice >> 1 & 3 {
            0 => Pacing::Always,
            1 => Pacing::LongPaths,
            _ => Pacing::Never,
        },
        keepalive: (choice & 16 == 0).then_some(Keepalive { idle: second, interval: second, count: 2 }),
        user_timeout: (choice & 32 == 0).then_some(30 * second),
        nagle: choice & 64 == 0,
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn survives_anything(
        choice in any::<u8>(), iss in any::<u32>(), irs in any::<u32>(), passive in any::<bool>(),
        open in proptest::bool::weighted(0.8), fast in proptest::option::of(0u32..3000),
        operations in proptest::collection::vec(operation(), 1..120),
    ) {
        let now = Time::from_millis(5);
        let syn = Header {
            sequence: irs, flags: Flags::SYN, window: 30_000,
            options: Options {
                mss: Some(1460), window_scale: Some(3), sack_permitted: true, timestamps: Some((1000, 0)),
                ..Options::default()
            },
            ..Header::default()
        };
        let connection = match (passive, fast) {
            (true, None) => Connection::accept(config(choice), iss, 9, &syn, now),
            (false, None) => Connection::connect(config(choice), iss, 9, now),
            (true, Some(len)) => {
                let mut connection = Connection::accept(config(choice), iss, 9, &syn, now);
                connection.begin_fast(len);
                connection
            }
            (false, Some(room)) => {
                let start = Start { option: Some(FastOpen::request()), room, waits: room % 2 == 1 };
                let mut connection = Connection::connect_fast(config(choice), iss, 9, &start, now);
                connection.on_written(u64::from(room));
                connection
            }
        };
        let begun = connection.receive_position();
        let mut subject = Subject {
            connection, now, expected: irs, ours: iss, timestamp: 1000, echo: 0, consumed: 0,
            ring: u64::from(RECEIVE), last: (0, begun),
        };
        if open {
            subject.poll(1);
            let mut answer = syn;
            answer.flags = Flags::ACK;
            answer.acknowledgment = iss.wrapping_add(1);
            if passive {
                answer.sequence = irs.wrapping_add(1 + begun as u32);
                answer.options = Options { timestamps: Some((1000, subject.echo)), ..Options::default() };
            } else {
                answer.flags |= Flags::SYN;
            }
            subject.segment(&answer, 0);
            prop_assert_eq!(subject.connection.state(), State::Established);
            subject.ours = iss.wrapping_add(1);
            subject.expected = irs.wrapping_add(1 + begun as u32);
        }
        for operation in operations {
            subject.apply(operation);
        }
        subject.poll(u32::MAX);
        // Left alone, it either rests or gives up: no timer fires for ever without a pause.
        for _ in 0..200 {
            let Some(at) = subject.connection.next_timeout() else { break };
            subject.now = subject.now.max(at);
            subject.time_out();
            subject.poll(u32::MAX);
        }
    }
}
