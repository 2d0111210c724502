//! What two ends agree on in their SYNs: segment size, window scaling, timestamps, SACK.

use scoutline_wire::tcp::{self as wire, Options};

use crate::tcp::config::Config;

/// RFC 9293 §3.7.1: assumed without an MSS option.
pub(super) const DEFAULT_MSS: u16 = 536;
/// A smaller MSS is not believed: options alone would fill the segment. Linux: `TCP_MIN_MSS`.
const MIN_MSS: u16 = 88;
/// RFC 7323 §2.3
const MAX_WINDOW_SCALE: u8 = 14;

/// The outcome of negotiation; before it, what we offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Most payload and options of a segment that we send, in bytes (RFC 6691).
    pub mss: u16,
    /// Timestamps are on every segment.
    pub timestamps: bool,
    /// Both understand SACK.
    pub sack: bool,
    /// Windows are scaled. Without it both shifts are 0.
    pub window_scaling: bool,
    /// Shift of the windows that we receive.
    pub send_scale: u8,
    /// Shift of the windows that we send.
    pub receive_scale: u8,
}

impl Negotiated {
    /// What we offer, before the peer has spoken.
    pub fn offer(config: &Config) -> Negotiated {
        let largest = config.receive_buffer.max(config.receive_buffer_max);
        let needed = (0..MAX_WINDOW_SCALE).find(|&scale| u16::try_from(largest >> scale).is_ok());
        Negotiated {
            mss: config.mss.max(MIN_MSS),
            timestamps: config.timestamps,
            sack: config.selective_ack,
            window_scaling: config.window_scaling,
            send_scale: 0,
            receive_scale: if config.window_scaling { needed.unwrap_or(MAX_WINDOW_SCALE) } else { 0 },
        }
    }

    /// Combines our offer with the peer's SYN or SYN-ACK.
    pub fn accept(&mut self, theirs: &Options) {
        self.mss = self.mss.min(theirs.mss.unwrap_or(DEFAULT_MSS)).max(MIN_MSS);
        self.timestamps &= theirs.timestamps.is_some();
        self.sack &= theirs.sack_permitted;
        // RFC 7323 §2.2: scaling is on only if both SYNs carried the option.
        match theirs.window_scale {
            Some(scale) if self.window_scaling => self.send_scale = scale.min(MAX_WINDOW_SCALE),
            _ => {
                self.window_scaling = false;
                self.receive_scale = 0;
                self.send_scale = 0;
            }
        }
    }

    /// The options of our SYN or SYN-ACK. `timestamps` are the value and the echo, if they are on.
    pub fn syn_options(&self, our_mss: u16, timestamps: (u32, u32)) -> Options {
        Options {
            mss: Some(our_mss),
            window_scale: self.window_scaling.then_some(self.receive_scale),
            sack_permitted: self.sack,
            timestamps: self.timestamps.then_some(timestamps),
            ..Options::default()
        }
    }

    /// Payload of a full-size segment without SACK blocks, in bytes.
    #[inline]
    pub fn segment_payload(&self) -> u16 {
        self.mss - if self.timestamps { wire::TIMESTAMPS_LEN as u16 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_needs_both_and_is_capped() {
        let config = Config { receive_buffer_max: 6 << 20, ..Config::default() };
        let mut ours = Negotiated::offer(&config);
        assert_eq!(ours.receive_scale, 7);
        ours.accept(&Options { window_scale: Some(200), mss: Some(1400), ..Options::default() });
        assert_eq!((ours.send_scale, ours.receive_scale, ours.mss), (14, 7, 1400));
        assert!(!ours.timestamps && !ours.sack);
        let mut ours = Negotiated::offer(&config);
        ours.accept(&Options::default());
        assert_eq!((ours.send_scale, ours.receive_scale, ours.mss), (0, 0, 536));
    }

    #[test]
    fn a_tiny_mss_is_not_believed_and_options_count() {
        let mut ours = Negotiated::offer(&Config::default());
        ours.accept(&Options { mss: Some(1), timestamps: Some((1, 0)), ..Options::default() });
        assert_eq!(ours.segment_payload(), 88 - 12);
        assert_eq!(ours.syn_options(1460, (5, 6)).timestamps, Some((5, 6)));
        let huge = Config { receive_buffer: u32::MAX, ..Config::default() };
        assert_eq!(Negotiated::offer(&huge).receive_scale, 14);
    }
}
