//! The test bed, nginx and the load generator together, with the kernel as the server: whole answers,
//! no errors, and nothing left behind. Needs root, iproute2 and nginx, and says so when they are missing.

use std::path::Path;
use std::process::Command;

use scoutline_bench::load::LoadReport;
use scoutline_bench::process::{Place, Process};
use scoutline_bench::server::{Kind, Server, fetch};
use scoutline_bench::testbed::{Client, Owner, Testbed};

const NEEDS: &str = "this test needs root, iproute2 and nginx, and a kernel that allows network namespaces";

fn load(testbed: &Testbed, arguments: &[&str]) -> LoadReport {
    let place = Place { namespace: Some(testbed.client().namespace().unwrap()), core: None };
    let server = testbed.server_address(0).to_string();
    let source = testbed.client_address(0, Client::Preferred).to_string();
    let mut all = vec!["load", "--json", "--connect", &server, "--source", &source, "--warmup", "0.1"];
    all.extend(["--seconds", "0.5"].iter().chain(arguments));
    let program = Path::new(env!("CARGO_BIN_EXE_scoutline-bench"));
    let log = testbed.directory().join("load.log");
    let mut process = Process::spawn("load", program, all, place, &log).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let line = process.line(deadline).unwrap().unwrap_or_else(|| panic!("no report{}", process.log_tail()));
    process.finish(deadline).unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn nginx_on_the_kernel_serves_whole_files_and_leaves_nothing() {
    let testbed = Testbed::new(&[Owner::Kernel, Owner::Daemon], None)
        .unwrap_or_else(|error| panic!("{NEEDS}: {error:#}"));
    let server = Server::start(&testbed, 0, Kind::Nginx { workers: 2, keepalive: true }, 0, None)
        .unwrap_or_else(|error| panic!("{NEEDS}: {error:#}"));

    let fifty = ["--clients", "16", "--path", "/50k"];
    let discard = [&fifty[..], &["--discard", "--spans"]].concat();
    for arguments in [&fifty[..], &["--clients", "4", "--keepalive"], &discard] {
        let report = load(&testbed, arguments);
        assert!(report.requests > 100, "{arguments:?}: {report:?}");
        assert!(report.verified > 0, "{arguments:?}: {report:?}");
        assert_eq!(report.error_count(), 0, "{arguments:?}: {report:?}");
        assert!(
            report.p50_us > 0.0 && report.p50_us <= report.p99_us && report.p99_us <= report.max_us * 1.01
        );
        assert_eq!(
            report.bytes,
            report.requests * if arguments.contains(&"/50k") { 50 << 10 } else { 1 << 10 }
        );
        let spans = if arguments.contains(&"--spans") { report.requests } else { 0 };
        assert_eq!(report.spans.len() as u64, spans, "{arguments:?}");
        assert!(report.spans.iter().all(|(begin, end)| begin < end), "{arguments:?}");
    }
    let missing = load(&testbed, &["--path", "/missing"]);
    assert_eq!(missing.requests, 0);
    assert!(
        missing.errors.keys().all(|kind| kind == "bad status") && missing.error_count() > 0,
        "{missing:?}"
    );

    // The daemon's host has no address of the kernel's: nobody answers there.
    assert!(fetch(testbed.client(), testbed.server_address(1), 1).is_err());

    let (names, directory) = (
        [testbed.client().name().to_owned(), testbed.server(0).name().to_owned()],
        testbed.directory().to_owned(),
    );
    drop(server);
    drop(testbed);
    let left = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let left = String::from_utf8_lossy(&left.stdout).into_owned();
    assert!(names.iter().all(|name| !left.contains(name.as_str())), "{left}");
    assert!(!directory.exists());
}
