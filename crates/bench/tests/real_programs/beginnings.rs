//! Programs that begin otherwise than by `scoutline run` alone.

use std::process::Command;

use crate::fixture::{Arm, Fixture, SOON, script, twins, wait_for_line};

twins!(a_library_has_sockets_before_its_program, who_preloads_something_else_is_on_paths);

const PORT: &str = "7000";

/// Constructors of a program's libraries run before those of what is preloaded.
fn a_library_has_sockets_before_its_program(arm: Arm) {
    let fixture = Fixture::new(arm);
    let address = fixture.peer_address().to_string();
    let mut echo = fixture.start_peer("python3", &[&script("echo.py"), &address, PORT]);
    wait_for_line(&mut echo, "ready");
    let (library, program) = (fixture.file("libearly.so"), fixture.file("early"));
    let [library, program] = [library, program].map(|path| path.display().to_string());
    let source = script("constructor.c");
    compile(&["-shared", "-fPIC", "-DLIBRARY", "-o", &library, &source]);
    compile(&["-o", &program, &source, &library]);
    assert_eq!(fixture.run(&program, &[&address, PORT], SOON).trim(), "heard early");
    // Which runs before all of these, and calls our functions.
    compile(&["-fsanitize=address", "-o", &program, &source, &library]);
    let sanitized = ["ASAN_OPTIONS=verify_asan_link_order=0", &program, &address, PORT];
    assert_eq!(fixture.run("env", &sanitized, SOON).trim(), "heard early");
}

/// As scripts do that start a server with an allocator of its own.
fn who_preloads_something_else_is_on_paths(arm: Arm) {
    let fixture = Fixture::new(arm);
    let address = fixture.peer_address().to_string();
    let mut echo = fixture.start_peer("python3", &[&script("echo.py"), &address, PORT]);
    wait_for_line(&mut echo, "ready");
    let ask = format!(
        "import os, socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.connect((\"{address}\", {PORT}))\n\
         s.send(b\"asks\")\nprint(s.recv(9), \"libm.so.6\" in os.environ[\"LD_PRELOAD\"])\n"
    );
    for starts in [
        "LD_PRELOAD=libm.so.6 exec python3 -c \"$0\"",
        "env -i LD_PRELOAD=libm.so.6 $(command -v python3) -c \"$0\"",
    ] {
        assert_eq!(fixture.run("sh", &["-c", starts, &ask], SOON).trim(), "b'asks' True", "{starts}");
    }
}

fn compile(arguments: &[&str]) {
    let compiled = Command::new("gcc").args(["-O1", "-Wall", "-Wextra", "-Werror"]).args(arguments).output();
    let compiled = compiled.expect("a C compiler: apt-get install gcc libc6-dev");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
