//! The groups of an interface (IGMPv3, RFC 3376; MLDv2, RFC 3810): however sockets' filters change and whatever routers
//! ask, a router that hears the reports knows in the end who wants what; limits hold, and every timer ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use scoutline_base::{Address, Time};
use scoutline_proto::groups::{Filter, Groups, MAX_GROUPS, Query, Record, RecordKind, Report};

use crate::bytes::{Bytes, Target};

/// The target of this file.
pub const TARGETS: &[Target] = &[("groups", run)];

const MAX_OPERATIONS: usize = 300;
/// Holders, groups and sources that there are: few, so that they meet.
const FEW: u8 = 8;
/// Reports that follow one input at most: seven of each change and answer, for each group.
const MAX_ROUNDS: usize = 4_096;

fn group(which: u8) -> Address {
    match which % FEW {
        // Never reported (RFC 3376 §6).
        0 => Ipv4Addr::new(224, 0, 0, 1).into(),
        low @ 1..4 => Ipv4Addr::new(239, 0, 0, low).into(),
        low => Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0, low.into()).into(),
    }
}

fn source(which: u8) -> Address {
    Ipv4Addr::new(10, 0, 0, which % FEW).into()
}

fn sources(mask: u8) -> BTreeSet<Address> {
    (0..FEW).filter(|bit| mask & 1 << bit != 0).map(source).collect()
}

/// What a router of version 3 believes (RFC 3376 §6.4), without its timers.
#[derive(Default)]
struct Router(BTreeMap<Address, Filter>);

impl Router {
    fn hear(&mut self, record: &Record) {
        let known = self.0.entry(record.group).or_insert_with(Filter::none);
        let told: BTreeSet<Address> = record.sources.iter().copied().collect();
        match record.kind {
            RecordKind::ToInclude => *known = Filter { excludes: false, sources: told },
            RecordKind::ToExclude | RecordKind::IsExclude => {
                *known = Filter { excludes: true, sources: told }
            }
            RecordKind::Allow | RecordKind::IsInclude if known.excludes => {
                known.sources.retain(|source| !told.contains(source));
            }
            RecordKind::Allow | RecordKind::IsInclude => known.sources.extend(told),
            RecordKind::Block if known.excludes => known.sources.extend(told),
            RecordKind::Block => known.sources.retain(|source| !told.contains(source)),
        }
    }
}

/// An interface, its sockets and a router.
struct Link {
    groups: Groups,
    holders: Vec<u64>,
    wanted: BTreeMap<(Address, u64), Filter>,
    router: Router,
    /// Some router spoke an older version: what is reported then says less.
    older: bool,
    now: Time,
}

impl Link {
    fn set(&mut self, bytes: &mut Bytes<'_>) {
        let holder = self.holders[usize::from(bytes.u8() % FEW)];
        let group = group(bytes.u8());
        let filter = match bytes.u8() % 4 {
            0 => Filter::none(),
            1 => Filter::all(),
            mode => Filter { excludes: mode == 2, sources: sources(bytes.u8()) },
        };
        if filter == Filter::none() {
            self.wanted.remove(&(group, holder));
        } else {
            self.wanted.insert((group, holder), filter.clone());
        }
        self.groups.set(holder, group, filter);
        assert_eq!(self.groups.contains(group), self.wanted.keys().any(|(of, _)| *of == group), "{group}");
    }

    fn query(&mut self, bytes: &mut Bytes<'_>) {
        let choice = bytes.u8();
        let query = Query {
            group: (choice & 1 != 0).then(|| group(bytes.u8())),
            sources: if choice & 3 == 3 { sources(bytes.u8()).into_iter().collect() } else { Vec::new() },
            within: Duration::from_millis(bytes.u16().into()),
            // Below two, a report that is lost is lost for good.
            robustness: bytes.u8(),
            age: if choice >= 0xf0 { choice & 1 | 1 } else { 0 },
        };
        self.older |= query.age > 0;
        self.groups.on_query(&query, self.now);
    }

    fn time(&mut self) {
        let reports = self.groups.on_timeout(self.now);
        assert!(reports.len() <= MAX_GROUPS + 1);
        for report in reports {
            let Report::Records(records) = report else {
                assert!(self.older, "nobody speaks an older version");
                continue;
            };
            for record in &records {
                assert_ne!(record.group, group(0), "that one is never reported");
                self.router.hear(record);
            }
        }
    }

    /// Until nothing is due any more.
    fn rest(&mut self) {
        for _ in 0..MAX_ROUNDS {
            let Some(due) = self.groups.next_timeout() else { return };
            self.now = self.now.max(due);
            self.time();
        }
        panic!("something is always due");
    }

    fn check(&self) {
        for group in (1..FEW).map(group) {
            let known = self.router.0.get(&group).cloned().unwrap_or_else(Filter::none);
            for source in (0..FEW).map(source) {
                let mut wants = self.wanted.iter().filter(|((of, _), _)| *of == group);
                let wanted = wants.any(|(_, filter)| filter.takes(source));
                assert_eq!(known.takes(source), wanted, "{source} of {group}: {known:?}, {:?}", self.wanted);
            }
        }
    }
}

/// One input: a history.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let mut groups = Groups::new(bytes.u64());
    let holders = (0..FEW).map(|_| groups.new_holder()).collect();
    let (wanted, router) = (BTreeMap::new(), Router::default());
    let mut link = Link { groups, holders, wanted, router, older: false, now: Time::ZERO };
    for _ in 0..MAX_OPERATIONS {
        if bytes.is_empty() {
            break;
        }
        match bytes.u8() % 5 {
            0 | 1 => link.set(&mut bytes),
            2 => link.query(&mut bytes),
            3 => link.groups.on_report(group(bytes.u8()), link.now),
            _ => {
                link.now += Duration::from_millis(bytes.u16().into());
                link.time();
            }
        }
    }
    link.rest();
    if !link.older {
        link.check();
    }
}
