//! Flows whose packets are dropped at the hook for a moment, because their path has no room: a table that the engine
//! writes without a system call, and the program reads.
//!
//! ```text
//!   entry: | until: u64 | ports: u32 | protocol, version << 8: u32 | source: 16 bytes | destination: 16 bytes | … |
//!   the flow's bucket is its only place: a later flow takes it from an earlier one, which only comes through again
//! ```
//! The flow is compared whole, so nobody is dropped for another. We write: until = 0, the flow, until (Release); who
//! reads in between, on another core, drops one packet too many at worst.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::flow::{BUCKETS, find_in};
use crate::instruction::{Condition, Label, Operand, Operation, Program, Width};
use crate::sys;

use Condition::{Below, Equal, NotEqual};
use Operand::{K, R};
use Operation::{Add, Move, Subtract};
use Width::{Byte, Double, Word};

/// Bytes of an entry: a cache line.
const ENTRY_LEN: u32 = 64;
const LEN: usize = BUCKETS as usize * ENTRY_LEN as usize;
/// What is held longer than this is not held: clocks that do not agree (a time namespace) must stop nobody for good.
const LONGEST_NS: i32 = 1 << 27;
/// Where the program keeps the ports.
const PORTS_AT: i16 = -16;

/// The table of one interface.
#[derive(Debug)]
pub(crate) struct Held {
    map: OwnedFd,
    memory: NonNull<u8>,
}

impl Held {
    pub(crate) fn new() -> io::Result<Held> {
        let map = sys::shared_array(BUCKETS, ENTRY_LEN)?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a fresh mapping of an array that was made to be mapped, as long as its entries together.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, kind, map.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).expect("mmap gives no null pointer");
        Ok(Held { map, memory })
    }

    /// Until then (CLOCK_MONOTONIC) packets of the same flow as this frame are dropped; false: it has no flow.
    pub(crate) fn hold(&self, frame: &[u8], until_ns: u64) -> bool {
        let Some((bucket, flow)) = flow_of(frame) else { return false };
        // SAFETY: buckets lie inside the mapping, aligned to 64 bytes; the program reads the words whenever it likes.
        let words = unsafe {
            std::slice::from_raw_parts(
                self.memory.add((bucket * ENTRY_LEN) as usize).cast::<AtomicU64>().as_ptr(),
                1 + FLOW_WORDS,
            )
        };
        let same = words[1..].iter().zip(flow).all(|(word, part)| word.load(Ordering::Relaxed) == part);
        if !same {
            words[0].store(0, Ordering::Release);
            for (word, part) in words[1..].iter().zip(flow) {
                word.store(part, Ordering::Release);
            }
        }
        words[0].store(until_ns, Ordering::Release);
        true
    }

    /// In the program: to `drop` if the packet, which is sorted and of that version, is of a flow that is held. Uses r8.
    pub(crate) fn check(&self, program: &mut Program, v6: bool, drop: Label) {
        let go_on = program.label();
        program.store(Word, 10, PORTS_AT, 5);
        find_in(program, &self.map, R(9))
            .jump_if(0, Equal, K(0), go_on)
            .load(Double, 1, 0, 0)
            .jump_if(1, Equal, K(0), go_on)
            .double(Move, 8, R(0))
            .load(Word, 1, 8, 8)
            .load(Word, 2, 10, PORTS_AT)
            .jump_if(1, NotEqual, R(2), go_on)
            .load(Word, 1, 8, 12)
            .load(Byte, 2, 6, if v6 { 14 + 6 } else { 14 + 9 })
            .double(Add, 2, K(if v6 { 0x600 } else { 0x400 }))
            .jump_if(1, NotEqual, R(2), go_on);
        let (from, words) = if v6 { (14 + 8, 4) } else { (14 + 12, 1) };
        for word in 0..words {
            for (at, to) in [(16, from), (32, from + 4 * words)] {
                program.load(Word, 1, 8, at + 4 * word).load(Word, 2, 6, to + 4 * word).jump_if(
                    1,
                    NotEqual,
                    R(2),
                    go_on,
                );
            }
        }
        program
            .call(sys::BPF_FUNC_KTIME_GET_NS)
            .load(Double, 1, 8, 0)
            .double(Subtract, 1, R(0))
            .jump_if(1, Below, K(LONGEST_NS), drop)
            .place(go_on);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody refers into it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), LEN) };
    }
}

/// Words of an entry behind `until`.
const FLOW_WORDS: usize = 5;

/// The bucket and the flow of a frame, as [`crate::flow::sort`] finds them.
fn flow_of(frame: &[u8]) -> Option<(u32, [u64; FLOW_WORDS])> {
    let word = |at: usize| Some(u32::from_ne_bytes(frame.get(at..at + 4)?.try_into().ok()?));
    frame.get(..34)?;
    let (source, ports, kind) = match frame[12..14] {
        [0x08, 0x00] => {
            let transport = 14 + 4 * (frame[14] as usize & 15);
            let first = u16::from_be_bytes([frame[20], frame[21]]) & 0x1fff == 0;
            let ports = if first { word(transport).unwrap_or(0) } else { 0 };
            (word(26)?, ports, 0x400 | u32::from(frame[23]))
        }
        [0x86, 0xdd] => {
            frame.get(..58)?;
            let mut source = word(22)?;
            for at in [26, 30, 34] {
                source = source.wrapping_mul(0x0100_0193) ^ word(at)?;
            }
            let ports = if matches!(frame[20], 6 | 17) { word(54)? } else { 0 };
            (source, ports, 0x600 | u32::from(frame[20]))
        }
        _ => return None,
    };
    let mut hash = source.wrapping_mul(0x9e37_79b1) ^ ports;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 15;
    let mut bytes = [0; 8 * FLOW_WORDS];
    bytes[..4].copy_from_slice(&ports.to_ne_bytes());
    bytes[4..8].copy_from_slice(&kind.to_ne_bytes());
    if kind >> 8 == 4 {
        bytes[8..12].copy_from_slice(&frame[26..30]);
        bytes[24..28].copy_from_slice(&frame[30..34]);
    } else {
        bytes[8..40].copy_from_slice(&frame[22..54]);
    }
    let mut flow = [0; FLOW_WORDS];
    for (word, eight) in flow.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*eight);
    }
    Some((hash & (BUCKETS - 1), flow))
}
