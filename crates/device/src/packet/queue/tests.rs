//! The queue over a pair of sockets that keep packets apart, as the kernel's does.

use std::os::unix::net::UnixDatagram;

use scoutline_ring::gather;

use super::*;

const HEADERS: usize = 54;

struct Pair {
    sender: UnixDatagram,
    queue: Rc<Queue>,
}

impl Pair {
    fn new() -> Pair {
        let (sender, receiver) = UnixDatagram::pair().expect("a pair");
        Pair { sender, queue: Rc::new(Queue::new(Rc::new(receiver.into()))) }
    }

    /// A packet comes, and its beginning in the ring.
    fn come(&self, number: u32, len: usize) -> Late {
        let bytes = packet(number, len);
        self.sender.send(&bytes).expect("there is room");
        self.queue.came(len as u32, &bytes[VNET_LEN..VNET_LEN + HEADERS])
    }
}

fn packet(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..VNET_LEN + len).map(|at| (at / 5 % 251) as u8 ^ number as u8).collect();
    bytes[VNET_LEN + 38..VNET_LEN + 42].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn is_right(late: &Late, number: u32, len: usize) -> bool {
    let mut rest = vec![0; len - HEADERS];
    gather(late, 0..rest.len() as u64, &mut rest) && rest == packet(number, len)[VNET_LEN + HEADERS..]
}

/// If the kernel's queue is ever behind its ring, what is too much goes, and all have their own bytes.
#[test]
fn what_nobody_was_told_of_is_thrown_away() {
    let pair = Pair::new();
    for round in 0..3 {
        pair.sender.send(&packet(1_000 + round, 2_500)).expect("there is room");
        let late = [0, 1, 2].map(|at| pair.come(3 * round + at, 2_500));
        for at in [1, 0, 2] {
            assert!(is_right(&late[at as usize], 3 * round + at, 2_500), "{at} of round {round}");
        }
    }
}

/// Under pressure a drop behind what waits makes room, for no more copying than it is worth.
#[test]
fn a_drop_under_pressure_sets_little_aside() {
    let pair = Pair::new();
    let held: Vec<Late> = (0..8).map(|number| pair.come(number, 2_500)).collect();
    pair.queue.on_refused();
    assert!(pair.queue.is_pressed());
    pair.queue.leave(7);
    assert!(!pair.queue.is_pressed());
    assert_eq!(pair.queue.take_copied(), 2 * (VNET_LEN as u64 + 2_500));
    assert!((0..7).all(|number| is_right(&held[number], number as u32, 2_500)));
    drop(held);
    assert!(pair.queue.state.borrow().packets.is_empty() && pair.queue.waiting.get() == 0);
}

/// One that waits for long costs nothing for those that come and go behind it.
#[test]
fn what_is_gone_is_forgotten_behind_what_waits() {
    let pair = Pair::new();
    let held = pair.come(0, 3_000);
    for number in 1..1_000 {
        let late = pair.come(number, 2_500);
        if number % 3 > 0 {
            assert!(is_right(&late, number, 2_500), "{number}");
        }
    }
    let kept = pair.queue.state.borrow().packets.len();
    assert!(kept <= 1, "{kept} are remembered");
    assert!(is_right(&held, 0, 3_000));
    drop(held);
    let state = pair.queue.state.borrow();
    assert!(state.packets.is_empty() && state.aside.is_empty() && pair.queue.waiting.get() == 0);
}
