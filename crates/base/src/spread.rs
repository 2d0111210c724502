//! Whose a flow is where several engines serve one machine. The one rule of three: the kernel applies it to packets, the
//! engines to what they hand over, and programs under the library to the ports that they bind.
//!
//! ```text
//!   TCP to a port below 32,768   a hash of the peer's address and port: what many peers ask of one server is spread
//!   TCP to another port          the port: whoever opened the connection has chosen it
//!   UDP                          the port: a datagram socket is served by one engine
//! ```

use std::net::IpAddr;

/// Ports from here on are those of whoever opens connections (Linux: `ip_local_port_range`).
pub const EPHEMERAL_FROM: u16 = 32_768;
/// Knuth's multiplicative hash: the upper bits of the product depend on all of the factor's.
pub const GOLDEN: u32 = 0x9e37_79b1;

/// Which of so many engines a flow belongs to: of TCP (`stream`) or UDP, between this peer and a port of ours.
pub fn engine_of_flow(stream: bool, peer: IpAddr, peer_port: u16, local_port: u16, engines: usize) -> usize {
    if !stream || local_port >= EPHEMERAL_FROM {
        return engine_of_port(local_port, engines);
    }
    let word = match peer {
        IpAddr::V4(peer) => peer.to_bits(),
        IpAddr::V6(peer) => {
            let bits = peer.to_bits();
            (0..4).fold(0, |word, part| word ^ (bits >> (32 * part)) as u32)
        }
    };
    ((word ^ u32::from(peer_port)).wrapping_mul(GOLDEN) >> 16) as usize % engines.max(1)
}

/// The engine where sockets that are bound to a port live: there it is decided who may have it.
pub fn engine_of_port(port: u16, engines: usize) -> usize {
    usize::from(port) % engines.max(1)
}
