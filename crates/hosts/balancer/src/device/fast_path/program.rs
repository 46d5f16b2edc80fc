//! The program: what it reads of a frame, the hash of its flow, and the way to the target that the table has for it.
//!
//! It decides whole packets of TCP and UDP alone, and passes everything else up to the queues. Its hash is that of [`crate::hash`].

use std::net::IpAddr;

use fathom_model::MacAddress;
use fathom_sys::bpf::{
    Assembler, Helper, Instruction, Label, Operation,
    Register::{self, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10},
};

use super::{
    hook::{Hook, KEY},
    maps::{Maps, Passed},
};
use crate::{
    classify::protocol::{TCP, UDP},
    hash::{PI, halves},
};

// Places on the stack, beside those of the hook.
/// The row of the target's counter.
const ROW: i16 = -8;
/// The halves of the destination, mixed with their constants.
const DESTINATION: [i16; 2] = [-16, -24];

/// The length of an Ethernet header.
const ETHERNET: i16 = 14;
const ETHERTYPE: i16 = 12;
/// The least bytes behind an IP header: the two ports.
const PORTS: i16 = 4;

/// Where the fields of an IP header without options are in a frame.
struct Layout {
    ethertype: u16,
    /// The bytes of the IP header.
    header: i16,
    source: i16,
    destination: i16,
    protocol: i16,
    /// The time to live or the hop limit.
    hops: i16,
    /// The length of the packet, or of what follows the header.
    length: i16,
}

const IPV4: Layout =
    Layout { ethertype: 0x0800, header: 20, source: 26, destination: 30, protocol: 23, hops: 22, length: 16 };
const IPV6: Layout =
    Layout { ethertype: 0x86dd, header: 40, source: 22, destination: 38, protocol: 20, hops: 21, length: 18 };
/// The version and the length of an IPv4 header without options, and the version of an IPv6 header.
const VERSION_4: i32 = 0x45;
const VERSION_6: i32 = 6;
/// Where an IPv4 header has its flags and its checksum.
const FRAGMENT_4: i16 = 20;
const CHECKSUM_4: i16 = 24;
/// More fragments follow, or the offset of this one: in whole packets none of the bits is set.
const IS_FRAGMENT: u16 = 0x3fff;

/// The labels that several parts of the program jump to.
struct Exits {
    /// Passes the frame up without counting it: it is not for a virtual address.
    others: Label,
    /// Passes the frame up and counts why.
    passed: [Label; Passed::ALL.len()],
}

impl Exits {
    fn of(&self, why: Passed) -> Label {
        self.passed[why as usize]
    }
}

/// Assembles the program for these virtual addresses and tables of this size, on interfaces with these Ethernet addresses.
///
/// `R6` is the context and later the length of the frame, `R7` the frame, `R8` its end.
pub(super) fn program(
    hook: Hook,
    maps: &Maps,
    interfaces: &[MacAddress],
    virtual_addresses: &[IpAddr],
    table_size: u32,
) -> Vec<Instruction> {
    let mut a = Assembler::new();
    let exits = Exits { others: a.label(), passed: Passed::ALL.map(|_| a.label()) };
    let hash = a.label();
    hook.begin(&mut a, i32::from(ETHERNET + IPV6.header + PORTS), exits.others);
    a.mov(R2, R7).add(R2, i32::from(ETHERNET)).jump_if(R2.above(R8), exits.others);
    accept(&mut a, interfaces, exits.others);
    // The verifier refuses code that no frame reaches, so a version without an address is not read.
    for layout in [&IPV4, &IPV6] {
        let is_ipv4 = layout.ethertype == IPV4.ethertype;
        if !virtual_addresses.iter().any(|address| address.is_ipv4() == is_ipv4) {
            continue;
        }
        let other = a.label();
        a.load(R2, R7.half(ETHERTYPE)).jump_if(R2.differs(be16(layout.ethertype)), other);
        let read = if is_ipv4 { read_ipv4 } else { read_ipv6 };
        read(&mut a, hook, virtual_addresses, &exits);
        a.jump(hash).bind(other);
    }
    a.jump(exits.others).bind(hash);
    hash_flow(&mut a);
    choose(&mut a, hook, maps, table_size, &exits);
    send(&mut a, hook);
    let has_ipv4 = virtual_addresses.iter().any(IpAddr::is_ipv4);
    for why in Passed::ALL.into_iter().filter(|why| has_ipv4 || !why.is_of_ipv4()) {
        a.bind(exits.of(why));
        count_passed(&mut a, maps, why, exits.others);
    }
    a.bind(exits.others).give(hook.pass());
    a.assemble()
}

/// Jumps to `others` unless the frame is for one of these addresses: a switch also floods frames that are for other hosts, and the stack
/// drops them. Clobbers `R2` to `R4`.
fn accept(a: &mut Assembler, interfaces: &[MacAddress], others: Label) {
    let is_ours = a.label();
    a.load(R2, R7.word(0)).load(R4, R7.half(4));
    for MacAddress([first, second, third, fourth, fifth, sixth]) in interfaces.iter().copied() {
        let other = a.label();
        a.load_constant(R3, u32::from_ne_bytes([first, second, third, fourth]).into()).jump_if(R2.differs(R3), other);
        a.jump_if(R4.equals(i32::from(u16::from_ne_bytes([fifth, sixth]))), is_ours).bind(other);
    }
    a.jump(others).bind(is_ours);
}

/// Reads an IPv4 packet: the halves of its source into `R1` and `R2`, the fields of the flow behind the addresses into `R9`.
fn read_ipv4(a: &mut Assembler, hook: Hook, virtual_addresses: &[IpAddr], exits: &Exits) {
    let matched = a.label();
    reach(a, &IPV4, 0, exits.others);
    a.load(R2, R7.word(IPV4.destination));
    for address in virtual_addresses {
        let IpAddr::V4(octets) = address else { continue };
        let other = a.label();
        a.load_constant(R3, u32::from_ne_bytes(octets.octets()).into()).jump_if(R2.differs(R3), other);
        keep_destination(a, *address);
        a.jump(matched).bind(other);
    }
    a.jump(exits.others).bind(matched);
    a.load(R2, R7.byte(ETHERNET)).jump_if(R2.differs(VERSION_4), exits.of(Passed::Options));
    a.load(R2, R7.half(FRAGMENT_4)).compute(Operation::And, R2, be16(IS_FRAGMENT));
    a.jump_if(R2.differs(0), exits.of(Passed::Fragment));
    a.load(R3, R7.half(IPV4.length)).swap_network_order(R3, 16);
    read_rest(a, hook, &IPV4, i32::from(IPV4.header), exits);
    // An IPv4-mapped address: its upper half is zero.
    a.load(R2, R7.word(IPV4.source)).swap_network_order(R2, 32);
    a.load_constant(R1, 0xffff_0000_0000).compute(Operation::Or, R2, R1).mov(R1, 0);
}

/// The same of an IPv6 packet.
fn read_ipv6(a: &mut Assembler, hook: Hook, virtual_addresses: &[IpAddr], exits: &Exits) {
    let matched = a.label();
    reach(a, &IPV6, 0, exits.others);
    a.load(R1, R7.double(IPV6.destination)).load(R2, R7.double(IPV6.destination + 8));
    for address in virtual_addresses.iter().filter(|address| address.is_ipv6()) {
        let other = a.label();
        let (high, low) = halves(*address);
        a.load_constant(R3, u64::from_ne_bytes(high.to_be_bytes())).jump_if(R1.differs(R3), other);
        a.load_constant(R3, u64::from_ne_bytes(low.to_be_bytes())).jump_if(R2.differs(R3), other);
        keep_destination(a, *address);
        a.jump(matched).bind(other);
    }
    a.jump(exits.others).bind(matched);
    a.load(R2, R7.byte(ETHERNET)).compute(Operation::ShiftRight, R2, 4);
    a.jump_if(R2.differs(VERSION_6), exits.of(Passed::Malformed));
    a.load(R3, R7.half(IPV6.length)).swap_network_order(R3, 16);
    read_rest(a, hook, &IPV6, 0, exits);
    a.load(R1, R7.double(IPV6.source)).swap_network_order(R1, 64);
    a.load(R2, R7.double(IPV6.source + 8)).swap_network_order(R2, 64);
}

/// Jumps to `otherwise` unless the frame has the IP header and so many bytes behind it. Clobbers `R2`.
fn reach(a: &mut Assembler, layout: &Layout, behind: i16, otherwise: Label) {
    a.mov(R2, R7).add(R2, i32::from(ETHERNET + layout.header + behind)).jump_if(R2.above(R8), otherwise);
}

/// Keeps the halves of the destination as the hash mixes them. Clobbers `R3`.
fn keep_destination(a: &mut Assembler, address: IpAddr) {
    let (high, low) = halves(address);
    for (half, place) in [high ^ PI[2], low ^ PI[3]].into_iter().zip(DESTINATION) {
        a.load_constant(R3, half).store(R10.double(place), R3);
    }
}

/// Reads what IPv4 and IPv6 have in common. `R3` is the length field, which counts `counted` bytes of the IP header.
///
/// `R6` becomes the length of the frame, `R9` the protocol and the ports as the hash takes them.
fn read_rest(a: &mut Assembler, hook: Hook, layout: &Layout, counted: i32, exits: &Exits) {
    let is_known = a.label();
    a.load(R9, R7.byte(layout.protocol));
    a.jump_if(R9.equals(i32::from(TCP)), is_known);
    a.jump_if(R9.differs(i32::from(UDP)), exits.of(Passed::OtherProtocol)).bind(is_known);
    a.load(R2, R7.byte(layout.hops)).jump_if(R2.below(2), exits.of(Passed::LastHop));
    let malformed = exits.of(Passed::Malformed);
    a.jump_if(R3.below(counted + i32::from(PORTS)), malformed);
    hook.measure(a);
    a.add(R3, i32::from(ETHERNET + layout.header) - counted);
    a.jump_if(R3.above(R6), malformed);
    reach(a, layout, PORTS, malformed);
    a.compute(Operation::ShiftLeft, R9, 40).load(R2, R7.word(ETHERNET + layout.header)).swap_network_order(R2, 32);
    a.compute(Operation::Or, R9, R2).load_constant(R2, 1 << 32).compute(Operation::Or, R9, R2);
}

/// Leaves the hash of the flow in `R1`: of the source in `R1` and `R2`, the kept destination, and `R9`.
fn hash_flow(a: &mut Assembler) {
    a.load_constant(R3, PI[0]).compute(Operation::Xor, R1, R3);
    a.load_constant(R3, PI[1]).compute(Operation::Xor, R2, R3);
    folded_product(a);
    a.load(R2, R10.double(DESTINATION[0])).compute(Operation::Xor, R1, R2).load(R2, R10.double(DESTINATION[1]));
    folded_product(a);
    // splitmix(R1 ^ R9, R9)
    a.compute(Operation::Xor, R1, R9).load_constant(R2, 0x9e37_79b9_7f4a_7c15);
    a.compute(Operation::Mul, R9, R2).add(R1, R9);
    mix(a, 30, Some(0xbf58_476d_1ce4_e5b9));
    mix(a, 27, Some(0x94d0_49bb_1331_11eb));
    mix(a, 31, None);
}

/// `R1 ^= R1 >> bits`, and a multiplication. Clobbers `R2`.
fn mix(a: &mut Assembler, bits: i32, factor: Option<u64>) {
    a.mov(R2, R1).compute(Operation::ShiftRight, R2, bits).compute(Operation::Xor, R1, R2);
    if let Some(factor) = factor {
        a.load_constant(R2, factor).compute(Operation::Mul, R1, R2);
    }
}

/// `R1` becomes the upper half of the product of `R1` and `R2`, added to the lower one without carry. Clobbers `R0` and `R2` to `R5`.
///
/// BPF multiplies 64 bits into 64, so the upper half is the sum of four products of 32 bits each.
fn folded_product(a: &mut Assembler) {
    use Operation::{Mul, ShiftRight, Xor};
    let upper = |a: &mut Assembler, register: Register| {
        a.compute(ShiftRight, register, 32);
    };
    a.mov(R0, R1).compute(Mul, R0, R2);
    a.mov(R3, R1).keep_word(R3).mov(R4, R2).keep_word(R4);
    upper(a, R1);
    upper(a, R2);
    // Low by low, of which the upper part carries; low by high; high by low; high by high.
    a.mov(R5, R3).compute(Mul, R5, R4);
    upper(a, R5);
    a.compute(Mul, R3, R2).compute(Mul, R4, R1).compute(Mul, R1, R2);
    a.mov(R2, R3).keep_word(R2).add(R5, R2).mov(R2, R4).keep_word(R2).add(R5, R2);
    for part in [R3, R4, R5] {
        upper(a, part);
        a.add(R1, part);
    }
    a.compute(Xor, R1, R0);
}

/// Finds the way to the target of the hash in `R1`, and counts the packet for it. `R9` becomes the way.
fn choose(a: &mut Assembler, hook: Hook, maps: &Maps, table_size: u32, exits: &Exits) {
    let (second, chosen, no_target) = (a.label(), a.label(), exits.of(Passed::NoTarget));
    let size = i32::try_from(table_size).expect("a table has at most five million places");
    a.compute(Operation::Mod, R1, size);
    a.load_row(R2, &maps.active).load(R2, R2.double(0)).jump_if(R2.equals(0), exits.of(Passed::LeftToQueue));
    a.jump_if(R2.differs(1), second).jump(chosen).bind(second).add(R1, size).bind(chosen);
    a.store(R10.word(KEY), R1).look_up(&maps.places, KEY, no_target);
    a.load(R1, R0.double(0)).jump_if(R1.equals(0), no_target);
    // A place has the number of its target, from one; a target has a way for each IP version.
    a.sub(R1, 1).store(R10.word(ROW), R1).compute(Operation::ShiftLeft, R1, 1);
    let is_ipv4 = a.label();
    a.load(R2, R7.half(ETHERTYPE)).jump_if(R2.equals(be16(IPV4.ethertype)), is_ipv4).add(R1, 1).bind(is_ipv4);
    let no_way = exits.of(Passed::NoWay);
    a.store(R10.word(KEY), R1).look_up(&maps.ways, KEY, no_way).mov(R9, R0);
    a.load(R1, R9.word(0)).jump_if(R1.equals(0), no_way);
    hook.check_length(a, exits.of(Passed::TooLong));
    a.look_up(&maps.target_counts, ROW, no_way).load(R1, R0.double(0)).add(R1, 1).store(R0.double(0), R1);
}

/// Sends the frame the way at `R9`, with its Ethernet addresses and one hop less, as a router does.
fn send(a: &mut Assembler, hook: Hook) {
    let (ipv6, is_routed) = (a.label(), a.label());
    // The Ethernet addresses are the second and the third word of 64 bits of the way, in the order of the frame.
    a.load(R1, R9.double(8)).store(R7.double(0), R1).load(R1, R9.word(16)).store(R7.word(8), R1);
    a.load(R2, R7.half(ETHERTYPE)).jump_if(R2.equals(be16(IPV6.ethertype)), ipv6);
    a.load(R1, R7.byte(IPV4.hops)).sub(R1, 1).store(R7.byte(IPV4.hops), R1);
    // RFC 1141: the header has lost 1 in the upper half of a word, so its complement gains that, with the carry at the other end.
    let carried = a.label();
    a.load(R1, R7.half(CHECKSUM_4)).swap_network_order(R1, 16).add(R1, 0x100).jump_if(R1.below(0xffff), carried);
    a.add(R1, 1).bind(carried);
    a.swap_network_order(R1, 16).store(R7.half(CHECKSUM_4), R1).jump(is_routed).bind(ipv6);
    a.load(R1, R7.byte(IPV6.hops)).sub(R1, 1).store(R7.byte(IPV6.hops), R1);
    hook.tell_one_less(a);
    a.bind(is_routed).load(R1, R9.word(0)).mov(R2, 0).call(Helper::Redirect).exit();
}

/// Counts a packet for a virtual address that goes up to the queues.
fn count_passed(a: &mut Assembler, maps: &Maps, why: Passed, then: Label) {
    a.store(R10.word(KEY), why as i32).look_up(&maps.passed, KEY, then);
    a.load(R1, R0.double(0)).add(R1, 1).store(R0.double(0), R1).jump(then);
}

/// The value of two bytes of a frame as they are loaded here.
fn be16(value: u16) -> i32 {
    i32::from(value.to_be())
}
