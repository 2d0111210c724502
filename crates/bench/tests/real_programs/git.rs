//! git: its own protocol in both roles, and HTTP. The server by `--trap`, since it starts its workers by `exec` with
//! the connection as their input.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::fixture::{Arm, Fixture, SOON, find, twins, wait_for_line, wait_until, write_file};

twins!(a_server_is_cloned_from_and_pushed_to, a_client_clones);

/// `git` in a directory, as somebody.
fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new(find("git"))
        .args(["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "safe.directory=*", "-C"])
        .arg(directory)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A bare repository of a few MiB.
fn repository(fixture: &Fixture) -> String {
    let (work, bare) = (fixture.file("work"), fixture.file("repository.git"));
    fs::create_dir(&work).unwrap();
    git(&work, &["init", "-q"]);
    write_file(&work.join("file"), 4);
    git(&work, &["add", "file"]);
    git(&work, &["commit", "-qm", "one"]);
    git(&work, &["clone", "-q", "--bare", ".", &bare.display().to_string()]);
    // For HTTP without a program at the server.
    git(&bare, &["update-server-info"]);
    fixture.testbed().directory().display().to_string()
}

fn daemon_arguments<'a>(base: &'a str, listen: &'a str) -> [&'a str; 7] {
    ["daemon", "--reuseaddr", "--export-all", "--enable=receive-pack", "--verbose", base, listen]
}

fn a_server_is_cloned_from_and_pushed_to(arm: Arm) {
    let fixture = Fixture::new(arm);
    let directory = repository(&fixture);
    let address = fixture.address().to_string();
    let (base, listen) = (format!("--base-path={directory}"), format!("--listen={address}"));
    let mut server = fixture.start_with(&["--trap"], "git", &daemon_arguments(&base, &listen));
    fixture.wait_for_port(std::net::SocketAddrV4::new(fixture.address(), 9418), &mut server);
    let clone = fixture.file("clone");
    let url = format!("git://{address}/repository.git");
    fixture.run_peer("git", &["clone", "-q", &url, &clone.display().to_string()], SOON);
    assert_eq!(git(&clone, &["rev-parse", "HEAD"]), git(&fixture.file("work"), &["rev-parse", "HEAD"]));
    write_file(&clone.join("other"), 2);
    git(&clone, &["add", "other"]);
    git(&clone, &["commit", "-qm", "two"]);
    fixture.run_peer("git", &["-C", &clone.display().to_string(), "push", "-q", "origin", "HEAD"], SOON);
    let bare = fixture.file("repository.git");
    assert_eq!(git(&bare, &["rev-parse", "HEAD"]), git(&clone, &["rev-parse", "HEAD"]));
    git(&bare, &["fsck", "--full"]);
    server.check().unwrap();
}

fn a_client_clones(arm: Arm) {
    let fixture = Fixture::new(arm);
    let directory = repository(&fixture);
    let address = fixture.peer_address().to_string();
    let (base, listen) = (format!("--base-path={directory}"), format!("--listen={address}"));
    let mut own = fixture.start_peer("git", &daemon_arguments(&base, &listen));
    let peer = std::net::SocketAddrV4::new(fixture.peer_address(), 9418);
    wait_until("git daemon accepts", SOON, || {
        own.check().unwrap();
        fixture.testbed().client().enter(|| std::net::TcpStream::connect(peer)).unwrap().is_ok()
    });
    let mut web =
        fixture.start_peer("python3", &["-u", "-m", "http.server", "8000", "--directory", &directory]);
    wait_for_line(&mut web, "Serving HTTP");
    let head = git(&fixture.file("work"), &["rev-parse", "HEAD"]);
    let urls = [format!("git://{address}/repository.git"), format!("http://{address}:8000/repository.git")];
    for (at, url) in urls.iter().enumerate() {
        let clone = fixture.file(&format!("clone-{at}"));
        fixture.run("git", &["clone", "-q", url, &clone.display().to_string()], SOON);
        assert_eq!(git(&clone, &["rev-parse", "HEAD"]), head, "{url}");
        git(&clone, &["fsck", "--full"]);
    }
}
