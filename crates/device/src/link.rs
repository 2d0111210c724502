//! What rtnetlink says of an interface: whether packets queue in front of its driver, and how long a super-segment it
//! takes (`gso_ipv4_max_size`, Linux 6.3: "BIG TCP" for IPv4).
//!
//! The kernel's default is 64 KiB. Whoever owns an interface may raise it to what its driver can do
//! (`tso_max_size`); a longer segment costs one system call, one pass through the driver and one acknowledgment
//! where there were several. Beyond the limit a packet is not refused but cut in software, which costs far more.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::sys::Interface;

/// Room for what the kernel tells of one interface.
const REPLY_LEN: usize = 32 << 10;

/// The longest IPv4 super-segment of an interface, in bytes, link header included; it must stay below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLimit {
    /// The interface's index.
    pub interface: u32,
    /// As it is set now.
    pub now: u32,
    /// What the driver can do.
    pub most: u32,
}

impl SegmentLimit {
    /// The limit of the interface with this name; `None` where the kernel does not know one (before 6.3).
    ///
    /// # Errors
    /// No such interface; or as the kernel says.
    pub fn named(name: &str) -> io::Result<Option<SegmentLimit>> {
        let interface = Interface::find(name).map_err(io::Error::other)?;
        SegmentLimit::of(interface.index)
    }

    /// The limit of the interface with this index.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn of(index: u32) -> io::Result<Option<SegmentLimit>> {
        let (mut now, mut most) = (None, None);
        for attribute in attributes(index)? {
            match attribute {
                LinkAttribute::GsoIpv4MaxSize(len) => now = Some(len),
                LinkAttribute::TsoMaxSize(len) => most = Some(len),
                _ => {}
            }
        }
        Ok(now.zip(most).map(|(now, most)| SegmentLimit { interface: index, now, most }))
    }

    /// Sets it.
    ///
    /// # Errors
    /// As the kernel says: no privilege, no such interface, more than the driver can do.
    pub fn set(index: u32, len: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::GsoIpv4MaxSize(len));
        ask(RouteNetlinkMessage::SetLink(message), NLM_F_REQUEST | NLM_F_ACK).map(|_| ())
    }
}

/// Whether what is sent on an interface goes to its driver at once: it has no queueing discipline.
pub(crate) fn sends_at_once(index: u32) -> bool {
    let attributes = attributes(index).unwrap_or_default();
    attributes.iter().any(|attribute| matches!(attribute, LinkAttribute::Qdisc(name) if name == "noqueue"))
}

/// What the kernel tells of the interface with this index.
fn attributes(index: u32) -> io::Result<Vec<LinkAttribute>> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    match ask(RouteNetlinkMessage::GetLink(message), NLM_F_REQUEST)? {
        Some(RouteNetlinkMessage::NewLink(link)) => Ok(link.attributes),
        _ => Ok(Vec::new()),
    }
}

/// Sends one request and takes its one answer; `None` for a bare acknowledgment.
fn ask(message: RouteNetlinkMessage, flags: u16) -> io::Result<Option<RouteNetlinkMessage>> {
    let mut request = NetlinkMessage::from(message);
    request.header.flags = flags;
    request.header.sequence_number = 1;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let mut reply = Vec::with_capacity(REPLY_LEN);
    socket.recv(&mut reply, 0)?;
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("rtnetlink's answer: {error}"));
    match NetlinkMessage::<RouteNetlinkMessage>::deserialize(&reply).map_err(invalid)?.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        NetlinkPayload::InnerMessage(message) => Ok(Some(message)),
        _ => Ok(None),
    }
}
