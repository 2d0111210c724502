//! One TCP connection (RFC 9293 §3.3.2).
//!
//! ```text
//! connection.rs            construction, what the program did, getters
//! connection/state.rs      the states
//! connection/halves.rs     what each direction keeps
//! connection/handshake.rs  SYN-SENT and SYN-RECEIVED
//! connection/fast_open.rs  data with the SYN
//! connection/input.rs      segments in synchronised states: prediction, checks, payload, FIN
//! connection/acknowledge.rs  the acknowledgment field and the send window
//! connection/output.rs     what to send next
//! connection/probe.rs      probes of a tail, of a closed window, of a silent peer
//! connection/timeout.rs    what expired
//! connection/urgent.rs     urgent data
//! connection/mtu.rs        the size of segments on the path
//! connection/close.rs      shutdown, close, abort, ICMP
//! connection/time_wait.rs  until no old segment can be about
//! connection/tune.rs       what the program sets
//! connection/info.rs       what is told of it
//! ```
//!
//! Sending counts *units*: unit 0 is the SYN, unit p + 1 the byte at stream position p, the FIN comes after the
//! last byte. Receiving counts stream positions. Both are `u64`s that only grow, so no comparison ever wraps.

mod acknowledge;
mod close;
mod fast_open;
mod halves;
mod handshake;
mod info;
mod input;
mod mtu;
mod output;
mod probe;
mod spacing;
mod state;
mod time_wait;
mod timeout;
mod tune;
mod urgent;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use scoutline_base::Time;
use scoutline_path::Tuning;
use scoutline_wire::tcp::Header;

use self::fast_open::Opening;
use self::halves::{Receive, Send};
use self::mtu::PathMtu;
use crate::tcp::chronograph::Chronograph;
use crate::tcp::config::{Config, Pacing};
use crate::tcp::congestion::{Algorithm, Congestion};
use crate::tcp::delivery::Delivery;
use crate::tcp::ecn::Ecn;
use crate::tcp::options::Negotiated;
use crate::tcp::pacing::Pacer;
use crate::tcp::recovery::Recovery;
use crate::tcp::rtt::RttEstimator;
use crate::tcp::segment::Input;
use crate::tcp::sequence::SeqNumber;
use crate::tcp::timers::Timers;
use urgent::Urgent;

pub use info::Info;
pub use state::State;

/// Whether an acknowledgment is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Nothing,
    Later,
    /// The next part, when its time has come (`spacing.rs`).
    Part,
    Now,
}

/// A reset to send: its sequence number, and the acknowledgment if it carries one.
type Reset = (u32, Option<u32>);

/// Segments on the wire, of which several may come and leave as one packet.
#[derive(Clone, Copy, Debug, Default)]
struct Segments {
    /// With data, received.
    data_in: u32,
    /// With data, sent.
    data_out: u32,
    /// Received behind the first of their packet.
    merged_in: u32,
    /// Sent behind the first of their packet.
    merged_out: u32,
}

/// One connection. Feed it with `on_*`, then call [`Connection::poll_transmit`] until `None`, then ask
/// [`Connection::next_timeout`]; all with the same `now`.
#[derive(Clone, Debug)]
pub struct Connection {
    // Hot: read for each segment.
    state: State,
    owed: Owed,
    /// Acknowledgments to come by which a burst is told in parts.
    parts: u8,
    passive: bool,
    /// The program has closed: nobody reads, and a limit holds for how long we try.
    orphan: bool,
    /// The program reads no more.
    reads_no_more: bool,
    nodelay: bool,
    /// Our FIN follows the last byte written.
    fin_queued: bool,
    /// The peer's FIN is in order.
    fin_received: bool,
    /// A zero-window probe is to be sent.
    probe_now: bool,
    /// A tail loss probe is to be sent.
    tail_probe_now: bool,
    /// Silly window avoidance is overridden once.
    override_now: bool,
    keepalive_now: bool,
    soft_error: bool,
    /// Data leaves at a rate.
    paced: bool,
    /// The round trip is long.
    is_long: bool,
    /// We answer what comes: an exchange, in which acknowledgments ride on data (Linux: ping-pong mode).
    answers: bool,
    /// Data came since we last sent some.
    came: bool,
    /// Data that went with the SYN was taken.
    syn_data: bool,
    negotiated: Negotiated,
    send: Send,
    receive: Receive,
    timers: Timers,
    recovery: Recovery,
    path_mtu: PathMtu,
    ecn: Ecn,
    pacer: Pacer,
    chronograph: Chronograph,
    delivery: Delivery,
    congestion: Congestion,
    rtt: RttEstimator,
    /// Added to the millisecond clock (RFC 7323 §7.1).
    timestamp_offset: u32,
    /// Time-outs or probes since the peer last acknowledged anything.
    attempts: u8,
    /// Probes since the window closed: what their interval grows with.
    probes: u8,
    keepalive_probes: u8,
    /// Challenge acknowledgments within this second (RFC 5961 §7).
    challenges: u8,
    challenge_second: u32,
    last_heard: Time,
    reset: Option<Reset>,
    /// Segments that were sent again.
    retransmits: u32,
    /// Of them, bytes.
    retransmitted: u64,
    /// DSACKs that came.
    duplicates: u32,
    segments: Segments,
    /// What the program set, if it did.
    tuned: Option<Box<Tuning>>,
    /// Most data of the next `Transmit`, in bytes.
    transmit_limit: u32,
    /// Urgent data, once there was some.
    urgent: Option<Box<Urgent>>,
    /// Of a handshake that may carry data (RFC 7413).
    fast_open: Option<Box<Opening>>,
    config: Arc<Config>,
}

// There may be a hundred thousand, and an idle path with its socket must stay below 2 KiB (DESIGN §2). 768 is one of the
// allocator's sizes; the next is 896.
const _: () = assert!(size_of::<Connection>() <= 768);

impl Connection {
    fn new(config: Arc<Config>, state: State, iss: u32, timestamp_offset: u32, now: Time) -> Connection {
        let negotiated = Negotiated::offer(&config);
        let iss = SeqNumber(iss);
        Connection {
            state,
            owed: Owed::Nothing,
            parts: 0,
            passive: state == State::SynReceived,
            orphan: false,
            reads_no_more: false,
            nodelay: !config.nagle,
            fin_queued: false,
            fin_received: false,
            probe_now: false,
            tail_probe_now: false,
            override_now: false,
            keepalive_now: false,
            soft_error: false,
            paced: config.pacing == Pacing::Always || config.congestion == Algorithm::Bbr,
            is_long: false,
            answers: false,
            came: false,
            syn_data: false,
            negotiated,
            send: Send {
                iss,
                una: 0,
                next: 0,
                max: 0,
                window: 0,
                max_window: 0,
                wl1: SeqNumber(0),
                wl2: 0,
                written: 0,
                buffer: config.send_buffer,
                ring: 0,
                held: u64::MAX,
                held_by_call: false,
                held_unfinished: false,
                unfinished: 0,
                small_end: 0,
                limited_to: 0,
                most_out: 0,
                most_out_to: 0,
                last: now,
                timed: None,
                tail_probe: None,
                tail_probe_again: false,
            },
            receive: Receive {
                irs: SeqNumber(0),
                next: 0,
                edge: 0,
                consumed: 0,
                buffer: config.receive_buffer,
                acknowledged: 0,
                fin_end: None,
                unordered: None,
                recent: 0,
                recent_at: now,
                echo: 0,
                unacknowledged: 0,
                segment: input::INITIAL_SEGMENT,
                quick: input::QUICK_ACKS,
                duplicates: 0,
            },
            timers: Timers::default(),
            recovery: Recovery::default(),
            path_mtu: PathMtu::default(),
            ecn: Ecn::default(),
            pacer: Pacer::default(),
            chronograph: Chronograph::default(),
            delivery: Delivery::default(),
            congestion: Congestion::new(
                config.congestion,
                negotiated.segment_payload(),
                config.initial_window,
            ),
            rtt: RttEstimator::default(),
            timestamp_offset,
            attempts: 0,
            probes: 0,
            keepalive_probes: 0,
            challenges: 0,
            challenge_second: 0,
            last_heard: now,
            reset: None,
            retransmits: 0,
            retransmitted: 0,
            duplicates: 0,
            segments: Segments::default(),
            tuned: None,
            transmit_limit: u32::MAX,
            urgent: None,
            fast_open: None,
            config,
        }
    }

    /// Active open: the SYN comes out of `poll_transmit`. `iss` and `ts_offset` from [`crate::tcp::isn::Secret`].
    pub fn connect(config: impl Into<Arc<Config>>, iss: u32, ts_offset: u32, now: Time) -> Connection {
        Connection::new(config.into(), State::SynSent, iss, ts_offset, now)
    }

    /// Passive open on `syn`: the SYN-ACK comes out of `poll_transmit`.
    pub fn accept(
        config: impl Into<Arc<Config>>,
        iss: u32,
        ts_offset: u32,
        syn: &Header,
        now: Time,
    ) -> Connection {
        let mut connection = Connection::new(config.into(), State::SynReceived, iss, ts_offset, now);
        connection.take_syn(syn, now);
        connection.ecn.on_syn(connection.config.ecn, syn.flags);
        connection
    }

    /// The passive open on a `syn` that was answered with a SYN cookie, without a connection: its acknowledgment is the
    /// next segment.
    pub fn recall(
        config: impl Into<Arc<Config>>,
        cookie: u32,
        ts_offset: u32,
        syn: &Header,
        now: Time,
    ) -> Connection {
        let mut connection = Connection::accept(config, cookie, ts_offset, syn, now);
        connection.poll_handshake(now);
        // When it was sent, nobody remembers.
        connection.send.timed = None;
        connection
    }

    /// Takes a segment for this connection; `payload_len` bytes follow its header.
    #[inline]
    pub fn on_segment(&mut self, header: &Header, payload_len: u32, now: Time) -> Input {
        if let Some(input) = self.predicted(header, payload_len, now) {
            return input;
        }
        self.on_unpredicted(header, payload_len, now)
    }

    /// The segment that is taken next has so many bytes of data, merged from segments of `size`.
    #[inline]
    pub fn on_arrived(&mut self, payload_len: u32, size: Option<u16>) {
        if payload_len > 0 {
            let count = size.map_or(1, |size| payload_len.div_ceil(u32::from(size.max(1))));
            self.segments.data_in = self.segments.data_in.wrapping_add(count);
            self.segments.merged_in = self.segments.merged_in.wrapping_add(count - 1);
        }
    }

    /// The segment just taken came marked CE: a router would rather have dropped it (RFC 3168 §6.1.3).
    pub fn on_congestion_experienced(&mut self) {
        if self.ecn.on_mark() && self.state.may_receive() {
            self.owed = Owed::Now;
        }
    }

    /// The program has put `position` bytes into the send ring so far. A smaller value than before is ignored, as
    /// is all beyond the ring (the position comes from shared memory) and all after `shutdown`.
    #[inline]
    pub fn on_written(&mut self, position: u64) {
        if !self.fin_queued {
            let limit = self.acknowledged() + u64::from(self.send.buffer);
            self.send.written = self.send.written.max(position.min(limit));
        }
    }

    /// The program says that more follows what stands from this stream position on: what fills no segment may wait
    /// (TCP_CORK, MSG_MORE). `None`: nothing waits any more. Said before what it is about is written.
    ///
    /// `by_call`: it was said of calls only (MSG_MORE). As in Linux that holds until the next acknowledgment, for what was
    /// written before it.
    ///
    /// `unfinished`: the last call said so, whatever the socket does. What it wrote ends without PSH.
    pub fn set_held(&mut self, from: Option<u64>, by_call: bool, unfinished: bool) {
        if self.send.held_unfinished {
            self.send.unfinished = self.data_end();
        }
        self.send.held = from.map_or(u64::MAX, |position| position.saturating_add(1));
        self.send.held_by_call = by_call;
        self.send.held_unfinished = unfinished;
    }

    /// An acknowledgment came: what calls have held back goes.
    #[inline]
    fn release_held(&mut self) {
        if self.send.held_by_call {
            self.send.held = self.send.held.max(self.data_end());
        }
    }

    /// The program has taken `position` bytes from the receive ring so far. Clamped to what was delivered in order.
    #[inline]
    pub fn on_consumed(&mut self, position: u64) {
        let receive = &mut self.receive;
        let consumed = position.min(receive.next);
        if consumed <= receive.consumed {
            return;
        }
        receive.consumed = consumed;
        self.tell_of_room();
    }

    /// RFC 9293 §3.8.6.2.2: tell of a grown window only when it is worth a segment; and, as Linux does, only when the peer has
    /// little left: a wide window needs no extra acknowledgment.
    #[inline]
    fn tell_of_room(&mut self) {
        let (could, most) = (self.window_there_is_room_for(), u64::from(self.receive_most()));
        let receive = &self.receive;
        let open = receive.edge.saturating_sub(receive.next);
        // Of what the program takes up to a quarter of the ring is not told. A peer whose segments are as long as that sends
        // nothing into less than half of the window.
        let worth = (most / 4).min(2 * u64::from(receive.segment));
        let may_wait_for_half = worth == most / 4 && open < most / 2;
        if could >= open + worth.max(1)
            && (could >= 2 * open || may_wait_for_half)
            && self.state.may_receive()
            && !self.fin_received
        {
            self.owed = Owed::Now;
        }
    }

    /// Rounded down: what the field cannot say is not promised.
    #[inline]
    fn window_there_is_room_for(&self) -> u64 {
        let (receive, scale) = (&self.receive, self.negotiated.receive_scale);
        let room = (receive.consumed + u64::from(self.receive_most())).saturating_sub(receive.next);
        room.min(self.window_limit()) >> scale << scale
    }

    /// The receive ring has grown to `size` bytes. Smaller than before is ignored: a window never shrinks.
    pub fn set_receive_buffer(&mut self, size: u32) {
        if size > self.receive.buffer {
            self.receive.buffer = size;
            // The program tells seldom of what it takes out of a large ring.
            self.tell_of_room();
        }
    }

    /// The send ring has grown to `size` bytes.
    pub fn set_send_buffer(&mut self, size: u32) {
        self.send.buffer = self.send.buffer.max(size);
    }

    /// The program writes into `size` bytes, and waits when they are full.
    pub fn set_ring(&mut self, size: u32) {
        self.send.ring = size;
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Segments carry timestamps (RFC 7323 §3), so that one of an earlier connection is known by its age.
    pub fn has_timestamps(&self) -> bool {
        self.negotiated.timestamps
    }

    /// When `on_timeout` wants to be called.
    #[inline]
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Stream position to which the peer has acknowledged: the send ring may be freed to here.
    #[inline]
    pub fn acknowledged(&self) -> u64 {
        self.send.una.saturating_sub(1).min(self.send.written)
    }

    /// Stream position to which data has been sent at least once.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.send.max.saturating_sub(1).min(self.send.written)
    }

    /// Stream position to which received data is complete.
    #[inline]
    pub fn receive_position(&self) -> u64 {
        self.receive.next
    }

    /// The peer will send no more than `receive_position`.
    pub fn is_peer_finished(&self) -> bool {
        self.fin_received
    }

    /// All that was written, and the FIN if there is one, was sent at least once.
    pub fn is_sent_all(&self) -> bool {
        self.send.max >= self.end_unit()
    }

    /// All that was written, and the FIN if there is one, is acknowledged.
    pub fn is_acknowledged_all(&self) -> bool {
        self.send.una >= self.end_unit()
    }

    /// For how long it has been busy, and why.
    pub fn chronograph(&self) -> &Chronograph {
        &self.chronograph
    }

    /// The unit after the last that there is to send.
    #[inline]
    fn end_unit(&self) -> u64 {
        1 + self.send.written + u64::from(self.fin_queued)
    }

    /// The unit after the last byte of data.
    #[inline]
    fn data_end(&self) -> u64 {
        1 + self.send.written
    }

    /// RFC 9293 RCV.NXT as on the wire.
    #[inline]
    fn receive_next(&self) -> SeqNumber {
        self.receive.irs.plus(1 + self.receive.next + u64::from(self.fin_received))
    }

    /// RFC 9293 RCV.WND: what the peer may still send.
    #[inline]
    fn window_left(&self) -> u64 {
        self.receive.edge.saturating_sub(self.receive.next)
    }

    /// Our timestamp clock: one millisecond a tick (RFC 7323 §5.4 asks for 1 ms to 1 s).
    #[inline]
    fn timestamp(&self, now: Time) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.timestamp_offset)
    }

    /// Payload of a full segment, in bytes.
    #[inline]
    fn segment(&self) -> u32 {
        u32::from(self.negotiated.segment_payload())
    }

    /// Payload of a full segment, in bytes, beside the options that every segment has.
    #[inline]
    pub fn segment_payload(&self) -> u32 {
        self.segment()
    }

    /// Bytes of options that every segment has.
    #[inline]
    pub fn options_len(&self) -> u64 {
        if self.negotiated.timestamps { scoutline_wire::tcp::TIMESTAMPS_LEN as u64 } else { 0 }
    }

    /// The round trip that buffers have to bridge: the least that was measured. One who only receives measures none
    /// after the handshake; what the peer's echoes tell then counts where it is much more, for a path that has become
    /// longer.
    pub(super) fn least_round_trip(&self) -> Option<Duration> {
        let age = self.timestamp(self.last_heard).wrapping_sub(self.receive.echo);
        let told = Duration::from_millis(u64::from(age));
        let told = (self.negotiated.timestamps && LONG_ROUND_TRIPS.contains(&told)).then_some(told);
        self.rtt.least().max(told)
    }

    /// Enters `Closed` and forgets all timers.
    fn enter_closed(&mut self) {
        self.state = State::Closed;
        self.timers.clear();
        self.owed = Owed::Nothing;
        self.receive.duplicates = 0;
        self.receive.unordered = None;
        self.recovery.clear();
    }

    /// Books a challenge acknowledgment, within its limit (RFC 5961 §3, §4, §7).
    fn challenge(&mut self, now: Time) {
        let second = (now.as_millis() / 1000) as u32;
        if second != self.challenge_second {
            self.challenge_second = second;
            self.challenges = 0;
        }
        if self.challenges < MAX_CHALLENGES {
            self.challenges += 1;
            self.owed = Owed::Now;
        }
    }
}

/// Echoes have a tick of 1 ms and the peer's delays in them: below this they tell little, beyond it the peer had nothing
/// to send.
const LONG_ROUND_TRIPS: RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_secs(2);

/// IPv4 and TCP without options.
const HEADERS: u16 = 40;

/// Challenge acknowledgments a second and connection. RFC 5961 §7 suggests ten in five seconds; an honest peer needs
/// one.
const MAX_CHALLENGES: u8 = 5;

#[cfg(test)]
mod tests;
