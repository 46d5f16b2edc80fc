//! The program as a client, in the interpreter.

use std::io::PipeReader;

use fathom_sys::bpf::{
    Instruction, XdpAction,
    interpreter::{FrameMemory, HEAD_ROOM, MapMemory, Surroundings, Violation, run},
};

use super::{
    Packet,
    frames::{N_SLOTS, from_server, from_us},
    slot::{Answerer, Reply},
};
use crate::{
    machine::{Conditions, Connection, Event, ROW_WORDS},
    program::{BOOK_WORDS, Buckets, Counter, LoadSetup, Maps, N_HISTOGRAMS, code},
    slow_path::ReceivedSegment,
};

/// The slot that a world is about.
pub(super) const SLOT: u32 = 6;

/// The program of a load with its maps.
#[derive(Debug)]
pub(super) struct InterpretedLoad {
    pub(super) setup: LoadSetup,
    code: Vec<Instruction>,
    maps: Maps<PipeReader, PipeReader, PipeReader, PipeReader, PipeReader>,
    surroundings: Surroundings,
    /// The free bytes behind each frame.
    pub(super) tail_room: usize,
}

impl InterpretedLoad {
    pub(super) fn new(setup: LoadSetup) -> Self {
        let file = || std::io::pipe().unwrap().0;
        let maps = Maps { rows: file(), books: file(), histograms: file(), control: file(), sockets: file() };
        let n_rows = usize::try_from(N_SLOTS).unwrap();
        let memory = MapMemory::default().with(&maps.rows, (n_rows, ROW_WORDS * 8));
        let memory = memory.with(&maps.books, (1, BOOK_WORDS * 8)).with(&maps.control, (1, 8));
        let memory = memory.with(&maps.histograms, (N_HISTOGRAMS as usize, size_of::<Buckets>()));
        let memory = memory.with(&maps.sockets, (1, 4));
        Self {
            code: code(&setup, &maps),
            setup,
            maps,
            surroundings: Surroundings { maps: memory, ..Surroundings::default() },
            tail_room: 0,
        }
    }

    pub(super) fn n_instructions(&self) -> usize {
        self.code.len()
    }

    /// Hands a frame to the program; returns the action and the frame that it leaves.
    ///
    /// # Errors
    /// If the program does what the kernel would not allow.
    pub(super) fn receive(&mut self, frame: &[u8], at: &Conditions) -> Result<(u32, Vec<u8>), Violation> {
        self.surroundings.now = at.now;
        self.surroundings.maps.row_mut(&self.maps.control, 0).copy_from_slice(&u64::from(at.stops).to_ne_bytes());
        let mut memory = FrameMemory::new(frame, (HEAD_ROOM, self.tail_room));
        let action = run(&self.code, &mut memory, &mut self.surroundings)?;
        Ok((action, memory.bytes().to_vec()))
    }

    pub(super) fn words(&self) -> [u64; ROW_WORDS] {
        words(self.surroundings.maps.row(&self.maps.rows, usize::try_from(SLOT).unwrap()))
    }

    pub(super) fn set_words(&mut self, words: &[u64; ROW_WORDS]) {
        let row = self.surroundings.maps.row_mut(&self.maps.rows, usize::try_from(SLOT).unwrap());
        row.copy_from_slice(&words.map(u64::to_ne_bytes).concat());
    }

    /// The counters, and other memory of the program.
    pub(super) fn books(&self) -> [u64; BOOK_WORDS] {
        words(self.surroundings.maps.row(&self.maps.books, 0))
    }

    /// The histograms.
    pub(super) fn histograms(&self) -> Vec<Buckets> {
        (0..N_HISTOGRAMS as usize).map(|row| words(self.surroundings.maps.row(&self.maps.histograms, row))).collect()
    }

    pub(super) fn clear_books(&mut self) {
        self.surroundings.maps.row_mut(&self.maps.books, 0).fill(0);
        for row in 0..N_HISTOGRAMS as usize {
            self.surroundings.maps.row_mut(&self.maps.histograms, row).fill(0);
        }
    }
}

fn words<const N: usize>(row: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(row.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().unwrap());
    }
    words
}

impl Answerer for InterpretedLoad {
    fn answer(&mut self, packet: &Packet, payload: &[u8], at: &Conditions) -> Reply {
        let to = self.setup.slots.place(SLOT, packet.port_idx);
        let mut frame = from_server(&self.setup, to, &packet.segment, &[], payload);
        // As Ethernet pads it.
        frame.resize(frame.len().max(60), 0);
        let (action, left) = self.receive(&frame, at).unwrap();
        if action == XdpAction::Redirect as u32 {
            let read = ReceivedSegment::read(&left, &self.setup).expect("the program has checked it");
            assert_eq!((left.as_slice(), read.slot, read.port_idx), (frame.as_slice(), SLOT, packet.port_idx));
            assert_eq!((read.segment, read.payload), (packet.segment, payload));
            return Reply::HandedOver;
        }
        assert!(action == XdpAction::Transmit as u32 || action == XdpAction::Drop as u32, "{packet:?} is for us");
        Reply::Sent((action == XdpAction::Transmit as u32).then(|| from_us(&self.setup, &left)))
    }

    fn row(&self) -> Connection {
        Connection::from_row(&self.words())
    }

    fn set_row(&mut self, row: &Connection) {
        self.set_words(&row.row());
    }

    fn n(&self, event: Event) -> u64 {
        words::<{ Counter::WORDS }>(self.surroundings.maps.row(&self.maps.books, 0))[Counter::Of(event).word()]
    }
}
