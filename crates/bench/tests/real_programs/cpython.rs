//! CPython's own tests of sockets, unmodified: `test_socket`, `test_select`, `test_selectors`, `test_epoll`,
//! `test_asyncio`, `test_httplib`, `test_ftplib`.
//!
//! They talk to themselves at 127.0.0.1 and ::1, so loopback addresses belong to paths here (`[local] loopback`). What
//! is left out stands in `scripts/cpython-skips.txt`, each with its reason; all else has to pass, and the sockets have
//! to have been on paths.
//!
//! Needs Debian's `libpython3.11-testsuite` (`scripts/deps`).

use std::fs;
use std::time::Duration;

use crate::fixture::{Arm, Fixture, beside_others, left_out, twins};

twins!(cpython_passes_its_own_tests);

/// Debian's, whose test suite is a package of its own.
const PYTHON: &str = "/usr/bin/python3";
const MODULES: [&str; 6] =
    ["test_select", "test_selectors", "test_epoll", "test_ftplib", "test_httplib", "test_socket"];
const ASYNCIO: &str = "test_asyncio";
/// Seconds for one test of a module; then it says where it hangs.
const PATIENCE_S: &str = "300";
/// For all tests of a module.
const LIMIT: Duration = Duration::from_secs(400);
/// Paths that these tests make, at least: nearly all of their sockets.
const PATHS: u64 = 500;

fn cpython_passes_its_own_tests(arm: Arm) {
    beside_others(|| passes(arm));
}

fn passes(arm: Arm) {
    let mut fixture = Fixture::without_daemon(arm);
    fixture.raise_loopback();
    if arm == Arm::Paths {
        fixture.start_daemon_with("[local]\nloopback = true\n");
    }
    let skips = fixture.file("skips");
    fs::write(&skips, left_out("cpython-skips.txt")).unwrap();
    let skips = skips.display().to_string();
    let common = ["-m", "test", "-v", "--timeout", PATIENCE_S, "--ignorefile", &skips];
    let passed = |module: &str, text: &str| assert!(text.contains("result: SUCCESS"), "{module}: {text}");
    // One after another: some of them are about time.
    for module in MODULES.into_iter().chain([ASYNCIO]) {
        passed(module, &fixture.run(PYTHON, &[&common[..], &[module]].concat(), LIMIT));
    }
    if arm == Arm::Paths {
        let made = fixture.ask("stat")["engine"]["paths-made"].as_u64().unwrap();
        assert!(made >= PATHS, "only {made} paths were made");
    }
}
