//! The network stage of a datagram socket that speaks both families (RFC 3493 §3.7): of an AF_INET6 socket at `::`.

use scoutline_path::{Body, Burst, Context, Message, Stage};

use super::Ip6Stage;
use crate::ip4::Ip4Stage;

/// IPv6, and IPv4 beside it: each message goes through the stage of its own family.
pub struct DualStage {
    ip6: Ip6Stage,
    ip4: Ip4Stage,
}

impl DualStage {
    /// Of these two.
    pub fn new(ip6: Ip6Stage, ip4: Ip4Stage) -> DualStage {
        DualStage { ip6, ip4 }
    }

    fn is_v4_packet(message: &Message) -> bool {
        message.bytes().first().is_some_and(|first| first >> 4 == 4)
    }
}

impl Stage for DualStage {
    fn module(&self) -> &'static str {
        "IP6"
    }

    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        burst.retain_mut(|message| {
            if DualStage::is_v4_packet(message) {
                self.ip4.inward_one(message, context)
            } else {
                self.ip6.inward_one(message, context)
            }
        });
    }

    fn outward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        let mut all = std::mem::take(burst);
        for message in all.drain(..) {
            let v4 = message.facts.destination.is_some_and(scoutline_base::Address::is_v4);
            let mut one = vec![message];
            if matches!(one[0].body, Body::Control(_)) {
                burst.append(&mut one);
                continue;
            }
            let stage: &mut dyn Stage = if v4 { &mut self.ip4 } else { &mut self.ip6 };
            stage.outward(&mut one, turned, context);
            burst.append(&mut one);
        }
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        self.ip6.describe(facts);
    }

    any_stage!();
}
