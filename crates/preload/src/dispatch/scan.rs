//! Finds system calls in machine code (x86-64): does a program make some by itself?
//!
//! The two bytes of `syscall` (0f 05) occur by chance once in 64 KiB, in addresses and numbers. So what stands before
//! them is looked at: within 32 bytes the register with the call's number is set (`mov eax, 1`, `xor eax, eax`,
//! `mov rax, rdi` …), and from there instructions follow one another so that the next begins at the two bytes. In
//! an address they stand within an instruction, and nothing begins there.
//!
//! A chance hit costs nanoseconds for each call of the program, one that is missed leaves its calls to the kernel. So
//! lengths are told of what compilers put between the two only; anything else is no way to get there.

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes before a call in which its number is set.
const BEFORE: usize = 32;
/// Calls have numbers below this one.
const NUMBERS: u32 = 1024;

/// Whether `code` has a plausible system call.
pub(crate) fn has_syscall(code: &[u8]) -> bool {
    let mut at = 0;
    while let Some(found) = find(&code[at..]) {
        let here = at + found;
        let window = &code[here.saturating_sub(BEFORE)..here];
        if (0..window.len()).any(|from| sets_number(&window[from..]) && leads_to_end(&window[from..])) {
            return true;
        }
        at = here + 1;
    }
    false
}

/// Where the next `syscall` is: sixteen bytes at a time, since whole programs are looked through while they start.
fn find(code: &[u8]) -> Option<usize> {
    use std::arch::x86_64::{
        _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
    };
    let mut at = 0;
    while at + 17 <= code.len() {
        // SAFETY: SSE2 is part of x86-64, and 17 bytes from `at` on are within the slice.
        let hits = unsafe {
            let first = _mm_loadu_si128(code.as_ptr().add(at).cast());
            let second = _mm_loadu_si128(code.as_ptr().add(at + 1).cast());
            let first = _mm_cmpeq_epi8(first, _mm_set1_epi8(SYSCALL[0].cast_signed()));
            let second = _mm_cmpeq_epi8(second, _mm_set1_epi8(SYSCALL[1].cast_signed()));
            _mm_movemask_epi8(_mm_and_si128(first, second))
        };
        if hits != 0 {
            return Some(at + hits.trailing_zeros() as usize);
        }
        at += 16;
    }
    code[at..].windows(2).position(|pair| pair == SYSCALL).map(|found| at + found)
}

/// Whether the instruction at the start of `code` may be what sets the number.
fn sets_number(code: &[u8]) -> bool {
    let small = |at: usize| {
        code.get(at..at + 4)
            .is_some_and(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) < NUMBERS)
    };
    match code {
        // mov eax, N; mov rax, N
        [0xb8, ..] => small(1),
        [0x48, 0xc7, 0xc0, ..] => small(3),
        // push N; pop rax; or xor eax, eax
        [0x6a, _, 0x58, ..] | [0x31 | 0x33, 0xc0, ..] => true,
        // mov eax or rax, REGISTER
        [0x44 | 0x48 | 0x4c, 0x89, modrm, ..] | [0x89, modrm, ..] => modrm & 0xc7 == 0xc0,
        // mov or movsxd to eax or rax, MEMORY
        [0x48, 0x8b | 0x63, modrm, ..] | [0x8b, modrm, ..] => modrm & 0x38 == 0,
        _ => false,
    }
}

/// Whether instructions fill `code` exactly.
fn leads_to_end(mut code: &[u8]) -> bool {
    while !code.is_empty() {
        match length(code) {
            Some(len) if len <= code.len() => code = &code[len..],
            _ => return false,
        }
    }
    true
}

/// The length of the instruction at the start of `code`; `None`: no such one between a number and its call. Where a
/// branch or a return is, execution goes elsewhere, but a conditional one may fall through.
fn length(code: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut short_operands = false;
    while let Some(0x66 | 0xf2 | 0xf3 | 0x2e | 0x3e | 0x64 | 0x65) = code.get(at) {
        short_operands |= code[at] == 0x66;
        at += 1;
    }
    let mut wide = false;
    if let Some(rex @ 0x40..=0x4f) = code.get(at) {
        wide = rex & 8 != 0;
        at += 1;
    }
    let number = if short_operands { 2 } else { 4 };
    let opcode = *code.get(at)?;
    at += 1;
    let immediate = match opcode {
        // Arithmetic between a register and anything.
        0x00..=0x3f if opcode & 7 < 4 => return Some(at + operand(&code[at..])?),
        // movsxd, test, xchg, mov, lea, shifts, inc, dec.
        0x63 | 0x84..=0x8b | 0x8d | 0xd0..=0xd3 | 0xff => return Some(at + operand(&code[at..])?),
        0x00..=0x3f if opcode & 7 == 4 => 1, // with al and eax
        0x00..=0x3f if opcode & 7 == 5 => number,
        0x50..=0x5f | 0x90..=0x99 => 0, // push, pop, nop, xchg, cdqe, cqo
        0x68 => 4,
        0x6a | 0x70..=0x7f | 0xa8 | 0xb0..=0xb7 => 1, // push N, jcc, test al, mov to a byte
        0xa9 => number,
        0xb8..=0xbf => {
            if wide {
                8
            } else {
                number
            }
        }
        0x69 | 0x81 | 0xc7 => return Some(at + operand(&code[at..])? + number),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => return Some(at + operand(&code[at..])? + 1),
        0xf6 | 0xf7 => {
            let tests = code.get(at)? & 0x30 == 0;
            let more = if !tests {
                0
            } else if opcode == 0xf6 {
                1
            } else {
                number
            };
            return Some(at + operand(&code[at..])? + more);
        }
        0x0f => return two_byte(code, at),
        _ => return None,
    };
    Some(at + immediate)
}

/// As [`length`], behind 0f.
fn two_byte(code: &[u8], at: usize) -> Option<usize> {
    let opcode = *code.get(at)?;
    let at = at + 1;
    match opcode {
        0x05 => Some(at), // another call before this one
        0x80..=0x8f => Some(at + 4),
        // Moves and arithmetic of vectors, hints, cmovcc, setcc, bit tests, movzx, movsx, imul.
        0x10..=0x1f
        | 0x28..=0x2f
        | 0x40..=0x6f
        | 0x7e
        | 0x7f
        | 0x90..=0x9f
        | 0xa3
        | 0xab
        | 0xaf
        | 0xb0..=0xb3
        | 0xb6..=0xb9
        | 0xbb..=0xc1
        | 0xd0..=0xef => Some(at + operand(&code[at..])?),
        0x70 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => Some(at + operand(&code[at..])? + 1),
        _ => None,
    }
}

/// The length of a ModRM byte and what belongs to it.
fn operand(code: &[u8]) -> Option<usize> {
    let modrm = *code.first()?;
    let (mode, register) = (modrm >> 6, modrm & 7);
    if mode == 3 {
        return Some(1);
    }
    let mut len = 1;
    let mut displacement = match mode {
        1 => 1,
        2 => 4,
        _ => 0,
    };
    if register == 4 {
        len += 1;
        if mode == 0 && code.get(1)? & 7 == 5 {
            displacement = 4;
        }
    } else if mode == 0 && register == 5 {
        displacement = 4; // relative to the instruction
    }
    Some(len + displacement)
}

/// Whether notes of an object (elf(5)) say that Go's linker has made it. Each note: lengths of name and contents, a kind, then both, filled up to words.
pub(crate) fn is_of_go(mut notes: &[u8]) -> bool {
    let word = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes)
    };
    while let (Some(name), Some(contents)) = (word(notes, 0), word(notes, 4)) {
        if notes.get(12..12 + name as usize) == Some(b"Go\0\0") {
            return true;
        }
        let filled = |len: u32| (len as usize).next_multiple_of(4);
        notes = notes.get(12 + filled(name) + filled(contents)..).unwrap_or_default();
    }
    false
}
