//! Packets that no decent host sends.

use std::collections::BTreeMap;

use scoutline_bench::server::{Kind, Server, fetch};

use crate::fixture::{Arm, Fixture, SOON, script, wait_for_line, wait_until};
use crate::machine::link;

/// Cases of `raw.py`, and the reason under which each of their packets is counted.
const CASES: [(&str, &str); 16] = [
    ("truncated-ip", "truncated"),
    ("longer-than-frame", "truncated"),
    ("truncated-tcp", "truncated"),
    ("truncated-udp", "truncated"),
    ("truncated-icmp", "truncated"),
    ("truncated-arp", "truncated"),
    ("ip-version", "malformed"),
    ("ip-header-length", "malformed"),
    ("tcp-data-offset", "malformed"),
    ("ip-checksum", "bad-checksum"),
    ("tcp-checksum", "bad-checksum"),
    ("udp-checksum", "bad-checksum"),
    ("icmp-checksum", "bad-checksum"),
    ("unknown-protocol", "unknown-protocol"),
    ("unknown-ethertype", "unknown-protocol"),
    ("other-address", "not-for-us"),
];

/// How many packets a case sends.
const COUNT: u64 = 20;

/// Drops by reason, of paths and of none.
fn drops(fixture: &Fixture) -> BTreeMap<String, u64> {
    let stat = fixture.ask("stat");
    let mut sum = BTreeMap::new();
    let classes = stat["classes"].as_array().expect("classes");
    for drops in classes.iter().map(|class| &class["drops"]).chain([&stat["drops"]]) {
        for (reason, count) in drops.as_object().expect("drops by reason") {
            *sum.entry(reason.clone()).or_insert(0) += count.as_u64().expect("a count");
        }
    }
    sum
}

#[test]
fn bad_packets_are_counted_under_their_reason_and_the_server_serves_on() {
    let fixture = Fixture::new(Arm::Paths);
    let paths = fixture.paths().unwrap();
    let mut server = Server::start(fixture.testbed(), 0, Kind::NGINX, None, Some((&paths.0, paths.1)))
        .unwrap_or_else(|error| panic!("{error:#}"));
    let mut echo = fixture.start("python3", &[&script("echo_server.py"), "9"]);
    wait_for_line(&mut echo, "ready");
    let ethernet = link(fixture.testbed().server(0), "eth0", "address");
    let (ethernet, address) = (ethernet.as_str().expect("an address"), fixture.address().to_string());
    let peer = fixture.peer_address().to_string();
    let send = |case: &str, count: u64| {
        let arguments = [&script("raw.py"), "eth0", ethernet, &peer, &address, case, &count.to_string()];
        fixture.run_peer("python3", &arguments, SOON);
    };
    let serves = || {
        let (client, server) = (fixture.testbed().client(), fixture.testbed().server_address(0));
        fetch(client, server, 16).unwrap_or_else(|error| panic!("{error:#}"));
    };
    let mut faults = Vec::new();
    for (case, reason) in CASES {
        let count = |drops: &BTreeMap<String, u64>| drops.get(reason).copied().unwrap_or(0);
        let before = drops(&fixture);
        send(case, COUNT);
        serves();
        let after = drops(&fixture);
        if count(&after) < count(&before) + COUNT {
            faults.push(format!("{case} is not counted as {reason}: {before:?}, then {after:?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));

    // Beginnings of real packets with random bytes changed, cut anywhere.
    send("noise", 20_000);
    serves();
    server.check().unwrap();
    echo.check().unwrap();
    // What they have opened or half opened goes again, all but what listens.
    let open = || {
        let paths = fixture.paths_now();
        paths
            .iter()
            .filter(|path| path["state"].as_str().is_some_and(|state| state.starts_with("SYN")))
            .count()
    };
    wait_until("no path is half open for long", SOON * 6, || open() < 300);
}
