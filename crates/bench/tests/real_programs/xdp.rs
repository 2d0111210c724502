//! The same server over AF_XDP, in everyday use and when the daemon is killed.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::fixture::{
    Arm, Fixture, SOON, assert_same, finish, scoutline, wait_for_line, wait_until, write_file,
};
use crate::machine;
use crate::nginx::{self, Side};

/// How long a large transfer may take.
const LONG: Duration = Duration::from_secs(120);
const MIB: usize = 256;
/// Files for several engines, the first of one MiB, each one MiB longer than the one before.
const FILES: usize = 24;
/// Whoever asks nginx is important; who sends datagrams to the other port is not.
const CLASSES: &str = "
driver = \"xdp\"

[device.xdp]
police_floods = false

[[class]]
name = \"preferred\"
priority = 2
local_port = [80]

[[class]]
name = \"ordinary\"
local_port = [7000]
";

fn over_xdp() -> Fixture {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with("driver = \"xdp\"\n");
    fixture
}

/// What Linux says of the device of the server host.
fn link(fixture: &Fixture) -> String {
    let host = fixture.testbed().server(0).name().to_owned();
    fixture.run_peer("ip", &["-n", &host, "-d", "link", "show", "eth0"], SOON)
}

#[test]
fn nginx_serves_and_takes_files() {
    let fixture = over_xdp();
    assert!(link(&fixture).contains("xdp"), "{}", link(&fixture));
    let files = fixture.file("files");
    let _nginx = nginx::start(&fixture, Side::UnderTest, &files);
    write_file(&files.join("large"), MIB);
    let url = format!("http://{}/", fixture.address());
    let fetched = fixture.file("fetched").display().to_string();
    let max = LONG.as_secs().to_string();
    let arguments = ["-sS", "--fail", "--max-time", &max, "-o", &fetched, &format!("{url}large")];
    fixture.run_peer("curl", &arguments, LONG);
    assert_same(&files.join("large"), fixture.file("fetched").as_path());
    let arguments = ["-sS", "--fail", "--max-time", &max, "-T", &fetched, &format!("{url}sent")];
    fixture.run_peer("curl", &arguments, LONG);
    assert_same(&files.join("large"), &files.join("sent"));
    let stat = fixture.ask("stat");
    let device = &stat["devices"]["eth0"];
    for bytes in ["rx-bytes", "tx-bytes"] {
        assert!(device[bytes].as_u64() >= Some((MIB as u64) << 20), "{device}");
    }
}

/// Two engines at one interface, with a queue for each and with one for both: files go both ways by many connections and
/// are the same, and both engines have served.
#[test]
fn two_engines_serve_many_connections() {
    for queues in [1, 2] {
        let mut fixture = Fixture::without_daemon(Arm::Paths);
        fixture.testbed().use_queues(queues).unwrap();
        fixture.start_daemon_with("driver = \"xdp\"\n\n[engine]\ncpu = [0, 1]\n");
        assert!(link(&fixture).contains("xdp"), "{}", link(&fixture));
        let said = fs::read_to_string(fixture.file("scoutline0.log")).unwrap();
        assert_eq!(said.contains("one sends by a packet socket"), queues == 1, "{said}");
        let (files, fetched) = (fixture.file("files"), fixture.file("fetched"));
        let _nginx = nginx::start(&fixture, Side::UnderTest, &files);
        fs::create_dir(&fetched).unwrap();
        for number in 1..=FILES {
            write_file(&files.join(number.to_string()), number);
        }
        let before = paths_made(&fixture);
        let (url, max) = (format!("http://{}/[1-{FILES}]", fixture.address()), LONG.as_secs().to_string());
        let parallel = ["-sS", "--fail", "--max-time", &max, "--parallel", "--parallel-immediate"];
        let into = fetched.join("#1").display().to_string();
        fixture.run_peer("curl", &[&parallel[..], &["-o", &into, &url]].concat(), LONG);
        let sent = fetched.join(format!("[1-{FILES}]")).display().to_string();
        let url = format!("http://{}/sent/", fixture.address());
        fs::create_dir(files.join("sent")).unwrap();
        fixture.run_peer("curl", &[&parallel[..], &["-T", &sent, &url]].concat(), LONG);
        for number in (1..=FILES).map(|number| number.to_string()) {
            assert_same(&files.join(&number), &fetched.join(&number));
            assert_same(&files.join(&number), &files.join("sent").join(&number));
        }
        let made = paths_made(&fixture);
        assert!(made.iter().zip(before).all(|(made, before)| made - before >= 4), "{before:?}, {made:?}");
        let device = fixture.ask("stat")["devices"]["eth0"].clone();
        let mib: usize = (1..=FILES).sum();
        for counter in ["rx-bytes", "tx-bytes"] {
            assert!(count(&device, counter) >= (mib as u64) << 20, "{device}");
        }
    }
}

/// Paths that each engine has made.
fn paths_made(fixture: &Fixture) -> [u64; 2] {
    let stat = fixture.ask("stat");
    [0, 1].map(|engine| count(&stat["engines"][engine], "paths-made"))
}

/// UDP and TCP of every kind that iperf3 has, small packets at a high rate among them.
#[test]
fn iperf3_both_ways() {
    let fixture = over_xdp();
    let address = fixture.address().to_string();
    for case in
        [&["-P", "8"][..], &["-R"], &["-u", "-b", "50M", "-l", "64"], &["-u", "-b", "50M", "-l", "64", "-R"]]
    {
        let mut server = fixture.start("iperf3", &["-s", "-1", "--forceflush"]);
        wait_for_line(&mut server, "listening");
        let arguments = [&["-c", &address, "-t", "1", "-J"], case].concat();
        let report: serde_json::Value =
            serde_json::from_str(&fixture.run_peer("iperf3", &arguments, SOON)).expect("JSON");
        let sum = if case.contains(&"-u") { "sum" } else { "sum_received" };
        let bytes = report["end"][sum]["bytes"].as_f64();
        assert!(bytes.is_some_and(|bytes| bytes > 1e6), "{case:?}: {report}");
        finish(&mut server, SOON);
    }
}

/// A daemon that is killed leaves no program at the interface, and the next one serves at once.
#[test]
fn a_killed_daemon_leaves_nothing_behind() {
    let mut fixture = over_xdp();
    fixture.daemon().process().kill();
    wait_until("the program is gone", SOON, || !link(&fixture).contains("xdp"));
    fixture.start_daemon_with("driver = \"xdp\"\n");
    let files = fixture.file("files");
    let _nginx = nginx::start(&fixture, Side::UnderTest, &files);
    fs::write(files.join("small"), "hello").unwrap();
    let url = format!("http://{}/small", fixture.address());
    assert_eq!(fixture.run_peer("curl", &["-sS", "--fail", &url], SOON).trim(), "hello");
}

/// What is told of a class.
fn class(fixture: &Fixture, name: &str) -> Value {
    let stat = fixture.ask("stat");
    let classes = stat["classes"].as_array().unwrap_or_else(|| panic!("no classes in {stat}"));
    classes
        .iter()
        .find(|class| class["name"] == name)
        .unwrap_or_else(|| panic!("no {name} in {stat}"))
        .clone()
}

fn count(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_else(|| panic!("no {name} in {row}"))
}

/// While a program takes one datagram a second of the flood that comes, its path is full: it is dropped in the hook
/// and counted for it. What is important has a ring of its own, and is served.
#[test]
fn what_has_no_room_is_dropped_in_the_hook_and_what_is_important_is_served() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with(CLASSES);
    let files = fixture.file("files");
    let _nginx = nginx::start(&fixture, Side::UnderTest, &files);
    fs::write(files.join("small"), "hello").unwrap();
    let tool = scoutline().display().to_string();
    let mut sink = fixture.start(&tool, &["load", "sink", "--port=7000", "--every=1000000"]);
    wait_for_line(&mut sink, "ready");
    let mac = machine::link(fixture.testbed().server(0), "eth0", "address");
    let mac = format!("--mac={}", mac.as_str().unwrap());
    let source = format!("--source={}", fixture.peer_address());
    let target = format!("--target={}:7000", fixture.address());
    let arguments = ["load", "flood", "--device=eth0", &mac, &source, &target, "--rate=1000000"];
    let mut flood = fixture.start_peer(&tool, &arguments);
    wait_for_line(&mut flood, "sending");
    wait_until("the path is full", SOON, || {
        count(&fixture.ask("stat")["devices"]["eth0"], "rx-held-back") > 10_000
    });
    let url = format!("http://{}/small?[1-200]", fixture.address());
    let said = fixture.run_peer("curl", &["-sS", "--fail", &url], SOON);
    assert_eq!(said.matches("hello").count(), 200, "{said}");
    flood.check().unwrap();
    drop(flood);
    let full = |path: &&Value| path["drops"]["held-back"].as_u64().is_some_and(|dropped| dropped > 0);
    let paths = fixture.paths_now();
    let held = paths.iter().find(full).unwrap_or_else(|| panic!("none of these was held back: {paths:?}"));
    assert!(held["local"].as_str().is_some_and(|local| local.ends_with(":7000")), "{held}");
    assert!(count(&held["drops"], "held-back") > 2 * count(&held["drops"], "receive-buffer-full"), "{held}");
    let (preferred, ordinary) = (class(&fixture, "preferred"), class(&fixture, "ordinary"));
    assert!(count(&ordinary["drops"], "held-back") > 0, "{ordinary}");
    assert!(preferred["drops"]["held-back"].is_null(), "{preferred}");
    let device = fixture.ask("stat")["devices"]["eth0"].clone();
    assert!(count(&preferred, "packets_in") >= 200, "{preferred}");
    // The SYNs of two connections count for the path that listens and for those that it makes.
    assert!(count(&device, "rx-important") + 2 >= count(&preferred, "packets_in"), "{device} {preferred}");
    assert_eq!(count(&device, "rx-policed"), 0, "{device}");
}

/// The driver is chosen, and said why: by `driver = "auto"`, with an engine that has a core, one that has none and several,
/// and by `--device auto`, which finds the interface too.
#[test]
fn auto_takes_the_driver_that_suits_and_says_why() {
    const WHY: &str = "eth0: driver \"packet\", because its driver (veth) has no zero-copy";
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    let log = fixture.file("scoutline0.log");
    for engine in ["", "\n[engine]\ncpu = 0\n", "\n[engine]\ncpu = [0, 1]\n"] {
        fs::remove_file(&log).ok();
        fixture.start_daemon_with(&format!("driver = \"auto\"\n{engine}"));
        let said = fs::read_to_string(&log).unwrap();
        assert!(said.contains(WHY), "{said}");
        assert!(!link(&fixture).contains("xdp"), "{}", link(&fixture));
    }
    fixture.daemon().process().kill();
    let host = fixture.testbed().server(0).name().to_owned();
    let (tool, control) =
        (scoutline().display().to_string(), fixture.file("automatic").display().to_string());
    let address = format!("{}/24", fixture.address());
    let own = ["up", "--device", "auto", "--address", &address, "--control", &control];
    let mut daemon = fixture.start_peer("ip", &[&["netns", "exec", &host, &tool][..], &own].concat());
    wait_for_line(&mut daemon, "ready: eth0");
    assert!(daemon.log_tail().contains(WHY), "{}", daemon.log_tail());
}
