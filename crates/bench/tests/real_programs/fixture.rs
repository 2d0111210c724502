//! Two hosts, the daemon, and ways to run programs on them.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use scoutline_base::Random;
use scoutline_bench::bridge::Line;
use scoutline_bench::process::{Place, Process};
use scoutline_bench::server::Daemon;
use scoutline_bench::testbed::{Host, Owner, Testbed};

/// How long a server may take until it serves, and a short client until it is done.
pub(crate) const SOON: Duration = Duration::from_secs(60);

const NEEDS: &str = "this test needs root, iproute2, and a kernel that allows network namespaces";

/// Where the program under test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// On paths.
    Paths,
    /// On the kernel: tests the test.
    Kernel,
}

/// Makes two tests of each function: on paths, and, ignored unless asked for, on the kernel.
macro_rules! twins {
    ($($name:ident),* $(,)?) => {
        mod on_paths {
            $(#[test] fn $name() { super::$name($crate::fixture::Arm::Paths); })*
        }
        mod on_kernel {
            $(#[test] #[ignore = "the same test on the kernel: shows that the test is right; run with --ignored on_kernel"] fn $name() { super::$name($crate::fixture::Arm::Kernel); })*
        }
    };
}
pub(crate) use twins;

/// Who has the server host's address.
fn owner(arm: Arm) -> Owner {
    if arm == Arm::Paths { Owner::Daemon } else { Owner::Kernel }
}

thread_local! {
    /// Daemons that this thread starts have two engines.
    static SEVERAL: Cell<bool> = const { Cell::new(false) };
    /// The test of this thread leaves the machine to others most of its time.
    static SHARES: Cell<bool> = const { Cell::new(false) };
}

/// Runs a test beside others that share the machine: one that waits more than it computes, and measures nothing.
pub(crate) fn beside_others(test: impl FnOnce()) {
    SHARES.set(true);
    test();
    SHARES.set(false);
}

/// Runs a test with two engines in each daemon.
pub(crate) fn with_several_engines(test: impl FnOnce()) {
    SEVERAL.set(true);
    test();
    SEVERAL.set(false);
}

/// Whether daemons have two engines: in this test, or, as `SCOUTLINE_ENGINES=2` says, in all.
pub(crate) fn has_several_engines() -> bool {
    SEVERAL.get() || std::env::var_os("SCOUTLINE_ENGINES").is_some_and(|count| count == "2")
}

/// A configuration with an engine on each of the first two cores, unless it says itself where they run.
fn on_cores(text: &str) -> String {
    let cores = "[engine]\ncpu = [0, 1]\n";
    if text.contains("\ncpu = ") {
        return text.to_owned();
    }
    match text.split_once("[engine]\n") {
        Some((before, after)) => format!("{before}{cores}{after}"),
        None => format!("{text}\n{cores}"),
    }
}

/// Whose turn it is.
static TURN: RwLock<()> = RwLock::new(());

/// The turn of one test, or of several that share the machine ([`beside_others`]).
pub(crate) enum Turn {
    Alone { _held: RwLockWriteGuard<'static, ()> },
    Shared { _held: RwLockReadGuard<'static, ()> },
}

/// Waits for the turn of a test that needs the machine and no [`Fixture`].
pub(crate) fn turn() -> Turn {
    // A test that failed leaves nothing that disturbs the next.
    if SHARES.get() {
        Turn::Shared { _held: TURN.read().unwrap_or_else(PoisonError::into_inner) }
    } else {
        Turn::Alone { _held: TURN.write().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// The two hosts, and the daemon on the server host. All of it goes on drop; programs that a test starts go first,
/// since they are declared later.
pub(crate) struct Fixture {
    daemon: Option<Daemon>,
    testbed: Testbed,
    _turn: Turn,
}

impl Fixture {
    /// Waits for its turn, makes the hosts and starts the daemon.
    pub(crate) fn new(arm: Arm) -> Fixture {
        let mut fixture = Fixture::without_daemon(arm);
        if arm == Arm::Paths {
            fixture.start_daemon();
        }
        fixture
    }

    /// As [`Fixture::new`], with a bad line between the hosts.
    pub(crate) fn over(line: Line, arm: Arm) -> Fixture {
        let mut fixture = Fixture::with_testbed(|| Testbed::over(line, owner(arm)));
        if arm == Arm::Paths {
            fixture.start_daemon();
        }
        fixture
    }

    /// The hosts alone.
    pub(crate) fn without_daemon(arm: Arm) -> Fixture {
        Fixture::with_testbed(|| Testbed::new(&[owner(arm)], None))
    }

    fn with_testbed(make: impl FnOnce() -> anyhow::Result<Testbed>) -> Fixture {
        let turn = turn();
        let testbed = make().unwrap_or_else(|error| panic!("{NEEDS}: {error:#}"));
        Fixture { daemon: None, testbed, _turn: turn }
    }

    /// Starts the daemon; one that was there before is killed.
    pub(crate) fn start_daemon(&mut self) {
        self.start_daemon_with("");
    }

    /// As [`Fixture::start_daemon`], with more in its configuration.
    pub(crate) fn start_daemon_with(&mut self, more: &str) {
        let text = format!("[[device]]\nname = \"eth0\"\naddress = \"{}/24\"\n{more}", self.address());
        self.start_daemon_from(&text);
    }

    /// As [`Fixture::start_daemon`], with this configuration.
    pub(crate) fn start_daemon_from(&mut self, text: &str) {
        self.daemon = None;
        let text = if has_several_engines() { on_cores(text) } else { text.to_owned() };
        let daemon = Daemon::start_with(&self.testbed, 0, &scoutline(), None, &text);
        self.daemon = Some(daemon.unwrap_or_else(|error| panic!("the daemon does not start: {error:#}")));
    }

    /// Kills the daemon.
    pub(crate) fn kill_daemon(&mut self) {
        self.daemon = None;
    }

    /// Writes the daemon's configuration anew; it hears of that by `scoutline reload`.
    pub(crate) fn rewrite(&self, text: &str) {
        fs::write(self.file("scoutline0.toml"), text).unwrap();
    }

    /// The daemon.
    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("a daemon, in tests on paths")
    }

    /// Loopback on the server host: without paths it is the kernel's, and of paths Linux must know that it is up.
    pub(crate) fn raise_loopback(&self) {
        let up = || std::process::Command::new(find("ip")).args(["link", "set", "lo", "up"]).status();
        let done = self.testbed.server(0).enter(up).unwrap().unwrap();
        assert!(done.success(), "ip link set lo up");
    }

    /// The hosts.
    pub(crate) fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    /// What [`scoutline_bench::server::Server::start`] wants to know of the daemon.
    pub(crate) fn paths(&self) -> Option<(PathBuf, &Daemon)> {
        self.daemon.as_ref().map(|daemon| (scoutline(), daemon))
    }

    /// Where the server host is reached.
    pub(crate) fn address(&self) -> Ipv4Addr {
        *self.testbed.server_address(0).ip()
    }

    /// Where the client host is reached.
    pub(crate) fn peer_address(&self) -> Ipv4Addr {
        self.testbed.client_address(0, scoutline_bench::testbed::Client::Standard)
    }

    /// A connection of the client host to the server host, on which nobody waits for ever.
    pub(crate) fn connect(&self, port: u16) -> TcpStream {
        let address = SocketAddrV4::new(self.address(), port);
        let connect = || TcpStream::connect_timeout(&address.into(), SOON);
        let stream = self.testbed.client().enter(connect).unwrap().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// A file in the fixture's directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.testbed.directory().join(name)
    }

    /// Starts a program on the server host, on paths in that arm.
    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> Process {
        self.start_with(&[], program, arguments)
    }

    /// As [`Fixture::start`], with options of `scoutline run`.
    pub(crate) fn start_with(&self, options: &[&str], program: &str, arguments: &[&str]) -> Process {
        let mut command: Vec<OsString> = Vec::new();
        if let Some((scoutline, daemon)) = self.paths() {
            command.extend([scoutline.into_os_string(), "run".into(), "--control".into()]);
            command.push(daemon.control().as_os_str().to_owned());
            command.extend(options.iter().map(OsString::from));
            command.push("--".into());
        }
        command.push(find(program).into_os_string());
        command.extend(arguments.iter().map(OsString::from));
        self.spawn(self.testbed.server(0), program, &command)
    }

    /// Starts a program on the client host, on the kernel.
    pub(crate) fn start_peer(&self, program: &str, arguments: &[&str]) -> Process {
        let mut command = vec![find(program).into_os_string()];
        command.extend(arguments.iter().map(OsString::from));
        self.spawn(self.testbed.client(), program, &command)
    }

    /// Runs a program on the server host, on paths in that arm, to its end; what it printed.
    pub(crate) fn run(&self, program: &str, arguments: &[&str], limit: Duration) -> String {
        finish(&mut self.start(program, arguments), limit)
    }

    /// Runs a program on the client host, on the kernel, to its end; what it printed.
    pub(crate) fn run_peer(&self, program: &str, arguments: &[&str], limit: Duration) -> String {
        finish(&mut self.start_peer(program, arguments), limit)
    }

    fn spawn(&self, host: &Host, name: &str, command: &[OsString]) -> Process {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let last = Path::new(name).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = self.file(&format!("{number}-{last}.log"));
        let place = Place { namespace: Some(host.namespace().unwrap()), core: None };
        let process = Process::spawn(name, Path::new(&command[0]), &command[1..], place, &log);
        process.unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Waits until `server` accepts connections from the client host.
    pub(crate) fn wait_for_port(&self, address: SocketAddrV4, server: &mut Process) {
        let connect = || TcpStream::connect_timeout(&address.into(), SOON);
        // A refused connection comes back at once.
        wait_until("the server accepts", SOON, || {
            server.check().unwrap_or_else(|error| panic!("{error:#}"));
            self.testbed.client().enter(connect).unwrap().is_ok()
        });
    }

    /// A tool of scoutline with this daemon's control socket: its JSON.
    pub(crate) fn ask(&self, command: &str) -> serde_json::Value {
        let control = self.daemon.as_ref().expect("a daemon").control().display().to_string();
        let tool = scoutline().display().to_string();
        let text = self.run_peer(&tool, &[command, "--json", "--control", &control], SOON);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("scoutline {command}: {error} in {text}"))
    }

    /// The paths, as `scoutline ps --json` tells them.
    pub(crate) fn paths_now(&self) -> Vec<serde_json::Value> {
        let answer = self.ask("ps");
        let list = answer.get("paths").unwrap_or(&answer);
        list.as_array().unwrap_or_else(|| panic!("no list of paths in {answer}")).clone()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let Some(keep) = std::env::var_os("SCOUTLINE_LOGS") else { return };
        let test = thread::current().name().unwrap_or("test").replace("::", "-");
        let keep = Path::new(&keep).join(test);
        let _ = fs::create_dir_all(&keep);
        for entry in fs::read_dir(self.testbed.directory()).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                let _ = fs::copy(entry.path(), keep.join(entry.file_name()));
            }
        }
    }
}

/// A certificate of its own making, for every name: its key's file, and its own.
pub(crate) fn certificate(fixture: &Fixture) -> (String, String) {
    let (key, cert) =
        (fixture.file("key.pem").display().to_string(), fixture.file("cert.pem").display().to_string());
    let made = std::process::Command::new(find("openssl"))
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=test", "-keyout", &key, "-out", &cert])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (key, cert)
}

/// Reads what a program prints until it ends, and sees that it ends well and in time.
pub(crate) fn finish(process: &mut Process, limit: Duration) -> String {
    let deadline = Instant::now() + limit;
    let mut text = String::new();
    while let Some(line) = process.line(deadline).unwrap_or_else(|error| panic!("{error:#}\n{text}")) {
        text += &line;
        text.push('\n');
    }
    process.finish(deadline).unwrap_or_else(|error| panic!("{error:#}\n{text}"));
    text
}

/// Waits until a program prints a line with `word` in it; the line.
pub(crate) fn wait_for_line(process: &mut Process, word: &str) -> String {
    let deadline = Instant::now() + SOON;
    loop {
        match process.line(deadline).unwrap_or_else(|error| panic!("{error:#}")) {
            Some(line) if line.contains(word) => return line,
            Some(_) => {}
            None => panic!("it ended without saying `{word}`{}", process.log_tail()),
        }
    }
}

/// Waits until `done` says so; how long that took.
pub(crate) fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < limit, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(5));
    }
    begin.elapsed()
}

/// Whether the long form of the tests is asked for.
pub(crate) fn long() -> bool {
    std::env::var_os("SCOUTLINE_LONG").is_some_and(|value| value != "0")
}

/// The names of other people's tests that are left out, one a line, for their runners. The list is a script of ours with
/// a reason behind each name: `name: reason`.
pub(crate) fn left_out(list: &str) -> String {
    let list = fs::read_to_string(script(list)).unwrap();
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut names = String::new();
    for line in lines {
        let (name, reason) = line.split_once(": ").unwrap_or_else(|| panic!("no reason in `{line}`"));
        assert!(!reason.is_empty());
        names.push_str(name);
        names.push('\n');
    }
    names
}

/// How many MiB a bulk transfer has.
pub(crate) const TRANSFER_MIB: usize = 1024;

/// Writes a file of so many MiB, see [`write_file_kib`].
pub(crate) fn write_file(path: &Path, mib: usize) {
    write_file_kib(path, mib << 10);
}

/// Writes a file without a period, in pieces: a lost, doubled or misplaced piece shows.
pub(crate) fn write_file_kib(path: &Path, kib: usize) {
    let mut random = Random::new(0x2317_0000 + kib as u64);
    let mut file = BufWriter::with_capacity(1 << 20, fs::File::create(path).unwrap());
    for _ in 0..kib << 7 {
        file.write_all(&random.next_u64().to_le_bytes()).unwrap();
    }
    file.flush().unwrap();
}

/// Sees that two files are the same, byte for byte.
pub(crate) fn assert_same(one: &Path, other: &Path) {
    let open = |path: &Path| {
        let file = fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (file.metadata().unwrap().len(), BufReader::with_capacity(1 << 20, file))
    };
    let ((length, mut one_file), (other_length, mut other_file)) = (open(one), open(other));
    let name = other.display();
    assert_eq!(length, other_length, "length of {name}");
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < length {
        let size = (length - at).min(1 << 20) as usize;
        one_file.read_exact(&mut left[..size]).unwrap();
        other_file.read_exact(&mut right[..size]).unwrap();
        if left[..size] != right[..size] {
            let offset = left.iter().zip(&right).position(|(a, b)| a != b).unwrap_or(0);
            panic!("{name} differs at byte {}", at + offset as u64);
        }
        at += size as u64;
    }
}

/// The program with `up` and `run`: what `SCOUTLINE_BIN` names, else what was built last beside this test.
pub(crate) fn scoutline() -> PathBuf {
    if let Some(program) = std::env::var_os("SCOUTLINE_BIN") {
        return PathBuf::from(program);
    }
    // target/<profile>/deps/real_programs-<hash>
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).expect("a target directory");
    let built = ["release", "debug"].map(|profile| target.join(profile).join("scoutline"));
    let last = built.iter().filter_map(|path| Some((fs::metadata(path).ok()?.modified().ok()?, path))).max();
    let (_, program) = last.unwrap_or_else(|| {
        panic!("there is no {} nor its debug form; build it with: make build", built[0].display())
    });
    let library = program.with_file_name("libscoutline_preload.so");
    assert!(library.exists(), "{} is missing; build it with: make build", library.display());
    program.clone()
}

/// The program with this name; a path is taken as it is.
pub(crate) fn find(program: &str) -> PathBuf {
    if program.contains('/') {
        return PathBuf::from(program);
    }
    let places = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin"];
    let found = places.iter().map(|place| Path::new(place).join(program)).find(|path| path.exists());
    found.unwrap_or_else(|| {
        let package = match program {
            "nginx" => "nginx-light",
            "apache2" => "apache2-bin",
            "redis-server" => "redis-server",
            "redis-benchmark" | "redis-cli" => "redis-tools",
            "ip" | "tc" => "iproute2",
            other => other,
        };
        panic!("{program} is missing; install it with: apt-get install {package}")
    })
}

/// A script beside these tests.
pub(crate) fn script(name: &str) -> String {
    format!("{}/tests/real_programs/scripts/{name}", env!("CARGO_MANIFEST_DIR"))
}
