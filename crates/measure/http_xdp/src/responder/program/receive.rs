//! What is read of a frame, and which frames are for us.

use std::net::IpAddr;

use fathom_model::MacAddress;
use fathom_sys::{
    bpf::{
        Assembler, Helper, Label, Operation, PerCpuArray,
        Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10},
    },
    policy::Network,
};

use super::{Counter, Exits, ProgramSetup, be16, slot};
use crate::frame::{ETHERNET, HOPS, Layout, PROTOCOL, TCP_HEADER};

/// The version and the length of an IPv4 header without options, and the version of an IPv6 header.
const VERSION_4: i32 = 0x45;
const VERSION_6: i32 = 6;
/// Where an IPv4 header says which part of a datagram it is: no bit of these is set in a whole one.
const FRAGMENT_AT: i16 = 20;
const IS_FRAGMENT: u16 = 0x3fff;
const ETHERTYPE_AT: i16 = 12;

/// Jumps to `pass` unless the frame is for this Ethernet address: a switch also floods frames that are for other hosts.
pub(super) fn accept(a: &mut Assembler, own: MacAddress, pass: Label) {
    let [first, second, third, fourth, fifth, sixth] = own.0;
    a.load(R2, R7.word(0)).load_constant(R3, u32::from_ne_bytes([first, second, third, fourth]).into());
    a.jump_if(R2.differs(R3), pass);
    a.load(R2, R7.half(4)).jump_if(R2.differs(i32::from(u16::from_ne_bytes([fifth, sixth]))), pass);
}

/// Reads a segment of one version of IP: `R9` becomes the place of its TCP header, and its addresses and lengths go to their slots.
///
/// Jumps to `other` for other Ethernet types. Whatever is not a whole segment for us passes; strangers and segments that are shorter than
/// they say do not.
pub(super) fn read(
    a: &mut Assembler,
    (setup, layout): (&ProgramSetup, &Layout),
    counts: &PerCpuArray<{ Counter::WORDS }>,
    exits: &Exits,
    other: Label,
) {
    a.load(R2, R7.half(ETHERTYPE_AT)).jump_if(R2.differs(be16(layout.ethertype)), other);
    a.mov(R2, R7).add(R2, i32::from(layout.tcp() + TCP_HEADER)).jump_if(R2.above(R8), exits.pass);
    if layout.is_v4() {
        a.load(R2, R7.byte(ETHERNET)).jump_if(R2.differs(VERSION_4), exits.pass);
        a.load(R2, R7.half(FRAGMENT_AT)).compute(Operation::And, R2, be16(IS_FRAGMENT));
        a.jump_if(R2.differs(0), exits.pass);
    } else {
        a.load(R2, R7.byte(ETHERNET)).compute(Operation::ShiftRight, R2, 4);
        a.jump_if(R2.differs(VERSION_6), exits.pass);
    }
    a.load(R2, R7.byte(layout.protocol)).jump_if(R2.differs(i32::from(PROTOCOL)), exits.pass);
    a.load(R2, R7.half(layout.tcp() + 2)).jump_if(R2.differs(be16(setup.port)), exits.pass);
    let single = |address: &IpAddr| Network::from(*address);
    let ours: Vec<Network> = setup.addresses.iter().map(single).collect();
    within(a, layout, layout.destination, &ours, exits.pass);
    a.store(R10.word(slot::KEY), 0).look_up(counts, slot::KEY, exits.pass).store(R10.double(slot::COUNTS), R0);
    if has_strangers(layout, &setup.guests) {
        within(a, layout, layout.source, &setup.guests, exits.stranger);
    }
    hops(a, layout, exits.unanswered);
    keep(a, layout);
    lengths(a, layout, exits.unanswered);
    a.mov(R9, i32::from(layout.tcp()));
}

/// Whether a network is of the version of IP of a layout.
const fn is_of(network: &Network, layout: &Layout) -> bool {
    network.address().is_ipv4() == layout.is_v4()
}

/// Whether some sources of this version of IP are not among the guests.
pub(super) fn has_strangers(layout: &Layout, guests: &[Network]) -> bool {
    !guests.is_empty() && !guests.iter().any(|network| is_of(network, layout) && network.prefix() == 0)
}

/// Jumps to `otherwise` unless the address at this place is in one of the networks. Some are of this version of IP, with a prefix.
///
/// Clobbers `R1` to `R4`.
fn within(a: &mut Assembler, layout: &Layout, at: i16, networks: &[Network], otherwise: Label) {
    let is_within = a.label();
    if layout.is_v4() {
        a.load(R1, R7.word(at));
    } else {
        a.load(R1, R7.double(at)).load(R2, R7.double(at + 8));
    }
    for network in networks.iter().filter(|network| is_of(network, layout)) {
        let other = a.label();
        match network.address() {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - network.prefix()).unwrap_or(0);
                let [mask, bits] = [mask, address.to_bits() & mask].map(|word| u64::from(word.to_be()));
                compare(a, R1, (mask, bits), other);
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - network.prefix()).unwrap_or(0);
                let bits = (address.to_bits() & mask).to_be_bytes();
                for (register, half) in [(R1, 0), (R2, 8)] {
                    let of = |bytes: [u8; 16]| {
                        u64::from_ne_bytes(*bytes[half..].first_chunk().expect("an address has two halves"))
                    };
                    compare(a, register, (of(mask.to_be_bytes()), of(bits)), other);
                }
            }
        }
        a.jump(is_within).bind(other);
    }
    a.jump(otherwise).bind(is_within);
}

/// Jumps to `other` unless these bits of a register have this value. Clobbers `R3` and `R4`.
fn compare(a: &mut Assembler, register: fathom_sys::bpf::Register, (mask, bits): (u64, u64), other: Label) {
    if mask != 0 {
        a.mov(R4, register).load_constant(R3, mask).compute(Operation::And, R4, R3);
        a.load_constant(R3, bits).jump_if(R4.differs(R3), other);
    }
}

/// Keeps the hop limit of the answer: one less than that of the segment, and not above ours. Jumps to `spent` if nothing is left.
///
/// Two responders take an answer of each other for a request. So does every frame between them come to its end. Clobbers `R2` and `R3`.
fn hops(a: &mut Assembler, layout: &Layout, spent: Label) {
    let fits = a.label();
    a.load(R2, R7.byte(layout.hops)).jump_if(R2.below(2), spent).sub(R2, 1);
    a.mov(R3, i32::from(HOPS)).jump_if(R3.at_least(R2), fits).mov(R2, R3).bind(fits);
    let protocol = i32::from(PROTOCOL);
    if layout.hops < layout.protocol {
        a.compute(Operation::ShiftLeft, R2, 8).compute(Operation::Or, R2, protocol);
    } else {
        a.compute(Operation::Or, R2, protocol << 8);
    }
    a.swap_network_order(R2, 16).store(R10.word(slot::HOPS), R2);
}

/// Keeps the addresses, because they are written elsewhere once the frame has its new length.
fn keep(a: &mut Assembler, layout: &Layout) {
    a.load(R1, R7.double(0)).store(R10.double(slot::MAC_DESTINATION), R1);
    a.load(R1, R7.double(6)).store(R10.double(slot::MAC_SOURCE), R1);
    for (at, place) in [(layout.source, slot::SOURCE), (layout.destination, slot::DESTINATION)] {
        for word in (0..layout.address).step_by(4) {
            a.load(R1, R7.word(at + word)).store(R10.word(place + word), R1);
        }
    }
}

/// Keeps the bytes of the frame and of its segment, which must be in it and have a TCP header. Clobbers `R0` to `R5`.
fn lengths(a: &mut Assembler, layout: &Layout, malformed: Label) {
    let counted = i32::from(layout.counted);
    a.load(R3, R7.half(layout.length)).swap_network_order(R3, 16);
    a.jump_if(R3.below(counted + i32::from(TCP_HEADER)), malformed).sub(R3, counted);
    a.store(R10.word(slot::SEGMENT), R3);
    a.mov(R1, R6).call(Helper::FrameLength).store(R10.word(slot::LENGTH), R0);
    a.load(R3, R10.word(slot::SEGMENT)).add(R3, i32::from(layout.tcp())).jump_if(R3.above(R0), malformed);
}
