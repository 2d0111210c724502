//! `mlockall`: all of a program's memory stays in RAM but the region, whose gigabytes of addresses would each get a page, and
//! the table of descriptors.
//!
//! The kernel has no such "all but": so what is mapped now is locked piece by piece, and only what is mapped later by
//! MCL_FUTURE. The limit (RLIMIT_MEMLOCK) then counts the pieces, and not the addresses of the region.

use std::ffi::c_int;
use std::ops::Range;
use std::{fs, ptr};

use crate::{attach, cancel, real, table};

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn mlockall(flags: c_int) -> c_int {
    let known = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    let Some(region) = attach::region().filter(|_| flags & libc::MCL_CURRENT != 0 && flags & !known == 0)
    else {
        return real::mlockall(flags);
    };
    let maps = cancel::uncancelled(|| fs::read_to_string("/proc/self/maps"));
    let Ok(maps) = maps else { return real::mlockall(flags) };
    let ours = [region.addresses(), table::addresses()];
    for piece in maps.lines().filter_map(parse) {
        if ours.iter().any(|ours| ours.contains(&piece.addresses.start)) {
            continue;
        }
        let later = flags & libc::MCL_ONFAULT != 0 || !piece.is_accessible;
        if lock(&piece.addresses, later) < 0 {
            let errno = real::errno();
            if !is_gone(&piece.addresses, errno) {
                real::set_errno(errno);
                return -1;
            }
        }
    }
    if flags & libc::MCL_FUTURE == 0 { 0 } else { real::mlockall(flags & !libc::MCL_CURRENT) }
}

/// A mapping of the process.
struct Piece {
    addresses: Range<usize>,
    /// Else its pages cannot be brought in, which `mlockall` does not mind.
    is_accessible: bool,
}

/// A line of `/proc/self/maps`.
fn parse(line: &str) -> Option<Piece> {
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    // It belongs to the kernel.
    let is_own = !line.ends_with("[vsyscall]");
    is_own
        .then_some(Piece { addresses: number(start)?..number(end)?, is_accessible: !rest.starts_with("---") })
}

fn lock(addresses: &Range<usize>, later: bool) -> c_int {
    let flags = if later { libc::MLOCK_ONFAULT } else { 0 };
    // SAFETY: addresses are not followed.
    unsafe { libc::mlock2(ptr::without_provenance(addresses.start), addresses.len(), flags) }
}

/// What could not be locked for this reason was unmapped meanwhile, or its file has been cut short: then it is not the limit.
fn is_gone(addresses: &Range<usize>, errno: c_int) -> bool {
    let start = ptr::without_provenance_mut(addresses.start);
    // SAFETY: addresses are not followed; MS_ASYNC does nothing else.
    let is_unmapped = || unsafe { libc::msync(start, addresses.len(), libc::MS_ASYNC) } < 0;
    errno == libc::EAGAIN || errno == libc::ENOMEM && (lock(addresses, true) == 0 || is_unmapped())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let piece = parse("7f00-8000 rw-s 00000000 00:01 5 /memfd:scoutline (deleted)").unwrap();
        assert_eq!((piece.addresses, piece.is_accessible), (0x7f00..0x8000, true));
        assert!(!parse("1000-2000 ---p 00000000 00:00 0").unwrap().is_accessible);
        assert!(parse("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]").is_none());
        assert!(parse("nonsense").is_none());
    }
}
