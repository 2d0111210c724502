//! Defects that can be switched on, to see that the simulation finds them (DESIGN.md §8, STYLE: "no test that cannot
//! fail"). They are put on around a host, so that nothing of them stands in the code that is shipped: from outside, a
//! stack with the defect looks just so.

use clap::ValueEnum;

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Canary {
    /// The last byte of a retransmission is not the stream's.
    RetransmitsWrongByte,
    /// More is sent than the peer's window allows.
    IgnoresWindow,
    /// A window that was offered is taken back.
    ShrinksWindow,
    /// Bytes are acknowledged that have not come.
    AcknowledgesTooMuch,
    /// Now and then a program is not told that a socket is ready.
    LosesWake,
    /// Long timers do not fire.
    LosesTimer,
    /// Now and then a socket is not closed.
    LeaksSocket,
    /// A received packet is counted twice.
    MiscountsPackets,
    /// A datagram is delivered twice.
    RepeatsDatagram,
}

impl Canary {
    /// All of them.
    pub const ALL: &'static [Canary] = &[
        Canary::RetransmitsWrongByte,
        Canary::IgnoresWindow,
        Canary::ShrinksWindow,
        Canary::AcknowledgesTooMuch,
        Canary::LosesWake,
        Canary::LosesTimer,
        Canary::LeaksSocket,
        Canary::MiscountsPackets,
        Canary::RepeatsDatagram,
    ];
}
