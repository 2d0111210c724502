//! The program of an interface that is driven through AF_XDP: each packet goes to a socket of ours, none to Linux.
//!
//! ```text
//!   driver → native XDP: this ─► important by source and port, in a flood also by flow (known.rs)
//!                                ─► the queue's socket for what is important
//!                             ─► else, its path has no room just now ─► drop
//!                             ─► else, in a flood: beyond the limits ─► drop
//!                             ─► else ─► the socket of the queue that it came by
//!                                no socket, or its ring is full: drop
//! ```
//! Of several engines each has both sockets of each queue, and the flow says whose it is (`spread.rs`).
//!
//! Rules change by putting another program in this one's place: no packet passes between the two.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::flow::{
    self, BUCKETS, Buckets, Exempt, HELD, Limits, POLICED, Police, SOCKET_AT, Seen, Sorting, TABLE_AT,
};
use crate::held::{self, Held};
use crate::instruction::{Instruction, Operand, Operation, Program, Width};
use crate::known::{Known, KnownAs, Peer};
use crate::spread;
use crate::sys;
use crate::tcx::AttachError;
use crate::xdp::{self, Mode, XDP_DROP};

use Operand::{K, R};
use Operation::{Add, Move, Multiply, ShiftLeft};
use Width::Word;

/// `struct xdp_md`, `rx_queue_index`.
const QUEUE_AT: i16 = 16;

/// Gives what comes on one interface to AF_XDP sockets, for as long as it and all its [`Changer`]s live.
#[derive(Debug)]
pub struct Steer {
    hook: Arc<Hook>,
    mode: Mode,
}

/// Where the program hangs, and what each in the place of another works with.
#[derive(Debug)]
struct Hook {
    link: sys::Link,
    maps: Maps,
}

/// Puts programs in the place of others, from whichever thread: the kernel waits for its receive side to come to rest, on
/// a veth for 8 or 16 ms.
#[derive(Clone, Debug)]
pub struct Changer(Arc<Hook>);

impl Changer {
    /// From now on these rules hold. What is counted and remembered goes on, SYNs that were dropped too.
    ///
    /// # Errors
    /// As the kernel says; the ones before hold then.
    pub fn change(&self, rules: &Rules<'_>) -> io::Result<()> {
        let program = self.0.maps.load_program(rules)?;
        self.0.link.exchange(program.as_fd())
    }
}

impl Steer {
    /// Attaches to the interface with index `ifindex` and so many receive queues in the caller's network namespace, for so
    /// many engines: in the driver if that has the hook, else in front of the packet taps. What comes is dropped until
    /// its queue [has a socket](Steer::connect) of the engine whose flow it is. [`Rules::limits`] can only be set where it `polices`: that takes 19 MiB of the
    /// kernel's memory, now and not when a flood has begun.
    ///
    /// # Errors
    /// What is missing, or somebody else's XDP program is there: see [`AttachError`].
    ///
    /// # Panics
    /// Without an engine.
    pub fn attach(ifindex: u32, queues: u32, engines: u32, polices: bool) -> Result<Steer, AttachError> {
        assert!(engines > 0, "somebody takes the packets");
        let load = |error| AttachError::at("load", error);
        let maps = Maps::new(queues, engines, polices).map_err(load)?;
        let program = maps.load_program(&Rules::default()).map_err(load)?;
        let (link, mode) = xdp::attach(&program, ifindex)?;
        Ok(Steer { hook: Arc::new(Hook { link, maps }), mode })
    }

    /// Where the program hangs.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What comes by this receive queue and is this engine's goes to an AF_XDP socket that is bound to the queue; what is
    /// important, if that is [apart](Rules::apart), to another.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn connect(
        &self,
        queue: u32,
        engine: u32,
        important: bool,
        socket: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let maps = &self.hook.maps;
        let place = 2 * (queue * maps.engines + engine) + u32::from(important);
        sys::set_socket(maps.sockets.as_fd(), place, socket)
    }

    /// The flows that this engine holds.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn held_by(&self, engine: u32) -> io::Result<Held> {
        Held::of_engine(&self.hook.maps.held, engine)
    }

    /// Changes what becomes of packets.
    pub fn changer(&self) -> Changer {
        Changer(Arc::clone(&self.hook))
    }

    /// A connection stands, or has become important or ordinary; without a word as what it has ended. Matters while
    /// [`Rules::limits`] hold, and costs no system call.
    pub fn know(&self, peer: &Peer, known: Option<KnownAs>) {
        if let Some((_, table)) = &self.hook.maps.police {
            match known {
                Some(known) => table.know(peer, known),
                None => table.forget(peer),
            }
        }
    }

    /// Packets that were dropped beyond the [limits](Rules::limits).
    ///
    /// # Errors
    /// As the kernel says.
    pub fn policed(&self) -> io::Result<u64> {
        self.hook.maps.buckets.dropped(POLICED)
    }

    /// Packets of [held](Steer::held_by) flows that were dropped, of all engines.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn held(&self) -> io::Result<u64> {
        self.hook.maps.buckets.dropped(HELD)
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
    /// Single flows are [held](Steer::held_by).
    pub hold: bool,
}

/// What programs work with.
#[derive(Debug)]
struct Maps {
    engines: u32,
    sockets: OwnedFd,
    buckets: Buckets,
    held: OwnedFd,
    /// To police with.
    police: Option<(Seen, Known)>,
}

impl Maps {
    fn new(queues: u32, engines: u32, polices: bool) -> io::Result<Maps> {
        let police = || -> io::Result<_> { Ok((Seen::new()?, Known::new()?)) };
        Ok(Maps {
            engines,
            sockets: sys::socket_array(2 * queues * engines)?,
            buckets: Buckets::new()?,
            held: held::tables(engines)?,
            police: polices.then(police).transpose()?,
        })
    }

    fn load_program(&self, rules: &Rules<'_>) -> io::Result<OwnedFd> {
        if rules.limits.is_some() && self.police.is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        xdp::load("scoutline_steer", &program(self, rules))
    }
}

fn program(maps: &Maps, rules: &Rules<'_>) -> Vec<Instruction> {
    let Maps { engines, sockets, buckets, held, police } = maps;
    let police = police.as_ref().zip(rules.limits);
    let police = police.map(|((seen, known), limits)| Police { buckets, seen, known, limits });
    let mut program = Program::default();
    let (important, give) = (program.label(), program.label());
    let (over, full) = (program.label(), program.label());
    program.word(Move, 4, K(0));
    if *engines > 1 {
        spread::find_engine(&mut program, *engines);
    }
    if rules.hold {
        program.word(Move, 2, R(4)).word(Multiply, 2, K(BUCKETS as i32)).store(Word, 10, TABLE_AT, 2);
    }
    program.load(Word, 2, 1, QUEUE_AT).word(Multiply, 2, K(*engines as i32)).word(Add, 2, R(4));
    program.double(ShiftLeft, 2, K(1));
    if police.is_some() || rules.hold || (rules.apart && !rules.important.is_empty()) {
        program.store(Word, 10, SOCKET_AT, 2);
        let sorting = Sorting {
            important: (rules.important, important),
            held: rules.hold.then_some((held, full)),
            counted: police.as_ref().map(|police| police.known),
        };
        flow::sort(&mut program, &sorting);
        if let Some(police) = &police {
            police.count(&mut program, over);
        }
        program.load(Word, 2, 10, SOCKET_AT);
        // What is never reached is refused.
        if police.is_some() || !rules.important.is_empty() {
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
    for (label, reason, there) in [(over, POLICED, police.is_some()), (full, HELD, rules.hold)] {
        if there {
            program.place(label);
            flow::drop_counted(&mut program, buckets, reason);
        }
    }
    program.assemble()
}
