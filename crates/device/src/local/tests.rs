use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;

use scoutline_base::{DeviceId, Time};
use scoutline_path::{Body, Burst, Checksum, Control, Message, Tail};
use scoutline_ring::{Block, Span, Spans, StreamMemory};

use super::open::{MAX_FRAME, MAX_QUEUED, MAX_QUEUED_LEN};
use super::{LocalPartner, open};
use crate::Partner;

struct Ring(Vec<u8>);

impl StreamMemory for Ring {
    fn spans(&self, range: Range<u64>) -> Spans {
        let half = u64::midpoint(range.start, range.end);
        let span = |range: Range<u64>| Span {
            memory: NonNull::from(&self.0[range.start as usize]),
            len: (range.end - range.start) as usize,
        };
        [span(range.start..half), span(half..range.end)].into()
    }
}

struct Nothing;

impl StreamMemory for Nothing {
    fn spans(&self, _range: Range<u64>) -> Spans {
        Spans::default()
    }
}

fn block(bytes: &[u8]) -> Message {
    let body = Body::block(Block::from_bytes(bytes.into()), 0..bytes.len() as u32);
    Message { body, ..Message::default() }
}

fn pulled(link: &mut LocalPartner, now: Time) -> Burst {
    let mut burst = Burst::new();
    link.pull(&mut burst, usize::MAX, now).unwrap();
    burst
}

#[test]
fn what_is_sent_comes_back_in_one_piece() {
    let mut link = open(DeviceId(4));
    let mut one = block(b"data");
    one.head.prepend(4).copy_from_slice(b"head");
    one.facts.checksum = Checksum::Partial { start: 0, offset: 0 };
    let memory: Rc<dyn StreamMemory> = Rc::new(Ring((0..100_u8).collect()));
    let body = Body::Stream { range: 3..10, memory: Some(memory) };
    let mut two = Message { body, ..Message::default() };
    two.head.prepend(1).copy_from_slice(b"h");
    let mut burst = vec![one, two];
    assert_eq!(link.push(&mut burst).unwrap(), 2);
    assert!(burst.is_empty() && link.has_input());
    let now = Time::from_nanos(7);
    let came = pulled(&mut link, now);
    assert_eq!(came[0].bytes(), b"headdata");
    assert_eq!(came[1].bytes(), [b"h".as_slice(), &[3, 4, 5, 6, 7, 8, 9]].concat());
    assert_eq!((came[0].facts.checksum, came[1].facts.checksum), (Checksum::Verified, Checksum::Unverified));
    assert_eq!((came[0].facts.device, came[0].facts.arrival), (DeviceId(4), now));
    assert!(!link.has_input() && link.standing() == Some(0));
}

#[test]
fn it_is_bounded_in_packets_and_bytes_and_goes_on() {
    let mut link = open(DeviceId(0));
    let mut burst: Burst = (0..MAX_QUEUED + 3).map(|_| block(b"x")).collect();
    assert_eq!(link.push(&mut burst).unwrap(), MAX_QUEUED);
    assert_eq!((burst.len(), link.room(), link.counters().tx_full), (3, 0, 1));
    assert_eq!(pulled(&mut link, Time::ZERO).len(), MAX_QUEUED);
    assert_eq!(link.push(&mut burst).unwrap(), 3);
    let long = vec![7; MAX_FRAME];
    let mut burst: Burst = (0..60).map(|_| block(&long)).collect();
    // Beyond the pool the heap serves; beyond the bytes nothing is taken.
    let taken = link.push(&mut burst).unwrap();
    assert!(taken * MAX_FRAME < MAX_QUEUED_LEN + MAX_FRAME && taken * MAX_FRAME >= MAX_QUEUED_LEN, "{taken}");
    let held = pulled(&mut link, Time::ZERO);
    assert!(link.push(&mut burst).unwrap() > 0);
    assert!(held.iter().skip(3).all(|message| message.bytes() == long));
}

#[test]
fn what_cannot_be_sent_is_counted_and_goes() {
    let mut link = open(DeviceId(0));
    // A stream without its bytes: those that its block had before must not be seen.
    let memory: Rc<dyn StreamMemory> = Rc::new(Nothing);
    let empty = Message { body: Body::Stream { range: 0..9, memory: Some(memory) }, ..Message::default() };
    let mut burst =
        vec![block(&vec![0; MAX_FRAME + 1]), Message::control(Control::Close), empty, block(b"fine")];
    assert_eq!(link.push(&mut burst).unwrap(), 4);
    let counters = link.counters();
    assert_eq!((counters.tx_too_large, counters.tx_malformed, counters.tx_packets), (1, 2, 1));
    assert_eq!(pulled(&mut link, Time::ZERO).len(), 1);
}

#[test]
fn long_payload_stays_where_it_is_until_it_is_wanted_in_one_piece() {
    const LEN: usize = 60_000;
    let mut link = open(DeviceId(0));
    let bytes: Vec<u8> = (0..LEN + 10).map(|at| (at % 251) as u8).collect();
    let memory: Rc<dyn StreamMemory> = Rc::new(Ring(bytes.clone()));
    let body = Body::Stream { range: 5..5 + LEN as u64, memory: Some(memory) };
    let mut message = Message { body, ..Message::default() };
    message.head.prepend(4).copy_from_slice(b"head");
    assert_eq!(link.push(&mut vec![message]).unwrap(), 1);
    assert_eq!((link.counters().tx_copied_bytes, link.counters().tx_bytes), (4, LEN as u64 + 4));
    let mut came = pulled(&mut link, Time::ZERO).remove(0);
    assert_eq!(link.standing(), Some(0));
    assert_eq!((came.bytes(), came.body_len()), (b"head".as_slice(), LEN + 4));
    assert_eq!(came.tail().map(|tail| tail.range.clone()), Some(5..5 + LEN as u64));
    // Headers go, then what was stored already, and what is too much.
    came.advance(2);
    came.advance(102);
    came.truncate(LEN - 300);
    assert_eq!((came.bytes().len(), came.body_len()), (0, LEN - 300));
    came.settle();
    assert!(came.tail().is_none());
    assert!(came.bytes() == &bytes[105..LEN - 195]);
    came.truncate(7);
    assert_eq!(came.bytes(), &bytes[105..112]);
}

#[test]
fn a_packet_whose_tail_is_gone_stays_short() {
    let mut message = block(b"headers");
    if let Body::Block { tail, .. } = &mut message.body {
        *tail = Some(Box::new(Tail { range: 0..100, memory: Rc::new(Nothing) }));
    }
    message.settle();
    assert_eq!((message.bytes(), message.body_len()), (b"headers".as_slice(), 7));
}

#[test]
fn a_packet_is_cut_before_its_tail() {
    let memory: Rc<dyn StreamMemory> = Rc::new(Ring(vec![1; 100]));
    let mut message = block(b"0123456789");
    if let Body::Block { tail, .. } = &mut message.body {
        *tail = Some(Box::new(Tail { range: 0..100, memory }));
    }
    message.advance(3);
    assert_eq!((message.bytes(), message.body_len()), (b"3456789".as_slice(), 107));
    message.truncate(7);
    assert_eq!(
        (message.bytes(), message.body_len(), message.tail().is_none()),
        (b"3456789".as_slice(), 7, true)
    );
}
