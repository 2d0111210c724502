use proptest::prelude::*;

use super::*;

const A: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const B: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const TCP: u8 = ipv4::PROTOCOL_TCP;

fn header(next_header: u8, payload_len: usize) -> Header {
    Header {
        traffic_class: 0xb9,
        flow_label: 0x12345,
        payload_len: payload_len as u16,
        next_header,
        hop_limit: 64,
        source: A,
        destination: B,
    }
}

/// A packet with these extension headers, each begun by its own number, and 20 bytes of TCP.
fn packet(extensions: &[(u8, &[u8])]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (index, (_, body)) in extensions.iter().enumerate() {
        let next = extensions.get(index + 1).map_or(TCP, |(number, _)| *number);
        payload.push(next);
        payload.extend_from_slice(body);
    }
    payload.resize(payload.len() + 20, 0);
    let mut bytes = vec![0; 40];
    header(extensions.first().map_or(TCP, |(number, _)| *number), payload.len()).emit(&mut bytes);
    bytes.extend_from_slice(&payload);
    bytes
}

fn problem_at(result: Result<Upper, ExtensionError>) -> Option<(u8, u32, bool)> {
    match result {
        Err(ExtensionError::Problem { code, pointer, even_to_groups }) => {
            Some((code, pointer, even_to_groups))
        }
        _ => None,
    }
}

#[test]
fn parses_and_emits() {
    let bytes = packet(&[]);
    assert_eq!(bytes[..8], [0x6b, 0x91, 0x23, 0x45, 0, 20, 6, 64]);
    assert_eq!(Header::parse(&bytes), Ok(header(TCP, 20)));
    assert_eq!(Header::parse(&bytes[..59]), Err(ParseError::Cut { got: 59, need: 60 }));
    assert_eq!(Header::parse_header(&bytes[..39]), Err(ParseError::Truncated { got: 39 }));
    let mut other = bytes.clone();
    other[0] = 0x45;
    assert_eq!(Header::parse(&other), Err(ParseError::Version(4)));
}

#[test]
fn a_router_alert_is_found_among_options() {
    let alert = |body: &[u8]| router_alert(&packet(&[(HOP_BY_HOP, body)]));
    assert_eq!(alert(&[0, 5, 2, 0, 0, 1, 0]), Some(0));
    assert_eq!(alert(&[0, 0, 0, 5, 2, 1, 2]), Some(0x102), "behind padding");
    assert_eq!(alert(&[1, 1, 4, 0, 0, 0, 0, 5, 2, 0, 1, 1, 2, 0, 0]), Some(1));
    assert_eq!(alert(&[0, 1, 4, 5, 2, 0, 0]), None, "within another option");
    assert_eq!(alert(&[0, 1, 9, 0, 0, 0, 0]), None, "an option that reaches out");
    assert_eq!(alert(&[9, 0, 0, 0, 0, 0, 0]), None, "a header that reaches out");
    assert_eq!(router_alert(&packet(&[(DESTINATION_OPTIONS, &[0, 5, 2, 0, 0, 1, 0])])), None);
    for len in 0..60 {
        router_alert(&packet(&[(HOP_BY_HOP, &[0, 5, 2, 0, 0, 1, 0])])[..len]);
    }
}

#[test]
fn known_headers_are_passed_over() {
    let alert: &[u8] = &[0, 5, 2, 0, 0, 1, 0];
    let routing: &[u8] = &[0, 253, 0, 0, 0, 0, 0];
    let padded: &[u8] = &[1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let bytes = packet(&[(HOP_BY_HOP, alert), (ROUTING, routing), (DESTINATION_OPTIONS, padded)]);
    let upper = walk(&bytes).unwrap();
    assert_eq!(upper, Upper { protocol: TCP, offset: 72, number_at: 56, fragment: None });
    assert_eq!(walk(&packet(&[])).unwrap().offset, 40);
}

#[test]
fn a_fragment_header_ends_the_walk() {
    let bytes = packet(&[(FRAGMENT, &[0, 5, 0xa9, 1, 2, 3, 4])]);
    let upper = walk(&bytes).unwrap();
    let fragment = upper.fragment.unwrap();
    assert_eq!((upper.protocol, upper.offset), (TCP, 48));
    assert_eq!((fragment.offset, fragment.more, fragment.identification), (0x5a8, true, 0x0102_0304));
    let mut out = [0xff; 8];
    fragment.emit(&mut out);
    assert_eq!(out, bytes[40..48]);
    assert!(!fragment.is_atomic() && Fragment { offset: 0, more: false, ..fragment }.is_atomic());
}

#[test]
fn unknown_options_do_as_their_first_bits_say() {
    let with = |kind| walk(&packet(&[(DESTINATION_OPTIONS, &[0, kind, 4, 0, 0, 0, 0])]));
    assert!(with(0x1e).is_ok());
    assert_eq!(with(0x5e), Err(ExtensionError::Discard));
    assert_eq!(problem_at(with(0x9e)), Some((PROBLEM_OPTION, 42, true)));
    assert_eq!(problem_at(with(0xde)), Some((PROBLEM_OPTION, 42, false)));
    // A jumbo payload option is unknown too.
    assert_eq!(problem_at(with(0xc2)), Some((PROBLEM_OPTION, 42, false)));
    let reaches_out = walk(&packet(&[(DESTINATION_OPTIONS, &[0, 0x1e, 5, 0, 0, 0, 0])]));
    assert_eq!(reaches_out, Err(ExtensionError::Malformed));
}

#[test]
fn places_and_segments_that_rfc_8200_refuses() {
    let pad: &[u8] = &[0, 1, 4, 0, 0, 0, 0];
    let second = walk(&packet(&[(DESTINATION_OPTIONS, pad), (HOP_BY_HOP, pad)]));
    assert_eq!(problem_at(second), Some((PROBLEM_NEXT_HEADER, 40, false)));
    let source_route = walk(&packet(&[(ROUTING, &[0, 0, 1, 0, 0, 0, 0])]));
    assert_eq!(problem_at(source_route), Some((PROBLEM_FIELD, 42, false)));
}

#[test]
fn more_than_anybody_needs_is_refused() {
    let pad: &[u8] = &[0, 1, 4, 0, 0, 0, 0];
    let chain = |count| walk(&packet(&vec![(DESTINATION_OPTIONS, pad); count]));
    assert!(chain(MAX_EXTENSIONS).is_ok());
    assert_eq!(chain(MAX_EXTENSIONS + 1), Err(ExtensionError::Limit));
    let mut long = vec![128];
    long.resize(8 * 129 - 1, 0);
    assert_eq!(walk(&packet(&[(DESTINATION_OPTIONS, &long)])), Err(ExtensionError::Limit));
    let mut options = vec![2];
    for _ in 0..=MAX_OPTIONS {
        options.extend_from_slice(&[0x1e, 0]);
    }
    options.resize(23, 0);
    assert_eq!(walk(&packet(&[(DESTINATION_OPTIONS, &options)])), Err(ExtensionError::Limit));
    // Cut off within a header.
    let bytes = packet(&[(DESTINATION_OPTIONS, pad)]);
    assert_eq!(walk(&bytes[..47]), Err(ExtensionError::Truncated));
    assert_eq!(walk(&bytes[..6]), Err(ExtensionError::Truncated));
}

proptest! {
    #[test]
    fn any_bytes_walk_or_err(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), next in 0usize..6) {
        let numbers = [HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION_OPTIONS, TCP, NO_NEXT_HEADER];
        if bytes.len() > 40 {
            bytes[0] = 0x60;
            bytes[6] = numbers[next];
        }
        let _ = Header::parse(&bytes);
        if let Ok(upper) = walk(&bytes) {
            prop_assert!(upper.offset <= bytes.len() || upper.offset == HEADER_LEN);
            prop_assert!(upper.offset - HEADER_LEN <= MAX_EXTENSIONS_LEN + FRAGMENT_LEN);
        }
    }

    #[test]
    fn what_is_emitted_parses_to_the_same(
        traffic_class in any::<u8>(), flow_label in 0u32..1 << 20, payload_len in any::<u16>(),
        next_header in any::<u8>(), hop_limit in any::<u8>(), addresses in any::<(u128, u128)>(),
    ) {
        let header = Header {
            traffic_class, flow_label, payload_len, next_header, hop_limit,
            source: addresses.0.into(), destination: addresses.1.into(),
        };
        let mut out = [0xff; 40];
        header.emit(&mut out);
        prop_assert_eq!(Header::parse_header(&out), Ok(header));
    }
}
