//! A server that starts its successor: its listening sockets go on in the new program.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::fixture::{Arm, Fixture, SOON, twins, wait_until};
use crate::nginx::{self, Side};

twins!(nginx_changes_its_program);

/// nginx's "upgrading executable on the fly": SIGUSR2 starts a second master with the same sockets (`NGINX=6;` is all of
/// its environment), SIGQUIT ends the first.
fn nginx_changes_its_program(arm: Arm) {
    let fixture = Fixture::new(arm);
    let files = fixture.file("files");
    fs::create_dir_all(&files).unwrap();
    fs::write(files.join("page"), "a page").unwrap();
    let mut server = nginx::start(&fixture, Side::UnderTest, &files);
    let url = format!("http://{}/page", fixture.address());
    let fetch = || fixture.run_peer("curl", &["-sS", "--fail", "--max-time", "10", &url], SOON);
    assert_eq!(fetch().trim(), "a page");

    let (file, old) = (fixture.file("nginx/nginx.pid"), fixture.file("nginx/nginx.pid.oldbin"));
    let first = process_in(&file).expect("a master");
    signal("USR2", first);
    wait_until("there is a second master", SOON, || {
        process_in(&old) == Some(first) && process_in(&file).is_some_and(|now| now != first)
    });
    let second = process_in(&file).unwrap();
    signal("QUIT", first);
    let deadline = std::time::Instant::now() + SOON;
    server.finish(deadline).unwrap_or_else(|error| panic!("the first master: {error:#}"));
    for _ in 0..20 {
        assert_eq!(fetch().trim(), "a page");
    }
    if arm == Arm::Paths {
        let listens = |row: &serde_json::Value| row["state"] == "LISTEN";
        assert!(fixture.paths_now().iter().any(listens), "nobody listens on paths");
    }
    signal("QUIT", second);
    wait_until("it ends", SOON, || !Path::new(&format!("/proc/{second}")).exists());
}

/// The process that a file names.
fn process_in(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").args(["-s", name, &process.to_string()]).status().unwrap();
    assert!(sent.success(), "SIG{name} to {process}");
}
