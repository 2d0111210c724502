//! Whole filters of a group: which sources a socket wants, set and read at once (IP_MSFILTER and MCAST_MSFILTER, the
//! option behind `setipv4sourcefilter`, `setsourcefilter` and their kin: RFC 3678 §4.1.3, §5.2).
//!
//! A call to the engine has room for one source, so a filter is named source by source and then holds at once. What
//! cannot be read, or is no filter of a group, the kernel's socket refuses in its own order of checks.

use std::ffi::{c_int, c_void};
use std::ptr;

use libc::{IPPROTO_IP, IPPROTO_IPV6, in_addr, sockaddr_storage, socklen_t};
use scoutline_abi::layout::{call_op, membership};
use scoutline_base::Address;

use super::{Which, by_address, by_number, interface_of, of, place};
use crate::address::{self, Given, Name};
use crate::options::value;
use crate::real::err;
use crate::slot::Socket;
use crate::table::{self, Entry};
use crate::{call, lock, memory, reach};

/// Of `linux/in.h`.
const IP_MSFILTER: c_int = 41;
const MCAST_MSFILTER: c_int = 48;
const MCAST_EXCLUDE: u32 = 0;
const MCAST_INCLUDE: u32 = 1;

/// `struct ip_msfilter` without its sources, of which each is an address.
#[derive(Clone, Copy)]
#[repr(C)]
struct HeadV4 {
    group: in_addr,
    interface: in_addr,
    mode: u32,
    count: u32,
}

/// `struct group_filter` without its sources, of which each is a `sockaddr_storage`.
#[derive(Clone, Copy)]
#[repr(C)]
struct HeadAny {
    interface: u32,
    group: sockaddr_storage,
    mode: u32,
    count: u32,
}

const _: () = assert!(size_of::<HeadV4>() == 16 && size_of::<HeadAny>() == 144);

/// Which of the two structures an option has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    V4,
    Any,
}

/// The head of a filter, of either structure.
struct Head {
    which: Which,
    group: Address,
    mode: u32,
    count: usize,
}

impl Form {
    fn of(level: c_int, name: c_int) -> Option<Form> {
        match (level, name) {
            (IPPROTO_IP, IP_MSFILTER) => Some(Form::V4),
            (IPPROTO_IP | IPPROTO_IPV6, MCAST_MSFILTER) => Some(Form::Any),
            _ => None,
        }
    }

    /// Bytes of a filter with so many sources.
    fn len(self, sources: usize) -> usize {
        match self {
            Form::V4 => size_of::<HeadV4>() + sources * size_of::<in_addr>(),
            Form::Any => size_of::<HeadAny>() + sources * size_of::<sockaddr_storage>(),
        }
    }

    /// `None`: the kernel knows what is wrong with it.
    fn head(self, level: c_int, from: *const c_void, len: socklen_t) -> Option<Head> {
        let head = match self {
            Form::V4 => {
                let given: HeadV4 = value(from, len).ok()?;
                let (mode, count) = (given.mode, given.count as usize);
                Head { which: by_address(given.interface), group: of(given.group), mode, count }
            }
            Form::Any => {
                let given: HeadAny = value(from, len).ok()?;
                let (mode, count) = (given.mode, given.count as usize);
                Head { which: by_number(given.interface), group: inet(&given.group)?, mode, count }
            }
        };
        (head.group.is_multicast() && head.group.is_v4() == (level == IPPROTO_IP)).then_some(head)
    }

    /// The source with this number; the program vouches for the bytes up to its end.
    fn source(self, from: *const c_void, index: usize) -> Option<Address> {
        // SAFETY: the caller has checked that the filter is long enough.
        let at = unsafe { from.byte_add(self.len(index)) };
        match self {
            Form::V4 => value::<in_addr>(at, size_of::<in_addr>() as socklen_t).ok().map(of),
            Form::Any => inet(&value(at, size_of::<sockaddr_storage>() as socklen_t).ok()?),
        }
    }
}

fn inet(from: &sockaddr_storage) -> Option<Address> {
    match address::parse(ptr::from_ref(from).cast(), size_of::<sockaddr_storage>() as socklen_t) {
        Given::Inet(name) => Some(name.address),
        _ => None,
    }
}

/// MEMBERSHIP with one of the operations on filters; `second` stands where a source does.
fn ask(socket: Socket, what: u64, interface: u32, group: Address, second: [u64; 2]) -> (i32, [u64; 4]) {
    let [a, b] = group.words();
    // SAFETY: no arguments.
    let thread = unsafe { libc::gettid() } as u64 & 0xff_ffff;
    let more = what | thread << 8 | u64::from(interface) << 32;
    call::call_with(call_op::MEMBERSHIP, socket.index, [a, b, second[0], second[1]], more)
}

/// `setsockopt` of a filter: `None` where it is something else, or the kernel's affair.
pub(crate) fn set(
    fd: c_int,
    level: c_int,
    name: c_int,
    from: *const c_void,
    len: socklen_t,
) -> Option<isize> {
    let form = Form::of(level, name).filter(|_| reach::serves_any())?;
    let head = form.head(level, from, len)?;
    let is_v4 = head.group.is_v4();
    let most = if is_v4 { membership::MOST_SOURCES_V4 } else { membership::MOST_SOURCES };
    if head.count > most || form.len(head.count) > len as usize {
        return None;
    }
    let commit = match head.mode {
        MCAST_INCLUDE => membership::FILTER_INCLUDES,
        MCAST_EXCLUDE => membership::FILTER_EXCLUDES,
        _ => return None,
    };
    let mut sources = [head.group.unspecified(); membership::MOST_SOURCES];
    for (index, to) in sources.iter_mut().enumerate().take(head.count) {
        *to = form.source(from, index)?;
        if to.is_v4() != is_v4 {
            return None;
        }
    }
    let (socket, interface) = place(fd, head.which, head.group)?;
    let leaves = head.mode == MCAST_INCLUDE && head.count == 0;
    if !is_v4 && interface == 0 && !leaves {
        return Some(err(libc::EINVAL)); // Linux's `ip6_mc_msfilter`: only to leave need it not be said
    }
    for tries in 0.. {
        let mut what = membership::FIRST_OF_FILTER;
        for source in &sources[..head.count] {
            let (result, _) = ask(socket, what, interface, head.group, source.words());
            if result < 0 {
                return Some(result as isize);
            }
            what = membership::NEXT_OF_FILTER;
        }
        let (result, _) = ask(socket, commit, interface, head.group, [0, head.count as u64]);
        if result != -libc::EAGAIN {
            return Some(result.min(0) as isize);
        }
        // Another thread or process of the program names sources just now.
        lock::back_off(tries);
    }
    None
}

/// `getsockopt` of a filter: `None` where it is something else, or the kernel's affair.
pub(crate) fn get(
    fd: c_int,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut socklen_t,
) -> Option<isize> {
    let form = Form::of(level, name).filter(|_| reach::serves_any() && !memory::is_nowhere(len))?;
    // SAFETY: the program vouches for its length.
    let room = unsafe { ptr::read_unaligned(len) };
    if room.cast_signed() < 0 {
        return None;
    }
    let head = form.head(level, to, room)?;
    let socket = match table::look(fd) {
        Entry::Socket(slot) => Some(Socket::at(slot)?),
        Entry::Candidate { .. } => None,
        _ => return None,
    };
    let interface = interface_of(head.which, head.group, socket.is_some())?;
    // Linux's `ip_mc_gsfget` and `ip6_mc_msfget`: the interface is to be said.
    let (Some(socket), false) = (socket, form == Form::Any && interface == 0) else {
        return Some(err(libc::EADDRNOTAVAIL));
    };
    let mut told = 0;
    let (said, copied) = loop {
        let (result, words) = ask(socket, membership::FILTER, interface, head.group, [0, told as u64]);
        if result < 0 {
            return Some(result as isize);
        }
        let said = result.cast_unsigned();
        let count = (said & (membership::EXCLUDES - 1)) as usize;
        if told >= count.min(head.count) {
            break (said, count.min(head.count));
        }
        // As on Linux the program has room for as many as it says, whatever `len` says.
        // SAFETY: the program vouches for them.
        unsafe { put_source(form, to, told, Address::from_words([words[0], words[1]])) };
        told += 1;
    };
    let mode = if said & membership::EXCLUDES == 0 { MCAST_INCLUDE } else { MCAST_EXCLUDE };
    let count = said & (membership::EXCLUDES - 1);
    let at = match form {
        Form::V4 => std::mem::offset_of!(HeadV4, mode),
        Form::Any => std::mem::offset_of!(HeadAny, mode),
    };
    // SAFETY: the program vouches for `room` bytes, of which the head was read, and for its length.
    unsafe {
        ptr::write_unaligned(to.byte_add(at).cast::<[u32; 2]>(), [mode, count]);
        ptr::write_unaligned(len, form.len(copied) as socklen_t);
    }
    Some(0)
}

/// # Safety
///
/// The program's memory reaches from `to` to the end of this source.
unsafe fn put_source(form: Form, to: *mut c_void, index: usize, source: Address) {
    // SAFETY: as the caller says.
    unsafe {
        let at = to.byte_add(form.len(index));
        let name = Name { address: source, port: 0, scope: 0 };
        match (form, source.as_v4()) {
            (Form::V4, v4) => {
                let s_addr = v4.map_or(0, |v4| v4.to_bits().to_be());
                ptr::write_unaligned(at.cast(), in_addr { s_addr });
            }
            (Form::Any, v4) => {
                ptr::write_bytes(at.cast::<u8>(), 0, size_of::<sockaddr_storage>());
                if v4.is_some() {
                    ptr::write_unaligned(at.cast(), address::sockaddr_v4(name));
                } else {
                    ptr::write_unaligned(at.cast(), address::sockaddr_v6(name));
                }
            }
        }
    }
}
