//! BIND 9: names over UDP and TCP, from a server that listens on each address that it finds.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddrV4;

use crate::fixture::{Arm, Fixture, SOON, twins, wait_until};

twins!(named_answers);

/// Names in the zone.
const NAMES: usize = 200;
/// Records of one name: more than any datagram holds, and less than the 100 that named takes.
const TEXTS: usize = 60;

pub(crate) fn named_answers(arm: Arm) {
    let fixture = Fixture::new(arm);
    let directory = fixture.testbed().directory().display().to_string();
    // Debian's profile for named has no place for this one.
    let configuration = format!(
        "options {{ directory \"{directory}\"; listen-on {{ {address}; }}; listen-on-v6 {{ none; }}; recursion no;\n\
         pid-file none; session-keyfile \"{directory}/session.key\"; dnssec-validation no; }};\n\
         controls {{ }};\nzone \"example.test\" {{ type primary; file \"{directory}/zone\"; }};\n",
        address = fixture.address()
    );
    let mut zone = String::from("$TTL 60\n@ IN SOA ns root 1 60 60 60 60\n@ IN NS ns\nns IN A 10.1.0.1\n");
    for name in 0..NAMES {
        writeln!(zone, "h{name} IN A 10.1.1.{name}").unwrap();
    }
    for text in 0..TEXTS {
        writeln!(zone, "big IN TXT \"{text} {}\"", "x".repeat(200)).unwrap();
    }
    fs::write(fixture.file("zone"), zone).unwrap();
    let file = fixture.file("named.conf");
    fs::write(&file, configuration).unwrap();
    let mut server = fixture.start("named", &["-g", "-4", "-c", &file.display().to_string()]);

    let at = format!("@{}", fixture.address());
    let dig = |arguments: &[&str]| {
        let quick = ["+short", "+time=5", "+tries=3"];
        fixture.run_peer("dig", &[&[at.as_str()], &quick[..], arguments].concat(), SOON)
    };
    fixture.wait_for_port(SocketAddrV4::new(fixture.address(), 53), &mut server);
    wait_until("the zone is loaded", SOON, || dig(&["h1.example.test"]).trim() == "10.1.1.1");
    // A batch of questions over each transport.
    for transport in ["+notcp", "+tcp"] {
        let mut names = String::new();
        (0..NAMES).for_each(|name| writeln!(names, "h{name}.example.test").unwrap());
        let batch = fixture.file("names");
        fs::write(&batch, names).unwrap();
        let answers = dig(&[transport, "-f", &batch.display().to_string()]);
        let expected: Vec<String> = (0..NAMES).map(|name| format!("10.1.1.{name}")).collect();
        assert_eq!(answers.lines().collect::<Vec<_>>(), expected, "{transport}");
    }
    // Cut over UDP, whole over TCP, as dig asks by itself.
    assert_eq!(dig(&["big.example.test", "TXT"]).lines().count(), TEXTS);
    if arm == Arm::Paths {
        let of_named = |path: &&serde_json::Value| {
            path["program"].as_str().is_some_and(|name| name.starts_with("named"))
        };
        assert!(fixture.paths_now().iter().filter(of_named).count() >= 2, "UDP and TCP");
    }
    server.check().unwrap();
}
