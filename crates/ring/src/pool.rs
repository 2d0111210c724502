//! A pool of equal buffers, bounded, for packets that must leave a device ring and for those we make ourselves.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::{Block, BlockOwner};

/// Buffers of one size, made on demand up to a limit and used again last-in first-out (the warmest first).
pub struct Pool {
    inner: Rc<Inner>,
}

struct Inner {
    block_len: u32,
    limit: u32,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// Every buffer ever made; a block's tag is its index here. Never shrinks, so addresses stay valid.
    buffers: Vec<NonNull<[u8]>>,
    free: Vec<u32>,
}

impl Pool {
    /// A pool of at most `limit` buffers of `block_len` bytes.
    pub fn new(block_len: u32, limit: u32) -> Pool {
        Pool { inner: Rc::new(Inner { block_len, limit, state: RefCell::default() }) }
    }

    /// The same with so many buffers made and their pages there, so that who takes one of the first waits for no page.
    pub fn with_ready(block_len: u32, limit: u32, ready: u32) -> Pool {
        let pool = Pool::new(block_len, limit);
        let mut state = pool.inner.state.borrow_mut();
        // Not zeros: memory that comes as zeros is not touched.
        state.free = (0..ready.min(limit)).map_while(|_| pool.inner.make(&mut state, u8::MAX)).collect();
        drop(state);
        pool
    }

    /// A buffer (its content is whatever was there), or `None` when all are out.
    pub fn take(&self) -> Option<Block> {
        let mut state = self.inner.state.borrow_mut();
        let tag = state.free.pop().or_else(|| self.inner.make(&mut state, 0))?;
        let memory = state.buffers[tag as usize].cast();
        // SAFETY: the buffer was made with `block_len` initialised bytes, lives as long as `Inner`, and its tag
        // is not in `free`, so no other block refers to it.
        Some(unsafe { Block::lent(memory, self.inner.block_len, tag, self.inner.clone()) })
    }

    /// Bytes a buffer holds.
    pub fn block_len(&self) -> usize {
        self.inner.block_len as usize
    }

    /// Buffers that are out now.
    pub fn in_use(&self) -> usize {
        let state = self.inner.state.borrow();
        state.buffers.len() - state.free.len()
    }
}

impl Inner {
    /// One more buffer, if there may be.
    fn make(&self, state: &mut State, byte: u8) -> Option<u32> {
        let tag = u32::try_from(state.buffers.len()).ok().filter(|&made| made < self.limit)?;
        let fresh = vec![byte; self.block_len as usize].into_boxed_slice();
        state.buffers.push(NonNull::from(Box::leak(fresh)));
        Some(tag)
    }
}

impl BlockOwner for Inner {
    fn release(&self, tag: u32) {
        self.state.borrow_mut().free.push(tag);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Blocks hold an `Rc` to us, so none is out.
        for buffer in self.state.get_mut().buffers.drain(..) {
            // SAFETY: `take` leaked exactly this boxed slice.
            drop(unsafe { Box::from_raw(buffer.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;

    #[test]
    fn what_is_ready_counts_towards_the_limit() {
        let pool = Pool::with_ready(8, 3, 2);
        let blocks: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(blocks.iter().map(|block| block[7]).collect::<Vec<_>>(), [255, 255, 0]);
        assert_eq!(Pool::with_ready(8, 1, 2).take().map(|block| block.len()), Some(8));
    }

    #[test]
    fn lends_up_to_its_limit_and_takes_back() {
        let pool = Pool::new(64, 2);
        let mut first = pool.take().unwrap();
        let second = pool.take().unwrap();
        assert!(pool.take().is_none());
        first[0] = 7;
        drop(first);
        assert_eq!(pool.in_use(), 1);
        assert_eq!(pool.take().unwrap()[0], 7, "last in, first out");
        drop(pool);
        assert_eq!(second.len(), 64, "a block outlives its pool's handle");
    }
}
