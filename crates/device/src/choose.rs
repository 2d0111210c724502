//! Which driver suits an ordinary interface, and why: from what its own driver tells of itself.
//!
//! The facts are the features for XDP of an interface, by generic netlink (family `netdev`, Linux 6.3;
//! Documentation/netlink/specs/netdev.yaml).

use std::io;
use std::net::IpAddr;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

use crate::error::OpenError;
use crate::ethernet;
use crate::sys;

/// One of the two drivers for ordinary interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suited {
    /// `packet`.
    Packet,
    /// `xdp`.
    Xdp,
}

/// The driver for an interface, and a line for people that says why.
///
/// # Errors
/// There is no such interface, or it cannot be used by either.
pub fn choose(interface: &str) -> Result<(Suited, String), OpenError> {
    let (found, _) = ethernet::find(interface)?;
    let kind = found.driver().unwrap_or_else(|| "unknown".into());
    let (suited, why) = match features(found.index) {
        Err(error) => (Suited::Packet, format!("what its driver ({kind}) has of XDP is not known: {error}")),
        Ok(features) => judge(features, &kind),
    };
    let name = match suited {
        Suited::Packet => "packet",
        Suited::Xdp => "xdp",
    };
    Ok((suited, format!("{interface}: driver \"{name}\", because {why}")))
}

/// The one interface that could be ours: Ethernet, up, and without an address of Linux's (link-local ones aside).
///
/// # Errors
/// A line for people: there is none, or there are several.
pub fn free_interface() -> Result<String, String> {
    let is_free = |name: &String| {
        let Ok((found, _)) = ethernet::find(name) else { return false };
        let is_link_local =
            |address: &IpAddr| matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
        found.linux_addresses().iter().all(is_link_local)
    };
    let mut free: Vec<String> = sys::names().into_iter().filter(is_free).collect();
    match free.len() {
        1 => Ok(free.remove(0)),
        0 => Err("no Ethernet interface is up and without an address; see `ip -br addr`".into()),
        _ => Err(format!(
            "several interfaces are up and without an address, name one of them: {}",
            free.join(", ")
        )),
    }
}

/// `enum netdev_xdp_act` (include/uapi/linux/netdev.h).
const BASIC: u64 = 1;
const REDIRECT: u64 = 2;
const ZERO_COPY: u64 = 8;

fn judge(features: u64, kind: &str) -> (Suited, String) {
    if features & BASIC == 0 || features & REDIRECT == 0 {
        return (Suited::Packet, format!("its driver ({kind}) has no XDP"));
    }
    if features & ZERO_COPY == 0 {
        let why = format!(
            "its driver ({kind}) has no zero-copy: the kernel would copy each packet for \"xdp\", and what \
             comes as a super-segment would be cut, which \"packet\" keeps whole"
        );
        return (Suited::Packet, why);
    }
    (Suited::Xdp, format!("its driver ({kind}) puts packets into our memory itself (zero-copy)"))
}

/// Generic netlink's own family, and what is asked of it (include/uapi/linux/genetlink.h).
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_NAME: u16 = 2;
const FAMILY_ID: u16 = 1;
/// `NETDEV_CMD_DEV_GET` and its attributes (include/uapi/linux/netdev.h).
const DEVICE_GET: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const XDP_FEATURES: u16 = 3;

/// The features for XDP of the interface with this index.
fn features(index: u32) -> io::Result<u64> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let family = ask(&socket, CONTROL, GET_FAMILY, (FAMILY_NAME, b"netdev\0"), FAMILY_ID)?;
    let family = u16::from_ne_bytes(family.get(..2).and_then(|id| id.try_into().ok()).ok_or_else(strange)?);
    let index = (DEVICE_INDEX, &index.to_ne_bytes()[..]);
    let features = ask(&socket, family, DEVICE_GET, index, XDP_FEATURES)?;
    Ok(u64::from_ne_bytes(features.get(..8).and_then(|word| word.try_into().ok()).ok_or_else(strange)?))
}

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "generic netlink's answer has another form")
}

/// Length of `nlmsghdr`, and of it with `genlmsghdr`.
const HEADER_LEN: usize = 16;
const HEADERS_LEN: usize = HEADER_LEN + 4;

/// Sends one request with one attribute; the attribute `wanted` of the answer.
fn ask(
    socket: &Socket,
    family: u16,
    command: u8,
    (kind, value): (u16, &[u8]),
    wanted: u16,
) -> io::Result<Vec<u8>> {
    let padded = value.len().next_multiple_of(4);
    let mut request = Vec::new();
    request.extend(((HEADERS_LEN + 4 + padded) as u32).to_ne_bytes());
    request.extend(family.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request.extend([1, 0, 0, 0, 0, 0, 0, 0]); // a sequence number, and the sender
    request.extend([command, 1, 0, 0]);
    request.extend(((4 + value.len()) as u16).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(value);
    request.resize(HEADERS_LEN + 4 + padded, 0);
    socket.send(&request, 0)?;
    let mut reply = Vec::with_capacity(8192);
    socket.recv(&mut reply, 0)?;
    let half = |at: usize| Some(u16::from_ne_bytes(reply.get(at..at + 2)?.try_into().ok()?));
    if half(4) == Some(libc::NLMSG_ERROR as u16) {
        let errno = reply.get(HEADER_LEN..HEADER_LEN + 4).and_then(|errno| errno.try_into().ok());
        return Err(errno.map_or_else(strange, |errno| {
            io::Error::from_raw_os_error(i32::from_ne_bytes(errno).saturating_neg())
        }));
    }
    let mut at = HEADERS_LEN;
    while let (Some(len), Some(kind)) = (half(at), half(at + 2)) {
        let len = usize::from(len).max(4);
        if kind & 0x3fff == wanted {
            return Ok(reply.get(at + 4..at + len).ok_or_else(strange)?.to_vec());
        }
        at += len.next_multiple_of(4);
    }
    Err(strange())
}

#[cfg(test)]
mod tests {
    use super::{BASIC, REDIRECT, Suited, ZERO_COPY, judge};

    #[test]
    fn zero_copy_decides() {
        assert_eq!(judge(0, "dummy").0, Suited::Packet);
        assert_eq!(judge(BASIC | REDIRECT, "veth").0, Suited::Packet);
        assert_eq!(judge(BASIC | REDIRECT | ZERO_COPY, "ice").0, Suited::Xdp);
        assert_eq!(judge(BASIC | ZERO_COPY, "drops-only").0, Suited::Packet, "it cannot give packets to us");
    }
}
