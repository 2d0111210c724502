//! Networks on other devices: packets with tags find theirs.

use scoutline_base::{DeviceId, Time};
use scoutline_device::vlan::{tag_of, untag};
use scoutline_path::{DropReason, Message};

use super::Core;

impl Core {
    /// A packet with a tag: sorted again as one of the network that the tag names.
    pub(super) fn classify_tagged(&mut self, net: usize, number: u16, mut message: Message, now: Time) {
        // Without a number it tells a priority, and nothing else.
        let to = if number == 0 { Some(net) } else { self.vlans.get(&(net, number)).copied() };
        let Some(to) = to else { return self.drop_unowned(net, DropReason::NotForUs) };
        untag(&mut message);
        if tag_of(message.bytes()).is_some() {
            return self.drop_unowned(net, DropReason::UnknownProtocol);
        }
        message.facts.device = DeviceId(to as u16);
        self.classify(to, message, now);
    }
}
