//! The program of an interface that is driven through AF_XDP: each packet goes to a socket of ours, none to Linux.
//!
//! ```text
//!   driver → native XDP: this ─► the socket of the queue that it came by
//!                             └► no socket, or its ring is full: drop
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::instruction::{Instruction, Operand, Operation, Program, Width};
use crate::sys;
use crate::tcx::AttachError;
use crate::xdp::{self, Mode, XDP_DROP};

use Operand::K;
use Operation::Move;
use Width::Word;

/// `struct xdp_md`, `rx_queue_index`.
const QUEUE_AT: i16 = 16;

/// Gives what comes on one interface to AF_XDP sockets, for as long as it lives.
#[derive(Debug)]
pub struct Steer {
    /// The link keeps the program; closing it detaches.
    _link: OwnedFd,
    sockets: OwnedFd,
    mode: Mode,
}

impl Steer {
    /// Attaches to the interface with index `ifindex` and so many receive queues in the caller's network namespace: in
    /// the driver if that has the hook, else in front of the packet taps. What comes is dropped until its queue
    /// [has a socket](Steer::connect).
    ///
    /// # Errors
    /// What is missing, or somebody else's XDP program is there: see [`AttachError`].
    pub fn attach(ifindex: u32, queues: u32) -> Result<Steer, AttachError> {
        let sockets = sys::socket_array(queues).map_err(|error| AttachError::at("load", error))?;
        let program = xdp::load("scoutline_steer", &program(&sockets))
            .map_err(|error| AttachError::at("load", error))?;
        let (link, mode) = xdp::attach(&program, ifindex)?;
        Ok(Steer { _link: link, sockets, mode })
    }

    /// Where the program hangs.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What comes by this receive queue goes to an AF_XDP socket that is bound to the queue.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn connect(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        sys::set_socket(self.sockets.as_fd(), queue, socket)
    }
}

fn program(sockets: &OwnedFd) -> Vec<Instruction> {
    Program::default()
        .load(Word, 2, 1, QUEUE_AT)
        .map(1, sockets.as_raw_fd())
        // The lower bits of the flags say what becomes of a packet without a socket.
        .double(Move, 3, K(XDP_DROP))
        .call(sys::BPF_FUNC_REDIRECT_MAP)
        .exit()
        .assemble()
}
