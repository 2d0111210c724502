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

/// An errno as a result.
type Errno = i32;

/// What a socket is in.
#[derive(Default)]
pub(crate) struct Memberships(Seldom<Vec<Membership>>);

/// Sources of a filter that is about to hold; one such list a program.
#[derive(Default)]
pub(crate) struct NamedSources {
    /// For which socket, and which thread of which process names them.
    by: (u32, u32, u32),
    sources: Vec<Address>,
}

impl NamedSources {
    /// FIRST_OF_FILTER and NEXT_OF_FILTER: what was named by another, or for another socket, makes room.
    pub(crate) fn name(&mut self, is_first: bool, by: (u32, u32, u32), source: Address) -> Result<(), Errno> {
        if is_first || self.by != by {
            *self = NamedSources { by, sources: Vec::new() };
        }
        if self.sources.len() >= membership::MOST_SOURCES {
            return Err(libc::ENOBUFS);
        }
        self.sources.push(source);
        Ok(())
    }

    /// Those that were named, if they are so many.
    pub(crate) fn take(&mut self, by: (u32, u32, u32), count: u64) -> Result<Vec<Address>, Errno> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.by != by || self.sources.len() as u64 != count {
            return Err(libc::EAGAIN);
        }
        Ok(std::mem::take(&mut self.sources))
    }
}

struct Membership {
    interface: Rc<Interface>,
    /// Linux's number of the interface.
    number: u32,
    group: Address,
    /// By which the interface knows it.
    holder: u64,
    excludes: bool,
    /// In the order in which the program has named them, and as often: so it reads them back.
    sources: Vec<Address>,
}

impl Memberships {
    /// True when the socket wants what this source sent to this group on this interface. `all`: also if it is not in the
    /// group itself (IP_MULTICAST_ALL).
    pub(crate) fn want(&self, number: u32, group: Address, source: Address, all: bool) -> bool {
        let list = self.0.borrow();
        let own = list.iter().find(|it| it.number == number && it.group == group);
        own.map_or(all, |it| it.excludes != it.sources.contains(&source))
    }

    /// Those of another socket are this one's from now on.
    pub(super) fn take_from(&self, other: &Memberships) {
        self.0.replace(other.0.take());
    }

    /// Carries out one of [`membership`] that is about one source, or all.
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
            (membership::JOIN, None) => join(&mut list, (interface, number), group, true, Vec::new()),
            (membership::JOIN, Some(_)) => Err(libc::EADDRINUSE),
            (membership::LEAVE, Some(at)) => {
                list.remove(at);
                Ok(())
            }
            (membership::JOIN_SOURCE, None) => {
                join(&mut list, (interface, number), group, false, vec![source])
            }
            (membership::JOIN_SOURCE, Some(at)) => list[at].add(false, source),
            (membership::BLOCK_SOURCE, Some(at)) => list[at].add(true, source),
            (membership::LEAVE_SOURCE, Some(at)) => {
                list[at].take(false, source)?;
                if list[at].sources.is_empty() {
                    list.remove(at);
                }
                Ok(())
            }
            (membership::UNBLOCK_SOURCE, Some(at)) => list[at].take(true, source),
            (membership::LEAVE, None) => Err(libc::EADDRNOTAVAIL),
            _ => Err(libc::EINVAL),
        }
    }

    /// These sources are the filter from now on (RFC 3376 §2, RFC 3678 §4.1.3).
    pub(crate) fn filter(
        &self,
        excludes: bool,
        sources: Vec<Address>,
        number: u32,
        group: Address,
    ) -> Result<(), Errno> {
        if sources.len() > most_sources(group) {
            return Err(libc::ENOBUFS);
        }
        let mut list = self.0.borrow_mut();
        let at = list.iter().position(|it| it.number == number && it.group == group);
        if !excludes && sources.is_empty() {
            // Nothing is wanted: that is to leave.
            list.remove(at.ok_or(libc::EADDRNOTAVAIL)?);
            return Ok(());
        }
        let it = &mut list[at.ok_or(libc::EINVAL)?];
        (it.excludes, it.sources) = (excludes, sources);
        it.tell();
        Ok(())
    }

    /// How many sources the filter has | EXCLUDES, and the source with this number.
    pub(crate) fn tell_filter(
        &self,
        number: u32,
        group: Address,
        index: u64,
    ) -> Result<(u32, Option<Address>), Errno> {
        let list = self.0.borrow();
        let it =
            list.iter().find(|it| it.number == number && it.group == group).ok_or(libc::EADDRNOTAVAIL)?;
        let mode = if it.excludes { membership::EXCLUDES } else { 0 };
        let source = usize::try_from(index).ok().and_then(|index| it.sources.get(index));
        Ok((it.sources.len() as u32 | mode, source.copied()))
    }
}

fn most_sources(group: Address) -> usize {
    if group.is_v4() { membership::MOST_SOURCES_V4 } else { membership::MOST_SOURCES }
}

fn join(
    list: &mut Vec<Membership>,
    (interface, number): (&Rc<Interface>, u32),
    group: Address,
    excludes: bool,
    sources: Vec<Address>,
) -> Result<(), Errno> {
    let most = if group.is_v4() { MAX_MEMBERSHIPS } else { MAX_MEMBERSHIPS6 };
    let count = list.iter().filter(|it| it.group.is_v4() == group.is_v4()).count();
    let mut groups = interface.groups_of(group).borrow_mut();
    if count >= most || !groups.has_room_for(group) {
        return Err(libc::ENOBUFS);
    }
    let holder = groups.new_holder();
    drop(groups);
    let interface = Rc::clone(interface);
    let new = Membership { interface, number, group, holder, excludes, sources };
    new.tell();
    list.push(new);
    Ok(())
}

impl Membership {
    fn add(&mut self, excludes: bool, source: Address) -> Result<(), Errno> {
        // Only a filter without sources may change its mode (Linux's `ip_mc_source`).
        if self.excludes != excludes && !self.sources.is_empty() {
            return Err(libc::EINVAL);
        }
        if self.sources.contains(&source) {
            return Err(libc::EADDRNOTAVAIL);
        }
        if self.sources.len() >= most_sources(self.group) {
            return Err(libc::ENOBUFS);
        }
        self.excludes = excludes;
        self.sources.push(source);
        self.tell();
        Ok(())
    }

    fn take(&mut self, excludes: bool, source: Address) -> Result<(), Errno> {
        if self.excludes != excludes {
            return Err(libc::EINVAL);
        }
        let at = self.sources.iter().position(|&known| known == source).ok_or(libc::EADDRNOTAVAIL)?;
        self.sources.remove(at);
        self.tell();
        Ok(())
    }

    /// The interface knows the filter as it is now.
    fn tell(&self) {
        self.set(Filter { excludes: self.excludes, sources: self.sources.iter().copied().collect() });
    }

    fn set(&self, filter: Filter) {
        self.interface.groups_of(self.group).borrow_mut().set(self.holder, self.group, filter);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.set(Filter::none());
    }
}
