//! The tools' side of the JSON API.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::PidfdFlags;
use scoutline_abi::api::{Answer, ClassKeys, Graph, PathRow, Reloaded, Request, SettingRow, Stat};

use crate::failure::{Failure, UNREACHABLE, plain};

/// Longer than the daemon waits for its engine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to the daemon.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

/// No daemon answers at `path`: why, and what to do.
pub(crate) fn unreachable(path: &Path, error: &std::io::Error) -> Failure {
    let path = path.display();
    let message = match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
            format!("no daemon at {path}; start one with `scoutline up`, or name its socket with --control")
        }
        std::io::ErrorKind::PermissionDenied => {
            format!("you may not use {path}; run as root, or as a member of the group in its [control] group")
        }
        // EAGAIN is how a time-out of a socket is told.
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => format!(
            "the daemon at {path} does not answer within {} s: it is stopped (SIGSTOP, a debugger), hangs, or has no \
             descriptors left (see its log)",
            PATIENCE.as_secs()
        ),
        std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe => {
            format!("the daemon at {path} has ended")
        }
        _ => format!("the daemon at {path} does not answer: {}", plain(error)),
    };
    Failure::new(UNREACHABLE, message)
}

/// Connects to a socket of the daemon. Nothing on it waits longer than [`PATIENCE`], not even this: with a full backlog
/// it would.
pub(crate) fn connect(path: &Path, kind: SocketType) -> std::io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    for which in [Timeout::Recv, Timeout::Send] {
        sockopt::set_socket_timeout(&socket, which, Some(PATIENCE))?;
    }
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

impl Client {
    pub(crate) fn connect(path: &Path) -> Result<Client, Failure> {
        let stream = connect(path, SocketType::STREAM).map_err(|error| unreachable(path, &error))?;
        let stream = UnixStream::from(stream);
        Ok(Client { stream: BufReader::new(stream), path: path.to_owned() })
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, Failure> {
        let mut line = serde_json::to_string(request).map_err(|error| Failure::failed(error.to_string()))?;
        line.push('\n');
        let mut answer = String::new();
        let exchange = self
            .stream
            .get_mut()
            .write_all(line.as_bytes())
            .and_then(|()| self.stream.read_line(&mut answer));
        match exchange {
            Ok(0) => {
                let message = format!("the daemon at {} has ended", self.path.display());
                return Err(Failure::new(UNREACHABLE, message));
            }
            Ok(_) => {}
            Err(error) => return Err(unreachable(&self.path, &error)),
        }
        match serde_json::from_str(&answer) {
            Ok(Answer::Error { message }) => Err(Failure::failed(message)),
            Ok(answer) => Ok(answer),
            Err(error) => {
                let message = format!("the daemon's answer makes no sense: {error}; is it of this version?");
                Err(Failure::failed(message))
            }
        }
    }

    pub(crate) fn paths(&mut self) -> Result<Vec<PathRow>, Failure> {
        match self.ask(&Request::Ps)? {
            Answer::Paths { paths } => Ok(paths),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn stat(&mut self) -> Result<Stat, Failure> {
        match self.ask(&Request::Stat)? {
            Answer::Stat(stat) => Ok(stat),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn graph(&mut self) -> Result<Graph, Failure> {
        match self.ask(&Request::Graph)? {
            Answer::Graph(graph) => Ok(graph),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn classes(&mut self) -> Result<Vec<ClassKeys>, Failure> {
        match self.ask(&Request::Classes)? {
            Answer::Classes { classes } => Ok(classes),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn settings(&mut self) -> Result<Vec<SettingRow>, Failure> {
        match self.ask(&Request::Settings)? {
            Answer::Settings { settings } => Ok(settings),
            other => Err(unexpected(&other)),
        }
    }

    /// Has the daemon change something; returns once it has.
    pub(crate) fn change(&mut self, request: &Request) -> Result<(), Failure> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn reload(&mut self) -> Result<Reloaded, Failure> {
        match self.ask(&Request::Reload)? {
            Answer::Reloaded(reloaded) => Ok(reloaded),
            other => Err(unexpected(&other)),
        }
    }

    /// Stops the daemon and waits until it has ended, and with that given its devices back: who started the next one before that
    /// would be told that they are another's.
    pub(crate) fn stop(mut self) -> Result<(), Failure> {
        // Not for one in a process namespace that we do not see into.
        let daemon = sockopt::socket_peercred(self.stream.get_ref())
            .and_then(|peer| rustix::process::pidfd_open(peer.pid, PidfdFlags::empty()));
        match self.ask(&Request::Stop)? {
            Answer::Done => {}
            other => return Err(unexpected(&other)),
        }
        let mut rest = String::new();
        let _ = self.stream.read_line(&mut rest); // its end
        let Ok(daemon) = daemon else { return Ok(()) };
        let patience = Timespec::try_from(PATIENCE).expect("some seconds");
        match rustix::event::poll(&mut [PollFd::new(&daemon, PollFlags::IN)], Some(&patience)) {
            Ok(0) => Err(Failure::failed(format!(
                "the daemon at {} is stopping, but has not ended within {} s (see its log)",
                self.path.display(),
                PATIENCE.as_secs()
            ))),
            _ => Ok(()),
        }
    }
}

fn unexpected(answer: &Answer) -> Failure {
    let text = format!("{answer:?}");
    let kind = text.split([' ', '(']).next().unwrap_or_default().to_owned();
    Failure::failed(format!("the daemon's answer is of another kind ({kind}); is it of this version?"))
}
