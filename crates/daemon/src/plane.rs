//! The poll loop: sockets, signals, the engine's end.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use scoutline_abi::api::{Answer, ProgramRow};

use crate::attach::{AttachServer, Owners};
use crate::classes::{Classes, Handled};
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
    classes: Classes,
    started: Instant,
}

/// What signals say: each stream becomes readable when one has come.
pub(crate) struct Told {
    /// Stop.
    pub(crate) stop: UnixStream,
    /// Read the configuration file again.
    pub(crate) reload: UnixStream,
}

enum Token {
    Stop,
    Reload,
    AttachListener,
    ControlListener,
    Program(u32),
    Tool(u32),
}

impl Plane {
    /// Makes the sockets.
    pub(crate) fn bind(settings: &PlaneSettings, classes: Classes) -> Result<Plane, SocketError> {
        let control = ControlServer::bind(&settings.control, settings.mode, settings.owners.group)?;
        let attach = AttachServer::bind(&attach_path(&settings.control), settings.mode, settings.owners)?;
        Ok(Plane { attach, control, classes, started: Instant::now() })
    }

    /// Serves until a signal or a tool asks to stop, or the engine ends.
    ///
    /// # Errors
    /// `poll` itself fails.
    pub(crate) fn serve(&mut self, engine: &impl EngineLink, told: &Told) -> io::Result<Ended> {
        loop {
            for token in self.wait(told)? {
                match token {
                    Token::Stop => return Ok(Ended::Asked),
                    Token::Reload => self.on_reload(&told.reload, engine),
                    Token::AttachListener => self.attach.on_connect(),
                    Token::ControlListener => self.control.on_connect(),
                    Token::Program(id) => self.attach.on_input(id, engine),
                    Token::Tool(id) => {
                        if self.control.on_ready(id, &mut self.classes, engine) == Outcome::Stop {
                            return Ok(Ended::Asked);
                        }
                    }
                }
            }
            self.attach.on_round(engine);
            let (attach, started) = (&self.attach, self.started);
            let complete = |answer: &mut Answer| complete(answer, attach, started, engine);
            if self.control.on_round(&mut self.classes, engine, complete) == Outcome::Stop {
                return Ok(Ended::Asked);
            }
            if !engine.is_running() {
                return Ok(Ended::EngineGone);
            }
        }
    }

    /// SIGHUP has come, perhaps several times. A file that is wrong changes nothing.
    fn on_reload(&mut self, told: &UnixStream, engine: &impl EngineLink) {
        let mut bytes = [0; 64];
        while matches!(rustix::net::recv(told, &mut bytes[..], RecvFlags::DONTWAIT), Ok((_, 1..))) {}
        match self.classes.reload(engine) {
            Handled::Later(Answer::Reloaded(reloaded), _) => {
                log::info!("the configuration was read again: {reloaded}");
            }
            Handled::Now(Answer::Error { message }) => log::error!("nothing is changed: {message}"),
            _ => {}
        }
    }

    fn wait(&self, told: &Told) -> io::Result<Vec<Token>> {
        let mut tokens = vec![Token::Stop, Token::Reload];
        let mut fds = vec![PollFd::new(&told.stop, PollFlags::IN), PollFd::new(&told.reload, PollFlags::IN)];
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
        let round =
            if self.control.awaits_engine() || self.attach.is_settling() { SHORT_ROUND } else { ROUND };
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
