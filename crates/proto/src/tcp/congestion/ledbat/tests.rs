use super::*;

const SEGMENT: u32 = 1448;

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A controller, and a clock that goes on by a round trip with each window that is acknowledged.
struct Sender {
    controller: LedbatPlusPlus,
    now: Time,
}

impl Sender {
    fn new() -> Sender {
        Sender { controller: LedbatPlusPlus::new(SEGMENT as u16), now: Time::from_millis(1000) }
    }

    /// One that is past slow start, at about `window`, on a path of 60 ms; no slowdown comes soon.
    fn steady(window: u32) -> Sender {
        let mut sender = Sender::new();
        sender.round_trip(60);
        sender.controller.base.window = window;
        sender.controller.base.threshold = window;
        sender.controller.phase =
            Phase::Avoidance { slowdown_at: Some(Time::from_millis(u64::MAX / 2_000_000)) };
        sender
    }

    /// A window of acknowledgments whose round trips took `rtt_ms`, a segment at a time.
    fn round_trip(&mut self, rtt_ms: u64) {
        self.now += millis(rtt_ms);
        for _ in 0..(self.controller.window() / SEGMENT).max(4) {
            self.acknowledge(SEGMENT, rtt_ms);
        }
    }

    fn acknowledge(&mut self, bytes: u32, rtt_ms: u64) {
        let rtt = millis(rtt_ms);
        self.controller.on_acknowledged(&Acknowledged {
            bytes,
            now: self.now,
            rtt,
            sample: Some(rtt),
            window_limited: true,
            una: 0,
            next: 0,
        });
    }

    fn segments(&self) -> f64 {
        f64::from(self.controller.window()) / f64::from(SEGMENT)
    }
}

#[test]
fn the_gain_follows_the_base_delay() {
    for (base_ms, divisor) in [(1, 16), (7, 16), (8, 15), (30, 4), (60, 2), (119, 2), (120, 1), (400, 1)] {
        let mut sender = Sender::new();
        sender.acknowledge(SEGMENT, base_ms);
        assert_eq!(sender.controller.gain_divisor(), divisor, "{base_ms} ms");
    }
}

#[test]
fn slow_start_begins_with_two_segments_grows_by_the_gain_and_ends_by_delay() {
    let mut sender = Sender::new();
    assert_eq!(sender.controller.window(), 2 * SEGMENT);
    sender.acknowledge(2 * SEGMENT, 60);
    assert_eq!(sender.controller.window(), 3 * SEGMENT, "half of what was acknowledged");
    while sender.segments() < 100.0 {
        sender.round_trip(60);
    }
    sender.round_trip(60 + 45);
    assert_eq!(sender.controller.threshold(), u32::MAX, "3/4 of the target is not above it");
    let before = sender.controller.window();
    sender.round_trip(60 + 46);
    assert!(
        sender.controller.threshold() <= before + 2 * SEGMENT,
        "once the least of four samples is above it"
    );
    assert!(matches!(sender.controller.phase, Phase::Avoidance { slowdown_at: Some(_) }));
}

#[test]
fn below_the_target_it_adds_and_above_it_multiplies() {
    let mut sender = Sender::steady(100 * SEGMENT);
    for _ in 0..10 {
        sender.round_trip(119);
    }
    assert!((sender.segments() - 105.0).abs() < 0.5, "half a segment each time: {}", sender.segments());
    let before = sender.segments();
    sender.round_trip(60 + 66);
    // A tenth above the target: about a tenth less, spread over the round trip.
    let share = sender.segments() / before;
    assert!((0.89..0.92).contains(&share), "{share}");
    let before = sender.segments();
    sender.round_trip(60 + 600);
    let share = sender.segments() / before;
    assert!((0.5..0.62).contains(&share), "by half at most, spread: {share}");
    for _ in 0..100 {
        sender.round_trip(60 + 600);
    }
    assert_eq!(sender.controller.window(), 2 * SEGMENT);
    assert_eq!(sender.controller.threshold(), 2 * SEGMENT, "and that is no slow start");
}

#[test]
fn a_window_that_is_not_used_does_not_grow_but_shrinks() {
    let mut sender = Sender::steady(100 * SEGMENT);
    let mut unused = |rtt_ms| {
        for _ in 0..100 {
            sender.controller.on_acknowledged(&Acknowledged {
                bytes: SEGMENT,
                now: sender.now,
                rtt: millis(rtt_ms),
                sample: Some(millis(rtt_ms)),
                window_limited: false,
                una: 0,
                next: 0,
            });
        }
        sender.controller.window()
    };
    assert_eq!(unused(60), 100 * SEGMENT);
    assert!(unused(180) < 70 * SEGMENT);
}

#[test]
fn slowdowns_come_after_slow_start_and_then_take_a_tenth_of_the_time() {
    let mut sender = Sender::new();
    sender.round_trip(60);
    while sender.controller.phase == Phase::SlowStart {
        // The bottleneck holds 50 segments; what is more waits.
        let queue_ms = (sender.segments() - 50.0).max(0.0) * 60.0 / 50.0;
        sender.round_trip(60 + queue_ms as u64);
        assert!(sender.segments() < 200.0);
    }
    let before = sender.controller.window();
    let ended = sender.now;
    while !matches!(sender.controller.phase, Phase::Frozen { .. }) {
        sender.round_trip(100);
    }
    let waited = sender.now.since(ended);
    assert!(waited >= millis(200) && waited <= millis(400), "two round trips: {waited:?}");
    assert_eq!(sender.controller.window(), 2 * SEGMENT);
    let began = sender.now;
    sender.round_trip(60);
    assert_eq!(sender.controller.window(), 2 * SEGMENT, "frozen");
    while !matches!(sender.controller.phase, Phase::Avoidance { .. }) {
        sender.round_trip(60);
    }
    assert!(sender.controller.window() + 5 * SEGMENT >= before, "it is back");
    let took = sender.now.since(began);
    let back = sender.now;
    while !matches!(sender.controller.phase, Phase::Frozen { .. }) {
        sender.round_trip(60);
    }
    let between = sender.now.since(back);
    assert!(between >= took * 9 && between <= took * 9 + millis(120), "{between:?} after {took:?}");
}

#[test]
fn loss_halves_and_a_timeout_leaves_one_segment_and_both_can_be_undone() {
    let mut sender = Sender::steady(100 * SEGMENT);
    sender.controller.on_loss(100 * SEGMENT);
    assert_eq!(sender.controller.window(), 50 * SEGMENT);
    sender.controller.on_timeout(50 * SEGMENT);
    assert_eq!((sender.controller.window(), sender.controller.threshold()), (SEGMENT, 25 * SEGMENT));
    sender.controller.undo();
    assert_eq!(sender.controller.window(), 50 * SEGMENT);
}

/// Two segments are outstanding in a slowdown: half of them is not what the path carries.
#[test]
fn a_loss_in_a_slowdown_halves_the_window_to_go_back_to() {
    let frozen = || {
        let mut sender = Sender::steady(100 * SEGMENT);
        sender.controller.phase = Phase::Avoidance { slowdown_at: Some(sender.now) };
        sender.acknowledge(SEGMENT, 60);
        assert!(matches!(sender.controller.phase, Phase::Frozen { .. }));
        sender
    };
    let mut sender = frozen();
    sender.controller.on_loss(2 * SEGMENT);
    assert_eq!(sender.controller.window(), 2 * SEGMENT, "the queue goes on draining");
    assert_eq!(sender.controller.threshold(), 50 * SEGMENT);
    sender.controller.on_recovered(90 * SEGMENT);
    assert_eq!(sender.controller.window(), 2 * SEGMENT);
    for _ in 0..20 {
        sender.round_trip(60);
    }
    assert!((45.0..=60.0).contains(&sender.segments()), "{}", sender.segments());
    let mut sender = frozen();
    sender.controller.on_timeout(2 * SEGMENT);
    assert_eq!((sender.segments(), sender.controller.threshold()), (1.0, 50 * SEGMENT));
    sender.controller.undo();
    assert_eq!((sender.segments(), sender.controller.threshold()), (2.0, 100 * SEGMENT));
}

/// The undoing of a loss in the first slow start must not bring one back that delay does not end.
#[test]
fn slow_start_ends_by_delay_also_when_a_loss_was_undone() {
    let mut sender = Sender::new();
    sender.round_trip(60);
    sender.controller.on_loss(sender.controller.window());
    sender.round_trip(60);
    sender.controller.undo();
    assert_eq!(sender.controller.threshold(), u32::MAX);
    for _ in 0..4 {
        sender.round_trip(180);
    }
    assert!(sender.controller.threshold() < u32::MAX);
}

#[test]
fn silence_restarts_with_two_segments_and_regrows() {
    let mut sender = Sender::steady(100 * SEGMENT);
    sender.controller.on_idle();
    assert_eq!(sender.controller.window(), 2 * SEGMENT);
    assert_eq!(sender.controller.threshold(), 100 * SEGMENT);
    sender.round_trip(60);
    assert!(sender.controller.window() > 3 * SEGMENT, "by slow start");
}
