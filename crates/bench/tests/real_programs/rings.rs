//! io_uring beside paths: a ring's operations are the kernel's, and so is a socket that one names; all else stays.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use scoutline_bench::process::Process;

use crate::fixture::{Arm, Fixture, SOON, find, script, wait_for_line};

/// How `rings.c` makes its calls.
const BY_NUMBER: &[&str] = &[];
const BY_LIBRARY: &[&str] = &["-DLIBURING", "-l:liburing.so.2"];
const BY_INSTRUCTION: &[&str] = &["-DDIRECT"];

/// `rings.c`, built.
fn rings(fixture: &Fixture, how: &[&str]) -> PathBuf {
    let program = fixture.file("rings");
    let built = Command::new(find("gcc"))
        .args(["-O1", "-Wall", "-o"])
        .args([program.as_os_str(), script("rings.c").as_ref()])
        .args(how)
        .status()
        .unwrap();
    assert!(built.success());
    program
}

/// An echo server of the other host: where it is.
fn echo(fixture: &Fixture) -> (Process, [String; 2]) {
    let mut echo = fixture.start_peer("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut echo, "ready");
    (echo, [fixture.peer_address().to_string(), "7000".to_owned()])
}

/// An address of the network between the hosts that no one has.
fn nobody(fixture: &Fixture) -> String {
    let [a, b, c, _] = fixture.peer_address().octets();
    Ipv4Addr::new(a, b, c, 200).to_string()
}

/// What `stat` says of the program.
fn row(fixture: &Fixture) -> serde_json::Value {
    let stat = fixture.ask("stat");
    let programs = stat["programs"].as_array().expect("programs");
    programs
        .iter()
        .find(|row| row["name"] == "rings")
        .unwrap_or_else(|| panic!("our program: {stat}"))
        .clone()
}

/// Rings that it has, that it was refused, and sockets that its rings have named.
fn assert_counted(fixture: &Fixture, counted: [u64; 3]) {
    let row = row(fixture);
    let found = ["rings_left", "rings_refused", "ring_sockets"].map(|name| row[name].as_u64());
    assert_eq!(found, counted.map(Some), "{row}");
}

/// Lines about each: sockets that have become the kernel's, that have stand-ins, that are in use, that have an address of
/// paths.
fn assert_said(program: &Process, lines: [usize; 4]) {
    let log = program.log_tail();
    let texts = [
        "operations name are the kernel's",
        "are served by stand-ins",
        "is in use on paths fails",
        "bound to an address of paths fails",
    ];
    assert_eq!(texts.map(|text| log.matches(text).count()), lines, "{log}");
}

fn assert_on_paths(fixture: &Fixture, port: u16) {
    let paths = fixture.paths_now();
    let suffix = format!(":{port}");
    let ours = |path: &serde_json::Value| {
        let is_at = |side: &str| path[side].as_str().is_some_and(|name| name.ends_with(&suffix));
        is_at("local") || is_at("peer")
    };
    assert!(paths.iter().any(ours), "no path with port {port} among {paths:?}");
}

fn serves(how: &[&str], what: &str) {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, how).display().to_string();
    let mut server = fixture.start(&program, &[what]);
    assert_eq!(wait_for_line(&mut server, "back"), "back: hello");
    // What listens, and its duplicate; the client beside it was the kernel's by itself.
    assert_counted(&fixture, [1, 0, 1]);
    assert_said(&server, [1, 0, 0, 0]);
    assert_eq!(row(&fixture)["sockets"], 0);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_server_that_has_nothing_but_rings_serves() {
    serves(BY_NUMBER, "serve");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_server_by_liburing_serves() {
    serves(BY_LIBRARY, "serve");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_server_by_instruction_serves() {
    serves(BY_INSTRUCTION, "serve");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_server_whose_socket_is_registered_serves() {
    serves(BY_NUMBER, "fixed");
}

fn keeps_a_file(how: &[&str]) {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, how).display().to_string();
    let (mut echo, [peer, port]) = echo(&fixture);
    let file = fixture.file("kept").display().to_string();
    let mut client = fixture.start(&program, &["file", &file, &peer, &port]);
    wait_for_line(&mut client, "kept");
    assert_on_paths(&fixture, 7000);
    assert_counted(&fixture, [1, 0, 0]);
    assert_said(&client, [0, 0, 0, 0]);
    echo.check().unwrap();
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_ring_for_files_leaves_sockets_on_paths() {
    keeps_a_file(BY_NUMBER);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_ring_of_liburing_for_files_leaves_sockets_on_paths() {
    keeps_a_file(BY_LIBRARY);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_ring_by_instruction_for_files_leaves_sockets_on_paths() {
    keeps_a_file(BY_INSTRUCTION);
}

/// A stand-in has its place, by rings and by calls, in a child, too.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_connection_of_paths_in_a_ring_is_served() {
    for how in [BY_LIBRARY, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let (mut echo, [peer, port]) = echo(&fixture);
        let mut client = fixture.start(&program, &["connected", &peer, &port]);
        wait_for_line(&mut client, "served");
        assert_on_paths(&fixture, 7000);
        // The child's own is one more, and said already.
        assert_counted(&fixture, [1, 0, 2]);
        assert_said(&client, [0, 1, 0, 0]);
        assert_eq!(row(&fixture)["sockets"], 1);
        echo.check().unwrap();
    }
}

/// It waits until the path stands, or does not, or it is cancelled.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_connection_that_a_ring_makes_is_on_paths() {
    for how in [BY_NUMBER, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let (mut echo, [peer, port]) = echo(&fixture);
        let nobody = nobody(&fixture);
        let mut client = fixture.start(&program, &["connects", &peer, &port, &nobody]);
        wait_for_line(&mut client, "connected");
        assert_on_paths(&fixture, 7000);
        assert_counted(&fixture, [1, 0, 26]);
        assert_said(&client, [0, 1, 0, 0]);
        echo.check().unwrap();
    }
}

/// The last one is sent as the program exits.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_connected_datagram_socket_in_a_ring_is_served() {
    let echoes = "
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('0.0.0.0', 7000))
print('ready', flush=True)
data = None
while data != b'last':
    data, peer = server.recvfrom(65536)
    server.sendto(data, peer)
print('the last', flush=True)
";
    for how in [BY_NUMBER, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let mut peer = fixture.start_peer("python3", &["-c", echoes]);
        wait_for_line(&mut peer, "ready");
        let address = fixture.peer_address().to_string();
        let mut client = fixture.start(&program, &["parcels", &address, "7000"]);
        wait_for_line(&mut client, "all right");
        wait_for_line(&mut peer, "the last");
        assert_said(&client, [0, 1, 0, 0]);
        client.finish(Instant::now() + SOON).unwrap();
    }
}

/// In what they are told of there, they go on.
#[test]
#[cfg(target_arch = "x86_64")]
fn threads_that_sleep_on_what_a_ring_names_are_woken() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let (mut echo, [peer, port]) = echo(&fixture);
    let mut client = fixture.start(&program, &["asleep", &peer, &port]);
    wait_for_line(&mut client, "all woken");
    assert_counted(&fixture, [1, 0, 21]);
    assert_said(&client, [1, 1, 0, 0]);
    echo.check().unwrap();
}

#[test]
#[cfg(target_arch = "x86_64")]
fn much_goes_both_ways_by_a_stand_in() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let (mut echo, [peer, port]) = echo(&fixture);
    let mut client = fixture.start(&program, &["bulk", &peer, &port]);
    wait_for_line(&mut client, "all right");
    assert_counted(&fixture, [2, 0, 1]);
    echo.check().unwrap();
}

/// Resets both ways, and all bytes of who closes, or exits.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_stand_in_ends_as_its_path_does() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let meets = "
import socket, struct
server = socket.create_server(('0.0.0.0', 7000))
print('ready', flush=True)
first = server.accept()[0]
assert first.recv(5, socket.MSG_WAITALL) == b'hello'
first.sendall(b'r')
first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
first.close()
second = server.accept()[0]
second.sendall(b'unread')
try:
    print('second', len(second.recv(1)), flush=True)
except ConnectionResetError:
    print('second was reset', flush=True)
for name in 'third', 'execed', 'last':
    connection = server.accept()[0]
    count = 0
    while got := len(connection.recv(65536)):
        count += got
    print(name, count, flush=True)
";
    let mut peer = fixture.start_peer("python3", &["-c", meets]);
    wait_for_line(&mut peer, "ready");
    let mut client = fixture.start(&program, &["ends", &fixture.peer_address().to_string(), "7000"]);
    for said in ["second was reset", "third 1000000", "execed 3000000", "last 2000000"] {
        assert_eq!(wait_for_line(&mut peer, said.split(' ').next().unwrap()), said);
    }
    client.finish(Instant::now() + SOON).unwrap();
}

#[test]
#[cfg(target_arch = "x86_64")]
fn accepted_connections_of_paths_in_a_ring_are_served() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_INSTRUCTION).display().to_string();
    let address = fixture.address().to_string();
    let mut server = fixture.start(&program, &["accepted", &address]);
    wait_for_line(&mut server, "listens");
    let asks = "
import socket, sys
both = [socket.create_connection((sys.argv[1], 7300), 15) for _ in 'ab']
for round in range(50):
    for connection in both:
        connection.sendall(b'%07d' % round)
        assert connection.recv(7, socket.MSG_WAITALL) == b'%07d' % round
for connection in both:
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b''
print('all right')
";
    assert!(fixture.run_peer("python3", &["-c", asks, &address], SOON).contains("all right"));
    wait_for_line(&mut server, "all right");
    assert_counted(&fixture, [1, 0, 2]);
    assert_said(&server, [0, 1, 0, 0]);
}

/// A ring accepts from it, with the peers' names, and so do calls; who has not been accepted when it closes is reset.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_listener_at_an_address_of_paths_is_served() {
    for how in [BY_NUMBER, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let address = fixture.address().to_string();
        let mut server = fixture.start(&program, &["bound", &address]);
        wait_for_line(&mut server, "listens");
        let asks = "
import socket, sys
def connected():
    return socket.create_connection((sys.argv[1], 7300), 15)
clients = [connected() for _ in range(42)]
for client in clients:
    client.sendall(b'hello')
for client in clients:
    assert client.recv(5, socket.MSG_WAITALL) == b'hello'
    assert client.recv(1) == b''
    client.close()
try:
    print('last', connected().recv(1))
except ConnectionResetError:
    print('reset')
";
        let said = fixture.run_peer("python3", &["-c", asks, &address], SOON);
        assert!(said.contains("reset"), "{said}");
        wait_for_line(&mut server, "all right");
        // It was made by a ring, too.
        assert_counted(&fixture, [1, 0, 2]);
        assert_said(&server, [0, 1, 0, 0]);
        assert_eq!(row(&fixture)["sockets"], 0);
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_next_image_accepts_by_its_own_ring() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let address = fixture.address().to_string();
    let mut server = fixture.start(&program, &["images", &address]);
    let asks = "
import socket, sys
client = socket.create_connection((sys.argv[1], 7300), 15)
client.sendall(b'hello')
assert client.recv(5, socket.MSG_WAITALL) == b'hello'
print('all right')
";
    for _ in 0..2 {
        wait_for_line(&mut server, "listens");
        assert!(fixture.run_peer("python3", &["-c", asks, &address], SOON).contains("all right"));
    }
    wait_for_line(&mut server, "all right");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn operations_of_stand_ins_end_with_the_daemon() {
    let mut fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let address = fixture.address().to_string();
    let mut server = fixture.start(&program, &["blocked", &address]);
    wait_for_line(&mut server, "listens");
    let stays = "import socket, sys; s = socket.create_connection((sys.argv[1], 7300), 15); print('there', flush=True); s.recv(1)";
    let mut peer = fixture.start_peer("python3", &["-c", stays, &address]);
    wait_for_line(&mut peer, "there");
    wait_for_line(&mut server, "blocked");
    fixture.daemon().process().kill();
    wait_for_line(&mut server, "ended");
}

/// One that a ring has under way, too.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_connection_that_a_ring_makes_ends_with_the_daemon() {
    let mut fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let mut client = fixture.start(&program, &["opens", &nobody(&fixture), "7000"]);
    wait_for_line(&mut client, "blocked");
    fixture.daemon().process().kill();
    wait_for_line(&mut client, "ended");
}

/// Whoever can read its stand-in's name does not get it.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_connection_is_its_programs_alone() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let (mut echo, [_, port]) = echo(&fixture);
    let nobody = nobody(&fixture);
    let mut client = fixture.start(&program, &["stolen", &nobody, &port]);
    wait_for_line(&mut client, "comes");
    fixture.run_peer("ip", &["address", "add", &format!("{nobody}/24"), "dev", "eth0"], SOON);
    wait_for_line(&mut client, "refused");
    echo.check().unwrap();
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_call_accepts_from_the_network_alone() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let address = fixture.address().to_string();
    let mut server = fixture.start(&program, &["strangers", &address]);
    wait_for_line(&mut server, "listens");
    let stays = "import socket, sys; s = socket.create_connection((sys.argv[1], 7300), 15); s.recv(1)";
    let mut peer = fixture.start_peer("python3", &["-c", stays, &address]);
    wait_for_line(&mut server, "all right");
    peer.check().unwrap();
}

/// So many connections, which stay.
fn come(fixture: &Fixture, count: &str) -> Process {
    let comes = "
import socket, sys
all = [socket.create_connection((sys.argv[1], 7300), 15) for _ in range(int(sys.argv[2]))]
print('there', flush=True)
all[0].recv(1)
";
    let mut peer = fixture.start_peer("python3", &["-c", comes, &fixture.address().to_string(), count]);
    wait_for_line(&mut peer, "there");
    peer
}

#[test]
#[cfg(target_arch = "x86_64")]
fn who_came_when_there_was_no_descriptor_is_accepted() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let mut server = fixture.start(&program, &["starved", &fixture.address().to_string()]);
    wait_for_line(&mut server, "listens");
    let _client = come(&fixture, "1");
    server.signal(libc::SIGUSR1);
    wait_for_line(&mut server, "all right");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn threads_that_accept_by_their_rings_learn_their_peers_names() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let address = fixture.address().to_string();
    let mut server = fixture.start(&program, &["names", &address]);
    wait_for_line(&mut server, "listens");
    let comes = "
import select, socket, sys
for round in range(10):
    all = []
    for _ in range(40):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex((sys.argv[1], 7300))
        all.append(client)
    for client in all:
        client.setblocking(True)
        client.settimeout(15)
        client.recv(1)
        client.close()
";
    let mut peer = fixture.start_peer("python3", &["-c", comes, &address]);
    wait_for_line(&mut server, "all right");
    peer.finish(Instant::now() + SOON).unwrap();
}

/// However long that takes, while the peer takes some.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_a_program_wrote_before_it_exits_goes_to_a_slow_peer() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let slow = "
import socket, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
server.bind(('0.0.0.0', 7000))
server.listen()
print('ready', flush=True)
connection = server.accept()[0]
count = 0
while got := len(connection.recv(20000)):
    count += got
    time.sleep(0.4)
print('came', count, flush=True)
";
    let mut peer = fixture.start_peer("python3", &["-c", slow]);
    wait_for_line(&mut peer, "ready");
    let mut client = fixture.start(&program, &["slow", &fixture.peer_address().to_string(), "7000"]);
    client.finish(Instant::now() + 4 * SOON).unwrap();
    assert_eq!(wait_for_line(&mut peer, "came"), "came 500000");
}

/// As on Linux, where the program reads no more.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_a_program_shut_out_resets_when_it_closes() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let sends = "
import socket
server = socket.create_server(('0.0.0.0', 7000))
print('ready', flush=True)
connection = server.accept()[0]
assert connection.recv(5, socket.MSG_WAITALL) == b'hello'
assert connection.recv(4, socket.MSG_WAITALL) == b'shut'
connection.sendall(b'x' * 1000)
print('sent', flush=True)
try:
    print('got', len(connection.recv(1)), flush=True)
except ConnectionResetError:
    print('got a reset', flush=True)
";
    let mut peer = fixture.start_peer("python3", &["-c", sends]);
    wait_for_line(&mut peer, "ready");
    let client = fixture.start(&program, &["unread", &fixture.peer_address().to_string(), "7000"]);
    wait_for_line(&mut peer, "sent");
    client.signal(libc::SIGUSR1);
    assert_eq!(wait_for_line(&mut peer, "got"), "got a reset");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn children_that_are_made_while_connections_come_have_none_of_our_ends() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let address = fixture.address().to_string();
    let mut server = fixture.start(&program, &["copies", &address]);
    wait_for_line(&mut server, "listens");
    let comes = "
import socket, sys
while True:
    try:
        client = socket.create_connection((sys.argv[1], 7300), 15)
        client.recv(1)
        client.close()
    except ConnectionError:
        pass
";
    let _peer = fixture.start_peer("python3", &["-c", comes, &address]);
    wait_for_line(&mut server, "all right");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_may_take_the_librarys_numbers() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let (mut echo, [peer, port]) = echo(&fixture);
    let mut client = fixture.start(&program, &["taken", &peer, &port]);
    wait_for_line(&mut client, "all right");
    echo.check().unwrap();
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_child_accepts_by_its_own_ring() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_INSTRUCTION).display().to_string();
    let address = fixture.address().to_string();
    let mut server = fixture.start(&program, &["prefork", &address]);
    wait_for_line(&mut server, "listens");
    let asks = "
import socket, sys
for _ in 'ab':
    client = socket.create_connection((sys.argv[1], 7300), 15)
    client.sendall(b'hello')
    assert client.recv(5, socket.MSG_WAITALL) == b'hello'
print('all right')
";
    assert!(fixture.run_peer("python3", &["-c", asks, &address], SOON).contains("all right"));
    wait_for_line(&mut server, "all right");
}

/// A child's ring is its parent's; numbers that rings have closed, or closed rings have had, are what they are next.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_ring_over_fork_and_numbers_given_out_again() {
    for how in [BY_NUMBER, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let (mut echo, [peer, port]) = echo(&fixture);
        let mut parent = fixture.start(&program, &["child", &peer, &port]);
        assert_eq!(wait_for_line(&mut parent, "back"), "back: hello");
        wait_for_line(&mut parent, "all right");
        assert_on_paths(&fixture, 7000);
        assert_counted(&fixture, [2, 0, 1]);
        echo.check().unwrap();
    }
}

/// Its operations are calls, which tell whose each datagram is.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_datagram_socket_without_a_peer_in_a_ring_is_served() {
    let echoes = "
import selectors, socket
selector = selectors.DefaultSelector()
for port in range(7000, 7004):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(('0.0.0.0', port))
    selector.register(server, selectors.EVENT_READ)
print('ready', flush=True)
while True:
    for key, _ in selector.select():
        key.fileobj.sendto(*key.fileobj.recvfrom(65536))
";
    for how in [BY_LIBRARY, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let mut peer = fixture.start_peer("python3", &["-c", echoes]);
        wait_for_line(&mut peer, "ready");
        let address = fixture.peer_address().to_string();
        let mut client = fixture.start(&program, &["datagrams", &address, "7000"]);
        wait_for_line(&mut client, "all right");
        assert_counted(&fixture, [3, 0, 3]);
        assert_said(&client, [0, 0, 0, 0]);
        assert_eq!(client.log_tail().matches("are done by calls").count(), 1);
        assert_eq!(row(&fixture)["sockets"], 2);
    }
}

/// As libuv does it.
#[test]
#[cfg(target_arch = "x86_64")]
fn an_epoll_is_controlled_by_a_ring() {
    for how in [BY_NUMBER, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let (mut echo, [peer, port]) = echo(&fixture);
        let mut client = fixture.start(&program, &["epoll", &peer, &port]);
        wait_for_line(&mut client, "watched");
        assert_on_paths(&fixture, 7000);
        assert_counted(&fixture, [1, 0, 0]);
        assert_said(&client, [0, 0, 0, 0]);
        echo.check().unwrap();
    }
}

/// Rings come and go under those who look at them, and entries change meanwhile: the connection of paths is as it was.
#[test]
#[cfg(target_arch = "x86_64")]
fn rings_of_many_threads_and_entries_that_change() {
    for how in [BY_NUMBER, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let (mut echo, [peer, port]) = echo(&fixture);
        let mut threads = fixture.start(&program, &["threads", &peer, &port]);
        wait_for_line(&mut threads, "all right");
        assert_on_paths(&fixture, 7000);
        // The one connection, where an entry has named it.
        let row = row(&fixture);
        assert_eq!(row["rings_left"], 901);
        assert!(row["ring_sockets"].as_u64() <= Some(1), "{row}");
        echo.check().unwrap();
    }
}

/// One of them moves it, once.
#[test]
#[cfg(target_arch = "x86_64")]
fn two_rings_that_name_a_socket_at_once() {
    for how in [BY_NUMBER, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let mut racing = fixture.start(&program, &["race"]);
        wait_for_line(&mut racing, "all right");
        assert_counted(&fixture, [2, 0, 300]);
        assert_eq!(row(&fixture)["sockets"], 0);
    }
}

/// A child has the mappings of rings, but not the threads that looked at them.
#[test]
#[cfg(target_arch = "x86_64")]
fn children_of_threads_that_are_at_their_rings() {
    for how in [BY_NUMBER, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let mut parent = fixture.start(&program, &["forks"]);
        wait_for_line(&mut parent, "all right");
        assert_counted(&fixture, [22, 0, 0]);
    }
}

/// It was given an address for the attempt, which it has no more.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_socket_that_failed_to_connect_is_free_to_move() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let mut client = fixture.start(&program, &["failed", &fixture.peer_address().to_string()]);
    wait_for_line(&mut client, "all right");
    // Two that connect, and two that listen.
    assert_counted(&fixture, [1, 0, 4]);
    assert_said(&client, [1, 0, 0, 0]);
}

/// With as many who may wait as the image before has asked for.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_listener_of_another_image_moves() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_NUMBER).display().to_string();
    let mut server = fixture.start(&program, &["image"]);
    wait_for_line(&mut server, "listens");
    assert_said(&server, [1, 0, 0, 0]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn what_is_given_to_who_waits_for_nothing_is_not_read() {
    for how in [BY_NUMBER, BY_LIBRARY, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let mut program = fixture.start(&program, &["arguments"]);
        wait_for_line(&mut program, "looked at");
    }
}

/// `io_uring_queue_init` and `io_uring_get_probe`, too.
#[test]
#[cfg(target_arch = "x86_64")]
fn liburings_own_functions_make_rings() {
    let fixture = Fixture::new(Arm::Paths);
    let program = rings(&fixture, BY_LIBRARY).display().to_string();
    let mut library = fixture.start(&program, &["library"]);
    wait_for_line(&mut library, "has rings");
    assert_counted(&fixture, [3, 0, 0]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn rings_that_cannot_be_looked_at_are_refused() {
    for how in [BY_NUMBER, BY_LIBRARY, BY_INSTRUCTION] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let mut refused = fixture.start(&program, &["refusals"]);
        wait_for_line(&mut refused, "refused");
        assert_counted(&fixture, [2, 1, 0]);
        let log = refused.log_tail();
        assert_eq!(log.matches("IORING_SETUP_SQPOLL is refused (EPERM)").count(), 1, "{log}");
    }
}

/// As it is asked for: no rings, or all sockets with the kernel.
#[test]
fn rings_are_refused_or_take_all_sockets_when_asked() {
    for how in [BY_NUMBER, BY_LIBRARY] {
        let fixture = Fixture::new(Arm::Paths);
        let program = rings(&fixture, how).display().to_string();
        let mut refused = fixture.start_with(&["--io-uring=refuse"], &program, &["serve"]);
        refused.finish(Instant::now() + SOON).expect_err("it cannot do without");
        let log = refused.log_tail();
        assert!(
            log.contains("scoutline run --io-uring") && log.contains("Function not implemented"),
            "{log}"
        );
        let mut left = fixture.start_with(&["--io-uring"], &program, &["serve"]);
        assert_eq!(wait_for_line(&mut left, "back"), "back: hello");
        let log = left.log_tail();
        assert_eq!(log.matches("sockets are the kernel's from now on").count(), 1, "{log}");
        assert_counted(&fixture, [1, 0, 0]);
        assert_eq!(row(&fixture)["sockets"], 0);
    }
}
