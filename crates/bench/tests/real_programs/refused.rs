//! Who may not attach.

use crate::fixture::{Arm, Fixture, SOON};

/// What a program on paths starts after it has given up root: it runs, on the kernel's sockets, and that is said once.
#[test]
fn programs_of_users_who_may_not_attach_run() {
    let fixture = Fixture::new(Arm::Paths);
    let line = "exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'id -u; sh -c \"id -g\"' 2>&1";
    let text = fixture.run("sh", &["-c", line], SOON);
    let lines: Vec<&str> = text.lines().collect();
    assert!(matches!(lines[..], [said, "65534", "65534"] if said.contains("may not attach")), "{text}");
}
