//! Datagrams that are put together.

use super::*;

/// A datagram to `port`.
#[derive(Clone, Copy, Debug)]
struct Sent {
    port: u16,
    len: usize,
    identification: u16,
    dont_fragment: bool,
    ttl: u8,
    intact: bool,
}

const USUAL: Sent = Sent { port: 53, len: 20, identification: 0, dont_fragment: true, ttl: 63, intact: true };

impl Sent {
    fn frame(self, fill: u8) -> Vec<u8> {
        let mut udp = vec![fill; 8 + self.len];
        udp[..4].copy_from_slice(&[[0x13, 0x88], self.port.to_be_bytes()].concat());
        udp[4..6].copy_from_slice(&(8 + self.len as u16).to_be_bytes());
        udp[6..8].fill(0);
        let pseudo = checksum::pseudo_header(PEER, FAR, 17, udp.len());
        let sum = checksum::finish(checksum::add(pseudo, checksum::sum(&udp)));
        udp[6..8].copy_from_slice(&(if self.intact { sum } else { !sum | 1 }).to_be_bytes());
        let Sent { identification, dont_fragment, ttl, .. } = self;
        ip_frame(&ipv4::Header { identification, dont_fragment, ttl, ..header(17, udp.len()) }, &udp)
    }
}

impl Router {
    fn pass_all(&mut self, mut burst: Vec<Message>) -> Vec<Message> {
        let grant = Grant { segment_len: self.segment_len, ..Grant::new(Time::from_millis(2), 64, 64) };
        self.path.run_inward_with(&mut self.runner, grant, &mut burst);
        std::mem::take(&mut self.runner.out)
    }
}

/// The packets that stand on the wire, as a device cuts them (Linux: `__udp_gso_segment`).
fn on_the_wire(message: &Message) -> Vec<Vec<u8>> {
    let frame = bytes_of(message);
    let Some(how) = message.facts.segmentation else { return vec![completed(frame, &message.facts)] };
    assert_eq!((how.kind, usize::from(how.header_len)), (SegmentationKind::Udp, ETH + 28));
    assert_eq!(message.facts.checksum, Checksum::Partial { start: ETH as u16 + 20, offset: 6 });
    let whole = ipv4::Header::parse(&frame[ETH..]).unwrap();
    assert_eq!(usize::from(whole.total_len), frame.len() - ETH);
    let (headers, data) = frame.split_at(ETH + 28);
    let cut = data.chunks(how.size.into()).enumerate().map(|(index, data)| {
        let mut packet = [headers, data].concat();
        let identification = whole.identification.wrapping_add(index as u16);
        let header = ipv4::Header { total_len: 28 + data.len() as u16, identification, ..whole };
        header.emit(&mut packet[ETH..ETH + 20]);
        let udp = &mut packet[ETH + 20..];
        udp[4..6].copy_from_slice(&(8 + data.len() as u16).to_be_bytes());
        udp[6..8].fill(0);
        let pseudo = checksum::pseudo_header(PEER, FAR, 17, udp.len());
        let sum = checksum::finish(checksum::add(pseudo, checksum::sum(udp)));
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
        packet
    });
    cut.collect()
}

/// How many datagrams each message that leaves has; the datagrams are those that came.
fn passed(router: &mut Router, sent: &[Sent]) -> Vec<usize> {
    let frames: Vec<_> = sent.iter().zip(1..).map(|(sent, fill)| sent.frame(fill)).collect();
    let out = router.pass_all(frames.iter().map(|frame| testing::received(frame)).collect());
    let wire: Vec<Vec<Vec<u8>>> = out.iter().map(on_the_wire).collect();
    let counts = wire.iter().map(Vec::len).collect();
    let wire = wire.concat();
    assert_eq!(wire.len(), sent.len());
    for ((now, before), sent) in wire.iter().zip(&frames).zip(sent) {
        let [new, old] = [now, before].map(|frame| ipv4::Header::parse(&frame[ETH..]).unwrap());
        // RFC 6864 §4.1: nobody looks at that of an atomic datagram.
        let identification = if sent.dont_fragment { new.identification } else { old.identification };
        assert_eq!(new, ipv4::Header { ttl: old.ttl - 1, identification, ..old });
        assert!(ipv4::checksum_is_valid(&now[ETH..ETH + 20]));
        assert_eq!(now[ETH + 20..], before[ETH + 20..]);
    }
    counts
}

#[test]
fn datagrams_of_a_flow_leave_as_one() {
    let mut router = Router::new(1500);
    let shorter = Sent { len: 7, ..USUAL };
    assert_eq!(passed(&mut router, &[USUAL; 5]), [5]);
    assert_eq!(passed(&mut router, &[USUAL, USUAL, shorter, USUAL, USUAL]), [3, 2]);
    assert_eq!(passed(&mut router, &[shorter, USUAL, USUAL]), [1, 2]);
    assert_eq!(passed(&mut router, &[USUAL; 64]), [64]);
    // Those that may be fragmented keep their numbers.
    let numbered = |identification| Sent { identification, dont_fragment: false, ..USUAL };
    assert_eq!(passed(&mut router, &[65535, 0, 1, 3, 4, 4].map(numbered)), [3, 2, 1]);
}

#[test]
fn what_differs_or_is_not_intact_leaves_alone() {
    let mut router = Router::new(1500);
    let other = Sent { port: 54, ..USUAL };
    let nearer = Sent { ttl: 40, ..USUAL };
    let broken = Sent { intact: false, ..USUAL };
    let long = Sent { len: 900, ..USUAL };
    assert_eq!(passed(&mut router, &[USUAL, other, USUAL, nearer, USUAL]), [1; 5]);
    assert_eq!(passed(&mut router, &[broken, broken, USUAL, USUAL, broken]), [1, 1, 2, 1]);
    assert_eq!(passed(&mut router, &[long; 3]), [1; 3]);
    assert_eq!(passed(&mut router, &[Sent { len: 0, ..USUAL }; 3]), [1; 3]);
    // As much as the link is given at a time.
    router.segment_len = 3 * (14 + 28 + 20) as u32;
    assert_eq!(passed(&mut router, &[USUAL; 7]), [3, 3, 1]);
    router.segment_len = 80;
    assert_eq!(passed(&mut router, &[USUAL; 2]), [1, 1]);
}

proptest! {
    #[test]
    fn whatever_comes_leaves_in_order(
        kinds in prop::collection::vec((0u16..2, 1usize..4, 0u16..4, any::<bool>(), any::<bool>()), 1..64),
    ) {
        let sent: Vec<Sent> = kinds
            .into_iter()
            .map(|(port, len, identification, dont_fragment, intact)| {
                Sent { port, len: len * 40, identification, dont_fragment, ttl: 9, intact }
            })
            .collect();
        passed(&mut Router::new(1500), &sent);
    }
}
