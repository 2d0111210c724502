//! What is told of a connection.

use std::time::Duration;

use scoutline_base::Time;

use super::{Connection, HEADERS, State};
use crate::tcp::congestion::{Algorithm, Controller};
use crate::tcp::recovery::Phase;
use crate::tcp::segment::Transmit;

/// A snapshot for `TCP_INFO` and listings.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// State.
    pub state: State,
    /// Smoothed round-trip time, once measured.
    pub srtt: Option<Duration>,
    /// Its mean deviation.
    pub rttvar: Duration,
    /// The least round-trip time seen.
    pub min_rtt: Option<Duration>,
    /// Retransmission time-out, back-off included.
    pub rto: Duration,
    /// Times the time-out has doubled.
    pub backoff: u8,
    /// The congestion control of now.
    pub congestion: Algorithm,
    /// Congestion window in bytes; while it is being reduced, what is in the network and what may go at once.
    pub cwnd: u32,
    /// Slow-start threshold in bytes; `u32::MAX` before the first loss.
    pub ssthresh: u32,
    /// The rate at which data leaves, in bytes a second, if it is paced.
    pub pacing_rate: Option<u64>,
    /// Recovery phase.
    pub phase: Phase,
    /// The window is being reduced for an echo of congestion.
    pub reducing: bool,
    /// Duplicates that mean loss: grows with the reordering seen.
    pub reordering: u32,
    /// Segments sent again, in total.
    pub retransmits: u32,
    /// Of them, bytes.
    pub retransmitted: u64,
    /// How often the peer told of something that came twice.
    pub duplicates: u32,
    /// How often reordering was seen (with SACK).
    pub reorderings: u32,
    /// Segments with data that came, and were sent.
    pub data_segments: (u32, u32),
    /// Segments beyond the first of each packet that came, and was sent.
    pub merged_segments: (u32, u32),
    /// What the path has delivered, in bytes a second; 0 before it was measured.
    pub delivery_rate: u64,
    /// The program had too little to send for that to be what the path can do.
    pub app_limited: bool,
    /// Time-outs in a row.
    pub attempts: u8,
    /// Probes since the window closed.
    pub probes: u8,
    /// When data was last sent.
    pub last_sent: Time,
    /// When the peer was last heard.
    pub last_heard: Time,
    /// Bytes that the peer has acknowledged.
    pub acknowledged: u64,
    /// Bytes that have come in order.
    pub received: u64,
    /// The payload that we told the peer to send at most, in bytes: without the options of every segment.
    pub advertised_mss: u16,
    /// The peer opened it.
    pub passive: bool,
    /// Bytes sent and not acknowledged.
    pub unacked: u64,
    /// Bytes that the peer holds out of order.
    pub sacked: u64,
    /// Bytes that were taken for lost, and are not acknowledged.
    pub lost: u64,
    /// Of them, those that are under way once more.
    pub again: u64,
    /// Bytes written and not sent yet.
    pub unsent: u64,
    /// Payload of a full segment that we send, in bytes.
    pub snd_mss: u16,
    /// The largest packet of the network layer that we send, in bytes, with a header of IPv4.
    pub path_mtu: u16,
    /// Payload of a full segment that the peer sends, as seen, in bytes.
    pub rcv_mss: u16,
    /// Window that the peer gave, in bytes.
    pub snd_wnd: u32,
    /// Window that we gave, in bytes.
    pub rcv_wnd: u32,
    /// Shift of the windows that we receive.
    pub snd_wscale: u8,
    /// Shift of the windows that we send.
    pub rcv_wscale: u8,
    /// Timestamps are on.
    pub timestamps: bool,
    /// SACK is on.
    pub sack: bool,
    /// ECN is on.
    pub ecn: bool,
    /// Data that went with the SYN was taken (RFC 7413).
    pub syn_data: bool,
    /// An ICMP error came that did not end the connection.
    pub soft_error: bool,
}

impl Connection {
    /// There is nothing to send though the window would take it: what arrives does not tell how fast the path is. With
    /// the ring full it is the ring that keeps the program from writing.
    #[inline]
    pub(super) fn note_app_limited(&mut self, now: Time) {
        let flight = self.recovery.in_flight(self.send.una, self.send.next, self.segment());
        if flight >= u64::from(self.congestion.window()) {
            return;
        }
        self.delivery.on_app_limited(self.delivered() + flight);
        if self.paced && self.congestion.is_model() {
            self.congestion.on_app_limited(flight);
        }
        if self.is_ring_full() {
            self.chronograph.on_ring_full(now);
        }
    }

    /// The program cannot write more: its ring holds what is not acknowledged.
    #[inline]
    fn is_ring_full(&self) -> bool {
        self.send.ring != 0 && self.send.written - self.acknowledged() == u64::from(self.send.ring)
    }

    /// Bytes that have arrived, as far as known.
    #[inline]
    pub(super) fn delivered(&self) -> u64 {
        self.acknowledged() + if self.recovery.is_quiet() { 0 } else { self.recovery.sacked() }
    }

    /// A packet leaves.
    #[inline]
    pub(super) fn count_sent(&mut self, transmit: &Transmit) {
        let len = transmit.payload.as_ref().map_or(0, |range| range.end - range.start);
        let count = len.div_ceil(u64::from(transmit.segment_size.max(1))) as u32;
        if count > 0 {
            self.segments.data_out = self.segments.data_out.wrapping_add(count);
            self.segments.merged_out = self.segments.merged_out.wrapping_add(count - 1);
        }
        if transmit.retransmission {
            self.retransmits = self.retransmits.saturating_add(count.max(1));
        }
    }

    /// What may be in the network now: within a reduction less than the window, down to one segment. With nothing there
    /// and nothing owed it is still that, as Linux has it.
    fn window_of_now(&self) -> u32 {
        let Some(allowance) = self.recovery.allowance().filter(|_| !self.congestion.is_model()) else {
            return self.congestion.window();
        };
        let in_flight = self.recovery.in_flight(self.send.una, self.send.next, self.segment());
        (in_flight + allowance).clamp(u64::from(self.segment()), u64::from(u32::MAX)) as u32
    }

    /// A snapshot.
    pub fn info(&self) -> Info {
        let again = self.recovery.again();
        Info {
            state: self.state,
            srtt: self.rtt.smoothed(),
            rttvar: self.rtt.variation(),
            min_rtt: self.rtt.least(),
            rto: self.rtt.rto(),
            backoff: self.rtt.backoff(),
            congestion: self.congestion.algorithm(),
            cwnd: self.window_of_now(),
            ssthresh: self.congestion.threshold(),
            pacing_rate: self.pacing_rate(),
            phase: self.recovery.phase(),
            reducing: self.recovery.is_reducing(),
            reordering: self.recovery.reordering(self.segment()),
            retransmits: self.retransmits,
            retransmitted: self.retransmitted,
            duplicates: self.duplicates,
            reorderings: self.recovery.reorderings(),
            data_segments: (self.segments.data_in, self.segments.data_out),
            merged_segments: (self.segments.merged_in, self.segments.merged_out),
            delivery_rate: self.delivery.rate(),
            app_limited: self.delivery.is_app_limited(),
            attempts: self.attempts,
            probes: self.probes,
            last_sent: self.send.last,
            last_heard: self.last_heard,
            acknowledged: self.acknowledged(),
            received: self.receive.next,
            advertised_mss: self.config.told_mss().saturating_sub(self.options_len() as u16),
            passive: self.passive,
            unacked: self.send.max - self.send.una,
            sacked: self.recovery.sacked(),
            lost: self.recovery.lost() + again,
            again,
            unsent: self.end_unit().saturating_sub(self.send.max.max(1)),
            snd_mss: self.negotiated.segment_payload(),
            path_mtu: self.negotiated.mss.saturating_add(HEADERS),
            rcv_mss: self.receive.segment,
            snd_wnd: self.send.window,
            rcv_wnd: self.window_left() as u32,
            snd_wscale: self.negotiated.send_scale,
            rcv_wscale: self.negotiated.receive_scale,
            timestamps: self.negotiated.timestamps,
            sack: self.negotiated.sack,
            ecn: self.ecn.is_on(),
            syn_data: self.syn_data,
            soft_error: self.soft_error,
        }
    }
}
