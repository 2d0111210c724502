//! The JSON API: one request a line, one answer a line, over a stream socket.
//!
//! Questions go to the engine as [`Command::Query`]; its answer comes over a channel, which is looked at each time
//! round (the poll loop keeps its rounds short while any answer is due). A tool has one question open at a time and
//! its next one is read once the answer has left: so what is kept for a tool is bounded by one request and one
//! answer.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketType};
use scoutline_abi::api::{Answer, Request};

use crate::classes::{Classes, Handled};
use crate::config::unknown;
use crate::engine::{Command, EngineLink};
use crate::sockets::{Listener, SocketError};

/// Tools connected at a time.
const MAX_TOOLS: usize = 32;
/// Longest request.
const MAX_REQUEST: usize = 64 << 10;
/// How long the engine may take.
const ENGINE_TIME: Duration = Duration::from_secs(5);
/// How long a tool may leave its answer unread.
const TOOL_TIME: Duration = Duration::from_secs(30);

/// What is due to a tool.
#[derive(Debug)]
enum Due {
    /// Nothing: it may ask.
    Nothing,
    /// The engine's answer; if it says that it is done, `instead` is passed on.
    Engine { answer: Receiver<Answer>, instead: Option<Box<Answer>>, until: Instant },
    /// Its answer, from `sent` on.
    Bytes { bytes: Vec<u8>, sent: usize, until: Instant },
}

/// A connected tool.
#[derive(Debug)]
struct Tool {
    socket: OwnedFd,
    input: Vec<u8>,
    /// It will not ask again.
    finished: bool,
    due: Due,
}

/// What a round of the server leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Go on.
    GoOn,
    /// A tool asked to stop the daemon.
    Stop,
}

/// The server.
pub(crate) struct ControlServer {
    listener: Listener,
    tools: BTreeMap<u32, Tool>,
    next: u32,
}

impl ControlServer {
    /// Listens at the control socket.
    pub(crate) fn bind(path: &Path, mode: u32, group: Option<u32>) -> Result<ControlServer, SocketError> {
        let listener = Listener::bind(path, SocketType::STREAM, mode, group)?;
        Ok(ControlServer { listener, tools: BTreeMap::new(), next: 0 })
    }

    /// The listening socket.
    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// The connections, and what each is waited for.
    pub(crate) fn connections(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>, PollFlags)> {
        self.tools.iter().map(|(&id, tool)| {
            let flags = match tool.due {
                Due::Bytes { .. } => PollFlags::OUT,
                _ if tool.finished => PollFlags::empty(), // hang-up is reported all the same
                _ => PollFlags::IN,
            };
            (id, tool.socket.as_fd(), flags)
        })
    }

    /// Whether the engine owes an answer.
    pub(crate) fn awaits_engine(&self) -> bool {
        self.tools.values().any(|tool| matches!(tool.due, Due::Engine { .. }))
    }

    /// Takes the connections that wait.
    pub(crate) fn on_connect(&mut self) {
        while let Some(socket) = self.listener.accept() {
            let mut tool = Tool { socket, input: Vec::new(), finished: false, due: Due::Nothing };
            if self.tools.len() >= MAX_TOOLS {
                tool.answer(&refusal(format!("{MAX_TOOLS} tools are connected already; close one")));
                tool.flush();
                continue;
            }
            self.next = self.next.wrapping_add(1);
            self.tools.insert(self.next, tool);
        }
    }

    /// A connection can be read or written.
    pub(crate) fn on_ready(&mut self, id: u32, classes: &mut Classes, engine: &impl EngineLink) -> Outcome {
        let Some(tool) = self.tools.get_mut(&id) else { return Outcome::GoOn };
        let (alive, outcome) = match tool.due {
            Due::Bytes { .. } => (tool.flush(), Outcome::GoOn),
            Due::Engine { .. } | Due::Nothing => tool.read(classes, engine),
        };
        if !alive {
            self.tools.remove(&id);
        }
        outcome
    }

    /// Passes on what the engine has answered, through `complete`; drops who is out of time.
    pub(crate) fn on_round(
        &mut self,
        classes: &mut Classes,
        engine: &impl EngineLink,
        complete: impl Fn(&mut Answer),
    ) -> Outcome {
        let now = Instant::now();
        let mut outcome = Outcome::GoOn;
        self.tools.retain(|_, tool| {
            match &mut tool.due {
                Due::Nothing => return true,
                Due::Bytes { until, .. } => return *until > now,
                Due::Engine { answer, instead, until } => {
                    let answer = match answer.try_recv() {
                        Ok(Answer::Done) if instead.is_some() => {
                            instead.take().map_or(Answer::Done, |answer| *answer)
                        }
                        Ok(mut answer) => {
                            complete(&mut answer);
                            answer
                        }
                        Err(TryRecvError::Disconnected) => refusal("the engine does not answer this".into()),
                        Err(TryRecvError::Empty) if *until > now => return true,
                        Err(TryRecvError::Empty) if instead.is_some() => refusal(
                            "the classes are changed, but the engine is too busy to have looked at all paths; \
                             see `scoutline ps`"
                                .into(),
                        ),
                        Err(TryRecvError::Empty) => {
                            refusal("the engine is too busy to answer; ask again".into())
                        }
                    };
                    tool.answer(&answer);
                }
            }
            let alive = tool.flush();
            if alive && matches!(tool.due, Due::Nothing) {
                // A next request may lie in the input already.
                let (alive, wish) = tool.next_request(classes, engine);
                if wish == Outcome::Stop {
                    outcome = Outcome::Stop;
                }
                return alive;
            }
            alive
        });
        outcome
    }
}

impl Tool {
    /// Reads; asks when a whole line is there. False: the tool is gone.
    fn read(&mut self, classes: &mut Classes, engine: &impl EngineLink) -> (bool, Outcome) {
        let mut bytes = [0; 4096];
        match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            // A half close (`nc -N`) still wants its answer; a second end of file is a hang-up.
            Ok((_, 0)) => {
                let waits = !self.finished && !matches!(self.due, Due::Nothing);
                self.finished = true;
                (waits, Outcome::GoOn)
            }
            Ok((_, len)) => {
                self.input.extend_from_slice(&bytes[..len]);
                if self.input.len() > MAX_REQUEST {
                    return (false, Outcome::GoOn);
                }
                self.next_request(classes, engine)
            }
            Err(Errno::AGAIN | Errno::INTR) => (true, Outcome::GoOn),
            Err(_) => (false, Outcome::GoOn),
        }
    }

    /// Acts on the next line of the input, if nothing is due and one is there.
    fn next_request(&mut self, classes: &mut Classes, engine: &impl EngineLink) -> (bool, Outcome) {
        while matches!(self.due, Due::Nothing) {
            let Some(end) = self.input.iter().position(|&byte| byte == b'\n') else { break };
            let line: Vec<u8> = self.input.drain(..=end).collect();
            if line.trim_ascii().is_empty() {
                continue;
            }
            match parse(&line) {
                Ok(Request::Stop) => {
                    self.answer(&Answer::Done);
                    self.flush();
                    return (true, Outcome::Stop);
                }
                Ok(request) => {
                    let until = Instant::now() + ENGINE_TIME;
                    match classes.handle(&request, engine) {
                        Handled::Now(answer) => self.answer(&answer),
                        Handled::Later(instead, answer) => {
                            self.due = Due::Engine { answer, instead: Some(Box::new(instead)), until };
                        }
                        Handled::NotOurs => {
                            let (sender, answer) = channel();
                            engine.send(Command::Query(request, sender));
                            self.due = Due::Engine { answer, instead: None, until };
                        }
                    }
                }
                Err(message) => self.answer(&refusal(message)),
            }
            if !self.flush() {
                return (false, Outcome::GoOn);
            }
        }
        (true, Outcome::GoOn)
    }

    fn answer(&mut self, answer: &Answer) {
        let mut bytes = serde_json::to_vec(answer).unwrap_or_default();
        bytes.push(b'\n');
        self.due = Due::Bytes { bytes, sent: 0, until: Instant::now() + TOOL_TIME };
    }

    /// Writes what goes without waiting. False: the tool is gone.
    fn flush(&mut self) -> bool {
        let Due::Bytes { bytes, sent, .. } = &mut self.due else { return true };
        while *sent < bytes.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &bytes[*sent..], flags) {
                Ok(len) => *sent += len,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        self.due = Due::Nothing;
        !self.finished || self.input.contains(&b'\n')
    }
}

/// Reads a request.
///
/// # Errors
/// What is wrong with it, in one line.
pub(crate) fn parse(line: &[u8]) -> Result<Request, String> {
    let such_as = "write one request a line, such as {\"command\":\"ps\"}";
    let value: serde_json::Value = serde_json::from_slice(line)
        .map_err(|error| format!("this is no JSON, from character {} on; {such_as}", error.column()))?;
    let Some(command) = value.get("command").and_then(|command| command.as_str()).map(str::to_owned) else {
        return Err(format!("a request says its command; {such_as}"));
    };
    serde_json::from_value(value).map_err(|error| {
        let text = error.to_string();
        let mut words = text.split('`').skip(1).step_by(2);
        if text.starts_with("unknown variant") {
            return unknown("command", &command, &words.skip(1).collect::<Vec<_>>());
        }
        match words.next().filter(|_| text.starts_with("missing field")) {
            Some(missing) => format!("the command `{command}` needs \"{missing}\""),
            None => format!(
                "the command `{command}` is given values of another kind: \"name\" and \"before\" are texts, \"keys\" is \
                 a list of pairs such as [\"priority\",\"2\"]"
            ),
        }
    })
}

fn refusal(message: String) -> Answer {
    Answer::Error { message }
}
