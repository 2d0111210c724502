//! The system call and the two of its argument structures that we use (`include/uapi/linux/bpf.h`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::instruction::Instruction;

/// `enum bpf_cmd`.
const BPF_PROG_LOAD: libc::c_long = 5;
/// `enum bpf_cmd`.
const BPF_PROG_QUERY: libc::c_long = 16;
/// `enum bpf_cmd`.
const BPF_LINK_CREATE: libc::c_long = 28;
/// `enum bpf_prog_type`.
pub(crate) const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
/// `enum bpf_attach_type`, Linux 6.6 and later (commit e420bed02507).
pub(crate) const BPF_TCX_INGRESS: u32 = 46;
/// The same for what leaves.
pub(crate) const BPF_TCX_EGRESS: u32 = 47;
/// `bpf_get_prandom_u32` (`__BPF_FUNC_MAPPER`).
pub(crate) const BPF_FUNC_GET_PRANDOM_U32: i32 = 7;

/// `union bpf_attr` for `BPF_PROG_LOAD`, as far as Linux 4.17 knew it: a shorter structure means zeros behind.
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// `union bpf_attr` for `BPF_LINK_CREATE` with its `tcx` part (relative_fd, padding, expected_revision).
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative_fd: u32,
    padding: u32,
    expected_revision: u64,
}

/// `union bpf_attr` for `BPF_PROG_QUERY`.
#[repr(C)]
#[derive(Default)]
struct ProgQuery {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    count: u32,
    padding: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

/// Loads a program.
pub(crate) fn load(
    name: &str,
    prog_type: u32,
    expected_attach_type: u32,
    program: &[Instruction],
) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut prog_name = [0; 16];
    for (to, from) in prog_name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    let attr = ProgLoad {
        prog_type,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        prog_name,
        expected_attach_type,
        ..ProgLoad::default()
    };
    // SAFETY: `attr` is laid out as the command demands, and the memory that it points to (the instructions and
    // the licence) outlives the call.
    unsafe { bpf(BPF_PROG_LOAD, &attr) }
}

/// Attaches a loaded program to an interface; it stays attached as long as the returned descriptor is open.
pub(crate) fn link(program: BorrowedFd<'_>, ifindex: u32, attach_type: u32) -> io::Result<OwnedFd> {
    let attr = LinkCreate {
        prog_fd: program.as_raw_fd() as u32,
        target_ifindex: ifindex,
        attach_type,
        ..LinkCreate::default()
    };
    // SAFETY: `attr` is laid out as the command demands and holds no pointer.
    unsafe { bpf(BPF_LINK_CREATE, &attr) }
}

/// How many programs are attached to a hook of an interface.
pub(crate) fn attached(ifindex: u32, attach_type: u32) -> io::Result<u32> {
    let mut attr = ProgQuery { target_ifindex: ifindex, attach_type, ..ProgQuery::default() };
    let size = size_of::<ProgQuery>() as libc::c_long;
    // SAFETY: `attr` is laid out as the command demands, and is written to for `size` bytes at most; without a
    // buffer for ids the kernel fills in their number alone.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, &raw mut attr, size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(attr.count) }
}

/// # Safety
/// `T` must be laid out as the beginning of `union bpf_attr` for `command`, a command that returns a descriptor,
/// and its pointers must be valid.
unsafe fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<OwnedFd> {
    let size = size_of::<T>() as libc::c_long;
    // SAFETY: see above; the kernel reads `size` bytes from `attr`.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the command returned a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
