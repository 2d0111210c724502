//! The program's allocator: mimalloc, asked in the way that wastes nothing.
//!
//! Its sizes are four to a power of two, and an object that has one of them fills its block: those of a connection have
//! (`ARCHITECTURE.md`, "What an idle connection costs"). But asked with an alignment, mimalloc adds `alignment - 1` bytes
//! to what is no power of two and aligns within that, whatever the alignment: 768 bytes of words took a block of 896, 160
//! one of 192, and the way there is the long one. Every block is aligned to 16 bytes as it is (of a word, to a word), and so
//! only who needs more asks so. The crate `mimalloc` always does.
#![allow(unsafe_code)] // an allocator is unsafe by its interface

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};

/// See the module.
pub(crate) struct Mimalloc;

/// What mimalloc aligns each block to that has as many bytes (`MI_MAX_ALIGN_SIZE`).
const ALIGNED: usize = 16;

/// A block of `size` bytes is aligned so by itself: it is a multiple of two words, or one word.
#[inline]
const fn is_aligned(size: usize, align: usize) -> bool {
    align <= ALIGNED && align <= size
}

// SAFETY: mimalloc's functions allocate and free as `GlobalAlloc` asks and do not unwind; that the alignment holds without
// being asked for is said at `is_aligned`, and tested below. A block may be freed and made larger by either kind.
unsafe impl GlobalAlloc for Mimalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: any size may be asked for, and an alignment that a layout has.
        unsafe {
            if is_aligned(size, align) { mi_malloc(size) } else { mi_malloc_aligned(size, align) }.cast()
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: as above.
        unsafe {
            if is_aligned(size, align) { mi_zalloc(size) } else { mi_zalloc_aligned(size, align) }.cast()
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the caller has it from here.
        unsafe { mi_free(block.cast()) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let align = layout.align();
        // SAFETY: the caller has it from here; one that stays where it is stays aligned.
        unsafe {
            if is_aligned(size, align) {
                mi_realloc(block.cast(), size)
            } else {
                mi_realloc_aligned(block.cast(), size, align)
            }
            .cast()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::{GlobalAlloc as _, Layout};

    use super::Mimalloc;

    unsafe extern "C" {
        fn mi_usable_size(block: *const u8) -> usize;
    }

    /// Of all sizes and alignments, many at a time, so that blocks lie everywhere in their pages.
    #[test]
    fn every_block_is_aligned_and_keeps_its_bytes() {
        for align in (0..13).map(|shift| 1 << shift) {
            for size in (1..200).chain((200..5000).step_by(37)).chain([10_000, 70_000, 600_000]) {
                let layout = Layout::from_size_align(size, align).expect("a power of two");
                let blocks: Vec<*mut u8> = (0..8)
                    .map(|number: u8| {
                        // SAFETY: the size is not zero; of the block only its own bytes are touched.
                        unsafe {
                            let block = Mimalloc.alloc_zeroed(layout);
                            assert!(block.addr().is_multiple_of(align), "{size} bytes aligned to {align}");
                            assert_eq!(block.add(size - 1).read(), 0);
                            block.write_bytes(number, size);
                            block
                        }
                    })
                    .collect();
                for (number, block) in (0..).zip(blocks) {
                    // SAFETY: it is from above, and there once; it is freed with the layout that it has then.
                    unsafe {
                        let block = Mimalloc.realloc(block, layout, 2 * size + 1);
                        assert!(
                            block.addr().is_multiple_of(align),
                            "{size} bytes, doubled, aligned to {align}"
                        );
                        assert_eq!([block.read(), block.add(size - 1).read()], [number; 2]);
                        let layout = Layout::from_size_align(2 * size + 1, align).expect("as above");
                        Mimalloc.dealloc(block, layout);
                    }
                }
            }
        }
    }

    /// What a connection consists of (`ARCHITECTURE.md`) fills its blocks.
    #[test]
    fn a_connections_objects_take_no_more_than_they_are() {
        for size in [32, 112, 160, 320, 384, 768] {
            let layout = Layout::from_size_align(size, 8).expect("a power of two");
            // SAFETY: the size is not zero; the block is from here, and freed once.
            unsafe {
                let block = Mimalloc.alloc(layout);
                assert_eq!(mi_usable_size(block), size);
                Mimalloc.dealloc(block, layout);
            }
        }
    }
}
