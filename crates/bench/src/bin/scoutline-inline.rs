//! The program of a test (`real_programs/trap.rs`): its system calls about sockets are instructions of its own, as those of
//! programs on rustix are, whose usual back end (`linux_raw`) does without the C library.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, recvfrom, send, sendto, shutdown, socket_with, sockopt,
};

const USAGE: &str = "usage: scoutline-inline serve ADDRESS:PORT   echoes over TCP and UDP until a datagram says `end`\n\
       scoutline-inline ask ADDRESS:PORT     sends to such a one, looks at what comes back, and ends it";

/// What epolls call the sockets that are not connections of a server.
const LISTENER: u64 = 0;
const DATAGRAMS: u64 = 1;
/// More than the sockets' buffers hold.
const LEN: usize = 16 << 20;
const PIECE: usize = 64 << 10;
/// How long nothing may happen.
const LIMIT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let work: fn(SocketAddr) -> Result<()> = match words.as_slice() {
        ["serve", _] => serve,
        ["ask", _] => ask,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = words[1].parse().context("no address").and_then(work);
    if let Err(error) = done {
        eprintln!("scoutline-inline: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn open(kind: SocketType) -> Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?)
}

fn add(set: &OwnedFd, fd: impl AsFd, name: u64, events: epoll::EventFlags) -> Result<()> {
    Ok(epoll::add(set, fd, epoll::EventData::new_u64(name), events)?)
}

/// The next events, by name.
fn wait(set: &OwnedFd) -> Result<Vec<u64>> {
    let mut events: Vec<epoll::Event> = Vec::with_capacity(16);
    epoll::wait(set, spare_capacity(&mut events), Some(&LIMIT))?;
    ensure!(!events.is_empty(), "nothing happened");
    Ok(events.iter().map(|event| event.data.u64()).collect())
}

/// What a call that would block has not done.
fn unless_blocked<T>(result: Result<T, Errno>) -> Result<Option<T>> {
    match result {
        Err(Errno::AGAIN) => Ok(None),
        result => Ok(Some(result?)),
    }
}

/// A connection of the server: what is to go back.
struct Connection {
    fd: OwnedFd,
    unsent: Vec<u8>,
}

impl Connection {
    /// Until it would block; false at its end.
    fn echo(&mut self, space: &mut [u8]) -> Result<bool> {
        loop {
            while !self.unsent.is_empty() {
                let Some(sent) = unless_blocked(send(&self.fd, &self.unsent, SendFlags::NOSIGNAL))? else {
                    return Ok(true);
                };
                self.unsent.drain(..sent);
            }
            match unless_blocked(recv(&self.fd, &mut *space, RecvFlags::empty()))? {
                None => return Ok(true),
                Some((0, _)) => return Ok(false),
                Some((len, _)) => self.unsent.extend_from_slice(&space[..len]),
            }
        }
    }
}

fn serve(at: SocketAddr) -> Result<()> {
    let (listener, datagrams) = (open(SocketType::STREAM)?, open(SocketType::DGRAM)?);
    sockopt::set_socket_reuseaddr(&listener, true)?;
    bind(&listener, &at)?;
    listen(&listener, 16)?;
    bind(&datagrams, &at)?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    add(&set, &listener, LISTENER, epoll::EventFlags::IN)?;
    add(&set, &datagrams, DATAGRAMS, epoll::EventFlags::IN)?;
    println!("ready");
    let mut connections: BTreeMap<u64, Connection> = BTreeMap::new();
    let (mut next, mut space) = (DATAGRAMS + 1, vec![0; PIECE]);
    loop {
        for name in wait(&set)? {
            if name == LISTENER {
                let fd = accept_with(&listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
                let both = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
                add(&set, &fd, next, both)?;
                connections.insert(next, Connection { fd, unsent: Vec::new() });
                next += 1;
            } else if name == DATAGRAMS {
                let (len, _, from) = recvfrom(&datagrams, space.as_mut_slice(), RecvFlags::empty())?;
                let from = from.context("a datagram from nobody")?;
                sendto(&datagrams, &space[..len], SendFlags::empty(), &from)?;
                if &space[..len] == b"end" {
                    println!("ended");
                    return Ok(());
                }
            } else if let Some(connection) = connections.get_mut(&name)
                && !connection.echo(&mut space)?
            {
                connections.remove(&name);
            }
        }
    }
}

fn ask(at: SocketAddr) -> Result<()> {
    ask_stream(at)?;
    ask_datagrams(at)?;
    println!("all right");
    Ok(())
}

/// The byte at a place of what is sent.
fn byte_at(place: usize) -> u8 {
    (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]
}

fn ask_stream(at: SocketAddr) -> Result<()> {
    let stream = open(SocketType::STREAM)?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    ensure!(connect(&stream, &at) == Err(Errno::INPROGRESS), "it did not begin to connect");
    let both = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
    add(&set, &stream, 7, both)?;
    wait(&set)?;
    sockopt::socket_error(&stream)??;
    let bytes: Vec<u8> = (0..LEN).map(byte_at).collect();
    let (mut sent, mut received, mut space) = (0, 0, vec![0; PIECE]);
    loop {
        while sent < LEN
            && let Some(len) = unless_blocked(send(&stream, &bytes[sent..], SendFlags::NOSIGNAL))?
        {
            sent += len;
            if sent == LEN {
                shutdown(&stream, Shutdown::Write)?;
            }
        }
        while let Some((len, _)) = unless_blocked(recv(&stream, space.as_mut_slice(), RecvFlags::empty()))? {
            ensure!(bytes[received..].starts_with(&space[..len]), "other bytes came back at {received}");
            received += len;
            if len == 0 {
                ensure!(received == LEN, "the end came after {received} bytes");
                return refused(at);
            }
        }
        wait(&set)?;
    }
}

/// Where nobody listens, the connection says so.
fn refused(at: SocketAddr) -> Result<()> {
    let nobody = SocketAddr::new(at.ip(), at.port() + 1);
    let stream = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    match connect(&stream, &nobody) {
        Err(Errno::CONNREFUSED) => Ok(()),
        other => bail!("where nobody listens: {other:?}"),
    }
}

fn ask_datagrams(at: SocketAddr) -> Result<()> {
    let datagrams = open(SocketType::DGRAM)?;
    connect(&datagrams, &at)?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    add(&set, &datagrams, DATAGRAMS, epoll::EventFlags::IN)?;
    let mut space = vec![0; PIECE];
    for text in [&b"a datagram"[..], b"", b"end"] {
        send(&datagrams, text, SendFlags::empty())?;
        wait(&set)?;
        let (len, _) = recv(&datagrams, space.as_mut_slice(), RecvFlags::empty())?;
        ensure!(&space[..len] == text, "another datagram came back");
    }
    ensure!(
        unless_blocked(recv(&datagrams, space.as_mut_slice(), RecvFlags::empty()))?.is_none(),
        "one more came"
    );
    Ok(())
}
