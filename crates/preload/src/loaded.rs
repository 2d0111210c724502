//! The program and its libraries, as the loader tells of them.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::slice;

use libc::{Elf64_Phdr, dl_phdr_info};

/// Calls `visit` with each object until it says so.
pub(crate) fn each(visit: &mut dyn FnMut(&dl_phdr_info) -> bool) {
    extern "C" fn one(info: *mut dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
        // SAFETY: the loader's structure, and what `each` gave.
        let (info, visit) = unsafe { (&*info, &mut **visit.cast::<&mut dyn FnMut(&dl_phdr_info) -> bool>()) };
        c_int::from(visit(info))
    }
    let mut visit = visit;
    // SAFETY: `one` gets the pointer during the call only.
    unsafe { libc::dl_iterate_phdr(Some(one), (&raw mut visit).cast()) };
}

pub(crate) fn headers(info: &dl_phdr_info) -> &[Elf64_Phdr] {
    if info.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the loader's own headers, which stay while it tells of them.
    unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
}

/// Where the loader has put what a header describes.
pub(crate) fn range(info: &dl_phdr_info, header: &Elf64_Phdr) -> Range<usize> {
    let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
    start..start.wrapping_add(header.p_memsz as usize)
}
