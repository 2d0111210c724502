//! Many questions at once over UDP, as `scoutline load query`: each socket keeps a window of datagrams on their way, and
//! sends a new one for each that comes back.
//!
//! It takes and sends many with one system call, so that it costs less than the server that it asks. Each datagram
//! has a number and its time in front; one that comes back with others is counted as corrupt. When a socket has heard
//! nothing for a while, what it waits for is counted as lost and asked anew.

use std::io::ErrorKind;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use super::sleep_until;
use super::window::{Times, Window};
use crate::sys::{self, Batch};

/// When what a socket waits for counts as lost.
const LOST_NS: u64 = 200_000_000;
/// Number and time.
const STAMP: usize = 16;

/// What `scoutline load query` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load query", about = "Many questions at once over UDP")]
pub struct QueryArguments {
    /// The server.
    #[arg(long)]
    pub connect: SocketAddrV4,
    /// Bytes of a datagram.
    #[arg(long, default_value_t = 32)]
    pub bytes: usize,
    /// How many sockets.
    #[arg(long, default_value_t = 4)]
    pub sockets: usize,
    /// Datagrams of each socket on their way.
    #[arg(long, default_value_t = 32)]
    pub window: usize,
    /// When.
    #[command(flatten)]
    pub measured: Window,
    /// Print one JSON object (it always does).
    #[arg(long)]
    pub json: bool,
}

struct Asker {
    socket: UdpSocket,
    /// Counts what was sent; what is on its way has the last numbers.
    next: u64,
    outstanding: usize,
    heard_at: u64,
}

struct Tally {
    from: u64,
    times: Times,
    lost: u64,
    corrupt: u64,
}

/// Asks until the time is over, and prints a [`LoadReport`](super::LoadReport).
pub fn query(arguments: &QueryArguments) -> Result<()> {
    ensure!(arguments.bytes >= STAMP, "a datagram has at least {STAMP} bytes");
    let open = |_| -> Result<Asker> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(arguments.connect).with_context(|| format!("no way to {}", arguments.connect))?;
        sys::set_receive_buffer(&socket, 4 << 20)?;
        socket.set_nonblocking(true)?;
        Ok(Asker { socket, next: 0, outstanding: 0, heard_at: arguments.measured.at })
    };
    let askers: Result<Vec<Asker>> = (0..arguments.sockets).map(open).collect();
    let mut askers = askers?;
    let descriptors: Vec<RawFd> = askers.iter().map(|asker| asker.socket.as_raw_fd()).collect();
    let mut batch = Batch::new(arguments.window, arguments.bytes);
    let (from, end) = arguments.measured.bounds();
    let mut tally = Tally { from, times: Times::new()?, lost: 0, corrupt: 0 };
    sleep_until(arguments.measured.at);
    loop {
        let now = sys::monotonic_ns();
        if now >= end {
            break;
        }
        if now >= from {
            tally.times.begin();
        }
        for asker in &mut askers {
            asker.turn(&mut batch, arguments, now, &mut tally)?;
        }
        let left = Duration::from_nanos((end - now).min(LOST_NS));
        sys::poll(&descriptors, sys::For::Input, left)?;
    }
    let errors = [("lost", tally.lost), ("corrupt", tally.corrupt)];
    let report = tally.times.report(&arguments.measured, arguments.bytes, &errors);
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

impl Asker {
    /// Takes what has come, and sends as many again.
    fn turn(
        &mut self,
        batch: &mut Batch,
        arguments: &QueryArguments,
        now: u64,
        tally: &mut Tally,
    ) -> Result<()> {
        let taken = match batch.receive(&self.socket) {
            Ok(taken) => taken,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
            Err(error) => return Err(error).context("cannot receive"),
        };
        let arrived = sys::monotonic_ns();
        for index in 0..taken {
            tally.on_answer(batch.datagram(index), self.next, arrived);
        }
        if taken > 0 {
            self.heard_at = arrived;
            // What was given up may come after all.
            self.outstanding = self.outstanding.saturating_sub(taken);
        } else if self.outstanding > 0 && now >= self.heard_at + LOST_NS {
            tally.lost += self.outstanding as u64;
            (self.outstanding, self.heard_at) = (0, now);
        }
        let room = arguments.window - self.outstanding;
        for index in 0..room {
            let datagram = batch.datagram_mut(index, arguments.bytes);
            datagram[..8].copy_from_slice(&(self.next + index as u64).to_le_bytes());
            datagram[8..STAMP].copy_from_slice(&arrived.to_le_bytes());
        }
        if room > 0 {
            match batch.send(&self.socket, room) {
                Ok(sent) => {
                    self.next += sent as u64;
                    self.outstanding += sent;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        Ok(())
    }
}

impl Tally {
    fn on_answer(&mut self, datagram: &[u8], next: u64, now: u64) {
        let word = |at: usize| Some(u64::from_le_bytes(*datagram.get(at..at + 8)?.first_chunk()?));
        match (word(0), word(8)) {
            (Some(number), Some(sent)) if number < next && sent <= now => {
                if sent >= self.from {
                    self.times.record(now - sent);
                }
            }
            _ => self.corrupt += 1,
        }
    }
}
