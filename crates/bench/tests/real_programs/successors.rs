//! A server that starts its successor: its listening sockets go on in the new program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixture::{Arm, Fixture, SOON, twins, wait_until};

twins!(nginx_changes_its_program);

/// nginx's "upgrading executable on the fly": SIGUSR2 starts a second master with the same sockets (`NGINX=6;` is all of
/// its environment), SIGQUIT ends the first.
fn nginx_changes_its_program(arm: Arm) {
    let fixture = Fixture::new(arm);
    let directory = fixture.file("nginx");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("page"), "a page").unwrap();
    let here = directory.display().to_string();
    let text = format!(
        "user root;
worker_processes 1;
pid {here}/nginx.pid;
error_log {here}/error.log warn;
events {{ worker_connections 64; }}
http {{ access_log off; client_body_temp_path {here}/body; proxy_temp_path {here}/proxy;
    fastcgi_temp_path {here}/fastcgi; uwsgi_temp_path {here}/uwsgi; scgi_temp_path {here}/scgi;
    server {{ listen 80; root {here}; }} }}
"
    );
    fs::write(directory.join("nginx.conf"), text).unwrap();
    let _masters = Masters { directory: directory.clone() };
    // A daemon: one that runs in the foreground takes no SIGUSR2.
    fixture.run("nginx", &["-p", &here, "-c", "nginx.conf"], SOON);
    let url = format!("http://{}/page", fixture.address());
    let fetch = || fixture.run_peer("curl", &["-sS", "--fail", "--max-time", "10", &url], SOON);
    assert_eq!(fetch().trim(), "a page");

    let (file, old) = (directory.join("nginx.pid"), directory.join("nginx.pid.oldbin"));
    wait_until("there is a master", SOON, || process_in(&file).is_some());
    let first = process_in(&file).unwrap();
    signal("USR2", first);
    wait_until("there is a second master", SOON, || {
        process_in(&old) == Some(first) && process_in(&file).is_some_and(|now| now != first)
    });
    let second = process_in(&file).unwrap();
    signal("QUIT", first);
    wait_until("the first master ends", SOON, || !runs(first));
    for _ in 0..20 {
        assert_eq!(fetch().trim(), "a page");
    }
    if arm == Arm::Paths {
        let listens = |row: &serde_json::Value| row["state"] == "LISTEN";
        assert!(fixture.paths_now().iter().any(listens), "nobody listens on paths");
    }
    signal("QUIT", second);
    wait_until("the second master ends", SOON, || !runs(second));
}

/// Daemons that a test has started; those that still run when it ends are ended.
struct Masters {
    directory: PathBuf,
}

impl Drop for Masters {
    fn drop(&mut self) {
        for name in ["nginx.pid", "nginx.pid.oldbin"] {
            if let Some(master) = process_in(&self.directory.join(name)).filter(|&master| runs(master)) {
                let _ = Command::new("kill").args(["-s", "TERM", &master.to_string()]).status();
            }
        }
    }
}

fn runs(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// The process that a file names.
fn process_in(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").args(["-s", name, &process.to_string()]).status().unwrap();
    assert!(sent.success(), "SIG{name} to {process}");
}
