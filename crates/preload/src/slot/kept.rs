//! Bits of [`Slot::kept_options`](scoutline_abi::layout::Slot::kept_options): the low ones are shared by all who hold the
//! socket.

pub(crate) const REUSE_ADDRESS: u32 = 1 << 0;
pub(crate) const REUSE_PORT: u32 = 1 << 1;
pub(crate) const NO_DELAY: u32 = 1 << 2;
pub(crate) const KEEP_ALIVE: u32 = 1 << 3;
pub(crate) const BROADCAST: u32 = 1 << 4;
pub(crate) const CORK: u32 = 1 << 5;
/// `shutdown` has found an attempt to connect over that `connect` has not told of: nothing but `connect` to AF_UNSPEC helps
/// then (SS_DISCONNECTING of Linux).
pub(crate) const STUCK: u32 = 1 << 6;
/// A connection attempt whose outcome `connect` has not told yet.
pub(crate) const CONNECT_PENDING: u32 = 1 << 7;
pub(crate) const QUICK_ACK_OFF: u32 = 1 << 8;
pub(crate) const OOB_INLINE: u32 = 1 << 9;
pub(crate) const ZERO_COPY: u32 = 1 << 10;
/// It was sent from with MSG_ZEROCOPY: there may be notices.
pub(crate) const COMPLETES: u32 = 1 << 11;
/// TCP_FASTOPEN_CONNECT.
pub(crate) const FAST_OPEN_CONNECT: u32 = 1 << 12;
/// TCP_INQ.
pub(crate) const TELLS_QUEUED: u32 = 1 << 13;
/// `accept` gave it: what its descriptor is to the kernel is its listener.
pub(crate) const ACCEPTED: u32 = 1 << 15;
/// Its port was the kernel's choice.
pub(crate) const ANY_PORT: u32 = 1 << 14;
/// Its address was the program's choice, and its port: SOCK_BINDADDR_LOCK and SOCK_BINDPORT_LOCK of Linux.
pub(crate) const ADDRESS_GIVEN: u32 = 1 << 16;
pub(crate) const PORT_GIVEN: u32 = 1 << 17;
/// It has listened and was shut, or its connection was over before `connect` told of it: it is as one that was never
/// connected.
pub(crate) const BEGINS_AGAIN: u32 = 1 << 19;
/// Somebody has asked when datagrams came: SOCK_TIMESTAMP of Linux.
pub(crate) const NOTES_TIMES: u32 = 1 << 18;
/// Its last `connect` was to AF_UNSPEC, and its numbers are another socket's: calls that sleep on it end.
pub(crate) const DISCONNECTED: u32 = 1 << 20;
/// A socket of IPv6 that takes and sends nothing of IPv4 (IPV6_V6ONLY, or an address of IPv6).
pub(crate) const V6_ONLY: u32 = 1 << 21;
