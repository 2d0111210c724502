//! Sockets that the program passes (SCM_RIGHTS), perhaps to one that we do not supervise.

use crate::listener::Call;
use crate::supervisor::Supervisor;
use crate::{sys, target};

/// `struct mmsghdr` and `struct cmsghdr`.
const MESSAGE: u64 = 64;
const HEAD: usize = 16;
/// Control data that is looked at: 253 descriptors (`SCM_MAX_FD`), each with a header of its own.
const MAX_CONTROL: u64 = 253 * 24;
/// Descriptors that are looked up for one call.
const MAX_LOOKUPS: usize = 1024;

impl Supervisor {
    /// A message leaves by a socket that is not ours: what it passes others will have as well.
    pub(crate) fn see_passed(&mut self, call: &Call) {
        let [_, at, count, ..] = call.arguments;
        let count = match call.number {
            libc::SYS_sendmsg => 1,
            libc::SYS_sendmmsg => count.min(libc::UIO_MAXIOV as u64),
            _ => return,
        };
        let mut lookups = 0..MAX_LOOKUPS;
        for message in 0..count {
            let control = control(call.thread, at.wrapping_add(message * MESSAGE)).unwrap_or_default();
            for (fd, _) in passed(&control).into_iter().zip(&mut lookups) {
                let inode = target::descriptor(call.thread, fd).map(|found| found.inode);
                if let Some(&id) = inode.and_then(|inode| self.by_inode.get(&inode)) {
                    self.share(id);
                }
            }
        }
    }
}

/// The control data of a message that a thread sends.
fn control(thread: u32, message: u64) -> std::io::Result<Vec<u8>> {
    let mut words = [0; 16];
    sys::read_memory(thread, message.wrapping_add(32), &mut words)?;
    let (at, len) = (word(&words[..8]), word(&words[8..]));
    let mut control = vec![0; if at == 0 { 0 } else { len.min(MAX_CONTROL) as usize }];
    if !control.is_empty() {
        sys::read_memory(thread, at, &mut control)?;
    }
    Ok(control)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// The descriptors in it (`cmsg(3)`).
fn passed(mut control: &[u8]) -> Vec<i32> {
    let mut found = Vec::new();
    while let Some((head, _)) = control.split_at_checked(HEAD) {
        let len = word(&head[..8]) as usize;
        let [level, kind] = [8, 12].map(|at| word(&head[at..at + 4]) as i32);
        let Some(data) = control.get(HEAD..len) else { break };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            found.extend(data.chunks_exact(4).map(|number| word(number) as i32));
        }
        control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(len: usize, level: i32, kind: i32) -> Vec<u8> {
        [&(len as u64).to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes()].concat()
    }

    #[test]
    fn descriptors_are_found_among_others_and_lengths_are_not_believed() {
        let rights = |numbers: &[i32]| {
            let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
            let mut bytes = [head(HEAD + data.len(), libc::SOL_SOCKET, libc::SCM_RIGHTS), data].concat();
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes
        };
        let other = [head(HEAD + 4, libc::IPPROTO_IP, libc::IP_TTL), vec![9; 8]].concat();
        assert_eq!(passed(&[rights(&[3, 4, 5]), other.clone(), rights(&[6])].concat()), [3, 4, 5, 6]);
        assert!(passed(&other).is_empty());
        for len in [0, 15, 25, usize::MAX] {
            assert!(passed(&[head(len, libc::SOL_SOCKET, libc::SCM_RIGHTS), vec![0; 8]].concat()).is_empty());
        }
    }
}
