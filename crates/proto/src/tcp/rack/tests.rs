use super::*;

fn ms(millis: u64) -> Time {
    Time::from_millis(millis)
}

const RTT: Duration = Duration::from_millis(40);

fn times() -> Times {
    Times { least: RTT, smoothed: RTT, echo_age: None }
}

/// Ten segments of 1,000, one each millisecond from 1 on.
fn flight() -> Flight {
    let mut flight = Flight::default();
    for segment in 0..10 {
        flight.on_sent(1 + segment * 1_000..1_001 + segment * 1_000, ms(1 + segment));
    }
    flight
}

fn sack(rack: &mut Rack, flight: &mut Flight, range: std::ops::Range<u64>, now: Time) {
    let mut delivered = Delivered::default();
    flight.deliver(range, &mut delivered);
    rack.on_delivered(&delivered, &times(), now);
}

#[test]
fn one_later_segment_and_a_fourth_of_a_round_trip_mean_loss() {
    let (mut rack, mut flight) = (Rack::default(), flight());
    sack(&mut rack, &mut flight, 2_001..3_001, ms(43));
    // The third took 40 ms; the first two were sent 1 and 2 ms before it, and have 10 ms more.
    assert_eq!(rack.detect(&mut flight, false, &times(), ms(43)), (false, Some(ms(52))));
    assert_eq!(rack.detect(&mut flight, false, &times(), ms(51)), (true, Some(ms(52))));
    assert_eq!(flight.next_lost(9_999), Some(1..1_001));
    assert_eq!(rack.detect(&mut flight, false, &times(), ms(52)), (true, None));
    assert_eq!(flight.lost(), 2_000, "and nothing that was sent later");
}

#[test]
fn evidence_needs_no_patience_unless_there_is_reordering() {
    let (mut rack, mut flight) = (Rack::default(), flight());
    sack(&mut rack, &mut flight, 1_001..4_001, ms(44));
    assert_eq!(rack.detect(&mut flight.clone(), true, &times(), ms(44)), (true, None));
    // RFC 8985 §6.2 step 3: an original comes after what was sent later.
    sack(&mut rack, &mut flight, 1..1_001, ms(45));
    assert!(rack.is_reordering());
    sack(&mut rack, &mut flight, 6_001..9_001, ms(50));
    assert!(!rack.detect(&mut flight, true, &times(), ms(50)).0);
}

#[test]
fn duplicates_widen_the_window_once_a_round_and_for_sixteen_recoveries() {
    let mut rack = Rack::default();
    rack.set_reordering();
    assert_eq!(rack.window(true, &times()), RTT / 4);
    rack.on_duplicate(1, 10_001);
    rack.on_duplicate(5_001, 12_001);
    assert_eq!(rack.window(true, &times()), RTT / 2, "one round");
    rack.on_duplicate(10_001, 20_001);
    assert_eq!(rack.window(true, &times()), RTT / 4 * 3);
    for _ in 0..9 {
        let round = rack.reordered().round;
        rack.on_duplicate(round, round + 1);
    }
    assert_eq!(rack.window(true, &times()), RTT, "never more than a smoothed round trip");
    for _ in 0..15 {
        rack.on_recovered();
    }
    assert_eq!(rack.window(true, &times()), RTT);
    rack.on_recovered();
    assert_eq!(rack.window(true, &times()), RTT / 4);
}

#[test]
fn what_was_sent_again_is_lost_again_only_by_what_was_sent_after_it() {
    let (mut rack, mut flight) = (Rack::default(), flight());
    sack(&mut rack, &mut flight, 1_001..4_001, ms(44));
    rack.detect(&mut flight, true, &times(), ms(44));
    flight.on_sent_again(1..1_001, ms(44));
    sack(&mut rack, &mut flight, 4_001..10_001, ms(50));
    assert_eq!(
        rack.detect(&mut flight, true, &times(), ms(50)),
        (false, None),
        "all of these were sent before"
    );
    flight.on_sent(10_001..11_001, ms(46));
    sack(&mut rack, &mut flight, 10_001..11_001, ms(86));
    assert!(rack.detect(&mut flight, true, &times(), ms(86)).0, "the second copy is lost too");
}

#[test]
fn the_answer_to_the_first_copy_tells_nothing_of_the_second() {
    let (mut rack, mut flight) = (Rack::default(), flight());
    flight.lose(1..1_001);
    flight.on_sent_again(1..1_001, ms(44));
    let mut delivered = Delivered::default();
    flight.deliver(1..1_001, &mut delivered);
    // Sooner than any round trip.
    rack.on_delivered(&delivered, &times(), ms(60));
    assert_eq!((rack.at, rack.end), (Time::ZERO, 0));
    // Its echo is older.
    let older = Times { echo_age: Some(Duration::from_millis(89)), ..times() };
    rack.on_delivered(&delivered, &older, ms(90));
    assert_eq!((rack.at, rack.end), (Time::ZERO, 0));
    let right = Times { echo_age: Some(Duration::from_millis(46)), ..times() };
    rack.on_delivered(&delivered, &right, ms(90));
    assert_eq!((rack.at, rack.end, rack.rtt()), (ms(44), 1_001, Duration::from_millis(46)));
}

#[test]
fn a_time_out_loses_what_is_older_than_a_round_trip() {
    let (rack, mut flight) = (Rack::default(), flight());
    flight.on_sent(10_001..12_001, ms(230));
    rack.on_timeout(&mut flight, &times(), ms(241));
    assert_eq!((flight.lost(), flight.in_network()), (10_000, 2_000));
}

/// RFC 8985 §6.2 step 2 goes through what has arrived in the order of the stream.
#[test]
fn the_round_trip_is_that_of_the_last_in_the_stream() {
    let (mut rack, mut flight) = (Rack::default(), flight());
    flight.on_sent_again(1..1_001, ms(44));
    let mut delivered = Delivered::default();
    flight.deliver(1..2_001, &mut delivered);
    rack.on_delivered(&delivered, &times(), ms(90));
    assert_eq!(rack.rtt(), Duration::from_millis(88), "the second was sent at 2");
    assert_eq!((rack.at, rack.end), (ms(44), 1_001), "though the first was sent last");
}

#[test]
fn the_degree_of_reordering_is_the_greatest_distance_seen() {
    let (mut rack, mut flight) = (Rack::default(), flight());
    sack(&mut rack, &mut flight, 5_001..6_001, ms(45));
    assert_eq!(rack.degree(), 0);
    sack(&mut rack, &mut flight, 2_001..3_001, ms(46));
    assert_eq!(rack.degree(), 4_000);
    sack(&mut rack, &mut flight, 3_001..4_001, ms(47));
    assert_eq!(rack.degree(), 4_000);
}
