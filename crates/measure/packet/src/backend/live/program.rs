//! The program that builds live frames: it decides when the next frame is due and which one it is, and writes every byte.
//!
//! It does the same as [`DepartureSchedule`] and [`crate::craft::FrameTemplate::write`] in user space, with the same integer
//! arithmetic.

use fathom_model::units::Nanos;
use fathom_sys::{
    Result,
    bpf::{
        Array, Assembler, DeviceMap, Helper, Instruction, Label, Operation,
        Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10},
        XdpAction,
    },
};

use super::super::{
    OutputDevice, Timestamping, WorkerLoad,
    departures::{DepartureParams, DepartureSchedule, GAP_BITS, N_GAPS, OVERTIME, RandomGaps, TICK_BITS, catch_up_gap},
};
use crate::craft::{ChangePer, ChecksumCover, FieldChange, FieldValues, FrameSet, FrameTemplate, ZeroChecksum};
use fathom_wire::Mark;

/// The maps that a program shares with user space.
#[derive(Debug)]
pub(super) struct ProgramMaps {
    /// The progress of the program; user space only reads it.
    state: Array<STATE_WORDS>,
    /// The end time; the program only reads it.
    stop_time: Array<1>,
    device: DeviceMap,
    /// Template indices in sending order, if there is more than one template.
    order: Option<Array<1>>,
    gaps: Option<Array<N_GAPS>>,
    is_paced: bool,
    clock: Clock,
}

/// The clock of a program.
#[derive(Debug)]
enum Clock {
    /// `CLOCK_MONOTONIC`.
    Monotonic,
    /// A clock that a test sets.
    #[cfg(test)]
    Virtual(Array<1>),
}

/// The progress of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProgramState {
    pub(super) is_paced: bool,
    /// When the first frame could leave.
    pub(super) began: Option<Nanos>,
    /// When the last frame of a schedule left.
    pub(super) last: Option<Nanos>,
    /// When the program noticed that it was finished. This may be late on a busy machine.
    pub(super) done: Option<Nanos>,
    pub(super) n_sent: u64,
    pub(super) n_unsent: u64,
    pub(super) lag: Nanos,
}

const STATE_WORDS: usize = 12;
// Byte offsets in the state.
const SENT: i16 = 0;
const READY: i16 = 8;
const DUE: i16 = 16;
/// In ticks.
const LAG: i16 = 24;
const START: i16 = 32;
const DONE: i16 = 40;
const FLOW: i16 = 48;
const SEQUENCE: i16 = 56;
// The fields used by every frame end here, with the first cache line.
const UNSENT: i16 = 64;
/// The position of the next departure in its burst, if bursts have more than one frame.
const PLACE: i16 = 72;
/// The number of the burst, if its gap is random.
const BURST: i16 = 80;

/// When the last frame of a schedule left.
const LAST: i16 = 88;

// Stack offsets.
const KEY: i16 = -4;
const THIS_FLOW: i16 = -16;
const THIS_SEQUENCE: i16 = -24;
const NUMBER: i16 = -32;
/// The rate step bit of the mark.
const PHASE: i16 = -40;
/// Saved registers while gaps are drawn.
const NOW: i16 = -48;
const HORIZON: i16 = -56;
/// The first checksum sum; each further sum is eight bytes lower.
const SUMS: i16 = -64;

/// The most bursts that one run of the program gives up if gaps are random.
const GIVEN_UP_MAX: usize = 16;
/// The most templates: the program compares template indices one after the other.
const SHAPES_MAX: usize = 32;
/// The most instructions: half of the range of a jump.
const CODE_MAX: usize = 16_384;
/// At least this many bytes of each page are rewritten, because a device under test may have changed them.
const REWRITTEN: usize = 64;

impl ProgramMaps {
    pub(super) fn create(port: &OutputDevice, load: &WorkerLoad) -> Result<Self> {
        let state = Array::create("fathom_state", 1)?;
        let mut row = [0; STATE_WORDS];
        row[word(FLOW)] = load.flows().0.into();
        row[word(DUE)] = load.departures.as_ref().map_or(0, |departures| departures.next.due);
        state.set(0, &row)?;
        let maps = Self {
            state,
            stop_time: Array::create("fathom_orders", 1)?,
            device: DeviceMap::of("fathom_device", port.ifindex, &port.permit)?,
            order: order_of(&load.frames)?,
            gaps: load.departures.as_ref().and_then(random_of).map(gaps_of).transpose()?,
            is_paced: load.departures.is_some(),
            clock: Clock::Monotonic,
        };
        Ok(maps)
    }

    /// Reads the progress of the program.
    pub(super) fn state(&self) -> Result<ProgramState> {
        let row = self.state.get(0)?;
        let time = |place| Some(Nanos(row[word(place)])).filter(|at| *at > Nanos::ZERO);
        Ok(ProgramState {
            is_paced: self.is_paced,
            began: time(START),
            last: time(LAST),
            done: time(DONE),
            n_sent: row[word(SENT)],
            n_unsent: row[word(UNSENT)],
            lag: Nanos(row[word(LAG)] >> TICK_BITS),
        })
    }

    /// Sets the end. The program finishes with the last frame that is due by then.
    pub(super) fn stop_at(&self, end: Nanos) -> Result<()> {
        self.stop_time.set(0, &[end.0])
    }
}

fn word(place: i16) -> usize {
    usize::from(place.unsigned_abs() / 8)
}

fn order_of(blueprint: &FrameSet) -> Result<Option<Array<1>>> {
    if blueprint.templates.len() == 1 {
        return Ok(None);
    }
    let entries = u32::try_from(blueprint.order.len()).unwrap_or(u32::MAX);
    let order = Array::create("fathom_order", entries)?;
    for (place, shape) in (0..).zip(&blueprint.order) {
        order.set(place, &[u64::from(*shape)])?;
    }
    Ok(Some(order))
}

fn random_of(departures: &DepartureSchedule) -> Option<&RandomGaps> {
    departures.params.random.as_ref()
}

fn gaps_of(random: &RandomGaps) -> Result<Array<N_GAPS>> {
    let gaps = Array::create("fathom_gaps", 1)?;
    gaps.set(0, &random.gaps)?;
    Ok(gaps)
}

/// Returns the initial content of pages: the longest template, which is cut down to the others.
pub(super) fn page(blueprint: &FrameSet) -> Vec<u8> {
    let longest = blueprint.templates.iter().max_by_key(|shape| shape.bytes.len());
    longest.map(|shape| shape.bytes.clone()).unwrap_or_default()
}

/// Returns how many bytes of a template the program must write: the headers, and everything that differs from the page.
fn rewritten(shape: &FrameTemplate, page: &[u8]) -> usize {
    let length = shape.bytes.len();
    let mark = shape.mark_at.map_or(0, |at| at + Mark::LENGTH);
    let edits = shape.changes.iter().map(|edit| edit.at + edit.width);
    let checksums = shape.checksums.iter().map(|checksum| checksum.at + 2);
    let differs = (0..length).rev().find(|&at| shape.bytes[at] != page[at]).map_or(0, |at| at + 1);
    edits.chain(checksums).chain([mark, differs, REWRITTEN]).max().unwrap_or(length).min(length)
}

/// Exits of the program.
#[derive(Clone, Copy)]
struct ExitLabels {
    /// No frame is due: drops the page, and the program runs again.
    wait: Label,
    /// No frame will ever be due again.
    done: Label,
}

/// Assembles the program for a load, or returns why live frames are a poor choice for it.
pub(super) fn code(load: &WorkerLoad, maps: &ProgramMaps) -> std::result::Result<Vec<Instruction>, String> {
    let n_shapes = load.frames.templates.len();
    if n_shapes > SHAPES_MAX {
        return Err(format!("{n_shapes} different frames are too many: a program distinguishes {SHAPES_MAX}"));
    }
    if cfg!(target_endian = "big") {
        return Err("the program is written for processors whose least significant byte comes first".to_owned());
    }
    let mut a = Assembler::new();
    let exits = ExitLabels { wait: a.label(), done: a.label() };
    begin(&mut a, load, maps, exits);
    choose_turn(&mut a, load);
    write_frame(&mut a, load, maps, exits);
    a.bind(exits.done).call(Helper::MonotonicNanos).store(R7.double(DONE), R0);
    a.bind(exits.wait).give(XdpAction::Drop);
    let code = a.assemble();
    if code.len() > CODE_MAX {
        return Err(format!("these frames take a program of {} instructions, more than {CODE_MAX}", code.len()));
    }
    Ok(code)
}

/// Continues only when a frame is due. Afterwards `R7` is the state, `R8` the time and `R9` the context.
fn begin(a: &mut Assembler, load: &WorkerLoad, maps: &ProgramMaps, exits: ExitLabels) {
    a.mov(R9, R1).load_row(R7, &maps.state);
    a.load(R1, R7.double(DONE)).jump_if(R1.differs(0), exits.wait);
    if let Some(count) = load.count {
        a.load(R1, R7.double(SENT)).load_constant(R2, count).jump_if(R1.at_least(R2), exits.done);
    }
    match &maps.clock {
        Clock::Monotonic => a.call(Helper::MonotonicNanos).mov(R8, R0),
        #[cfg(test)]
        Clock::Virtual(time) => a.load_row(R8, time).load(R8, R8.double(0)),
    };
    a.load_row(R6, &maps.stop_time).load(R6, R6.double(0));
    match &load.departures {
        None => {
            let started = a.label();
            a.jump_if(R6.differs(0), exits.done).load(R1, R7.double(START)).jump_if(R1.differs(0), started);
            a.store(R7.double(START), R8).bind(started);
        }
        Some(departures) => {
            pace_frames(a, departures, maps, exits);
            a.store(R7.double(LAST), R8);
        }
    }
    a.load(R1, R7.double(SENT)).add(R1, 1).store(R7.double(SENT), R1);
}

/// Continues only when the next departure may leave, and advances the schedule. `R6` is the end time or zero.
fn pace_frames(a: &mut Assembler, departures: &DepartureSchedule, maps: &ProgramMaps, exits: ExitLabels) {
    let rhythm = &departures.params;
    let [started, running, is_due, not_later] = std::array::from_fn(|_| a.label());
    a.load(R1, R7.double(START)).jump_if(R1.differs(0), started);
    // The schedule starts when the first frame could leave.
    a.store(R7.double(START), R8).mov(R1, R8).bind(started);
    // The kernel's clock for programs may go back by a few nanoseconds when it is adjusted.
    a.jump_if(R8.below(R1), exits.wait);
    // `R2` is the time. `R5` is the horizon by which a frame must be due. `R0` is the largest lateness.
    a.mov(R2, R8).sub(R2, R1).mov(R5, R2).load_constant(R0, rhythm.late_max);
    a.jump_if(R6.equals(0), running).jump_if(R6.at_least(R8), running);
    a.mov(R5, R6).jump_if(R5.below(R1), exits.done).sub(R5, R1);
    if rhythm.late_max > OVERTIME {
        a.load_constant(R0, OVERTIME);
    }
    a.bind(running).compute(Operation::ShiftLeft, R2, i32::from(TICK_BITS)).load(R3, R7.double(DUE));
    give_up_late(a, rhythm, maps, exits);
    a.mov(R1, R3).compute(Operation::ShiftRight, R1, i32::from(TICK_BITS)).jump_if(R5.at_least(R1), is_due);
    a.jump_if(R6.equals(0), exits.wait).jump_if(R6.at_least(R8), exits.wait).jump(exits.done);
    a.bind(is_due).load(R4, R7.double(READY)).load_constant(R1, rhythm.tolerance).add(R1, R2);
    a.jump_if(R4.above(R1), exits.wait);
    if let Some(turn) = rhythm.rate_change {
        let before = a.label();
        a.mov(R0, 0).load_constant(R1, turn.at).jump_if(R1.above(R3), before);
        a.load_constant(R0, Mark::AFTER_STEP.into()).bind(before).store(R10.double(PHASE), R0);
    }
    a.jump_if(R3.at_least(R2), not_later).mov(R1, R2).sub(R1, R3).load(R5, R7.double(LAG));
    a.jump_if(R5.at_least(R1), not_later).store(R7.double(LAG), R1).bind(not_later);
    leave(a, rhythm, maps);
}

/// [`DepartureSchedule::drop_late`]; moves on to the next departure.
///
/// `R2` is the time in ticks, `R3` when the next frame is due, `R5` the horizon, `R0` the largest lateness. Clobbers `R1` and
/// `R4`.
fn give_up_late(a: &mut Assembler, rhythm: &DepartureParams, maps: &ProgramMaps, exits: ExitLabels) {
    let [in_time, is_part] = std::array::from_fn(|_| a.label());
    a.mov(R4, R3).add(R4, R0).jump_if(R4.at_least(R2), in_time);
    // Frames due before `R4` are too late. Frames due after the end are not part of the trial.
    a.mov(R4, R2).sub(R4, R0).mov(R1, R5).add(R1, 1).compute(Operation::ShiftLeft, R1, i32::from(TICK_BITS));
    a.jump_if(R1.at_least(R4), is_part).mov(R4, R1).bind(is_part).jump_if(R3.at_least(R4), in_time);
    match rhythm.rate_change {
        None if rhythm.random.is_some() => give_up_drawn(a, rhythm, maps, exits),
        None => {
            a.mov(R1, R4);
            give_up_equal(a, (rhythm.gap, rhythm.burst));
        }
        Some(turn) => {
            let [after, fewer] = std::array::from_fn(|_| a.label());
            a.load_constant(R1, turn.at).jump_if(R3.at_least(R1), after);
            // The frames before the step first; late frames beyond it belong to the new rate.
            a.jump_if(R4.above(R1), fewer).mov(R1, R4).bind(fewer);
            give_up_equal(a, (rhythm.gap, rhythm.burst));
            a.jump_if(R3.at_least(R4), in_time).bind(after).mov(R1, R4);
            give_up_equal(a, (turn.gap, rhythm.burst));
        }
    }
    a.bind(in_time);
}

/// Gives up (`R1` − `R3`) ÷ gap bursts, rounded up, and moves on to the next. The first is due at `R3`. Clobbers `R0` and `R1`.
fn give_up_equal(a: &mut Assembler, (gap, burst): (u64, u64)) {
    a.load_constant(R0, gap).sub(R1, R3).add(R1, R0).sub(R1, 1).compute(Operation::Div, R1, R0);
    a.compute(Operation::Mul, R0, R1).add(R3, R0).store(R7.double(DUE), R3);
    count_given_up(a, burst);
}

/// Adds the frames of `R1` bursts to the count of unsent frames, except the frames of the first burst that have left. Clobbers
/// `R0` and `R1`.
fn count_given_up(a: &mut Assembler, burst: u64) {
    if burst > 1 {
        a.compute(Operation::Mul, R1, immediate(burst))
            .load(R0, R7.double(PLACE))
            .sub(R1, R0)
            .store(R7.double(PLACE), 0);
    }
    a.load(R0, R7.double(UNSENT)).add(R0, R1).store(R7.double(UNSENT), R0);
}

/// Gives up the bursts before `R4` if gaps are random, up to a limit per run. Clobbers `R0` and `R1`.
fn give_up_drawn(a: &mut Assembler, rhythm: &DepartureParams, maps: &ProgramMaps, exits: ExitLabels) {
    let all = a.label();
    a.store(R10.double(NOW), R2).store(R10.double(HORIZON), R5);
    for _ in 0..GIVEN_UP_MAX {
        a.mov(R1, 1);
        count_given_up(a, rhythm.burst);
        choose_gap(a, rhythm, maps);
        a.add(R3, R1).store(R7.double(DUE), R3).jump_if(R3.at_least(R4), all);
    }
    a.jump(exits.wait).bind(all).load(R2, R10.double(NOW)).load(R5, R10.double(HORIZON));
}

/// [`DepartureSchedule::advance`]. `R2` is the time in ticks, `R3` when the frame is due, `R4` its `ready` time. Clobbers all
/// registers up to `R5`.
fn leave(a: &mut Assembler, rhythm: &DepartureParams, maps: &ProgramMaps) {
    let [has_begun, is_last, done] = std::array::from_fn(|_| a.label());
    if rhythm.burst > 1 {
        a.load(R5, R7.double(PLACE)).jump_if(R5.differs(0), has_begun);
    }
    a.jump_if(R4.at_least(R2), has_begun).mov(R4, R2).bind(has_begun);
    if rhythm.burst > 1 {
        a.add(R5, 1).jump_if(R5.equals(immediate(rhythm.burst)), is_last).store(R7.double(PLACE), R5).jump(done);
        a.bind(is_last).store(R7.double(PLACE), 0);
    }
    choose_gap(a, rhythm, maps);
    a.add(R3, R1).store(R7.double(DUE), R3);
    if rhythm.random.is_none() && rhythm.rate_change.is_none() {
        a.load_constant(R1, catch_up_gap(rhythm.gap));
    } else {
        a.mov(R2, R1).compute(Operation::ShiftRight, R2, 3).sub(R1, R2);
    }
    a.add(R4, R1).bind(done).store(R7.double(READY), R4);
}

/// Loads `R1` with the gap between the burst due at `R3` and the one after it. Clobbers `R2` and `R5`.
fn choose_gap(a: &mut Assembler, rhythm: &DepartureParams, maps: &ProgramMaps) {
    if let (Some(random), Some(gaps)) = (&rhythm.random, &maps.gaps) {
        a.load(R1, R7.double(BURST)).add(R1, 1).store(R7.double(BURST), R1);
        mix(a, random.seed);
        a.compute(Operation::ShiftRight, R1, 64 - i32::from(GAP_BITS)).compute(Operation::ShiftLeft, R1, 3);
        a.load_row(R5, gaps).add(R5, R1).load(R1, R5.double(0));
        return;
    }
    a.load_constant(R1, rhythm.gap);
    if let Some(turn) = rhythm.rate_change {
        let before = a.label();
        a.load_constant(R2, turn.at).jump_if(R2.above(R3), before).load_constant(R1, turn.gap).bind(before);
    }
}

fn immediate(burst: u64) -> i32 {
    i32::try_from(burst).expect("an option bounds it")
}

/// [`fathom_statistics::splitmix`] of the number in `R1`. Clobbers `R2`.
fn mix(a: &mut Assembler, seed: u64) {
    a.load_constant(R2, 0x9e37_79b9_7f4a_7c15).compute(Operation::Mul, R1, R2);
    a.load_constant(R2, seed).add(R1, R2);
    let steps = [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)];
    for (shift, factor) in steps {
        a.mov(R2, R1).compute(Operation::ShiftRight, R2, shift).compute(Operation::Xor, R1, R2);
        a.load_constant(R2, factor).compute(Operation::Mul, R1, R2);
    }
    a.mov(R2, R1).compute(Operation::ShiftRight, R2, 31).compute(Operation::Xor, R1, R2);
}

/// Stores flow, sequence number and frame number on the stack, and advances flow and sequence number in the state.
fn choose_turn(a: &mut Assembler, load: &WorkerLoad) {
    let ((first, step), n_flows) = (load.flows(), load.frames.n_flows);
    let next = a.label();
    a.load(R1, R7.double(FLOW)).store(R10.double(THIS_FLOW), R1);
    a.load(R2, R7.double(SEQUENCE)).store(R10.double(THIS_SEQUENCE), R2);
    a.mov(R3, R2).load_constant(R4, n_flows.into()).compute(Operation::Mul, R3, R4).add(R3, R1);
    a.store(R10.double(NUMBER), R3);
    a.load_constant(R3, step.into()).add(R1, R3).jump_if(R4.above(R1), next);
    a.load_constant(R1, first.into()).add(R2, 1).bind(next);
    a.store(R7.double(FLOW), R1).store(R7.double(SEQUENCE), R2);
}

/// Writes the frame that was chosen, and hands it to the device.
fn write_frame(a: &mut Assembler, load: &WorkerLoad, maps: &ProgramMaps, exits: ExitLabels) {
    let (blueprint, page, send) = (&load.frames, page(&load.frames), a.label());
    let labels: Vec<Label> = blueprint.templates.iter().map(|_| a.label()).collect();
    if let Some(order) = &maps.order {
        let length = i32::try_from(blueprint.order.len()).expect("an order has at most 65535 places");
        a.load(R1, R10.double(THIS_SEQUENCE)).load(R2, R10.double(THIS_FLOW)).add(R1, R2);
        a.compute(Operation::Mod, R1, length).store(R10.word(KEY), R1);
        a.look_up(order, KEY, exits.wait).load(R1, R0.double(0));
        for (number, label) in (0..).zip(&labels) {
            a.jump_if(R1.equals(number), *label);
        }
        a.jump(exits.wait);
    }
    for (shape, label) in blueprint.templates.iter().zip(labels) {
        a.bind(label);
        fit(a, shape, &page, exits);
        write_shape(a, load, shape);
        a.jump(send);
    }
    a.bind(send).load_map(R1, &maps.device).mov(R2, 0).mov(R3, 0).call(Helper::RedirectMap).exit();
}

/// Cuts the page to the length of the template and writes the constant bytes. Afterwards `R6` is the frame.
fn fit(a: &mut Assembler, shape: &FrameTemplate, page: &[u8], exits: ExitLabels) {
    let length = |bytes: usize| i32::try_from(bytes).expect("a frame fits into a page");
    let (cut, written) = (page.len() - shape.bytes.len(), rewritten(shape, page));
    if cut > 0 {
        a.mov(R1, R9).mov(R2, -length(cut)).call(Helper::AdjustTail).jump_if(R0.differs(0), exits.wait);
    }
    a.load(R6, R9.word(0)).load(R1, R9.word(4)).mov(R2, R6).add(R2, length(written));
    a.jump_if(R2.above(R1), exits.wait);
    let (doubles, rest) = shape.bytes[..written].as_chunks::<8>();
    for (at, double) in (0..).step_by(8).zip(doubles) {
        a.load_constant(R1, u64::from_ne_bytes(*double)).store(R6.double(at), R1);
    }
    for (at, byte) in (place(written - rest.len())..).zip(rest) {
        a.store(R6.byte(at), i32::from(*byte));
    }
}

/// [`FrameTemplate::write`] to the frame at `R6`, with the numbers on the stack and the time in `R8`.
fn write_shape(a: &mut Assembler, load: &WorkerLoad, shape: &FrameTemplate) {
    for (n, checksum) in shape.checksums.iter().enumerate() {
        a.store(R10.double(sum(n)), i32::from(checksum.base.value()));
    }
    for edit in &shape.changes {
        write_edit(a, edit, shape.checksums.len());
    }
    if let Some(at) = shape.mark_at {
        write_mark(a, load, place(at));
        add_to_sums(a, shape.mark_cover, shape.checksums.len());
    }
    for (n, checksum) in shape.checksums.iter().enumerate() {
        a.load(R1, R10.double(sum(n)));
        fold(a);
        a.compute(Operation::Xor, R1, 0xffff);
        if checksum.zero == ZeroChecksum::AsOnes {
            let is_some = a.label();
            a.jump_if(R1.differs(0), is_some).mov(R1, 0xffff).bind(is_some);
        }
        a.swap_network_order(R1, 16).store(R6.half(place(checksum.at)), R1);
    }
}

fn place(at: usize) -> i16 {
    i16::try_from(at).expect("a frame fits into a page")
}

fn sum(n: usize) -> i16 {
    SUMS - 8 * place(n)
}

/// Adds the value in `R2`, of at most 48 bits, to the sums that cover it. Clobbers `R4`.
fn add_to_sums(a: &mut Assembler, cover: ChecksumCover, n_sums: usize) {
    for n in (0..n_sums).filter(|n| cover.contains(*n)) {
        a.load(R4, R10.double(sum(n))).add(R4, R2).store(R10.double(sum(n)), R4);
    }
}

/// Folds the sum in `R1` into 16 bits. Clobbers `R2`.
fn fold(a: &mut Assembler) {
    a.mov(R2, R1).compute(Operation::ShiftRight, R2, 32).keep_word(R1).add(R1, R2);
    // At most 33, 18 and 17 bits remain after the steps, and no carry after the last.
    for _ in 0..3 {
        a.mov(R2, R1).compute(Operation::ShiftRight, R2, 16).compute(Operation::And, R1, 0xffff).add(R1, R2);
    }
}

/// Writes the mark, and loads `R2` with its contribution to a checksum. Clobbers all registers up to `R5`.
fn write_mark(a: &mut Assembler, load: &WorkerLoad, at: i16) {
    let at = |field: usize| at + place(field);
    let tag = i32::from_ne_bytes(load.tag.to_be_bytes());
    a.store(R6.word(at(Mark::TAG)), tag);
    a.load(R1, R10.double(THIS_FLOW));
    if load.departures.as_ref().is_some_and(|departures| departures.params.rate_change.is_some()) {
        a.load(R2, R10.double(PHASE)).compute(Operation::Or, R1, R2);
    }
    a.load_constant(R2, load.tag.into()).add(R2, R1);
    a.swap_network_order(R1, 32).store(R6.word(at(Mark::FLOW)), R1);
    a.load(R1, R10.double(THIS_SEQUENCE)).compute(Operation::ShiftLeft, R1, 16);
    a.mov(R3, R1).compute(Operation::ShiftRight, R3, 48).add(R2, R3);
    a.mov(R3, R1).compute(Operation::ShiftRight, R3, 16).keep_word(R3).add(R2, R3);
    a.swap_network_order(R1, 64).store(R6.double(at(Mark::SEQUENCE)), R1);
    match load.timestamping {
        Timestamping::Clock => {
            a.mov(R1, R8).keep_word(R1).add(R2, R1).swap_network_order(R1, 32).store(R6.word(at(Mark::SENT)), R1);
        }
        Timestamping::None => {
            a.store(R6.word(at(Mark::SENT)), 0);
        }
    }
}

/// Writes the value of a field and adds it to the sums that cover it.
fn write_edit(a: &mut Assembler, edit: &FieldChange, n_sums: usize) {
    let number = match edit.per {
        ChangePer::Frame => NUMBER,
        ChangePer::Flow => THIS_FLOW,
    };
    a.load(R1, R10.double(number));
    change(a, edit.values);
    a.compute(Operation::ShiftLeft, R1, i32::from(edit.shift));
    a.load_constant(R2, edit.fixed).compute(Operation::Or, R1, R2).mov(R3, R1);
    // `R3` keeps the value; `R1` becomes its contribution to a checksum.
    fold(a);
    if (edit.at + edit.width) % 2 == 1 {
        a.swap_network_order(R1, 16);
    }
    a.mov(R2, R1);
    add_to_sums(a, edit.cover, n_sums);
    let bits = i32::try_from(8 * (8 - edit.width)).expect("a field has at most eight bytes");
    a.compute(Operation::ShiftLeft, R3, bits).swap_network_order(R3, 64);
    store_low_bytes(a, (edit.at, edit.width));
}

/// Turns the number in `R1` into the value of a field. Clobbers `R2`.
fn change(a: &mut Assembler, change: FieldValues) {
    match change {
        FieldValues::Step { first, by, n } => {
            a.load_constant(R2, n.get()).compute(Operation::Mod, R1, R2);
            a.load_constant(R2, by).compute(Operation::Mul, R1, R2).load_constant(R2, first).add(R1, R2);
        }
        FieldValues::Random { first, n, seed } => {
            mix(a, seed);
            a.compute(Operation::ShiftRight, R1, 32).load_constant(R2, n.get()).compute(Operation::Mul, R1, R2);
            a.compute(Operation::ShiftRight, R1, 32).load_constant(R2, first).add(R1, R2);
        }
    }
}

/// Writes `width` bytes of `R3` to the frame, the least significant first. Clobbers `R3`.
fn store_low_bytes(a: &mut Assembler, (at, width): (usize, usize)) {
    let mut done = 0;
    for part in [8, 4, 2, 1] {
        if width - done < part {
            continue;
        }
        let to = place(at + done);
        let to = match part {
            8 => R6.double(to),
            4 => R6.word(to),
            2 => R6.half(to),
            _ => R6.byte(to),
        };
        a.store(to, R3);
        done += part;
        if done < width {
            a.compute(Operation::ShiftRight, R3, i32::try_from(8 * part).expect("at most 32 bits"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU64, sync::Arc};

    use fathom_engine::pace::{ArrivalProcess, WorkShare};
    use fathom_model::units::{PerSec, approximate};
    use fathom_sys::{
        bpf::{Program, ProgramType},
        clock,
        packet::packet_socket::Queueing,
    };

    use fathom_sys::policy::Policy;
    use proptest::{prelude::*, test_runner::TestRunner};

    use super::*;
    use crate::{
        backend::{
            DeparturePattern, RateStep,
            departures::DepartureSchedule,
            virtual_sender::{ALONE, VirtualSender, looks, n_due, next_look, pattern, patterns},
        },
        craft::{ChecksumField, FrameIndex},
        xdp::or_skip,
    };
    use fathom_wire::{ChecksumSum, MarkOffsets};

    /// Any device works, because these tests send nothing.
    fn port() -> OutputDevice {
        let permit = Policy::anything().permit_frames([]).unwrap();
        OutputDevice { ifindex: 1, name: "lo".to_owned(), queueing: Queueing::Bypass, permit }
    }

    fn edit(at: usize, width: usize, change: FieldValues) -> FieldChange {
        FieldChange { at, width, fixed: 0, shift: 0, values: change, per: ChangePer::Frame, cover: ChecksumCover(0b11) }
    }

    /// A template with every kind of change, at odd and even offsets, some covered by one checksum and some by two.
    fn shape(length: usize) -> FrameTemplate {
        let n = |n: u64| NonZeroU64::new(n).unwrap();
        let edits = vec![
            edit(0, 6, FieldValues::Random { first: 0x0200_0000_0000, n: n(1 << 32), seed: 7 }),
            FieldChange {
                cover: ChecksumCover(1),
                fixed: 0xe00,
                shift: 0,
                ..edit(14, 2, FieldValues::Step { first: 1, by: 3, n: n(100) })
            },
            FieldChange { per: ChangePer::Flow, ..edit(17, 3, FieldValues::Step { first: 0xff_fff0, by: 1, n: n(9) }) },
            FieldChange { shift: 4, fixed: 5, ..edit(21, 1, FieldValues::Random { first: 0, n: n(16), seed: 8 }) },
            edit(22, 8, FieldValues::Step { first: u64::MAX - 3, by: 1, n: n(4) }),
            edit(31, 5, FieldValues::Random { first: 1, n: n(1 << 20), seed: 9 }),
        ];
        let bytes: Vec<u8> = (0..length).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
        let checksums = vec![
            ChecksumField { at: 12, base: ChecksumSum::default().add_bytes(b"one"), zero: ZeroChecksum::AsIs },
            ChecksumField { at: 40, base: ChecksumSum::default().add_bytes(b"another"), zero: ZeroChecksum::AsOnes },
        ];
        FrameTemplate {
            mark_at: Some(MarkOffsets::START),
            mark_cover: ChecksumCover(0b10),
            changes: edits,
            checksums,
            ..FrameTemplate::fixed(bytes)
        }
    }

    fn load(blueprint: FrameSet, share: WorkShare) -> WorkerLoad {
        let blueprint = Arc::new(blueprint);
        let stamping = Timestamping::Clock;
        WorkerLoad {
            frames: blueprint,
            tag: 0x1234_5678,
            timestamping: stamping,
            share,
            departures: None,
            count: None,
            pktgen: None,
        }
    }

    /// Returns the frames that the program builds from pages with other content.
    fn made(load: &WorkerLoad, n: usize) -> Option<Vec<Vec<u8>>> {
        let maps = or_skip(ProgramMaps::create(&port(), load))?;
        let program = Program::load(ProgramType::Xdp, "fathom_test", &code(load, &maps).unwrap()).unwrap();
        let page = page(&load.frames);
        let mut dirty = page.clone();
        let end = page.len().min(REWRITTEN);
        dirty[..end].fill(0xee);
        let frames = (0..n).map(|_| {
            let run = program.test_run(&dirty, 1).unwrap();
            assert_eq!(run.value, XdpAction::Redirect as u32);
            run.frame
        });
        Some(frames.collect())
    }

    #[test]
    fn the_program_writes_the_same_bytes_as_user_space() {
        let shapes = vec![shape(60), shape(90), shape(123)];
        let blueprint = FrameSet { templates: shapes, order: vec![0, 2, 1, 0], n_flows: 5 };
        for share in [WorkShare { idx: 0, of: 1 }, WorkShare { idx: 1, of: 2 }] {
            let load = load(blueprint.clone(), share);
            let Some(frames) = made(&load, 200) else { return };
            for (frame, turn) in frames.iter().zip(crate::backend::send_progress::FrameNumbers::of(&load)) {
                let (flow, sequence) = turn;
                let at = MarkOffsets::START + Mark::SENT;
                let sent = u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
                let mark = Mark { tag: load.tag, flow, sequence, sent };
                let shape = blueprint.template(flow, sequence);
                let mut expected = shape.bytes.clone();
                shape.write(&mut expected, &FrameIndex { ..blueprint.frame_index(flow, sequence, mark.bytes()) });
                assert_eq!(*frame, expected, "{turn:?} of {share:?}");
            }
        }
    }

    #[test]
    fn a_stamp_is_the_low_part_of_the_clock_or_nothing() {
        let blueprint = FrameSet { templates: vec![shape(60)], order: vec![0], n_flows: 1 };
        let load = load(blueprint, WorkShare { idx: 0, of: 1 });
        let before = clock::now();
        let Some(frames) = made(&load, 1) else { return };
        let stamp = |frame: &[u8]| Mark::parse(&frame[MarkOffsets::START..]).unwrap().sent;
        let since = u64::from(stamp(&frames[0]).wrapping_sub(u32::try_from(before.0 & 0xffff_ffff).unwrap()));
        assert!(since <= (clock::now() - before).0, "{since} ns after the test began");
        let frames = made(&WorkerLoad { timestamping: Timestamping::None, ..load }, 1).unwrap();
        assert_eq!(stamp(&frames[0]), 0);
    }

    /// Runs the program to the end; returns its progress.
    fn paced(pattern: &DeparturePattern, lasting: Nanos) -> Option<(ProgramState, DepartureSchedule, Nanos)> {
        let blueprint = FrameSet { templates: vec![shape(60)], order: vec![0], n_flows: 1 };
        let share = WorkShare { idx: 0, of: 1 };
        let departures = DepartureSchedule::new(pattern, share).unwrap();
        let load = WorkerLoad { departures: Some(departures.clone()), ..load(blueprint, share) };
        let maps = or_skip(ProgramMaps::create(&port(), &load))?;
        let program = Program::load(ProgramType::Xdp, "fathom_test", &code(&load, &maps).unwrap()).unwrap();
        let page = page(&load.frames);
        program.test_run(&page, 1).unwrap();
        let start = Nanos(maps.state.get(0).unwrap()[word(START)]);
        maps.stop_at(start + lasting).unwrap();
        while maps.state().unwrap().done.is_none() {
            program.test_run(&page, 1_000).unwrap();
        }
        Some((maps.state().unwrap(), departures, lasting))
    }

    #[test]
    fn what_is_sent_and_what_is_not_are_together_exactly_what_was_due() {
        let cases = [
            (1_000.0, 1, ArrivalProcess::Constant),
            (100_000.0, 1, ArrivalProcess::Constant),
            (1e6, 1, ArrivalProcess::Constant),
            (50e6, 1, ArrivalProcess::Constant),
            (333_333.0, 7, ArrivalProcess::Constant),
            (100_000.0, 1, ArrivalProcess::Poisson { seed: 3 }),
            (200_000.0, 16, ArrivalProcess::Poisson { seed: 4 }),
        ];
        for (rate, burst, process) in cases {
            let pattern = DeparturePattern { rate: PerSec::new(rate).unwrap(), burst, process, rate_step: None };
            let Some((state, departures, lasting)) = paced(&pattern, Nanos::from_millis(50)) else { return };
            let intended = n_due(departures, lasting);
            assert_eq!(state.n_sent + state.n_unsent, intended, "{pattern:?}: {state:?}");
            assert!(state.n_sent > 0, "{pattern:?}: {state:?}");
        }
    }

    /// A program whose clock does not advance while it runs.
    struct VirtualProgram {
        program: Program,
        maps: ProgramMaps,
        page: Vec<u8>,
    }

    /// The start of its clock. A program takes zero for a schedule that has not started.
    const BEGIN: Nanos = Nanos::from_secs(1);

    impl VirtualProgram {
        fn of(departures: &DepartureSchedule, end: Nanos) -> Option<Self> {
            let blueprint = FrameSet { templates: vec![FrameTemplate::fixed(vec![7; 60])], order: vec![0], n_flows: 1 };
            let load = WorkerLoad { departures: Some(departures.clone()), ..load(blueprint, ALONE) };
            let mut maps = or_skip(ProgramMaps::create(&port(), &load))?;
            maps.clock = Clock::Virtual(Array::create("fathom_time", 1).unwrap());
            maps.stop_at(BEGIN + end).unwrap();
            let program = Program::load(ProgramType::Xdp, "fathom_test", &code(&load, &maps).unwrap()).unwrap();
            Some(Self { program, maps, page: page(&load.frames) })
        }

        /// Runs the program at one time until it sends and gives up nothing more; returns its state.
        fn look(&self, now: Nanos) -> [u64; STATE_WORDS] {
            let Clock::Virtual(time) = &self.maps.clock else { panic!("{:?} goes on", self.maps.clock) };
            time.set(0, &[(BEGIN + now).0]).unwrap();
            let mut before = self.maps.state.get(0).unwrap();
            loop {
                self.program.test_run(&self.page, 1).unwrap();
                let after = self.maps.state.get(0).unwrap();
                if after == before {
                    return after;
                }
                before = after;
            }
        }
    }

    /// Polls a program and a sender in user space at the same times and compares them; `None` without the privilege.
    fn require_agreement(pattern: &DeparturePattern, looks: &[Nanos], end: Nanos) -> Option<VirtualSender> {
        let departures = DepartureSchedule::new(pattern, ALONE).unwrap();
        let program = VirtualProgram::of(&departures, end)?;
        let mut sender = VirtualSender::new(departures, end);
        let compare = |sender: &mut VirtualSender, now: Nanos| {
            sender.poll(now);
            let state = program.look(now);
            let next = sender.departures.next;
            let of_program = [SENT, UNSENT, DUE, READY, LAG].map(|place| state[word(place)]);
            let of_sender = [sender.sent.len() as u64, sender.n_unsent, next.due, next.ready, sender.lag()];
            assert_eq!(of_program, of_sender, "sent, unsent, due, ready and lag at {now} of {end}: {pattern:?}");
            assert_eq!(state[word(DONE)] != 0, sender.is_over(now), "at {now} of {end}: {pattern:?}");
        };
        for look in looks {
            compare(&mut sender, *look);
        }
        let mut now = looks[looks.len() - 1];
        while !sender.is_over(now) {
            now = next_look(&sender, now);
            compare(&mut sender, now);
        }
        Some(sender)
    }

    #[test]
    fn a_program_that_is_held_up_decides_as_user_space_does() {
        let stalled = |until: u64| -> Vec<Nanos> {
            let before = (0..2_000).map(|n| Nanos::from_micros(n * 10));
            before.chain((0..1_500).map(|n| Nanos::from_micros(until + n * 7))).collect()
        };
        let end = Nanos::from_millis(50);
        for (until, is_lossless) in [(21_300, true), (35_000, false)] {
            let Some(sender) = require_agreement(&pattern(1e6, 1, ArrivalProcess::Constant), &stalled(until), end)
            else {
                return;
            };
            assert_eq!(sender.n_unsent == 0, is_lossless, "{until}");
            assert_eq!(sender.n_intended(), 50_001);
        }
        let stepped = |rate, burst, then| {
            let step = RateStep { at: Nanos::from_millis(21), rate: PerSec::new(then).unwrap() };
            DeparturePattern { rate_step: Some(step), ..pattern(rate, burst, ArrivalProcess::Constant) }
        };
        let patterns = [
            pattern(1e6, 7, ArrivalProcess::Constant),
            pattern(1e6, 1, ArrivalProcess::Poisson { seed: 3 }),
            pattern(1e6, 20, ArrivalProcess::Poisson { seed: 4 }),
            stepped(1e6, 1, 2e5),
            stepped(2e5, 5, 1e6),
        ];
        for pattern in patterns {
            require_agreement(&pattern, &stalled(35_000), end).unwrap();
        }
    }

    #[test]
    fn whatever_holds_it_up_a_program_decides_as_user_space_does() {
        let mut runner =
            TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(50) });
        let is_same = |(pattern, (looks, end)): (DeparturePattern, (Vec<Nanos>, Nanos))| {
            require_agreement(&pattern, &looks, end);
            Ok(())
        };
        runner.run(&(patterns(), looks()), is_same).unwrap();
    }

    #[test]
    fn a_step_of_the_rate_is_accounted_for_exactly_on_both_sides() {
        for (rate, burst, then) in [(100_000.0, 1, 20_000.0), (20_000.0, 1, 150_000.0), (50e6, 1, 1e6), (90e3, 6, 30e3)]
        {
            let step = RateStep { at: Nanos::from_millis(20), rate: PerSec::new(then).unwrap() };
            let rate = PerSec::new(rate).unwrap();
            let pattern = DeparturePattern { rate, burst, process: ArrivalProcess::Constant, rate_step: Some(step) };
            let Some((state, departures, lasting)) = paced(&pattern, Nanos::from_millis(50)) else { return };
            let intended = n_due(departures, lasting);
            let expected = rate.get() * 0.02 + then * 0.03;
            assert!((approximate(intended) - expected).abs() <= 1.0 + f64::from(burst) * 2.0, "{intended}: {expected}");
            assert_eq!(state.n_sent + state.n_unsent, intended, "{pattern:?}: {state:?}");
            assert!(state.n_sent > 0, "{pattern:?}: {state:?}");
        }
    }

    #[test]
    fn frames_say_that_the_rate_has_changed_and_are_otherwise_the_same() {
        let blueprint = FrameSet { templates: vec![shape(60)], order: vec![0], n_flows: 3 };
        let share = WorkShare { idx: 0, of: 1 };
        // All frames from the second on are due after the step, wherever this machine pauses.
        let step = RateStep { at: Nanos(1), rate: PerSec::new(1e9).unwrap() };
        let pattern = DeparturePattern {
            rate: PerSec::new(1e9).unwrap(),
            burst: 1,
            process: ArrivalProcess::Constant,
            rate_step: Some(step),
        };
        let departures = DepartureSchedule::new(&pattern, share);
        let load = WorkerLoad { departures, ..load(blueprint.clone(), share) };
        let Some(maps) = or_skip(ProgramMaps::create(&port(), &load)) else { return };
        let program = Program::load(ProgramType::Xdp, "fathom_test", &code(&load, &maps).unwrap()).unwrap();
        let page = page(&load.frames);
        let mut after = None;
        for (flow, sequence) in crate::backend::send_progress::FrameNumbers::of(&load).take(9) {
            let mut run = program.test_run(&page, 1).unwrap();
            while run.value != XdpAction::Redirect as u32 {
                run = program.test_run(&page, 1).unwrap();
            }
            let mark = Mark::parse(&run.frame[MarkOffsets::START..]).unwrap();
            let phase = after.replace(Mark::AFTER_STEP).unwrap_or(0);
            assert_eq!((mark.flow, mark.sequence), (flow | phase, sequence));
            let mut expected = blueprint.templates[0].bytes.clone();
            blueprint.templates[0].write(&mut expected, &blueprint.frame_index(flow, sequence, mark.bytes()));
            assert_eq!(run.frame, expected, "{flow} {sequence}");
        }
    }

    #[test]
    fn a_count_is_kept_exactly() {
        let blueprint = FrameSet { templates: vec![shape(60)], order: vec![0], n_flows: 3 };
        let load = WorkerLoad { count: Some(7), ..load(blueprint, WorkShare { idx: 0, of: 1 }) };
        let Some(maps) = or_skip(ProgramMaps::create(&port(), &load)) else { return };
        let program = Program::load(ProgramType::Xdp, "fathom_test", &code(&load, &maps).unwrap()).unwrap();
        assert_eq!(program.test_run(&page(&load.frames), 100).unwrap().value, XdpAction::Drop as u32);
        let state = maps.state().unwrap();
        assert_eq!((state.n_sent, state.done.is_some()), (7, true));
    }
}
