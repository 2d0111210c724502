use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::testing::{self, PEER, PEER_LINK, PEER6};

const OTHER_LINK: ethernet::Address = [2, 9, 9, 9, 9, 9];
const NOW: Time = Time::from_millis(1_000);

fn claim(link: Option<ethernet::Address>, solicited: bool, overrides: bool) -> Claim {
    Claim { link, solicited, overrides }
}

/// State and link address of the only entry.
fn entry(cache: &Cache) -> (&'static str, Option<ethernet::Address>) {
    let mut entries = cache.entries();
    let (_, link, state) = entries.next().unwrap();
    assert!(entries.next().is_none());
    (state, link)
}

/// Lets time pass until nothing is due any more: what was to be done, and when that was.
fn exhaust(cache: &mut Cache) -> (Vec<Due>, Time) {
    let (mut done, mut at) = (Vec::new(), NOW);
    while let Some(due) = cache.next_timeout() {
        at = due;
        cache.on_timeout(at, |due| done.push(due));
    }
    (done, at)
}

#[test]
fn what_waits_leaves_when_the_answer_comes() {
    let mut cache = Cache::default();
    assert_eq!(cache.find(PEER, NOW), Found::Unknown { request: true });
    assert_eq!(cache.find(PEER, NOW), Found::Unknown { request: false }, "asked once");
    for last in 0..6 {
        assert!(cache.hold(PEER, testing::block(&[last])).is_empty());
    }
    assert_eq!(cache.waiting_bytes(), 6 * (size_of::<Message>() + 1));
    let stream = Message { body: Body::Stream { range: 0..9, memory: None }, ..Message::default() };
    assert_eq!(cache.hold(PEER, stream).len(), 1);
    let waited = cache.learn(PEER, PEER_LINK, false, NOW);
    assert_eq!(waited.iter().map(|message| message.bytes()[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert_eq!((cache.next_timeout(), cache.waiting_bytes()), (None, 0));
    assert_eq!(cache.hold(PEER, testing::block(b"")).len(), 1, "nothing waits for who is known");
}

/// What is asked of more neighbours than there are entries comes back, and who tells of itself takes no entry from them.
#[test]
fn what_waited_at_an_evicted_entry_comes_back() {
    let mut cache = Cache::default();
    let address = |number: u32| Ipv4Addr::from(0x0a01_0000 + number);
    let (mut back, many) = (0, MAX_ENTRIES as u32 + 100);
    for number in 0..many {
        if number >= MAX_ENTRIES as u32 {
            // Eviction looks at entries for which somebody waits; those of the oldest do not any more.
            cache.hand = MAX_ENTRIES - 2 * EVICTION_SAMPLE;
            cache.learn(PEER, PEER_LINK, true, NOW);
            cache.on_source(PEER, PEER_LINK, NOW);
            assert!(!cache.index.contains_key(&PEER.into()));
            cache.hand = MAX_ENTRIES - 2 * EVICTION_SAMPLE;
        }
        cache.find(address(number), NOW + Duration::from_micros(number.into()));
        back += cache.hold(address(number), testing::block(&[1; 100])).len();
    }
    // Nobody answers.
    while let Some(due) = cache.next_timeout() {
        back += cache.on_timeout(due, |_| ()).len();
    }
    assert_eq!((back as u32, cache.waiting_bytes()), (many, 0));
    cache.learn(PEER, PEER_LINK, true, NOW);
    assert!(cache.index.contains_key(&PEER.into()), "nobody waits any more");
}

/// RFC 4861 §7.3.3, and RFC 1122 §2.3.2.1 (2): the old answer is used, and the station alone is asked.
#[test]
fn who_was_known_is_doubted_asked_and_forgotten() {
    for address in [Address::from(PEER), PEER6.into()] {
        let mut cache = Cache::default();
        cache.learn(address, PEER_LINK, true, NOW);
        let until = NOW + REACHABLE_TIME;
        assert_eq!(cache.find(address, NOW), Found::Known { link: PEER_LINK, until });
        assert_eq!(cache.find(address, until), Found::Known { link: PEER_LINK, until: until + DELAY_TIME });
        assert_eq!((entry(&cache).0, cache.next_timeout()), ("delay", Some(until + DELAY_TIME)));
        let generation = cache.generation();
        let (done, at) = exhaust(&mut cache);
        let asked = Due::Ask { address, last: Some(PEER_LINK), prompt: None };
        assert_eq!(done, [asked, asked, asked, Due::Lost(address)]);
        assert_eq!(at, until + DELAY_TIME + REQUEST_INTERVAL * 3);
        assert_ne!(cache.generation(), generation, "who remembers it asks again");
        assert_eq!(cache.find(address, at), Found::Unknown { request: true }, "of all this time");
    }
}

#[test]
fn who_was_never_known_is_asked_three_times_and_left_alone_for_a_moment() {
    let mut cache = Cache::default();
    cache.find(PEER6, NOW);
    cache.hold(PEER6, testing::block(b"lost"));
    let mut given_up = Vec::new();
    let mut done = Vec::new();
    for second in 1..=3 {
        given_up = cache.on_timeout(NOW + REQUEST_INTERVAL * second, |due| done.push(due));
    }
    let all = Due::Ask { address: PEER6.into(), last: None, prompt: None };
    assert_eq!(done, [all, all, Due::Lost(PEER6.into())], "find's caller asked first");
    assert_eq!(given_up.len(), 1);
    let end = NOW + REQUEST_INTERVAL * 3;
    assert_eq!(cache.find(PEER6, end), Found::Failed);
    assert!(cache.has_failed(PEER6, end) && !cache.has_failed(PEER6, end + FAILED_TIME));
    assert_eq!(cache.find(PEER6, end + FAILED_TIME), Found::Unknown { request: true });
}

/// RFC 4861 §7.2.5.
#[test]
fn claims_change_what_was_asked_for_and_nothing_else() {
    let mut cache = Cache::default();
    assert!(cache.on_claim(PEER6, claim(Some(PEER_LINK), true, true), NOW).is_empty());
    assert!(cache.learn(PEER6, PEER_LINK, false, NOW).is_empty());
    assert_eq!(cache.entries().count(), 0, "nobody asked");
    cache.find(PEER6, NOW);
    cache.hold(PEER6, testing::block(b"waits"));
    cache.on_claim(PEER6, claim(None, true, true), NOW);
    assert_eq!(entry(&cache), ("incomplete", None), "without a link address it is no answer");
    assert_eq!(cache.on_claim(PEER6, claim(Some(PEER_LINK), true, false), NOW).len(), 1);
    assert_eq!(entry(&cache), ("reachable", Some(PEER_LINK)));
    // Another link address without the override flag: not believed, but asked about.
    cache.on_claim(PEER6, claim(Some(OTHER_LINK), true, false), NOW);
    assert_eq!(entry(&cache), ("stale", Some(PEER_LINK)));
    cache.find(PEER6, NOW);
    let mut done = Vec::new();
    cache.on_timeout(NOW + DELAY_TIME, |due| done.push(due));
    let asked = Due::Ask { address: PEER6.into(), last: Some(PEER_LINK), prompt: None };
    assert_eq!((entry(&cache).0, &done[..]), ("probe", &[asked][..]));
    cache.on_claim(PEER6, claim(None, true, false), NOW);
    assert_eq!(entry(&cache), ("reachable", Some(PEER_LINK)), "an answer confirms it");
    let generation = cache.generation();
    cache.on_claim(PEER6, claim(Some(OTHER_LINK), true, true), NOW);
    assert_eq!(entry(&cache), ("reachable", Some(OTHER_LINK)));
    assert_ne!(cache.generation(), generation);
    cache.on_claim(PEER6, claim(Some(PEER_LINK), false, true), NOW);
    assert_eq!(entry(&cache), ("stale", Some(PEER_LINK)), "unsolicited: whether the way works is not known");
}

#[test]
fn who_speaks_to_us_is_known_but_not_reachable() {
    let mut cache = Cache::default();
    cache.on_source(PEER6, PEER_LINK, NOW);
    assert_eq!(entry(&cache), ("stale", Some(PEER_LINK)));
    cache.learn(PEER6, PEER_LINK, false, NOW);
    cache.on_source(PEER6, PEER_LINK, NOW);
    assert_eq!(entry(&cache).0, "reachable", "nothing new");
    cache.on_source(PEER6, OTHER_LINK, NOW);
    assert_eq!(entry(&cache), ("stale", Some(OTHER_LINK)));
}

proptest! {
    #[test]
    fn it_stays_bounded_and_consistent(operations in proptest::collection::vec((0u8..6, any::<u16>(), 0u64..3), 0..400)) {
        let mut cache = Cache::default();
        let mut now = Time::ZERO;
        for (operation, number, seconds) in operations {
            let address = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number % 50);
            now += Duration::from_secs(seconds);
            let link = (number & 256 != 0).then_some([2, 0, 0, 0, 0, number as u8]);
            match operation {
                0 | 1 => { cache.find(address, now); }
                2 => { cache.on_source(address, PEER_LINK, now); }
                3 => { cache.hold(address, Message::default()); }
                4 => { cache.on_claim(address, claim(link, number & 64 != 0, number & 128 != 0), now); }
                _ => { cache.learn(address, PEER_LINK, number & 64 != 0, now); }
            }
            cache.on_timeout(now, |_| ());
            prop_assert!(cache.next_timeout().is_none_or(|due| due > now));
            let asks = |entry: &&Entry| matches!(entry.state, State::Incomplete | State::Delay | State::Probe);
            let deadlines = cache.slots.iter().filter(asks).map(|entry| entry.deadline);
            prop_assert_eq!(cache.next_timeout(), deadlines.clone().min(), "none is forgotten, none left behind");
            prop_assert_eq!(cache.asking.len(), deadlines.count());
            for (slot, entry) in cache.slots.iter().enumerate() {
                let waits = !cache.waiting.is_empty_at(slot as u32);
                prop_assert!(!waits || entry.state == State::Incomplete, "whoever waits is asked for");
            }
            prop_assert!(cache.entries().count() <= 50);
        }
    }

    #[test]
    fn many_addresses_evict_the_old(start in any::<u16>()) {
        let mut cache = Cache::default();
        for index in 0..5000u32 {
            let address = Ipv4Addr::from(u32::from(start).wrapping_add(index) | 0x0a00_0000);
            cache.learn(address, PEER_LINK, true, Time::from_millis(u64::from(index)));
        }
        prop_assert!(cache.entries().count() <= MAX_ENTRIES);
    }
}
