//! Experiments that start daemons and servers, as short as they can be: every arm answers, and each row is there.

use std::path::Path;

use scoutline_bench::{Options, Report, Row, run};

use crate::fixture::{scoutline, turn};

fn experiment(name: &str, only: &str, seconds: f64) -> Report {
    let _turn = turn();
    let options = Options {
        quick: true,
        scoutline: scoutline(),
        load: env!("CARGO_BIN_EXE_scoutline-bench").into(),
        rounds: Some(1),
        seconds: Some(seconds),
        only: Some(only.to_owned()),
        progress: false,
        ..Options::default()
    };
    run(name, &options).unwrap_or_else(|error| panic!("{name}: {error:#}"))
}

/// The one row with this metric and this peer.
fn row<'a>(report: &'a Report, metric: &str, peer: &str) -> &'a Row {
    let wanted = |row: &&Row| row.metric == metric && row.peer_name == peer;
    let found: Vec<&Row> = report.rows.iter().filter(wanted).collect();
    let [row] = found[..] else { panic!("{metric} against {peer}: {} rows of {report}", found.len()) };
    row
}

#[test]
fn prefer_and_extend_measure_four_arms_and_trace_their_threads() {
    for name in ["prefer", "extend"] {
        has_four_arms(&experiment(name, "nginx 1 worker 50 KB, 96", 0.3));
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
    let traces = Path::new("/sys/kernel/tracing/instances");
    if traces.exists() {
        for peer in ["kernel", "kernel administered"] {
            let row = row(report, "preferred requests traced", peer);
            assert!(row.ours > 0.0 && row.peer.is_some_and(|figure| figure > 0.0), "{row:?}");
        }
        let ours = format!("scl-{}-trace", std::process::id());
        assert!(!traces.join(ours).exists(), "a trace buffer was left behind");
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
    let report = experiment("idle", "nginx", 1.5);
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
    let report = experiment("flood", "flood for no path, 1000", 0.3);
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
