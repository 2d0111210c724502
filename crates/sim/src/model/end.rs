//! The end of a wire that an engine in virtual time has.

use std::cell::{Ref, RefCell, RefMut};
use std::os::fd::RawFd;
use std::rc::Rc;

use scoutline_base::Time;
use scoutline_device::memory::MemoryPartner;
use scoutline_device::{DeviceCounters, DeviceError, DeviceFacts, Partner};
use scoutline_path::Burst;

/// A wire's end that is asked at every turn: its idea of the time moves with `pull`. The wire outlives the engine.
#[derive(Clone)]
pub struct End {
    inner: Rc<RefCell<MemoryPartner>>,
    name: &'static str,
    facts: DeviceFacts,
}

impl End {
    /// The end for an engine, under a name for people.
    pub fn new(name: &'static str, partner: MemoryPartner) -> End {
        let facts = partner.facts().clone();
        End { inner: Rc::new(RefCell::new(partner)), name, facts }
    }

    /// The engine is told of this MTU, whatever the wire has.
    #[must_use]
    pub fn with_mtu(mut self, mtu: u32) -> End {
        self.facts.mtu = mtu;
        self
    }

    /// The wire's own end.
    pub fn wire(&self) -> Ref<'_, MemoryPartner> {
        self.inner.borrow()
    }

    /// The same, to change it.
    pub fn wire_mut(&self) -> RefMut<'_, MemoryPartner> {
        self.inner.borrow_mut()
    }
}

impl Partner for End {
    fn name(&self) -> &str {
        self.name
    }
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }
    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        self.wire_mut().pull(burst, limit, now)
    }
    fn has_input(&self) -> bool {
        true
    }
    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        self.wire_mut().push(burst)
    }
    fn room(&self) -> usize {
        self.wire().room()
    }
    fn standing(&self) -> Option<u64> {
        self.wire().standing()
    }
    fn poll_fd(&self) -> Option<RawFd> {
        None
    }
    fn next_event(&self) -> Option<Time> {
        self.wire().next_event()
    }
    fn counters(&self) -> DeviceCounters {
        self.wire().counters()
    }
}
