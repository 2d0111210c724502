//! The few eBPF instructions that our hand-assembled programs use (RFC 9669).

/// One instruction (RFC 9669 §3): opcode, registers, offset, immediate.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    opcode: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

impl Instruction {
    /// `r<register> = value` (RFC 9669 §4.1: class ALU64, source K, code MOV).
    pub(crate) const fn mov(register: u8, value: i32) -> Instruction {
        Instruction { opcode: 0xb7, registers: register, offset: 0, immediate: value }
    }

    /// `return r0` (RFC 9669 §4.3: class JMP, code EXIT).
    pub(crate) const fn exit() -> Instruction {
        Instruction { opcode: 0x95, registers: 0, offset: 0, immediate: 0 }
    }
}
