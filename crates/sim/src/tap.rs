//! A wire's end with an observer: what a host sends is held against what it has been allowed and what it has received.
//!
//! For each connection, of what this host may know (RFC 9293 §3.3.1, §3.8.6; RFC 7323 §2):
//! - nothing is sent beyond the right edge of the window, but for one byte that probes a closed one, and the FIN;
//! - nothing is acknowledged that has not come;
//! - the right edge of the own window never moves back, by more than its scale rounds.
//!
//! What comes is noted when the device gives it, before the host has looked at it: so the bounds are at least as wide
//! as the host's own, and a finding is a finding.

mod defect;

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::rc::Rc;

use scoutline_base::{Endpoint, Time};
use scoutline_device::{DeviceCounters, DeviceError, DeviceFacts, Partner, software};
use scoutline_path::{Burst, Checksum};

use crate::frame::{self, ACK, FIN, RST, SYN, Segment};
use crate::host::ROUTER;
use crate::model::End;
use crate::shared::Shared;
use defect::Defect;

/// Our end and the peer's.
type Flow = (Endpoint, Endpoint);

/// A wire's end, observed.
pub(crate) struct Tap {
    end: End,
    /// What the wire had counted before this host began.
    before: DeviceCounters,
    host: usize,
    shared: Rc<Shared>,
    flows: BTreeMap<Flow, View>,
    /// SYNs that came: they say what an answer to them may count on.
    asked: BTreeMap<Flow, Segment>,
    defect: Option<Defect>,
    scratch: Vec<u8>,
}

/// What is known of a connection at its host's device.
#[derive(Clone, Copy, Debug)]
struct View {
    /// Our SYN.
    first: u32,
    /// Behind the last byte that was sent.
    sent: u32,
    /// Behind the last byte that came, once something did.
    received: Option<u32>,
    /// The peer's right edge.
    may_send: Option<u32>,
    /// Our own.
    offered: Option<u32>,
    scale: Option<u8>,
    peer_scale: Option<u8>,
}

/// How far `to` lies behind `from`.
fn ahead(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from) as i32
}

/// Keeps the later of two numbers.
fn keep_later(known: &mut Option<u32>, told: u32) {
    if known.is_none_or(|known| ahead(known, told) > 0) {
        *known = Some(told);
    }
}

impl View {
    fn new(segment: &Segment) -> View {
        View {
            first: segment.sequence,
            sent: segment.sequence,
            received: None,
            may_send: None,
            offered: None,
            scale: segment.scale,
            peer_scale: None,
        }
    }

    /// Windows in SYNs are not scaled; others are if both ends said so.
    fn window(&self, segment: &Segment, scale: Option<u8>) -> u32 {
        let both = self.scale.is_some() && self.peer_scale.is_some();
        let shift = if segment.flags & SYN == 0 && both { scale.unwrap_or(0) } else { 0 };
        u32::from(segment.window) << shift
    }

    fn on_received(&mut self, segment: &Segment) {
        if segment.flags & SYN != 0 {
            self.peer_scale = segment.scale;
        }
        keep_later(&mut self.received, end_of(segment));
        if segment.flags & ACK != 0 {
            let edge = segment.acknowledgment.wrapping_add(self.window(segment, self.peer_scale));
            keep_later(&mut self.may_send, edge);
        }
    }

    /// What is wrong with a segment that leaves.
    fn on_sent(&mut self, segment: &Segment) -> Result<(), String> {
        let end = end_of(segment);
        if ahead(self.sent, end) > 0 {
            self.sent = end;
        }
        // One byte may probe a window; the FIN takes none of it.
        let spare = i32::from(segment.len == 1) + i32::from(segment.flags & FIN != 0);
        if let Some(edge) = self.may_send
            && ahead(edge, end) > spare
            && segment.flags & SYN == 0
        {
            return Err(format!("{} bytes beyond the peer's window", ahead(edge, end)));
        }
        if segment.flags & ACK == 0 {
            return Ok(());
        }
        if let Some(received) = self.received
            && ahead(received, segment.acknowledgment) > 0
        {
            return Err(format!(
                "acknowledges {} bytes that have not come",
                ahead(received, segment.acknowledgment)
            ));
        }
        let edge = segment.acknowledgment.wrapping_add(self.window(segment, self.scale));
        let rounding = (1 << self.scale.unwrap_or(0)) - 1;
        if let Some(offered) = self.offered
            && ahead(edge, offered) > rounding
        {
            return Err(format!("takes back {} bytes of its window", ahead(edge, offered)));
        }
        keep_later(&mut self.offered, edge);
        Ok(())
    }
}

/// The sequence number behind a segment.
fn end_of(segment: &Segment) -> u32 {
    let flags = u32::from(segment.flags & SYN != 0) + u32::from(segment.flags & FIN != 0);
    segment.sequence.wrapping_add(segment.len + flags)
}

impl Tap {
    /// Observes what `host` does at this end of a wire.
    pub(crate) fn new(end: End, host: usize, shared: Rc<Shared>) -> Tap {
        let defect = shared.canary.filter(|_| host != ROUTER).and_then(Defect::of);
        let before = end.counters();
        Tap {
            end,
            before,
            host,
            shared,
            flows: BTreeMap::new(),
            asked: BTreeMap::new(),
            defect,
            scratch: Vec::new(),
        }
    }

    /// What passes through a router is not its own.
    fn is_endpoint(&self) -> bool {
        self.host != ROUTER
    }

    fn on_received(&mut self, bytes: &[u8], vouched: bool) {
        let Some(segment) = frame::segment(bytes) else {
            self.shared.note(self.host, format_args!("< {} bytes", bytes.len()), &[1, bytes.len() as u64]);
            return;
        };
        let intact = vouched || frame::is_intact(bytes);
        let damaged = if intact { "" } else { " (damaged)" };
        self.shared.note(
            self.host,
            format_args!("< {}{damaged}", show(&segment)),
            &[2, u64::from(segment.sequence), u64::from(segment.len)],
        );
        self.shared.mix_bytes(&bytes[segment.tcp_at..segment.payload_at]);
        if !intact || segment.flags & RST != 0 || !self.is_endpoint() {
            return;
        }
        let flow = (segment.destination, segment.source);
        if segment.flags & (SYN | ACK) == SYN {
            self.asked.insert(flow, segment);
        }
        if let Some(view) = self.flows.get_mut(&flow) {
            view.on_received(&segment);
        }
    }

    fn on_sent(&mut self, bytes: &[u8]) {
        let Some(segment) = frame::segment(bytes) else {
            self.shared.note(self.host, format_args!("> {} bytes", bytes.len()), &[3, bytes.len() as u64]);
            return;
        };
        self.shared.note(
            self.host,
            format_args!("> {}", show(&segment)),
            &[4, u64::from(segment.sequence), u64::from(segment.len)],
        );
        if segment.flags & RST != 0 || !self.is_endpoint() {
            return;
        }
        let flow = (segment.source, segment.destination);
        if segment.flags & SYN != 0 && self.flows.get(&flow).is_none_or(|view| view.first != segment.sequence)
        {
            let mut view = View::new(&segment);
            if let Some(asked) = self.asked.get(&flow).filter(|_| segment.flags & ACK != 0) {
                view.on_received(asked);
                // Its window counts from our first byte on.
                view.may_send = Some(segment.sequence.wrapping_add(1 + u32::from(asked.window)));
            }
            self.flows.insert(flow, view);
        }
        if let Some(Err(wrong)) = self.flows.get_mut(&flow).map(|view| view.on_sent(&segment)) {
            self.shared.found(format_args!("host {}: {} {wrong}", self.host, show(&segment)));
        }
    }
}

/// A segment for people.
fn show(segment: &Segment) -> String {
    let flag = |bit, name| if segment.flags & bit != 0 { name } else { "" };
    format!(
        "{} > {} {}{}{}{} seq {} ack {} len {} win {}",
        segment.source,
        segment.destination,
        flag(SYN, "S"),
        flag(FIN, "F"),
        flag(RST, "R"),
        flag(ACK, "."),
        segment.sequence,
        segment.acknowledgment,
        segment.len,
        segment.window
    )
}

impl Partner for Tap {
    fn name(&self) -> &str {
        self.end.name()
    }

    fn facts(&self) -> &DeviceFacts {
        self.end.facts()
    }

    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        let before = burst.len();
        let taken = self.end.pull(burst, limit, now)?;
        for message in &burst[before..] {
            self.on_received(message.bytes(), message.facts.checksum == Checksum::Verified);
        }
        if let Some(defect) = &mut self.defect {
            defect.spoil_received(burst, before);
        }
        Ok(taken)
    }

    fn has_input(&self) -> bool {
        true
    }

    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        if let Some(defect) = &mut self.defect {
            defect.spoil_sent(burst, |flow| self.flows.get(&flow).map(|view| view.sent));
        }
        let room = self.end.room();
        let mut scratch = std::mem::take(&mut self.scratch);
        // What the device does not take comes again.
        for message in burst.iter().take(room) {
            let mut packets = Vec::new();
            let _ = software::packets(message, &mut scratch, |packet| packets.push(packet.to_vec()));
            for packet in packets {
                self.on_sent(&packet);
            }
        }
        self.scratch = scratch;
        self.end.push(burst)
    }

    fn room(&self) -> usize {
        self.end.room()
    }

    fn standing(&self) -> Option<u64> {
        self.end.standing()
    }

    fn poll_fd(&self) -> Option<RawFd> {
        None
    }

    fn next_event(&self) -> Option<Time> {
        self.end.next_event()
    }

    fn counters(&self) -> DeviceCounters {
        let mut counters = self.end.counters();
        counters.rx_packets -= self.before.rx_packets;
        counters.tx_packets -= self.before.tx_packets;
        if let Some(defect) = &self.defect {
            defect.spoil_counters(&mut counters);
        }
        counters
    }
}
