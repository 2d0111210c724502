//! `poll` and `select`: what is important is reported first, the rest a moment later, and the thread runs as what it
//! serves.

use std::io::Write as _;
use std::net::{SocketAddrV4, TcpStream};

use crate::extension::{OWN, becomes, echo};
use crate::fixture::{Arm, Fixture, SOON, finish, script, twins, wait_for_line};
use crate::machine::asleep;

twins!(equals_are_reported_together, servers_that_poll_and_select_echo);

/// Connections to 7000 are important, those to 7001 and 7002 are not.
const PREFERRED: &str = "
[extension]
enabled = true

[[class]]
name = \"preferred\"
priority = 2
local_port = [7000]
";
const RAISED: (u32, u32) = (1, 12);
const KINDS: [&str; 2] = ["poll", "select"];

fn fixture(arm: Arm) -> Fixture {
    let mut fixture = Fixture::without_daemon(arm);
    if arm == Arm::Paths {
        fixture.start_daemon_with(PREFERRED);
    }
    fixture
}

fn connect(fixture: &Fixture, port: u16) -> TcpStream {
    let address = SocketAddrV4::new(fixture.address(), port);
    let connect = || TcpStream::connect_timeout(&address.into(), SOON);
    let peer = fixture.testbed().client().enter(connect).unwrap().unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    peer
}

/// What `readiness.py` says of connections to these ports.
fn reported(fixture: &Fixture, kind: &str, ports: [u16; 2]) -> String {
    let [first, second] = ports.map(|port| port.to_string());
    let mut program = fixture.start("python3", &[&script("readiness.py"), kind, &first, &second]);
    wait_for_line(&mut program, "ready");
    let peers = ports.map(|port| {
        let mut peer = connect(fixture, port);
        peer.write_all(b"hello").unwrap();
        peer
    });
    let said = finish(&mut program, SOON);
    drop(peers);
    said
}

#[test]
fn the_important_is_reported_first_and_the_rest_soon() {
    let fixture = fixture(Arm::Paths);
    for kind in KINDS {
        let said = reported(&fixture, kind, [7000, 7001]);
        assert!(
            said.contains("at once: first\nthen: first second\nwithout the first: second"),
            "{kind}: {said}"
        );
    }
}

fn equals_are_reported_together(arm: Arm) {
    let fixture = fixture(arm);
    for kind in KINDS {
        let said = reported(&fixture, kind, [7001, 7002]);
        let together = "at once: first second\nthen: first second\nwithout the first: second";
        assert!(said.contains(together), "{kind}: {said}");
    }
}

/// Two hundred connections of each sort at a time: nobody is forgotten.
fn servers_that_poll_and_select_echo(arm: Arm) {
    let fixture = fixture(arm);
    for kind in KINDS {
        let mut server = fixture.start("python3", &[&script("selectors_echo.py"), kind, "7000", "7001"]);
        wait_for_line(&mut server, "ready");
        let client = script("echo_client.py");
        let address = fixture.address().to_string();
        let ask = |port| fixture.start_peer("python3", &[&client, &address, port, "200"]);
        let mut clients = ["7000", "7001"].map(ask);
        for client in &mut clients {
            let said = finish(client, 2 * SOON);
            assert!(said.contains("all echoed"), "{kind}: {said}");
        }
        server.check().unwrap();
        server.kill();
    }
}

#[test]
fn the_thread_runs_as_what_poll_and_select_give_it() {
    let fixture = fixture(Arm::Paths);
    for kind in KINDS {
        let mut server = fixture.start("python3", &[&script("selectors_echo.py"), kind, "7000", "7001"]);
        wait_for_line(&mut server, "ready");
        let mut peers = [7000, 7001].map(|port| connect(&fixture, port));
        // Both are accepted; else that may follow what is asked first, and lower the thread.
        peers.iter_mut().for_each(echo);
        for _ in 0..3 {
            for (peer, policy) in peers.iter_mut().zip([RAISED, OWN]) {
                // One that is awake is not woken, and who is not woken is not raised.
                asleep(&server);
                echo(peer);
                becomes(&server, policy);
            }
        }
        server.kill();
    }
}
