//! Classes that follow what is asked on a connection.

use std::sync::mpsc::channel;

use scoutline_abi::api::{Answer, PathRow};
use scoutline_proto::request::matcher::{CookieCondition, HeaderCondition, HeaderValue};
use scoutline_proto::tcp::TcpStage;
use scoutline_sched::Level;

use super::*;
use crate::settings::{ClassSettings, Requests};
use crate::socket::StreamStage;

fn class(name: &str, priority: u8, change: impl FnOnce(&mut ClassSettings)) -> ClassSettings {
    let mut class = ClassSettings::new(name);
    class.level = Level::Priority(priority);
    change(&mut class);
    class
}

fn url(name: &str, priority: u8, path: &str) -> ClassSettings {
    class(name, priority, |class| class.request.paths = vec![path.to_owned()])
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: www.example.org\r\n\r\n")
}

fn answer(len: usize) -> Vec<u8> {
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n").into_bytes();
    answer.resize(answer.len() + len, b'x');
    answer
}

/// A connection whose client asks and whose server answers.
struct Asking {
    pair: Pair,
    client: u32,
    server: u32,
}

impl Asking {
    fn new(seed: u64, config: WireConfig, classes: Vec<ClassSettings>) -> Asking {
        let mut pair = Pair::new(seed, config);
        change(&mut pair, classes);
        let (_, client, server) = pair.established(80);
        Asking { pair, client, server }
    }

    /// Sends this and waits until the program on the server has all of it.
    fn send(&mut self, text: &str) {
        let (client, server) = (self.client, self.server);
        let (mut sent, mut got) = (0, Vec::new());
        self.pair.until("the request", |pair| {
            sent += pair.client.write(client, &text.as_bytes()[sent..]);
            got.extend(pair.server.read(server, usize::MAX));
            got.len() == text.len()
        });
        assert_eq!(got, text.as_bytes());
    }

    fn answer(&mut self, bytes: &[u8]) {
        let (client, server) = (self.client, self.server);
        let (mut sent, mut got) = (0, 0);
        self.pair.until("the answer", |pair| {
            sent += pair.server.write(server, &bytes[sent..]);
            got += pair.client.read(client, usize::MAX).len();
            got == bytes.len()
        });
    }

    /// The class after this request; it is answered, too.
    fn ask(&mut self, text: &str) -> String {
        self.send(text);
        let class = self.class();
        self.answer(&answer(0));
        class
    }

    fn row(&self) -> PathRow {
        row(&self.pair)
    }

    fn class(&self) -> String {
        let row = self.row();
        let slot = self.pair.server.slot(self.server);
        let told: u32 = slot.importance.load(Ordering::Relaxed).into();
        assert_eq!(Some(told), row.priority.map(|priority| u32::from(priority) + 1), "the program knows");
        assert_eq!(slot.urgent.load(Ordering::Relaxed), u16::from(told > 1));
        row.class
    }

    fn looks(&mut self) -> bool {
        let paths = &mut self.pair.server.core.paths;
        let mut stages = paths.iter_mut().filter_map(|path| path.stage_mut::<StreamStage>());
        stages.any(|stage| stage.asked().is_some())
    }

    fn requests_of(&self, name: &str) -> u64 {
        let Answer::Stat(stat) = self.pair.server.core.answer_query(&Request::Stat, self.pair.now) else {
            panic!("no stat")
        };
        stat.classes.into_iter().find(|class| class.name == name).unwrap().requests
    }
}

fn row(pair: &Pair) -> PathRow {
    let Answer::Paths { paths } = pair.server.core.answer_query(&Request::Ps, pair.now) else { panic!("ps") };
    paths.into_iter().find(|row| row.state.as_deref() == Some("ESTABLISHED")).unwrap()
}

fn change(pair: &mut Pair, classes: Vec<ClassSettings>) {
    let (done, answer) = channel();
    let now = pair.now;
    pair.server.core.obey(Command::SetClasses(classes, done), now);
    pair.server.settle(now);
    assert!(matches!(answer.try_recv(), Ok(Answer::Done)));
}

/// The connection of the client, whose program asks: class, and what it is told of its importance.
fn asking_row(pair: &Pair, client: u32) -> PathRow {
    let rows = pair.client.rows(pair.now);
    let row = rows.into_iter().find(|row| row.state.as_deref() == Some("ESTABLISHED")).unwrap();
    let told: u32 = pair.client.slot(client).importance.load(Ordering::Relaxed).into();
    assert_eq!(Some(told), row.priority.map(|priority| u32::from(priority) + 1), "the program knows");
    row
}

fn of_outgoing(mut class: ClassSettings, requests: Requests) -> ClassSettings {
    class.requests = requests;
    class
}

#[test]
fn what_a_program_asks_of_others_gives_its_connection_a_class_where_rules_say_so() {
    for seed in 0..4 {
        let config = if seed == 0 { WireConfig::default() } else { hard_wire() };
        let mut pair = Pair::new(90 + seed, config);
        let now = pair.now;
        let rules = vec![
            of_outgoing(url("fast", 3, "/fast/"), Requests::Outgoing),
            of_outgoing(url("both", 2, "/both/"), Requests::Both),
            url("served", 7, "/"),
        ];
        pair.client.change(rules.clone(), now);
        pair.server.change(rules, now);
        let (_, client, server) = pair.established(80);
        let body = pattern(50_000, seed);
        for (path, class, seen_by_server) in [
            ("/fast/", "fast", "served"),
            ("/", "default", "served"),
            ("/both/", "both", "both"),
            ("/fast/again", "fast", "served"),
        ] {
            let text = get(path);
            assert_eq!(pair.client.write(client, text.as_bytes()), text.len());
            pair.until("the request", |pair| !pair.server.read(server, usize::MAX).is_empty());
            assert_eq!(asking_row(&pair, client).class, class, "{path}");
            assert_eq!(row(&pair).class, seen_by_server, "{path}");
            let mut answer = answer(body.len());
            let head = answer.len() - body.len();
            answer[head..].copy_from_slice(&body);
            let (mut sent, mut got) = (0, 0);
            pair.until("the answer", |pair| {
                sent += pair.server.write(server, &answer[sent..]);
                got += pair.client.read(client, usize::MAX).len();
                got == answer.len()
            });
            assert_eq!(asking_row(&pair, client).class, class, "{path}: until the next one");
        }
        let row = asking_row(&pair, client);
        assert_eq!((row.requests, row.details.get("requests-unseen")), (4, None));
    }
}

/// Rules come to a connection that has been used, and go; a server that speaks first is not looked into.
#[test]
fn rules_for_outgoing_requests_come_and_go() {
    let mut pair = Pair::new(95, WireConfig::default());
    let (_, client, server) = pair.established(80);
    let exchange = |pair: &mut Pair, path: &str| {
        pair.client.write(client, get(path).as_bytes());
        pair.until("the request", |pair| !pair.server.read(server, usize::MAX).is_empty());
        pair.server.write(server, &answer(10));
        pair.until("the answer", |pair| !pair.client.read(client, usize::MAX).is_empty());
        asking_row(pair, client).class
    };
    assert_eq!(exchange(&mut pair, "/fast/"), "default");
    let now = pair.now;
    pair.client.change(vec![of_outgoing(url("fast", 3, "/fast/"), Requests::Outgoing)], now);
    assert_eq!(exchange(&mut pair, "/fast/"), "fast");
    assert_eq!(exchange(&mut pair, "/slow/"), "default");
    assert_eq!(exchange(&mut pair, "/fast/"), "fast");
    let now = pair.now;
    pair.client.change(vec![url("fast", 3, "/fast/")], now);
    assert_eq!(asking_row(&pair, client).class, "default", "it is about incoming ones now");
    pair.client.change(vec![of_outgoing(url("fast", 3, "/fast/"), Requests::Both)], now);
    assert_eq!(exchange(&mut pair, "/fast/"), "fast");

    let mut pair = Pair::new(96, WireConfig::default());
    let now = pair.now;
    pair.client.change(vec![of_outgoing(url("fast", 3, "/fast/"), Requests::Outgoing)], now);
    let (_, client, server) = pair.established(25);
    pair.server.write(server, b"220 mail.example.org\r\n");
    pair.until("the greeting", |pair| !pair.client.read(client, usize::MAX).is_empty());
    pair.client.write(client, get("/fast/").as_bytes());
    pair.until("the line", |pair| !pair.server.read(server, usize::MAX).is_empty());
    let row = asking_row(&pair, client);
    assert_eq!(
        (&*row.class, &*row.details["requests-unseen"]),
        ("default", "bytes of the server that answer no request")
    );
}

#[test]
fn the_server_name_that_a_program_asks_for_gives_the_class() {
    let hello = include_bytes!("../../../../../fuzz/corpus-kept/tls/openssl-1.3");
    let mut pair = Pair::new(97, WireConfig::default());
    let now = pair.now;
    let mut shop = of_outgoing(class("shop", 4, |_| {}), Requests::Outgoing);
    shop.request.server_names = vec!["*.example.org".into()];
    pair.client.change(vec![shop], now);
    let (_, client, server) = pair.established(443);
    assert_eq!(pair.client.write(client, hello), hello.len());
    pair.until("the hello", |pair| !pair.server.read(server, usize::MAX).is_empty());
    let row = asking_row(&pair, client);
    assert_eq!(row.class, "shop", "{:?}", row.details);
}

/// A class that promises its paths CPU time takes no more of them than it can promise it to.
#[test]
fn a_request_for_a_class_that_cannot_carry_it_leaves_the_connection_where_it_began() {
    let mut pair = Pair::new(77, WireConfig::default());
    let video = ClassSettings { asks: super::wishes::EDF, ..url("video", 0, "/video/") };
    let one = ClassSettings { connections: Some(1), ..url("one", 5, "/one/") };
    let web = class("web", 1, |class| class.local_ports = vec![80..=80]);
    change(&mut pair, vec![video.clone(), one.clone(), web.clone()]);
    let all = super::wishes::connections(&mut pair, 3);
    let ask = |pair: &mut Pair, (client, server): (u32, u32), path: &str| {
        pair.client.write(client, get(path).as_bytes());
        pair.until("the request", |pair| !pair.server.read(server, 1_000).is_empty());
    };
    let answered = |pair: &mut Pair, (client, server): (u32, u32)| {
        pair.server.write(server, &answer(10));
        pair.until("the answer", |pair| !pair.client.read(client, 1_000).is_empty());
    };
    let row = |pair: &Pair, (_, server): (u32, u32)| {
        let end = pair.server.core.programs.values().next().unwrap().end(server).unwrap();
        let id = end.path.get().unwrap();
        let rows = pair.server.rows(pair.now);
        rows.into_iter().find(|row| row.id == id.to_string()).unwrap()
    };
    let class_of = |pair: &Pair, ends| row(pair, ends).class;
    let refusals = |pair: &Pair, class: &str, reason: &str| {
        pair.server.class_row(class, pair.now).drops.get(reason).copied().unwrap_or(0)
    };
    for &ends in &all {
        ask(&mut pair, ends, "/video/");
    }
    assert_eq!(all.iter().map(|&ends| class_of(&pair, ends)).collect::<Vec<_>>(), ["video", "video", "web"]);
    let third = row(&pair, all[2]);
    assert_eq!((third.priority, &*third.details["class-refused"]), (Some(1), "video (cpu-limit)"));
    assert_eq!(pair.server.slot(all[2].1).importance.load(Ordering::Relaxed), 2);
    answered(&mut pair, all[2]);
    assert_eq!(refusals(&pair, "video", "cpu-limit"), 1, "counted once for a request");
    assert_eq!(pair.server.counter("paths-refused", pair.now), 1);
    ask(&mut pair, all[2], "/video/");
    assert_eq!((class_of(&pair, all[2]), refusals(&pair, "video", "cpu-limit")), ("web".into(), 2));
    // One leaves; the next request finds room.
    answered(&mut pair, all[0]);
    ask(&mut pair, all[0], "/");
    assert!(pair.server.core.taken_back.is_empty(), "only a change of the rules takes from threads");
    answered(&mut pair, all[2]);
    ask(&mut pair, all[2], "/video/");
    assert_eq!((class_of(&pair, all[0]), class_of(&pair, all[2])), ("web".into(), "video".into()));
    assert_eq!(row(&pair, all[2]).details.get("class-refused"), None);
    answered(&mut pair, all[0]);
    ask(&mut pair, all[0], "/one/");
    answered(&mut pair, all[2]);
    ask(&mut pair, all[2], "/one/");
    assert_eq!((class_of(&pair, all[0]), class_of(&pair, all[2])), ("one".into(), "web".into()));
    assert_eq!(refusals(&pair, "one", "connection-limit"), 1);
    assert_eq!(pair.server.class_row("video", pair.now).promised_percent.round() as u64, 9);

    // Who returns to a class that has promised what it had to others stands there without a promise.
    let home = ClassSettings { asks: super::wishes::EDF, ..web };
    change(&mut pair, vec![one, video, home]);
    assert_eq!(pair.server.class_row("web", pair.now).promised_percent.round() as u64, 9);
    answered(&mut pair, all[0]);
    answered(&mut pair, all[1]);
    ask(&mut pair, all[0], "/");
    assert_eq!(row(&pair, all[0]).scheduling.policy, "priority");
    assert_eq!((row(&pair, all[0]).class, row(&pair, all[0]).priority), ("web".into(), Some(0)));
    assert_eq!(refusals(&pair, "web", "cpu-limit"), 1);
}

/// With loss and reordering, so that heads come in pieces, out of order, and twice.
#[test]
fn each_request_of_a_connection_has_its_class() {
    for seed in 0..6 {
        let config = if seed == 0 { WireConfig::default() } else { hard_wire() };
        let rules = vec![url("fast", 3, "/fast/"), url("slow", 1, "/slow/")];
        let mut asking = Asking::new(seed, config, rules);
        assert_eq!((asking.class(), asking.looks()), ("default".to_owned(), true));
        let mut count = [0; 3];
        for round in 0..12 {
            let which = [2, 0, 1, 0, 2, 1][round % 6];
            let path = ["/fast/", "/slow/", "/"][which];
            let body = "b".repeat(round % 4 * 700);
            let head = format!("POST {path}{round} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
            asking.send(&format!("{head}X-Long: {}\r\n\r\n{body}", "h".repeat(3_000)));
            let expected = ["fast", "slow", "default"][which];
            assert_eq!(asking.class(), expected, "seed {seed}, round {round}");
            count[which] += 1;
            // Longer than the ring: most of it is never looked at.
            asking.answer(&answer(round * 9_000));
            assert_eq!(asking.class(), expected, "until the next request");
        }
        for (name, count) in ["fast", "slow", "default"].iter().zip(count) {
            assert_eq!(asking.requests_of(name), count, "{name}");
        }
        assert_eq!(asking.row().requests, 12);
    }
}

#[test]
fn pipelined_requests_are_as_important_as_the_most_important() {
    let mut asking =
        Asking::new(1, WireConfig::default(), vec![url("a", 1, "/a"), url("b", 2, "/b"), url("c", 3, "/c")]);
    asking.send(&["/a", "/c", "/b"].map(get).concat());
    for (class, after) in [("c", "c"), ("c", "b"), ("b", "b")] {
        assert_eq!(asking.class(), class);
        asking.answer(&answer(10));
        assert_eq!(asking.class(), after);
    }
}

#[test]
fn a_connection_that_waits_to_be_accepted_comes_forward() {
    let mut pair = Pair::new(2, WireConfig::default());
    change(&mut pair, vec![url("fast", 3, "/fast")]);
    let listener = pair.listen(80);
    let clients = [pair.connect(80), pair.connect(80)];
    pair.until("both wait", |pair| pair.server.slot(listener).receive_tail.load(Ordering::Relaxed) == 2);
    assert_eq!(pair.server.slot(listener).importance.load(Ordering::Relaxed), 1);
    for (client, path) in clients.iter().zip(["/", "/fast"]) {
        pair.client.write(*client, get(path).as_bytes());
    }
    pair.until("one has become important", |pair| {
        pair.server.slot(listener).importance.load(Ordering::Relaxed) == 4
    });
    assert_eq!(pair.server.slot(listener).urgent.load(Ordering::Relaxed), 1);
}

#[test]
fn answers_out_of_files_are_followed() {
    let mut asking = Asking::new(3, hard_wire(), vec![url("fast", 3, "/fast")]);
    let bytes = pattern(200_000, 3);
    let mut file = tempfile();
    file.write_all(&bytes).unwrap();
    let map = Arc::new(FileMap::new(file.as_fd()).unwrap());
    let now = asking.pair.now;
    asking.pair.server.core.obey(Command::AddFile { region: RegionId(1), file: 7, map }, now);
    for round in 0..4 {
        asking.send(&get("/fast").repeat(2));
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len());
        let (client, server) = (asking.client, asking.server);
        assert_eq!(asking.pair.server.write(server, head.as_bytes()), head.len());
        let slot = asking.pair.server.slot(server);
        let tail = slot.send_tail.load(Ordering::Relaxed);
        let pushed = slot.extents_tail.load(Ordering::Relaxed);
        let extent = &slot.extents[pushed as usize % EXTENT_COUNT];
        extent.position.store(tail, Ordering::Relaxed);
        extent.offset.store(0, Ordering::Relaxed);
        extent.len.store(bytes.len() as u32, Ordering::Relaxed);
        extent.file.store(7, Ordering::Relaxed);
        slot.extents_tail.store(pushed + 1, Ordering::Release);
        slot.send_tail.store(tail + bytes.len() as u64, Ordering::Release);
        asking.pair.server.mark(server);
        let mut got = 0;
        asking.pair.until("the file", |pair| {
            got += pair.client.read(client, usize::MAX).len();
            got == head.len() + bytes.len()
        });
        asking.answer(&answer(5));
        assert_eq!(asking.ask(&get("/")), "default", "round {round}: nothing waits any more");
        assert_eq!(asking.row().details.get("requests-unseen"), None);
    }
}

#[test]
fn host_header_and_cookie_and_the_network_too() {
    let header = |name: &str, value: HeaderValue| {
        class(name, 1, |class| {
            class.request.headers = vec![HeaderCondition { name: "x-tier".into(), value }];
        })
    };
    let rules = vec![
        class("elsewhere", 9, |class| {
            class.request.paths = vec!["/".into()];
            class.sources = vec![([10, 9, 0, 0].into(), 16)];
        }),
        class("here", 2, |class| {
            class.request.paths = vec!["/here".into()];
            class.sources = vec![([10, 0, 0, 2].into(), 32)];
            class.local_ports = vec![80..=80];
        }),
        header("gold", HeaderValue::Exact("gold".into())),
        header("tiered", HeaderValue::Any),
        class("cookie", 1, |class| {
            class.request.cookies = vec![CookieCondition { name: "vip".into(), value: Some("1".into()) }];
        }),
        class("host", 1, |class| class.request.hosts = vec!["*.example.net".into()]),
        class("web", 0, |class| class.local_ports = vec![80..=80]),
    ];
    let mut asking = Asking::new(4, WireConfig::default(), rules);
    assert_eq!(asking.class(), "web");
    let with = |lines: &str| format!("GET / HTTP/1.1\r\n{lines}\r\n\r\n");
    for (text, class) in [
        (get("/here/x"), "here"),
        (with("Host: a\r\nX-Tier: gold"), "gold"),
        (with("Host: a\r\nX-Tier: silver"), "tiered"),
        (with("Host: a\r\nCookie: a=b; vip=1"), "cookie"),
        (with("Host: shop.example.net:80"), "host"),
        (with("Host: a\r\nCookie: vip=2"), "web"),
    ] {
        assert_eq!(asking.ask(&text), class, "{text}");
    }
}

#[test]
fn what_two_readers_would_read_differently_goes_back_to_the_network_class() {
    let rules = vec![url("fast", 3, "/fast"), class("web", 1, |class| class.local_ports = vec![80..=80])];
    let mut asking = Asking::new(5, WireConfig::default(), rules.clone());
    assert_eq!(asking.ask(&get("/fast")), "fast");
    let smuggling = "POST /fast HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(asking.ask(smuggling), "web");
    assert_eq!(asking.ask(&get("/fast")), "web", "for good");
    assert_eq!(asking.row().details["requests-unseen"], "ambiguous body length");
    change(&mut asking.pair, rules);
    assert_eq!(asking.class(), "web", "also when the classes are looked up again");
    assert_eq!(asking.ask(&get("/fast")), "web");
}

#[test]
fn tls_names_are_looked_up_again() {
    let hello = include_bytes!("../../../../../fuzz/corpus-kept/tls/openssl-1.3");
    let named = |name: &str, tls: &str| class(name, 2, |class| class.request.server_names = vec![tls.into()]);
    let mut asking =
        Asking::new(6, hard_wire(), vec![named("other", "other.org"), named("shop", "*.example.org")]);
    let (client, server) = (asking.client, asking.server);
    let (mut sent, mut got) = (0, 0);
    asking.pair.until("the hello", |pair| {
        sent += pair.client.write(client, &hello[sent..]);
        got += pair.server.read(server, usize::MAX).len();
        got == hello.len()
    });
    assert_eq!(asking.class(), "shop");
    assert_eq!(asking.row().details["requests-unseen"], "encrypted");
    let name = asking.row().details["server-name"].clone();
    change(&mut asking.pair, vec![named("exact", &name), named("shop", "*.example.org")]);
    assert_eq!(asking.class(), "exact");
    change(&mut asking.pair, vec![named("other", "other.org")]);
    assert_eq!(asking.class(), "default");
}

#[test]
fn rules_change_under_a_connection() {
    let fast = |path: &str| vec![url("fast", 3, path), url("slow", 1, "/slow")];
    let mut asking = Asking::new(7, WireConfig::default(), fast("/a"));
    assert_eq!(asking.ask(&get("/a")), "fast");
    change(&mut asking.pair, fast("/b"));
    assert_eq!(asking.class(), "default", "what was asked is not known any more");
    assert_eq!((asking.ask(&get("/a")).as_str(), asking.ask(&get("/b")).as_str()), ("default", "fast"));
    // A class that asks for the same keeps what it has, wherever it stands now, at its new priority.
    change(&mut asking.pair, vec![url("slow", 1, "/slow"), url("fast", 5, "/b")]);
    assert_eq!((asking.class().as_str(), asking.row().priority), ("fast", Some(5)));
    let near = class("near", 1, |class| class.sources = vec![([10, 0, 0, 0].into(), 8)]);
    change(&mut asking.pair, vec![near, url("fast", 5, "/b")]);
    assert_eq!((asking.class().as_str(), asking.looks()), ("near", false), "it takes everything from there");
    change(&mut asking.pair, vec![url("slow", 1, "/slow")]);
    assert_eq!((asking.ask(&get("/slow")).as_str(), asking.ask(&get("/x")).as_str()), ("slow", "default"));
    // In the middle of a request and its answer: the ones behind are read.
    asking.send("POST /slow HTTP/1.1\r\nContent-Length: 5\r\n\r\nab");
    change(&mut asking.pair, Vec::new());
    assert!(!asking.looks());
    change(&mut asking.pair, fast("/b"));
    asking.send("cde");
    assert_eq!(asking.class(), "default");
    asking.answer(&answer(100));
    assert_eq!(asking.ask(&get("/b")), "fast");
}

#[test]
fn a_class_that_goes_leaves_its_number_to_others() {
    let mut asking = Asking::new(8, WireConfig::default(), vec![url("one", 3, "/")]);
    asking.send(&get("/1").repeat(3));
    assert_eq!(asking.class(), "one");
    change(&mut asking.pair, vec![url("two", 2, "/2")]);
    assert_eq!(asking.class(), "default");
    // It has the number that "one" had.
    change(&mut asking.pair, vec![url("three", 4, "/3"), url("two", 2, "/2")]);
    for _ in 0..3 {
        asking.answer(&answer(0));
        assert_eq!(asking.class(), "default");
    }
    assert_eq!(asking.ask(&get("/3")), "three");
}

#[test]
fn nobody_pays_who_has_no_such_class() {
    let mut rules = vec![class("web", 1, |class| class.local_ports = vec![80..=80]), url("fast", 3, "/fast")];
    let mut asking = Asking::new(9, WireConfig::default(), rules.clone());
    assert!(!asking.looks(), "web takes everything before fast is asked");
    assert_eq!(asking.ask(&get("/fast")), "web");
    rules.swap(0, 1);
    change(&mut asking.pair, rules);
    assert!(asking.looks());
    // The client has opened it: what it asks is not looked at there.
    let (done, _answer) = channel();
    let now = asking.pair.now;
    asking.pair.client.core.obey(Command::SetClasses(vec![url("fast", 3, "/fast")], done), now);
    asking.pair.client.settle(now);
    assert_eq!(asking.ask(&get("/fast")), "fast");
    let Answer::Paths { paths } = asking.pair.client.core.answer_query(&Request::Ps, now) else {
        panic!("ps")
    };
    assert!(paths.iter().all(|row| row.class == "default"));
}

/// A program can write nothing but framing; an answer goes on all the same, and so does its end.
#[test]
fn framing_is_read_a_part_at_a_time() {
    let (client, server) = wire(33, WireConfig::default());
    let large = |settings: &mut EngineSettings| settings.buffers_grow = false;
    let mut pair = Pair {
        client: Host::with([10, 0, 0, 2], client, 4 * RINGS, large),
        server: Host::with([10, 0, 0, 1], server, 4 * RINGS, large),
        now: Time::from_millis(1),
    };
    change(&mut pair, vec![url("fast", 3, "/fast")]);
    let (_, client, server) = pair.established(80);
    let mut asking = Asking { pair, client, server };
    asking.send(&get("/fast"));
    let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    answer.extend(b"1\r\nx\r\n".repeat(30_000));
    answer.extend(b"0\r\n\r\n");
    let Asking { pair, .. } = &mut asking;
    assert_eq!(pair.server.write(server, &answer), answer.len());
    pair.server.request(server, slot_request::CLOSE);
    let now = pair.now;
    let core = &mut pair.server.core;
    core.listen_to_programs(now);
    let decision = core.schedule.dequeue(now).unwrap();
    let Entry::Path(id) = decision.entry else { panic!("{decision:?}") };
    core.run_path(id, &decision, now);
    let stage = core.paths.get(id).and_then(|path| path.stage::<TcpStage>()).unwrap();
    let info = stage.connection().unwrap().info();
    assert!((10_000..70_000).contains(&(info.unsent + info.unacked)), "{info:?}");
    let mut got = Vec::new();
    pair.until("the answer and its end", |pair| {
        got.extend(pair.client.read(client, usize::MAX));
        pair.client.state(client) & slot_state::PEER_FINISHED != 0
    });
    assert!(got == answer, "{} bytes", got.len());
}

#[test]
fn everything_returns() {
    let mut asking = Asking::new(10, WireConfig::default(), vec![url("fast", 3, "/fast")]);
    asking.send(&format!("GET /fast HTTP/1.1\r\nX-Half: {}", "h".repeat(5_000)));
    let held = || asking.pair.server.core.paths.budget().buffer_bytes();
    assert!(held() > 5_000, "what is held of a head is charged: {}", held());
    asking.send("\r\n\r\n");
    assert_eq!(asking.class(), "fast");
    asking.answer(&answer(1));
    let (client, server) = (asking.client, asking.server);
    asking.pair.client.request(client, slot_request::CLOSE);
    asking.pair.server.request(server, slot_request::CLOSE);
    asking.pair.until("the end", |pair| pair.server.socket_paths() == 1);
    let left = asking.pair.server.core.paths.budget().buffer_bytes();
    assert_eq!(left, u64::from(crate::socket::ACCEPT_RING), "the queue of who still listens");
}

#[test]
fn what_is_asked_lifts_no_background_program() {
    let mut pair = Pair::in_background(31, WireConfig::default());
    change(&mut pair, vec![url("important", 5, "/important"), class("web", 1, |_| {})]);
    let (_, client, server) = pair.established(80);
    let mut asking = Asking { pair, client, server };
    asking.send(&get("/important/thing"));
    let row = asking.row();
    assert_eq!((row.class.as_str(), row.priority), ("important", None));
    let slot = asking.pair.server.slot(server);
    assert_eq!((slot.importance.load(Ordering::Relaxed), slot.urgent.load(Ordering::Relaxed)), (0, 0));
}
