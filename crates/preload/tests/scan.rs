//! Which machine code is taken for code with system calls of its own.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)] // the scan reads sixteen bytes at a time

#[path = "../src/dispatch/scan.rs"]
mod scan;

use scan::has_syscall;

/// The code between other code, long enough for the fast way.
fn within(code: &[u8]) -> Vec<u8> {
    [&[0x90; 40][..], code, &[0x90; 40]].concat()
}

#[test]
fn calls_by_compilers_and_by_hand_are_found() {
    let cases: [(&str, &[u8]); 9] = [
        ("mov eax, 1", &[0xb8, 1, 0, 0, 0, 0x0f, 0x05]),
        ("mov rax, 41; mov rdi, rbx", &[0x48, 0xc7, 0xc0, 41, 0, 0, 0, 0x48, 0x89, 0xdf, 0x0f, 0x05]),
        ("xor eax, eax; lea rsi, [rsp + 16]", &[0x31, 0xc0, 0x48, 0x8d, 0x74, 0x24, 0x10, 0x0f, 0x05]),
        ("push 3; pop rax", &[0x6a, 3, 0x58, 0x0f, 0x05]),
        (
            "mov rax, rdi; mov rdi, rsi; mov r10, rcx; mov r9, [rsp + 8]",
            &[0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x49, 0x89, 0xca, 0x4c, 0x8b, 0x4c, 0x24, 8, 0x0f, 0x05],
        ),
        ("mov rax, [rsp + 8]", &[0x48, 0x8b, 0x44, 0x24, 8, 0x0f, 0x05]),
        ("mov eax, 232; movaps xmm0, xmm1", &[0xb8, 232, 0, 0, 0, 0x0f, 0x28, 0xc1, 0x0f, 0x05]),
        (
            "mov eax, 0x1a9; mov edx, 0x1000; xor r8d, r8d",
            &[0xb8, 0xa9, 1, 0, 0, 0xba, 0, 0x10, 0, 0, 0x45, 0x31, 0xc0, 0x0f, 0x05],
        ),
        (
            "mov eax, 202; cmp dword [rip + 0x1000], 0; jne",
            &[0xb8, 202, 0, 0, 0, 0x83, 0x3d, 0, 0x10, 0, 0, 0, 0x75, 0x10, 0x0f, 0x05],
        ),
    ];
    for (text, code) in cases {
        assert!(has_syscall(&within(code)), "{text}");
        assert!(has_syscall(code), "{text}, alone");
    }
}

#[test]
fn what_only_looks_like_one_is_not() {
    let cases: [(&str, &[u8]); 7] = [
        ("no number", &[0x90, 0x0f, 0x05]),
        ("a large number: mov eax, 0x12345", &[0xb8, 0x45, 0x23, 1, 0, 0x0f, 0x05]),
        ("mov eax, 1; lea rdi, [rip + 0x50f]", &[0xb8, 1, 0, 0, 0, 0x48, 0x8d, 0x3d, 0x0f, 0x05, 0, 0]),
        ("mov eax, 1; mov edx, 0x50f00", &[0xb8, 1, 0, 0, 0, 0xba, 0, 0x0f, 0x05, 0]),
        ("xor eax, eax; movups xmm0, [rip]", &[0x31, 0xc0, 0x0f, 0x10, 5, 0, 0, 0, 0]),
        // libgcc's unwinder compares code with `mov rax, 15; syscall`.
        ("movabs", &[0x48, 0xb8, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]),
        ("mov eax, 1; ret", &[0xb8, 1, 0, 0, 0, 0xc3, 0x0f, 0x05]),
    ];
    for (text, code) in cases {
        assert!(!has_syscall(&within(code)), "{text}");
    }
    assert!(!has_syscall(&[]) && !has_syscall(&[0x0f]) && !has_syscall(&[0x0f, 0x05]));
}

#[test]
fn the_number_may_stand_at_any_place_of_the_window() {
    for between in 0..=27 {
        let code = [&[0xb8, 1, 0, 0, 0][..], &vec![0x90; between], &[0x0f, 0x05]].concat();
        assert!(has_syscall(&within(&code)), "{between} bytes between");
    }
    let code = [&[0xb8, 1, 0, 0, 0][..], &[0x90; 28], &[0x0f, 0x05]].concat();
    assert!(!has_syscall(&within(&code)));
}

/// Debian's own: bash makes all its calls by the C library, and this test's C library makes them all by itself.
#[test]
fn real_code() {
    assert!(!has_syscall(&std::fs::read("/bin/bash").unwrap()));
    let library = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = library
        .lines()
        .find_map(|line| line.split_whitespace().nth(5).filter(|name| name.contains("libc.so")));
    assert!(has_syscall(&std::fs::read(library.unwrap()).unwrap()));
}

#[test]
fn a_note_of_gos_is_found_among_others() {
    let note = |name: &[u8], contents: &[u8]| {
        let mut bytes = Vec::new();
        bytes.extend((name.len() as u32).to_ne_bytes());
        bytes.extend((contents.len() as u32).to_ne_bytes());
        bytes.extend(4u32.to_ne_bytes());
        for part in [name, contents] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    };
    let (gnu, go) = (note(b"GNU\0", b"12345"), note(b"Go\0\0", b"abc"));
    assert!(scan::is_of_go(&[gnu.clone(), go.clone()].concat()));
    assert!(!scan::is_of_go(&gnu) && !scan::is_of_go(&[]) && !scan::is_of_go(&go[..9]));
    assert!(!scan::is_of_go(&[0xff; 40]), "nonsense ends");
}
