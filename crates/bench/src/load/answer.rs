//! The least that is a web server, as `scoutline load answer`: one thread, one epoll set, and one byte as the answer
//! to whatever is asked. What a connection costs is then nearly all that there is to see.
//!
//! It closes after the answer unless the client wants to go on, so TIME-WAIT lies on its side.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::{pattern, sys};

/// What `scoutline load answer` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load answer", about = "A web server with answers of one byte")]
pub struct AnswerArguments {
    /// Where it listens.
    #[arg(long)]
    pub port: u16,
}

/// Events taken at once.
const EVENTS: usize = 512;
/// The listener's number; those of connections count from 0.
const LISTENER: usize = usize::MAX;
/// No request is longer.
const REQUEST: usize = 2048;

/// A connection whose request is not here in full keeps what has come.
struct Connection {
    stream: TcpStream,
    begun: Vec<u8>,
}

/// Serves until it is stopped. Prints `ready` once it listens.
pub fn answer(arguments: &AnswerArguments) -> Result<()> {
    sys::raise_file_limit()?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, arguments.port))
        .with_context(|| format!("cannot listen at {}", arguments.port))?;
    listener.set_nonblocking(true)?;
    let mut poll = sys::Poll::new(EVENTS)?;
    poll.add(&listener, LISTENER, false)?;
    println!("ready");
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut free = Vec::new();
    let text = |connection| format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n{connection}\r\n");
    let [close, keep] = ["Connection: close\r\n", ""].map(|connection| {
        let mut answer = text(connection).into_bytes();
        answer.extend_from_slice(&pattern::bytes(1));
        answer
    });
    loop {
        let count = poll.wait(Duration::from_secs(3600))?;
        for index in 0..count {
            let token = poll.event(index).token;
            if token == LISTENER {
                accept(&listener, &poll, &mut connections, &mut free)?;
                continue;
            }
            let kept = connections[token].as_mut().is_some_and(|connection| {
                // One that fails is closed, as one that has ended.
                connection.serve(&close, &keep).unwrap_or(false)
            });
            if !kept && connections[token].take().is_some() {
                free.push(token);
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    poll: &sys::Poll,
    connections: &mut Vec<Option<Connection>>,
    free: &mut Vec<usize>,
) -> Result<()> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            // The client has given up before.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(error) => return Err(error).context("cannot accept"),
        };
        stream.set_nonblocking(true)?;
        let slot = free.pop().unwrap_or_else(|| {
            connections.push(None);
            connections.len() - 1
        });
        poll.add(&stream, slot, false)?;
        connections[slot] = Some(Connection { stream, begun: Vec::new() });
    }
}

impl Connection {
    /// Answers what has come. False when the connection is over.
    fn serve(&mut self, close: &[u8], keep: &[u8]) -> std::io::Result<bool> {
        let mut room = [0; REQUEST];
        loop {
            let count = match self.stream.read(&mut room) {
                Ok(0) => return Ok(false),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            };
            let whole = if self.begun.is_empty() {
                &room[..count]
            } else {
                self.begun.extend_from_slice(&room[..count]);
                &self.begun[..]
            };
            if !whole.ends_with(b"\r\n\r\n") {
                if whole.len() > REQUEST {
                    return Ok(false);
                }
                if self.begun.is_empty() {
                    self.begun.extend_from_slice(&room[..count]);
                }
                continue;
            }
            let last = whole.windows(CLOSE.len()).any(|word| word.eq_ignore_ascii_case(CLOSE));
            self.begun.clear();
            self.stream.write_all(if last { close } else { keep })?;
            if last {
                return Ok(false);
            }
            // Edge-triggered: a short read has emptied the socket, and more is a new event.
            if count < room.len() {
                return Ok(true);
            }
        }
    }
}

const CLOSE: &[u8] = b"connection: close";
