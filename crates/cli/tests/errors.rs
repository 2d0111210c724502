//! What users get wrong: one clear line each, with the remedy and a fixed exit code.
//!
//! The tests that start a daemon need root and a built library (`make build`); they fail loudly without.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The program under test: `make test` names the release build, which has the preload library beside it.
fn program() -> PathBuf {
    std::env::var_os("SCOUTLINE_BIN").map_or_else(|| env!("CARGO_BIN_EXE_scoutline").into(), PathBuf::from)
}

fn scoutline(arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(arguments).env_remove("SCOUTLINE_CONTROL").stdin(Stdio::null());
    command.output().unwrap()
}

/// Fails with this code and says one line that contains all of this.
#[track_caller]
fn refused(output: &Output, code: i32, parts: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "one line: {text}");
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

/// A configuration is sound, if perhaps not for this machine.
#[track_caller]
fn sound(output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() || text.contains("the configuration is sound, but not for this"),
        "{text}"
    );
}

/// A directory of a test, removed with it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("scoutline-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A daemon in a network of its own, with a tap for a device. Killed with the test.
struct Daemon {
    child: Child,
    control: String,
}

impl Daemon {
    fn start(directory: &Directory) -> Daemon {
        let config = directory
            .file("tap.toml", "[[device]]\nname = \"tap0\"\ndriver = \"tap\"\naddress = \"10.0.0.1/24\"\n");
        let control = directory.path("control.sock");
        let mut child = Command::new("unshare")
            .args(["--net", "--"])
            .arg(program())
            .args(["up", "--config", &config, "--control", &control])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is there");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "the daemon did not start (these tests need root): {line}");
        Daemon { child, control }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn wrong_configuration() {
    let directory = Directory::new("config");
    let file = directory.file("s.toml", "[[device]]\nname = \"eth1\"\nadress = \"10.0.0.1/24\"\n");
    let place = format!("{file}:3: unknown key `adress`; did you mean `address`?");
    refused(&scoutline(&["up", "--config", &file]), 1, &[&place]);
    refused(
        &scoutline(&["up", "--config", "/nonexistent"]),
        1,
        &["/nonexistent", "No such file", "--config"],
    );
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/scoutline.toml");
    sound(&scoutline(&["up", "--check", "--config", example.to_str().unwrap()]));
    refused(&scoutline(&["up", "--check", "--config", "/dev/zero"]), 1, &["/dev/zero", "longer than 1 MiB"]);
}

#[test]
fn the_example_lists_every_default_correctly() {
    let directory = Directory::new("example");
    let text = include_str!("../../../packaging/scoutline.toml");
    // Uncommented line by line, but for what belongs to other drivers, all of it must be sound.
    let uncommented: String = text
        .lines()
        .filter(|line| {
            !line.contains("mtu")
                && !line.starts_with("# [device.tap]")
                && !line.starts_with("# [device.pcap]")
                && !line.starts_with("# [device.xdp]")
                && !line.ends_with("# as above, for xdp")
        })
        .filter(|line| {
            !["linux_address", "input", "output", "group", "ring_frames = 2048", "zero_copy"]
                .iter()
                .any(|key| line.contains(&format!("# {key} ")))
        })
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.contains(" = ") || rest.starts_with('[') => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let file = directory.file("all.toml", &uncommented);
    sound(&scoutline(&["up", "--check", "--config", &file]));
}

#[test]
fn a_check_looks_at_this_machine_too() {
    let directory = Directory::new("check");
    let tap = "[[device]]\nname = \"tap0\"\ndriver = \"tap\"\naddress = \"10.0.0.1/24\"\n";
    let check = |text: &str| {
        let file = directory.file("m.toml", text);
        scoutline(&["up", "--check", "--config", &file, "--control", &directory.path("c.sock")])
    };
    let output = check(&format!("{tap}[engine]\ncpu = 0\n[control]\ngroup = \"root\"\n"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.starts_with("the configuration is sound, and this machine"),
        "{text}"
    );
    let sound = "the configuration is sound, but not for this machine: ";
    for (text, says) in [
        (
            tap.replace("tap0", "nosuch0").replace("driver = \"tap\"\n", ""),
            "no interface nosuch0 here; there are",
        ),
        (format!("{tap}[engine]\ncpu = 1023\n"), "cannot run on core 1023: Invalid argument"),
        (format!("{tap}[engine]\ncpu = 99999999999\n"), "cannot run on core 99999999999"),
        (
            format!("{tap}[control]\ngroup = \"nosuchgroup\"\n"),
            "there is no such group; make it with `groupadd",
        ),
    ] {
        refused(&check(&text), 1, &[sound, says]);
    }
    let user = check(&format!("{tap}[[class]]\nname = \"a\"\nuser = [\"nosuchuser\"]\n"));
    refused(&user, 1, &["user: `nosuchuser`: there is no such user"]);
}

#[test]
fn wrong_usage() {
    let address = |text| scoutline(&["up", "--device", "nosuch0", "--address", text]);
    let output = address("10.0.0.1");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("the length of the network's prefix is missing; write 10.0.0.1/24"), "{text}");
    refused(&address("10.0.0.1/32"), 2, &["10.0.0.1 alone is no network", "10.0.0.1/24"]);
    refused(&address("10.0.0.0/24"), 2, &["names a network, not an address in it"]);
    for arguments in [
        &["up", "--device", "eth1"][..],
        &["up", "--device", "a", "--address", "ten"],
        &["psx"],
        &["run"],
        &["class"],
        &["class", "set", "a"],
        &["class", "set", "a", "priority"],
        &["class", "add", "a", "=1"],
        &["bench", "rr", "--peer", "smoltcp,linux"],
    ] {
        assert_eq!(scoutline(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let text = String::from_utf8(scoutline(&["grahp"]).stderr).unwrap();
    assert!(text.contains("graph"), "a near miss is suggested: {text}");
    refused(&scoutline(&["bench", "pefer"]), 2, &["no experiment `pefer`", "prefer"]);
    refused(&scoutline(&["bench", "udp", "--peer", "smoltcp"]), 1, &["`udp` has no further peers", "`rr`"]);
}

#[test]
fn daemon_unreachable() {
    for command in [
        &["ps"][..],
        &["top", "--json"],
        &["stat"],
        &["graph"],
        &["stop"],
        &["reload"],
        &["set"],
        &["set", "extend=off"],
        &["class", "list"],
        &["class", "show", "a"],
        &["class", "set", "a", "priority=1"],
    ] {
        let output = scoutline(&[command, &["--control", "/nonexistent/c.sock"]].concat());
        refused(&output, 3, &["no daemon at /nonexistent/c.sock", "scoutline up", "--control"]);
    }
    let output = scoutline(&["run", "--control", "/nonexistent/c.sock", "--", "true"]);
    refused(&output, 3, &["no daemon at /nonexistent/c.sock"]);
}

#[test]
fn no_such_interface_and_missing_privilege() {
    let directory = Directory::new("device");
    let control = directory.path("control.sock");
    let quick = ["up", "--address", "10.0.0.1/24", "--control", &control, "--device"];
    refused(&scoutline(&[&quick[..], &["nosuch0"]].concat()), 1, &["no interface nosuch0", "there are"]);

    // As nobody, in a network of its own with an interface that would do.
    let open = directory.path("nobody");
    std::fs::create_dir(&open).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&open, mode).unwrap();
    let script = format!(
        "ip link add eth9 type veth peer name eth8 && ip link set eth9 up && ip link set eth8 up && \
         cp {} {open}/scoutline && exec setpriv --reuid=65534 --regid=65534 --clear-groups \
         {open}/scoutline up --device eth9 --address 10.0.0.1/24 --control {open}/c.sock",
        program().display()
    );
    let output = Command::new("unshare").args(["--net", "--", "sh", "-c", &script]).output().unwrap();
    refused(&output, 1, &["eth9", "root", "CAP_NET_RAW"]);
    assert!(!Path::new(&open).join("c.sock").exists(), "nothing stays behind");
}

#[test]
fn programs_that_cannot_run_on_paths() {
    let directory = Directory::new("static");
    let source = directory.file("p.c", "int main(void) { return 0; }\n");
    let binary = directory.path("p");
    let built =
        Command::new("gcc").args(["-static", "-o", &binary, &source]).status().expect("gcc (make deps)");
    assert!(built.success());
    refused(&scoutline(&["run", "--", &binary]), 126, &[&binary, "statically linked", "--trap"]);
    // In the background it runs all the same: its threads and its disk need nothing of us.
    let output = scoutline(&["run", "--background", "--", &binary]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("statically linked"), "{text}");
    assert!(text.contains("threads and disk in idle time only"), "{text}");
    let script = directory.file("s.sh", &format!("#!{binary}\n"));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    refused(&scoutline(&["run", "--", &script]), 126, &["statically linked"]);
    refused(&scoutline(&["run", "--", "no-such-program-here"]), 127, &["no program `no-such-program-here`"]);
    refused(&scoutline(&["run", "--", &source]), 126, &["not executable", "chmod +x"]);
}

#[test]
fn a_second_daemon_and_a_port_in_use() {
    let directory = Directory::new("use");
    let daemon = Daemon::start(&directory);
    let second =
        scoutline(&["up", "--device", "lo", "--address", "10.0.0.1/24", "--control", &daemon.control]);
    refused(&second, 1, &["already running", &format!("pid {}", daemon.child.id()), "scoutline stop"]);

    let bind = "import socket, sys\ns = socket.socket()\ntry:\n s.bind(('10.0.0.1', 80)); s.listen()\n\
                except OSError as e:\n sys.exit(e.strerror)\nprint('bound', flush=True)\nsys.stdin.read()";
    let run = ["run", "--control", &daemon.control, "--", "/usr/bin/python3", "-c", bind];
    let mut first =
        Command::new(program()).args(run).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "bound\n", "is the preload library there? run `make build` and set SCOUTLINE_BIN");
    refused(&scoutline(&run), 1, &["Address already in use"]);
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());

    // The tools see it all, and stop it.
    for command in ["ps", "stat", "graph"] {
        let output = scoutline(&[command, "--json", "--control", &daemon.control]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect(command);
        assert!(!json.is_null(), "{command}");
    }
    assert!(scoutline(&["stop", "--control", &daemon.control]).status.success());
    let mut daemon = daemon;
    assert!(daemon.child.wait().unwrap().success(), "a clean stop ends with 0");
    assert!(!Path::new(&daemon.control).exists());
}

#[test]
fn a_daemon_that_is_stopped_is_not_waited_for_without_end() {
    let directory = Directory::new("stopped");
    let daemon = Daemon::start(&directory);
    let stopped = Command::new("kill").args(["-STOP", &daemon.child.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    let on = |arguments: &[&str]| {
        scoutline(&[&arguments[..1], &["--control", &daemon.control], &arguments[1..]].concat())
    };
    let says = format!("the daemon at {} does not answer within 10 s", daemon.control);
    std::thread::scope(|scope| {
        for tool in ["ps", "stop"] {
            let (on, says) = (&on, &says);
            scope.spawn(move || refused(&on(&[tool]), 3, &[says]));
        }
        let output = on(&["run", "--", "/bin/echo", "on paths"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("waiting for the daemon at") && lines[1].contains(&says), "{text}");
        assert!(output.stdout.is_empty(), "it has not begun");
    });
}

/// Kept attached by an input that does not end.
fn attached(control: &str) -> Child {
    let mut command = Command::new(program());
    command.args(["run", "--control", control, "--", "/bin/cat"]).stdin(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn more_programs_than_can_be_are_told_how_many() {
    const MOST: usize = 64;
    let directory = Directory::new("full");
    let daemon = Daemon::start(&directory);
    let mut programs: Vec<Child> = (0..MOST).map(|_| attached(&daemon.control)).collect();
    let count = || {
        let output = scoutline(&["stat", "--json", "--control", &daemon.control]);
        let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        stat["programs"].as_array().unwrap().len()
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while count() < MOST {
        assert!(std::time::Instant::now() < deadline, "{} programs", count());
    }
    let output = scoutline(&["run", "--control", &daemon.control, "--", "/bin/true"]);
    refused(
        &output,
        126,
        &["64 programs are on paths, as many as can be at once; each that a script starts"],
    );
    assert!(!String::from_utf8_lossy(&output.stderr).contains("running?"));
    for program in &mut programs {
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
    }
}

/// The classes of a live daemon, by hand and by file.
#[test]
fn classes_change_live() {
    let directory = Directory::new("classes");
    let mut daemon = Daemon::start(&directory);
    let control = daemon.control.clone();
    let on = |arguments: &[&str]| scoutline(&[arguments, &["--control", &control]].concat());
    let done = |arguments: &[&str]| {
        let output = on(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(done(&["class", "add", "web", "local_port=80,8000-8100", "priority=2"]), "");
    done(&["class", "add", "preferred", "source=10.0.0.7", "mark=EF", "--before", "web"]);
    done(&["class", "set", "web", "priority=", "idle=true", "connections=9"]);
    let list: serde_json::Value = serde_json::from_str(&done(&["class", "list", "--json"])).unwrap();
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|class| class["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["preferred", "web", "default"]);
    assert_eq!((&list[1]["now"]["priority"], &list[1]["connections"]), (&serde_json::Value::Null, &9.into()));
    assert!(list[2]["now"]["paths"].as_u64().unwrap() >= 5, "the machine's own paths");
    let shown = done(&["class", "show", "web"]);
    assert!(shown.starts_with("[[class]]\nname = \"web\"\nconnections = 9\nidle = true\n"), "{shown}");
    let shown: serde_json::Value = serde_json::from_str(&done(&["class", "show", "--json", "web"])).unwrap();
    assert_eq!(shown["local_port"][1], "8000-8100");
    done(&["class", "move", "web", "--before", "preferred"]);
    assert!(done(&["class", "list"]).lines().nth(1).unwrap().starts_with("web "));
    refused(&on(&["class", "remove", "wbe"]), 1, &["there is no class `wbe`; did you mean `web`?"]);
    refused(&on(&["class", "show", "preffered"]), 1, &["did you mean `preferred`?"]);
    refused(
        &on(&["class", "set", "web", "prioritty=1"]),
        1,
        &["unknown key `prioritty`; did you mean `priority`?"],
    );
    refused(
        &on(&["class", "set", "web", "priority=-1"]),
        1,
        &["priority = -1 is out of range; it must be 0 to 63"],
    );
    refused(
        &on(&["class", "add", "a b", "priority=1"]),
        1,
        &["class `a b` would take everything", "leave nothing for `default`", "source=10.0.0.7/32"],
    );
    assert!(done(&["class", "show", "default"]).starts_with("[[class]]\nname = \"default\"\n"));
    done(&["class", "remove", "web"]);

    // The file, which has no classes, and then one, and a core of its own.
    assert_eq!(done(&["reload"]), "classes: removed preferred\n");
    let file = directory.path("tap.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let with_class = format!("{text}[engine]\ncpu = 0\n[[class]]\nname = \"late\"\nlocal_port = [9]\n");
    std::fs::write(&file, &with_class).unwrap();
    assert_eq!(done(&["reload"]), "classes: added late; these need a restart: [engine] cpu\n");
    std::fs::write(&file, with_class.replace("cpu", "cpus")).unwrap();
    refused(&on(&["reload"]), 1, &["tap.toml:6: unknown key `cpus`; did you mean `cpu`?"]);
    assert!(done(&["class", "list"]).contains("late"), "all stays as it was");

    // SIGHUP does the same, and does not stop the daemon.
    std::fs::write(&file, with_class.replace("late", "later")).unwrap();
    let hang_up = Command::new("kill").args(["-HUP", &daemon.child.id().to_string()]).status().unwrap();
    assert!(hang_up.success());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !done(&["class", "list"]).contains("later") {
        assert!(std::time::Instant::now() < deadline, "SIGHUP has no effect");
    }
    assert!(daemon.child.try_wait().unwrap().is_none());

    // Who may not use the control socket changes nothing.
    let copy = directory.path("scoutline");
    std::fs::copy(program(), &copy).unwrap();
    let nobody = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", &copy])
        .args(["class", "remove", "later", "--control", &control])
        .output()
        .unwrap();
    refused(&nobody, 3, &["you may not use", "[control] group"]);
    assert!(done(&["class", "list"]).contains("later"));
}

#[test]
fn settings_change_live() {
    let directory = Directory::new("set");
    let daemon = Daemon::start(&directory);
    let control = daemon.control.clone();
    let on = |arguments: &[&str]| scoutline(&[arguments, &["--control", &control]].concat());
    let done = |arguments: &[&str]| {
        let output = on(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let now = |key: &str| {
        let list: serde_json::Value = serde_json::from_str(&done(&["set", "--json"])).unwrap();
        let row = list.as_array().unwrap().iter().find(|row| row["key"] == key).cloned();
        row.unwrap_or_else(|| panic!("no {key}"))["value"].clone()
    };
    assert_eq!((now("extension.enabled"), now("device.tap0.rate")), (false.into(), serde_json::Value::Null));
    assert_eq!(done(&["set", "extend=on", "rate=100Mbit/s", "linux.share=30"]), "");
    assert_eq!((now("extension.enabled"), now("device.tap0.rate")), (true.into(), "100Mbit/s".into()));
    let stat: serde_json::Value = serde_json::from_str(&done(&["stat", "--json"])).unwrap();
    assert_eq!(stat["devices"]["tap0"]["rate-bits"], 100_000_000, "the engine has heard of it");
    let line = done(&["set"]).lines().find(|line| line.starts_with("linux.share")).unwrap().to_owned();
    assert_eq!(line.split_whitespace().take(4).collect::<Vec<_>>(), ["linux.share", "30", "-", "%"]);
    refused(
        &on(&["set", "linux.shar=1"]),
        1,
        &["`linux.shar` is none of the settings that change live; did you mean `linux.share`?"],
    );
    refused(
        &on(&["set", "spin_us=1", "quantum_us=1"]),
        1,
        &["quantum_us = 1 is out of range", "10 to 1000000"],
    );
    assert_eq!(now("engine.spin_us"), 200, "what is refused changes nothing");
    assert_eq!(on(&["set", "extend"]).status.code(), Some(2), "a value is wanted");

    // What the file says comes back with it.
    let told = done(&["reload"]);
    assert_eq!(told, "no class has changed; settings: device.tap0.rate, linux.share, extension.enabled\n");
    assert_eq!(now("linux.share"), serde_json::Value::Null);
}
