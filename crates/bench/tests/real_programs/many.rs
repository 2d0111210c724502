//! A process with very many connections.

use std::fs;
use std::time::Duration;

use crate::fixture::{Arm, Fixture, SOON, finish, script, twins, wait_for_line, wait_until};

twins!(a_process_has_nineteen_thousand_connections);

/// Nearly as many as a process may have files: often 20,000, where nobody may raise that.
const MOST: u64 = 19_000;
/// What else the process has.
const OTHERS: u64 = 600;
/// To open them all one by one.
const LIMIT: Duration = SOON.saturating_mul(5);

fn count() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit of files");
    // Name, soft limit, hard limit, unit.
    let hard = files.split_whitespace().nth(4).expect("a hard limit").parse().unwrap_or(u64::MAX);
    let count = MOST.min(hard.saturating_sub(OTHERS));
    assert!(count > 1_000, "the hard RLIMIT_NOFILE is too low: {hard}");
    count
}

/// One process accepts them all, another one serves them, and each is answered; then all is given back.
pub(crate) fn a_process_has_nineteen_thousand_connections(arm: Arm) {
    let (fixture, all) = (Fixture::new(arm), count());
    let (place, count) = (format!("{}:7000", fixture.address()), all.to_string());
    let mut server = fixture.start("python3", &[&script("many.py"), "accept", &place, &count]);
    wait_for_line(&mut server, "ready");
    let text = fixture.run_peer("python3", &[&script("many.py"), "connect", &place, &count], LIMIT);
    assert_eq!(text.trim(), format!("answered {all}"));
    wait_for_line(&mut server, &format!("given away {all}"));
    assert_eq!(finish(&mut server, SOON).trim(), "child 0");
    if arm == Arm::Paths {
        let made = fixture.ask("stat")["engine"]["paths-made"].as_u64().expect("a count");
        assert!(made >= all, "{made} were on paths");
        let gone = || fixture.ask("stat")["engine"]["ring-bytes"] == 0;
        wait_until("its memory returns", SOON, gone);
    }
}
