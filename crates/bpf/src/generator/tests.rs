//! The kernel itself runs the program on a template, as in `policer/tests.rs`: what it makes of it is looked at.

use super::*;

/// `enum xdp_action` (include/uapi/linux/bpf.h).
const XDP_REDIRECT: u32 = 4;
const NETWORK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

/// A SYN with a total length of 61 bytes, one of data among them, so that the segment's length is odd, and some padding.
fn template() -> Vec<u8> {
    let mut frame = vec![0; 80];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 61, 0x12, 0x34, 0x40, 0, 64, 6]);
    // What is drawn, and the checksums, mean nothing in a template.
    frame[24..30].fill(0xee);
    frame[30..34].copy_from_slice(&[10, 0, 0, 1]);
    frame[34..38].copy_from_slice(&[0xee, 0xee, 0, 80]);
    frame[38..42].fill(0xee);
    frame[46..54].copy_from_slice(&[0xa0, 2, 0xfa, 0xf0, 0xee, 0xee, 0, 0]);
    frame[54..75].copy_from_slice(b"\x02\x04\x05\xb4\x04\x02\x08\x0a\0\0\0\x01\0\0\0\0\x01\x03\x03\x07!");
    frame
}

fn program_of(frames: &Frames<'_>) -> Option<Generator> {
    match Generator::new(1, frames) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            eprintln!("not run: no permission to load eBPF programs");
            None
        }
        made => Some(made.expect("the verifier takes it")),
    }
}

/// One run: the verdict, and the frame then.
fn once(generator: &Generator) -> (u32, Vec<u8>) {
    let mut out = vec![0; generator.template.len()];
    let verdict = sys::test(generator.program.as_fd(), &generator.template, &mut out).unwrap();
    (verdict, out)
}

/// The sum over a header or a segment, as who receives it makes it: 0xffff where it is right.
fn sum(parts: &[&[u8]]) -> u32 {
    let halves = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 =
        halves.map(|half| u32::from(half[0]) << 8 | u32::from(half.get(1).copied().unwrap_or(0))).sum();
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn each_frame_is_whole_and_from_another() {
    let template = template();
    let frames = Frames { template: &template, forged_from: Some(NETWORK), rate: None };
    let Some(generator) = program_of(&frames) else { return };
    let mut drawn = std::collections::BTreeSet::new();
    for count in 1..=300 {
        let (verdict, frame) = once(&generator);
        assert_eq!((verdict, generator.sent()), (XDP_REDIRECT, count));
        let (header, segment) = (&frame[14..34], &frame[34..75]);
        assert_eq!(sum(&[header]), 0xffff, "{header:02x?}");
        let pseudo = [0, 6, 0, segment.len() as u8];
        assert_eq!(sum(&[&header[12..], &pseudo, segment]), 0xffff, "{segment:02x?}");
        let source = Ipv4Addr::from(*header[12..].first_chunk::<4>().unwrap());
        assert_eq!(source.to_bits() >> 17, NETWORK.to_bits() >> 17, "{source}");
        assert!(u16::from_be_bytes([segment[0], segment[1]]) >= 1024);
        // Nothing else has changed.
        let mut other = frame.clone();
        for changed in [24..30, 34..36, 38..42, 50..52] {
            other[changed.clone()].copy_from_slice(&template[changed]);
        }
        assert_eq!(other, template);
        drawn.insert((source, frame[34..36].to_vec(), frame[38..42].to_vec()));
    }
    assert!(drawn.len() > 295, "{} of 300", drawn.len());
}

#[test]
fn what_is_not_forged_goes_as_it_is() {
    let template = template();
    let frames = Frames { template: &template, forged_from: None, rate: None };
    let Some(generator) = program_of(&frames) else { return };
    assert_eq!(once(&generator), (XDP_REDIRECT, template.clone()));
}

/// By its beginning alone: at a frame a second, with a clock that the test sets.
#[test]
fn a_rate_is_kept_from_the_beginning_on() {
    let template = template();
    let frames = Frames { template: &template, forged_from: None, rate: Some(1.0) };
    let Some(generator) = program_of(&frames) else { return };
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for what the call writes.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) }, 0);
    let now_ns = now.tv_sec as u64 * 1_000_000_000;
    // It began an hour from now, and an hour ago.
    generator.begin(now_ns.saturating_sub(3_600_000_000_000));
    let made_up_for = (0..100).filter(|_| once(&generator).0 == XDP_REDIRECT).count();
    assert_eq!((made_up_for, generator.sent()), (100, 100), "what was kept back is made up for");
    generator.begin(now_ns);
    let verdicts: Vec<u32> = (0..10).map(|_| once(&generator).0).collect();
    assert_eq!(verdicts, [XDP_DROP as u32; 10], "a hundred are more than this time allows");
    assert_eq!(generator.sent(), 100);
}
