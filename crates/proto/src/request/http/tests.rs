use proptest::prelude::*;

use super::*;
use crate::request::Limits;

const LIMITS: Limits = Limits { head_bytes: 2048, hello_bytes: 2048, outstanding: 8, interim: 3 };

/// A request as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    first: u64,
    method: String,
    path: Option<String>,
    host: Option<String>,
    last: Option<u64>,
}

fn seen(first: u64, request: &Request<'_>) -> Seen {
    Seen {
        first,
        method: request.method.to_owned(),
        path: request.path().map(str::to_owned),
        host: request.host.map(|host| String::from_utf8_lossy(host).into_owned()),
        last: None,
    }
}

/// What a reader makes of these pieces.
fn requests<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Seen>, State) {
    let mut reader = RequestReader::new(&LIMITS);
    let mut all = Vec::new();
    for mut piece in pieces {
        while let Some(event) = reader.on_bytes(&mut piece) {
            match event {
                RequestEvent::Head { first, request } => all.push(seen(first, &request)),
                RequestEvent::End(span) => {
                    let request: &mut Seen = all.last_mut().expect("a head came before");
                    assert_eq!((request.first, request.last.replace(span.last)), (span.first, None));
                }
            }
        }
        assert!(piece.is_empty(), "it takes all");
        assert!(reader.held() <= LIMITS.head_bytes, "{} bytes held", reader.held());
    }
    (all, reader.state())
}

/// What a reader makes of these pieces; a piece of `None` bytes is skipped.
fn responses(pieces: &[(&[u8], bool)], kinds: &[RequestKind]) -> (Vec<ResponseEvent>, State) {
    let mut reader = ResponseReader::new(&LIMITS);
    let mut kinds = kinds.iter().copied();
    let mut answers = kinds.next();
    let mut all = Vec::new();
    for &(bytes, is_shown) in pieces {
        let mut piece = if is_shown { bytes } else { &[][..] };
        let mut skipped = if is_shown { None } else { reader.skip(bytes.len() as u64) };
        while let Some(event) = skipped.take().or_else(|| reader.on_bytes(&mut piece, answers)) {
            all.push(event);
            if let ResponseEvent::End(_) = event {
                answers = kinds.next();
            }
        }
        assert!(piece.is_empty(), "it takes all");
        assert!(reader.held() <= LIMITS.head_bytes, "{} bytes held", reader.held());
    }
    (all, reader.state())
}

fn response(bytes: &[u8], kind: RequestKind) -> (Vec<ResponseEvent>, State) {
    responses(&[(bytes, true)], &[kind])
}

fn one(text: &str) -> (Option<Seen>, State) {
    let (mut all, state) = requests([text.as_bytes()]);
    assert!(all.len() <= 1, "{text:?}: {all:?}");
    (all.pop(), state)
}

/// The same stream, cut at these places.
fn cut<'a>(stream: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<_> = cuts.iter().map(|place| place % (stream.len() + 1)).collect();
    places.push(stream.len());
    places.sort_unstable();
    let mut from = 0;
    places.into_iter().map(|to| &stream[std::mem::replace(&mut from, to)..to]).collect()
}

#[test]
fn a_request_and_what_it_says() {
    let text = "GET /a/b?c=d HTTP/1.1\r\nHost: Example.org:8080\r\nX-Tag:\t one two \r\nx-tag: three\r\n\
                Cookie: a=1; b = \"2\"; c\r\n\r\n";
    let mut reader = RequestReader::new(&LIMITS);
    let mut piece = text.as_bytes();
    let Some(RequestEvent::Head { first: 0, request }) = reader.on_bytes(&mut piece) else {
        panic!("a head")
    };
    assert_eq!((request.method, request.target, request.minor_version), ("GET", "/a/b?c=d", 1));
    assert_eq!((request.path(), request.host), (Some("/a/b"), Some(&b"Example.org:8080"[..])));
    assert_eq!(request.field("x-TAG").collect::<Vec<_>>(), [&b"one two"[..], b"three"]);
    assert_eq!(request.field("x-none").next(), None);
    assert_eq!(request.fields().count(), 4);
    assert_eq!(request.cookies().collect::<Vec<_>>(), [(&b"a"[..], &b"1"[..]), (b"b", b"\"2\"")]);
    let Some(RequestEvent::End(span)) = reader.on_bytes(&mut piece) else { panic!("an end") };
    assert_eq!(span, Span { first: 0, last: text.len() as u64 - 1 });
    assert!(reader.on_bytes(&mut piece).is_none());
    assert_eq!(reader.state(), State::Head);
}

#[test]
fn forms_of_targets() {
    let of = |line: &str| {
        let (seen, _) = one(&format!("{line} HTTP/1.1\r\nHost: field\r\n\r\n"));
        let seen = seen.expect(line);
        (seen.path, seen.host.expect("a host"))
    };
    let path = |text: &str| Some(text.to_owned());
    assert_eq!(of("GET /x#y"), (path("/x"), "field".into()));
    assert_eq!(of("GET http://Other:81/x/y?z"), (path("/x/y"), "Other:81".into()));
    assert_eq!(of("GET http://user:pass@other"), (path("/"), "other".into()));
    assert_eq!(of("GET http://other?q=/"), (path("/"), "other".into()));
    assert_eq!(of("GET /redirect?to=http://evil/x"), (path("/redirect"), "field".into()));
    assert_eq!(of("OPTIONS *"), (None, "field".into()));
    assert_eq!(of("CONNECT other:443"), (None, "field".into()));
    assert_eq!(of("GET relative"), (None, "field".into()));
}

#[test]
fn the_connection_after_a_request() {
    let state = |text: &str| one(text).1;
    assert_eq!(state("GET / HTTP/1.1\r\n\r\n"), State::Head);
    assert_eq!(state("GET / HTTP/1.1\r\nConnection: x, Close\r\n\r\nGET / HTTP/1.1\r\n\r\n"), State::Last);
    assert_eq!(state("GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n"), State::Last);
    assert_eq!(state("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), State::Head);
    assert_eq!(state("GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n"), State::Waiting);
    assert_eq!(state("CONNECT a:1 HTTP/1.1\r\n\r\n"), State::Waiting);
    assert_eq!(state("CONNECT a:1 HTTP/1.1\r\n\r\nx"), State::Opaque(Opaque::EarlyBytes));
    assert_eq!(state("POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nabc"), State::Body);
    assert_eq!(state("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), State::Opaque(Opaque::Http2));
}

#[test]
fn a_refused_switch_goes_on() {
    let mut reader = RequestReader::new(&LIMITS);
    let mut read = |bytes: &[u8], answer: bool| {
        if answer {
            reader.on_answered();
        }
        let mut piece = bytes;
        let mut count = 0;
        while reader.on_bytes(&mut piece).is_some() {
            count += 1;
        }
        (count, reader.state())
    };
    let ask = b"POST / HTTP/1.1\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\n";
    assert_eq!(read(ask, false), (1, State::Body));
    assert_eq!(read(b"x", false), (1, State::Waiting));
    assert_eq!(read(ask, true), (1, State::Body));
    // Answered before its body was there.
    assert_eq!(read(b"x", true), (1, State::Head));
}

/// Framing that two parsers could read in two ways. The class of the request is decided where the head can be read.
#[test]
fn what_could_be_smuggling_is_opaque() {
    let length = |fields: &str| format!("POST /x HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n0\r\n\r\n");
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: -1",
        "Content-Length: 0x5",
        "Content-Length: 5 5",
        "Content-Length:",
        "Content-Length: 18446744073709551616",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked;x",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: ,chunked",
        "Transfer-Encoding:",
    ] {
        let (seen, state) = one(&length(fields));
        assert_eq!(state, State::Opaque(Opaque::AmbiguousLength), "{fields}");
        assert_eq!(seen.expect("classified").path.as_deref(), Some("/x"), "{fields}");
    }
    let old = one("POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_eq!(old.1, State::Opaque(Opaque::AmbiguousLength));
}

#[test]
fn what_does_not_parse_is_opaque() {
    let opaque = |text: &str, reason| {
        let (seen, state) = one(text);
        assert_eq!(state, State::Opaque(reason), "{text:?}");
        seen.is_some()
    };
    for text in [
        "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length : 5\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length\x0b: 5\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\n: empty\r\n\r\n",
        "GET / HTTP/1.1\r\nA: b\rc\r\n\r\n",
        "GET / HTTP/1.1\r\nA: b\0c\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\r\n\r\n",
        "GET  / HTTP/1.1\r\n\r\n",
        "GET\t/ HTTP/1.1\r\n\r\n",
        "G(T / HTTP/1.1\r\n\r\n",
        "GET /a b HTTP/1.1\r\n\r\n",
    ] {
        assert!(!opaque(text, Opaque::Malformed));
    }
    for text in
        ["GET /\r\n", "GET / HTTP/1.2\r\n", "GET / HTTP/1.1 \r\n", "*1\r\n$4\r\nPING\r\n", "HTTP/1.1\r\n"]
    {
        assert!(!opaque(text, Opaque::NotHttp));
    }
    // A bare line feed ends a line for some: the head can be read, what follows it cannot be sure.
    for text in [
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\nGET /b HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\nGET /b HTTP/1.1\r\n\r\n",
    ] {
        assert!(opaque(text, Opaque::BareLineFeed));
    }
    assert!(opaque("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Opaque::AmbiguousHost));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a:\r\n".repeat(MAX_FIELDS));
    assert_eq!(one(&many).1, State::Head);
    let more = format!("GET / HTTP/1.1\r\n{}\r\n", "a:\r\n".repeat(MAX_FIELDS + 1));
    assert!(!opaque(&more, Opaque::TooManyFields));
}

#[test]
fn a_head_may_be_as_long_as_the_limit() {
    let of_len = |len: usize| {
        let start = "GET / HTTP/1.1\r\nA: ";
        format!("{start}{}\r\n\r\n", "x".repeat(len - start.len() - 4))
    };
    assert_eq!(one(&of_len(LIMITS.head_bytes)).1, State::Head);
    assert_eq!(one(&of_len(LIMITS.head_bytes + 1)).1, State::Opaque(Opaque::HeadTooLong));
    let endless = [b'x'; 100];
    let (_, state) = requests((0..100).map(|_| &endless[..]));
    assert_eq!(state, State::Opaque(Opaque::HeadTooLong));
}

#[test]
fn chunks() {
    let head = "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n";
    for body in [
        "0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "5;name=value;\"a\"\r\nhello\r\n00;x\r\nTrailer: a\r\nb : c\r\n\r\n",
        "5 \t;x\r\nhello\r\n0 \r\n\r\n",
        "00000000000000A\r\n0123456789\r\n0\r\n\r\n",
    ] {
        let text = format!("{head}{body}GET /next HTTP/1.1\r\n\r\n");
        let (all, state) = requests([text.as_bytes()]);
        assert_eq!((all.len(), state), (2, State::Head), "{body:?}: {all:?}");
        assert_eq!(all[1].first, (head.len() + body.len()) as u64, "{body:?}");
    }
    for body in [
        "\r\n",
        " 5\r\n",
        ";\r\n",
        "g\r\n",
        "0x5\r\n",
        "-1\r\n",
        "5\n",
        "5;x\n",
        "5\rx",
        "5;x\rx",
        "5 5\r\n",
        "5\r\nhello!",
        "5\r\nhello\n",
        "5\r\nhello\r0",
        "0\r\n\n",
        "0\r\nA: b\n",
        "0\r\nA: b\rx",
        "0\r\n\rx",
        "00000000000000005\r\n",
        "5\r\nhello\r\n\r\n",
    ] {
        let (_, state) = one(&format!("{head}{body}"));
        assert_eq!(state, State::Opaque(Opaque::MalformedChunk), "{body:?}");
    }
    let long = "x".repeat(LIMITS.head_bytes + 1);
    for body in [format!("5;{long}"), format!("0\r\n{long}"), format!("0\r\n{}", "a\r\n".repeat(3000))] {
        assert_eq!(one(&format!("{head}{body}")).1, State::Opaque(Opaque::HeadTooLong));
    }
}

#[test]
fn responses_by_status_and_kind() {
    use RequestKind::{Connect, Head, Other};
    let state = |text: &str, kind| response(text.as_bytes(), kind).1;
    assert_eq!(state("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", Other), State::Head);
    assert_eq!(state("HTTP/1.1 200\r\nContent-Length: 3\r\n\r\nab", Other), State::Body);
    assert_eq!(state("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", Head), State::Head);
    assert_eq!(state("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Head), State::Head);
    assert_eq!(state("HTTP/1.1 204 No\r\n\r\n", Other), State::Head);
    assert_eq!(state("HTTP/1.1 304 No\r\nContent-Length: 3\r\n\r\n", Other), State::Head);
    assert_eq!(state("HTTP/1.1 200 OK\r\n\r\nall that comes", Other), State::Body);
    assert_eq!(state("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nall that comes", Other), State::Body);
    assert_eq!(state("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Other), State::Head);
    assert_eq!(state("HTTP/1.1 200 OK\r\n\r\n", Connect), State::Opaque(Opaque::Switched));
    assert_eq!(state("HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n", Connect), State::Head);
    assert_eq!(state("HTTP/1.1 101 Switching\r\n\r\n", Other), State::Opaque(Opaque::Switched));
    let two = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(state(two, Other), State::Opaque(Opaque::AmbiguousLength));
    let old = "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(state(old, Other), State::Opaque(Opaque::AmbiguousLength));
    assert_eq!(state("HTTP/1.1 099 Low\r\n\r\n", Other), State::Opaque(Opaque::Malformed));
    assert_eq!(state("HTTP/1.1 200 OK\n\n", Other), State::Opaque(Opaque::BareLineFeed));
    assert_eq!(state("\r\nHTTP/1.1 200 OK\r\n\r\n", Other), State::Opaque(Opaque::NotHttp));
    let extra = "HTTP/1.1 204 No\r\n\r\nHTTP/1.1 408 Late\r\n\r\n";
    assert_eq!(state(extra, Other), State::Opaque(Opaque::Unsolicited));
}

#[test]
fn interim_responses_answer_nothing() {
    let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.1 204 Done\r\n\r\n";
    let (events, state) = response(text.as_bytes(), RequestKind::Other);
    assert_eq!(state, State::Head);
    let last = text.len() as u64 - 1;
    assert!(matches!(
        events[..],
        [
            ResponseEvent::Head { first: 0, status: 100 },
            ResponseEvent::Interim(Span { first: 0, last: 24 }),
            ResponseEvent::Head { first: 25, status: 103 },
            ResponseEvent::Interim(_),
            ResponseEvent::Head { status: 204, .. },
            ResponseEvent::End(Span { last: end, .. }),
        ] if end == last
    ));
}

#[test]
fn bodies_may_be_skipped_and_nothing_else() {
    let kind = [RequestKind::Other; 2];
    let plain: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n";
    let chunked: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let state = |pieces: &[(&[u8], bool)]| responses(pieces, &kind).1;
    assert_eq!(state(&[(plain, true), (b"abcdef", false)]), State::Head);
    assert_eq!(state(&[(plain, true), (b"ab", true), (b"cdef", false), (plain, true)]), State::Body);
    assert_eq!(state(&[(plain, true), (b"abcdefg", false)]), State::Opaque(Opaque::Unseen));
    let parts: [(&[u8], bool); 4] =
        [(chunked, true), (b"3\r\n", true), (b"abc", false), (b"\r\n0\r\n\r\n", true)];
    assert_eq!(state(&parts), State::Head);
    assert_eq!(state(&[(chunked, true), (b"3\r\n", false)]), State::Opaque(Opaque::Unseen));
    assert_eq!(state(&[(plain, false)]), State::Opaque(Opaque::Unseen));
    assert_eq!(state(&[(b"HTTP/1.1 200 OK\r\n\r\n", true), (b"abc", false)]), State::Body);
    let mut reader = RequestReader::new(&LIMITS);
    let mut piece = &b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n"[..];
    while reader.on_bytes(&mut piece).is_some() {}
    assert_eq!(reader.skip(4), Some(Span { first: 0, last: 41 }));
    assert_eq!((reader.skip(1), reader.state()), (None, State::Opaque(Opaque::Unseen)));
}

/// A message body, framed: the fields that say so, and the bytes.
fn framed() -> impl Strategy<Value = (String, Vec<u8>)> {
    let chunk = (proptest::collection::vec(any::<u8>(), 1..40), "(;[a-z]{0,5}(=\"[a-z ]{0,5}\")?)?");
    let chunked = (proptest::collection::vec(chunk, 0..4), "(T: [a-z]{1,9}\r\n){0,2}").prop_map(
        |(chunks, trailers)| {
            let mut body = Vec::new();
            for (data, extension) in chunks {
                body.extend_from_slice(format!("{:x}{extension}\r\n", data.len()).as_bytes());
                body.extend_from_slice(&data);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
            ("Transfer-Encoding: chunked\r\n".to_owned(), body)
        },
    );
    let length = proptest::collection::vec(any::<u8>(), 0..80)
        .prop_map(|body| (format!("content-length: {}\r\n", body.len()), body));
    prop_oneof![Just((String::new(), Vec::new())), length, chunked]
}

/// A request, with what a reader must see of it when it begins at 0.
fn request() -> impl Strategy<Value = (Seen, Vec<u8>)> {
    let fields = "(X-[A-Za-z]{1,8}: ?[ -~]{0,20}\r\n){0,4}";
    ("GET|HEAD|POST|BREW", "/[a-z/]{0,12}", "(\\?[a-z=:/]{0,8})?", "[a-z.]{1,12}", fields, framed()).prop_map(
        |(method, path, query, host, fields, (framing, body))| {
            let mut bytes =
                format!("{method} {path}{query} HTTP/1.1\r\nHost: {host}\r\n{fields}{framing}\r\n")
                    .into_bytes();
            bytes.extend_from_slice(&body);
            let last = Some(bytes.len() as u64 - 1);
            (Seen { first: 0, method, path: Some(path), host: Some(host), last }, bytes)
        },
    )
}

/// Pipelined requests, and what must be seen of each.
fn pipeline() -> impl Strategy<Value = (Vec<Seen>, Vec<u8>)> {
    proptest::collection::vec((request(), "(\r\n){0,2}"), 1..6).prop_map(|requests| {
        let mut stream = Vec::new();
        let mut all = Vec::new();
        for ((mut seen, bytes), between) in requests {
            stream.extend_from_slice(between.as_bytes());
            let start = stream.len() as u64;
            seen.first += start;
            seen.last = seen.last.map(|last| last + start);
            stream.extend_from_slice(&bytes);
            all.push(seen);
        }
        (all, stream)
    })
}

/// Responses, their kinds, and where each ends.
fn answers() -> impl Strategy<Value = (Vec<RequestKind>, Vec<Span>, Vec<u8>)> {
    let one = (framed(), any::<bool>(), any::<bool>());
    proptest::collection::vec(one, 1..6).prop_map(|all| {
        let (mut kinds, mut spans, mut stream) = (Vec::new(), Vec::new(), Vec::new());
        for ((framing, body), is_head, goes_on) in all {
            if goes_on {
                stream.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
            let first = stream.len() as u64;
            // Without framing the body would be all that comes.
            let framing = if framing.is_empty() { "Content-Length: 0\r\n".to_owned() } else { framing };
            stream.extend_from_slice(format!("HTTP/1.1 200 Fine\r\nServer: x\r\n{framing}\r\n").as_bytes());
            stream.extend_from_slice(if is_head { &[] } else { &body });
            kinds.push(if is_head { RequestKind::Head } else { RequestKind::Other });
            spans.push(Span { first, last: stream.len() as u64 - 1 });
        }
        (kinds, spans, stream)
    })
}

/// A stream with a few of its bytes changed, some of them to what has a meaning.
fn damaged(stream: &mut [u8], changes: &[(usize, u8)]) {
    for &(place, byte) in changes {
        let meant = b"\r\n: ;,0\t".get(usize::from(byte)).copied().unwrap_or(byte);
        if let Some(place) = place.checked_rem(stream.len()) {
            stream[place] = meant;
        }
    }
}

proptest! {
    #[test]
    fn pipelined_requests_are_seen_as_sent(
        (all, stream) in pipeline(),
        cuts in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        prop_assert_eq!(requests([&stream[..]]), (all.clone(), State::Head));
        prop_assert_eq!(requests(cut(&stream, &cuts)), (all.clone(), State::Head));
        prop_assert_eq!(requests(stream.chunks(1)), (all, State::Head));
    }

    #[test]
    fn responses_are_seen_as_sent(
        (kinds, spans, stream) in answers(),
        cuts in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        for pieces in [vec![&stream[..]], cut(&stream, &cuts), stream.chunks(1).collect()] {
            let pieces: Vec<_> = pieces.into_iter().map(|piece| (piece, true)).collect();
            let (events, state) = responses(&pieces, &kinds);
            let ends: Vec<_> = events
                .into_iter()
                .filter_map(|event| if let ResponseEvent::End(span) = event { Some(span) } else { None })
                .collect();
            prop_assert_eq!((&ends, state), (&spans, State::Head));
        }
    }

    #[test]
    fn damaged_streams_are_read_alike_however_they_are_cut(
        (_, mut stream) in pipeline(),
        (kinds, _, mut back) in answers(),
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..6),
        cuts in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        damaged(&mut stream, &changes);
        let whole = requests([&stream[..]]);
        prop_assert_eq!(&requests(cut(&stream, &cuts)), &whole);
        prop_assert_eq!(&requests(stream.chunks(1)), &whole);
        damaged(&mut back, &changes);
        let whole = responses(&[(&back[..], true)], &kinds);
        let pieces: Vec<_> = cut(&back, &cuts).into_iter().map(|piece| (piece, true)).collect();
        prop_assert_eq!(&responses(&pieces, &kinds), &whole);
    }

    #[test]
    fn garbage_is_read_alike_however_it_is_cut(
        stream in proptest::collection::vec(any::<u8>(), 0..400),
        cuts in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        let whole = requests([&stream[..]]);
        prop_assert_eq!(requests(cut(&stream, &cuts)), whole);
        let whole = response(&stream, RequestKind::Other);
        let pieces: Vec<_> = cut(&stream, &cuts).into_iter().map(|piece| (piece, true)).collect();
        prop_assert_eq!(responses(&pieces, &[RequestKind::Other]), whole);
    }
}
