//! The few eBPF instructions that our hand-assembled programs use (RFC 9669), and labels to jump to.

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

/// Width of a load or store (RFC 9669 §5).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// Arithmetic on the 64 bits of a register (RFC 9669 §4.1); for 32 bits see [`Program::word`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Add = 0x00,
    Subtract = 0x10,
    Multiply = 0x20,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Modulo = 0x90,
    Xor = 0xa0,
    Move = 0xb0,
}

/// Conditions of jumps, unsigned (RFC 9669 §4.3).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition {
    Equal = 0x10,
    Above = 0x20,
    NotEqual = 0x50,
    Below = 0xa0,
}

/// The second operand.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    /// A register.
    R(u8),
    /// A number, sign-extended to 64 bits.
    K(i32),
}

/// A place in a program, to jump to: known once it is [placed](Program::place).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label(usize);

/// A program in the making.
#[derive(Debug, Default)]
pub(crate) struct Program {
    instructions: Vec<Instruction>,
    /// Where each label stands.
    labels: Vec<Option<usize>>,
    /// Jumps, and the labels they go to.
    jumps: Vec<(usize, Label)>,
}

const CLASS_LDX: u8 = 0x01;
const CLASS_STX: u8 = 0x03;
const CLASS_ALU: u8 = 0x04;
const CLASS_JMP: u8 = 0x05;
const CLASS_JMP32: u8 = 0x06;
const CLASS_ALU64: u8 = 0x07;
/// Source operand is a register.
const SOURCE_X: u8 = 0x08;
const MODE_MEM: u8 = 0x60;

impl Program {
    fn emit(&mut self, opcode: u8, (to, from): (u8, u8), offset: i16, immediate: i32) -> &mut Program {
        self.instructions.push(Instruction { opcode, registers: from << 4 | to, offset, immediate });
        self
    }

    fn operate(&mut self, opcode: u8, register: u8, operand: Operand) -> &mut Program {
        match operand {
            Operand::R(from) => self.emit(opcode | SOURCE_X, (register, from), 0, 0),
            Operand::K(value) => self.emit(opcode, (register, 0), 0, value),
        }
    }

    /// `register = register OPERATION operand`, 64 bits.
    pub(crate) fn double(&mut self, operation: Operation, register: u8, operand: Operand) -> &mut Program {
        self.operate(CLASS_ALU64 | operation as u8, register, operand)
    }

    /// The same with 32 bits; the upper half becomes zero.
    pub(crate) fn word(&mut self, operation: Operation, register: u8, operand: Operand) -> &mut Program {
        self.operate(CLASS_ALU | operation as u8, register, operand)
    }

    /// Between the order of the network and of this machine, 16 bits (RFC 9669 §4.2: END, to big endian).
    pub(crate) fn network_half(&mut self, register: u8) -> &mut Program {
        self.emit(0xdc, (register, 0), 0, 16)
    }

    /// The same with 32 bits.
    pub(crate) fn network_word(&mut self, register: u8) -> &mut Program {
        self.emit(0xdc, (register, 0), 0, 32)
    }

    /// `to = *(base + offset)`.
    pub(crate) fn load(&mut self, width: Width, to: u8, base: u8, offset: i16) -> &mut Program {
        self.emit(CLASS_LDX | MODE_MEM | width as u8, (to, base), offset, 0)
    }

    /// `*(base + offset) = from`.
    pub(crate) fn store(&mut self, width: Width, base: u8, offset: i16, from: u8) -> &mut Program {
        self.emit(CLASS_STX | MODE_MEM | width as u8, (base, from), offset, 0)
    }

    /// `register = the map with this descriptor` (RFC 9669 §5.4: 64-bit immediate, source 1).
    pub(crate) fn map(&mut self, register: u8, descriptor: i32) -> &mut Program {
        self.emit(0x18, (register, 1), 0, descriptor).emit(0, (0, 0), 0, 0)
    }

    /// `r0 = helper(r1, …)`.
    pub(crate) fn call(&mut self, helper: i32) -> &mut Program {
        self.emit(0x85, (0, 0), 0, helper)
    }

    /// `return r0`.
    pub(crate) fn exit(&mut self) -> &mut Program {
        self.emit(0x95, (0, 0), 0, 0)
    }

    /// A label that stands nowhere yet.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label stands here.
    pub(crate) fn place(&mut self, label: Label) -> &mut Program {
        self.labels[label.0] = Some(self.instructions.len());
        self
    }

    /// Goes to the label.
    pub(crate) fn jump(&mut self, label: Label) -> &mut Program {
        self.jumps.push((self.instructions.len(), label));
        self.emit(CLASS_JMP, (0, 0), 0, 0)
    }

    /// Goes to the label if the condition holds for 64 bits.
    pub(crate) fn jump_if(
        &mut self,
        register: u8,
        condition: Condition,
        operand: Operand,
        label: Label,
    ) -> &mut Program {
        self.jumps.push((self.instructions.len(), label));
        self.operate(CLASS_JMP | condition as u8, register, operand)
    }

    /// Goes to the label if the condition holds for the lower 32 bits.
    pub(crate) fn jump_if_word(
        &mut self,
        register: u8,
        condition: Condition,
        operand: Operand,
        label: Label,
    ) -> &mut Program {
        self.jumps.push((self.instructions.len(), label));
        self.operate(CLASS_JMP32 | condition as u8, register, operand)
    }

    /// The instructions, jumps resolved. Offsets count from the instruction behind the jump.
    ///
    /// # Panics
    /// A label that is jumped to was never placed, or stands too far away: a mistake of whoever wrote the program.
    pub(crate) fn assemble(&mut self) -> Vec<Instruction> {
        for (at, label) in std::mem::take(&mut self.jumps) {
            let target = self.labels[label.0].expect("every label is placed");
            let offset = target as i64 - at as i64 - 1;
            self.instructions[at].offset = i16::try_from(offset).expect("programs are short");
        }
        std::mem::take(&mut self.instructions)
    }
}
