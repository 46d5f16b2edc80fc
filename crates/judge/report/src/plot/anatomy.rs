//! Draws the parts of the time of a unit of work, a bar for a usual unit and one for a slow one, and the division of a stream's time.

use fathom_model::{
    Anatomy, AnatomyPart, Part, Side, TimeUse,
    units::{Nanos, approximate, percent},
};
use maud::{Markup, html};

use super::{Plot, px};

/// The length of a bar in its own coordinates; the page stretches it to its width.
const WIDTH: f64 = 1000.0;

/// The CSS class of a part: its color, paler at the other end.
pub(crate) fn class(part: &AnatomyPart) -> String {
    let colour = match part.part {
        Part::SendCall | Part::Connect => "s1",
        Part::LocalQueue | Part::Late => "s2",
        Part::Away | Part::Path | Part::BaselineRtt | Part::FirstByte => "s3",
        Part::WakeUp | Part::Download => "s4",
        Part::Program | Part::Server => "s5",
        Part::CoreWait => "s6",
    };
    if part.side == Some(Side::Responder) { format!("{colour} far") } else { colour.to_owned() }
}

/// Draws both bars, each as wide as the page, with their lengths above and the names of their parts below.
pub(crate) fn bars(anatomy: &Anatomy, named: &dyn Fn(&AnatomyPart) -> String) -> Plot {
    let median = anatomy.median();
    if median == Nanos::ZERO {
        return Err("The parts took no time that could be measured.");
    }
    let slow = anatomy.slow().filter(|slow| *slow > Nanos::ZERO);
    Ok(html! {
        p.stack { "usual: " b { (median.to_string()) } }
        (bar(anatomy, named, median, |part| part.median_ns))
        @if let Some(slow) = slow {
            p.stack { "slow: " b { (slow.to_string()) } }
            (bar(anatomy, named, slow, |part| part.slow_ns.unwrap_or_default()))
        }
        ul.legend {
            @for part in &anatomy.parts { li { span class={ "key " (class(part)) } {} (named(part)) } }
        }
    })
}

fn bar(
    anatomy: &Anatomy,
    named: &dyn Fn(&AnatomyPart) -> String,
    whole: Nanos,
    of: fn(&AnatomyPart) -> Nanos,
) -> Markup {
    stacked(anatomy.parts.iter().map(|part| StackedPart {
        class: class(part),
        share: approximate(of(part).0) / approximate(whole.0),
        title: format!("{}: {}", named(part), of(part)),
    }))
}

/// A part of a stacked bar.
struct StackedPart {
    class: String,
    /// Its share of the whole bar.
    share: f64,
    /// The text that a pointer shows.
    title: String,
}

fn stacked(parts: impl Iterator<Item = StackedPart>) -> Markup {
    let mut x = 0.0;
    let placed = parts.map(|part| {
        let width = part.share * WIDTH;
        x += width;
        (part, x - width, width)
    });
    html! {
        svg.stack viewBox={ "0 0 " (px(WIDTH)) " 10" } preserveAspectRatio="none" role="img" aria-label="parts of the time" {
            @for (part, x, width) in placed {
                rect class={ "part " (part.class) } x=(px(x)) y="0" width=(px(width)) height="10" {
                    title { (part.title) }
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
    let part = |(to, name, share): &(TimeUse, &str, f64)| StackedPart {
        class: use_class(*to).to_owned(),
        share: *share,
        title: format!("{name}: {}", percent(*share)),
    };
    html! {
        @for bar in all {
            p.stack { (bar.owner) }
            (stacked(bar.shares.iter().map(part)))
            ul.legend {
                @for (to, name, share) in &bar.shares {
                    li { span class={ "key " (use_class(*to)) } {} (name) " " (percent(*share)) }
                }
            }
        }
    }
}
