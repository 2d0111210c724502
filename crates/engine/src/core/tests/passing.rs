//! Sockets that one program passes to another.

use scoutline_abi::stand_in;

use super::*;

/// A pair whose server host has a second program: its region.
fn with_other(seed: u64) -> (Pair, Arc<Region>) {
    let config = WireConfig { delay: Duration::from_millis(1), ..WireConfig::default() };
    let mut pair = Pair::new(seed, config);
    let region = with_program(&mut pair, 2, ProgramFacts::default());
    (pair, region)
}

/// One more program on the server's host.
fn with_program(pair: &mut Pair, number: u32, facts: ProgramFacts) -> Arc<Region> {
    let (region, _fd) = Region::create().unwrap();
    let region = Arc::new(region);
    let add = Command::AddRegion {
        id: RegionId(number),
        region: Arc::clone(&region),
        program: ProgramFacts { name: format!("other {number}"), ..facts },
        pid: number,
        key: None,
        bells: Vec::new(),
    };
    pair.server.core.obey(add, pair.now);
    let record = region.process(0).unwrap();
    record.alive.store(1, Ordering::Release);
    record.pid.store(number, Ordering::Relaxed);
    region
}

/// Does something as the second program.
fn as_other<T>(pair: &mut Pair, other: &mut Arc<Region>, act: impl FnOnce(&mut Host) -> T) -> T {
    std::mem::swap(&mut pair.server.region, other);
    let done = act(&mut pair.server);
    std::mem::swap(&mut pair.server.region, other);
    done
}

/// The first program passes a socket, as the shim does: what stands for it.
fn pass(host: &Host, slot: u32) -> u64 {
    host.slot(slot).references.store(2, Ordering::Relaxed);
    host.slot(slot).in_flight.store(1, Ordering::Relaxed);
    stand_in::word(host.region.header().stand_in_key.load(Ordering::Relaxed), slot)
}

fn take(pair: &mut Pair, other: &mut Arc<Region>, word: u64) -> i32 {
    let now = pair.now;
    as_other(pair, other, |host| host.call(call_op::TAKE, 0, [word, 0, 0, 0], now))
}

fn close(host: &Host, slot: u32) {
    host.slot(slot).references.store(0, Ordering::Relaxed);
    host.request(slot, slot_request::CLOSE);
}

/// A connection: the client's slot and the server's.
fn connected(pair: &mut Pair) -> (u32, u32) {
    let listener = pair.listen(80);
    let client = pair.connect(80);
    let mut accepted = None;
    pair.until("a connection", |pair| {
        accepted = pair.server.accept(listener);
        accepted.is_some()
    });
    close(&pair.server, listener);
    (client, accepted.unwrap())
}

fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_stream_moves_with_what_stands_in_its_rings() {
    let (mut pair, mut other) = with_other(31);
    let (client, passed) = connected(&mut pair);
    // Unread, and in part read: the rings have wrapped.
    assert_eq!(pair.client.write(client, &pattern(0, 60_000)), 60_000);
    pair.until("the first bytes", |pair| {
        pair.server.slot(passed).receive_tail.load(Ordering::Acquire) == 60_000
    });
    assert_eq!(pair.server.read(passed, 50_000), pattern(0, 50_000));
    pair.until("room", |pair| pair.client.slot(client).send_head.load(Ordering::Acquire) == 60_000);
    assert_eq!(pair.client.write(client, &pattern(60_000, 30_000)), 30_000);
    pair.until("the next bytes", |pair| {
        pair.server.slot(passed).receive_tail.load(Ordering::Acquire) == 90_000
    });
    // Written, and not sent.
    assert_eq!(pair.server.write(passed, &pattern(0, 40_000)), 40_000);
    let word = pass(&pair.server, passed);
    let taken = take(&mut pair, &mut other, word);
    assert!(taken >= 0, "TAKE: {taken}");
    let taken = taken as u32;
    assert_eq!(as_other(&mut pair, &mut other, |host| host.read(taken, usize::MAX)), pattern(50_000, 40_000));
    let wrote = as_other(&mut pair, &mut other, |host| host.write(taken, &pattern(40_000, 20_000)));
    assert_eq!(wrote, 20_000);
    let mut got = Vec::new();
    pair.until("all of it", |pair| {
        got.extend(pair.client.read(client, usize::MAX));
        got.len() >= 60_000
    });
    assert!(got == pattern(0, 60_000), "the stream goes on where it was");
    // What comes is the new owner's, and the old one can do nothing but close.
    pair.client.write(client, b"for whom?");
    let mut came = Vec::new();
    pair.until("the question", |pair| {
        came.extend(as_other(pair, &mut other, |host| host.read(taken, usize::MAX)));
        came.len() >= 9
    });
    assert_eq!(came, b"for whom?");
    assert!(pair.server.read(passed, usize::MAX).is_empty());
    assert_ne!(pair.server.slot(passed).requests.load(Ordering::Relaxed) & slot_request::SHUTDOWN, 0);
    close(&pair.server, passed);
    as_other(&mut pair, &mut other, |host| close(host, taken));
    pair.until("the end", |pair| pair.client.state(client) & slot_state::PEER_FINISHED != 0);
    close(&pair.client, client);
    pair.until("nothing left", |pair| {
        pair.server.socket_paths() == 0
            && pair.server.core.programs.values().all(|program| program.ring_bytes() == 0)
    });
}

#[test]
fn a_listening_socket_moves_with_its_queue_and_what_is_half_open() {
    let (mut pair, mut other) = with_other(32);
    let listener = pair.listen(80);
    let first = pair.connect(80);
    pair.until("a connection in the queue", |pair| {
        pair.server.slot(listener).receive_tail.load(Ordering::Acquire) == 1
    });
    assert_eq!(pair.client.write(first, b"early"), 5);
    // Its SYN has come, and no more.
    let before = pair.server.socket_paths();
    let second = pair.connect(80);
    pair.until("a SYN", |pair| pair.server.socket_paths() > before);
    assert_eq!(pair.server.slot(listener).receive_tail.load(Ordering::Acquire), 1);
    let word = pass(&pair.server, listener);
    let taken = take(&mut pair, &mut other, word);
    assert!(taken >= 0, "TAKE: {taken}");
    let taken = taken as u32;
    let third = pair.connect(80);
    let mut accepted = Vec::new();
    pair.until("three connections", |pair| {
        accepted.extend(as_other(pair, &mut other, |host| host.accept(taken)));
        accepted.len() == 3
    });
    assert_eq!(pair.server.accept(listener), None);
    pair.until("what was sent early", |pair| {
        as_other(pair, &mut other, |host| host.read(accepted[0], usize::MAX)) == b"early"
    });
    for (at, client) in [first, second, third].into_iter().enumerate() {
        as_other(&mut pair, &mut other, |host| host.write(accepted[at], b"hello"));
        pair.until("an answer", |pair| pair.client.read(client, usize::MAX) == b"hello");
    }
    // Closed by who passed it, it still listens; closed by who has it, it does not.
    close(&pair.server, listener);
    let fourth = pair.connect(80);
    pair.until("one more", |pair| as_other(pair, &mut other, |host| host.accept(taken)).is_some());
    assert_ne!(pair.client.state(fourth) & slot_state::CONNECTED, 0);
    as_other(&mut pair, &mut other, |host| close(host, taken));
    let fifth = pair.connect(80);
    pair.until("a refusal", |pair| pair.client.state(fifth) & slot_state::FAILED != 0);
}

#[test]
fn a_datagram_socket_moves_with_what_waits() {
    let (mut pair, mut other) = with_other(33);
    let now = pair.now;
    let socket = pair.server.open(slot_kind::DATAGRAM, now);
    assert_eq!(pair.server.call(call_op::BIND, socket, [0xffff_0000_0000, 53, 0, 0], now), 0);
    let client = pair.client.open(slot_kind::DATAGRAM, now);
    assert_eq!(pair.client.call(call_op::CONNECT, client, [SERVER, 53, 0, 0], now), 0);
    let send = |pair: &Pair, payload: &[u8; 64]| {
        let header = Record { len: 64, ..Record::default() }.to_bytes();
        assert_eq!(pair.client.write(client, &[&header[..], payload].concat()), 128);
    };
    send(&pair, &[1; 64]);
    pair.until("one", |pair| pair.server.slot(socket).receive_tail.load(Ordering::Acquire) == 128);
    let word = pass(&pair.server, socket);
    let taken = take(&mut pair, &mut other, word);
    assert!(taken >= 0, "TAKE: {taken}");
    let taken = taken as u32;
    send(&pair, &[2; 64]);
    let mut got = Vec::new();
    pair.until("both", |pair| {
        got.extend(as_other(pair, &mut other, |host| host.read(taken, usize::MAX)));
        got.len() == 256
    });
    assert!(got[HEADER_LEN..128] == [1; 64] && got[128 + HEADER_LEN..] == [2; 64]);
    close(&pair.server, socket);
    as_other(&mut pair, &mut other, |host| close(host, taken));
    pair.until("nothing left", |pair| pair.server.socket_paths() == 0);
}

#[test]
fn only_what_was_passed_is_taken() {
    let (mut pair, mut other) = with_other(34);
    let (_, passed) = connected(&mut pair);
    let word = pass(&pair.server, passed);
    let now = pair.now;
    assert_eq!(pair.server.call(call_op::TAKE, 0, [word, 0, 0, 0], now), -libc::EINVAL, "one's own");
    assert_eq!(take(&mut pair, &mut other, word ^ 1 << 40), -libc::EBADF, "another key");
    assert_eq!(take(&mut pair, &mut other, word ^ 0x100), -libc::EBADF, "another slot");
    assert_eq!(take(&mut pair, &mut other, 125_000_000), -libc::EBADF, "a rate");
    // A thread is copying.
    pair.server.slot(passed).receive_lock.store(1, Ordering::Relaxed);
    assert_eq!(take(&mut pair, &mut other, word), -libc::EAGAIN);
    pair.server.slot(passed).receive_lock.store(0, Ordering::Relaxed);
    pair.server.slot(passed).in_flight.store(0, Ordering::Relaxed);
    assert_eq!(take(&mut pair, &mut other, word), -libc::EBADF, "nothing is under way");
    pair.server.slot(passed).in_flight.store(1, Ordering::Relaxed);
    assert!(take(&mut pair, &mut other, word) >= 0);
    assert_eq!(take(&mut pair, &mut other, word), -libc::EBADF, "once");
    for (pid, on_paths) in [(2, 1), (3, 0)] {
        assert_eq!(pair.server.call(call_op::IS_ON_PATHS, 0, [pid, 0, 0, 0], now), on_paths);
    }
}

#[test]
fn a_socket_that_is_passed_twice_is_one_for_who_takes_it() {
    let (mut pair, mut other) = with_other(38);
    let (client, passed) = connected(&mut pair);
    let word = pass(&pair.server, passed);
    pair.server.slot(passed).references.store(3, Ordering::Relaxed);
    pair.server.slot(passed).in_flight.store(2, Ordering::Relaxed);
    let taken = take(&mut pair, &mut other, word);
    assert!(taken >= 0, "TAKE: {taken}");
    let again = take(&mut pair, &mut other, word);
    assert_eq!(again, taken | stand_in::CAME_BEFORE as i32);
    let counts = as_other(&mut pair, &mut other, |host| {
        let slot = host.slot(taken as u32);
        (slot.references.load(Ordering::Relaxed), slot.in_flight.load(Ordering::Relaxed))
    });
    assert_eq!(counts, (2, 1), "the second is under way to who has the first");
    assert_eq!(take(&mut pair, &mut other, word), -libc::EBADF, "nothing is under way any more");
    pair.client.write(client, b"once");
    let mut came = Vec::new();
    pair.until("what was written", |pair| {
        came.extend(as_other(pair, &mut other, |host| host.read(taken as u32, usize::MAX)));
        came.len() >= 4
    });
    assert_eq!(came, b"once");
}

#[test]
fn several_programs_share_what_comes_to_a_listener_that_each_was_passed() {
    let (mut pair, mut second) = with_other(40);
    // It could not bind there itself.
    let facts = ProgramFacts { first_port: 1024, ..ProgramFacts::default() };
    let mut third = with_program(&mut pair, 3, facts);
    let listener = pair.listen(80);
    let word = pass(&pair.server, listener);
    let taken = |pair: &mut Pair, region: &mut Arc<Region>| {
        pair.server.slot(listener).references.store(2, Ordering::Relaxed);
        pair.server.slot(listener).in_flight.store(1, Ordering::Relaxed);
        let taken = take(pair, region, word);
        assert!(taken >= 0, "TAKE: {taken}");
        taken as u32
    };
    let (first, other) = (taken(&mut pair, &mut second), taken(&mut pair, &mut third));
    assert_eq!(taken(&mut pair, &mut third), other | stand_in::CAME_BEFORE);
    let mut counts = [0, 0];
    let accept =
        |pair: &mut Pair, second: &mut Arc<Region>, third: &mut Arc<Region>, counts: &mut [u32; 2]| {
            counts[0] += u32::from(as_other(pair, second, |host| host.accept(first)).is_some());
            counts[1] += u32::from(as_other(pair, third, |host| host.accept(other)).is_some());
            counts[0] + counts[1]
        };
    for connections in 1..=16 {
        pair.connect(80);
        pair.until("a connection", |pair| accept(pair, &mut second, &mut third, &mut counts) == connections);
    }
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    // One goes, and the other has all; both go, and who comes has the port anew, which only who passed it may have.
    as_other(&mut pair, &mut second, |host| close(host, first));
    let before = counts[1];
    for connections in 1..=4 {
        pair.connect(80);
        pair.until("one more", |pair| {
            counts[1] += u32::from(as_other(pair, &mut third, |host| host.accept(other)).is_some());
            counts[1] == before + connections
        });
    }
    as_other(&mut pair, &mut third, |host| {
        host.slot(other).in_flight.store(0, Ordering::Relaxed);
        close(host, other);
    });
    let refused = pair.connect(80);
    pair.until("a refusal", |pair| pair.client.state(refused) & slot_state::FAILED != 0);
    let anew = taken(&mut pair, &mut third);
    pair.connect(80);
    pair.until("the last", |pair| as_other(pair, &mut third, |host| host.accept(anew)).is_some());
}

#[test]
fn datagrams_are_shared_by_those_who_were_passed_their_socket_and_by_no_stranger() {
    let (mut pair, mut second) = with_other(41);
    let mut third = with_program(&mut pair, 3, ProgramFacts::default());
    let now = pair.now;
    let socket = pair.server.open(slot_kind::DATAGRAM, now);
    let place = [0xffff_0000_0000, 53, 0, 0];
    assert_eq!(pair.server.call(call_op::BIND, socket, place, now), 0);
    let word = pass(&pair.server, socket);
    pair.server.slot(socket).references.store(3, Ordering::Relaxed);
    pair.server.slot(socket).in_flight.store(2, Ordering::Relaxed);
    let ends = [take(&mut pair, &mut second, word), take(&mut pair, &mut third, word)];
    assert!(ends.iter().all(|&end| end >= 0), "TAKE: {ends:?}");
    let stranger = pair.server.open(slot_kind::DATAGRAM, now);
    let by_address = [place[0], place[1], 1, 0];
    assert_eq!(pair.server.call(call_op::BIND, stranger, by_address, now), -libc::EADDRINUSE);
    let mut came = [0, 0];
    for number in 1..=16 {
        let client = pair.client.open(slot_kind::DATAGRAM, now);
        assert_eq!(pair.client.call(call_op::CONNECT, client, [SERVER, 53, 0, 0], now), 0);
        let header = Record { len: 64, ..Record::default() }.to_bytes();
        assert_eq!(pair.client.write(client, &[&header[..], &[1; 64]].concat()), 128);
        pair.until("a datagram", |pair| {
            came[0] += as_other(pair, &mut second, |host| host.read(ends[0] as u32, usize::MAX)).len();
            came[1] += as_other(pair, &mut third, |host| host.read(ends[1] as u32, usize::MAX)).len();
            came[0] + came[1] == number * 128
        });
    }
    assert!(came.iter().all(|&bytes| bytes > 0), "{came:?}");
}

#[test]
fn who_has_closed_what_it_took_gets_nothing_the_second_time() {
    let (mut pair, mut other) = with_other(39);
    let (_, passed) = connected(&mut pair);
    let word = pass(&pair.server, passed);
    pair.server.slot(passed).references.store(3, Ordering::Relaxed);
    pair.server.slot(passed).in_flight.store(2, Ordering::Relaxed);
    let taken = take(&mut pair, &mut other, word);
    as_other(&mut pair, &mut other, |host| close(host, taken as u32));
    assert_eq!(take(&mut pair, &mut other, word), -libc::EBADF);
    assert_eq!(pair.server.slot(passed).in_flight.load(Ordering::Relaxed), 0);
}
