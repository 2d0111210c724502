//! Unmodified programs under the shim, with a daemon of our own whose network is itself (`fake`). Each script runs
//! twice: on the kernel's loopback and under the shim; it must print the same.
#![allow(unsafe_code)] // the fake daemon works on shared memory

mod fake;

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const ADDRESS: &str = "10.77.0.1";
/// What the daemon's process says when programs can attach.
const READY: &str = "the fake daemon listens";

/// Not a test of itself: the daemon's process, when started as such.
#[test]
fn fake_daemon() {
    let Ok(path) = std::env::var("SCOUTLINE_FAKE") else { return };
    let socket = path.clone();
    std::thread::spawn(move || {
        // Our parent is gone when its end of the pipe is, however it ended; it cannot clean up any more.
        let _ = std::io::stdin().read(&mut [0]);
        let _ = std::fs::remove_file(socket);
        std::process::exit(0);
    });
    fake::serve(&path, ADDRESS.parse::<Ipv4Addr>().unwrap(), || println!("{READY}"));
}

struct Daemon {
    child: Child,
    /// Held open: the daemon may still print.
    _output: BufReader<ChildStdout>,
    path: String,
}

impl Daemon {
    fn start(name: &str) -> Daemon {
        let path = format!("{}/scoutline-fake-{}-{name}", std::env::temp_dir().display(), std::process::id());
        let _ = std::fs::remove_file(&path);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fake_daemon", "--nocapture"])
            .env("SCOUTLINE_FAKE", &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains(READY) {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the fake daemon does not come up");
        }
        Daemon { child, _output: output, path }
    }

    fn shim(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", library())
            .env("SCOUTLINE_ATTACH", &self.path)
            .env("SCOUTLINE_REQUIRED", "1");
        command.env("ADDRESS", ADDRESS);
        command
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// One daemon for all tests but those that kill theirs. It ends with us (its standard input does).
fn daemon() -> &'static Daemon {
    static DAEMON: OnceLock<Daemon> = OnceLock::new();
    DAEMON.get_or_init(|| Daemon::start("all"))
}

fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    [deps.join("libscoutline_preload.so"), deps.parent().unwrap().join("libscoutline_preload.so")]
        .into_iter()
        .find(|path| path.exists())
        .expect("cargo builds the library beside the test")
}

fn python() -> &'static str {
    if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" }
}

fn script(name: &str) -> String {
    format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Runs with a limit: a hang is a failure, not a wait.
fn finish(mut command: Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().unwrap();
    let pid = child.id() as i32;
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(60)).is_err() {
            // SAFETY: our child's group, not waited for yet: what it forked holds our pipe too.
            unsafe { libc::kill(-pid, libc::SIGKILL) };
        }
    });
    let output = child.wait_with_output().unwrap();
    let _ = done.send(());
    guard.join().unwrap();
    output
}

fn text(output: &Output) -> String {
    format!(
        "{}{}(exit {:?})",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        output.status.code()
    )
}

/// The same program natively and under the shim.
fn same(program: &str, arguments: &[&str]) {
    let mut native = Command::new(program);
    native.args(arguments).env("ADDRESS", "127.0.0.1");
    let native = text(&finish(native));
    assert!(native.contains("(exit Some(0))"), "natively: {native}");
    let mut ours = daemon().shim(program);
    ours.args(arguments).env("EXPECT_OURS", "1");
    let ours = text(&finish(ours));
    assert_eq!(ours.replace(ADDRESS, "127.0.0.1"), native, "left: under the shim; right: on the kernel");
}

fn python_same(name: &str) {
    same(python(), &[&script(name)]);
}

#[test]
fn blocking() {
    python_same("blocking.py");
}

#[test]
fn epolls() {
    python_same("epolls.py");
}

#[test]
fn polls() {
    python_same("polls.py");
}

#[test]
fn datagrams() {
    python_same("datagrams.py");
}

#[test]
fn processes() {
    python_same("processes.py");
}

#[test]
fn files() {
    python_same("files.py");
}

#[test]
fn asyncio() {
    python_same("aio.py");
}

/// Compiles a C program.
fn compile(name: &str) -> String {
    compile_with(name, "dynamic", &[])
}

fn compile_with(name: &str, way: &str, options: &[&str]) -> String {
    let out = format!("{}/{name}-{way}-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let status = Command::new("gcc")
        .args(["-O2", "-D_FORTIFY_SOURCE=2", "-Wall", "-pthread", "-o", &out, &script(&format!("{name}.c"))])
        .args(options)
        .status()
        .expect("gcc is installed");
    assert!(status.success());
    out
}

#[test]
fn signals() {
    let program = compile("signals");
    same(&program, &[]);
    std::fs::remove_file(program).unwrap();
}

#[test]
fn holes() {
    let program = compile("holes");
    same(&program, &[]);
    std::fs::remove_file(program).unwrap();
}

/// What goes on over `exec` and has been damaged on the way: whatever it says, the new program runs, keeps its own
/// descriptors, and has sockets; where the handoff cannot be used, what it names is closed.
#[test]
fn damaged_handoffs() {
    const TAKEN: &str = "events 1, goes on, has its own, left 2\n";
    const REFUSED: &str = "lost, has its own, left 0\n";
    const UNKNOWN: &str = "lost, has its own, left 3\n";
    let (program, through) = (compile("handoff"), compile_with("handoff", "static", &["-static"]));
    let twice = format!("{TAKEN}{REFUSED}");
    for (mode, expected) in [
        ("whole", TAKEN),
        ("twice", &twice),
        // What is named twice, wrongly, or not ours.
        ("descriptors", TAKEN),
        ("items", TAKEN),
        ("many", "events 0, goes on, has its own, left 2\n"),
        ("cut", "lost, has its own, left 2\n"),
        // Of another version, or of a record that is not there.
        ("version", REFUSED),
        ("record", REFUSED),
        ("dead", REFUSED),
        ("closed", REFUSED),
        // What is named wrongly stays open.
        ("low", "lost, has its own, left 1\n"),
        ("same", "lost, has its own, left 1\n"),
        ("kinds", "lost, has its own, left 1\n"),
        // No handoff at all.
        ("magic", UNKNOWN),
        ("short", UNKNOWN),
        ("unsealed", UNKNOWN),
        ("number", UNKNOWN),
        ("text", UNKNOWN),
    ] {
        let mut command = daemon().shim(&program);
        command.args(["begin", &through, mode]);
        let output = finish(command);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{mode}: {}", text(&output));
        assert!(output.status.success(), "{mode}: {}", text(&output));
        let is_said = String::from_utf8_lossy(&output.stderr).contains("its sockets are lost here");
        assert_eq!(is_said, expected.contains("lost") && expected != UNKNOWN && mode != "cut", "{mode}");
    }
    std::fs::remove_file(program).unwrap();
    std::fs::remove_file(through).unwrap();
}

/// The threads of a process with how often each was switched to another; `None` when one of them runs or only naps.
fn asleep(process: u32) -> Option<Vec<(String, u64)>> {
    let mut threads = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let task = task.ok()?;
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let call = std::fs::read_to_string(task.path().join("syscall")).ok()?;
        let naps = [libc::SYS_nanosleep, libc::SYS_clock_nanosleep].map(|call| call.to_string());
        let asleep = status.lines().any(|line| line.starts_with("State:\tS"))
            && !naps.iter().any(|nap| call.split_whitespace().next() == Some(nap));
        if !asleep {
            return None;
        }
        let switches = status
            .lines()
            .filter_map(|line| line.split_once("_ctxt_switches:")?.1.trim().parse::<u64>().ok());
        threads.push((task.file_name().into_string().ok()?, switches.sum()));
    }
    Some(threads)
}

/// True when a program has so many threads, and these and the daemon's all sleep, twice without a switch in between:
/// then no call is under way, and all wait for something that only we can bring about.
fn settled(program: u32, daemon: u32, threads: usize) -> bool {
    let look = || Some((asleep(program)?, asleep(daemon)?));
    look().is_some_and(|first| first.0.len() == threads && look() == Some(first))
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a child that nobody has waited for yet has ended; false when it has not in this time.
fn ends_within(child: u32, limit: Duration) -> bool {
    // SAFETY: two numbers; a descriptor or an error comes back.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child, 0) } as i32;
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: just made, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut ended = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor.
    unsafe { libc::poll(&raw mut ended, 1, limit.as_millis() as i32) == 1 }
}

/// kill -9 of the daemon: whoever sleeps, in whatever call, gets ECONNRESET or an error event; never a hang.
#[test]
fn daemon_killed() {
    let mut daemon = Daemon::start("killed");
    let mut program = daemon.shim(python());
    program.arg(script("killed.py")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.process_group(0).spawn().unwrap();
    let mut ready = [0u8; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    // Six: one in each call, and the one that waits for them.
    wait_until("all threads sleep", || settled(child.id(), daemon.child.id(), 6));
    daemon.child.kill().unwrap();
    if !ends_within(child.id(), Duration::from_secs(60)) {
        // SAFETY: our child's group, not waited for yet.
        unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    }
    let output = text(&child.wait_with_output().unwrap());
    let want = "['accept ECONNRESET', 'epoll True', 'poll True', 'recv ECONNRESET', 'send ECONNRESET']\n\
        ECONNRESET kernel works\n\
        scoutline: the daemon has ended, and with it this program's sockets on paths (ECONNRESET): start the program \
        again once `scoutline up` runs\n(exit Some(0))";
    assert_eq!(output, want);
}

/// Without a daemon: one line, and the kernel or exit code 126.
#[test]
fn no_daemon() {
    let run = |required: &str| {
        let mut command = Command::new("/bin/echo");
        command.arg("ran").env("LD_PRELOAD", library()).env("SCOUTLINE_ATTACH", "/nonexistent/attach.sock");
        text(&finish({
            command.env("SCOUTLINE_REQUIRED", required);
            command
        }))
    };
    let lenient = run("0");
    assert!(
        lenient.starts_with("ran\nscoutline: connecting to /nonexistent/attach.sock failed"),
        "{lenient}"
    );
    assert!(lenient.ends_with("(exit Some(0))"), "{lenient}");
    let strict = run("1");
    assert!(strict.starts_with("scoutline: ") && strict.ends_with("(exit Some(126))"), "{strict}");
}

/// nginx with two workers and curl, both under the shim, in regions of their own.
#[test]
fn nginx_and_curl() {
    let nginx = Path::new("/usr/sbin/nginx");
    let curl = Path::new("/usr/bin/curl");
    assert!(nginx.exists() && curl.exists(), "install them with: apt-get install nginx-light curl");
    let dir = format!("{}/nginx-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(format!("{dir}/www")).unwrap();
    let body: Vec<u8> = (0..5_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(format!("{dir}/www/large"), &body).unwrap();
    std::fs::write(format!("{dir}/www/small"), b"small file\n").unwrap();
    let configuration = format!(
        "worker_processes 2;\nuser root;\npid {dir}/pid;\nerror_log stderr notice;\ndaemon off;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; client_body_temp_path {dir}/body;\n\
         proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n\
         server {{ listen {ADDRESS}:8080; root {dir}/www; }} }}\n"
    );
    std::fs::write(format!("{dir}/nginx.conf"), configuration).unwrap();
    let daemon = daemon();
    let mut server = daemon.shim("/usr/sbin/nginx");
    server.args(["-p", &dir, "-c", &format!("{dir}/nginx.conf")]).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut server = server.process_group(0).spawn().unwrap();
    // It listens before it starts who serves.
    let mut said = BufReader::new(server.stderr.take().unwrap());
    let mut log = String::new();
    while !log.contains("start worker process") {
        assert!(said.read_line(&mut log).unwrap() > 0, "nginx ended: {log}");
    }
    let rest = std::thread::spawn(move || {
        let _ = said.read_to_string(&mut log);
        log
    });
    let curl = |arguments: &[&str]| {
        let mut command = daemon.shim("/usr/bin/curl");
        command.args(["-sS", "--max-time", "8"]).args(arguments);
        finish(command)
    };
    let small = format!("http://{ADDRESS}:8080/small");
    let large = format!("http://{ADDRESS}:8080/large");
    let first = curl(&[&small]);
    let whole = curl(&[&large]);
    let several = curl(&["--parallel", &small, &small, &small, &small, &small, &small, &small, &small]);
    // SAFETY: the group that we made.
    unsafe { libc::kill(-(server.id() as i32), libc::SIGTERM) };
    server.wait().unwrap();
    let log = rest.join().unwrap();
    let _ = std::fs::remove_dir_all(&dir);
    assert_eq!(text(&first), "small file\n(exit Some(0))", "{log}");
    assert!(whole.stdout == body, "{} of {} bytes; {log}", whole.stdout.len(), body.len());
    assert_eq!(String::from_utf8_lossy(&several.stdout), "small file\n".repeat(8), "{log}");
}
