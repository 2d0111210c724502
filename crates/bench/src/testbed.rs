//! Hosts for an experiment, out of network namespaces and veth pairs.
//!
//! ```text
//!            client host                              server hosts
//!   eth0  10.77.0.2 standard, 10.77.0.3 preferred ═══ eth0  10.77.0.1   first
//!   eth1  10.77.1.2 standard, 10.77.1.3 preferred ═══ eth0  10.77.1.1   second
//!   …
//! ```
//!
//! Each server host is for one arm of an experiment, so arms take turns without any set-up between
//! them. Where the kernel serves, the address is on the interface; where we serve, the interface is up
//! and has no address: it belongs to the daemon (dedicated mode).
//!
//! [`Testbed::over_links`] puts a host that forwards between the client host and each server, and a slow link behind
//! it (`testbed/link.rs`).
//!
//! [`Testbed::over`] puts a bad line between a client and one server: a third host, with a
//! [`Bridge`](crate::bridge) in it.
//!
//! Every route is made with `congctl cubic`, because the default may be another (bbr here, which
//! cripples TCP over veth) and the sysctl cannot be set inside a namespace. Offloads stay on, save over
//! a bridge.
//!
//! Needs root and iproute2. Everything goes when the [`Testbed`] is dropped, and also on a signal
//! (`cleanup.rs`).

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{process, thread};

use anyhow::{Context as _, Result, bail};

use crate::bridge::{self, Bridge, Line};
use crate::cleanup::{self, ip};
use crate::sys;

mod link;
mod router;

pub use link::Link;

/// Who owns the address of a server host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The kernel: it stands on the interface.
    Kernel,
    /// Our daemon: the interface has none.
    Daemon,
}

/// Where a server host's answers to forged addresses (RFC 2544's, see `load::flood`) go: to the client host, which drops
/// them, as somebody's router would.
pub(crate) const FORGED: &str = "198.18.0.0/15";

/// Which of the client host's two addresses a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Ends in .2.
    Standard,
    /// Ends in .3: the class `preferred` where there are classes.
    Preferred,
}

/// Which core does the kernel's receive work of each side.
///
/// Without it a veth pair does the receiver's work on the core of the sender: most of a server's
/// protocol work would be done, and paid for, on the core of its clients.
#[derive(Clone, Copy, Debug)]
pub struct Steer {
    /// Of the server hosts.
    pub server_core: usize,
    /// Of the client host.
    pub client_core: usize,
}

/// One network namespace.
#[derive(Debug)]
pub struct Host {
    name: String,
}

impl Host {
    /// The namespace, for a process to start in.
    pub fn namespace(&self) -> Result<OwnedFd> {
        let path = Path::new(cleanup::NAMESPACES).join(&self.name);
        Ok(File::open(&path).with_context(|| format!("cannot open {}", path.display()))?.into())
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Does `work` in the namespace, on a thread of its own: sockets that it opens belong to this host.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    ///
    /// # Panics
    /// When `work` does.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let namespace = self.namespace()?;
        let enter = move || sys::enter_namespace(namespace.as_fd()).map(|()| work());
        let done = thread::scope(|scope| scope.spawn(enter).join());
        let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.with_context(|| format!("cannot enter the namespace {}", self.name))
    }

    fn create(name: String) -> Result<Host> {
        cleanup::with(|registry| {
            registry.namespaces.push(name.clone());
            ip(&["netns", "add", &name])
        })?;
        let host = Host { name };
        host.ip("link set lo up")?;
        Ok(host)
    }

    /// Has one core do the receive work of a device (receive packet steering).
    fn steer(&self, device: &str, core: usize) -> Result<()> {
        // `ip netns exec` mounts the namespace's own /sys, the only place where its devices are.
        let file = format!("/sys/class/net/{device}/queues/rx-0/rps_cpus");
        let mask = format!("{:x}{}", 1_u32 << (core % 32), ",00000000".repeat(core / 32));
        let script = format!("echo {mask} > {file}");
        cleanup::with(|_| ip(&["netns", "exec", &self.name, "sh", "-c", &script]))
            .with_context(|| format!("cannot steer {device} to core {core}"))
    }

    /// Runs one `ip` command in the namespace.
    fn ip(&self, command: &str) -> Result<()> {
        let mut arguments = vec!["-n", &self.name];
        arguments.extend(command.split_whitespace());
        cleanup::with(|_| ip(&arguments))
    }

    /// Runs one `tc` command in the namespace.
    fn tc(&self, command: &str) -> Result<()> {
        let mut arguments = vec!["-n", &self.name];
        arguments.extend(command.split_whitespace());
        cleanup::with(|_| cleanup::tc(&arguments))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        cleanup::with(|registry| {
            cleanup::remove_namespace(&self.name);
            registry.namespaces.retain(|other| *other != self.name);
        });
    }
}

/// A client host and its server hosts.
#[derive(Debug)]
pub struct Testbed {
    /// In front, so that it goes before what it joins.
    bridge: Option<Bridge>,
    client: Host,
    servers: Vec<Host>,
    /// By server host, in a test bed made by [`Testbed::over_links`] or [`Testbed::through_routers`].
    forwarders: Vec<Host>,
    directory: Directory,
}

impl Testbed {
    /// Makes one server host for each entry of `owners`, and the client host.
    ///
    /// # Errors
    /// Without root, without iproute2, or where namespaces are refused: the message says what to do.
    pub fn new(owners: &[Owner], steer: Option<Steer>) -> Result<Testbed> {
        let (mut testbed, prefix) = Testbed::with_client()?;
        for (index, owner) in owners.iter().enumerate() {
            let (client, server) = (&testbed.client, Host::create(format!("{prefix}-server{index}"))?);
            let device = format!("eth{index}");
            join((client, &device), (&server, "eth0"))?;
            assign(client, &server, index, *owner)?;
            if let Some(steer) = steer {
                server.steer("eth0", steer.server_core)?;
                client.steer(&device, steer.client_core)?;
            }
            testbed.servers.push(server);
        }
        Ok(testbed)
    }

    /// Has the server hosts' interfaces receive by NAPI, as network cards do (GRO is switched on).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn receive_with_napi(&self) -> Result<()> {
        for host in &self.servers {
            let on = host.enter(|| sys::gro_on("eth0"))?;
            on.with_context(|| format!("cannot switch on GRO of eth0 in {}", host.name))?;
        }
        Ok(())
    }

    /// Has both ends between the client host and the first server host use so many queues in each direction, of as many as
    /// there are cores.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn use_queues(&self, count: u32) -> Result<()> {
        for host in [&self.client, &self.servers[0]] {
            let set = host.enter(|| sys::set_queues("eth0", count))?;
            set.with_context(|| format!("cannot have {count} queues of eth0 in {}", host.name))?;
        }
        Ok(())
    }

    /// Makes a client host, one server host, and a line between them that loses, delays and mixes up packets.
    ///
    /// # Errors
    /// As [`Testbed::new`].
    pub fn over(line: Line, owner: Owner) -> Result<Testbed> {
        let (mut testbed, prefix) = Testbed::with_client()?;
        let (client, server) = (&testbed.client, Host::create(format!("{prefix}-server0"))?);
        let middle = Host::create(format!("{prefix}-bridge"))?;
        join((client, "eth0"), (&middle, bridge::CLIENT))?;
        join((&server, "eth0"), (&middle, bridge::SERVER))?;
        for host in [client, &server] {
            let off = host.enter(|| sys::offloads_off("eth0"))?;
            off.with_context(|| format!("cannot switch off the offloads of eth0 in {}", host.name))?;
        }
        assign(client, &server, 0, owner)?;
        testbed.bridge = Some(Bridge::start(middle, line)?);
        testbed.servers.push(server);
        Ok(testbed)
    }

    /// The client host alone, and how the names of its hosts begin.
    fn with_client() -> Result<(Testbed, String)> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !sys::is_root() {
            bail!("making hosts (network namespaces) needs root; run it with sudo");
        }
        cleanup::install()?;
        let prefix =
            format!("{}{}-{}", cleanup::PREFIX, process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = Directory::create(std::env::temp_dir().join(format!("{prefix}-files")))?;
        let client = Host::create(format!("{prefix}-client"))
            .context("cannot make network namespaces (in a container: run it with --privileged)")?;
        Ok((Testbed { bridge: None, client, servers: Vec::new(), forwarders: Vec::new(), directory }, prefix))
    }

    /// The line between the hosts, in a test bed made by [`Testbed::over`].
    pub fn bridge(&self) -> Option<&Bridge> {
        self.bridge.as_ref()
    }

    /// The host that clients run on.
    pub fn client(&self) -> &Host {
        &self.client
    }

    /// The server host with this index.
    pub fn server(&self, index: usize) -> &Host {
        &self.servers[index]
    }

    /// Where the server of a host is reached.
    pub fn server_address(&self, index: usize) -> SocketAddrV4 {
        SocketAddrV4::new(address(index, 1), 80)
    }

    /// A client's own address towards a server host.
    pub fn client_address(&self, index: usize, client: Client) -> Ipv4Addr {
        let host = if client == Client::Preferred { 3 } else { 2 };
        if self.forwarders.is_empty() { address(index, host) } else { link::far_address(index, host) }
    }

    /// Has what a server host sends from this port go first: htb with a class of its own for it, both classes
    /// within one rate beyond what the hosts reach, so that the rate itself holds nothing up.
    ///
    /// # Errors
    /// Without the program `tc`, or without htb in the kernel.
    pub fn prioritise(&self, index: usize, port: u16) -> Result<()> {
        let host = &self.servers[index];
        // Bursts of several super-segments; a quantum, or the kernel warns that it follows from the rate.
        let class = "burst 4m cburst 4m quantum 200000";
        host.tc("qdisc add dev eth0 root handle 1: htb default 20")?;
        host.tc(&format!("class add dev eth0 parent 1: classid 1:1 htb rate 100gbit ceil 100gbit {class}"))?;
        for (id, priority) in [(10, 0), (20, 1)] {
            let rates = "rate 50gbit ceil 100gbit";
            host.tc(&format!(
                "class add dev eth0 parent 1:1 classid 1:{id} htb prio {priority} {rates} {class}"
            ))?;
        }
        let matches = format!("u32 match ip sport {port} 0xffff");
        host.tc(&format!("filter add dev eth0 parent 1: protocol ip prio 1 {matches} flowid 1:10"))
    }

    /// A directory for files, sockets and logs, which goes with the test bed.
    pub fn directory(&self) -> &Path {
        &self.directory.0
    }
}

fn address(network: usize, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, u8::try_from(network).expect("fewer than 256 server hosts"), host)
}

/// Joins two hosts by a veth pair, both ends up.
fn join(one: (&Host, &str), other: (&Host, &str)) -> Result<()> {
    // Both ends are made where they belong, so that no name ever stands in our own namespace.
    one.0.ip(&format!("link add {} type veth peer name {} netns {}", one.1, other.1, other.0.name))?;
    for (host, device) in [one, other] {
        // No IPv6 link-local address: its neighbour discovery would be traffic of its own.
        host.ip(&format!("link set {device} addrgenmode none"))?;
        host.ip(&format!("link set {device} up"))?;
    }
    Ok(())
}

/// Gives the client host, and a server host that the kernel owns, addresses and routes on the network `index`.
fn assign(client: &Host, server: &Host, index: usize, owner: Owner) -> Result<()> {
    let device = format!("eth{index}");
    let network = format!("{}/24", address(index, 0));
    let assign = |host: &Host, device: &str, last: u8| {
        host.ip(&format!("addr add {}/24 dev {device} noprefixroute", address(index, last)))
    };
    assign(client, &device, 2)?;
    assign(client, &device, 3)?;
    client.ip(&format!("route add {network} dev {device} src {} congctl cubic", address(index, 2)))?;
    if owner == Owner::Kernel {
        assign(server, "eth0", 1)?;
        let own = address(index, 1);
        server.ip(&format!("route add {network} dev eth0 src {own} congctl cubic"))?;
        // What two programs of the host say to each other (`local`) goes by another route, which came with the address.
        server.ip(&format!(
            "route replace local {own} dev eth0 table local proto kernel scope host src {own} congctl cubic"
        ))?;
        server.ip(&format!("route add {FORGED} via {}", address(index, 2)))?;
    }
    Ok(())
}

#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    fn create(path: PathBuf) -> Result<Directory> {
        cleanup::with(|registry| {
            registry.directories.push(path.clone());
            fs::create_dir(&path)
        })
        .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        cleanup::with(|registry| {
            cleanup::remove_directory(&self.0);
            registry.directories.retain(|other| *other != self.0);
        });
    }
}
