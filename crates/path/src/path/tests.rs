//! Runs: order, turning around, kicks, time-outs, bounds, and what is charged.

use scoutline_base::Time;

use crate::testing::{Layer, Log, Program, grant, logged, packet, path_of, three_layers, wire};
use crate::{Account, Burst, Control, DropReason, Grant, Message, Path, Ran, Runner, Stage};

/// A, B, C and the program.
fn with_program(log: &Log, change: impl FnOnce(&mut [Layer; 3])) -> Path {
    let mut stages = three_layers(log, change);
    stages.push(Box::new(Program { got: Vec::new() }));
    path_of(stages)
}

fn drops(account: &Account) -> Vec<(DropReason, u32)> {
    account.all_drops().collect()
}

#[test]
fn carries_in_turns_around_and_carries_out() {
    let log = Log::default();
    let mut path = with_program(&log, |_| ());
    let mut runner = Runner::new();
    path.offer(packet(b"ABCxy")).unwrap();
    path.offer(packet(b"ABCz")).unwrap();
    path.offer(packet(b"AXY")).unwrap();
    let ran = path.run_inward(&mut runner, grant());
    assert_eq!(ran, Ran { packets: 3, more: false, stopped_early: false });
    assert_eq!(logged(&log), ["A in 3", "B in 3", "C in 2", "C out 2", "B out 2", "A out 2"]);
    let out: Vec<_> = runner.out.iter().map(wire).collect();
    assert_eq!(out, [b"ABCyx".to_vec(), b"ABCz".to_vec()]);
    let got: Vec<_> = path.stage::<Program>().unwrap().got.iter().map(|m| m.bytes().to_vec()).collect();
    assert_eq!(got, [b"xy".to_vec(), b"z".to_vec()]);
    let account = &path.account;
    assert_eq!((account.packets_in, account.bytes_in), (3, 12));
    assert_eq!((account.packets_out, account.bytes_out, account.runs), (2, 9, 1));
    assert_eq!(drops(account), [(DropReason::Malformed, 1)]);
    assert_eq!(account.buffer_bytes_held, 0);
}

#[test]
fn what_stages_turn_around_meets_on_the_way_out() {
    let log = Log::default();
    // B acknowledges; the program answers: both leave in one burst, the acknowledgment first.
    let mut path = with_program(&log, |layers| layers[1].answers = true);
    let mut runner = Runner::new();
    path.run_inward_with(&mut runner, grant(), &mut vec![packet(b"ABCx")]);
    assert_eq!(logged(&log), ["A in 1", "B in 1", "C in 1", "C out 1", "B out 1", "A out 2"]);
    let out: Vec<_> = runner.out.iter().map(wire).collect();
    assert_eq!(out, [b"A".to_vec(), b"ABCx".to_vec()]);
}

#[test]
fn what_is_turned_outward_goes_in_again() {
    let log = Log::default();
    let mut path = path_of(three_layers(&log, |layers| layers[0].mirror = true));
    let mut runner = Runner::new();
    path.run_outward(&mut runner, grant(), &mut vec![Message::control(Control::Close), Message::default()]);
    assert_eq!(logged(&log), ["C out 2", "B out 2", "A out 2", "B in 2", "C in 2"]);
    assert!(runner.out.is_empty());
    // Nobody is left to take it: a packet counts as dropped, a note does not.
    assert_eq!(drops(&path.account), [(DropReason::Closed, 1)]);
}

#[test]
fn throwing_to_and_fro_is_bounded() {
    let log = Log::default();
    // Two mirrors with a time-out between them: the packet is theirs for ever.
    let mut path = path_of(three_layers(&log, |layers| {
        layers[0].mirror = true;
        layers[1].timeout = Some(Time::ZERO);
        layers[2].mirror = true;
    }));
    let mut runner = Runner::new();
    path.on_timeout(&mut runner, grant());
    assert_eq!(drops(&path.account), [(DropReason::TurnLimit, 2)], "the packet and the note");
    assert!(runner.out.is_empty());
}

#[test]
fn a_kick_calls_every_stage() {
    let log = Log::default();
    let mut path = path_of(three_layers(&log, |_| ()));
    let mut runner = Runner::new();
    path.run_outward(&mut runner, grant(), &mut Burst::new());
    assert_eq!(logged(&log), ["C out 0", "B out 0", "A out 0"]);
    path.run_outward(&mut runner, grant(), &mut vec![Message::default()]);
    assert_eq!(wire(&runner.out[0]), b"ABC");
    assert_eq!((path.account.packets_out, path.account.bytes_out), (1, 3));
}

#[test]
fn time_outs_go_both_ways_from_their_stage() {
    let log = Log::default();
    let mut path = path_of(three_layers(&log, |layers| {
        layers[1].timeout = Some(Time::from_nanos(1_000));
        layers[2].timeout = Some(Time::from_nanos(1_001));
    }));
    let mut runner = Runner::new();
    assert_eq!(path.next_timeout(), Some(Time::from_nanos(1_000)));
    path.on_timeout(&mut runner, grant());
    assert_eq!(logged(&log), ["B timeout 1", "C in 1", "A out 1"]);
    assert_eq!(wire(&runner.out[0]), b"A");
    assert_eq!(path.next_timeout(), Some(Time::from_nanos(1_001)));
}

#[test]
fn runs_stop_at_their_grant_and_say_that_there_is_more() {
    let log = Log::default();
    let mut path = with_program(&log, |_| ());
    let mut runner = Runner::new();
    for _ in 0..5 {
        path.offer(packet(b"ABCx")).unwrap();
    }
    assert_eq!(path.account.buffer_bytes_held, 20);
    let few = Grant { packets: 3, ..grant() };
    assert_eq!(path.run_inward(&mut runner, few), Ran { packets: 3, more: true, stopped_early: false });
    assert_eq!(path.account.buffer_bytes_held, 8);
    assert_eq!(path.run_inward(&mut runner, few), Ran { packets: 2, more: false, stopped_early: false });
    assert_eq!(path.run_inward(&mut runner, few), Ran { packets: 0, more: false, stopped_early: false });
    assert_eq!(runner.out.len(), 5);
}

#[test]
fn a_stage_that_stopped_early_wants_a_kick() {
    let log = Log::default();
    let mut path = path_of(three_layers(&log, |layers| layers[1].timeout = Some(Time::ZERO)));
    let mut runner = Runner::new();
    path.offer(packet(b"ABC")).unwrap();
    let no_room = Grant { packets: 0, transmit_room: 0, ..grant() };
    let ran = path.on_timeout(&mut runner, no_room);
    assert_eq!(ran, Ran { packets: 0, more: true, stopped_early: true });
    let ran = path.run_outward(&mut runner, no_room, &mut Burst::new());
    assert_eq!(ran, Ran { packets: 0, more: true, stopped_early: false }, "only its queue is left");
}

#[test]
fn finds_its_stages_and_describes_them() {
    let log = Log::default();
    let mut path = with_program(&log, |_| ());
    assert_eq!(path.stage::<Layer>().unwrap().module(), "C", "the one nearest to the program");
    path.stage_mut::<Program>().unwrap().got.push(Message::default());
    let facts = path.describe();
    let modules: Vec<_> = facts.iter().map(|stage| stage.module).collect();
    assert_eq!(modules, ["A", "B", "C", "PROGRAM"]);
    assert_eq!(facts[1].facts, [("header", "B".to_owned())]);
    assert_eq!(format!("{path:?}"), "Path(0.0 A-B-C-PROGRAM, 0 queued)");
}
