//! Opening an `xdp` partner: checks first, each with its remedy, then memory, sockets for each queue, and the program that
//! fills them. Of several engines the first opens all of it, and each makes its partner of its part.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use scoutline_base::{DeviceId, Time};
use scoutline_bpf::{Held, Mode, Steer};

use crate::error::OpenError;
use crate::ethernet::{self, Found, Station};
use crate::packet;
use crate::partner::{DeviceCounters, Notice};
use crate::xdp::XdpPartner;
use crate::xdp::fill::Fill;
use crate::xdp::hook::Hook;
use crate::xdp::outlet::{self, Outlet};
use crate::xdp::receive::{Queue, Receiver};
use crate::xdp::send::Sender;
use crate::xdp::sockets::{Binding, Opened, Plan, SEND_FRAMES};
use crate::xdp::spread::{Part, Shared, Spread, WayOut};
use crate::xdp::umem::{Memory, Umem};

/// How to open an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The interface, and who we are on it.
    pub station: Station,
    /// Packets that the receive ring of a queue holds; of several engines each has its part. Rounded up to a power of two.
    /// With `bell` the ring for what is important holds half as many. There are twice as many chunks of 2 KiB (4 KiB with a
    /// large MTU), of several engines three times as many: 8 MiB for each queue by default, 12 MiB with `bell` (several
    /// engines: 12 and 18), and 2 MiB for each engine to send by.
    pub ring_frames: u32,
    /// The driver puts packets into our memory itself, where it can.
    pub zero_copy: bool,
    /// Floods are held back at the interface while they last (see [`Partner::police`](crate::Partner::police)).
    pub police: bool,
    /// What is important has receive rings of its own, and can ring.
    pub bell: bool,
    /// Several engines share the interface, each with a partner of its own.
    pub spread: Option<Spread>,
}

/// How long the receive rings are that each engine has of each queue.
#[derive(Clone, Copy)]
struct Lengths {
    ring: u32,
    /// For what is important, if that is apart: half of the other, for it is looked at first.
    important: Option<u32>,
}

impl Lengths {
    fn of(config: &Config, engines: u32) -> Lengths {
        let ring = (config.ring_frames / engines).clamp(64, 1 << 16).next_power_of_two();
        Lengths { ring, important: config.bell.then_some(ring / 2) }
    }

    /// Chunks that wait to be filled in each queue at most, for each of the engines: as many as its receive rings hold, so
    /// that a full one does not starve the others.
    fn to_fill(self) -> u32 {
        self.ring + self.important.unwrap_or(0)
    }
}

impl Config {
    /// The defaults for an interface.
    pub fn new(interface: impl Into<String>) -> Config {
        Config::of(Station::new(interface))
    }

    /// The defaults for a station.
    pub fn of(station: Station) -> Config {
        Config { station, ring_frames: 2048, zero_copy: true, police: true, bell: false, spread: None }
    }
}

/// XDP_PACKET_HEADROOM (include/uapi/linux/bpf.h): the kernel keeps it free in front of what it receives.
const HEADROOM: u32 = 256;
/// The shortest chunk that the kernel takes, and the longest: a page.
const SHORT_CHUNK: u32 = 2048;
const LONG_CHUNK: u32 = 4096;
/// Ethernet header and a tag.
const LINK_LEN: u32 = 18;

/// Opens an interface.
///
/// # Errors
/// See [`OpenError`]; each names the remedy.
pub fn open(id: DeviceId, config: &Config) -> Result<(XdpPartner, Vec<Notice>), OpenError> {
    let name = &config.station.interface;
    let mut found = ethernet::look_at(&config.station)?;
    let whole = Spread::new(1);
    let spread = config.spread.as_ref().unwrap_or(&whole);
    if spread.engine() == 0 {
        let (parts, notices) = open_all(&found, config, spread.engines() as u32)?;
        spread.on_opened(parts);
        found.notices.extend(notices);
    }
    let Some(part) = spread.take() else {
        let error = io::Error::new(io::ErrorKind::NotFound, "the first engine has not opened it");
        return Err(OpenError::system(name, "share it among the engines", error));
    };
    let Part { shared, queues, way_out, most_lent, held, metadata, zero_copy } = part;
    let Shared { memory, fill, hook } = shared;
    let chunks = way_out.as_ref().map_or(0..0, |way_out| way_out.chunks.clone());
    let umem = Rc::new(Umem::new(memory, most_lent, chunks));
    let sender = match way_out {
        Some(WayOut { queue, transmit, completion, .. }) => {
            // Hardware that takes packets from our memory does so when it likes: others could overtake them.
            let whole = if zero_copy { None } else { outlet::open_whole(&found.interface)? };
            let ring = Sender::new(Rc::clone(&umem), transmit, completion, metadata, found.mtu);
            Outlet::Ring { ring, queue, whole }
        }
        None => Outlet::Socket(packet::Sender::open(&found.interface, &packet::Config::new(name))?),
    };
    let facts = found.facts("xdp", sender.offload(metadata));
    let receiver = Receiver::new(umem, fill, queues, found.trusted, found.mtu);
    let several = receiver.sockets().count() > 1;
    let all_queues = several.then(|| watch_all(name, receiver.sockets())).transpose()?;
    let bell = config.bell.then(|| watch_all(name, receiver.important_sockets())).transpose()?;
    let partner = XdpPartner {
        interface: found.interface,
        device: id,
        facts,
        receiver,
        sender,
        counters: DeviceCounters::default(),
        asked: Time::ZERO,
        all_queues,
        bell,
        police: config.police,
        engine: spread.engine(),
        holds: false,
        held,
        hook,
    };
    Ok((partner, found.notices))
}

/// Opens an interface for so many engines.
fn open_all(found: &Found, config: &Config, engines: u32) -> Result<(Vec<Part>, Vec<Notice>), OpenError> {
    let (interface, mtu) = (&found.interface, found.mtu);
    let name = &interface.name;
    let lengths = Lengths::of(config, engines);
    let queues = interface.receive_queues();
    // Without a word from the driver there is one.
    let ways_out = interface.transmit_queues().unwrap_or(1).clamp(1, queues).min(engines);
    let to_fill = engines * lengths.to_fill();
    let chunk = if mtu + LINK_LEN + HEADROOM <= SHORT_CHUNK { SHORT_CHUNK } else { LONG_CHUNK };
    // As many may be lent as wait in the fill rings. Of several engines one may have its receive rings full besides and
    // stand still: what another one's queue wants is there all the same.
    let shares = if engines > 1 { 3 } else { 2 };
    let memory = Arc::new(Memory::new(name, chunk, shares * to_fill * queues, ways_out * SEND_FRAMES)?);
    let Lengths { ring, important } = lengths;
    let plan = Plan {
        interface,
        engines,
        queues,
        ways_out,
        ring,
        important,
        fill: to_fill.next_power_of_two(),
        zero_copy: config.zero_copy,
    };
    let Opened { engines: of_engines, fill, metadata, binding } = plan.open(&memory)?;
    if !binding.long && mtu + LINK_LEN + HEADROOM > chunk {
        return Err(OpenError::LongFrames { name: name.clone(), mtu, most: chunk - HEADROOM - LINK_LEN });
    }
    let hook = |source| OpenError::Hook { name: name.clone(), source };
    let steer = Steer::attach(interface.index, queues, engines, config.police).map_err(hook)?;
    let mut notices = shortfalls(name, binding, steer.mode(), config.zero_copy);
    notices.extend(too_few_queues(name, ways_out, engines));
    // Filled before the first packet may come.
    let fill = Arc::new(Fill::new(&memory, fill, to_fill));
    for (engine, (queues, _)) in (0..).zip(&of_engines) {
        connect(name, &steer, engine, queues)?;
    }
    let held: Vec<Held> = (0..engines)
        .map(|engine| steer.held_by(engine))
        .collect::<Result<_, _>>()
        .map_err(|error| OpenError::system(name, "share a table with the XDP program", error))?;
    let groups = if config.station.groups {
        let socket = ethernet::raw_socket(name)?;
        ethernet::receive_groups(&socket, interface)?;
        Some(socket)
    } else {
        None
    };
    let hook = Arc::new(Hook::new(name, config.bell, steer, groups));
    let most_lent = lengths.to_fill() * queues;
    let shared = Shared { memory, fill, hook };
    let parts = of_engines.into_iter().zip(held).map(|((queues, way_out), held)| Part {
        shared: shared.clone(),
        queues,
        way_out,
        most_lent,
        held,
        metadata: metadata && !binding.zero_copy,
        zero_copy: binding.zero_copy,
    });
    Ok((parts.collect(), notices))
}

/// Has the program give an engine what comes for it.
fn connect(name: &str, steer: &Steer, engine: u32, queues: &[Queue]) -> Result<(), OpenError> {
    for (number, queue) in (0..).zip(queues) {
        let important = queue.important.as_ref().map(|inlet| (true, inlet));
        for (important, inlet) in [(false, &queue.inlet)].into_iter().chain(important) {
            steer
                .connect(number, engine, important, inlet.socket.as_fd())
                .map_err(|error| OpenError::system(name, "give its packets to an AF_XDP socket", error))?;
        }
    }
    Ok(())
}

/// What could be better, and what it costs.
fn shortfalls(name: &str, binding: Binding, mode: Mode, zero_copy: bool) -> Vec<Notice> {
    let mut notices = Vec::new();
    if mode == Mode::Generic {
        notices.push(Notice(format!(
            "{name}: its driver has no XDP, so packets take the kernel's longer way first: driver \"packet\" is faster \
             here"
        )));
    } else if zero_copy && !binding.zero_copy {
        notices.push(Notice(format!(
            "{name}: its driver cannot put packets into our memory (no zero-copy), so the kernel copies each"
        )));
    }
    notices
}

/// Engines that have to send another way, and what helps.
fn too_few_queues(name: &str, ways_out: u32, engines: u32) -> Option<Notice> {
    (ways_out < engines).then(|| {
        let others = if engines - ways_out == 1 { "one sends" } else { "others send" };
        Notice(format!(
            "{name}: it has {ways_out} transmit queue{} for {engines} engines, so {others} by a packet socket, which costs more \
             for small packets: `ethtool -L {name} combined {engines}`, of a veth `ethtool -L {name} rx {engines} tx \
             {engines}`, or make that with `numrxqueues {engines} numtxqueues {engines}`",
            if ways_out == 1 { "" } else { "s" },
        ))
    })
}

/// One descriptor for several sockets.
fn watch_all<'a>(name: &str, sockets: impl Iterator<Item = BorrowedFd<'a>>) -> Result<OwnedFd, OpenError> {
    let system = |error| OpenError::system(name, "watch its queues", error);
    // SAFETY: no pointers; the result is checked.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(system(io::Error::last_os_error()));
    }
    // SAFETY: just made, owned by nobody else.
    let all = unsafe { OwnedFd::from_raw_fd(fd) };
    for socket in sockets {
        let fd = socket.as_raw_fd();
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the structure outlives the call.
        if unsafe { libc::epoll_ctl(all.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } < 0 {
            return Err(system(io::Error::last_os_error()));
        }
    }
    Ok(all)
}
