//! What a pointer and a length alone tell.

#[path = "../src/memory.rs"]
#[allow(dead_code)]
mod memory;

use std::ptr::without_provenance_mut as at;

use libc::iovec;
use memory::{check, has_hole, is_nowhere};

fn part(base: usize, len: usize) -> iovec {
    iovec { iov_base: at(base), iov_len: len }
}

#[test]
fn lengths_and_ends_are_checked_as_the_kernel_does() {
    assert_eq!(check(&[part(8192, isize::MAX as usize)]), Ok(()));
    assert_eq!(check(&[part(8192, 1), part(8192, isize::MAX as usize + 1)]), Err(libc::EINVAL));
    assert_eq!(check(&[part(usize::MAX - 8, 4)]), Err(libc::EFAULT));
    assert_eq!(check(&[part(usize::MAX - 8, 16)]), Err(libc::EFAULT));
}

#[test]
fn the_first_page_is_nobodys() {
    let behind = [part(8192, 1), part(8, 1)];
    assert!(has_hole(&behind, 2) && has_hole(&behind, usize::MAX));
    assert!(!has_hole(&behind, 1) && !has_hole(&behind, 0), "nobody goes there");
    assert!(!has_hole(&[part(8192, 1), part(0, 0)], usize::MAX));
    assert!(is_nowhere(at::<u8>(0)) && is_nowhere(at::<u8>(4095)) && !is_nowhere(at::<u8>(4096)));
}
