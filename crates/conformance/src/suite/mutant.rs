//! Scripts with one expectation made wrong. A script that passes all the same tests nothing at that place.

use crate::script::{Body, Icmp, Script, What};

/// One mutant for each packet that must leave and each call whose result the script names, in its own file (what it
/// includes has its turn elsewhere): where it is, and the script.
pub fn mutants(script: &Script) -> Vec<(String, Script)> {
    let own = |index: usize| *script.events[index].place.file == *script.name;
    let all = (0..script.events.len()).filter(|index| own(*index));
    all.filter_map(|index| {
        let mut mutant = script.clone();
        let event = &mut mutant.events[index];
        let place = event.place.to_string();
        spoil(&mut event.what).then_some((place, mutant))
    })
    .collect()
}

/// Makes an expectation wrong; false when there is none.
fn spoil(what: &mut What) -> bool {
    match what {
        What::Out(packet) => match &mut packet.body {
            Body::Tcp(tcp) => match &mut tcp.acknowledgment {
                Some(number) => *number = number.wrapping_add(7),
                None => tcp.len += 1,
            },
            Body::Udp(len) | Body::Icmp(Icmp::Echo(_, _, _, len)) => *len += 1,
            Body::Icmp(Icmp::Error { code, .. }) => *code += 1,
            Body::Arp(arp) => arp.request = !arp.request,
            Body::Igmp(bytes) => match bytes.iter_mut().flatten().last() {
                Some(byte) => *byte ^= 1,
                None => bytes.push(None),
            },
            Body::Ip6(ip6) => match ip6.bytes.iter_mut().flatten().last() {
                Some(byte) => *byte ^= 1,
                None => ip6.next ^= 1,
            },
        },
        What::Call(call) => match (&mut call.errno, call.result) {
            (Some(name), _) => *name = if name == "EIO" { "EAGAIN".into() } else { "EIO".into() },
            // Whatever number a new descriptor has, it is one: its failure is what would be seen.
            (None, Some(_)) if matches!(call.name.as_str(), "socket" | "accept" | "accept4") => {
                call.result = Some(-1);
            }
            (None, Some(number)) => call.result = Some(number + 1),
            (None, None) => return false,
        },
        _ => return false,
    }
    true
}
