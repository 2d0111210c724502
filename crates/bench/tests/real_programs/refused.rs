//! Who may not attach.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use crate::fixture::{Arm, Fixture, SOON};

/// What a program on paths starts after it has given up root: it runs, on the kernel's sockets, and that is said once.
#[test]
fn programs_of_users_who_may_not_attach_run() {
    let fixture = Fixture::new(Arm::Paths);
    run_as_nobody(&fixture);
}

/// Whom the attach socket's mode lets in is refused by the daemon all the same; that is no different.
#[test]
fn programs_of_users_whom_only_the_daemon_refuses_run() {
    let mut fixture = Fixture::new(Arm::Paths);
    let mut socket = fixture.daemon().control().as_os_str().to_owned();
    socket.push(".attach");
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(fixture.testbed().directory(), Permissions::from_mode(0o755)).unwrap();
    run_as_nobody(&fixture);
}

fn run_as_nobody(fixture: &Fixture) {
    let line = "exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'id -u; sh -c \"id -g\"' 2>&1";
    let text = fixture.run("sh", &["-c", line], SOON);
    let lines: Vec<&str> = text.lines().collect();
    assert!(matches!(lines[..], [said, "65534", "65534"] if said.contains("may not attach")), "{text}");
}
