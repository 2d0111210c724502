//! The groups that a datagram socket is in (RFC 3376 §2, RFC 3810 §3; ip(7)), as Linux keeps and limits them.

use std::rc::Rc;

use scoutline_abi::layout::membership;
use scoutline_base::Address;
use scoutline_proto::Interface;
use scoutline_proto::groups::Filter;

use crate::seldom::Seldom;

/// `igmp_max_memberships` of Linux; IPv6 has no such figure there, and memory as its limit.
const MAX_MEMBERSHIPS: usize = 20;
const MAX_MEMBERSHIPS6: usize = 64;
/// `igmp_max_msf` and `mld_max_msf`: sources of one membership.
const MAX_SOURCES: usize = 10;
const MAX_SOURCES6: usize = 64;

/// An errno as a result.
type Errno = i32;

/// What a socket is in.
#[derive(Default)]
pub(crate) struct Memberships(Seldom<Vec<Membership>>);

struct Membership {
    interface: Rc<Interface>,
    /// Linux's number of the interface.
    number: u32,
    group: Address,
    /// By which the interface knows it.
    holder: u64,
    filter: Filter,
}

impl Memberships {
    /// True when the socket wants what this source sent to this group on this interface. `all`: also if it is not in the
    /// group itself (IP_MULTICAST_ALL).
    pub(crate) fn want(&self, number: u32, group: Address, source: Address, all: bool) -> bool {
        let list = self.0.borrow();
        let own = list.iter().find(|it| it.number == number && it.group == group);
        own.map_or(all, |it| it.filter.takes(source))
    }

    /// Those of another socket are this one's from now on.
    pub(super) fn take_from(&self, other: &Memberships) {
        self.0.replace(other.0.take());
    }

    /// Carries out one of [`membership`].
    pub(crate) fn change(
        &self,
        what: u64,
        (interface, number): (&Rc<Interface>, u32),
        group: Address,
        source: Address,
    ) -> Result<(), Errno> {
        let mut list = self.0.borrow_mut();
        let at = list.iter().position(|it| it.number == number && it.group == group);
        match (what, at) {
            (membership::JOIN, None) => join(&mut list, (interface, number), group, Filter::all()),
            (membership::JOIN, Some(_)) => Err(libc::EADDRINUSE),
            (membership::LEAVE, Some(at)) => {
                list.remove(at);
                Ok(())
            }
            (membership::JOIN_SOURCE, None) => {
                let only = Filter { excludes: false, sources: [source].into() };
                join(&mut list, (interface, number), group, only)
            }
            (membership::JOIN_SOURCE, Some(at)) => list[at].add(false, source),
            (membership::BLOCK_SOURCE, Some(at)) => list[at].add(true, source),
            (membership::LEAVE_SOURCE, Some(at)) => {
                list[at].take(false, source)?;
                if list[at].filter.sources.is_empty() {
                    list.remove(at);
                }
                Ok(())
            }
            (membership::UNBLOCK_SOURCE, Some(at)) => list[at].take(true, source),
            (membership::LEAVE, None) => Err(libc::EADDRNOTAVAIL),
            _ => Err(libc::EINVAL),
        }
    }
}

fn join(
    list: &mut Vec<Membership>,
    (interface, number): (&Rc<Interface>, u32),
    group: Address,
    filter: Filter,
) -> Result<(), Errno> {
    let most = if group.is_v4() { MAX_MEMBERSHIPS } else { MAX_MEMBERSHIPS6 };
    let count = list.iter().filter(|it| it.group.is_v4() == group.is_v4()).count();
    let mut groups = interface.groups_of(group).borrow_mut();
    if count >= most || !groups.has_room_for(group) {
        return Err(libc::ENOBUFS);
    }
    let holder = groups.new_holder();
    groups.set(holder, group, filter.clone());
    drop(groups);
    list.push(Membership { interface: Rc::clone(interface), number, group, holder, filter });
    Ok(())
}

impl Membership {
    fn add(&mut self, excludes: bool, source: Address) -> Result<(), Errno> {
        // Only a filter without sources may change its mode (Linux's `ip_mc_source`).
        if self.filter.excludes != excludes && !self.filter.sources.is_empty() {
            return Err(libc::EINVAL);
        }
        if self.filter.sources.contains(&source) {
            return Err(libc::EADDRNOTAVAIL);
        }
        let most = if self.group.is_v4() { MAX_SOURCES } else { MAX_SOURCES6 };
        if self.filter.sources.len() >= most {
            return Err(libc::ENOBUFS);
        }
        self.filter.excludes = excludes;
        self.filter.sources.insert(source);
        self.tell(self.filter.clone());
        Ok(())
    }

    fn take(&mut self, excludes: bool, source: Address) -> Result<(), Errno> {
        if self.filter.excludes != excludes {
            return Err(libc::EINVAL);
        }
        if !self.filter.sources.remove(&source) {
            return Err(libc::EADDRNOTAVAIL);
        }
        self.tell(self.filter.clone());
        Ok(())
    }

    fn tell(&self, filter: Filter) {
        self.interface.groups_of(self.group).borrow_mut().set(self.holder, self.group, filter);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.tell(Filter::none());
    }
}
