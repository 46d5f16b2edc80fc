//! Draws the parts of the time of a unit of work: a bar for a usual unit, and one for a slow one.

use fathom_model::{
    Anatomy, AnatomyPart, Part, Side,
    units::{Nanos, approximate},
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
        Part::Away | Part::Path | Part::FirstByte => "s3",
        Part::WakeUp | Part::Download => "s4",
        Part::Program => "s5",
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
    let mut x = 0.0;
    let placed = anatomy.parts.iter().map(|part| {
        let width = approximate(of(part).0) / approximate(whole.0) * WIDTH;
        x += width;
        (part, x - width, width)
    });
    html! {
        svg.stack viewBox={ "0 0 " (px(WIDTH)) " 10" } preserveAspectRatio="none" role="img" aria-label="parts of the time" {
            @for (part, x, width) in placed {
                rect class={ "part " (class(part)) } x=(px(x)) y="0" width=(px(width)) height="10" {
                    title { (named(part)) ": " (of(part).to_string()) }
                }
            }
        }
    }
}
