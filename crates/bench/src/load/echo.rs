//! What `ping` and `query` ask: a program that sends back what it gets, as `scoutline load echo`. It knows nothing of
//! paths and runs until it is stopped.
//!
//! One thread, as such programs are written by those who read socket(7) and no further: over TCP, connection after
//! connection, each served until its end; over UDP, `recvfrom` and `sendto`, or with `--batch` `recvmmsg` and
//! `sendmmsg`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

use anyhow::{Context as _, Result};
use clap::Parser;

use super::bulk::Protocol;
use crate::sys::{self, Batch};

/// No message is longer.
const ROOM: usize = 2048;

/// What `scoutline load echo` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load echo", about = "Sends back what it gets")]
pub struct EchoArguments {
    /// Where it listens.
    #[arg(long)]
    pub port: u16,
    /// TCP or UDP.
    #[arg(long)]
    pub protocol: Protocol,
    /// Never sleep.
    #[arg(long)]
    pub spin: bool,
    /// Over UDP: take and send so many datagrams with one system call.
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
}

/// Serves until it is stopped. Prints `ready` once it listens.
pub fn echo(arguments: &EchoArguments) -> Result<()> {
    let here = (Ipv4Addr::UNSPECIFIED, arguments.port);
    match arguments.protocol {
        Protocol::Tcp => {
            let listener = TcpListener::bind(here).with_context(|| format!("cannot listen at {here:?}"))?;
            println!("ready");
            loop {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(arguments.spin)?;
                // A client that is gone is no reason to end.
                let _ = serve(stream);
            }
        }
        Protocol::Udp => {
            let socket = UdpSocket::bind(here).with_context(|| format!("cannot take port {here:?}"))?;
            sys::set_receive_buffer(&socket, 4 << 20)?;
            socket.set_nonblocking(arguments.spin)?;
            println!("ready");
            if arguments.batch > 1 { batches(&socket, arguments.batch) } else { singles(&socket) }
        }
    }
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut room = [0; ROOM];
    loop {
        match stream.read(&mut room) {
            Ok(0) => return Ok(()),
            Ok(count) => stream.write_all(&room[..count])?,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}

fn singles(socket: &UdpSocket) -> Result<()> {
    let mut room = [0; ROOM];
    loop {
        match socket.recv_from(&mut room) {
            Ok((count, from)) => match socket.send_to(&room[..count], from) {
                Err(error) if !is_passing(error.kind()) => return Err(error).context("cannot send"),
                _ => {}
            },
            Err(error) if is_passing(error.kind()) => {}
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
}

fn batches(socket: &UdpSocket, count: usize) -> Result<()> {
    let mut batch = Batch::new(count, ROOM);
    loop {
        match batch.receive(socket) {
            Ok(count) => match batch.send_back(socket, count) {
                Err(error) if !is_passing(error.kind()) => return Err(error).context("cannot send"),
                _ => {}
            },
            Err(error) if is_passing(error.kind()) => {}
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
}

/// What does not concern the socket as such: nothing there, no room, a signal, a client whose port is closed.
fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused)
}
