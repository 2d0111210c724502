//! The stacks that scripts run against: what both can do, and the calls in a form that both take.

pub mod kernel;
pub mod ours;

use std::net::{Ipv4Addr, Ipv6Addr};

use scoutline_base::Address;
use scoutline_engine::TcpSettings;

use crate::packet::{GATEWAY, LOCAL, PREFIX};

/// A call, with the script's descriptor numbers.
#[derive(Clone, Debug)]
pub enum Op {
    /// `socket`
    Socket {
        /// AF_INET6, else AF_INET.
        inet6: bool,
        /// SOCK_STREAM, else SOCK_DGRAM.
        stream: bool,
        /// SOCK_NONBLOCK
        non_blocking: bool,
    },
    /// `bind`
    Bind {
        /// Descriptor.
        fd: i32,
        /// Where.
        at: (Address, u16),
    },
    /// `listen`
    Listen {
        /// Descriptor.
        fd: i32,
        /// Backlog.
        backlog: i32,
    },
    /// `accept4`
    Accept {
        /// Descriptor.
        fd: i32,
        /// SOCK_NONBLOCK
        non_blocking: bool,
    },
    /// `connect`
    Connect {
        /// Descriptor.
        fd: i32,
        /// The peer; `None`: AF_UNSPEC.
        to: Option<(Address, u16)>,
    },
    /// `sendto` and its kin.
    Send {
        /// Descriptor.
        fd: i32,
        /// The data.
        data: Vec<u8>,
        /// MSG_ flags.
        flags: i32,
        /// Where to, when not to the peer.
        to: Option<(Address, u16)>,
        /// Bytes that are sent already: for the stack that does a blocking call in pieces.
        sent: usize,
    },
    /// `recvfrom` and its kin.
    Receive {
        /// Descriptor.
        fd: i32,
        /// Room.
        len: usize,
        /// MSG_ flags.
        flags: i32,
    },
    /// `close`
    Close {
        /// Descriptor.
        fd: i32,
    },
    /// `shutdown`
    Shutdown {
        /// Descriptor.
        fd: i32,
        /// SHUT_ constant.
        how: i32,
    },
    /// `setsockopt`
    SetOption {
        /// Descriptor.
        fd: i32,
        /// Level and name.
        option: (i32, i32),
        /// As in memory.
        value: Vec<u8>,
    },
    /// `getsockopt`
    GetOption {
        /// Descriptor.
        fd: i32,
        /// Level and name.
        option: (i32, i32),
        /// Room.
        len: usize,
    },
    /// `fcntl`
    Fcntl {
        /// Descriptor.
        fd: i32,
        /// F_GETFL or F_SETFL.
        command: i32,
        /// Flags.
        argument: i32,
    },
    /// `ioctl` that gives an int.
    Ioctl {
        /// Descriptor.
        fd: i32,
        /// Which.
        request: u64,
    },
    /// `poll`
    Poll {
        /// Descriptors with the events asked for.
        fds: Vec<(i32, i16)>,
        /// Milliseconds.
        timeout: i32,
    },
    /// `epoll_create`. Ours only, as the two that follow.
    EpollCreate,
    /// `epoll_ctl`
    EpollControl {
        /// Of the epoll.
        epoll: i32,
        /// EPOLL_CTL_ constant.
        op: i32,
        /// Of the socket.
        fd: i32,
        /// What is asked for.
        events: u32,
        /// What comes back with it.
        data: u64,
    },
    /// `epoll_wait`; the answer's bytes are the events as in memory.
    EpollWait {
        /// Of the epoll.
        epoll: i32,
        /// Events at most.
        most: usize,
        /// Milliseconds.
        timeout: i32,
    },
    /// `getsockname` and `getpeername`
    Name {
        /// Descriptor.
        fd: i32,
        /// The peer's.
        peer: bool,
    },
}

/// What a call gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Its result, -1 on failure. Of `socket` and `accept` the script never sees the number.
    pub value: i64,
    /// The error.
    pub errno: i32,
    /// What was received, or an option's value.
    pub bytes: Vec<u8>,
    /// For `poll`: what is ready, for each descriptor.
    pub events: Vec<i16>,
    /// Who sent it; or a name.
    pub address: Option<(Address, u16)>,
}

impl Answer {
    /// A success.
    pub fn of(value: i64) -> Answer {
        Answer { value, ..Answer::default() }
    }

    /// A failure.
    pub fn error(errno: i32) -> Answer {
        Answer { value: -1, errno, ..Answer::default() }
    }
}

/// How a stack is set up for a script.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Our address, its prefix length, and the gateway.
    pub ip4: (Ipv4Addr, u8, Ipv4Addr),
    /// The same of IPv6, if it is on. Ours only.
    pub ip6: Option<(Ipv6Addr, u8, Ipv6Addr)>,
    /// Routers are asked for over IPv6, and obeyed. Ours only.
    pub autoconfigure: bool,
    /// What the route to the peer says of the way: names of ip-route(8), each with a number.
    pub route: Vec<(String, u16)>,
    /// MTU of the link.
    pub mtu: u32,
    /// Longer packets come, too, as from a link that merges them. Ours only.
    pub takes_merged: bool,
    /// How TCP connections behave. Ours only.
    pub tcp: TcpSettings,
    /// Receive buffer of a socket.
    pub receive_buffer: u32,
    /// Send buffer of a socket.
    pub send_buffer: u32,
    /// Kernel only: `name=value`.
    pub sysctls: Vec<String>,
    /// The kernel knows the gateway's link address beforehand.
    pub static_neighbour: bool,
    /// Kernel only: a machine that is late makes for patience. Not where a difference of times is what is expected: a
    /// delayed acknowledgment must not pass for one at once.
    pub allows_for_load: bool,
    /// What everything random follows from.
    pub seed: u64,
}

impl Default for Setting {
    fn default() -> Setting {
        Setting {
            ip4: (LOCAL, PREFIX, GATEWAY),
            ip6: None,
            autoconfigure: false,
            route: Vec::new(),
            mtu: 1500,
            takes_merged: false,
            tcp: TcpSettings::default(),
            receive_buffer: 256 << 10,
            send_buffer: 256 << 10,
            sysctls: Vec::new(),
            static_neighbour: true,
            allows_for_load: true,
            seed: 1,
        }
    }
}

/// A stack under test. Times are microseconds since it was made.
pub trait Stack {
    /// Now.
    fn now(&self) -> i64;
    /// Its link address.
    fn link_address(&self) -> [u8; 6];
    /// A frame comes.
    fn inject(&mut self, frame: &[u8]);
    /// Begins a call that will be known by `new_fd` if it makes a descriptor. One at a time.
    fn start(&mut self, op: Op, new_fd: i32);
    /// The answer of the call under way, and when it came.
    fn answer(&mut self) -> Option<(i64, Answer)>;
    /// The next frame that left, and when.
    fn captured(&mut self) -> Option<(i64, Vec<u8>)>;
    /// Lets time pass until then; less if a frame leaves or a call is answered.
    fn advance(&mut self, until: i64);
    /// By how much its own times may be wrong, in microseconds, `after` so long since the event before.
    fn tolerance(&self, after: i64) -> i64;
    /// Its times are virtual: errors do not add up.
    fn is_exact(&self) -> bool;
}
