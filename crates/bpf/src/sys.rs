//! The system call and those of its argument structures that we use (`include/uapi/linux/bpf.h`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::instruction::Instruction;

/// `enum bpf_cmd`.
const BPF_MAP_CREATE: libc::c_long = 0;
/// `enum bpf_cmd`.
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
/// `enum bpf_cmd`.
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
/// `enum bpf_cmd`.
const BPF_PROG_LOAD: libc::c_long = 5;
/// `enum bpf_cmd`.
const BPF_PROG_TEST_RUN: libc::c_long = 10;
/// `enum bpf_cmd`.
const BPF_PROG_QUERY: libc::c_long = 16;
/// `enum bpf_cmd`.
const BPF_LINK_CREATE: libc::c_long = 28;
/// `enum bpf_cmd`.
const BPF_LINK_UPDATE: libc::c_long = 29;
/// The same.
const BPF_LINK_DETACH: libc::c_long = 34;
/// `enum bpf_prog_type`.
pub(crate) const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
/// `enum bpf_attach_type`, Linux 6.6 and later (commit e420bed02507).
pub(crate) const BPF_TCX_INGRESS: u32 = 46;
/// The same for what leaves.
pub(crate) const BPF_TCX_EGRESS: u32 = 47;
/// `enum bpf_prog_type`.
pub(crate) const BPF_PROG_TYPE_XDP: u32 = 6;
/// `enum bpf_attach_type`, Linux 5.9 and later.
pub(crate) const BPF_XDP: u32 = 37;
/// `BPF_F_XDP_HAS_FRAGS`: the program takes packets of several buffers; Linux 5.18 and later.
pub(crate) const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
/// `enum bpf_map_type`.
const BPF_MAP_TYPE_ARRAY: u32 = 2;
/// The array can be mapped; Linux 5.5 and later.
const BPF_F_MMAPABLE: u32 = 1 << 10;
/// `enum bpf_map_type`.
const BPF_MAP_TYPE_PERCPU_ARRAY: u32 = 6;
/// `enum bpf_map_type`: AF_XDP sockets by number.
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
/// `BPF_F_TEST_XDP_LIVE_FRAMES`: what the program does with a frame is done; Linux 5.18 and later.
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
/// `bpf_map_lookup_elem` (`__BPF_FUNC_MAPPER`).
pub(crate) const BPF_FUNC_MAP_LOOKUP_ELEM: i32 = 1;
/// `bpf_ktime_get_ns` (`__BPF_FUNC_MAPPER`).
pub(crate) const BPF_FUNC_KTIME_GET_NS: i32 = 5;
/// `bpf_get_prandom_u32` (`__BPF_FUNC_MAPPER`).
pub(crate) const BPF_FUNC_GET_PRANDOM_U32: i32 = 7;
/// `bpf_redirect` (`__BPF_FUNC_MAPPER`).
pub(crate) const BPF_FUNC_REDIRECT: i32 = 23;
/// `bpf_redirect_map` (`__BPF_FUNC_MAPPER`).
pub(crate) const BPF_FUNC_REDIRECT_MAP: i32 = 51;

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

/// `union bpf_attr` for `BPF_MAP_CREATE`, as far as every kernel knows it.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// `union bpf_attr` for `BPF_MAP_LOOKUP_ELEM` and `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
#[derive(Default)]
struct MapElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
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

/// `union bpf_attr` for `BPF_LINK_UPDATE`.
#[repr(C)]
#[derive(Default)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// `union bpf_attr` for `BPF_LINK_DETACH`.
#[repr(C)]
struct LinkDetach {
    link_fd: u32,
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

/// `union bpf_attr` for `BPF_PROG_TEST_RUN`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct TestRun {
    prog_fd: u32,
    verdict: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

/// Loads a program.
pub(crate) fn load(
    name: &str,
    prog_type: u32,
    prog_flags: u32,
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
        prog_flags,
        ..ProgLoad::default()
    };
    // SAFETY: `attr` is laid out as the command demands, and the memory that it points to (the instructions and
    // the licence) outlives the call.
    unsafe { bpf(BPF_PROG_LOAD, &attr) }
}

/// Keeps a program where it is attached, for as long as this lives or the process does.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

impl Link {
    /// Puts another program in the place of the one that is there.
    pub(crate) fn exchange(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let attr = LinkUpdate {
            link_fd: self.0.as_raw_fd() as u32,
            new_prog_fd: program.as_raw_fd() as u32,
            ..LinkUpdate::default()
        };
        // SAFETY: `attr` is laid out as the command demands and holds no pointer.
        unsafe { command(BPF_LINK_UPDATE, &attr) }.map(drop)
    }
}

impl Drop for Link {
    /// To close it would not be enough: a child that has not yet become another program has the descriptor, too. Fails
    /// where the interface is gone already, or the kernel does not know the command (Linux 5.8 and before).
    fn drop(&mut self) {
        let attr = LinkDetach { link_fd: self.0.as_raw_fd() as u32 };
        // SAFETY: `attr` is laid out as the command demands and holds no pointer.
        let _ = unsafe { command(BPF_LINK_DETACH, &attr) };
    }
}

/// Attaches a loaded program to an interface.
pub(crate) fn link(program: BorrowedFd<'_>, ifindex: u32, attach_type: u32, flags: u32) -> io::Result<Link> {
    let attr = LinkCreate {
        prog_fd: program.as_raw_fd() as u32,
        target_ifindex: ifindex,
        attach_type,
        flags,
        ..LinkCreate::default()
    };
    // SAFETY: `attr` is laid out as the command demands and holds no pointer.
    unsafe { bpf(BPF_LINK_CREATE, &attr) }.map(Link)
}

/// An array of `entries` values of 16 bytes, one for each core.
pub(crate) fn per_core_array(entries: u32) -> io::Result<OwnedFd> {
    let attr = MapCreate {
        map_type: BPF_MAP_TYPE_PERCPU_ARRAY,
        key_size: 4,
        value_size: 16,
        max_entries: entries,
        ..MapCreate::default()
    };
    // SAFETY: `attr` is laid out as the command demands and holds no pointer.
    unsafe { bpf(BPF_MAP_CREATE, &attr) }
}

/// An array of `entries` values of `value_len` bytes, which begin as zeros; each takes a multiple of 8 bytes of memory.
pub(crate) fn array(entries: u32, value_len: u32) -> io::Result<OwnedFd> {
    let attr = MapCreate {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: value_len,
        max_entries: entries,
        ..MapCreate::default()
    };
    // SAFETY: `attr` is laid out as the command demands and holds no pointer.
    unsafe { bpf(BPF_MAP_CREATE, &attr) }
}

/// An array of `entries` values of `value_len` bytes that can be mapped.
pub(crate) fn shared_array(entries: u32, value_len: u32) -> io::Result<OwnedFd> {
    let attr = MapCreate {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: value_len,
        max_entries: entries,
        map_flags: BPF_F_MMAPABLE,
    };
    // SAFETY: `attr` is laid out as the command demands and holds no pointer.
    unsafe { bpf(BPF_MAP_CREATE, &attr) }
}

/// Maps the beginning of a [`shared_array`], to read and write.
pub(crate) fn map_shared(map: &OwnedFd, len: usize) -> io::Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping of an array that was made to be mapped.
    let memory =
        unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, map.as_raw_fd(), 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(memory.cast()).expect("mmap gives no null pointer"))
}

/// Runs a program at XDP on frames with these bytes, `repeat` times, and has its verdicts done.
pub(crate) fn test_live(
    program: BorrowedFd<'_>,
    frame: &[u8],
    repeat: u32,
    batch_size: u32,
) -> io::Result<()> {
    let flags = BPF_F_TEST_XDP_LIVE_FRAMES;
    test_run(program, frame, TestRun { repeat, flags, batch_size, ..TestRun::default() }).map(drop)
}

/// Runs a program at XDP on a frame, once: its verdict, and what it has made of the bytes, as many as `out` has room for.
#[cfg(test)]
pub(crate) fn test(program: BorrowedFd<'_>, frame: &[u8], out: &mut [u8]) -> io::Result<u32> {
    let (data_out, data_size_out) = (out.as_mut_ptr() as u64, out.len() as u32);
    // Without room nothing is written.
    let data_out = if out.is_empty() { 0 } else { data_out };
    test_run(program, frame, TestRun { repeat: 1, data_out, data_size_out, ..TestRun::default() })
}

fn test_run(program: BorrowedFd<'_>, frame: &[u8], run: TestRun) -> io::Result<u32> {
    let (prog_fd, data_size_in) = (program.as_raw_fd() as u32, frame.len() as u32);
    let mut attr = TestRun { prog_fd, data_size_in, data_in: frame.as_ptr() as u64, ..run };
    let size = size_of::<TestRun>() as libc::c_long;
    // SAFETY: `attr` is laid out as the command demands; the frame, and room for what becomes of it if there is any, outlive
    // the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attr, size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(attr.verdict) }
}

/// An array of `entries` AF_XDP sockets, empty so far.
pub(crate) fn socket_array(entries: u32) -> io::Result<OwnedFd> {
    let attr = MapCreate {
        map_type: BPF_MAP_TYPE_XSKMAP,
        key_size: 4,
        value_size: 4,
        max_entries: entries,
        ..MapCreate::default()
    };
    // SAFETY: `attr` is laid out as the command demands and holds no pointer.
    unsafe { bpf(BPF_MAP_CREATE, &attr) }
}

/// Puts a socket into a [`socket_array`].
pub(crate) fn set_socket(map: BorrowedFd<'_>, key: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd();
    let attr = MapElement {
        map_fd: map.as_raw_fd() as u32,
        key: std::ptr::from_ref(&key) as u64,
        value: std::ptr::from_ref(&value) as u64,
        ..MapElement::default()
    };
    let size = size_of::<MapElement>() as libc::c_long;
    // SAFETY: `attr` is laid out as the command demands; key and value are 4 bytes each and outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_UPDATE_ELEM, &raw const attr, size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The values of one entry of a [`per_core_array`]: `values` has room for all cores that there could be.
pub(crate) fn lookup(map: BorrowedFd<'_>, key: u32, values: &mut [[u64; 2]]) -> io::Result<()> {
    let attr = MapElement {
        map_fd: map.as_raw_fd() as u32,
        key: std::ptr::from_ref(&key) as u64,
        value: values.as_mut_ptr() as u64,
        ..MapElement::default()
    };
    let size = size_of::<MapElement>() as libc::c_long;
    // SAFETY: `attr` is laid out as the command demands; the key is 4 bytes, and the kernel writes 16 bytes for each
    // possible core, for which the caller has made room.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_ELEM, &raw const attr, size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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
unsafe fn bpf<T>(number: libc::c_long, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: see above.
    let fd = unsafe { command(number, attr) }?;
    // SAFETY: the command returned a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// # Safety
/// `T` must be laid out as the beginning of `union bpf_attr` for the command, which only reads it, and its pointers must
/// be valid.
unsafe fn command<T>(number: libc::c_long, attr: &T) -> io::Result<libc::c_long> {
    let size = size_of::<T>() as libc::c_long;
    // SAFETY: see above; the kernel reads `size` bytes from `attr`.
    let result = unsafe { libc::syscall(libc::SYS_bpf, number, std::ptr::from_ref(attr), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
