//! Flows spread over several engines: each has a packet socket of its own in one fanout group (packet(7)), and a classic
//! BPF program gives each packet to the engine that [`scoutline_base::spread`] names; what has no ports, fragments too, to
//! the first, which hands on what is not its own.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use scoutline_base::spread::{EPHEMERAL_FROM, GOLDEN};

use super::police::Police;
use crate::error::OpenError;
use crate::sys;

/// Fragments of IPv4: an offset, or more to come.
const FRAGMENT: u32 = 0x3fff;

/// An interface that several engines share. They open it in their order.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    common: Arc<Common>,
    engine: usize,
}

impl Spread {
    /// The same interface, for this engine.
    #[must_use]
    pub fn of_engine(&self, engine: usize) -> Spread {
        Spread { common: Arc::clone(&self.common), engine }
    }

    /// Which engine it is for.
    pub(super) fn engine(&self) -> usize {
        self.engine
    }

    /// It is for another engine than the first: what is done for an interface once has been done.
    pub(super) fn is_further(&self) -> bool {
        self.engine > 0
    }

    /// What holds floods back there; made by the first who asks.
    pub(super) fn police(&self, make: impl FnOnce() -> Police) -> Arc<Police> {
        Arc::clone(self.common.police.get_or_init(|| Arc::new(make())))
    }
}

impl PartialEq for Spread {
    fn eq(&self, other: &Spread) -> bool {
        Arc::ptr_eq(&self.common, &other.common) && self.engine == other.engine
    }
}

impl Eq for Spread {}

#[derive(Default)]
struct Common {
    /// Number of the fanout group, once the first engine has made it.
    group: OnceLock<u16>,
    police: OnceLock<Arc<Police>>,
}

impl fmt::Debug for Common {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Common").field("group", &self.group).finish_non_exhaustive()
    }
}

/// Puts a bound packet socket into the group; the first makes it and says how packets are spread.
pub(super) fn join(name: &str, socket: &OwnedFd, spread: &Spread) -> Result<(), OpenError> {
    let system = |action| move |error| OpenError::system(name, action, error);
    let wanted = |flags: u32| match spread.common.group.get() {
        Some(&group) => (FANOUT_CBPF | flags) << 16 | u32::from(group),
        None => (FANOUT_CBPF | FLAG_UNIQUE_ID | flags) << 16,
    };
    let join = |flags| sys::set_option(socket, libc::SOL_PACKET, FANOUT, &wanted(flags));
    // Linux 6.0; before it, outgoing packets are skipped one by one.
    join(FLAG_IGNORE_OUTGOING)
        .or_else(|_| join(0))
        .map_err(system("spread its packets over several engines"))?;
    if spread.common.group.get().is_some() {
        return Ok(());
    }
    let group = sys::option(socket, libc::SOL_PACKET, FANOUT)
        .map_err(system("read the number of its fanout group"))?;
    let _ = spread.common.group.set(group as u16);
    let mut program = program();
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    sys::set_option(socket, libc::SOL_PACKET, FANOUT_DATA, &program)
        .map_err(system("say how its packets are spread"))
}

/// include/uapi/linux/if_packet.h.
const FANOUT: libc::c_int = 18;
const FANOUT_DATA: libc::c_int = 22;
const FANOUT_CBPF: u32 = 6;
const FLAG_UNIQUE_ID: u32 = 0x2000;
const FLAG_IGNORE_OUTGOING: u32 = 0x4000;

/// Offsets of the network header, wherever the packet begins (SKF_NET_OFF).
const NET: u32 = libc::SKF_NET_OFF.cast_unsigned();
const ETHER_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL).cast_unsigned();

const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF_AT: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
const LOAD_IP_HEADER_LEN: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
const TO_X: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
const XOR_X: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X) as u16;
const MULTIPLY: u16 = (libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_A: u16 = (libc::BPF_RET | libc::BPF_A) as u16;

fn step(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// What the rule says, before the remainder: the kernel takes that.
fn program() -> Vec<libc::sock_filter> {
    let (v4, v6) = (of_v4(), of_v6());
    let mut program = vec![
        step(LOAD_WORD, ETHER_TYPE, 0, 0),
        step(EQUAL, 0x0800, 2, 0),
        step(EQUAL, 0x86dd, 1 + v4.len() as u8, 0),
        step(RETURN, 0, 0, 0),
    ];
    program.extend(v4);
    program.extend(v6);
    program
}

fn of_v4() -> Vec<libc::sock_filter> {
    let local_port = [step(LOAD_IP_HEADER_LEN, NET, 0, 0), step(LOAD_HALF_AT, NET.wrapping_add(2), 0, 0)];
    let by_peer = [
        step(LOAD_HALF_AT, NET, 0, 0),
        step(TO_X, 0, 0, 0),
        step(LOAD_WORD, NET.wrapping_add(12), 0, 0),
        step(XOR_X, 0, 0, 0),
    ];
    let mut part = vec![
        step(LOAD_HALF, NET.wrapping_add(6), 0, 0),
        // To where `choose` says that it is neither UDP nor TCP.
        step(ANY_BIT, FRAGMENT, 3, 0),
        step(LOAD_BYTE, NET.wrapping_add(9), 0, 0),
    ];
    part.extend(choose(&local_port, &by_peer));
    part
}

fn of_v6() -> Vec<libc::sock_filter> {
    let local_port = [step(LOAD_HALF, NET.wrapping_add(42), 0, 0)];
    let mut by_peer = vec![step(LOAD_HALF, NET.wrapping_add(40), 0, 0)];
    for part in 0..4 {
        by_peer.extend([
            step(TO_X, 0, 0, 0),
            step(LOAD_WORD, NET.wrapping_add(8 + 4 * part), 0, 0),
            step(XOR_X, 0, 0, 0),
        ]);
    }
    let mut part = vec![step(LOAD_BYTE, NET.wrapping_add(6), 0, 0)];
    part.extend(choose(&local_port, &by_peer));
    part
}

/// The protocol is loaded: UDP goes by our port, TCP as well from [`EPHEMERAL_FROM`] on, else by the peer; all else to the first.
fn choose(local_port: &[libc::sock_filter], by_peer: &[libc::sock_filter]) -> Vec<libc::sock_filter> {
    let port = local_port.len() as u8;
    let mut part = vec![
        step(EQUAL, libc::IPPROTO_UDP as u32, 2, 0),
        step(EQUAL, libc::IPPROTO_TCP as u32, port + 2, 0),
        step(RETURN, 0, 0, 0),
    ];
    part.extend(local_port);
    part.push(step(RETURN_A, 0, 0, 0));
    part.extend(local_port);
    part.extend([step(AT_LEAST, EPHEMERAL_FROM.into(), 0, 1), step(RETURN_A, 0, 0, 0)]);
    part.extend(by_peer);
    part.extend([step(MULTIPLY, GOLDEN, 0, 0), step(SHIFT_RIGHT, 16, 0, 0), step(RETURN_A, 0, 0, 0)]);
    part
}
