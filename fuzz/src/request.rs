//! What a connection asks for: HTTP in both directions, and the start of TLS. However a stream is cut, the same is
//! read; memory stays within the limits; spans follow one another; the class is what a plain search says.

use scoutline_proto::bindings::ClassIndex;
use scoutline_proto::request::http::{
    RequestEvent, RequestKind, RequestReader, ResponseEvent, ResponseReader, Span, State,
};
use scoutline_proto::request::matcher::{
    Conditions, CookieCondition, Facts, HeaderCondition, HeaderValue, Importance,
};
use scoutline_proto::request::tls::{ClientHello, NoName, ServerName};
use scoutline_proto::request::{Exchange, Limits, Matcher, Opaque};

use crate::bytes::{Bytes, Target};

/// The targets of this file.
pub const TARGETS: &[Target] = &[("http", http), ("tls", tls)];

const LIMITS: Limits = Limits { head_bytes: 512, hello_bytes: 1024, outstanding: 6, interim: 4 };

/// One stream of requests, one of responses, or both of one connection.
pub fn http(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let (what, cutting) = (bytes.u8(), bytes.u8());
    let stream = bytes.take(data.len());
    match what & 3 {
        0 => {
            let whole = requests([stream]);
            assert_eq!(requests(pieces(stream, cutting)), whole);
            assert_eq!(requests(stream.chunks(1)), whole);
        }
        1 => {
            let whole = responses([stream], what >> 2);
            assert_eq!(responses(pieces(stream, cutting), what >> 2), whole);
            assert_eq!(responses(stream.chunks(1), what >> 2), whole);
        }
        _ => exchange(stream, cutting),
    }
}

/// Pieces of lengths that `cutting` decides.
fn pieces(stream: &[u8], cutting: u8) -> impl Iterator<Item = &[u8]> {
    let (mut rest, mut state) = (stream, u32::from(cutting) + 1);
    std::iter::from_fn(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let len = (state >> 24) as usize % (usize::from(cutting) + 2);
        let (front, behind) = rest.split_at(len.min(rest.len()));
        rest = behind;
        (!rest.is_empty() || !front.is_empty()).then_some(front)
    })
}

/// Method, path, host, and values of fields; then its span.
type Seen = (String, Option<String>, Option<Vec<u8>>, usize, Option<Span>);

fn requests<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Seen>, State) {
    let mut reader = RequestReader::new(&LIMITS);
    let mut all: Vec<Seen> = Vec::new();
    let (mut next, mut open) = (0, None);
    for mut piece in pieces {
        while let Some(event) = reader.on_bytes(&mut piece) {
            match event {
                RequestEvent::Head { first, request } => {
                    assert!(first >= next && open.replace(first).is_none());
                    assert!(request.path().is_none_or(|path| path.starts_with('/')));
                    let len = request.fields().map(|(name, value)| name.len() + value.len()).sum();
                    let _ = request.cookies().count();
                    let (path, host) = (request.path().map(str::to_owned), request.host.map(<[u8]>::to_vec));
                    all.push((request.method.to_owned(), path, host, len, None));
                }
                RequestEvent::End(span) => {
                    assert_eq!(open.take(), Some(span.first));
                    assert!(span.last >= span.first);
                    next = span.last + 1;
                    all.last_mut().expect("a head came before").4 = Some(span);
                }
            }
        }
        assert!(piece.is_empty() && reader.held() <= LIMITS.head_bytes);
    }
    (all, reader.state())
}

fn responses<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, mut kinds: u8) -> (Vec<ResponseEvent>, State) {
    let mut reader = ResponseReader::new(&LIMITS);
    let mut all = Vec::new();
    let mut next = 0;
    for mut piece in pieces {
        loop {
            let kind = [RequestKind::Other, RequestKind::Head, RequestKind::Connect];
            let answers = kind.get(usize::from(kinds & 3)).copied();
            let Some(event) = reader.on_bytes(&mut piece, answers) else { break };
            if let ResponseEvent::Interim(span) | ResponseEvent::End(span) = event {
                assert!(span.first == next && span.last >= span.first);
                next = span.last + 1;
            }
            if let ResponseEvent::End(_) = event {
                kinds >>= 2;
            }
            all.push(event);
        }
        assert!(piece.is_empty() && reader.held() <= LIMITS.head_bytes);
    }
    (all, reader.state())
}

const IMPORTANCE: [Importance; 6] = [7, 3, 3, 9, 0, 1];
/// Only possible on some connections.
const RARE: ClassIndex = 3;

fn matcher() -> Matcher {
    let text = |text: &str| vec![text.to_owned()];
    let header = HeaderCondition { name: "x-tier".to_owned(), value: HeaderValue::Prefix("g".to_owned()) };
    let cookie = CookieCondition { name: "tier".to_owned(), value: None };
    let classes = [
        Conditions { paths: text("/a"), ..Conditions::default() },
        Conditions { hosts: text("*.b"), methods: text("GET"), ..Conditions::default() },
        Conditions { headers: vec![header], ..Conditions::default() },
        Conditions { cookies: vec![cookie], ..Conditions::default() },
        Conditions { server_names: text("c.org"), ..Conditions::default() },
        Conditions::default(),
    ];
    Matcher::new(classes.iter().zip(IMPORTANCE)).expect("these make sense")
}

/// An exchange said in full: plain readers, and a list to search.
struct Oracle {
    requests: RequestReader,
    responses: ResponseReader,
    outstanding: Vec<(ClassIndex, RequestKind)>,
    /// Interim responses to the oldest of them.
    interim: u32,
    class: Option<ClassIndex>,
    opaque: Option<Opaque>,
}

impl Oracle {
    fn new() -> Oracle {
        Oracle {
            requests: RequestReader::new(&LIMITS),
            responses: ResponseReader::new(&LIMITS),
            outstanding: Vec::new(),
            interim: 0,
            class: None,
            opaque: None,
        }
    }

    fn inward(&mut self, mut bytes: &[u8], matcher: &Matcher, possible: impl Fn(ClassIndex) -> bool) {
        while let Some(event) = self.requests.on_bytes(&mut bytes) {
            if let RequestEvent::Head { request, .. } = event {
                if self.outstanding.len() == LIMITS.outstanding {
                    self.opaque = Some(Opaque::TooManyOutstanding);
                    return;
                }
                let class =
                    matcher.class_of(Facts::Http(&request), &possible).expect("one is for everything");
                self.outstanding.push((class, request.kind()));
            }
        }
        self.settle();
    }

    fn outward(&mut self, mut bytes: &[u8], skip: Option<u64>) {
        let mut skipped = skip.and_then(|len| self.responses.skip(len));
        loop {
            let answers = self.outstanding.first().map(|&(_, kind)| kind);
            let event = skipped.take().or_else(|| self.responses.on_bytes(&mut bytes, answers));
            let Some(event) = event else { break };
            if let ResponseEvent::Interim(_) = event {
                self.interim += 1;
                if self.interim > LIMITS.interim {
                    self.settle();
                    self.opaque = Some(Opaque::TooManyInterim);
                    return;
                }
            }
            if let ResponseEvent::End(_) = event {
                self.interim = 0;
                self.class = Some(self.outstanding.remove(0).0);
                if self.outstanding.is_empty() {
                    self.requests.on_answered();
                }
            }
        }
        self.settle();
    }

    fn skip_inward(&mut self, len: u64) {
        self.requests.skip(len);
        self.settle();
    }

    fn settle(&mut self) {
        // The first of the most important.
        let top = self.outstanding.iter().rev().max_by_key(|&&(class, _)| IMPORTANCE[class as usize]);
        self.class = top.map(|&(class, _)| class).or(self.class);
        for state in [self.responses.state(), self.requests.state()] {
            if let State::Opaque(reason) = state {
                self.opaque = Some(reason);
            }
        }
    }
}

/// One connection, three times.
struct Connection {
    matcher: Matcher,
    /// Without the class that only some have.
    is_plain: bool,
    cutting: u8,
    whole: Exchange,
    cut: Exchange,
    /// Shown no byte that it does not want to see.
    lean: Exchange,
    /// Some byte came in.
    has_begun: bool,
    /// It knows HTTP only, so it is there if the first byte is one of a request.
    oracle: Option<Oracle>,
}

/// Both directions: 0xfe turns to the other one, 0xff and a byte is a skip of so many.
fn exchange(stream: &[u8], cutting: u8) {
    let mut connection = Connection {
        matcher: matcher(),
        is_plain: cutting & 1 == 0,
        cutting,
        whole: Exchange::new(LIMITS),
        cut: Exchange::new(LIMITS),
        lean: Exchange::new(LIMITS),
        has_begun: false,
        oracle: None,
    };
    let mut inward = true;
    let mut rest = stream;
    while !rest.is_empty() && connection.whole.opaque().is_none() {
        let len = rest.iter().position(|&byte| byte >= 0xfe).unwrap_or(rest.len());
        let (bytes, behind) = rest.split_at(len);
        if inward {
            connection.inward(bytes);
        } else {
            connection.outward(bytes);
        }
        connection.check();
        rest = match behind {
            [0xfe, behind @ ..] => {
                inward = !inward;
                behind
            }
            [0xff, len, behind @ ..] => {
                if connection.whole.opaque().is_none() {
                    connection.skip(u64::from(*len), inward);
                    connection.check();
                }
                behind
            }
            [_, behind @ ..] => behind,
            [] => behind,
        };
    }
}

impl Connection {
    fn inward(&mut self, bytes: &[u8]) {
        let possible = |class: ClassIndex| class != RARE || !self.is_plain;
        let before = self.whole.class();
        let change = self.whole.on_inward(bytes, &self.matcher, possible);
        assert_eq!(change, self.whole.class().filter(|_| self.whole.class() != before));
        for piece in pieces(bytes, self.cutting) {
            self.cut.on_inward(piece, &self.matcher, possible);
            let mut rest = piece;
            while !rest.is_empty() {
                let skipped = self.lean.unread_inward().min(rest.len() as u64);
                self.lean.skip_inward(skipped);
                rest = &rest[skipped as usize..];
                let (front, behind) = rest.split_at(rest.len().min(1));
                self.lean.on_inward(front, &self.matcher, possible);
                rest = behind;
            }
        }
        if let (false, Some(first)) = (self.has_begun, bytes.first()) {
            self.has_begun = true;
            self.oracle = matches!(first, b'\r' | b'\n' | b'!'..=b'~').then(Oracle::new);
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.inward(bytes, &self.matcher, possible);
        }
    }

    fn outward(&mut self, bytes: &[u8]) {
        let before = self.whole.class();
        let change = self.whole.on_outward(bytes);
        assert_eq!(change, self.whole.class().filter(|_| self.whole.class() != before));
        for piece in pieces(bytes, self.cutting) {
            self.cut.on_outward(piece);
            let mut rest = piece;
            while !rest.is_empty() {
                let skipped = self.lean.unread_outward().min(rest.len() as u64);
                self.lean.skip_outward(skipped);
                rest = &rest[skipped as usize..];
                let (front, behind) = rest.split_at(rest.len().min(1));
                self.lean.on_outward(front);
                rest = behind;
            }
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.outward(bytes, None);
        }
    }

    fn skip(&mut self, len: u64, inward: bool) {
        for exchange in [&mut self.whole, &mut self.cut, &mut self.lean] {
            if inward {
                exchange.skip_inward(len)
            } else {
                exchange.skip_outward(len)
            };
        }
        match &mut self.oracle {
            Some(oracle) if inward => oracle.skip_inward(len),
            Some(oracle) => oracle.outward(&[], Some(len)),
            None => {}
        }
    }

    fn check(&self) {
        let (whole, cut) = (&self.whole, &self.cut);
        for other in [cut, &self.lean] {
            assert_eq!((whole.class(), whole.opaque()), (other.class(), other.opaque()));
            assert_eq!((whole.outstanding(), whole.answered()), (other.outstanding(), other.answered()));
        }
        assert!(whole.outstanding() <= LIMITS.outstanding);
        assert!(cut.held() <= 2048 + LIMITS.head_bytes * 2, "{} bytes held", cut.held());
        let Some(oracle) = &self.oracle else { return };
        assert_eq!(whole.opaque(), oracle.opaque);
        if oracle.opaque.is_none() {
            assert_eq!(whole.class(), oracle.class);
            assert_eq!(whole.outstanding(), oracle.outstanding.len());
        }
    }
}

/// The start of a TLS connection.
pub fn tls(data: &[u8]) {
    // Kept inputs are captures, so the cutting follows from the end.
    let cutting = data.last().copied().unwrap_or(0) ^ data.len() as u8;
    let whole = server_name([data]);
    assert_eq!(server_name(pieces(data, cutting)), whole);
    assert_eq!(server_name(data.chunks(1)), whole);
    // As one message in one record, and in records of other lengths.
    if data.len() < 1 << 13 {
        let hello = [&[1, 0][..], &(data.len() as u16).to_be_bytes(), data].concat();
        let once = server_name([&records(&hello, hello.len())[..]]);
        assert!(once.is_some(), "a whole message decides");
        assert_eq!(server_name([&records(&hello, usize::from(cutting) + 1)[..]]), once);
    }
}

fn records(message: &[u8], len: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
    message.chunks(len).flat_map(record).collect()
}

fn server_name<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<Result<ServerName, NoName>> {
    let mut hello = ClientHello::new(&LIMITS);
    let mut outcome = None;
    for piece in pieces {
        let now = hello.on_bytes(piece).cloned();
        assert!(outcome.is_none() || outcome == now, "an outcome stays");
        assert!(hello.held() <= LIMITS.hello_bytes + 4);
        outcome = now;
    }
    if let Some(Ok(name)) = &outcome {
        let name = name.as_str();
        assert!((1..=255).contains(&name.len()) && !name.bytes().any(|byte| byte.is_ascii_uppercase()));
    }
    outcome
}
