//! Threads of programs that run at the priority of the path which they serve, and get back what they had.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::process::Command;

use scoutline_bench::process::Process;

use crate::classes::tool;
use crate::fixture::{Arm, Fixture, SOON, find, script, wait_for_line, wait_until};
use crate::machine::{asleep, stat_field};

/// Connections to this port are important.
const MORE: &str = "
[extension]
enabled = true

[[class]]
name = \"preferred\"
priority = 2
local_port = [7000]
";

/// SCHED_OTHER and SCHED_FIFO, with the real-time priority (`proc(5)`, fields 41 and 40).
pub(crate) const OWN: (u32, u32) = (0, 0);
const RAISED: (u32, u32) = (1, 12);

fn policy(process: &Process) -> (u32, u32) {
    let task = format!("/proc/{}", process.id());
    (stat_field(&task, 41), stat_field(&task, 40))
}

pub(crate) fn becomes(process: &Process, wanted: (u32, u32)) {
    wait_until(&format!("policy {wanted:?}"), SOON, || policy(process) == wanted);
}

/// A server of this fixture, and a connection to it of which the server has just served something.
fn serving(fixture: &Fixture) -> (Process, TcpStream) {
    let mut server = fixture.start("python3", &[&script("blocking_echo.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    asleep(&server);
    assert_eq!(policy(&server), OWN);
    let peer = serve(fixture);
    becomes(&server, RAISED);
    (server, peer)
}

fn serve(fixture: &Fixture) -> TcpStream {
    let address = SocketAddrV4::new(fixture.address(), 7000);
    let mut peer = fixture
        .testbed()
        .client()
        .enter(|| TcpStream::connect_timeout(&address.into(), SOON))
        .unwrap()
        .unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    echo(&mut peer);
    peer
}

pub(crate) fn echo(peer: &mut TcpStream) {
    peer.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}

fn fixture() -> Fixture {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with(MORE);
    fixture
}

#[test]
pub(crate) fn a_thread_is_raised_while_it_serves_an_important_connection() {
    let fixture = fixture();
    let (server, peer) = serving(&fixture);
    drop(peer);
    becomes(&server, OWN);
    let peer = serve(&fixture);
    becomes(&server, RAISED);
    drop(peer);
    becomes(&server, OWN);
}

/// From the event that an epoll gives for it until the next events: it once lowered itself when it accepted, to ask for the
/// same anew.
#[test]
pub(crate) fn an_event_driven_thread_stays_raised_from_accepting_to_answering() {
    let fixture = fixture();
    let mut server = fixture.start("python3", &[&script("epoll_policy.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    asleep(&server);
    let address = SocketAddrV4::new(fixture.address(), 7000);
    for _ in 0..50 {
        let connect = || TcpStream::connect_timeout(&address.into(), SOON);
        let mut peer = fixture.testbed().client().enter(connect).unwrap().unwrap();
        peer.set_read_timeout(Some(SOON)).unwrap();
        peer.write_all(b"hello").unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, format!("{0} {0}\n", RAISED.0));
    }
}

#[test]
fn a_policy_that_is_given_from_outside_stays() {
    let fixture = fixture();
    let (server, mut peer) = serving(&fixture);
    let id = server.id().to_string();
    assert!(Command::new(find("chrt")).args(["--rr", "--pid", "5", &id]).status().unwrap().success());
    let given = (2, 5);
    echo(&mut peer);
    drop(peer);
    let peer = serve(&fixture);
    assert_eq!(policy(&server), given, "it has gone on to something else, and served once more");
    drop(peer);
    tool(&fixture, &["set", "extend=off"]);
    assert_eq!(policy(&server), given);
}

#[test]
pub(crate) fn threads_get_back_what_they_had_when_the_daemon_is_killed() {
    let mut fixture = fixture();
    let (server, _peer) = serving(&fixture);
    fixture.daemon().process().kill();
    becomes(&server, OWN);
}

#[test]
fn threads_get_back_what_they_had_when_the_daemon_stops() {
    let fixture = fixture();
    let (server, _peer) = serving(&fixture);
    let (scoutline, daemon) = fixture.paths().unwrap();
    let control = daemon.control().display().to_string();
    fixture.run_peer(&scoutline.display().to_string(), &["stop", "--control", &control], SOON);
    becomes(&server, OWN);
}

#[test]
fn threads_get_back_what_they_had_when_extension_is_switched_off() {
    let fixture = fixture();
    let (server, peer) = serving(&fixture);
    tool(&fixture, &["class", "set", "preferred", "extend=false"]);
    assert_eq!(policy(&server), OWN, "at once, though it has nothing to do");
    drop(peer);
    let peer = serve(&fixture);
    assert_eq!(policy(&server), OWN, "it has served without");
    drop(peer);
    tool(&fixture, &["class", "set", "preferred", "extend="]);
    let peer = serve(&fixture);
    becomes(&server, RAISED);
    tool(&fixture, &["class", "set", "preferred", "priority=0"]);
    assert_eq!(policy(&server), OWN);
    drop(peer);
}

#[test]
fn threads_get_back_what_they_had_when_all_extension_is_set_off() {
    let fixture = fixture();
    let (server, mut peer) = serving(&fixture);
    tool(&fixture, &["set", "extend=off"]);
    assert_eq!(policy(&server), OWN, "at once, while it serves");
    echo(&mut peer);
    assert_eq!(policy(&server), OWN, "it has served without");
    tool(&fixture, &["set", "extend=on"]);
    echo(&mut peer);
    becomes(&server, RAISED);
    tool(&fixture, &["set", "extension.base=20", "range=1"]);
    assert_eq!(policy(&server), OWN);
    echo(&mut peer);
    becomes(&server, (1, 21));
    tool(&fixture, &["set", "base=", "range="]);
    echo(&mut peer);
    becomes(&server, RAISED);
}

/// As with a priority, at one above Linux's; and they get it back from a daemon that is killed.
#[test]
fn threads_of_paths_with_a_deadline_are_raised() {
    let mut fixture = fixture();
    let keys = ["policy=edf", "priority=", "deadline_us=2000"];
    tool(&fixture, &[&["class", "set", "preferred"], &keys[..]].concat());
    let mut server = fixture.start("python3", &[&script("blocking_echo.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    asleep(&server);
    let _peer = serve(&fixture);
    becomes(&server, (RAISED.0, 11));
    fixture.daemon().process().kill();
    becomes(&server, OWN);
}
