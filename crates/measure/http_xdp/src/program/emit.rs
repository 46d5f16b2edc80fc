//! The frame becomes what is sent. Its length changes first, then every byte is written, nearly all of them as constants.

use std::os::fd::AsFd;

use fathom_sys::bpf::{
    Helper, Operation, Register,
    Register::{R0, R1, R2, R3, R4, R7, R10},
    XdpAction,
};

use super::{
    Counter,
    code::{Code, Outgoing, place},
};
use crate::{
    frame::{ETHERNET, Ends, PROTOCOL, SACK_START, TCP_HEADER, octets},
    machine::{Send, flag, offset},
};

/// Where an IPv4 header has its checksum.
const IP_CHECKSUM: i16 = 24;

impl<Rows: AsFd, Books: AsFd, Histograms: AsFd, Control: AsFd, Sockets: AsFd>
    Code<'_, Rows, Books, Histograms, Control, Sockets>
{
    /// Writes all forms of frames.
    pub(super) fn emit(&mut self) {
        for outgoing in Outgoing::ALL {
            // User space opens the connections of an open load, and the kernel refuses code that nothing leads to.
            if self.setup.rules.is_open_load && outgoing == Outgoing::Plain(Send::Syn) {
                continue;
            }
            self.a.bind(self.sends(outgoing));
            self.emit_form(outgoing);
        }
    }

    fn emit_form(&mut self, outgoing: Outgoing) {
        let (constant, flags, send) = self.constant_tail(outgoing);
        let n_tail = i16::try_from(constant.len()).expect("a segment is short")
            + if outgoing == Outgoing::WithRange { 8 } else { 0 };
        let n_frame = self.layout.tcp() + TCP_HEADER + n_tail;
        self.resize(n_frame);
        // R2 is the frame.
        self.a.mov(R4, R2).add(R4, i32::from(n_frame)).jump_if(R4.above(R3), self.drop);
        let header_word = Ends::header_word(send, usize::from(n_tail.unsigned_abs()), flags);
        self.write_headers(n_tail);
        self.write_tcp(header_word);
        self.write_constant(self.layout.tcp() + TCP_HEADER, &constant);
        let n_segment = (TCP_HEADER + n_tail).unsigned_abs();
        let fixed = [&octets(self.setup.ends.server.ip()), &self.upper_own()[..], &constant].map(sum_of_pairs);
        let words = [header_word >> 16, header_word & 0xffff, PROTOCOL.into(), n_segment.into()];
        let words = words.map(|word| u64::from(u16::try_from(word).expect("half a word has 16 bits").to_be()));
        // R1 is the sum of the words that differ from frame to frame.
        self.a.load_constant(R4, fixed.iter().chain(&words).sum()).add(R1, R4);
        if outgoing == Outgoing::WithRange {
            self.write_range();
        }
        self.fold();
        self.a.store(R2.half(self.layout.tcp() + 16), R1);
        self.count(Counter::Sent);
        self.a.give(XdpAction::Transmit);
    }

    /// The bytes behind the TCP header that are always the same, its flags, and what it is.
    fn constant_tail(&self, outgoing: Outgoing) -> (Vec<u8>, u8, Send) {
        match outgoing {
            Outgoing::WithRange => (SACK_START.to_be_bytes().to_vec(), flag::ACK, Send::Ack),
            Outgoing::Plain(send) => {
                let (tail, flags) = self.setup.ends.tail(send, (0, 0));
                (tail, flags, send)
            }
        }
    }

    /// Our addresses but for the last 32 bits.
    fn upper_own(&self) -> Vec<u8> {
        let mut octets = octets(self.setup.slots.first);
        octets.truncate(octets.len() - 4);
        octets
    }

    /// Gives the frame `n` bytes: at its end, or at its front if there is no room behind it. `R2` is the frame then, `R3` its end.
    fn resize(&mut self, n: i16) {
        let [fits, no_room] = [self.a.label(), self.a.label()];
        self.a.load(R1, R7.word(0)).load(R2, R7.word(4)).sub(R2, R1).mov(R3, i32::from(n)).sub(R3, R2);
        self.a.jump_if(R3.equals(0), fits).store(R10.double(place::GROWTH), R3);
        self.a.mov(R1, R7).mov(R2, R3).call(Helper::AdjustTail).jump_if(R0.equals(0), fits);
        self.a.load(R3, R10.double(place::GROWTH)).mov(R2, 0).sub(R2, R3).mov(R1, R7);
        self.a.call(Helper::AdjustHead).jump_if(R0.equals(0), fits).bind(no_room);
        self.count(Counter::NoRoom);
        self.a.jump(self.drop).bind(fits).load(R2, R7.word(0)).load(R3, R7.word(4));
    }

    /// The Ethernet and IP headers of a packet with `n_tail` bytes behind its TCP header. Clobbers `R1` and `R4`.
    fn write_headers(&mut self, n_tail: i16) {
        let (layout, ends) = (self.layout, &self.setup.ends);
        let n_segment = (TCP_HEADER + n_tail).unsigned_abs();
        let mut header = [&ends.next_hop.0[..], &ends.own.0, &layout.ethertype.to_be_bytes()].concat();
        header.extend(self.setup.ends.ip_header(self.setup.slots.first, n_segment));
        let (own, at) =
            (usize::try_from(layout.source + layout.address - 4).expect("offsets are positive"), layout.source);
        self.write_constant(0, &header[..own]);
        self.write_constant(at + layout.address, &header[own + 4..]);
        self.a.load(R1, R10.word(place::OWN_ADDRESS)).store(R2.word(layout.destination - 4), R1);
        if layout.is_v4() {
            header[own..own + 4].fill(0);
            self.a.load_constant(R4, sum_of_pairs(&header[usize::from(ETHERNET.unsigned_abs())..])).add(R1, R4);
            self.fold();
            self.a.store(R2.half(IP_CHECKSUM), R1);
        }
    }

    /// The TCP header without its checksum. `R1` becomes the sum of our address, the ports and the two numbers. Clobbers `R4`.
    fn write_tcp(&mut self, header_word: u32) {
        let tcp = self.layout.tcp();
        self.a.load(R1, R10.word(place::OWN_ADDRESS)).load(R4, R10.word(place::PORTS));
        self.a.store(R2.word(tcp), R4).add(R1, R4);
        for (from, at) in [(place::OUT_SEQUENCE, tcp + 4), (place::OUT_ACKNOWLEDGEMENT, tcp + 8)] {
            self.a.load(R4, R10.word(from));
            self.write_number(R4, at);
        }
        self.write_constant(tcp + 12, &header_word.to_be_bytes());
        // The checksum follows; the urgent pointer is zero.
        self.a.store(R2.word(tcp + 16), 0);
    }

    /// The ends of the range that came early.
    fn write_range(&mut self) {
        let at = self.layout.tcp() + TCP_HEADER + 4;
        for (from, at) in [(offset::EARLY_FROM, at), (offset::EARLY_TO, at + 4)] {
            self.a.load(R4, Register::R6.word(from));
            self.write_number(R4, at);
        }
    }

    /// Writes a number of 32 bits, and adds it to the sum in `R1`.
    fn write_number(&mut self, number: Register, at: i16) {
        self.a.swap_network_order(number, 32).store(R2.word(at), number).add(R1, number);
    }

    /// Writes constant bytes to the frame at `R2`.
    fn write_constant(&mut self, at: i16, bytes: &[u8]) {
        for (at, part) in (at..).step_by(4).zip(bytes.chunks(4)) {
            match *part {
                [a, b, c, d] => self.a.store(R2.word(at), i32::from_ne_bytes([a, b, c, d])),
                [a, b, c] => self
                    .a
                    .store(R2.half(at), i32::from(u16::from_ne_bytes([a, b])))
                    .store(R2.byte(at + 2), i32::from(c)),
                [a, b] => self.a.store(R2.half(at), i32::from(u16::from_ne_bytes([a, b]))),
                [a] => self.a.store(R2.byte(at), i32::from(a)),
                _ => &mut self.a,
            };
        }
    }

    /// `R1`, a sum of words of 16 or 32 bits, becomes the checksum. Clobbers `R4`.
    fn fold(&mut self) {
        self.a.mov(R4, R1).compute(Operation::ShiftRight, R4, 32).keep_word(R1).add(R1, R4);
        for _ in 0..3 {
            self.a.mov(R4, R1).compute(Operation::ShiftRight, R4, 16).compute(Operation::And, R1, 0xffff).add(R1, R4);
        }
        self.a.compute(Operation::Xor, R1, 0xffff);
    }
}

/// The sum of words of 16 bits as they are loaded here; an odd last byte is followed by zero.
fn sum_of_pairs(bytes: impl AsRef<[u8]>) -> u64 {
    let word = |pair: &[u8]| u64::from(u16::from_ne_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    bytes.as_ref().chunks(2).map(word).sum()
}
