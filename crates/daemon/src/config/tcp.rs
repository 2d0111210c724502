//! `[tcp]`: how connections behave, unless their program says otherwise.

use scoutline_engine::TcpSettings;
use scoutline_proto::tcp::{Algorithm, Pacing, ecn};
use serde::Deserialize;

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
            ..TcpSettings::default()
        }
    }
}
