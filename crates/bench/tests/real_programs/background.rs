//! Programs that run in idle time only: their paths, their threads, those of their children, and their disk.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};

use scoutline_bench::process::Process;

use crate::fixture::{Arm, Fixture, SOON, find, script, wait_for_line, wait_until};
use crate::machine::stat_field;

/// Whoever connects to this port is important, and the threads that serve it are raised.
const MORE: &str = "
[extension]
enabled = true

[[class]]
name = \"preferred\"
priority = 2
local_port = [6379, 7000]
";

/// `sched(7)`
const SCHED_IDLE: u32 = 5;

/// The policy of a thread (`proc(5)`, field 41).
fn policy(task: &str) -> u32 {
    stat_field(task, 41)
}

/// Policies of all threads of a process.
fn policies(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(|task| policy(&task.unwrap().path().display().to_string())).collect()
}

pub(crate) fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

fn disk_class(pid: u32) -> String {
    let output = std::process::Command::new(find("ionice")).args(["-p", &pid.to_string()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn assert_background(pid: u32, threads: usize) {
    let policies = policies(pid);
    assert!(policies.len() >= threads, "threads of {pid}: {policies:?}");
    assert!(policies.iter().all(|policy| *policy == SCHED_IDLE), "{policies:?}");
    assert_eq!(disk_class(pid), "idle");
}

fn fixture() -> Fixture {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with(MORE);
    fixture
}

fn redis(fixture: &Fixture, options: &[&str]) -> Process {
    let directory = fixture.file("").display().to_string();
    let mut server = fixture.start_with(
        options,
        "redis-server",
        &["--port", "6379", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", &directory],
    );
    wait_for_line(&mut server, "Ready to accept connections");
    server
}

fn connect(fixture: &Fixture, port: u16) -> TcpStream {
    let address = SocketAddrV4::new(fixture.address(), port);
    let peer = fixture.testbed().client().enter(|| TcpStream::connect_timeout(&address.into(), SOON));
    let peer = peer.unwrap().unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    peer
}

/// The only path in this state: class, priority and congestion control.
fn path(fixture: &Fixture, state: &str) -> Option<(String, Option<u64>, Option<String>)> {
    let rows = fixture.paths_now();
    let row = rows.iter().find(|row| row["state"] == state)?;
    let congestion = row["details"]["congestion"].as_str().map(str::to_owned);
    Some((row["class"].as_str().unwrap().to_owned(), row["priority"].as_u64(), congestion))
}

#[test]
pub(crate) fn a_background_program_stays_so_in_an_important_class_and_with_extended_paths() {
    let fixture = fixture();
    let server = redis(&fixture, &["--background"]);
    // It has threads of its own beside the one that serves.
    assert_background(server.id(), 4);
    assert_eq!(path(&fixture, "LISTEN"), Some(("preferred".into(), None, None)));
    let mut peer = connect(&fixture, 6379);
    for _ in 0..20 {
        peer.write_all(b"PING\r\n").unwrap();
        let mut answer = [0; 7];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+PONG\r\n");
        assert_background(server.id(), 4);
    }
    let established = path(&fixture, "ESTABLISHED");
    assert_eq!(established, Some(("preferred".into(), None, Some("ledbat++".into()))));
}

/// What the test above would see without the word.
#[test]
fn the_same_program_in_the_foreground_is_what_its_class_says() {
    let fixture = fixture();
    let server = redis(&fixture, &[]);
    assert!(policies(server.id()).iter().all(|policy| *policy != SCHED_IDLE));
    assert_eq!(path(&fixture, "LISTEN"), Some(("preferred".into(), Some(2), None)));
    let _peer = connect(&fixture, 6379);
    wait_until("it is accepted", SOON, || path(&fixture, "ESTABLISHED").is_some());
    assert_eq!(path(&fixture, "ESTABLISHED"), Some(("preferred".into(), Some(2), Some("cubic".into()))));
}

/// A thread that blocks while it serves an important connection is raised for as long (`extension.rs` sees that).
#[test]
fn a_background_thread_is_never_raised() {
    let fixture = fixture();
    let mut server = fixture.start_with(&["--background"], "python3", &[&script("blocking_echo.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    for _ in 0..5 {
        let mut peer = connect(&fixture, 7000);
        for _ in 0..5 {
            peer.write_all(b"hello").unwrap();
            let mut answer = [0; 5];
            peer.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"hello");
            assert_background(server.id(), 1);
        }
    }
}

#[test]
fn children_of_a_background_program_are_background_too() {
    let fixture = fixture();
    // A shell that starts a server: another program, which attaches by itself.
    let script = format!(
        "{} --port 6379 --bind 0.0.0.0 --protected-mode no --save '' & echo started; wait",
        find("redis-server").display()
    );
    let mut shell = fixture.start_with(&["--background"], "sh", &["-c", &script]);
    wait_for_line(&mut shell, "started");
    wait_until("it listens", SOON, || path(&fixture, "LISTEN").is_some());
    assert_eq!(path(&fixture, "LISTEN"), Some(("preferred".into(), None, None)));
    let [server] = children(shell.id())[..] else { panic!("one child") };
    assert_background(server, 4);
}

#[test]
fn without_a_daemon_threads_and_disk_are_lowered_all_the_same_and_it_says_so() {
    let fixture = Fixture::without_daemon(Arm::Paths);
    let scoutline = crate::fixture::scoutline().display().to_string();
    let control = fixture.file("nobody.sock").display().to_string();
    let words = ["run", "--control", &control, "--background", "--", "sh", "-c", "ionice; chrt -p $$"];
    let output = std::process::Command::new(scoutline).args(words).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(out.contains("idle") && out.contains("SCHED_IDLE"), "{out}");
    assert!(err.contains("its sockets are the kernel's") && err.contains("no daemon at"), "{err}");
}

/// Foreground was there a moment ago, so background waits, in buffers that are full by then: what comes for foreground
/// takes their room.
#[test]
pub(crate) fn foreground_displaces_what_background_holds() {
    const PORTS: [u16; 4] = [7000, 7001, 7002, 7003];
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with(
        "[device.background]\npreemption_us = 10000000\n\
         [engine]\nmax_buffer_memory = \"1MiB\"\nreceive_buffer = \"64KiB\"\nsend_buffer = \"64KiB\"\n",
    );
    let words = [script("datagrams_on.py")].into_iter().chain(PORTS.map(|port| port.to_string()));
    let words: Vec<String> = words.collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut background = fixture.start_with(&["--background"], "python3", &words);
    wait_for_line(&mut background, "ready");
    let _server = redis(&fixture, &[]);
    let mut peer = connect(&fixture, 6379);
    // Nearly a full segment: it does not fit into what is left of a buffer by chance.
    let word = [b'a'; 1400];
    let mut echo = || {
        peer.write_all(&[b"ECHO ", &word[..], b"\r\n"].concat()).unwrap();
        let mut answer = vec![0; b"$1400\r\n".len() + word.len() + 2];
        peer.read_exact(&mut answer).unwrap();
        assert!(answer.starts_with(b"$1400\r\na") && answer.ends_with(b"a\r\n"));
    };
    let displaced = || fixture.ask("stat")["devices"]["eth0"]["displaced"].as_u64().unwrap();
    echo();
    assert_eq!(displaced(), 0);
    let sender = fixture.testbed().client().enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    // On a busy machine not all of them come as far as the engine.
    wait_until("background is displaced", SOON, || {
        for port in [PORTS; 50].concat() {
            sender.send_to(&[7; 1400], (fixture.address(), port)).unwrap();
        }
        echo();
        displaced() > 0
    });
    let rows = fixture.paths_now();
    let of_paths: u64 = rows.iter().filter_map(|row| row["drops"]["displaced"].as_u64()).sum();
    assert_eq!(of_paths, displaced(), "{rows:?}");
}
