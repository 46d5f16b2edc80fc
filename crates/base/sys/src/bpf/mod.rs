//! BPF programs for the kernel: an assembler and a loader, without clang.
//!
//! A program is a Rust function that returns [`Instruction`]s. Values that a compiler would take from read-only data (ports, rates,
//! addresses) are immediates of that function. This module does not know the purpose of a program, and of the program types only XDP and TCX.
//!
//! Needs `CAP_BPF` and `CAP_NET_ADMIN` (see bpf(2) and capabilities(7)).

mod assembler;
mod foreign_map;
pub mod histogram;
mod instruction;
#[cfg(any(test, feature = "interpreter"))]
pub mod interpreter;
mod link;
mod map;
mod mapped_array;
#[cfg(test)]
pub(crate) mod privilege;
mod program;
mod syscall;

pub use assembler::{Assembler, Helper, LENGTH_OF_SEGMENTS, Label};
pub use foreign_map::{ForeignMap, MapName};
pub use instruction::{Condition, Instruction, MemoryOperand, Operand, Operation, Register, Width};
pub use link::{IngressLink, XdpLink, XdpMode};
pub use map::{Array, DeviceMap, PerCpuArray, SocketMap};
pub use mapped_array::MappedArray;
pub use program::{IngressAction, LiveRun, LiveRunEnd, Program, ProgramType, TestRun, XdpAction, is_loaded};
