//! One closed-loop client, and what all clients of a process share.
//!
//! ```text
//!   New ─────┐
//!   Pausing ─┴▶ Connecting ──▶ Receiving ──▶ Closing ──▶ Connecting   (a new connection per request)
//!      ▲            │ ▲ keep-alive │            │
//!      │            │ └────────────┤            │
//!      └── error ───┴──────────────┴────────────┴── or a time to think
//! ```

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use scoutline_base::Random;

use super::{Arguments, LoadReport, microseconds};
use crate::sys::{Poll, discard};

/// A request that takes longer counts as an error.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client rests after an error, so that a dead server does not make it spin.
const PAUSE: Duration = Duration::from_millis(10);
/// How often clients are looked at for time-outs, at the least.
const SCAN: Duration = Duration::from_millis(50);
/// One request in so many is compared byte for byte.
const VERIFY_EVERY: u64 = 64;
/// No header of a server of ours is longer.
const HEADER_LIMIT: usize = 16 * 1024;
/// Room for one read.
const READ_BYTES: usize = 256 * 1024;

/// What the clients of a process share: the request, the counters, the buffer.
pub(super) struct Shared {
    server: SocketAddrV4,
    source: Option<Ipv4Addr>,
    congestion: Vec<u8>,
    request: Vec<u8>,
    keepalive: bool,
    discard: bool,
    pattern: Vec<u8>,
    buffer: Vec<u8>,
    next_scan: Instant,
    think_us: u64,
    random: Random,
    histogram: Histogram<u64>,
    errors: BTreeMap<&'static str, u64>,
    requests: u64,
    verified: u64,
    bytes: u64,
    total_ns: u64,
    max_ns: u64,
    /// `None` unless asked for.
    spans: Option<Vec<(u64, u64)>>,
}

impl Shared {
    pub(super) fn new(arguments: &Arguments, pattern: Vec<u8>) -> Result<Shared> {
        let close = if arguments.keepalive { "" } else { "Connection: close\r\n" };
        let request =
            format!("GET {} HTTP/1.1\r\nHost: {}\r\n{close}\r\n", arguments.path, arguments.connect);
        // 1 µs to 100 s with three digits; more is clamped.
        let histogram = Histogram::new_with_bounds(1_000, 100_000_000_000, 3).context("histogram")?;
        Ok(Shared {
            server: arguments.connect,
            source: arguments.source,
            congestion: arguments.congestion.clone().into_bytes(),
            request: request.into_bytes(),
            keepalive: arguments.keepalive,
            discard: arguments.discard,
            pattern,
            buffer: vec![0; READ_BYTES],
            next_scan: Instant::now(),
            think_us: arguments.think,
            random: Random::new(u64::from(std::process::id())),
            histogram,
            errors: BTreeMap::new(),
            requests: 0,
            verified: 0,
            bytes: 0,
            total_ns: 0,
            max_ns: 0,
            spans: arguments.spans.then(Vec::new),
        })
    }

    /// Drops what the warm-up has counted, except its errors.
    pub(super) fn start_measuring(&mut self) {
        self.histogram.reset();
        if let Some(spans) = &mut self.spans {
            spans.clear();
        }
        (self.requests, self.verified, self.bytes, self.total_ns, self.max_ns) = (0, 0, 0, 0, 0);
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    pub(super) fn total_ns(&self) -> u64 {
        self.total_ns
    }

    pub(super) fn report(&self, seconds: f64, cpu_seconds: f64) -> LoadReport {
        LoadReport {
            requests: self.requests,
            verified: self.verified,
            errors: self.errors.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect(),
            bytes: self.bytes,
            seconds,
            cpu_seconds,
            mean_us: self.total_ns as f64 / 1e3 / self.requests.max(1) as f64,
            p50_us: microseconds(&self.histogram, 0.5),
            p90_us: microseconds(&self.histogram, 0.9),
            p99_us: microseconds(&self.histogram, 0.99),
            max_us: self.max_ns as f64 / 1e3,
            spans: self.spans.clone().unwrap_or_default(),
        }
    }

    /// Wakes clients whose pause is over, ends requests that take too long, and tells how long to wait.
    pub(super) fn on_time(&mut self, clients: &mut [Client], poll: &Poll, end: Instant) -> Duration {
        let now = Instant::now();
        if now >= self.next_scan {
            // Clients that pause longer bring it forward again.
            self.next_scan = now + SCAN;
            for client in clients {
                client.on_time(self, poll, now);
            }
        }
        self.next_scan.min(end).saturating_duration_since(now)
    }

    /// Has the clients looked at no later than at this time.
    fn scan_at(&mut self, time: Instant) {
        self.next_scan = self.next_scan.min(time);
    }

    /// How long a client thinks now: half to one and a half of the average, so that it keeps no step
    /// with anything.
    fn think_time(&mut self) -> Duration {
        Duration::from_micros(self.think_us / 2 + u64::from(self.random.below(self.think_us as u32 + 1)))
    }

    fn on_error(&mut self, kind: &'static str) {
        *self.errors.entry(kind).or_default() += 1;
    }

    fn on_response(&mut self, elapsed: Duration, body: usize, verified: bool) {
        let elapsed_ns = elapsed.as_nanos() as u64;
        self.histogram.saturating_record(elapsed_ns);
        self.requests += 1;
        self.verified += u64::from(verified);
        self.bytes += body as u64;
        self.total_ns += elapsed_ns;
        self.max_ns = self.max_ns.max(elapsed_ns);
        if let Some(spans) = &mut self.spans {
            let end = crate::sys::monotonic_ns();
            spans.push((end - elapsed_ns, end));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not begun.
    New,
    /// After an error, or thinking.
    Pausing,
    /// The request is not sent yet.
    Connecting,
    /// The answer is not complete yet.
    Receiving,
    /// The answer is complete; the server's FIN is not here yet.
    Closing,
}

/// One client.
pub(super) struct Client {
    token: usize,
    state: State,
    stream: Option<TcpStream>,
    /// When the request began.
    since: Instant,
    /// When the pause ends.
    until: Instant,
    header: Vec<u8>,
    /// Bytes that the body has, once the header has told.
    length: Option<usize>,
    received: usize,
    verify: bool,
    /// Requests answered on this connection.
    served: u32,
    count: u64,
}

impl Client {
    pub(super) fn new(token: usize) -> Client {
        Client {
            token,
            state: State::New,
            stream: None,
            since: Instant::now(),
            until: Instant::now(),
            header: Vec::with_capacity(512),
            length: None,
            received: 0,
            verify: false,
            served: 0,
            // Clients do not all verify at the same time.
            count: token as u64,
        }
    }

    /// Opens a connection and, should it be there at once, sends the request.
    pub(super) fn begin(&mut self, shared: &mut Shared, poll: &Poll, now: Instant) {
        self.state = State::Connecting;
        self.served = 0;
        self.since = now;
        self.start_request();
        match crate::sys::connect_from(shared.source, shared.server, &shared.congestion) {
            Ok(stream) => {
                self.stream = Some(stream);
                // On one machine the handshake is often over when connect returns: then one event less.
                self.send(shared);
                let Some(stream) = &self.stream else { return };
                if poll.add(stream, self.token, self.state == State::Connecting || shared.keepalive).is_err()
                {
                    self.fail(shared, "epoll");
                }
            }
            Err(error) => self.fail(shared, kind_of(&error)),
        }
    }

    pub(super) fn on_event(&mut self, shared: &mut Shared, poll: &Poll, closed: bool) {
        if self.state == State::Connecting {
            self.send(shared);
        }
        if matches!(self.state, State::Receiving | State::Closing) {
            self.receive(shared, poll, closed);
        }
    }

    pub(super) fn on_time(&mut self, shared: &mut Shared, poll: &Poll, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        match self.state {
            State::Pausing if now >= self.until => self.resume(shared, poll, now),
            State::Pausing => shared.scan_at(self.until),
            State::Connecting | State::Receiving if passed >= REQUEST_TIMEOUT => {
                self.fail(shared, "timeout");
            }
            State::Closing if passed >= REQUEST_TIMEOUT => self.fail(shared, "no close"),
            _ => {}
        }
    }

    fn start_request(&mut self) {
        self.count += 1;
        self.verify = self.count.is_multiple_of(VERIFY_EVERY);
        self.header.clear();
        self.length = None;
        self.received = 0;
    }

    fn send(&mut self, shared: &mut Shared) {
        let Some(stream) = &mut self.stream else { return };
        match stream.write(&shared.request) {
            Ok(length) if length == shared.request.len() => self.state = State::Receiving,
            Ok(_) => self.fail(shared, "short write"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // Not connected yet: ENOTCONN is what a connect in progress may say.
            Err(error) if error.kind() == ErrorKind::NotConnected => {}
            Err(error) => self.fail(shared, kind_of(&error)),
        }
    }

    fn receive(&mut self, shared: &mut Shared, poll: &Poll, closed: bool) {
        // Taken out so that the counters can be changed while it is read.
        let mut buffer = std::mem::take(&mut shared.buffer);
        self.receive_into(&mut buffer, shared, poll, closed);
        shared.buffer = buffer;
    }

    fn receive_into(&mut self, buffer: &mut [u8], shared: &mut Shared, poll: &Poll, closed: bool) {
        loop {
            let Some(stream) = &mut self.stream else { return };
            let rest = self.length.map_or(0, |length| length - self.received);
            let discarded = shared.discard && !self.verify && self.state == State::Receiving && rest > 0;
            let read = if discarded { discard(stream, rest) } else { stream.read(buffer) };
            match read {
                Ok(0) => return self.on_close(shared, poll),
                Ok(count) => {
                    let done = if discarded {
                        self.on_body(count, shared);
                        Ok(())
                    } else {
                        self.on_bytes(&buffer[..count], shared)
                    };
                    if let Err(kind) = done {
                        return self.fail(shared, kind);
                    }
                    // A short read has emptied the socket; more will be a new event. Only when all is
                    // here does the close most often follow at once.
                    let asked = if discarded { rest } else { buffer.len() };
                    if count < asked && self.state == State::Receiving && !closed {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.fail(shared, kind_of(&error)),
            }
        }
    }

    fn on_close(&mut self, shared: &mut Shared, poll: &Poll) {
        let idle = self.state == State::Receiving && self.header.is_empty() && self.length.is_none();
        if self.state == State::Closing || (shared.keepalive && idle && self.served > 0) {
            // With keep-alive a server may close between two requests: that is no error.
            self.stream = None;
            if shared.think_us > 0 {
                let time = shared.think_time();
                self.pause(shared, time);
            } else {
                self.begin(shared, poll, Instant::now());
            }
        } else {
            self.fail(shared, "early close");
        }
    }

    fn on_bytes(&mut self, mut bytes: &[u8], shared: &mut Shared) -> Result<(), &'static str> {
        if self.state == State::Closing {
            return Err("too long");
        }
        if self.length.is_none() {
            let before = self.header.len();
            self.header.extend_from_slice(bytes);
            // The end may lie across two reads.
            let from = before.saturating_sub(3);
            let end = self.header[from..].windows(4).position(|window| window == b"\r\n\r\n");
            let Some(end) = end.map(|at| from + at + 4) else {
                return if self.header.len() > HEADER_LIMIT { Err("bad header") } else { Ok(()) };
            };
            self.length = Some(body_length(&self.header[..end])?);
            bytes = &bytes[end - before..];
        }
        let length = self.length.unwrap_or(0);
        let until = self.received + bytes.len();
        if until > length {
            return Err("too long");
        }
        if self.verify && shared.pattern.get(self.received..until) != Some(bytes) {
            return Err("corrupt");
        }
        self.on_body(bytes.len(), shared);
        Ok(())
    }

    /// So many bytes more of the body are here; no more than it has.
    fn on_body(&mut self, count: usize, shared: &mut Shared) {
        let length = self.length.unwrap_or(0);
        self.received += count;
        if self.received == length {
            let now = Instant::now();
            shared.on_response(now - self.since, length, self.verify);
            self.served = self.served.saturating_add(1);
            if shared.keepalive && shared.think_us > 0 {
                let time = shared.think_time();
                self.pause(shared, time);
            } else if shared.keepalive {
                self.since = now;
                self.start_request();
                self.state = State::Connecting;
                self.send(shared);
            } else {
                self.state = State::Closing;
            }
        }
    }

    fn fail(&mut self, shared: &mut Shared, kind: &'static str) {
        shared.on_error(kind);
        self.stream = None;
        self.pause(shared, PAUSE);
    }

    fn pause(&mut self, shared: &mut Shared, time: Duration) {
        self.state = State::Pausing;
        self.until = Instant::now() + time;
        shared.scan_at(self.until);
    }

    /// After a pause: the next request, on the connection that is there or on a new one.
    fn resume(&mut self, shared: &mut Shared, poll: &Poll, now: Instant) {
        if self.stream.is_none() {
            return self.begin(shared, poll, now);
        }
        self.since = now;
        self.start_request();
        self.state = State::Connecting;
        self.send(shared);
    }
}

fn body_length(header: &[u8]) -> Result<usize, &'static str> {
    let mut lines = header.split(|byte| *byte == b'\n');
    let status = lines.next().unwrap_or_default();
    if !status.starts_with(b"HTTP/1.1 200 ") {
        return Err("bad status");
    }
    let name = b"content-length:";
    let line = lines.find(|line| line.len() > name.len() && line[..name.len()].eq_ignore_ascii_case(name));
    let value = line.and_then(|line| std::str::from_utf8(&line[name.len()..]).ok());
    value.and_then(|value| value.trim().parse().ok()).ok_or("bad header")
}

fn kind_of(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ConnectionRefused => "refused",
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "reset",
        ErrorKind::TimedOut => "timeout",
        ErrorKind::AddrNotAvailable => "no port",
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => "unreachable",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::body_length;

    #[test]
    fn the_length_is_read_whatever_the_case_of_its_name() {
        assert_eq!(body_length(b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 42\r\n\r\n"), Ok(42));
        assert_eq!(body_length(b"HTTP/1.1 200 OK\r\ncontent-length:7\r\n\r\n"), Ok(7));
        assert_eq!(body_length(b"HTTP/1.1 404 Not Found\r\nContent-Length: 42\r\n\r\n"), Err("bad status"));
        assert_eq!(body_length(b"HTTP/1.1 200 OK\r\n\r\n"), Err("bad header"));
    }
}
