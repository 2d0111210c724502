//! git: its own protocol and HTTP, each in both roles. `git daemon` starts its workers by `exec` with the connection as
//! their input and output; for HTTP Apache runs git's CGI program.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::Command;

use crate::fixture::{Arm, Fixture, SOON, find, twins, wait_for_line, wait_until, write_file};

twins!(
    a_server_is_cloned_from_and_pushed_to,
    a_trapped_server_is_cloned_from_and_pushed_to,
    a_client_clones,
    a_server_is_reached_by_http,
    a_client_clones_and_pushes_by_http,
);

/// Where git's CGI program is.
const BACKEND: &str = "/usr/lib/git-core";
const HTTP: u16 = 8080;

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
    served_by_git(&Fixture::new(arm), &[]);
}

fn a_trapped_server_is_cloned_from_and_pushed_to(arm: Arm) {
    served_by_git(&Fixture::new(arm), &["--trap"]);
}

/// `git daemon` under test, with these options of `scoutline run`.
fn served_by_git(fixture: &Fixture, options: &[&str]) {
    let directory = repository(fixture);
    let address = fixture.address().to_string();
    let (base, listen) = (format!("--base-path={directory}"), format!("--listen={address}"));
    let mut server = fixture.start_with(options, "git", &daemon_arguments(&base, &listen));
    fixture.wait_for_port(SocketAddrV4::new(fixture.address(), 9418), &mut server);
    let on_peer = |arguments: &[&str]| drop(fixture.run_peer("git", arguments, SOON));
    clone_push_fetch(fixture, &format!("git://{address}/repository.git"), &on_peer);
    server.check().unwrap();
}

/// By `run`, which starts git somewhere: clones, pushes, and fetches what another clone has pushed.
fn clone_push_fetch(fixture: &Fixture, url: &str, run: &dyn Fn(&[&str])) {
    let [one, other] = ["one", "other"].map(|name| fixture.file(name));
    let [one_name, other_name] = [&one, &other].map(|path| path.display().to_string());
    run(&["clone", "-q", url, &one_name]);
    run(&["clone", "-q", url, &other_name]);
    assert_eq!(git(&one, &["rev-parse", "HEAD"]), git(&fixture.file("work"), &["rev-parse", "HEAD"]));
    write_file(&one.join("more"), 2);
    git(&one, &["add", "more"]);
    git(&one, &["commit", "-qm", "two"]);
    run(&["-C", &one_name, "push", "-q", "origin", "HEAD"]);
    run(&["-C", &other_name, "fetch", "-q", "origin"]);
    let head = git(&one, &["rev-parse", "HEAD"]);
    assert_eq!(git(&other, &["rev-parse", "FETCH_HEAD"]), head);
    let bare = fixture.file("repository.git");
    assert_eq!(git(&bare, &["rev-parse", "HEAD"]), head);
    git(&bare, &["fsck", "--full"]);
}

/// Configures an Apache that serves the repository by git's CGI program, for anybody to push to: its arguments.
fn apache(fixture: &Fixture, address: Ipv4Addr) -> [String; 3] {
    let directory = repository(fixture);
    let bare = fixture.file("repository.git");
    git(&bare, &["config", "http.receivepack", "true"]);
    // Apache gives up root for good.
    let given = Command::new("chown").args(["-R", "65534:65534"]).arg(&bare).status().unwrap();
    assert!(given.success());
    let mut text = String::new();
    for module in ["mpm_prefork", "authz_core", "alias", "env", "cgi"] {
        writeln!(text, "LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so").unwrap();
    }
    write!(
        text,
        "ServerRoot {directory}
ServerName server
PidFile {directory}/apache.pid
DefaultRuntimeDir {directory}
Mutex pthread
ErrorLog {directory}/apache-error.log
User #65534
Group #65534
Listen {address}:{HTTP}
StartServers 4
SetEnv GIT_PROJECT_ROOT {directory}
SetEnv GIT_HTTP_EXPORT_ALL
ScriptAlias /git/ {BACKEND}/git-http-backend/
<Directory {BACKEND}>
    Require all granted
</Directory>
"
    )
    .unwrap();
    let configuration = fixture.file("apache.conf");
    fs::write(&configuration, text).unwrap();
    ["-f".into(), configuration.display().to_string(), "-DFOREGROUND".into()]
}

fn a_server_is_reached_by_http(arm: Arm) {
    let fixture = Fixture::new(arm);
    let arguments = apache(&fixture, fixture.address());
    let mut server = fixture.start("apache2", &arguments.each_ref().map(String::as_str));
    fixture.wait_for_port(SocketAddrV4::new(fixture.address(), HTTP), &mut server);
    let url = format!("http://{}:{HTTP}/git/repository.git", fixture.address());
    clone_push_fetch(&fixture, &url, &|arguments| drop(fixture.run_peer("git", arguments, SOON)));
    server.check().unwrap();
}

fn a_client_clones_and_pushes_by_http(arm: Arm) {
    let fixture = Fixture::new(arm);
    let arguments = apache(&fixture, fixture.peer_address());
    let mut server = fixture.start_peer("apache2", &arguments.each_ref().map(String::as_str));
    fixture.wait_for_port(SocketAddrV4::new(fixture.peer_address(), HTTP), &mut server);
    let url = format!("http://{}:{HTTP}/git/repository.git", fixture.peer_address());
    clone_push_fetch(&fixture, &url, &|arguments| drop(fixture.run("git", arguments, SOON)));
    server.check().unwrap();
}

fn a_client_clones(arm: Arm) {
    let fixture = Fixture::new(arm);
    let directory = repository(&fixture);
    let address = fixture.peer_address().to_string();
    let (base, listen) = (format!("--base-path={directory}"), format!("--listen={address}"));
    let mut own = fixture.start_peer("git", &daemon_arguments(&base, &listen));
    let peer = SocketAddrV4::new(fixture.peer_address(), 9418);
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
