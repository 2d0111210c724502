//! The bridge by itself, between two kernels: what its wire says happens to real packets, it sleeps in between, and it
//! leaves nothing. Needs root and iproute2, and says so when they are missing.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use scoutline_bench::bridge::Line;
use scoutline_bench::testbed::{Owner, Testbed};
use scoutline_device::memory::{WireConfig, WireCounters};

const NEEDS: &str = "this test needs root, iproute2, and a kernel that allows network namespaces";
const DELAY: Duration = Duration::from_millis(25);

/// One bridge at a time, since its thread is looked for by name.
fn testbed(wire: WireConfig) -> (Testbed, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let testbed = Testbed::over(Line { wire, seed: 1 }, Owner::Kernel);
    (testbed.unwrap_or_else(|error| panic!("{NEEDS}: {error:#}")), turn)
}

/// A connection between the hosts: the client's end and the server's.
fn connect(testbed: &Testbed) -> (TcpStream, TcpStream) {
    let address = SocketAddrV4::new(*testbed.server_address(0).ip(), 7000);
    let listener = testbed.server(0).enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let client = testbed.client().enter(|| TcpStream::connect(address)).unwrap().unwrap();
    (client, listener.accept().unwrap().0)
}

/// Threads of this process with the bridge's name.
fn bridge_threads() -> Vec<PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    tasks.filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "bridge\n")).collect()
}

/// Time that a thread has run.
fn busy(task: &Path) -> Duration {
    let text = fs::read_to_string(task.join("schedstat")).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

#[test]
fn a_bridge_delays_sleeps_and_leaves_nothing() {
    let (testbed, _turn) = testbed(WireConfig { delay: DELAY, ..WireConfig::default() });
    let (mut client, mut server) = connect(&testbed);
    let [thread] = &bridge_threads()[..] else { panic!("one thread") };

    const ROUNDS: u32 = 10;
    let (begin, ran) = (Instant::now(), busy(thread));
    for round in 0..ROUNDS {
        let mut byte = [0];
        client.write_all(&[round as u8]).unwrap();
        server.read_exact(&mut byte).unwrap();
        server.write_all(&byte).unwrap();
        client.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [round as u8]);
    }
    let (took, ran) = (begin.elapsed(), busy(thread).saturating_sub(ran));
    assert!(took >= DELAY * 2 * ROUNDS, "{took:?}: a packet crosses in {DELAY:?} at least");
    assert!(ran < took / 10, "the bridge ran for {ran:?} of {took:?}: it does not sleep");

    let passed = testbed.bridge().unwrap().passed().unwrap();
    for wire in [passed.to_server, passed.to_client] {
        assert!(wire.sent >= u64::from(ROUNDS), "{passed:?}");
        assert_eq!(wire, WireCounters { sent: wire.sent, ..WireCounters::default() });
    }
    assert_eq!(passed.mishaps(), 0, "{passed:?}");

    let names = [testbed.client().name(), testbed.server(0).name()].map(str::to_owned);
    let prefix = names[0].trim_end_matches("client").to_owned();
    drop(testbed);
    assert_eq!(bridge_threads(), Vec::<PathBuf>::new());
    let left = std::process::Command::new("ip").args(["netns", "list"]).output().unwrap();
    let left = String::from_utf8_lossy(&left.stdout).into_owned();
    assert!(!left.contains(&prefix), "{left}");
}

/// Super-segments of a kernel at full speed come as packets of MTU size; all of them arrive.
#[test]
fn bulk_crosses_whole() {
    let (testbed, _turn) = testbed(WireConfig { delay: Duration::from_micros(100), ..WireConfig::default() });
    let (mut client, mut server) = connect(&testbed);
    let data: Vec<u8> = (0..8_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut got = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&data).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
        });
        server.read_to_end(&mut got).unwrap();
    });
    assert!(got == data);
    // At full speed the bridge's ring may overflow when its thread waits for a core; TCP sends again.
    let passed = testbed.bridge().unwrap().passed().unwrap();
    assert!(passed.to_server.sent as usize >= data.len() / 1460, "{passed:?}: not cut");
}

#[test]
fn a_wire_that_loses_everything_lets_nothing_through() {
    let (testbed, _turn) = testbed(WireConfig { loss: 1.0, ..WireConfig::default() });
    let address = SocketAddrV4::new(*testbed.server_address(0).ip(), 7000);
    let _listener = testbed.server(0).enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let connect = || TcpStream::connect_timeout(&address.into(), Duration::from_millis(200));
    testbed.client().enter(connect).unwrap().expect_err("nobody answers");
    let passed = testbed.bridge().unwrap().passed().unwrap();
    assert!(passed.to_server.lost > 0 && passed.to_server.lost == passed.to_server.sent, "{passed:?}");
    assert_eq!(passed.to_client, WireCounters::default());
}

#[test]
fn a_wire_that_refuses_is_no_line() {
    let wire = WireConfig { when_full: scoutline_device::memory::WhenFull::Refuse, ..WireConfig::default() };
    let error = Testbed::over(Line { wire, seed: 1 }, Owner::Kernel).expect_err("refused");
    assert!(format!("{error:#}").contains("let the wire drop"), "{NEEDS}: {error:#}");
}
