//! CPython's own tests of sockets, unmodified: `test_socket`, `test_select`, `test_selectors`, `test_epoll`,
//! `test_asyncio`, `test_httplib`, `test_ftplib`.
//!
//! They talk to themselves at 127.0.0.1 and ::1, so loopback addresses belong to paths here (`[local] loopback`). What
//! is left out stands in `scripts/cpython-skips.txt`, each with its reason; all else has to pass, and the sockets have
//! to have been on paths. The short form leaves the slowest modules out (`SCOUTLINE_LONG=1` has all).
//!
//! Needs Debian's `libpython3.11-testsuite` (`scripts/deps`).

use std::fs;
use std::time::Duration;

use crate::fixture::{Arm, Fixture, find, long, script, twins};

twins!(cpython_tests_pass);

/// Debian's, whose test suite is a package of its own.
const PYTHON: &str = "/usr/bin/python3";
const MODULES: [&str; 6] =
    ["test_select", "test_selectors", "test_epoll", "test_ftplib", "test_httplib", "test_socket"];
const SLOW: [&str; 1] = ["test_asyncio"];
/// Connections that these tests make on paths, at least.
const CONNECTIONS: u64 = 300;

fn cpython_tests_pass(arm: Arm) {
    let mut fixture = Fixture::without_daemon(arm);
    let up = || std::process::Command::new(find("ip")).args(["link", "set", "lo", "up"]).status();
    assert!(fixture.testbed().server(0).enter(up).unwrap().unwrap().success());
    if arm == Arm::Paths {
        fixture.start_daemon_with("[local]\nloopback = true\n");
    }
    let skips = fixture.file("skips");
    fs::write(&skips, patterns(&fs::read_to_string(script("cpython-skips.txt")).unwrap())).unwrap();
    let skips = skips.display().to_string();
    let slow = if long() { &SLOW[..] } else { &[] };
    for module in MODULES.iter().chain(slow) {
        // Under `-m test` every module has a process of its own, and a test that hangs says where (`--timeout`).
        let arguments = ["-m", "test", "-v", "--timeout", "60", "--ignorefile", &skips, module];
        let text = fixture.run(PYTHON, &arguments, Duration::from_secs(600));
        assert!(text.contains("Result: SUCCESS"), "{module}: {text}");
    }
    if arm == Arm::Paths {
        let made = connections(&fixture.ask("stat"));
        assert!(made >= CONNECTIONS, "only {made} connections were on paths");
    }
}

/// What of the list is for the test runner: names, without reasons.
fn patterns(list: &str) -> String {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, reason) = line.split_once(": ").unwrap_or_else(|| panic!("no reason in `{line}`"));
            assert!(!reason.is_empty());
            format!("{name}\n")
        })
        .collect()
}
