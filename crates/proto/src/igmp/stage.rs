//! The IGMP stage: hears queries and other hosts' reports.

use std::rc::Rc;

use scoutline_base::Address;
use scoutline_path::{Body, Burst, Context, DropReason, Message, Stage};
use scoutline_wire::igmp;

use crate::Interface;
use crate::groups::Query;

/// The stage of the IGMP path.
pub struct IgmpStage {
    interface: Rc<Interface>,
    queries: u64,
}

impl IgmpStage {
    /// A stage for this interface.
    pub fn new(interface: Rc<Interface>) -> IgmpStage {
        IgmpStage { interface, queries: 0 }
    }

    fn on_message(&mut self, message: &Message, context: &mut Context<'_>) {
        // RFC 3376 §4: it comes from the link itself, or somebody far away would make us talk.
        if message.facts.hop_limit != 1 {
            return context.account.on_drop(DropReason::Malformed);
        }
        let heard = match igmp::Message::parse(message.bytes()) {
            Ok(heard) => heard,
            Err(error) => return context.account.on_drop(reason(error)),
        };
        let mut groups = self.interface.groups.borrow_mut();
        match heard {
            igmp::Message::Report(group) => groups.on_report(group.into(), context.now),
            igmp::Message::Query { group, sources, within, robustness, version } => {
                self.queries += 1;
                let query = Query {
                    group: Some(Address::from(group)).filter(|group| !group.is_unspecified()),
                    sources: sources.into_iter().map(Address::from).collect(),
                    within,
                    robustness,
                    age: 3 - version,
                };
                groups.on_query(&query, context.now);
            }
        }
    }
}

impl Stage for IgmpStage {
    fn module(&self) -> &'static str {
        "IGMP"
    }

    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        burst.retain(|message| {
            if let Body::Control(_) = message.body {
                return true;
            }
            self.on_message(message, context);
            false
        });
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        facts.push(("queries", self.queries.to_string()));
    }

    any_stage!();
}

fn reason(error: igmp::ParseError) -> DropReason {
    match error {
        igmp::ParseError::Truncated { .. } => DropReason::Truncated,
        igmp::ParseError::Checksum => DropReason::BadChecksum,
        // Of routers, or unknown (RFC 3376 §4).
        _ => DropReason::UnknownProtocol,
    }
}
