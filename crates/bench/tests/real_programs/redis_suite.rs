//! redis's own tests, unmodified: servers, clients, replication and cluster at loopback addresses, all on paths.
//!
//! Debian does not package them, and a test run fetches nothing from the internet, so this is by hand: it runs where
//! `SCOUTLINE_REDIS_SUITE` names a checkout of redis of the same version as `redis-server` (tests need no build: Debian's
//! programs are tested), and needs `tclsh`. `SCOUTLINE_REDIS_UNITS` names the units (`unit/info integration/aof`); all
//! run without it, which takes more than half an hour. What is left out stands in `scripts/redis-skips.txt`.

use std::path::Path;
use std::time::Duration;

use crate::fixture::{Arm, Fixture, find, left_out, twins};

twins!(redis_passes_its_own_tests);

const CHECKOUT: &str = "SCOUTLINE_REDIS_SUITE";
const UNITS: &str = "SCOUTLINE_REDIS_UNITS";
const PROGRAMS: [&str; 5] =
    ["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"];
const LIMIT: Duration = Duration::from_secs(2 * 3600);

fn redis_passes_its_own_tests(arm: Arm) {
    let Some(checkout) = std::env::var_os(CHECKOUT) else {
        eprintln!("not run: {CHECKOUT} names no checkout of redis");
        return;
    };
    let mut fixture = Fixture::without_daemon(arm);
    fixture.raise_loopback();
    if arm == Arm::Paths {
        fixture.start_daemon_with("[local]\nloopback = true\n");
    }
    let suite = fixture.file("suite");
    std::fs::create_dir_all(suite.join("src")).unwrap();
    for part in ["tests", "redis.conf", "sentinel.conf"] {
        let from = Path::new(&checkout).join(part).display().to_string();
        fixture.run_peer("cp", &["-r", &from, &suite.display().to_string()], Duration::from_secs(60));
    }
    for program in PROGRAMS {
        std::os::unix::fs::symlink(find(program), suite.join("src").join(program)).unwrap();
    }
    let units = std::env::var(UNITS).unwrap_or_default();
    let units: Vec<String> = units.split_whitespace().map(|unit| format!(" --single {unit}")).collect();
    let units = units.concat();
    std::fs::write(suite.join("skips"), left_out("redis-skips.txt")).unwrap();
    let run = "exec tclsh tests/test_helper.tcl --clients 2 --skipfile skips";
    let command = format!("cd {} && {run}{units}", suite.display());
    let text = fixture.run("sh", &["-c", &command], LIMIT);
    assert!(text.contains("All tests passed without errors"), "{text}");
    if arm == Arm::Paths {
        let made = fixture.ask("stat")["engine"]["paths-made"].as_u64().unwrap();
        assert!(made > 100, "only {made} paths were made");
    }
}
