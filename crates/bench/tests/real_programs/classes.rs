//! Classes that change while real programs use the paths: nothing is lost, and what is asked for holds at once.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use scoutline_bench::load::LoadReport;
use scoutline_bench::process::Process;
use scoutline_bench::server::{Kind, Server};
use serde_json::Value;

use crate::fixture::{Arm, Fixture, SOON, finish, script, wait_for_line, wait_until};

/// Times that all of it is done under load.
const ROUNDS: u32 = 20;
/// TIME-WAIT is short, so that lists of paths are.
const ENGINE: &str = "[engine]\ntime_wait_s = 1\n";

/// The file that the daemon was started with.
fn file(fixture: &Fixture) -> PathBuf {
    fixture.file("scoutline0.toml")
}

/// Writes the daemon's file anew, with these classes.
fn write_classes(fixture: &Fixture, classes: &str) {
    let device = format!("[[device]]\nname = \"eth0\"\naddress = \"{}/24\"\n", fixture.address());
    fs::write(file(fixture), format!("{device}{ENGINE}{classes}")).unwrap();
}

/// Runs `scoutline class …` or another tool; what it printed.
pub(crate) fn tool(fixture: &Fixture, arguments: &[&str]) -> String {
    let (program, daemon) = fixture.paths().expect("a daemon");
    let control = daemon.control().display().to_string();
    fixture.run_peer(&program.display().to_string(), &[arguments, &["--control", &control]].concat(), SOON)
}

pub(crate) fn start_load(fixture: &Fixture, arguments: &[&str]) -> Process {
    let server = fixture.testbed().server_address(0).to_string();
    let mut all = vec!["load", "--json", "--connect", &server, "--warmup", "0.1", "--seconds", "3"];
    all.extend(arguments);
    fixture.start_peer(env!("CARGO_BIN_EXE_scoutline-bench"), &all)
}

/// Sees that a load, when it has ended, has lost no request; another goes on in its place.
pub(crate) fn keep_up(fixture: &Fixture, load: &mut Process, arguments: &[&str], requests: &mut u64) {
    if load.check().is_err() {
        *requests += finish_load(load);
        *load = start_load(fixture, arguments);
    }
}

pub(crate) fn finish_load(load: &mut Process) -> u64 {
    let report: LoadReport = serde_json::from_str(&finish(load, SOON)).unwrap();
    assert_eq!(report.error_count(), 0, "{report:?}");
    assert!(report.requests > 0 && report.verified > 0, "{report:?}");
    report.requests
}

/// The device; programs of the server host among themselves have another.
const DEVICE: &str = "eth0";

/// Class and priority of every connection to our port 80, and the classes that have a listen path there.
fn classes_at_80(fixture: &Fixture) -> (Vec<(String, Value)>, Vec<String>) {
    let paths = fixture.paths_now();
    let at_80 = |path: &&Value| {
        path["device"] == DEVICE && path["local"].as_str().is_some_and(|local| local.ends_with(":80"))
    };
    let class = |path: &Value| path["class"].as_str().unwrap().to_owned();
    let (listening, others): (Vec<_>, Vec<_>) =
        paths.iter().filter(at_80).partition(|path| path["state"] == "LISTEN");
    // A closed connection in TIME-WAIT is classified like any other.
    let connections = others.into_iter().map(|path| (class(path), path["priority"].clone())).collect();
    let mut listening: Vec<String> = listening.into_iter().map(class).collect();
    listening.sort();
    listening.dedup();
    (connections, listening)
}

#[track_caller]
fn assert_all_in(fixture: &Fixture, class: &str, priority: impl Into<Value>, listening: &[&str]) {
    let (connections, listened) = classes_at_80(fixture);
    let expected = (class.to_owned(), priority.into());
    assert!(!connections.is_empty(), "there is no load");
    let wrong: Vec<_> = connections.iter().filter(|&found| *found != expected).collect();
    assert!(wrong.is_empty(), "{} of {} are not {expected:?}: {wrong:?}", wrong.len(), connections.len());
    assert_eq!(listened, listening);
}

#[test]
fn classes_change_under_load() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    let rules = |name: &str, priority: u32| {
        format!("[[class]]\nname = \"{name}\"\nlocal_port = [80]\npriority = {priority}\n")
    };
    fixture.start_daemon_with(&format!("{ENGINE}{}", rules("web", 1)));
    let mut server = {
        let paths = fixture.paths();
        let paths = paths.as_ref().map(|(program, daemon)| (program.as_path(), *daemon));
        let kind = Kind::Nginx { workers: 2, keepalive: true };
        Server::start(fixture.testbed(), 0, kind, None, paths).unwrap_or_else(|error| panic!("{error:#}"))
    };
    let peer = format!("source={}", fixture.peer_address());
    let short = ["--clients", "12", "--path", "/16k", "--think", "4000"];
    let kept = ["--clients", "12", "--path", "/100k", "--keepalive", "--think", "2000"];
    let mut requests = 0;
    let (mut first, mut second) = (start_load(&fixture, &short), start_load(&fixture, &kept));
    wait_until("the load has begun", SOON, || classes_at_80(&fixture).0.len() > 12);
    for round in 0..ROUNDS {
        let priority = round % 4;
        tool(&fixture, &["class", "add", "near", &peer, "priority=3", "--before", "web"]);
        assert_all_in(&fixture, "near", 3, &["near", "web"]);
        let priority_key = format!("priority={priority}");
        tool(&fixture, &["class", "set", "near", &priority_key, "mark=AF41", "connections=1000"]);
        assert_all_in(&fixture, "near", priority, &["near", "web"]);
        tool(&fixture, &["class", "move", "near"]);
        // Behind "web", which takes every connection to this port: nobody can come to be in it.
        assert_all_in(&fixture, "web", if round == 0 { 1 } else { (round + 2) % 3 }, &["web"]);
        tool(&fixture, &["class", "remove", "near"]);
        let priority = round % 3;
        // The file has it under another name every second time.
        let name = if round % 2 == 0 { "renamed" } else { "web" };
        write_classes(&fixture, &rules(name, priority));
        let said = tool(&fixture, &["reload"]);
        assert!(said.starts_with("classes: "), "{said}");
        assert_all_in(&fixture, name, priority, &[name]);
        if name != "web" {
            write_classes(&fixture, &rules("web", priority));
            tool(&fixture, &["reload"]);
            assert_all_in(&fixture, "web", priority, &["web"]);
        }
        keep_up(&fixture, &mut first, &short, &mut requests);
        keep_up(&fixture, &mut second, &kept, &mut requests);
    }
    requests += finish_load(&mut first) + finish_load(&mut second);
    server.check().unwrap();
    fixture.daemon().check().unwrap();
    assert!(requests > 1000, "{requests}");

    // SIGHUP reads the file again, too.
    write_classes(&fixture, &rules("hung-up", 2));
    let daemon = fixture.daemon().process().id();
    assert!(
        std::process::Command::new("kill").args(["-HUP", &daemon.to_string()]).status().unwrap().success()
    );
    wait_until("the classes of the file", SOON, || classes_at_80(&fixture).1 == ["hung-up"]);
    fixture.daemon().check().unwrap();
}

#[test]
fn connections_beyond_the_limit_wait_or_fail() {
    let fixture = Fixture::new(Arm::Paths);
    let mut server = fixture.start("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    tool(&fixture, &["class", "add", "few", "local_port=7000", "connections=4"]);
    let address = SocketAddrV4::new(fixture.address(), 7000);
    let connect = || TcpStream::connect_timeout(&address.into(), SOON).unwrap();
    let echoes = |stream: &mut TcpStream| {
        stream.write_all(b"hello").unwrap();
        let mut back = [0; 5];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"hello");
    };
    let client = fixture.testbed().client();
    let mut streams: Vec<TcpStream> = client.enter(|| (0..4).map(|_| connect()).collect()).unwrap();
    streams.iter_mut().for_each(echoes);
    let few = || {
        let stat = fixture.ask("stat");
        let classes = stat["classes"].as_array().unwrap();
        classes.iter().find(|class| class["name"] == "few").unwrap().clone()
    };
    assert_eq!((few()["connections"].as_u64(), few()["drops"]["connection-limit"].as_u64()), (Some(4), None));
    std::thread::scope(|scope| {
        let fifth = scope.spawn(|| client.enter(connect).unwrap());
        wait_until("its SYN is dropped and counted", SOON, || few()["drops"]["connection-limit"].is_u64());
        let listening = fixture
            .paths_now()
            .into_iter()
            .find(|path| path["device"] == DEVICE && path["state"] == "LISTEN" && path["class"] == "few");
        assert!(
            listening.unwrap()["drops"]["connection-limit"].is_u64(),
            "at the path that would have answered"
        );
        assert_eq!(few()["connections"], 4);
        streams.iter_mut().for_each(echoes);
        drop(streams.pop());
        // Its kernel asks again, and now there is a place.
        echoes(&mut fifth.join().unwrap());
    });

    // From here outward: what a program is told.
    let theirs = SocketAddrV4::new(fixture.peer_address(), 7001);
    let listener = client.enter(|| TcpListener::bind(theirs).unwrap()).unwrap();
    tool(&fixture, &["class", "add", "out", "remote_port=7001", "connections=2"]);
    let program = format!(
        "import errno, socket\nheld = []\ntry:\n while True:\n  s = socket.socket()\n  \
         s.connect(('{}', 7001))\n  held.append(s)\nexcept OSError as e:\n print(len(held), \
         errno.errorcode[e.errno])\nheld.pop().close()\nwhile s.connect_ex(('{}', 7001)): pass\nprint('again')",
        fixture.peer_address(),
        fixture.peer_address()
    );
    assert_eq!(fixture.run("python3", &["-c", &program], SOON), "2 ENOBUFS\nagain\n");
    let stat = fixture.ask("stat");
    let out = stat["classes"].as_array().unwrap().iter().find(|class| class["name"] == "out").unwrap();
    assert!(out["drops"]["connection-limit"].as_u64().unwrap() >= 1, "{out}");
    drop(listener);
}

/// A control group of a test, removed with it.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Cgroup {
        let name = format!("scoutline-test-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let root = if root.join("cgroup.procs").exists() { root.to_owned() } else { root.join("pids") };
        let path = root.join(name);
        fs::create_dir(&path).unwrap_or_else(|error| {
            panic!(
                "{}: {error}; this test needs root and a cgroup hierarchy (v2, or v1 with pids)",
                path.display()
            )
        });
        Cgroup(path)
    }

    fn name(&self) -> String {
        format!("/{}", self.0.file_name().unwrap().display())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("{} stays behind: {error}", self.0.display());
        }
    }
}

/// Programs are told apart by user and control group, interface and our address, all of them at once.
#[test]
fn programs_by_user_and_cgroup() {
    let group = Cgroup::new();
    let fixture = Fixture::new(Arm::Paths);
    let (cgroup, ours) = (format!("cgroup={}", group.name()), format!("destination={}", fixture.address()));
    tool(&fixture, &["class", "add", "nobody", "user=65534", "priority=1"]);
    tool(&fixture, &["class", "add", "grouped", &cgroup, &ours, "interface=eth0", "user=root"]);
    let echo = script("echo_server.py");
    let enter = format!("echo $$ > {}/cgroup.procs && exec python3 {echo} 7000", group.0.display());
    let mut grouped = fixture.start("sh", &["-c", &enter]);
    wait_for_line(&mut grouped, "ready");
    let mut other = fixture.start("python3", &[&echo, "7001"]);
    wait_for_line(&mut other, "ready");
    let class_of = |fixture: &Fixture, port: &str| -> Vec<(String, String)> {
        let paths = fixture.paths_now();
        let at = paths.iter().filter(|path| {
            path["device"] == DEVICE && path["local"].as_str().is_some_and(|local| local.ends_with(port))
        });
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let mut found: Vec<(String, String)> =
            at.map(|path| (text(&path["class"]), text(&path["state"]))).collect();
        found.sort();
        found
    };
    let pair =
        |class: &str| vec![(class.to_owned(), "-".to_owned()), (class.to_owned(), "LISTEN".to_owned())];
    assert_eq!(class_of(&fixture, ":7000"), pair("grouped"), "listening, and for datagrams");
    assert_eq!(class_of(&fixture, ":7001"), pair("default"));
    tool(&fixture, &["class", "set", "grouped", "user=nobody"]);
    assert_eq!(class_of(&fixture, ":7000"), pair("default"));
    tool(&fixture, &["class", "set", "grouped", "user="]);
    assert_eq!(class_of(&fixture, ":7000"), pair("grouped"));
    drop(grouped);
}
