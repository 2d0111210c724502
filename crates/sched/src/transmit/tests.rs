use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;

const RATE: BitRate = BitRate::new(100_000_000);
const FRAME: u32 = 1514;

fn flow(level: Level, class: u32, weight: u64) -> Flow {
    Flow { level, class, weight: Weight::new(weight), rate: None }
}

fn paced() -> Transmit<u32> {
    Transmit::new(Settings { rate: Some(RATE), frame_len: FRAME })
}

fn level_of(number: u8) -> Level {
    if number == 0 { Level::Idle } else { Level::Priority(number - 1) }
}

/// Takes all that leaves, each as soon as it may: when, and what.
fn drain(queues: &mut Transmit<u32>, mut now: Time, idle: bool) -> Vec<(Time, Taken<u32>)> {
    let mut left = Vec::new();
    while let Some(at) = queues.next_time(idle.then_some(Time::ZERO)) {
        now = now.max(at);
        let taken = queues.take(now, idle).expect("next_time keeps its word");
        left.push((now, taken));
    }
    left
}

proptest! {
    /// Without rates: the oracle keeps a plain queue for each class. What leaves is the head of a class of the highest
    /// level that has anything, and nothing is lost, doubled or overtaken within its class.
    #[test]
    fn strict_levels_and_order(operations in prop::collection::vec((0u8..4, 0u32..3, 1u32..3000, 0u8..3), 1..300)) {
        let mut queues = Transmit::new(Settings::default());
        let mut oracle: BTreeMap<(u8, u32), VecDeque<u32>> = BTreeMap::new();
        for (number, (level, class, len, operation)) in operations.into_iter().enumerate() {
            if operation < 2 {
                queues.enqueue(flow(level_of(level), class, 100), len, number as u32);
                oracle.entry((level, class)).or_default().push_back(number as u32);
            } else {
                let highest = oracle.iter().filter(|(_, queue)| !queue.is_empty()).map(|((level, _), _)| *level).max();
                let taken = queues.take(Time::ZERO, true);
                prop_assert_eq!(taken.as_ref().map(|taken| taken.flow.level), highest.map(level_of));
                if let (Some(taken), Some(level)) = (taken, highest) {
                    let head = oracle.get_mut(&(level, taken.flow.class)).and_then(VecDeque::pop_front);
                    prop_assert_eq!(head, Some(taken.item));
                }
            }
            let waiting: usize = oracle.values().map(VecDeque::len).sum();
            prop_assert_eq!(queues.len(), waiting);
            let foreground = oracle.iter().any(|((level, _), queue)| *level > 0 && !queue.is_empty());
            prop_assert_eq!(queues.has_foreground(), foreground);
        }
    }

    /// While there is always something to send, the link is never idle, and never has more before it than it may.
    #[test]
    fn the_rate_is_exact(lens in prop::collection::vec(64u32..6_250, 2..200), late_us in prop::collection::vec(0u64..480, 200)) {
        let mut queues = paced();
        let mut total = 0;
        for &len in &lens {
            queues.enqueue(flow(Level::Priority(0), 0, 100), len, len);
            total += len;
        }
        let (mut now, mut sent) = (Time::ZERO, 0);
        let (mut link_free, mut begin) = (Time::ZERO, None);
        for &late in late_us.iter().cycle() {
            let Some(at) = queues.next_time(Some(Time::ZERO)) else { break };
            now = now.max(at + Duration::from_micros(late));
            while let Some(taken) = queues.take(now, true) {
                prop_assert!(link_free.since(now) <= BELOW, "no more stands below than may");
                prop_assert!(sent == 0 || link_free >= now, "the link ran dry at {now:?}");
                begin = begin.or(Some(now));
                link_free = link_free.max(now) + RATE.time_for(taken.len);
                sent += taken.len;
            }
        }
        prop_assert_eq!(sent, total);
        let ideal = begin.unwrap() + RATE.time_for(total);
        prop_assert!(link_free >= ideal);
        prop_assert!(link_free.since(ideal) <= Duration::from_nanos(lens.len() as u64));
    }

    /// Any two classes with work: what they got, by weight, differs by one longest message of each at most.
    #[test]
    fn classes_share_by_weight(
        weights in prop::collection::vec(1u64..1000, 2..6),
        seed in prop::collection::vec((0usize..6, 64u32..9_000), 600),
        turns in 50usize..500,
    ) {
        let mut queues = Transmit::new(Settings::default());
        for &(class, len) in &seed {
            let class = class % weights.len();
            queues.enqueue(flow(Level::Priority(0), class as u32, weights[class]), len, len);
        }
        let mut got = vec![0u128; weights.len()];
        for _ in 0..turns {
            let busy = |queues: &Transmit<u32>| {
                (0..weights.len()).all(|class| queues.room(&flow(Level::Priority(0), class as u32, 1)).1.bytes < UNPACED_LEN + UNPACED_SEGMENT)
            };
            if !busy(&queues) {
                break;
            }
            let taken = queues.take(Time::ZERO, true).unwrap();
            got[taken.flow.class as usize] += u128::from(taken.len);
            for one in 0..weights.len() {
                for other in 0..one {
                    let share = |class: usize| got[class] as f64 / weights[class] as f64;
                    let bound = 9_000.0 / weights[one] as f64 + 9_000.0 / weights[other] as f64;
                    prop_assert!((share(one) - share(other)).abs() <= bound + 0.01);
                }
            }
        }
    }

    /// To take and put back is to have done nothing.
    #[test]
    fn what_is_put_back_was_never_gone(
        messages in prop::collection::vec((0u8..3, 0u32..3, 64u32..3_000), 1..60),
        backs in prop::collection::vec(any::<bool>(), 1..60),
    ) {
        let (mut one, mut other) = (paced(), paced());
        for (number, &(level, class, len)) in messages.iter().enumerate() {
            for queues in [&mut one, &mut other] {
                let rate = (class == 2).then_some(BitRate::new(30_000_000));
                queues.enqueue(Flow { rate, ..flow(level_of(level), class, 100) }, len, number as u32);
            }
        }
        let mut now = Time::ZERO;
        for back in backs.into_iter().cycle() {
            let Some(at) = one.next_time(Some(Time::ZERO)) else { break };
            now = now.max(at);
            if back {
                let taken = one.take(now, true).unwrap();
                one.put_back(taken);
            }
            prop_assert_eq!(one.next_time(Some(Time::ZERO)).map(|at| at.max(now)), other.next_time(Some(Time::ZERO)).map(|at| at.max(now)));
            prop_assert_eq!(one.take(now, true), other.take(now, true));
        }
        prop_assert!(other.is_empty());
    }

    /// Background: behind all else, and at most one frame of it waits below when it was handed down.
    #[test]
    fn one_background_frame_waits_below(foreground in prop::collection::vec(1u32..6_250, 0..20), background in 1usize..20) {
        let mut queues = paced();
        for &len in &foreground {
            queues.enqueue(flow(Level::Priority(0), 0, 100), len, 0);
        }
        for _ in 0..background {
            queues.enqueue(flow(Level::Idle, 1, 100), FRAME, 1);
        }
        prop_assert_eq!(queues.take(Time::ZERO, false).is_some(), !foreground.is_empty());
        let left = drain(&mut queues, Time::ZERO, true);
        let mut link_free = Time::ZERO + foreground.first().map_or(Duration::ZERO, |&len| RATE.time_for(len));
        let mut begun = false;
        for (at, taken) in left {
            prop_assert!(!(begun && taken.item == 0), "foreground first");
            begun |= taken.item == 1;
            if taken.item == 1 {
                prop_assert!(link_free.since(at) <= RATE.time_for(FRAME), "one is sent, and this one waits");
                prop_assert!(link_free >= at, "and the link is kept busy");
            }
            link_free = link_free.max(at) + RATE.time_for(taken.len);
        }
    }
}

#[test]
fn a_class_with_a_rate_holds_nobody_up() {
    let mut queues = Transmit::new(Settings::default());
    let slow = Flow { rate: Some(BitRate::new(1_000_000)), ..flow(Level::Priority(5), 0, 100) };
    for number in 0..4 {
        queues.enqueue(slow, 1_250, number);
        queues.enqueue(flow(Level::Priority(0), 1, 100), 1_250, 10 + number);
    }
    let left = drain(&mut queues, Time::ZERO, true);
    let items: Vec<u32> = left.iter().map(|(_, taken)| taken.item).collect();
    assert_eq!(items, [0, 10, 11, 12, 13, 1, 2, 3]);
    // 1,250 bytes are 10 ms, of which half a millisecond may be ahead.
    let times: Vec<u64> = left.iter().map(|(at, _)| at.as_micros()).collect();
    assert_eq!(times, [0, 0, 0, 0, 0, 9_500, 19_500, 29_500]);
}

proptest! {
    /// The rate is the class's: paths of it that stand in several levels have it once, the most important first.
    #[test]
    fn a_class_has_its_rate_once_whatever_levels_it_stands_in(
        messages in prop::collection::vec((1u8..4, 64u32..1_514), 2..100),
    ) {
        let rate = BitRate::new(10_000_000);
        let mut queues = Transmit::new(Settings::default());
        for &(level, len) in &messages {
            queues.enqueue(Flow { rate: Some(rate), ..flow(level_of(level), 7, 100) }, len, u32::from(level));
        }
        let left = drain(&mut queues, Time::ZERO, true);
        prop_assert_eq!(left.len(), messages.len());
        let mut free = Time::ZERO;
        for (at, taken) in &left {
            prop_assert!(free.since(*at) <= BELOW, "{at:?}: the class sends faster than its rate");
            free = free.max(*at) + rate.time_for(taken.len);
        }
        prop_assert!(left.is_sorted_by_key(|(_, taken)| std::cmp::Reverse(taken.flow.level)));
    }
}

/// The rate changes for all of the class with the next message, at whichever level.
#[test]
fn another_rate_holds_at_all_levels() {
    let mut queues = Transmit::new(Settings::default());
    let at = |level, mbit: Option<u64>| Flow {
        rate: mbit.map(|mbit| BitRate::new(mbit * 1_000_000)),
        ..flow(Level::Priority(level), 0, 100)
    };
    queues.enqueue(at(1, Some(1)), 1_250, 0);
    queues.enqueue(at(1, Some(1)), 1_250, 1);
    assert!(queues.take(Time::ZERO, true).is_some());
    assert_eq!(queues.next_time(None), Some(Time::from_micros(9_500)));
    queues.enqueue(at(2, None), 1_250, 2);
    assert_eq!(queues.next_time(None), Some(Time::ZERO), "no rate any more");
    assert_eq!(queues.take(Time::ZERO, true).map(|taken| taken.item), Some(2));
    queues.enqueue(at(2, Some(1)), 1_250, 3);
    assert_eq!(queues.take(Time::ZERO, true).map(|taken| taken.item), Some(3));
    assert_eq!(queues.take(Time::ZERO, true), None, "level 1 waits for what level 2 has used");
}

#[test]
fn segments_fit_the_rate() {
    let room = |rate, class_rate, level| {
        let queues: Transmit<()> = Transmit::new(Settings { rate, frame_len: FRAME });
        queues.room(&Flow { rate: class_rate, ..flow(level, 0, 100) }).1
    };
    let at = |bits| Some(BitRate::new(bits));
    let foreground = Level::Priority(0);
    let unpaced = Room { bytes: UNPACED_LEN + UNPACED_SEGMENT, segment: u32::MAX };
    assert_eq!(room(None, None, foreground), unpaced);
    assert_eq!(room(at(100_000_000), None, foreground), Room { bytes: 12_500, segment: 6_250 });
    assert_eq!(room(at(1_000_000), None, foreground).segment, FRAME);
    assert_eq!(room(at(100_000_000), at(50_000_000), foreground).segment, 3_125);
    assert_eq!(room(None, at(50_000_000), foreground).segment, 3_125);
    assert_eq!(room(at(100_000_000), None, Level::Idle), Room { bytes: 25_000, segment: FRAME });
    assert_eq!(room(at(10_000_000_000), None, Level::Idle).segment, 15_000);
    let mut queues = paced();
    let flow = flow(foreground, 0, 100);
    queues.enqueue(flow, 12_000, 0);
    assert_eq!(queues.room(&flow).1.bytes, 500);
}

/// Nearly full, a queue still takes a whole super-segment; full, nothing.
#[test]
fn without_a_rate_no_segment_is_cut_to_what_is_left() {
    let mut queues = Transmit::new(Settings::default());
    let flow = flow(Level::Priority(0), 0, 100);
    queues.enqueue(flow, UNPACED_LEN as u32 - 1, 0);
    assert_eq!(queues.room(&flow).1.bytes, 1 + UNPACED_SEGMENT);
    queues.enqueue(flow, 1, 0);
    assert_eq!(queues.room(&flow).1.bytes, 0);
}

/// Where a rate gets slower or faster, what stands below is counted on.
#[test]
fn rates_change_live() {
    let mut queues = paced();
    let flow = flow(Level::Priority(0), 0, 100);
    queues.enqueue(flow, 125_000, 0);
    queues.enqueue(flow, 1_250, 1);
    assert!(queues.take(Time::ZERO, true).is_some());
    queues.set_rate(Some(BitRate::new(1_000_000_000)));
    assert_eq!(
        queues.next_time(Some(Time::ZERO)),
        Some(Time::from_micros(9_500)),
        "10 ms of 100 Mbit/s stand below"
    );
    queues.release();
    assert!(queues.take(Time::ZERO, true).is_some());
}

/// Background that may not leave says nothing of when foreground may.
#[test]
fn foreground_is_not_forgotten_beside_background_that_waits() {
    let mut queues = Transmit::new(Settings::default());
    queues.enqueue(flow(Level::Idle, 0, 100), 1_000, 0);
    assert_eq!(queues.next_time(None), None);
    queues.enqueue(flow(Level::Priority(0), 1, 100), 1_000, 1);
    assert_eq!(queues.next_time(None), Some(Time::ZERO));
}

mod activity {
    use super::*;

    fn at(us: u64) -> Time {
        Time::from_micros(us)
    }

    #[test]
    fn a_fixed_interval_and_none() {
        let mut activity = Activity::new(Preemption::Fixed(Duration::from_millis(3)));
        assert!(!activity.is_active(at(0)));
        activity.on_foreground(at(1_000));
        activity.on_waiting(at(1_000), Duration::from_millis(50));
        assert!(activity.is_active(at(3_999)) && !activity.is_active(at(4_000)));
        let mut plain = Activity::new(Preemption::Fixed(Duration::ZERO));
        plain.on_foreground(at(1_000));
        assert!(!plain.is_active(at(1_000)));
    }

    #[test]
    fn the_interval_follows_the_gaps_within_bursts() {
        let mut activity = Activity::new(Preemption::Auto);
        let mut now = at(0);
        for _ in 0..10 {
            for _ in 0..20 {
                activity.on_foreground(now);
                activity.on_foreground(now);
                now += Duration::from_micros(100);
            }
            // A pause between bursts says nothing of the gaps in them.
            now += Duration::from_millis(50);
        }
        let interval = activity.interval().as_micros();
        assert!((350..=450).contains(&interval), "{interval} µs after gaps of 100 µs");
        assert_eq!(activity.quiet_at(), at(now.as_micros() - 50_100) + activity.interval());
    }

    #[test]
    fn waiting_for_the_network_is_activity_but_not_for_ever() {
        let mut activity = Activity::new(Preemption::Auto);
        activity.on_foreground(at(0));
        activity.on_waiting(at(0), Duration::from_millis(20));
        assert!(activity.is_active(at(19_999)) && !activity.is_active(at(20_000)));
        activity.on_waiting(at(0), Duration::from_secs(100));
        assert_eq!(activity.quiet_at(), at(200_000));
    }

    proptest! {
        #[test]
        fn quiet_time_never_moves_back_and_is_bounded(steps in prop::collection::vec((0u64..5_000, any::<bool>()), 1..200)) {
            let mut activity = Activity::new(Preemption::Auto);
            let (mut now, mut before) = (at(0), at(0));
            for (step, waits) in steps {
                now += Duration::from_micros(step);
                if waits {
                    activity.on_waiting(now, Duration::from_millis(1));
                } else {
                    activity.on_foreground(now);
                }
                prop_assert!(activity.quiet_at() >= before && activity.quiet_at() >= now);
                prop_assert!(activity.quiet_at().since(now) <= Duration::from_millis(200));
                before = activity.quiet_at();
            }
        }
    }
}
