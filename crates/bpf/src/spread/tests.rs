//! The kernel itself runs the rule on frames that are made here (`BPF_PROG_TEST_RUN`), and has to say what the engines say.

use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use scoutline_base::spread::engine_of_flow;

use super::*;
use crate::{sys, xdp};

/// A program whose verdict is the engine; `None` where this process may not load programs.
fn rule(engines: u32) -> Option<OwnedFd> {
    let mut program = Program::default();
    program.word(Move, 4, K(0));
    find_engine(&mut program, engines);
    program.word(Move, 0, R(4)).exit();
    match xdp::load("scoutline_rule", &program.assemble()) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            eprintln!("not run: no permission to load eBPF programs");
            None
        }
        loaded => Some(loaded.expect("the verifier takes it")),
    }
}

fn verdict(rule: &OwnedFd, frame: &[u8]) -> usize {
    sys::test(rule.as_fd(), frame, &mut []).unwrap() as usize
}

/// A frame with these ports behind so many words of IPv4 options.
fn frame(protocol: i32, peer: IpAddr, (peer_port, local_port): (u16, u16), options: usize) -> Vec<u8> {
    let mut frame = vec![2; 12];
    match peer {
        IpAddr::V4(peer) => {
            frame.extend([8, 0, 0x45 + options as u8, 0, 0, 40, 0, 1, 0x40, 0, 64, protocol as u8, 0, 0]);
            frame.extend(peer.octets());
            frame.extend([10, 9, 0, 2]);
            frame.extend(vec![1; 4 * options]);
        }
        IpAddr::V6(peer) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, protocol as u8, 64]);
            frame.extend(peer.octets());
            frame.extend([0xfd; 16]);
        }
    }
    frame.extend(peer_port.to_be_bytes());
    frame.extend(local_port.to_be_bytes());
    frame.extend([0; 16]);
    frame
}

/// The same frame with a tag.
fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
    [&frame[..12], &tag.to_be_bytes(), &[0x20, 7], &frame[12..]].concat()
}

fn peers() -> [IpAddr; 4] {
    ["10.9.0.1", "192.168.77.203", "2001:db8:7:ffff::1", "fe80::ff:fe00:9a01"]
        .map(|text| text.parse().unwrap())
}

#[test]
fn the_kernel_and_the_engines_agree() {
    for engines in 2..=4 {
        let Some(rule) = rule(engines as u32) else { return };
        let mut hits = vec![0; engines];
        for (number, peer) in (0u16..200).zip(peers().into_iter().cycle()) {
            let peer_port = 1024 + 311 * number;
            for local_port in [80, 8000 + number, 32_767, 32_768, 32_768 + 131 * number] {
                for (protocol, stream) in [(TCP, true), (UDP, false)] {
                    let expected = engine_of_flow(stream, peer, peer_port, local_port, engines);
                    let plain = frame(protocol, peer, (peer_port, local_port), usize::from(number % 11));
                    let what =
                        format!("{peer} {peer_port} to {local_port}, stream {stream}, {engines} engines");
                    assert_eq!(verdict(&rule, &plain), expected, "{what}");
                    for tag in [0x8100, 0x88a8] {
                        assert_eq!(verdict(&rule, &tagged(&plain, tag)), expected, "{what}, tagged");
                    }
                    hits[expected] += 1;
                }
            }
        }
        assert!(hits.iter().all(|&hits| hits > 2000 / engines / 2), "{hits:?}");
    }
}

/// Ports that are odd, and so the second engine's where they are looked at.
#[test]
fn what_has_no_ports_is_the_first_engines() {
    let Some(rule) = rule(2) else { return };
    for peer in peers() {
        let datagram = frame(UDP, peer, (5, 7), 0);
        assert_eq!(verdict(&rule, &datagram), 1);
        assert_eq!(verdict(&rule, &frame(1, peer, (5, 7), 0)), 0, "another protocol");
        assert_eq!(verdict(&rule, &tagged(&tagged(&datagram, 0x8100), 0x88a8)), 0, "two tags");
        let cut = datagram.len() - 17;
        assert_eq!(verdict(&rule, &datagram[..cut]), 0, "cut within its ports");
        if peer.is_ipv4() {
            for flags in [[0x20, 0], [0, 1], [0x1f, 0xff]] {
                let mut fragment = datagram.clone();
                fragment[20..22].copy_from_slice(&flags);
                assert_eq!(verdict(&rule, &fragment), 0, "a fragment: {flags:?}");
            }
        }
    }
    let mut other = vec![0; 60];
    other[12..14].copy_from_slice(&[0x88, 0xb5]);
    assert_eq!(verdict(&rule, &other), 0, "another family");
    assert_eq!(verdict(&rule, &tagged(&[0; 14], 0x8100)), 0, "nothing behind a tag");
}
