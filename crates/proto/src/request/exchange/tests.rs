use proptest::prelude::*;

use super::*;
use crate::request::matcher::Conditions;

const LIMITS: Limits = Limits { head_bytes: 1024, hello_bytes: 2048, outstanding: 8, interim: 3 };

/// Classes 0 to 3 by path, of this importance; class 4 for everything, and of importance 1.
const IMPORTANCE: [Importance; 5] = [9, 5, 5, 0, 1];

fn matcher() -> Matcher {
    let mut classes: Vec<_> = (0..4)
        .map(|class| Conditions { paths: vec![format!("/{class}")], ..Conditions::default() })
        .collect();
    classes.push(Conditions::default());
    Matcher::new(classes.iter().zip(IMPORTANCE)).unwrap()
}

/// An exchange, the matcher, and what was told of changes.
struct Bench {
    exchange: Exchange,
    matcher: Matcher,
    told: Option<ClassIndex>,
}

impl Bench {
    fn new() -> Bench {
        Bench { exchange: Exchange::new(LIMITS), matcher: matcher(), told: None }
    }

    fn inward(&mut self, bytes: &[u8]) -> Option<ClassIndex> {
        let change = self.exchange.on_inward(bytes, &self.matcher, |_| true);
        self.tell(change)
    }

    fn outward(&mut self, bytes: &[u8]) -> Option<ClassIndex> {
        let change = self.exchange.on_outward(bytes);
        self.tell(change)
    }

    fn get(&mut self, path: &str) -> Option<ClassIndex> {
        self.inward(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())
    }

    fn tell(&mut self, change: Option<ClassIndex>) -> Option<ClassIndex> {
        assert!(change.is_none() || change != self.told, "told twice");
        self.told = change.or(self.told);
        assert_eq!(self.told, self.exchange.class());
        change
    }
}

const EMPTY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[test]
fn keep_alive_changes_class_with_each_request() {
    let mut bench = Bench::new();
    assert_eq!(bench.exchange.class(), None);
    assert_eq!(bench.get("/1/x"), Some(1));
    assert_eq!(bench.outward(EMPTY), None, "it stays");
    assert_eq!(bench.inward(b"GET /3 HTTP/1.1\r\n"), None, "until the head is complete");
    assert_eq!(bench.inward(b"\r\n"), Some(3));
    assert_eq!(bench.outward(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"), None);
    assert_eq!(bench.exchange.skip_outward(100), None);
    assert_eq!((bench.exchange.outstanding(), bench.exchange.answered()), (0, 2));
    assert_eq!(bench.get("/other"), Some(4));
    assert_eq!(bench.get("/other"), None);
}

#[test]
fn pipelined_requests_lend_their_importance_to_those_before() {
    let mut bench = Bench::new();
    let pipeline =
        b"GET /3 HTTP/1.1\r\n\r\nGET /0 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\nGET /1 HTTP/1.1\r\n\r\n";
    assert_eq!(bench.inward(pipeline), Some(0));
    assert_eq!(bench.exchange.outstanding(), 4);
    assert_eq!(bench.outward(EMPTY), None, "the answer to /3 was urgent because of /0");
    assert_eq!(bench.outward(EMPTY), Some(2), "of two alike the first");
    assert_eq!(bench.outward(EMPTY), Some(1));
    assert_eq!(bench.outward(EMPTY), None);
    assert_eq!(bench.outward(b"x"), None);
    assert_eq!(bench.exchange.opaque(), Some(Opaque::Unsolicited));
    assert_eq!(bench.exchange.class(), Some(1));
}

#[test]
fn impossible_classes_are_not_given() {
    let mut exchange = Exchange::new(LIMITS);
    let matcher = matcher();
    let get = b"GET /0 HTTP/1.1\r\n\r\n";
    assert_eq!(exchange.on_inward(get, &matcher, |class| class != 0), Some(4));
    assert_eq!(exchange.on_outward(EMPTY), None);
    assert_eq!(exchange.on_inward(get, &matcher, |_| false), None, "no class: it stays");
    assert_eq!((exchange.class(), exchange.outstanding()), (Some(4), 1));
}

#[test]
fn classes_that_change_while_requests_wait() {
    let mut bench = Bench::new();
    bench.inward(b"GET /3 HTTP/1.1\r\n\r\nGET /0 HTTP/1.1\r\n\r\nGET /1 HTTP/1.1\r\n\r\n");
    assert_eq!(bench.exchange.class(), Some(0));
    let all: Vec<_> = (0..5)
        .map(|class| Conditions { paths: vec![format!("/{class}")], ..Conditions::default() })
        .collect();
    // Class 0 is gone, and 3 is the most important now.
    let others = Matcher::numbered([(1, &all[1], 2), (3, &all[3], 7)]).unwrap();
    bench.exchange.on_classes_changed(&others, |_| true, |class| class != 0);
    assert_eq!(bench.exchange.class(), Some(3));
    bench.matcher = others;
    bench.told = Some(3);
    assert_eq!(bench.outward(EMPTY), Some(1), "the answer to /0 is urgent because of /1");
    assert_eq!(bench.outward(EMPTY), None);
    assert_eq!(bench.outward(EMPTY), None);
    assert_eq!(bench.get("/3"), Some(3));
    bench.outward(EMPTY);
    bench.exchange.on_classes_changed(&bench.matcher, |_| true, |_| false);
    assert_eq!(bench.exchange.class(), None, "until the next request");
    bench.told = None;
    assert_eq!(bench.get("/1"), Some(1));
}

#[test]
fn bodies_need_not_be_shown() {
    let mut bench = Bench::new();
    assert_eq!((bench.exchange.unread_inward(), bench.exchange.unread_outward()), (0, 0));
    bench.inward(b"POST /1 HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
    assert_eq!((bench.exchange.unread_inward(), bench.exchange.unread_outward()), (7, 0));
    bench.exchange.skip_inward(7);
    assert_eq!(bench.exchange.unread_inward(), 0);
    bench.outward(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(bench.exchange.unread_outward(), 0);
    bench.outward(b"a0\r\nx");
    assert_eq!(bench.exchange.unread_outward(), 0x9f);
    bench.exchange.skip_outward(0x9f);
    assert_eq!(bench.exchange.unread_outward(), 0);
    bench.outward(b"\r\n0\r\n\r\n");
    assert_eq!((bench.exchange.answered(), bench.exchange.opaque()), (1, None));
}

/// A program that never answers for good does not keep a class by that.
#[test]
fn interim_answers_to_a_request_are_bounded() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.get("/0");
        for _ in 0..3 {
            bench.outward(b"HTTP/1.1 103 Early Hints\r\n\r\n");
        }
        assert_eq!(bench.exchange.opaque(), None, "each request has as many");
        bench.outward(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    }
    bench.get("/0");
    for _ in 0..2 {
        bench.outward(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n");
    }
    assert_eq!(bench.exchange.opaque(), Some(Opaque::TooManyInterim));
}

#[test]
fn interim_and_early_answers() {
    let mut bench = Bench::new();
    let post = b"POST /1 HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    assert_eq!(bench.inward(post), Some(1));
    bench.outward(b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(bench.exchange.outstanding(), 1);
    bench.inward(b"x");
    bench.outward(EMPTY);
    assert_eq!((bench.exchange.outstanding(), bench.exchange.answered()), (0, 1));
    assert_eq!(bench.inward(b"xGET /2 HTTP/1.1\r\n\r\n"), Some(2));
}

#[test]
fn upgrades_accepted_and_refused() {
    let ask = b"GET /1 HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut bench = Bench::new();
    bench.inward(ask);
    bench.outward(EMPTY);
    assert_eq!(bench.get("/2"), Some(2), "refused: HTTP goes on");
    bench.outward(EMPTY);
    bench.inward(ask);
    bench.outward(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x05hello");
    assert_eq!(bench.exchange.opaque(), Some(Opaque::Switched));
    assert_eq!(bench.get("/2"), None);
    assert_eq!(bench.exchange.class(), Some(1));
    let mut bench = Bench::new();
    bench.inward(b"CONNECT a:1 HTTP/1.1\r\n\r\n");
    assert_eq!(bench.get("/0"), None, "who is to read this?");
    assert_eq!(bench.exchange.opaque(), Some(Opaque::EarlyBytes));
}

#[test]
fn a_name_over_tls() {
    let hello = include_bytes!("../../../../../fuzz/corpus-kept/tls/openssl-1.3");
    let names = |name: &str| Conditions { server_names: vec![name.to_owned()], ..Conditions::default() };
    let classes = [names("other.org"), names("*.example.org"), Conditions::default()];
    let matcher = Matcher::new(classes.iter().map(|conditions| (conditions, 0))).unwrap();
    let mut exchange = Exchange::new(LIMITS);
    let (front, back) = hello.split_at(300);
    assert_eq!(exchange.on_inward(front, &matcher, |_| true), None);
    assert_eq!(exchange.on_inward(back, &matcher, |_| true), Some(1));
    assert_eq!(exchange.opaque(), Some(Opaque::Encrypted));
    let matcher = Matcher::new([(&classes[0], 0), (&classes[2], 0), (&classes[1], 0)]).unwrap();
    exchange.on_classes_changed(&matcher, |class| class != 1, |_| false);
    assert_eq!(exchange.class(), Some(2), "the name is looked up again");
    let matcher = Matcher::new(classes.iter().map(|conditions| (conditions, 0))).unwrap();
    let mut exchange = Exchange::new(LIMITS);
    let none = include_bytes!("../../../../../fuzz/corpus-kept/tls/no-name");
    assert_eq!(exchange.on_inward(none, &matcher, |_| true), Some(2));
    assert_eq!(exchange.opaque(), Some(Opaque::Unnamed(tls::NoName::NotSent)));
}

#[test]
fn what_is_neither_is_left_alone() {
    let opaque = |bench: &Bench| bench.exchange.opaque();
    let mut bench = Bench::new();
    assert_eq!(bench.outward(b"220 mail.example.org ESMTP\r\n"), None);
    assert_eq!(opaque(&bench), Some(Opaque::Unsolicited));
    for (bytes, reason) in [
        (&b"\0\0\0\x05hello"[..], Opaque::NotHttp),
        (b"*1\r\n$4\r\nPING\r\n", Opaque::NotHttp),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Opaque::Http2),
        (&[b'a'; 2000], Opaque::HeadTooLong),
    ] {
        let mut bench = Bench::new();
        assert_eq!(bench.inward(bytes), None);
        assert_eq!((opaque(&bench), bench.exchange.held()), (Some(reason), 0));
    }
    let mut bench = Bench::new();
    assert_eq!(bench.exchange.skip_inward(1), None);
    assert_eq!(opaque(&bench), Some(Opaque::Unseen));
}

#[test]
fn smuggling_ends_the_look() {
    let mut bench = Bench::new();
    assert_eq!(bench.get("/3"), Some(3));
    bench.outward(EMPTY);
    let both = b"POST /2 HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(bench.inward(both), Some(2), "this head can be read");
    assert_eq!(bench.exchange.opaque(), Some(Opaque::AmbiguousLength));
    assert!(Opaque::AmbiguousLength.is_suspect() && !Opaque::Switched.is_suspect());
    assert_eq!(bench.get("/0"), None);
}

#[test]
fn outstanding_requests_are_bounded_and_their_memory_returns() {
    let mut bench = Bench { exchange: Exchange::new(Limits { outstanding: 100, ..LIMITS }), ..Bench::new() };
    let idle = size_of::<Exchange>();
    assert!(idle <= 160, "{idle} bytes idle");
    for _ in 0..100 {
        bench.get("/1");
    }
    assert_eq!((bench.exchange.outstanding(), bench.exchange.opaque()), (100, None));
    let full = bench.exchange.held();
    bench.outward(&EMPTY.repeat(100));
    assert!(bench.exchange.held() < full.min(512), "{} bytes held", bench.exchange.held());
    for _ in 0..101 {
        bench.get("/1");
    }
    assert_eq!(bench.exchange.opaque(), Some(Opaque::TooManyOutstanding));
    assert_eq!(bench.exchange.class(), Some(1));
}

/// What happens on a connection: a request for a class, an answer, and how many bytes of either are shown at once.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ask { class: ClassIndex, body: usize },
    Answer { body: usize, shown: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..5u32, 0..30usize).prop_map(|(class, body)| Step::Ask { class, body }),
        (0..30usize, any::<bool>()).prop_map(|(body, shown)| Step::Answer { body, shown }),
    ]
}

proptest! {
    /// The class against a plain search over the outstanding requests, with a limit that is never reached.
    #[test]
    fn the_class_is_that_of_the_most_important(
        steps in proptest::collection::vec(step(), 1..60),
        piece_len in 1usize..80,
    ) {
        let mut bench = Bench { exchange: Exchange::new(Limits { outstanding: 100, ..LIMITS }), ..Bench::new() };
        let mut outstanding: Vec<ClassIndex> = Vec::new();
        let mut expected = None;
        for step in steps {
            match step {
                Step::Ask { class, body } => {
                    outstanding.push(class);
                    let path = if class < 4 { format!("/{class}") } else { "/other".to_owned() };
                    let text = format!(
                        "POST {path} HTTP/1.1\r\nContent-Length: {body}\r\n\r\n{}", "x".repeat(body)
                    );
                    for piece in text.as_bytes().chunks(piece_len) {
                        bench.inward(piece);
                    }
                }
                Step::Answer { body, shown } if !outstanding.is_empty() => {
                    outstanding.remove(0);
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {body}\r\n\r\n");
                    for piece in head.as_bytes().chunks(piece_len) {
                        bench.outward(piece);
                    }
                    if shown {
                        bench.outward(&vec![b'y'; body]);
                    } else {
                        let change = bench.exchange.skip_outward(body as u64);
                        bench.tell(change);
                    }
                }
                Step::Answer { .. } => {}
            }
            let top = outstanding.iter().copied().rev().max_by_key(|&class| IMPORTANCE[class as usize]);
            expected = top.or(expected);
            prop_assert_eq!(bench.exchange.class(), expected);
            prop_assert_eq!((bench.exchange.outstanding(), bench.exchange.opaque()), (outstanding.len(), None));
        }
    }
}
