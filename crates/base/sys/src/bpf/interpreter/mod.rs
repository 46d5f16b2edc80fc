//! Runs programs in user space, without privilege: for tests of what a program does.
//!
//! It knows the instructions that [`super::Assembler`] writes and the helpers of a program that answers frames, and runs the bytes that
//! the kernel gets. Each access to memory is checked; it does not prove that a program is safe for all frames, which the kernel does.

mod helpers;
mod memory;
#[cfg(test)]
mod tests;

use memory::{Address, Stack};
pub use memory::{FrameMemory, HEAD_ROOM, MapMemory};
use thiserror::Error;

use super::Instruction;

/// What a program finds outside its frame.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Its maps.
    pub maps: MapMemory,
    /// The monotonic time, in nanoseconds.
    pub now: u64,
    /// What every call for a random number gives.
    pub random: u32,
}

/// What a program did that the kernel would not have allowed, or what is not known here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("instruction {at}: {what}")]
pub struct Violation {
    /// The index of the instruction.
    pub at: usize,
    /// What it did.
    pub what: Offence,
}

/// What can be wrong with an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Offence {
    #[error("there is no such instruction")]
    NoInstruction,
    #[error("the instruction with code {0:#04x} is not known")]
    UnknownInstruction(u8),
    #[error("helper {0} is not known")]
    UnknownHelper(i32),
    #[error("r{0} was never written")]
    UnwrittenRegister(usize),
    #[error("r10 cannot be written")]
    FramePointer,
    #[error("a shift by {0} bits")]
    Shift(i32),
    #[error("{0:#x} is the address of nothing")]
    NoMemory(u64),
    #[error("{0} bytes at {1} of {2} are outside")]
    Outside(usize, i64, &'static str),
    #[error("a pointer into the frame from before it was adjusted")]
    StalePointer,
    #[error("the stack at {0} was never written")]
    UnwrittenStack(i64),
    #[error("{0} bytes of the stack at {1} are not aligned")]
    UnalignedStack(usize, i64),
    #[error("{0} cannot be written like that")]
    ReadOnly(&'static str),
    #[error("the context has no {0} bytes at {1}")]
    NoContext(usize, i64),
    #[error("descriptor {0} is no map, or none of one row")]
    NoMap(u32),
    #[error("{0:#x} is not what the helper takes")]
    WrongArgument(u64),
    #[error("more than {0} instructions were executed")]
    TooLong(u64),
}

/// More instructions than this are an endless loop.
const INSTRUCTIONS_MAX: u64 = 1_000_000;

/// Runs an XDP program on a frame; returns its value, such as an [`super::XdpAction`].
///
/// # Errors
/// If an instruction does what the kernel would not allow.
pub fn run(code: &[Instruction], frame: &mut FrameMemory, surroundings: &mut Surroundings) -> Result<u32, Violation> {
    let mut registers = [None; 11];
    registers[1] = Some(Address::CONTEXT);
    registers[10] = Some(Address::STACK_END);
    let mut run = Run { code, next: 0, registers, stack: Stack::default(), frame, surroundings };
    for _ in 0..INSTRUCTIONS_MAX {
        let at = run.next;
        match run.step() {
            Ok(None) => {}
            Ok(Some(value)) => return Ok(value),
            Err(what) => return Err(Violation { at, what }),
        }
    }
    Err(Violation { at: run.next, what: Offence::TooLong(INSTRUCTIONS_MAX) })
}

/// A program under way.
struct Run<'a> {
    code: &'a [Instruction],
    next: usize,
    registers: [Option<u64>; 11],
    stack: Stack,
    frame: &'a mut FrameMemory,
    surroundings: &'a mut Surroundings,
}

/// The parts of an instruction (RFC 9669 section 3).
#[derive(Debug, Clone, Copy)]
struct Parts {
    code: u8,
    destination: usize,
    source: usize,
    offset: i16,
    immediate: i32,
}

impl Parts {
    fn of(instruction: Instruction) -> Self {
        let [code, registers, low, high, immediate @ ..] = instruction.bytes();
        let (first, second) = (usize::from(registers & 15), usize::from(registers >> 4));
        let little = cfg!(target_endian = "little");
        let (destination, source) = if little { (first, second) } else { (second, first) };
        let (offset, immediate) = (i16::from_ne_bytes([low, high]), i32::from_ne_bytes(immediate));
        Self { code, destination, source, offset, immediate }
    }

    /// The bytes that a load or a store moves.
    fn width(self) -> usize {
        [4, 2, 1, 8][usize::from(self.code >> 3 & 3)]
    }
}

type Outcome<T> = Result<T, Offence>;

impl Run<'_> {
    /// Executes an instruction; returns the program's value if it was the last.
    fn step(&mut self) -> Outcome<Option<u32>> {
        let parts = self.fetch()?;
        match parts.code {
            0x95 => return Ok(Some(low(self.register(0)?))),
            0x18 => self.load_wide(parts)?,
            0x85 => self.call(parts.immediate)?,
            0x05 => self.jump(parts.offset)?,
            0xbc => self.set(parts.destination, self.register(parts.source)? & u64::from(u32::MAX))?,
            0xdc => self.swap_network_order(parts)?,
            0x61 | 0x69 | 0x71 | 0x79 => {
                let value = self.load(self.address(parts.source, parts.offset)?, parts.width())?;
                self.set(parts.destination, value)?;
            }
            0x62 | 0x6a | 0x72 | 0x7a => self.store(parts, sign_extended(parts.immediate))?,
            0x63 | 0x6b | 0x73 | 0x7b => self.store(parts, self.register(parts.source)?)?,
            0xc3 | 0xdb => self.atomic(parts)?,
            code if code & 7 == 7 => self.compute(parts)?,
            code if code & 7 == 5 => self.branch(parts)?,
            code => return Err(Offence::UnknownInstruction(code)),
        }
        Ok(None)
    }

    fn fetch(&mut self) -> Outcome<Parts> {
        let instruction = self.code.get(self.next).ok_or(Offence::NoInstruction)?;
        self.next += 1;
        Ok(Parts::of(*instruction))
    }

    fn register(&self, number: usize) -> Outcome<u64> {
        let value = self.registers.get(number).copied().flatten();
        value.ok_or(Offence::UnwrittenRegister(number))
    }

    fn set(&mut self, number: usize, value: u64) -> Outcome<()> {
        if number >= 10 {
            return Err(Offence::FramePointer);
        }
        self.registers[number] = Some(value);
        Ok(())
    }

    /// The right-hand side: a register, or a constant.
    fn operand(&self, parts: Parts) -> Outcome<u64> {
        if parts.code & 8 != 0 { self.register(parts.source) } else { Ok(sign_extended(parts.immediate)) }
    }

    fn address(&self, base: usize, offset: i16) -> Outcome<u64> {
        Ok(self.register(base)?.wrapping_add_signed(offset.into()))
    }

    fn jump(&mut self, offset: i16) -> Outcome<()> {
        self.next = self.next.checked_add_signed(offset.into()).ok_or(Offence::NoInstruction)?;
        Ok(())
    }

    fn load_wide(&mut self, parts: Parts) -> Outcome<()> {
        let (first, second) = (parts.immediate.cast_unsigned(), self.fetch()?.immediate.cast_unsigned());
        let value = match parts.source {
            0 => u64::from(first) | u64::from(second) << 32,
            1 => self.surroundings.maps.handle(first)?,
            2 => self.surroundings.maps.only_row(first)?.wrapping_add(second.into()),
            _ => return Err(Offence::UnknownInstruction(parts.code)),
        };
        self.set(parts.destination, value)
    }

    fn compute(&mut self, parts: Parts) -> Outcome<()> {
        let right = self.operand(parts)?;
        let is_move = parts.code & 0xf0 == 0xb0;
        let left = if is_move { 0 } else { self.register(parts.destination)? };
        let is_immediate = parts.code & 8 == 0;
        let shift = || {
            if is_immediate && right > 63 { Err(Offence::Shift(parts.immediate)) } else { Ok(right & 63) }
        };
        let value = match parts.code & 0xf0 {
            0x00 => left.wrapping_add(right),
            0x10 => left.wrapping_sub(right),
            0x20 => left.wrapping_mul(right),
            0x30 => left.checked_div(right).unwrap_or(0),
            0x40 => left | right,
            0x50 => left & right,
            0x60 => left << shift()?,
            0x70 => left >> shift()?,
            0x90 => left.checked_rem(right).unwrap_or(left),
            0xa0 => left ^ right,
            0xb0 => right,
            _ => return Err(Offence::UnknownInstruction(parts.code)),
        };
        self.set(parts.destination, value)
    }

    fn branch(&mut self, parts: Parts) -> Outcome<()> {
        let (left, right) = (self.register(parts.destination)?, self.operand(parts)?);
        let holds = match parts.code & 0xf0 {
            0x10 => left == right,
            0x20 => left > right,
            0x30 => left >= right,
            0x50 => left != right,
            0xa0 => left < right,
            _ => return Err(Offence::UnknownInstruction(parts.code)),
        };
        if holds { self.jump(parts.offset) } else { Ok(()) }
    }

    fn swap_network_order(&mut self, parts: Parts) -> Outcome<()> {
        let value = self.register(parts.destination)?;
        let swapped = match parts.immediate {
            16 => u16::try_from(value & 0xffff).expect("16 bits are left").to_be().into(),
            32 => low(value).to_be().into(),
            64 => value.to_be(),
            _ => return Err(Offence::UnknownInstruction(parts.code)),
        };
        self.set(parts.destination, swapped)
    }

    fn store(&mut self, parts: Parts, value: u64) -> Outcome<()> {
        let address = self.address(parts.destination, parts.offset)?;
        self.write(address, parts.width(), value)
    }

    /// `atomic_fetch_add` and `compare_exchange`, in memory that other processors may see.
    fn atomic(&mut self, parts: Parts) -> Outcome<()> {
        let (address, width) = (self.address(parts.destination, parts.offset)?, parts.width());
        if !Address::of(address).is_shareable() {
            return Err(Offence::ReadOnly("this memory"));
        }
        let (old, operand) = (self.load(address, width)?, self.register(parts.source)?);
        let mask = if width == 4 { u64::from(u32::MAX) } else { u64::MAX };
        match parts.immediate {
            0x01 => {
                self.write(address, width, old.wrapping_add(operand))?;
                self.set(parts.source, old)
            }
            0xf1 => {
                if old == self.register(0)? & mask {
                    self.write(address, width, operand)?;
                }
                self.set(0, old)
            }
            _ => Err(Offence::UnknownInstruction(parts.code)),
        }
    }
}

fn sign_extended(immediate: i32) -> u64 {
    i64::from(immediate).cast_unsigned()
}

fn low(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).expect("32 bits are left")
}
