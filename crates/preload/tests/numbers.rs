//! Calls by number against the functions that the library puts before the C library's: what programs may call by name and
//! the kernel has a number for, `syscall(2)` serves too (`src/export/raw.rs`).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// Functions whose number has another name than they.
const RENAMED: [(&str, &str); 15] = [
    ("prlimit", "prlimit64"),
    ("prlimit64", "prlimit64"),
    ("_exit", "exit_group"),
    ("_Exit", "exit_group"),
    ("fexecve", "execveat"),
    ("preadv64v2", "preadv2"),
    ("pwritev64v2", "pwritev2"),
    ("pselect", "pselect6"),
    ("recv", "recvfrom"),
    ("send", "sendto"),
    ("sigaction", "rt_sigaction"),
    ("__sigaction", "rt_sigaction"),
    ("sigprocmask", "rt_sigprocmask"),
    ("pthread_sigmask", "rt_sigprocmask"),
    ("sigsuspend", "rt_sigsuspend"),
];

/// Functions of the C library alone: what they do to a descriptor, if anything, they do by calls that are here as well.
const WITHOUT_NUMBER: [&str; 85] = [
    "__longjmp_chk",
    "__res_nquery",
    "__res_nquerydomain",
    "__res_nsearch",
    "__res_nsend",
    "__res_query",
    "__res_querydomain",
    "__res_search",
    "__res_send",
    "__sysv_signal",
    "_longjmp",
    "bsd_signal",
    "closefrom",
    "daemon",
    "dlsym",
    "dprintf",
    "execl",
    "execle",
    "execlp",
    "execv",
    "execvp",
    "execvpe",
    "fclose",
    "fdopen",
    "forkpty",
    "freeifaddrs",
    "freopen",
    "getaddrinfo",
    "gethostbyaddr",
    "gethostbyaddr_r",
    "gethostbyname",
    "gethostbyname2",
    "gethostbyname2_r",
    "gethostbyname_r",
    "getifaddrs",
    "getnameinfo",
    "io_uring_get_probe",
    "io_uring_queue_init",
    "io_uring_queue_init_mem",
    "io_uring_queue_init_params",
    "login_tty",
    "longjmp",
    "pclose",
    "perror",
    "popen",
    "posix_spawn",
    "posix_spawn_file_actions_addchdir",
    "posix_spawn_file_actions_addchdir_np",
    "posix_spawn_file_actions_addclose",
    "posix_spawn_file_actions_addclosefrom_np",
    "posix_spawn_file_actions_adddup2",
    "posix_spawn_file_actions_addfchdir",
    "posix_spawn_file_actions_addfchdir_np",
    "posix_spawn_file_actions_addopen",
    "posix_spawn_file_actions_addtcsetpgrp_np",
    "posix_spawn_file_actions_destroy",
    "posix_spawn_file_actions_init",
    "posix_spawnp",
    "pthread_create",
    "pthread_setcanceltype",
    "res_nquery",
    "res_nquerydomain",
    "res_nsearch",
    "res_nsend",
    "res_query",
    "res_querydomain",
    "res_search",
    "res_send",
    "setcontext",
    "sigblock",
    "sighold",
    "sigignore",
    "siglongjmp",
    "signal",
    "sigrelse",
    "sigset",
    "sigsetmask",
    "sockatmark",
    "ssignal",
    "swapcontext",
    "syscall",
    "system",
    "sysv_signal",
    "thrd_create",
    "vdprintf",
];

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("binutils and gcc are installed");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What the library exports.
fn exported() -> BTreeSet<String> {
    let exe = std::env::current_exe().unwrap();
    let library = exe.ancestors().skip(1).map(|folder| folder.join("libscoutline_preload.so"));
    let library: PathBuf =
        library.take(2).find(|path| path.exists()).expect("cargo builds it beside the test");
    let symbols = output("nm", &["--dynamic", "--defined-only", "--format=posix", library.to_str().unwrap()]);
    symbols.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
}

/// The calls that the kernel's headers of this machine have numbers for.
fn numbered() -> BTreeSet<String> {
    let macros = output("gcc", &["-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"]);
    let name = |line: &str| line.strip_prefix("#define SYS_")?.split(' ').next().map(str::to_owned);
    macros.lines().filter_map(name).collect()
}

/// The name of a function's number, if it has one.
fn number_of(function: &str) -> &str {
    let plain = function.strip_prefix("__").and_then(|name| name.strip_suffix("_chk")).unwrap_or(function);
    let renamed = RENAMED.iter().find(|(name, _)| *name == plain);
    renamed.map_or(plain.strip_suffix("64").unwrap_or(plain), |(_, number)| number)
}

#[test]
fn what_has_a_number_is_served_by_number() {
    let of = |file: &str| {
        std::fs::read_to_string(format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR")))
            .expect("a source of ours")
    };
    // What signals mean is the second's matter.
    let source = of("export/raw.rs") + &of("dispatch/signals.rs");
    let (exported, numbered) = (exported(), numbered());
    assert!(exported.contains("recvmsg") && numbered.contains("recvmsg"), "{exported:?} {numbered:?}");
    let mut wrong = Vec::new();
    for function in &exported {
        let number = number_of(function);
        if !numbered.contains(number) {
            if !WITHOUT_NUMBER.contains(&number) && !WITHOUT_NUMBER.contains(&function.as_str()) {
                wrong.push(format!(
                    "{function}: the kernel has no number of that name, and no list here has it"
                ));
            }
        } else if !source.contains(&format!("libc::SYS_{number} ")) {
            wrong.push(format!("{function}: SYS_{number} is not served"));
        }
    }
    for function in WITHOUT_NUMBER {
        if !exported.contains(function) {
            wrong.push(format!("{function} is listed, and not exported"));
        }
        if numbered.contains(function) {
            wrong.push(format!("{function} is listed, and has a number"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
