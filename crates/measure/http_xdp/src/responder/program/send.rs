//! The frame that is sent back: resized, then written whole, most of it as immediates.

use fathom_sys::bpf::{
    Assembler, Helper, Label, Operation,
    Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10},
    XdpAction,
};

use super::{Counter, Exits, ProgramSetup, SYN_OPTIONS, be16, be32, count, reload, slot};
use crate::frame::{Layout, PROTOCOL, TCP_HEADER};

/// The kind and the length of the option with the largest segment (RFC 9293 section 3.2).
const SEGMENT_MAX_OPTION: u32 = 0x0204_0000;
/// Whole datagrams, which are not to be cut.
const DO_NOT_FRAGMENT: u16 = 0x4000;

/// Gives the frame its new length: at its end, or else at its front, where most drivers leave 256 bytes. Invalidates `R7` and `R8`.
pub(super) fn resize(a: &mut Assembler) {
    let (fits, grow) = (a.label(), a.label());
    a.load(R8, R10.word(slot::TAIL)).add(R8, R9).add(R8, i32::from(TCP_HEADER));
    a.load(R2, R10.word(slot::LENGTH)).sub(R8, R2).jump_if(R8.equals(0), fits);
    a.mov(R1, R6).mov(R2, R8).call(Helper::AdjustTail).jump_if(R0.differs(0), grow).jump(fits).bind(grow);
    a.mov(R1, R6).mov(R2, 0).sub(R2, R8).call(Helper::AdjustHead).jump_if(R0.equals(0), fits);
    count(a, Counter::NoRoom);
    a.give(XdpAction::Drop).bind(fits);
}

/// Writes the frame and sends it.
pub(super) fn send(a: &mut Assembler, setup: &ProgramSetup, layouts: &[Layout], exits: &Exits) {
    let tcp = a.label();
    reload(a);
    for layout in layouts {
        let other = a.label();
        if layouts.len() > 1 {
            a.jump_if(R9.differs(i32::from(layout.tcp())), other);
        }
        write_header(a, layout, exits.aborted);
        let segment_max = setup.segment_max[usize::from(!layout.is_v4())];
        // The option is of use only to a SYN-ACK, whose code is common to both versions of IP.
        a.mov(R9, be32(SEGMENT_MAX_OPTION | u32::from(segment_max))).keep_word(R9);
        a.jump(tcp).bind(other);
    }
    if layouts.len() > 1 {
        a.jump(exits.aborted);
    }
    a.bind(tcp);
    write_segment(a, setup, exits.aborted);
    count(a, Counter::Sent);
    a.give(XdpAction::Transmit);
}

/// Writes the Ethernet and IP headers. `R7` becomes the place of the TCP header, `R4` the sum of the addresses.
fn write_header(a: &mut Assembler, layout: &Layout, aborted: Label) {
    let to_tcp = i32::from(layout.tcp());
    a.mov(R2, R7).add(R2, to_tcp + i32::from(TCP_HEADER)).jump_if(R2.above(R8), aborted);
    // Each of these is 8 bytes of which 6 are the address; what comes next overwrites the rest.
    a.load(R1, R10.double(slot::MAC_SOURCE)).store(R7.double(0), R1);
    a.load(R1, R10.double(slot::MAC_DESTINATION)).store(R7.double(6), R1);
    a.store(R7.half(12), be16(layout.ethertype)).mov(R4, 0);
    for (from, at) in [(slot::DESTINATION, layout.source), (slot::SOURCE, layout.destination)] {
        for word in (0..layout.address).step_by(4) {
            a.load(R1, R10.word(from + word)).store(R7.word(at + word), R1).add(R4, R1);
        }
    }
    a.load(R1, R10.word(slot::TAIL)).add(R1, i32::from(TCP_HEADER + layout.counted)).swap_network_order(R1, 16);
    a.store(R7.half(layout.length), R1);
    if layout.is_v4() {
        a.store(R7.half(14), be16(0x4500)).store(R7.half(18), 0).store(R7.half(20), be16(DO_NOT_FRAGMENT));
        a.mov(R3, R4).add(R3, R1).add(R3, be16(0x4500) + be16(DO_NOT_FRAGMENT));
        a.load(R1, R10.word(slot::HOPS)).store(R7.half(layout.hops), R1).add(R3, R1);
        checksum(a);
        a.store(R7.half(24), R3);
    } else {
        a.store(R7.word(14), be32(0x6000_0000));
        a.load(R1, R10.word(slot::HOPS)).store(R7.half(layout.protocol), R1);
    }
    a.add(R7, to_tcp);
}

/// Writes the TCP header at `R7` and what follows it. `R4` is the sum of the addresses, `R9` the option of a SYN-ACK.
fn write_segment(a: &mut Assembler, setup: &ProgramSetup, aborted: Label) {
    let (bare, answer) = (a.label(), a.label());
    let words = [slot::PORTS, slot::SEQUENCE, slot::ACKNOWLEDGEMENT, slot::HEADER_WORD];
    for (place, at) in words.into_iter().zip([0, 4, 8, 12]) {
        a.load(R1, R10.word(place)).store(R7.word(at), R1).add(R4, R1);
    }
    // The rest of the pseudo-header of RFC 9293 section 3.1 and RFC 8200 section 8.1: protocol and length.
    a.load(R3, R10.word(slot::TAIL)).mov(R1, R3).add(R1, i32::from(TCP_HEADER)).swap_network_order(R1, 16);
    a.add(R4, R1).add(R4, be16(PROTOCOL.into()));
    a.jump_if(R3.equals(0), bare).jump_if(R3.differs(SYN_OPTIONS), answer);
    reach(a, SYN_OPTIONS, aborted);
    a.store(R7.word(TCP_HEADER), R9).add(R4, R9).jump(bare).bind(answer);
    write_answer(a, setup.answer.bytes(), aborted);
    a.bind(bare).mov(R3, R4);
    checksum(a);
    a.store(R7.half(16), R3).store(R7.half(18), 0);
}

/// Writes the answer behind the TCP header, and adds its sum to `R4`.
fn write_answer(a: &mut Assembler, bytes: &[u8], aborted: Label) {
    reach(a, i32::try_from(bytes.len()).expect("an answer fits in a segment"), aborted);
    let (words, rest) = bytes.as_chunks::<4>();
    let mut at = TCP_HEADER;
    for word in words {
        a.store(R7.word(at), i32::from_ne_bytes(*word));
        at += 4;
    }
    for byte in rest {
        a.store(R7.byte(at), i32::from(*byte));
        at += 1;
    }
    a.add(R4, sum(bytes));
}

/// Jumps to `aborted` unless the frame has so many bytes behind the TCP header. Clobbers `R2`.
fn reach(a: &mut Assembler, behind: i32, aborted: Label) {
    a.mov(R2, R7).add(R2, i32::from(TCP_HEADER) + behind).jump_if(R2.above(R8), aborted);
}

/// The sum of these bytes in 16 bits, as they are loaded here (RFC 1071 section 2).
fn sum(bytes: &[u8]) -> i32 {
    let word = |pair: &[u8]| u32::from(u16::from_ne_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum.cast_signed()
}

/// `R3` becomes the checksum of a sum of words of 16 and 32 bits. Clobbers `R2`.
fn checksum(a: &mut Assembler) {
    // The sum has at most 36 bits: after the first fold 33 of them, then 18, 17 and 16.
    a.mov(R2, R3).compute(Operation::ShiftRight, R2, 32).keep_word(R3).add(R3, R2);
    for _ in 0..3 {
        a.mov(R2, R3).compute(Operation::ShiftRight, R2, 16).compute(Operation::And, R3, 0xffff).add(R3, R2);
    }
    a.compute(Operation::Xor, R3, 0xffff);
}
