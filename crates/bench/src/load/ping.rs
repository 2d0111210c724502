//! One request after another, as `scoutline load ping`: a message goes out, and the next once it has come back.
//!
//! Over TCP on one connection, over UDP from one connected socket. It blocks in its calls, or, with `--spin`, asks
//! again and again. A datagram that does not come back in time is counted as lost and sent anew.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use hdrhistogram::Histogram;

use super::bulk::Protocol;
use super::{LoadReport, cpu_ns, microseconds, sleep_until};
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
    /// Begin at this time of CLOCK_MONOTONIC, in nanoseconds.
    #[arg(long)]
    pub at: u64,
    /// How long to run before measuring.
    #[arg(long)]
    pub warmup: f64,
    /// How long to measure.
    #[arg(long)]
    pub seconds: f64,
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

/// Asks until the time is over, and prints a [`LoadReport`].
pub fn ping(arguments: &PingArguments) -> Result<()> {
    let mut socket = Socket::open(arguments)?;
    let message = vec![0x5c; arguments.bytes];
    let mut room = vec![0; arguments.bytes];
    // 10 ns to 100 s with three digits.
    let mut times = Histogram::<u64>::new_with_bounds(10, 100_000_000_000, 3)?;
    let from = arguments.at + (arguments.warmup * 1e9) as u64;
    let end = from + (arguments.seconds * 1e9) as u64;
    let (mut total_ns, mut lost, mut cpu_before) = (0, 0_u64, None);
    sleep_until(arguments.at);
    loop {
        let begin = sys::monotonic_ns();
        if begin >= end {
            break;
        }
        if begin >= from && cpu_before.is_none() {
            cpu_before = Some(cpu_ns());
        }
        socket.send(&message)?;
        let answered = socket.receive(&mut room, begin)?;
        let passed = sys::monotonic_ns() - begin;
        if begin < from {
            continue;
        }
        if answered {
            times.saturating_record(passed);
            total_ns += passed;
        } else {
            lost += 1;
        }
    }
    let cpu = cpu_ns() - cpu_before.unwrap_or_default();
    let report = LoadReport {
        requests: times.len(),
        errors: (lost > 0).then(|| ("lost".to_owned(), lost)).into_iter().collect::<BTreeMap<_, _>>(),
        bytes: times.len() * arguments.bytes as u64,
        seconds: arguments.seconds,
        cpu_seconds: cpu as f64 / 1e9,
        mean_us: total_ns as f64 / 1e3 / times.len().max(1) as f64,
        p50_us: microseconds(&times, 0.5),
        p90_us: microseconds(&times, 0.9),
        p99_us: microseconds(&times, 0.99),
        max_us: times.max() as f64 / 1e3,
        ..LoadReport::default()
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
