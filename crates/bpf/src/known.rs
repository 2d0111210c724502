//! Who is known while a flood is held back: a table that the engine writes without a system call, and programs read.
//!
//! ```text
//!   entry: | source: u32 | ports: u32 | as what: u32 | unused |
//!   the first 131,072 by a hash of the flow: connections that stand, and what is important among them
//!   behind them 65,536 by a hash of the source, ports 0: clients that have had a connection
//! ```
//! A connection is no attacker's: its address has answered. So a flood from drawn addresses takes nothing from it, and
//! nothing from a client that comes back. A place has one entry, and a later one takes it from an earlier, who is a
//! stranger again and no worse off than without the table. A source is its address, or one word made of IPv6's four: who
//! has the same is taken for it, and only passes. So does who forges the addresses and ports of a connection, by another
//! protocol even: within its limits, or without any where it is important, as for a class by source.
//!
//! Only we write, of several engines one at a time: as what = 0, the flow, as what (Release). Who reads in between, on another core, sees a stranger, or lets
//! one packet of the earlier flow pass as the later.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::flow::{FOLD, FROM_AT, KIND_AT, MIX, PORTS_AT, STANDING, TOTAL, find, hash};
use crate::instruction::{Condition, Label, Operand, Operation, Program, Width};
use crate::sys;

use Condition::{Equal, NotEqual};
use Operand::{K, R};
use Operation::{Add, And, Move, Multiply, ShiftRight};
use Width::Word;

/// Places for connections and for clients; powers of two.
const FLOWS: u32 = 1 << 17;
const CLIENTS: u32 = 1 << 16;
/// Bytes of an entry.
const ENTRY_LEN: u32 = 16;
const LEN: usize = (FLOWS + CLIENTS) as usize * ENTRY_LEN as usize;
/// Words of an entry, and the one that says as what.
const WORDS: usize = 3;
const AS_WHAT: usize = 2;

/// As what a flow is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownAs {
    /// A connection that stands.
    Standing = 1,
    /// One that is important, too.
    Important = 2,
}

/// The peer's end of a connection, and our port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub source: IpAddr,
    /// Its port.
    pub source_port: u16,
    /// Ours.
    pub local_port: u16,
}

impl Peer {
    /// Source and ports as programs have them in their registers.
    fn words(&self) -> (u32, u32) {
        let source = match self.source {
            IpAddr::V4(address) => u32::from_ne_bytes(address.octets()),
            IpAddr::V6(address) => {
                let octets = address.octets();
                let words = octets.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word));
                words.fold(0_u32, |folded, word| folded.wrapping_mul(FOLD) ^ word)
            }
        };
        let ([a, b], [c, d]) = (self.source_port.to_be_bytes(), self.local_port.to_be_bytes());
        (source, u32::from_ne_bytes([a, b, c, d]))
    }
}

/// The table of one interface: 3 MiB.
#[derive(Debug)]
pub struct Known {
    map: OwnedFd,
    memory: NonNull<u8>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is used by atomic operations only.
unsafe impl Send for Known {}
// SAFETY: as above.
unsafe impl Sync for Known {}

impl Known {
    /// Nobody is known.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn new() -> io::Result<Known> {
        let map = sys::shared_array(FLOWS + CLIENTS, ENTRY_LEN)?;
        let memory = sys::map_shared(&map, LEN)?;
        Ok(Known { map, memory })
    }

    fn entry(&self, place: u32) -> &[AtomicU32] {
        assert!(place < FLOWS + CLIENTS);
        // SAFETY: places lie inside the mapping, aligned to 16 bytes; programs only read them.
        unsafe {
            std::slice::from_raw_parts(
                self.memory.add((place * ENTRY_LEN) as usize).cast::<AtomicU32>().as_ptr(),
                WORDS,
            )
        }
    }

    fn write(&self, place: u32, (source, ports): (u32, u32), known: KnownAs) {
        let words = self.entry(place);
        let flow = [source, ports];
        if !words.iter().zip(flow).all(|(word, part)| word.load(Ordering::Relaxed) == part) {
            words[AS_WHAT].store(0, Ordering::Release);
            for (word, part) in words.iter().zip(flow) {
                word.store(part, Ordering::Release);
            }
        }
        words[AS_WHAT].store(known as u32, Ordering::Release);
    }

    /// A connection stands, or has become important or ordinary. Its peer is known for a client from now on.
    pub fn know(&self, peer: &Peer, known: KnownAs) {
        let (source, ports) = peer.words();
        self.write(hash(source, ports) & (FLOWS - 1), (source, ports), known);
        self.write(FLOWS + client_hash(source), (source, 0), KnownAs::Standing);
    }

    /// A connection has ended.
    pub fn forget(&self, peer: &Peer) {
        let (source, ports) = peer.words();
        let words = self.entry(hash(source, ports) & (FLOWS - 1));
        // Unless a later one has its place.
        if words[0].load(Ordering::Relaxed) == source && words[1].load(Ordering::Relaxed) == ports {
            words[AS_WHAT].store(0, Ordering::Release);
        }
    }

    /// In the program: to `important` if the packet, which is sorted and whose hash is in r9, is of a flow that is; one of
    /// a connection that stands is counted as such from now on.
    pub(crate) fn check(&self, program: &mut Program, important: Label) {
        let stranger = program.label();
        program.word(Move, 2, R(9)).word(And, 2, K(FLOWS as i32 - 1));
        find(program, &self.map, R(2));
        compare(program, stranger);
        program
            .load(Word, 1, 10, PORTS_AT)
            .load(Word, 2, 0, 4)
            .jump_if(1, NotEqual, R(2), stranger)
            .load(Word, 1, 0, 4 * AS_WHAT as i16)
            .jump_if(1, Equal, K(KnownAs::Important as i32), important)
            .jump_if(1, NotEqual, K(KnownAs::Standing as i32), stranger)
            .load(Word, 1, 10, KIND_AT)
            // A SYN on it counts as a SYN.
            .jump_if(1, NotEqual, K(TOTAL as i32), stranger)
            .word(Move, 1, K(STANDING as i32))
            .store(Word, 10, KIND_AT, 1)
            .place(stranger);
    }

    /// In the program: to `stranger` unless the packet is from a client.
    pub(crate) fn check_client(&self, program: &mut Program, stranger: Label) {
        hash_client(program, CLIENTS);
        program.word(Add, 2, K(FLOWS as i32));
        find(program, &self.map, R(2));
        compare(program, stranger);
        program.load(Word, 1, 0, 4 * AS_WHAT as i16).jump_if(1, Equal, K(0), stranger);
    }
}

/// To `other` unless there is an entry in r0 and its source is the packet's.
fn compare(program: &mut Program, other: Label) {
    program.jump_if(0, Equal, K(0), other).load(Word, 1, 10, FROM_AT).load(Word, 2, 0, 0).jump_if(
        1,
        NotEqual,
        R(2),
        other,
    );
}

/// r2 = one of so many places, a power of two, for the packet's source.
pub(crate) fn hash_client(program: &mut Program, places: u32) {
    program
        .load(Word, 2, 10, FROM_AT)
        // The upper bits of a product depend on all of the source.
        .word(Multiply, 2, K(MIX as i32))
        .word(ShiftRight, 2, K((u32::BITS - places.ilog2()) as i32));
}

/// The same for us.
fn client_hash(source: u32) -> u32 {
    source.wrapping_mul(MIX) >> (u32::BITS - CLIENTS.ilog2())
}

impl Drop for Known {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody refers into it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), LEN) };
    }
}
