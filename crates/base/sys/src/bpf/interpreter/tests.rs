//! What the interpreter does is what the kernel does, and what the kernel would refuse is an error.

use std::{fs::File, os::fd::AsFd};

use proptest::prelude::*;

use super::{
    super::{
        Array, Assembler, Condition, Helper, MemoryOperand, Operand, Operation, Program, ProgramType,
        Register::{self, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10},
        XdpAction,
        privilege::or_skip,
    },
    *,
};

/// Registers with numbers; `R8` is the start of the frame, `R9` the row.
const NUMBERS: [Register; 8] = [R0, R1, R2, R3, R4, R5, R6, R7];
/// Words of the row: those registers at the end, then memory.
const ROW: usize = 16;
const MEMORY: i16 = 64;
const OPERATIONS: [Operation; 11] = [
    Operation::Add,
    Operation::Sub,
    Operation::Mul,
    Operation::Div,
    Operation::Or,
    Operation::And,
    Operation::ShiftLeft,
    Operation::ShiftRight,
    Operation::Mod,
    Operation::Xor,
    Operation::Mov,
];
const COMPARISONS: [fn(Register, Operand) -> Condition; 5] = [
    |left, right| left.equals(right),
    |left, right| left.differs(right),
    |left, right| left.above(right),
    |left, right| left.at_least(right),
    |left, right| left.below(right),
];
const WIDTHS: [fn(Register, i16) -> MemoryOperand; 4] =
    [|base, at| base.byte(at), |base, at| base.half(at), |base, at| base.word(at), |base, at| base.double(at)];

/// One instruction of a random program. Numbers of registers, operations and widths are places in the tables above.
#[derive(Debug, Clone, Copy)]
enum Form {
    Compute(usize, usize, Right),
    KeepWord(usize),
    Swap(usize, u8),
    Store(Place, Right),
    Load(usize, Place),
    FetchAdd(Place, usize),
    CompareExchange(Place, usize),
    /// Jumps over the next one.
    Skip(usize, usize, Right),
}

#[derive(Debug, Clone, Copy)]
enum Right {
    Register(usize),
    Number(i32),
}

/// 64 bytes of the stack, the row or the frame.
#[derive(Debug, Clone, Copy)]
struct Place {
    base: Register,
    width: usize,
    at: i16,
}

impl Place {
    fn operand(self) -> MemoryOperand {
        let size = 1 << self.width;
        // The kernel wants the stack and what is atomic to be aligned.
        let at = if self.base == R8 { self.at % (65 - size) } else { self.at % (64 / size) * size };
        let first = [(R8, 0), (R9, MEMORY), (R10, -64)].into_iter().find(|(base, _)| *base == self.base);
        WIDTHS[self.width](self.base, first.expect("the base is one of three").1 + at)
    }
}

fn right() -> impl Strategy<Value = Right> {
    let numbers = prop_oneof![any::<i32>(), -3..70, prop::sample::select(vec![i32::MIN, i32::MAX, 0x8000, 0xffff])];
    prop_oneof![(0..8_usize).prop_map(Right::Register), numbers.prop_map(Right::Number)]
}

fn place(bases: &'static [Register], width: std::ops::Range<usize>) -> impl Strategy<Value = Place> {
    (prop::sample::select(bases), width, 0..64_i16).prop_map(|(base, width, at)| Place { base, width, at })
}

fn form() -> impl Strategy<Value = Form> {
    let register = 0..8_usize;
    prop_oneof![
        6 => (0..OPERATIONS.len(), register.clone(), right()).prop_map(|(it, to, from)| Form::Compute(it, to, from)),
        1 => register.clone().prop_map(Form::KeepWord),
        1 => (register.clone(), prop::sample::select(vec![16, 32, 64])).prop_map(|(it, bits)| Form::Swap(it, bits)),
        3 => (place(&[R8, R9, R10], 0..4), right()).prop_map(|(to, from)| Form::Store(to, from)),
        3 => (register.clone(), place(&[R8, R9, R10], 0..4)).prop_map(|(to, from)| Form::Load(to, from)),
        1 => (place(&[R9, R10], 2..4), register.clone()).prop_map(|(to, from)| Form::FetchAdd(to, from)),
        1 => (place(&[R9, R10], 2..4), register.clone()).prop_map(|(to, from)| Form::CompareExchange(to, from)),
        2 => (0..COMPARISONS.len(), register, right()).prop_map(|(it, left, right)| Form::Skip(it, left, right)),
    ]
}

fn operand(right: Right) -> Operand {
    match right {
        Right::Register(register) => NUMBERS[register].into(),
        Right::Number(number) => number.into(),
    }
}

impl Form {
    fn write(self, a: &mut Assembler) {
        match self {
            Self::Compute(operation, to, right) => {
                let right = match (OPERATIONS[operation], right) {
                    // The kernel refuses these constants.
                    (Operation::ShiftLeft | Operation::ShiftRight, Right::Number(number)) => (number & 63).into(),
                    (Operation::Div | Operation::Mod, Right::Number(0)) => 1.into(),
                    _ => operand(right),
                };
                a.compute(OPERATIONS[operation], NUMBERS[to], right)
            }
            Self::KeepWord(register) => a.keep_word(NUMBERS[register]),
            Self::Swap(register, bits) => a.swap_network_order(NUMBERS[register], bits),
            Self::Store(to, right) => a.store(to.operand(), operand(right)),
            Self::Load(to, from) => a.load(NUMBERS[to], from.operand()),
            Self::FetchAdd(to, from) => a.atomic_fetch_add(to.operand(), NUMBERS[from]),
            // Of a word, see there.
            Self::CompareExchange(to, from) if to.width == 2 => {
                a.compare_exchange(to.operand(), NUMBERS[from]).keep_word(R0)
            }
            Self::CompareExchange(to, from) => a.compare_exchange(to.operand(), NUMBERS[from]),
            Self::Skip(..) => a,
        };
    }
}

/// A program that leaves all its numbers in the row and in the frame.
fn program(array: &impl AsFd, start: [u64; 8], forms: &[Form]) -> Vec<Instruction> {
    let mut a = Assembler::new();
    let short = a.label();
    a.load(R8, R1.word(0)).load(R0, R1.word(4)).mov(R2, R8).add(R2, 64).jump_if(R2.above(R0), short);
    a.load_row(R9, array);
    for at in (-64..0).step_by(8) {
        a.store(R10.double(at), i32::from(at));
    }
    for (register, value) in NUMBERS.into_iter().zip(start) {
        a.load_constant(register, value);
    }
    let mut behind = None;
    for form in forms {
        if let Form::Skip(comparison, left, right) = *form {
            let label = a.label();
            a.jump_if(COMPARISONS[comparison](NUMBERS[left], operand(right)), label);
            if let Some(earlier) = behind.replace(label) {
                a.bind(earlier);
            }
            continue;
        }
        form.write(&mut a);
        if let Some(label) = behind.take() {
            a.bind(label);
        }
    }
    if let Some(label) = behind {
        a.bind(label);
    }
    for (at, register) in (0..).step_by(8).zip(NUMBERS) {
        a.store(R9.double(at), register);
    }
    a.give(XdpAction::Transmit).bind(short).give(XdpAction::Drop);
    a.assemble()
}

fn words(row: &[u8]) -> [u64; ROW] {
    let mut words = [0; ROW];
    for (word, bytes) in words.iter_mut().zip(row.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().unwrap());
    }
    words
}

#[test]
fn random_programs_leave_what_they_leave_in_the_kernel() {
    let Some(array) = or_skip(Array::<ROW>::create("fathom_row", 1)) else { return };
    let starts = prop::array::uniform8(prop_oneof![any::<u64>(), 0..4_u64, Just(u64::MAX), Just(1 << 31)]);
    let strategy = (starts, prop::collection::vec(form(), 1..40), prop::collection::vec(any::<u8>(), 60..80));
    proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) }, |((start, forms, frame) in strategy)| {
        let code = program(&array, start, &forms);
        array.set(0, &[7; ROW]).unwrap();
        let kernel = Program::load(ProgramType::Xdp, "fathom_random", &code).unwrap().test_run(&frame, 1).unwrap();
        let mut surroundings = Surroundings { maps: MapMemory::default().with(&array, (1, ROW * 8)), ..Surroundings::default() };
        surroundings.maps.row_mut(&array, 0).copy_from_slice(&[7_u64; ROW].map(u64::to_ne_bytes).concat());
        let mut memory = FrameMemory::new(&frame, (HEAD_ROOM, 0));
        prop_assert_eq!(run(&code, &mut memory, &mut surroundings), Ok(kernel.value));
        prop_assert_eq!(memory.bytes(), kernel.frame);
        prop_assert_eq!(words(surroundings.maps.row(&array, 0)), array.get(0).unwrap());
    });
}

/// Adjusts the frame, and gives the helper's value and the length of the frame.
fn adjusting(array: &impl AsFd, helper: Helper, change: i32) -> Vec<Instruction> {
    let mut a = Assembler::new();
    a.mov(R6, R1).mov(R2, change).call(helper).mov(R7, R0).mov(R1, R6).call(Helper::FrameLength);
    a.load_row(R9, array).store(R9.double(0), R7).store(R9.double(8), R0).give(XdpAction::Pass);
    a.assemble()
}

#[test]
fn frames_grow_and_shrink_as_far_as_in_the_kernel() {
    let Some(array) = or_skip(Array::<ROW>::create("fathom_row", 1)) else { return };
    // What a test run leaves of its page, which is the frame, 256 bytes before and `struct skb_shared_info` behind it.
    let behind = |n_frame: usize| 4096 - 256 - 320 - n_frame;
    let changes = prop_oneof![-260..260, Just(-216), Just(-217), 3_300..3_600];
    let helpers = prop::sample::select(vec![Helper::AdjustHead, Helper::AdjustTail]);
    proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) }, |(helper in helpers, change in changes, n_frame in 14..300_usize)| {
        let has_room = usize::try_from(change).unwrap_or(0) <= behind(n_frame);
        // A frame that grows by more than the kernel's answer has room for cannot be compared.
        prop_assume!(helper == Helper::AdjustHead || change <= 256 || !has_room);
        let frame = vec![0x11; n_frame];
        let code = adjusting(&array, helper, change);
        let kernel = Program::load(ProgramType::Xdp, "fathom_adjust", &code).unwrap().test_run(&frame, 1).unwrap();
        let mut surroundings = Surroundings { maps: MapMemory::default().with(&array, (1, ROW * 8)), ..Surroundings::default() };
        let mut memory = FrameMemory::new(&frame, (HEAD_ROOM, behind(n_frame)));
        prop_assert_eq!(run(&code, &mut memory, &mut surroundings), Ok(kernel.value));
        prop_assert_eq!(words(surroundings.maps.row(&array, 0))[..2].to_vec(), array.get(0).unwrap()[..2].to_vec());
        // What is new before a frame is left over from others.
        let known = memory.bytes().len().saturating_sub(n_frame) * usize::from(helper == Helper::AdjustHead);
        prop_assert_eq!(&memory.bytes()[known..], &kernel.frame[known..]);
    });
}

/// A descriptor that stands for a map.
fn any_file() -> File {
    File::open("/dev/null").unwrap()
}

fn run_on(frame: &[u8], surroundings: &mut Surroundings, write: impl FnOnce(&mut Assembler)) -> Result<u32, Violation> {
    let mut a = Assembler::new();
    write(&mut a);
    run(&a.assemble(), &mut FrameMemory::new(frame, (HEAD_ROOM, 0)), surroundings)
}

#[test]
fn loops_lookups_the_time_and_chance_work_without_the_kernel() {
    let map = any_file();
    let mut surroundings =
        Surroundings { maps: MapMemory::default().with(&map, (3, 8)), now: 5_000_000_000, random: u32::MAX };
    let value = run_on(&[0; 60], &mut surroundings, |a| {
        let (again, missing) = (a.label(), a.label());
        a.mov(R6, 0).mov(R7, 0).bind(again).add(R7, R6).add(R6, 1).jump_if(R6.below(11), again);
        a.store(R10.word(-4), 2).look_up(&map, -4, missing).store(R0.double(0), R7);
        a.call(Helper::MonotonicNanos).mov(R8, R0).call(Helper::Random).add(R0, R8).compute(
            Operation::ShiftRight,
            R0,
            1,
        );
        a.exit().bind(missing).give(XdpAction::Aborted);
    });
    assert_eq!(value, Ok(u32::try_from((5_000_000_000 + u64::from(u32::MAX)) >> 1 & 0xffff_ffff).unwrap()));
    assert_eq!(surroundings.maps.row(&map, 2), 55_u64.to_ne_bytes());
    let beyond = run_on(&[0; 60], &mut surroundings, |a| {
        let missing = a.label();
        a.store(R10.word(-4), 3).look_up(&map, -4, missing).give(XdpAction::Pass).bind(missing).give(XdpAction::Drop);
    });
    assert_eq!(beyond, Ok(XdpAction::Drop as u32));
}

/// What a program does wrong on a frame of 60 bytes, with the place of the instruction.
fn offence(write: impl FnOnce(&mut Assembler) -> &mut Assembler) -> (usize, Offence) {
    let mut surroundings = Surroundings::default();
    let violation = run_on(&[0; 60], &mut surroundings, |a| {
        write(a);
    })
    .unwrap_err();
    (violation.at, violation.what)
}

#[test]
fn what_the_kernel_would_refuse_names_its_instruction() {
    let map = any_file();
    let fd = crate::bpf::syscall::descriptor(&map);
    let mut cases: Vec<((usize, Offence), (usize, Offence))> = Vec::new();
    let mut case =
        |at, expected, write: fn(&mut Assembler) -> &mut Assembler| cases.push((offence(write), (at, expected)));
    case(0, Offence::NoInstruction, |a| a);
    case(0, Offence::UnwrittenRegister(0), |a| a.exit());
    case(1, Offence::UnwrittenRegister(1), |a| a.call(Helper::MonotonicNanos).mov(R0, R1).exit());
    case(0, Offence::FramePointer, |a| a.add(R10, 1));
    case(1, Offence::Shift(64), |a| a.mov(R0, 1).compute(Operation::ShiftLeft, R0, 64));
    case(1, Offence::NoMemory(0), |a| a.mov(R2, 0).load(R0, R2.byte(0)));
    case(1, Offence::Outside(2, 59, "the frame"), |a| a.load(R2, R1.word(0)).load(R0, R2.half(59)));
    case(1, Offence::Outside(1, -1, "the frame"), |a| a.load(R2, R1.word(0)).load(R0, R2.byte(-1)));
    case(1, Offence::Outside(1, 60, "the frame"), |a| a.load(R2, R1.word(4)).load(R0, R2.byte(0)));
    case(0, Offence::Outside(8, -8, "the stack"), |a| a.store(R10.double(-520), 0));
    case(0, Offence::Outside(1, 512, "the stack"), |a| a.store(R10.byte(0), 0));
    case(1, Offence::UnwrittenStack(-8), |a| a.store(R10.word(-8), 0).load(R0, R10.double(-8)));
    case(0, Offence::UnalignedStack(4, -6), |a| a.store(R10.word(-6), 0));
    case(0, Offence::ReadOnly("the context"), |a| a.store(R1.word(0), 0));
    case(2, Offence::ReadOnly("this memory"), |a| a.load(R2, R1.word(0)).mov(R3, 1).atomic_fetch_add(R2.double(0), R3));
    case(0, Offence::NoContext(8, 0), |a| a.load(R0, R1.double(0)));
    case(0, Offence::NoContext(4, 20), |a| a.load(R0, R1.word(20)));
    case(0, Offence::UnknownHelper(Helper::Redirect as i32), |a| a.call(Helper::Redirect));
    case(4, Offence::StalePointer, |a| {
        a.load(R6, R1.word(0)).mov(R2, 4).call(Helper::AdjustHead).mov(R0, 1).load(R0, R6.byte(20))
    });
    case(4, Offence::StalePointer, |a| {
        // Also if the adjustment failed.
        a.load(R6, R1.word(0)).mov(R2, 4_000).call(Helper::AdjustTail).mov(R0, 1).load(R0, R6.byte(20))
    });
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
    assert_eq!(offence(|a| a.load_map(R1, &map)), (0, Offence::NoMap(fd)));
    let endless = offence(|a| {
        let again = a.label();
        a.bind(again).jump(again)
    });
    assert_eq!(endless, (0, Offence::TooLong(INSTRUCTIONS_MAX)));
}

#[test]
fn a_row_ends_where_the_next_begins() {
    let map = any_file();
    let mut surroundings = Surroundings { maps: MapMemory::default().with(&map, (2, 16)), ..Surroundings::default() };
    let outside = run_on(&[0; 60], &mut surroundings, |a| {
        let missing = a.label();
        a.store(R10.word(-4), 0).look_up(&map, -4, missing).store(R0.double(8), 1).store(R0.double(16), 1);
        a.bind(missing).give(XdpAction::Pass);
    });
    let expected = Violation { at: 8, what: Offence::Outside(8, 16, "the row") };
    assert_eq!(outside, Err(expected.clone()));
    assert_eq!(expected.to_string(), "instruction 8: 8 bytes at 16 of the row are outside");
    assert_eq!(surroundings.maps.row(&map, 0)[8], 1);
}
