//! Which groups an interface is in for its sockets, and what routers and switches are told of that: the host side of
//! IGMPv3 (RFC 3376) and of MLDv2 (RFC 3810), which is the same machine with other names; with older routers that of
//! IGMPv1 and v2 (RFC 1112, RFC 2236) and MLDv1 (RFC 2710).
//!
//! Pure: the interface asks when something is due and puts reports on the wire ([`crate::igmp`], [`crate::mld`]).
//!
//! ```text
//! sockets' filters ─ §3.2 ─► filter of the group ─ changes ─► robustness × state-change report, within 1 s each
//! queries ─ a random delay ─► current-state report
//! ```
//!
//! Left out on purpose: what is pending stays when the last older router has been silent for long enough (RFC 3376 §7.2.1
//! would have it cancelled): it is told in the newer words then, and is true.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use scoutline_base::{Address, Random, Time};

/// Sources of one group that are told apart; with more the interface takes every source, and sockets filter. A report of
/// one group then fits every link.
const MAX_SOURCES: usize = 64;
/// Groups of an interface: a bound on what queries make us send.
pub const MAX_GROUPS: usize = 1_024;
/// RFC 3376 §8.1: how often what may be lost is sent.
const ROBUSTNESS: u8 = 2;
/// §4.1.6: the most that three bits say.
const MAX_ROBUSTNESS: u8 = 7;
/// §8.11: between two reports of one change, at most.
const UNSOLICITED_INTERVAL: Duration = Duration::from_secs(1);
/// RFC 2236 §8.10: the same for older routers.
const UNSOLICITED_INTERVAL_OLD: Duration = Duration::from_secs(10);
/// RFC 3376 §8.12: how long a router of an older version is believed to be there, less the time for an answer.
const QUERY_INTERVAL: Duration = Duration::from_secs(125);

/// Which sources of a group are wanted (§2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// All but `sources`, or none but them.
    pub excludes: bool,
    /// The sources.
    pub sources: BTreeSet<Address>,
}

impl Filter {
    /// Every source.
    pub fn all() -> Filter {
        Filter { excludes: true, sources: BTreeSet::new() }
    }

    /// No source: not in the group.
    pub fn none() -> Filter {
        Filter { excludes: false, sources: BTreeSet::new() }
    }

    /// True when datagrams from this source are wanted.
    pub fn takes(&self, source: Address) -> bool {
        self.excludes != self.sources.contains(&source)
    }

    fn is_none(&self) -> bool {
        !self.excludes && self.sources.is_empty()
    }
}

/// Types of group records (§4.2.12; RFC 3810 §5.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// In answer to a query: these sources.
    IsInclude = 1,
    /// In answer to a query: all but these.
    IsExclude = 2,
    /// From now on these.
    ToInclude = 3,
    /// From now on all but these.
    ToExclude = 4,
    /// These as well.
    Allow = 5,
    /// These no more.
    Block = 6,
}

/// One record of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it says.
    pub kind: RecordKind,
    /// Of which group.
    pub group: Address,
    /// And which sources.
    pub sources: Vec<Address>,
}

/// What is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// These records, to the routers.
    Records(Vec<Record>),
    /// A report of version 2 (MLD: 1) about one group, to that group.
    Old(Address),
    /// The same of IGMP's version 1.
    Oldest(Address),
    /// Version 2 (MLD: 1): we have left.
    Left(Address),
}

/// A query, of any version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The group; `None`: all.
    pub group: Option<Address>,
    /// The sources; none: all.
    pub sources: Vec<Address>,
    /// By when an answer is wanted.
    pub within: Duration,
    /// §4.1.6; 0: not said.
    pub robustness: u8,
    /// How old the router is: 0 IGMPv3 and MLDv2, 1 IGMPv2 and MLDv1, 2 IGMPv1.
    pub age: u8,
}

/// The groups of one interface in one family.
#[derive(Debug)]
pub struct Groups {
    /// What each socket wants, by group and by the number that it was given here.
    wanted: BTreeMap<(Address, u64), Filter>,
    groups: BTreeMap<Address, Group>,
    next_holder: u64,
    robustness: u8,
    /// Until when routers of each age (1 and 2) are believed to be there.
    older_until: [Option<Time>; 2],
    /// A general query waits to be answered.
    general: Option<Time>,
    /// Nothing is due before: the engine asks in each turn, and the groups may be many.
    next: Option<Time>,
    random: Random,
}

#[derive(Debug)]
struct Group {
    filter: Filter,
    /// The change that is being told.
    change: Option<Change>,
    /// A query about the group waits to be answered; with sources, about those.
    asked: Option<(Time, BTreeSet<Address>)>,
}

/// What of a change is still to be told (§5.1), so often that one loss does not matter.
#[derive(Debug, Default)]
struct Change {
    /// Reports that say the mode with all sources.
    mode_left: u8,
    /// For each source that came or went, the reports that say so: after those of the mode.
    sources_left: BTreeMap<Address, u8>,
    due: Time,
}

impl Groups {
    /// In no group. `seed` decides the delays of answers.
    pub fn new(seed: u64) -> Groups {
        Groups {
            wanted: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_holder: 0,
            robustness: ROBUSTNESS,
            older_until: [None; 2],
            general: None,
            next: None,
            random: Random::new(seed),
        }
    }

    /// A number for who wants something.
    pub fn new_holder(&mut self) -> u64 {
        self.next_holder += 1;
        self.next_holder
    }

    /// True when somebody wants the group.
    #[inline]
    pub fn contains(&self, group: Address) -> bool {
        self.groups.get(&group).is_some_and(|group| !group.filter.is_none())
    }

    /// True when one more group can be had.
    pub fn has_room_for(&self, group: Address) -> bool {
        self.groups.len() < MAX_GROUPS || self.groups.contains_key(&group)
    }

    /// What a holder wants of a group from now on. What that changes is reported when it is due, which is at once.
    pub fn set(&mut self, holder: u64, group: Address, filter: Filter) {
        if filter.is_none() {
            self.wanted.remove(&(group, holder));
        } else {
            self.wanted.insert((group, holder), filter);
        }
        let merged = self.merged(group);
        let unreported = is_unreported(group);
        let robustness = self.robustness;
        let fresh = || Group { filter: Filter::none(), change: None, asked: None };
        let group_state = self.groups.entry(group).or_insert_with(fresh);
        if group_state.filter == merged {
            if merged.is_none() && group_state.change.is_none() {
                self.groups.remove(&group);
            }
            return;
        }
        let before = std::mem::replace(&mut group_state.filter, merged);
        if unreported {
            if group_state.filter.is_none() {
                self.groups.remove(&group);
            }
            return;
        }
        let now = &group_state.filter;
        let change = group_state.change.get_or_insert_default();
        change.due = Time::ZERO;
        let moved = before.sources.symmetric_difference(&now.sources);
        change.sources_left.extend(moved.map(|&source| (source, robustness)));
        // What says the mode says the sources too. More of them than are told apart are told so.
        if before.excludes != now.excludes || change.sources_left.len() > MAX_SOURCES {
            change.mode_left = robustness;
            change.sources_left.clear();
        }
        self.note(Time::ZERO);
    }

    /// §3.2: what the interface has to take for all holders together.
    fn merged(&self, group: Address) -> Filter {
        let holders = || self.wanted.range((group, 0)..=(group, u64::MAX)).map(|(_, filter)| filter);
        // Most want all of a group, and then the first of them says so.
        if holders().any(|filter| *filter == Filter::all()) {
            return Filter::all();
        }
        let included: BTreeSet<Address> =
            holders().filter(|f| !f.excludes).flat_map(|f| f.sources.iter().copied()).collect();
        let mut excluding = holders().filter(|f| f.excludes);
        let merged = match excluding.next() {
            None => Filter { excludes: false, sources: included },
            Some(first) => {
                let mut sources = first.sources.clone();
                excluding.for_each(|other| sources.retain(|source| other.sources.contains(source)));
                sources.retain(|source| !included.contains(source));
                Filter { excludes: true, sources }
            }
        };
        if merged.sources.len() > MAX_SOURCES { Filter::all() } else { merged }
    }

    /// A router asks (§5.2). Answers come after a random time, so that hosts do not answer all at once.
    pub fn on_query(&mut self, query: &Query, now: Time) {
        if query.robustness != 0 {
            self.robustness = query.robustness.min(MAX_ROBUSTNESS);
        }
        let age_before = self.age(now);
        if let Some(until) =
            usize::from(query.age).checked_sub(1).and_then(|age| self.older_until.get_mut(age))
        {
            *until = Some(now + QUERY_INTERVAL * u32::from(self.robustness) + query.within);
        }
        if self.age(now) != age_before {
            self.cancel();
        }
        if self.age(now) > 0 && query.group.is_none() {
            return self.on_general_of_old(query.within, now);
        }
        let due = now + self.delay(query.within);
        // 1: it will be answered with the general one that is due earlier.
        if self.general.is_some_and(|general| general <= due) {
            return;
        }
        let Some(group) = query.group else {
            self.general = Some(due);
            return self.note(due);
        };
        if is_unreported(group) {
            return;
        }
        let Some(group) = self.groups.get_mut(&group).filter(|group| !group.filter.is_none()) else { return };
        let mut sources: BTreeSet<Address> = query.sources.iter().copied().collect();
        let mut at = due;
        if let Some((earlier, others)) = group.asked.take() {
            // 4, 5: about the whole group if either was.
            at = at.min(earlier);
            if others.is_empty() || sources.is_empty() {
                sources.clear();
            } else {
                sources.extend(others);
            }
        }
        if sources.len() > MAX_SOURCES {
            sources.clear();
        }
        group.asked = Some((at, sources));
        self.note(at);
    }

    /// RFC 3376 §7.2.1: other words are spoken from now on, and what was to be said in the former is not.
    fn cancel(&mut self) {
        self.general = None;
        self.groups.retain(|_, group| {
            (group.change, group.asked) = (None, None);
            !group.filter.is_none()
        });
    }

    /// RFC 2236 §3: each group has a delay of its own, so that one host's answer spares the others theirs.
    fn on_general_of_old(&mut self, within: Duration, now: Time) {
        let most = millis(within);
        let mut earliest = None;
        for (&address, group) in &mut self.groups {
            if is_unreported(address) || group.filter.is_none() {
                continue;
            }
            let due = now + Duration::from_millis(u64::from(self.random.below(most)));
            let earlier = group.asked.as_ref().map_or(due, |(at, _)| due.min(*at));
            group.asked = Some((earlier, BTreeSet::new()));
            earliest = Some(earliest.map_or(earlier, |other: Time| other.min(earlier)));
        }
        if let Some(due) = earliest {
            self.note(due);
        }
    }

    /// RFC 2236 §3: another host has told an old router of the group, which is enough for both.
    pub fn on_report(&mut self, group: Address, now: Time) {
        if self.age(now) > 0
            && let Some(group) = self.groups.get_mut(&group)
        {
            group.asked = None;
        }
    }

    /// How old the oldest router is that is believed to be there.
    pub(crate) fn age(&self, now: Time) -> u8 {
        let there = |until: Option<Time>| until.is_some_and(|until| until > now);
        if there(self.older_until[1]) { 2 } else { u8::from(there(self.older_until[0])) }
    }

    fn delay(&mut self, within: Duration) -> Duration {
        Duration::from_millis(u64::from(self.random.below(millis(within))))
    }

    /// When to call [`Groups::on_timeout`]: at times there is nothing to be done then.
    #[inline]
    pub fn next_timeout(&self) -> Option<Time> {
        self.next
    }

    /// Something is due by then.
    fn note(&mut self, due: Time) {
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
    }

    /// When something is due, exactly.
    fn earliest(&self) -> Option<Time> {
        let groups = self.groups.values();
        let changes = groups.clone().filter_map(|group| group.change.as_ref().map(|change| change.due));
        let asked = groups.filter_map(|group| group.asked.as_ref().map(|(due, _)| *due));
        changes.chain(asked).chain(self.general).min()
    }

    /// What is due.
    pub fn on_timeout(&mut self, now: Time) -> Vec<Report> {
        if self.next.is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.next = self.earliest();
        if self.next.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let age = self.age(now);
        let interval = if age == 0 { UNSOLICITED_INTERVAL } else { UNSOLICITED_INTERVAL_OLD };
        let mut reports = Vec::new();
        let mut records = Vec::new();
        let general = self.general.take_if(|due| *due <= now).is_some();
        let delay = self.delay(interval);
        self.groups.retain(|&address, group| {
            let mut ends = false;
            if let Some(change) = group.change.as_mut().filter(|change| change.due <= now) {
                let told = change.next(address, &group.filter);
                tell(age, address, &group.filter, told, &mut records, &mut reports);
                change.due = now + delay;
                // RFC 2236 §3: that we have left is said once.
                if change.is_told() || age > 0 && group.filter.is_none() {
                    group.change = None;
                    ends = group.filter.is_none();
                }
            }
            let asked = group.asked.take_if(|(due, _)| *due <= now);
            let whole = general && !is_unreported(address);
            if whole || asked.is_some() {
                let about = asked.filter(|_| !whole).map(|(_, sources)| sources).unwrap_or_default();
                let told = current(address, &group.filter, &about);
                tell(age, address, &group.filter, told, &mut records, &mut reports);
            }
            !ends
        });
        if !records.is_empty() {
            reports.push(Report::Records(records));
        }
        self.next = self.earliest();
        reports
    }
}

impl Change {
    /// The records of the next report, which counts as sent.
    fn next(&mut self, group: Address, now: &Filter) -> Vec<Record> {
        let record = |kind, sources: Vec<Address>| Record { kind, group, sources };
        if self.mode_left > 0 {
            self.mode_left -= 1;
            let kind = if now.excludes { RecordKind::ToExclude } else { RecordKind::ToInclude };
            return vec![record(kind, now.sources.iter().copied().collect())];
        }
        let (wanted, others): (Vec<Address>, Vec<Address>) =
            self.sources_left.keys().copied().partition(|&source| now.takes(source));
        self.sources_left.retain(|_, left| {
            *left = left.saturating_sub(1);
            *left > 0
        });
        let records = [record(RecordKind::Allow, wanted), record(RecordKind::Block, others)];
        records.into_iter().filter(|record| !record.sources.is_empty()).collect()
    }

    fn is_told(&self) -> bool {
        self.mode_left == 0 && self.sources_left.is_empty()
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1)
}

/// §5.2: what is so now; asked about some sources, those of them that are wanted.
fn current(group: Address, filter: &Filter, about: &BTreeSet<Address>) -> Vec<Record> {
    if filter.is_none() {
        return Vec::new();
    }
    if about.is_empty() {
        let kind = if filter.excludes { RecordKind::IsExclude } else { RecordKind::IsInclude };
        return vec![Record { kind, group, sources: filter.sources.iter().copied().collect() }];
    }
    let sources: Vec<Address> = about.iter().copied().filter(|&source| filter.takes(source)).collect();
    let record = Record { kind: RecordKind::IsInclude, group, sources };
    if record.sources.is_empty() { Vec::new() } else { vec![record] }
}

/// Says it in the words that the oldest router knows.
fn tell(
    age: u8,
    group: Address,
    filter: &Filter,
    told: Vec<Record>,
    records: &mut Vec<Record>,
    reports: &mut Vec<Report>,
) {
    if told.is_empty() {
        return;
    }
    match (age, filter.is_none()) {
        (0, _) => records.extend(told),
        (1, true) => reports.push(Report::Left(group)),
        (1, false) => reports.push(Report::Old(group)),
        // Version 1 has no word for leaving.
        (_, true) => {}
        (_, false) => reports.push(Report::Oldest(group)),
    }
}

/// Groups of which routers are never told: all hosts of a link (RFC 3376 §6), and what does not leave an interface or a
/// host (RFC 3810 §6).
fn is_unreported(group: Address) -> bool {
    match (group.as_v4(), group.as_v6()) {
        (Some(v4), _) => v4 == ALL_HOSTS,
        (_, Some(v6)) => v6.octets()[1] & 0xf <= 1 || v6 == scoutline_wire::nd::ALL_NODES,
        _ => true,
    }
}

/// All hosts of a link (RFC 1112 §4): every one of them is in this group.
pub const ALL_HOSTS: std::net::Ipv4Addr = std::net::Ipv4Addr::new(224, 0, 0, 1);

#[cfg(test)]
mod tests;
