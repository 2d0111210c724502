//! IPV6_RECVPATHMTU (RFC 3542 §11.3): after a datagram that was to be whole and was too long, the next receiving call
//! tells what the way carries, and takes nothing (`ipv6_local_rxpmtu` and `ipv6_recv_rxpmtu` of Linux).

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{IPPROTO_IPV6, msghdr};
use scoutline_abi::layout::datagram_flag as want;
use scoutline_base::Address;

use crate::address::{self, Name};
use crate::control::Writer;
use crate::options::PathMtu;
use crate::slot::Socket;

const IPV6_PATHMTU: c_int = 61;

/// A datagram to there was longer than this.
pub(super) fn note(socket: Socket, to: Address, mtu: u32) {
    if socket.slot.datagram_flags.load(Ordering::Relaxed) & want::PATH_MTU6 == 0 {
        return;
    }
    let (carried, place) = socket.slot.path_mtu_to_tell();
    for (word, of) in place.into_iter().zip(to.words()) {
        word.store(of, Ordering::Relaxed);
    }
    carried.store(mtu, Ordering::Release);
}

/// There is something to tell.
pub(crate) fn is_to_tell(socket: Socket) -> bool {
    socket.slot.datagram_flags.load(Ordering::Relaxed) & want::PATH_MTU6 != 0
        && socket.slot.path_mtu_to_tell().0.load(Ordering::Acquire) != 0
}

/// Takes it: where the datagram was to go, and what its way carries. EAGAIN: another thread was first.
pub(crate) fn take(socket: Socket) -> Result<(Name, u32), c_int> {
    let (carried, place) = socket.slot.path_mtu_to_tell();
    let address = Address::from_words(place.map(|word| word.load(Ordering::Relaxed)));
    match carried.swap(0, Ordering::AcqRel) {
        0 => Err(libc::EAGAIN),
        mtu => Ok((Name { address, port: 0, scope: socket.slot.scope.load(Ordering::Relaxed) }, mtu)),
    }
}

/// The same into a message, as a control message beside nothing.
pub(crate) fn tell(socket: Socket, message: &mut msghdr) -> Result<(), c_int> {
    let (to, mtu) = take(socket)?;
    if message.msg_name.is_null() {
        message.msg_namelen = 0;
    } else {
        address::write(to, true, message.msg_name.cast(), &raw mut message.msg_namelen);
    }
    message.msg_flags = 0;
    let mut writer = Writer::new(message);
    writer.put(IPPROTO_IPV6, IPV6_PATHMTU, &PathMtu { to: address::sockaddr_v6(to), mtu });
    writer.finish(message);
    Ok(())
}
