//! Sharing a device, and opening a network on it.

use std::cell::RefCell;
use std::rc::Rc;

use scoutline_base::DeviceId;

use crate::partner::{DeviceCounters, DeviceFacts, Offload, Partner};
use crate::vlan::{TAG_LEN, VlanPartner};

/// How to open a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What people know it by.
    pub name: String,
    /// The device that it is on.
    pub parent: DeviceId,
    /// The number that its tags have, 1 to 4094.
    pub vlan: u16,
    /// The priority code point that its tags have, 0 to 7.
    pub priority: u8,
    /// What the parent sends is read by the kernel only.
    pub by_kernel: bool,
}

/// A device that several own.
#[derive(Clone)]
pub struct Shared {
    pub(super) parent: Rc<RefCell<Box<dyn Partner>>>,
    pub(super) name: String,
    pub(super) facts: DeviceFacts,
}

/// Makes a device one that several own.
pub fn share(parent: Box<dyn Partner>) -> Shared {
    let (name, facts) = (parent.name().to_owned(), parent.facts().clone());
    Shared { parent: Rc::new(RefCell::new(parent)), name, facts }
}

/// Opens a network on a shared device. Tags make frames longer than the MTU counts, as Linux has it.
pub fn open(config: &Config, on: &Shared) -> VlanPartner {
    let offload =
        Offload { max_segment_len: on.facts.offload.max_segment_len - TAG_LEN as u32, ..on.facts.offload };
    VlanPartner {
        name: config.name.clone(),
        facts: DeviceFacts {
            kind: "vlan",
            offload,
            // A scope apart from the parent's: each is a link of its own.
            index: on.facts.index | u32::from(config.vlan) << 16,
            ..on.facts.clone()
        },
        parent: Rc::clone(&on.parent),
        tci: u16::from(config.priority & 7) << 13 | config.vlan & 0x0fff,
        counters: DeviceCounters::default(),
    }
}
