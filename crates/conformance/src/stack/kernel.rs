//! The kernel's stack in real time: a network namespace of its own with one TAP interface, whose other end the runner
//! holds, and a thread in it that does the calls.
//!
//! Needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN) and iproute2. The namespace goes with its last thread, the
//! interface with its descriptor: nothing stays behind, however the script ends.

mod program;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Answer, Op, Setting, Stack};
use program::{LiveFds, program};

/// Link address of the kernel's end.
const LINK_ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// What scheduling and timers of an idle machine take, in microseconds.
const TOLERANCE: i64 = 30_000;

/// The kernel.
pub struct Kernel {
    tap: File,
    started: Instant,
    orders: Option<Sender<(Op, i32)>>,
    answers: Receiver<(Instant, Answer)>,
    /// Readable when there is an answer.
    bell: OwnedFd,
    fds: LiveFds,
    thread: Option<JoinHandle<()>>,
    captured: Vec<(i64, Vec<u8>)>,
    answered: Option<(i64, Answer)>,
    /// By how much waiting has overslept at most: a busy machine measures worse.
    overslept: i64,
    /// And is allowed to.
    allows_for_load: bool,
    /// What it says of its groups is not the script's subject (IPv6).
    hides_groups: bool,
}

impl Kernel {
    /// A namespace with one interface.
    ///
    /// # Errors
    /// When privileges, /dev/net/tun or iproute2 are missing.
    pub fn new(setting: &Setting) -> io::Result<Kernel> {
        let (orders, taken) = channel();
        let (given, answers) = channel();
        let (ready, made) = channel();
        let (bell, rings) = pipe()?;
        let fds = LiveFds::default();
        let allows_for_load = setting.allows_for_load;
        let hides_groups = setting.ip6.is_some();
        let (setting, theirs) = (setting.clone(), fds.clone());
        let thread =
            std::thread::Builder::new().name("script".into()).spawn(move || match prepare(&setting) {
                Ok(tap) => {
                    if ready.send(Ok(tap)).is_ok() {
                        program(&taken, &given, &rings, &theirs);
                    }
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            })?;
        let tap = made.recv().map_err(|_| io::Error::other("the thread of the namespace ended"))??;
        Ok(Kernel {
            tap,
            started: Instant::now(),
            orders: Some(orders),
            answers,
            bell,
            fds,
            thread: Some(thread),
            captured: Vec::new(),
            answered: None,
            overslept: 0,
            allows_for_load,
            hides_groups,
        })
    }

    fn micros(&self, at: Instant) -> i64 {
        at.saturating_duration_since(self.started).as_micros() as i64
    }

    /// Takes what is there.
    fn drain(&mut self) {
        let mut buffer = vec![0u8; 66_000];
        while let Ok(len) = self.tap.read(&mut buffer) {
            let at = self.micros(Instant::now());
            if !(self.hides_groups && is_about_groups(&buffer[..len])) {
                self.captured.push((at, buffer[..len].to_vec()));
            }
        }
        if let Ok((at, answer)) = self.answers.try_recv() {
            self.answered = Some((self.micros(at), answer));
            let mut byte = [0u8; 8];
            // SAFETY: reads into a buffer of ours; the pipe does not block.
            unsafe { libc::read(self.bell.as_raw_fd(), byte.as_mut_ptr().cast(), byte.len()) };
        }
    }
}

impl Stack for Kernel {
    fn now(&self) -> i64 {
        self.micros(Instant::now())
    }

    fn link_address(&self) -> [u8; 6] {
        LINK_ADDRESS
    }

    fn inject(&mut self, frame: &[u8]) {
        // What the interface does not take (a frame cut too short) is lost, as on a wire.
        let _ = self.tap.write(frame);
        self.drain();
    }

    fn start(&mut self, op: Op, new_fd: i32) {
        if let Some(orders) = &self.orders {
            let _ = orders.send((op, new_fd));
        }
    }

    fn answer(&mut self) -> Option<(i64, Answer)> {
        self.drain();
        self.answered.take()
    }

    fn captured(&mut self) -> Option<(i64, Vec<u8>)> {
        self.drain();
        if self.captured.is_empty() { None } else { Some(self.captured.remove(0)) }
    }

    fn advance(&mut self, until: i64) {
        let before = self.now();
        let left = Duration::from_micros((until - before).max(0) as u64);
        let mut fds = [self.tap.as_raw_fd(), self.bell.as_raw_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        let limit = libc::timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        // SAFETY: both structures outlive the call.
        let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), 2, &raw const limit, std::ptr::null()) };
        if ready == 0 && self.allows_for_load {
            self.overslept = self.overslept.max(self.now() - until);
        }
        self.drain();
    }

    fn tolerance(&self, after: i64) -> i64 {
        // Its wheel rounds a timer up by as much as an eighth.
        TOLERANCE + 2 * self.overslept + after / 8
    }

    fn is_exact(&self) -> bool {
        false
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.orders = None;
        // A call that still blocks returns when its socket is shut down.
        for fd in self.fds.all() {
            // SAFETY: no pointers; the descriptors are the script's.
            unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: fills the array that we give.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and owned by nobody else.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// In the thread: a namespace, its interface, its settings.
fn prepare(setting: &Setting) -> io::Result<File> {
    // SAFETY: no pointers; it concerns the calling thread alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let tap = open_tap()?;
    let link = LINK_ADDRESS.map(|byte| format!("{byte:02x}")).join(":");
    let gateway = crate::packet::GATEWAY_LINK.map(|byte| format!("{byte:02x}")).join(":");
    let (mtu, local, prefix, router) =
        (setting.mtu, crate::packet::LOCAL, crate::packet::PREFIX, crate::packet::GATEWAY);
    let mut commands = vec![
        "set -e; sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1".to_owned(),
        format!(
            "sysctl -qw net.ipv4.tcp_no_metrics_save=1; ip link set lo up; ip link set script0 address {link} mtu {mtu}; \
             ip address add {local}/{prefix} dev script0; ip link set script0 up; ip route add default via {router}"
        ),
    ];
    if let Some((address, prefix, router)) = setting.ip6 {
        // No duplicate is looked for and no router asked for: the moments of both are the kernel's to draw.
        let ours = "net.ipv6.conf.script0";
        commands.insert(
            1,
            format!(
                "sysctl -qw net.ipv6.conf.lo.disable_ipv6=0 {ours}.disable_ipv6=0 {ours}.accept_dad=0 \
                 {ours}.dad_transmits=0 {ours}.router_solicitations=0 {ours}.autoconf=0"
            ),
        );
        commands.push(format!(
            "ip -6 address add {address}/{prefix} dev script0 nodad; ip -6 route add default via {router} dev script0"
        ));
        // What goes to an address is taken once a worker has entered a route to it (addrconf_dad_work), also where no
        // duplicate is looked for: a script that began before it would lose its first packets.
        commands.push(
            "ready() { [ \"$(ip -6 route show table local | grep -c '^local .* dev script0')\" = \
             \"$(grep -c script0 /proc/net/if_inet6)\" ]; }; for try in $(seq 1000); do ready && break; done; ready"
                .to_owned(),
        );
    }
    if !setting.route.is_empty() {
        let metrics: Vec<String> =
            setting.route.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let (peer, len) = (crate::packet::REMOTE, crate::packet::REMOTE_PREFIX);
        let network = Ipv4Addr::from_bits(peer.to_bits() & u32::MAX << (32 - len));
        commands.push(format!("ip route add {network}/{len} via {router} {}", metrics.join(" ")));
    }
    if setting.static_neighbour {
        commands.push(format!("ip neigh replace {router} lladdr {gateway} dev script0 nud permanent"));
    }
    commands.extend(setting.sysctls.iter().map(|sysctl| format!("sysctl -qw '{sysctl}'")));
    let output = std::process::Command::new("sh").args(["-c", &commands.join("; ")]).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(tap)
}

/// A message of multicast listener discovery (RFC 3810 §5): behind hop-by-hop options, of ICMPv6's types 130 to 132 and 143.
fn is_about_groups(frame: &[u8]) -> bool {
    const TYPE_AT: usize = 14 + 40 + 8;
    frame.get(12..14) == Some(&[0x86, 0xdd])
        && frame.get(20) == Some(&0)
        && frame.get(54) == Some(&58)
        && frame.get(TYPE_AT).is_some_and(|kind| matches!(kind, 130..=132 | 143))
}

fn open_tap() -> io::Result<File> {
    let tap = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: zeros are a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"script0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as i16;
    // SAFETY: the structure outlives the call.
    if unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no pointers.
    unsafe { libc::fcntl(tap.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    Ok(tap)
}
