//! Programs and daemons that die by SIGKILL, and what is left of them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use scoutline_bench::server::{Kind, Server};

use crate::fixture::{Arm, Fixture, SOON, finish, scoutline, script, wait_for_line, wait_until};
use crate::machine::{asleep, networking};

const SECOND: Duration = Duration::from_secs(1);

fn echo(stream: &mut TcpStream) {
    stream.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}

#[test]
pub(crate) fn a_killed_server_closes_its_connections() {
    let fixture = Fixture::new(Arm::Paths);
    let mut server = fixture.start("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    let mut peers: Vec<TcpStream> = (0..20).map(|_| fixture.connect(7000)).collect();
    peers.iter_mut().for_each(echo);
    let of_server = || {
        let ours = |address: &serde_json::Value| address.as_str().is_some_and(|text| text.ends_with(":7000"));
        let lives = |path: &&serde_json::Value| ours(&path["local"]) && path["state"] != "TIME-WAIT";
        fixture.paths_now().iter().filter(lives).count()
    };
    assert!(of_server() > peers.len(), "a path for each connection, and one that listens");

    server.kill();
    for peer in &mut peers {
        assert_eq!(peer.read(&mut [0; 8]).expect("an end"), 0);
    }
    drop(peers);
    wait_until("its paths are gone", SOON, || of_server() == 0);
    let programs = fixture.ask("stat")["programs"].as_array().expect("programs").clone();
    let left = |program: &serde_json::Value| program["pid"].as_u64() == Some(u64::from(server.id()));
    assert!(!programs.iter().any(left), "{programs:?}");

    // Its port is free again.
    let mut server = fixture.start("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    echo(&mut fixture.connect(7000));
}

/// Where programs are blocked when the daemon dies, see `blocked.py`.
const PLACES: [&str; 7] = ["recv", "send", "accept", "poll", "select", "epoll", "epoll-accept"];

#[test]
fn a_killed_daemon_resets_its_programs_and_leaves_the_machine_as_it_was() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    let before = networking(fixture.testbed().server(0));
    fixture.start_daemon();
    let during = networking(fixture.testbed().server(0));
    assert_ne!(before, during, "the daemon takes packets somehow");

    let peer = SocketAddrV4::new(fixture.peer_address(), 7100);
    // Connections wait here unaccepted: the kernel takes their bytes until its buffer is full.
    let _listener = fixture.testbed().client().enter(|| TcpListener::bind(peer)).unwrap().unwrap();
    let address = peer.ip().to_string();
    let blocked = PLACES.iter().enumerate().map(|(index, place)| {
        let own_port = (7200 + index).to_string();
        fixture.start("python3", &[&script("blocked.py"), place, &address, "7100", &own_port])
    });
    let mut blocked: Vec<_> = blocked.collect();
    for process in &mut blocked {
        wait_for_line(process, "ready");
        asleep(process);
    }

    fixture.daemon().process().kill();
    for (place, process) in PLACES.iter().zip(&mut blocked) {
        let text = finish(process, SOON);
        assert_eq!(text.trim(), "ECONNRESET", "in {place}");
        let log = process.log_tail();
        assert_eq!(log.matches("the daemon has ended").count(), 1, "in {place}: {log}");
    }
    // The guard learns of it as the programs do.
    wait_until("the machine is as it was", SOON, || before == networking(fixture.testbed().server(0)));

    // Another one starts at once, over what the dead one left in the file system.
    fixture.start_daemon();
    let mut server = fixture.start("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    echo(&mut fixture.connect(7000));
}

/// A file in `/proc` of each process of a group.
fn of_group(group: u32, file: &'static str) -> impl Iterator<Item = String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    processes.filter_map(move |process| {
        // The name may hold anything; behind it: state, parent, group.
        let stat = std::fs::read_to_string(process.join("stat")).ok()?;
        let of_group = stat.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse() == Ok(group);
        of_group.then(|| std::fs::read_to_string(process.join(file)).ok())?
    })
}

/// Processor time of a process group so far, in clock ticks.
fn busy(group: u32) -> u64 {
    let ticks = of_group(group, "stat").filter_map(|stat| {
        // Behind state, parent, group, …: user and system time.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields[11].parse::<u64>().unwrap_or(0) + fields[12].parse::<u64>().unwrap_or(0))
    });
    ticks.sum()
}

/// How often processes of a group have gone to sleep so far.
fn sleeps(group: u32) -> u64 {
    let counts = of_group(group, "status").filter_map(|status| {
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse::<u64>().ok()
    });
    counts.sum()
}

/// A server keeps its listening socket and calls `accept` again at once, for ever.
#[test]
fn servers_of_a_killed_daemon_do_not_spin() {
    let mut fixture = Fixture::new(Arm::Paths);
    let start = |kind| {
        let paths = fixture.paths();
        let paths = paths.as_ref().map(|(program, daemon)| (program.as_path(), *daemon));
        Server::start(fixture.testbed(), 0, kind, None, paths).unwrap_or_else(|error| panic!("{error:#}"))
    };
    let mut nginx = start(Kind::NGINX);
    let mut asyncio = fixture.start("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut asyncio, "ready");
    let mut poll = fixture.start("python3", &["-u", "-m", "http.server", "8000"]);
    wait_for_line(&mut poll, "Serving HTTP");
    let groups = [nginx.process().id(), asyncio.id(), poll.id()];
    let before = groups.map(sleeps);
    fixture.daemon().process().kill();
    wait_until("they have heard of it and sleep again", SOON, || {
        groups.map(sleeps).iter().zip(before).all(|(now, before)| *now > before)
    });
    let before = groups.map(busy);
    // What is asked is what they use in a time in which nothing happens to them: no sign ends it.
    std::thread::sleep(SECOND);
    let after = groups.map(busy);
    let used: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert!(
        used.iter().all(|ticks| *ticks < 20),
        "ticks of nginx, asyncio, http.server in a second: {used:?}"
    );
}

/// It asks a daemon that does not answer, with its signals held.
#[test]
fn a_program_of_a_daemon_that_stands_still_can_be_ended() {
    const ASK: &str = "import os, socket, sys\n\
                       print('ready', flush=True)\n\
                       while not os.path.exists(sys.argv[1]): pass\n\
                       socket.socket().bind((sys.argv[2], 9000))";
    let mut fixture = Fixture::new(Arm::Paths);
    let file = fixture.file("stopped");
    let arguments = ["-c", ASK, &file.display().to_string(), &fixture.address().to_string()];
    let mut program = fixture.start("python3", &arguments);
    wait_for_line(&mut program, "ready");
    fixture.daemon().process().signal(libc::SIGSTOP);
    std::fs::write(&file, "").unwrap();
    asleep(&program); // it asks
    program.signal(libc::SIGTERM);
    wait_until("it has ended", SOON, || program.check().is_err());
    fixture.daemon().process().signal(libc::SIGCONT);
}

#[test]
fn a_stopped_daemon_leaves_the_machine_as_it_was() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut fixture = Fixture::without_daemon(Arm::Paths);
        let before = networking(fixture.testbed().server(0));
        fixture.start_daemon();
        let mut server = fixture.start("python3", &[&script("echo_server.py"), "7000"]);
        wait_for_line(&mut server, "ready");
        let mut peer = fixture.connect(7000);
        echo(&mut peer);
        let control = fixture.daemon().control().to_owned();
        let process = fixture.daemon().process();
        process.signal(signal);
        process.finish(Instant::now() + SOON).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(before, networking(fixture.testbed().server(0)));
        assert!(!control.exists(), "{} is left", control.display());
        let attach = control.with_extension("attach");
        assert!(!attach.exists(), "{} is left", attach.display());
    }
}

/// The next one may have the interface at once.
#[test]
fn who_stops_a_daemon_waits_until_it_has_ended() {
    let mut fixture = Fixture::new(Arm::Paths);
    let control = fixture.daemon().control().display().to_string();
    let stop = Command::new(scoutline()).args(["stop", "--control", &control]).output().unwrap();
    assert!(stop.status.success(), "{}", String::from_utf8_lossy(&stop.stderr));
    assert!(fixture.daemon().process().check().is_err(), "it runs still");
}

/// With another control socket it would answer the first one's clients with resets.
#[test]
fn a_second_daemon_leaves_an_interface_alone() {
    let fixture = Fixture::new(Arm::Paths);
    let control = fixture.file("second.sock").display().to_string();
    let up = ["up", "--device", "eth0", "--address", "10.77.0.99/24", "--control", &control];
    let second = || Command::new(scoutline()).args(up).output();
    let second = fixture.testbed().server(0).enter(second).unwrap().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        !second.status.success() && said.contains("eth0 is served by another daemon, with pid"),
        "{said}"
    );
}
