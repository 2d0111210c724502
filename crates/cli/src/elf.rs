//! Whether a program can be served by preloading: a dynamic ELF executable, or a script whose interpreter is one.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::failure::{CANNOT_RUN, Failure, NOT_FOUND, plain};

/// Scripts may name scripts as interpreters; Linux stops there too (fs/exec.c).
const MAX_DEPTH: usize = 5;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// Most bytes of notes that are looked at.
const MAX_NOTES: u64 = 64 << 10;

/// The file that `exec` would take for this name.
pub(crate) fn find(name: &Path) -> Result<PathBuf, Failure> {
    let missing = || {
        let name = name.display();
        Failure::new(NOT_FOUND, format!("there is no program `{name}`; check the name, or give its path"))
    };
    if name.as_os_str().as_bytes().contains(&b'/') {
        return if name.exists() { Ok(name.to_owned()) } else { Err(missing()) };
    }
    let places = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let executable = |path: &PathBuf| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&places).map(|place| place.join(name)).find(executable).ok_or_else(missing)
}

/// Checks that preloading reaches the program.
pub(crate) fn check(program: &Path) -> Result<(), Failure> {
    let mut program = program.to_owned();
    for _ in 0..MAX_DEPTH {
        match next(&program)? {
            Some(interpreter) => program = interpreter,
            None => return Ok(()),
        }
    }
    Err(refused(&program, "is a script of a script of a script; name its interpreter yourself"))
}

fn refused(program: &Path, why: &str) -> Failure {
    Failure::new(CANNOT_RUN, format!("{} {why}", program.display()))
}

/// `None`: it can be served. Else the interpreter, to be checked in its place.
fn next(program: &Path) -> Result<Option<PathBuf>, Failure> {
    let unreadable = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => {
            Failure::new(NOT_FOUND, format!("there is no program `{}`", program.display()))
        }
        _ => refused(program, &format!("cannot be read: {}; check its permissions", plain(&error))),
    };
    let found = program.metadata().map_err(unreadable)?;
    if found.is_dir() {
        return Err(refused(program, "is a directory; name a program"));
    }
    if found.permissions().mode() & 0o111 == 0 {
        return Err(refused(program, &format!("is not executable; try `chmod +x {}`", program.display())));
    }
    let mut file = match File::open(program) {
        Ok(file) => file,
        // Executable but not readable: nothing can be told, so let exec decide.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut start = Vec::new();
    file.by_ref().take(4096).read_to_end(&mut start).map_err(unreadable)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        return interpreter(program, line).map(Some);
    }
    check_elf(program, &mut file, &start)?;
    check_privileges(program, &found)?;
    Ok(None)
}

/// The interpreter that a script names; for `env NAME`, the program that env finds.
fn interpreter(script: &Path, line: &[u8]) -> Result<PathBuf, Failure> {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let path = |word: &[u8]| PathBuf::from(std::ffi::OsString::from_vec(word.to_vec()));
    let Some(first) = words.next() else {
        return Err(refused(script, "is a script without an interpreter after #!; name one"));
    };
    let interpreter = path(first);
    match words.find(|word| !word.starts_with(b"-") && !word.contains(&b'=')) {
        Some(name) if interpreter.file_name().is_some_and(|file| file == "env") => find(&path(name)),
        _ => Ok(interpreter),
    }
}

fn check_elf(program: &Path, file: &mut File, start: &[u8]) -> Result<(), Failure> {
    if !start.starts_with(b"\x7fELF") {
        return Err(refused(
            program,
            "is neither an ELF program nor a script with #!; run it with its interpreter",
        ));
    }
    let broken = || refused(program, "has a broken ELF header; rebuild or reinstall it");
    let half = |at: usize| start.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]])).ok_or_else(broken);
    // e_ident: 64 bits, little endian; e_machine as ours. That is what our preload library is.
    let machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    if start.len() < 64 {
        return Err(broken());
    }
    if start.get(4) != Some(&2) || start.get(5) != Some(&1) || half(18)? != machine {
        return Err(refused(
            program,
            "is built for another machine; scoutline serves 64-bit programs of this one",
        ));
    }
    let mut offset = [0; 8];
    offset.copy_from_slice(start.get(32..40).ok_or_else(broken)?);
    let (offset, size, number) = (u64::from_le_bytes(offset), usize::from(half(54)?), usize::from(half(56)?));
    if size < 56 {
        return Err(broken());
    }
    let mut headers = vec![0; size * number];
    file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(&mut headers)).map_err(|_| broken())?;
    let kinds = headers
        .chunks_exact(size)
        .map(|header| u32::from_le_bytes([header[0], header[1], header[2], header[3]]));
    if kinds.into_iter().any(|kind| kind == PT_INTERP) {
        return if is_go(file, headers.chunks_exact(size)) {
            let why = "is a Go program, whose system calls pass the C library by; run it with `scoutline run --trap`";
            Err(refused(program, why))
        } else {
            Ok(())
        };
    }
    Err(refused(
        program,
        "is statically linked, so no library can be preloaded under it; run it with `scoutline run --trap`, or build \
         it dynamically (for Rust: a -gnu target)",
    ))
}

/// Whether some note says so: Go's linker writes its build id as one (cmd/internal/buildid).
fn is_go<'a>(file: &mut File, headers: impl Iterator<Item = &'a [u8]>) -> bool {
    let long = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
    let mut notes = headers.filter(|header| long(&header[..4]) == u64::from(PT_NOTE));
    notes.any(|header| {
        let mut bytes = Vec::new();
        let read = file.seek(SeekFrom::Start(long(&header[8..16])));
        let read = read
            .and_then(|_| file.by_ref().take(long(&header[32..40]).min(MAX_NOTES)).read_to_end(&mut bytes));
        // Length of the name, of the description, the kind, and then the name (elf(5)).
        let is_build_id = |note: &[u8]| note[..4] == *b"\x04\0\0\0" && note[8..] == *b"\x04\0\0\0Go\0\0";
        read.is_ok() && bytes.windows(16).any(is_build_id)
    })
}

/// The dynamic linker ignores LD_PRELOAD where a program gains privileges (ld.so(8), secure-execution mode).
fn check_privileges(program: &Path, found: &std::fs::Metadata) -> Result<(), Failure> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mode = found.permissions().mode();
    if (mode & 0o4000 != 0 && found.uid() != uid) || (mode & 0o2000 != 0 && found.gid() != gid) {
        return Err(refused(
            program,
            "is setuid or setgid, and such programs ignore preloading; run it as its owner",
        ));
    }
    let capabilities = rustix::fs::getxattr(program, "security.capability", &mut [0u8; 64]).is_ok();
    if capabilities && uid != 0 {
        return Err(refused(
            program,
            "has file capabilities, and such programs ignore preloading; run it as root",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{check, find};
    use crate::failure::{CANNOT_RUN, NOT_FOUND};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn script(name: &str, text: &str, mode: u32) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("scoutline-elf-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn dynamic_programs_and_scripts_pass() {
        check(&find(Path::new("sh")).unwrap()).unwrap();
        for (name, text) in
            [("sh", "#!/bin/sh\n"), ("env", "#!/usr/bin/env -S FOO=1 sh\n"), ("space", "#! /bin/sh -e\n")]
        {
            let path = script(name, text, 0o755);
            check(&path).unwrap();
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_served_is_told() {
        let cases = [
            ("loop", "#!/proc/self/root{self}\n", 0o755, CANNOT_RUN, "script of a script"),
            ("gone", "#!/nonexistent/sh\n", 0o755, NOT_FOUND, "/nonexistent/sh"),
            ("text", "hello\n", 0o755, CANNOT_RUN, "neither an ELF program nor a script"),
            ("mode", "#!/bin/sh\n", 0o644, CANNOT_RUN, "chmod +x"),
            ("short", "\u{7f}ELF", 0o755, CANNOT_RUN, "broken ELF header"),
            ("none", "#!\n", 0o755, CANNOT_RUN, "without an interpreter"),
        ];
        for (name, text, mode, code, expected) in cases {
            let own = std::env::temp_dir().join(format!("scoutline-elf-{name}-{}", std::process::id()));
            let path = script(name, &text.replace("{self}", own.to_str().unwrap()), mode);
            let failure = check(&path).unwrap_err();
            assert_eq!(failure.code, code, "{name}: {}", failure.message);
            assert!(failure.message.contains(expected), "{name}: {}", failure.message);
            std::fs::remove_file(path).unwrap();
        }
        assert_eq!(find(Path::new("no-such-program-here")).unwrap_err().code, NOT_FOUND);
    }
}
