//! Generations, and that a destroyed path leaves nothing behind.

use proptest::prelude::*;
use scoutline_base::PathId;
use scoutline_ring::Pool;

use super::{ClassAccounts, PathTable};
use crate::testing::{Log, Program, grant, logged, packet, pooled, three_layers};
use crate::{Attributes, Budget, CreateError, DropReason, Limits, Name, NewPath, Runner, Value};

fn new_path(log: &Log, class: u64) -> NewPath {
    let mut stages = three_layers(log, |_| ());
    stages.push(Box::new(Program { got: Vec::new() }));
    NewPath { stages, attributes: Attributes::new().with(Name::Class, Value::Number(class)) }
}

#[test]
fn destroying_a_path_returns_everything() {
    let log = Log::default();
    let pool = Pool::new(64, 16);
    let mut table = PathTable::new(Budget::new(10, 1_000));
    let mut classes = ClassAccounts::default();
    let mut runner = Runner::new();
    let id = table.insert(new_path(&log, 2), Limits::default()).unwrap();
    let path = table.get_mut(id).unwrap();
    for _ in 0..4 {
        path.offer(pooled(&pool, b"ABCxyz")).unwrap();
    }
    // Two go to the program, which keeps them; two stay in the queue.
    path.run_inward(&mut runner, crate::Grant { packets: 2, ..grant() });
    assert_eq!(pool.in_use(), 4);
    assert_eq!(table.budget().buffer_bytes(), 12);
    assert_eq!(table.budget().paths(), 1);
    logged(&log);

    assert!(table.destroy(id, &mut classes));
    assert_eq!(pool.in_use(), 0, "every buffer went home");
    assert_eq!((table.budget().buffer_bytes(), table.budget().paths(), table.len()), (0, 0, 0));
    assert_eq!(logged(&log), ["drop A", "drop B", "drop C"]);
    assert!(!table.destroy(id, &mut classes), "once");
    let class = classes.class(2).unwrap();
    assert_eq!((class.finished, class.account.packets_in, class.account.packets_out), (1, 2, 2));
    assert_eq!(class.account.buffer_bytes_held, 0, "what is held does not add up");
    assert_eq!(classes.class(0).unwrap().finished, 0);
}

#[test]
fn a_removed_path_still_has_its_queue() {
    let log = Log::default();
    let mut table = PathTable::default();
    let id = table.insert(new_path(&log, 0), Limits::default()).unwrap();
    table.get_mut(id).unwrap().offer(packet(b"ABC")).unwrap();
    let mut path = table.remove(id).unwrap();
    assert_eq!(path.take_queued().unwrap().bytes(), b"ABC");
    assert_eq!((path.account.buffer_bytes_held, table.budget().buffer_bytes()), (0, 0));
    assert!(table.get(id).is_none());
}

#[test]
fn refuses_what_the_budget_does_not_carry() {
    let log = Log::default();
    let mut table = PathTable::new(Budget::new(2, 10));
    let first = table.insert(new_path(&log, 0), Limits::default()).unwrap();
    let second = table.insert(new_path(&log, 0), Limits::default()).unwrap();
    assert_eq!(table.insert(new_path(&log, 0), Limits::default()), Err(CreateError::Exhausted("paths")));
    table.remove(second);

    let path = table.get_mut(first).unwrap();
    path.offer(packet(b"ABCDEF")).unwrap();
    path.offer(packet(b"ABCDEF")).expect_err("the engine's buffer memory is spent");
    assert_eq!(path.account.drops(DropReason::MemoryLimit), 1);
    path.offer(packet(b"ABCD")).unwrap();
    assert_eq!(
        table.insert(new_path(&log, 0), Limits::default()),
        Err(CreateError::Exhausted("buffer memory"))
    );
}

#[test]
fn limits_of_a_path_come_from_its_attributes() {
    let log = Log::default();
    let mut new = new_path(&log, 0);
    new.attributes.set(Name::QueueLimit, Value::Number(2));
    new.attributes.set(Name::MemoryLimit, Value::Number(8));
    let mut table = PathTable::default();
    let id = table.insert(new, Limits::default()).unwrap();
    let path = table.get_mut(id).unwrap();
    path.offer(packet(b"ABCDEF")).unwrap();
    assert!(path.offer(packet(b"ABC")).is_err());
    path.offer(packet(b"AB")).unwrap();
    assert!(path.offer(packet(b"")).is_err());
    assert_eq!(path.account.drops(DropReason::MemoryLimit), 1);
    assert_eq!(path.account.drops(DropReason::QueueFull), 1);
}

proptest! {
    #[test]
    fn a_stale_id_names_nothing(operations in prop::collection::vec((any::<bool>(), any::<u16>()), 0..600)) {
        let log = Log::default();
        let mut table = PathTable::default();
        let mut live: Vec<PathId> = Vec::new();
        let mut dead: Vec<PathId> = Vec::new();
        for (insert, choice) in operations {
            if insert || live.is_empty() {
                live.push(table.insert(new_path(&log, 0), Limits::default()).unwrap());
            } else {
                let id = live.swap_remove(choice as usize % live.len());
                prop_assert!(table.remove(id).is_some());
                dead.push(id);
            }
        }
        prop_assert_eq!(table.len(), live.len());
        prop_assert_eq!(table.iter().count(), live.len());
        for id in &live {
            prop_assert_eq!(table.get(*id).map(crate::Path::id), Some(*id));
        }
        for id in &dead {
            prop_assert!(table.get(*id).is_none() && table.get_mut(*id).is_none());
        }
    }
}

#[test]
fn a_walk_in_pieces_sees_every_path() {
    let log = Log::default();
    let mut table = PathTable::new(Budget::new(1_000, 1_000));
    let ids: Vec<PathId> =
        (0..600).map(|_| table.insert(new_path(&log, 0), Limits::default()).unwrap()).collect();
    table.remove(ids[5]);
    let seen: Vec<PathId> = (0..table.slots()).filter_map(|index| Some(table.at(index)?.id())).collect();
    assert_eq!(seen.len(), 599);
    assert!(ids.iter().all(|id| *id == ids[5] || seen.contains(id)));
    assert!(table.at(table.slots()).is_none());
}

#[test]
fn a_path_changes_its_class_and_takes_its_account_along() {
    let log = Log::default();
    let mut table = PathTable::new(Budget::new(10, 1_000));
    let mut classes = ClassAccounts::default();
    let id = table.insert(new_path(&log, 2), Limits::default()).unwrap();
    let path = table.get_mut(id).unwrap();
    path.offer(packet(b"ABCxyz")).unwrap();
    path.offer(packet(b"ABCxyz")).unwrap();
    path.set_class(5, 1);
    assert_eq!((path.class(), path.attributes.number(Name::Class), path.queue().len()), (5, Some(5), 2));
    assert!(path.offer(packet(b"ABCxyz")).is_err(), "nothing more beyond the new limit");
    table.destroy(id, &mut classes);
    assert!(classes.class(2).is_none_or(|class| class.finished == 0));
    assert_eq!(classes.class(5).unwrap().account.drops(DropReason::QueueFull), 1);
    classes.merge(5, 9);
    classes.merge(77, 9);
    assert_eq!(classes.class(5).unwrap().finished, 0, "the number may be used anew");
    let class = classes.class(9).unwrap();
    assert_eq!((class.finished, class.account.drops(DropReason::QueueFull)), (1, 1));
}

#[test]
fn each_class_is_charged_with_what_was_spent_in_it() {
    let log = Log::default();
    let mut table = PathTable::default();
    let mut classes = ClassAccounts::default();
    let mut runner = Runner::new();
    let id = table.insert(new_path(&log, 1), Limits::default()).unwrap();
    for (class, packets) in [(1, 3), (2, 1), (1, 2)] {
        let path = table.get_mut(id).unwrap();
        path.settle(&mut classes);
        path.set_class(class, 8);
        for _ in 0..packets {
            path.offer(packet(b"ABCxyz")).unwrap();
        }
        path.account.on_drop(DropReason::NoRoute);
        path.run_inward(&mut runner, grant());
        assert_eq!(path.account_in_class().packets_in, packets, "charged at the end");
    }
    assert_eq!(table.get(id).unwrap().account.packets_in, 6, "the path's own account is whole");
    table.destroy(id, &mut classes);
    let of = |class| {
        classes
            .class(class)
            .map(|sum| (sum.account.packets_in, sum.account.drops(DropReason::NoRoute), sum.finished))
    };
    assert_eq!((of(1), of(2)), (Some((5, 2, 1)), Some((1, 1, 0))));
}
