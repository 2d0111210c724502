//! The size of segments on a path whose MTU is less than the interface's: told by ICMP (RFC 1191, RFC 8201), found out
//! where ICMP is lost (RFC 8899 §4.3, RFC 4821), and raised again.
//!
//! - *Told*: segments take what the router says; ten minutes later the path may have become wider.
//! - *Black hole*: what was sent again three times and is still not acknowledged may be too long for a link whose router
//!   says nothing. Segments are halved, and once more with each time-out from then on (as Linux with `tcp_mtu_probing`
//!   1). If it was an outage, the first probe brings the size back.
//! - *Raise*: one segment of new data is sent longer than the others, as a probe. Its acknowledgment makes its size
//!   that of all; its loss is no congestion, and the next probe is half-way (RFC 4821 §7.3, §7.6). Probes need SACK, which
//!   finds a single loss without a time-out, and a flow with data enough that the loss is found soon.

use std::ops::Range;
use std::time::Duration;

use scoutline_base::Time;

use super::{Connection, HEADERS, State};
use crate::path_mtu::{LEAST_MTU, PATH_MTU_TIME};
use crate::tcp::congestion::Controller;
use crate::tcp::segment::Transmit;

/// RFC 1191 §7.1: the sizes of links, for routers that do not tell.
const PLATEAUS: [u16; 8] = [65_535, 32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006];
/// RFC 4821 §7.2, eff_pmtu's base; Linux: `tcp_base_mss`.
const BASE_SEGMENT: u16 = 1024;
/// Retransmissions in vain that make a black hole likely (RFC 9293 §3.8.3: R1). Linux: `tcp_retries1`.
const BLACK_HOLE_ATTEMPTS: u8 = 3;
/// From a probe that was lost to the next.
const NEXT_AFTER: Duration = Duration::from_secs(1);
/// A search that is so near its end is over. Linux: `tcp_probe_threshold` is 8.
const FINE_ENOUGH: u16 = 32;
/// A probe goes only with so many segments behind it in the window: their acknowledgments tell whether it is lost. Linux
/// asks for a window of 11.
const COMPANY: u64 = 4;

/// What is known of the path's size beyond what is in use. All sizes count options, as [`super::Negotiated`]'s `mss`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathMtu {
    /// What both ends agreed on: no segment is longer.
    most: u16,
    /// The least that is known not to pass.
    above: u16,
    /// The size of the probe under way.
    size: u16,
    /// The stream units of the probe under way: none where there are none.
    start: u64,
    len: u16,
    /// When to send the next probe; `Time::MAX`: there is none to send.
    at: Time,
}

impl Default for PathMtu {
    fn default() -> PathMtu {
        PathMtu { most: 0, above: u16::MAX, size: 0, start: 0, len: 0, at: Time::MAX }
    }
}

impl PathMtu {
    /// A probe may be due: asked before new data.
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.at <= now
    }

    /// A probe is under way, and `una` covers it.
    #[inline]
    pub(super) fn is_answered(&self, una: u64) -> bool {
        self.is_under_way() && una >= self.units().end
    }

    #[inline]
    fn is_under_way(&self) -> bool {
        self.len > 0
    }

    fn units(&self) -> Range<u64> {
        self.start..self.start + u64::from(self.len)
    }

    fn forget_probe(&mut self) {
        self.len = 0;
    }
}

impl Connection {
    /// A router on the way has dropped a packet of ours as too long for a link that takes `mtu` bytes (RFC 1191 §6; 0:
    /// it does not say). `sequence` is what it quotes of the packet. The size of packets that others may go by, where that
    /// is to be believed.
    pub fn on_too_long(&mut self, mtu: u16, sequence: u32, now: Time) -> Option<u16> {
        // RFC 5927 §7.2: about something that is in flight.
        if !self.is_outstanding(sequence) || self.state == State::SynSent {
            return None;
        }
        let before = self.negotiated.mss;
        let long = u32::from(before) + u32::from(HEADERS);
        let mtu = match mtu {
            0 => PLATEAUS.into_iter().find(|&plateau| u32::from(plateau) < long).unwrap_or(LEAST_MTU),
            mtu => mtu,
        };
        let segment = mtu.max(LEAST_MTU) - HEADERS;
        let probe = &mut self.path_mtu;
        if probe.is_under_way() && segment < probe.size {
            // The next one fits what was told.
            probe.above = probe.above.min(segment.max(before) + 1);
        }
        if segment >= before {
            return Some(mtu);
        }
        self.shrink(segment, now + PATH_MTU_TIME);
        if self.send.una < self.send.next && self.state.may_send() {
            // RFC 1191 §6.4: what was too long goes again, and is no sign of congestion.
            self.recovery.on_closed_window(self.send.una, self.send.next, self.send.max);
            self.go_back();
        }
        Some(mtu)
    }

    /// Others that send to this peer have been told that no more than `mtu` bytes arrive (RFC 8201 §5.2), which is
    /// believed until then. Of what is under way whoever drops it tells us.
    pub fn on_told_by_others(&mut self, mtu: u16, until: Time) {
        let segment = mtu.max(LEAST_MTU) - HEADERS;
        if segment < self.negotiated.mss {
            self.shrink(segment, until);
        }
    }

    /// The retransmission timer has expired `attempts` times: perhaps because of the size.
    pub(super) fn suspect_black_hole(&mut self, now: Time) {
        let (segment, probe) = (self.negotiated.mss, &mut self.path_mtu);
        if probe.is_under_way() {
            probe.forget_probe();
            probe.above = probe.size;
        }
        let outstanding = self.send.max - self.send.una;
        if self.attempts <= BLACK_HOLE_ATTEMPTS || outstanding < u64::from(self.segment()) {
            return;
        }
        let smaller = (segment / 2).clamp(LEAST_MTU - HEADERS, BASE_SEGMENT);
        if smaller < segment {
            // As soon as something is acknowledged again.
            self.shrink(smaller, now);
        }
    }

    /// Segments are shorter from now on, and are tried longer from `at` on.
    fn shrink(&mut self, segment: u16, at: Time) {
        let probe = &mut self.path_mtu;
        probe.most = probe.most.max(self.negotiated.mss);
        probe.above = probe.most + 1;
        probe.at = at;
        probe.forget_probe();
        self.set_segment(segment);
    }

    fn set_segment(&mut self, segment: u16) {
        self.negotiated.mss = segment;
        self.congestion.set_segment(self.negotiated.segment_payload());
    }

    /// The size to try next; `None`: the search is over, until the path may have changed.
    fn next_size(&mut self, now: Time) -> Option<u16> {
        let (segment, probe) = (self.negotiated.mss, &mut self.path_mtu);
        if segment >= probe.most {
            probe.at = Time::MAX;
            return None;
        }
        if probe.above > probe.most {
            return Some(probe.most);
        }
        if probe.above - segment <= FINE_ENOUGH {
            probe.above = probe.most + 1;
            probe.at = now + PATH_MTU_TIME;
            return None;
        }
        Some(u16::midpoint(segment, probe.above))
    }

    /// The probe that is due, where everything is such that its loss would be found soon.
    #[cold]
    pub(super) fn poll_size_probe(&mut self, now: Time) -> Option<Transmit> {
        let next = self.send.next;
        let is_quiet = self.recovery.is_quiet() && next == self.send.max && self.attempts == 0;
        if !is_quiet || !self.negotiated.sack || self.path_mtu.is_under_way() {
            return None;
        }
        let size = self.next_size(now)?;
        let options = self.negotiated.mss - self.negotiated.segment_payload();
        let len = u64::from(size - options);
        let company = COMPANY * u64::from(self.segment());
        let window_end = self.send.una + u64::from(self.send.window);
        let has_room = self.congestion_room() >= len + company && window_end >= next + len + company;
        if self.data_end() < next + len + company || !has_room || u64::from(self.transmit_limit) < len {
            return None;
        }
        (self.path_mtu.start, self.path_mtu.len, self.path_mtu.size) = (next, len as u16, size);
        self.book_sent(next..next + len, len, now);
        let transmit = self.range_transmit(next..next + len, false, now);
        Some(Transmit { segment_size: len as u16, ..transmit })
    }

    /// The probe was acknowledged: the path takes its size.
    #[cold]
    pub(super) fn on_size_probe_answered(&mut self, now: Time) {
        self.path_mtu.forget_probe();
        self.path_mtu.at = now;
        self.set_segment(self.path_mtu.size);
    }

    /// Something was found lost. True when it is the probe and nothing else: that is no congestion (RFC 4821 §7.6.2).
    pub(super) fn is_size_probe_lost(&mut self, now: Time) -> bool {
        let probe = &mut self.path_mtu;
        if !probe.is_under_way() || !self.recovery.is_lost(&probe.units()) {
            return false;
        }
        probe.above = probe.above.min(probe.size);
        probe.at = now + NEXT_AFTER;
        let alone = self.recovery.lost() == u64::from(probe.len);
        probe.forget_probe();
        alone
    }
}
