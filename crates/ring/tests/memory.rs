//! Blocks, pools and spans: memory is used while it is there and freed once. `cargo +nightly miri test` runs these.
#![allow(unsafe_code)] // lends memory; each block says why it holds

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;

use scoutline_ring::{Block, BlockOwner, MAX_SPANS, Pool, Span, Spans};

/// Lends one buffer, and notes what came back.
struct Lender {
    bytes: RefCell<Box<[u8]>>,
    returned: RefCell<Vec<u32>>,
}

impl BlockOwner for Lender {
    fn release(&self, tag: u32) {
        self.returned.borrow_mut().push(tag);
    }
}

#[test]
fn a_block_of_its_own_is_freed_once() {
    let mut block = Block::from_bytes(vec![1, 2, 3].into());
    block[1] = 9;
    assert_eq!(*block, [1, 9, 3]);
    assert!(!block.is_lent());
    assert!(Block::from_bytes(Box::new([])).is_empty());
}

#[test]
fn a_lent_block_returns_and_its_memory_stays() {
    let lender = Rc::new(Lender { bytes: RefCell::new(vec![0; 8].into()), returned: RefCell::default() });
    let memory = NonNull::from(&mut lender.bytes.borrow_mut()[..]).cast();
    // SAFETY: the buffer lives as long as `lender`, which the block holds; nobody touches it meanwhile.
    let mut block = unsafe { Block::lent(memory, 8, 5, lender.clone()) };
    block[7] = 1;
    assert!(block.is_lent());
    drop(block);
    assert_eq!(*lender.returned.borrow(), [5]);
    assert_eq!(lender.bytes.borrow()[7], 1);
}

#[test]
fn blocks_outlive_their_pool_in_any_order() {
    let pool = Pool::new(16, 3);
    let mut blocks: Vec<Block> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(blocks.len(), 3);
    blocks.swap_remove(0);
    let again = pool.take().expect("one came back");
    drop(pool);
    drop(blocks);
    assert_eq!(again.len(), 16);
}

#[test]
fn spans_copy_what_they_name() {
    let mut ring = *b"scoutline";
    let first = NonNull::from(&mut ring).cast::<u8>();
    // SAFETY: all that is asked for lies within the ring.
    let at = |from: usize, len: usize| Span { memory: unsafe { first.add(from) }, len };
    let spans: Spans = [at(5, 4), at(0, 0)].into();
    assert_eq!(spans.len(), 1, "empty ones are left out");
    let mut out = [0; 6];
    // SAFETY: the ring is there.
    unsafe { spans[0].copy_to(&mut out) };
    assert_eq!(&out, b"line\0\0");
    let mut many = Spans::default();
    let pushed = (0..=MAX_SPANS).filter(|_| many.push(at(0, 1))).count();
    assert_eq!((pushed, many.len()), (MAX_SPANS, MAX_SPANS));
}
