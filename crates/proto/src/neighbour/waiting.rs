//! The messages that wait for neighbours nobody knows yet, bounded by the memory that they hold.
//!
//! RFC 1122 §2.3.2.2 and RFC 4861 §7.2.2 ask for at least one message for each neighbour, the latest. A count of
//! messages does not do: the fragments of one datagram are many, and without one of them all are lost. So each
//! neighbour has bytes, as Linux gives them (`unres_qlen_bytes`, arp(7)), and all neighbours of a
//! cache have no more than a few full queues together, which Linux leaves out: a scan of a network would fill one queue
//! after the other. Over either limit the oldest goes. An answer comes within a round trip of the link or never, so what
//! has waited longest is least likely to be waited for in earnest, whoever's it is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scoutline_path::{Body, Message};
use scoutline_ring::Block;

/// Bytes that wait for one neighbour: Linux' default of `unres_qlen_bytes`. The longest datagram fits in fragments of an
/// Ethernet's size.
pub(super) const MAX_BYTES: usize = 212_992;
/// Bytes that wait in one cache, which is one device's for one family.
pub(super) const MAX_BYTES_OF_ALL: usize = 1 << 20;

/// Messages by the slot of their neighbour, oldest first.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queues: BTreeMap<u32, Queue>,
    /// The oldest of each queue, by its number.
    oldest: BTreeSet<(u64, u32)>,
    bytes: usize,
    next_number: u64,
}

#[derive(Debug, Default)]
struct Queue {
    /// With their numbers, which grow over all queues.
    messages: VecDeque<(u64, Message)>,
    bytes: usize,
}

impl Waiting {
    /// Lets a message wait, and gives those that have to go for it. A message alone always has room.
    pub(super) fn push(&mut self, slot: u32, mut message: Message) -> Vec<Message> {
        own(&mut message);
        let cost = cost(&message);
        let mut displaced = Vec::new();
        while self.bytes_of(slot) + cost > MAX_BYTES
            && let Some(oldest) = self.pop(slot)
        {
            displaced.push(oldest);
        }
        while self.bytes + cost > MAX_BYTES_OF_ALL
            && let Some(&(_, longest_waiting)) = self.oldest.first()
        {
            displaced.extend(self.pop(longest_waiting));
        }
        let number = self.next_number;
        self.next_number += 1;
        let queue = self.queues.entry(slot).or_default();
        if queue.messages.is_empty() {
            self.oldest.insert((number, slot));
        }
        queue.messages.push_back((number, message));
        queue.bytes += cost;
        self.bytes += cost;
        displaced
    }

    /// Everything that waits at a slot, in its order.
    pub(super) fn take(&mut self, slot: u32) -> Vec<Message> {
        let Some(queue) = self.queues.remove(&slot) else { return Vec::new() };
        self.bytes -= queue.bytes;
        if let Some((number, _)) = queue.messages.front() {
            self.oldest.remove(&(*number, slot));
        }
        queue.messages.into_iter().map(|(_, message)| message).collect()
    }

    /// The oldest that waits at a slot.
    pub(super) fn first(&self, slot: u32) -> Option<&Message> {
        self.queues.get(&slot)?.messages.front().map(|(_, message)| message)
    }

    /// Nothing waits at a slot.
    pub(super) fn is_empty_at(&self, slot: u32) -> bool {
        !self.queues.contains_key(&slot)
    }

    /// Bytes that all of them hold.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn bytes_of(&self, slot: u32) -> usize {
        self.queues.get(&slot).map_or(0, |queue| queue.bytes)
    }

    /// The oldest of a slot leaves.
    fn pop(&mut self, slot: u32) -> Option<Message> {
        let queue = self.queues.get_mut(&slot)?;
        let (number, message) = queue.messages.pop_front()?;
        self.oldest.remove(&(number, slot));
        let cost = cost(&message);
        queue.bytes -= cost;
        self.bytes -= cost;
        match queue.messages.front() {
            Some(&(number, _)) => {
                self.oldest.insert((number, slot));
            }
            None => {
                self.queues.remove(&slot);
            }
        }
        Some(message)
    }
}

/// Memory that a waiting message holds: itself, and its bytes.
fn cost(message: &Message) -> usize {
    size_of::<Message>() + if let Body::Block { block, .. } = &message.body { block.len() } else { 0 }
}

/// Moves the bytes of a message to memory of its own: a neighbour that never answers shall keep neither a device's ring
/// nor a pool from working, and a short message in a long buffer shall cost what it is.
fn own(message: &mut Message) {
    if let Body::Block { block, range, .. } = &mut message.body
        && (block.is_lent() || block.len() > range.len())
    {
        let bytes: Box<[u8]> = block[range.start as usize..range.end as usize].into();
        *range = 0..range.end - range.start;
        *block = Block::from_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scoutline_ring::Pool;

    use super::*;
    use crate::testing;

    fn message(number: u32, len: usize) -> Message {
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.resize(len.max(4), 0);
        testing::block(&bytes)
    }

    fn number_of(message: &Message) -> u32 {
        u32::from_le_bytes(message.bytes()[..4].try_into().unwrap())
    }

    fn numbers(messages: &[Message]) -> Vec<u32> {
        messages.iter().map(number_of).collect()
    }

    #[test]
    fn the_longest_datagram_waits_whole() {
        let mut waiting = Waiting::default();
        // RFC 791: 65,515 bytes of payload, in pieces of 1,480.
        for piece in 0..45 {
            assert!(waiting.push(0, message(piece, 1480)).is_empty());
        }
        assert_eq!(numbers(&waiting.take(0)), (0..45).collect::<Vec<_>>());
        assert_eq!(waiting.bytes(), 0);
    }

    #[test]
    fn the_oldest_goes_first() {
        let mut waiting = Waiting::default();
        let len = MAX_BYTES / 4 - size_of::<Message>();
        for number in 0..4 {
            assert!(waiting.push(0, message(number, len)).is_empty());
        }
        assert_eq!(numbers(&waiting.push(0, message(4, len))), [0]);
        assert_eq!(numbers(&waiting.push(0, message(5, 2 * len))), [1, 2]);
        assert_eq!(numbers(&waiting.take(0)), [3, 4, 5]);
        // One that is longer than all that may wait: alone (RFC 1122 §2.3.2.2: at least one).
        assert!(waiting.push(0, message(6, 2 * MAX_BYTES)).is_empty());
        assert_eq!(numbers(&waiting.push(0, message(7, 4))), [6]);
    }

    /// Many neighbours that never answer hold no more than the limit, and whoever asks last still waits.
    #[test]
    fn a_scan_holds_no_more_than_the_limit() {
        let mut waiting = Waiting::default();
        let mut displaced = 0;
        for slot in 0..4096 {
            displaced += waiting.push(slot, message(slot, 1480)).len();
            assert!(waiting.bytes() <= MAX_BYTES_OF_ALL);
        }
        assert!(displaced > 3000, "{displaced}");
        for piece in 0..45 {
            waiting.push(5000, message(piece, 1480));
        }
        assert_eq!(numbers(&waiting.take(5000)).len(), 45, "an honest datagram beside the scan");
        assert!(waiting.is_empty_at(0) && !waiting.is_empty_at(4095));
    }

    #[test]
    fn buffers_of_others_are_given_back() {
        let pool = Pool::new(2048, 4);
        let mut waiting = Waiting::default();
        for number in 0..4u32 {
            let mut block = pool.take().unwrap();
            block[100..104].copy_from_slice(&number.to_le_bytes());
            let body = Body::block(block, 100..160);
            assert!(waiting.push(number % 2, Message { body, ..Message::default() }).is_empty());
        }
        assert_eq!(pool.in_use(), 0);
        assert_eq!(waiting.bytes(), 4 * (size_of::<Message>() + 60));
        assert_eq!(numbers(&waiting.take(0)), [0, 2]);
    }

    proptest! {
        /// Against a list of all that waits.
        #[test]
        fn it_does_as_a_plain_list_does(operations in proptest::collection::vec((0u32..6, 0u32..4, 0usize..60_000), 0..200)) {
            let mut waiting = Waiting::default();
            let mut list: Vec<(u32, u32, usize)> = Vec::new();
            for (number, (operation, slot, len)) in (0..).zip(operations) {
                if operation == 0 {
                    let expected: Vec<u32> = list.iter().filter(|one| one.0 == slot).map(|one| one.1).collect();
                    prop_assert_eq!(numbers(&waiting.take(slot)), expected);
                    list.retain(|one| one.0 != slot);
                } else {
                    let new = message(number, len);
                    let cost = cost(&new);
                    let held = |list: &[(u32, u32, usize)], of: Option<u32>| -> usize {
                        list.iter().filter(|one| of.is_none_or(|slot| one.0 == slot)).map(|one| one.2).sum()
                    };
                    let mut gone = Vec::new();
                    while held(&list, Some(slot)) + cost > MAX_BYTES {
                        let Some(at) = list.iter().position(|one| one.0 == slot) else { break };
                        gone.push(list.remove(at).1);
                    }
                    while held(&list, None) + cost > MAX_BYTES_OF_ALL && !list.is_empty() {
                        gone.push(list.remove(0).1);
                    }
                    list.push((slot, number, cost));
                    prop_assert_eq!(numbers(&waiting.push(slot, new)), gone);
                }
                prop_assert_eq!(waiting.bytes(), list.iter().map(|one| one.2).sum::<usize>());
                for slot in 0..4 {
                    let first = list.iter().find(|one| one.0 == slot).map(|one| one.1);
                    prop_assert_eq!(waiting.is_empty_at(slot), first.is_none());
                    let said = waiting.first(slot).map(number_of);
                    prop_assert_eq!(said, first);
                }
                prop_assert_eq!(waiting.oldest.len(), waiting.queues.len());
            }
        }
    }
}
