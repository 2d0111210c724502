use std::net::Ipv4Addr;

use super::*;

fn address(last: u8) -> Address {
    Ipv4Addr::new(10, 0, 0, last).into()
}

fn keys() -> Keys {
    Keys::new([3; 16], None)
}

fn syn(option: Option<FastOpen>) -> Syn {
    Syn { option, has_data: true, client: address(2), server: address(1) }
}

fn queue(limit: u32) -> Rc<Queue> {
    let queue = Rc::new(Queue::default());
    queue.limit.set(limit);
    queue
}

fn cookie() -> Option<FastOpen> {
    FastOpen::cookie(keys().cookie(address(2), address(1)).as_slice())
}

fn considered(queue: &Rc<Queue>, option: Option<FastOpen>, now: Time) -> Offer {
    consider(queue, Policy::SERVER, 128, &keys(), &syn(option), now)
}

#[test]
fn cookies_are_those_of_linux() {
    // A packet trace of Linux with the key a0bf63f7-ed803d81-cd641d30-cebc4a90, whose words are in little endian:
    // google/packetdrill, gtests/net/tcp/fastopen/server/simple1.pkt.
    let keys = Keys::parse("a0bf63f7-ed803d81-cd641d30-cebc4a90").unwrap();
    let (client, server) = (Ipv4Addr::new(10, 248, 0, 2).into(), Ipv4Addr::new(192, 168, 0, 2).into());
    let cookie = keys.cookie(client, server);
    assert_eq!(cookie.as_slice(), [0x00, 0xab, 0xaa, 0xab, 0xe8, 0xe9, 0x54, 0xc2]);
}

#[test]
fn keys_are_read_as_linux_writes_them() {
    let two = Keys::parse("1-2-3-4,5-6-7-8\n").unwrap();
    assert_eq!(two.words().1.unwrap(), Keys::parse("5-6-7-8").unwrap().words().0);
    for wrong in ["", "1-2-3", "1-2-3-4-5", "1-2-3-g", "1-2-3-4,"] {
        assert!(Keys::parse(wrong).is_none(), "{wrong}");
    }
}

#[test]
fn a_cookie_is_of_one_client_and_one_server_and_survives_one_change_of_keys() {
    let made = keys().cookie(address(2), address(1));
    assert_eq!(keys().check(&made, address(2), address(1)), Verdict::Valid);
    assert_eq!(keys().check(&made, address(3), address(1)), Verdict::Invalid);
    assert_eq!(keys().check(&made, address(2), address(4)), Verdict::Invalid);
    assert_eq!(Keys::new([4; 16], Some([3; 16])).check(&made, address(2), address(1)), Verdict::Old);
    assert_eq!(Keys::new([4; 16], None).check(&made, address(2), address(1)), Verdict::Invalid);
    assert_eq!(keys().check(&FastOpen::request(), address(2), address(1)), Verdict::Invalid);
    assert_eq!(format!("{:?}", keys()), "Keys(..)");
}

#[test]
fn a_request_or_a_wrong_cookie_gets_a_cookie_in_the_form_of_the_request() {
    let (queue, now) = (queue(2), Time::ZERO);
    let mut request = FastOpen::request();
    request.is_experimental = true;
    let offer = considered(&queue, Some(request), now);
    assert!(offer.accepted.is_none());
    let answer = offer.answer.unwrap();
    assert!(answer.is_experimental);
    assert_eq!(answer.as_slice(), cookie().unwrap().as_slice());
    let offer = considered(&queue, FastOpen::cookie(&[9; 8]), now);
    assert!(offer.accepted.is_none() && offer.answer == cookie());
    assert!(queue.is_empty());
}

#[test]
fn an_old_cookie_is_taken_and_a_new_one_told() {
    let now = Time::ZERO;
    let queue = queue(2);
    queue.keys.set(Some(Keys::new([4; 16], Some([3; 16]))));
    let offer = considered(&queue, cookie(), now);
    assert!(offer.accepted.is_some());
    assert_eq!(offer.answer, Some(Keys::new([4; 16], None).cookie(address(2), address(1))));
}

#[test]
fn nothing_is_done_without_permission_or_option() {
    let (queue, now) = (queue(2), Time::ZERO);
    let is_nothing = |offer: Offer| offer.answer.is_none() && offer.accepted.is_none();
    assert!(is_nothing(consider(&queue, Policy::CLIENT, 128, &keys(), &syn(cookie()), now)));
    assert!(is_nothing(considered(&queue, None, now)));
    assert!(is_nothing(considered(&self::queue(0), cookie(), now)));
    // Linux: bit 0x400, for listening sockets that say nothing.
    let every = Policy::SERVER | Policy::EVERY_LISTENER;
    assert!(consider(&self::queue(0), every, 128, &keys(), &syn(cookie()), now).accepted.is_some());
}

#[test]
fn without_cookies_data_is_enough() {
    let (queue, now) = (queue(2), Time::ZERO);
    queue.needs_no_cookie.set(true);
    assert!(considered(&queue, None, now).accepted.is_some());
    let empty = Syn { has_data: false, ..syn(None) };
    assert!(consider(&queue, Policy::SERVER, 128, &keys(), &empty, now).accepted.is_none());
}

#[test]
fn the_queue_bounds_what_is_pending_and_what_was_reset_counts_for_a_minute() {
    let queue = queue(2);
    let first = considered(&queue, cookie(), Time::ZERO).accepted.unwrap();
    let second = considered(&queue, cookie(), Time::ZERO).accepted.unwrap();
    let beyond = considered(&queue, cookie(), Time::ZERO);
    // An ordinary handshake, without a cookie: as Linux.
    assert!(beyond.accepted.is_none() && beyond.answer.is_none());
    first.on_reset(Time::ZERO);
    drop(second);
    assert_eq!(queue.len(), 1);
    let third = considered(&queue, cookie(), Time::from_millis(59_000)).accepted.unwrap();
    assert!(considered(&queue, cookie(), Time::from_millis(59_999)).accepted.is_none());
    let fourth = considered(&queue, cookie(), Time::from_millis(60_000)).accepted;
    assert!(fourth.is_some());
    drop((third, fourth));
    assert!(queue.is_empty());
}

fn outcome(cookie: Option<FastOpen>, is_lost: bool) -> Outcome {
    Outcome { mss: 1460, cookie, is_taken: false, is_lost }
}

#[test]
fn a_client_remembers_by_both_addresses() {
    let mut cache = Cache::default();
    let now = Time::from_millis(1);
    assert_eq!(cache.look(address(2), address(1), now), None);
    cache.learn(address(2), address(1), &outcome(cookie(), false), now);
    let known = Known { cookie: cookie(), mss: 1460 };
    assert_eq!(cache.look(address(2), address(1), now), Some(known));
    assert_eq!(cache.look(address(3), address(1), now), None);
    // Without a new one the old one stays.
    cache.learn(address(2), address(1), &outcome(None, false), now);
    assert_eq!(cache.look(address(2), address(1), now), Some(known));
}

#[test]
fn a_lost_syn_holds_data_back_for_twice_as_long_each_time() {
    let mut cache = Cache::default();
    let has_cookie = |cache: &mut Cache, at: u64| {
        cache.look(address(2), address(1), Time::from_millis(at * 1000)).unwrap().cookie.is_some()
    };
    cache.learn(address(2), address(1), &outcome(cookie(), true), Time::ZERO);
    assert!(!has_cookie(&mut cache, 59) && has_cookie(&mut cache, 60));
    cache.learn(address(2), address(1), &outcome(None, true), Time::from_millis(60_000));
    assert!(!has_cookie(&mut cache, 179) && has_cookie(&mut cache, 180));
    // A connection without data proves nothing, one whose data were taken does.
    cache.learn(address(2), address(1), &outcome(None, false), Time::from_millis(180_000));
    cache.learn(address(2), address(1), &outcome(None, true), Time::from_millis(180_000));
    assert!(!has_cookie(&mut cache, 419) && has_cookie(&mut cache, 420));
    let taken = Outcome { is_taken: true, ..outcome(None, false) };
    cache.learn(address(2), address(1), &taken, Time::from_millis(420_000));
    cache.learn(address(2), address(1), &outcome(None, true), Time::from_millis(420_000));
    assert!(!has_cookie(&mut cache, 479) && has_cookie(&mut cache, 480));
}

#[test]
fn many_servers_push_out_the_one_that_was_used_longest_ago() {
    let mut cache = Cache::default();
    let server = |index: usize| Ipv4Addr::from_bits(0x0a01_0000 + index as u32).into();
    for index in 0..MAX_SERVERS {
        cache.learn(address(2), server(index), &outcome(None, false), Time::from_millis(index as u64));
    }
    cache.look(address(2), server(0), Time::from_millis(5000));
    cache.learn(address(2), server(MAX_SERVERS), &outcome(None, false), Time::from_millis(5001));
    assert_eq!(cache.len(), MAX_SERVERS);
    assert!(cache.look(address(2), server(0), Time::from_millis(5002)).is_some());
    assert!(cache.look(address(2), server(1), Time::from_millis(5002)).is_none());
}
