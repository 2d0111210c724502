//! Unmodified programs under the shim, with a daemon of our own whose network is itself (`fake`). Each script runs
//! twice: on the kernel's loopback and under the shim; it must print the same.
#![allow(unsafe_code)] // the fake daemon works on shared memory

mod fake;

use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const ADDRESS: &str = "10.77.0.1";

/// Not a test of itself: the daemon's process, when started as such.
#[test]
fn fake_daemon() {
    let Ok(path) = std::env::var("SCOUTLINE_FAKE") else { return };
    std::thread::spawn(|| {
        // Our parent is gone when its end of the pipe is.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    fake::serve(&path, ADDRESS.parse::<Ipv4Addr>().unwrap());
}

struct Daemon {
    child: Child,
    path: String,
}

impl Daemon {
    fn start(name: &str) -> Daemon {
        let path = format!("{}/scoutline-fake-{}-{name}", std::env::temp_dir().display(), std::process::id());
        let _ = std::fs::remove_file(&path);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fake_daemon", "--nocapture"])
            .env("SCOUTLINE_FAKE", &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while !Path::new(&path).exists() {
            assert!(start.elapsed() < Duration::from_secs(10), "the fake daemon does not come up");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(20));
        Daemon { child, path }
    }

    fn shim(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", library()).env("SCOUTLINE_ATTACH", &self.path).env("SCOUTLINE_REQUIRED", "1");
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
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id() as i32;
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(20)).is_err() {
            // SAFETY: our child, not waited for yet.
            unsafe { libc::kill(pid, libc::SIGKILL) };
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
    let out = format!("{}/{name}-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let status = Command::new("gcc")
        .args(["-O2", "-D_FORTIFY_SOURCE=2", "-Wall", "-pthread", "-o", &out, &script(&format!("{name}.c"))])
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
