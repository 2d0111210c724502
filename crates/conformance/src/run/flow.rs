//! One connection's numbers: the script's and those on the wire.

use scoutline_base::Random;

/// What is known of a flow.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// Added to the peer's numbers.
    pub(super) remote_offset: u32,
    /// Added to ours; learnt from our SYN.
    pub(super) local_offset: Option<u32>,
    /// The script's number of the peer's SYN in the connection of now: where its stream begins.
    pub(super) remote_base: Option<u32>,
    /// The script's number of our SYN.
    pub(super) local_base: u32,
    /// The peer's SYN that came last.
    pub(super) syn_came: Option<u32>,
    /// Values of our timestamps: the script's and those on the wire.
    pub(super) timestamps: Vec<(u32, u32)>,
}

impl Flow {
    pub(super) fn new(seed: u64, ports: (u16, u16)) -> Flow {
        let mut random = Random::new(seed ^ u64::from(ports.0) << 16 ^ u64::from(ports.1));
        let offset = random.next_u32();
        // Where numbers wrap, comparisons go wrong.
        let remote_offset = if random.below(4) == 0 { offset | 0xffff_f000 } else { offset };
        Flow {
            remote_offset,
            local_offset: None,
            remote_base: None,
            local_base: 0,
            syn_came: None,
            timestamps: Vec::new(),
        }
    }

    /// A number of ours as on the wire.
    pub(super) fn local_live(&self, script: u32) -> u32 {
        script.wrapping_add(self.local_offset.unwrap_or(0))
    }

    /// A number of ours as in the script.
    pub(super) fn local_script(&self, live: u32) -> u32 {
        live.wrapping_sub(self.local_offset.unwrap_or(0))
    }

    /// A number of the peer's as on the wire.
    pub(super) fn remote_live(&self, script: u32) -> u32 {
        script.wrapping_add(self.remote_offset)
    }

    /// A number of the peer's as in the script.
    pub(super) fn remote_script(&self, live: u32) -> u32 {
        live.wrapping_sub(self.remote_offset)
    }

    /// Our timestamp of this value in the script, as on the wire: an echo.
    pub(super) fn echo_live(&self, script: u32) -> u32 {
        let exact = self.timestamps.iter().rev().find(|(known, _)| *known == script);
        match exact.or(self.timestamps.first()) {
            Some((known, live)) => live.wrapping_add(script.wrapping_sub(*known)),
            None => script,
        }
    }

    /// The position in the peer's stream of a number of the script's.
    pub(super) fn remote_position(&self, script: u32) -> u64 {
        let base = self.remote_base.or(self.syn_came).unwrap_or(0);
        u64::from(script.wrapping_sub(base.wrapping_add(1)))
    }

    /// The position in our stream of a number of the script's.
    pub(super) fn local_position(&self, script: u32) -> u64 {
        u64::from(script.wrapping_sub(self.local_base.wrapping_add(1)))
    }
}
