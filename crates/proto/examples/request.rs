//! The cost of looking into a kept-alive HTTP connection, for an instruction counter:
//!
//! ```sh
//! cargo build --release -p scoutline-proto --example request
//! valgrind --tool=callgrind --toggle-collect='request::inward' target/release/examples/request
//! ```
//!
//! Also `request::inward_in_halves`, `request::small`, `request::outward`. Each of the three requests comes
//! [`TURNS`] times, so the last one runs three times as often.

use scoutline_proto::request::matcher::Conditions;
use scoutline_proto::request::{Exchange, Limits, Matcher};

const TURNS: usize = 10_000;

/// As a browser sends it: 12 fields.
const BROWSER: &[u8] = b"GET /static/js/app.1c9d2f.js?v=20261121 HTTP/1.1\r\n\
    Host: www.example.org\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
    Accept-Language: en-US,en;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Referer: https://www.example.org/index.html\r\n\
    Connection: keep-alive\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\
    Sec-Fetch-Dest: script\r\n\
    Sec-Fetch-Mode: no-cors\r\n\
    Sec-Fetch-Site: same-origin\r\n\
    Priority: u=2\r\n\r\n";

/// As `wrk` and our load generator send it.
const SMALL: &[u8] = b"GET /1k HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n";

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Sat, 21 Nov 2026 14:00:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 1024\r\nLast-Modified: Sat, 21 Nov 2026 13:00:00 GMT\r\n\
    Connection: keep-alive\r\nETag: \"69206b80-400\"\r\nAccept-Ranges: bytes\r\n\r\n";

fn main() {
    let path = |path: &str| Conditions { paths: vec![path.to_owned()], ..Conditions::default() };
    let host = |host: &str| Conditions { hosts: vec![host.to_owned()], ..Conditions::default() };
    let classes = [
        path("/admin/"),
        path("/api/"),
        host("shop.example.org"),
        host("*.example.net"),
        path("/static/"),
        Conditions::default(),
    ];
    let matcher = Matcher::new(classes.iter().zip([3, 2, 2, 1, 0, 1])).expect("these make sense");
    let mut exchange = Exchange::new(Limits::default());
    for _ in 0..TURNS {
        inward(&mut exchange, &matcher);
        outward(&mut exchange);
        inward_in_halves(&mut exchange, &matcher);
        outward(&mut exchange);
        small(&mut exchange, &matcher);
        outward(&mut exchange);
    }
    assert_eq!((exchange.answered(), exchange.opaque()), (3 * TURNS as u64, None));
}

#[inline(never)]
fn inward(exchange: &mut Exchange, matcher: &Matcher) {
    exchange.on_inward(BROWSER, matcher, |_| true);
}

#[inline(never)]
fn inward_in_halves(exchange: &mut Exchange, matcher: &Matcher) {
    let (front, back) = BROWSER.split_at(BROWSER.len() / 2);
    exchange.on_inward(front, matcher, |_| true);
    exchange.on_inward(back, matcher, |_| true);
}

#[inline(never)]
fn small(exchange: &mut Exchange, matcher: &Matcher) {
    exchange.on_inward(SMALL, matcher, |_| true);
}

/// With a body that sendfile sends.
#[inline(never)]
fn outward(exchange: &mut Exchange) {
    exchange.on_outward(RESPONSE);
    exchange.skip_outward(1024);
}
