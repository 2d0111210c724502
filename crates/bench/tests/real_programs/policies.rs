//! Classes of every policy, with real programs: who gets how much of the engine, and that each serves.

use std::net::UdpSocket;

use scoutline_bench::load::LoadReport;
use scoutline_bench::process::Process;
use scoutline_bench::server::{Kind, Server};
use serde_json::Value;

use crate::classes::tool;
use crate::fixture::{Arm, Fixture, SOON, finish, wait_for_line, wait_until};

const BENCH: &str = env!("CARGO_BIN_EXE_scoutline-bench");

fn class_now(fixture: &Fixture, name: &str) -> Value {
    let stat = fixture.ask("stat");
    let classes = stat["classes"].as_array().unwrap();
    classes.iter().find(|class| class["name"] == name).unwrap_or_else(|| panic!("no class {name}")).clone()
}

/// Two senders that always have more to send than the engine can take; what their classes cost.
#[test]
fn weights_divide_the_engine_between_classes() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    // Much may wait, so that a sender which Linux does not let run for a while still has work for the engine.
    fixture.start_daemon_with(
        "[engine]\nsend_buffer = \"4MiB\"\n\
         [[class]]\nname = \"heavy\"\npolicy = \"wfq\"\nweight = 300\nlocal_port = [7001]\n\
         [[class]]\nname = \"light\"\npolicy = \"wfq\"\nlocal_port = [7002]\n",
    );
    let target = std::net::SocketAddrV4::new(fixture.peer_address(), 7000);
    // Nobody reads, but it is there: no answers come.
    let sink = fixture.testbed().client().enter(|| UdpSocket::bind(target).unwrap()).unwrap();
    let start = |port: &str| {
        let mut sender =
            fixture.start(BENCH, &["load", "pour", "--port", port, "--target", &target.to_string()]);
        wait_for_line(&mut sender, "sending");
        sender
    };
    let senders: Vec<Process> = ["7001", "7002"].into_iter().map(start).collect();
    let backlogged = || {
        let paths = fixture.paths_now();
        let full = |class: &str| {
            let path = paths.iter().find(|path| path["class"] == class && path["peer"].is_string());
            path.is_some_and(|path| path["send_queue_bytes"].as_u64().unwrap() > 1 << 20)
        };
        full("heavy") && full("light")
    };
    let cost = || {
        let stat = fixture.ask("stat");
        let classes = stat["classes"].as_array().unwrap();
        let of = |name: &str| classes.iter().find(|class| class["name"] == name).unwrap()["cpu_ns"].as_u64();
        (of("heavy").unwrap() as f64, of("light").unwrap() as f64)
    };
    wait_until("both have more to send than is taken", SOON, backlogged);
    // Times in which Linux does not let a sender fill its ring again say nothing.
    let (mut heavy, mut light) = (0.0, 0.0);
    let mut before = cost();
    wait_until("the engine has worked for a while, and always had both to choose from", SOON, || {
        let begun = before;
        before = cost();
        if backlogged() {
            heavy += before.0 - begun.0;
            light += before.1 - begun.1;
        }
        light > 2e8
    });
    // How exactly is tested in virtual time (crates/sched): here a ring may have been empty in between, and what a
    // hypervisor takes is charged to whom it hits.
    let ratio = heavy / light;
    println!("3 : 1 became {ratio:.2} : 1");
    assert!((1.3..8.0).contains(&ratio), "{ratio}");
    drop((senders, sink));
}

/// Every policy serves real requests, and a class goes from one to the other while they come.
#[test]
fn every_policy_serves_and_changes_under_load() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with("[engine]\ntime_wait_s = 1\n[[class]]\nname = \"web\"\nlocal_port = [80]\n");
    let mut server = {
        let paths = fixture.paths();
        let paths = paths.as_ref().map(|(program, daemon)| (program.as_path(), *daemon));
        let kind = Kind::Nginx { workers: 2, keepalive: true };
        Server::start(fixture.testbed(), 0, kind, None, paths).unwrap_or_else(|error| panic!("{error:#}"))
    };
    let address = fixture.testbed().server_address(0).to_string();
    let load = |more: &[&str]| {
        let all =
            ["load", "--json", "--connect", &address, "--warmup", "0", "--seconds", "6", "--clients", "8"];
        fixture.start_peer(BENCH, &[&all, more].concat())
    };
    let loads = [
        load(&["--path", "/16k", "--think", "2000"]),
        load(&["--path", "/100k", "--keepalive", "--think", "1000"]),
    ];
    const NONE: [&str; 7] =
        ["priority=", "weight=", "deadline_us=", "budget_us=", "cpu_percent=", "important=", "idle="];
    let policies: [(&str, &[&str]); 6] = [
        ("edf", &["policy=edf", "deadline_us=2000", "budget_us=50"]),
        ("wfq", &["policy=wfq", "weight=50"]),
        ("bert", &["policy=bert", "cpu_percent=0.5", "important=true", "deadline_us=5000", "budget_us=100"]),
        ("bert", &["policy=bert", "cpu_percent=2"]),
        ("idle", &["policy=", "idle=true"]),
        ("priority", &["policy=priority", "priority=2"]),
    ];
    let packets = || class_now(&fixture, "web")["packets_in"].as_u64().unwrap();
    wait_until("the load has begun", SOON, || packets() > 100);
    for (policy, keys) in policies.iter().cycle().take(2 * policies.len()) {
        let set = ["class", "set", "web"];
        let cleared: Vec<&str> =
            NONE.into_iter().filter(|none| !keys.iter().any(|key| key.starts_with(none))).collect();
        tool(&fixture, &[&set[..], &cleared, keys].concat());
        let row = class_now(&fixture, "web");
        assert_eq!(row["policy"], *policy, "{row}");
        let paths = fixture.paths_now();
        let mut web = paths.iter().filter(|path| path["class"] == "web");
        assert!(web.all(|path| path["policy"] == *policy), "listen paths too: {paths:?}");
        let before = packets();
        wait_until(&format!("{policy} serves"), SOON, || packets() > before + 100);
    }
    for mut load in loads {
        let report: LoadReport = serde_json::from_str(&finish(&mut load, SOON)).unwrap();
        assert_eq!(report.error_count(), 0, "{report:?}");
        assert!(report.requests > 100, "{report:?}");
    }
    server.check().unwrap();
    fixture.daemon().check().unwrap();
}
