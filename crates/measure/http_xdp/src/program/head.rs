//! The head of an answer.
//!
//! Nearly every answer is like the one that the exchange before the load has shown, which a few comparisons at known places tell. Only the
//! head of any other answer is searched.

use std::os::fd::AsFd;

use fathom_sys::bpf::{
    Label, Operation,
    Register::{self, R0, R1, R2, R3, R4, R5, R6, R7, R9, R10},
};

use super::{
    Counter, ExpectedAnswer,
    books::{SCRATCH, SCRATCH_WORDS},
    code::{Code, place},
};
use crate::machine::{Event, offset};

/// The start of an answer, and the places of its status and of what follows.
const VERSION: &[u8; 8] = b"HTTP/1.1";
const STATUS_AT: i16 = 9;
/// An empty line ends a head.
const EMPTY_LINE: &[u8; 2] = b"\r\n";
/// The end of a head.
const END: &[u8; 4] = b"\r\n\r\n";
/// How much longer than the expected head a searched one may be, the bytes of the longest, and its lines. The verifier follows each byte.
const LONGER: u32 = 64;
pub const SEARCHED_MAX: u32 = 1024;
const LINES_MAX: i16 = 32;
/// The bit that letters of both cases differ by, in every byte.
const LOWER: u64 = 0x2020_2020_2020_2020;
/// The fields that are looked for: their first eight bytes, and eight from [`SECOND`] on.
const CONTENT_LENGTH: [&[u8; 8]; 2] = [b"content-", b"-length:"];
const CONNECTION_CLOSE: [&[u8; 8]; 2] = [b"connecti", b"ion: clo"];
const SECOND: i16 = 7;
/// Content-Length has at most so many digits.
const DIGITS_MAX: i16 = 8;

// What the search has found stands in memory of the books, because the verifier follows every value of a register by itself.
/// Where the value of Content-Length begins, from the start of the answer; zero if it was not found.
const DIGITS_AT: i16 = 0;
/// The bytes of the head; zero if its end was not found.
const HEAD_LENGTH: i16 = 8;
/// One if the server closes the connection.
const CLOSES: i16 = 16;
/// The first digit of the status.
const CLASS: i16 = 24;
/// The number of lines behind the first one, and where they begin.
const N_LINES: i16 = 32;
const LINES: i16 = 40;
const _: () = assert!(5 + LINES_MAX.unsigned_abs() as usize == SCRATCH_WORDS, "there is room for all of it");

impl<Rows: AsFd, Books: AsFd, Histograms: AsFd, Control: AsFd, Sockets: AsFd>
    Code<'_, Rows, Books, Histograms, Control, Sockets>
{
    /// Reads the head of the answer that the segment begins: `R2` becomes the length of the whole answer.
    pub(super) fn read_head(&mut self) {
        let [other, is_read, unknown] = [(); 3].map(|()| self.a.label());
        if let Some(answer) = &self.setup.answer {
            self.compare(answer, other);
            let (length, is_success) =
                (i32::try_from(answer.length).expect("an answer is short"), answer.status[0] == b'2');
            self.a.store(R6.byte(offset::LAST), 0);
            if !is_success {
                self.count(Counter::Of(Event::NotSuccess));
            }
            self.a.mov(R2, length).jump(is_read);
        }
        self.a.bind(other);
        self.search(unknown);
        self.a.jump(is_read).bind(unknown);
        self.count(Counter::Of(Event::HandedOver));
        self.a.store(R6.word(offset::AWAY), 1).jump(self.hand_over);
        self.a.bind(is_read);
        // Who answers has the whole request.
        self.a.load(R1, R6.word(offset::SEND_NEXT)).store(R6.word(offset::UNACKNOWLEDGED), R1);
    }

    /// `R2` becomes the answer, `R3` the end of the frame; jumps unless the frame has its first `n` bytes.
    fn reach(&mut self, n: i32, otherwise: Label) {
        self.a.mov(R4, 0);
        self.at(R4);
        self.a.mov(R4, R2).add(R4, n).jump_if(R4.above(R3), otherwise);
        self.a.load(R4, R10.word(place::LENGTH)).jump_if(R4.below(n), otherwise);
    }

    /// Jumps unless the answer is like the expected one.
    fn compare(&mut self, answer: &ExpectedAnswer, otherwise: Label) {
        let head_length = i16::try_from(answer.head_length).expect("a head fits into a segment");
        let digits_at = i16::try_from(answer.digits_at).expect("a head fits into a segment");
        self.reach(head_length.into(), otherwise);
        let start = [VERSION.as_slice(), b" ", &answer.status].concat();
        for (at, bytes) in [(0, start.as_slice()), (digits_at, &answer.digits), (head_length - 4, END)] {
            self.compare_bytes(at, bytes, otherwise);
        }
    }

    /// Jumps unless the answer at `R2` has these bytes. Clobbers `R4` and `R5`.
    fn compare_bytes(&mut self, mut at: i16, mut bytes: &[u8], otherwise: Label) {
        while let Some((width, operand)) = [8, 4, 2, 1].into_iter().find(|width| *width <= bytes.len()).map(|width| {
            let operand = match width {
                8 => R2.double(at),
                4 => R2.word(at),
                2 => R2.half(at),
                _ => R2.byte(at),
            };
            (width, operand)
        }) {
            let (part, rest) = bytes.split_at(width);
            self.a.load(R4, operand).load_constant(R5, native(part)).jump_if(R4.differs(R5), otherwise);
            (bytes, at) = (rest, at + i16::try_from(width).expect("a word has eight bytes"));
        }
    }

    /// Reads any head with a Content-Length: `R2` becomes the length of the answer.
    fn search(&mut self, unknown: Label) {
        let head_length = self.setup.answer.as_ref().map_or(SEARCHED_MAX, |answer| answer.head_length);
        let searched = (head_length + LONGER).min(SEARCHED_MAX).cast_signed();
        self.reach(i32::from(STATUS_AT) + 3, unknown);
        self.compare_bytes(0, VERSION, unknown);
        // Answers with 1xx are followed by another one, and those of 204 and 304 have no Content-Length.
        self.a.load(R4, R2.byte(STATUS_AT)).jump_if(R4.equals(i32::from(b'1')), unknown);
        self.a.store(R9.double(SCRATCH + CLASS), R4);
        for at in [DIGITS_AT, HEAD_LENGTH, CLOSES, N_LINES] {
            self.a.store(R9.double(SCRATCH + at), 0);
        }
        self.find_lines(searched);
        self.read_lines(searched);
        self.a.load(R1, R9.double(SCRATCH + HEAD_LENGTH)).jump_if(R1.equals(0), unknown);
        self.a.load(R4, R9.double(SCRATCH + DIGITS_AT)).jump_if(R4.equals(0), unknown);
        self.a.jump_if(R4.above(searched + i32::from(SECOND) + 8), unknown);
        self.read_number(unknown);
        self.a.load(R1, R9.double(SCRATCH + HEAD_LENGTH)).mov(R2, R0).add(R2, R1);
        self.a.load(R1, R9.double(SCRATCH + CLOSES)).store(R6.byte(offset::LAST), R1);
        let is_success = self.a.label();
        self.a.load(R1, R9.double(SCRATCH + CLASS)).jump_if(R1.equals(i32::from(b'2')), is_success);
        self.count(Counter::Of(Event::NotSuccess));
        self.a.bind(is_success);
    }

    /// Keeps where the lines of the head begin. `R2` is the answer, `R3` the end of the frame.
    fn find_lines(&mut self, searched: i32) {
        let [top, next, is_end, ends] = [(); 4].map(|()| self.a.label());
        self.a.mov(R1, 0).bind(top);
        self.a.mov(R5, R2).add(R5, 1).jump_if(R5.above(R3), ends);
        self.a.load(R4, R2.byte(0)).jump_if(R4.equals(i32::from(b'\n')), is_end);
        self.a.bind(next).add(R2, 1).add(R1, 1).jump_if(R1.below(searched), top).jump(ends).bind(is_end);
        self.a.load(R4, R9.double(SCRATCH + N_LINES)).jump_if(R4.at_least(i32::from(LINES_MAX)), next);
        self.a.mov(R5, R4).compute(Operation::ShiftLeft, R5, 3).add(R5, R9);
        self.a.mov(R0, R1).add(R0, 1).store(R5.double(SCRATCH + LINES), R0);
        self.a.add(R4, 1).store(R9.double(SCRATCH + N_LINES), R4).jump(next).bind(ends);
    }

    /// Reads the lines up to the empty one.
    fn read_lines(&mut self, searched: i32) {
        let [top, next, is_content, is_connection, is_empty, done] = [(); 6].map(|()| self.a.label());
        self.a.mov(R1, 0).bind(top);
        self.a.load(R4, R9.double(SCRATCH + N_LINES)).jump_if(R1.at_least(R4), done);
        self.a.mov(R5, R1).compute(Operation::ShiftLeft, R5, 3).add(R5, R9).load(R0, R5.double(SCRATCH + LINES));
        self.a.jump_if(R0.above(searched), done);
        self.at(R0);
        self.a.mov(R5, R2).add(R5, 2).jump_if(R5.above(R3), done);
        self.a.load(R4, R2.half(0)).jump_if(R4.equals(narrow(*EMPTY_LINE)), is_empty);
        self.a.mov(R5, R2).add(R5, i32::from(SECOND) + 8).jump_if(R5.above(R3), next);
        self.a.load_constant(R3, LOWER).load(R4, R2.double(0)).compute(Operation::Or, R4, R3);
        let fields = [(CONTENT_LENGTH, is_content), (CONNECTION_CLOSE, is_connection)];
        for (field, label) in fields {
            self.a.load_constant(R5, native(field[0]) | LOWER).jump_if(R4.equals(R5), label);
        }
        self.a.bind(next).add(R1, 1).jump_if(R1.below(i32::from(LINES_MAX)), top).jump(done);
        for (field, label) in fields {
            self.a.bind(label).load(R4, R2.double(SECOND)).compute(Operation::Or, R4, R3);
            self.a.load_constant(R5, native(field[1]) | LOWER).jump_if(R4.differs(R5), next);
            if label == is_content {
                self.a.add(R0, i32::from(SECOND) + 8).store(R9.double(SCRATCH + DIGITS_AT), R0).jump(next);
            } else {
                self.a.store(R9.double(SCRATCH + CLOSES), 1).jump(next);
            }
        }
        self.a.bind(is_empty).add(R0, 2).store(R9.double(SCRATCH + HEAD_LENGTH), R0).bind(done);
    }

    /// `R2` becomes the place so many bytes behind the start of the answer, `R3` the end of the frame. Clobbers `R5`.
    fn at(&mut self, offset: Register) {
        self.a.load(R2, R7.word(0)).load(R3, R7.word(4)).load(R5, R10.word(place::PAYLOAD));
        // The headers have at most 114 bytes.
        self.a.compute(Operation::And, R5, 0x7f).add(R5, offset).add(R2, R5);
    }

    /// `R0` becomes the number at `R4` bytes behind the start of the answer. Clobbers `R1` to `R5`.
    fn read_number(&mut self, unknown: Label) {
        let [no_blank, end] = [self.a.label(), self.a.label()];
        self.at(R4);
        self.a.mov(R5, R2).add(R5, 1).jump_if(R5.above(R3), unknown);
        self.a.load(R4, R2.byte(0)).mov(R0, 0).jump_if(R4.differs(i32::from(b' ')), no_blank).add(R2, 1).bind(no_blank);
        for digit in 0..=DIGITS_MAX {
            let otherwise = if digit == 0 { unknown } else { end };
            self.a.mov(R5, R2).add(R5, i32::from(digit) + 1).jump_if(R5.above(R3), otherwise);
            self.a.load(R4, R2.byte(digit)).sub(R4, i32::from(b'0')).jump_if(R4.above(9), otherwise);
            self.a.compute(Operation::Mul, R0, 10).add(R0, R4);
        }
        // Longer than any answer that this is for.
        self.a.jump(unknown).bind(end);
    }
}

/// Two bytes as they are loaded here.
fn narrow(bytes: [u8; 2]) -> i32 {
    i32::from(u16::from_ne_bytes(bytes))
}

/// Up to eight bytes as they are loaded here.
fn native(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    if cfg!(target_endian = "little") {
        word[..bytes.len()].copy_from_slice(bytes);
    } else {
        word[8 - bytes.len()..].copy_from_slice(bytes);
    }
    u64::from_ne_bytes(word)
}
