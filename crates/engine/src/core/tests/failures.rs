//! A device that does not work is told of in `stat` until it does.

use std::rc::Rc;

use scoutline_abi::api::Answer;

use super::floods::Noting;
use super::*;

#[test]
fn a_device_that_is_down_is_told_of_until_it_works() {
    let mut pair = Pair::new(66, WireConfig::default());
    let mut now = pair.now;
    let host = &mut pair.client;
    let noting = Noting::of(&host.core);
    let is_down = Rc::clone(&noting.is_down);
    host.core.nets[0].device = Box::new(noting);
    // What asks who has the server's address leaves once more each time.
    let mut notices_after_sending = |port: u64| {
        now += Duration::from_secs(5);
        let slot = host.open(slot_kind::STREAM, now);
        assert_eq!(host.call(call_op::CONNECT, slot, [SERVER, port, 0, 0], now), 0);
        host.settle(now);
        let Answer::Stat(stat) = host.core.answer_query(&Request::Stat, now) else { panic!("no stat") };
        stat.notices
    };
    assert_eq!(notices_after_sending(80), [""; 0]);
    is_down.set(true);
    let told = notices_after_sending(81);
    assert!(matches!(&told[..], [one] if one.contains("noting is down: bring it up")), "{told:?}");
    is_down.set(false);
    assert_eq!(notices_after_sending(82), [""; 0]);
}
