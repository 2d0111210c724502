//! Options of TCP, as a program sees them, and what `[tcp]` says for programs that ask nothing.

use std::time::Duration;

use scoutline_bench::bridge::Line;
use scoutline_device::memory::WireConfig;

use crate::fixture::{Arm, Fixture, SOON, script, twins, wait_for_line};

twins!(tcp_options_take_effect_and_read_back);

fn tcp_options_take_effect_and_read_back(arm: Arm) {
    let fixture = Fixture::new(arm);
    let mut server = fixture.start_peer("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    let (address, peer) = (fixture.address().to_string(), fixture.peer_address().to_string());
    let arm = if arm == Arm::Kernel { "kernel" } else { "paths" };
    let text = fixture.run("python3", &[&script("tcp_options.py"), &peer, "7000", &address, arm], SOON);
    assert!(text.contains("all as it should be"), "{text}");
    server.check().unwrap();
}

/// Both ends send, with BBR on ours, and ECN offered to a kernel that accepts it.
#[test]
fn bbr_and_ecn_by_configuration() {
    let wire = WireConfig { delay: Duration::from_millis(5), loss: 0.01, ..WireConfig::default() };
    let line = Line { wire, seed: 1 };
    let mut fixture = Fixture::over(line, Arm::Paths);
    fixture.start_daemon_with("[tcp]\ncongestion = \"bbr\"\necn = \"offer\"\n");
    let mut server = fixture.start_peer("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    let peer = fixture.peer_address().to_string();
    let client = script("echo_client.py");
    let text = fixture.run("python3", &[&client, &peer, "7000", "20"], Duration::from_secs(60));
    assert!(text.contains("all echoed"), "{text}");
    server.check().unwrap();
}
