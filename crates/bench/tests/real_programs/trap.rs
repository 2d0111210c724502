//! `scoutline run --trap`: programs that no library can be preloaded under, whose calls are trapped: Go's own network
//! code, a static busybox, a static program that checks what it gets. And system calls past the C library under the library.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use scoutline_bench::process::Process;

use crate::fixture::{
    Arm, Fixture, SOON, assert_same, find, finish, script, twins, wait_for_line, wait_until, write_file,
};

twins!(
    go_server_serves,
    go_client_asks,
    busybox_serves_and_asks,
    static_program_gets_what_it_expects,
    who_is_passed_a_listening_socket_serves,
    who_passes_a_listening_socket_goes_on_serving,
    rust_server_by_instruction_serves,
    rust_client_by_instruction_asks,
);

/// A program in Rust whose calls are instructions of its own (rustix).
const INLINE: &str = env!("CARGO_BIN_EXE_scoutline-inline");

const LIMIT: Duration = Duration::from_secs(60);

/// On paths, by trap.
fn start(fixture: &Fixture, program: &Path, arguments: &[&str]) -> Process {
    fixture.start_with(&["--trap"], &program.display().to_string(), arguments)
}

/// The sockets at `port` are on paths, under the program's own name.
fn assert_on_paths(fixture: &Fixture, arm: Arm, program: &str, port: u16) {
    if arm == Arm::Kernel {
        return;
    }
    let paths = fixture.paths_now();
    let suffix = format!(":{port}");
    let ours = |path: &&serde_json::Value| {
        ["local", "peer"].iter().any(|side| path[side].as_str().is_some_and(|name| name.ends_with(&suffix)))
    };
    // What has been closed belongs to nobody.
    let names = paths.iter().filter(ours).filter_map(|path| path["program"].as_str());
    let names: Vec<_> = names.filter_map(|name| name.split('/').next()).collect();
    assert!(!names.is_empty(), "no path with port {port} among {paths:?}");
    assert!(names.iter().all(|name| *name == program), "{names:?}");
}

/// `web.go`, built.
fn web(fixture: &Fixture) -> PathBuf {
    let places = ["/usr/local/go/bin/go", "/usr/bin/go", "/usr/lib/go/bin/go"];
    let go = places.iter().map(Path::new).find(|path| path.exists()).unwrap_or_else(|| {
        panic!("go is missing; install it with: apt-get install golang-go, or from https://go.dev/dl")
    });
    let program = fixture.file("web");
    // Beside the build's other products: the standard library is compiled once.
    let test = std::env::current_exe().unwrap();
    let cache = test.parent().expect("a directory").join("go-cache");
    let output = Command::new(go)
        .args(["build", "-o"])
        .args([program.as_os_str(), script("web.go").as_ref()])
        .envs([("CGO_ENABLED", "0"), ("GO111MODULE", "off"), ("GOTOOLCHAIN", "local")])
        .env("GOCACHE", cache)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn go_server_serves(arm: Arm) {
    let fixture = Fixture::new(arm);
    let web = web(&fixture);
    let mut server = start(&fixture, &web, &["serve", "0.0.0.0:8000"]);
    wait_for_line(&mut server, "ready");
    let address = format!("{}:8000", fixture.address());
    let curl = |arguments: &[&str]| {
        fixture.run_peer("curl", &[&["-sS", "--fail", "--max-time", "15"], arguments].concat(), SOON)
    };
    let from = curl(&[&format!("http://{address}/from")]);
    assert!(from.starts_with(&format!("{}:", fixture.peer_address())), "{from}");
    let (file, got) = (fixture.file("file"), fixture.file("got"));
    write_file(&file, 8);
    let (upload, got_name) = (format!("@{}", file.display()), got.display().to_string());
    curl(&["-o", &got_name, "--data-binary", &upload, &format!("http://{address}/echo")]);
    assert_same(&file, &got);
    let asked = fixture.run_peer(&web.display().to_string(), &["ask", &address], LIMIT);
    assert!(asked.contains("all right"), "{asked}");
    assert_on_paths(&fixture, arm, "web", 8000);
    server.check().unwrap();

    // Killed, it leaves its port to the next one.
    server.kill();
    let mut server = start(&fixture, &web, &["serve", "0.0.0.0:8000"]);
    wait_for_line(&mut server, "ready");
    curl(&[&format!("http://{address}/from")]);
    server.check().unwrap();
}

fn go_client_asks(arm: Arm) {
    let fixture = Fixture::new(arm);
    let web = web(&fixture);
    let address = format!("{}:8000", fixture.peer_address());
    let mut server = fixture.start_peer(&web.display().to_string(), &["serve", &address]);
    wait_for_line(&mut server, "ready");
    let mut client = start(&fixture, &web, &["ask", &address]);
    let asked = finish(&mut client, LIMIT);
    assert!(asked.contains("all right") && asked.contains("connection refused"), "{asked}");
    if arm == Arm::Paths {
        let closed = fixture.ask("stat")["classes"].to_string();
        assert!(closed.contains("default"), "{closed}");
    }
    server.check().unwrap();
}

fn busybox_serves_and_asks(arm: Arm) {
    let fixture = Fixture::new(arm);
    let busybox = find("busybox");
    let files = fixture.file("files");
    fs::create_dir(&files).unwrap();
    write_file(&files.join("file"), 8);
    let directory = files.display().to_string();
    let mut server = start(&fixture, &busybox, &["httpd", "-f", "-p", "80", "-h", &directory]);
    fixture.wait_for_port(SocketAddrV4::new(fixture.address(), 80), &mut server);
    let (url, got) = (format!("http://{}/file", fixture.address()), fixture.file("got"));
    let got_name = got.display().to_string();
    for _ in 0..10 {
        fixture.run_peer("curl", &["-sS", "--fail", "--max-time", "15", "-o", &got_name, &url], SOON);
        assert_same(&files.join("file"), &got);
    }
    assert_on_paths(&fixture, arm, "busybox", 80);

    let mut peer =
        fixture.start_peer("python3", &["-u", "-m", "http.server", "8000", "--directory", &directory]);
    wait_for_line(&mut peer, "Serving HTTP");
    let url = format!("http://{}:8000/file", fixture.peer_address());
    fs::remove_file(&got).unwrap();
    finish(&mut start(&fixture, &busybox, &["wget", "-q", "-O", &got_name, &url]), SOON);
    assert_same(&files.join("file"), &got);
    server.check().unwrap();
}

/// Killed while it waits for connections; the supervisor goes on for the rest of the program.
#[test]
fn a_server_that_is_killed_gives_its_port_up() {
    let fixture = Fixture::new(Arm::Paths);
    let busybox = find("busybox");
    // One each, or the second look might see the first writer.
    let [kill, never] = ["kill", "never"].map(|name| fixture.file(name));
    assert!(Command::new("mkfifo").args([&kill, &never]).status().unwrap().success());
    let (httpd, kill_name, never) = (busybox.display(), kill.display(), never.display());
    let script =
        format!("{httpd} httpd -f -p 80 & read word < {kill_name}; kill -9 $!; wait; read word < {never}");
    let mut shell = start(&fixture, &busybox, &["sh", "-c", &script]);
    let is_listener = |path: &serde_json::Value| {
        path["state"] == "LISTEN" && path["local"].as_str().is_some_and(|local| local.ends_with(":80"))
    };
    let listens = || fixture.paths_now().iter().any(is_listener);
    wait_until("the server listens", SOON, listens);
    fs::write(&kill, "go\n").unwrap();
    wait_until("nobody listens", SOON, || !listens());
    shell.check().unwrap();
}

/// The supervisor of this program, as `/proc` has it.
fn supervisor_of(program: u32) -> Option<fs::DirEntry> {
    let supervised = format!("\0supervise\0{program}\0");
    let supervises = |process: &fs::DirEntry| {
        fs::read(process.path().join("cmdline")).is_ok_and(|line| line.ends_with(supervised.as_bytes()))
    };
    fs::read_dir("/proc").unwrap().flatten().find(supervises)
}

/// Also when it waits in a call, and the daemon has ended before it.
#[test]
fn a_supervisor_ends_with_its_program() {
    let mut fixture = Fixture::new(Arm::Paths);
    let mut server = start(&fixture, &find("busybox"), &["httpd", "-f", "-p", "80"]);
    fixture.wait_for_port(SocketAddrV4::new(fixture.address(), 80), &mut server);
    let pid = server.id();
    let is_supervised = || supervisor_of(pid).is_some();
    assert!(is_supervised());
    fixture.kill_daemon();
    server.kill();
    wait_until("the supervisor ends", SOON, || !is_supervised());
}

/// Where the supervisor has no descriptor left for more sockets, those that are there are served as before.
#[test]
fn who_waits_is_told_from_whom_without_a_free_descriptor() {
    let fixture = Fixture::new(Arm::Paths);
    let script = "import socket\n\
                  at = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                  at.bind(('', 7000))\n\
                  print('ready', flush=True)\n\
                  for _ in range(3): print('from', at.recvfrom(9)[1][0], flush=True)\n";
    let mut receiver = start(&fixture, &find("python3"), &["-c", script]);
    wait_for_line(&mut receiver, "ready");
    let pid = receiver.id();
    let supervisor = supervisor_of(pid).expect("it has one").file_name();
    let supervisor = supervisor.to_str().unwrap();
    let open = fs::read_dir(format!("/proc/{supervisor}/fd")).unwrap().count();
    let limit = format!("--nofile={open}:{}", open + 16);
    assert!(Command::new("prlimit").args(["--pid", supervisor, &limit]).status().unwrap().success());
    let send = format!("echo > /dev/udp/{}/7000", fixture.address());
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let receives = format!("{} ", libc::SYS_recvfrom);
    let waits = || read("syscall").starts_with(&receives) && read("stat").contains(") S ");
    for _ in 0..3 {
        wait_until("it waits in the kernel's call", SOON, waits);
        fixture.run_peer("bash", &["-c", &send], SOON);
        // Beside the one who waits, if it was not told at all.
        wait_for_line(&mut receiver, &format!("from {}", fixture.peer_address()));
    }
    finish(&mut receiver, LIMIT);
}

/// `NAME.c`, built.
fn compile(fixture: &Fixture, name: &str, options: &[&str]) -> PathBuf {
    let (program, source) = (fixture.file(name), script(&format!("{name}.c")));
    let mut gcc = Command::new(find("gcc"));
    gcc.args(["-O1", "-Wall", "-o"]).args([program.as_os_str(), source.as_ref()]).args(options);
    assert!(gcc.status().unwrap().success());
    program
}

/// A call that the supervisor answers is not behind all streams that have something to be moved (64 at a time).
#[test]
fn calls_wait_for_few_streams() {
    let fixture = Fixture::new(Arm::Paths);
    let program = compile(&fixture, "busy_calls", &["-static", "-pthread"]);
    let mut server = start(&fixture, &program, &["serve", "7300"]);
    wait_for_line(&mut server, "ready");
    let address = fixture.address().to_string();
    let _client = fixture.start_peer(&program.display().to_string(), &["ask", &address, "7300"]);
    let said = finish(&mut server, LIMIT);
    let echoes = said.lines().find_map(|line| line.strip_prefix("median ")?.parse::<u32>().ok());
    assert!(echoes.is_some_and(|echoes| echoes <= 8), "{said}");
}

/// Who may be passed a listening socket: a program that another supervisor has, one under the library, one on the kernel.
const TAKERS: [&str; 3] = ["trapped", "library", "kernel"];

/// What passes listening sockets, static and not.
fn passers(fixture: &Fixture) -> [PathBuf; 2] {
    [(&["-static"] as &[_], "fixed"), (&[], "linked")].map(|(options, name)| {
        let kept = fixture.file(name);
        fs::rename(compile(fixture, "listener_passing", options), &kept).unwrap();
        kept
    })
}

fn start_taker(fixture: &Fixture, [fixed, linked]: &[PathBuf; 2], how: &str, arguments: &[&str]) -> Process {
    let linked = linked.display().to_string();
    let mut taker = match how {
        "trapped" => start(fixture, fixed, arguments),
        "library" => fixture.start(&linked, arguments),
        _ => fixture.start_peer(&linked, arguments),
    };
    wait_for_line(&mut taker, "ready");
    taker
}

fn assert_answers(mut stream: &TcpStream, said: &str) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, said);
}

/// A listening socket that a trapped program has passed gives connections to whoever has it, and more than its queue has
/// room for, before anybody says anything; also when who has passed it has closed it.
fn who_is_passed_a_listening_socket_serves(arm: Arm) {
    const CONNECTIONS: usize = 12;
    let fixture = Fixture::new(arm);
    let programs = passers(&fixture);
    let (meeting, count) = (fixture.file("meeting").display().to_string(), CONNECTIONS.to_string());
    for (port, how) in (7310..).zip(TAKERS) {
        let mut giver = start(&fixture, &programs[0], &["give", &port.to_string(), &meeting]);
        wait_for_line(&mut giver, "ready");
        // One that waits at the giver already, and says something.
        let mut streams = vec![fixture.connect(port)];
        streams[0].write_all(b"0").unwrap();
        let mut taker = start_taker(&fixture, &programs, how, &["take", &meeting, &count]);
        streams.extend((1..CONNECTIONS).map(|_| fixture.connect(port)));
        wait_for_line(&mut taker, "taken");
        for (at, stream) in streams.iter_mut().enumerate() {
            if at > 0 {
                stream.write_all(at.to_string().as_bytes()).unwrap();
            }
            assert_answers(stream, &at.to_string());
        }
        finish(&mut taker, SOON);
        finish(&mut giver, SOON);
        fs::remove_file(&meeting).unwrap();
    }
}

/// Both serve, each connection once, though both wait in `accept`; and whoever is left serves alone.
fn who_passes_a_listening_socket_goes_on_serving(arm: Arm) {
    const CONNECTIONS: usize = 200;
    let fixture = Fixture::new(arm);
    let programs = passers(&fixture);
    let meeting = fixture.file("meeting").display().to_string();
    for (port, how) in (7320..).zip(TAKERS) {
        let mut giver = start(&fixture, &programs[0], &["share", &port.to_string(), &meeting]);
        wait_for_line(&mut giver, "ready");
        let mut taker = start_taker(&fixture, &programs, how, &["serve", &meeting, "20"]);
        for at in 0..CONNECTIONS {
            let (mut stream, said) = (fixture.connect(port), at.to_string());
            stream.write_all(said.as_bytes()).unwrap();
            assert_answers(&stream, &said);
        }
        finish(&mut taker, SOON);
        drop(giver);
        fs::remove_file(&meeting).unwrap();
    }
}

fn static_program_gets_what_it_expects(arm: Arm) {
    let fixture = Fixture::new(arm);
    let program = compile(&fixture, "sockets", &["-static"]);
    let mut echo = fixture.start_peer("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut echo, "ready");
    let peer = fixture.peer_address().to_string();
    let mut program = start(&fixture, &program, &[&peer, "7000", "7100"]);
    wait_for_line(&mut program, "ready");
    assert_on_paths(&fixture, arm, "sockets", 7100);
    let address = SocketAddrV4::new(fixture.address(), 7100);
    let connect = || {
        let connect = || TcpStream::connect_timeout(&address.into(), SOON);
        let stream = fixture.testbed().client().enter(connect).unwrap().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    };
    connect().write_all(b"poll").unwrap();
    let mut forked = connect();
    forked.write_all(b"fork").unwrap();
    let mut answer = Vec::new();
    forked.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"fork");
    // Who closes without reading resets.
    let reset = connect();
    assert_eq!(reset.peek(&mut [0; 1]).unwrap(), 1);
    drop(reset);
    let said = finish(&mut program, SOON);
    assert!(said.contains("all right"), "{said}");
}

/// Whether the library has served such calls of this program, as far as there is one, and for as long as it runs.
fn assert_dispatched(fixture: &Fixture, arm: Arm, name: &str) {
    if arm == Arm::Kernel || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let stat = fixture.ask("stat");
    let programs = stat["programs"].as_array().expect("programs");
    let row = programs.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {stat}"));
    assert!(row["calls_dispatched"].as_u64() > Some(3), "{row}");
}

fn rust_server_by_instruction_serves(arm: Arm) {
    let fixture = Fixture::new(arm);
    let address = format!("{}:7200", fixture.address());
    let mut server = fixture.start(INLINE, &["serve", &address]);
    wait_for_line(&mut server, "ready");
    assert_on_paths(&fixture, arm, "scoutline-inline", 7200);
    assert_dispatched(&fixture, arm, "scoutline-inline");
    let asked = fixture.run_peer(INLINE, &["ask", &address], LIMIT);
    assert!(asked.contains("all right"), "{asked}");
    assert!(finish(&mut server, SOON).contains("ended"));
}

fn rust_client_by_instruction_asks(arm: Arm) {
    let fixture = Fixture::new(arm);
    let address = format!("{}:7200", fixture.peer_address());
    let mut server = fixture.start_peer(INLINE, &["serve", &address]);
    wait_for_line(&mut server, "ready");
    let mut client = fixture.start(INLINE, &["ask", &address]);
    let asked = finish(&mut client, LIMIT);
    assert!(asked.contains("all right"), "{asked}");
    if arm == Arm::Paths && cfg!(target_arch = "x86_64") {
        let log = client.log_tail();
        assert!(log.contains("past the C library are served"), "{log}");
    }
    assert!(finish(&mut server, SOON).contains("ended"));
}

/// One of the six rings is asked for by a call of the program's own making, as are a write and a read; these two the
/// library counts.
#[test]
#[cfg(target_arch = "x86_64")]
fn calls_by_number_are_served_and_rings_refused() {
    calls_past_the_library(&["--io-uring=refuse"]);
}

#[test]
fn calls_by_number_are_trapped_and_rings_refused() {
    calls_past_the_library(&["--trap"]);
}

fn calls_past_the_library(options: &[&str]) {
    let fixture = Fixture::new(Arm::Paths);
    let program = compile(&fixture, "direct", &["-l:liburing.so.2"]);
    let mut echo = fixture.start_peer("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut echo, "ready");
    let peer = fixture.peer_address().to_string();
    let mut program = fixture.start_with(options, &program.display().to_string(), &[peer.as_str(), "7000"]);
    wait_for_line(&mut program, "ready");
    assert_on_paths(&fixture, Arm::Paths, "direct", 7000);
    let stat = fixture.ask("stat");
    let programs = stat["programs"].as_array().expect("programs");
    let row = programs.iter().find(|row| row["name"] == "direct").expect("our program");
    assert_eq!(row["rings_refused"], 6, "{row}");
    let log = program.log_tail();
    assert_eq!(log.matches("io_uring is refused").count(), 1, "{log}");
    let (calls, lines) = if options == ["--trap"] { (0, 0) } else { (2, 1) };
    assert_eq!(row["calls_dispatched"], calls, "{row}");
    assert_eq!(log.matches("past the C library are served").count(), lines, "{log}");
}
