//! Where memory lies and when it is brought near: words to the processor and to the kernel that change no result.

use std::mem::MaybeUninit;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Has the cache lines of `value` brought in, without waiting for them.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for at in (0..size_of::<T>()).step_by(LINE) {
        prefetch_line(start.wrapping_add(at));
    }
}

#[inline(always)]
fn prefetch_line(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86-64; the instruction reads nothing as far as the program can see.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) at, options(nostack, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}

/// Asks the kernel to back memory that was not touched yet by huge pages (madvise(2), MADV_HUGEPAGE). A kernel that has none
/// refuses, and nothing is lost but speed.
pub fn prefer_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    const PAGE: usize = 4096;
    let len = size_of_val(memory);
    let start = memory.as_mut_ptr().cast::<u8>();
    // Pages that lie in it whole.
    let skip = start.align_offset(PAGE);
    if cfg!(miri) || skip.saturating_add(PAGE) > len {
        return;
    }
    // SAFETY: the range lies within memory that the caller has for itself, and the advice changes no byte of it.
    unsafe { libc::madvise(start.add(skip).cast(), (len - skip) & !(PAGE - 1), libc::MADV_HUGEPAGE) };
}

#[cfg(test)]
mod tests {
    use super::{prefer_huge_pages, prefetch};

    #[test]
    fn advice_changes_nothing() {
        // Miri gives no advice, and takes minutes for a million words.
        let many = if cfg!(miri) { 1 << 11 } else { 1 << 20 };
        for words in [0, 1, 600, many] {
            let mut memory: Vec<u64> = Vec::with_capacity(words);
            prefer_huge_pages(memory.spare_capacity_mut());
            memory.extend(0..words as u64);
            memory.iter().for_each(prefetch);
            prefer_huge_pages(memory.spare_capacity_mut());
            assert!(memory.iter().enumerate().all(|(at, word)| *word == at as u64));
        }
    }
}
