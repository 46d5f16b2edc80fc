//! Which request of one recording is which of the other.

use std::{collections::HashMap, ops::Range};

use fathom_http::url::split_origin;
use fathom_import::har::RecordedStep;
use similar::{Algorithm, DiffOp, capture_diff_slices};

/// A longer segment with digits is an identifier.
const NAME_MAX: usize = 24;

/// A step of the first recording and its counterpart in the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AlignedSteps {
    pub(crate) first: usize,
    pub(crate) second: usize,
}

/// Steps in the same order on both sides.
#[derive(Debug, Default)]
pub(crate) struct Alignment {
    pub(crate) pairs: Vec<AlignedSteps>,
    pub(crate) only_first: Vec<usize>,
    pub(crate) only_second: Vec<usize>,
}

/// Aligns by the shape of the requests, and what is left between two pairs by less of it.
pub(crate) fn align(first: &[RecordedStep], second: &[RecordedStep]) -> Alignment {
    let mut alignment = Alignment::default();
    align_by(&[shape, outline], (first, 0..first.len()), (second, 0..second.len()), &mut alignment);
    alignment
}

type Key = fn(&RecordedStep) -> String;

fn align_by(
    keys: &[Key],
    (first, at_first): (&[RecordedStep], Range<usize>),
    (second, at_second): (&[RecordedStep], Range<usize>),
    alignment: &mut Alignment,
) {
    let Some((key, weaker)) = keys.split_first().filter(|_| !at_first.is_empty() && !at_second.is_empty()) else {
        alignment.only_first.extend(at_first);
        alignment.only_second.extend(at_second);
        return;
    };
    let mut numbers = HashMap::new();
    let mut numbered = |steps: &[RecordedStep]| -> Vec<usize> {
        let mut number = |step| {
            let n = numbers.len();
            *numbers.entry(key(step)).or_insert(n)
        };
        steps.iter().map(&mut number).collect()
    };
    let (one, two) = (numbered(&first[at_first.clone()]), numbered(&second[at_second.clone()]));
    let (mut gap_first, mut gap_second) = (at_first.start, at_second.start);
    for op in capture_diff_slices(Algorithm::Myers, &one, &two) {
        let DiffOp::Equal { old_index, new_index, len } = op else { continue };
        let (begin_first, begin_second) = (at_first.start + old_index, at_second.start + new_index);
        align_by(weaker, (first, gap_first..begin_first), (second, gap_second..begin_second), alignment);
        alignment.pairs.extend((0..len).map(|n| AlignedSteps { first: begin_first + n, second: begin_second + n }));
        (gap_first, gap_second) = (begin_first + len, begin_second + len);
    }
    align_by(weaker, (first, gap_first..at_first.end), (second, gap_second..at_second.end), alignment);
}

/// Method, host and path, without what looks like a number or an identifier.
fn shape(step: &RecordedStep) -> String {
    with_path(step, |path| {
        let segments = path.split('/').map(|segment| if is_identifier(segment) { "*" } else { segment });
        segments.collect::<Vec<_>>().join("/")
    })
}

/// Method, host, the number of segments, and the first one.
fn outline(step: &RecordedStep) -> String {
    with_path(step, |path| {
        let mut segments = path.split('/').skip(1);
        format!("{} {}", segments.next().unwrap_or_default(), segments.count())
    })
}

fn with_path(step: &RecordedStep, of_path: impl Fn(&str) -> String) -> String {
    let request = &step.exchanges[0].request;
    let url = request.url.as_literal().unwrap_or_default();
    let (origin, target) = split_origin(url).unwrap_or((url, ""));
    let path = target.split('?').next().unwrap_or_default();
    format!("{} {origin} {}", request.method, of_path(path))
}

fn is_identifier(segment: &str) -> bool {
    let n_digits = segment.bytes().filter(u8::is_ascii_digit).count();
    let is_hex = segment.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    n_digits > 0 && (n_digits == segment.len() || is_hex && segment.len() >= 8 || segment.len() > NAME_MAX)
}
