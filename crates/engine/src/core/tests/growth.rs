//! Rings that grow with the connection's need.

use scoutline_abi::layout::slot_option;

use super::*;

/// Half of a round trip.
const DELAY: Duration = Duration::from_millis(50);

/// What stands in the slots: receive and send ring.
fn rings(host: &Host, slot: u32) -> (u32, u32) {
    let slot = host.slot(slot);
    (slot.receive_size.load(Ordering::Relaxed), slot.send_size.load(Ordering::Relaxed))
}

/// What the sockets' class is charged.
fn charged(host: &Host) -> u64 {
    host.core.policy.class(0).memory.buffer_bytes()
}

fn long_path(seed: u64, change: impl Fn(&mut EngineSettings)) -> Pair {
    let (a, b) = wire(seed, WireConfig { delay: DELAY, ..WireConfig::default() });
    Pair {
        client: Host::with([10, 0, 0, 2], a, 256 << 10, &change),
        server: Host::with([10, 0, 0, 1], b, 256 << 10, &change),
        now: Time::from_millis(1),
    }
}

/// Moves so much from the client to the server, which checks it; the time that it took.
fn upload(pair: &mut Pair, client: u32, server: u32, len: usize) -> Duration {
    let bytes = pattern(len, 5);
    let (mut sent, mut got) = (0, Vec::new());
    let begun = pair.now;
    pair.until("transfer", |pair| {
        sent += pair.client.write(client, &bytes[sent..]);
        got.extend(pair.server.read(server, usize::MAX));
        got.len() == len
    });
    assert!(got == bytes, "the streams differ");
    pair.now.since(begun)
}

#[test]
fn a_long_path_gets_larger_rings_on_both_sides() {
    let mut pair = long_path(1, |_| {});
    let (_, client, server) = pair.established(80);
    assert_eq!(rings(&pair.client, client), (64 << 10, 64 << 10), "small at first");
    assert_eq!(rings(&pair.server, server), (64 << 10, 64 << 10));
    let took = upload(&mut pair, client, server, 24 << 20);
    let (up, down) = (rings(&pair.client, client), rings(&pair.server, server));
    assert_eq!((up.1, down.0), (4 << 20, 4 << 20), "the direction that is used");
    assert_eq!((up.0, down.1), (64 << 10, 64 << 10), "and no other");
    // 64 KiB a round trip would take 38 s.
    assert!(took < Duration::from_secs(4), "{took:?}");
    let expected = (64 << 10) + (4 << 20);
    let program = pair.client.core.programs.values().next().unwrap().clone();
    assert_eq!(program.ring_bytes(), expected, "the rings before are given back");
    assert_eq!(charged(&pair.client), expected, "what is held is charged, and not more");
    pair.client.request(client, slot_request::CLOSE);
    pair.server.request(server, slot_request::CLOSE);
    pair.until("both gone", |pair| pair.client.socket_paths() == 0);
    assert_eq!((charged(&pair.client), charged(&pair.server)), (0, 0), "everything returns");
}

#[test]
fn loss_while_rings_are_exchanged_harms_nothing() {
    for seed in 0..6 {
        let mut pair = Pair::new(seed, WireConfig { loss: 0.01, reorder: 0.02, ..hard_wire() });
        let (_, client, server) = pair.established(80);
        upload(&mut pair, client, server, 3 << 20);
        assert!(
            rings(&pair.server, server).0 > RINGS && rings(&pair.client, client).1 > RINGS,
            "seed {seed}"
        );
    }
}

#[test]
fn a_program_that_does_not_read_gets_the_ordinary_ring_and_not_more() {
    let mut pair = long_path(2, |_| {});
    let (_, client, server) = pair.established(80);
    let bytes = pattern(1 << 20, 6);
    let mut sent = 0;
    for _ in 0..2_000 {
        sent += pair.client.write(client, &bytes[sent..]);
        pair.step();
    }
    assert_eq!(rings(&pair.server, server).0, 256 << 10);
    assert_eq!(rings(&pair.client, client).1, 256 << 10);
    // What a window cannot say exactly is not promised.
    assert!((512 << 10) - sent < 128, "both full: {sent}");
    let mut got = Vec::new();
    pair.until("the rest", |pair| {
        sent += pair.client.write(client, &bytes[sent..]);
        got.extend(pair.server.read(server, usize::MAX));
        got.len() == bytes.len()
    });
    assert!(got == bytes);
}

#[test]
fn what_the_program_set_is_as_far_as_its_rings_grow() {
    let mut pair = long_path(3, |_| {});
    let listener = pair.listen(80);
    let client = pair.client.open(slot_kind::STREAM, pair.now);
    pair.client.slot(client).asked_send_buffer.store(100_000, Ordering::Relaxed);
    let now = pair.now;
    assert_eq!(pair.client.call(call_op::CONNECT, client, [SERVER, 80, 0, 0], now), 0);
    let mut accepted = None;
    pair.until("accept", |pair| {
        accepted = accepted.or_else(|| pair.server.accept(listener));
        accepted.is_some()
    });
    let server = accepted.unwrap();
    pair.server.slot(server).asked_receive_buffer.store(20_000, Ordering::Relaxed);
    upload(&mut pair, client, server, 4 << 20);
    assert_eq!(rings(&pair.client, client).1, 128 << 10);
    assert_eq!(rings(&pair.server, server).0, 64 << 10, "a window never shrinks");
}

/// A ring that is there stays; SO_SNDBUF says how much of it is filled.
#[test]
fn what_the_program_sets_later_bounds_what_is_held() {
    let mut pair = long_path(4, |_| {});
    let (_, client, server) = pair.established(80);
    let region = Arc::clone(&pair.client.region);
    let slot = region.slot(client).expect("the client's");
    let set = |bytes: u32| slot.asked_send_buffer.store(bytes, Ordering::Relaxed);
    let waits = || slot.send_wanted.load(Ordering::Relaxed) == 1;
    set(8_000);
    let bytes = pattern(64 << 10, 8);
    let mut sent = pair.client.write(client, &bytes);
    assert_eq!((sent, rings(&pair.client, client).1), (16_000, 64 << 10));
    slot.send_wanted.store(1, Ordering::Relaxed);
    let told = [slot_option::SEND_BUFFER, 0, 0, 0];
    assert_eq!(pair.client.call(call_op::OPTION, client, told, pair.now), 0);
    assert!(waits(), "a full buffer, however large its ring");
    set(16_000);
    assert_eq!(pair.client.call(call_op::OPTION, client, told, pair.now), 0);
    assert!(!waits(), "there is room now");
    sent += pair.client.write(client, &bytes[sent..]);
    assert_eq!(sent, 32_000);
    // Less than what is held: nothing more goes in until that much is acknowledged.
    set(8_000);
    assert_eq!(pair.client.write(client, &bytes[sent..]), 0);
    let mut got = Vec::new();
    pair.until("the rest", |pair| {
        sent += pair.client.write(client, &bytes[sent..]);
        got.extend(pair.server.read(server, usize::MAX));
        assert!(sent <= 32_000 || pair.client.slot(client).outgoing().held() <= 16_000);
        got.len() == bytes.len()
    });
    assert!(got == bytes, "the streams differ");
}

#[test]
fn a_mark_gets_a_ring_that_holds_it() {
    let mut pair = long_path(6, |_| {});
    let (_, client, server) = pair.established(80);
    pair.server.slot(server).receive_low_water.store(200_000, Ordering::Relaxed);
    let bytes = pattern(600_000, 7);
    let mut sent = 0;
    pair.until("as much as is waited for", |pair| {
        sent += pair.client.write(client, &bytes[sent..]);
        pair.server.slot(server).incoming().held() >= 200_000
    });
    assert_eq!(rings(&pair.server, server).0, 512 << 10);
    // As far as rings grow, and no further.
    pair.server.slot(server).receive_low_water.store(u32::MAX, Ordering::Relaxed);
    let mut got = Vec::new();
    pair.until("the rest", |pair| {
        sent += pair.client.write(client, &bytes[sent..]);
        got.extend(pair.server.read(server, usize::MAX));
        got.len() == bytes.len()
    });
    assert!(got == bytes);
    assert_eq!(rings(&pair.server, server).0, 4 << 20);
}

#[test]
fn a_lock_that_is_never_let_go_keeps_its_own_rings_small() {
    let mut pair = long_path(4, |_| {});
    let (_, client, server) = pair.established(80);
    pair.client.slot(client).send_lock.store(7, Ordering::Relaxed);
    pair.server.slot(server).receive_lock.store(u32::MAX, Ordering::Relaxed);
    upload(&mut pair, client, server, 1 << 20);
    assert_eq!((rings(&pair.client, client).1, rings(&pair.server, server).0), (64 << 10, 64 << 10));
    assert_eq!(pair.client.slot(client).send_lock.load(Ordering::Relaxed), 7);
    pair.client.slot(client).send_lock.store(0, Ordering::Relaxed);
    pair.server.slot(server).receive_lock.store(0, Ordering::Relaxed);
    upload(&mut pair, client, server, 4 << 20);
    assert!(rings(&pair.client, client).1 > 64 << 10 && rings(&pair.server, server).0 > 64 << 10);
    assert_eq!(pair.client.slot(client).send_lock.load(Ordering::Relaxed), 0, "given back");
}

#[test]
fn growth_leaves_memory_to_others() {
    // 1 MiB: a receive ring of 256 KiB takes 192 KiB more, of 896 free; a send ring 256 KiB, of as many.
    let mut pair = long_path(5, |settings| settings.policy_memory[0] = Some(1 << 20));
    let (_, client, server) = pair.established(80);
    upload(&mut pair, client, server, 4 << 20);
    assert_eq!((rings(&pair.client, client).1, rings(&pair.server, server).0), (64 << 10, 256 << 10));
}

/// A path of next to no length, on which the programs fill and empty whole rings: what counts is how often, not how far.
#[test]
fn rings_at_which_program_and_network_take_turns_grow_on_a_short_path() {
    let mut pair = Pair::new(7, WireConfig::default());
    let (_, client, server) = pair.established(80);
    let bytes = pattern(48 << 20, 5);
    let (mut sent, mut got) = (0, Vec::new());
    pair.until("transfer", |pair| {
        let all_acknowledged = sent == got.len();
        if all_acknowledged {
            sent += pair.client.write(client, &bytes[sent..]);
        }
        // All that is under way is here before anything is read.
        let (receive, _) = rings(&pair.server, server);
        let slot = pair.server.slot(server);
        let waits = slot.incoming().written() - got.len() as u64;
        if waits > u64::from(receive / 2) || waits == (sent - got.len()) as u64 {
            got.extend(pair.server.read(server, usize::MAX));
        }
        got.len() == bytes.len()
    });
    assert!(got == bytes, "the streams differ");
    assert!(rings(&pair.client, client).1 > 1 << 20, "{:?}", rings(&pair.client, client));
    assert!(rings(&pair.server, server).0 > 512 << 10, "{:?}", rings(&pair.server, server));
}

/// A server that reads all the time, `pause` between two calls, as much as `takes` of what waits; the ring that it gets.
fn ring_of_who_reads_a_part(takes: impl Fn(usize) -> usize, pause: Duration) -> u32 {
    let mut pair = Pair::new(8, WireConfig::default());
    let (_, client, server) = pair.established(80);
    let bytes = pattern(24 << 20, 5);
    let (mut sent, mut got) = (0, Vec::new());
    for _ in 0..20_000 {
        sent += pair.client.write(client, &bytes[sent..]);
        let waits = pair.server.slot(server).incoming().written() - got.len() as u64;
        got.extend(pair.server.read(server, takes(waits as usize)));
        pair.step();
        pair.now += pause;
    }
    assert!(got == bytes, "{} of {} bytes, or others", got.len(), bytes.len());
    rings(&pair.server, server).0
}

#[test]
fn a_ring_that_is_never_seen_empty_grows_while_it_is_filled_in_no_time() {
    let ring = ring_of_who_reads_a_part(|waits| waits.div_ceil(5) * 3, Duration::from_micros(20));
    // As long as what stands in it is little to copy.
    assert!(ring >= 1 << 20, "{ring}");
}

#[test]
fn the_ring_of_a_slow_program_does_not_grow() {
    assert_eq!(ring_of_who_reads_a_part(|waits| waits.div_ceil(5) * 3, Duration::from_millis(2)), RINGS);
    // 100 Mbit/s in small pieces.
    assert_eq!(ring_of_who_reads_a_part(|_| 2_500, Duration::from_micros(200)), RINGS);
}

/// The program fills what the engine has just had acknowledged, half a ring, before the engine looks: that never sees it full.
#[test]
fn a_ring_that_is_never_seen_full_grows_while_it_is_emptied_in_no_time() {
    let delay = Duration::from_micros(10);
    let mut pair = Pair::new(10, WireConfig { delay, ..WireConfig::default() });
    let (_, client, server) = pair.established(80);
    let bytes = pattern(24 << 20, 5);
    let (mut sent, mut got) = (0, Vec::new());
    pair.until("transfer", |pair| {
        got.extend(pair.server.read(server, usize::MAX));
        // Its acknowledgement is on the way.
        if got.len() == sent {
            let half = rings(&pair.client, client).1 as usize / 2;
            sent += pair.client.write(client, &bytes[sent..bytes.len().min(sent + half)]);
        }
        got.len() == bytes.len()
    });
    assert!(got == bytes, "the streams differ");
    assert_eq!(rings(&pair.client, client).1, 4 << 20);
}
