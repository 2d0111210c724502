//! Opening an `xdp` partner: checks first, each with its remedy, then memory, a socket for each queue, and the program
//! that fills them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use scoutline_base::{DeviceId, Time};
use scoutline_bpf::{Mode, Steer};

use crate::error::OpenError;
use crate::ethernet::{self, Station};
use crate::partner::{DeviceCounters, MAX_SUPER_FRAME, Notice, Offload};
use crate::sys::{self, Interface};
use crate::xdp::XdpPartner;
use crate::xdp::outlet::{self, Outlet};
use crate::xdp::receive::{Inlet, Queue, Receiver};
use crate::xdp::ring::{Consumer, Producer};
use crate::xdp::send::{METADATA_LEN, Sender};
use crate::xdp::socket::{self, Shares};
use crate::xdp::umem::Umem;
use crate::xdp::wanted::Wanted;

/// How to open an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The interface, and who we are on it.
    pub station: Station,
    /// Packets that the receive ring of a queue holds; rounded up to a power of two. With `bell` the ring for what is
    /// important holds half as many. There are twice as many chunks of 2 KiB (4 KiB with a large MTU): 8 MiB for each
    /// queue by default, 12 MiB with `bell`, and 2 MiB for all to send by.
    pub ring_frames: u32,
    /// The driver puts packets into our memory itself, where it can.
    pub zero_copy: bool,
    /// Floods are held back at the interface while they last (see [`Partner::police`](crate::Partner::police)).
    pub police: bool,
    /// What is important has receive rings of its own, and can ring.
    pub bell: bool,
}

/// How long the receive rings of each queue are.
#[derive(Clone, Copy)]
struct Lengths {
    ring: u32,
    /// For what is important, if that is apart: half of the other, for it is looked at first.
    important: Option<u32>,
}

impl Lengths {
    fn of(config: &Config) -> Lengths {
        let ring = config.ring_frames.clamp(64, 1 << 16).next_power_of_two();
        Lengths { ring, important: config.bell.then_some(ring / 2) }
    }

    /// Chunks that wait to be filled at most: as many as the receive rings over them hold, so that a full one does not
    /// starve the other.
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
        Config { station, ring_frames: 2048, zero_copy: true, police: true, bell: false }
    }
}

/// Packets that may be on their way out. The kernel's copies of them, 4 KiB each, are what [`SEND_BUFFER_LEN`] allows.
const SEND_FRAMES: u32 = 1024;
const SEND_BUFFER_LEN: libc::c_int = 8 << 20;
/// XDP_PACKET_HEADROOM (include/uapi/linux/bpf.h): the kernel keeps it free in front of what it receives.
const HEADROOM: u32 = 256;
/// The shortest chunk that the kernel takes, and the longest: a page.
const SHORT_CHUNK: u32 = 2048;
const LONG_CHUNK: u32 = 4096;
/// Ethernet header and a tag.
const LINK_LEN: u32 = 18;

/// How a socket is bound.
#[derive(Clone, Copy)]
struct Binding {
    zero_copy: bool,
    /// Packets may be in several chunks.
    long: bool,
}

/// Opens an interface.
///
/// # Errors
/// See [`OpenError`]; each names the remedy.
pub fn open(id: DeviceId, config: &Config) -> Result<(XdpPartner, Vec<Notice>), OpenError> {
    let name = &config.station.interface;
    let mut found = ethernet::look_at(&config.station)?;
    let (interface, mtu) = (&found.interface, found.mtu);
    let lengths = Lengths::of(config);
    let queues = interface.receive_queues();
    let chunk = if mtu + LINK_LEN + HEADROOM <= SHORT_CHUNK { SHORT_CHUNK } else { LONG_CHUNK };
    // Half of the chunks may be lent.
    let umem = Rc::new(Umem::new(name, chunk, 2 * lengths.to_fill() * queues, SEND_FRAMES)?);
    let opened = open_sockets(interface, &umem, queues, lengths, config)?;
    if !opened.binding.long && mtu + LINK_LEN + HEADROOM > chunk {
        return Err(OpenError::LongFrames { name: name.clone(), mtu, most: chunk - HEADROOM - LINK_LEN });
    }
    let hook = |source| OpenError::Hook { name: name.clone(), source };
    let steer = Steer::attach(interface.index, queues, config.police).map_err(hook)?;
    let metadata = opened.metadata && !opened.binding.zero_copy;
    // Hardware that takes packets from our memory does so when it likes: others could overtake them.
    let whole = if opened.binding.zero_copy { None } else { outlet::open_whole(interface)? };
    let (segmentation, max_segment_len) = (whole.is_some(), MAX_SUPER_FRAME);
    let facts = found.facts("xdp", Offload { checksum: metadata, segmentation, max_segment_len });
    let notices = shortfalls(name, opened.binding, steer.mode(), config.zero_copy);
    let ring = Sender::new(Rc::clone(&umem), opened.transmit, opened.completion, metadata, mtu);
    let sender = Outlet::new(ring, whole);
    // Filled before the first packet may come.
    let receiver = Receiver::new(umem, opened.queues, lengths.to_fill(), found.trusted, mtu);
    let ordinary = receiver.sockets().enumerate().map(|(queue, socket)| (queue, false, socket));
    let important = receiver.important_sockets().enumerate().map(|(queue, socket)| (queue, true, socket));
    for (queue, important, socket) in ordinary.chain(important) {
        steer
            .connect(queue as u32, important, socket)
            .map_err(|error| OpenError::system(name, "give its packets to an AF_XDP socket", error))?;
    }
    let groups = if config.station.groups {
        let socket = ethernet::raw_socket(name)?;
        ethernet::receive_groups(&socket, interface)?;
        Some(socket)
    } else {
        None
    };
    let all_queues = if queues > 1 { Some(watch_all(name, receiver.sockets())?) } else { None };
    let bell = if config.bell { Some(watch_all(name, receiver.important_sockets())?) } else { None };
    found.notices.extend(notices);
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
        wanted: Wanted::default(),
        news: None,
        _groups: groups,
        steer,
    };
    Ok((partner, found.notices))
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

/// The sockets of an interface, bound, and the rings to send by.
struct Opened {
    queues: Vec<Queue>,
    transmit: Producer<libc::xdp_desc>,
    completion: Consumer<u64>,
    /// The kernel takes requests to complete checksums.
    metadata: bool,
    binding: Binding,
}

fn open_sockets(
    interface: &Interface,
    umem: &Umem,
    queues: u32,
    lengths: Lengths,
    config: &Config,
) -> Result<Opened, OpenError> {
    let name = &interface.name;
    let system = |action| move |error| OpenError::system(name, action, error);
    let first = socket::open(name)?;
    let register =
        |metadata| sys::set_option(&first, libc::SOL_XDP, libc::XDP_UMEM_REG, &umem.registration(metadata));
    let metadata = match register(METADATA_LEN) {
        Ok(()) => true,
        // Before Linux 6.8.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            register(0).map_err(system("register memory for its packets"))?;
            false
        }
        Err(error) => return Err(system("register memory for its packets (`ulimit -l`)")(error)),
    };
    let make = system("make an AF_XDP ring");
    // Powers of two.
    let (ring, fill_len) = (lengths.ring, lengths.to_fill().next_power_of_two());
    let fill = socket::fill_ring(&first, fill_len).map_err(make)?;
    let completion = socket::completion_ring(&first, SEND_FRAMES).map_err(make)?;
    let receive = socket::receive_ring(&first, ring).map_err(make)?;
    let transmit = socket::transmit_ring(&first, SEND_FRAMES).map_err(make)?;
    // Without the privilege to exceed the system's limit, take what there is.
    if sys::set_option(&first, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_LEN).is_err() {
        let _ = sys::set_option(&first, libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER_LEN);
    }
    let binding = bind_first(&first, interface.index, config.zero_copy)
        .map_err(system("bind a raw AF_XDP socket to its first queue"))?;
    let inlet = Inlet { socket: first, ring: receive };
    let mut all = vec![Queue { fill, inlet, important: None }];
    for queue in 1..queues {
        let socket = socket::open(name)?;
        let fill = socket::fill_ring(&socket, fill_len).map_err(make)?;
        // It sends nothing, but the kernel wants the ring.
        let unused = socket::completion_ring(&socket, 1).map_err(make)?;
        drop(unused);
        let receive = socket::receive_ring(&socket, ring).map_err(make)?;
        socket::bind(&socket, interface.index, queue, Shares::Memory(&all[0].inlet.socket))
            .map_err(system("bind a raw AF_XDP socket to one of its queues"))?;
        all.push(Queue { fill, inlet: Inlet { socket, ring: receive }, important: None });
    }
    if let Some(len) = lengths.important {
        for (number, queue) in (0..).zip(&mut all) {
            let socket = socket::open(name)?;
            let receive = socket::receive_ring(&socket, len).map_err(make)?;
            socket::bind(&socket, interface.index, number, Shares::Memory(&queue.inlet.socket))
                .map_err(system("bind a second AF_XDP socket to one of its queues"))?;
            queue.important = Some(Inlet { socket, ring: receive });
        }
    }
    Ok(Opened { queues: all, transmit, completion, metadata, binding })
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
