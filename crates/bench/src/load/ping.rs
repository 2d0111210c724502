//! One request after another, as `scoutline load ping`: a message goes out, and the next once it has come back.
//!
//! Over TCP on one connection, over UDP from one connected socket. It blocks in its calls, or, with `--spin`, asks
//! again and again. A datagram that does not come back in time is counted as lost and sent anew.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;

use super::bulk::Protocol;
use super::sleep_until;
use super::window::{Times, Window};
use crate::sys;

/// When a datagram counts as lost.
const LOST: Duration = Duration::from_millis(200);

/// What `scoutline load ping` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load ping", about = "One request after another")]
pub struct PingArguments {
    /// The server.
    #[arg(long)]
    pub connect: SocketAddrV4,
    /// TCP or UDP.
    #[arg(long)]
    pub protocol: Protocol,
    /// Bytes of a message.
    #[arg(long, default_value_t = 1)]
    pub bytes: usize,
    /// Never sleep.
    #[arg(long)]
    pub spin: bool,
    /// When.
    #[command(flatten)]
    pub window: Window,
    /// Print one JSON object (it always does).
    #[arg(long)]
    pub json: bool,
}

/// One connection, or one connected socket.
enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Socket {
    fn open(arguments: &PingArguments) -> Result<Socket> {
        let target = arguments.connect;
        match arguments.protocol {
            Protocol::Tcp => {
                let stream =
                    TcpStream::connect(target).with_context(|| format!("no connection to {target}"))?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(arguments.spin)?;
                Ok(Socket::Tcp(stream))
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect(target).with_context(|| format!("no way to {target}"))?;
                socket.set_read_timeout(Some(LOST))?;
                socket.set_nonblocking(arguments.spin)?;
                Ok(Socket::Udp(socket))
            }
        }
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        match self {
            Socket::Tcp(stream) => stream.write_all(message),
            Socket::Udp(socket) => socket.send(message).map(drop),
        }
        .context("cannot send")
    }

    /// Takes the whole answer; false when it is lost.
    fn receive(&mut self, room: &mut [u8], since: u64) -> Result<bool> {
        let mut taken = 0;
        while taken < room.len() {
            let read = match self {
                Socket::Tcp(stream) => stream.read(&mut room[taken..]),
                Socket::Udp(socket) => socket.recv(room),
            };
            match read {
                Ok(0) if matches!(self, Socket::Tcp(_)) => anyhow::bail!("the server has closed"),
                Ok(count) => taken += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // A stream loses nothing: its connection would fail.
                    let waited = Duration::from_nanos(sys::monotonic_ns() - since);
                    if matches!(self, Socket::Udp(_)) && waited >= LOST {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error).context("cannot receive"),
            }
        }
        Ok(true)
    }
}

/// Asks until the time is over, and prints a [`LoadReport`](super::LoadReport).
pub fn ping(arguments: &PingArguments) -> Result<()> {
    let mut socket = Socket::open(arguments)?;
    let message = vec![0x5c; arguments.bytes];
    let mut room = vec![0; arguments.bytes];
    let (mut times, mut lost) = (Times::new()?, 0);
    let (from, end) = arguments.window.bounds();
    sleep_until(arguments.window.at);
    loop {
        let begin = sys::monotonic_ns();
        if begin >= end {
            break;
        }
        if begin >= from {
            times.begin();
        }
        socket.send(&message)?;
        let answered = socket.receive(&mut room, begin)?;
        let passed = sys::monotonic_ns() - begin;
        if begin < from {
            continue;
        }
        if answered {
            times.record(passed);
        } else {
            lost += 1;
        }
    }
    let report = times.report(&arguments.window, arguments.bytes, &[("lost", lost)]);
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
