//! A program at tcx ingress that drops every packet: behind the packet tap, in front of Linux's own protocols.
//!
//! ```text
//!   driver → generic XDP → packet taps (ETH_P_ALL: ours) → tcx ingress (this program: drop) ✗ → IP, ARP, bridge …
//! ```
//! It needs Linux 6.6. The drop hides packets from ETH_P_IP sockets too, hence ETH_P_ALL (MEASURED.md).

use std::io;
use std::os::fd::AsFd;

use crate::instruction::{Operand, Operation, Program};
use crate::sys;

/// A place where programs are attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// What arrives, behind the packet taps.
    Ingress,
    /// What leaves, in front of them.
    Egress,
}

impl Hook {
    pub(crate) fn attach_type(self) -> u32 {
        match self {
            Hook::Ingress => sys::BPF_TCX_INGRESS,
            Hook::Egress => sys::BPF_TCX_EGRESS,
        }
    }
}

/// How many programs, anybody's, are attached to a hook of the interface with index `ifindex` in the caller's
/// network namespace.
///
/// # Errors
/// What the kernel says: no permission, no such interface, no tcx.
pub fn attached(ifindex: u32, hook: Hook) -> io::Result<u32> {
    sys::attached(ifindex, hook.attach_type())
}

/// Keeps Linux's protocols from seeing (and answering) what arrives on one interface, for as long as it lives.
#[derive(Debug)]
pub struct IngressDrop {
    _link: sys::Link,
}

impl IngressDrop {
    /// Attaches to the interface with index `ifindex` in the caller's network namespace.
    ///
    /// # Errors
    /// What is missing: see [`AttachError`].
    pub fn attach(ifindex: u32) -> Result<IngressDrop, AttachError> {
        // TCX_DROP (enum tcx_action_base, include/uapi/linux/bpf.h of Linux 6.6).
        const TCX_DROP: i32 = 2;
        let program = Program::default().word(Operation::Move, 0, Operand::K(TCX_DROP)).exit().assemble();
        // Without an expected attach type, loading works on any kernel, and the link alone tells whether tcx is
        // there (both are accepted by Linux 6.6: BPF_TCX_INGRESS is checked at the link only).
        let program = sys::load("scoutline_drop", sys::BPF_PROG_TYPE_SCHED_CLS, 0, &program)
            .map_err(|error| AttachError::at("load", error))?;
        let link = sys::link(program.as_fd(), ifindex, sys::BPF_TCX_INGRESS, 0)
            .map_err(|error| AttachError::at("attach", error))?;
        Ok(IngressDrop { _link: link })
    }
}

/// Why a program could not be loaded or attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The caller may not.
    #[error("no permission to {step} an eBPF program: run as root, or grant CAP_BPF and CAP_NET_ADMIN")]
    NotPermitted {
        /// `load` or `attach`.
        step: &'static str,
    },
    /// The kernel is older than tcx, or was built without it.
    #[error("this kernel has no tcx hook (Linux 6.6 and later have)")]
    Unsupported,
    /// The hook has one place, and somebody else's program is there.
    #[error("another XDP program is attached to the interface: `ip link set dev NAME xdp off` takes it away")]
    Occupied,
    /// The interface has gone.
    #[error("the interface does not exist any more")]
    NoInterface,
    /// Anything else.
    #[error("cannot {step} an eBPF program: {source}")]
    System {
        /// `load` or `attach`.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl AttachError {
    pub(crate) fn at(step: &'static str, error: io::Error) -> AttachError {
        match (error.raw_os_error(), step) {
            (Some(libc::EPERM | libc::EACCES), _) => AttachError::NotPermitted { step },
            (Some(libc::ENODEV), _) => AttachError::NoInterface,
            // bpf(2) itself is missing, or does not know the attach type.
            (Some(libc::ENOSYS), _) | (Some(libc::EINVAL | libc::EOPNOTSUPP), "attach") => {
                AttachError::Unsupported
            }
            _ => AttachError::System { step, source: error },
        }
    }
}
