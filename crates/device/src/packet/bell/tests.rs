//! The filter, interpreted, against what the rules say.

use super::*;

/// What a classic BPF program says of a frame (net/core/filter.c; a load beyond the frame says no).
fn run(program: &[libc::sock_filter], frame: &[u8]) -> u32 {
    let (mut a, mut x, mut at) = (0u32, 0u32, 0);
    let load = |at: u32, len: u32| {
        let bytes = frame.get(at as usize..(at + len) as usize)?;
        Some(bytes.iter().fold(0u32, |value, &byte| value << 8 | u32::from(byte)))
    };
    loop {
        let step = program[at];
        at += 1;
        let jump = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
        let loaded = match step.code {
            LOAD_HALF => load(step.k, 2),
            LOAD_WORD => load(step.k, 4),
            LOAD_HALF_AT => load(step.k + x, 2),
            LOAD_IP_HEADER_LEN => load(step.k, 1).inspect(|byte| x = (byte & 15) * 4).map(|_| a),
            AND => Some(a & step.k),
            EQUAL | AT_LEAST | GREATER => {
                at += jump(match step.code {
                    EQUAL => a == step.k,
                    AT_LEAST => a >= step.k,
                    _ => a > step.k,
                });
                continue;
            }
            JUMP => {
                at += step.k as usize;
                continue;
            }
            RETURN => return step.k,
            code => panic!("an instruction that the filter does not use: {code}"),
        };
        let Some(loaded) = loaded else { return 0 };
        a = loaded;
    }
}

fn frame4(source: [u8; 4], port: u16) -> Vec<u8> {
    let mut frame = vec![0; 14 + 20 + 8];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[26..30].copy_from_slice(&source);
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame
}

fn frame6(source: &str, port: u16) -> Vec<u8> {
    let mut frame = vec![0; 14 + 40 + 8];
    frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    frame[22..38].copy_from_slice(&source.parse::<std::net::Ipv6Addr>().unwrap().octets());
    frame[56..58].copy_from_slice(&port.to_be_bytes());
    frame
}

fn rule(source: &str, prefix_len: u8, ports: Option<RangeInclusive<u16>>) -> Important {
    Important { source: source.parse().unwrap(), prefix_len, local_port: ports }
}

#[test]
fn what_a_rule_names_rings_and_nothing_else() {
    let rules = [
        rule("10.0.0.0", 24, None),
        rule("2001:db8:7::", 47, Some(80..=81)),
        rule("2001:db8:9::1", 128, None),
        rule("0.0.0.0", 0, Some(443..=443)),
    ];
    let program = filter(&rules);
    let rings = |frame: &[u8]| run(&program, frame) != 0;
    assert!(rings(&frame4([10, 0, 0, 9], 5)) && !rings(&frame4([10, 0, 1, 9], 5)));
    assert!(rings(&frame4([10, 9, 9, 9], 443)), "every peer at that port");
    assert!(rings(&frame6("2001:db8:6::5", 80)) && rings(&frame6("2001:db8:7::5", 81)));
    assert!(!rings(&frame6("2001:db8:7::5", 82)) && !rings(&frame6("2001:db8:8::5", 80)));
    assert!(rings(&frame6("2001:db8:9::1", 1)) && !rings(&frame6("2001:db8:9::2", 1)));
    assert!(rings(&frame6("2001:db8:aaaa::1", 443)), "of either family");
    let mut arp = frame4([10, 0, 0, 9], 5);
    arp[13] = 6;
    assert!(!rings(&arp) && !rings(&frame6("2001:db8:9::1", 1)[..20]));
    assert_eq!(run(&filter(&[]), &frame4([10, 0, 0, 9], 5)), 0);
}

#[test]
fn too_many_rules_of_a_family_let_all_of_it_ring() {
    let rules = vec![rule("10.0.0.0", 32, Some(1..=2)); MAX_RULES + 1];
    let program = filter(&rules);
    assert_ne!(run(&program, &frame4([9, 9, 9, 9], 9)), 0);
    assert_eq!(run(&program, &frame6("2001:db8::1", 1)), 0);
    // As many as there may be, of the longest kind, still fit the kernel's limit (BPF_MAXINSNS).
    let rules: Vec<Important> = (0..MAX_RULES as u16)
        .flat_map(|port| {
            [rule("2001:db8::1", 128, Some(port..=port)), rule("10.0.0.1", 32, Some(port..=port))]
        })
        .collect();
    let program = filter(&rules);
    assert!(program.len() <= 4096, "{}", program.len());
    assert_ne!(run(&program, &frame6("2001:db8::1", MAX_RULES as u16 - 1)), 0);
    assert_ne!(run(&program, &frame4([10, 0, 0, 1], 0)), 0);
}
