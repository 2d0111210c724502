//! Proportional rate reduction: what may be sent in fast recovery (RFC 9937, which succeeds RFC 6937).
//!
//! While more is in the network than the threshold, as much is sent as is delivered, times the reduction. Below it, as
//! much as is delivered (PRR-CRB), and one segment more when the acknowledgment tells of progress and of no further loss
//! (PRR-SSRB): so the window comes out at the threshold however much was lost, but what loses what is sent again, as a
//! policer does, is not sent more of it.

/// The state of one recovery. All in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prr {
    /// RecoverFS: what was outstanding when it began.
    flight: u64,
    /// prr_delivered
    delivered: u64,
    /// prr_out
    sent: u64,
    /// sndcnt: what may be sent now.
    allowance: u64,
}

impl Prr {
    /// A recovery begins with `flight` bytes outstanding.
    pub fn new(flight: u64) -> Prr {
        Prr { flight: flight.max(1), ..Prr::default() }
    }

    /// What may be sent now.
    #[inline]
    pub fn allowance(&self) -> u64 {
        self.allowance
    }

    /// An acknowledgment has delivered so many bytes, with `pipe` in the network after it, aiming at `threshold`. `safe`:
    /// it advances the window and tells of no further loss (RFC 9937 SafeACK).
    pub fn on_delivered(&mut self, delivered: u64, pipe: u64, threshold: u64, segment: u64, safe: bool) {
        // What delivers nothing clocks nothing out.
        if delivered > 0 {
            self.delivered += delivered;
            self.allowance = if pipe > threshold {
                let share = u128::from(self.delivered) * u128::from(threshold);
                let share = share.div_ceil(u128::from(self.flight)).min(u128::from(u64::MAX)) as u64;
                share.saturating_sub(self.sent)
            } else {
                let limit = self.delivered.saturating_sub(self.sent).max(delivered);
                (limit + if safe { segment } else { 0 }).min(threshold - pipe)
            };
        }
        if self.sent == 0 {
            // RFC 9937 §6.2: the first retransmission goes in any case.
            self.allowance = self.allowance.max(segment);
        }
    }

    /// So many bytes were sent.
    #[inline]
    pub fn on_sent(&mut self, bytes: u64) {
        self.sent += bytes;
        self.allowance = self.allowance.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6937 §4, first figure: twenty segments, the first lost, and one is sent for each that is delivered but for
    /// the reduction.
    #[test]
    fn one_loss_sends_in_proportion_and_ends_at_the_threshold() {
        let (mut prr, threshold) = (Prr::new(20), 10);
        let (mut pipe, mut sent) = (19, 0);
        for _ in 0..19 {
            pipe -= 1;
            prr.on_delivered(1, pipe, threshold, 1, true);
            let now = prr.allowance();
            prr.on_sent(now);
            pipe += now;
            sent += now;
        }
        assert!((10..=11).contains(&sent), "{sent}");
        assert!((9..=11).contains(&pipe), "{pipe}");
    }

    /// RFC 6937 §4, second figure: fifteen of twenty lost. Below the threshold it grows by one for each delivered.
    #[test]
    fn heavy_loss_grows_like_slow_start_up_to_the_threshold() {
        let mut prr = Prr::new(20);
        prr.on_delivered(1, 4, 10, 1, true);
        assert_eq!(prr.allowance(), 2);
        prr.on_sent(2);
        prr.on_delivered(1, 5, 10, 1, true);
        assert_eq!(prr.allowance(), 2);
        prr.on_sent(2);
        prr.on_delivered(5, 9, 10, 1, true);
        assert_eq!(prr.allowance(), 1, "never beyond the threshold");
    }

    #[test]
    fn the_first_retransmission_always_goes() {
        let mut prr = Prr::new(100_000);
        prr.on_delivered(10, 90_000, 50_000, 1_000, true);
        assert_eq!(prr.allowance(), 1_000);
        prr.on_sent(1_000);
        prr.on_delivered(10, 90_000, 50_000, 1_000, true);
        assert_eq!(prr.allowance(), 0);
    }

    /// RFC 9937 §6.2: what loses more is not sent more than what it delivers.
    #[test]
    fn further_loss_keeps_to_what_is_delivered() {
        let mut prr = Prr::new(20);
        prr.on_delivered(2, 4, 10, 1, false);
        assert_eq!(prr.allowance(), 2);
        prr.on_sent(2);
        prr.on_delivered(1, 3, 10, 1, false);
        assert_eq!(prr.allowance(), 1);
        prr.on_delivered(1, 3, 10, 1, true);
        assert_eq!(prr.allowance(), 3, "progress again");
    }

    /// A timer, or an acknowledgment without news, is no reason to send.
    #[test]
    fn nothing_delivered_lets_nothing_go() {
        let mut prr = Prr::new(20);
        prr.on_delivered(2, 4, 10, 1, true);
        prr.on_sent(3);
        for _ in 0..5 {
            prr.on_delivered(0, 3, 10, 1, false);
            assert_eq!(prr.allowance(), 0);
        }
    }
}
