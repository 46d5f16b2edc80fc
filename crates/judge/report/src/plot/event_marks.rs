//! Marks on a plot over time what happened during a round, each with its label.

use fathom_model::{EventSpan, Trial, units::Nanos};
use maud::{Markup, html};

use super::{px, scale::Scale};

/// The most marks of a round. More could not be told apart; the table of events has them.
const MARKS_MAX: usize = 16;
/// The lines of text above a panel.
const ROWS: usize = 2;
/// The height of a line of text, and of all of them.
const ROW_HEIGHT: f64 = 14.0;
pub(super) const HEIGHT: f64 = ROW_HEIGHT * 2.0;
/// The room for a character, with some to spare: texts are larger on small screens.
const CHARACTER: f64 = 7.2;
/// A label of fewer characters would say nothing.
const CHARACTERS_MIN: usize = 6;
/// The distance of a label from its line.
const GAP: f64 = 4.0;

/// An event of a round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EventMark {
    /// When it began, in seconds since the start.
    pub(super) began: f64,
    /// When it was undone, or repeated for the last time; absent if the event has no end.
    ended: Option<f64>,
    /// The command, or that its end was reached.
    label: String,
}

/// Returns the marks of a round in the order of time. What did not begin has none.
pub(super) fn of_round(trial: &Trial) -> Vec<EventMark> {
    let mut marks: Vec<EventMark> = trial
        .events
        .iter()
        .filter_map(|event| {
            let began = event.began_ns?;
            let of_end = event.event.strip_prefix(EventSpan::END_OF);
            let (time, command) = of_end.unwrap_or(&event.event).split_once(char::is_whitespace)?;
            let (before, ended) = if of_end.is_some() { (EventSpan::END_OF, None) } else { ("", end_of(time)) };
            Some(EventMark { began: began.as_secs_f64(), ended, label: format!("{before}{}", command.trim()) })
        })
        .collect();
    marks.sort_by(|one, other| one.began.total_cmp(&other.began));
    marks.truncate(MARKS_MAX);
    marks
}

/// Returns the end in the time of an event, such as `4s-8s` or `4s-8s/50ms`, in seconds.
fn end_of(time: &str) -> Option<f64> {
    let end: Nanos = time.split_once('-')?.1.split('/').next()?.parse().ok()?;
    Some(end.as_secs_f64())
}

/// A label at its place.
#[derive(Debug, PartialEq)]
struct Placed {
    x: f64,
    row: usize,
    is_before: bool,
    text: String,
}

/// Places the labels beside their lines: to the right, or to the left behind the middle. One without room is left out.
fn place(marks: &[EventMark], x: &Scale) -> Vec<Option<Placed>> {
    let (left, right) = (x.at(f64::MIN), x.at(f64::MAX));
    let mut taken = [left; ROWS];
    marks
        .iter()
        .map(|mark| {
            let at = x.at(mark.began);
            let is_before = at > left.midpoint(right);
            let of_row = |(row, from): (usize, &f64)| {
                let room = if is_before { at - GAP - from } else { right - at - GAP };
                let is_free = is_before || *from <= at;
                let text = fitting(&mark.label, room).filter(|_| is_free)?;
                Some(Placed { x: if is_before { at - GAP } else { at + GAP }, row, is_before, text })
            };
            let placed = taken.iter().enumerate().find_map(of_row)?;
            let width = super::float(placed.text.chars().count()) * CHARACTER;
            taken[placed.row] = if is_before { at } else { placed.x + width };
            Some(placed)
        })
        .collect()
}

/// Returns as much of a text as there is room for.
fn fitting(text: &str, room: f64) -> Option<String> {
    let n = text.chars().count();
    if super::float(n) * CHARACTER <= room {
        return Some(text.to_owned());
    }
    let is_within = |n: &usize| super::float(*n) * CHARACTER <= room;
    let fits = (CHARACTERS_MIN..n).rev().find(is_within)?;
    Some(text.chars().take(fits - 1).chain(['…']).collect())
}

/// Draws the marks over a panel from `top` to `bottom`, with the labels above it.
pub(super) fn draw(marks: &[EventMark], x: &Scale, (top, bottom): (f64, f64)) -> Markup {
    let labels = place(marks, x);
    html! {
        @for (mark, label) in marks.iter().zip(&labels) {
            @let at = x.at(mark.began);
            @let row = label.as_ref().map_or(0, |label| label.row);
            @if let Some(ended) = mark.ended.filter(|ended| *ended > mark.began) {
                rect.event x=(px(at)) y=(px(top)) width=(px(x.at(ended) - at)) height=(px(bottom - top)) {}
            }
            line.event x1=(px(at)) x2=(px(at)) y1=(px(top - ROW_HEIGHT * super::float(row) - 10.0)) y2=(px(bottom)) data-event=(told(mark)) { title { (told(mark)) } }
            @if let Some(label) = label {
                text.event x=(px(label.x)) y=(px(top - ROW_HEIGHT * super::float(label.row) - 4.0)) text-anchor=(if label.is_before { "end" } else { "start" }) { (label.text) }
            }
        }
    }
}

/// The whole event, for those who point at it.
fn told(mark: &EventMark) -> String {
    let until = mark.ended.map(|ended| format!(" to {ended:.2} s")).unwrap_or_default();
    format!("{:.2} s{until}  {}", mark.began, mark.label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(began: f64, label: &str) -> EventMark {
        EventMark { began, ended: None, label: label.to_owned() }
    }

    #[test]
    fn the_end_of_an_event_is_in_its_time() {
        assert_eq!([end_of("4s"), end_of("4s-8s"), end_of("1s-4500ms/20ms")], [None, Some(8.0), Some(4.5)]);
    }

    #[test]
    fn a_label_is_beside_its_line_and_cut_where_the_room_ends() {
        let x = Scale::linear((0.0, 10.0), (0.0, 400.0));
        let placed = place(&[mark(1.0, "kill-device=dut"), mark(9.0, "black-hole=t2")], &x);
        let label = |x, is_before, text: &str| Some(Placed { x, row: 0, is_before, text: text.to_owned() });
        assert_eq!(placed, [label(44.0, false, "kill-device=dut"), label(356.0, true, "black-hole=t2")]);
        let narrow = Scale::linear((0.0, 10.0), (0.0, 100.0));
        assert_eq!(place(&[mark(1.0, "kill-device=dut")], &narrow)[0].as_ref().unwrap().text, "kill-devic…");
        assert_eq!(place(&[mark(1.0, "kill-device=dut")], &Scale::linear((0.0, 10.0), (0.0, 30.0))), [None]);
    }

    #[test]
    fn labels_that_meet_share_the_rows_and_those_without_room_are_left_out() {
        let x = Scale::linear((0.0, 10.0), (0.0, 400.0));
        let marks = [1.0, 1.1, 1.2, 4.9].map(|began| mark(began, "stop-target=t2"));
        let rows: Vec<Option<usize>> = place(&marks, &x).iter().map(|one| Some(one.as_ref()?.row)).collect();
        assert_eq!(rows, [Some(0), Some(1), None, Some(0)]);
    }
}
