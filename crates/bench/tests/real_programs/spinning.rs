//! A program that never sleeps, on the engine's core.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};

use crate::fixture::{Arm, Fixture, SOON, scoutline, wait_for_line};

/// How often Linux had the core, how often paths took it back before it was through, and how often a program gave it back
/// itself.
fn slices(fixture: &Fixture) -> [u64; 3] {
    let engine = &fixture.ask("stat")["engine"];
    ["linux-slices", "linux-slices-interrupted", "linux-slices-given-back"]
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
    let [all, interrupted, given_back] = std::array::from_fn(|of| after[of] - before[of]);
    println!("{REQUESTS} requests: {all} turns of Linux, {interrupted} interrupted, {given_back} given back");
    assert!(interrupted >= REQUESTS / 2, "{interrupted} of {all} turns were interrupted");
    assert!(given_back >= REQUESTS / 2, "{given_back} of {all} turns were given back");
}
