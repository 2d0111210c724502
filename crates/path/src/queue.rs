//! The bounded input queue of a path. What would overflow is refused before any work is spent on it: early drop
//! (Scout §4.1, DESIGN.md §2).
//!
//! A message is 240 bytes, and there may be a million paths, nearly all of them with nothing to do. So an empty
//! queue holds no memory: when the last message has left, the memory goes to the engine's [`QueueMemory`], and the
//! next queue that gets a message takes it from there, warm and already grown.
// A queue without messages is to be one word, not four.
#![allow(clippy::box_collection, clippy::unnecessary_box_returns, clippy::vec_box)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::{Burst, Message};

/// Memory that empty queues left behind, for those that fill next. A handle: clones share it.
#[derive(Clone, Debug, Default)]
pub struct QueueMemory {
    spare: Rc<RefCell<Vec<Box<VecDeque<Message>>>>>,
}

impl QueueMemory {
    /// As many as are likely to empty and fill in turn; the rest is freed.
    const KEPT: usize = 64;
    /// Messages of the largest that is kept: 240 KiB.
    const KEPT_LEN: usize = 1_024;

    #[inline]
    fn take(&self) -> Box<VecDeque<Message>> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    #[inline]
    fn give(&self, memory: Box<VecDeque<Message>>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < QueueMemory::KEPT && memory.capacity() <= QueueMemory::KEPT_LEN {
            spare.push(memory);
        }
    }
}

/// A queue of messages, bounded in packets and in bytes of data.
///
/// Controls (notes from elsewhere, such as an ICMP error's) count as packets without bytes.
#[derive(Debug, Default)]
pub struct Queue {
    /// While there are any.
    messages: Option<Box<VecDeque<Message>>>,
    memory: QueueMemory,
    limit_packets: u32,
    limit_bytes: u64,
    bytes: u64,
}

impl Queue {
    /// An empty queue that takes at most so many packets, and so many bytes of data.
    pub fn new(limit_packets: u32, limit_bytes: u64, memory: QueueMemory) -> Queue {
        Queue { messages: None, memory, limit_packets, limit_bytes, bytes: 0 }
    }

    /// Puts a message at the end.
    ///
    /// # Errors
    /// The message itself when the queue is full.
    #[allow(clippy::result_large_err)] // a full queue gives the item back, and nothing is allocated for that
    #[inline]
    pub fn offer(&mut self, message: Message) -> Result<(), Message> {
        let bytes = message.body_len() as u64;
        // A single message larger than the limit passes an empty queue: it could never pass otherwise.
        let over_bytes = self.bytes + bytes > self.limit_bytes && !self.is_empty();
        if over_bytes || self.len() >= self.limit_packets as usize {
            return Err(message);
        }
        self.bytes += bytes;
        self.messages.get_or_insert_with(|| self.memory.take()).push_back(message);
        Ok(())
    }

    /// The oldest message.
    #[inline]
    pub fn take(&mut self) -> Option<Message> {
        let message = self.messages.as_mut()?.pop_front()?;
        self.bytes -= message.body_len() as u64;
        self.give_memory_back();
        Some(message)
    }

    /// The oldest message, which stays.
    #[inline]
    pub fn first(&self) -> Option<&Message> {
        self.messages.as_ref()?.front()
    }

    /// Moves up to `limit` of the oldest messages to the end of `burst`; says how many.
    pub fn take_burst(&mut self, limit: usize, burst: &mut Burst) -> usize {
        let Some(messages) = &mut self.messages else { return 0 };
        let count = limit.min(messages.len());
        let from = burst.len();
        // In one piece: a message is four cache lines, and each move of one costs.
        burst.extend(messages.drain(..count));
        self.bytes -= burst[from..].iter().map(|message| message.body_len() as u64).sum::<u64>();
        self.give_memory_back();
        count
    }

    #[inline]
    fn give_memory_back(&mut self) {
        if let Some(memory) = self.messages.take_if(|messages| messages.is_empty()) {
            self.memory.give(memory);
        }
    }

    /// How many of the oldest have at most so many bytes together.
    pub fn fitting(&self, bytes: u64) -> usize {
        let mut left = bytes;
        let mut fits = |message: &&Message| {
            let len = message.body_len() as u64;
            let fits = len <= left;
            left = left.saturating_sub(len);
            fits
        };
        self.messages.iter().flat_map(|messages| messages.iter()).take_while(|message| fits(message)).count()
    }

    /// Messages that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.messages.as_ref().map_or(0, |messages| messages.len())
    }

    /// True when none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of data that wait.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Packets that the queue takes.
    pub fn limit_packets(&self) -> u32 {
        self.limit_packets
    }

    /// Changes that. What is over a new limit stays; nothing more is let in.
    pub fn set_limit_packets(&mut self, limit: u32) {
        self.limit_packets = limit;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scoutline_ring::Block;

    use super::{Queue, QueueMemory};
    use crate::{Facts, Message};

    fn message(len: usize) -> Message {
        Message::received(Block::from_bytes(vec![0; len].into()), 0..len as u32, Facts::default())
    }

    #[test]
    fn gives_back_what_does_not_fit() {
        let mut queue = Queue::new(2, 100, QueueMemory::default());
        queue.offer(message(60)).unwrap();
        assert_eq!(queue.offer(message(41)).unwrap_err().body_len(), 41);
        queue.offer(message(40)).unwrap();
        assert_eq!(queue.offer(message(0)).unwrap_err().body_len(), 0);
        assert_eq!((queue.len(), queue.bytes()), (2, 100));
        assert_eq!(queue.take().unwrap().body_len(), 60);
        queue.take();
        queue.offer(message(500)).expect("an empty queue takes one message of any size");
    }

    #[test]
    fn empty_queues_share_their_memory() {
        let memory = QueueMemory::default();
        let mut queues = [(); 3].map(|()| Queue::new(500, 1 << 20, memory.clone()));
        for queue in &mut queues {
            (0..400).for_each(|_| queue.offer(message(1)).unwrap());
            while queue.take().is_some() {}
            assert!(queue.messages.is_none());
        }
        assert_eq!(memory.spare.borrow().len(), 1, "one after the other, they used the same");
        queues[0].offer(message(1)).unwrap();
        assert!(queues[0].messages.as_ref().unwrap().capacity() >= 400 && memory.spare.borrow().is_empty());
    }

    proptest! {
        #[test]
        fn keeps_order_and_limits(operations in prop::collection::vec((0u8..5, 0usize..50), 0..300)) {
            let mut queue = Queue::new(8, 120, QueueMemory::default());
            let mut oracle = std::collections::VecDeque::new();
            for (operation, len) in operations {
                match operation {
                    0..3 => {
                        let fits = oracle.len() < 8
                            && (oracle.is_empty() || oracle.iter().sum::<usize>() + len <= 120);
                        prop_assert_eq!(queue.offer(message(len)).is_ok(), fits);
                        if fits {
                            oracle.push_back(len);
                        }
                    }
                    3 => {
                        prop_assert_eq!(queue.take().map(|m| m.body_len()), oracle.pop_front());
                    }
                    _ => {
                        let mut burst = crate::Burst::new();
                        let count = queue.take_burst(len / 10, &mut burst);
                        let lengths: Vec<_> = burst.iter().map(Message::body_len).collect();
                        let expected: Vec<_> = oracle.drain(..oracle.len().min(len / 10)).collect();
                        prop_assert_eq!(count, expected.len());
                        prop_assert_eq!(lengths, expected);
                    }
                }
                prop_assert_eq!(queue.len(), oracle.len());
                prop_assert_eq!(queue.bytes(), oracle.iter().sum::<usize>() as u64);
            }
        }
    }
}
