//! The registers, the places on the stack and the exits that all parts of the program share.

use std::os::fd::AsFd;

use fathom_sys::bpf::{
    Assembler, Helper, Instruction, Label,
    Register::{self, R1, R2, R3, R6, R7, R9},
    XdpAction,
};

use super::{Counter, LoadSetup};
use crate::{
    frame::Layout,
    machine::{Send, State, offset},
};

/// The maps of a program, by their descriptors.
#[derive(Debug, Clone, Copy)]
pub struct Maps<Rows, Books, Histograms, Control, Sockets> {
    /// The connections.
    pub rows: Rows,
    /// Counters and memory of the program, for each processor.
    pub books: Books,
    /// Histograms, for each processor.
    pub histograms: Histograms,
    /// One number; the load ends once it is not zero.
    pub control: Control,
    /// The sockets of user space, by queue of the device.
    pub sockets: Sockets,
}

/// The number of the queue in `struct xdp_md`.
const RX_QUEUE: i16 = 16;

/// Places on the stack. All but a key are written once for a frame, with numbers in the host's order unless stated otherwise.
pub(super) mod place {
    /// The key of a look-up.
    pub(in crate::program) const KEY: i16 = -4;
    /// The number of the segment's first byte.
    pub(in crate::program) const SEQUENCE: i16 = -8;
    /// What it acknowledges.
    pub(in crate::program) const ACKNOWLEDGEMENT: i16 = -12;
    /// The bytes of its payload; later those that are next.
    pub(in crate::program) const LENGTH: i16 = -16;
    /// Its flags.
    pub(in crate::program) const FLAGS: i16 = -20;
    /// The last 32 bits of our address, as in the frame.
    pub(in crate::program) const OWN_ADDRESS: i16 = -24;
    /// Our port and the server's, as in our frames.
    pub(in crate::program) const PORTS: i16 = -28;
    /// Where the payload begins in the frame.
    pub(in crate::program) const PAYLOAD: i16 = -32;
    /// Which port of its slot the frame is for.
    pub(in crate::program) const PORT_IDX: i16 = -36;
    /// 1 if the segment, or the range that it completes, ends with a FIN.
    pub(in crate::program) const FIN: i16 = -40;
    /// The sequence number of what is sent.
    pub(in crate::program) const OUT_SEQUENCE: i16 = -44;
    /// The acknowledgement of what is sent.
    pub(in crate::program) const OUT_ACKNOWLEDGEMENT: i16 = -48;
    /// The bytes by which the frame grows.
    pub(in crate::program) const GROWTH: i16 = -56;
    /// 1 if the segment begins an answer.
    pub(in crate::program) const BEGINS: i16 = -60;
}

/// A program under construction. `R6` is the connection, `R7` the context, `R8` the time, `R9` the books of this processor.
pub(super) struct Code<'a, Rows, Books, Histograms, Control, Sockets> {
    pub(super) a: Assembler,
    pub(super) setup: &'a LoadSetup,
    pub(super) maps: &'a Maps<Rows, Books, Histograms, Control, Sockets>,
    pub(super) layout: Layout,
    /// Leaves the frame to the network stack.
    pub(super) others: Label,
    /// Drops the frame.
    pub(super) drop: Label,
    /// Gives the frame to user space.
    pub(super) hand_over: Label,
    /// Answers a segment of no connection.
    pub(super) refuse: Label,
    /// Acknowledges, and forgets how many segments waited for it.
    pub(super) acknowledge: Label,
    /// Acknowledges, and leaves the row as it is.
    pub(super) acknowledge_unchanged: Label,
    /// Sends the next request.
    pub(super) next_request: Label,
    /// Sends the FIN.
    pub(super) close: Label,
    /// Sends a frame, by its number in [`Outgoing`].
    pub(super) outgoing: [Label; Outgoing::ALL.len()],
}

/// A form of our frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// A frame without a selective acknowledgement.
    Plain(Send),
    /// An acknowledgement with the range that came early.
    WithRange,
}

impl Outgoing {
    pub(super) const ALL: [Self; 6] = [
        Self::Plain(Send::Syn),
        Self::Plain(Send::Ack),
        Self::Plain(Send::Request),
        Self::Plain(Send::Fin),
        Self::Plain(Send::Reset),
        Self::WithRange,
    ];
}

impl<'a, Rows: AsFd, Books: AsFd, Histograms: AsFd, Control: AsFd, Sockets: AsFd>
    Code<'a, Rows, Books, Histograms, Control, Sockets>
{
    pub(super) fn new(setup: &'a LoadSetup, maps: &'a Maps<Rows, Books, Histograms, Control, Sockets>) -> Self {
        let mut a = Assembler::new();
        Self {
            setup,
            maps,
            layout: Layout::of(setup.ends.server.ip()),
            others: a.label(),
            drop: a.label(),
            hand_over: a.label(),
            refuse: a.label(),
            acknowledge: a.label(),
            acknowledge_unchanged: a.label(),
            next_request: a.label(),
            close: a.label(),
            outgoing: Outgoing::ALL.map(|_| a.label()),
            a,
        }
    }

    /// Ends the program.
    pub(super) fn assemble(mut self) -> Vec<Instruction> {
        self.a.bind(self.drop).give(XdpAction::Drop).bind(self.others).give(XdpAction::Pass);
        self.a.bind(self.hand_over).load(R2, R7.word(RX_QUEUE)).load_map(R1, &self.maps.sockets);
        // A queue without a socket drops it, and the server sends it again.
        self.a.mov(R3, i32::from(XdpAction::Drop)).call(Helper::RedirectMap).exit();
        self.a.assemble()
    }

    /// Where a frame is sent.
    pub(super) fn sends(&self, outgoing: Outgoing) -> Label {
        let number = Outgoing::ALL.iter().position(|other| *other == outgoing);
        self.outgoing[number.expect("every form that is sent is listed")]
    }

    /// Counts. Clobbers `R1`.
    pub(super) fn count(&mut self, counter: Counter) {
        let at = R9.double(counter.offset());
        self.a.load(R1, at).add(R1, 1).store(at, R1);
    }

    /// Changes the state; what user space may read of the row has to be written before.
    pub(super) fn set_state(&mut self, state: State) {
        self.a.store(R6.byte(offset::STATE), state as i32);
    }

    /// Jumps if the state is another one. Clobbers `R1`.
    pub(super) fn unless_state(&mut self, state: State, then: Label) {
        self.a.load(R1, R6.byte(offset::STATE)).jump_if(R1.differs(state as i32), then);
    }

    /// Jumps if sequence number `a` is behind `b`, as [`crate::machine::is_after`] says. Clobbers `R0`.
    pub(super) fn if_after(&mut self, a: Register, b: Register, then: Label) {
        self.a.mov(Register::R0, a).sub(Register::R0, b).sub(Register::R0, 1).keep_word(Register::R0);
        self.a.jump_if(Register::R0.below(i32::MAX), then);
    }

    /// Sets the numbers of what is sent: the next byte of ours, less `back`, and the next one of the server. Clobbers `R1`.
    pub(super) fn number(&mut self, back: i32) {
        self.a.load(R1, R6.word(offset::SEND_NEXT));
        if back != 0 {
            self.a.sub(R1, back);
        }
        self.a.store(Register::R10.word(place::OUT_SEQUENCE), R1);
        self.a.load(R1, R6.word(offset::RECEIVE_NEXT)).store(Register::R10.word(place::OUT_ACKNOWLEDGEMENT), R1);
    }

    /// Adds one to a count of eight bits, which stays at its greatest value. Leaves it in `R3`.
    pub(super) fn count_up(&mut self, at: i16) {
        let full = self.a.label();
        self.a.load(R3, R6.byte(at)).jump_if(R3.equals(i32::from(u8::MAX)), full);
        self.a.add(R3, 1).store(R6.byte(at), R3).bind(full);
    }
}
