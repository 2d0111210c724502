//! What each of several engines has of what a daemon was given: limits and rates are divided, and what is done for an
//! interface once the first engine does.

use std::sync::Arc;

use scoutline_device::{Driver, packet, xdp};
use scoutline_proto::tcp::fast_open::Keys;
use scoutline_sched::transmit::BitRate;

use super::{ClassSettings, EngineSettings, LiveSettings};
use crate::link_use::LinkUse;
use crate::sys;

impl EngineSettings {
    /// Settings of engines on these cores.
    pub fn parts(&self, cpus: &[usize]) -> Vec<EngineSettings> {
        let secret = u64::from_le_bytes(sys::random_bytes());
        let fast_open = Keys::new(sys::random_bytes(), None);
        let spread = |_| (packet::Spread::default(), xdp::Spread::new(cpus.len()));
        let spreads: Vec<_> = self.devices.iter().map(spread).collect();
        let link_use: Vec<Arc<LinkUse>> = self.devices.iter().map(|_| Arc::default()).collect();
        let part = |(index, &cpu): (usize, &usize)| {
            let mut part = self.clone();
            let of = cpus.len() as u64;
            part.cpu = Some(cpu);
            part.shared_secret = Some(secret);
            part.link_use.clone_from(&link_use);
            part.max_paths = (u64::from(self.max_paths).div_ceil(of)) as u32;
            part.max_buffer_bytes = self.max_buffer_bytes.div_ceil(of);
            part.policy_memory = self.policy_memory.map(|memory| memory.map(|bytes| bytes.div_ceil(of)));
            part.classes = self.classes.iter().map(|class| class.part(of)).collect();
            // A client's next connection may be another engine's.
            part.tcp.fast_open_keys.get_or_insert(fast_open);
            for (device, (packet, xdp)) in part.devices.iter_mut().zip(&spreads) {
                device.rate = device.rate.map(|rate| divided(rate, of));
                match &mut device.device.driver {
                    Driver::Packet(options) => options.spread = Some(packet.of_engine(index)),
                    Driver::Xdp(options) => options.spread = Some(xdp.of_engine(index)),
                    _ => {}
                }
            }
            part
        };
        cpus.iter().enumerate().map(part).collect()
    }
}

impl ClassSettings {
    /// One engine's part of so many.
    #[must_use]
    pub fn part(&self, of: u64) -> ClassSettings {
        ClassSettings {
            memory: self.memory.map(|bytes| bytes.div_ceil(of)),
            connections: self.connections.map(|count| u64::from(count).div_ceil(of) as u32),
            rate: self.rate.map(|rate| divided(rate, of)),
            ..self.clone()
        }
    }
}

impl LiveSettings {
    /// One engine's part of so many.
    #[must_use]
    pub fn part(&self, of: u64) -> LiveSettings {
        let link =
            |&(rate, preemption): &(Option<BitRate>, _)| (rate.map(|rate| divided(rate, of)), preemption);
        LiveSettings { links: self.links.iter().map(link).collect(), ..self.clone() }
    }
}

fn divided(rate: BitRate, of: u64) -> BitRate {
    BitRate::new(rate.get() / of)
}
