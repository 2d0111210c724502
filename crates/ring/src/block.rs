//! A block: an owned handle to a piece of a DBuf (a packet ring's frame, a pool's buffer, a heap buffer).
//!
//! It is the memory half of a rich pointer: who holds the `Block` may read and write its bytes, and dropping it
//! returns them to their owner. Blocks do not leave their engine (`Rc`): nothing is locked.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

/// Whoever lends blocks takes them back here.
pub trait BlockOwner {
    /// The block lent under `tag` came back; its memory may be used again.
    fn release(&self, tag: u32);
}

/// An exclusively held piece of memory that returns to its owner when dropped.
pub struct Block {
    memory: NonNull<u8>,
    len: u32,
    tag: u32,
    /// `None`: the memory is a leaked `Box<[u8]>` that dropping frees.
    owner: Option<Rc<dyn BlockOwner>>,
}

impl Block {
    /// A block on memory that `owner` lends until [`BlockOwner::release`] is called with `tag`.
    ///
    /// # Safety
    /// `memory` points to `len` initialised bytes that stay mapped while `owner` lives and that nobody else
    /// reads or writes until `release(tag)`.
    #[inline]
    pub unsafe fn lent(memory: NonNull<u8>, len: u32, tag: u32, owner: Rc<dyn BlockOwner>) -> Block {
        Block { memory, len, tag, owner: Some(owner) }
    }

    /// A block of its own on the heap.
    ///
    /// # Panics
    /// When `bytes` is longer than 4 GiB.
    pub fn from_bytes(bytes: Box<[u8]>) -> Block {
        let len = u32::try_from(bytes.len()).expect("a block is below 4 GiB");
        let memory = NonNull::from(Box::leak(bytes)).cast();
        Block { memory, len, tag: 0, owner: None }
    }

    /// True when the memory belongs to a device ring or pool, whose supply is limited.
    pub fn is_lent(&self) -> bool {
        self.owner.is_some()
    }
}

impl Deref for Block {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `memory` holds `len` initialised bytes, exclusively ours until drop (see `lent`).
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Block {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len as usize) }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        if let Some(owner) = &self.owner {
            owner.release(self.tag);
        } else {
            let slice = std::ptr::slice_from_raw_parts_mut(self.memory.as_ptr(), self.len as usize);
            // SAFETY: `from_bytes` leaked exactly this boxed slice, and it is freed once.
            drop(unsafe { Box::from_raw(slice) });
        }
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} bytes{})", self.len, if self.owner.is_some() { ", lent" } else { "" })
    }
}
