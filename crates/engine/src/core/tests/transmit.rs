//! The transmit side and idle-time service, two whole engines over a wire in virtual time: rates, weights, background
//! that is suspended, held back and displaced.

use std::sync::Arc;

use scoutline_path::DropReason;
use scoutline_sched::transmit::BitRate;
use scoutline_sched::{Level, Weight};

use super::*;
use crate::link_use::LinkUse;
use crate::settings::ClassSettings;

/// 100 Mbit/s: a full frame takes 121 µs.
const RATE: u64 = 100_000_000;
const FRAME_LEN: u64 = 1514;
/// Ports of the peer that make classes.
const FOREGROUND: u64 = 80;
const OTHER: u64 = 81;
const BACKGROUND: u64 = 873;
const LARGE_RINGS: u32 = 1 << 20;
/// Long enough for shares to show.
const LONG: Duration = Duration::from_millis(400);

fn to_port(name: &str, port: u64, change: impl FnOnce(&mut ClassSettings)) -> ClassSettings {
    let mut class = ClassSettings::new(name);
    class.remote_ports = vec![port as u16..=port as u16];
    change(&mut class);
    class
}

fn background_class() -> ClassSettings {
    to_port("backup", BACKGROUND, |class| {
        class.level = Level::Idle;
        class.listen_level = Level::Idle;
    })
}

/// The client sends, with these settings; the server's are the default.
fn pair(config: WireConfig, change: impl FnOnce(&mut EngineSettings)) -> Pair {
    let (a, b) = wire(11, config);
    Pair {
        client: Host::with([10, 0, 0, 2], a, LARGE_RINGS, change),
        server: Host::new([10, 0, 0, 1], b, LARGE_RINGS),
        now: Time::from_millis(1),
    }
}

/// The wire that a rate is meant for: as fast as it says, and a queue that would take much.
fn slow_wire() -> WireConfig {
    WireConfig {
        rate_bits: Some(RATE),
        delay: Duration::from_micros(100),
        queue_limit: 10_000,
        ..WireConfig::default()
    }
}

fn paced(settings: &mut EngineSettings) {
    settings.devices[0].rate = Some(BitRate::new(RATE));
    settings.classes = vec![background_class()];
}

/// A stream from the client to the server that always has more to send.
struct Stream {
    client: u32,
    server: u32,
    received: u64,
}

impl Stream {
    fn open(pair: &mut Pair, port: u64) -> Stream {
        let (_, client, server) = pair.established(port);
        Stream { client, server, received: 0 }
    }

    fn feed(&mut self, pair: &Pair) {
        pair.client.write(self.client, &vec![7; 100_000]);
    }

    fn drain(&mut self, pair: &Pair) {
        self.received += pair.server.read(self.server, usize::MAX).len() as u64;
    }
}

/// Runs until `until`, steps of 100 µs at most; `each` is called in between.
fn run(pair: &mut Pair, until: Time, mut each: impl FnMut(&mut Pair)) {
    while pair.now < until {
        each(pair);
        let limit = pair.now + Duration::from_micros(100);
        pair.client.settle(pair.now);
        pair.server.settle(pair.now);
        pair.client.settle(pair.now);
        let next = [pair.client.core.next_timeout(pair.now), pair.server.core.next_timeout(pair.now)];
        let next = next.into_iter().flatten().min().unwrap_or(limit).min(limit).min(until);
        pair.now = next.max(pair.now + Duration::from_micros(5));
    }
}

/// What of the link's time these payload bytes are, as full segments.
fn share(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1448.0 * FRAME_LEN as f64 * 8.0 / RATE as f64 / time.as_secs_f64()
}

fn counter(host: &Host, name: &str, now: Time) -> u64 {
    let scoutline_abi::api::Answer::Stat(stat) = host.core.answer_query(&Request::Stat, now) else {
        panic!("no stat")
    };
    stat.devices.values().next().unwrap()[name]
}

#[test]
fn a_rate_is_kept_and_used() {
    // The wire itself has no rate: what arrives is what we let go.
    let mut pair =
        pair(WireConfig { delay: Duration::from_micros(100), ..WireConfig::default() }, |settings| {
            settings.devices[0].rate = Some(BitRate::new(RATE));
        });
    let mut streams = [Stream::open(&mut pair, FOREGROUND), Stream::open(&mut pair, OTHER)];
    let begin = pair.now;
    run(&mut pair, begin + LONG, |pair| {
        for stream in &mut streams {
            stream.feed(pair);
            stream.drain(pair);
        }
    });
    let used = share(streams.iter().map(|stream| stream.received).sum(), LONG);
    // What may stand below is half a millisecond of this.
    assert!((0.98..=1.002).contains(&used), "{used} of the rate");
    let parts = share(streams[0].received, LONG) / used;
    assert!((0.45..0.55).contains(&parts), "streams of one class take turns: {parts}");
}

#[test]
fn classes_of_one_level_share_by_weight() {
    let mut pair = pair(slow_wire(), |settings| {
        settings.devices[0].rate = Some(BitRate::new(RATE));
        settings.classes = vec![
            to_port("heavy", FOREGROUND, |class| class.weight = Weight::new(300)),
            to_port("light", OTHER, |class| class.weight = Weight::new(100)),
        ];
    });
    let mut streams = [Stream::open(&mut pair, FOREGROUND), Stream::open(&mut pair, OTHER)];
    let begin = pair.now;
    run(&mut pair, begin + LONG, |pair| {
        for stream in &mut streams {
            stream.feed(pair);
            stream.drain(pair);
        }
    });
    let ratio = streams[0].received as f64 / streams[1].received as f64;
    assert!((2.9..3.1).contains(&ratio), "{ratio} instead of 3");
}

#[test]
fn a_class_keeps_to_its_rate() {
    let fast = WireConfig { rate_bits: Some(4 * RATE), ..slow_wire() };
    let mut pair = pair(fast, |settings| {
        settings.classes =
            vec![to_port("slow", FOREGROUND, |class| class.rate = Some(BitRate::new(RATE / 10)))];
    });
    let mut slow = Stream::open(&mut pair, FOREGROUND);
    let mut free = Stream::open(&mut pair, OTHER);
    let begin = pair.now;
    run(&mut pair, begin + LONG, |pair| {
        for stream in [&mut slow, &mut free] {
            stream.feed(pair);
            stream.drain(pair);
        }
    });
    let used = share(slow.received, LONG);
    assert!((0.095..=0.103).contains(&used), "{used} instead of a tenth");
    assert!(free.received > 30 * slow.received, "the other class is not held up: {}", free.received);
}

/// Two engines on one link: what one has as foreground, the other's background waits for.
#[test]
fn background_of_one_engine_waits_for_foreground_of_another() {
    let link: Arc<LinkUse> = Arc::default();
    let engine = |settings: &mut EngineSettings| {
        settings.classes = vec![background_class()];
        settings.link_use = vec![Arc::clone(&link)];
    };
    let (mut one, mut other) = (pair(slow_wire(), engine), pair(slow_wire(), engine));
    let mut background = Stream::open(&mut one, BACKGROUND);
    let mut foreground = Stream::open(&mut other, 22);
    let mut beside = |active: bool| {
        (background.received, foreground.received) = (0, 0);
        let begin = one.now.max(other.now);
        for step in 1..=(LONG.as_micros() / 50) as u32 {
            let until = begin + Duration::from_micros(50) * step;
            run(&mut other, until, |pair| {
                if active {
                    foreground.feed(pair);
                }
                foreground.drain(pair);
            });
            run(&mut one, until, |pair| {
                background.feed(pair);
                background.drain(pair);
            });
        }
        (share(background.received, LONG), share(foreground.received, LONG))
    };
    let (taken, kept) = beside(true);
    assert!(kept >= 0.8 && taken <= 0.02, "foreground {kept}, background {taken}");
    beside(false); // what is still to be sent
    let (taken, kept) = beside(false);
    assert!(kept == 0.0 && taken >= 0.9, "foreground {kept}, background {taken}");
}

/// The eight cases of the paper in small: what foreground loses to background, and what background gets.
#[test]
fn background_gets_nothing_beside_busy_foreground_and_all_in_its_silence() {
    let mut pair = pair(slow_wire(), paced);
    let mut background = Stream::open(&mut pair, BACKGROUND);
    let mut foreground = Stream::open(&mut pair, FOREGROUND);
    let second = Duration::from_millis(300);
    let mut measure = |pair: &mut Pair, busy: bool| {
        let begin = pair.now;
        (foreground.received, background.received) = (0, 0);
        run(pair, begin + second, |pair| {
            background.feed(pair);
            if busy {
                foreground.feed(pair);
            }
            foreground.drain(pair);
            background.drain(pair);
        });
        (share(foreground.received, second), share(background.received, second))
    };
    measure(&mut pair, true); // slow start is over
    let (kept, taken) = measure(&mut pair, true);
    assert!(kept >= 0.99 && taken <= 0.002, "foreground {kept}, background {taken}");
    measure(&mut pair, false);
    let (_, taken) = measure(&mut pair, false);
    assert!(taken >= 0.95, "background beside silence: {taken}");
    let now = pair.now;
    let suspended = counter(&pair.client, "background-suspended-ns", now);
    assert!((500_000_000..800_000_000).contains(&suspended), "suspended for {suspended} ns");
    assert_eq!(counter(&pair.client, "rate-bits", now), RATE);
}

/// What stands below is one frame that is sent and one that waits; so a foreground packet waits for two at most.
#[test]
fn one_background_frame_waits_where_it_cannot_be_recalled() {
    let mut pair = pair(slow_wire(), paced);
    let mut background = Stream::open(&mut pair, BACKGROUND);
    let probe = Probe::new(&mut pair);
    let mut random = Random::new(5);
    let frame = Duration::from_nanos(FRAME_LEN * 8 * 1_000_000_000 / RATE);
    let mut most = 0;
    let mut worst = Duration::ZERO;
    for _ in 0..50 {
        let silent = pair.now + Duration::from_micros(3_000 + u64::from(random.below(3_000)));
        run(&mut pair, silent, |pair| {
            background.feed(pair);
            background.drain(pair);
            most = most.max(pair.client.core.nets[0].device.standing().unwrap());
        });
        let asked = pair.now;
        probe.send(&pair);
        let mut heard = None;
        while heard.is_none() {
            let next = pair.now + Duration::from_micros(5);
            run(&mut pair, next, |pair| {
                background.feed(pair);
                background.drain(pair);
                let now = pair.now;
                heard = heard.or(probe.came(pair).then_some(now));
            });
        }
        worst = worst.max(heard.unwrap().since(asked));
    }
    assert!(most > FRAME_LEN && most <= 2 * FRAME_LEN, "{most} bytes stood below");
    let own = Duration::from_micros(100 + 10 + 20); // the wire, its own frame, the steps of this test
    assert!(worst <= 2 * frame + own, "{worst:?}");
}

/// The interval that was asked for holds, and 0 is plain priority.
#[test]
fn the_preemption_interval() {
    for (interval_us, least, most) in [(0, 0.85, 1.0), (3_000, 0.0, 0.01)] {
        let mut pair = pair(slow_wire(), |settings| {
            paced(settings);
            settings.devices[0].preemption = Preemption::Fixed(Duration::from_micros(interval_us));
        });
        let mut background = Stream::open(&mut pair, BACKGROUND);
        let probe = Probe::new(&mut pair);
        let warm = pair.now + Duration::from_millis(300);
        run(&mut pair, warm, |pair| {
            background.feed(pair);
            background.drain(pair);
        });
        background.received = 0;
        let (begin, mut next) = (pair.now, pair.now);
        run(&mut pair, begin + Duration::from_millis(500), |pair| {
            background.feed(pair);
            background.drain(pair);
            if pair.now >= next {
                probe.send(pair);
                probe.came(pair);
                next = pair.now + Duration::from_millis(2);
            }
        });
        let taken = share(background.received, Duration::from_millis(500));
        assert!((least..=most).contains(&taken), "{interval_us} µs: background got {taken}");
    }
}

/// A full link in one direction does not slow the other, whose acknowledgments share it.
#[test]
fn acknowledgments_are_not_starved() {
    let alone = download_beside_uploads(0);
    let beside = download_beside_uploads(8);
    assert!(beside > 0.9 * alone, "{beside} beside uploads, {alone} alone");
}

fn download_beside_uploads(uploads: usize) -> f64 {
    let mut pair = pair(slow_wire(), paced);
    let (_, client, server) = pair.established(22);
    let mut up: Vec<Stream> =
        (0..uploads).map(|number| Stream::open(&mut pair, 100 + number as u64)).collect();
    let mut received = 0;
    let begin = pair.now;
    run(&mut pair, begin + Duration::from_millis(500), |pair| {
        for stream in &mut up {
            stream.feed(pair);
            stream.drain(pair);
        }
        pair.server.write(server, &vec![1; 100_000]);
        received += pair.client.read(client, usize::MAX).len() as u64;
    });
    share(received, Duration::from_millis(500))
}

#[test]
fn background_is_marked_unless_its_class_says_otherwise() {
    for (mark, tos) in [(None, 0b00_0001 << 2), (Some(10), 10 << 2)] {
        let mut pair = pair(WireConfig::default(), |settings| {
            settings.classes = vec![ClassSettings { mark, ..background_class() }];
        });
        Stream::open(&mut pair, BACKGROUND);
        let seen = pair.server.core.extras.iter().find_map(|extra| extra.flow.and(extra.tos));
        assert_eq!(seen, Some(tos));
        Stream::open(&mut pair, FOREGROUND);
        let seen: Vec<_> =
            pair.server.core.extras.iter().filter_map(|extra| extra.flow.and(extra.tos)).collect();
        assert_eq!(seen, [tos, 0]);
    }
}

/// A datagram socket to a port, and records written to it.
struct Datagrams {
    slot: u32,
}

impl Datagrams {
    fn bound(host: &mut Host, port: u64, now: Time) -> Datagrams {
        let slot = host.open(slot_kind::DATAGRAM, now);
        assert_eq!(host.call(call_op::BIND, slot, [0, port, 0, 0], now), 0);
        Datagrams { slot }
    }

    fn connected(host: &mut Host, port: u64, now: Time) -> Datagrams {
        let slot = host.open(slot_kind::DATAGRAM, now);
        assert_eq!(host.call(call_op::CONNECT, slot, [SERVER, port, 0, 0], now), 0);
        Datagrams { slot }
    }

    /// False when the ring has no room: a program gets EAGAIN, or waits.
    fn send(&self, host: &Host, payload: &[u8]) -> bool {
        let slot = host.slot(self.slot);
        let ahead = slot.send_tail.load(Ordering::Relaxed) - slot.send_head.load(Ordering::Acquire);
        let needed = Record::ring_len(payload.len());
        if ahead + needed > u64::from(slot.send_size.load(Ordering::Acquire)) {
            return false;
        }
        let mut bytes = Record {
            len: payload.len() as u32,
            address: scoutline_base::Address::default(),
            port: 0,
            ..Record::default()
        }
        .to_bytes()
        .to_vec();
        bytes.extend(payload);
        bytes.resize(needed as usize, 0);
        assert_eq!(host.write(self.slot, &bytes), bytes.len());
        true
    }

    /// Datagrams that came since the last time.
    fn receive(&self, host: &Host) -> usize {
        let bytes = host.read(self.slot, usize::MAX);
        let (mut at, mut count) = (0, 0);
        while at < bytes.len() {
            let record = Record::from_bytes(bytes[at..at + HEADER_LEN].try_into().unwrap());
            at += Record::ring_len(record.len as usize) as usize;
            count += 1;
        }
        count
    }
}

/// A small foreground packet now and then.
struct Probe {
    from: Datagrams,
    to: Datagrams,
}

impl Probe {
    fn new(pair: &mut Pair) -> Probe {
        let now = pair.now;
        let to = Datagrams::bound(&mut pair.server, FOREGROUND, now);
        Probe { from: Datagrams::connected(&mut pair.client, FOREGROUND, now), to }
    }

    fn send(&self, pair: &Pair) {
        assert!(self.from.send(&pair.client, b"now"));
    }

    fn came(&self, pair: &Pair) -> bool {
        self.to.receive(&pair.server) > 0
    }
}

/// A background sender of datagrams fills its socket's ring and has to wait; nothing that it was allowed to send is
/// lost.
#[test]
fn background_datagrams_are_held_back_not_lost() {
    let mut pair = pair(slow_wire(), paced);
    let now = pair.now;
    let receiver = Datagrams::bound(&mut pair.server, BACKGROUND, now);
    let sender = Datagrams::connected(&mut pair.client, BACKGROUND, now);
    let mut foreground = Stream::open(&mut pair, FOREGROUND);
    let (mut sent, mut refused, mut received) = (0, 0, 0);
    let begin = pair.now;
    run(&mut pair, begin + Duration::from_millis(300), |pair| {
        foreground.feed(pair);
        foreground.drain(pair);
        if sender.send(&pair.client, &[3; 1000]) {
            sent += 1;
        } else {
            refused += 1;
        }
        received += receiver.receive(&pair.server);
    });
    assert!(refused > 100 && received < 10, "{sent} sent, {refused} refused, {received} received");
    let silent = pair.now + Duration::from_millis(500);
    run(&mut pair, silent, |pair| {
        foreground.drain(pair);
        received += receiver.receive(&pair.server);
    });
    assert_eq!(received, sent);
}

/// Background that waits in full buffers is dropped, and counted, when a foreground packet needs them.
#[test]
fn foreground_displaces_background_from_full_buffers() {
    let limit = 64 << 10;
    let (a, b) = wire(12, WireConfig::default());
    let mut pair = Pair {
        client: Host::new([10, 0, 0, 2], a, LARGE_RINGS),
        server: Host::with([10, 0, 0, 1], b, LARGE_RINGS, |settings| {
            settings.queue_packets = 1000;
            settings.devices[0].preemption = Preemption::Fixed(Duration::from_millis(50));
            let mut class = ClassSettings::new("backup");
            class.level = Level::Idle;
            class.local_ports = vec![BACKGROUND as u16..=BACKGROUND as u16];
            settings.classes = vec![class];
        }),
        now: Time::from_millis(1),
    };
    let now = pair.now;
    let (low, high) = (
        Datagrams::bound(&mut pair.server, BACKGROUND, now),
        Datagrams::bound(&mut pair.server, FOREGROUND, now),
    );
    let (to_low, to_high) = (
        Datagrams::connected(&mut pair.client, BACKGROUND, now),
        Datagrams::connected(&mut pair.client, FOREGROUND, now),
    );
    let settle = |pair: &mut Pair| {
        let next = pair.now + Duration::from_millis(1);
        run(pair, next, |_| {});
    };
    // Foreground is there, so background waits in its queue, which takes all that the engine may hold.
    assert!(to_high.send(&pair.client, &[1; 1000]));
    settle(&mut pair);
    assert_eq!(high.receive(&pair.server), 1);
    let held = pair.server.core.paths.budget().buffer_bytes();
    pair.server.core.paths.budget().set_limits(1000, held + limit);
    for _ in 0..100 {
        assert!(to_low.send(&pair.client, &[2; 1000]));
    }
    settle(&mut pair);
    assert!(pair.server.core.paths.budget().buffer_bytes() > held + limit - 2000, "full");
    for _ in 0..20 {
        assert!(to_high.send(&pair.client, &[1; 1000]));
    }
    settle(&mut pair);
    assert_eq!(high.receive(&pair.server), 20, "no foreground packet is lost");
    let now = pair.now;
    let displaced = counter(&pair.server, "displaced", now);
    assert!((1..=20).contains(&displaced), "{displaced} displaced");
    let path =
        pair.server.core.paths.iter().find(|path| path.account.drops(DropReason::Displaced) > 0).unwrap();
    assert_eq!(u64::from(path.account.drops(DropReason::Displaced)), displaced, "counted where it was lost");
    let refused = u64::from(path.account.drops(DropReason::MemoryLimit));
    assert_eq!(low.receive(&pair.server), 0, "and nothing of background was worked on");
    let quiet = pair.now + Duration::from_millis(100);
    run(&mut pair, quiet, |_| {});
    assert_eq!(low.receive(&pair.server) as u64, 100 - refused - displaced, "what was kept arrives");
}

/// Priorities count on a device that is its own bottleneck, without a rate being configured.
#[test]
fn a_device_that_is_full_takes_the_important_first() {
    let config = WireConfig {
        rate_bits: Some(RATE),
        queue_limit: 20,
        when_full: scoutline_device::memory::WhenFull::Refuse,
        ..WireConfig::default()
    };
    let mut pair = pair(config, |settings| {
        settings.classes = vec![to_port("first", FOREGROUND, |class| class.level = Level::Priority(5))];
    });
    let mut bulk = Stream::open(&mut pair, OTHER);
    let important = Stream::open(&mut pair, FOREGROUND);
    let warm = pair.now + Duration::from_millis(300);
    run(&mut pair, warm, |pair| {
        bulk.feed(pair);
        bulk.drain(pair);
    });
    assert!(share(bulk.received, Duration::from_millis(300)) > 0.8);
    let asked = pair.now;
    pair.client.write(important.client, b"now");
    let mut heard = None;
    while heard.is_none() {
        let next = pair.now + Duration::from_micros(50);
        run(&mut pair, next, |pair| {
            bulk.feed(pair);
            bulk.drain(pair);
            let now = pair.now;
            heard = heard.or((!pair.server.read(important.server, 10).is_empty()).then_some(now));
        });
    }
    // What the device held already, and one super-segment that was cut into it: 65 frames.
    let waited = heard.unwrap().since(asked);
    assert!(waited < Duration::from_millis(10), "{waited:?}");
}

/// Two hosts with a connection of each kind, ordinary and important to the client.
fn ordinary_and_important() -> (Pair, Stream, Stream) {
    let mut pair = pair(WireConfig::default(), |settings| {
        settings.classes = vec![to_port("first", FOREGROUND, |class| class.level = Level::Priority(5))];
    });
    let ordinary = Stream::open(&mut pair, OTHER);
    let important = Stream::open(&mut pair, FOREGROUND);
    (pair, ordinary, important)
}

/// The client's pushes while it does what is to be done now, and its program writes to this connection.
fn pushes(pair: &mut Pair, ordinary: &Stream) -> u64 {
    let before = pair.client.core.counters.pushes;
    pair.client.write(ordinary.client, b"later");
    pair.client.settle(pair.now);
    pair.client.core.counters.pushes - before
}

/// What somebody waits for is sent before anything less important is worked on.
#[test]
fn what_is_awaited_is_sent_at_once() {
    let (mut pair, ordinary, important) = ordinary_and_important();
    pair.client.write(important.client, b"now");
    assert_eq!(pushes(&mut pair, &ordinary), 2);
}

/// Nobody waits for the acknowledgment of a FIN: it is not worth a push of its own.
#[test]
fn what_nobody_waits_for_goes_with_what_goes_next() {
    let (mut pair, ordinary, important) = ordinary_and_important();
    pair.server.request(important.server, slot_request::SHUTDOWN);
    pair.server.settle(pair.now);
    pair.now += WireConfig::default().delay;
    assert_eq!(pushes(&mut pair, &ordinary), 1);
    assert_ne!(pair.client.state(important.client) & slot_state::PEER_FINISHED, 0);
    let acknowledged = |pair: &mut Pair| {
        pair.client.request(important.client, slot_request::SHUTDOWN);
        pair.server.state(important.server) & slot_state::PEER_FINISHED != 0
    };
    pair.until("the other end", acknowledged);
}
