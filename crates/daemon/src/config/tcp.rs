//! `[tcp]`: how connections behave, unless their program says otherwise.

use scoutline_engine::TcpSettings;
use scoutline_proto::tcp::{Algorithm, Pacing, ecn, fast_open};
use serde::Deserialize;

use super::values::Size;

/// `[tcp]`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tcp {
    /// Congestion control.
    pub congestion: Congestion,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: Ecn,
    /// Data leaves at a rate, in bursts of a millisecond, whatever the congestion control; not said: on long paths.
    pub pacing: Option<bool>,
    /// Data with a SYN (RFC 7413).
    pub fast_open: FastOpen,
    /// Programs write while less than this is unsent, unless they set TCP_NOTSENT_LOWAT.
    pub notsent_lowat: Option<Size>,
}

/// `congestion = "…"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681 and 6582.
    Reno,
    /// BBR, version 1.
    Bbr,
    /// What others leave over.
    #[serde(rename = "ledbat++")]
    LedbatPlusPlus,
}

/// `ecn = "…"`, as Linux's `tcp_ecn` 0, 2 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ecn {
    /// Never.
    Off,
    /// When a peer offers it.
    #[default]
    Accept,
    /// Offered to peers, too.
    Offer,
}

/// `fast_open = "…"`, as Linux's `tcp_fastopen` 0, 1, 2 and 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FastOpen {
    /// Never.
    #[default]
    Off,
    /// Programs may send data with their SYN.
    Client,
    /// Listening sockets may take data with a SYN.
    Server,
    /// Both.
    Both,
}

impl Tcp {
    /// The same in the engine's words.
    pub(crate) fn settings(self) -> TcpSettings {
        TcpSettings {
            congestion: match self.congestion {
                Congestion::Cubic => Algorithm::Cubic,
                Congestion::Reno => Algorithm::NewReno,
                Congestion::Bbr => Algorithm::Bbr,
                Congestion::LedbatPlusPlus => Algorithm::LedbatPlusPlus,
            },
            ecn: match self.ecn {
                Ecn::Off => ecn::Policy::Off,
                Ecn::Accept => ecn::Policy::Accept,
                Ecn::Offer => ecn::Policy::Offer,
            },
            pacing: match self.pacing {
                None => Pacing::LongPaths,
                Some(true) => Pacing::Always,
                Some(false) => Pacing::Never,
            },
            fast_open: match self.fast_open {
                FastOpen::Off => fast_open::Policy::empty(),
                FastOpen::Client => fast_open::Policy::CLIENT,
                FastOpen::Server => fast_open::Policy::SERVER,
                FastOpen::Both => fast_open::Policy::CLIENT | fast_open::Policy::SERVER,
            },
            // 2³² - 1 is no bound.
            unsent_low_water: self.notsent_lowat.map_or(0, |size| u32::try_from(size.0).unwrap_or(0)),
            ..TcpSettings::default()
        }
    }
}
