//! The sender.

use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, RawFd};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use serde::{Deserialize, Serialize};

use super::{BURST_NS, ETHERNET_MTU, NAP_NS, PERIOD_NS, Protocol, Shape, Stamp};
use crate::sys;

/// Messages of one `write` when TCP sends all it can.
const BATCH: u64 = 16;
/// How often a full UDP sender sends its share.
const TICK_NS: u64 = 1_000_000;
/// What a full UDP sender offers, in rates of the link.
const OVERLOAD: f64 = 2.0;
/// What a burst offers: less than the link carries, so that it makes no queue of its own.
const BURST_LOAD: f64 = 0.9;

/// What `scoutline load send` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load send", about = "A bulk or bursty sender")]
pub struct SendArguments {
    /// The receiver.
    #[arg(long)]
    pub connect: SocketAddrV4,
    /// TCP or UDP.
    #[arg(long)]
    pub protocol: Protocol,
    /// Full or bursty.
    #[arg(long)]
    pub shape: Shape,
    /// The link's rate, in bits per second.
    #[arg(long)]
    pub rate: u64,
    /// The link's MTU.
    #[arg(long, default_value_t = ETHERNET_MTU)]
    pub mtu: usize,
    /// How many connections, or sockets.
    #[arg(long, default_value_t = 3)]
    pub connections: usize,
    /// Begin at this time of CLOCK_MONOTONIC, in nanoseconds.
    #[arg(long)]
    pub at: u64,
    /// How long to send.
    #[arg(long)]
    pub seconds: f64,
    /// Run on this core only.
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Run as SCHED_FIFO with this priority.
    #[arg(long)]
    pub realtime: Option<i32>,
    /// The congestion control of TCP connections; empty for that of the route.
    #[arg(long, default_value = "")]
    pub congestion: String,
}

/// What a sender did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendReport {
    /// Messages handed over to the sockets in full.
    pub messages: u64,
    /// Messages that a socket refused, which were not sent then.
    pub refused: u64,
}

/// One flow. A message that was begun is finished before the next.
struct Flow {
    socket: Socket,
    number: u64,
    /// What is still to be written, from `written` on.
    buffer: Vec<u8>,
    written: usize,
}

enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

/// What became of an attempt to write.
enum Attempt {
    Done,
    Refused,
}

impl Flow {
    fn open(arguments: &SendArguments) -> Result<Flow> {
        let target = arguments.connect;
        let socket = match arguments.protocol {
            Protocol::Tcp => {
                let stream =
                    TcpStream::connect(target).with_context(|| format!("no connection to {target}"))?;
                if !arguments.congestion.is_empty() {
                    sys::set_congestion(&stream, arguments.congestion.as_bytes())
                        .with_context(|| format!("no congestion control `{}`", arguments.congestion))?;
                }
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Socket::Tcp(stream)
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect(target).with_context(|| format!("no way to {target}"))?;
                socket.set_nonblocking(true)?;
                Socket::Udp(socket)
            }
        };
        Ok(Flow { socket, number: 0, buffer: Vec::new(), written: 0 })
    }

    fn descriptor(&self) -> RawFd {
        match &self.socket {
            Socket::Tcp(stream) => stream.as_raw_fd(),
            Socket::Udp(socket) => socket.as_raw_fd(),
        }
    }

    fn is_idle(&self) -> bool {
        self.written == self.buffer.len()
    }

    /// Puts messages in line; the one before must be written.
    fn prepare(&mut self, count: u64, len: usize, due_ns: u64) {
        self.buffer.resize(count as usize * len, 0);
        self.written = 0;
        for message in self.buffer.chunks_exact_mut(len) {
            Stamp { number: self.number, due_ns }.write(message);
            self.number += 1;
        }
    }

    /// Writes what is in line, as far as it goes.
    fn write(&mut self) -> Result<Attempt> {
        while !self.is_idle() {
            let rest = &self.buffer[self.written..];
            let wrote = match &mut self.socket {
                Socket::Tcp(stream) => stream.write(rest),
                Socket::Udp(socket) => socket.send(rest),
            };
            match wrote {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Linux gives the second when the device's queue is full, as BSD does.
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock
                        || error.raw_os_error() == Some(libc::ENOBUFS) =>
                {
                    return Ok(Attempt::Refused);
                }
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        Ok(Attempt::Done)
    }
}

/// Sends until the time is over. Prints `ready` once connected, and a report.
pub fn send(arguments: &SendArguments) -> Result<()> {
    if let Some(core) = arguments.cpu {
        sys::set_core(core).with_context(|| format!("cannot use core {core}"))?;
    }
    if let Some(priority) = arguments.realtime {
        sys::set_realtime(priority).with_context(|| format!("real-time priority {priority} is refused"))?;
    }
    sys::set_timer_slack(1);
    let flows: Result<Vec<Flow>> = (0..arguments.connections).map(|_| Flow::open(arguments)).collect();
    let flows = flows?;
    println!("ready");
    let end = arguments.at + (arguments.seconds * 1e9) as u64;
    sleep_until(arguments.at);
    let report = match (arguments.shape, arguments.protocol) {
        (Shape::Full, Protocol::Tcp) => stream(flows, arguments, end)?,
        (Shape::Full, Protocol::Udp) => overload(flows, arguments, end)?,
        (Shape::Bursty, _) => bursts(flows, arguments, end)?,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Writes to whichever connection takes something.
fn stream(mut flows: Vec<Flow>, arguments: &SendArguments, end: u64) -> Result<SendReport> {
    let len = Protocol::Tcp.message_len(arguments.mtu);
    let mut report = SendReport::default();
    let descriptors: Vec<RawFd> = flows.iter().map(Flow::descriptor).collect();
    while sys::monotonic_ns() < end {
        let mut wrote = false;
        for flow in &mut flows {
            if flow.is_idle() {
                flow.prepare(BATCH, len, sys::monotonic_ns());
            }
            if matches!(flow.write()?, Attempt::Done) {
                report.messages += BATCH;
                wrote = true;
            }
        }
        if !wrote {
            wait_for_room(&descriptors, end)?;
        }
    }
    Ok(report)
}

/// Offers more than the link carries, evenly over the flows. What a socket refuses is not offered again, and neither
/// is the rest of its share of that millisecond.
fn overload(mut flows: Vec<Flow>, arguments: &SendArguments, end: u64) -> Result<SendReport> {
    let len = arguments.protocol.message_len(arguments.mtu);
    let bytes_per_tick = arguments.rate as f64 * OVERLOAD / 8.0 * TICK_NS as f64 / 1e9;
    let per_tick = bytes_per_tick / arguments.protocol.frame_len(arguments.mtu) as f64;
    let count = flows.len() as f64;
    let (mut report, mut tick, mut owed) = (SendReport::default(), arguments.at, 0.0);
    while tick < end {
        owed += per_tick / count;
        let share = owed as u64;
        owed -= share as f64;
        // A message of each flow in turn: none is always the first.
        let mut refused = vec![false; flows.len()];
        for _ in 0..share {
            for (flow, refused) in flows.iter_mut().zip(&mut refused) {
                if !*refused {
                    flow.prepare(1, len, sys::monotonic_ns());
                    *refused = matches!(flow.write()?, Attempt::Refused);
                }
                if *refused {
                    // A datagram is taken whole or not at all.
                    report.refused += 1;
                } else {
                    report.messages += 1;
                }
            }
        }
        // Who comes late does not make up for it: the link was overloaded anyway.
        tick = (tick + TICK_NS).max(sys::monotonic_ns());
        sleep_until(tick);
    }
    Ok(report)
}

/// Sends each message when it is due, or as soon after as its flow takes it.
fn bursts(mut flows: Vec<Flow>, arguments: &SendArguments, end: u64) -> Result<SendReport> {
    let len = arguments.protocol.message_len(arguments.mtu);
    let interval =
        arguments.protocol.frame_len(arguments.mtu) as f64 * 8e9 / (arguments.rate as f64 * BURST_LOAD);
    let per_burst = (BURST_NS as f64 / interval) as u64;
    let descriptors: Vec<RawFd> = flows.iter().map(Flow::descriptor).collect();
    let due_at = |message: u64| {
        let burst = arguments.at + message / per_burst * PERIOD_NS;
        burst + ((message % per_burst) as f64 * interval) as u64
    };
    let mut report = SendReport::default();
    for message in 0.. {
        let due = due_at(message);
        if due >= end {
            break;
        }
        nap_until(due);
        let flow = message as usize % flows.len();
        flows[flow].prepare(1, len, due);
        while matches!(flows[flow].write()?, Attempt::Refused) {
            if sys::monotonic_ns() >= end {
                return Ok(report);
            }
            wait_for_room(&descriptors[flow..=flow], end)?;
        }
        report.messages += 1;
    }
    Ok(report)
}

fn wait_for_room(descriptors: &[RawFd], end: u64) -> Result<()> {
    let left = end.saturating_sub(sys::monotonic_ns());
    sys::poll(descriptors, sys::For::Output, Duration::from_nanos(left))?;
    Ok(())
}

/// Sleeps in short pieces, so that the core stays awake.
fn nap_until(time_ns: u64) {
    while sys::monotonic_ns() < time_ns {
        sleep_until(time_ns.min(sys::monotonic_ns() + NAP_NS));
    }
}

fn sleep_until(time_ns: u64) {
    let left = time_ns.saturating_sub(sys::monotonic_ns());
    if left > 0 {
        thread::sleep(Duration::from_nanos(left));
    }
}
