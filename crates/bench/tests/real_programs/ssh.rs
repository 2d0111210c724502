//! OpenSSH's server: each connection is a new image of it, whose child without rights may open no descriptor and has a
//! seccomp filter while it does the handshake.

use std::fs;
use std::net::SocketAddrV4;
use std::process::Command;

use crate::fixture::{Arm, Fixture, SOON, assert_same, find, twins, wait_until, write_file};

twins!(sshd_serves);

const PORT: &str = "2222";
const MIB: usize = 10;

/// Makes a key without a passphrase.
fn key(fixture: &Fixture, name: &str) -> String {
    let file = fixture.file(name).display().to_string();
    let made = Command::new(find("ssh-keygen"))
        .args(["-q", "-t", "ed25519", "-N", "", "-f", &file])
        .status()
        .unwrap();
    assert!(made.success(), "ssh-keygen {file}");
    file
}

/// The server's arguments.
fn configure(fixture: &Fixture, client_key: &str) -> [String; 4] {
    let host_key = key(fixture, "host-key");
    let file = fixture.file("sshd.conf");
    let text = format!(
        "Port {PORT}
ListenAddress {}
HostKey {host_key}
AuthorizedKeysFile {client_key}.pub
PidFile none
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
Subsystem sftp internal-sftp
",
        fixture.address()
    );
    fs::write(&file, text).unwrap();
    // Where its child without rights lives; Debian's service makes it.
    fs::create_dir_all("/run/sshd").unwrap();
    ["-D".into(), "-e".into(), "-f".into(), file.display().to_string()]
}

fn sshd_serves(arm: Arm) {
    let fixture = Fixture::new(arm);
    let client_key = key(&fixture, "client-key");
    let arguments = configure(&fixture, &client_key);
    let mut server = fixture.start("sshd", &arguments.each_ref().map(String::as_str));
    fixture.wait_for_port(SocketAddrV4::new(fixture.address(), PORT.parse().unwrap()), &mut server);
    let key_file = format!("IdentityFile={client_key}");
    let port = format!("Port={PORT}");
    let options = [
        "-F",
        "none",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-o",
        "LogLevel=ERROR",
        "-o",
        "BatchMode=yes",
        "-o",
        &key_file,
        "-o",
        &port,
    ];
    let host = format!("root@{}", fixture.address());
    let run =
        |program: &str, more: &[&str]| fixture.run_peer(program, &[&options[..], more].concat(), SOON * 2);

    let said = run("ssh", &[&host, "echo one; id -u; exit 0"]);
    assert_eq!(said, "one\n0\n");

    let (sent, there, back) = (fixture.file("sent"), fixture.file("there"), fixture.file("back"));
    write_file(&sent, MIB);
    let [sent_name, there_name, back_name] = [&sent, &there, &back].map(|path| path.display().to_string());
    // Both ways at once.
    let line = format!("ssh {} {host} cat < {sent_name} > {back_name}", options.join(" "));
    fixture.run_peer("sh", &["-c", &line], SOON * 2);
    assert_same(&sent, &back);

    let batch = fixture.file("batch");
    fs::write(&batch, format!("put {sent_name} {there_name}\nget {there_name} {back_name}.sftp\n")).unwrap();
    run("sftp", &["-q", "-b", &batch.display().to_string(), &host]);
    assert_same(&sent, &there);
    assert_same(&sent, &fixture.file("back.sftp"));

    is_forwarded(&fixture, &[&options[..], &["-N", &host]].concat());
    server.check().unwrap();
}

/// A port of the client host leads through the server to a server on the client host: it is a client on paths then.
fn is_forwarded(fixture: &Fixture, arguments: &[&str]) {
    let peer = fixture.peer_address();
    let directory = fixture.testbed().directory().display().to_string();
    let _web = fixture.start_peer("python3", &["-u", "-m", "http.server", "8000", "--directory", &directory]);
    let forward = format!("{peer}:9001:{peer}:8000");
    let ways = ["-L", &forward, "-o", "ExitOnForwardFailure=yes"];
    let mut client = fixture.start_peer("ssh", &[&ways[..], arguments].concat());
    for port in [8000, 9001] {
        let address = SocketAddrV4::new(peer, port);
        wait_until("a port is forwarded", SOON, || {
            client.check().unwrap();
            fixture.testbed().client().enter(|| std::net::TcpStream::connect(address)).unwrap().is_ok()
        });
    }
    let copy = fixture.file("forwarded");
    let url = format!("http://{peer}:9001/sent");
    fixture.run_peer("curl", &["-sSf", "-o", &copy.display().to_string(), &url], SOON * 2);
    assert_same(&fixture.file("sent"), &copy);
}
