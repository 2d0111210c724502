//! smoltcp as a peer of the experiments `stream` and `rr`: `scoutline-peer-smoltcp DEVICE ADDRESS SERVICE [spin]`, where
//! a service is `tcp:PORT` or `udp:PORT` (sends back what it gets) or `iperf3:PORT`. It prints `ready` and serves until
//! it is stopped.
//!
//! ```text
//!   veth ══ packet socket (packet.rs) ── smoltcp ── service (echo.rs, iperf3.rs)       one thread, as smoltcp is meant
//! ```
//! It gets what helps the others too: super-segments both ways, checksums left to the device, cubic, buffers of 1 MiB.

mod echo;
mod iperf3;
#[allow(unsafe_code)] // the system calls
mod packet;

use std::net::Ipv4Addr;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, CongestionControl};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use crate::packet::Packets;

/// The same at each start, so that what the client host knows of it stays true.
const MAC: EthernetAddress = EthernetAddress([0x02, 0, 0, 0, 0, 1]);
/// Of the network that a server host is on.
const PREFIX_LEN: u8 = 24;
/// Of each socket, each way.
const BUFFER: usize = 1 << 20;

/// What a program does with its sockets.
trait Service {
    /// Takes what is there and gives what there is room for.
    fn on_poll(&mut self, sockets: &mut SocketSet<'_>, now: Instant) -> Result<()>;
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (device, address, service, spin) = match &words[..] {
        [device, address, service] => (device, address, service, false),
        [device, address, service, spin] if spin == "spin" => (device, address, service, true),
        _ => bail!("usage: scoutline-peer-smoltcp DEVICE ADDRESS tcp:PORT|udp:PORT|iperf3:PORT [spin]"),
    };
    let address: Ipv4Addr = address.parse().with_context(|| format!("not an address: {address}"))?;
    let (kind, port) = service.split_once(':').context("a service is KIND:PORT")?;
    let port: u16 = port.parse().with_context(|| format!("not a port: {port}"))?;

    let mut packets = Packets::open(device).with_context(|| format!("cannot use {device}"))?;
    let mut config = Config::new(MAC.into());
    config.random_seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
    let mut interface = Interface::new(config, &mut packets, Instant::now());
    interface.update_ip_addrs(|addresses| {
        // The list has room for one at least.
        let _ = addresses.push(IpCidr::new(IpAddress::Ipv4(address), PREFIX_LEN));
    });
    let mut sockets = SocketSet::new(Vec::new());
    let mut service: Box<dyn Service> = match kind {
        "tcp" => Box::new(echo::Tcp::new(&mut sockets, port)?),
        "udp" => Box::new(echo::Udp::new(&mut sockets, port)?),
        "iperf3" => Box::new(iperf3::Server::new(&mut sockets, port)?),
        _ => bail!("there is no service `{kind}`; there are: tcp, udp, iperf3"),
    };
    println!("ready");
    loop {
        let now = Instant::now();
        interface.poll(now, &mut packets, &mut sockets);
        service.on_poll(&mut sockets, now)?;
        // At once what the service has written: `poll` would look for packets first.
        while interface.poll_egress(now, &mut packets, &mut sockets) == PollResult::SocketStateChanged {}
        if !spin {
            packets.wait(interface.poll_delay(now, &sockets)).context("cannot wait")?;
        }
    }
}

/// A socket that listens. smoltcp has no backlog: each takes one connection, and listens anew when that has gone.
fn listen(sockets: &mut SocketSet<'_>, port: u16) -> Result<SocketHandle> {
    let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    socket.set_congestion_control(CongestionControl::Cubic);
    socket.listen(port).context("cannot listen")?;
    Ok(sockets.add(socket))
}
