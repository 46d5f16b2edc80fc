//! Single instructions, as defined by the kernel's `Documentation/bpf/standardization/instruction-set.rst` (RFC 9669).

use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};

/// Eight bytes of code, in the layout of `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    code: u8,
    registers: u8,
    pub(super) offset: i16,
    immediate: i32,
}

/// A register. Calls clobber `R1` to `R5`; `R10` is the read-only frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the registers have no other meaning than their number")]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The number of bytes that a load or a store moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// One byte.
    Byte,
    /// Two bytes.
    Half,
    /// Four bytes.
    Word,
    /// Eight bytes.
    Double,
}

/// A memory operand at a register plus an offset in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryOperand {
    base: Register,
    offset: i16,
    width: Width,
}

/// The right-hand side: a register, or a number sign-extended to 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// The value of a register.
    Register(Register),
    /// A constant.
    Immediate(i32),
}

/// The effect of an arithmetic instruction on its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Addition; wraps around.
    Add,
    /// Subtraction; wraps around.
    Sub,
    /// Multiplication; wraps around.
    Mul,
    /// Unsigned division; division by zero gives zero.
    Div,
    /// Bitwise or.
    Or,
    /// Bitwise and.
    And,
    /// Shift towards the most significant bit.
    ShiftLeft,
    /// Unsigned shift towards the least significant bit.
    ShiftRight,
    /// Unsigned remainder; a divisor of zero leaves the destination unchanged.
    Mod,
    /// Bitwise exclusive or.
    Xor,
    /// Copy.
    Mov,
}

/// A 64-bit comparison for a conditional jump; orderings are unsigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    code: u8,
    left: Register,
    right: Operand,
}

impl Register {
    const ALL: [Self; 11] = [R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10];

    fn number(self) -> u8 {
        let position = Self::ALL.iter().position(|&register| register == self);
        position.and_then(|number| u8::try_from(number).ok()).expect("every register is listed")
    }

    const fn place(self, width: Width, offset: i16) -> MemoryOperand {
        MemoryOperand { base: self, offset, width }
    }

    /// One byte of memory at this register plus `offset`.
    #[must_use]
    pub const fn byte(self, offset: i16) -> MemoryOperand {
        self.place(Width::Byte, offset)
    }

    /// Two bytes of memory at this register plus `offset`.
    #[must_use]
    pub const fn half(self, offset: i16) -> MemoryOperand {
        self.place(Width::Half, offset)
    }

    /// Four bytes of memory at this register plus `offset`.
    #[must_use]
    pub const fn word(self, offset: i16) -> MemoryOperand {
        self.place(Width::Word, offset)
    }

    /// Eight bytes of memory at this register plus `offset`.
    #[must_use]
    pub const fn double(self, offset: i16) -> MemoryOperand {
        self.place(Width::Double, offset)
    }

    /// `==`
    #[must_use]
    pub fn equals(self, right: impl Into<Operand>) -> Condition {
        Condition { code: 0x10, left: self, right: right.into() }
    }

    /// `!=`
    #[must_use]
    pub fn differs(self, right: impl Into<Operand>) -> Condition {
        Condition { code: 0x50, left: self, right: right.into() }
    }

    /// `>`
    #[must_use]
    pub fn above(self, right: impl Into<Operand>) -> Condition {
        Condition { code: 0x20, left: self, right: right.into() }
    }

    /// `>=`
    #[must_use]
    pub fn at_least(self, right: impl Into<Operand>) -> Condition {
        Condition { code: 0x30, left: self, right: right.into() }
    }

    /// `<`
    #[must_use]
    pub fn below(self, right: impl Into<Operand>) -> Condition {
        Condition { code: 0xa0, left: self, right: right.into() }
    }
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(immediate: i32) -> Self {
        Self::Immediate(immediate)
    }
}

impl Width {
    const fn bits(self) -> u8 {
        match self {
            Self::Word => 0x00,
            Self::Half => 0x08,
            Self::Byte => 0x10,
            Self::Double => 0x18,
        }
    }
}

impl Operation {
    const fn bits(self) -> u8 {
        match self {
            Self::Add => 0x00,
            Self::Sub => 0x10,
            Self::Mul => 0x20,
            Self::Div => 0x30,
            Self::Or => 0x40,
            Self::And => 0x50,
            Self::ShiftLeft => 0x60,
            Self::ShiftRight => 0x70,
            Self::Mod => 0x90,
            Self::Xor => 0xa0,
            Self::Mov => 0xb0,
        }
    }
}

/// The bit that marks the right-hand side as a register.
const FROM_REGISTER: u8 = 0x08;

impl Instruction {
    pub(super) fn new(code: u8, destination: Register, source: Register) -> Self {
        let (low, high) = if cfg!(target_endian = "little") { (destination, source) } else { (source, destination) };
        Self { code, registers: high.number() << 4 | low.number(), offset: 0, immediate: 0 }
    }

    /// Creates an instruction whose right-hand side is a register or a number.
    fn with_operand(code: u8, destination: Register, operand: Operand) -> Self {
        match operand {
            Operand::Register(source) => Self::new(code | FROM_REGISTER, destination, source),
            Operand::Immediate(immediate) => Self { immediate, ..Self::new(code, destination, R0) },
        }
    }

    /// The bytes in the kernel's format.
    #[must_use]
    pub const fn bytes(self) -> [u8; 8] {
        let offset = self.offset.to_ne_bytes();
        let [first, second, third, fourth] = self.immediate.to_ne_bytes();
        [self.code, self.registers, offset[0], offset[1], first, second, third, fourth]
    }

    pub(super) const fn immediate(self, immediate: i32) -> Self {
        Self { immediate, ..self }
    }

    pub(super) fn arithmetic(operation: Operation, destination: Register, operand: Operand) -> Self {
        Self::with_operand(0x07 | operation.bits(), destination, operand)
    }

    pub(super) fn load(destination: Register, from: MemoryOperand) -> Self {
        Self { offset: from.offset, ..Self::new(0x61 | from.width.bits(), destination, from.base) }
    }

    pub(super) fn store(to: MemoryOperand, operand: Operand) -> Self {
        let (class, source, immediate) = match operand {
            Operand::Register(source) => (0x63, source, 0),
            Operand::Immediate(immediate) => (0x62, R0, immediate),
        };
        Self { offset: to.offset, immediate, ..Self::new(class | to.width.bits(), to.base, source) }
    }

    /// An atomic operation; valid for [`Width::Word`] and [`Width::Double`] only.
    pub(super) fn atomic(to: MemoryOperand, source: Register, operation: i32) -> Self {
        assert!(matches!(to.width, Width::Word | Width::Double), "atomic operation on {to:?}");
        Self { offset: to.offset, immediate: operation, ..Self::new(0xc3 | to.width.bits(), to.base, source) }
    }

    pub(super) fn branch(condition: Condition) -> Self {
        Self::with_operand(0x05 | condition.code, condition.left, condition.right)
    }
}
