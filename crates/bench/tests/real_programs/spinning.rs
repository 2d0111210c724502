//! A program that never sleeps, or seldom, on the engine's core.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::thread;

use crate::fixture::{Arm, Fixture, SOON, find, scoutline, wait_for_line};

/// How often Linux had the core, how often paths took it back before it was through, how often a program gave it back
/// itself, and how often one rang at the moment from which paths had it.
fn slices(fixture: &Fixture) -> [u64; 4] {
    let engine = &fixture.ask("stat")["engine"];
    ["linux-slices", "linux-slices-interrupted", "linux-slices-given-back", "linux-slices-rung"]
        .map(|name| engine[name].as_u64().unwrap_or_else(|| panic!("stat without {name}")))
}

/// A request comes while the server has the core, and interrupts it: else it would wait for the end of its quantum. One
/// that comes between two turns, while the engine looks up, interrupts none. The server has said that it has nothing to do.
#[test]
fn what_comes_for_it_interrupts_it() {
    const REQUESTS: u64 = 500;
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with("[engine]\ncpu = 0\n");
    let tool = scoutline();
    let words =
        ["-c", "0", tool.to_str().unwrap(), "load", "echo", "--spin", "--protocol", "tcp", "--port", "7000"];
    let mut server = fixture.start("taskset", &words);
    wait_for_line(&mut server, "ready");
    let address = SocketAddrV4::new(fixture.address(), 7000);
    let connect = || TcpStream::connect_timeout(&address.into(), SOON);
    let mut peer = fixture.testbed().client().enter(connect).unwrap().unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    let before = slices(&fixture);
    let mut answer = [0];
    for _ in 0..REQUESTS {
        peer.write_all(b"?").unwrap();
        peer.read_exact(&mut answer).unwrap();
    }
    let after = slices(&fixture);
    let [all, interrupted, given_back, _] = std::array::from_fn(|of| after[of] - before[of]);
    println!("{REQUESTS} requests: {all} turns of Linux, {interrupted} interrupted, {given_back} given back");
    assert!(interrupted >= REQUESTS / 2, "{interrupted} of {all} turns were interrupted");
    assert!(given_back >= REQUESTS / 2, "{given_back} of {all} turns were given back");
}

/// It answers each byte by itself, and sleeps when there are no more.
const ANSWERS: &str = "
import socket
listener = socket.create_server(('0.0.0.0', 7000))
print('ready', flush=True)
connection, _ = listener.accept()
while byte := connection.recv(1):
    connection.send(byte)
";

/// A program that always finds something to do marks something now and then, and at the moment from which paths may have the
/// core back it says so by itself: no timer need be set for it.
#[test]
fn who_is_busy_rings_at_the_moment() {
    const BYTES: usize = 500_000;
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with("[engine]\ncpu = 0\n");
    let python = find("python3");
    let mut server = fixture.start("taskset", &["-c", "0", python.to_str().unwrap(), "-c", ANSWERS]);
    wait_for_line(&mut server, "ready");
    let peer = fixture.connect(7000);
    peer.set_write_timeout(Some(SOON)).unwrap();
    let before = slices(&fixture);
    thread::scope(|scope| {
        scope.spawn(|| (&peer).write_all(&vec![7; BYTES]).unwrap());
        let mut answers = vec![0; BYTES];
        (&peer).read_exact(&mut answers).unwrap();
        assert!(answers.iter().all(|&answer| answer == 7));
    });
    let after = slices(&fixture);
    let [all, interrupted, _, rung] = std::array::from_fn(|of| after[of] - before[of]);
    println!("{BYTES} bytes: {all} turns of Linux, {interrupted} interrupted, {rung} rung at");
    assert!(rung >= 50, "it rang in {rung} of {all} turns");
}
