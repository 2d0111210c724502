//! Two workers on the cores of two engines: the one on the core where a connection lives accepts it, if it may.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Shutdown, SocketAddrV4, TcpStream};

use scoutline_base::spread::engine_of_flow;
use scoutline_bench::process::Process;

use crate::fixture::{Arm, Fixture, SOON, script, wait_for_line, wait_until};
use crate::several::fixture;

const PORT: u16 = 7003;
/// Of each engine there are many.
const CONNECTIONS: usize = 48;
const LEAST_OF_EACH: usize = 8;
/// A worker that slept may have been woken for what another has taken by then. By chance half of them would be far.
const FEW: usize = 4;

/// The two workers of `scripts/near.py`.
struct Workers {
    _server: Process,
    processes: [u32; 2],
}

impl Workers {
    fn start(fixture: &Fixture, how: &str) -> Workers {
        let listen = SocketAddrV4::new(fixture.address(), PORT).to_string();
        let mut server = fixture.start("python3", &[&script("near.py"), how, &listen]);
        let mut process = || {
            let line = wait_for_line(&mut server, "worker");
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        let processes = [process(), process()];
        Workers { _server: server, processes }
    }

    /// Waits until both wait for a connection: after their last one they do nothing else that sleeps so.
    fn sleep(&self) {
        let calls = [libc::SYS_read, libc::SYS_ppoll].map(|call| call.to_string());
        // `running`, or the number of the call and its arguments.
        let sleeps = |process: &u32| {
            let said = fs::read_to_string(format!("/proc/{process}/syscall")).unwrap();
            calls.iter().any(|call| said.split(' ').next() == Some(call))
        };
        wait_until("both workers sleep", SOON, || self.processes.iter().all(sleeps));
    }
}

/// A connection that a worker has accepted.
struct Accepted {
    stream: TcpStream,
    /// The engine where it lives, by the rule.
    engine: usize,
    /// The worker's core, and what SO_INCOMING_CPU says.
    said: String,
}

impl Accepted {
    fn new(fixture: &Fixture) -> Accepted {
        let stream = fixture.connect(PORT);
        let ours = stream.local_addr().unwrap();
        let engine = engine_of_flow(true, ours.ip(), ours.port(), PORT, 2);
        let mut said = String::new();
        BufReader::new(&stream).read_line(&mut said).unwrap();
        Accepted { stream, engine, said: said.trim_end().to_owned() }
    }

    /// Lets go of it, and sees that its worker has, too.
    fn end(mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(self.stream.read(&mut [0]).unwrap(), 0);
    }
}

/// Connections one at a time, which come when both workers sleep.
fn near_ones_accept(how: &str) {
    let fixture = fixture();
    let workers = Workers::start(&fixture, how);
    // The engines hear of a worker's poll set a moment after it has it, and until then wake another.
    let mut known = [false; 2];
    wait_until("both workers accept", SOON, || {
        workers.sleep();
        let accepted = Accepted::new(&fixture);
        known[usize::from(accepted.said.starts_with('1'))] = true;
        accepted.end();
        known == [true; 2]
    });
    let (mut of, mut far) = ([0, 0], Vec::new());
    for number in 0..CONNECTIONS {
        workers.sleep();
        let accepted = Accepted::new(&fixture);
        let (worker, lives_on) = accepted.said.split_once(' ').unwrap();
        assert_eq!(lives_on, accepted.engine.to_string());
        of[accepted.engine] += 1;
        if worker != lives_on {
            far.push(number);
        }
        accepted.end();
    }
    assert!(far.len() <= FEW, "{far:?} went to the other one");
    assert!(of.iter().all(|&count| count >= LEAST_OF_EACH), "{of:?}");
}

#[test]
fn a_worker_in_accept_gets_what_lives_on_its_core() {
    near_ones_accept("accept");
}

#[test]
fn a_worker_in_an_exclusive_epoll_gets_what_lives_on_its_core() {
    near_ones_accept("exclusive");
}

#[test]
fn of_a_group_a_worker_gets_what_comes_to_the_core_it_has_named() {
    near_ones_accept("group");
}

/// Wherever a connection lives, it does not wait for a worker that is busy.
fn others_accept_meanwhile(how: &str) {
    let fixture = fixture();
    let workers = Workers::start(&fixture, how);
    workers.sleep();
    let first = Accepted::new(&fixture);
    let busy: usize = first.said[..1].parse().unwrap();
    let mut of = [0, 0];
    for _ in 0..CONNECTIONS {
        workers.sleep();
        let accepted = Accepted::new(&fixture);
        assert_eq!(accepted.said, format!("{} {}", 1 - busy, accepted.engine));
        of[accepted.engine] += 1;
        accepted.end();
    }
    first.end();
    assert!(of.iter().all(|&count| count >= LEAST_OF_EACH), "{of:?}");
}

#[test]
fn while_a_worker_in_accept_is_busy_the_other_gets_all() {
    others_accept_meanwhile("accept");
}

#[test]
fn while_a_worker_in_an_exclusive_epoll_is_busy_the_other_gets_all() {
    others_accept_meanwhile("exclusive");
}

#[test]
fn while_a_worker_in_an_epoll_is_busy_the_other_gets_all() {
    others_accept_meanwhile("shared");
}

/// All connections live on one core, and whoever has named another is not left without any.
#[test]
fn with_one_engine_a_group_shares_whatever_it_has_named() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with("\n[engine]\ncpu = 1\n");
    let _workers = Workers::start(&fixture, "group");
    let mut of = [0, 0];
    for _ in 0..CONNECTIONS {
        let accepted = Accepted::new(&fixture);
        let (worker, lives_on) = accepted.said.split_once(' ').unwrap();
        assert_eq!(lives_on, "1");
        of[worker.parse::<usize>().unwrap()] += 1;
        accepted.end();
    }
    assert!(of.iter().all(|&count| count >= LEAST_OF_EACH), "{of:?}");
}
