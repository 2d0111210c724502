//! The conditions of a class. Those on the *place* (our end, and the program there) are known once a program listens;
//! those on the *packet* only when one comes; those on the *request* (`scoutline_proto::request`) when that is read. A kind of condition that a class does not have costs one look at an
//! empty list.

use std::net::IpAddr;

use scoutline_base::{Address, DeviceId, V4_PREFIX_LEN};
use scoutline_path::FlowKey;

use crate::settings::{ClassSettings, ProgramFacts};

/// Our end of a flow.
pub(super) struct Place<'a> {
    /// Our address.
    pub(super) address: Address,
    /// Our port.
    pub(super) port: u16,
    /// Where its packets come in.
    pub(super) device: DeviceId,
    /// Whose it is; conditions on programs hold for none when it is unknown.
    pub(super) program: Option<&'a ProgramFacts>,
}

/// Whether the conditions on the peer and its packets hold. `tos` is `None` when no packet has come.
#[inline]
pub(super) fn hold_for_packet(class: &ClassSettings, key: &FlowKey, tos: Option<u8>) -> bool {
    any_or(&class.sources, |&network| contains(network, key.remote))
        && any_or(&class.remote_ports, |ports| ports.contains(&key.remote_port))
        && any_or(&class.dscps, |&dscp| tos.is_some_and(|tos| tos >> 2 == dscp))
}

/// Whether [`hold_for_packet`] depends on the packet at all.
pub(super) fn look_at_packets(class: &ClassSettings) -> bool {
    // Written over any network, `source` asks for nothing.
    let any_source = any_or(&class.sources, |&(_, prefix)| prefix == 0);
    !(any_source && class.remote_ports.is_empty() && class.dscps.is_empty())
}

/// Whether the conditions on our end hold.
pub(super) fn hold_for_place(class: &ClassSettings, place: &Place<'_>) -> bool {
    any_or(&class.destinations, |&network| contains(network, place.address))
        && any_or(&class.local_ports, |ports| ports.contains(&place.port))
        && any_or(&class.interfaces, |&device| device == place.device)
        && of_these_programs(&class.programs, &class.users, &class.cgroups, place.program)
}

/// Whether the conditions on the program hold; one that is unknown has no name, user or control group.
pub(crate) fn of_these_programs(
    programs: &[String],
    users: &[u32],
    cgroups: &[String],
    program: Option<&ProgramFacts>,
) -> bool {
    let of_program = |holds: &dyn Fn(&ProgramFacts) -> bool| program.is_some_and(holds);
    any_or(programs, |name| of_program(&|program| program.name == *name))
        && any_or(users, |&user| of_program(&|program| program.user == Some(user)))
        && any_or(cgroups, |group| {
            of_program(&|program| program.cgroups.iter().any(|path| is_within(path, group)))
        })
}

/// Whether the class takes every path.
pub(super) fn match_everything(class: &ClassSettings) -> bool {
    !look_at_packets(class)
        && any_or(&class.destinations, |&(_, prefix)| prefix == 0)
        && class.local_ports.is_empty()
        && class.interfaces.is_empty()
        && class.programs.is_empty()
        && class.users.is_empty()
        && class.cgroups.is_empty()
        && class.request.is_empty()
}

/// An empty condition holds for everything.
#[inline]
fn any_or<T>(conditions: &[T], holds: impl Fn(&T) -> bool) -> bool {
    conditions.is_empty() || conditions.iter().any(holds)
}

/// Without a prefix a network of either family is every address.
fn contains((network, prefix): (IpAddr, u8), address: Address) -> bool {
    let front = if network.is_ipv4() { V4_PREFIX_LEN } else { 0 };
    prefix == 0 || address.is_within(network.into(), front.saturating_add(prefix))
}

/// Whether a control group is `group` or lies in it: whole names, not their beginnings.
fn is_within(path: &str, group: &str) -> bool {
    let rest = path.strip_prefix(group.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
