//! What the program reads of a frame, and the connection that it is for.

use std::{net::IpAddr, os::fd::AsFd};

use fathom_sys::bpf::{
    Helper, Operation,
    Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10},
};

use super::{
    Counter,
    code::{Code, place},
};
use crate::{
    frame::{ETHERNET, PROTOCOL, TCP_HEADER, octets},
    machine::{Event, offset},
};

/// Where the Ethernet type is.
const ETHERTYPE: i16 = 12;
/// Where an IPv4 header has its flags and the offset of a fragment.
const FRAGMENT: i16 = 20;
/// More fragments follow, or the offset of this one.
const IS_FRAGMENT: u16 = 0x3fff;

impl<Rows: AsFd, Books: AsFd, Histograms: AsFd, Control: AsFd, Sockets: AsFd>
    Code<'_, Rows, Books, Histograms, Control, Sockets>
{
    /// Finds the connection of a frame. Frames that are not for one of our slots go to the network stack.
    pub(super) fn parse(&mut self) {
        let (others, reach) = (self.others, i32::from(self.layout.tcp() + TCP_HEADER));
        self.a.mov(R7, R1).load(R2, R7.word(0)).load(R3, R7.word(4));
        self.a.mov(R4, R2).add(R4, reach).jump_if(R4.above(R3), others);
        self.is_from_server();
        self.is_to_slot();
        self.read_segment();
        self.find_connection();
    }

    /// `R2` is the frame.
    fn is_from_server(&mut self) {
        let (layout, others) = (self.layout, self.others);
        self.a.load(R4, R2.half(ETHERTYPE)).jump_if(R4.differs(be16(layout.ethertype)), others);
        self.a.load(R4, R2.byte(ETHERNET));
        if layout.is_v4() {
            self.a.jump_if(R4.differs(0x45), others).load(R4, R2.half(FRAGMENT));
            self.a.compute(Operation::And, R4, be16(IS_FRAGMENT)).jump_if(R4.differs(0), others);
        } else {
            self.a.compute(Operation::ShiftRight, R4, 4).jump_if(R4.differs(6), others);
        }
        self.a.load(R4, R2.byte(layout.protocol)).jump_if(R4.differs(i32::from(PROTOCOL)), others);
        self.equals(layout.source, &octets(self.setup.ends.server.ip()));
        let port = be16(self.setup.ends.server.port());
        self.a.load(R4, R2.half(layout.tcp())).jump_if(R4.differs(port), others);
        self.a.store(R10.half(place::PORTS + 2), port);
    }

    /// Leaves the frame at `R2` to the network stack unless it has these bytes, words of 32 bits. Clobbers `R4` and `R5`.
    fn equals(&mut self, at: i16, bytes: &[u8]) {
        for (at, word) in (at..).step_by(4).zip(bytes.chunks(4)) {
            let word = u32::from_ne_bytes(word.try_into().expect("addresses are whole words"));
            self.a.load(R4, R2.word(at)).load_constant(R5, word.into()).jump_if(R4.differs(R5), self.others);
        }
    }

    /// The number of the slot and of its port, from our address and port.
    fn is_to_slot(&mut self) {
        let (layout, others, slots) = (self.layout, self.others, self.setup.slots);
        let own = octets(slots.first);
        let last = layout.destination + layout.address - 4;
        self.equals(layout.destination, &own[..own.len() - 4]);
        self.a.load(R5, R2.word(last)).store(R10.word(place::OWN_ADDRESS), R5).swap_network_order(R5, 32);
        self.a.load_constant(R4, low_bits(slots.first).into()).sub(R5, R4).keep_word(R5);
        self.a.jump_if(R5.at_least(immediate(slots.n_addresses)), others);
        self.a.load(R4, R2.half(layout.tcp() + 2)).store(R10.half(place::PORTS), R4).swap_network_order(R4, 16);
        let bits = i32::from(slots.port_bits);
        self.a.mov(R0, R4).compute(Operation::ShiftRight, R0, bits);
        self.a.jump_if(R0.differs(i32::from(slots.port_first) >> bits), others);
        self.a.compute(Operation::And, R4, (1 << bits) - 1);
        self.a.compute(Operation::ShiftLeft, R5, bits).compute(Operation::Or, R5, R4);
        self.a.compute(Operation::And, R4, i32::from(slots.port_mask())).store(R10.word(place::PORT_IDX), R4);
        self.a.compute(Operation::ShiftRight, R5, i32::from(slots.shift));
        self.a.jump_if(R5.at_least(immediate(slots.n)), others).store(R10.word(place::KEY), R5);
    }

    /// The numbers of the segment. `R2` is the frame, `R3` its end.
    fn read_segment(&mut self) {
        let (layout, tcp, drop) = (self.layout, self.layout.tcp(), self.drop);
        for (at, to) in [(tcp + 4, place::SEQUENCE), (tcp + 8, place::ACKNOWLEDGEMENT)] {
            self.a.load(R4, R2.word(at)).swap_network_order(R4, 32).store(R10.word(to), R4);
        }
        self.a.load(R4, R2.byte(tcp + 13)).store(R10.word(place::FLAGS), R4);
        // The length of the header in words of 32 bits is the upper half of a byte.
        self.a.load(R4, R2.byte(tcp + 12)).compute(Operation::ShiftRight, R4, 4).compute(Operation::ShiftLeft, R4, 2);
        self.a.jump_if(R4.below(i32::from(TCP_HEADER)), drop);
        let counted = i32::from(layout.counted);
        self.a.load(R5, R2.half(layout.length)).swap_network_order(R5, 16);
        self.a.jump_if(R5.below(counted + i32::from(TCP_HEADER)), drop).sub(R5, counted);
        self.a.jump_if(R5.below(R4), drop).sub(R5, R4).store(R10.word(place::LENGTH), R5);
        self.a.add(R4, i32::from(tcp)).store(R10.word(place::PAYLOAD), R4).add(R4, R5);
        // A frame that is shorter than its packet says.
        self.a.sub(R3, R2).jump_if(R4.above(R3), drop);
    }

    /// `R6`, `R8` and `R9` get their values. A segment for another port of the slot is refused.
    fn find_connection(&mut self) {
        let (others, is_free, is_away) = (self.others, self.a.label(), self.a.label());
        self.a.look_up(&self.maps.rows, place::KEY, others).mov(R6, R0);
        self.a.store(R10.word(place::KEY), 0).look_up(&self.maps.books, place::KEY, others).mov(R9, R0);
        self.a.call(Helper::MonotonicNanos).mov(R8, R0);
        self.count(Counter::Received);
        self.a.load(R1, R6.double(offset::TAKEN)).jump_if(R1.equals(0), is_free);
        self.a.load(R1, R6.word(offset::TAKEN)).jump_if(R1.equals(0), is_away);
        self.count(Counter::Of(Event::Stray));
        self.a.jump(self.drop).bind(is_away);
        self.require_present_port();
        self.a.jump(self.hand_over).bind(is_free);
        self.require_present_port();
    }

    /// Refuses a segment for another port of the slot than the present one. Clobbers `R1` and `R2`.
    fn require_present_port(&mut self) {
        self.a.load(R1, R6.half(offset::PORT_IDX)).load(R2, R10.word(place::PORT_IDX));
        self.a.jump_if(R1.differs(R2), self.refuse);
    }
}

/// The value of two bytes of a frame as they are loaded here.
pub(super) fn be16(value: u16) -> i32 {
    i32::from(value.to_be())
}

fn immediate(value: u32) -> i32 {
    i32::try_from(value).expect("there are fewer than 2^31 slots and addresses")
}

/// The last 32 bits of an address.
fn low_bits(address: IpAddr) -> u32 {
    let octets = octets(address);
    u32::from_be_bytes(*octets.last_chunk().expect("an address has at least 32 bits"))
}
