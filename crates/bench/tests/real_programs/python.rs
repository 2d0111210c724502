//! python3: `http.server`, an `asyncio` echo server with a thousand connections, TLS, datagrams in fragments.

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::fixture::{
    Arm, Fixture, SOON, assert_same, certificate, script, twins, wait_for_line, write_file,
};

twins!(
    http_server_serves,
    asyncio_server_echoes,
    asyncio_client_asks,
    tls_server_echoes,
    tls_client_asks,
    ports_of_the_kernels_choice_connect,
    datagrams_of_every_size_echo,
);

const CONNECTIONS: &str = "1000";
const LIMIT: Duration = Duration::from_secs(60);

fn http_server_serves(arm: Arm) {
    let fixture = Fixture::new(arm);
    let files = fixture.file("files");
    fs::create_dir(&files).unwrap();
    write_file(&files.join("file"), 8);
    let directory = files.display().to_string();
    let mut server =
        fixture.start("python3", &["-u", "-m", "http.server", "8000", "--directory", &directory]);
    wait_for_line(&mut server, "Serving HTTP");
    let (url, got) = (format!("http://{}:8000", fixture.address()), fixture.file("got"));
    for _ in 0..20 {
        let listing = fixture.run_peer("curl", &["-sS", "--fail", "--max-time", "15", &url], SOON);
        assert!(listing.contains("href=\"file\""), "{listing}");
    }
    let (file, got_name) = (format!("{url}/file"), got.display().to_string());
    fixture.run_peer("curl", &["-sS", "--fail", "--max-time", "15", "-o", &got_name, &file], SOON);
    assert_same(&files.join("file"), &got);
    server.check().unwrap();
}

fn asyncio_server_echoes(arm: Arm) {
    let fixture = Fixture::new(arm);
    let mut server = fixture.start("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    let address = fixture.address().to_string();
    let client = script("echo_client.py");
    for _ in 0..2 {
        let text = fixture.run_peer("python3", &[&client, &address, "7000", CONNECTIONS], LIMIT);
        assert!(text.contains("all echoed"), "{text}");
    }
    server.check().unwrap();
}

pub(crate) fn asyncio_client_asks(arm: Arm) {
    let fixture = Fixture::new(arm);
    let mut server = fixture.start_peer("python3", &[&script("echo_server.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    let address = fixture.peer_address().to_string();
    let text = fixture.run("python3", &[&script("echo_client.py"), &address, "7000", CONNECTIONS], LIMIT);
    assert!(text.contains("all echoed"), "{text}");
    server.check().unwrap();
}

/// What `tls.py` wants to know of a server.
fn tls_arguments(role: &str, address: Ipv4Addr, (key, cert): (String, String)) -> [String; 6] {
    [script("tls.py"), role.into(), address.to_string(), "7443".into(), cert, key]
}

fn tls_server_echoes(arm: Arm) {
    let fixture = Fixture::new(arm);
    let files = certificate(&fixture);
    let [serve, ask] = ["serve", "ask"].map(|role| tls_arguments(role, fixture.address(), files.clone()));
    let mut server = fixture.start("python3", &serve.each_ref().map(String::as_str));
    wait_for_line(&mut server, "ready");
    let text = fixture.run_peer("python3", &ask.each_ref().map(String::as_str), LIMIT);
    assert!(text.contains("all echoed"), "{text}");
    server.check().unwrap();
}

fn tls_client_asks(arm: Arm) {
    let fixture = Fixture::new(arm);
    let files = certificate(&fixture);
    let [serve, ask] =
        ["serve", "ask"].map(|role| tls_arguments(role, fixture.peer_address(), files.clone()));
    let mut server = fixture.start_peer("python3", &serve.each_ref().map(String::as_str));
    wait_for_line(&mut server, "ready");
    let text = fixture.run("python3", &ask.each_ref().map(String::as_str), LIMIT);
    assert!(text.contains("all echoed"), "{text}");
    server.check().unwrap();
}

fn ports_of_the_kernels_choice_connect(arm: Arm) {
    let fixture = Fixture::new(arm);
    let peer = format!("{}:7003", fixture.peer_address());
    let mut echo = fixture.start_peer("python3", &[&script("several.py"), "accept", &peer]);
    wait_for_line(&mut echo, "ready");
    let text = fixture.run("python3", &[&script("several.py"), "anywhere", &peer], SOON);
    assert!(text.contains("connected"), "{text}");
}

pub(crate) fn datagrams_of_every_size_echo(arm: Arm) {
    let fixture = Fixture::new(arm);
    let datagrams = script("datagrams.py");
    let mut server = fixture.start("python3", &[&datagrams, "serve", "0.0.0.0", "7000"]);
    wait_for_line(&mut server, "ready");
    let mut peer = fixture.start_peer("python3", &[&datagrams, "serve", "0.0.0.0", "7000"]);
    wait_for_line(&mut peer, "ready");
    let (address, peer_address) = (fixture.address().to_string(), fixture.peer_address().to_string());
    let text = fixture.run_peer("python3", &[&datagrams, "ask", &address, "7000"], SOON);
    assert!(text.contains("all echoed"), "from the kernel: {text}");
    let text = fixture.run("python3", &[&datagrams, "ask", &peer_address, "7000"], SOON);
    assert!(text.contains("all echoed"), "to the kernel: {text}");
    server.check().unwrap();
}
