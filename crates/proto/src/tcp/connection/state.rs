//! The states of a connection (RFC 9293 §3.3.2).

/// The states of RFC 9293 §3.3.2, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Waiting for a request. No `Connection` is ever in it: a listener is the caller's.
    Listen,
    /// Waiting for the answer to our SYN.
    SynSent,
    /// Waiting for the acknowledgment of our SYN.
    SynReceived,
    /// Open.
    Established,
    /// Our FIN is queued or sent.
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2,
    /// The peer's FIN came; we may still send.
    CloseWait,
    /// Both FINs crossed; ours is not acknowledged yet.
    Closing,
    /// The peer's FIN came first; ours is not acknowledged yet.
    LastAck,
    /// Waiting until no old segment can be about.
    TimeWait,
    /// No connection.
    Closed,
}

impl State {
    /// The standard's spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Listen => "LISTEN",
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECEIVED",
            State::Established => "ESTABLISHED",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::CloseWait => "CLOSE-WAIT",
            State::Closing => "CLOSING",
            State::LastAck => "LAST-ACK",
            State::TimeWait => "TIME-WAIT",
            State::Closed => "CLOSED",
        }
    }

    /// The peer may still send data.
    pub(super) const fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Data or a FIN of ours may be unsent or unacknowledged.
    pub(super) const fn may_send(self) -> bool {
        matches!(
            self,
            State::Established | State::FinWait1 | State::CloseWait | State::Closing | State::LastAck
        )
    }
}
