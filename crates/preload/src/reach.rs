//! Whose a socket is: where paths lead, and which kernel sockets could go there.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{sockaddr, socklen_t};
use scoutline_abi::layout::{call_op, slot_kind};
use scoutline_abi::served::{Network, Networks};
use scoutline_base::Address;

use crate::address::{self, Given, Name};
use crate::{attach, call, engines, options, real, table};

/// What `look` finds among what the daemon serves; it may be called more than once.
pub(crate) fn look_at_served<R>(look: impl Fn(Networks<'_>) -> R) -> Option<R> {
    let region = attach::region().filter(|_| !attach::dead())?;
    Some(region.header().look_at_served(look))
}

/// All of it, in memory of its own.
pub(crate) fn served() -> Vec<Network> {
    look_at_served(|networks| networks.collect()).unwrap_or_default()
}

fn any_served(of: impl Fn(&Network) -> bool) -> bool {
    look_at_served(|mut networks| networks.any(|network| of(&network))).unwrap_or(false)
}

/// True when paths serve anything at all.
pub(crate) fn serves_any() -> bool {
    any_served(|_| true)
}

/// True when paths serve IPv6.
pub(crate) fn serves_v6() -> bool {
    any_served(|network| !network.address.is_v4())
}

/// True for an address of ours; a link-local one with its scope. Loopback addresses are a network of ours, or none.
pub(crate) fn is_served_address(name: Name) -> bool {
    let near = name.address.is_link_local();
    if name.address.is_loopback() {
        return any_served(|network| network.is_ours() && network.contains(name.address));
    }
    any_served(|network| {
        network.is_ours() && network.address == name.address && (!near || network.scope == name.scope)
    })
}

/// The address from which an answer goes to what came to `own` on an interface: that, unless it is a group's or
/// everybody's; then ours of IPv4 there.
pub(crate) fn address_for(own: Address, interface: u32) -> Address {
    if any_served(|network| network.address == own && network.is_ours()) {
        return own;
    }
    let on = |network: &Network| network.scope == interface && network.address.is_v4() && network.is_ours();
    let there = look_at_served(|mut networks| networks.find(on)).flatten();
    there.map_or(own, |network| network.address)
}

/// True for the address of everybody on a network of ours, or of everybody (RFC 1122 §3.2.1.3): what needs SO_BROADCAST.
pub(crate) fn is_broadcast(address: Address) -> bool {
    address == Address::from_v4(std::net::Ipv4Addr::BROADCAST)
        || any_served(|network| {
            // RFC 3021: networks of 31 bits and hosts have none.
            let host_bits = 128 - u32::from(network.prefix_len);
            network.is_ours()
                && address.is_v4()
                && network.address.is_v4()
                && (2..=32).contains(&host_bits)
                && network.contains(address)
                && address.to_bits() | u128::MAX << host_bits == u128::MAX
        })
}

/// True for an address of ours or an unspecified one that paths have part in.
pub(crate) fn may_bind(name: Name) -> bool {
    let address = name.address;
    if address.is_unspecified() || is_broadcast(address) {
        return serves_any();
    }
    is_served_address(name) || address.is_multicast() && leads_to_group(name)
}

/// True when datagrams to a group go by paths unless a program says by which interface: the kernel does not know any way
/// for them, or paths have a gateway.
pub(crate) fn leads_to_group(name: Name) -> bool {
    let v4 = name.address.is_v4();
    if name.scope != 0 {
        return is_served_interface(name.scope);
    }
    any_served(|network| network.address.is_v4() == v4 && network.has_gateway())
        || any_served(|network| network.address.is_v4() == v4) && source_of_host(name.address).is_none()
}

/// True for the number of an interface of ours.
pub(crate) fn is_served_interface(number: u32) -> bool {
    any_served(|network| network.scope == number && network.is_ours())
}

/// True for the number of an interface of ours or of the kernel's.
pub(crate) fn is_interface(number: u32) -> bool {
    let mut name: [c_char; libc::IF_NAMESIZE] = [0; libc::IF_NAMESIZE];
    // SAFETY: a buffer as long as names get.
    is_served_interface(number) || unsafe { !libc::if_indextoname(number, name.as_mut_ptr()).is_null() }
}

/// True when paths have more than one interface.
pub(crate) fn serves_several() -> bool {
    let several = look_at_served(|networks| {
        let mut scopes =
            networks.filter(|network| network.is_ours() && network.scope != 0).map(|network| network.scope);
        let first = scopes.next();
        scopes.any(|scope| Some(scope) != first)
    });
    several.unwrap_or(false)
}

/// The interface that has an address of ours.
pub(crate) fn interface_of(address: Address) -> Option<u32> {
    let has_it = |network: &Network| network.address == address && network.is_ours();
    look_at_served(|mut networks| networks.find(has_it)).flatten().map(|network| network.scope)
}

/// True when paths lead to an address.
pub(crate) fn is_reached(name: Name) -> bool {
    let address = name.address;
    if address.is_unspecified() {
        return false;
    }
    if address.is_multicast() {
        return leads_to_group(name);
    }
    if address.is_loopback() {
        return is_served_address(name);
    }
    if address.is_link_local() {
        return any_served(|network| network.contains(address) && network.scope == name.scope);
    }
    if any_served(|network| network.contains(address)) {
        return true;
    }
    any_served(|network| network.has_gateway() && network.address.is_v4() == address.is_v4())
        && !is_host_address(address)
}

/// True for an address to which paths know no way: datagrams that are theirs cannot go there.
pub(crate) fn is_out_of_reach(address: Address) -> bool {
    let is_nobodys = address.is_unspecified() || address.is_multicast() || address.is_loopback();
    !is_nobodys
        && address != Address::from_v4(std::net::Ipv4Addr::BROADCAST)
        && !any_served(|network| {
            network.contains(address) || network.has_gateway() && network.address.is_v4() == address.is_v4()
        })
}

/// True when a socket of this kind is to connect to an address on paths: they lead there, or, of a loopback address
/// that is the kernel's, somebody on paths listens there.
pub(crate) fn leads_to(name: Name, kind: u32) -> bool {
    if is_reached(name) || is_served_address(name) {
        return true;
    }
    if !name.address.is_loopback() || !any_served(Network::has_own_link) {
        return false;
    }
    let [high, low] = name.address.words();
    let Some(region) = attach::region() else { return false };
    let engine = engines::of_port(region, name.port);
    call::ask_engine(engine, call_op::IS_LISTENED_AT, [low, u64::from(name.port), u64::from(kind), high]) > 0
}

/// True for an address of this machine on paths.
pub(crate) fn is_own(name: Name) -> bool {
    name.address.is_loopback() || is_served_address(name)
}

/// False where [`leads_to`] would say no for every kind of socket, without asking anybody else.
pub(crate) fn may_lead_to(name: Name) -> bool {
    is_reached(name) || name.address.is_loopback() && any_served(Network::has_own_link)
}

/// True for an address of the host's own: the kernel would send to it from itself.
fn is_host_address(address: Address) -> bool {
    source_of_host(address) == Some(address)
}

/// The address from which the kernel would send to this one; `None` when it knows no way.
fn source_of_host(address: Address) -> Option<Address> {
    let way = Name { address, port: 9, scope: 0 };
    try_on_kernel(way, |fd, to, len| {
        let connected = real::connect(fd, to, len) == 0;
        if connected { kernel_name(fd).map(|name| name.address) } else { None }
    })
}

/// What the kernel says of a datagram socket that is to connect there, if it does not; 0: it does.
pub(crate) fn refusal_of_host(name: Name) -> c_int {
    let mut errno = 0;
    try_on_kernel(name, |fd, to, len| {
        errno = if real::connect(fd, to, len) < 0 { real::errno() } else { 0 };
        None::<()>
    });
    errno
}

/// Whether the kernel binds sockets to this address.
pub(crate) fn kernel_has(name: Name) -> bool {
    try_on_kernel(Name { port: 0, ..name }, |fd, to, len| (real::bind(fd, to, len) == 0).then_some(()))
        .is_some()
}

/// What `attempt` finds with a datagram socket of the kernel's, made for it, and an address.
fn try_on_kernel<R>(
    name: Name,
    attempt: impl FnOnce(c_int, *const sockaddr, socklen_t) -> Option<R>,
) -> Option<R> {
    let inet6 = !name.address.is_v4();
    let family = if inet6 { libc::AF_INET6 } else { libc::AF_INET };
    let fd = real::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
    if fd < 0 {
        return None;
    }
    // SAFETY: zeros are a valid address.
    let mut to: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
    address::write(name, inet6, (&raw mut to).cast(), &raw mut len);
    let found = attempt(fd, (&raw const to).cast(), len);
    real::close_uncancelled(fd);
    found
}

/// True for a stream that the kernel has bound to an address of its own (one for datagrams has such a name also by a peer): from there no path leads anywhere but to this machine,
/// and Linux says what it makes of the rest.
pub(crate) fn is_bound_elsewhere(fd: c_int, to: Name) -> bool {
    !is_own(to) && kernel_name(fd).is_some_and(|name| !name.address.is_unspecified())
}

/// The local name of a kernel socket.
pub(crate) fn kernel_name(fd: c_int) -> Option<Name> {
    // SAFETY: zeros are a valid address.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
    if real::getsockname(fd, (&raw mut name).cast(), &raw mut len) < 0 {
        return None;
    }
    match address::parse((&raw const name).cast(), len) {
        Given::Inet(name) => Some(name),
        _ => None,
    }
}

/// Its port; 0 none.
pub(crate) fn kernel_port(fd: c_int) -> u16 {
    kernel_name(fd).map_or(0, |name| name.port)
}

/// No socket becomes ours any more.
static STAYS_AWAY: AtomicBool = AtomicBool::new(false);

/// From now on sockets stay the kernel's, where they are not ours already.
pub(crate) fn stay_away() {
    STAYS_AWAY.store(true, Ordering::Relaxed);
}

/// The kind and family of a kernel socket that could be ours.
pub(crate) fn suitable(fd: c_int) -> Option<(u32, c_int)> {
    if STAYS_AWAY.load(Ordering::Relaxed) || table::is_kernels(fd) {
        return None;
    }
    let family = options::of_kernel(fd, libc::SO_DOMAIN);
    if family != libc::AF_INET && family != libc::AF_INET6 || !options::may_be_ours(fd) {
        return None;
    }
    // Without IPv6 on paths there is nothing for a socket that wants nothing else.
    if family == libc::AF_INET6 && options::is_v6_only(fd) && !serves_v6() {
        return None;
    }
    let kind = match options::of_kernel(fd, libc::SO_PROTOCOL) {
        libc::IPPROTO_TCP => slot_kind::STREAM,
        libc::IPPROTO_UDP => slot_kind::DATAGRAM,
        _ => return None,
    };
    Some((kind, family))
}

/// True when a socket of this family may speak to that address (AF_INET6 to IPv4 unless it wants IPv6 only).
pub(crate) fn speaks(fd: c_int, family: c_int, address: Address) -> bool {
    if address.is_v4() {
        family == libc::AF_INET || !options::is_v6_only(fd)
    } else {
        family == libc::AF_INET6
    }
}
