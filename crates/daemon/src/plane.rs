//! The poll loop: sockets, signals, the engine's end.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use scoutline_abi::api::{Answer, ProgramRow};

use crate::attach::{AttachServer, Owners};
use crate::control::{ControlServer, Outcome};
use crate::engine::EngineLink;
use crate::sockets::{SocketError, attach_path};

/// How often the engine's life is looked at, and time-outs.
const ROUND: Duration = Duration::from_millis(500);
/// How often its answers are looked for while one is due.
const SHORT_ROUND: Duration = Duration::from_millis(1);

/// Where the plane listens, and for whom.
#[derive(Clone, Debug)]
pub(crate) struct PlaneSettings {
    /// The control socket.
    pub(crate) control: PathBuf,
    /// Mode of both sockets.
    pub(crate) mode: u32,
    /// Who may attach.
    pub(crate) owners: Owners,
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// SIGTERM, SIGINT, or `scoutline stop`.
    Asked,
    /// The engine has ended by itself.
    EngineGone,
}

/// Both servers. The sockets' names go when it is dropped.
pub(crate) struct Plane {
    attach: AttachServer,
    control: ControlServer,
    started: Instant,
}

enum Token {
    Signal,
    AttachListener,
    ControlListener,
    Program(u32),
    Tool(u32),
}

impl Plane {
    /// Makes the sockets.
    pub(crate) fn bind(settings: &PlaneSettings) -> Result<Plane, SocketError> {
        let control = ControlServer::bind(&settings.control, settings.mode, settings.owners.group)?;
        let attach = AttachServer::bind(&attach_path(&settings.control), settings.mode, settings.owners)?;
        Ok(Plane { attach, control, started: Instant::now() })
    }

    /// Serves until a byte comes over `stop`, a tool asks to stop, or the engine ends.
    ///
    /// # Errors
    /// `poll` itself fails.
    pub(crate) fn serve(&mut self, engine: &impl EngineLink, stop: &UnixStream) -> io::Result<Ended> {
        loop {
            for token in self.wait(stop)? {
                match token {
                    Token::Signal => return Ok(Ended::Asked),
                    Token::AttachListener => self.attach.on_connect(),
                    Token::ControlListener => self.control.on_connect(),
                    Token::Program(id) => self.attach.on_input(id, engine),
                    Token::Tool(id) => {
                        if self.control.on_ready(id, engine) == Outcome::Stop {
                            return Ok(Ended::Asked);
                        }
                    }
                }
            }
            let (attach, started) = (&self.attach, self.started);
            if self.control.on_round(engine, |answer| complete(answer, attach, started, engine))
                == Outcome::Stop
            {
                return Ok(Ended::Asked);
            }
            if !engine.is_running() {
                return Ok(Ended::EngineGone);
            }
        }
    }

    fn wait(&self, stop: &UnixStream) -> io::Result<Vec<Token>> {
        let mut tokens = vec![Token::Signal];
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        for (token, listener) in [
            (Token::AttachListener, self.attach.listener()),
            (Token::ControlListener, self.control.listener()),
        ] {
            if listener.is_open() {
                tokens.push(token);
                fds.push(PollFd::new(listener, PollFlags::IN));
            }
        }
        for (id, fd) in self.attach.connections() {
            tokens.push(Token::Program(id));
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        for (id, fd, flags) in self.control.connections() {
            tokens.push(Token::Tool(id));
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        }
        let round = if self.control.awaits_engine() { SHORT_ROUND } else { ROUND };
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(round.subsec_nanos()) };
        match rustix::event::poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Ok(tokens.into_iter().zip(ready).filter_map(|(token, ready)| ready.then_some(token)).collect())
    }
}

/// Adds what only the control plane knows.
fn complete(answer: &mut Answer, attach: &AttachServer, started: Instant, engine: &impl EngineLink) {
    let Answer::Stat(stat) = answer else { return };
    env!("CARGO_PKG_VERSION").clone_into(&mut stat.version);
    stat.uptime_s = started.elapsed().as_secs_f64();
    for notice in engine.notices() {
        if !stat.notices.contains(notice) {
            stat.notices.push(notice.clone());
        }
    }
    for ProgramRow { pid, processes, .. } in &mut stat.programs {
        *processes = attach.processes_of(*pid).unwrap_or(*processes);
    }
}
