//! The program of an interface that is driven through AF_XDP: each packet goes to a socket of ours, none to Linux.
//!
//! ```text
//!   driver → native XDP: this ─► important by source and port ─► the queue's socket for what is important
//!                             ─► else, its path has no room just now ─► drop
//!                             ─► else, in a flood: beyond the limits ─► drop
//!                             ─► else ─► the socket of the queue that it came by
//!                                no socket, or its ring is full: drop
//! ```
//! Rules change by putting another program in this one's place: no packet passes between the two.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::flow::{self, Buckets, Exempt, HELD, Limits, POLICED, SOCKET_AT, Seen, Sorting};
use crate::held::Held;
use crate::instruction::{Instruction, Operand, Operation, Program, Width};
use crate::sys;
use crate::tcx::AttachError;
use crate::xdp::{self, Mode, XDP_DROP};

use Operand::K;
use Operation::{Add, Move, ShiftLeft};
use Width::Word;

/// `struct xdp_md`, `rx_queue_index`.
const QUEUE_AT: i16 = 16;

/// Gives what comes on one interface to AF_XDP sockets, for as long as it lives.
#[derive(Debug)]
pub struct Steer {
    /// The link keeps the program; closing it detaches.
    link: OwnedFd,
    maps: Maps,
    mode: Mode,
}

impl Steer {
    /// Attaches to the interface with index `ifindex` and so many receive queues in the caller's network namespace: in
    /// the driver if that has the hook, else in front of the packet taps. What comes is dropped until its queue
    /// [has a socket](Steer::connect). [`Rules::limits`] can only be set where it `polices`: that takes 16 MiB of the
    /// kernel's memory, now and not when a flood has begun.
    ///
    /// # Errors
    /// What is missing, or somebody else's XDP program is there: see [`AttachError`].
    pub fn attach(ifindex: u32, queues: u32, polices: bool) -> Result<Steer, AttachError> {
        let load = |error| AttachError::at("load", error);
        let maps = Maps::new(queues, polices).map_err(load)?;
        let program = maps.load_program(&Rules::default()).map_err(load)?;
        let (link, mode) = xdp::attach(&program, ifindex)?;
        Ok(Steer { link, maps, mode })
    }

    /// Where the program hangs.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What comes by this receive queue goes to an AF_XDP socket that is bound to the queue; what is important, if there
    /// are [`Rules::apart`], to another.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn connect(&self, queue: u32, important: bool, socket: BorrowedFd<'_>) -> io::Result<()> {
        sys::set_socket(self.maps.sockets.as_fd(), 2 * queue + u32::from(important), socket)
    }

    /// From now on these rules hold. What is counted and remembered goes on, SYNs that were dropped too.
    ///
    /// # Errors
    /// As the kernel says; the ones before hold then.
    pub fn change(&self, rules: &Rules<'_>) -> io::Result<()> {
        let program = self.maps.load_program(rules)?;
        sys::exchange(self.link.as_fd(), program.as_fd())
    }

    /// Until then (CLOCK_MONOTONIC, 130 ms at most) packets of the same flow as this frame are dropped, if they are not
    /// important and [`Rules::hold`] is set, and counted for `owner`. Costs no system call.
    pub fn hold(&mut self, frame: &[u8], until_ns: u64, owner: u64) {
        self.maps.held.hold(frame, until_ns, owner);
    }

    /// Tells how many packets of [held](Steer::hold) flows were dropped for each owner since it was last told. Costs no
    /// system call.
    pub fn tell_held(&mut self, now_ns: u64, each: impl FnMut(u64, u64)) {
        self.maps.held.tell(now_ns, each);
    }

    /// Packets that were dropped beyond the [limits](Rules::limits).
    ///
    /// # Errors
    /// As the kernel says.
    pub fn policed(&self) -> io::Result<u64> {
        self.maps.buckets.dropped(POLICED)
    }

    /// Packets of [held](Steer::hold) flows that were dropped.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn held(&self) -> io::Result<u64> {
        self.maps.buckets.dropped(HELD)
    }
}

/// What becomes of packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'a> {
    /// What is important.
    pub important: &'a [Exempt],
    /// It has sockets of its own.
    pub apart: bool,
    /// How much of what is not important passes.
    pub limits: Option<Limits>,
    /// Single flows are [held](Steer::hold).
    pub hold: bool,
}

/// What programs work with: each in the place of another has the same.
#[derive(Debug)]
struct Maps {
    sockets: OwnedFd,
    buckets: Buckets,
    held: Held,
    /// To police with.
    seen: Option<Seen>,
}

impl Maps {
    fn new(queues: u32, polices: bool) -> io::Result<Maps> {
        Ok(Maps {
            sockets: sys::socket_array(2 * queues)?,
            buckets: Buckets::new()?,
            held: Held::new()?,
            seen: polices.then(Seen::new).transpose()?,
        })
    }

    fn load_program(&self, rules: &Rules<'_>) -> io::Result<OwnedFd> {
        if rules.limits.is_some() && self.seen.is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        xdp::load("scoutline_steer", &program(self, rules))
    }
}

fn program(maps: &Maps, rules: &Rules<'_>) -> Vec<Instruction> {
    let Maps { sockets, buckets, held, seen } = maps;
    let mut program = Program::default();
    let (important, give) = (program.label(), program.label());
    let (over, full) = (program.label(), program.label());
    program.load(Word, 2, 1, QUEUE_AT).double(ShiftLeft, 2, K(1));
    if rules.limits.is_some() || rules.hold || (rules.apart && !rules.important.is_empty()) {
        program.store(Word, 10, SOCKET_AT, 2);
        let sorting = Sorting {
            important: (rules.important, important),
            held: rules.hold.then_some((held, full)),
            counted: rules.limits.is_some(),
        };
        flow::sort(&mut program, &sorting);
        if let (Some(limits), Some(seen)) = (rules.limits, seen) {
            flow::police(&mut program, buckets, seen, limits, over);
        }
        program.load(Word, 2, 10, SOCKET_AT);
        // What is never reached is refused.
        if !rules.important.is_empty() {
            program.jump(give).place(important).load(Word, 2, 10, SOCKET_AT);
            program.double(Add, 2, K(i32::from(rules.apart)));
        }
    }
    program
        .place(give)
        .map(1, sockets.as_raw_fd())
        // The lower bits of the flags say what becomes of a packet without a socket.
        .double(Move, 3, K(XDP_DROP))
        .call(sys::BPF_FUNC_REDIRECT_MAP)
        .exit();
    for (label, reason, there) in [(over, POLICED, rules.limits.is_some()), (full, HELD, rules.hold)] {
        if there {
            program.place(label);
            flow::drop_counted(&mut program, buckets, reason);
        }
    }
    program.assemble()
}
