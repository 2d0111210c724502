//! The bounded input queue of a path. What would overflow is refused before any work is spent on it: early drop
//! (Scout §4.1, DESIGN.md §2).

use std::collections::VecDeque;

use crate::{Burst, Message};

/// A queue of messages, bounded in packets and in bytes. Empty it costs no heap memory of its own until the first
/// message; a queue that once was long gives its memory back when it has run empty.
///
/// Controls (notes from elsewhere, such as an ICMP error's) count as packets without bytes.
#[derive(Debug, Default)]
pub struct Queue {
    messages: VecDeque<Message>,
    limit_packets: u32,
    limit_bytes: u64,
    bytes: u64,
}

/// Room that an empty queue may keep: enough for a burst, and 100,000 idle paths hold little.
const KEPT_ROOM: usize = 16;

impl Queue {
    /// An empty queue that takes at most so many packets, and so many bytes of data.
    pub fn new(limit_packets: u32, limit_bytes: u64) -> Queue {
        Queue { messages: VecDeque::new(), limit_packets, limit_bytes, bytes: 0 }
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
        let over_bytes = self.bytes + bytes > self.limit_bytes && !self.messages.is_empty();
        if over_bytes || self.messages.len() >= self.limit_packets as usize {
            return Err(message);
        }
        self.bytes += bytes;
        self.messages.push_back(message);
        Ok(())
    }

    /// The oldest message.
    #[inline]
    pub fn take(&mut self) -> Option<Message> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.body_len() as u64;
        if self.messages.is_empty() && self.messages.capacity() > 4 * KEPT_ROOM {
            self.messages.shrink_to(KEPT_ROOM);
        }
        Some(message)
    }

    /// Moves up to `limit` of the oldest messages to the end of `burst`; says how many.
    pub fn take_burst(&mut self, limit: usize, burst: &mut Burst) -> usize {
        let before = burst.len();
        burst.extend(std::iter::from_fn(|| self.take()).take(limit));
        burst.len() - before
    }

    /// Messages that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// True when none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Bytes of data that wait.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Packets that the queue takes.
    pub fn limit_packets(&self) -> u32 {
        self.limit_packets
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scoutline_ring::Block;

    use super::Queue;
    use crate::{Facts, Message};

    fn message(len: usize) -> Message {
        Message::received(Block::from_bytes(vec![0; len].into()), 0..len as u32, Facts::default())
    }

    #[test]
    fn gives_back_what_does_not_fit() {
        let mut queue = Queue::new(2, 100);
        queue.offer(message(60)).unwrap();
        assert_eq!(queue.offer(message(41)).unwrap_err().body_len(), 41);
        queue.offer(message(40)).unwrap();
        assert_eq!(queue.offer(message(0)).unwrap_err().body_len(), 0);
        assert_eq!((queue.len(), queue.bytes()), (2, 100));
        assert_eq!(queue.take().unwrap().body_len(), 60);
        queue.take();
        queue.offer(message(500)).expect("an empty queue takes one message of any size");
    }

    proptest! {
        #[test]
        fn keeps_order_and_limits(operations in prop::collection::vec((any::<bool>(), 0usize..50), 0..300)) {
            let mut queue = Queue::new(8, 120);
            let mut oracle = std::collections::VecDeque::new();
            for (put, len) in operations {
                if put {
                    let fits = oracle.len() < 8
                        && (oracle.is_empty() || oracle.iter().sum::<usize>() + len <= 120);
                    prop_assert_eq!(queue.offer(message(len)).is_ok(), fits);
                    if fits {
                        oracle.push_back(len);
                    }
                } else {
                    prop_assert_eq!(queue.take().map(|m| m.body_len()), oracle.pop_front());
                }
                prop_assert_eq!(queue.len(), oracle.len());
                prop_assert_eq!(queue.bytes(), oracle.iter().sum::<usize>() as u64);
            }
        }
    }
}
