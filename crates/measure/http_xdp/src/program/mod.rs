//! The XDP program of a load: [`crate::machine`] as instructions.
//!
//! What does not change in a run stands in the code as immediates: addresses, ports, rules, the request, the expected answer.

mod books;
mod code;
mod counters;
mod emit;
mod head;
mod parse;
mod segments;

pub use books::Times;
pub(crate) use books::{BOOK_WORDS, N_HISTOGRAMS};
#[cfg(test)]
pub(crate) use books::{Buckets, Kept};
pub use code::Maps;
pub use counters::{Counter, Counts};
pub use head::SEARCHED_MAX;

use std::os::fd::AsFd;

use fathom_sys::{
    Result,
    bpf::{Array, Instruction, MappedArray, PerCpuArray, Program, ProgramType, SocketMap, histogram},
};

use code::Code;

use crate::{
    frame::Ends,
    machine::{ROW_WORDS, Rules},
    slots::Slots,
};

/// More queues than devices usually have.
pub(crate) const QUEUES_MAX: u32 = 256;

/// An answer as an exchange before the load has shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedAnswer {
    /// Its bytes, head included.
    pub length: u32,
    /// The bytes of its head, with the empty line.
    pub head_length: u32,
    /// The three digits of its status.
    pub status: [u8; 3],
    /// Where the value of Content-Length is.
    pub digits_at: u32,
    /// That value, as text.
    pub digits: Vec<u8>,
}

/// All that the code of a load has as immediates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadSetup {
    /// The two ends.
    pub ends: Ends,
    /// Our addresses and ports.
    pub slots: Slots,
    /// The answer that is expected, if the program can follow it.
    pub answer: Option<ExpectedAnswer>,
    /// The rules of connections.
    pub rules: Rules,
}

/// The instructions of a load. [`Maps`] must stay open until they are loaded.
pub fn code<Rows: AsFd, Books: AsFd, Histograms: AsFd, Control: AsFd, Sockets: AsFd>(
    setup: &LoadSetup,
    maps: &Maps<Rows, Books, Histograms, Control, Sockets>,
) -> Vec<Instruction> {
    let mut code = Code::new(setup, maps);
    code.parse();
    code.on_segment();
    code.emit();
    code.assemble()
}

/// A loaded program with its maps. It belongs to this process and goes with it.
#[derive(Debug)]
pub struct LoadProgram {
    /// The connections, a row for each slot.
    pub rows: MappedArray<ROW_WORDS>,
    books: PerCpuArray<BOOK_WORDS>,
    histograms: PerCpuArray<{ histogram::BUCKETS }>,
    control: Array<1>,
    /// Where answers go that the program cannot follow, by queue of the device.
    pub(crate) sockets: SocketMap,
    program: Program,
}

impl LoadProgram {
    /// Has the kernel check the program. It does nothing until it is attached.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn load(setup: &LoadSetup) -> Result<Self> {
        let rows = MappedArray::create("fathom_rows", setup.slots.n)?;
        let books = PerCpuArray::create("fathom_books", 1)?;
        let histograms = PerCpuArray::create("fathom_times", N_HISTOGRAMS)?;
        let control = Array::create("fathom_control", 1)?;
        let sockets = SocketMap::create("fathom_sockets", QUEUES_MAX)?;
        let maps = Maps { rows: &rows, books: &books, histograms: &histograms, control: &control, sockets: &sockets };
        let program = Program::load(ProgramType::Xdp, "fathom_load", &code(setup, &maps))?;
        Ok(Self { rows, books, histograms, control, sockets, program })
    }

    /// The program, to attach it.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Nothing new begins from now on; requests in flight end.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn stop(&self) -> Result<()> {
        self.control.set(0, &[1])
    }

    /// New things begin again.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn resume(&self) -> Result<()> {
        self.control.set(0, &[0])
    }

    /// Whether nothing new begins.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn is_stopped(&self) -> Result<bool> {
        Ok(self.control.get(0)? != [0])
    }

    /// What was counted up to now. It reads some 500 bytes for each processor.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn counts(&self) -> Result<Counts> {
        Ok(Counts::from_words(&self.books.sum(0)?))
    }

    /// How long things took up to now. It reads 32 KiB for each processor.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn times(&self) -> Result<Times> {
        let rows = (0..N_HISTOGRAMS).map(|row| self.histograms.sum(row)).collect::<Result<Vec<_>>>()?;
        Ok(Times::from_rows(&rows))
    }
}

#[cfg(test)]
mod tests;
