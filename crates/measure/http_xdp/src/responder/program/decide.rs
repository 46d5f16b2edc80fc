//! What a segment is answered with.

use fathom_sys::bpf::{
    Assembler, Operation,
    Register::{R0, R1, R2, R3, R4, R5, R7, R9, R10},
};

use super::{Counter, Exits, ProgramSetup, SYN_OPTIONS, be32, count, slot};
use crate::{
    frame::TCP_HEADER,
    machine::{WINDOW, flag},
    responder::AfterAnswer,
};

/// The fourth word of a TCP header, in the order of this host.
fn header_word(n_options: i32, flags: u8) -> u32 {
    let words = (i32::from(TCP_HEADER) + n_options).unsigned_abs() / 4;
    words << 28 | u32::from(flags) << 16 | WINDOW
}

/// Decides what is sent: the slots from [`slot::PORTS`] to [`slot::TAIL`]. What needs no answer leaves. Clobbers `R0` to `R5`.
pub(super) fn decide(a: &mut Assembler, setup: &ProgramSetup, exits: &Exits) {
    let (syn, request, decided) = (a.label(), a.label(), a.label());
    a.mov(R1, R7).add(R1, R9);
    // R3 becomes the bytes of the payload.
    a.load(R3, R10.word(slot::SEGMENT));
    a.load(R2, R1.byte(12)).compute(Operation::ShiftRight, R2, 4).compute(Operation::ShiftLeft, R2, 2);
    a.jump_if(R2.below(i32::from(TCP_HEADER)), exits.unanswered).jump_if(R2.above(R3), exits.unanswered).sub(R3, R2);
    a.load(R5, R1.word(0)).mov(R2, R5).compute(Operation::ShiftLeft, R5, 16).compute(Operation::ShiftRight, R2, 16);
    a.compute(Operation::Or, R5, R2).store(R10.word(slot::PORTS), R5);
    a.load(R0, R1.word(4)).swap_network_order(R0, 32);
    a.load(R4, R1.byte(13));
    a.mov(R2, R4).compute(Operation::And, R2, i32::from(flag::SYN | flag::ACK | flag::RST));
    a.jump_if(R2.equals(i32::from(flag::SYN)), syn).jump_if(R2.differs(i32::from(flag::ACK)), exits.unanswered);
    // What the client acknowledges is the number of our next byte. R0 becomes the number behind all that it sent; FIN is bit 0.
    a.load(R2, R1.word(8)).store(R10.word(slot::SEQUENCE), R2);
    a.compute(Operation::And, R4, i32::from(flag::FIN)).add(R0, R3).add(R0, R4);
    a.jump_if(R3.differs(0), request).jump_if(R4.equals(0), exits.unanswered);
    end(a, setup.answer.after);
    a.jump(decided).bind(syn);
    accept(a, setup.numbers_apart);
    a.jump(decided).bind(request);
    answer(a, setup);
    a.bind(decided).swap_network_order(R0, 32).store(R10.word(slot::ACKNOWLEDGEMENT), R0);
}

/// A FIN is acknowledged. A responder that keeps connections open closes its side as well; the other has done so with its answer.
fn end(a: &mut Assembler, after: AfterAnswer) {
    let flags = match after {
        AfterAnswer::KeepsOpen => flag::FIN | flag::ACK,
        AfterAnswer::Closes => flag::ACK,
    };
    a.store(R10.word(slot::HEADER_WORD), be32(header_word(0, flags))).store(R10.word(slot::TAIL), 0);
}

/// A SYN is accepted with a number that follows from its own, so it is accepted alike if it comes again. `R0` is its number.
fn accept(a: &mut Assembler, numbers_apart: i32) {
    count(a, Counter::Syn);
    a.mov(R2, R0).add(R2, numbers_apart).swap_network_order(R2, 32).store(R10.word(slot::SEQUENCE), R2);
    a.add(R0, 1);
    let word = be32(header_word(SYN_OPTIONS, flag::SYN | flag::ACK));
    a.store(R10.word(slot::HEADER_WORD), word).store(R10.word(slot::TAIL), SYN_OPTIONS);
}

/// Bytes are a request. `R4` is 1 if the client's FIN comes with them, which is answered with ours.
fn answer(a: &mut Assembler, setup: &ProgramSetup) {
    count(a, Counter::Request);
    let closing = if setup.answer.after == AfterAnswer::Closes { flag::FIN } else { 0 };
    let word = header_word(0, flag::ACK | flag::PSH | closing).cast_signed();
    a.compute(Operation::ShiftLeft, R4, 16).compute(Operation::Or, R4, word).swap_network_order(R4, 32);
    a.store(R10.word(slot::HEADER_WORD), R4);
    let n_answer = i32::try_from(setup.answer.bytes().len()).expect("an answer fits in a segment");
    a.store(R10.word(slot::TAIL), n_answer);
}
