//! Several engines may serve a program: which one a slot, a port or a thread belongs to.
//!
//! A slot lies among those of its engine. Packets for a port come to the engine that the port's number names
//! ([`scoutline_base::spread`]), so a socket that is bound gets a slot there; a connection that is opened from
//! any port goes to the engine on the core of the thread that opens it, if one is there.

use std::sync::atomic::{AtomicUsize, Ordering};

use scoutline_abi::Region;
use scoutline_abi::layout::{EngineWord, engine_of, slot_kind};
use scoutline_base::spread::{EPHEMERAL_FROM, engine_of_port};

use crate::address::Name;
use crate::{reach, wait};

/// The engines that serve the program.
pub(crate) fn all(region: &Region) -> &[EngineWord] {
    &region.header().engines[..region.engines()]
}

/// The engine of a slot, by number.
#[inline]
pub(crate) fn of_slot(region: &Region, slot: u32) -> usize {
    engine_of(slot, region.engines()).min(region.engines() - 1)
}

/// The engine to which packets for a port come.
pub(crate) fn of_port(region: &Region, port: u16) -> usize {
    engine_of_port(port, region.engines())
}

/// Where a socket can have its slot that will be bound to a port (0: any), or connect to `remote`: the best first.
pub(crate) fn for_socket(
    region: &Region,
    kind: u32,
    port: u16,
    remote: Option<Name>,
) -> impl Iterator<Item = usize> + use<> {
    let count = region.engines();
    let only = match remote {
        _ if count == 1 => Some(0),
        _ if port != 0 => Some(of_port(region, port)),
        // Both ends are here: that of the other is given.
        Some(to) if kind == slot_kind::STREAM && to.port >= EPHEMERAL_FROM && reach::is_own(to) => {
            Some(of_port(region, to.port))
        }
        _ => None,
    };
    let first = only.unwrap_or_else(|| near(region));
    (0..if only.is_some() { 1 } else { count }).map(move |further| (first + further) % count)
}

/// The engine on this thread's core; where there is none, each in turn.
fn near(region: &Region) -> usize {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    let here = all(region).iter().position(wait::is_on_core_of);
    here.unwrap_or_else(|| TURN.fetch_add(1, Ordering::Relaxed) % region.engines())
}
