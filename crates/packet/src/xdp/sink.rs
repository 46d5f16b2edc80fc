//! The counting sink: where frames of fathom's end.

use std::os::fd::AsFd;

use fathom_model::units::{Bytes, Frames};
use fathom_sys::{
    Result,
    bpf::{
        Array, Assembler, Instruction, Operation, PerCpuArray, Program, ProgramType,
        Register::{R0, R1, R2, R3, R4, R6, R7, R9, R10},
        XdpAction, XdpLink, XdpMode,
    },
};

use super::{KEY, Matching, increase};
use crate::{
    sequence::{MEMORY, Sequence},
    wire::{Ethernet, IS_FRAGMENT, Ipv4, Mark, MarkPlace, PROTOCOL_UDP, Udp},
};

/// What a counter of frames has seen, of all flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Frames, each copy counted.
    pub frames: Frames,
    /// Their bytes, without the checksum of the wire.
    pub bytes: Bytes,
    /// Frames that arrived after one of their flow with a higher number.
    pub reordered: Frames,
    /// Further copies of frames that had arrived.
    pub duplicates: Frames,
}

impl Arrivals {
    /// Frames, each counted once.
    #[must_use]
    pub fn distinct(&self) -> Frames {
        self.frames - self.duplicates
    }
}

/// The mark of a frame of one trial, and the frame's length: what the program decides, decided in user space.
///
/// The beginning of the frame is enough.
#[must_use]
pub fn ours(frame: &[u8], port: u16, trial: u32) -> Option<(Mark, Bytes)> {
    let (_, packet) = Ethernet::parse(frame)?;
    let datagram = packet.get(Ipv4::LENGTH..)?;
    let word = |bytes: &[u8], at: usize| bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let mark = Mark::parse(datagram.get(Udp::LENGTH..)?)?;
    let is_udp = packet[0] == 0x45 && word(packet, 6)? & IS_FRAGMENT == 0 && packet[9] == PROTOCOL_UDP;
    let length = Bytes(u64::from(word(packet, 2)?)) + Bytes(Ethernet::LENGTH as u64);
    (is_udp && word(datagram, 2)? == port && mark.trial == trial).then_some((mark, length))
}

/// Counts the frames of one trial as they come in and ends them there; everything else passes.
///
/// The order of a flow is kept without locks, because a device hands the frames of one flow to one processor at a time. The
/// counts of frames and bytes are per processor and exact in any case.
#[derive(Debug)]
pub struct Sink {
    program: Program,
    totals: PerCpuArray<2>,
    flows: Array<FLOW_WORDS>,
    n_flows: u16,
}

/// The words of [`Sequence`], padded to a cache line, so that flows on different processors do not share one.
const FLOW_WORDS: usize = 8;

// Places of the fields of a flow.
const NEXT: i16 = 0;
const RECENT: i16 = 8;
const REORDERED: i16 = 16;
const DUPLICATES: i16 = 24;
/// The total length in the header of IPv4.
const TOTAL_LENGTH: i16 = 16;

impl Sink {
    /// Loads the sink for the flows of one trial; it counts once it is attached.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn load(port: u16, trial: u32, n_flows: u16) -> Result<Self> {
        let totals = PerCpuArray::create("fathom_totals", 1)?;
        let flows = Array::create("fathom_flows", n_flows.max(1).into())?;
        let code = code(Matching::Marked { port, trial }, &totals, &flows);
        let program = Program::load(ProgramType::Xdp, "fathom_sink", &code)?;
        Ok(Self { program, totals, flows, n_flows })
    }

    /// What runs at each frame.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Puts the sink on a device of this network namespace, for as long as the link lives.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when the driver has no native mode, `EBUSY` when the device already has a program.
    pub fn attach(&self, ifindex: u32, mode: XdpMode) -> Result<XdpLink> {
        XdpLink::attach(&self.program, ifindex, mode)
    }

    /// What has come in since it was loaded.
    ///
    /// # Errors
    /// Never, as long as the kernel keeps its maps.
    pub fn arrivals(&self) -> Result<Arrivals> {
        let [frames, bytes] = self.totals.sum(0)?;
        let mut arrivals = Arrivals { frames: Frames(frames), bytes: Bytes(bytes), ..Arrivals::default() };
        for flow in 0..self.n_flows {
            let sequence = self.sequence(flow)?;
            arrivals.reordered += Frames(sequence.reordered);
            arrivals.duplicates += Frames(sequence.duplicates);
        }
        Ok(arrivals)
    }

    /// The order in which the frames of one flow came in.
    ///
    /// # Errors
    /// When there is no such flow.
    pub fn sequence(&self, flow: u16) -> Result<Sequence> {
        let [next, recent, reordered, duplicates, ..] = self.flows.get(flow.into())?;
        Ok(Sequence { next, recent, reordered, duplicates })
    }
}

fn code(matching: Matching, totals: &impl AsFd, flows: &impl AsFd) -> Vec<Instruction> {
    let mut a = Assembler::new();
    let (pass, drop) = (a.label(), a.label());
    let place = |place: usize| i16::try_from(place).expect("the mark is within the first 60 bytes");
    matching.assemble(&mut a, pass);
    // The length by the packet's own header: without CAP_PERFMON a program may not subtract the two ends of a frame.
    let ethernet = i32::try_from(Ethernet::LENGTH).expect("headers are short");
    a.load(R6, R7.half(TOTAL_LENGTH)).swap_network_order(R6, 16).add(R6, ethernet);
    a.store(R10.word(KEY), 0).look_up(totals, KEY, pass);
    increase(&mut a, R0, 0, 1);
    increase(&mut a, R0, 8, R6);
    a.load(R6, R7.double(place(MarkPlace::SEQUENCE))).swap_network_order(R6, 64);
    a.load(R1, R7.half(place(MarkPlace::FLOW))).swap_network_order(R1, 16).store(R10.word(KEY), R1);
    a.look_up(flows, KEY, drop).mov(R9, R0);
    keep_order(&mut a);
    a.bind(drop).give(XdpAction::Drop);
    a.bind(pass).give(XdpAction::Pass);
    a.assemble()
}

/// [`Sequence::arrive`] for the number in `R6` and the flow at `R9`.
fn keep_order(a: &mut Assembler) {
    let [late, forget, mark, reordered, duplicate, done] = std::array::from_fn(|_| a.label());
    let memory = i32::try_from(MEMORY).expect("the memory is one word");
    a.load(R4, R9.double(RECENT)).load(R1, R9.double(NEXT)).jump_if(R6.below(R1), late);
    a.mov(R2, R6).sub(R2, R1).add(R2, 1);
    a.mov(R3, R6).add(R3, 1).store(R9.double(NEXT), R3);
    a.jump_if(R2.at_least(memory), forget).compute(Operation::ShiftLeft, R4, R2).jump(mark);
    a.bind(forget).mov(R4, 0);
    a.bind(mark).compute(Operation::Or, R4, 1).store(R9.double(RECENT), R4).jump(done);
    a.bind(late).sub(R1, 1).sub(R1, R6).jump_if(R1.at_least(memory), reordered);
    a.mov(R2, 1).compute(Operation::ShiftLeft, R2, R1);
    a.mov(R3, R4).compute(Operation::And, R3, R2).jump_if(R3.differs(0), duplicate);
    a.compute(Operation::Or, R4, R2).store(R9.double(RECENT), R4);
    a.bind(reordered);
    increase(a, R9, REORDERED, 1);
    a.jump(done).bind(duplicate);
    increase(a, R9, DUPLICATES, 1);
    a.bind(done);
}

#[cfg(test)]
mod tests {
    use super::{super::trial::*, *};

    #[test]
    fn the_program_keeps_the_same_order_as_the_arithmetic_in_user_space() {
        let Some(sink) = or_skip(Sink::load(PORT, TRIAL, 2)) else { return };
        let mut expected = Sequence::default();
        // A linear congruential generator's steps: mostly forward, some back, some far ahead.
        let mut state = 1_u64;
        let mut number = 0_u64;
        for _ in 0..2_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let distance = (state >> 32) & 0x7f;
            number = match state >> 60 {
                0..3 => number.saturating_sub(distance),
                3 => number,
                4..8 => number + distance,
                _ => number + 1,
            };
            expected.arrive(number);
            let run = sink.program().test_run(&frame(64, number), 1).unwrap();
            assert_eq!(run.value, XdpAction::Drop as u32);
        }
        assert_eq!(sink.sequence(FLOW).unwrap(), expected);
        let arrivals = sink.arrivals().unwrap();
        assert_eq!((arrivals.frames, arrivals.bytes), (Frames(2_000), Bytes(2_000 * 60)));
        assert_eq!(arrivals.distinct(), Frames(2_000 - expected.duplicates));
        assert!(expected.reordered > 50 && expected.duplicates > 50, "{expected:?} tests little");
    }

    #[test]
    fn frames_of_others_pass_and_are_not_counted() {
        let Some(sink) = or_skip(Sink::load(PORT, TRIAL, 1)) else { return };
        let ours_is = |frame: &[u8]| ours(frame, PORT, TRIAL).is_some();
        let good = frame(64, 5);
        assert!(ours_is(&good));
        // The header's length, a fragment, the protocol, the port, the magic and the trial are changed; one frame is too short.
        let mut others: Vec<Vec<u8>> = [14, 21, 23, 37, 42, 49].map(|place| changed(&good, place)).to_vec();
        others.push(good[..59].to_vec());
        for other in &others {
            assert_eq!(sink.program().test_run(other, 1).unwrap().value, XdpAction::Pass as u32);
            assert!(!ours_is(other));
        }
        assert_eq!(sink.arrivals().unwrap(), Arrivals::default());
    }

    #[test]
    fn the_length_of_a_long_frame_is_counted_from_its_beginning() {
        let long = frame(1518, 0);
        assert_eq!(ours(&long[..128], PORT, TRIAL).map(|(_, length)| length), Some(Bytes(1514)));
        let Some(sink) = or_skip(Sink::load(PORT, TRIAL, 1)) else { return };
        sink.program().test_run(&long, 3).unwrap();
        assert_eq!(sink.arrivals().unwrap().bytes, Bytes(3 * 1514));
    }
}
