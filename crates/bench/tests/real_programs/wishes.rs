//! What programs ask for their sockets: in C with the header, and in Rust with the crate.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::process::Command;

use scoutline_bench::process::Process;

use crate::classes::tool;
use crate::fixture::{Arm, Fixture, SOON, script, wait_for_line};

const CLASSES: &str = "
[[class]]
name = \"web\"
priority = 2
local_port = [7000]

[[class]]
name = \"top\"
priority = 9
local_port = [1]

[[class]]
name = \"low\"
priority = 1
local_port = [1]
extend = false

[[class]]
name = \"video\"
policy = \"edf\"
deadline_us = 2000
budget_us = 100
local_port = [1]

[[class]]
name = \"full\"
policy = \"edf\"
deadline_us = 2000
budget_us = 100
cpu_limit_percent = 4.9
local_port = [1]
";
const PERMISSION: &str = "
[[permission]]
program = [\"scout-c\"]
user = [\"root\"]
priority = 5
weight = 200
class = [\"top\", \"video\", \"full\"]
";

/// Reads lines up to this one; those before it.
fn lines_until(program: &mut Process, last: &str) -> Vec<String> {
    let deadline = std::time::Instant::now() + SOON;
    let mut lines = Vec::new();
    loop {
        match program.line(deadline).unwrap_or_else(|error| panic!("{error:#} after {lines:#?}")) {
            Some(line) if line == last => return lines,
            Some(line) => lines.push(line),
            None => panic!("it ended after {lines:#?}{}", program.log_tail()),
        }
    }
}

fn configure(fixture: &Fixture, more: &str) {
    let device = format!("[[device]]\nname = \"eth0\"\naddress = \"{}/24\"\n", fixture.address());
    fs::write(fixture.file("scoutline0.toml"), format!("{device}{CLASSES}{more}")).unwrap();
    tool(fixture, &["reload"]);
}

/// Class and priority of the connection at our port 7000.
fn connection(fixture: &Fixture) -> (String, Option<u64>) {
    let ours = |row: &&serde_json::Value| {
        row["state"] == "ESTABLISHED" && row["local"].as_str().is_some_and(|local| local.ends_with(":7000"))
    };
    let rows = fixture.paths_now();
    let row = rows.iter().find(ours).expect("a connection");
    (row["class"].as_str().unwrap().to_owned(), row["priority"].as_u64())
}

#[test]
fn a_program_in_c_lowers_itself_and_rises_with_permission() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with(CLASSES);
    let program = fixture.file("scout-c").display().to_string();
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../scout/include");
    let built = Command::new("cc")
        .args(["-Wall", "-Werror", "-D_GNU_SOURCE", "-I", header, "-o", &program, &script("scout.c")])
        .output()
        .expect("a C compiler: apt-get install gcc libc6-dev");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // So that connections to the machine itself, which stay with Linux, lead somewhere.
    fixture
        .testbed()
        .server(0)
        .enter(|| Command::new("ip").args(["link", "set", "lo", "up"]).status())
        .unwrap()
        .unwrap();
    let mut server = fixture.start(&program, &[]);
    assert_eq!(
        lines_until(&mut server, "ready"),
        [
            "datagram: ENOPROTOOPT",
            "before bind: ok",
            "bind: ok",
            "listen: ok",
            "connect: ok",
            "kernel's: ENOPROTOOPT",
            "rise before bind: EPERM",
            "bind: ok",
            "listen: ok",
            "class web, priority 2, background 0, extend 1",
            "lower: ok",
            "class web, priority 1, background 0, extend 1",
        ]
    );
    let address = SocketAddrV4::new(fixture.address(), 7000);
    let connect = || TcpStream::connect_timeout(&address.into(), SOON).unwrap();
    let mut peer = fixture.testbed().client().enter(connect).unwrap();
    assert_eq!(
        lines_until(&mut server, "lowered"),
        [
            "class web, priority 1, background 0, extend 1",
            "higher: EPERM",
            "as class: ok",
            "too high: EINVAL",
            "top: EPERM",
            "nosuch: ENOENT",
            "too long: EINVAL",
            "low: ok",
            "class low, priority 1, background 0, extend 0",
            "background: ok",
            "class low, priority -1, background 1, extend 0",
        ]
    );
    assert_eq!(connection(&fixture), ("low".to_owned(), None));
    configure(&fixture, PERMISSION);
    assert_eq!(connection(&fixture), ("low".to_owned(), None));
    peer.write_all(b"!").unwrap();
    assert_eq!(
        lines_until(&mut server, "raised"),
        [
            "foreground: ok",
            "top: ok",
            "higher: ok",
            "highest: EPERM",
            "class top, priority 5, background 0, extend 1",
            "as class: ok",
            "full: ENOBUFS",
            "video: ok",
            "class video, deadline 2000, weight -1",
            "sooner: EPERM",
            "never: EINVAL",
            "later: ok",
            "class video, deadline 4000, weight -1",
            "more weight: EPERM",
            "weight: ok",
            "class video, deadline -1, weight 200",
        ]
    );
    assert_eq!(connection(&fixture), ("video".to_owned(), None));
    // It goes again, and what it gave with it.
    configure(&fixture, "");
    assert_eq!(connection(&fixture), ("web".to_owned(), Some(2)));
    peer.write_all(b"!").unwrap();
    wait_for_line(&mut server, "class web, priority 2, background 0, extend 1");
}

#[test]
fn a_program_in_rust_asks_by_the_crate() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with(CLASSES);
    let theirs = SocketAddrV4::new(fixture.peer_address(), 7002);
    let listener = fixture.testbed().client().enter(|| TcpListener::bind(theirs).unwrap()).unwrap();
    let said = fixture.run(env!("CARGO_BIN_EXE_scoutline-wishes"), &[&theirs.to_string()], SOON);
    assert!(said.contains("all of it"), "{said}");
    drop(listener);
}

#[test]
fn the_example_program_says_how_it_is_used() {
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_scoutline-wishes")).args(words).output().unwrap();
        (output.status.code(), [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()))
    };
    let (code, [said, errors]) = run(&["--help"]);
    assert!(code == Some(0) && said.starts_with("usage: ") && errors.is_empty(), "{code:?} {said} {errors}");
    for wrong in [&[][..], &["--hepl"]] {
        let (code, [said, errors]) = run(wrong);
        assert!(code == Some(2) && said.is_empty() && errors.starts_with("usage: "), "{code:?} {errors}");
    }
}
