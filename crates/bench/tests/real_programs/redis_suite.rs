//! redis's own tests, unmodified: servers, clients, replication and cluster at loopback addresses, all on paths.
//!
//! No Debian package has them, but the source package does: `scripts/redis-tests` fetches and checks it, and
//! `SCOUTLINE_REDIS_SUITE` names where it lies (`make test` does both). Where it cannot be had the test fails, unless
//! `SCOUTLINE_NO_REDIS_SUITE=1` leaves it out. The short form has what sockets matter to most; `SCOUTLINE_LONG=1`
//! (`make test-redis`) runs all, more than half an hour; `SCOUTLINE_REDIS_UNITS` names others
//! (`unit/info integration/aof`). What is left out stands in `scripts/redis-skips.txt`.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use crate::fixture::{Arm, Fixture, find, left_out, long, twins};

twins!(redis_passes_its_own_tests);

const CHECKOUT: &str = "SCOUTLINE_REDIS_SUITE";
const NO_CHECKOUT: &str = "SCOUTLINE_NO_REDIS_SUITE";
const UNITS: &str = "SCOUTLINE_REDIS_UNITS";
const PROGRAMS: [&str; 5] =
    ["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"];
/// Pipelines, clients that hold up, many clients, listening anew, pushed messages, blocked clients, the tools, replicas that
/// come and go: some three minutes. Left out of what is about sockets: `integration/replication` and
/// `integration/replication-psync`, which wait for minutes.
const SHORT: &str = "unit/protocol unit/querybuf unit/pubsub unit/pubsubshard unit/limits unit/networking unit/tracking \
                     unit/keyspace unit/auth unit/quit unit/multi unit/other unit/wait integration/redis-benchmark \
                     integration/redis-cli integration/block-repl integration/replication-2 integration/replication-3 \
                     integration/replication-4 integration/replication-buffer integration/psync2-reg \
                     integration/psync2-pingoff integration/psync2-master-restart integration/failover \
                     integration/shutdown";
const LIMIT: Duration = Duration::from_secs(2 * 3600);

fn redis_passes_its_own_tests(arm: Arm) {
    if std::env::var_os(NO_CHECKOUT).is_some_and(|value| !value.is_empty()) {
        // Past what the harness keeps to itself of a test that passes.
        let _ = writeln!(std::io::stderr(), "LEFT OUT, as {NO_CHECKOUT} asks: redis's own tests");
        return;
    }
    let checkout = std::env::var_os(CHECKOUT).filter(|folder| Path::new(folder).join("redis.conf").is_file());
    let checkout = checkout.unwrap_or_else(|| {
        panic!(
            "{CHECKOUT} names no folder with redis's own tests: run make test, or scripts/redis-tests FOLDER; \
             {NO_CHECKOUT}=1 leaves them out"
        )
    });
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
    let units = std::env::var(UNITS).unwrap_or_else(|_| if long() { "" } else { SHORT }.to_owned());
    let units: Vec<String> = units.split_whitespace().map(|unit| format!(" --single {unit}")).collect();
    let units = units.concat();
    std::fs::write(suite.join("skips"), left_out("redis-skips.txt")).unwrap();
    let run = "exec tclsh tests/test_helper.tcl --clients 2 --skipfile skips";
    let command = format!("cd {} && {run}{units}", suite.display());
    let text = fixture.run("sh", &["-c", &command], LIMIT);
    assert!(text.contains("All tests passed without errors"), "{text}");
    if arm == Arm::Paths {
        let made = fixture.ask("stat")["engine"]["paths-made"].as_u64().unwrap();
        assert!(made > 50, "only {made} paths were made");
    }
}
