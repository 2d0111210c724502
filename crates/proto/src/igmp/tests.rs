use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use scoutline_base::{Address, Time};
use scoutline_path::{Account, Burst, DropReason, Effect, Verdict};
use scoutline_wire::{checksum, ethernet, igmp, ipv4};

use crate::groups::{Filter, Record, RecordKind};
use crate::testing::{Host, OURS, bytes_of, ip_frame, ip_header, udp_datagram};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

/// What the interface sends at `now`.
fn sent(host: &Host, now: Time) -> Vec<Vec<u8>> {
    let (mut out, mut account, mut effects) = (Burst::new(), Account::default(), Vec::<Effect>::new());
    host.interface.on_neighbour_timeout(now, &mut out, &mut account, &mut effects);
    out.iter().map(bytes_of).collect()
}

fn join(host: &Host, filter: Filter) -> u64 {
    let mut groups = host.interface.groups.borrow_mut();
    let holder = groups.new_holder();
    groups.set(holder, GROUP.into(), filter);
    holder
}

fn query(ttl: u8, bytes: &[u8]) -> Vec<u8> {
    let mut message = bytes.to_vec();
    igmp::emit(igmp::QUERY, &mut message);
    let destination = Ipv4Addr::new(224, 0, 0, 1);
    ip_frame(&ipv4::Header { ttl, destination, ..ip_header(igmp::PROTOCOL, message.len()) }, &message)
}

#[test]
fn a_report_as_it_stands_on_the_wire() {
    let host = Host::new();
    let source = Address::from(Ipv4Addr::new(192, 0, 2, 1));
    join(&host, Filter { excludes: true, sources: BTreeSet::from([source]) });
    let frames = sent(&host, Time::from_millis(1));
    assert_eq!(frames.len(), 1);
    let frame = &frames[0];
    // RFC 3376 §4: to 224.0.0.22, TTL 1, a router alert; §4.2: one record.
    assert_eq!(frame[..6], ethernet::multicast(igmp::ALL_ROUTERS_V3));
    let header = ipv4::Header::parse(&frame[14..]).unwrap();
    assert_eq!((header.header_len, header.ttl, header.protocol), (24, 1, igmp::PROTOCOL));
    assert_eq!((header.source, header.destination), (OURS, igmp::ALL_ROUTERS_V3));
    assert!(ipv4::checksum_is_valid(&frame[14..38]));
    assert_eq!(frame[34..38], [148, 4, 0, 0]);
    assert!(checksum::is_valid(checksum::sum(&frame[38..])));
    assert_eq!(frame[38], igmp::REPORT_V3);
    assert_eq!(frame[44..58], [0, 1, RecordKind::ToExclude as u8, 0, 0, 1, 239, 1, 2, 3, 192, 0, 2, 1]);
    assert_eq!(frame.len(), 58);
}

#[test]
fn queries_are_heard_and_answered() {
    let mut host = Host::new();
    let holder = join(&host, Filter::all());
    let mut now = Time::from_millis(1);
    assert_eq!(sent(&host, now).len(), 1);
    now += Duration::from_secs(2);
    assert_eq!(sent(&host, now).len(), 1);
    now += Duration::from_secs(2);
    assert!(sent(&host, now).is_empty());
    let path = host.interface.service_paths.igmp.get().unwrap();
    let general = query(1, &[0x11, 10, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0]);
    assert_eq!(host.demux(&general).0, Verdict::Path(path));
    host.receive(path, &general);
    let frames = sent(&host, now + Duration::from_secs(1));
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0][44..50], [0, 1, RecordKind::IsExclude as u8, 0, 0, 0]);
    // From far away, and garbled: counted, and nothing else.
    host.receive(path, &query(64, &[0x11, 10, 0, 0, 0, 0, 0, 0]));
    host.receive(path, &query(1, &[0x11, 10, 0, 0, 0, 0, 0, 0, 2, 125, 0, 9]));
    assert_eq!(host.drops(path), [(DropReason::Truncated, 1), (DropReason::Malformed, 1)]);
    // A router of version 2: its own words.
    host.receive(path, &query(1, &[0x11, 10, 0, 0, 0, 0, 0, 0]));
    let frames = sent(&host, now + Duration::from_secs(2));
    assert_eq!(
        (frames[0][38], frames[0][..6].to_vec()),
        (igmp::REPORT_V2, ethernet::multicast(GROUP).to_vec())
    );
    host.interface.groups.borrow_mut().set(holder, GROUP.into(), Filter::none());
    let frames = sent(&host, now + Duration::from_secs(3));
    assert_eq!((frames[0][38], &frames[0][42..46]), (igmp::LEAVE, &GROUP.octets()[..]));
}

#[test]
fn datagrams_of_groups_are_taken_by_members_alone() {
    let host = Host::new();
    let header = ipv4::Header { destination: GROUP, ..ip_header(17, 9) };
    let frame = ip_frame(&header, &udp_datagram((9, 7), b"x"));
    assert_eq!(host.demux(&frame).0, Verdict::Drop(DropReason::NotForUs));
    let holder = join(&host, Filter::all());
    assert_eq!(host.demux(&frame).0, Verdict::Group);
    host.interface.groups.borrow_mut().set(holder, GROUP.into(), Filter::none());
    assert_eq!(host.demux(&frame).0, Verdict::Drop(DropReason::NotForUs));
}

#[test]
fn long_reports_are_split() {
    let record = |sources: u8| Record {
        kind: RecordKind::IsInclude,
        group: GROUP.into(),
        sources: (0..sources).map(|last| Ipv4Addr::new(192, 0, 2, last).into()).collect(),
    };
    let records: Vec<Record> = (0..20).map(|_| record(60)).collect();
    let len = |record: &Record| 8 + 4 * record.sources.len();
    let parts = super::split(&records, len);
    assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), 20);
    assert!(parts.iter().all(|part| part.iter().map(len).sum::<usize>() <= super::MAX_REPORT));
    assert!(super::report_v3(parts[0]).len() <= super::MAX_REPORT + igmp::HEADER_LEN);
}
