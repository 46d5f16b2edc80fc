//! Draws the parts of the time of a unit of work, a bar for a usual unit and one for a slow one, and the division of a stream's time.

use fathom_model::{
    Anatomy, AnatomyPart, Part, Side, TimeUse,
    units::{Nanos, approximate, percent},
};
use maud::{Markup, html};

use super::{Key, Plot, STRIPED, is_striped};

/// A part of less than this percentage has no room for its number.
const NUMBERED_MIN: f64 = 2.0;

/// The key of the part at a place: the color of its kind, with stripes at the other end.
pub(crate) fn key(index: usize, part: &AnatomyPart) -> Key {
    let colour = match part.part {
        Part::SendCall | Part::Connect => "s1",
        Part::LocalQueue | Part::Late => "s2",
        Part::Away | Part::Path | Part::BaselineRtt | Part::FirstByte => "s3",
        Part::WakeUp | Part::Download => "s4",
        Part::Program | Part::Server => "s5",
        Part::CoreWait => "s6",
    };
    let stripes = if part.side == Some(Side::Responder) { STRIPED } else { "" };
    Key { class: format!("{colour}{stripes}"), number: index + 1 }
}

/// Draws both bars, each as wide as the page, with their lengths above and their parts with their times below.
pub(crate) fn bars(anatomy: &Anatomy, named: &dyn Fn(&AnatomyPart) -> String) -> Plot {
    let median = anatomy.median();
    if median == Nanos::ZERO {
        return Err("The parts took no time that could be measured.");
    }
    let slow = anatomy.slow().filter(|slow| *slow > Nanos::ZERO);
    let share = |part: &AnatomyPart| percent(approximate(part.median_ns.0) / approximate(median.0));
    Ok(html! {
        p.stack { "usual: " b { (median.to_string()) } }
        (bar(anatomy, named, ("usual", median), |part| part.median_ns))
        @if let Some(slow) = slow {
            p.stack { "slow: " b { (slow.to_string()) } }
            (bar(anatomy, named, ("slow", slow), |part| part.slow_ns.unwrap_or_default()))
        }
        ul.legend {
            @for (index, part) in anatomy.parts.iter().enumerate() {
                li { (key(index, part).markup()) (named(part)) " " b { (part.median_ns.to_string()) } " " (share(part)) }
            }
        }
    })
}

fn bar(
    anatomy: &Anatomy,
    named: &dyn Fn(&AnatomyPart) -> String,
    (which, whole): (&str, Nanos),
    of: fn(&AnatomyPart) -> Nanos,
) -> Markup {
    let part = |(index, part): (usize, &AnatomyPart)| StackedPart {
        key: key(index, part),
        share: approximate(of(part).0) / approximate(whole.0),
        title: format!("{}: {}", named(part), of(part)),
    };
    stacked(&format!("parts of the time, {which}"), anatomy.parts.iter().enumerate().map(part))
}

/// A part of a stacked bar.
struct StackedPart {
    key: Key,
    /// Its share of the whole bar.
    share: f64,
    /// The text that a pointer shows.
    title: String,
}

/// Draws parts beside each other as wide as the page, with their numbers above them. Places are shares of the width.
fn stacked(name: &str, parts: impl Iterator<Item = StackedPart>) -> Markup {
    let mut x = 0.0;
    let placed = parts.map(|part| {
        let width = part.share * 100.0;
        x += width;
        (part, x - width, width)
    });
    let at = |share: f64| format!("{share:.2}%");
    html! {
        svg.stack role="img" aria-label=(name) {
            @for (part, x, width) in placed {
                @if width >= NUMBERED_MIN {
                    text x=(at(x + width / 2.0)) y="11" text-anchor="middle" { (part.key.number) }
                }
                rect class={ "part " (part.key.class) } x=(at(x)) y="16" width=(at(width)) height="27" {
                    title { (part.title) }
                }
                @if is_striped(&part.key.class) {
                    @for y in ["24", "33"] { rect.stripe x=(at(x)) y=(y) width=(at(width)) height="2" {} }
                }
            }
        }
    }
}

/// The CSS class of a use of time.
const fn use_class(to: TimeUse) -> &'static str {
    match to {
        TimeUse::OnCore => "s5",
        TimeUse::CoreWait => "s6",
        TimeUse::Asleep | TimeUse::NoData => "s7",
        TimeUse::Network => "s3",
        TimeUse::ReceiveWindow => "s4",
        TimeUse::SendBuffer => "s2",
    }
}

/// The texts of a bar of an owner's time.
pub(crate) struct TimeBar {
    pub(crate) owner: String,
    /// Each use with its name and its share.
    pub(crate) shares: Vec<(TimeUse, &'static str, f64)>,
}

/// Draws a bar for each owner of time, with its name above and the names of its uses below.
pub(crate) fn time_bars(all: &[TimeBar]) -> Markup {
    let key = |index: usize, to: TimeUse| Key { class: use_class(to).to_owned(), number: index + 1 };
    let part = |(index, (to, name, share)): (usize, &(TimeUse, &str, f64))| StackedPart {
        key: key(index, *to),
        share: *share,
        title: format!("{name}: {}", percent(*share)),
    };
    html! {
        @for bar in all {
            p.stack { (bar.owner) }
            (stacked(&format!("parts of the time, {}", bar.owner), bar.shares.iter().enumerate().map(part)))
            ul.legend {
                @for (index, (to, name, share)) in bar.shares.iter().enumerate() {
                    li { (key(index, *to).markup()) (name) " " (percent(*share)) }
                }
            }
        }
    }
}
