use proptest::prelude::*;

use super::*;
use crate::request::Limits;
use crate::request::http::{RequestEvent, RequestReader};

fn strings(of: &[&str]) -> Vec<String> {
    of.iter().map(|&text| text.to_owned()).collect()
}

fn hosts(of: &[&str]) -> Conditions {
    Conditions { hosts: strings(of), ..Conditions::default() }
}

fn paths(of: &[&str]) -> Conditions {
    Conditions { paths: strings(of), ..Conditions::default() }
}

fn server_names(of: &[&str]) -> Conditions {
    Conditions { server_names: strings(of), ..Conditions::default() }
}

fn header(name: &str, value: HeaderValue) -> Conditions {
    let headers = vec![HeaderCondition { name: name.to_owned(), value }];
    Conditions { headers, ..Conditions::default() }
}

fn cookie(name: &str, value: Option<&str>) -> Conditions {
    let cookies = vec![CookieCondition { name: name.to_owned(), value: value.map(str::to_owned) }];
    Conditions { cookies, ..Conditions::default() }
}

/// A matcher of these classes and one for everything.
fn matcher(classes: &[Conditions]) -> Matcher {
    let all = classes.iter().cloned().chain([Conditions::default()]).collect::<Vec<_>>();
    Matcher::new(all.iter().map(|conditions| (conditions, 0))).unwrap()
}

/// The class of a request with this text.
fn class_of(matcher: &Matcher, text: &str) -> ClassIndex {
    let mut reader = RequestReader::new(&Limits::default());
    let mut piece = text.as_bytes();
    let Some(RequestEvent::Head { request, .. }) = reader.on_bytes(&mut piece) else { panic!("{text}") };
    matcher.class_of(Facts::Http(&request), |_| true).expect("one is for everything")
}

/// Whether the conditions hold for a request with this text.
fn holds(conditions: &Conditions, text: &str) -> bool {
    class_of(&matcher(std::slice::from_ref(conditions)), text) == 0
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

fn to_host(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

#[test]
fn the_first_class_that_holds_and_is_possible() {
    let matcher = matcher(&[paths(&["/admin/"]), paths(&["/"]), hosts(&["a"])]);
    assert_eq!(class_of(&matcher, &get("/admin/x")), 0);
    assert_eq!(class_of(&matcher, &get("/other")), 1);
    let mut reader = RequestReader::new(&Limits::default());
    let text = get("/admin/x");
    let mut piece = text.as_bytes();
    let Some(RequestEvent::Head { request, .. }) = reader.on_bytes(&mut piece) else { panic!("{text}") };
    let among =
        |possible: &[ClassIndex]| matcher.class_of(Facts::Http(&request), |class| possible.contains(&class));
    assert_eq!(among(&[2, 3]), Some(2));
    assert_eq!(among(&[3]), Some(3));
    assert_eq!(among(&[]), None);
}

#[test]
fn whether_a_request_is_needed() {
    let some = matcher(&[paths(&["/"]), Conditions::default(), hosts(&["a"])]);
    assert!(some.needs_request());
    let among = |possible: &[ClassIndex]| some.needs_request_among(|class| possible.contains(&class));
    assert!(among(&[0, 1, 2, 3]));
    assert!(!among(&[1, 2, 3]), "class 1 takes everything");
    assert!(among(&[2, 3]));
    assert!(!among(&[3]) && !among(&[]));
    assert_eq!(some.class_without_request(|_| true), Some(1));
    assert_eq!(some.class_without_request(|class| class != 1), Some(3));
    assert_eq!(some.class_without_request(|class| class == 0), None);
    let none = matcher(&[Conditions::default()]);
    assert!(!none.needs_request() && !none.needs_request_among(|_| true));
}

#[test]
fn one_of_a_kind_and_all_kinds() {
    let conditions = Conditions {
        hosts: strings(&["a", "b"]),
        paths: strings(&["/x", "/y"]),
        methods: strings(&["GET", "HEAD"]),
        ..Conditions::default()
    };
    let request = |method: &str, path: &str, host: &str| {
        holds(&conditions, &format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    };
    assert!(request("GET", "/x", "a") && request("HEAD", "/y", "b"));
    assert!(!request("POST", "/x", "a") && !request("get", "/x", "a"));
    assert!(!request("GET", "/z", "a") && !request("GET", "/x", "c"));
    assert!(!holds(&conditions, "GET /x HTTP/1.1\r\n\r\n"), "no host");
    assert!(!holds(&conditions, "GET * HTTP/1.1\r\nHost: a\r\n\r\n"), "no path");
}

#[test]
fn hosts_by_name_and_wildcard() {
    let conditions = hosts(&["Example.org", "*.example.net", "[::1]", "10.0.0.1", "*.b.c."]);
    for host in [
        "example.org",
        "EXAMPLE.ORG:80",
        "example.org.",
        "example.org.:8080",
        "a.example.net",
        "a.b.Example.Net:1",
        "[::1]",
        "[::1]:80",
        "10.0.0.1:80",
        "x.b.c",
    ] {
        assert!(holds(&conditions, &to_host(host)), "{host}");
    }
    for host in [
        "www.example.org",
        "example.net",
        ".example.net",
        "aexample.net",
        "example.org.evil",
        "::1",
        "[::1",
        "",
        ":80",
        "b.c",
        "10.0.0.11",
    ] {
        assert!(!holds(&conditions, &to_host(host)), "{host}");
    }
    assert!(!holds(&conditions, &to_host(&"a".repeat(300))));
    assert!(holds(&conditions, "GET http://example.org/ HTTP/1.1\r\nHost: other\r\n\r\n"));
    assert!(!holds(&conditions, "GET http://other/ HTTP/1.1\r\nHost: example.org\r\n\r\n"));
}

#[test]
fn server_names_for_tls_only() {
    let matcher = matcher(&[server_names(&["a.org", "*.b.org"]), paths(&["/"])]);
    let of = |name| matcher.class_of(Facts::Tls(name), |_| true);
    assert_eq!(of(Some("a.org")), Some(0));
    assert_eq!(of(Some("x.b.org")), Some(0));
    assert_eq!(of(Some("b.org")), Some(2));
    assert_eq!(of(None), Some(2));
    assert_eq!(class_of(&matcher, &to_host("a.org")), 1);
}

#[test]
fn other_spellings_of_a_path_do_not_escape() {
    let conditions = paths(&["/admin"]);
    for path in [
        "/admin",
        "/admin/",
        "/administrator",
        "/admin?x",
        "/admin#x",
        "/%61dmin",
        "/%61%64%6D%69%6e",
        "/a/../admin",
        "/a/b/../../admin",
        "/./admin",
        "//admin",
        "/%2Fadmin",
        "/%2e%2E/admin",
        "/a/%2e%2e/admin",
        "/a/..%2fadmin",
        "/../admin",
        "/a//../admin",
        "/x/.//..//admin/y",
        "http://h/%61dmin",
        "/admin/..%3f",
    ] {
        assert!(holds(&conditions, &get(path)), "{path}");
    }
    for path in [
        "/",
        "/Admin",
        "/x/admin",
        "/admin/..",
        "/admin/../x",
        "/admin/%2e%2e/x",
        "/%2561dmin",
        "/adm%69%",
        "/%zzadmin",
        "/?/admin",
        "/...//admin",
    ] {
        assert!(!holds(&conditions, &get(path)), "{path}");
    }
}

#[test]
fn prefixes_are_normalised_but_for_their_last_segment() {
    assert!(holds(&paths(&["/a%20b//c/../"]), &get("/a%20b/x")));
    assert!(holds(&paths(&["/."]), &get("/.git")));
    assert!(!holds(&paths(&["/."]), &get("/git")));
    assert!(holds(&paths(&["/a", "/ab", "/abc", "/b"]), &get("/ab")));
    assert!(holds(&paths(&["/ab", "/a/", "/a-b"]), &get("/a/b")));
    assert!(!holds(&paths(&["/ab", "/a/", "/a-b"]), &get("/a.b")));
}

#[test]
fn headers_and_cookies() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nAccept: text/html\r\nX-Tier: gold plus\r\nX-Empty:\r\nx-tier: silver\r\n\
                Cookie: sid=1; tier=\"gold\"\r\ncookie:late=x=y;  flag\r\n\r\n";
    let exact = |text: &str| HeaderValue::Exact(text.to_owned());
    let prefix = |text: &str| HeaderValue::Prefix(text.to_owned());
    for conditions in [
        header("x-tier", HeaderValue::Any),
        header("X-TIER", exact("silver")),
        header("X-Tier", prefix("gold")),
        header("x-empty", HeaderValue::Any),
        header("x-empty", exact("")),
        cookie("sid", None),
        cookie("tier", Some("\"gold\"")),
        cookie("late", Some("x=y")),
    ] {
        assert!(holds(&conditions, text), "{conditions:?}");
    }
    for conditions in [
        header("x-tie", HeaderValue::Any),
        header("x-tier", exact("gold")),
        header("x-tier", prefix("Gold")),
        cookie("SID", None),
        cookie("tier", Some("gold")),
        cookie("flag", None),
        cookie("id", None),
    ] {
        assert!(!holds(&conditions, text), "{conditions:?}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |conditions: Conditions| {
        let classes = [Conditions::default(), conditions];
        Matcher::new(classes.iter().map(|conditions| (conditions, 0))).unwrap_err()
    };
    for name in ["", "*", "*.", "a.*", "*a.org", "example.org:80", "a b", "[::1", "[x]", "\u{e4}.org"] {
        let name_error = MatcherError::Name { class: 1, name: name.to_owned() };
        assert_eq!(refused(hosts(&[name])), name_error);
        assert_eq!(refused(server_names(&["good", name])), name_error);
    }
    assert_eq!(refused(paths(&["/a", "b"])), MatcherError::Path { class: 1, path: "b".to_owned() });
    let token = |token: &str| MatcherError::Token { class: 1, token: token.to_owned() };
    assert_eq!(refused(header("a b", HeaderValue::Any)), token("a b"));
    assert_eq!(refused(cookie("", None)), token(""));
    let both = Conditions { server_names: strings(&["a"]), ..paths(&["/"]) };
    assert_eq!(refused(both), MatcherError::NeverHolds { class: 1 });
}

/// RFC 3986 §5.2.4 over whole segments, after decoding and merging: another way to the same.
fn oracle(path: &str) -> Vec<u8> {
    let mut decoded = Vec::new();
    let bytes = path.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let hex =
            path.get(at + 1..at + 3).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let encoded = hex.filter(|_| bytes[at] == b'%');
        decoded.push(encoded.map_or(bytes[at], |digits| u8::from_str_radix(digits, 16).unwrap()));
        at += if encoded.is_some() { 3 } else { 1 };
    }
    let segments: Vec<_> = decoded[1..].split(|&byte| byte == b'/').collect();
    let is_dots = |segment: &[u8]| segment == b"." || segment == b"..";
    let mut out: Vec<&[u8]> = Vec::new();
    for segment in &segments {
        match *segment {
            b"" | b"." => {}
            b".." => drop(out.pop()),
            other => out.push(other),
        }
    }
    let closed = segments.last().is_some_and(|last| last.is_empty() || is_dots(last));
    let mut path: Vec<u8> = out.iter().flat_map(|segment| [&b"/"[..], segment].concat()).collect();
    if closed || path.is_empty() {
        path.push(b'/');
    }
    path
}

proptest! {
    #[test]
    fn paths_are_normalised_as_the_oracle_says(path in "/([ab.]|/|%2[eEfF]|%61|%|%%4){0,20}") {
        prop_assert_eq!(path::normalise(path.as_bytes()), oracle(&path));
    }

    #[test]
    fn prefixes_hold_as_a_search_says(
        prefixes in proptest::collection::vec("/[ab/]{0,4}", 1..8),
        path in "/[ab/]{0,6}",
    ) {
        let compiled = Prefixes::new(&prefixes).unwrap();
        let normal = oracle(&path);
        let merged = |prefix: &String| prefix.replace("///", "/").replace("//", "/").replace("//", "/");
        let expected = prefixes.iter().any(|prefix| normal.starts_with(merged(prefix).as_bytes()));
        prop_assert_eq!(compiled.hold(Some(&normal)), expected);
    }

    #[test]
    fn names_hold_as_a_search_says(
        names in proptest::collection::vec("(\\*\\.)?[ab]{1,2}(\\.[ab]){0,2}", 1..8),
        host in "[abAB]{1,2}(\\.[ab]){0,3}(:80)?",
    ) {
        let expected = names.iter().any(|name| {
            let host = host.trim_end_matches(":80").to_ascii_lowercase();
            name.strip_prefix('*').map_or(host == *name, |suffix| host.len() > suffix.len() && host.ends_with(suffix))
        });
        let names = Names::new(&names).unwrap();
        prop_assert_eq!(names.hold(names::Name::of_authority(host.as_bytes()).as_ref()), expected);
    }
}
