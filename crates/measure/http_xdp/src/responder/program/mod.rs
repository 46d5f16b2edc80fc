//! The program: what it reads of a segment, what it decides, and the frame that it sends back.
//!
//! It keeps nothing of a connection. All numbers of an answer stand in the segment that it answers.

mod decide;
mod receive;
mod send;

use std::net::IpAddr;

use fathom_model::MacAddress;
use fathom_sys::{
    bpf::{
        Assembler, Instruction, Label, PerCpuArray,
        Register::{R1, R2, R6, R7, R8, R10},
        XdpAction,
    },
    policy::Network,
};

use super::{Answer, counters::Counter};
use crate::frame::{ETHERNET, Layout};

/// All that the code of a responder has as immediates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProgramSetup {
    /// The Ethernet address of the device.
    pub(super) own: MacAddress,
    /// The addresses that are asked, at least one. Each has guests.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) port: u16,
    /// Who is answered; everybody if there are none.
    pub(super) guests: Vec<Network>,
    pub(super) answer: Answer,
    /// The largest segment that clients may send, with IPv4 and with IPv6.
    pub(super) segment_max: [u16; 2],
    /// What the number of a client's SYN and ours differ by.
    pub(super) numbers_apart: i32,
}

/// The bytes of the options of a SYN-ACK: the largest segment.
const SYN_OPTIONS: i32 = 4;

/// Places on the stack.
mod slot {
    /// The key of a look-up.
    pub(super) const KEY: i16 = -4;
    /// The two ports as they are sent.
    pub(super) const PORTS: i16 = -8;
    /// Sequence number and acknowledgement as they are sent.
    pub(super) const SEQUENCE: i16 = -12;
    pub(super) const ACKNOWLEDGEMENT: i16 = -16;
    /// Length, flags and window as they are sent.
    pub(super) const HEADER_WORD: i16 = -20;
    /// The bytes behind the 20 of the TCP header that are sent: this tells the three kinds of frames apart.
    pub(super) const TAIL: i16 = -24;
    /// The address of the counters.
    pub(super) const COUNTS: i16 = -32;
    /// The Ethernet addresses as they came: the destination's first, and the source's first.
    pub(super) const MAC_DESTINATION: i16 = -40;
    pub(super) const MAC_SOURCE: i16 = -48;
    /// The IP addresses as they came.
    pub(super) const SOURCE: i16 = -64;
    pub(super) const DESTINATION: i16 = -80;
    /// The bytes of the frame as it came.
    pub(super) const LENGTH: i16 = -84;
    /// The bytes of the TCP segment as it came.
    pub(super) const SEGMENT: i16 = -88;
    /// The hop limit of the answer and the protocol, in the order in which they are sent.
    pub(super) const HOPS: i16 = -92;
}

/// The labels that several parts of the program jump to.
struct Exits {
    /// To the network stack: it is not for us.
    pass: Label,
    /// Dropped and counted.
    unanswered: Label,
    stranger: Label,
    /// A frame that ends before what has been seen to be there.
    aborted: Label,
}

/// The code. `R6` is the context, `R7` the frame, `R8` its end, `R9` where its TCP header is.
pub(super) fn program(setup: &ProgramSetup, counts: &PerCpuArray<{ Counter::WORDS }>) -> Vec<Instruction> {
    let mut a = Assembler::new();
    let exits = Exits { pass: a.label(), unanswered: a.label(), stranger: a.label(), aborted: a.label() };
    let decide = a.label();
    a.mov(R6, R1);
    reload(&mut a);
    a.mov(R2, R7).add(R2, i32::from(ETHERNET)).jump_if(R2.above(R8), exits.pass);
    receive::accept(&mut a, setup.own, exits.pass);
    let layouts = layouts(setup);
    for layout in &layouts {
        let other = a.label();
        receive::read(&mut a, (setup, layout), counts, &exits, other);
        a.jump(decide).bind(other);
    }
    a.jump(exits.pass).bind(decide);
    decide::decide(&mut a, setup, &exits);
    send::resize(&mut a);
    send::send(&mut a, setup, &layouts, &exits);
    a.bind(exits.unanswered);
    count(&mut a, Counter::Unanswered);
    a.give(XdpAction::Drop);
    // The verifier refuses code that no frame reaches.
    if layouts.iter().any(|layout| receive::has_strangers(layout, &setup.guests)) {
        a.bind(exits.stranger);
        count(&mut a, Counter::Stranger);
        a.give(XdpAction::Drop);
    }
    a.bind(exits.aborted).give(XdpAction::Aborted);
    a.bind(exits.pass).give(XdpAction::Pass);
    a.assemble()
}

/// The versions of IP that are answered, each with its layout.
fn layouts(setup: &ProgramSetup) -> Vec<Layout> {
    let of = |is_v4: bool| setup.addresses.iter().find(move |address| address.is_ipv4() == is_v4);
    [true, false].into_iter().filter_map(of).map(|address| Layout::of(*address)).collect()
}

/// Loads where the frame begins and ends, from `struct xdp_md`.
fn reload(a: &mut Assembler) {
    a.load(R7, R6.word(0)).load(R8, R6.word(4));
}

/// Adds one to a counter. Clobbers `R1` and `R2`.
fn count(a: &mut Assembler, counter: Counter) {
    let at = counter.offset();
    a.load(R1, R10.double(slot::COUNTS)).load(R2, R1.double(at)).add(R2, 1).store(R1.double(at), R2);
}

/// The value of two bytes of a frame as they are loaded here.
fn be16(value: u16) -> i32 {
    i32::from(value.to_be())
}

/// The value of four bytes of a frame as they are stored here.
const fn be32(value: u32) -> i32 {
    value.to_be().cast_signed()
}
