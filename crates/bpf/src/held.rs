//! Flows whose packets are dropped at the hook for a moment, because their path has no room: a table that the engine
//! writes without a system call, and the program reads. Of several engines each has a table of its own, and the program
//! looks at that of the engine to which it would give the packet: so each has one writer.
//!
//! ```text
//!   entry: | until: u64 | ports: u32 | protocol, version << 8: u32 | source: 16 bytes | destination: 16 bytes |
//!          | dropped: u64 | … |
//!   the flow's bucket is its only place: a later flow takes it from an earlier one, which only comes through again
//! ```
//! Who writes: we all but `dropped`, the program `dropped`. The flow is compared whole, so nobody is dropped for another.
//! We write: until = 0, the flow, until (Release); who reads in between, on another core, drops one packet too many at
//! worst. A flow comes by one queue, so one core counts; where it changes queues a count may be lost.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::flow::{
    BUCKETS, FOLD, NEXT_HEADER_AT, PORTS_AT, PROTOCOL_AT, SOURCE_AT, SOURCE6_AT, TABLE_AT, find, hash,
};
use crate::instruction::{Condition, Label, Operand, Operation, Program, Width};
use crate::sys;

use Condition::{Above, Equal, NotEqual};
use Operand::{K, R};
use Operation::{Add, Move, Subtract};
use Width::{Byte, Double, Word};

/// Bytes of an entry: a cache line.
const ENTRY_LEN: u32 = 64;
const LEN: usize = BUCKETS as usize * ENTRY_LEN as usize;
/// Words of an entry: the flow behind `until`, then the count.
const FLOW_WORDS: usize = 5;
const DROPPED_WORD: usize = 1 + FLOW_WORDS;
const DROPPED_AT: i16 = 8 * DROPPED_WORD as i16;
/// What is held longer than this is not held: clocks that do not agree (a time namespace) must stop nobody for good.
const LONGEST_NS: i32 = 1 << 27;
/// What flows that lost their place have yet to tell; what comes on top of it is counted for nobody.
const MOST_LEFT: usize = BUCKETS as usize;

/// The tables of one interface, which programs look at.
pub(crate) fn tables(engines: u32) -> io::Result<OwnedFd> {
    sys::shared_array(BUCKETS * engines, ENTRY_LEN)
}

/// The table of one engine.
#[derive(Debug)]
pub struct Held {
    /// It keeps the array, too.
    memory: NonNull<u8>,
    /// What each bucket's count is for, and how much of it was told.
    told: Vec<Told>,
    /// Buckets that may have something to tell.
    used: Vec<u32>,
    /// Owners that lost their place, and what was dropped for them.
    left: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    owner: u64,
    count: u64,
    /// It is among the used ones.
    used: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is used by atomic operations only.
unsafe impl Send for Held {}

impl Held {
    /// That of this engine among the [tables].
    pub(crate) fn of_engine(map: &OwnedFd, engine: u32) -> io::Result<Held> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let at = LEN as i64 * i64::from(engine);
        // SAFETY: a fresh mapping of an array that was made to be mapped; the kernel refuses what lies beyond it.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, kind, map.as_raw_fd(), at) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).expect("mmap gives no null pointer");
        let told = vec![Told::default(); BUCKETS as usize];
        Ok(Held { memory, told, used: Vec::new(), left: Vec::new() })
    }

    fn entry(&self, bucket: u32) -> &[AtomicU64] {
        assert!(bucket < BUCKETS);
        // SAFETY: buckets lie inside the mapping, aligned to 64 bytes; the program uses the words whenever it likes.
        unsafe {
            std::slice::from_raw_parts(
                self.memory.add((bucket * ENTRY_LEN) as usize).cast::<AtomicU64>().as_ptr(),
                DROPPED_WORD + 1,
            )
        }
    }

    /// Until then (CLOCK_MONOTONIC, 130 ms at most) packets of the same flow as this frame are dropped, if they are not
    /// important and [`Rules::hold`](crate::Rules::hold) is set, and counted for `owner`. False: it has no flow. Costs no
    /// system call.
    pub fn hold(&mut self, frame: &[u8], until_ns: u64, owner: u64) -> bool {
        let Some((bucket, flow)) = flow_of(frame) else { return false };
        let told = self.told[bucket as usize];
        // The owner before has what was dropped for it since it was last told, also after its flow's end.
        if told.owner != owner {
            let dropped = self.entry(bucket)[DROPPED_WORD].load(Ordering::Relaxed);
            if dropped > told.count && self.left.len() < MOST_LEFT {
                self.left.push((told.owner, dropped - told.count));
            }
            self.told[bucket as usize].count = dropped;
        }
        if !told.used {
            self.used.push(bucket);
        }
        let told = &mut self.told[bucket as usize];
        (told.owner, told.used) = (owner, true);
        let words = self.entry(bucket);
        let parts = &words[1..DROPPED_WORD];
        if !parts.iter().zip(flow).all(|(word, part)| word.load(Ordering::Relaxed) == part) {
            words[0].store(0, Ordering::Release);
            for (word, part) in parts.iter().zip(flow) {
                word.store(part, Ordering::Release);
            }
        }
        words[0].store(until_ns, Ordering::Release);
        true
    }

    /// Tells how many packets of held flows were dropped for each owner since it was last told. Costs no system
    /// call.
    pub fn tell(&mut self, now_ns: u64, mut each: impl FnMut(u64, u64)) {
        for (owner, dropped) in self.left.drain(..) {
            each(owner, dropped);
        }
        let mut used = std::mem::take(&mut self.used);
        used.retain(|&bucket| {
            let words = self.entry(bucket);
            let (until, dropped) =
                (words[0].load(Ordering::Relaxed), words[DROPPED_WORD].load(Ordering::Relaxed));
            let told = &mut self.told[bucket as usize];
            if dropped > told.count {
                each(told.owner, dropped - told.count);
            }
            // What is on its way through the program at the end is told to the same owner, when the bucket is used again.
            told.used = dropped > told.count || until >= now_ns;
            told.count = dropped;
            told.used
        });
        self.used = used;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody refers into it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), LEN) };
    }
}

/// In the program: to `drop` if the packet, which is sorted and of that version, is of a flow that is held. Uses r8.
pub(crate) fn check(map: &OwnedFd, program: &mut Program, v6: bool, drop: Label) {
    let go_on = program.label();
    program.load(Word, 2, 10, TABLE_AT).word(Add, 2, R(9));
    find(program, map, R(2))
        .jump_if(0, Equal, K(0), go_on)
        .load(Double, 1, 0, 0)
        .jump_if(1, Equal, K(0), go_on)
        .double(Move, 8, R(0))
        .load(Word, 1, 8, 8)
        .load(Word, 2, 10, PORTS_AT)
        .jump_if(1, NotEqual, R(2), go_on)
        .load(Word, 1, 8, 12)
        .load(Byte, 2, 6, if v6 { NEXT_HEADER_AT } else { PROTOCOL_AT })
        .double(Add, 2, K(if v6 { 0x600 } else { 0x400 }))
        .jump_if(1, NotEqual, R(2), go_on);
    let (from, words) = if v6 { (SOURCE6_AT, 4) } else { (SOURCE_AT, 1) };
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
        // Of what is over already nothing is left but a number beyond all limits.
        .double(Subtract, 1, R(0))
        .jump_if(1, Above, K(LONGEST_NS), go_on)
        .load(Double, 1, 8, DROPPED_AT)
        .double(Add, 1, K(1))
        .store(Double, 8, DROPPED_AT, 1)
        .jump(drop)
        .place(go_on);
}

/// The bucket and the flow of a frame, as [`crate::flow::sort`] finds them.
fn flow_of(frame: &[u8]) -> Option<(u32, [u64; FLOW_WORDS])> {
    let word = |at: usize| Some(u32::from_ne_bytes(frame.get(at..at + 4)?.try_into().ok()?));
    frame.get(..34)?;
    let (source, ports, kind) = match frame[12..14] {
        [0x08, 0x00] => {
            let transport = 14 + 4 * (frame[14] as usize & 15);
            // Only the first fragment has ports.
            let offset = u16::from_be_bytes([frame[20], frame[21]]) & 0x1fff;
            let ports = if offset == 0 { word(transport).unwrap_or(0) } else { 0 };
            (word(26)?, ports, 0x400 | u32::from(frame[23]))
        }
        [0x86, 0xdd] => {
            frame.get(..54)?;
            let mut source = 0_u32;
            for at in [22, 26, 30, 34] {
                source = source.wrapping_mul(FOLD) ^ word(at)?;
            }
            let ports = if matches!(frame[20], 6 | 17) { word(54).unwrap_or(0) } else { 0 };
            (source, ports, 0x600 | u32::from(frame[20]))
        }
        _ => return None,
    };
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
    Some((hash(source, ports) & (BUCKETS - 1), flow))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is dropped after the last look at a bucket is not the next owner's.
    #[test]
    fn each_owner_is_told_its_own() {
        let mut held = match tables(2).and_then(|tables| Held::of_engine(&tables, 1)) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                eprintln!("not run: no permission to make eBPF maps");
                return;
            }
            made => made.unwrap(),
        };
        let mut frame = [0; 60];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        let (bucket, _) = flow_of(&frame).unwrap();
        // As the program counts.
        let drop_one = |held: &Held| held.entry(bucket)[DROPPED_WORD].fetch_add(1, Ordering::Relaxed);
        let told = |held: &mut Held, now| {
            let mut told = Vec::new();
            held.tell(now, |owner, dropped| told.push((owner, dropped)));
            told
        };
        assert!(held.hold(&frame, 10, 1));
        drop_one(&held);
        assert_eq!(told(&mut held, 20), [(1, 1)]);
        assert_eq!(told(&mut held, 30), [], "it is over");
        drop_one(&held);
        assert!(held.hold(&frame, 50, 2));
        drop_one(&held);
        drop_one(&held);
        assert_eq!(told(&mut held, 40), [(1, 1), (2, 2)]);
        assert_eq!(told(&mut held, 60), []);
        drop_one(&held);
        assert!(held.hold(&frame, 80, 2));
        assert_eq!(told(&mut held, 70), [(2, 1)], "late, but told");
    }
}
