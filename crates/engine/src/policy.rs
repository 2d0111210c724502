//! Which class a flow belongs to (DESIGN.md §6): the rules in order, the first match wins.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::Ipv4Addr;

use scoutline_device::packet::Important;
use scoutline_path::{Budget, FlowKey};
use scoutline_proto::Classifier;
use scoutline_proto::bindings::ClassIndex;
use scoutline_sched::Level;

use crate::settings::ClassSettings;

/// The classes and their rules.
pub struct ClassPolicy {
    classes: Vec<ClassSettings>,
    /// What the sockets of each class may hold together.
    memory: Vec<Budget>,
    /// Which program listens at a port: conditions on programs are about it.
    listening: RefCell<HashMap<u16, String>>,
}

impl ClassPolicy {
    /// A policy with these classes, to which one that matches everything is added.
    pub fn new(mut classes: Vec<ClassSettings>) -> ClassPolicy {
        if !classes.last().is_some_and(matches_everything) {
            classes.push(ClassSettings {
                name: "default".to_owned(),
                level: Level::Priority(0),
                listen_level: Level::Priority(0),
                sources: Vec::new(),
                local_ports: Vec::new(),
                remote_ports: Vec::new(),
                programs: Vec::new(),
                queue_packets: None,
                memory: None,
            });
        }
        let budget = |class: &ClassSettings| Budget::new(u32::MAX, class.memory.unwrap_or(u64::MAX));
        let memory = classes.iter().map(budget).collect();
        ClassPolicy { classes, memory, listening: RefCell::default() }
    }

    /// All classes in order.
    pub fn classes(&self) -> &[ClassSettings] {
        &self.classes
    }

    /// A class; out of range (it never is) gives the last.
    pub fn class(&self, index: ClassIndex) -> &ClassSettings {
        self.classes.get(index as usize).unwrap_or(&self.classes[self.classes.len() - 1])
    }

    /// The memory of a class's sockets.
    pub fn memory(&self, index: ClassIndex) -> &Budget {
        self.memory.get(index as usize).unwrap_or(&self.memory[self.memory.len() - 1])
    }

    /// Packets of classes above this level, as far as their source or port tells.
    pub(crate) fn important(&self, level: Level) -> Vec<Important> {
        let mut rules = Vec::new();
        for class in self.classes.iter().filter(|class| class.level > level) {
            if class.sources.is_empty() && class.local_ports.is_empty() {
                continue;
            }
            let any = [(Ipv4Addr::UNSPECIFIED, 0)];
            let sources = if class.sources.is_empty() { &any[..] } else { &class.sources };
            for &(source, prefix_len) in sources {
                if class.local_ports.is_empty() {
                    rules.push(Important { source, prefix_len, local_port: None });
                }
                rules.extend(class.local_ports.iter().map(|ports| Important {
                    source,
                    prefix_len,
                    local_port: Some(ports.clone()),
                }));
            }
        }
        rules
    }

    /// `program` listens at `port` from now on.
    pub fn on_listen(&self, port: u16, program: &str) {
        self.listening.borrow_mut().insert(port, program.to_owned());
    }

    /// The class of a flow of this program.
    pub fn class_for(&self, key: &FlowKey, program: &str) -> ClassIndex {
        let matching = self.classes.iter().position(|class| {
            any_or(&class.sources, |(network, prefix)| contains(*network, *prefix, key.remote))
                && any_or(&class.local_ports, |ports| ports.contains(&key.local_port))
                && any_or(&class.remote_ports, |ports| ports.contains(&key.remote_port))
                && any_or(&class.programs, |name| name == program)
        });
        matching.unwrap_or(self.classes.len() - 1) as ClassIndex
    }
}

impl Classifier for ClassPolicy {
    fn class_of(&self, key: &FlowKey) -> ClassIndex {
        let listening = self.listening.borrow();
        let program = listening.get(&key.local_port).map_or("", String::as_str);
        self.class_for(key, program)
    }
}

/// An empty condition holds for everything.
fn any_or<T>(conditions: &[T], holds: impl Fn(&T) -> bool) -> bool {
    conditions.is_empty() || conditions.iter().any(holds)
}

fn contains(network: Ipv4Addr, prefix: u8, address: Ipv4Addr) -> bool {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    (network.to_bits() ^ address.to_bits()) & mask == 0
}

fn matches_everything(class: &ClassSettings) -> bool {
    class.local_ports.is_empty()
        && class.remote_ports.is_empty()
        && class.programs.is_empty()
        && any_or(&class.sources, |(_, prefix)| *prefix == 0)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use scoutline_path::FlowKey;
    use scoutline_proto::Classifier;
    use scoutline_sched::Level;

    use super::ClassPolicy;
    use crate::settings::ClassSettings;

    fn class(name: &str) -> ClassSettings {
        ClassSettings {
            name: name.to_owned(),
            level: Level::Priority(0),
            listen_level: Level::Priority(0),
            sources: Vec::new(),
            local_ports: Vec::new(),
            remote_ports: Vec::new(),
            programs: Vec::new(),
            queue_packets: None,
            memory: None,
        }
    }

    #[test]
    fn the_first_rule_that_matches_wins() {
        let mut preferred = class("preferred");
        preferred.sources = vec![(Ipv4Addr::new(10, 0, 0, 3), 32)];
        let mut web = class("web");
        web.local_ports = vec![80..=80, 8000..=8100];
        let mut redis = class("redis");
        redis.programs = vec!["redis-server".to_owned()];
        let policy = ClassPolicy::new(vec![preferred, web, redis]);
        policy.on_listen(6379, "redis-server");
        let of = |remote: [u8; 4], local_port| {
            policy.class_of(&FlowKey { remote: remote.into(), local_port, ..FlowKey::default() })
        };
        assert_eq!(of([10, 0, 0, 3], 80), 0);
        assert_eq!(of([10, 0, 0, 4], 80), 1);
        assert_eq!(of([10, 0, 0, 4], 8100), 1);
        assert_eq!(of([10, 0, 0, 4], 6379), 2);
        assert_eq!(of([10, 0, 0, 4], 22), 3);
        assert_eq!(policy.class(3).name, "default");
    }
}
