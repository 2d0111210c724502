//! The same server over AF_XDP, in everyday use and when the daemon is killed.

use std::fs;
use std::time::Duration;

use crate::fixture::{Arm, Fixture, SOON, assert_same, finish, wait_for_line, wait_until, write_file};
use crate::nginx::{self, Side};

/// How long a large transfer may take.
const LONG: Duration = Duration::from_secs(120);
const MIB: usize = 256;

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
