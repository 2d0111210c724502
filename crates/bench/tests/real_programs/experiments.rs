//! Experiments that start daemons and servers, as short as they can be: every arm answers, and each row is there.

use std::path::Path;

use scoutline_bench::{Options, Report, Row, run};

use crate::fixture::{scoutline, turn};

fn experiment(name: &str, only: &str, seconds: f64) -> Report {
    let _turn = turn();
    run(name, &options(only, seconds)).unwrap_or_else(|error| panic!("{name}: {error:#}"))
}

fn options(only: &str, seconds: f64) -> Options {
    Options {
        quick: true,
        scoutline: scoutline(),
        load: env!("CARGO_BIN_EXE_scoutline-bench").into(),
        rounds: Some(1),
        seconds: Some(seconds),
        only: Some(only.to_owned()),
        progress: false,
        ..Options::default()
    }
}

/// The one row with this metric and this peer.
fn row<'a>(report: &'a Report, metric: &str, peer: &str) -> &'a Row {
    let wanted = |row: &&Row| row.metric == metric && row.peer_name == peer;
    let found: Vec<&Row> = report.rows.iter().filter(wanted).collect();
    let [row] = found[..] else { panic!("{metric} against {peer}: {} rows of {report}", found.len()) };
    row
}

/// Of the kernel's tracing, where it is mounted.
const TRACES: &str = "/sys/kernel/tracing/instances";

#[test]
fn prefer_and_extend_measure_four_arms_and_trace_their_threads() {
    for name in ["prefer", "extend"] {
        let was_mounted = Path::new(TRACES).exists();
        has_four_arms(&experiment(name, "nginx 1 worker 50 KB, 96", 0.6));
        assert_eq!(Path::new(TRACES).exists(), was_mounted, "tracefs is as it was");
    }
}

fn has_four_arms(report: &Report) {
    assert!(!report.machine.method.contains_key("errors"), "{:?}", report.machine.method);
    for peer in ["paths equal", "kernel", "kernel administered"] {
        for metric in
            ["preferred mean", "preferred p99", "preferred mean over unloaded mean", "throughput of the rest"]
        {
            let row = row(report, metric, peer);
            assert!(row.ours > 0.0 && row.peer.is_some_and(|figure| figure > 0.0), "{row:?}");
        }
        row(report, "preferred p99 over unloaded mean", peer);
        row(report, "server side is the bottleneck", peer);
    }
    // The kernel's directory, where the bench mounts it for as long as it traces.
    if Path::new("/sys/kernel/tracing").exists() {
        for peer in ["kernel", "kernel administered"] {
            let row = row(report, "preferred requests traced", peer);
            assert!(row.ours > 0.0 && row.peer.is_some_and(|figure| figure > 0.0), "{row:?}");
        }
        let ours = format!("scl-{}-trace", std::process::id());
        assert!(!Path::new(TRACES).join(ours).exists(), "a trace buffer was left behind");
    } else {
        let metric = "unblock to run (not measured: this machine does not let us trace)";
        assert!(row(report, metric, "").peer.is_none());
    }
}

#[test]
fn idle_measures_bulk_traffic_and_nginx_on_five_arms() {
    let peers = ["no mechanism", "nice", "SCHED_IDLE", "htb"];
    let report = experiment("idle", "UDP bursty beside TCP", 0.5);
    assert!(!report.machine.method.contains_key("errors"), "{:?}", report.machine.method);
    for peer in peers {
        for metric in [
            "foreground throughput",
            "foreground latency, p99",
            "background throughput",
            "time to yield, p99",
        ] {
            let row = row(&report, metric, peer);
            assert!(row.ours > 0.0 && row.peer.is_some_and(|figure| figure > 0.0), "{row:?}");
        }
    }
    // On the kernel a foreground request may wait behind background for the whole of a short run,
    // so only what both together got must be more than nothing.
    let report = experiment("idle", "nginx", 3.0);
    assert!(!report.machine.method.contains_key("errors"), "{:?}", report.machine.method);
    for peer in peers {
        let rows =
            ["foreground throughput", "background throughput"].map(|metric| row(&report, metric, peer));
        assert!(rows.iter().all(|row| row.ours > 0.0), "{rows:?}");
        let both: f64 = rows.iter().filter_map(|row| row.peer).sum();
        assert!(both > 0.0, "{rows:?}");
    }
}

#[test]
fn flood_arrives_and_is_accounted_for() {
    let report = experiment("flood", "flood for no path, 1000", 0.6);
    for peer in ["paths equal", "kernel"] {
        // How much of its rate the client keeps is a figure; that the flood was one is the test's matter.
        for (metric, least) in
            [("request rate without the flood", 10.0), ("flood sent", 10_000.0), ("flood offered", 10_000.0)]
        {
            let row = row(&report, metric, peer);
            assert!(row.ours > least && row.peer.is_some_and(|figure| figure > least), "{row:?}");
        }
        assert_eq!(row(&report, "flood offered", peer).ratio, Some(1.0), "every arm has the same flood");
    }
    assert!(row(&report, "dropped, no-path", "paths equal").ours > 1_000.0, "{report}");
    let held_back = row(&report, "held back at the interface", "kernel");
    assert!(held_back.ours > 1_000.0, "{held_back:?}");
    let kernel = row(&report, "dropped, kernel: no port", "kernel");
    assert!(kernel.peer.is_some_and(|figure| figure > 1_000.0), "{kernel:?}");
}

/// Both arms did what the experiment measures; how well is a figure.
fn measures_both_arms(name: &str, only: &str, seconds: f64, metrics: &[&str]) {
    let report = experiment(name, only, seconds);
    assert!(!report.machine.method.contains_key("errors"), "{:?}", report.machine.method);
    for metric in metrics {
        let row = row(&report, metric, "kernel");
        assert!(row.ours > 0.0 && row.peer.is_some_and(|figure| figure > 0.0), "{row:?}");
    }
}

#[test]
fn stream_sends_and_receives() {
    measures_both_arms("stream", "8 connections, sending, one core", 1.0, &["throughput"]);
    measures_both_arms("stream", "1 connection, receiving, pinned apart", 1.0, &["throughput"]);
}

#[test]
fn rr_measures_requests_one_by_one() {
    let metrics = ["p50", "p99", "mean", "rate"];
    measures_both_arms("rr", "TCP, engine alone", 0.6, &metrics);
    measures_both_arms("rr", "UDP, free", 0.6, &metrics);
    measures_both_arms("rr", "TCP spinning", 1.5, &metrics);
}

#[test]
fn conn_opens_and_closes_connections() {
    measures_both_arms("conn", "16 clients, pinned apart", 0.6, &["rate", "p50", "p99"]);
}

#[test]
fn udp_asks_by_single_calls_and_by_batches() {
    for only in ["recvfrom, one core", "recvmmsg, pinned apart"] {
        measures_both_arms("udp", only, 0.6, &["rate", "p50", "p99"]);
    }
}

#[test]
fn dns_asks_named() {
    measures_both_arms("dns", "pinned apart", 1.0, &["rate", "mean"]);
}

#[test]
fn redis_is_asked_with_a_pipeline() {
    measures_both_arms("redis", "get, 16 in a pipeline, pinned apart", 0.6, &["rate", "p50", "p99"]);
}

#[test]
fn local_has_both_ends_on_paths() {
    measures_both_arms("local", "stream, 1 connection, pinned apart", 1.0, &["throughput"]);
    measures_both_arms("local", "to and fro, UDP, one core", 0.6, &["p50", "p99", "rate"]);
}

#[test]
fn forward_passes_packets_on() {
    let metrics = ["forwarded, per core", "forwarded", "offered"];
    measures_both_arms("forward", "packet", 0.6, &metrics);
}

#[test]
fn scale_holds_idle_connections() {
    let metrics = ["throughput beside them", "p99 beside them"];
    measures_both_arms("scale", "100 idle connections", 0.6, &metrics);
}

#[test]
fn a_profile_names_functions_of_both_arms() {
    let _turn = turn();
    let flame = std::env::temp_dir().join(format!("scoutline-flame-{}.svg", std::process::id()));
    let options = Options { flame: Some(flame.clone()), ..options("recvmmsg, one core", 2.0) };
    let report = run("udp", &options).unwrap_or_else(|error| panic!("{error:#}"));
    let arms: Vec<&str> = report.profiles.iter().map(|profile| profile.arm.as_str()).collect();
    assert_eq!(arms, ["kernel", "paths"], "{report}");
    assert!(report.profiles.iter().all(|profile| profile.samples > 0 && !profile.top.is_empty()), "{report}");
    let drawn = std::fs::read_to_string(&flame).unwrap();
    std::fs::remove_file(&flame).unwrap();
    assert!(
        drawn.contains("scl-engine") && drawn.contains("<svg"),
        "the engine is not in the flame graph: {report}"
    );
}

#[test]
fn wan_measures_both_arms_over_a_policer() {
    let report = experiment("wan", "policer 50 Mbit/s, sending", 1.0);
    assert!(!report.machine.method.contains_key("errors"), "{:?}", report.machine.method);
    let throughput = row(&report, "throughput", "kernel cubic");
    assert!(throughput.ours > 0.0 && throughput.peer.is_some_and(|figure| figure > 0.0), "{throughput:?}");
    let share = row(&report, "of the line's rate", "kernel cubic");
    // A line that is faster than it says would be none.
    assert!(share.ours < 105.0 && share.peer.is_some_and(|figure| figure < 105.0), "{share:?}");
}
