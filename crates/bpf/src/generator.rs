//! A sender that lives in the kernel: a program at XDP forges each frame from a template and sends it on, without a
//! buffer, a copy or a system call for each.
//!
//! ```text
//!   bpf(BPF_PROG_TEST_RUN, live frames) ─► program, again and again ─► not due yet ─► XDP_DROP: the frame comes again
//!                                                                   └► else: forge ─► redirect to the interface
//! ```
//! The kernel makes the frames once, from its page pool, and runs the program on them in a loop
//! (Documentation/bpf/bpf_prog_run.rst, Linux 5.18 and later). What is redirected to one end of a veth stands in the other's
//! ring as a frame, not as a socket buffer; so that end must have NAPI: a program of its own, or GRO switched on.
//!
//! What it is for: floods in experiments and tests. On one core some 8 million minimum-size frames a second reach a program
//! that drops them, where a packet socket brings 1.3 million (`sendmmsg`) and an AF_XDP socket 1.8 million there.
//!
//! The state that both sides see is one entry of a map that is mapped here: how many were sent, which only the program
//! writes, and when it began, which only we write, before it runs.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::flow::find;
use crate::instruction::{Condition, Instruction, Operand, Operation, Program, Width};
use crate::sys;
use crate::xdp::{self, XDP_DROP};

use Condition::{Above, Below, Equal};
use Operand::{K, R};
use Operation::{Add, And, Move, Multiply, ShiftRight, Subtract, Xor};
use Width::{Double, Half, Word};

/// Bytes of the mapped entry, and where in it the beginning stands.
const STATE_LEN: u32 = 16;
const BEGAN_AT: i16 = 8;
/// The least that can be mapped.
const MAPPED_LEN: usize = 4096;
/// A rate is so many frames in 2^30 ns: then no division is needed, and five minutes at ten million a second do not
/// overflow.
const RATE_SHIFT: i32 = 30;
/// Frames in one go: whoever else wants the core waits no longer than for these.
const BATCH: u32 = 32;
/// Bits of an address that are drawn: as many as a /15 leaves.
const HOST_BITS: u32 = 17;
/// The lowest port that is drawn.
const LOWEST_PORT: i32 = 1024;
/// Where things stand in a frame with an IPv4 header without options and a TCP header.
const IP_AT: usize = 14;
const IP_SUM_AT: usize = 24;
const SOURCE_AT: usize = 26;
const TCP_AT: usize = 34;
const SEQUENCE_AT: usize = 38;
const TCP_SUM_AT: usize = 50;
const TCP_END: usize = 54;

/// What it sends.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    /// Each of them, whole.
    pub template: &'a [u8],
    /// A TCP segment without IP options is given another source of this /15, port and sequence number each time, and the
    /// checksums that follow.
    pub forged_from: Option<Ipv4Addr>,
    /// A second, from [`Generator::begin`] on; what a delay has kept back is made up for. `None`: as many as can be.
    pub rate: Option<f64>,
}

/// Sends frames at one interface.
#[derive(Debug)]
pub struct Generator {
    program: OwnedFd,
    template: Vec<u8>,
    /// The program keeps the map.
    state: NonNull<AtomicU64>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is used by atomic operations only.
unsafe impl Send for Generator {}
// SAFETY: as above.
unsafe impl Sync for Generator {}

impl Generator {
    /// For the interface with index `ifindex` in the caller's network namespace, from which it must [run](Generator::run)
    /// too.
    ///
    /// # Errors
    /// As the kernel says.
    ///
    /// # Panics
    /// When the template is shorter than what is to be forged in it, or no longer than a link header.
    pub fn new(ifindex: u32, frames: &Frames<'_>) -> io::Result<Generator> {
        let least = if frames.forged_from.is_some() { TCP_END } else { IP_AT };
        assert!(frames.template.len() >= least, "a template of {} bytes", frames.template.len());
        let map = sys::shared_array(1, STATE_LEN)?;
        let program = xdp::load("scoutline_flood", &program(&map, ifindex, frames))?;
        let state = sys::map_shared(&map, MAPPED_LEN)?.cast();
        Ok(Generator { program, template: frames.template.to_vec(), state })
    }

    /// The [rate](Frames::rate) counts from this time on CLOCK_MONOTONIC.
    pub fn begin(&self, now_ns: u64) {
        self.word(1).store(now_ns, Ordering::Release);
    }

    /// Runs the program so many times: sends as many frames without a rate, and fewer with one. A signal ends it.
    ///
    /// # Errors
    /// As the kernel says: `InvalidInput` before Linux 5.18.
    pub fn run(&self, times: u32) -> io::Result<()> {
        sys::test_live(self.program.as_fd(), &self.template, times, BATCH)
    }

    /// Frames sent so far. That one was sent does not say that it arrived.
    pub fn sent(&self) -> u64 {
        self.word(0).load(Ordering::Acquire)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        const WORDS: usize = STATE_LEN as usize / size_of::<AtomicU64>();
        assert!(at < WORDS);
        // SAFETY: the entry stands at the beginning of the mapping, which lives as long as this; the program uses whole
        // words of it, too.
        unsafe { self.state.add(at).as_ref() }
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody refers into it.
        unsafe { libc::munmap(self.state.as_ptr().cast(), MAPPED_LEN) };
    }
}

fn program(state: &OwnedFd, ifindex: u32, frames: &Frames<'_>) -> Vec<Instruction> {
    let mut program = Program::default();
    let (send, skip) = (program.label(), program.label());
    program
        .load(Word, 6, 1, 0)
        .load(Word, 7, 1, 4)
        .double(Move, 2, R(6))
        .double(Add, 2, K(frames.template.len() as i32))
        .jump_if(2, Above, R(7), skip);
    find(&mut program, state, K(0)).jump_if(0, Equal, K(0), skip).double(Move, 8, R(0));
    if let Some(rate) = frames.rate {
        let per_window = (rate * f64::from(1 << RATE_SHIFT) / 1e9).clamp(1.0, f64::from(i32::MAX)) as i32;
        program
            .call(sys::BPF_FUNC_KTIME_GET_NS)
            .load(Double, 1, 8, BEGAN_AT)
            .double(Subtract, 0, R(1))
            .double(Multiply, 0, K(per_window))
            .double(ShiftRight, 0, K(RATE_SHIFT))
            .load(Double, 1, 8, 0)
            .jump_if(1, Below, R(0), send)
            .jump(skip)
            .place(send);
    }
    program.load(Double, 1, 8, 0).double(Add, 1, K(1)).store(Double, 8, 0, 1);
    if let Some(network) = frames.forged_from {
        forge(&mut program, frames.template, network);
    }
    program
        .word(Move, 1, K(ifindex as i32))
        .double(Move, 2, K(0))
        .call(sys::BPF_FUNC_REDIRECT)
        .exit()
        .place(skip)
        .word(Move, 0, K(XDP_DROP))
        .exit();
    program.assemble()
}

/// Draws what is another's in each frame. Sums are of halves as they stand in memory: what the order of the bytes is does
/// not matter to them (RFC 1071 §2 (B)).
fn forge(program: &mut Program, template: &[u8], network: Ipv4Addr) {
    let (of_header, of_segment) = sums_without(template);
    program
        .call(sys::BPF_FUNC_GET_PRANDOM_U32)
        .word(Move, 9, R(0))
        // The sequence number stays in r0.
        .call(sys::BPF_FUNC_GET_PRANDOM_U32)
        .word(Move, 1, R(9))
        .word(And, 1, K((1 << HOST_BITS) - 1))
        .word(Add, 1, K((network.to_bits() >> HOST_BITS << HOST_BITS) as i32))
        .network_word(1)
        .store(Word, 6, SOURCE_AT as i16, 1)
        .word(Move, 3, K(0));
    add_halves(program, 3, 1);
    program.word(Move, 2, R(3)).word(Add, 2, K(of_header as i32));
    finish(program, 2);
    program
        .store(Half, 6, IP_SUM_AT as i16, 2)
        .word(ShiftRight, 9, K(HOST_BITS as i32))
        .word(Add, 9, K(LOWEST_PORT))
        .network_half(9)
        .store(Half, 6, TCP_AT as i16, 9)
        .word(Add, 3, R(9))
        .store(Word, 6, SEQUENCE_AT as i16, 0);
    add_halves(program, 3, 0);
    program.word(Add, 3, K(of_segment as i32));
    finish(program, 3);
    program.store(Half, 6, TCP_SUM_AT as i16, 3);
}

/// `sum += upper half + lower half of word`; r4 is used.
fn add_halves(program: &mut Program, sum: u8, word: u8) {
    program
        .word(Move, 4, R(word))
        .word(ShiftRight, 4, K(16))
        .word(Add, sum, R(4))
        .word(Move, 4, R(word))
        .word(And, 4, K(0xffff))
        .word(Add, sum, R(4));
}

/// `sum` = the checksum that it makes; r4 is used.
fn finish(program: &mut Program, sum: u8) {
    for _ in 0..2 {
        program.word(Move, 4, R(sum)).word(ShiftRight, 4, K(16)).word(And, sum, K(0xffff)).word(
            Add,
            sum,
            R(4),
        );
    }
    program.word(Xor, sum, K(0xffff));
}

/// Sums of the IPv4 header, and of the segment with its pseudo-header, without checksums and what is drawn.
fn sums_without(template: &[u8]) -> (u32, u32) {
    let mut frame = template.to_vec();
    for drawn in [IP_SUM_AT..SOURCE_AT + 4, TCP_AT..TCP_AT + 2, SEQUENCE_AT..SEQUENCE_AT + 4] {
        frame[drawn].fill(0);
    }
    frame[TCP_SUM_AT..TCP_SUM_AT + 2].fill(0);
    let total_len = usize::from(u16::from_be_bytes([frame[IP_AT + 2], frame[IP_AT + 3]]));
    frame.truncate(IP_AT + total_len);
    let segment_len = (frame.len() - TCP_AT) as u16;
    if segment_len % 2 == 1 {
        frame.push(0);
    }
    let sum = |bytes: &[u8]| -> u32 {
        bytes.as_chunks::<2>().0.iter().map(|half| u32::from(u16::from_ne_bytes(*half))).sum()
    };
    let (header, segment) = frame[IP_AT..].split_at(TCP_AT - IP_AT);
    // The pseudo-header: addresses, protocol, length (RFC 9293 §3.1).
    let pseudo = sum(&header[12..]) + sum(&[0, header[9]]) + sum(&segment_len.to_be_bytes());
    (sum(header), sum(segment) + pseudo)
}

#[cfg(test)]
mod tests;
