//! A file that a program sends from: its pages, mapped, so that `sendfile` needs no copy of ours.
//!
//! Only the kernel reads the mapping (a gathering send). A file that shrank meanwhile makes that call fail with
//! EFAULT; if we touched the pages ourselves, it would be SIGBUS and the end of the daemon.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use scoutline_ring::Span;

/// The longest file that is mapped; longer ones are copied.
const MAX_LEN: i64 = 64 << 30;

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
    /// What the system said; EINVAL for what is no regular file or empty.
    pub fn new(file: BorrowedFd<'_>) -> Result<FileMap> {
        // SAFETY: `fstat` fills the structure that we give; zeros are valid for it.
        let stat = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(file.as_raw_fd(), &raw mut stat) < 0 {
                return Err(Error::last_os_error());
            }
            stat
        };
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG || stat.st_size <= 0 {
            return Err(Error::from_raw_os_error(libc::EINVAL));
        }
        if stat.st_size > MAX_LEN {
            return Err(Error::from_raw_os_error(libc::EFBIG));
        }
        let len = stat.st_size as usize;
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

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: our mapping, with the length it was made with; spans of it do not outlive their messages, which
        // hold the socket that holds us.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len) };
    }
}
