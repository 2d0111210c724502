//! What goes wrong in everyday use: the errors are Linux's own.

use std::process::Command;

use crate::fixture::{Arm, Fixture, SOON, script, twins, wait_for_line};

twins!(errors_are_those_of_linux, a_second_server_says_that_the_port_is_in_use);

fn errors_are_those_of_linux(arm: Arm) {
    let fixture = Fixture::new(arm);
    let mut holder = fixture.start("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut holder, "ready");
    let mut quiet = fixture.start_peer("python3", &[&script("echo_server.py"), "7100"]);
    wait_for_line(&mut quiet, "ready");
    let (address, peer) = (fixture.address().to_string(), fixture.peer_address().to_string());
    // The address where nobody is takes a few seconds of asking.
    let text = fixture.run("python3", &[&script("errors.py"), &address, &peer, "7000", "7100"], SOON);
    let told: Vec<&str> = text.lines().collect();
    let expected = [
        "bind to a port in use: EADDRINUSE",
        "bind to a port in use, at the address: EADDRINUSE",
        "bind to an address of others: EADDRNOTAVAIL",
        "connect to a closed port: ECONNREFUSED",
        "connect to a closed port, without blocking: ECONNREFUSED",
        "connect where nobody is: EHOSTUNREACH",
        "connect to a network without a route: ENETUNREACH",
        "send on a closed connection: EPIPE",
        "receive without blocking: EAGAIN",
        "receive with a time-out: timed out",
        "datagram to a closed port: ECONNREFUSED",
        "datagram that is too long: EMSGSIZE",
    ];
    assert_eq!(told, expected);
}

/// On Linux a signal comes before the copy or after it, so this has no twin.
#[test]
fn a_handler_that_sends_in_the_midst_of_a_send_is_refused_and_nobody_waits() {
    let fixture = Fixture::new(Arm::Paths);
    let mut echo = fixture.start_peer("python3", &[&script("echo_server.py"), "7100"]);
    wait_for_line(&mut echo, "ready");
    let program = fixture.file("nested").display().to_string();
    let built = Command::new("cc")
        .args(["-Wall", "-Werror", "-D_GNU_SOURCE", "-o", &program, &script("nested.c")])
        .output()
        .expect("a C compiler: apt-get install gcc libc6-dev");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let text = fixture.run(&program, &[&fixture.peer_address().to_string(), "7100"], SOON);
    assert_eq!(text, "within: EAGAIN\nthen: 200\nnext: 1\nback: 201\n");
}

/// A real server's own message, and its exit.
fn a_second_server_says_that_the_port_is_in_use(arm: Arm) {
    let fixture = Fixture::new(arm);
    let http = ["-u", "-m", "http.server", "8000"];
    let mut first = fixture.start("python3", &http);
    wait_for_line(&mut first, "Serving HTTP");
    let mut second = fixture.start("python3", &http);
    let deadline = std::time::Instant::now() + SOON;
    let error = second.finish(deadline).expect_err("the port is in use");
    assert!(format!("{error:#}").contains("Address already in use"), "{error:#}");
    first.check().unwrap();
}
