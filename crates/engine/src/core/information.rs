//! What a program may ask about TCP: TCP_INFO as Linux lays it out, the congestion control and segment size in use.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use scoutline_abi::layout::{Call, slot_option};
use scoutline_base::Time;
use scoutline_proto::tcp::recovery::Phase;
use scoutline_proto::tcp::{Algorithm, Info, State, TcpStage};

use super::Core;
use crate::socket::SocketEnd;

/// An errno as a result.
type Errno = i32;

/// Bytes in the arguments of a call.
const PAGE: usize = 32;
/// By which a header of IPv6 is longer than one of IPv4.
const LONGER_HEADER: u32 = 20;
/// TCP_MSS_DEFAULT: what Linux says of a socket without a connection.
const DEFAULT_SEGMENT: i32 = 536;

impl Core {
    /// Answers GET_OPTION for the options of TCP.
    pub(super) fn tell_transport(
        &self,
        end: &Rc<SocketEnd>,
        option: u64,
        call: &Call,
        now: Time,
    ) -> Result<i32, Errno> {
        let path = end.path.get().and_then(|id| self.paths.get(id));
        let connection = path.and_then(|path| path.stage::<TcpStage>()).and_then(TcpStage::connection);
        let info = connection.map(scoutline_proto::tcp::Connection::info);
        match option {
            slot_option::CONGESTION => {
                let asked = Algorithm::by_number(end.tuning.get().congestion);
                let in_use = info.map(|info| info.congestion);
                // What was said may not have reached the connection yet.
                let is_to_hear = end.path.get().is_some_and(|id| self.is_kicked(id));
                let algorithm = if is_to_hear { asked.or(in_use) } else { in_use.or(asked) };
                Ok(i32::from(algorithm.unwrap_or(self.settings.tcp.congestion).number()))
            }
            slot_option::MAX_SEGMENT => Ok(info.map_or(DEFAULT_SEGMENT, |info| i32::from(info.snd_mss))),
            slot_option::SYN_COUNT => Ok(end.tuning.get().syn_count.into()),
            slot_option::ORPHAN_WAIT => Ok(i32::from(end.tuning.get().orphan_wait_s) + 1),
            slot_option::WINDOW_CLAMP => Ok(end.tuning.get().window_clamp.min(i32::MAX as u32) as i32),
            slot_option::INFO => {
                let mut image = Image::default();
                match &info {
                    Some(info) => {
                        image.connection(info, end.shared().remote_address.load().is_v4(), now);
                        let unsent = info.unsent.saturating_add(written_since(end));
                        image.put32(144, unsent.min(u64::from(u32::MAX)) as u32); // notsent_bytes
                    }
                    None => image.without_connection(end),
                }
                let most = most_paced(end);
                image.put64(112, most); // max_pacing_rate
                if info.is_none() {
                    image.put64(104, most); // pacing_rate: not known yet
                }
                if let Some(connection) = connection {
                    let chronograph = connection.chronograph();
                    image.put64(168, chronograph.busy(now).as_micros() as u64); // busy_time
                    image.put64(176, chronograph.window_limited(now).as_micros() as u64); // rwnd_limited
                    image.put64(184, chronograph.ring_limited(now).as_micros() as u64); // sndbuf_limited
                }
                if let Some(path) = path {
                    let account = &path.account;
                    let (merged_in, merged_out) = info.as_ref().map_or((0, 0), |info| info.merged_segments);
                    image.put32(136, (account.packets_out as u32).wrapping_add(merged_out)); // segs_out
                    image.put32(140, (account.packets_in as u32).wrapping_add(merged_in)); // segs_in
                }
                let page = call.arguments[1].load(Ordering::Relaxed) as usize;
                let at = page.saturating_mul(PAGE);
                let bytes = image.0.get(at..at.saturating_add(PAGE)).ok_or(libc::EINVAL)?;
                for (cell, word) in call.arguments.iter().zip(bytes.chunks_exact(8)) {
                    cell.store(u64::from_ne_bytes(word.try_into().unwrap_or_default()), Ordering::Relaxed);
                }
                Ok(0)
            }
            _ => self.tell_fast_open(end, option, call),
        }
    }
}

/// What the program has written and its path has not looked at yet; no more than the ring holds, whatever the program says.
fn written_since(end: &SocketEnd) -> u64 {
    let written = end.shared().send_tail.load(Ordering::Acquire);
    written.saturating_sub(end.written.get()).min(u64::from(end.send_size()))
}

/// SO_MAX_PACING_RATE, all bits set where there is no limit. The connection may not have heard of it yet.
fn most_paced(end: &SocketEnd) -> u64 {
    slot_option::pacing_word(end.tuning.get().max_pacing_rate)
}

/// `struct tcp_info` (linux/tcp.h) in memory; offsets are those of its fields.
struct Image([u8; slot_option::INFO_LEN]);

impl Default for Image {
    fn default() -> Image {
        Image([0; slot_option::INFO_LEN])
    }
}

impl Image {
    fn put32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn put64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    fn without_connection(&mut self, end: &SocketEnd) {
        let listens = !end.listen_paths.borrow().is_empty();
        self.0[0] = number_of(if listens { State::Listen } else { State::Closed });
        if listens {
            // As Linux: the length of the accept queue, and its limit.
            let taken = end.shared().receive_head.load(Ordering::Acquire);
            self.put32(24, end.received.get().saturating_sub(taken) as u32);
            self.put32(28, end.backlog.get().saturating_sub(1));
        }
    }

    fn connection(&mut self, info: &Info, over_v4: bool, now: Time) {
        let segment = u64::from(info.snd_mss.max(1));
        let segments = |bytes: u64| bytes.div_ceil(segment) as u32;
        let micros = |time: Duration| time.as_micros().min(u128::from(u32::MAX)) as u32;
        let age = |then: Time| now.since(then).as_millis().min(u128::from(u32::MAX)) as u32;
        self.octets(info);
        self.put32(8, micros(info.rto));
        self.put32(16, u32::from(info.snd_mss));
        self.put32(20, u32::from(info.rcv_mss));
        self.put32(24, segments(info.unacked));
        self.put32(28, segments(info.sacked));
        self.put32(32, segments(info.lost));
        self.put32(36, segments(info.again)); // retrans
        self.put32(44, age(info.last_sent));
        self.put32(52, age(info.last_heard)); // last_data_recv: nearly so
        self.put32(56, age(info.last_heard));
        self.put32(60, u32::from(info.path_mtu) + if over_v4 { 0 } else { LONGER_HEADER });
        self.put32(64, info.rcv_wnd);
        self.put32(68, info.srtt.map_or(0, micros));
        self.put32(72, micros(info.rttvar));
        let threshold =
            if info.ssthresh == u32::MAX { i32::MAX as u32 } else { segments(u64::from(info.ssthresh)) };
        self.put32(76, threshold);
        self.put32(80, segments(u64::from(info.cwnd)));
        self.put32(84, u32::from(info.advertised_mss));
        self.put32(88, info.reordering);
        self.put32(96, info.rcv_wnd); // rcv_space
        self.put32(100, info.retransmits);
        self.put64(104, info.pacing_rate.unwrap_or(u64::MAX));
        // Linux counts the SYN of who opened the connection.
        self.put64(120, info.acknowledged + u64::from(!info.passive && info.state != State::SynSent));
        self.put64(128, info.received);
        self.put32(148, info.min_rtt.map_or(u32::MAX, micros));
        let (data_in, data_out) = info.data_segments;
        self.put32(152, data_in);
        self.put32(156, data_out);
        self.put64(160, info.delivery_rate);
        self.put32(192, segments(info.acknowledged + info.sacked)); // delivered
        self.put64(200, info.acknowledged + info.unacked + info.retransmitted); // bytes_sent
        self.put64(208, info.retransmitted);
        self.put32(216, info.duplicates);
        self.put32(220, info.reorderings);
        self.put32(228, info.snd_wnd);
        self.put32(232, info.rcv_wnd);
    }

    /// The fields of one byte and less.
    fn octets(&mut self, info: &Info) {
        self.0[0] = number_of(info.state);
        // TCP_CA_Open, Disorder, CWR, Recovery, Loss
        self.0[1] = match info.phase {
            Phase::Open if info.reducing => 2,
            Phase::Open if info.sacked > 0 => 1,
            Phase::Open => 0,
            Phase::Fast => 3,
            Phase::Loss => 4,
        };
        self.0[2] = info.attempts;
        self.0[3] = info.probes;
        self.0[4] = info.backoff;
        let scaled = info.snd_wscale != 0 || info.rcv_wscale != 0;
        let options = [(1, info.timestamps), (2, info.sack), (4, scaled), (8, info.ecn), (32, info.syn_data)];
        self.0[5] = options.iter().map(|&(bit, on)| if on { bit } else { 0 }).sum();
        self.0[6] = info.snd_wscale & 0xf | info.rcv_wscale << 4;
        self.0[7] = u8::from(info.app_limited); // delivery_rate_app_limited
    }
}

/// Linux's numbers for the states (`enum` in net/tcp_states.h).
fn number_of(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Listen => 10,
        State::Closing => 11,
    }
}
