//! An assembler for BPF instructions, with jumps to labels.

use std::os::fd::AsFd;

use super::instruction::{
    Condition, Instruction, MemoryOperand, Operand, Operation,
    Register::{self, R0, R1, R2},
};
use super::syscall::descriptor;

/// A jump target whose position may still be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

/// A kernel helper function that programs may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helper {
    /// `R1` a map, `R2` the address of a key; `R0` is set to the address of the value, or to zero.
    MapLookup = 1,
    /// `R0` is set to `CLOCK_MONOTONIC` in nanoseconds.
    MonotonicNanos = 5,
    /// `R0` is set to a random number of 32 bits.
    Random = 7,
    /// `R1` a device's index, `R2` zero; `R0` is set to [`super::XdpAction::Redirect`] or [`super::IngressAction::Redirect`].
    Redirect = 23,
    /// `R1` the context of a packet in the stack, `R2` how many bytes of it the program wants to see. Invalidates all pointers into it.
    PullData = 39,
    /// `R1` the context of a packet in the stack, `R2` what is added to the sum over it that its driver told, if it told one.
    ChecksumUpdate = 40,
    /// `R1` the context, `R2` the number of bytes by which the frame shrinks at its front; grows it if negative. Invalidates all pointers
    /// into the frame.
    AdjustHead = 44,
    /// `R1` a [`super::DeviceMap`] or [`super::SocketMap`], `R2` an index, `R3` the action for an empty entry; `R0` is set to the action.
    RedirectMap = 51,
    /// `R1` the context, `R2` the number of bytes by which the metadata area before the frame shrinks; invalidates all pointers into the
    /// frame.
    AdjustMeta = 54,
    /// `R1` the context, `R2` the number of bytes by which the frame grows; invalidates all pointers into the frame.
    AdjustTail = 65,
    /// `R1` the context, `R2` a device's index, `R3` the address of a word that is zero, `R4` zero, `R5` zero or [`LENGTH_OF_SEGMENTS`]; `R0`
    /// is set to zero if the device carries frames of this length. Linux 5.12.
    CheckLength = 163,
    /// `R1` the context; `R0` is set to the length of the frame, with the parts that the program does not see. Linux 5.18.
    FrameLength = 188,
}

/// Of a packet of several segments (GSO), [`Helper::CheckLength`] judges the segments (`BPF_MTU_CHK_SEGS`).
pub const LENGTH_OF_SEGMENTS: i32 = 1;

const ATOMIC_FETCH: i32 = 0x01;
const ATOMIC_COMPARE_EXCHANGE: i32 = 0xf1;
const JUMP_ALWAYS: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Loads 64 bits: the immediates of this instruction and the next one.
const LOAD_WIDE: u8 = 0x18;
/// Moves 32 bits and clears the upper ones.
const MOVE_WORD: u8 = 0xbc;
/// Swaps the low bytes of a register between host and network order.
const TO_BIG_ENDIAN: u8 = 0xdc;

/// Collects a program; every method appends one instruction unless stated otherwise.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<Instruction>,
    targets: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// Creates an empty program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, instruction: Instruction) -> &mut Self {
        self.code.push(instruction);
        self
    }

    /// Creates a label; [`Self::bind`] sets its position.
    pub fn label(&mut self) -> Label {
        self.targets.push(None);
        Label(self.targets.len() - 1)
    }

    /// Binds a label to the next instruction.
    ///
    /// # Panics
    /// If the label is already bound.
    pub fn bind(&mut self, label: Label) -> &mut Self {
        let earlier = self.targets[label.0].replace(self.code.len());
        assert_eq!(earlier, None, "{label:?} is bound twice");
        self
    }

    /// 64-bit arithmetic into a register.
    pub fn compute(&mut self, operation: Operation, register: Register, operand: impl Into<Operand>) -> &mut Self {
        self.push(Instruction::arithmetic(operation, register, operand.into()))
    }

    /// Copies all 64 bits.
    pub fn mov(&mut self, register: Register, operand: impl Into<Operand>) -> &mut Self {
        self.compute(Operation::Mov, register, operand)
    }

    /// Clears the upper 32 bits.
    pub fn keep_word(&mut self, register: Register) -> &mut Self {
        self.push(Instruction::new(MOVE_WORD, register, register))
    }

    /// Adds 64 bits.
    pub fn add(&mut self, register: Register, operand: impl Into<Operand>) -> &mut Self {
        self.compute(Operation::Add, register, operand)
    }

    /// Subtracts 64 bits.
    pub fn sub(&mut self, register: Register, operand: impl Into<Operand>) -> &mut Self {
        self.compute(Operation::Sub, register, operand)
    }

    /// Converts the low 16, 32 or 64 bits between host and network order.
    pub fn swap_network_order(&mut self, register: Register, bits: u8) -> &mut Self {
        self.push(Instruction::new(TO_BIG_ENDIAN, register, R0).immediate(bits.into()))
    }

    /// Reads memory and zero-extends the value.
    pub fn load(&mut self, register: Register, from: MemoryOperand) -> &mut Self {
        self.push(Instruction::load(register, from))
    }

    /// Writes memory.
    pub fn store(&mut self, to: MemoryOperand, operand: impl Into<Operand>) -> &mut Self {
        self.push(Instruction::store(to, operand.into()))
    }

    /// Adds to memory atomically with respect to other processors, and leaves the old value in the register.
    pub fn atomic_fetch_add(&mut self, to: MemoryOperand, register: Register) -> &mut Self {
        self.push(Instruction::atomic(to, register, ATOMIC_FETCH))
    }

    /// Writes the register if memory equals `R0`, and leaves the old value in `R0`.
    ///
    /// Of a word, [`Self::keep_word`] must follow: where two paths of a program meet, the verifier of Linux 6.18 forgets that x86 does not
    /// clear the upper half.
    pub fn compare_exchange(&mut self, to: MemoryOperand, register: Register) -> &mut Self {
        self.push(Instruction::atomic(to, register, ATOMIC_COMPARE_EXCHANGE))
    }

    fn load_wide(&mut self, register: Register, source: Register, value: u64) -> &mut Self {
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).expect("32 bits are left").cast_signed();
        self.push(Instruction::new(LOAD_WIDE, register, source).immediate(half(value)));
        self.push(Instruction::new(0, R0, R0).immediate(half(value >> 32)))
    }

    /// Loads a constant of 64 bits; two instructions.
    pub fn load_constant(&mut self, register: Register, value: u64) -> &mut Self {
        self.load_wide(register, R0, value)
    }

    /// Loads the address of a map, which must stay open until the program is loaded; two instructions.
    pub fn load_map(&mut self, register: Register, map: &impl AsFd) -> &mut Self {
        // A one in the source register (BPF_PSEUDO_MAP_FD) marks the constant as the descriptor of a map.
        self.load_wide(register, R1, descriptor(map).into())
    }

    /// Loads the address of an array's only row, which is resolved when the program is loaded, without a lookup per run; two instructions.
    ///
    /// The array must stay open until the program is loaded. It must have exactly one entry, or the kernel rejects the program. Linux 5.2.
    pub fn load_row(&mut self, register: Register, array: &impl AsFd) -> &mut Self {
        // A two in the source register (BPF_PSEUDO_MAP_VALUE); the second half of the constant is the offset in the row.
        self.load_wide(register, R2, descriptor(array).into())
    }

    /// Sets `R0` to the address of an array's entry, or jumps to `missing`; several instructions.
    ///
    /// The index is a 32-bit word on the stack, at offset `key` from `R10`; clobbers `R1` to `R5`.
    pub fn look_up(&mut self, map: &impl AsFd, key: i16, missing: Label) -> &mut Self {
        self.load_map(R1, map).mov(R2, Register::R10).add(R2, i32::from(key));
        self.call(Helper::MapLookup).jump_if(R0.equals(0), missing)
    }

    /// Calls a kernel helper: the result is in `R0`; clobbers `R1` to `R5`.
    pub fn call(&mut self, helper: Helper) -> &mut Self {
        self.push(Instruction::new(CALL, R0, R0).immediate(helper as i32))
    }

    /// Jumps to a label.
    pub fn jump(&mut self, label: Label) -> &mut Self {
        self.jumps.push((self.code.len(), label));
        self.push(Instruction::new(JUMP_ALWAYS, R0, R0))
    }

    /// Jumps to a label if the condition holds.
    pub fn jump_if(&mut self, condition: Condition, label: Label) -> &mut Self {
        self.jumps.push((self.code.len(), label));
        self.push(Instruction::branch(condition))
    }

    /// Ends the program with the value in `R0`.
    pub fn exit(&mut self) -> &mut Self {
        self.push(Instruction::new(EXIT, R0, R0))
    }

    /// Ends the program with a constant; two instructions.
    pub fn give(&mut self, value: impl Into<i32>) -> &mut Self {
        self.mov(R0, value.into()).exit()
    }

    /// Returns the program with all jumps resolved.
    ///
    /// # Panics
    /// If a label was never bound, or if a jump is longer than 32767 instructions.
    #[must_use]
    pub fn assemble(mut self) -> Vec<Instruction> {
        for (from, label) in self.jumps {
            let to = self.targets[label.0].unwrap_or_else(|| panic!("{label:?} was never bound"));
            let distance = i64::try_from(to).ok().zip(i64::try_from(from).ok()).map(|(to, from)| to - from - 1);
            let distance = distance.and_then(|distance| i16::try_from(distance).ok());
            self.code[from].offset = distance.expect("a jump spans at most 32767 instructions");
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Register::{R3, R4, R6, R10};

    fn bytes(assembler: Assembler) -> Vec<[u8; 8]> {
        assembler.assemble().into_iter().map(Instruction::bytes).collect()
    }

    fn one(write: impl FnOnce(&mut Assembler) -> &mut Assembler) -> [u8; 8] {
        let mut assembler = Assembler::new();
        write(&mut assembler);
        bytes(assembler)[0]
    }

    /// The expected bytes come from `llvm-mc -triple bpfel -mcpu=v3 -show-encoding`; for instructions it cannot print, from RFC 9669.
    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_have_the_bytes_that_llvm_gives_them() {
        let cases = [
            ("r0 = 2", one(|a| a.mov(R0, 2)), [0xb7, 0x00, 0, 0, 2, 0, 0, 0]),
            ("r6 = r1", one(|a| a.mov(R6, R1)), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]),
            ("r2 += -8", one(|a| a.add(R2, -8)), [0x07, 0x02, 0, 0, 0xf8, 0xff, 0xff, 0xff]),
            ("r3 -= r4", one(|a| a.sub(R3, R4)), [0x1f, 0x43, 0, 0, 0, 0, 0, 0]),
            ("r1 >>= 16", one(|a| a.compute(Operation::ShiftRight, R1, 16)), [0x77, 0x01, 0, 0, 16, 0, 0, 0]),
            ("r1 %= r2", one(|a| a.compute(Operation::Mod, R1, R2)), [0x9f, 0x21, 0, 0, 0, 0, 0, 0]),
            ("r2 = *(u32 *)(r1 + 4)", one(|a| a.load(R2, R1.word(4))), [0x61, 0x12, 4, 0, 0, 0, 0, 0]),
            ("r2 = *(u16 *)(r1 + 12)", one(|a| a.load(R2, R1.half(12))), [0x69, 0x12, 12, 0, 0, 0, 0, 0]),
            ("r2 = *(u8 *)(r1 + 23)", one(|a| a.load(R2, R1.byte(23))), [0x71, 0x12, 23, 0, 0, 0, 0, 0]),
            ("r2 = *(u64 *)(r1 + 0)", one(|a| a.load(R2, R1.double(0))), [0x79, 0x12, 0, 0, 0, 0, 0, 0]),
            ("*(u32 *)(r10 - 4) = 0", one(|a| a.store(R10.word(-4), 0)), [0x62, 0x0a, 0xfc, 0xff, 0, 0, 0, 0]),
            ("*(u64 *)(r0 + 8) = r3", one(|a| a.store(R0.double(8), R3)), [0x7b, 0x30, 8, 0, 0, 0, 0, 0]),
            ("r1 = fetch_add", one(|a| a.atomic_fetch_add(R6.double(0), R1)), [0xdb, 0x16, 0, 0, 1, 0, 0, 0]),
            ("r0 = cmpxchg", one(|a| a.compare_exchange(R6.double(0), R1)), [0xdb, 0x16, 0, 0, 0xf1, 0, 0, 0]),
            ("r1 = be16 r1", one(|a| a.swap_network_order(R1, 16)), [0xdc, 0x01, 0, 0, 16, 0, 0, 0]),
            ("w3 = w3", one(|a| a.keep_word(R3)), [0xbc, 0x33, 0, 0, 0, 0, 0, 0]),
            ("call 5", one(|a| a.call(Helper::MonotonicNanos)), [0x85, 0, 0, 0, 5, 0, 0, 0]),
            ("exit", one(Assembler::exit), [0x95, 0, 0, 0, 0, 0, 0, 0]),
        ];
        for (text, actual, expected) in cases {
            assert_eq!(actual, expected, "{text}");
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_wide_constant_takes_two_instructions() {
        let mut assembler = Assembler::new();
        assembler.load_constant(R1, 0x1122_3344_8899_aabb);
        let expected = [[0x18, 0x01, 0, 0, 0xbb, 0xaa, 0x99, 0x88], [0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11]];
        assert_eq!(bytes(assembler), expected);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn jumps_count_from_the_instruction_behind_them_in_both_directions() {
        let mut a = Assembler::new();
        let (back, out) = (a.label(), a.label());
        a.bind(back).mov(R0, 1).jump_if(R0.above(R1), out).jump(back).bind(out).exit();
        let jumps: Vec<[u8; 8]> = bytes(a)[1..3].to_vec();
        assert_eq!(jumps, [[0x2d, 0x10, 1, 0, 0, 0, 0, 0], [0x05, 0, 0xfd, 0xff, 0, 0, 0, 0]]);
    }

    #[test]
    #[should_panic(expected = "was never bound")]
    fn a_jump_to_nowhere_is_a_bug() {
        let mut a = Assembler::new();
        let nowhere = a.label();
        a.jump(nowhere);
        let _ = a.assemble();
    }
}
