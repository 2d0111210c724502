use super::*;

#[test]
fn a_stamp_is_read_as_it_was_written_and_nothing_else_is_one() {
    let mut message = vec![7; Protocol::Udp.message_len(ETHERNET_MTU)];
    assert_eq!(Stamp::read(&message), None);
    let stamp = Stamp { number: 9, due_ns: 123_456_789_012 };
    stamp.write(&mut message);
    assert_eq!(Stamp::read(&message), Some(stamp));
    assert_eq!(Stamp::read(&message[..23]), None);
}

#[test]
fn a_receiver_tells_how_long_background_came_in_after_a_burst_began_and_when_it_was_back() {
    let mut bursts = receive::Bursts::new(0, PERIOD_NS).unwrap();
    let ms = |count: u64| count * 1_000_000;
    // The first burst began before the window of measurement.
    for burst in 0..3 {
        let begin = burst * PERIOD_NS;
        bursts.on_background(begin + ms(1));
        bursts.on_foreground(begin, begin + ms(2));
        bursts.on_background(begin + ms(3));
        bursts.on_foreground(begin + ms(4), begin + ms(9));
        bursts.on_background(begin + ms(14));
        bursts.on_background(begin + ms(15));
    }
    bursts.on_foreground(3 * PERIOD_NS, 3 * PERIOD_NS + ms(1));
    let (count, yields, reclaims) = bursts.sums();
    assert_eq!(count, 2);
    assert!(yields.iter().all(|yielded| yielded.abs_diff(ms(3)) < 5_000), "{yields:?}");
    assert!(reclaims.iter().all(|back| back.abs_diff(ms(5)) < 9_000), "{reclaims:?}");
}
