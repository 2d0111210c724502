//! What programs at XDP have in common: how they are loaded and where they hang.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::instruction::Instruction;
use crate::sys::{self, Link};
use crate::tcx::AttachError;

/// `enum xdp_action` (include/uapi/linux/bpf.h).
pub(crate) const XDP_DROP: i32 = 1;
/// The same.
pub(crate) const XDP_PASS: i32 = 2;
/// XDP_FLAGS_SKB_MODE and XDP_FLAGS_DRV_MODE (include/uapi/linux/if_link.h).
const SKB_MODE: u32 = 1 << 1;
const DRIVER_MODE: u32 = 1 << 2;

/// Where a program hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// In front of the packet taps.
    Generic,
}

/// Loads a program that takes packets of several buffers, where the kernel knows those.
pub(crate) fn load(name: &str, program: &[Instruction]) -> io::Result<OwnedFd> {
    let load = |flags| sys::load(name, sys::BPF_PROG_TYPE_XDP, flags, program);
    // Before Linux 5.18 there is no such flag, and there are no such packets.
    load(sys::BPF_F_XDP_HAS_FRAGS).or_else(|_| load(0))
}

/// Attaches a program in the driver if that has the hook, else in front of the packet taps. The link keeps it.
pub(crate) fn attach(program: &OwnedFd, ifindex: u32) -> Result<(Link, Mode), AttachError> {
    let attach = |flags| sys::link(program.as_fd(), ifindex, sys::BPF_XDP, flags);
    match attach(DRIVER_MODE) {
        Ok(link) => Ok((link, Mode::Native)),
        // The hook has one place, in whichever mode.
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(AttachError::Occupied),
        Err(_) => match attach(SKB_MODE) {
            Ok(link) => Ok((link, Mode::Generic)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
                Err(AttachError::Occupied)
            }
            Err(error) => Err(AttachError::at("attach", error)),
        },
    }
}
