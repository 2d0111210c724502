//! The receiver: one process for foreground and background, so that it sees the order in which they arrive.

use std::io::{ErrorKind, Read as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::{ETHERNET_MTU, NAP_NS, PERIOD_NS, Protocol, Stamp};
use crate::load::microseconds;
use crate::load::window::Window;
use crate::sys;

/// Room for datagrams that arrive while we do not run.
const RECEIVE_BUFFER: i32 = 8 << 20;
/// The longest latency that is told apart.
const LONGEST_NS: u64 = 60_000_000_000;
/// From the end of the window of measurement to our own.
const LINGER_NS: u64 = 30_000_000;
/// Datagrams taken from one socket before the others are looked at.
const AT_ONCE: usize = 64;

/// What `scoutline load receive` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load receive", about = "The receiver of bulk and bursty senders")]
pub struct ReceiveArguments {
    /// Where foreground arrives, over TCP and UDP.
    #[arg(long)]
    pub foreground: u16,
    /// Where background arrives.
    #[arg(long)]
    pub background: u16,
    /// When the senders begin, and what is measured.
    #[command(flatten)]
    pub window: Window,
    /// The link's MTU: messages are as long as it allows.
    #[arg(long, default_value_t = ETHERNET_MTU)]
    pub mtu: usize,
    /// Run as SCHED_FIFO with this priority.
    #[arg(long)]
    pub realtime: Option<i32>,
    /// Run on this core only.
    #[arg(long)]
    pub cpu: Option<usize>,
}

/// What arrived of one side within the window of measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Side {
    /// Messages.
    pub messages: u64,
    /// Bytes of messages.
    pub bytes: u64,
    /// Messages that did not follow the one before them in a stream, or were no messages.
    pub errors: u64,
    /// Latency from when a message was due: median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// What a receiver saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BulkReport {
    /// How long was measured.
    pub seconds: f64,
    /// Foreground.
    pub foreground: Side,
    /// Background.
    pub background: Side,
    /// Bursts of foreground that were seen from the first to the last message.
    pub bursts: u64,
    /// How long background came in after the first message of a burst was due: median, in microseconds.
    pub yield_p50_us: f64,
    /// 99th percentile.
    pub yield_p99_us: f64,
    /// From the last message of a burst until background came in again: median, in microseconds.
    pub reclaim_p50_us: f64,
    /// 99th percentile.
    pub reclaim_p99_us: f64,
}

/// A side while it is measured.
struct Tally {
    messages: u64,
    bytes: u64,
    errors: u64,
    latency: Histogram<u64>,
}

/// Follows bursts of foreground. Times are nanoseconds.
pub(super) struct Bursts {
    /// When the first burst began.
    began_at: u64,
    /// Bursts that begin before this do not count.
    from: u64,
    current: Option<Burst>,
    last_background: Option<u64>,
    yields: Histogram<u64>,
    reclaims: Histogram<u64>,
    count: u64,
}

struct Burst {
    number: u64,
    first_due: u64,
    last_arrival: u64,
    /// The last arrival of background before the last of foreground.
    background_before: Option<u64>,
    /// The first arrival of background since the last of foreground.
    background_after: Option<u64>,
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_max(LONGEST_NS, 3)?)
}

impl Tally {
    fn new() -> Result<Tally> {
        Ok(Tally { messages: 0, bytes: 0, errors: 0, latency: histogram()? })
    }

    fn report(&self) -> Side {
        Side {
            messages: self.messages,
            bytes: self.bytes,
            errors: self.errors,
            p50_us: microseconds(&self.latency, 0.5),
            p99_us: microseconds(&self.latency, 0.99),
            max_us: self.latency.max() as f64 / 1e3,
        }
    }
}

impl Bursts {
    pub(super) fn new(began_at: u64, from: u64) -> Result<Bursts> {
        let (yields, reclaims) = (histogram()?, histogram()?);
        Ok(Bursts { began_at, from, current: None, last_background: None, yields, reclaims, count: 0 })
    }

    pub(super) fn on_foreground(&mut self, due: u64, now: u64) {
        let number = due.saturating_sub(self.began_at) / PERIOD_NS;
        if self.current.as_ref().is_none_or(|burst| burst.number < number) {
            self.finish();
            self.current = Some(Burst {
                number,
                first_due: due,
                last_arrival: now,
                background_before: None,
                background_after: None,
            });
        }
        if let Some(burst) = &mut self.current {
            burst.last_arrival = now;
            burst.background_before = self.last_background;
            burst.background_after = None;
        }
    }

    pub(super) fn on_background(&mut self, now: u64) {
        self.last_background = Some(now);
        if let Some(burst) = &mut self.current {
            burst.background_after.get_or_insert(now);
        }
    }

    /// Bursts, and the shortest and longest of both times.
    #[cfg(test)]
    pub(super) fn sums(&self) -> (u64, [u64; 2], [u64; 2]) {
        let ends = |times: &Histogram<u64>| [times.min(), times.max()];
        (self.count, ends(&self.yields), ends(&self.reclaims))
    }

    /// Ends a burst. Without any background around it, it tells nothing.
    fn finish(&mut self) {
        let Some(burst) = self.current.take().filter(|burst| burst.first_due >= self.from) else { return };
        self.count += 1;
        if let Some(before) = burst.background_before {
            self.yields.saturating_record(before.saturating_sub(burst.first_due));
        }
        if let Some(after) = burst.background_after {
            self.reclaims.saturating_record(after.saturating_sub(burst.last_arrival));
        }
    }
}

/// A stream of messages, of which the last may be here in part.
struct Stream {
    socket: TcpStream,
    background: bool,
    /// Bytes of each message.
    whole: usize,
    message: Vec<u8>,
    next_number: u64,
}

/// All that is open.
struct Sockets {
    /// Each with whether it is background's.
    listeners: Vec<(TcpListener, bool)>,
    datagrams: Vec<(UdpSocket, bool)>,
    streams: Vec<Stream>,
    /// Bytes of a message of theirs.
    message_len: usize,
}

/// What is measured.
struct Measured {
    from: u64,
    to: u64,
    foreground: Tally,
    background: Tally,
    bursts: Bursts,
}

impl Measured {
    fn on_message(&mut self, background: bool, stamp: Stamp, len: usize, now: u64) {
        if background {
            self.bursts.on_background(now);
        } else {
            self.bursts.on_foreground(stamp.due_ns, now);
        }
        if (self.from..self.to).contains(&now) {
            let tally = self.side(background);
            tally.messages += 1;
            tally.bytes += len as u64;
            tally.latency.saturating_record(now.saturating_sub(stamp.due_ns));
        }
    }

    fn side(&mut self, background: bool) -> &mut Tally {
        if background { &mut self.background } else { &mut self.foreground }
    }
}

impl Sockets {
    fn open(arguments: &ReceiveArguments) -> Result<Sockets> {
        let mut sockets = Sockets {
            listeners: Vec::new(),
            datagrams: Vec::new(),
            streams: Vec::new(),
            message_len: Protocol::Tcp.message_len(arguments.mtu),
        };
        for (port, background) in [(arguments.foreground, false), (arguments.background, true)] {
            let here = (Ipv4Addr::UNSPECIFIED, port);
            let listener = TcpListener::bind(here).with_context(|| format!("cannot listen at {port}"))?;
            listener.set_nonblocking(true)?;
            sockets.listeners.push((listener, background));
            let socket = UdpSocket::bind(here).with_context(|| format!("cannot take port {port}"))?;
            socket.set_nonblocking(true)?;
            sys::set_receive_buffer(&socket, RECEIVE_BUFFER)?;
            sockets.datagrams.push((socket, background));
        }
        Ok(sockets)
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let listeners = self.listeners.iter().map(|(socket, _)| socket.as_raw_fd());
        let datagrams = self.datagrams.iter().map(|(socket, _)| socket.as_raw_fd());
        let streams = self.streams.iter().map(|stream| stream.socket.as_raw_fd());
        listeners.chain(datagrams).chain(streams).collect()
    }

    /// Takes what has come.
    fn turn(&mut self, room: &mut [u8], measured: &mut Measured) -> Result<()> {
        for (listener, background) in &self.listeners {
            while let Ok((socket, _)) = listener.accept() {
                socket.set_nonblocking(true)?;
                let background = *background;
                let (whole, message) = (self.message_len, Vec::new());
                self.streams.push(Stream { socket, background, whole, message, next_number: 0 });
            }
        }
        for (socket, background) in &self.datagrams {
            take_datagrams(socket, *background, room, measured)?;
        }
        let mut kept = Ok(());
        self.streams.retain_mut(|stream| match stream.take(room, measured) {
            Ok(open) => open,
            Err(error) => {
                kept = Err(error);
                false
            }
        });
        kept
    }
}

fn take_datagrams(
    socket: &UdpSocket,
    background: bool,
    room: &mut [u8],
    measured: &mut Measured,
) -> Result<()> {
    for _ in 0..AT_ONCE {
        match socket.recv(room) {
            Ok(len) => match Stamp::read(&room[..len]) {
                Some(stamp) => measured.on_message(background, stamp, len, sys::monotonic_ns()),
                None => measured.side(background).errors += 1,
            },
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
    Ok(())
}

impl Stream {
    /// Takes what is there once. False when the stream has ended.
    fn take(&mut self, room: &mut [u8], measured: &mut Measured) -> Result<bool> {
        let len = match self.socket.read(room) {
            Ok(0) => return Ok(false),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            // The sender has stopped in the middle of what it had to send.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error).context("cannot receive"),
        };
        let now = sys::monotonic_ns();
        let whole = self.whole;
        let mut rest = &room[..len];
        while !rest.is_empty() {
            let part = (whole - self.message.len()).min(rest.len());
            self.message.extend_from_slice(&rest[..part]);
            rest = &rest[part..];
            if self.message.len() < whole {
                break;
            }
            match Stamp::read(&self.message) {
                Some(stamp) if stamp.number == self.next_number => {
                    measured.on_message(self.background, stamp, whole, now);
                }
                _ => measured.side(self.background).errors += 1,
            }
            self.next_number += 1;
            self.message.clear();
        }
        Ok(true)
    }
}

/// Receives until the window of measurement is over. Prints `ready` once it listens, and a report.
pub fn receive(arguments: &ReceiveArguments) -> Result<()> {
    if let Some(core) = arguments.cpu {
        sys::set_core(core).with_context(|| format!("cannot use core {core}"))?;
    }
    if let Some(priority) = arguments.realtime {
        sys::set_realtime(priority).with_context(|| format!("real-time priority {priority} is refused"))?;
    }
    let (from, to) = arguments.window.bounds();
    let mut measured = Measured {
        from,
        to,
        foreground: Tally::new()?,
        background: Tally::new()?,
        bursts: Bursts::new(arguments.window.at, from)?,
    };
    let mut sockets = Sockets::open(arguments)?;
    println!("ready");
    let mut room = vec![0; 256 << 10];
    // Who is gone resets its senders, and they are to end first: a little later, then.
    let end = to + LINGER_NS;
    loop {
        let now = sys::monotonic_ns();
        if now >= end {
            break;
        }
        sys::poll(&sockets.descriptors(), sys::For::Input, Duration::from_nanos(NAP_NS.min(end - now)))?;
        sockets.turn(&mut room, &mut measured)?;
    }
    let bursts = &measured.bursts;
    let report = BulkReport {
        seconds: arguments.window.seconds,
        foreground: measured.foreground.report(),
        background: measured.background.report(),
        bursts: bursts.count,
        yield_p50_us: microseconds(&bursts.yields, 0.5),
        yield_p99_us: microseconds(&bursts.yields, 0.99),
        reclaim_p50_us: microseconds(&bursts.reclaims, 0.5),
        reclaim_p99_us: microseconds(&bursts.reclaims, 0.99),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
