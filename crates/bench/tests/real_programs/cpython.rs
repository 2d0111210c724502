//! CPython's own tests of sockets, unmodified: `test_socket`, `test_select`, `test_selectors`, `test_epoll`,
//! `test_asyncio`, `test_httplib`, `test_ftplib`.
//!
//! They talk to themselves at 127.0.0.1 and ::1, so loopback addresses belong to paths here (`[local] loopback`). What
//! is left out stands in `scripts/cpython-skips.txt`, each with its reason; all else has to pass, and the sockets have
//! to have been on paths. The short form has those parts of asyncio that have sockets; `SCOUTLINE_LONG=1` runs all of
//! it.
//!
//! Needs Debian's `libpython3.11-testsuite` (`scripts/deps`).

use std::fs;
use std::time::Duration;

use crate::fixture::{Arm, Fixture, left_out, long, twins};

twins!(cpython_passes_its_own_tests);

/// Debian's, whose test suite is a package of its own.
const PYTHON: &str = "/usr/bin/python3";
const MODULES: [&str; 7] =
    ["test_select", "test_selectors", "test_epoll", "test_ftplib", "test_httplib", "test_socket", ASYNCIO];
const ASYNCIO: &str = "test_asyncio";
/// What of asyncio the short form runs: a quarter of its time.
const WITH_SOCKETS: [&str; 9] = [
    "*test_sock_lowlevel*",
    "*test_server*",
    "*test_streams*",
    "*test_sendfile*",
    "*test_events*",
    "*test_sslproto*",
    "*test_buffered_proto*",
    "*test_selector_events*",
    "*test_base_events*",
];
/// Seconds for one module, of which the longest takes 30 (asyncio whole: 110); then it says where it hangs.
const PATIENCE_S: &str = "300";
/// Paths that these tests make, at least: nearly all of their sockets.
const PATHS: u64 = 500;

fn cpython_passes_its_own_tests(arm: Arm) {
    let mut fixture = Fixture::without_daemon(arm);
    fixture.raise_loopback();
    if arm == Arm::Paths {
        fixture.start_daemon_with("[local]\nloopback = true\n");
    }
    let skips = fixture.file("skips");
    fs::write(&skips, left_out("cpython-skips.txt")).unwrap();
    let skips = skips.display().to_string();
    for module in MODULES {
        let mut arguments = vec!["-m", "test", "-v", "--timeout", PATIENCE_S, "--ignorefile", &skips];
        if module == ASYNCIO && !long() {
            arguments.extend(WITH_SOCKETS.iter().flat_map(|part| ["-m", part]));
        }
        arguments.push(module);
        let text = fixture.run(PYTHON, &arguments, Duration::from_secs(400));
        assert!(text.contains("result: SUCCESS"), "{module}: {text}");
    }
    if arm == Arm::Paths {
        let made = fixture.ask("stat")["engine"]["paths-made"].as_u64().unwrap();
        assert!(made >= PATHS, "only {made} paths were made");
    }
}
