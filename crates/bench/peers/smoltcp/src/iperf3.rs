//! What an iperf3 client asks of its server, for bulk over TCP one way: the protocol as iperf 3.12 speaks it.
//!
//! ```text
//!   client ── cookie ─────────────────► server      on the control connection
//!          ◄─ PARAM_EXCHANGE ──────────
//!          ── length, parameters ─────►             JSON
//!          ◄─ CREATE_STREAMS ──────────
//!          ── cookie ─────────────────►             on each stream
//!          ◄─ TEST_START, TEST_RUNNING ─
//!          ══ bulk ════════════════════             either way
//!          ── TEST_END ───────────────►
//!          ◄─ EXCHANGE_RESULTS ────────
//!          ── length, results ────────►             JSON
//!          ◄─ length, results ─────────             JSON
//!          ◄─ DISPLAY_RESULTS ─────────
//!          ── IPERF_DONE ─────────────►
//! ```
//! Left out: UDP, both ways at once, intervals, limits of bytes and of rate, processor time.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::{Duration, Instant};

use crate::{Service, listen};

const TEST_START: u8 = 1;
const TEST_RUNNING: u8 = 2;
const TEST_END: u8 = 4;
const PARAM_EXCHANGE: u8 = 9;
const CREATE_STREAMS: u8 = 10;
const EXCHANGE_RESULTS: u8 = 13;
const DISPLAY_RESULTS: u8 = 14;

/// 36 characters and a 0.
const COOKIE_LEN: usize = 37;
/// Of one call, as iperf3 reads and writes over TCP.
const BLOCK: usize = 128 << 10;
/// The control connection and its streams, and some more for who begins before they are gone.
const SOCKETS: usize = 12;
/// No message of a client is longer.
const LONGEST_MESSAGE: usize = 1 << 20;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Cookie,
    Parameters,
    Streams,
    Running,
    Results,
    Shown,
    Done,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Parameters {
    streams: usize,
    /// Whether the server sends.
    reverse: bool,
    /// Not counted at the beginning.
    omit: Duration,
}

impl Parameters {
    fn parse(message: &[u8]) -> Result<Parameters> {
        let all: Value = serde_json::from_slice(message).context("parameters are no JSON")?;
        let number = |key: &str| all[key].as_u64().unwrap_or(0);
        ensure!(all["udp"] != true && all["bidirectional"] != 1, "only TCP one way is served");
        Ok(Parameters {
            streams: number("parallel").max(1) as usize,
            reverse: all["reverse"] == true || number("reverse") == 1,
            omit: Duration::from_secs(number("omit")),
        })
    }
}

/// A connection with a client, from its cookie on.
struct Session {
    control: SocketHandle,
    phase: Phase,
    cookie: Vec<u8>,
    /// Read from the control connection, and not yet understood.
    inbox: Vec<u8>,
    parameters: Parameters,
    /// Each with the bytes counted of it.
    streams: Vec<(SocketHandle, u64)>,
    /// From when on bytes count.
    count_from: Instant,
    /// How long they did.
    counted: Duration,
}

/// Serves one client after another.
pub(crate) struct Server {
    port: u16,
    sockets: Vec<SocketHandle>,
    session: Option<Session>,
    block: Vec<u8>,
}

impl Server {
    pub(crate) fn new(sockets: &mut SocketSet<'_>, port: u16) -> Result<Server> {
        let handles: Result<_> = (0..SOCKETS).map(|_| listen(sockets, port)).collect();
        Ok(Server { port, sockets: handles?, session: None, block: vec![0x5c; BLOCK] })
    }

    /// Who has connected and belongs to nothing yet, with a whole cookie.
    fn newcomers(&self, sockets: &SocketSet<'_>) -> Vec<SocketHandle> {
        let known = |handle| {
            self.session.as_ref().is_some_and(|session| {
                session.control == handle || session.streams.iter().any(|(stream, _)| *stream == handle)
            })
        };
        let has_cookie = |handle| sockets.get::<tcp::Socket>(handle).recv_queue() >= COOKIE_LEN;
        self.sockets.iter().copied().filter(|handle| !known(*handle) && has_cookie(*handle)).collect()
    }
}

impl Service for Server {
    fn on_poll(&mut self, sockets: &mut SocketSet<'_>, now: Instant) -> Result<()> {
        if self.session.as_ref().is_none_or(|session| session.phase == Phase::Streams) {
            for handle in self.newcomers(sockets) {
                match &mut self.session {
                    Some(session) => session.on_stream(handle, sockets)?,
                    None => self.session = Some(Session::new(handle, now)),
                }
            }
        }
        let Some(session) = &mut self.session else { return Ok(()) };
        session.on_poll(sockets, now, &mut self.block)?;
        if session.phase == Phase::Done {
            self.session = None;
            for handle in &self.sockets {
                let socket = sockets.get_mut::<tcp::Socket>(*handle);
                if !socket.is_listening() {
                    // What a stream still holds is no longer wanted.
                    socket.abort();
                }
            }
        }
        for handle in &self.sockets {
            let socket = sockets.get_mut::<tcp::Socket>(*handle);
            if !socket.is_open() {
                socket.listen(self.port).context("cannot listen")?;
            }
        }
        Ok(())
    }
}

impl Session {
    fn new(control: SocketHandle, now: Instant) -> Session {
        Session {
            control,
            phase: Phase::Cookie,
            cookie: Vec::new(),
            inbox: Vec::new(),
            parameters: Parameters::default(),
            streams: Vec::new(),
            count_from: now,
            counted: Duration::ZERO,
        }
    }

    fn on_stream(&mut self, handle: SocketHandle, sockets: &mut SocketSet<'_>) -> Result<()> {
        let mut cookie = [0; COOKIE_LEN];
        let socket = sockets.get_mut::<tcp::Socket>(handle);
        socket.recv_slice(&mut cookie)?;
        if cookie[..] == self.cookie {
            self.streams.push((handle, 0));
        } else {
            socket.abort();
        }
        Ok(())
    }

    fn on_poll(&mut self, sockets: &mut SocketSet<'_>, now: Instant, block: &mut [u8]) -> Result<()> {
        if self.phase == Phase::Running {
            self.transfer(sockets, now, block);
        }
        let control = sockets.get_mut::<tcp::Socket>(self.control);
        while control.can_recv() {
            let count = control.recv_slice(block)?;
            self.inbox.extend_from_slice(&block[..count]);
        }
        if !control.may_recv() {
            self.phase = Phase::Done;
            return Ok(());
        }
        while let Some(answer) = self.step(now)? {
            control.send_slice(&answer)?;
        }
        Ok(())
    }

    /// Moves what goes, as iperf3 does: whole blocks, copied.
    fn transfer(&mut self, sockets: &mut SocketSet<'_>, now: Instant, block: &mut [u8]) {
        let reverse = self.parameters.reverse;
        for (handle, bytes) in &mut self.streams {
            let socket = sockets.get_mut::<tcp::Socket>(*handle);
            let mut moved = 0;
            loop {
                let done =
                    if reverse { socket.send_slice(block).ok() } else { socket.recv_slice(block).ok() };
                // A stream that is closed moves nothing; the client says what that means.
                let Some(count @ 1..) = done else { break };
                moved += count as u64;
            }
            if now >= self.count_from {
                *bytes += moved;
            }
        }
    }

    /// Takes the next message if it is there whole; the answer to it.
    fn step(&mut self, now: Instant) -> Result<Option<Vec<u8>>> {
        let answer = match self.phase {
            Phase::Cookie => {
                let Some(cookie) = self.take(COOKIE_LEN) else { return Ok(None) };
                self.cookie = cookie;
                self.phase = Phase::Parameters;
                vec![PARAM_EXCHANGE]
            }
            Phase::Parameters => {
                let Some(message) = self.take_message()? else { return Ok(None) };
                self.parameters = Parameters::parse(&message)?;
                ensure!(
                    self.parameters.streams < SOCKETS,
                    "{} streams are too many",
                    self.parameters.streams
                );
                self.phase = Phase::Streams;
                vec![CREATE_STREAMS]
            }
            Phase::Streams if self.streams.len() == self.parameters.streams => {
                self.count_from = now + self.parameters.omit;
                self.phase = Phase::Running;
                vec![TEST_START, TEST_RUNNING]
            }
            Phase::Running => match self.take(1).as_deref() {
                None => return Ok(None),
                Some([TEST_END]) => {
                    self.counted = if now > self.count_from { now - self.count_from } else { Duration::ZERO };
                    self.phase = Phase::Results;
                    vec![EXCHANGE_RESULTS]
                }
                Some(_) => {
                    self.phase = Phase::Done;
                    return Ok(None);
                }
            },
            Phase::Results => {
                let Some(_) = self.take_message()? else { return Ok(None) };
                let results = self.results().to_string().into_bytes();
                self.phase = Phase::Shown;
                [&(results.len() as u32).to_be_bytes()[..], &results, &[DISPLAY_RESULTS]].concat()
            }
            // IPERF_DONE, or the end of the connection.
            Phase::Shown if !self.inbox.is_empty() => {
                self.phase = Phase::Done;
                return Ok(None);
            }
            Phase::Streams | Phase::Shown | Phase::Done => return Ok(None),
        };
        Ok(Some(answer))
    }

    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        (self.inbox.len() >= count).then(|| self.inbox.drain(..count).collect())
    }

    /// One with its length in front.
    fn take_message(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(len) = self.inbox.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_be_bytes(*len) as usize;
        ensure!(len <= LONGEST_MESSAGE, "a message of {len} bytes");
        Ok(self.take(4 + len).map(|message| message[4..].to_vec()))
    }

    fn results(&self) -> Value {
        let stream = |(index, (_, bytes)): (usize, &(SocketHandle, u64))| {
            json!({
                // iperf3 numbers its streams 1, 3, 4, 5, …
                "id": if index == 0 { 1 } else { index + 2 },
                "bytes": bytes, "retransmits": -1, "jitter": 0, "errors": 0, "packets": 0,
                "start_time": 0, "end_time": self.counted.total_micros() as f64 / 1e6,
            })
        };
        json!({
            "cpu_util_total": 0, "cpu_util_user": 0, "cpu_util_system": 0, "sender_has_retransmits": 0,
            "streams": self.streams.iter().enumerate().map(stream).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use smoltcp::iface::SocketSet;
    use smoltcp::time::{Duration, Instant};

    use super::{Parameters, Phase, Server, Session, TEST_END};

    fn message(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
    }

    #[test]
    fn parameters_tell_direction_streams_and_what_is_omitted() {
        let parsed = Parameters::parse(br#"{"tcp":true,"omit":1,"time":3,"parallel":8,"reverse":true}"#);
        let expected = Parameters { streams: 8, reverse: true, omit: Duration::from_secs(1) };
        assert_eq!(parsed.unwrap(), expected);
        let parsed = Parameters::parse(br#"{"tcp":true,"time":3,"parallel":1}"#).unwrap();
        assert_eq!(parsed, Parameters { streams: 1, reverse: false, omit: Duration::ZERO });
        assert!(Parameters::parse(br#"{"udp":true}"#).is_err() && Parameters::parse(b"{").is_err());
    }

    #[test]
    fn a_session_answers_each_message_once_it_is_whole() {
        let mut sockets = SocketSet::new(Vec::new());
        let server = Server::new(&mut sockets, 5201).unwrap();
        let mut session = Session::new(server.sockets[0], Instant::ZERO);
        let say = |session: &mut Session, bytes: &[u8], second| {
            session.inbox.extend_from_slice(bytes);
            session.step(Instant::from_secs(second)).unwrap()
        };
        assert_eq!(say(&mut session, &[b'c'; 36], 0), None);
        assert_eq!(say(&mut session, &[0], 0), Some(vec![9]));
        let parameters = message(r#"{"tcp":true,"omit":1,"parallel":2}"#);
        assert_eq!(say(&mut session, &parameters[..9], 0), None);
        assert_eq!(say(&mut session, &parameters[9..], 0), Some(vec![10]));
        session.streams = vec![(server.sockets[1], 5), (server.sockets[2], 7)];
        assert_eq!(say(&mut session, &[], 2), Some(vec![1, 2]));
        assert_eq!(say(&mut session, &[], 3), None);
        assert_eq!(say(&mut session, &[TEST_END], 7), Some(vec![13]));
        let results = say(&mut session, &message("{}"), 7).unwrap();
        let text = std::str::from_utf8(&results[4..results.len() - 1]).unwrap();
        assert!(text.contains(r#""bytes":5"#) && text.contains(r#""id":3"#), "{text}");
        assert!(text.contains(r#""end_time":4.0"#) && results.ends_with(&[14]), "{text}");
        assert_eq!(say(&mut session, &[16], 7), None);
        assert_eq!(session.phase, Phase::Done);
    }
}
