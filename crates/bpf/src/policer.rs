//! A policer at XDP: while a flood lasts, it drops what is too much before anything is spent on it.
//!
//! ```text
//!   driver → native XDP: this → receive steering → generic XDP → packet taps (ours) → …
//!
//!   important by source and port ──────────────────────────────────────────► pass
//!   else: no SYN, and the flood is one of SYNs ────────────────────────────► pass
//!         its flow had `flow` packets in this window ──────────────────────► drop
//!         no SYN, and all of these together had `total` ───────────────────► drop
//!         a SYN, SYNs had `syns`, and it did not come before ──────────────► drop
//!         else ────────────────────────────────────────────────────────────► pass
//! ```
//! What a flow is, and what is remembered of SYNs: see `flow.rs`. Limits hold for each core that receives. A window is
//! 2^20 ns (1.05 ms); counting anew in each needs no division. What is not IP is one flow.
//!
//! In the driver (native) the packet is dropped before it is given to another core; where the driver has no hook
//! (generic) it is dropped in front of the packet taps.

use std::io;
use std::os::fd::OwnedFd;

use crate::flow::{self, Buckets, Exempt, Limits, POLICED, Seen, Sorting};
use crate::instruction::{Instruction, Operand, Operation, Program};
use crate::tcx::AttachError;
use crate::xdp::{self, Mode, XDP_PASS};

/// The policer of one interface, for as long as this lives.
#[derive(Debug)]
pub struct Policer {
    /// The link keeps the program; closing it detaches.
    link: OwnedFd,
    buckets: Buckets,
    mode: Mode,
}

impl Policer {
    /// Attaches to the interface with index `ifindex` in the caller's network namespace: in the driver if that has
    /// the hook, else in front of the packet taps.
    ///
    /// # Errors
    /// What is missing, or somebody else's XDP program is there: see [`AttachError`].
    pub fn attach(ifindex: u32, exempt: &[Exempt], limits: Limits) -> Result<Policer, AttachError> {
        let load = |error| AttachError::at("load", error);
        let buckets = Buckets::new().map_err(load)?;
        let seen = Seen::new().map_err(load)?;
        let program =
            xdp::load("scoutline_guard", &program(&buckets, &seen, exempt, limits)).map_err(load)?;
        let (link, mode) = xdp::attach(&program, ifindex)?;
        Ok(Policer { link, buckets, mode })
    }

    /// Where it hangs.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Takes it away; how many packets it has dropped in all. Takes some 20 ms, as attaching does: the kernel waits for
    /// its receive side to come to rest.
    pub fn detach(self) -> u64 {
        drop(self.link);
        self.buckets.dropped(POLICED).unwrap_or(0)
    }

    /// Packets that it has dropped.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn dropped(&self) -> io::Result<u64> {
        self.buckets.dropped(POLICED)
    }
}

fn program(buckets: &Buckets, seen: &Seen, exempt: &[Exempt], limits: Limits) -> Vec<Instruction> {
    let mut program = Program::default();
    let (pass, drop) = (program.label(), program.label());
    flow::sort(&mut program, &Sorting { important: (exempt, pass), held: None, counted: true });
    flow::police(&mut program, buckets, seen, limits, drop);
    program.place(pass).word(Operation::Move, 0, Operand::K(XDP_PASS)).exit().place(drop);
    flow::drop_counted(&mut program, buckets, POLICED);
    program.assemble()
}

#[cfg(test)]
mod tests;
