use proptest::prelude::*;

use super::*;

/// A ClientHello of OpenSSL 3.0 as it was sent: Shop.Example.org.
const OPENSSL: &[u8] = include_bytes!("../../../../../fuzz/corpus-kept/tls/openssl-1.2");

const LIMITS: Limits = Limits { head_bytes: 0, hello_bytes: 2048, outstanding: 0, interim: 0 };

/// What these pieces tell, and after how many bytes it was certain.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<Result<String, NoName>> {
    let mut hello = ClientHello::new(&LIMITS);
    let mut outcome = None;
    for piece in pieces {
        let now = hello.on_bytes(piece).cloned().map(|result| result.map(|name| name.as_str().to_owned()));
        assert!(outcome.is_none() || now == outcome, "an outcome stays");
        assert!(hello.held() <= LIMITS.hello_bytes + MESSAGE_HEADER_LEN, "{} bytes held", hello.held());
        outcome = now;
    }
    outcome
}

fn vector16(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector16(data)].concat()
}

fn name_extension(name: &[u8]) -> Vec<u8> {
    extension(SERVER_NAME, &vector16(&[&[HOST_NAME][..], &vector16(name)].concat()))
}

/// A handshake message with these extensions.
fn message(extensions: Option<&[u8]>) -> Vec<u8> {
    let mut body = [&[3, 3][..], &[7; 32], &[2, 1, 2], &vector16(&[0x13, 1, 0x13, 2]), &[1, 0]].concat();
    if let Some(extensions) = extensions {
        body.extend(vector16(extensions));
    }
    [&[CLIENT_HELLO][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat()
}

/// In records of at most `len` bytes.
fn records(message: &[u8], len: usize) -> Vec<u8> {
    message.chunks(len).flat_map(|part| [&[HANDSHAKE, 3, 1][..], &vector16(part)].concat()).collect()
}

fn of(extensions: &[u8]) -> Option<Result<String, NoName>> {
    read([&records(&message(Some(extensions)), MAX_RECORD_LEN)[..]])
}

#[test]
fn a_real_hello() {
    let bytes = OPENSSL;
    assert_eq!(read([bytes]), Some(Ok("shop.example.org".to_owned())));
    assert_eq!(read(bytes.chunks(1)), Some(Ok("shop.example.org".to_owned())));
    assert_eq!(read([&bytes[..bytes.len() - 1]]), None);
    assert_eq!(read([bytes, b"whatever follows"]), Some(Ok("shop.example.org".to_owned())));
    // The same message in many records.
    assert_eq!(read([&records(&bytes[5..], 3)[..]]), Some(Ok("shop.example.org".to_owned())));
}

#[test]
fn names_among_other_extensions() {
    let other = extension(43, &[2, 3, 4]);
    assert_eq!(of(&[&other[..], &name_extension(b"a.b"), &other].concat()), Some(Ok("a.b".to_owned())));
    assert_eq!(of(&name_extension(b"Dot.At.End.")), Some(Ok("dot.at.end".to_owned())));
    assert_eq!(of(&other), Some(Err(NoName::NotSent)));
    assert_eq!(of(&[]), Some(Err(NoName::NotSent)));
    assert_eq!(read([&records(&message(None), 100)[..]]), Some(Err(NoName::NotSent)));
}

#[test]
fn bad_names_and_bad_lengths() {
    for name in [&b""[..], b".", b"a b", b"a/b", b"a\0b", b"\xc3\xa4", &[b'a'; 256]] {
        assert_eq!(of(&name_extension(name)), Some(Err(NoName::BadName)), "{name:?}");
    }
    assert_eq!(of(&name_extension(&[b'a'; 255])), Some(Ok("a".repeat(255))));
    let twice = [name_extension(b"a"), name_extension(b"b")].concat();
    let two_names = vector16(&[&[HOST_NAME][..], &vector16(b"a"), &[HOST_NAME], &vector16(b"b")].concat());
    for extensions in [
        twice,
        extension(SERVER_NAME, &two_names),
        extension(SERVER_NAME, &vector16(&[&[1][..], &vector16(b"a")].concat())),
        extension(SERVER_NAME, &[0, 9, 0, 0, 1, b'a']),
        extension(SERVER_NAME, &[]),
        extension(SERVER_NAME, &[0, 4, 0, 0, 1, b'a', 0]),
        vec![0, 0, 0],
        vec![0, 43, 0, 9, 1],
    ] {
        assert_eq!(of(&extensions), Some(Err(NoName::Malformed)), "{extensions:?}");
    }
    let mut long = message(Some(&name_extension(b"a")));
    long.push(0);
    long[3] += 1;
    assert_eq!(read([&records(&long, 100)[..]]), Some(Err(NoName::Malformed)));
}

#[test]
fn what_is_no_client_hello() {
    let good = records(&message(Some(&name_extension(b"a"))), 100);
    for (place, value) in [(0, 23), (1, 2), (3, 0x41), (5, 2)] {
        let mut bytes = good.clone();
        bytes[place] = value;
        assert_eq!(read([&bytes[..]]), Some(Err(NoName::NotClientHello)), "{place}");
    }
    assert_eq!(read([&[HANDSHAKE, 3, 1, 0, 0][..]]), Some(Err(NoName::NotClientHello)));
    let long = [HANDSHAKE, 3, 1, 0x40, 0, CLIENT_HELLO, 0, 0x10, 0];
    assert_eq!(read([&long[..]]), Some(Err(NoName::TooLong)));
    // Records that never make a message cost nothing.
    let mut hello = ClientHello::new(&LIMITS);
    assert_eq!(hello.on_bytes(&[HANDSHAKE, 3, 1, 0, 1, CLIENT_HELLO]), None);
    assert_eq!(hello.on_bytes(&[HANDSHAKE, 3, 1, 0, 1, 0xff]), None);
    assert_eq!(hello.on_bytes(&[HANDSHAKE, 3, 1, 0, 1, 0xff]), None);
    assert_eq!(hello.on_bytes(&[HANDSHAKE, 3, 1, 0, 1, 0xff]), Some(&Err(NoName::TooLong)));
    assert_eq!(hello.held(), 0);
}

proptest! {
    #[test]
    fn a_hello_is_read_however_it_is_cut(
        name in "[a-z0-9]{1,20}(\\.[a-zA-Z0-9-]{1,20}){0,3}",
        others in proptest::collection::vec((1u16..100, proptest::collection::vec(any::<u8>(), 0..50)), 0..6),
        place in any::<prop::sample::Index>(),
        record_len in 1usize..400,
        piece_len in 1usize..400,
    ) {
        let mut extensions: Vec<_> = others.iter().map(|(kind, data)| extension(*kind, data)).collect();
        extensions.insert(place.index(extensions.len() + 1), name_extension(name.as_bytes()));
        let stream = records(&message(Some(&extensions.concat())), record_len);
        prop_assert_eq!(read(stream.chunks(piece_len)), Some(Ok(name.to_ascii_lowercase())));
    }

    #[test]
    fn damage_is_read_alike_however_it_is_cut(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        piece_len in 1usize..200,
    ) {
        let mut stream = OPENSSL.to_vec();
        for (place, byte) in changes {
            *place.get_mut(&mut stream) = byte;
        }
        prop_assert_eq!(read(stream.chunks(piece_len)), read([&stream[..]]));
    }
}
