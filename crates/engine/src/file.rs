//! A file that a program sends from: its pages, mapped, so that `sendfile` needs no copy of ours.
//!
//! Only the kernel reads the mapping (a gathering send). A file that shrank meanwhile makes that call fail with
//! EFAULT; if we touched the pages ourselves, it would be SIGBUS and the end of the daemon.
//!
//! Pages that are not in memory the kernel has to get while the engine waits. So only files of this machine's disks and
//! memory are taken: another file system (FUSE) may be served by the very program that sends, and never answer. Nor is
//! it asked what it is. Files of a container's own mounts that are on no block device are copied, too.

use std::fs;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use scoutline_ring::Span;

/// The longest file that is mapped; longer ones are copied.
const MAX_LEN: u64 = 64 << 30;

/// File systems without a block device of their own whose pages come from this machine's memory and disks all the same.
const LOCAL: [&str; 6] = ["tmpfs", "ramfs", "btrfs", "zfs", "bcachefs", "overlay"];

/// A mapped file.
pub struct FileMap {
    memory: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is read-only and only ever handed to the kernel; it may be unmapped by any thread.
unsafe impl Send for FileMap {}
// SAFETY: as above.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Maps the whole of a regular file.
    ///
    /// # Errors
    /// What the system said; EINVAL for what is no regular file or empty, EOPNOTSUPP for a file system that somebody
    /// else serves.
    pub fn new(file: BorrowedFd<'_>) -> Result<FileMap> {
        let facts = facts_of(file)?;
        if u32::from(facts.stx_mode) & libc::S_IFMT != libc::S_IFREG || facts.stx_size == 0 {
            return Err(Error::from_raw_os_error(libc::EINVAL));
        }
        if facts.stx_size > MAX_LEN {
            return Err(Error::from_raw_os_error(libc::EFBIG));
        }
        if facts.stx_dev_major == 0 && !is_mounted_as(file, &LOCAL) {
            return Err(Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let len = facts.stx_size as usize;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(FileMap { memory: NonNull::new(memory.cast()).expect("mmap gave an address"), len })
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// False: an empty file is not mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes `offset .. offset + len`; `None` beyond the file's length at the time of mapping.
    pub(crate) fn span(&self, offset: u64, len: usize) -> Option<Span> {
        let end = offset.checked_add(len as u64)?;
        if end > self.len as u64 {
            return None;
        }
        // SAFETY: within the mapping by the check above.
        Some(Span { memory: unsafe { self.memory.add(offset as usize) }, len })
    }
}

/// What is known of a file without asking its file system, which might never answer.
fn facts_of(file: BorrowedFd<'_>) -> Result<libc::statx> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the name is terminated, and `statx` fills the structure that we give; zeros are valid for it.
    unsafe {
        let mut facts: libc::statx = std::mem::zeroed();
        let mask = libc::STATX_TYPE | libc::STATX_SIZE;
        if libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, &raw mut facts) < 0 {
            return Err(Error::last_os_error());
        }
        Ok(facts)
    }
}

/// Whether a file lies where one of these file systems is mounted, as far as we see (proc_pid_mountinfo(5)): what is
/// mounted elsewhere anybody may have mounted.
fn is_mounted_as(file: BorrowedFd<'_>, kinds: &[&str]) -> bool {
    let fdinfo = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap_or_default();
    let mount = fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| {
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        line.split(' ').next() == mount && kind.is_some_and(|kind| kinds.contains(&kind))
    })
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: our mapping, with the length it was made with; spans of it do not outlive their messages, which
        // hold the socket that holds us.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::FileMap;

    #[test]
    fn files_that_somebody_else_serves_are_not_mapped() {
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(FileMap::new(own.as_fd()).is_ok());
        let errno = |file: &File| FileMap::new(file.as_fd()).err().and_then(|error| error.raw_os_error());
        // Regular, on no device and with a length, as one of FUSE would be.
        assert_eq!(errno(&File::open("/sys/kernel/notes").unwrap()), Some(libc::EOPNOTSUPP));
        assert_eq!(errno(&File::open("/proc/self/stat").unwrap()), Some(libc::EINVAL), "of no length");
    }
}
