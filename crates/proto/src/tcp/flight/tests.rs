use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn ms(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn flight() -> Flight {
    let mut flight = Flight::default();
    flight.on_sent(1..3_001, ms(1));
    flight.on_sent(3_001..4_001, ms(1));
    flight.on_sent(4_001..6_001, ms(2));
    flight
}

#[test]
fn what_leaves_at_one_time_is_one_piece() {
    let flight = flight();
    assert_eq!(flight.pieces.len(), 2);
    assert_eq!((flight.in_network(), flight.lost()), (6_000, 0));
}

#[test]
fn a_cumulative_acknowledgment_tells_when_the_last_of_it_was_sent() {
    let mut flight = flight();
    assert_eq!(flight.acknowledge(1), None);
    assert_eq!(flight.acknowledge(1_001), Some((ms(1), 1_001)));
    assert_eq!(flight.acknowledge(5_001), Some((ms(2), 5_001)));
    assert_eq!(flight.in_network(), 1_000);
    assert_eq!(flight.acknowledge(6_001), Some((ms(2), 6_001)));
    assert_eq!(flight.in_network(), 0);
}

#[test]
fn blocks_leave_holes_and_tell_what_was_sent_last_and_what_comes_first() {
    let mut flight = flight();
    let mut delivered = Delivered::default();
    flight.deliver(2_001..5_001, &mut delivered);
    assert_eq!(delivered.units, 3_000);
    assert_eq!(delivered.newest.map(|piece| (piece.at, piece.end)), Some((ms(2), 5_001)));
    assert_eq!(delivered.first, Some((2_001, 4_001)));
    assert_eq!(flight.in_network(), 3_000);
    flight.deliver(2_001..5_001, &mut delivered);
    assert_eq!(delivered.units, 3_000, "once only");
}

#[test]
fn lost_units_are_named_first_to_last_and_count_again_when_sent_again() {
    let mut flight = flight();
    flight.deliver(2_001..3_001, &mut Delivered::default());
    assert!(flight.lose_where(|piece| Some(piece.at == ms(1))));
    assert_eq!((flight.lost(), flight.in_network()), (3_000, 2_000));
    assert_eq!(flight.next_lost(9_999), Some(1..2_001), "up to the hole");
    assert_eq!(flight.next_lost(500), Some(1..501));
    flight.on_sent_again(1..1_001, ms(7));
    assert_eq!(flight.next_lost(9_999), Some(1_001..2_001));
    flight.on_sent_again(1_001..2_001, ms(7));
    assert_eq!(flight.next_lost(9_999), Some(3_001..4_001));
    assert_eq!(flight.in_network(), 4_000);
    let mut delivered = Delivered::default();
    flight.deliver(1..2_001, &mut delivered);
    assert_eq!(delivered.first, None, "which copy arrived, nobody knows");
    assert_eq!(delivered.newest_again.map(|piece| piece.at), Some(ms(7)));
    flight.find_all();
    assert_eq!((flight.lost(), flight.in_network()), (0, 3_000));
}

#[test]
fn a_peer_that_gave_up_what_it_held_gets_everything_again() {
    let mut flight = flight();
    flight.deliver(1_001..5_001, &mut Delivered::default());
    flight.lose_everything(1, 6_001);
    assert_eq!((flight.next_lost(99_999), flight.in_network()), (Some(1..6_001), 0));
}

#[test]
fn the_number_of_pieces_is_bounded() {
    let mut flight = Flight::default();
    for (len, most) in [(1_000, MAX_PIECES), (10, 200_000 / LEAST_AVERAGE as usize + 1)] {
        flight.clear();
        for segment in 0..20_000 {
            flight.on_sent(segment * len..segment * len + len, ms(segment));
        }
        assert_eq!(flight.in_network(), 20_000 * len);
        assert!((most / 2..=most).contains(&flight.pieces.len()), "{}", flight.pieces.len());
    }
    flight.acknowledge(200_000);
    assert!(flight.pieces.capacity() <= 4 * IDLE_PIECES, "an idle connection is small");
}

proptest! {
    /// Against one entry for each unit.
    #[test]
    fn agrees_with_a_map_of_units(
        steps in proptest::collection::vec((0u8..6, 0u64..150, 1u64..40), 1..80)
    ) {
        let mut flight = Flight::default();
        // Unit → sent at, again, lost.
        let mut units: BTreeMap<u64, (u64, bool, bool)> = BTreeMap::new();
        let (mut next, mut una) = (0, 0);
        for (clock, (kind, start, len)) in (1u64..).zip(steps) {
            let range = start.max(una)..(start + len).max(una).min(next).max(start.max(una));
            match kind {
                0 | 1 => {
                    flight.on_sent(next..next + len, ms(clock));
                    units.extend((next..next + len).map(|unit| (unit, (clock, false, false))));
                    next += len;
                }
                2 => {
                    let mut delivered = Delivered::default();
                    flight.deliver(range.clone(), &mut delivered);
                    let there: Vec<_> = units.range(range.clone()).map(|(unit, how)| (*unit, *how)).collect();
                    prop_assert_eq!(delivered.units, there.len() as u64);
                    let first = there.iter().find(|(_, how)| !how.1).map(|(unit, _)| *unit);
                    prop_assert_eq!(delivered.first.map(|first| first.0), first);
                    let newest = there.iter().filter(|(_, how)| !how.1).map(|(unit, how)| (how.0, unit + 1)).max();
                    prop_assert_eq!(delivered.newest.map(|piece| (piece.at.as_millis(), piece.end)), newest);
                    units.retain(|unit, _| !range.contains(unit));
                }
                3 => {
                    flight.lose(range.clone());
                    units.range_mut(range).for_each(|(_, how)| how.2 = true);
                }
                4 => {
                    flight.on_sent_again(range.clone(), ms(clock));
                    units.range_mut(range).for_each(|(_, how)| *how = (clock, true, false));
                }
                _ => {
                    una = una.max(start.min(next));
                    if flight.lost() == 0 {
                        flight.acknowledge(una);
                    } else {
                        flight.deliver(0..una, &mut Delivered::default());
                    }
                    units.retain(|unit, _| *unit >= una);
                }
            }
            let lost: Vec<u64> = units.iter().filter(|(_, how)| how.2).map(|(unit, _)| *unit).collect();
            prop_assert_eq!(flight.lost(), lost.len() as u64);
            prop_assert_eq!(flight.in_network(), (units.len() - lost.len()) as u64);
            prop_assert_eq!(flight.next_lost(1).map(|range| range.start), lost.first().copied());
            prop_assert_eq!(flight.has_again(), units.values().any(|how| how.1));
        }
    }
}
