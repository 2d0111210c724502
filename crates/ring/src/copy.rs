//! Bytes from here to there, at the speed of memory.
//!
//! The C library copies what is longer than some 2 KiB by `rep movsb` where the processor says that this is fast (ERMS,
//! FSRM). On AMD's Zen 3 and 4 it is, but where the target lies 1 to 63 bytes behind the source within a page: there a
//! byte takes as long as twenty otherwise (measured here, glibc 2.36, 4 to 128 KiB: 2.7 GB/s instead of 35 to 90). Newer
//! C libraries avoid it (2.39), others do not. Of streams it is the rule: a ring's positions and the buffers of programs
//! are multiples of pages, up to a `malloc` header of 16 bytes. So there, and only there, a loop of our own copies; that
//! needs nothing of the processor but what every x86-64 has, and is as fast.

use std::ptr;

/// The C library makes no use of `rep movsb` for less than this.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT: usize = 2048;

/// Copies `len` bytes from `from` to `to`. Either may be memory that another process writes meanwhile: then what is
/// copied is whatever that writes.
///
/// # Safety
/// Both are `len` bytes of mapped memory, `to` may be written, and they do not overlap.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= SHORT && lies_badly(from, to) {
        // SAFETY: as the caller vouches, and it is long enough.
        return unsafe { copy_by_vectors(from, to, len) };
    }
    // SAFETY: as the caller vouches.
    unsafe { ptr::copy_nonoverlapping(from, to, len) };
}

/// The same with slices.
///
/// # Panics
/// When they are not of one length.
#[inline]
pub fn copy_slice(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "slices of one length");
    // SAFETY: a shared and an exclusive slice of one length.
    unsafe { copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
}

/// Within a page the target is a little behind the source, and on another cache line's place.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn lies_badly(from: *const u8, to: *const u8) -> bool {
    const PAGE: usize = 4096;
    const LINE: usize = 64;
    let ahead = to.addr().wrapping_sub(from.addr()) % PAGE;
    ahead.wrapping_sub(1) < LINE - 1
}

/// # Safety
/// As [`copy`], and `len` is 16 at least.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(never)]
unsafe fn copy_by_vectors(mut from: *const u8, mut to: *mut u8, mut len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_store_si128, _mm_storeu_si128};

    const VECTOR: usize = size_of::<__m128i>();
    // SAFETY: SSE2 is part of x86-64. Each access lies within what is left, whose length `len` is; after the first
    // vector, which may overlap the second, the target is aligned.
    unsafe {
        let step = VECTOR - to.addr() % VECTOR;
        _mm_storeu_si128(to.cast(), _mm_loadu_si128(from.cast()));
        (from, to, len) = (from.add(step), to.add(step), len - step);
        while len >= 4 * VECTOR {
            let [a, b, c, d] = [0, 1, 2, 3].map(|at| _mm_loadu_si128(from.add(at * VECTOR).cast()));
            _mm_store_si128(to.cast(), a);
            _mm_store_si128(to.add(VECTOR).cast(), b);
            _mm_store_si128(to.add(2 * VECTOR).cast(), c);
            _mm_store_si128(to.add(3 * VECTOR).cast(), d);
            (from, to, len) = (from.add(4 * VECTOR), to.add(4 * VECTOR), len - 4 * VECTOR);
        }
        ptr::copy_nonoverlapping(from, to, len);
    }
}

#[cfg(test)]
mod tests {
    use super::{copy, copy_slice, lies_badly};

    /// Two pages, with the source at the start of the first; every place of the target in the second.
    #[test]
    fn every_distance_and_length_gives_the_same_bytes() {
        let source: Vec<u8> = (0..8192u32).map(|at| ((at * 31) >> 3) as u8).collect();
        let lengths = [0, 1, 15, 16, 17, 2047, 2048, 2049, 2111, 2112, 4095, 4096, 8000];
        for ahead in [0, 1, 7, 15, 16, 17, 62, 63, 64, 65, 4032, 4095] {
            let mut target = vec![0xa5; 3 * 4096 + 8192];
            let place = (source.as_ptr().addr() + ahead).wrapping_sub(target.as_ptr().addr()) % 4096;
            for len in lengths {
                target.fill(0xa5);
                let to = &mut target[place..place + len];
                assert_eq!(lies_badly(source.as_ptr(), to.as_ptr()), (1..64).contains(&ahead), "{ahead}");
                // SAFETY: both have `len` bytes, and are vectors of their own.
                unsafe { copy(source.as_ptr(), to.as_mut_ptr(), len) };
                assert_eq!(to, &source[..len], "{len} bytes, {ahead} ahead");
                assert!(target[..place].iter().chain(&target[place + len..]).all(|byte| *byte == 0xa5));
            }
        }
    }

    #[test]
    #[should_panic(expected = "slices of one length")]
    fn slices_are_of_one_length() {
        copy_slice(&[1, 2, 3], &mut [0; 2]);
    }
}
