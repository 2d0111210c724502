//! Reading the filter of a group (IP_MSFILTER, MCAST_MSFILTER): the only options whose value is read first, and written
//! as far as it says itself, whatever the length is.

use super::{MAX_OPTION, On, Reply};
use crate::listener::Answer;
use crate::supervisor::Supervisor;
use crate::sys;

/// Of `linux/in.h`.
const IP_MSFILTER: i32 = 41;
const MCAST_MSFILTER: i32 = 48;
/// Bytes of `struct ip_msfilter` and `struct group_filter` without sources, and of each source.
const FORM_V4: (usize, usize) = (16, 4);
const FORM_ANY: (usize, usize) = (144, 128);

/// True for an option that [`Supervisor::filter`] reads.
pub(super) fn is_filter(level: i32, name: i32) -> bool {
    form(level, name).is_some()
}

fn form(level: i32, name: i32) -> Option<(usize, usize)> {
    match (level, name) {
        (libc::IPPROTO_IP, IP_MSFILTER) => Some(FORM_V4),
        (libc::IPPROTO_IP | libc::IPPROTO_IPV6, MCAST_MSFILTER) => Some(FORM_ANY),
        _ => None,
    }
}

impl Supervisor {
    /// `getsockopt` of a filter, for a program that says that its value has `room` bytes.
    pub(super) fn filter(&mut self, on: On<'_>, room: usize) -> Result<Reply, Reply> {
        let [_, level, name, at, len_at, _] = on.call.arguments;
        let (level, name) = (level as i32, name as i32);
        let (head, each) = form(level, name).ok_or_else(|| Reply::error(libc::ENOPROTOOPT))?;
        if room < head {
            return Err(Reply::error(libc::EINVAL));
        }
        let mut value = [0; MAX_OPTION];
        sys::read_memory(on.call.thread, at, &mut value[..head])?;
        // What is asked for must fit our room, not only the program's: the number stands last in the head.
        let count_at = head - 4;
        let count =
            u32::from_ne_bytes([value[head - 4], value[head - 3], value[head - 2], value[head - 1]]) as usize;
        let count = count.min((MAX_OPTION - head) / each);
        value[count_at..head].copy_from_slice(&(count as u32).to_ne_bytes());
        let socket = self.socket(on)?;
        let len = sys::option(&socket.inner, level, name, &mut value)?;
        sys::write_memory(on.call.thread, at, &value[..len])?;
        sys::write_memory(on.call.thread, len_at, &(len as u32).to_ne_bytes())?;
        Ok(Reply::Now(Answer::Value(0)))
    }
}
