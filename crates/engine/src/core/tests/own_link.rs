//! Two sockets of one host: the machine's link with itself.

use scoutline_abi::api::Answer;
use scoutline_abi::layout::fast_open;
use scoutline_base::Address;
use scoutline_proto::route::{Metrics, Refusal, Route, Way};

use super::*;
use crate::settings::{OwnLink, RouteSettings};

/// 127.0.0.1 and 10.0.0.9 as calls have them.
const LOOPBACK: u64 = 0xffff_7f00_0001;
const OTHER: u64 = 0xffff_0a00_0009;

struct Alone {
    host: Host,
    /// The other end of its device's wire: nobody is there.
    wire: MemoryPartner,
    now: Time,
}

impl Alone {
    fn new(rings: u32, change: impl FnOnce(&mut EngineSettings)) -> Alone {
        let (device, wire) = wire(1, WireConfig::default());
        let own_link = |settings: &mut EngineSettings| {
            settings.own_link = Some(OwnLink::default());
            settings.host.others = vec![(DeviceId(0), [10, 0, 0, 9].into(), 24)];
            change(settings);
        };
        let host = Host::with([10, 0, 0, 1], device, rings, own_link);
        Alone { host, wire, now: Time::from_millis(1) }
    }

    fn call(&mut self, op: u32, slot: u32, arguments: [u64; 4]) -> i32 {
        self.host.call(op, slot, arguments, self.now)
    }

    fn bound(&mut self, kind: u32, address: u64, port: u64) -> u32 {
        let slot = self.host.open(kind, self.now);
        assert_eq!(self.call(call_op::BIND, slot, [address, port, 0, 0]), 0);
        slot
    }

    fn listen(&mut self, address: u64, port: u64) -> u32 {
        let listener = self.bound(slot_kind::STREAM, address, port);
        assert_eq!(self.call(call_op::LISTEN, listener, [16, 0, 0, 0]), 0);
        listener
    }

    /// A connection to this address, and its accepted end.
    fn connected(&mut self, listener: u32, address: u64, port: u64) -> (u32, u32) {
        let client = self.host.open(slot_kind::STREAM, self.now);
        assert_eq!(self.call(call_op::CONNECT, client, [address, port, 0, 0]), 0);
        let mut accepted = None;
        self.until("accepted", |alone| {
            accepted = alone.host.accept(listener);
            accepted.is_some()
        });
        (client, accepted.unwrap())
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Alone) -> bool) {
        let limit = self.now + Duration::from_secs(60);
        while !done(self) {
            assert!(self.now < limit, "never: {what}");
            self.host.settle(self.now);
            let next = self.host.core.next_timeout(self.now).unwrap_or(limit);
            self.now = next.clamp(self.now + Duration::from_micros(10), self.now + Duration::from_millis(10));
        }
    }

    /// Sends bytes from one socket to another, and sees that they arrive.
    fn carry(&mut self, from: u32, to: u32, bytes: &[u8]) {
        let (mut written, mut read) = (0, Vec::new());
        self.until("carried", |alone| {
            written += alone.host.write(from, &bytes[written..]);
            read.extend(alone.host.read(to, usize::MAX));
            read.len() == bytes.len()
        });
        assert!(read == bytes, "other bytes arrived");
    }

    fn datagram(&self, slot: u32, to: &str, port: u16, payload: &[u8]) {
        let record =
            Record { len: payload.len() as u32, address: to.parse().unwrap(), port, ..Record::default() };
        let mut bytes = record.to_bytes().to_vec();
        bytes.extend(payload);
        bytes.resize(Record::ring_len(payload.len()) as usize, 0);
        assert_eq!(self.host.write(slot, &bytes), bytes.len());
    }

    fn received(&mut self, slot: u32) -> (Record, Vec<u8>) {
        let mut bytes = Vec::new();
        self.until("a datagram", |alone| {
            bytes = alone.host.read(slot, usize::MAX);
            !bytes.is_empty()
        });
        let record = Record::from_bytes(bytes[..HEADER_LEN].try_into().unwrap());
        (record, bytes[HEADER_LEN..HEADER_LEN + record.len as usize].to_vec())
    }

    fn on_the_wire(&mut self) -> Burst {
        let mut burst = Burst::new();
        self.now += Duration::from_secs(1);
        self.wire.pull(&mut burst, usize::MAX, self.now).unwrap();
        burst
    }
}

#[test]
fn a_connection_to_every_address_of_the_host() {
    let mut alone = Alone::new(64 << 10, |_| {});
    let listener = alone.listen(0, 80);
    let bytes = pattern(1 << 20, 1);
    for address in [SERVER, OTHER, LOOPBACK] {
        let (client, server) = alone.connected(listener, address, 80);
        alone.carry(client, server, &bytes);
        alone.carry(server, client, &bytes);
        let to = alone.host.slot(client).remote_address.load();
        assert_eq!(to, alone.host.slot(client).local_address.load(), "who speaks to itself has one address");
        for slot in [client, server] {
            alone.host.request(slot, slot_request::CLOSE);
        }
    }
    assert!(alone.on_the_wire().is_empty(), "nothing of it leaves");
}

#[test]
fn rings_smaller_than_a_segment() {
    let mut alone = Alone::new(4 << 10, |_| {});
    let listener = alone.listen(SERVER, 80);
    let (client, server) = alone.connected(listener, SERVER, 80);
    let begin = alone.now;
    alone.carry(client, server, &pattern(200_000, 2));
    // 50 rings full; a sender that waited for a timer for each would take 10 s.
    assert!(alone.now.since(begin) < Duration::from_secs(2), "{:?}", alone.now.since(begin));
}

#[test]
fn nobody_listens() {
    let mut alone = Alone::new(64 << 10, |_| {});
    let listener = alone.listen(OTHER, 80);
    for (address, port) in [(SERVER, 80), (OTHER, 81), (LOOPBACK, 80)] {
        let client = alone.host.open(slot_kind::STREAM, alone.now);
        assert_eq!(alone.call(call_op::CONNECT, client, [address, port, 0, 0]), 0);
        alone.until("refused", |alone| alone.host.state(client) & slot_state::FAILED != 0);
        assert_eq!(alone.host.slot(client).error.load(Ordering::Relaxed), libc::ECONNREFUSED);
    }
    let ask = |alone: &mut Alone, kind: u32, address, port| {
        alone.call(call_op::IS_LISTENED_AT, 0, [address, port, u64::from(kind), 0])
    };
    assert_eq!(ask(&mut alone, slot_kind::STREAM, OTHER, 80), 1);
    assert_eq!(ask(&mut alone, slot_kind::STREAM, LOOPBACK, 80), 0);
    assert_eq!(ask(&mut alone, slot_kind::DATAGRAM, OTHER, 80), 0);
    alone.listen(0, 8080);
    assert_eq!(ask(&mut alone, slot_kind::STREAM, LOOPBACK, 8080), 1);
    // Loopback addresses are the kernel's to bind to.
    let slot = alone.host.open(slot_kind::STREAM, alone.now);
    assert_eq!(alone.call(call_op::BIND, slot, [LOOPBACK, 80, 0, 0]), -libc::EADDRNOTAVAIL);
    assert!(alone.host.accept(listener).is_none());
}

/// The port of a client that binds is chosen before its peer is known: on this link a second is enough.
#[test]
fn the_same_connection_again() {
    let mut alone = Alone::new(RINGS, |_| {});
    let listener = alone.listen(0, 80);
    let again = |alone: &mut Alone| {
        // With SO_REUSEADDR.
        let client = alone.host.open(slot_kind::STREAM, alone.now);
        assert_eq!(alone.call(call_op::BIND, client, [SERVER, 40_000, 1, 0]), 0);
        (client, alone.call(call_op::CONNECT, client, [SERVER, 80, 0, 0]))
    };
    let (client, made) = again(&mut alone);
    assert_eq!(made, 0);
    let mut accepted = None;
    alone.until("accepted", |alone| {
        accepted = alone.host.accept(listener);
        accepted.is_some()
    });
    let accepted = accepted.unwrap();
    // The client closes first: TIME-WAIT is its.
    alone.host.request(client, slot_request::CLOSE);
    alone.until("its end", |alone| alone.host.state(accepted) & slot_state::PEER_FINISHED != 0);
    let (refused, made) = again(&mut alone);
    assert_eq!(made, -libc::EADDRNOTAVAIL, "it is there");
    alone.host.request(refused, slot_request::CLOSE);
    alone.host.request(accepted, slot_request::CLOSE);
    let closed = alone.now;
    alone.until("a moment", |alone| alone.now.since(closed) > Duration::from_millis(500));
    // Whose program did not choose the port gets another, for a second.
    let at_any_port = |alone: &mut Alone| {
        let client = alone.host.open(slot_kind::STREAM, alone.now);
        assert_eq!(alone.call(call_op::BIND, client, [SERVER, 40_000, 1, 0]), 0);
        let any_port = fast_open::ANY_PORT << 32;
        assert_eq!(alone.call(call_op::CONNECT, client, [SERVER, 80, any_port, 0]), 0);
        (client, alone.host.slot(client).local_port.load(Ordering::Relaxed))
    };
    let (other, port) = at_any_port(&mut alone);
    assert_ne!(port, 40_000, "it is in TIME-WAIT");
    alone.host.request(other, slot_request::ABORT);
    alone.until("a second", |alone| alone.now.since(closed) > Duration::from_millis(1500));
    let (client, port) = at_any_port(&mut alone);
    assert_eq!(port, 40_000);
    let mut accepted = None;
    alone.until("accepted again", |alone| {
        accepted = alone.host.accept(listener);
        accepted.is_some()
    });
    alone.carry(client, accepted.unwrap(), b"once more");
}

#[test]
fn loopback_addresses_belong_to_paths_where_it_is_said() {
    let mut alone = Alone::new(64 << 10, |settings| settings.own_link = Some(OwnLink { loopback: true }));
    let listener = alone.listen(LOOPBACK, 80);
    let (client, server) = alone.connected(listener, LOOPBACK, 80);
    alone.carry(client, server, b"hello");
}

#[test]
fn datagrams_among_sockets_of_the_host_and_others() {
    let mut alone = Alone::new(64 << 10, |_| {});
    let server = alone.bound(slot_kind::DATAGRAM, 0, 53);
    let client = alone.bound(slot_kind::DATAGRAM, 0, 0);
    for (to, len) in [("10.0.0.1", 3), ("10.0.0.9", 0), ("127.0.0.1", 40_000)] {
        let question = pattern(len, len as u64);
        alone.datagram(client, to, 53, &question);
        let (asked, payload) = alone.received(server);
        assert_eq!((asked.address, payload == question), (to.parse::<Address>().unwrap(), true), "{to}");
        alone.datagram(server, to, asked.port, b"answer");
        assert_eq!(alone.received(client).1, b"answer");
    }
    // The same socket asks for somebody else on its device.
    assert!(alone.on_the_wire().is_empty());
    alone.datagram(client, "10.0.0.2", 53, b"out");
    alone.host.settle(alone.now);
    let asked = alone.on_the_wire();
    assert!(asked.iter().any(|frame| frame.bytes()[12..14] == [8, 6]), "a question for the neighbour");
    // And an error of the own link finds its socket.
    let connected = alone.host.open(slot_kind::DATAGRAM, alone.now);
    assert_eq!(alone.call(call_op::CONNECT, connected, [SERVER, 99, 0, 0]), 0);
    let record = Record::default();
    assert!(alone.host.write(connected, &record.to_bytes()) > 0);
    alone.until("refused", |alone| alone.host.slot(connected).error.load(Ordering::Relaxed) != 0);
    assert_eq!(alone.host.slot(connected).error.load(Ordering::Relaxed), libc::ECONNREFUSED);
    for slot in [server, client, connected] {
        alone.host.request(slot, slot_request::CLOSE);
    }
    alone.host.settle(alone.now);
    let sockets = |path: &scoutline_path::Path| super::super::paths::socket_of(path).is_some();
    assert_eq!(alone.host.core.paths.iter().filter(|path| sockets(path)).count(), 0, "side paths go too");
}

/// The paths of a socket without a peer go when it has one, and come back.
#[test]
fn a_datagram_socket_with_a_peer_hears_nobody_else() {
    let mut alone = Alone::new(64 << 10, |_| {});
    let server = alone.bound(slot_kind::DATAGRAM, 0, 53);
    let client = alone.bound(slot_kind::DATAGRAM, 0, 54);
    let paths = |alone: &Alone| alone.host.socket_paths();
    let before = paths(&alone);
    // Its peer is beyond the device.
    assert_eq!(alone.call(call_op::CONNECT, client, [SERVER + 1, 99, 0, 0]), 0);
    alone.datagram(server, "10.0.0.1", 54, b"from somebody else");
    alone.host.settle(alone.now);
    assert_eq!(alone.host.slot(client).receive_tail.load(Ordering::Acquire), 0);
    for _ in 0..3 {
        assert_eq!(alone.call(call_op::DISCONNECT, client, [0; 4]), 0);
        assert_eq!(paths(&alone), before);
        assert_eq!(alone.call(call_op::CONNECT, client, [SERVER + 1, 99, 0, 0]), 0);
        assert_eq!(alone.call(call_op::CONNECT, client, [SERVER + 1, 99, 0, 0]), 0, "again, the same");
    }
    assert_eq!(alone.call(call_op::DISCONNECT, client, [0; 4]), 0);
    alone.datagram(server, "10.0.0.1", 54, b"hello");
    assert_eq!(alone.received(client).1, b"hello");
}

/// `connect` that is refused changes nothing.
#[test]
fn a_datagram_socket_that_is_refused_a_peer_stays_as_it_was() {
    let mut alone = Alone::new(64 << 10, |_| {});
    let server = alone.bound(slot_kind::DATAGRAM, 0, 53);
    let client = alone.bound(slot_kind::DATAGRAM, 0, 54);
    let full = alone.host.core.paths.len() as u32;
    alone.host.core.paths.budget().set_limits(full, u64::MAX);
    assert_eq!(alone.call(call_op::CONNECT, client, [SERVER, 53, 0, 0]), -libc::ENOBUFS);
    assert_eq!(alone.host.state(client) & slot_state::CONNECTED, 0);
    assert_eq!(alone.host.slot(client).remote_port.load(Ordering::Relaxed), 0);
    alone.datagram(server, "10.0.0.1", 54, b"hello");
    assert_eq!(alone.received(client).1, b"hello");
}

/// What a hostile program would need: the engine itself reads what is sent here, so a file that shrinks would be a fault
/// of the daemon.
#[test]
fn files_are_not_sent_from_where_they_lie() {
    let mut alone = Alone::new(64 << 10, |_| {});
    let listener = alone.listen(SERVER, 80);
    let (client, _) = alone.connected(listener, SERVER, 80);
    assert_ne!(alone.host.state(client) & slot_state::COPIES, 0);
    let slot = alone.host.slot(client);
    slot.extents[0].len.store(16 << 10, Ordering::Relaxed);
    slot.extents_tail.store(1, Ordering::Release);
    slot.send_tail.store(16 << 10, Ordering::Release);
    alone.host.mark(client);
    alone.host.settle(alone.now);
    let end = alone.host.core.programs[&RegionId(1)].end(client);
    assert!(
        end.is_none_or(|end| end.closed.get() || end.path.get().is_none()),
        "the socket is lost, and no more"
    );
}

#[test]
fn routes_are_obeyed_and_change_live() {
    let route = |network: &str, way, device: Option<u16>| RouteSettings {
        device: device.map(DeviceId),
        route: Route {
            network: network.parse().unwrap(),
            prefix_len: 112,
            way,
            metric: 0,
            metrics: Metrics::default(),
        },
    };
    let mut alone = Alone::new(64 << 10, |settings| {
        settings.host.routes = vec![route("192.168.0.0", Way::Refuse(Refusal::Prohibit), None)];
    });
    const AWAY: u64 = 0xffff_c0a8_0001;
    let connect = |alone: &mut Alone, address| {
        let client = alone.host.open(slot_kind::STREAM, alone.now);
        alone.call(call_op::CONNECT, client, [address, 80, 0, 0])
    };
    assert_eq!(connect(&mut alone, AWAY), -libc::EACCES);
    assert_eq!(connect(&mut alone, 0xffff_0808_0808), -libc::ENETUNREACH);
    let mut live = alone.host.core.settings.live();
    live.host.routes = vec![route("192.168.0.0", Way::Via("10.0.0.254".parse().unwrap()), Some(0))];
    live.host.others = vec![(DeviceId(0), [10, 0, 0, 77].into(), 24)];
    let (done, answered) = std::sync::mpsc::channel();
    alone.host.core.obey(Command::SetLive(live, done), alone.now);
    alone.host.settle(alone.now);
    assert!(matches!(answered.try_recv(), Ok(Answer::Done)));
    assert_eq!(connect(&mut alone, AWAY), 0);
    alone.host.settle(alone.now);
    let asked = alone.on_the_wire();
    let arp = asked.iter().find(|frame| frame.bytes()[12..14] == [8, 6]).expect("a question for the router");
    assert_eq!(arp.bytes()[38..42], [10, 0, 0, 254]);
    // The new address is ours, and the old one no longer.
    let listener = alone.listen(0, 80);
    alone.connected(listener, 0xffff_0a00_004d, 80);
    assert_eq!(alone.host.core.routing.towards("10.0.0.9".parse().unwrap(), 0), Ok(0));
    let Answer::Stat(stat) = alone.host.core.answer_query(&Request::Stat, alone.now) else { panic!() };
    let shown = |to: &str| stat.routes.iter().find(|row| row.to == to).map(|row| row.kind.clone());
    assert_eq!(shown("192.168.0.0/16").as_deref(), Some("via"));
    assert_eq!(shown("10.0.0.0/24").as_deref(), Some("link"));
    assert!(stat.addresses.iter().any(|row| row.address == "10.0.0.77/24"));
}

/// A client that binds to port 0 and then connects must not meet an earlier connection to the same server (Linux takes no
/// port there that a connection has, TIME-WAIT included).
#[test]
fn a_port_that_is_chosen_before_the_peer_is_no_connections() {
    let mut alone = Alone::new(RINGS, |_| {});
    let listener = alone.listen(0, 80);
    let mut taken = Vec::new();
    for _ in 0..60 {
        let (client, accepted) = alone.connected(listener, SERVER, 80);
        taken.push(alone.host.slot(client).local_port.load(Ordering::Relaxed));
        alone.host.request(client, slot_request::CLOSE);
        alone.host.request(accepted, slot_request::CLOSE);
    }
    for _ in 0..4_000 {
        let socket = alone.bound(slot_kind::STREAM, 0, 0);
        let port = alone.host.slot(socket).local_port.load(Ordering::Relaxed);
        assert!(!taken.contains(&port), "{port} is a connection's");
    }
}
