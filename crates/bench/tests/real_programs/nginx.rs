//! An nginx that serves files and takes them too (WebDAV's PUT), on either host.

use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;

use scoutline_bench::process::Process;

use crate::fixture::Fixture;

/// The host that it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The server host: on paths in that arm.
    UnderTest,
    /// The client host, on the kernel.
    Peer,
}

/// Starts it and waits until the client host reaches it. `files` is made if need be.
pub(crate) fn start(fixture: &Fixture, side: Side, files: &Path) -> Process {
    fs::create_dir_all(files).unwrap();
    let files = files.display();
    let server = format!("listen 80; root {files}; location / {{ dav_methods PUT DELETE; }}");
    start_with(fixture, side, &server, 80)
}

/// Starts one with this `server`, and waits until the client host reaches it at `port`.
pub(crate) fn start_with(fixture: &Fixture, side: Side, server: &str, port: u16) -> Process {
    let directory = fixture.file(if side == Side::Peer { "nginx-peer" } else { "nginx" });
    fs::create_dir_all(&directory).unwrap();
    let here = directory.display();
    let configuration = directory.join("nginx.conf");
    let text = format!(
        "user root;
worker_processes 1;
daemon off;
pid {here}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    client_max_body_size 2g;
    client_body_temp_path {here}/body;
    proxy_temp_path {here}/proxy;
    fastcgi_temp_path {here}/fastcgi;
    uwsgi_temp_path {here}/uwsgi;
    scgi_temp_path {here}/scgi;
    server {{ {server} }}
}}
"
    );
    fs::write(&configuration, text).unwrap();
    let (directory, configuration) = (directory.display().to_string(), configuration.display().to_string());
    let arguments = ["-p", &directory, "-c", &configuration, "-e", "stderr"];
    let (mut nginx, address) = match side {
        Side::UnderTest => (fixture.start("nginx", &arguments), fixture.address()),
        Side::Peer => (fixture.start_peer("nginx", &arguments), fixture.peer_address()),
    };
    fixture.wait_for_port(SocketAddrV4::new(address, port), &mut nginx);
    nginx
}
