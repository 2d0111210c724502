//! A descriptor of the model program: what the shim keeps of it beside its slot.

use scoutline_base::Address;

/// A descriptor.
#[derive(Clone, Debug, Default)]
pub(super) struct Fd {
    pub(super) slot: u32,
    /// AF_INET6.
    pub(super) inet6: bool,
    pub(super) non_blocking: bool,
    /// A connection attempt whose outcome `connect` has not told yet.
    pub(super) connect_pending: bool,
    /// TCP_FASTOPEN_CONNECT.
    pub(super) fast_open_connect: bool,
    pub(super) cork: bool,
    pub(super) no_delay: bool,
    pub(super) keep_alive: bool,
    pub(super) keep_alive_times: (u32, u32, u32),
    pub(super) reuse: u64,
    pub(super) oob_inline: bool,
    /// Seconds plus one.
    pub(super) linger_plus_one: u32,
    pub(super) receive_timeout_us: u64,
    pub(super) send_timeout_us: u64,
    pub(super) low_water: u32,
    /// TCP_MAXSEG.
    pub(super) max_segment: u32,
}

impl Fd {
    /// Any address of its family.
    pub(super) fn any(&self) -> Address {
        if self.inet6 { Address::UNSPECIFIED_V6 } else { Address::UNSPECIFIED_V4 }
    }
}
