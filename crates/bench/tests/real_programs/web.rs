//! nginx, Apache, curl, wrk.

use std::fs;
use std::time::Duration;

use scoutline_bench::load::LoadReport;
use scoutline_bench::pattern;
use scoutline_bench::process::Process;
use scoutline_bench::server::{Kind, Server};

use crate::fixture::{Arm, Fixture, SOON, TRANSFER_MIB, assert_same, finish, twins, wait_until, write_file};
use crate::nginx::{self, Side};

twins!(
    nginx_serves_curl,
    nginx_serves_load,
    nginx_serves_wrk,
    nginx_outlives_a_worker,
    nginx_reloads_under_load,
    nginx_stands_between,
    apache_serves,
    curl_downloads_and_uploads,
    wrk_asks,
);

/// How long a large transfer may take.
const LONG: Duration = Duration::from_secs(120);

fn server(fixture: &Fixture, kind: Kind) -> Server {
    let paths = fixture.paths();
    let paths = paths.as_ref().map(|(program, daemon)| (program.as_path(), *daemon));
    Server::start(fixture.testbed(), 0, kind, None, paths).unwrap_or_else(|error| panic!("{error:#}"))
}

fn curl_fetches_all(fixture: &Fixture) {
    let directory = fixture.file("fetched");
    fs::create_dir_all(&directory).unwrap();
    let mut arguments = ["-sS", "--fail", "--max-time", "15"].map(str::to_owned).to_vec();
    for size in pattern::SIZES_KB {
        let name = pattern::file_name(size);
        arguments.extend(["-o".into(), directory.join(&name).display().to_string()]);
        arguments.push(format!("http://{}/{name}", fixture.address()));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    fixture.run_peer("curl", &arguments, SOON);
    for size in pattern::SIZES_KB {
        let name = pattern::file_name(size);
        assert_same(&fixture.file("files").join(&name), &directory.join(&name));
        fs::remove_file(directory.join(&name)).unwrap();
    }
}

/// Our own closed-loop clients, on the kernel.
fn load(fixture: &Fixture, arguments: &[&str]) {
    finish_load(start_load(fixture, arguments));
}

fn start_load(fixture: &Fixture, arguments: &[&str]) -> Process {
    let server = fixture.testbed().server_address(0).to_string();
    let mut all = vec!["load", "--json", "--connect", &server, "--warmup", "0.2", "--seconds", "1.5"];
    all.extend(arguments);
    fixture.start_peer(env!("CARGO_BIN_EXE_scoutline-bench"), &all)
}

fn finish_load(mut load: Process) {
    let report: LoadReport = serde_json::from_str(&finish(&mut load, SOON)).unwrap();
    assert_eq!(report.error_count(), 0, "{report:?}");
    assert!(report.requests > 100 && report.verified > 0, "{report:?}");
}

fn wrk_answers(text: &str) {
    let requests =
        text.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse::<u64>().ok());
    assert!(requests.is_some_and(|requests| requests > 100), "{text}");
    assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
}

fn nginx_serves_curl(arm: Arm) {
    let fixture = Fixture::new(arm);
    // Kept connections: curl asks for all files over one. Then one connection for each.
    for keepalive in [true, false] {
        let server = server(&fixture, Kind::Nginx { workers: 2, keepalive });
        curl_fetches_all(&fixture);
        drop(server);
    }
    let mut server = server(&fixture, Kind::NGINX);
    let (mib, name) = (TRANSFER_MIB, "large");
    write_file(&fixture.file("files").join(name), mib);
    let (url, got) = (format!("http://{}/{name}", fixture.address()), fixture.file("got"));
    let limit = LONG.as_secs().to_string();
    let arguments = ["-sS", "--fail", "--max-time", &limit, "-o", &got.display().to_string(), &url];
    fixture.run_peer("curl", &arguments, LONG);
    assert_same(&fixture.file("files").join(name), &got);
    server.check().unwrap();
}

pub(crate) fn nginx_serves_load(arm: Arm) {
    let fixture = Fixture::new(arm);
    let mut server = server(&fixture, Kind::Nginx { workers: 2, keepalive: true });
    load(&fixture, &["--clients", "1"]);
    load(&fixture, &["--clients", "96"]);
    load(&fixture, &["--clients", "96", "--path", "/50k"]);
    load(&fixture, &["--clients", "16", "--path", "/500k"]);
    load(&fixture, &["--clients", "96", "--keepalive"]);
    load(&fixture, &["--clients", "16", "--keepalive", "--path", "/100k"]);
    server.check().unwrap();
}

pub(crate) fn nginx_serves_wrk(arm: Arm) {
    let fixture = Fixture::new(arm);
    let mut server = server(&fixture, Kind::Nginx { workers: 2, keepalive: true });
    for (connections, name) in [("64", "1k"), ("16", "100k")] {
        let url = format!("http://{}/{name}", fixture.address());
        wrk_answers(&fixture.run_peer("wrk", &["-t2", "-c", connections, "-d2s", &url], SOON));
    }
    server.check().unwrap();
}

/// The worker processes of an nginx.
fn workers(master: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn signal(process: u32, signal: &str) {
    let kill = std::process::Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
    assert!(kill.success(), "kill {signal} {process}");
}

/// Waits until two workers run and none of them is `old`.
fn wait_for_others(master: u32, old: &[u32]) {
    wait_until("nginx replaces its workers", SOON, || {
        let now = workers(master);
        now.len() == 2 && !now.iter().any(|pid| old.contains(pid))
    });
}

/// SIGKILL to one worker: the master starts another, and the port keeps answering.
fn nginx_outlives_a_worker(arm: Arm) {
    let fixture = Fixture::new(arm);
    let mut server = server(&fixture, Kind::NGINX);
    let master = server.process().id();
    for _ in 0..3 {
        let old = workers(master)[0];
        signal(old, "-9");
        wait_for_others(master, &[old]);
        curl_fetches_all(&fixture);
    }
    load(&fixture, &["--clients", "32"]);
}

/// SIGHUP: new workers take over the port while old ones finish what they have; no request is lost.
pub(crate) fn nginx_reloads_under_load(arm: Arm) {
    let fixture = Fixture::new(arm);
    let mut server = server(&fixture, Kind::NGINX);
    let master = server.process().id();
    let load = start_load(&fixture, &["--clients", "32", "--path", "/16k"]);
    for _ in 0..3 {
        let old = workers(master);
        signal(master, "-HUP");
        wait_for_others(master, &old);
    }
    finish_load(load);
    server.check().unwrap();
}

/// A proxy, a server and a client at once: who asks and who answers are on the other host.
pub(crate) fn nginx_stands_between(arm: Arm) {
    let fixture = Fixture::new(arm);
    let files = fixture.file("peer-files");
    let behind = format!("listen 8080; root {}; location / {{ dav_methods PUT; }}", files.display());
    fs::create_dir_all(&files).unwrap();
    fs::write(files.join("1k"), pattern::bytes(1 << 10)).unwrap();
    let _behind = nginx::start_with(&fixture, Side::Peer, &behind, 8080);
    let peer = fixture.peer_address();
    let server = format!(
        "listen 80; proxy_http_version 1.1; proxy_set_header Connection \"\";
        location /kept/ {{ proxy_pass http://kept/; }}
        location /anew/ {{ proxy_pass http://{peer}:8080/; proxy_buffering off; proxy_request_buffering off; }} }}
        upstream kept {{ server {peer}:8080; keepalive 16;"
    );
    let mut proxy = nginx::start_with(&fixture, Side::UnderTest, &server, 80);
    let (original, got) = (fixture.file("original"), fixture.file("got"));
    write_file(&original, 16);
    let (original_name, got_name) = (original.display().to_string(), got.display().to_string());
    let limit = LONG.as_secs().to_string();
    let common = ["-sS", "--fail", "--max-time", &limit];
    for way in ["kept", "anew"] {
        let url = |name: &str| format!("http://{}/{way}/{name}", fixture.address());
        let large = url(&format!("large-{way}"));
        fixture.run_peer("curl", &[&common[..], &["-T", &original_name, &large]].concat(), LONG);
        fixture.run_peer("curl", &[&common[..], &["-o", &got_name, &large]].concat(), LONG);
        assert_same(&original, &got);
        wrk_answers(&fixture.run_peer("wrk", &["-t1", "-c32", "-d2s", &url("1k")], SOON));
    }
    proxy.check().unwrap();
}

pub(crate) fn apache_serves(arm: Arm) {
    let fixture = Fixture::new(arm);
    let mut server = server(&fixture, Kind::ApachePrefork { processes: 20 });
    curl_fetches_all(&fixture);
    load(&fixture, &["--clients", "1"]);
    load(&fixture, &["--clients", "48"]);
    load(&fixture, &["--clients", "48", "--path", "/50k"]);
    let url = format!("http://{}/1k", fixture.address());
    wrk_answers(&fixture.run_peer("wrk", &["-t1", "-c16", "-d2s", &url], SOON));
    server.check().unwrap();
}

pub(crate) fn curl_downloads_and_uploads(arm: Arm) {
    let fixture = Fixture::new(arm);
    let files = fixture.file("peer-files");
    let _nginx = nginx::start(&fixture, Side::Peer, &files);
    let (original, got) = (files.join("original"), fixture.file("got"));
    write_file(&original, TRANSFER_MIB);
    let url = |name: &str| format!("http://{}/{name}", fixture.peer_address());
    let limit = LONG.as_secs().to_string();
    let common = ["-sS", "--fail", "--max-time", &limit];
    let (from, to, got_name) = (url("original"), url("uploaded"), got.display().to_string());
    fixture.run("curl", &[&common[..], &["-o", &got_name, &from]].concat(), LONG);
    assert_same(&original, &got);
    fixture.run("curl", &[&common[..], &["-T", &got_name, &to]].concat(), LONG);
    assert_same(&original, &files.join("uploaded"));
}

fn wrk_asks(arm: Arm) {
    let fixture = Fixture::new(arm);
    let files = fixture.file("peer-files");
    let _nginx = nginx::start(&fixture, Side::Peer, &files);
    fs::write(files.join("1k"), pattern::bytes(1 << 10)).unwrap();
    fs::write(files.join("100k"), pattern::bytes(100 << 10)).unwrap();
    for (connections, name) in [("32", "1k"), ("8", "100k")] {
        let url = format!("http://{}/{name}", fixture.peer_address());
        let mut wrk = fixture.start("wrk", &["-t2", "-c", connections, "-d2s", &url]);
        wrk_answers(&finish(&mut wrk, SOON));
    }
}
