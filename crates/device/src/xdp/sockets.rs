//! The AF_XDP sockets of an interface: for each queue one for each engine, and another for what is important to it.
//!
//! ```text
//!   queue 0, engine 0   registers the memory         fill, completion, receive, transmit ring
//!   queue q, engine 0   shares the memory            fill, completion, receive ring
//!   queue q, engine e   shares all with queue q's    receive ring, and a transmit ring where q = e
//!            important  the same                     receive ring
//! ```

use std::io;
use std::os::fd::OwnedFd;

use crate::error::OpenError;
use crate::sys::{self, Interface};
use crate::xdp::receive::{Inlet, Queue};
use crate::xdp::ring::{Consumer, Producer};
use crate::xdp::send::METADATA_LEN;
use crate::xdp::socket::{self, Shares};
use crate::xdp::spread::WayOut;
use crate::xdp::umem::Memory;

/// Which sockets there are to be, and how long their rings are: powers of two.
pub(super) struct Plan<'a> {
    pub(super) interface: &'a Interface,
    pub(super) engines: u32,
    pub(super) queues: u32,
    /// Queues to send by, of as many engines.
    pub(super) ways_out: u32,
    pub(super) ring: u32,
    pub(super) important: Option<u32>,
    pub(super) fill: u32,
    pub(super) zero_copy: bool,
}

/// The sockets, bound, and their rings.
pub(super) struct Opened {
    /// Each engine's queues, and how it sends.
    pub(super) engines: Vec<(Vec<Queue>, Option<WayOut>)>,
    /// By queue.
    pub(super) fill: Vec<Producer<u64>>,
    /// The kernel takes requests to complete checksums.
    pub(super) metadata: bool,
    pub(super) binding: Binding,
}

/// How a socket is bound.
#[derive(Clone, Copy)]
pub(super) struct Binding {
    pub(super) zero_copy: bool,
    /// Packets may be in several chunks.
    pub(super) long: bool,
}

/// Packets that may be on their way out of a transmit queue. The kernel's copies of them, 4 KiB each, are what [`SEND_BUFFER_LEN`] allows.
pub(super) const SEND_FRAMES: u32 = 1024;
const SEND_BUFFER_LEN: libc::c_int = 8 << 20;

impl Plan<'_> {
    pub(super) fn open(&self, memory: &Memory) -> Result<Opened, OpenError> {
        let name = &self.interface.name;
        let no_ring = self.error("make an AF_XDP ring");
        let (mut metadata, mut binding) = (false, None);
        let mut fill = Vec::new();
        let mut engines: Vec<(Vec<Queue>, Option<WayOut>)> = Vec::new();
        engines.resize_with(self.engines as usize, Default::default);
        for queue in 0..self.queues {
            let mut completion = None;
            for engine in 0..self.engines as usize {
                let socket = socket::open(name)?;
                if queue == 0 && engine == 0 {
                    metadata = register(name, &socket, memory)?;
                }
                if engine == 0 {
                    fill.push(socket::fill_ring(&socket, self.fill).map_err(no_ring)?);
                    // The kernel wants it where nothing is sent, too.
                    let len = if queue < self.ways_out { SEND_FRAMES } else { 1 };
                    completion = Some(socket::completion_ring(&socket, len).map_err(no_ring)?);
                }
                if engine == queue as usize && queue < self.ways_out {
                    let completion = completion.take().expect("the first engine has it made");
                    engines[engine].1 = Some(self.way_out(&socket, queue, completion, memory)?);
                }
                let ring = socket::receive_ring(&socket, self.ring).map_err(no_ring)?;
                let shares = if engine == 0 { engines[0].0.first() } else { engines[0].0.last() };
                match shares {
                    None => binding = Some(self.bind_first(&socket)?),
                    Some(with) => self.bind(&socket, queue, with)?,
                }
                engines[engine].0.push(Queue { inlet: Inlet { socket, ring }, important: None });
            }
        }
        if let Some(len) = self.important {
            for (queue, number) in engines.iter_mut().flat_map(|(queues, _)| queues.iter_mut().zip(0..)) {
                let socket = socket::open(name)?;
                let ring = socket::receive_ring(&socket, len).map_err(no_ring)?;
                self.bind(&socket, number, queue)?;
                queue.important = Some(Inlet { socket, ring });
            }
        }
        let binding = binding.expect("there is a queue and an engine");
        Ok(Opened { engines, fill, metadata, binding })
    }

    /// What the engine with the same number as a queue sends by, through this socket at it.
    fn way_out(
        &self,
        socket: &OwnedFd,
        queue: u32,
        completion: Consumer<u64>,
        memory: &Memory,
    ) -> Result<WayOut, OpenError> {
        let transmit =
            socket::transmit_ring(socket, SEND_FRAMES).map_err(self.error("make an AF_XDP ring"))?;
        // Without the privilege to exceed the system's limit, take what there is.
        if sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_LEN).is_err() {
            let _ = sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER_LEN);
        }
        let from = memory.receive_chunks() + queue * SEND_FRAMES;
        Ok(WayOut { queue: queue as usize, transmit, completion, chunks: from..from + SEND_FRAMES })
    }

    fn bind_first(&self, socket: &OwnedFd) -> Result<Binding, OpenError> {
        bind_first(socket, self.interface.index, self.zero_copy)
            .map_err(self.error("bind a raw AF_XDP socket to its first queue"))
    }

    /// Binds a socket that shares what another has.
    fn bind(&self, socket: &OwnedFd, queue: u32, with: &Queue) -> Result<(), OpenError> {
        socket::bind(socket, self.interface.index, queue, Shares::Memory(&with.inlet.socket))
            .map_err(self.error("bind a raw AF_XDP socket to one of its queues"))
    }

    fn error(&self, action: &'static str) -> impl Fn(io::Error) -> OpenError + Copy {
        let name = &self.interface.name;
        move |error| OpenError::system(name, action, error)
    }
}

/// Registers the memory; whether the kernel takes requests to complete checksums.
fn register(name: &str, socket: &OwnedFd, memory: &Memory) -> Result<bool, OpenError> {
    let system = |action| move |error| OpenError::system(name, action, error);
    let register =
        |metadata| sys::set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &memory.registration(metadata));
    match register(METADATA_LEN) {
        Ok(()) => Ok(true),
        // Before Linux 6.8.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            register(0).map_err(system("register memory for its packets"))?;
            Ok(false)
        }
        Err(error) => Err(system("register memory for its packets (`ulimit -l`)")(error)),
    }
}

/// Binds the first socket in the best mode that the driver and the kernel have.
fn bind_first(socket: &OwnedFd, ifindex: u32, zero_copy: bool) -> io::Result<Binding> {
    let modes = [(true, true), (true, false), (false, true), (false, false)];
    let mut last = None;
    for (zero_copy, long) in modes.into_iter().filter(|(zero, _)| zero_copy || !zero) {
        let flags = libc::XDP_USE_NEED_WAKEUP
            | if zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY }
            | if long { libc::XDP_USE_SG } else { 0 };
        match socket::bind(socket, ifindex, 0, Shares::Nothing(flags)) {
            Ok(()) => return Ok(Binding { zero_copy, long }),
            Err(error) => match error.raw_os_error() {
                // The driver has no zero-copy, or not for long packets; the kernel is older than XDP_USE_SG (6.6).
                Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPROTONOSUPPORT) => last = Some(error),
                _ => return Err(error),
            },
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
}
