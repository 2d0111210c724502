//! eBPF programs and their loader, over raw `bpf(2)`: no libbpf, no compiler, no pinned object.
//!
//! Every program is held by the file descriptor of its link, so a daemon that dies, even by SIGKILL, leaves none
//! behind (DESIGN.md §9). Debian 12's headers know nothing of tcx: the constants that they lack stand here with
//! their source.
#![allow(unsafe_code)] // bpf(2) takes pointers to user memory; each block says why they hold

mod flow;
mod generator;
mod held;
mod instruction;
mod known;
mod loss;
mod policer;
mod spread;
mod steer;
mod sys;
mod tcx;
mod xdp;

pub use flow::{Exempt, Limits};
pub use generator::{Frames, Generator};
pub use held::Held;
pub use known::{Known, KnownAs, Peer};
pub use loss::RandomDrop;
pub use policer::Policer;
pub use steer::{Changer, Rules, Steer};
pub use tcx::{AttachError, Hook, IngressDrop, attached};
pub use xdp::Mode;
