//! The chunks that nobody has, and the fill rings by which the kernel gets them: one of each queue, for all engines that
//! receive by it.
//!
//! ```text
//!   free ◄─ each engine: those that came back since it was here last
//!     └───► fill ring of each queue, up to as many as the receive rings over it hold
//! ```
//! Nobody waits for another. Whoever pulls takes the one lock if it is free; if not, somebody else fills the rings, and it
//! keeps what came back and does not sleep before it was here. So what an engine has while it sleeps is what it has lent
//! and what lies in its receive rings, and both are bounded: of each engine by its part: a third
//! of the chunks may be lent, a third lies in receive rings, and a third is what the fill rings take. Who does not come to run while it has the lock keeps the rings from being
//! filled so long; as much as all receive rings hold waits in them.

use std::sync::{Mutex, TryLockError};

use crate::xdp::ring::Producer;
use crate::xdp::umem::{Memory, Umem};

/// Free chunks, and the rings that take them.
pub(super) struct Fill(Mutex<Rings>);

struct Rings {
    /// By queue.
    rings: Vec<Producer<u64>>,
    /// Chunks that wait in each at most. It may have more entries, for its length is a power of two.
    to_fill: u32,
    free: Vec<u32>,
}

impl Fill {
    /// All chunks are free; the kernel has as many as are to wait.
    pub(super) fn new(memory: &Memory, rings: Vec<Producer<u64>>, to_fill: u32) -> Fill {
        let mut rings = Rings { rings, to_fill, free: (0..memory.receive_chunks()).rev().collect() };
        rings.refill(|chunk| memory.address(chunk));
        Fill(Mutex::new(rings))
    }

    /// Takes the chunks that came back to an engine, and gives the kernel as many as are to wait. The queues that want a
    /// system call for it are added to `asleep`. False: another engine is at it, and all is as it was.
    #[inline]
    pub(super) fn give(&self, umem: &Umem, asleep: &mut Vec<usize>) -> bool {
        let mut rings = match self.0.try_lock() {
            Ok(rings) => rings,
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
        };
        umem.give_free(&mut rings.free);
        rings.refill(|chunk| umem.address(chunk));
        let wants = |(_, ring): &(usize, &Producer<u64>)| ring.needs_wakeup();
        asleep.extend(rings.rings.iter().enumerate().filter(wants).map(|(queue, _)| queue));
        true
    }
}

impl Rings {
    fn refill(&mut self, address: impl Fn(u32) -> u64) {
        for ring in &mut self.rings {
            let mut put = 0;
            for _ in ring.waiting()..self.to_fill {
                let Some(chunk) = self.free.pop() else { break };
                ring.put(address(chunk));
                put += 1;
            }
            if put > 0 {
                ring.publish();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;
    use scoutline_base::{DeviceId, Time};
    use scoutline_path::Burst;

    use crate::partner::DeviceCounters;
    use crate::xdp::receive::{Inlet, Queue, Receiver};
    use crate::xdp::socket;

    /// Two engines, a ring of 16 and 32 chunks, of which each may lend 8. The ring's other side is the kernel's, which
    /// takes none before the socket is bound.
    #[test]
    fn what_came_back_stays_while_another_is_at_it() {
        let socket = socket::open("nothing").expect("AF_XDP; needs root");
        let ring = socket::fill_ring(&socket, 16).expect("a ring");
        let memory = Arc::new(Memory::new("nothing", 2048, 32, 0).expect("memory"));
        let fill = Fill::new(&memory, vec![ring], 16);
        let engine = || Rc::new(Umem::new(Arc::clone(&memory), 8, 32..32));
        let (one, two) = (engine(), engine());
        let free = || fill.0.lock().unwrap().free.len();
        assert_eq!((free(), fill.0.lock().unwrap().rings[0].waiting()), (16, 16));
        let packet = |chunk: u64| libc::xdp_desc { addr: 2048 * chunk, len: 100, options: 0 };
        let lent: Vec<_> = (24..32).map(|chunk| one.lend(&packet(chunk))).collect();
        assert!(!one.may_lend() && two.may_lend(), "each has its own part");
        drop(lent);
        assert!(one.may_lend());
        let mut asleep = Vec::new();
        let at_it = fill.0.lock().unwrap();
        assert!(!fill.give(&one, &mut asleep));
        drop(at_it);
        assert!(fill.give(&two, &mut asleep));
        assert_eq!(free(), 16, "the other one has none");
        assert!(fill.give(&one, &mut asleep));
        assert_eq!((free(), fill.0.lock().unwrap().rings[0].waiting()), (24, 16));
    }

    /// With nothing to receive into no packet comes that would wake it.
    #[test]
    fn who_could_not_give_back_does_not_sleep() {
        let inlet = socket::open("nothing").expect("AF_XDP; needs root");
        let filled = socket::fill_ring(&inlet, 16).expect("a ring");
        let ring = socket::receive_ring(&inlet, 16).expect("a ring");
        let memory = Arc::new(Memory::new("nothing", 2048, 16, 0).expect("memory"));
        let fill = Arc::new(Fill::new(&memory, vec![filled], 16));
        let umem = Rc::new(Umem::new(memory, 8, 16..16));
        let queue = Queue { inlet: Inlet { socket: inlet, ring }, important: None };
        let mut receiver = Receiver::new(umem, Arc::clone(&fill), vec![queue], false, 1500);
        let mut pull = || {
            let (mut burst, mut counters) = (Burst::new(), DeviceCounters::default());
            receiver.pull(&mut burst, 8, Time::ZERO, DeviceId(0), &mut counters);
            receiver.has_input()
        };
        assert!(!pull(), "nothing comes");
        let at_it = fill.0.lock().unwrap();
        assert!(pull());
        drop(at_it);
        assert!(!pull());
    }
}
