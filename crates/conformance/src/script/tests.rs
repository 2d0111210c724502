use std::path::Path;

use super::*;

fn script(text: &str) -> Result<Script, ParseError> {
    let file =
        std::env::temp_dir().join(format!("scoutline-script-{}-{:p}", std::process::id(), text.as_ptr()));
    std::fs::write(&file, text).unwrap();
    let script = load(&file, Path::new("/"));
    std::fs::remove_file(&file).unwrap();
    script
}

#[test]
fn one_of_each() {
    let script = script(
        "// RFC 9293 §3.5: about\n--mtu=1400\n0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n\
         +.1 < S 0:0(0) win 1000 <mss 1460,nop,wscale 7>\n+0 > S. 0:0(0) ack 1 <...>\n\
         +0~+.2 > 8080>40002 P. 1:11(10) ack 1 win 5 <sack 1:2 3:4,TS val * ecr 9> {ttl 64, df}\n\
         +0...0.5 read(3, ..., 10) = -1 EAGAIN (Resource temporarily unavailable)\n\
         * > [1:11(10)] icmp unreachable frag_needed mtu 1200\n+1 quiet\n\
         +0 poll([{fd=3, events=POLLIN|POLLOUT, revents=POLLIN}], 1, 0) = 1\n",
    )
    .unwrap();
    assert_eq!((script.about.as_str(), script.option("mtu")), ("RFC 9293 §3.5: about", Some("1400")));
    assert_eq!(script.events.len(), 8);
    assert_eq!(script.events[1].when.from, 100_000);
    let What::Out(packet) = &script.events[3].what else { panic!("no packet") };
    assert_eq!(
        (packet.ports, packet.mark("ttl"), packet.mark("df")),
        (Some((8080, 40002)), Some("64"), Some(""))
    );
    let Body::Tcp(tcp) = &packet.body else { panic!("not TCP") };
    assert_eq!((tcp.flags, tcp.sequence, tcp.len, tcp.window), (flag::PSH | flag::ACK, 1, 10, Some(5)));
    assert_eq!(
        tcp.options,
        Options::List(vec![TcpOption::Sack(vec![(1, 2), (3, 4)]), TcpOption::Timestamps(None, Some(9))])
    );
    let What::Call(call) = &script.events[4].what else { panic!("no call") };
    assert_eq!((call.result, call.errno.as_deref()), (Some(-1), Some("EAGAIN")));
    assert!(script.events[4].when.returns && script.events[4].when.to == Some(500_000));
    assert!(script.events[5].when.any);
}

#[test]
fn errors_name_the_line() {
    for (text, line) in [
        ("0 socket() = 3\n+0 < S 0:1(0)\n", 2),
        ("\n\n+0 nonsense\n", 3),
        ("+0 < X 0:0(0)\n", 1),
        ("+0 < S 0:0(0) <speed 3>\n", 1),
    ] {
        let error = script(text).unwrap_err().to_string();
        assert!(error.contains(&format!(":{line}: expected")), "{error}");
    }
}
