//! The kernel's settings of TCP, as far as ours can be set so: scripts for packetdrill begin by setting the kernel up.

use std::fs;

use scoutline_conformance::stack::Setting;
use scoutline_proto::tcp::{Algorithm, ecn, fast_open};

/// Where the kernel has them, for this network namespace.
const FOLDER: &str = "/proc/sys/net/ipv4";

/// The setting that the kernel has, on top of `setting`. What cannot be read stays as it is.
pub(crate) fn apply(setting: Setting) -> Setting {
    apply_from(setting, |name| fs::read_to_string(format!("{FOLDER}/{name}")).ok())
}

fn apply_from(mut setting: Setting, read: impl Fn(&str) -> Option<String>) -> Setting {
    let word = |name: &str| read(name).map(|text| text.trim().to_owned());
    if let Some(algorithm) = word("tcp_congestion_control").and_then(|name| Algorithm::by_name(&name)) {
        setting.tcp.congestion = algorithm;
    }
    // 1: asked for and agreed to; 2: agreed to.
    setting.tcp.ecn = match word("tcp_ecn").as_deref() {
        Some("0") => ecn::Policy::Off,
        Some("1") => ecn::Policy::Offer,
        Some("2") => ecn::Policy::Accept,
        _ => setting.tcp.ecn,
    };
    setting.tcp.no_timestamps = word("tcp_timestamps").as_deref() == Some("0");
    setting.tcp.keeps_idle_window = word("tcp_slow_start_after_idle").as_deref() == Some("0");
    setting.tcp.min_burst_segments = word("tcp_min_tso_segs").and_then(|segments| segments.parse().ok());
    // 2³² - 1, as it is by default, is no bound.
    let unsent =
        word("tcp_notsent_lowat").and_then(|bytes| bytes.parse().ok()).filter(|&bytes| bytes != u32::MAX);
    setting.tcp.unsent_low_water = unsent.unwrap_or(0);
    if let Some(bits) = word("tcp_fastopen").and_then(|bits| bits.parse().ok()) {
        setting.tcp.fast_open = fast_open::Policy::from_bits_truncate(bits);
    }
    setting.tcp.fast_open_keys = word("tcp_fastopen_key").and_then(|text| fast_open::Keys::parse(&text));
    setting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_has_is_taken_over() {
        let setting = apply_from(Setting::default(), |name| match name {
            "tcp_congestion_control" => Some("reno\n".into()),
            "tcp_ecn" => Some("1\n".into()),
            "tcp_timestamps" | "tcp_slow_start_after_idle" => Some("0\n".into()),
            "tcp_min_tso_segs" => Some("4\n".into()),
            "tcp_fastopen" => Some("1027\n".into()),
            "tcp_notsent_lowat" => Some("16384\n".into()),
            _ => None,
        });
        assert_eq!(setting.tcp.congestion, Algorithm::NewReno);
        assert_eq!(setting.tcp.ecn, ecn::Policy::Offer);
        assert!(setting.tcp.no_timestamps && setting.tcp.keeps_idle_window);
        assert_eq!((setting.tcp.min_burst_segments, setting.tcp.unsent_low_water), (Some(4), 16_384));
        let unbound = apply_from(Setting::default(), |name| {
            (name == "tcp_notsent_lowat").then(|| "4294967295\n".into())
        });
        assert_eq!(unbound.tcp.unsent_low_water, 0);
        let policy =
            fast_open::Policy::CLIENT | fast_open::Policy::SERVER | fast_open::Policy::EVERY_LISTENER;
        assert_eq!(setting.tcp.fast_open, policy);
    }
}
