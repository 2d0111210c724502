//! redis-server and redis-benchmark, either of them on paths.

use scoutline_bench::process::Process;

use crate::fixture::{Arm, Fixture, SOON, twins, wait_for_line};

twins!(redis_serves, redis_benchmark_asks);

const PORT: &str = "6379";

fn arguments(directory: &str) -> [&str; 12] {
    let quiet = ["--save", "", "--appendonly", "no", "--protected-mode", "no"];
    let [a, b, c, d, e, f] = quiet;
    ["--port", PORT, "--bind", "0.0.0.0", "--dir", directory, a, b, c, d, e, f]
}

fn ready(mut server: Process) -> Process {
    wait_for_line(&mut server, "Ready to accept connections");
    server
}

fn check(text: &str) {
    let rates: Vec<(&str, f64)> = text
        .lines()
        .filter_map(|line| line.split_once(','))
        .filter_map(|(test, rest)| Some((test, rest.split(',').next()?.trim_matches('"').parse().ok()?)))
        .collect();
    assert!(rates.len() >= 4, "{text}");
    assert!(rates.iter().all(|(_, rate)| *rate > 100.0), "{text}");
}

const CASES: [&[&str]; 3] = [
    &["-n", "10000", "-c", "50", "-t", "ping,set,get,lrange_100"],
    &["-n", "50000", "-c", "50", "-P", "16", "-t", "set,get,incr,lpush"],
    // Values of 64 KiB, and two threads.
    &["-n", "2000", "-c", "20", "-d", "65536", "--threads", "2", "-t", "set,get,lpush,lpop"],
];

pub(crate) fn redis_serves(arm: Arm) {
    let fixture = Fixture::new(arm);
    let directory = fixture.file("").display().to_string();
    let mut server = ready(fixture.start("redis-server", &arguments(&directory)));
    let address = fixture.address().to_string();
    let common = ["-h", &address, "-p", PORT];
    for case in CASES {
        let text = fixture.run_peer("redis-benchmark", &[&common[..], &["--csv"], case].concat(), SOON * 2);
        check(&text);
    }
    let ask = |words: &[&str]| fixture.run_peer("redis-cli", &[&common[..], words].concat(), SOON);
    let value = "v".repeat(50_000);
    assert_eq!(ask(&["set", "key", &value]).trim(), "OK");
    assert_eq!(ask(&["get", "key"]).trim(), value);
    server.check().unwrap();
}

fn redis_benchmark_asks(arm: Arm) {
    let fixture = Fixture::new(arm);
    let directory = fixture.file("").display().to_string();
    let _server = ready(fixture.start_peer("redis-server", &arguments(&directory)));
    let address = fixture.peer_address().to_string();
    for case in CASES {
        let text = fixture.run(
            "redis-benchmark",
            &[&["-h", &address, "-p", PORT, "--csv"][..], case].concat(),
            SOON * 2,
        );
        check(&text);
    }
}
