//! A slow link, made by a host that forwards.
//!
//! ```text
//!   server host              forwarding host                                  client host
//!   eth0 10.77.0.1 ═══ in 10.77.0.254 ─ ip_forward ─ out 10.78.0.1 ═══ eth0 10.78.0.2 standard, 10.78.0.3 preferred
//!                                                    tbf: the rate of the link, a queue
//! ```
//! Only what goes to the client host is slow. One such pair of hosts for each server; the numbers in the addresses
//! are the server's.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};

use super::{Host, Owner, Steer, Testbed, address, cleanup, ip, join};

/// A link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Bits per second, Ethernet headers included.
    pub rate: u64,
    /// Bytes that may wait in front of it.
    pub queue_bytes: u32,
    /// Bytes of IP in a frame.
    pub mtu: u32,
}

impl Link {
    /// A link of this rate with a queue of fifty full frames, as the devices of the paper's experiments had it.
    pub const fn new(rate: u64, mtu: u32) -> Link {
        Link { rate, queue_bytes: 50 * (mtu + ETHERNET_HEADER), mtu }
    }

    /// Bytes of a full frame.
    fn frame_len(self) -> u32 {
        self.mtu + ETHERNET_HEADER
    }

    /// How long a full frame takes, in microseconds.
    pub fn frame_us(self) -> f64 {
        f64::from(self.frame_len()) * 8e6 / self.rate as f64
    }
}

/// The network between a forwarding host and the client host.
pub(super) fn far_address(network: usize, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, u8::try_from(network).expect("fewer than 256 server hosts"), host)
}

const ETHERNET_HEADER: u32 = 14;

impl Testbed {
    /// Makes one server host for each entry of `owners`, each behind a link of its own, and the client host.
    ///
    /// # Errors
    /// As [`Testbed::new`]; also without the program `tc`, or without tbf in the kernel.
    pub fn over_links(owners: &[Owner], link: Link, steer: Option<Steer>) -> Result<Testbed> {
        let (mut testbed, prefix) = Testbed::with_client()?;
        for (index, owner) in owners.iter().enumerate() {
            let (client, server) = (&testbed.client, Host::create(format!("{prefix}-server{index}"))?);
            let middle = Host::create(format!("{prefix}-forward{index}"))?;
            let device = format!("eth{index}");
            join((&server, "eth0"), (&middle, "in"))?;
            join((&middle, "out"), (client, &device))?;
            let ends = [(&server, "eth0"), (&middle, "in"), (&middle, "out"), (client, device.as_str())];
            for (host, device) in ends {
                host.ip(&format!("link set {device} mtu {}", link.mtu))?;
            }
            middle.forward(index, link)?;
            client.reach(index, &device)?;
            if *owner == Owner::Kernel {
                server.ip(&format!("addr add {}/24 dev eth0 noprefixroute", address(index, 1)))?;
                let near = address(index, 0);
                server.ip(&format!("route add {near}/24 dev eth0 src {}", address(index, 1)))?;
                server.ip(&format!("route add default via {} congctl cubic", gateway(index)))?;
            }
            if let Some(steer) = steer {
                // What the forwarding host does is the network's work: it is done and paid for on the clients' core.
                server.steer("eth0", steer.server_core)?;
                middle.steer("in", steer.client_core)?;
                middle.steer("out", steer.client_core)?;
                client.steer(&device, steer.client_core)?;
            }
            testbed.servers.push(server);
            testbed.forwarders.push(middle);
        }
        Ok(testbed)
    }

    /// The next hop of a server host, in a test bed made by [`Testbed::over_links`].
    pub fn gateway(&self, index: usize) -> Ipv4Addr {
        gateway(index)
    }

    /// Has a server host send at the link's rate, and what goes from or to these ports last: htb with two classes.
    ///
    /// # Errors
    /// Without the program `tc`, or without htb in the kernel.
    pub fn prioritise_over_link(&self, index: usize, link: Link, background: &[u16]) -> Result<()> {
        let host = &self.servers[index];
        let (rate, low) = (link.rate, link.rate / 100);
        let frame = link.frame_len();
        let burst = format!("burst {0} cburst {0} quantum {frame}", 2 * frame);
        let frames = link.queue_bytes / frame;
        host.tc("qdisc add dev eth0 root handle 1: htb default 10")?;
        host.tc(&format!(
            "class add dev eth0 parent 1: classid 1:1 htb rate {rate}bit ceil {rate}bit {burst}"
        ))?;
        for (id, priority, own) in [(10, 0, rate - low), (20, 1, low)] {
            let rates = format!("rate {own}bit ceil {rate}bit");
            host.tc(&format!(
                "class add dev eth0 parent 1:1 classid 1:{id} htb prio {priority} {rates} {burst}"
            ))?;
            host.tc(&format!("qdisc add dev eth0 parent 1:{id} pfifo limit {frames}"))?;
        }
        for port in background {
            for end in ["sport", "dport"] {
                let matches = format!("u32 match ip {end} {port} 0xffff");
                host.tc(&format!("filter add dev eth0 parent 1: protocol ip prio 1 {matches} flowid 1:20"))?;
            }
        }
        Ok(())
    }
}

pub(super) fn gateway(index: usize) -> Ipv4Addr {
    address(index, 254)
}

impl Host {
    /// Makes this host forward between the two networks with this number.
    fn forward(&self, index: usize, link: Link) -> Result<()> {
        let near = gateway(index);
        self.ip(&format!("addr add {near}/24 dev in noprefixroute"))?;
        self.ip(&format!("route add {}/24 dev in src {near}", address(index, 0)))?;
        let far = far_address(index, 1);
        self.ip(&format!("addr add {far}/24 dev out noprefixroute"))?;
        self.ip(&format!("route add {}/24 dev out src {far}", far_address(index, 0)))?;
        self.passes_on()?;
        self.shape(link)
    }

    /// Has the kernel forward here.
    pub(super) fn passes_on(&self) -> Result<()> {
        let script = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        cleanup::with(|_| ip(&["netns", "exec", &self.name, "sh", "-c", script]))
            .with_context(|| format!("{} cannot be made to forward", self.name))
    }

    fn shape(&self, link: Link) -> Result<()> {
        let Link { rate, queue_bytes, .. } = link;
        // Two full frames of bucket, so that a super-segment is cut and leaves at the link's pace.
        let burst = 2 * link.frame_len();
        self.tc(&format!(
            "qdisc add dev out root handle 1: tbf rate {rate}bit burst {burst} limit {queue_bytes}"
        ))
    }

    /// Gives the client host its addresses on a far network, and the way to the server behind it.
    fn reach(&self, index: usize, device: &str) -> Result<()> {
        for last in [2, 3] {
            self.ip(&format!("addr add {}/24 dev {device} noprefixroute", far_address(index, last)))?;
        }
        let source = far_address(index, 2);
        self.ip(&format!("route add {}/24 dev {device} src {source} congctl cubic", far_address(index, 0)))?;
        let near = address(index, 0);
        self.ip(&format!("route add {near}/24 via {} dev {device} congctl cubic", far_address(index, 1)))
    }
}
