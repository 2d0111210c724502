use super::*;

const LINK: ethernet::Address = [2, 0, 0, 0, 0, 1];
const OURS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xff);
const NETWORK: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 0);

fn host(autoconfigure: bool) -> Host6 {
    let config = Host6Config { addresses: vec![(OURS, 64)], gateway: None, autoconfigure };
    Host6::new(Some(&config), LINK, 1500, 1)
}

/// Everything that is due until then.
fn run(host: &Host6, until: Time) -> Vec<Task> {
    let mut tasks = Vec::new();
    while let Some(due) = host.next_timeout().filter(|&due| due <= until) {
        host.on_timeout(due, |task| tasks.push(task));
    }
    tasks
}

fn at(seconds: u64) -> Time {
    Time::from_millis(seconds * 1000)
}

fn advertisement(valid: u64, preferred: u64) -> RouterAdvertisement {
    let prefix = Prefix {
        network: NETWORK,
        prefix_len: 64,
        on_link: true,
        autonomous: true,
        valid: Some(Duration::from_secs(valid)),
        preferred: Some(Duration::from_secs(preferred)),
    };
    RouterAdvertisement {
        hop_limit: Some(32),
        lifetime: Duration::from_secs(1800),
        reachable_time: None,
        retransmit_time: None,
        source_link: None,
        mtu: Some(1400),
        prefixes: vec![prefix],
    }
}

fn made() -> Ipv6Addr {
    nd::interface_address(NETWORK, LINK)
}

fn state(host: &Host6, address: Ipv6Addr) -> Option<AddressState> {
    host.addresses().iter().find(|own| own.address == address).map(|own| own.state)
}

#[test]
fn addresses_are_probed_and_then_in_use() {
    let host = host(false);
    let local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);
    assert!(!host.is_ours(OURS.into()) && host.may_be_ours(OURS.into()));
    assert_eq!(host.source_for(OURS.into()), None, "none is in use yet");
    assert_eq!(run(&host, at(0)), [Task::Probe(local), Task::Probe(OURS)]);
    assert!(host.is_tentative(OURS));
    assert!(run(&host, at(1)).is_empty());
    assert!(host.is_ours(OURS.into()) && host.is_ours(local.into()));
    assert_eq!(host.next_timeout(), None);
    // RFC 6724: near from near, far from far.
    assert_eq!(host.source_for("fe80::2".parse().unwrap()), Some(local));
    assert_eq!(host.source_for("ff02::1".parse().unwrap()), Some(local));
    assert_eq!(host.source_for("2001:db8::2".parse().unwrap()), Some(OURS));
    assert!(host.is_on_link("2001:db8::77".parse().unwrap()));
    assert!(!host.is_on_link("2001:db8:1::77".parse().unwrap()));
}

#[test]
fn a_duplicate_is_never_used() {
    let host = host(false);
    run(&host, at(0));
    assert!(host.on_duplicate(OURS));
    run(&host, at(5));
    assert_eq!(state(&host, OURS), Some(AddressState::Duplicate));
    assert!(!host.is_ours(OURS.into()) && !host.may_be_ours(OURS.into()));
    assert!(!host.on_duplicate(OURS), "once it is settled, it stays");
}

#[test]
fn routers_are_asked_for_three_times_at_most() {
    let host = host(true);
    let asked = |tasks: Vec<Task>| tasks.iter().filter(|&&task| task == Task::SolicitRouters).count();
    assert_eq!(asked(run(&host, at(0))), 1);
    assert_eq!(asked(run(&host, at(100))), 2);
    let answered = self::host(true);
    run(&answered, at(0));
    answered.on_router_advertisement(ROUTER, &advertisement(7200, 3600), at(1));
    assert_eq!(asked(run(&answered, at(100))), 0);
}

#[test]
fn a_prefix_becomes_an_address_and_ages() {
    let host = host(true);
    run(&host, at(1));
    host.on_router_advertisement(ROUTER, &advertisement(7200, 3600), at(10));
    assert_eq!((host.router(), host.hop_limit(), host.mtu()), (Some(ROUTER), 32, 1400));
    assert_eq!(state(&host, made()), Some(AddressState::Tentative));
    assert_eq!(run(&host, at(10)), [Task::Probe(made())]);
    run(&host, at(11));
    assert_eq!(state(&host, made()), Some(AddressState::Preferred));
    assert!(host.is_on_link(NETWORK.into()));
    run(&host, at(10 + 1800));
    assert_eq!(host.router(), None, "its lifetime is over");
    run(&host, at(10 + 3600));
    assert_eq!(state(&host, made()), Some(AddressState::Deprecated));
    assert!(host.is_ours(made().into()), "what is deprecated still works");
    run(&host, at(10 + 7200));
    assert_eq!(state(&host, made()), None);
    assert!(!host.is_on_link(NETWORK.into()));
    assert!(host.is_ours(OURS.into()), "what the file says stays");
}

#[test]
fn a_silent_router_makes_room_for_another() {
    let host = host(true);
    run(&host, at(1));
    let other = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
    host.on_router_advertisement(ROUTER, &advertisement(7200, 3600), at(2));
    host.on_unreachable(ROUTER);
    assert_eq!(host.router(), Some(ROUTER), "the only one");
    host.on_router_advertisement(other, &advertisement(7200, 3600), at(2));
    let generation = host.generation();
    host.on_unreachable(other);
    assert_eq!((host.router(), host.generation()), (Some(ROUTER), generation), "it was not asked");
    host.on_unreachable(ROUTER);
    assert_eq!(host.router(), Some(other));
    assert_ne!(host.generation(), generation);
}

#[test]
fn nobody_cuts_a_lifetime_short_by_much() {
    let host = host(true);
    run(&host, at(1));
    host.on_router_advertisement(ROUTER, &advertisement(86_400, 86_400), at(10));
    run(&host, at(12));
    // RFC 4862 §5.5.3 (e): two hours are left, whatever the (forged) advertisement says.
    host.on_router_advertisement(ROUTER, &advertisement(1, 1), at(20));
    run(&host, at(20 + 7100));
    assert_eq!(state(&host, made()), Some(AddressState::Deprecated));
    run(&host, at(20 + 7201));
    assert_eq!(state(&host, made()), None);
}

#[test]
fn what_anybody_on_the_link_says_stays_bounded() {
    let host = host(true);
    run(&host, at(1));
    for index in 0..1000u16 {
        let mut said = advertisement(7200, 3600);
        said.prefixes[0].network = Ipv6Addr::new(0x2001, 0xdb8, index, 1, 0, 0, 0, 0);
        let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, index);
        host.on_router_advertisement(from, &said, at(2));
        let destination = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, index, 0);
        host.on_redirect(destination, ROUTER);
    }
    assert!(host.addresses().len() <= MAX_ADDRESSES);
    assert!(host.routers.borrow().len() <= MAX_ROUTERS && host.on_link.borrow().len() <= MAX_PREFIXES);
    // Prefixes that make no address, and a link that says less than every link carries.
    let mut said = advertisement(7200, 9000);
    said.mtu = Some(500);
    let before = host.addresses().len();
    host.on_router_advertisement(ROUTER, &said, at(3));
    said.prefixes[0].network = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
    host.on_router_advertisement(ROUTER, &said, at(3));
    assert_eq!((host.addresses().len(), host.mtu()), (before, 1400));
}

#[test]
fn without_autoconfiguration_nobody_is_believed() {
    let host = host(false);
    run(&host, at(1));
    host.on_router_advertisement(ROUTER, &advertisement(7200, 3600), at(2));
    assert_eq!((host.router(), host.addresses().len(), host.mtu()), (None, 2, 1500));
}

#[test]
fn narrow_links_and_no_configuration_have_no_ip6() {
    let config = Host6Config::default();
    assert!(!Host6::new(Some(&config), LINK, 1279, 1).enabled);
    let none = Host6::new(None, LINK, 1500, 1);
    assert!(!none.enabled && none.next_timeout().is_none() && none.addresses().is_empty());
}

#[test]
fn a_router_asks_for_a_smaller_mtu_and_takes_that_back() {
    let host = host(true);
    let said = |mtu| RouterAdvertisement { mtu: Some(mtu), ..advertisement(7200, 3600) };
    for (told, holds) in [(1400, 1400), (1500, 1500), (1501, 1500), (1280, 1280), (1279, 1280), (9000, 1280)]
    {
        host.on_router_advertisement(ROUTER, &said(told), at(1));
        assert_eq!(host.mtu(), holds, "{told}");
    }
}

#[test]
fn a_prefix_that_is_withdrawn_is_used_for_nothing_new() {
    let host = host(true);
    run(&host, at(1));
    // RFC 4862 §5.5.3 (d): nothing is made of a prefix without a lifetime.
    host.on_router_advertisement(ROUTER, &advertisement(0, 0), at(2));
    assert_eq!(state(&host, made()), None);
    host.on_router_advertisement(ROUTER, &advertisement(86_400, 14_400), at(10));
    run(&host, at(20));
    assert_eq!(state(&host, made()), Some(AddressState::Preferred));
    // (e): deprecated at once; the valid time is cut to two hours and no less.
    host.on_router_advertisement(ROUTER, &advertisement(0, 0), at(30));
    run(&host, at(30));
    assert_eq!(state(&host, made()), Some(AddressState::Deprecated));
    assert!(!host.is_on_link(NETWORK.into()), "RFC 4861 §6.3.4: timed out at once");
    run(&host, at(30 + 7199));
    assert!(host.is_ours(made().into()));
    run(&host, at(30 + 7200));
    assert_eq!(state(&host, made()), None);
}

#[test]
fn the_lifetime_of_a_deprecated_address_is_cut_too() {
    let host = host(true);
    host.on_router_advertisement(ROUTER, &advertisement(86_400, 0), at(0));
    run(&host, at(10));
    assert_eq!(state(&host, made()), Some(AddressState::Deprecated));
    host.on_router_advertisement(ROUTER, &advertisement(60, 0), at(20));
    run(&host, at(20 + 7200));
    assert_eq!(state(&host, made()), None);
}

#[test]
fn who_is_no_router_any_more_is_none() {
    let host = host(true);
    run(&host, at(1));
    host.on_router_advertisement(ROUTER, &advertisement(7200, 3600), at(2));
    let before = host.generation();
    host.on_no_router(OURS);
    assert_eq!((host.router(), host.generation()), (Some(ROUTER), before));
    host.on_no_router(ROUTER);
    assert_eq!(host.router(), None);
    assert_ne!(host.generation(), before, "what paths remember is looked at again");
}
