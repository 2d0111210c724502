//! A policer at XDP: while a flood lasts, it drops what is too much before anything is spent on it.
//!
//! ```text
//!   driver → native XDP: this → receive steering → generic XDP → packet taps (ours) → …
//!
//!   important by source and port, or of a flow that is known to be ────────► pass
//!   else: no SYN, and the flood is one of SYNs ────────────────────────────► pass
//!         of a connection that stands, within limits of their own ─────────► pass
//!         a SYN of a client that is known, within limits of their own ─────► pass
//!         its flow had `flow` packets in this window ──────────────────────► drop
//!         no SYN, and all of these together had `total` ───────────────────► drop
//!         a SYN, SYNs had `syns`, and it did not come before ──────────────► drop
//!         else ────────────────────────────────────────────────────────────► pass
//! ```
//! What a flow is, and what is remembered of SYNs: see `flow.rs`; who is known: `known.rs`. Limits hold for each core
//! that receives. A window is 2^20 ns (1.05 ms); counting anew in each needs no division. What is not IP is one flow.
//!
//! In the driver (native) the packet is dropped before it is given to another core; where the driver has no hook
//! (generic) it is dropped in front of the packet taps.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use crate::flow::{self, Buckets, Exempt, Limits, POLICED, Police, Seen, Sorting};
use crate::instruction::{Instruction, Operand, Operation, Program};
use crate::known::Known;
use crate::sys::Link;
use crate::tcx::AttachError;
use crate::xdp::{self, Mode, XDP_PASS};

/// The policer of one interface, for as long as this lives.
#[derive(Debug)]
pub struct Policer {
    link: Link,
    buckets: Buckets,
    seen: Seen,
    known: Arc<Known>,
    mode: Mode,
}

impl Policer {
    /// Attaches to the interface with index `ifindex` in the caller's network namespace: in the driver if that has
    /// the hook, else in front of the packet taps. Without a table of who is known nobody is.
    ///
    /// # Errors
    /// What is missing, or somebody else's XDP program is there: see [`AttachError`].
    pub fn attach(
        ifindex: u32,
        known: Option<Arc<Known>>,
        exempt: &[Exempt],
        limits: Limits,
    ) -> Result<Policer, AttachError> {
        let load = |error| AttachError::at("load", error);
        let (buckets, seen) = (Buckets::new().map_err(load)?, Seen::new().map_err(load)?);
        let known = known.map_or_else(|| Known::new().map(Arc::new), Ok).map_err(load)?;
        let program = program(&Police { buckets: &buckets, seen: &seen, known: &known, limits }, exempt);
        let program = xdp::load(NAME, &program).map_err(load)?;
        let (link, mode) = xdp::attach(&program, ifindex)?;
        Ok(Policer { link, buckets, seen, known, mode })
    }

    /// From now on these rules hold: another program takes this one's place, and no packet passes between the two. Takes
    /// as long as attaching does.
    ///
    /// # Errors
    /// As the kernel says; the rules before hold then.
    pub fn change(&self, exempt: &[Exempt], limits: Limits) -> Result<(), AttachError> {
        let load = |error| AttachError::at("load", error);
        let Policer { buckets, seen, known, .. } = self;
        let program = program(&Police { buckets, seen, known, limits }, exempt);
        let program = xdp::load(NAME, &program).map_err(load)?;
        self.link.exchange(program.as_fd()).map_err(|error| AttachError::at("exchange", error))
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

/// As people see it in the kernel's list of programs.
const NAME: &str = "scoutline_guard";

fn program(police: &Police<'_>, exempt: &[Exempt]) -> Vec<Instruction> {
    let mut program = Program::default();
    let (pass, drop) = (program.label(), program.label());
    let sorting = Sorting { important: (exempt, pass), held: None, counted: Some(police.known) };
    flow::sort(&mut program, &sorting);
    police.count(&mut program, drop);
    program.place(pass).word(Operation::Move, 0, Operand::K(XDP_PASS)).exit().place(drop);
    flow::drop_counted(&mut program, police.buckets, POLICED);
    program.assemble()
}

#[cfg(test)]
mod tests;
