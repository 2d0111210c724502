//! A program at tcx that drops packets at random: a lossy link for tests, where netem is not to be had.

use std::os::fd::AsFd;

use crate::instruction::{Condition, Operand, Operation, Program};
use crate::sys;
use crate::tcx::{AttachError, Hook};

/// Drops packets of one interface in one direction, each with the same probability, for as long as it lives.
#[derive(Debug)]
pub struct RandomDrop {
    _link: sys::Link,
}

impl RandomDrop {
    /// Attaches to the interface with index `ifindex` in the caller's network namespace; `per_mille` is how many of
    /// a thousand packets are dropped on average. A super-segment counts as one packet.
    ///
    /// # Errors
    /// What is missing: see [`AttachError`].
    ///
    /// # Panics
    /// When `per_mille` is above a thousand.
    pub fn attach(ifindex: u32, hook: Hook, per_mille: u32) -> Result<RandomDrop, AttachError> {
        assert!(per_mille <= 1000, "more than every packet");
        // enum tcx_action_base, include/uapi/linux/bpf.h of Linux 6.6: leave it to the next program, if any.
        const TCX_NEXT: i32 = -1;
        const TCX_DROP: i32 = 2;
        let below = (u64::from(u32::MAX) * u64::from(per_mille) / 1000) as u32;
        let mut program = Program::default();
        let lost = program.label();
        program
            .call(sys::BPF_FUNC_GET_PRANDOM_U32)
            .jump_if_word(0, Condition::Below, Operand::K(below as i32), lost)
            .word(Operation::Move, 0, Operand::K(TCX_NEXT))
            .exit()
            .place(lost)
            .word(Operation::Move, 0, Operand::K(TCX_DROP))
            .exit();
        let program = sys::load("scoutline_loss", sys::BPF_PROG_TYPE_SCHED_CLS, 0, &program.assemble())
            .map_err(|error| AttachError::at("load", error))?;
        let link = sys::link(program.as_fd(), ifindex, hook.attach_type(), 0)
            .map_err(|error| AttachError::at("attach", error))?;
        Ok(RandomDrop { _link: link })
    }
}
