//! A device that does not work is told of in `stat` until it does.

use std::cell::Cell;
use std::rc::Rc;

use scoutline_abi::api::Answer;

use super::*;

/// A device that takes nothing while it is down.
struct Moody {
    facts: DeviceFacts,
    is_down: Rc<Cell<bool>>,
}

impl Partner for Moody {
    fn name(&self) -> &'static str {
        "eth7"
    }
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }
    fn pull(&mut self, _burst: &mut Burst, _limit: usize, _now: Time) -> Result<usize, DeviceError> {
        Ok(0)
    }
    fn has_input(&self) -> bool {
        false
    }
    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        if self.is_down.get() {
            Err(DeviceError::Down { name: "eth7".into() })
        } else {
            Ok(burst.drain(..).count())
        }
    }
    fn room(&self) -> usize {
        64
    }
    fn poll_fd(&self) -> Option<RawFd> {
        None
    }
    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

#[test]
fn a_device_that_is_down_is_told_of_until_it_works() {
    let mut pair = Pair::new(66, WireConfig::default());
    let mut now = pair.now;
    let host = &mut pair.client;
    let is_down = Rc::new(Cell::new(false));
    let facts = host.core.nets[0].device.facts().clone();
    host.core.nets[0].device = Box::new(Moody { facts, is_down: Rc::clone(&is_down) });
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
    assert!(matches!(&told[..], [one] if one.contains("eth7 is down: bring it up")), "{told:?}");
    is_down.set(false);
    assert_eq!(notices_after_sending(82), [""; 0]);
}
