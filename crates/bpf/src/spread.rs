//! Whose a packet is where several engines share an interface, as [`scoutline_base::spread`] says; what has no ports,
//! fragments too, is the first one's. The same rule in classic BPF, for packet sockets, stands in the device crate.
//!
//! Registers: r6 the packet, r7 its end, r9 where its Ethernet type stands less the 12 bytes in front of it, r8 the transport
//! header, r3 the protocol, r5 the peer's address as one word.

use scoutline_base::spread::{EPHEMERAL_FROM, GOLDEN};

use crate::flow::{
    ETHERNET_LEN, ETHERTYPE_AT, IPV4_LEN, IPV6_LEN, NEXT_HEADER_AT, PROTOCOL_AT, SOURCE_AT, SOURCE6_AT,
};
use crate::flow::{TCP, UDP};
use crate::instruction::{Condition, Label, Operand, Operation, Program, Width};

use Condition::{Above, Equal, NotEqual};
use Operand::{K, R};
use Operation::{Add, And, Modulo, Move, Multiply, ShiftLeft, ShiftRight, Xor};
use Width::{Byte, Half, Word};

/// Tags (802.1Q, 802.1ad), and how long one is. Behind one the packet is looked at as Linux does for packet sockets,
/// which takes it out first; behind two it has no ports.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const TAG_LEN: i32 = 4;
/// Flags and offset of IPv4 in a frame, and those of them that a fragment has: more to come, or not the first.
const FLAGS_AT: i16 = 20;
const FRAGMENT: u16 = 0x3fff;

/// r4 = the engine, of so many, whose packet this is, and nothing but 0 before. The context stays in r1.
pub(crate) fn find_engine(program: &mut Program, engines: u32) {
    let (untagged, tagged, six) = (program.label(), program.label(), program.label());
    let (transport, by_port, modulo, done) =
        (program.label(), program.label(), program.label(), program.label());
    program.load(Word, 6, 1, 0).load(Word, 7, 1, 4).double(Move, 9, R(6));
    read_to(program, ETHERNET_LEN, done);
    program.load(Half, 2, 9, ETHERTYPE_AT);
    for tag in TAGS {
        program.jump_if(2, Equal, K(i32::from(tag.to_be())), tagged);
    }
    program.jump(untagged).place(tagged).double(Add, 9, K(TAG_LEN));
    read_to(program, ETHERNET_LEN, done);
    program
        .load(Half, 2, 9, ETHERTYPE_AT)
        .place(untagged)
        .jump_if(2, Equal, K(i32::from(0x86dd_u16.to_be())), six)
        .jump_if(2, NotEqual, K(i32::from(0x0800_u16.to_be())), done);
    read_to(program, ETHERNET_LEN + IPV4_LEN, done);
    program
        .load(Half, 2, 9, FLAGS_AT)
        .double(And, 2, K(i32::from(FRAGMENT.to_be())))
        .jump_if(2, NotEqual, K(0), done)
        .load(Byte, 3, 9, PROTOCOL_AT)
        .load(Word, 5, 9, SOURCE_AT)
        .load(Byte, 2, 9, ETHERNET_LEN as i16)
        .double(And, 2, K(0x0f))
        .double(ShiftLeft, 2, K(2))
        .double(Move, 8, R(9))
        .double(Add, 8, K(ETHERNET_LEN))
        .double(Add, 8, R(2))
        .jump(transport)
        .place(six);
    read_to(program, ETHERNET_LEN + IPV6_LEN, done);
    program.load(Byte, 3, 9, NEXT_HEADER_AT).load(Word, 5, 9, SOURCE6_AT);
    for word in 1..4 {
        program.load(Word, 2, 9, SOURCE6_AT + 4 * word).word(Xor, 5, R(2));
    }
    program
        .double(Move, 8, R(9))
        .double(Add, 8, K(ETHERNET_LEN + IPV6_LEN))
        .place(transport)
        .double(Move, 2, R(8))
        .double(Add, 2, K(4))
        .jump_if(2, Above, R(7), done)
        .jump_if(3, Equal, K(UDP), by_port)
        .jump_if(3, NotEqual, K(TCP), done)
        .load(Half, 4, 8, 2)
        .network_half(4)
        .jump_if(4, Above, K(i32::from(EPHEMERAL_FROM) - 1), modulo)
        .load(Half, 4, 8, 0)
        .network_half(4)
        .network_word(5)
        .word(Xor, 4, R(5))
        .word(Multiply, 4, K(GOLDEN as i32))
        .word(ShiftRight, 4, K(16))
        .jump(modulo)
        .place(by_port)
        .load(Half, 4, 8, 2)
        .network_half(4)
        .place(modulo)
        .word(Modulo, 4, K(engines as i32))
        .place(done);
}

/// To `other` when less than so many bytes of an untagged frame are there.
fn read_to(program: &mut Program, len: i32, other: Label) {
    program.double(Move, 2, R(9)).double(Add, 2, K(len)).jump_if(2, Above, R(7), other);
}

#[cfg(test)]
mod tests;
