//! Names looked up by the C library (`getaddrinfo` and its kin), with BIND's named on the other host, which only paths
//! lead to; and with one on the kernel's side.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use scoutline_bench::process::Process;

use crate::fixture::{Arm, Fixture, SOON, find, finish, script, twins, wait_for_line, wait_until};

twins!(names_are_found_by_paths, a_jump_out_of_a_look_up);

const LIMIT: Duration = Duration::from_secs(60);
/// Addresses of the long name: more than a datagram of 512 bytes holds, so that the C library asks again by TCP.
const MANY: u32 = 60;

/// A named with the zone example.test at `address`, once it answers. `start` runs it.
fn named(fixture: &Fixture, address: &str, start: impl FnOnce(&[&str]) -> Process) -> Process {
    let directory = fixture.file(&format!("named-{address}"));
    fs::create_dir(&directory).unwrap();
    let mut zone = format!(
        "$TTL 60\n@ IN SOA ns root 1 60 60 60 60\n@ IN NS ns\nns IN A {address}\nwww IN A {}\nsix IN AAAA \
         2001:db8::53\n",
        fixture.peer_address()
    );
    for number in 0..MANY {
        let _ = writeln!(zone, "many IN A 10.1.0.{number}\nh{number} IN A 10.2.0.{number}");
    }
    fs::write(directory.join("zone"), zone).unwrap();
    let reverse = "$TTL 60\n@ IN SOA ns. root. 1 60 60 60 60\n@ IN NS ns.\n7 IN PTR h7.example.test.\n";
    fs::write(directory.join("reverse"), reverse).unwrap();
    let here = directory.display();
    let configuration = format!(
        "options {{ directory \"{here}\"; listen-on {{ {address}; }}; listen-on-v6 {{ none; }}; recursion no;\n\
         pid-file none; session-keyfile \"{here}/session.key\"; dnssec-validation no; }};\ncontrols {{ }};\n\
         zone \"example.test\" {{ type primary; file \"{here}/zone\"; }};\n\
         zone \"0.2.10.in-addr.arpa\" {{ type primary; file \"{here}/reverse\"; }};\n"
    );
    let file = directory.join("named.conf");
    fs::write(&file, configuration).unwrap();
    let mut named = start(&["-g", "-4", "-n", "1", "-c", &file.display().to_string()]);
    wait_until("named runs", SOON, || {
        named.check().unwrap_or_else(|error| panic!("{error:#}"));
        named.log_tail().contains("all zones loaded")
    });
    named
}

/// Runs a program on the server host, for which `name_server` is the only one.
fn run_with(fixture: &Fixture, name_server: &str, program: &[&str]) -> String {
    let (resolver, order) = (fixture.file("resolv.conf"), fixture.file("nsswitch.conf"));
    fs::write(&resolver, format!("nameserver {name_server}\noptions timeout:2 attempts:2\n")).unwrap();
    fs::write(&order, "hosts: files dns\n").unwrap();
    // The files are the program's alone: it has a view of its own of what is mounted.
    let line = format!(
        "mount --bind {} /etc/resolv.conf && mount --bind {} /etc/nsswitch.conf && exec \"$@\"",
        resolver.display(),
        order.display()
    );
    let arguments = [&["--mount", "sh", "-c", &line, "sh"], program].concat();
    finish(&mut fixture.start("unshare", &arguments), LIMIT)
}

fn names_are_found_by_paths(arm: Arm) {
    let fixture = Fixture::new(arm);
    let peer = fixture.peer_address().to_string();
    let mut named_there = named(&fixture, &peer, |arguments| fixture.start_peer("named", arguments));
    let mut echo = fixture.start_peer("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut echo, "ready");
    let python = find("python3").display().to_string();
    let said = run_with(&fixture, &peer, &[&python, &script("names.py"), &peer, "7000"]);
    assert!(said.contains("all found"), "{said}");
    named_there.check().unwrap();

    fixture.raise_loopback();
    let mut named_here = named(&fixture, "127.0.0.1", |arguments| fixture.start("named", arguments));
    let said = run_with(&fixture, "127.0.0.1", &[&python, &script("names.py"), &peer, "7000"]);
    assert!(said.contains("all found"), "{said}");
    named_here.check().unwrap();
    echo.check().unwrap();
}

/// The name server is silent: nobody listens to what is sent there, and no error comes back.
fn a_jump_out_of_a_look_up(arm: Arm) {
    let fixture = Fixture::new(arm);
    let program = fixture.file("jumping").display().to_string();
    let built = std::process::Command::new(find("gcc"))
        .args(["-O1", "-Wall", "-Werror", "-pthread", "-o", &program, &script("jumping.c")])
        .status()
        .unwrap();
    assert!(built.success());
    let peer = fixture.peer_address().to_string();
    let silent = script("silent.py");
    let mut silent = fixture.start_peer("python3", &[&silent, &peer, "53"]);
    wait_for_line(&mut silent, "ready");
    let mut echo = fixture.start_peer("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut echo, "ready");
    let said = run_with(&fixture, &peer, &[&program, &peer, "7000"]);
    assert!(said.contains("all right"), "{said}");
    wait_for_line(&mut silent, "asked");
}
