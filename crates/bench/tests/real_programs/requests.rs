//! Classes that follow what is asked: nginx, unmodified, with clients that ask for this and that.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};

use scoutline_bench::process::Process;
use scoutline_bench::server::{Kind, Server};
use serde_json::Value;

use crate::classes::{finish_load, keep_up, start_load, tool};
use crate::fixture::{Arm, Fixture, SOON, certificate, wait_until, write_file_kib};
use crate::nginx::{Side, start, start_with};

/// Sent from where it lies, by sendfile; in pieces.
const LARGE_KIB: usize = 700;

/// A daemon with these classes.
fn fixture(classes: &str) -> Fixture {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with(classes);
    fixture
}

/// An nginx with files of these names.
fn web(fixture: &Fixture, files: &[(&str, usize)]) -> Process {
    let root = fixture.file("served");
    for (name, kib) in files {
        let file = root.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        write_file_kib(&file, *kib);
    }
    start(fixture, Side::UnderTest, &root)
}

/// A connection that a client keeps.
struct Kept {
    stream: TcpStream,
    peer: String,
    /// Came behind the response that was read last.
    ahead: Vec<u8>,
}

impl Kept {
    fn new(fixture: &Fixture) -> Kept {
        let address = SocketAddrV4::new(fixture.address(), 80);
        let connect = || TcpStream::connect_timeout(&address.into(), SOON).unwrap();
        let stream = fixture.testbed().client().enter(connect).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let peer = stream.local_addr().unwrap().to_string();
        Kept { stream, peer, ahead: Vec::new() }
    }

    fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    /// Reads one response with a length; its status and the length.
    fn response(&mut self) -> (u32, usize) {
        let mut buffer = vec![0; 1 << 16];
        let head = loop {
            if let Some(end) = self.ahead.windows(4).position(|window| window == b"\r\n\r\n") {
                break String::from_utf8(self.ahead.drain(..end + 4).collect()).unwrap();
            }
            self.more(&mut buffer);
        };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let length: usize = length.parse().unwrap();
        while self.ahead.len() < length {
            self.more(&mut buffer);
        }
        self.ahead.drain(..length);
        (status, length)
    }

    fn more(&mut self, buffer: &mut [u8]) {
        let got = self.stream.read(buffer).unwrap();
        assert!(got > 0, "the server has closed");
        self.ahead.extend(&buffer[..got]);
    }

    /// Asks, and gives the class that the connection then has, with its priority.
    fn ask(&mut self, fixture: &Fixture, path: &str, fields: &str) -> (String, Option<u64>) {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: server\r\n{fields}\r\n"));
        assert_eq!(self.response().0, 200, "{path}");
        self.class(fixture)
    }

    fn row(&self, fixture: &Fixture) -> Value {
        let ours = |path: &Value| path["peer"] == self.peer.as_str();
        fixture.paths_now().into_iter().find(ours).unwrap_or_else(|| panic!("no path to {}", self.peer))
    }

    fn class(&self, fixture: &Fixture) -> (String, Option<u64>) {
        let row = self.row(fixture);
        (row["class"].as_str().unwrap().to_owned(), row["priority"].as_u64())
    }
}

fn class_row(fixture: &Fixture, name: &str) -> Value {
    let stat = fixture.ask("stat");
    let classes = stat["classes"].as_array().unwrap();
    classes.iter().find(|class| class["name"] == name).unwrap_or_else(|| panic!("no class {name}")).clone()
}

fn requests(fixture: &Fixture, name: &str) -> u64 {
    class_row(fixture, name)["requests"].as_u64().unwrap()
}

#[test]
fn each_request_on_a_kept_connection_has_its_class() {
    let fixture = fixture(
        "[[class]]\nname = \"fast\"\nurl = [\"/fast/\"]\npriority = 3\nlocal_port = [80]\n\
         [[class]]\nname = \"gold\"\nheader = [\"X-Tier: gold\"]\npriority = 2\n\
         [[class]]\nname = \"known\"\ncookie = [\"session\"]\npriority = 1\n\
         [[class]]\nname = \"elsewhere\"\nurl = [\"/\"]\nsource = [\"10.99.0.0/16\"]\npriority = 9\n",
    );
    let _server =
        web(&fixture, &[("fast/a", 1), ("fast/large", LARGE_KIB), ("slow", 16), ("large", LARGE_KIB)]);
    let is = |name: &str, priority| (name.to_owned(), Some(priority));
    let mut kept = Kept::new(&fixture);
    let fast = requests(&fixture, "fast");
    for (path, fields, expected) in [
        ("/slow", "", is("default", 0)),
        ("/fast/a", "", is("fast", 3)),
        ("/large", "", is("default", 0)),
        ("/fast/large", "", is("fast", 3)),
        ("/slow", "x-tier: gold\r\n", is("gold", 2)),
        ("//fast/./a", "X-Tier: gold\r\n", is("fast", 3)),
        ("/slow", "X-Tier: silver\r\nCookie: theme=dark; session=1\r\n", is("known", 1)),
        ("/large?x=/fast/", "", is("default", 0)),
    ] {
        assert_eq!(kept.ask(&fixture, path, fields), expected, "{path} {fields}");
    }
    assert_eq!(requests(&fixture, "fast") - fast, 3, "{}", class_row(&fixture, "fast"));
    assert!(class_row(&fixture, "fast")["bytes_out"].as_u64().unwrap() >= (LARGE_KIB << 10) as u64);
    assert!(class_row(&fixture, "gold")["bytes_out"].as_u64().unwrap() < (LARGE_KIB << 10) as u64);

    // Pipelined: while the important one waits behind others, all are important.
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n");
    kept.send(&[get("/large"), get("/fast/a"), get("/slow")].concat());
    assert_eq!([(); 3].map(|()| kept.response().0), [200; 3]);
    assert_eq!(kept.class(&fixture), is("default", 0), "the last was ordinary");
    assert_eq!(requests(&fixture, "fast") - fast, 6, "all three counted where the most important stood");
    assert_eq!(kept.ask(&fixture, "/fast/a", ""), is("fast", 3));
    assert_eq!(kept.row(&fixture)["requests"], 12);
}

#[test]
fn ambiguous_requests_get_the_class_of_the_network() {
    let fixture = fixture(
        "[[class]]\nname = \"fast\"\nurl = [\"/fast/\"]\npriority = 3\n\
         [[class]]\nname = \"web\"\nlocal_port = [80]\npriority = 1\n",
    );
    let _server = web(&fixture, &[("fast/a", 1), ("slow", 16)]);
    let mut kept = Kept::new(&fixture);
    assert_eq!(kept.ask(&fixture, "/fast/a", "").0, "fast");
    // nginx takes the last of them; another reader might take a bare line feed for the end of a line, or not.
    kept.send("GET /fast/a HTTP/1.1\nHost: server\n\n");
    assert_eq!(kept.response().0, 200);
    assert_eq!(kept.class(&fixture), ("web".to_owned(), Some(1)));
    assert_eq!(kept.row(&fixture)["details"]["requests-unseen"], "a line ends without carriage return");
    assert_eq!(kept.ask(&fixture, "/fast/a", "").0, "web", "for good");
    // Two lengths: nginx refuses, and we do not read on.
    let mut kept = Kept::new(&fixture);
    assert_eq!(kept.ask(&fixture, "/fast/a", "").0, "fast");
    kept.send("POST /fast/a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n");
    assert_eq!(kept.response().0, 400);
    assert_ne!(kept.class(&fixture).0, "fast");
    assert_eq!(Kept::new(&fixture).ask(&fixture, "/fast/a", "").0, "fast", "others are served as before");
}

#[test]
fn rules_about_urls_change_under_load() {
    const ROUNDS: usize = 24;
    let mut fixture = fixture("[engine]\ntime_wait_s = 1\n");
    let mut server = {
        let paths = fixture.paths();
        let paths = paths.as_ref().map(|(program, daemon)| (program.as_path(), *daemon));
        let kind = Kind::Nginx { workers: 2, keepalive: true };
        Server::start(fixture.testbed(), 0, kind, None, paths).unwrap_or_else(|error| panic!("{error:#}"))
    };
    let kept = |path: &'static str| ["--clients", "8", "--path", path, "--keepalive", "--think", "2000"];
    let (near, far) = (kept("/16k"), kept("/100k"));
    let mut count = 0;
    let (mut first, mut second) = (start_load(&fixture, &near), start_load(&fixture, &far));
    // Connections in a class of this priority, and how many there are.
    let all_at = |fixture: &Fixture| {
        let rows = fixture.paths_now();
        let open: Vec<_> = rows.iter().filter(|row| row["state"] == "ESTABLISHED").collect();
        let of = |class: &str| open.iter().filter(|row| row["class"] == class).count();
        (of("asked"), of("default"))
    };
    wait_until("the load has begun", SOON, || all_at(&fixture).1 >= 12);
    tool(&fixture, &["class", "add", "asked", "url=/16k", "priority=2"]);
    for round in 0..ROUNDS {
        // Connections that were there when the rule came are followed like those that came later.
        wait_until("half of them are asked for that", SOON, || {
            keep_up(&fixture, &mut first, &near, &mut count);
            keep_up(&fixture, &mut second, &far, &mut count);
            let (asked, others) = all_at(&fixture);
            asked >= 6 && others >= 6
        });
        match round % 4 {
            0 => _ = tool(&fixture, &["class", "set", "asked", "url=/100k,/250k"]),
            1 => _ = tool(&fixture, &["class", "set", "asked", "url=/16k", "priority=3"]),
            2 => {
                tool(&fixture, &["class", "remove", "asked"]);
                tool(&fixture, &["class", "add", "asked", "url=/100", "priority=1"]);
            }
            _ => _ = tool(&fixture, &["class", "set", "asked", "url=", "header=User-Agent", "cookie=none"]),
        }
        if round % 4 == 3 {
            assert_eq!(all_at(&fixture).0, 0, "nobody sends such a cookie");
            tool(&fixture, &["class", "set", "asked", "header=", "cookie=", "url=/16k"]);
        }
    }
    count += finish_load(&mut first) + finish_load(&mut second);
    server.check().unwrap();
    fixture.daemon().check().unwrap();
    assert!(count > 1000, "{count}");
}

#[test]
fn tls_connections_are_classed_by_server_name() {
    const LEN: u64 = (LARGE_KIB << 10) as u64;
    let fixture = fixture(
        "[[class]]\nname = \"shop\"\ntls_name = [\"shop.example.org\"]\npriority = 2\n\
         [[class]]\nname = \"rest\"\ntls_name = [\"*.example.org\"]\npriority = 1\n",
    );
    let (key, cert) = certificate(&fixture);
    let root = fixture.file("served");
    fs::create_dir_all(&root).unwrap();
    write_file_kib(&root.join("large"), LARGE_KIB);
    let server = format!(
        "listen 443 ssl; ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {cert}; ssl_certificate_key {key}; root {};",
        root.display()
    );
    let _server = start_with(&fixture, Side::UnderTest, &server, 443);
    let bytes = |class: &str| class_row(&fixture, class)["bytes_out"].as_u64().unwrap();
    let mut before = ["shop", "rest", "default"].map(bytes);
    let address = fixture.address();
    let (name_of, none) = (|name: &str| format!("{name}.example.org"), address.to_string());
    for (name, option, place) in [
        (name_of("shop"), "--tlsv1.3", 0),
        (name_of("SHOP"), "--tls-max=1.2", 0),
        (name_of("www"), "--tlsv1.3", 1),
        (name_of("a.b"), "--tls-max=1.2", 1),
        ("shop.example.com".to_owned(), "--tlsv1.3", 2),
        (none, "--tlsv1.3", 2),
    ] {
        let resolve = format!("{name}:443:{address}");
        let url = format!("https://{name}/large");
        let option: Vec<&str> = option.split('=').collect();
        let arguments = [
            &["-sS", "-k", "--resolve", &resolve, "-o", "/dev/null", "-w", "%{size_download}"],
            &option[..],
            &[&url],
        ];
        assert_eq!(fixture.run_peer("curl", &arguments.concat(), SOON).trim(), LEN.to_string());
        let now = ["shop", "rest", "default"].map(bytes);
        for (other, (now, before)) in now.iter().zip(before).enumerate() {
            assert_eq!(now - before >= LEN, other == place, "{name}: {now} - {before}");
        }
        before = now;
    }
}

/// Every client but one asks for something ordinary, all the time. What is preferred is served at its own level, by a
/// thread that is raised for it, and everything is charged where it belongs.
#[test]
fn a_preferred_url_among_saturating_others() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with(
        "[extension]\nenabled = true\n[engine]\ntime_wait_s = 1\n\
         [[class]]\nname = \"preferred\"\nurl = [\"/1k\"]\npriority = 2\n",
    );
    let mut server = {
        let paths = fixture.paths();
        let paths = paths.as_ref().map(|(program, daemon)| (program.as_path(), *daemon));
        Server::start(fixture.testbed(), 0, Kind::NGINX, None, paths)
            .unwrap_or_else(|error| panic!("{error:#}"))
    };
    let (many, one) = (["--clients", "48", "--path", "/100k"], ["--clients", "1", "--path", "/1k"]);
    let started = requests(&fixture, "preferred");
    let raised = |fixture: &Fixture| fixture.ask("stat")["engine"]["threads-raised"].as_u64().unwrap();
    let before = raised(&fixture);
    let (mut ordinary, mut preferred) = (start_load(&fixture, &many), start_load(&fixture, &one));
    wait_until("an answer at the preferred level while others are served", SOON, || {
        let rows = fixture.paths_now();
        let at = |class: &str, priority: u64| {
            rows.iter()
                .any(|row| row["class"] == class && row["priority"] == priority && row["requests"] == 1)
        };
        at("preferred", 2) && at("default", 0)
    });
    let (others, ours) = (finish_load(&mut ordinary), finish_load(&mut preferred));
    server.check().unwrap();
    // The reports are about the time without warm-up.
    let counted = requests(&fixture, "preferred") - started;
    assert!(ours > 0 && counted >= ours, "{counted} of {ours}");
    assert!(requests(&fixture, "default") >= others);
    // Not for each: a thread that is raised still, or busy, is not raised anew.
    assert!(raised(&fixture) > before, "no thread was raised");
    let (preferred, default) = (class_row(&fixture, "preferred"), class_row(&fixture, "default"));
    let bytes_each = preferred["bytes_out"].as_u64().unwrap() / counted;
    assert!((1024..3000).contains(&bytes_each), "{bytes_each} bytes for 1 KiB: {preferred} {default}");
}

/// What programs here ask of others: a kept connection of curl changes its class with each request, and a server name
/// gives the class of a TLS connection, where rules are about outgoing requests.
#[test]
fn outgoing_requests_give_classes_to_programs_that_ask() {
    let fixture = fixture(
        "[[class]]\nname = \"api\"\nurl = [\"/api/\"]\nrequests = \"outgoing\"\n\
         [[class]]\nname = \"shop\"\ntls_name = [\"shop.example.org\"]\nrequests = \"both\"\n\
         [[class]]\nname = \"served\"\nurl = [\"/\"]\n",
    );
    let root = fixture.file("served");
    for name in ["api/small", "large"] {
        let file = root.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        write_file_kib(&file, LARGE_KIB);
    }
    let (key, cert) = certificate(&fixture);
    let server = format!(
        "listen 80; listen 443 ssl; ssl_certificate {cert}; ssl_certificate_key {key}; root {};",
        root.display()
    );
    let mut server = start_with(&fixture, Side::Peer, &server, 443);
    let base = format!("http://{}", fixture.peer_address());
    let [api, large] = ["api/small", "large"].map(|name| format!("{base}/{name}"));
    let arguments =
        ["-sS", "--fail", "-o", "/dev/null", "-o", "/dev/null", "-o", "/dev/null", "-w", "%{num_connects} "];
    let said = fixture.run("curl", &[&arguments[..], &[&api, &large, &api]].concat(), SOON);
    assert_eq!(said.trim(), "1 0 0", "one connection");
    assert_eq!((requests(&fixture, "api"), requests(&fixture, "default")), (2, 1));
    assert_eq!(requests(&fixture, "served"), 0, "that is about incoming ones");
    let bytes = |class: &str| class_row(&fixture, class)["bytes_in"].as_u64().unwrap();
    let len = (LARGE_KIB << 10) as u64;
    assert!(bytes("api") > 2 * len && (len..2 * len).contains(&bytes("default")));
    let resolve = format!("shop.example.org:443:{}", fixture.peer_address());
    let arguments = ["-sS", "-k", "--resolve", &resolve, "-o", "/dev/null", "https://shop.example.org/large"];
    fixture.run("curl", &arguments, SOON);
    assert!((len..2 * len).contains(&bytes("shop")));
    server.check().unwrap();
}
