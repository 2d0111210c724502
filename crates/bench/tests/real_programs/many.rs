//! A process with very many connections.

use crate::fixture::{Arm, Fixture, SOON, finish, script, twins, wait_for_line, wait_until};

twins!(a_process_has_nineteen_thousand_connections);

/// Nearly as many as a process has files where nobody may raise its limit: often 20,000.
const COUNT: u64 = 19_000;

/// One process accepts them all, another one serves them, and each is answered; then all is given back.
pub(crate) fn a_process_has_nineteen_thousand_connections(arm: Arm) {
    let fixture = Fixture::new(arm);
    let (place, count) = (format!("{}:7000", fixture.address()), COUNT.to_string());
    let mut server = fixture.start("python3", &[&script("many.py"), "accept", &place, &count]);
    wait_for_line(&mut server, "ready");
    let text = fixture.run_peer("python3", &[&script("many.py"), "connect", &place, &count], SOON);
    assert_eq!(text.trim(), format!("answered {COUNT}"));
    wait_for_line(&mut server, &format!("given away {COUNT}"));
    assert_eq!(finish(&mut server, SOON).trim(), "child 0");
    if arm == Arm::Paths {
        let made = fixture.ask("stat")["engine"]["paths-made"].as_u64().expect("a count");
        assert!(made >= COUNT, "{made} were on paths");
        let gone = || fixture.ask("stat")["engine"]["ring-bytes"] == 0;
        wait_until("its memory returns", SOON, gone);
    }
}
