//! The program seen from outside: its memory and its descriptors.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use crate::listener::Call;
use crate::sys;
use scoutline_abi::privilege;

/// Longest address that a program may give (`struct sockaddr_storage`).
pub(crate) const MAX_ADDRESS: u32 = 128;

/// More bytes than the files of `/proc` have that are read here.
const USUAL: usize = 4096;
/// No more of them are looked at for a socket.
const MOST_DESCENDANTS: usize = 1024;

/// What `/proc` says of a descriptor (`proc_pid_fdinfo(5)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// The file behind it.
    pub(crate) inode: u64,
    /// O_NONBLOCK is set.
    pub(crate) non_blocking: bool,
}

/// What `/proc` says of a thread in a file. The spare descriptors are for that, too.
fn ask(thread: u32, file: &str) -> io::Result<String> {
    let path = format!("/proc/{thread}/{file}");
    let mut opened = sys::with_spare(|| File::open(&path))?;
    // They have no size, and are read in small steps without a hint.
    let mut text = String::with_capacity(USUAL);
    opened.read_to_string(&mut text)?;
    Ok(text)
}

/// Such an answer says that there is nothing.
fn is_gone(error: &io::Error) -> bool {
    matches!(sys::errno(error), libc::ENOENT | libc::ESRCH)
}

/// Looks a descriptor of a thread up.
pub(crate) fn descriptor(thread: u32, fd: i32) -> Option<Descriptor> {
    parse(&ask(thread, &format!("fdinfo/{fd}")).ok()?)
}

/// Whether a thread's descriptor is this file, as far as that is told.
pub(crate) fn has(thread: u32, fd: i32, inode: u64) -> Option<bool> {
    match ask(thread, &format!("fdinfo/{fd}")) {
        Ok(text) => parse(&text).map(|found| found.inode == inode),
        Err(error) => is_gone(&error).then_some(false),
    }
}

fn parse(text: &str) -> Option<Descriptor> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = i32::from_str_radix(field("flags:")?, 8).ok()?;
    Some(Descriptor { inode: field("ino:")?.parse().ok()?, non_blocking: flags & libc::O_NONBLOCK != 0 })
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It sleeps in this call.
    InCall,
    /// It is on a processor, or would be: perhaps on the way to that sleep. Or nobody tells.
    Perhaps,
    /// It sleeps elsewhere, or has ended.
    Elsewhere,
}

/// Where the thread of a call is (`proc_pid_syscall(5)`).
pub(crate) fn place(call: &Call) -> Place {
    match ask(call.thread, "syscall") {
        Ok(text) => place_in(&text, call),
        Err(error) if is_gone(&error) => Place::Elsewhere,
        Err(_) => Place::Perhaps,
    }
}

fn place_in(text: &str, call: &Call) -> Place {
    if text.trim_end() == "running" {
        return Place::Perhaps;
    }
    let mut words = text.split_ascii_whitespace();
    let number = words.next().and_then(|word| word.parse().ok());
    let argument = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let arguments = words.take(call.arguments.len()).map(argument);
    if number == Some(call.number) && arguments.eq(call.arguments.map(Some)) {
        Place::InCall
    } else {
        Place::Elsewhere
    }
}

/// A thread and its signals (`proc_pid_status(5)`); of those bit n - 1 is number n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) process: u32,
    /// A debugger has it, which has this number; 0: none.
    pub(crate) tracer: u32,
    /// So many its process has.
    pub(crate) threads: u32,
    /// They wait for this thread; for any of its process.
    pub(crate) own: u64,
    pub(crate) shared: u64,
    /// They are to wait.
    pub(crate) blocked: u64,
    /// They have a handler.
    pub(crate) caught: u64,
}

impl Status {
    /// `None`: it is gone.
    pub(crate) fn of(thread: u32) -> Option<Status> {
        Status::parse(&ask(thread, "status").ok()?)
    }

    fn parse(text: &str) -> Option<Status> {
        let mut lines = text.lines();
        // In the order in which the kernel writes them.
        let mut field = |name: &str| lines.find_map(|line| line.strip_prefix(name)).map(str::trim);
        let [process, tracer, threads] =
            ["Tgid:", "TracerPid:", "Threads:"].map(|name| field(name)?.parse().ok());
        let [own, shared, blocked, caught] = ["SigPnd:", "ShdPnd:", "SigBlk:", "SigCgt:"]
            .map(|name| u64::from_str_radix(field(name)?, 16).ok());
        Some(Status {
            process: process?,
            tracer: tracer?,
            threads: threads?,
            own: own?,
            shared: shared?,
            blocked: blocked?,
            caught: caught?,
        })
    }
}

/// The state of a thread, as one letter (`proc_pid_stat(5)`), unless it is gone.
pub(crate) fn state(thread: u32) -> Option<char> {
    stat(&ask(thread, "stat").ok()?).map(|(state, _)| state)
}

/// It is there, and has not ended.
pub(crate) fn exists(thread: u32) -> bool {
    state(thread).is_some_and(|state| !['Z', 'X'].contains(&state))
}

/// It is gone, or on the way there (PF_EXITING, PF_DUMPCORE, PF_SIGNALED of `linux/sched.h`): in no call any more, though its
/// registers show one.
pub(crate) fn is_ending(thread: u32) -> bool {
    const ENDING: u32 = 0x4 | 0x200 | 0x400;
    match ask(thread, "stat") {
        Ok(text) => {
            stat(&text).is_some_and(|(state, flags)| flags & ENDING != 0 || ['Z', 'X'].contains(&state))
        }
        Err(error) => is_gone(&error),
    }
}

/// Its state and its flags.
fn stat(text: &str) -> Option<(char, u32)> {
    let mut words = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = words.next()?.chars().next()?;
    Some((state, words.nth(5)?.parse().ok()?))
}

/// Whether its descriptors can be looked at: those of an ordinary user's program that is not dumpable cannot, unless by root.
pub(crate) fn can_be_served(thread: u32) -> bool {
    let looked = sys::with_spare(|| std::fs::read_dir(format!("/proc/{thread}/fdinfo")));
    !looked.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// A duplicate of a thread's descriptor, if it still is the file that it was.
pub(crate) fn duplicate(thread: u32, fd: i32, inode: u64) -> io::Result<OwnedFd> {
    let taken = sys::with_spare(|| sys::take(&sys::pidfd(thread)?, fd))?;
    if sys::inode(&taken)? == inode { Ok(taken) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
}

/// The same by whatever number a process has it: as the number that it had may be another file's now.
pub(crate) fn find(process: u32, inode: u64) -> Option<OwnedFd> {
    let name = format!("socket:[{inode}]");
    let has_it = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == name.as_str())
    };
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    let found = entries.flatten().find(has_it)?;
    duplicate(process, found.file_name().to_str()?.parse().ok()?, inode).ok()
}

/// These processes' children, theirs, and so on, as far as the kernel tells (CONFIG_PROC_CHILDREN).
pub(crate) fn descendants(processes: &[u32]) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = processes.to_vec();
    while let Some(process) = next.pop() {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let children =
            threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        for child in children.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        {
            let Ok(child) = child.parse() else { continue };
            if found.len() < MOST_DESCENDANTS && !found.contains(&child) {
                found.push(child);
                next.push(child);
            }
        }
    }
    found
}

/// An address argument.
pub(crate) fn read_address(thread: u32, at: u64, len: u64) -> io::Result<Vec<u8>> {
    // Calls take the length as an int.
    let len = len as u32;
    if len > MAX_ADDRESS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut address = vec![0; len as usize];
    if len > 0 {
        sys::read_memory(thread, at, &mut address)?;
    }
    Ok(address)
}

/// A number of 32 bits.
pub(crate) fn read_u32(thread: u32, at: u64) -> io::Result<u32> {
    let mut bytes = [0; 4];
    sys::read_memory(thread, at, &mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// A result with a length that goes both ways: cut to the room that there is, told in full.
pub(crate) fn write_sized(thread: u32, at: u64, len_at: u64, value: &[u8]) -> io::Result<()> {
    let room = read_u32(thread, len_at)?;
    if room.cast_signed() < 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    sys::write_memory(thread, at, &value[..value.len().min(room as usize)])?;
    sys::write_memory(thread, len_at, &(value.len() as u32).to_ne_bytes())
}

/// Whether a thread may bind to the port of this address: low ones need CAP_NET_BIND_SERVICE (bind(2), EACCES), which its
/// supervisor may have when it has not.
pub(crate) fn may_have_port(thread: u32, address: &[u8]) -> bool {
    let Some(port) = address.get(2..4).map(|octets| u16::from_be_bytes([octets[0], octets[1]])) else {
        return true;
    };
    if port == 0 {
        return true;
    }
    let status = ask(thread, "status").unwrap_or_default();
    privilege::may_bind_all(privilege::effective(&status)) || port >= privilege::first_port()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn descriptors_are_read_as_the_kernel_writes_them() {
        let text = "pos:\t0\nflags:\t02004002\nmnt_id:\t10\nino:\t5123\n";
        assert_eq!(parse(text), Some(Descriptor { inode: 5123, non_blocking: true }));
        let text = "pos:\t0\nflags:\t02000002\nmnt_id:\t10\nino:\t7\n";
        assert_eq!(parse(text), Some(Descriptor { inode: 7, non_blocking: false }));
        assert_eq!(parse("pos:\t0\n"), None);
    }

    #[test]
    fn whether_a_number_is_a_file_is_known_unless_nobody_tells() {
        let pid = std::process::id();
        let (one, other) = sys::pair(libc::SOCK_STREAM).unwrap();
        let (inode, fd) = (sys::inode(&one).unwrap(), one.as_raw_fd());
        let there = |fd| has(pid, fd, inode);
        assert_eq!(
            [there(fd), there(other.as_raw_fd()), there(i32::MAX)],
            [Some(true), Some(false), Some(false)]
        );
        assert_eq!(has(i32::MAX as u32, fd, inode), Some(false), "the thread is gone");
    }

    #[test]
    fn a_thread_is_in_its_call_with_the_same_arguments_only() {
        let call = Call { id: 1, thread: 7, number: 45, arguments: [3, 0x7ff0, 16, 0, 0, 0] };
        let place = |text| place_in(text, &call);
        assert_eq!(place("45 0x3 0x7ff0 0x10 0x0 0x0 0x0 0x7ffe 0x7f00\n"), Place::InCall);
        assert_eq!(place("45 0x4 0x7ff0 0x10 0x0 0x0 0x0 0x7ffe 0x7f00\n"), Place::Elsewhere);
        assert_eq!(place("47 0x3 0x7ff0 0x10 0x0 0x0 0x0 0x7ffe 0x7f00\n"), Place::Elsewhere);
        assert_eq!(place("45 0x3 0x7ff0\n"), Place::Elsewhere);
        assert_eq!(place("-1 0x7ffe 0x7f00\n"), Place::Elsewhere);
        assert_eq!(place("running\n"), Place::Perhaps);
        assert_eq!(super::place(&Call { thread: i32::MAX as u32, ..call }), Place::Elsewhere);
    }

    #[test]
    fn a_stat_is_read_whatever_the_name() {
        assert_eq!(stat("7 (a) b) S 1 7 7 0 -1 4194560 120 0\n"), Some(('S', 4_194_560)));
        assert_eq!(stat("7 (a"), None);
        assert!(exists(std::process::id()) && !is_ending(std::process::id()));
        assert!(!exists(i32::MAX as u32) && is_ending(i32::MAX as u32));
        assert!(can_be_served(std::process::id()));
    }

    #[test]
    fn a_status_is_read_as_the_kernel_writes_it() {
        let text = "Name:\tx\nTgid:\t7\nPid:\t8\nTracerPid:\t9\nThreads:\t2\nSigPnd:\t0000000000000001\n\
                    ShdPnd:\t0000000000000010\nSigBlk:\t0000000000000100\nSigIgn:\t0\nSigCgt:\t0000000000001000\n";
        let found = Status::parse(text).unwrap();
        let Status { process, tracer, threads, own, shared, blocked, caught } = found;
        assert_eq!((process, tracer, threads), (7, 9, 2));
        assert_eq!([own, shared, blocked, caught], [1, 0x10, 0x100, 0x1000]);
        assert_eq!(Status::parse("Name:\tx\n"), None);
        assert_eq!(Status::of(i32::MAX as u32), None);
        assert_eq!(Status::of(std::process::id()).unwrap().process, std::process::id());
    }

    #[test]
    fn a_socket_is_found_by_whatever_number_it_has() {
        let pid = std::process::id();
        let (one, other) = sys::pair(libc::SOCK_STREAM).unwrap();
        let inode = sys::inode(&one).unwrap();
        let second = one.try_clone().unwrap();
        drop(one);
        let found = find(pid, inode).unwrap();
        sys::send(&found, b"x", 0).unwrap();
        assert_eq!(sys::receive(&other, &mut [0; 4], 0).unwrap(), 1);
        drop((second, found));
        assert!(find(pid, inode).is_none());
    }

    #[test]
    fn our_own_memory_is_read_and_written() {
        let pid = std::process::id();
        let value = 7u32;
        assert_eq!(read_u32(pid, &raw const value as u64).unwrap(), 7);
        assert!(read_u32(pid, 8).is_err());
        let (mut space, mut len) = ([0u8; 4], 4u32);
        write_sized(pid, &raw mut space as u64, &raw mut len as u64, b"abcdef").unwrap();
        assert_eq!((&space, len), (b"abcd", 6));
    }
}
