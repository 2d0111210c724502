//! Unmodified servers, on the kernel or on paths, and the daemon that the latter need.
//!
//! Both arms run the same program with the same configuration; on paths the command only has
//! `scoutline run --control SOCKET --` in front.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::pattern;
use crate::process::{Place, Process};
use crate::testbed::{FORGED, Host, Testbed};

/// How long a daemon or a server may take until it serves.
const START: Duration = Duration::from_secs(15);

/// A server program and how it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// nginx with so many worker processes.
    Nginx {
        /// Worker processes.
        workers: u32,
        /// Whether a connection serves more than one request.
        keepalive: bool,
    },
    /// Apache with its prefork module: one process per connection.
    ApachePrefork {
        /// Processes, all of them started at once.
        processes: u32,
    },
}

impl Kind {
    /// Two workers, a new connection per request.
    pub const NGINX: Kind = Kind::Nginx { workers: 2, keepalive: false };
    /// A hundred processes, a new connection per request.
    pub const APACHE: Kind = Kind::ApachePrefork { processes: 100 };

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Nginx { .. } => "nginx",
            Kind::ApachePrefork { .. } => "apache",
        }
    }

    fn program(self) -> Result<PathBuf> {
        let (name, package) = match self {
            Kind::Nginx { .. } => ("nginx", "nginx-light"),
            Kind::ApachePrefork { .. } => ("apache2", "apache2-bin"),
        };
        let places = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
        let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
        found.with_context(|| format!("{name} is missing; install it with: apt-get install {package}"))
    }

    fn arguments(self, configuration: &Path) -> Vec<String> {
        let configuration = configuration.display().to_string();
        let directory = Path::new(&configuration).parent().unwrap_or(Path::new("/")).display().to_string();
        let list: &[&str] = match self {
            Kind::Nginx { .. } => &["-p", &directory, "-c", &configuration, "-e", "stderr"],
            Kind::ApachePrefork { .. } => &["-f", &configuration, "-DFOREGROUND"],
        };
        list.iter().map(ToString::to_string).collect()
    }

    fn configuration(self, port: u16, directory: &Path, files: &Path) -> String {
        let (directory, files) = (directory.display(), files.display());
        match self {
            Kind::Nginx { workers, keepalive } => {
                let keepalive = if keepalive { "65" } else { "0" };
                format!(
                    "user root;
worker_processes {workers};
daemon off;
pid {directory}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile on;
    keepalive_timeout {keepalive};
    keepalive_requests 100000000;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen {port};
        root {files};
    }}
}}
"
                )
            }
            Kind::ApachePrefork { processes } => {
                let modules = Path::new("/usr/lib/apache2/modules");
                let mut text = String::new();
                for module in ["mpm_prefork", "authz_core"] {
                    let file = modules.join(format!("mod_{module}.so"));
                    let _ = writeln!(text, "LoadModule {module}_module {}", file.display());
                }
                let _ = write!(
                    text,
                    "ServerRoot {directory}
ServerName server
PidFile {directory}/apache.pid
DefaultRuntimeDir {directory}
Mutex pthread
ErrorLog {directory}/error.log
LogLevel warn
User #65534
Group #65534
Listen 0.0.0.0:{port}
StartServers {processes}
MinSpareServers {processes}
MaxSpareServers {processes}
ServerLimit {processes}
MaxRequestWorkers {processes}
MaxConnectionsPerChild 0
KeepAlive Off
Timeout 60
EnableSendfile On
EnableMMAP Off
DocumentRoot {files}
<Directory {files}>
    Require all granted
    AllowOverride None
</Directory>
"
                );
                text
            }
        }
    }
}

/// The priorities that the daemon gives to the two kinds of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priorities {
    /// All alike.
    Equal,
    /// Preferred 2, standard 0. Each class has its own listen path, of its own priority: SILK's one listen path, in which
    /// SYNs of both wait, stands between them (SILK §4.2), and there is none here.
    Preferred,
    /// The same, and the server's threads run at the priority of the path that they serve.
    Extended,
}

/// The daemon of one server host.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    program: PathBuf,
    control: PathBuf,
}

impl Daemon {
    /// The configuration of one on the server host `index`, with its engine on `core`, where one is named.
    pub(crate) fn configuration(
        testbed: &Testbed,
        index: usize,
        core: Option<usize>,
        priorities: Priorities,
    ) -> String {
        let address = *testbed.server_address(index).ip();
        let preferred = testbed.client_address(index, crate::testbed::Client::Preferred);
        let beyond = testbed.client_address(index, crate::testbed::Client::Standard);
        let high = if priorities == Priorities::Equal { 0 } else { 2 };
        let extended = priorities == Priorities::Extended;
        let pinned = core.map_or_else(String::new, |core| format!("[engine]\ncpu = {core}\n"));
        format!(
            "[[device]]
name = \"eth0\"
driver = \"packet\"
address = \"{address}/24\"

[[route]]
to = \"{FORGED}\"
via = \"{beyond}\"

{pinned}
[linux]
priority = 0

[extension]
enabled = {extended}

[[class]]
name = \"preferred\"
priority = {high}
source = [\"{preferred}/32\"]

[[class]]
name = \"standard\"
priority = 0
source = [\"0.0.0.0/0\"]
"
        )
    }

    /// Starts `scoutline up` with this configuration on the server host `index`, on `core` (`None`: on all), and waits
    /// until it serves.
    pub fn start_with(
        testbed: &Testbed,
        index: usize,
        scoutline: &Path,
        core: Option<usize>,
        configuration: &str,
    ) -> Result<Daemon> {
        Daemon::start_on(testbed, testbed.server(index), &index.to_string(), scoutline, core, configuration)
    }

    /// As [`Daemon::start_with`], on any host of the test bed; `name` tells its files from those of other daemons.
    pub fn start_on(
        testbed: &Testbed,
        host: &Host,
        name: &str,
        scoutline: &Path,
        core: Option<usize>,
        configuration: &str,
    ) -> Result<Daemon> {
        let control = testbed.directory().join(format!("control{name}"));
        let file = testbed.directory().join(format!("scoutline{name}.toml"));
        fs::write(&file, configuration).with_context(|| format!("cannot write {}", file.display()))?;
        let arguments =
            ["up".as_ref(), "--config".as_ref(), file.as_os_str(), "--control".as_ref(), control.as_os_str()];
        let place = Place { namespace: Some(host.namespace()?), core };
        let log = testbed.directory().join(format!("scoutline{name}.log"));
        let mut process = Process::spawn("scoutline up", scoutline, arguments, place, &log)?;
        let deadline = Instant::now() + START;
        loop {
            match process.line(deadline)? {
                Some(line) if line.starts_with("ready") => break,
                Some(_) => {}
                None => {
                    process.finish(deadline)?;
                    bail!("scoutline up ended before it was ready{}", process.log_tail());
                }
            }
        }
        Ok(Daemon { process, program: scoutline.to_owned(), control })
    }

    /// The `scoutline` that it is.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Its control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Its process's number.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// An error when it no longer runs.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Its process: to signal it, and to read its log.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// What may differ among the instances of one server program on one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The port that it listens at.
    pub port: u16,
    /// SCHED_FIFO with this priority for all its processes, as `chrt --fifo` gives it.
    pub realtime: Option<u8>,
    /// A program and its arguments that start it in the background (`nice -n 19`); empty for none.
    pub lowered: &'static [&'static str],
}

impl Instance {
    /// Port 80 and no priority.
    pub const ORDINARY: Instance = Instance { port: 80, realtime: None, lowered: &[] };
}

/// A server that serves the files of [`pattern::SIZES_KB`].
#[derive(Debug)]
pub struct Server {
    process: Process,
    kind: Kind,
}

impl Server {
    /// Starts a server on the host `index`, on `core` (`None`: on all), and waits until it has served each file once.
    ///
    /// `paths` is the `scoutline` program and the host's daemon; without it the kernel serves.
    pub fn start(
        testbed: &Testbed,
        index: usize,
        kind: Kind,
        core: impl Into<Option<usize>>,
        paths: Option<(&Path, &Daemon)>,
    ) -> Result<Server> {
        Server::start_instance(testbed, index, kind, core, paths, Instance::ORDINARY)
    }

    /// As [`Server::start`], for one of several instances on that host.
    pub fn start_instance(
        testbed: &Testbed,
        index: usize,
        kind: Kind,
        core: impl Into<Option<usize>>,
        paths: Option<(&Path, &Daemon)>,
        instance: Instance,
    ) -> Result<Server> {
        let program = kind.program()?;
        let directory = testbed.directory().join(format!("{}{index}-{}", kind.name(), instance.port));
        let files = testbed.directory().join("files");
        fs::create_dir_all(&directory)?;
        write_files(&files)?;
        let configuration = directory.join("server.conf");
        fs::write(&configuration, kind.configuration(instance.port, &directory, &files))?;
        let mut command = vec![program.into_os_string()];
        if let Some((scoutline, daemon)) = paths {
            let prefix =
                [scoutline.as_os_str(), "run".as_ref(), "--control".as_ref(), daemon.control.as_os_str()];
            command.splice(0..0, prefix.into_iter().chain(["--".as_ref()]).map(Into::into));
        }
        if let Some(priority) = instance.realtime {
            let prefix = ["/usr/bin/chrt".to_owned(), "--fifo".to_owned(), priority.to_string()];
            command.splice(0..0, prefix.map(Into::into));
        }
        command.splice(0..0, instance.lowered.iter().map(Into::into));
        command.extend(kind.arguments(&configuration).into_iter().map(Into::into));
        let place = Place { namespace: Some(testbed.server(index).namespace()?), core: core.into() };
        let log = directory.join("log");
        let mut process = Process::spawn(kind.name(), Path::new(&command[0]), &command[1..], place, &log)?;
        let address = SocketAddrV4::new(*testbed.server_address(index).ip(), instance.port);
        wait_until_it_serves(testbed, address, &mut process)
            .with_context(|| format!("{} on host {} does not serve", kind.name(), index))?;
        Ok(Server { process, kind })
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// An error when it no longer runs.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Its first process: to signal it, and to read its log.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

fn write_files(directory: &Path) -> Result<()> {
    if directory.exists() {
        return Ok(());
    }
    fs::create_dir(directory)?;
    for size in pattern::SIZES_KB {
        let file = directory.join(pattern::file_name(size));
        fs::write(&file, pattern::bytes(size as usize * 1024))
            .and_then(|()| fs::hard_link(&file, directory.join(pattern::traced_name(size))))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Fetches every file once: the server answers, and the files are in the cache.
fn wait_until_it_serves(testbed: &Testbed, address: SocketAddrV4, process: &mut Process) -> Result<()> {
    let deadline = Instant::now() + START;
    for size in pattern::SIZES_KB {
        loop {
            process.check()?;
            match fetch(testbed.client(), address, size) {
                Ok(()) => break,
                // A refused connection comes back at once: this is what the pause is for.
                Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(error.context(process.log_tail())),
            }
        }
    }
    Ok(())
}

/// Gets one file over a connection from `host` and compares it.
pub fn fetch(host: &Host, server: SocketAddrV4, size_kb: u32) -> Result<()> {
    let get = || -> Result<()> {
        let mut stream = TcpStream::connect_timeout(&server.into(), Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let name = pattern::file_name(size_kb);
        stream.write_all(
            format!("GET /{name} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        ensure!(answer.starts_with(b"HTTP/1.1 200 "), "{name}: not served");
        let body = answer.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
        let body = &answer[body.context("no end of the header")?..];
        ensure!(body == pattern::bytes(size_kb as usize * 1024), "{name}: wrong content");
        Ok(())
    };
    host.enter(get)?
}
