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
    // A change in the midst of telling: what was told meanwhile is taken back.
    groups.set(holder, G, filter(false, &[3]));
    let (told, _) = run(&mut groups, now);
    assert_eq!(
        records(told)[..2],
        [record(RecordKind::Allow, G, &[3]), record(RecordKind::Block, G, &[1, 2])]
    );
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
    // Another host was faster.
    groups.on_query(&query(None, &[], 1), end);
    groups.general = None;
    groups.on_query(&query(Some(G), &[], 1), end);
    groups.on_report(G, end);
    assert_eq!(run(&mut groups, end).0, []);
    groups.set(holder, G, Filter::none());
    let (told, end) = run(&mut groups, end);
    assert_eq!(told, [Report::Left(G), Report::Left(G)]);
    groups.on_query(&query(None, &[], 2), end);
    groups.set(holder, H, Filter::all());
    let (told, end) = run(&mut groups, end);
    assert_eq!(told[0], Report::Oldest(H));
    // They have gone: the newest version again (§7.2.1).
    let later = end + Duration::from_secs(600);
    groups.on_query(&query(None, &[], 0), later);
    assert_eq!(records(run(&mut groups, later).0), [record(RecordKind::IsExclude, H, &[])]);
}
