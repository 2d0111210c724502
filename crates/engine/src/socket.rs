//! SOCKET: the program's end of a path. Copies between packets and the rings of a socket, and keeps the slot that
//! the shim reads in step with the protocol below.

mod asked;
mod datagram;
mod end;
mod growth;
mod membership;
mod module;
mod passing;
mod queue;
mod stream;
mod written;

pub(crate) use asked::Asked;
pub(crate) use datagram::DatagramStage;
pub(crate) use end::{ACCEPT_RING, SocketEnd};
pub(crate) use growth::Sizes;
pub(crate) use membership::NamedSources;
pub(crate) use module::{Listeners, Outlet, SIDE, SocketModule, Standing};
pub(crate) use queue::queue_accepted;
pub(crate) use stream::{StreamStage, set_addresses};
