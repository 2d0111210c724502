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

    /// `r0 = helper(r1, …)` (RFC 9669 §4.3.1: class JMP, code CALL).
    pub(crate) const fn call(helper: i32) -> Instruction {
        Instruction { opcode: 0x85, registers: 0, offset: 0, immediate: helper }
    }

    /// Skips `offset` instructions if the low half of a register is below `value`, both unsigned (RFC 9669 §4.3:
    /// class JMP32, source K, code JLT).
    pub(crate) const fn jump_if_below(register: u8, value: u32, offset: i16) -> Instruction {
        Instruction { opcode: 0xa6, registers: register, offset, immediate: value as i32 }
    }

    /// `return r0` (RFC 9669 §4.3: class JMP, code EXIT).
    pub(crate) const fn exit() -> Instruction {
        Instruction { opcode: 0x95, registers: 0, offset: 0, immediate: 0 }
    }
}
