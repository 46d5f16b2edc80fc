//! The counting sink, which drops frames of fathom.

use std::os::fd::AsFd;

use fathom_model::{
    Histogram,
    units::{Frames, Nanos},
};
use fathom_sys::{
    Result,
    bpf::{
        Array, Assembler, Helper, Instruction, Label, Operation, PerCpuArray, Program, ProgramType,
        Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10},
        XdpAction, XdpLink, XdpMode,
        histogram::{BUCKETS, count, histogram},
    },
};

use super::{KEY, UnrelatedFrames, add_to_word};
use fathom_pktgen as pktgen;
use fathom_pktgen::{PktgenOrigin, PktgenPacket};
use fathom_wire::{Ethernet, Mark, SEQUENCE_WINDOW};

/// The counts of a frame counter, over all flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FrameCounts {
    /// All frames, duplicates included.
    pub frames: Frames,
    /// Frames that arrived after a frame of their flow with a higher number.
    pub reordered: Frames,
    /// Further copies of frames that had arrived.
    pub duplicates: Frames,
}

impl FrameCounts {
    /// Frames without duplicates.
    #[must_use]
    pub fn distinct(&self) -> Frames {
        self.frames - self.duplicates
    }
}

/// The frames to count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedFrames {
    /// The tag at the start of their marks.
    pub tag: u32,
    /// The possible offsets of their marks from the start of the frame; empty if they have none.
    pub places: Vec<usize>,
    /// The number of flows whose order is tracked.
    pub n_flows: u32,
    /// The origin of pktgen packets to count. These carry pktgen's own header. `None` to not count them.
    pub pktgen: Option<PktgenOrigin>,
    /// Whether the rate changes during the trial.
    pub rate_steps: RateSteps,
    /// Frames that are not counted if the expected frames have no marks.
    pub unrelated: UnrelatedFrames,
}

/// Whether frames show on which side of a rate change they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RateSteps {
    /// There is one rate.
    #[default]
    None,
    /// Frames of the second rate have a bit set in their marks.
    Once,
}

impl ExpectedFrames {
    /// Whether to count a frame although it has no mark: no expected frame has one, and the frame is not known to be unrelated.
    #[must_use]
    pub fn is_unmarked(&self, frame: &[u8]) -> bool {
        self.places.is_empty() && frame.len() >= Ethernet::LENGTH && !self.unrelated.contains(frame)
    }

    /// Returns the mark of a frame, if it is one of the expected frames. The beginning of the frame is sufficient.
    #[must_use]
    pub fn mark(&self, frame: &[u8]) -> Option<Mark> {
        let marks = self.places.iter().filter_map(|at| Mark::parse(frame.get(*at..)?));
        let ours = marks.into_iter().find(|mark| mark.tag == self.tag);
        let flow = |mark: Mark| match self.rate_steps {
            RateSteps::None => mark.flow,
            RateSteps::Once => mark.flow & !Mark::AFTER_STEP,
        };
        ours.map(|mark| Mark { flow: flow(mark), ..mark }).or_else(|| self.pktgen_mark(frame))
    }

    /// Translates pktgen's own header into a mark.
    fn pktgen_mark(&self, frame: &[u8]) -> Option<Mark> {
        let origin = self.pktgen?;
        let packet = PktgenPacket::find(frame)?;
        let flow = origin.device(&packet)?;
        let sent = packet.header.made.map_or(0, |made| made.0.wrapping_sub(origin.ahead.0) & u64::from(u32::MAX));
        // pktgen counts from 1.
        let sequence = packet.header.sequence.wrapping_sub(1).into();
        Some(Mark { tag: self.tag, flow, sequence, sent: u32::try_from(sent).ok()? })
    }
}

/// The time distributions of a counter, in nanoseconds, each exact to 1.6 %.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FrameTimes {
    /// From the sender's stamp to the counter, for frames that have a stamp.
    pub latency: Histogram,
    /// Differences between the latencies of two frames of a flow that were sent and received consecutively.
    pub variation: Histogram,
    /// From one frame to the next, on the same processor.
    pub gap: Histogram,
}

/// The times of a rate change as the sink has seen it, on its host's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateStepTimes {
    /// When the first frame of the second rate arrived.
    pub at: Nanos,
    /// When the last frame with a gap before it arrived, at either rate.
    pub last_gap: Option<Nanos>,
}

impl RateStepTimes {
    /// Returns the time from the rate change to the last loss; zero if no frame was lost after the change.
    #[must_use]
    pub fn recovery(self) -> Nanos {
        self.last_gap.map_or(Nanos::ZERO, |gap| gap.since(self.at))
    }
}

/// Counts the frames of one trial as they come in, and drops them. Everything else passes.
///
/// The order of a flow is tracked without locks, because a device hands the frames of one flow to one processor at a time. Frame
/// counts are per processor and exact in any case.
#[derive(Debug)]
pub struct Sink {
    lets_pass: bool,
    program: Program,
    totals: PerCpuArray<TOTAL_WORDS>,
    flows: Array<FLOW_WORDS>,
    times: PerCpuArray<BUCKETS>,
}

const TOTAL_WORDS: usize = 6;
// Byte offsets in the totals of a processor.
const FRAMES: i16 = 0;
const REORDERED: i16 = 8;
const DUPLICATES: i16 = 16;
const LAST_ARRIVAL: i16 = 24;
// Times, initially zero, and updated only if the rate changes.
const STEPPED: i16 = 32;
const LAST_GAP: i16 = 40;

const FLOW_WORDS: usize = 3;
// Byte offsets in a flow: the first two as in `FrameSequence`.
const NEXT: i16 = 0;
const RECENT: i16 = 8;
/// The latency of the frame with the highest number, plus one; zero if there is none.
const LAST_LATENCY: i16 = 16;

// Rows of the distributions.
const LATENCY: u16 = 0;
const VARIATION: u16 = 1;
const GAP: u16 = 2;

/// Stack offsets of the address of the totals, and of a value needed after a call.
const TOTALS: i16 = -16;
const VALUE: i16 = -24;
// The flow and the time from the mark.
const FLOW_SLOT: i16 = -28;
const SENT_SLOT: i16 = -32;
/// Whether the rate has changed, if it does.
const PHASE_SLOT: i16 = -40;

/// The maps of the program, and the exit if a lookup fails.
struct SinkMaps<'a, F: AsFd, T: AsFd> {
    flows: &'a F,
    times: &'a T,
    exit: Label,
}

impl Sink {
    /// Loads the sink for the flows of one trial. It counts once it is attached.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn load(expected: &ExpectedFrames) -> Result<Self> {
        let totals = PerCpuArray::create("fathom_totals", 1)?;
        let flows = Array::create("fathom_flows", expected.n_flows.max(1))?;
        let times = PerCpuArray::create("fathom_times", 3)?;
        let program = Program::load(ProgramType::Xdp, "fathom_sink", &code(expected, &totals, (&flows, &times)))?;
        Ok(Self { lets_pass: expected.places.is_empty(), program, totals, flows, times })
    }

    /// Whether the counted frames continue into the network stack.
    #[must_use]
    pub const fn passes_frames(&self) -> bool {
        self.lets_pass
    }

    /// Returns the program that runs for each frame.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Attaches the sink to a device of this network namespace, for as long as the link lives.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver has no native mode, `EBUSY` if the device already has a program.
    pub fn attach(&self, ifindex: u32, mode: XdpMode) -> Result<XdpLink> {
        XdpLink::attach(&self.program, ifindex, mode)
    }

    /// Returns the counts since it was loaded.
    ///
    /// # Errors
    /// Never, as long as the kernel keeps its maps.
    pub fn counts(&self) -> Result<FrameCounts> {
        let [frames, reordered, duplicates, ..] = self.totals.sum(0)?.map(Frames);
        Ok(FrameCounts { frames, reordered, duplicates })
    }

    /// Returns the time distributions since it was loaded.
    ///
    /// # Errors
    /// Never, as long as the kernel keeps its maps.
    pub fn times(&self) -> Result<FrameTimes> {
        let [latency, variation, gap] =
            [LATENCY, VARIATION, GAP].map(|row| self.times.sum(row.into()).map(|buckets| histogram(&buckets)));
        Ok(FrameTimes { latency: latency?, variation: variation?, gap: gap? })
    }

    /// Returns the times of the rate change; `None` before the first frame of the second rate.
    ///
    /// # Errors
    /// Never, as long as the kernel keeps its maps.
    pub fn rate_step(&self) -> Result<Option<RateStepTimes>> {
        let processors = self.totals.get(0)?;
        let times = |place: i16| {
            processors.iter().map(move |row| row[usize::from(place.unsigned_abs() / 8)]).filter(|at| *at > 0)
        };
        let last_gap = times(LAST_GAP).max().map(Nanos);
        Ok(times(STEPPED).min().map(|at| RateStepTimes { at: Nanos(at), last_gap }))
    }

    /// Returns the next sequence number of a flow and the bits of recent arrivals, as in [`fathom_wire::FrameSequence`].
    ///
    /// # Errors
    /// If there is no such flow.
    pub fn sequence_state(&self, flow: u32) -> Result<(u64, u64)> {
        let [next, recent, _] = self.flows.get(flow)?;
        Ok((next, recent))
    }
}

/// Counts every frame and lets it pass, except those that are known to be unrelated.
///
/// Frames without marks cannot be told from those of others. To drop them all could cut off the host.
fn count_any(strays: &UnrelatedFrames, totals: &impl AsFd) -> Vec<Instruction> {
    let mut a = Assembler::new();
    let pass = a.label();
    a.load(R7, R1.word(0)).load(R8, R1.word(4)).mov(R2, R7).add(R2, 14).jump_if(R2.above(R8), pass);
    strays.assemble(&mut a, pass);
    a.store(R10.word(KEY), 0).look_up(totals, KEY, pass);
    add_to_word(&mut a, R0, FRAMES, 1);
    a.bind(pass).give(XdpAction::Pass);
    a.assemble()
}

fn code(expected: &ExpectedFrames, totals: &impl AsFd, (flows, times): (&impl AsFd, &impl AsFd)) -> Vec<Instruction> {
    if expected.places.is_empty() {
        return count_any(&expected.unrelated, totals);
    }
    let mut a = Assembler::new();
    let [pass, drop, is_ours, is_pktgens, is_read, no_gap] = std::array::from_fn(|_| a.label());
    if expected.rate_steps == RateSteps::Once {
        a.store(R10.double(PHASE_SLOT), 0);
    }
    find_mark(&mut a, expected, &MarkLabels { ours: is_ours, pktgen_header: is_pktgens, foreign: pass });
    if let Some(origin) = expected.pktgen {
        a.bind(is_pktgens);
        read_header(&mut a, origin);
        a.jump(is_read);
    }
    a.bind(is_ours);
    read_mark(&mut a, expected.rate_steps);
    a.bind(is_read).call(Helper::MonotonicNanos).mov(R6, R0);
    a.store(R10.word(KEY), 0).look_up(totals, KEY, pass).store(R10.double(TOTALS), R0);
    add_to_word(&mut a, R0, FRAMES, 1);
    if expected.rate_steps == RateSteps::Once {
        record_rate_step(&mut a);
    }
    let tables = SinkMaps { flows, times, exit: drop };
    a.load(R1, R0.double(LAST_ARRIVAL)).store(R0.double(LAST_ARRIVAL), R6).jump_if(R1.equals(0), no_gap);
    a.mov(R2, R6).sub(R2, R1);
    count_time(&mut a, &tables, GAP);
    a.bind(no_gap);
    record_flow(&mut a, &tables, expected.rate_steps);
    a.bind(drop).give(XdpAction::Drop);
    a.bind(pass).give(XdpAction::Pass);
    a.assemble()
}

fn number(at: usize) -> i16 {
    i16::try_from(at).expect("a mark lies near the beginning of its frame")
}

/// Where a program continues with a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct MarkLabels {
    /// With `R7` at the mark.
    pub(super) ours: Label,
    /// With `R7` at the start that the frame would have with all its tags in it.
    pub(super) pktgen_header: Label,
    /// With an unrelated frame.
    pub(super) foreign: Label,
}

/// Looks for a mark, and for pktgen's header if that is expected.
pub(super) fn find_mark(a: &mut Assembler, expected: &ExpectedFrames, found: &MarkLabels) {
    let tag = u32::from_ne_bytes(expected.tag.to_be_bytes());
    // `struct xdp_md` starts with the addresses of the first byte of the frame and of the byte after its last.
    a.load(R7, R1.word(0)).load(R8, R1.word(4)).load_constant(R3, tag.into());
    for at in &expected.places {
        let other = a.label();
        let end = i32::try_from(at + Mark::LENGTH).expect("a mark lies near the beginning of its frame");
        a.mov(R2, R7).add(R2, end).jump_if(R2.above(R8), other);
        a.load(R2, R7.word(number(at + Mark::TAG))).jump_if(R2.differs(R3), other);
        a.add(R7, i32::from(number(*at))).jump(found.ours).bind(other);
    }
    if let Some(origin) = expected.pktgen {
        let missing = expected.places.iter().filter_map(|at| origin.at.checked_sub(*at));
        missing.for_each(|missing| find_header(a, &origin, missing, found.pktgen_header));
    }
    a.jump(found.foreign);
}

/// Jumps to `found` if the frame at `R7` has pktgen's header. `missing` is the length of the tags stripped from it.
fn find_header(a: &mut Assembler, origin: &PktgenOrigin, missing: usize, found: Label) {
    let other = a.label();
    let end = i32::from(number(origin.at - missing + pktgen::PktgenHeader::LENGTH));
    let magic = u32::from_ne_bytes(pktgen::MAGIC.to_be_bytes());
    a.mov(R2, R7).add(R2, end).jump_if(R2.above(R8), other).load_constant(R3, magic.into());
    a.load(R2, R7.word(number(origin.at - missing))).jump_if(R2.differs(R3), other);
    a.load(R2, R7.half(number(origin.source_port() - missing))).swap_network_order(R2, 16);
    let n_ports = u64::from(origin.n_devices) * u64::from(origin.ports.each);
    a.sub(R2, i32::from(origin.ports.first)).load_constant(R3, n_ports);
    // For a port below the first, the difference wraps to a value above the limit.
    a.jump_if(R2.at_least(R3), other).sub(R7, i32::from(number(missing))).jump(found).bind(other);
}

/// Stores flow, time and phase of the mark at `R7` in their slots, and loads the sequence number into `R8`.
fn read_mark(a: &mut Assembler, stepping: RateSteps) {
    a.load(R1, R7.word(number(Mark::SENT))).swap_network_order(R1, 32).store(R10.word(SENT_SLOT), R1);
    a.load(R1, R7.word(number(Mark::FLOW))).swap_network_order(R1, 32);
    if stepping == RateSteps::Once {
        let phase = i32::try_from(Mark::AFTER_STEP.trailing_zeros()).expect("a word has 32 bits");
        a.mov(R2, R1).compute(Operation::ShiftRight, R2, phase).store(R10.double(PHASE_SLOT), R2);
        a.load_constant(R2, (!Mark::AFTER_STEP).into()).compute(Operation::And, R1, R2);
    }
    a.store(R10.word(FLOW_SLOT), R1);
    a.load(R8, R7.double(number(Mark::SEQUENCE))).swap_network_order(R8, 64).compute(Operation::ShiftRight, R8, 16);
}

/// Does the same for pktgen's header in the frame at `R7`: a wall clock in seconds and microseconds, and numbers from 1.
fn read_header(a: &mut Assembler, origin: PktgenOrigin) {
    let [sequence, seconds, micros] = [4, 8, 12].map(|at| number(origin.at + at));
    let unstamped = a.label();
    a.load(R1, R7.half(number(origin.source_port()))).swap_network_order(R1, 16).sub(R1, i32::from(origin.ports.first));
    // `each` is at most the number of ports, so it fits.
    a.compute(Operation::Div, R1, i32::try_from(origin.ports.each).unwrap_or(i32::MAX));
    a.store(R10.word(FLOW_SLOT), R1).load(R8, R7.word(sequence)).swap_network_order(R8, 32).sub(R8, 1).keep_word(R8);
    a.load(R1, R7.word(seconds)).swap_network_order(R1, 32).jump_if(R1.equals(0), unstamped);
    a.compute(Operation::Mul, R1, 1_000_000_000).load(R2, R7.word(micros)).swap_network_order(R2, 32);
    a.compute(Operation::Mul, R2, 1_000).add(R1, R2).load_constant(R2, origin.ahead.0).sub(R1, R2).keep_word(R1);
    a.bind(unstamped).store(R10.word(SENT_SLOT), R1);
}

/// Stores the time in `R6` in the totals at `R0` if the frame is the first of the second rate on this processor. Clobbers `R1`.
fn record_rate_step(a: &mut Assembler) {
    let known = a.label();
    a.load(R1, R10.double(PHASE_SLOT)).jump_if(R1.equals(0), known);
    a.load(R1, R0.double(STEPPED)).jump_if(R1.differs(0), known).store(R0.double(STEPPED), R6).bind(known);
}

/// Counts the time in `R2` in one of the distributions. Times above 4.29 s (`u32::MAX` ns) count as that.
fn count_time(a: &mut Assembler, tables: &SinkMaps<'_, impl AsFd, impl AsFd>, row: u16) {
    let fits = a.label();
    a.load_constant(R1, u32::MAX.into()).jump_if(R1.at_least(R2), fits).mov(R2, R1).bind(fits);
    a.store(R10.double(VALUE), R2).store(R10.word(KEY), i32::from(row)).look_up(tables.times, KEY, tables.exit);
    a.load(R1, R10.double(VALUE));
    count(a);
}

/// Records a frame with the number in `R8` that arrived at the time in `R6`.
fn record_flow(a: &mut Assembler, tables: &SinkMaps<'_, impl AsFd, impl AsFd>, stepping: RateSteps) {
    let (no_latency, not_in_order) = (a.label(), a.label());
    a.load(R1, R10.word(FLOW_SLOT)).store(R10.word(KEY), R1);
    a.look_up(tables.flows, KEY, tables.exit).mov(R9, R0);
    // R6 becomes the latency plus one, or zero without a stamp. The stamp has 32 bits, and so has the difference.
    a.load(R1, R10.word(SENT_SLOT));
    a.mov(R2, R6).mov(R6, 0).jump_if(R1.equals(0), no_latency).sub(R2, R1).keep_word(R2).mov(R6, R2).add(R6, 1);
    count_time(a, tables, LATENCY);
    // Two frames that were sent one after the other: RFC 3393 section 4.5, RFC 5481 section 4.1.
    a.load(R1, R9.double(NEXT)).jump_if(R1.differs(R8), not_in_order);
    a.load(R2, R9.double(LAST_LATENCY)).jump_if(R2.equals(0), not_in_order);
    let (longer, told) = (a.label(), a.label());
    a.jump_if(R2.at_least(R6), longer).mov(R1, R6).sub(R1, R2).mov(R2, R1).jump(told);
    a.bind(longer).sub(R2, R6).bind(told);
    count_time(a, tables, VARIATION);
    a.bind(not_in_order).bind(no_latency).load(R7, R10.double(TOTALS));
    record_order(a, stepping);
}

/// [`fathom_wire::FrameSequence::record`] for the number in `R8` and the flow at `R9`, with the totals at `R7`.
fn record_order(a: &mut Assembler, stepping: RateSteps) {
    let [late, forget, mark, reordered, duplicate, done, in_turn] = std::array::from_fn(|_| a.label());
    let memory = i32::try_from(SEQUENCE_WINDOW).expect("the memory is one word");
    a.load(R4, R9.double(RECENT)).load(R1, R9.double(NEXT)).jump_if(R8.below(R1), late);
    if stepping == RateSteps::Once {
        // This frame is the last that has come in.
        a.jump_if(R8.equals(R1), in_turn)
            .load(R2, R7.double(LAST_ARRIVAL))
            .store(R7.double(LAST_GAP), R2)
            .bind(in_turn);
    }
    a.store(R9.double(LAST_LATENCY), R6).mov(R2, R8).sub(R2, R1).add(R2, 1);
    a.mov(R3, R8).add(R3, 1).store(R9.double(NEXT), R3);
    a.jump_if(R2.at_least(memory), forget).compute(Operation::ShiftLeft, R4, R2).jump(mark);
    a.bind(forget).mov(R4, 0);
    a.bind(mark).compute(Operation::Or, R4, 1).store(R9.double(RECENT), R4).jump(done);
    a.bind(late).sub(R1, 1).sub(R1, R8).jump_if(R1.at_least(memory), reordered);
    a.mov(R2, 1).compute(Operation::ShiftLeft, R2, R1);
    a.mov(R3, R4).compute(Operation::And, R3, R2).jump_if(R3.differs(0), duplicate);
    a.compute(Operation::Or, R4, R2).store(R9.double(RECENT), R4);
    a.bind(reordered);
    add_to_word(a, R7, REORDERED, 1);
    a.jump(done).bind(duplicate);
    add_to_word(a, R7, DUPLICATES, 1);
    a.bind(done);
}

#[cfg(test)]
mod tests {
    use fathom_model::units::Nanos;
    use fathom_sys::{clock, socket::timestamping::KernelClockOffset};

    use super::{
        super::{test_frames::*, unrelated},
        *,
    };
    use fathom_pktgen::DevicePorts;
    use fathom_wire::{FrameSequence, MarkOffsets};

    fn expected(n_flows: u32) -> ExpectedFrames {
        ExpectedFrames {
            tag: Mark::tag_of(TRIAL),
            places: vec![MarkOffsets::START, MarkOffsets::START + 4],
            n_flows,
            pktgen: None,
            rate_steps: RateSteps::None,
            unrelated: UnrelatedFrames::default(),
        }
    }

    /// A frame with the bit of a rate change in its mark.
    fn phased(number: u64, phase: u32) -> Vec<u8> {
        let mut frame = frame(64, number);
        frame[46..50].copy_from_slice(&(u32::from(FLOW) | phase).to_be_bytes());
        frame
    }

    /// A frame with a departure time in its mark.
    fn stamped(number: u64, sent: u64) -> Vec<u8> {
        let mut frame = frame(64, number);
        let low = u32::try_from(sent & u64::from(u32::MAX)).unwrap();
        frame[56..60].copy_from_slice(&low.to_be_bytes());
        frame
    }

    #[test]
    fn the_program_keeps_the_same_order_as_the_arithmetic_in_user_space() {
        let Some(sink) = or_skip(Sink::load(&expected(2))) else { return };
        let mut sequence = FrameSequence::default();
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
            sequence.record(number);
            let run = sink.program().test_run(&frame(64, number), 1).unwrap();
            assert_eq!(run.value, XdpAction::Drop as u32);
        }
        assert_eq!(sink.sequence_state(FLOW.into()).unwrap(), (sequence.next, sequence.recent));
        let arrivals = sink.counts().unwrap();
        assert_eq!(arrivals.frames, Frames(2_000));
        assert_eq!((arrivals.reordered.0, arrivals.duplicates.0), (sequence.reordered, sequence.duplicates));
        assert!(sequence.reordered > 50 && sequence.duplicates > 50, "{sequence:?} tests little");
    }

    #[test]
    fn a_recovery_is_from_the_first_frame_of_the_second_rate_to_the_last_behind_a_gap() {
        let stepping = ExpectedFrames { rate_steps: RateSteps::Once, ..expected(1) };
        let Some(sink) = or_skip(Sink::load(&stepping)) else { return };
        let arrive = |number: u64, phase: u32| {
            let before = clock::now();
            let run = sink.program().test_run(&phased(number, phase), 1).unwrap();
            assert_eq!(run.value, XdpAction::Drop as u32);
            before..=clock::now()
        };
        arrive(0, 0);
        assert_eq!(sink.rate_step().unwrap(), None);
        let lost_before = arrive(2, 0);
        let stepped = arrive(3, Mark::AFTER_STEP);
        let seen = sink.rate_step().unwrap().unwrap();
        assert!(stepped.contains(&seen.at) && lost_before.contains(&seen.last_gap.unwrap()), "{seen:?}");
        assert_eq!(seen.recovery(), Nanos::ZERO, "nothing was lost at the second rate");
        let last = arrive(6, Mark::AFTER_STEP);
        // Neither consecutive frames nor late frames are gaps.
        for number in [7, 8, 5, 8] {
            arrive(number, Mark::AFTER_STEP);
        }
        let seen = sink.rate_step().unwrap().unwrap();
        assert!(stepped.contains(&seen.at) && last.contains(&seen.last_gap.unwrap()), "{seen:?}");
        assert_eq!(seen.recovery(), seen.last_gap.unwrap() - seen.at);
        assert_eq!(sink.sequence_state(0).unwrap().0, 9, "both rates are of one flow");
        let counted = FrameCounts { frames: Frames(8), reordered: Frames(1), duplicates: Frames(1) };
        assert_eq!(sink.counts().unwrap(), counted);
        assert_eq!(stepping.mark(&phased(5, Mark::AFTER_STEP)).unwrap().flow, u32::from(FLOW));
    }

    #[test]
    fn packets_of_pktgen_count_where_they_are_expected_and_say_when_they_were_made() {
        let ports = DevicePorts { first: 50_000, each: 1 };
        let origin =
            PktgenOrigin { ports, n_devices: 2, at: MarkOffsets::START, ahead: KernelClockOffset::now().ahead() };
        let with = ExpectedFrames { pktgen: Some(origin), ..expected(2) };
        let packet = |sequence, port, made| {
            let header = pktgen::PktgenHeader { sequence, made };
            let plain = pktgen::sample_frame(header, port, &[]);
            assert_eq!(plain.len(), 60);
            plain
        };
        let Some(sink) = or_skip(Sink::load(&with)) else { return };
        for (sequence, port) in [(1, 50_000), (1, 50_001), (3, 50_000), (2, 50_000), (2, 50_000)] {
            let frame = packet(sequence, port, Some(clock::wall()));
            assert_eq!(sink.program().test_run(&frame, 1).unwrap().value, XdpAction::Drop as u32);
            let mark = with.mark(&frame).unwrap();
            assert_eq!((mark.flow, mark.sequence), (u32::from(port - 50_000), u64::from(sequence) - 1));
        }
        let others = [packet(1, 49_999, None), packet(1, 50_002, None), changed(&packet(1, 50_000, None), 42)];
        for other in &others {
            assert_eq!(sink.program().test_run(other, 1).unwrap().value, XdpAction::Pass as u32);
            assert_eq!(with.mark(other), None);
        }
        sink.program().test_run(&packet(4, 50_000, None), 1).unwrap();
        let counted = FrameCounts { frames: Frames(6), reordered: Frames(1), duplicates: Frames(1) };
        assert_eq!(sink.counts().unwrap(), counted);
        assert_eq!(sink.sequence_state(0).unwrap().0, 4);
        let latency = sink.times().unwrap().latency;
        assert_eq!(latency.count(), 5, "one packet did not say when it was made");
        assert!(latency.max().unwrap() < 1_000_000_000, "{:?}", latency.max());
        // Frames of fathom also count. pktgen's packets do not count unless they are expected.
        assert_eq!(sink.program().test_run(&frame(64, 9), 1).unwrap().value, XdpAction::Drop as u32);
        let without = Sink::load(&expected(2)).unwrap();
        let run = without.program().test_run(&packet(1, 50_000, None), 1).unwrap();
        assert_eq!(run.value, XdpAction::Pass as u32);
    }

    #[test]
    fn packets_of_pktgen_are_found_behind_tags_and_a_device_may_have_several_ports() {
        let ports = DevicePorts { first: 50_000, each: 4 };
        let origin = PktgenOrigin { ports, n_devices: 2, at: MarkOffsets::START + 4, ahead: Nanos::ZERO };
        let with = ExpectedFrames { pktgen: Some(origin), ..expected(2) };
        let Some(sink) = or_skip(Sink::load(&with)) else { return };
        let tags: [&[u8]; 2] = [&[0x81, 0, 0, 5, 8, 0], &[]];
        let tagged = |sequence: u32, port| {
            // For every fourth frame, a device on the path has moved the tag into metadata.
            let tag = tags[usize::from(sequence.is_multiple_of(4))];
            pktgen::sample_frame(pktgen::PktgenHeader { sequence, made: None }, port, tag)
        };
        // Both devices cycle through their four ports, and number their packets.
        for sequence in 1..=8_u32 {
            for device in 0..2_u32 {
                let port = u16::try_from(50_000 + 4 * device + sequence % 4).unwrap();
                let frame = tagged(sequence, port);
                assert_eq!(sink.program().test_run(&frame, 1).unwrap().value, XdpAction::Drop as u32);
                assert_eq!(with.mark(&frame).map(|mark| mark.flow), Some(device));
            }
        }
        for other in [tagged(9, 49_999), tagged(9, 50_008)] {
            assert_eq!(sink.program().test_run(&other, 1).unwrap().value, XdpAction::Pass as u32);
            assert_eq!(with.mark(&other), None);
        }
        assert_eq!(sink.counts().unwrap(), FrameCounts { frames: Frames(16), ..FrameCounts::default() });
        assert_eq!([0, 1].map(|device| sink.sequence_state(device).unwrap().0), [8, 8]);
    }

    #[test]
    fn frames_of_others_pass_and_are_not_counted() {
        let expected = expected(1);
        let Some(sink) = or_skip(Sink::load(&expected)) else { return };
        let good = frame(64, 5);
        assert!(expected.mark(&good).is_some());
        // Each byte of the tag is changed; one frame is too short.
        let mut others: Vec<Vec<u8>> = [42, 43, 44, 45].map(|place| changed(&good, place)).to_vec();
        others.push(good[..59].to_vec());
        for other in &others {
            assert_eq!(sink.program().test_run(other, 1).unwrap().value, XdpAction::Pass as u32);
            assert!(expected.mark(other).is_none());
        }
        assert_eq!(sink.counts().unwrap(), FrameCounts::default());
    }

    #[test]
    fn frames_without_marks_are_all_counted_and_pass_but_for_those_of_others() {
        let expected = ExpectedFrames { places: Vec::new(), unrelated: unrelated::tests::strays(), ..expected(1) };
        let Some(sink) = or_skip(Sink::load(&expected)) else { return };
        for (frame, is_stray) in unrelated::tests::frames().into_iter().chain([(frame(64, 5), false)]) {
            let before = sink.counts().unwrap().frames.0;
            assert_eq!(sink.program().test_run(&frame, 1).unwrap().value, XdpAction::Pass as u32);
            assert_eq!(sink.counts().unwrap().frames.0 - before, u64::from(!is_stray), "{frame:x?}");
            assert_eq!(expected.is_unmarked(&frame), !is_stray);
        }
    }

    #[test]
    fn a_mark_is_found_at_each_place_it_may_lie_whatever_stands_before_it() {
        let expected = expected(1);
        let Some(sink) = or_skip(Sink::load(&expected)) else { return };
        let plain = frame(64, 5);
        let tagged = [&plain[..12], &[0x81, 0, 0, 7], &plain[12..]].concat();
        let elsewhere = [&plain[..12], &[0; 8], &plain[12..]].concat();
        for (frame, action) in [(&plain, XdpAction::Drop), (&tagged, XdpAction::Drop), (&elsewhere, XdpAction::Pass)] {
            assert_eq!(sink.program().test_run(frame, 1).unwrap().value, action as u32);
            assert_eq!(expected.mark(frame).is_some(), action == XdpAction::Drop);
        }
        assert_eq!(sink.counts().unwrap().frames, Frames(2));
    }

    #[test]
    fn latencies_are_counted_from_the_stamp_and_frames_without_one_have_none() {
        let Some(sink) = or_skip(Sink::load(&expected(1))) else { return };
        let ago = |micros: u64| clock::now().0 - micros * 1_000;
        for (number, micros) in [(0, 5_000), (1, 9_000), (3, 1_000_000)] {
            sink.program().test_run(&stamped(number, ago(micros)), 1).unwrap();
        }
        sink.program().test_run(&stamped(4, 0), 1).unwrap();
        let times = sink.times().unwrap();
        let near = |value: Option<u64>, low: u64| value.is_some_and(|value| (low..low * 100).contains(&value));
        assert_eq!((times.latency.count(), times.gap.count()), (3, 3));
        assert!(near(times.latency.quantile(0.3), 4_900_000) && near(times.latency.quantile(0.6), 8_800_000));
        assert!(near(times.latency.max(), 984_000_000 / 10 * 9), "{:?}", times.latency.max());
        // Number 2 is missing, so there is no variation for number 3.
        assert_eq!(times.variation.count(), 1);
    }

    #[test]
    fn a_million_flows_each_keep_their_order() {
        let Some(sink) = or_skip(Sink::load(&expected(1 << 20))) else { return };
        let mut last = frame(64, 7);
        last[46..50].copy_from_slice(&((1_u32 << 20) - 1).to_be_bytes());
        sink.program().test_run(&last, 2).unwrap();
        assert_eq!(sink.sequence_state((1 << 20) - 1).unwrap(), (8, 1));
        assert_eq!(sink.counts().unwrap().duplicates, Frames(1));
        last[46..50].copy_from_slice(&(1_u32 << 20).to_be_bytes());
        sink.program().test_run(&last, 1).unwrap();
        assert_eq!(sink.counts().unwrap().frames, Frames(3), "a flow that nobody expects is counted all the same");
    }
}
