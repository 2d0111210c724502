//! What a connection may be told. Shared between connections (`Arc`), so that each carries a pointer only.

use std::time::Duration;

use crate::tcp::congestion::Algorithm;
use crate::tcp::{ecn, fast_open};

/// Keepalive (RFC 9293 §3.8.4), as Linux's `TCP_KEEPIDLE`, `TCP_KEEPINTVL` and `TCP_KEEPCNT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection is given up.
    pub count: u8,
}

impl Default for Keepalive {
    /// RFC 9293 §3.8.4: no less than two hours by default.
    fn default() -> Keepalive {
        Keepalive { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), count: 9 }
    }
}

/// Whether data leaves at the rate that the window means, in bursts of a millisecond, instead of as acknowledgments come.
/// BBR always does so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pacing {
    /// It does not.
    Never,
    /// On paths whose round trip is some bursts long: there what was sent at once stays together until a queue spreads
    /// it, and where there is no queue (a policer) it is lost. Small windows go at once, so that a short answer takes no
    /// longer.
    #[default]
    LongPaths,
    /// It does.
    Always,
}

/// Settings of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our maximum segment size in bytes: the MTU less 40 (IPv4). Options are counted in, as in RFC 6691.
    pub mss: u16,
    /// What the peer is told to send at most, in bytes; `None`: the same.
    pub advertised_mss: Option<u16>,
    /// The initial congestion window, in segments; `None`: RFC 6928's.
    pub initial_window: Option<u16>,
    /// The window that our SYN tells at most, in segments of what the peer is told; `None`: what the ring holds.
    pub initial_receive_window: Option<u16>,
    /// Size of the receive ring in bytes: the window is never above it.
    pub receive_buffer: u32,
    /// The size to which the receive ring may grow, in bytes: it decides the window scale, which is fixed at the
    /// start. Who lets it grow is the program's side, see [`Connection::set_receive_buffer`](super::Connection). Less than `receive_buffer` means the same.
    pub receive_buffer_max: u32,
    /// Size of the send ring in bytes: what is written beyond it is not believed.
    pub send_buffer: u32,
    /// Congestion control.
    pub congestion: Algorithm,
    /// Whether data leaves at a rate.
    pub pacing: Pacing,
    /// Small segments wait while one is unacknowledged (RFC 9293 §3.7.4, with Minshall's refinement).
    pub nagle: bool,
    /// Longest delay of an acknowledgment; RFC 9293 §3.8.6.3 allows 500 ms.
    pub delayed_ack: Duration,
    /// How long TIME-WAIT lasts: twice the MSL.
    pub time_wait: Duration,
    /// How long FIN-WAIT-2 lasts once the program has closed.
    pub orphan_timeout: Duration,
    /// Keepalive; off by default.
    pub keepalive: Option<Keepalive>,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Offer selective acknowledgment (RFC 2018).
    pub selective_ack: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: ecn::Policy,
    /// What is allowed of fast open (RFC 7413); nothing by default.
    pub fast_open: fast_open::Policy,
    /// What makes its cookies; `None`: keys that nobody else has.
    pub fast_open_keys: Option<fast_open::Keys>,
    /// Answer with cookies when there is no place for another handshake (RFC 4987 §3.6).
    pub syn_cookies: bool,
    /// Give up when data stays unacknowledged for so long (RFC 5482).
    pub user_timeout: Option<Duration>,
    /// So many segments may leave as one on a long path, however slow it is; more, if they stand for a millisecond. Linux
    /// has 2 (`tcp_min_tso_segs`), so that routers see small bursts; with the default here what fits into the initial
    /// window costs no more of our time than it must.
    pub min_burst_segments: u8,
    /// A window that was not used for longer than a time-out stays as it is, other than RFC 5681 §4.1 says.
    pub keeps_idle_window: bool,
    /// Programs write while less than this is unsent, in bytes, unless they set TCP_NOTSENT_LOWAT; 0: there is no bound.
    pub unsent_low_water: u32,
    /// Most payload of one `Transmit`, in bytes; [`Tcp`](super::Tcp) takes less where the device takes less.
    pub max_transmit_len: u32,
    /// The least that variation adds to the retransmission time-out.
    pub min_rto: Duration,
    /// Retransmissions of data before giving up (RFC 9293 §3.8.3: R2 of at least 100 s).
    pub max_retransmits: u8,
    /// Retransmissions of a SYN before giving up.
    pub max_syn_retransmits: u8,
    /// Retransmissions and probes before giving up, once the program has closed.
    pub max_orphan_retransmits: u8,
}

impl Config {
    /// The MSS option of our SYN.
    pub fn told_mss(&self) -> u16 {
        self.advertised_mss.unwrap_or(self.mss)
    }

    /// The window of our SYN, of which `could` fits the ring (RFC 7323 §2.2: not scaled).
    pub fn syn_window(&self, could: u64) -> u16 {
        let most = self
            .initial_receive_window
            .map_or(u64::MAX, |segments| u64::from(segments) * u64::from(self.told_mss()));
        could.min(most).min(u64::from(u16::MAX)) as u16
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mss: 1460,
            advertised_mss: None,
            initial_window: None,
            initial_receive_window: None,
            receive_buffer: 256 * 1024,
            receive_buffer_max: 6 * 1024 * 1024,
            send_buffer: 256 * 1024,
            congestion: Algorithm::Cubic,
            pacing: Pacing::Never,
            nagle: true,
            delayed_ack: Duration::from_millis(40),
            time_wait: Duration::from_secs(60),
            orphan_timeout: Duration::from_secs(60),
            keepalive: None,
            timestamps: true,
            window_scaling: true,
            selective_ack: true,
            ecn: ecn::Policy::default(),
            fast_open: fast_open::Policy::empty(),
            fast_open_keys: None,
            syn_cookies: true,
            user_timeout: None,
            min_burst_segments: 10,
            keeps_idle_window: false,
            unsent_low_water: 0,
            max_transmit_len: 65_160,
            min_rto: Duration::from_millis(200),
            max_retransmits: 15,
            max_syn_retransmits: 6,
            max_orphan_retransmits: 8,
        }
    }
}
