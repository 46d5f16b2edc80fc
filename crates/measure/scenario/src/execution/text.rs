//! Texts with values: compiled to pieces once, assembled for each user.
//!
//! A value is read through a [`ValueScope`]. The output depends on nothing else, so the same scope writes the same text again.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fathom_model::units::Nanos;

use super::data_rows::DataRows;
use super::decoding;
use crate::ast::Clock;
pub(crate) use crate::ast::Filter;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueSource {
    /// A variable of the user.
    Slot(u16),
    /// A cell of the user's row of a data set.
    Cell { set: u16, column: u16 },
    /// A whole number, both ends included.
    Random { low: u64, high: u64 },
    /// The next number of a counter that all users share.
    Seq(u16),
    /// This many letters and digits.
    Chars(u16),
    /// The number of the user, from 1, over all workers.
    User,
    /// The number of the user's iteration, this one included.
    Iteration,
    /// The round of the innermost loop, from 1.
    Round,
    /// 128 random bits as RFC 9562 writes version 4.
    Uuid,
    /// The time of day.
    Now(Clock),
}

/// A variable of a user; its memory is reused for the next value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VariableSlot {
    pub(crate) text: Vec<u8>,
    pub(crate) is_set: bool,
}

impl VariableSlot {
    pub(crate) fn set(&mut self, text: &[u8]) {
        self.text.clear();
        self.text.extend_from_slice(text);
        self.is_set = true;
    }

    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.is_set = false;
    }
}

/// A value with its filters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextValue {
    pub(crate) source: ValueSource,
    /// The number of digits, padded with zeros.
    pub(crate) width: Option<u8>,
    pub(crate) filters: Box<[Filter]>,
}

impl TextValue {
    /// Its length in bytes, if it is always the same.
    pub(crate) fn fixed_width(&self) -> Option<usize> {
        let width = match (&self.source, self.width) {
            (ValueSource::Uuid, _) => 36,
            (ValueSource::Chars(n), _) => usize::from(*n),
            (ValueSource::Now(Clock::Iso), _) => 24,
            // Until the year 2286.
            (ValueSource::Now(Clock::Seconds), _) => 10,
            (ValueSource::Now(Clock::Millis), _) => 13,
            (ValueSource::Random { high, .. }, Some(width)) if digits(*high) <= usize::from(width) => {
                usize::from(width)
            }
            _ => return None,
        };
        self.filters.is_empty().then_some(width)
    }
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TextPiece {
    Literal(Box<[u8]>),
    Value(TextValue),
}

/// A text that may contain values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CompiledText(pub(crate) Vec<TextPiece>);

/// The context of a text, which restricts its characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextContext {
    /// In a request line: invalid characters are percent-encoded.
    Target,
    /// In a field: control characters become spaces, so that no value begins a new line.
    Field,
    /// Everything is allowed.
    Free,
}

/// The inputs common to all values of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ValueInputs {
    /// The seed of random values.
    pub(crate) seed: u64,
    pub(crate) user: u64,
    pub(crate) iteration: u32,
    pub(crate) round: u32,
    /// On the wall clock.
    pub(crate) wall: Nanos,
}

/// The numbers of shared counters: drawn for a request, and repeated if it is written again.
#[derive(Debug)]
pub(crate) enum CounterNumbers<'a> {
    /// Draws new ones and keeps a record.
    Draw(&'a [AtomicU64], &'a mut Vec<u64>),
    /// Repeats the recorded ones.
    Replay(std::slice::Iter<'a, u64>),
}

impl CounterNumbers<'_> {
    fn next(&mut self, counter: u16) -> u64 {
        match self {
            Self::Draw(counters, drawn) => {
                let number = counters[usize::from(counter)].fetch_add(1, Relaxed);
                drawn.push(number);
                number
            }
            Self::Replay(drawn) => drawn.next().copied().unwrap_or_default(),
        }
    }
}

/// The sources of values.
#[derive(Debug)]
pub(crate) struct ValueScope<'a> {
    pub(crate) slots: &'a [VariableSlot],
    /// The row of each data set.
    pub(crate) rows: &'a [u32],
    pub(crate) sets: &'a [Arc<DataRows>],
    pub(crate) moment: ValueInputs,
    pub(crate) numbers: CounterNumbers<'a>,
    pub(crate) rng: fastrand::Rng,
}

impl ValueScope<'_> {
    /// Writes a number with at least `width` digits.
    fn number(number: u64, width: Option<u8>, text: &mut Vec<u8>) {
        let mut digits = [b'0'; 20];
        let mut at = digits.len();
        let mut rest = number;
        while rest > 0 {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        // Twenty digits hold every 64-bit number, and the compiler allows no wider ones.
        at = at.min(digits.len() - usize::from(width.unwrap_or(1)).clamp(1, digits.len()));
        text.extend_from_slice(&digits[at..]);
    }

    fn write(&mut self, value: &TextValue, text: &mut Vec<u8>) {
        let mut number = |number: u64| Self::number(number, value.width, text);
        match &value.source {
            ValueSource::Slot(slot) => text.extend_from_slice(&self.slots[usize::from(*slot)].text),
            ValueSource::Cell { set, column } => {
                let set = usize::from(*set);
                text.extend_from_slice(self.sets[set].cell(self.rows[set], usize::from(*column)));
            }
            ValueSource::Random { low, high } => number(self.rng.u64(*low..=*high)),
            ValueSource::Seq(counter) => number(self.numbers.next(*counter)),
            ValueSource::User => number(self.moment.user),
            ValueSource::Iteration => number(u64::from(self.moment.iteration)),
            ValueSource::Round => number(u64::from(self.moment.round)),
            ValueSource::Now(Clock::Seconds) => number(self.moment.wall.0 / 1_000_000_000),
            ValueSource::Now(Clock::Millis) => number(self.moment.wall.0 / 1_000_000),
            ValueSource::Now(Clock::Iso) => iso(self.moment.wall, text),
            ValueSource::Uuid => uuid(self.rng.u128(..), text),
            ValueSource::Chars(n) => text.extend((0..*n).map(|_| self.rng.alphanumeric() as u8)),
        }
    }

    /// Appends a value to `text`, adapted to its context.
    pub(crate) fn put(&mut self, value: &TextValue, place: TextContext, text: &mut Vec<u8>) {
        let begin = text.len();
        self.write(value, text);
        for filter in &value.filters {
            apply(*filter, begin, text);
        }
        sanitize(text, begin, place);
    }
}

impl CompiledText {
    /// Appends it to `text`.
    pub(crate) fn put(&self, scope: &mut ValueScope<'_>, place: TextContext, text: &mut Vec<u8>) {
        for piece in &self.0 {
            match piece {
                TextPiece::Literal(bytes) => text.extend_from_slice(bytes),
                TextPiece::Value(value) => scope.put(value, place, text),
            }
        }
    }

    /// Its variables.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u16> {
        self.0.iter().filter_map(|piece| match piece {
            TextPiece::Value(TextValue { source: ValueSource::Slot(slot), .. }) => Some(*slot),
            _ => None,
        })
    }
}

impl From<&str> for CompiledText {
    fn from(text: &str) -> Self {
        if text.is_empty() { Self::default() } else { Self(vec![TextPiece::Literal(text.as_bytes().into())]) }
    }
}

/// A text after a filter.
#[must_use]
pub fn filtered(text: &[u8], filter: Filter) -> Vec<u8> {
    let mut text = text.to_vec();
    apply(filter, 0, &mut text);
    text
}

/// Filters the text from `begin` on. An encoded text is appended to the old one, and then moved to its place.
pub(crate) fn apply(filter: Filter, begin: usize, text: &mut Vec<u8>) {
    let end = text.len();
    match filter {
        Filter::Url => (begin..end).for_each(|at| match text[at] {
            byte @ (b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~') => text.push(byte),
            byte => percent_encoded(byte, text),
        }),
        Filter::Form => (begin..end).for_each(|at| match text[at] {
            byte @ (b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'*' | b'-' | b'.' | b'_') => text.push(byte),
            b' ' => text.push(b'+'),
            byte => percent_encoded(byte, text),
        }),
        Filter::Json => (begin..end).for_each(|at| in_json(text[at], text)),
        Filter::Html => (begin..end).for_each(|at| in_html(text[at], text)),
        Filter::Hex => (begin..end).for_each(|at| {
            let digits = b"0123456789abcdef";
            let byte = text[at];
            text.extend_from_slice(&[digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]);
        }),
        Filter::Base64 => {
            text.resize(end + data_encoding::BASE64.encode_len(end - begin), 0);
            let (raw, encoded) = text.split_at_mut(end);
            data_encoding::BASE64.encode_mut(&raw[begin..], encoded);
        }
        Filter::FromUrl => return decoding::url(begin, text),
        Filter::FromHtml => return decoding::html(begin, text),
        Filter::FromJson => return decoding::json(begin, text),
        Filter::FromBase64 => return decoding::base64(begin, text),
    }
    text.drain(begin..end);
}

fn percent_encoded(byte: u8, text: &mut Vec<u8>) {
    let digits = b"0123456789ABCDEF";
    text.extend_from_slice(&[b'%', digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]);
}

fn in_json(byte: u8, text: &mut Vec<u8>) {
    match byte {
        b'"' => text.extend_from_slice(b"\\\""),
        b'\\' => text.extend_from_slice(b"\\\\"),
        b'\n' => text.extend_from_slice(b"\\n"),
        b'\r' => text.extend_from_slice(b"\\r"),
        b'\t' => text.extend_from_slice(b"\\t"),
        0..=0x1f => {
            let digits = b"0123456789abcdef";
            text.extend_from_slice(&[b'\\', b'u', b'0', b'0', b'0' + (byte >> 4), digits[usize::from(byte & 15)]]);
        }
        _ => text.push(byte),
    }
}

fn in_html(byte: u8, text: &mut Vec<u8>) {
    match byte {
        b'&' => text.extend_from_slice(b"&amp;"),
        b'<' => text.extend_from_slice(b"&lt;"),
        b'>' => text.extend_from_slice(b"&gt;"),
        b'"' => text.extend_from_slice(b"&quot;"),
        // XML has `&apos;` as well, and HTML 4 has not.
        b'\'' => text.extend_from_slice(b"&#39;"),
        _ => text.push(byte),
    }
}

/// `2026-11-21T18:30:00.000Z`
fn iso(wall: Nanos, text: &mut Vec<u8>) {
    let millis = i64::try_from(wall.0 / 1_000_000).unwrap_or(0);
    let time = jiff::Timestamp::from_millisecond(millis).unwrap_or_default();
    // Writing to memory cannot fail.
    drop(write!(text, "{time:.3}"));
}

/// Sixteen bytes with the bits of version and variant set (RFC 9562 section 5.4).
fn uuid(random: u128, text: &mut Vec<u8>) {
    let version_bits = 0x4u128 << 76;
    let variant_bits = 0x2u128 << 62;
    let number = random & !(0xfu128 << 76) & !(0x3u128 << 62) | version_bits | variant_bits;
    let digits = b"0123456789abcdef";
    for place in 0..32u32 {
        if [8, 12, 16, 20].contains(&place) {
            text.push(b'-');
        }
        let nibble = (number >> (124 - 4 * place)) as usize & 15;
        text.push(digits[nibble]);
    }
}

/// Changes the text from `begin` on as far as its context requires.
pub(crate) fn sanitize(text: &mut Vec<u8>, begin: usize, place: TextContext) {
    match place {
        TextContext::Free => {}
        TextContext::Field => {
            for byte in &mut text[begin..] {
                if byte.is_ascii_control() {
                    *byte = b' ';
                }
            }
        }
        TextContext::Target => {
            if text[begin..].iter().all(u8::is_ascii_graphic) {
                return;
            }
            let end = text.len();
            for at in begin..end {
                let byte = text[at];
                if byte.is_ascii_graphic() { text.push(byte) } else { percent_encoded(byte, text) }
            }
            text.drain(begin..end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::data_rows::DataLayout, *};

    fn value(source: ValueSource, filters: &[Filter]) -> TextValue {
        TextValue { source, width: None, filters: filters.into() }
    }

    fn written(value: &TextValue, place: TextContext, slot: &str) -> String {
        let slots = [VariableSlot { text: slot.as_bytes().to_vec(), is_set: true }];
        let sets = [std::sync::Arc::new(
            DataRows::csv(b"user,pass\nann,a b\nbob,\"x\ny\"\n", &DataLayout::default()).unwrap_or_default(),
        )];
        let wall = Nanos(1_700_000_000_123_456_789);
        let moment = ValueInputs { seed: 3, user: 12, iteration: 4, round: 2, wall };
        let counters = [AtomicU64::new(41)];
        let mut text = b"<".to_vec();
        let mut drawn = Vec::new();
        let numbers = CounterNumbers::Draw(&counters, &mut drawn);
        let chance = fastrand::Rng::with_seed(moment.seed);
        ValueScope { slots: &slots, rows: &[1], sets: &sets, moment, numbers, rng: chance }
            .put(value, place, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn values_come_from_variables_data_and_the_moment() {
        let cases = [
            (ValueSource::Slot(0), "<v"),
            (ValueSource::Cell { set: 0, column: 0 }, "<bob"),
            (ValueSource::User, "<12"),
            (ValueSource::Round, "<2"),
            (ValueSource::Iteration, "<4"),
            (ValueSource::Seq(0), "<41"),
            (ValueSource::Now(Clock::Millis), "<1700000000123"),
            (ValueSource::Now(Clock::Seconds), "<1700000000"),
            (ValueSource::Now(Clock::Iso), "<2023-11-14T22:13:20.123Z"),
            (ValueSource::Random { low: 7, high: 7 }, "<7"),
        ];
        for (source, expected) in cases {
            assert_eq!(written(&value(source, &[]), TextContext::Free, "v"), expected);
        }
    }

    #[test]
    fn numbers_of_a_width_have_zeros_in_front() {
        let wide = |source, width| TextValue { source, width: Some(width), filters: [].into() };
        assert_eq!(written(&wide(ValueSource::User, 6), TextContext::Free, ""), "<000012");
        assert_eq!(written(&wide(ValueSource::User, 1), TextContext::Free, ""), "<12");
        assert_eq!(written(&wide(ValueSource::Random { low: 0, high: 0 }, 3), TextContext::Free, ""), "<000");
        assert_eq!(written(&value(ValueSource::Random { low: 0, high: 0 }, &[]), TextContext::Free, ""), "<0");
        assert_eq!(
            written(&value(ValueSource::Random { low: u64::MAX, high: u64::MAX }, &[]), TextContext::Free, ""),
            "<18446744073709551615"
        );
    }

    #[test]
    fn what_says_its_width_has_it() {
        let wide = |source, width| TextValue { source, width: Some(width), filters: [].into() };
        let random = |high| ValueSource::Random { low: 0, high };
        assert_eq!([random(9_999), random(10_000)].map(|source| wide(source, 4).fixed_width()), [Some(4), None]);
        assert_eq!(wide(ValueSource::User, 6).fixed_width(), None, "there may be more than a million");
        for source in [
            ValueSource::Uuid,
            ValueSource::Chars(12),
            ValueSource::Now(Clock::Iso),
            ValueSource::Now(Clock::Millis),
            ValueSource::Now(Clock::Seconds),
        ] {
            let value = value(source, &[]);
            assert_eq!(written(&value, TextContext::Free, "").len() - 1, value.fixed_width().unwrap(), "{value:?}");
        }
    }

    #[test]
    fn random_values_stay_in_their_range_and_come_again_with_the_same_seed() {
        let random = value(ValueSource::Random { low: 10, high: 19 }, &[]);
        let one = |seed| {
            let mut text = Vec::new();
            let (numbers, chance) = (CounterNumbers::Replay([].iter()), fastrand::Rng::with_seed(seed));
            let moment = ValueInputs::default();
            ValueScope { slots: &[], rows: &[], sets: &[], moment, numbers, rng: chance }.put(
                &random,
                TextContext::Free,
                &mut text,
            );
            String::from_utf8(text).unwrap().parse::<u64>().unwrap()
        };
        let all: std::collections::BTreeSet<u64> = (0..500).map(one).collect();
        assert_eq!(all, (10..20).collect());
        assert_eq!(one(4), one(4));
    }

    #[test]
    fn filters_are_applied_from_left_to_right() {
        use Filter::{Base64, Form, FromHtml, FromUrl, Hex, Html, Json, Url};
        let cases: [(&[Filter], &str, &str); 10] = [
            (&[FromHtml, FromUrl, Json], "a&amp;%22&#39;", "<a&\\\"'"),
            (&[Url], "a b/ü~", "<a%20b%2F%C3%BC~"),
            (&[Form], "a b/ü~*+", "<a+b%2F%C3%BC%7E*%2B"),
            (&[Json], "a\"b\\c\n\u{1}ü", "<a\\\"b\\\\c\\n\\u0001ü"),
            (&[Html], "a<b> & \"c'ü", "<a&lt;b&gt; &amp; &quot;c&#39;ü"),
            (&[Base64], "ann:hush", "<YW5uOmh1c2g="),
            (&[Base64, Url], "ann:hush", "<YW5uOmh1c2g%3D"),
            (&[Base64], "", "<"),
            (&[Hex], "ü~", "<c3bc7e"),
            (&[], "as it is", "<as it is"),
        ];
        for (filters, slot, expected) in cases {
            assert_eq!(written(&value(ValueSource::Slot(0), filters), TextContext::Free, slot), expected);
        }
    }

    #[test]
    fn no_value_breaks_the_head_of_a_request() {
        let slot = value(ValueSource::Slot(0), &[]);
        assert_eq!(written(&slot, TextContext::Target, "a b\r\nX: ü?&"), "<a%20b%0D%0AX:%20%C3%BC?&");
        assert_eq!(written(&slot, TextContext::Field, "a\r\nX: b\0"), "<a  X: b ");
        assert_eq!(written(&slot, TextContext::Free, "a\r\n"), "<a\r\n");
    }

    #[test]
    fn a_uuid_has_its_version_and_variant() {
        let text = written(&value(ValueSource::Uuid, &[]), TextContext::Free, "");
        let groups: Vec<usize> = text[1..].split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12], "{text}");
        assert_eq!(&text[15..16], "4", "{text}");
        assert!("89ab".contains(&text[20..21]), "{text}");
    }
}
