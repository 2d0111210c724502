use super::*;

const G: Address = Address::from_v4(std::net::Ipv4Addr::new(239, 1, 2, 3));
const H: Address = Address::from_v4(std::net::Ipv4Addr::new(239, 1, 2, 4));

fn source(last: u8) -> Address {
    std::net::Ipv4Addr::new(192, 0, 2, last).into()
}

fn filter(excludes: bool, sources: &[u8]) -> Filter {
    Filter { excludes, sources: sources.iter().map(|&last| source(last)).collect() }
}

fn record(kind: RecordKind, group: Address, sources: &[u8]) -> Record {
    Record { kind, group, sources: sources.iter().map(|&last| source(last)).collect() }
}

fn query(group: Option<Address>, sources: &[u8], age: u8) -> Query {
    let sources = sources.iter().map(|&last| source(last)).collect();
    Query { group, sources, within: Duration::from_secs(10), robustness: 0, age }
}

/// Lets time pass until nothing is due; all that was sent.
fn run(groups: &mut Groups, from: Time) -> (Vec<Report>, Time) {
    let (mut all, mut now) = (Vec::new(), from);
    while let Some(due) = groups.next_timeout() {
        now = now.max(due);
        all.append(&mut groups.on_timeout(now));
        assert!(all.len() < 100, "it never ends");
    }
    (all, now)
}

fn records(reports: Vec<Report>) -> Vec<Record> {
    reports
        .into_iter()
        .flat_map(|report| if let Report::Records(records) = report { records } else { panic!("{report:?}") })
        .collect()
}

const START: Time = Time::from_nanos(5_000_000_000);

#[test]
fn joining_and_leaving_are_told_twice() {
    let mut groups = Groups::new(1);
    let holder = groups.new_holder();
    groups.set(holder, G, Filter::all());
    assert!(groups.contains(G) && !groups.contains(H));
    assert_eq!(groups.on_timeout(START).len(), 1, "at once");
    let (told, end) = run(&mut groups, START);
    assert!(end.since(START) <= UNSOLICITED_INTERVAL);
    assert_eq!(records(told), [record(RecordKind::ToExclude, G, &[])]);
    groups.set(holder, G, Filter::none());
    assert!(!groups.contains(G));
    let (told, _) = run(&mut groups, end);
    assert_eq!(records(told), [record(RecordKind::ToInclude, G, &[]), record(RecordKind::ToInclude, G, &[])]);
    assert!(groups.groups.is_empty() && groups.wanted.is_empty());
}

#[test]
fn filters_of_sockets_are_merged() {
    // RFC 3376 §3.2, its own example.
    let mut groups = Groups::new(1);
    let holders: Vec<u64> = (0..3).map(|_| groups.new_holder()).collect();
    groups.set(holders[0], G, filter(true, &[1, 2, 3, 4]));
    groups.set(holders[1], G, filter(true, &[2, 3, 4, 5]));
    groups.set(holders[2], G, filter(false, &[4, 5, 6]));
    assert_eq!(groups.groups[&G].filter, filter(true, &[2, 3]));
    groups.set(holders[0], G, Filter::none());
    groups.set(holders[1], G, Filter::none());
    assert_eq!(groups.groups[&G].filter, filter(false, &[4, 5, 6]));
    let many: Vec<u8> = (0..100).collect();
    groups.set(holders[2], G, filter(false, &many));
    assert_eq!(groups.groups[&G].filter, Filter::all(), "more than are told apart");
}

#[test]
fn sources_that_come_and_go_are_told_as_such() {
    let mut groups = Groups::new(1);
    let holder = groups.new_holder();
    groups.set(holder, G, filter(false, &[1]));
    let (told, now) = run(&mut groups, START);
    assert_eq!(records(told)[0], record(RecordKind::Allow, G, &[1]));
    groups.set(holder, G, filter(false, &[2]));
    assert_eq!(
        records(groups.on_timeout(now)),
        [record(RecordKind::Allow, G, &[2]), record(RecordKind::Block, G, &[1])]
    );
    // A change in the midst of telling: what was told meanwhile is taken back, and each source is told of twice.
    groups.set(holder, G, filter(false, &[3]));
    let (told, _) = run(&mut groups, now);
    let told = records(told);
    assert_eq!(told[..2], [record(RecordKind::Allow, G, &[3]), record(RecordKind::Block, G, &[1, 2])]);
    assert_eq!(told[2..], [record(RecordKind::Allow, G, &[3]), record(RecordKind::Block, G, &[2])]);
}

/// RFC 3376 §5.1: the record of the mode goes out as often after its last change, whatever was told before.
#[test]
fn who_joins_and_leaves_at_once_says_both() {
    let mut groups = Groups::new(1);
    let holder = groups.new_holder();
    groups.set(holder, G, Filter::all());
    assert_eq!(records(groups.on_timeout(START)), [record(RecordKind::ToExclude, G, &[])]);
    groups.set(holder, G, Filter::none());
    let (told, _) = run(&mut groups, START);
    assert_eq!(records(told), [record(RecordKind::ToInclude, G, &[]), record(RecordKind::ToInclude, G, &[])]);
    assert!(groups.groups.is_empty());
}

/// RFC 3376 §5.1: after the mode the sources that changed meanwhile.
#[test]
fn sources_wait_for_the_mode() {
    let mut groups = Groups::new(1);
    let holder = groups.new_holder();
    groups.set(holder, G, Filter::all());
    groups.on_timeout(START);
    groups.set(holder, G, filter(true, &[1]));
    let (told, _) = run(&mut groups, START);
    let block = record(RecordKind::Block, G, &[1]);
    assert_eq!(records(told), [record(RecordKind::ToExclude, G, &[1]), block.clone(), block]);
    // A program that changes its mind faster than that is told of as a whole.
    for first in 0..100 {
        groups.set(holder, G, filter(true, &[first, first + 100]));
    }
    let (told, _) = run(&mut groups, START);
    let whole = record(RecordKind::ToExclude, G, &[99, 199]);
    assert_eq!(records(told)[0], whole);
}

#[test]
fn queries_are_answered_in_time() {
    let mut groups = Groups::new(7);
    let holder = groups.new_holder();
    groups.set(holder, G, Filter::all());
    groups.set(holder, H, filter(false, &[1, 2]));
    let all_hosts = Address::from_v4(ALL_HOSTS);
    groups.set(holder, all_hosts, Filter::all());
    let (_, now) = run(&mut groups, START);
    groups.on_query(&query(None, &[], 0), now);
    let (told, end) = run(&mut groups, now);
    assert!(end.since(now) <= Duration::from_secs(10));
    let both = [record(RecordKind::IsExclude, G, &[]), record(RecordKind::IsInclude, H, &[1, 2])];
    assert_eq!(records(told), both);
    // About one group, then about sources: only those that are wanted.
    groups.on_query(&query(Some(H), &[], 0), end);
    let (told, end) = run(&mut groups, end);
    assert_eq!(records(told), both[1..]);
    groups.on_query(&query(Some(H), &[2, 3], 0), end);
    groups.on_query(&query(Some(G), &[3], 0), end);
    let (told, end) = run(&mut groups, end);
    let mut told = records(told);
    told.sort_by_key(|record| record.group);
    assert_eq!(told, [record(RecordKind::IsInclude, G, &[3]), record(RecordKind::IsInclude, H, &[2])]);
    groups.on_query(&query(Some(H), &[9], 0), end);
    groups.on_query(&query(Some(all_hosts.unspecified()), &[], 0), end);
    assert_eq!(run(&mut groups, end).0, []);
}

#[test]
fn older_routers_are_told_in_their_words() {
    let mut groups = Groups::new(7);
    let holder = groups.new_holder();
    groups.set(holder, G, Filter::all());
    let (_, now) = run(&mut groups, START);
    groups.on_query(&query(None, &[], 1), now);
    let (told, end) = run(&mut groups, now);
    assert_eq!(told, [Report::Old(G)]);
    // Another host was faster, for one group.
    groups.set(holder, H, Filter::all());
    let (_, end) = run(&mut groups, end);
    groups.on_query(&query(None, &[], 1), end);
    groups.on_report(G, end);
    let (told, end) = run(&mut groups, end);
    assert_eq!(told, [Report::Old(H)]);
    groups.set(holder, H, Filter::none());
    groups.set(holder, G, Filter::none());
    let (told, end) = run(&mut groups, end);
    assert_eq!(told, [Report::Left(G), Report::Left(H)], "once");
    groups.on_query(&query(None, &[], 2), end);
    groups.set(holder, H, Filter::all());
    let (told, end) = run(&mut groups, end);
    assert_eq!(told[0], Report::Oldest(H));
    // They have gone: the newest version again (§7.2.1).
    let later = end + Duration::from_secs(600);
    groups.on_query(&query(None, &[], 0), later);
    assert_eq!(records(run(&mut groups, later).0), [record(RecordKind::IsExclude, H, &[])]);
}

/// RFC 3376 §7.2.1.
#[test]
fn what_was_to_be_said_in_other_words_is_not() {
    let mut groups = Groups::new(7);
    let holder = groups.new_holder();
    groups.set(holder, G, Filter::all());
    groups.set(holder, H, Filter::all());
    groups.on_timeout(START);
    groups.set(holder, H, Filter::none());
    groups.on_query(&query(None, &[], 0), START);
    groups.on_query(&query(Some(H), &[], 1), START);
    assert_eq!(run(&mut groups, START).0, []);
    assert!(groups.contains(G) && groups.groups.len() == 1);
}

proptest::proptest! {
    /// What the engine is told in each turn is never later than what is due, and exact once that was looked at.
    #[test]
    fn nothing_due_is_missed(
        operations in proptest::collection::vec((0u8..6, 0u8..8, 0u8..3, 0u64..20), 0..200),
    ) {
        let mut groups = Groups::new(3);
        let holders: Vec<u64> = (0..3).map(|_| groups.new_holder()).collect();
        let mut now = START;
        for (operation, group, age, seconds) in operations {
            let at: Address = std::net::Ipv4Addr::new(239, 1, 2, group).into();
            match operation {
                0 => groups.set(holders[usize::from(age)], at, Filter::all()),
                1 => groups.set(holders[usize::from(age)], at, filter(age == 1, &[1, 2])),
                2 => groups.set(holders[usize::from(age)], at, Filter::none()),
                3 => groups.on_query(&query((group > 0).then_some(at), &[], age), now),
                4 => groups.on_report(at, now),
                _ => now += Duration::from_secs(seconds),
            }
            let due = groups.earliest();
            proptest::prop_assert!(due.is_none_or(|due| groups.next_timeout().is_some_and(|next| next <= due)));
            groups.on_timeout(now);
            proptest::prop_assert!(groups.next_timeout().is_none_or(|next| next > now));
        }
    }
}
