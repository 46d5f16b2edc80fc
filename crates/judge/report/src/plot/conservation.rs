//! Draws the account of all sent packets as a bar, with the lost part enlarged below.

use fathom_model::{Conservation, units::approximate};
use maud::{Markup, html};

use super::{Plot, px};

const WIDTH: f64 = 510.0;
const BAR: f64 = 30.0;
const GAP: f64 = 34.0;

/// One part of the sent packets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BarPart<'a> {
    /// The place where they went.
    pub(crate) place: &'a str,
    /// The counter of the place.
    pub(crate) counter: &'a str,
    /// The number of packets; negative for packets that arrived more often than they were sent.
    pub(crate) n: i64,
    /// The CSS class of the color.
    pub(crate) class: String,
}

/// Returns the received packets, then each drop, then the packets that no counter explains.
pub(crate) fn parts(conservation: &Conservation) -> Vec<BarPart<'_>> {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let mut parts =
        vec![BarPart { place: "received", counter: "", n: signed(conservation.n_received), class: "s1".to_owned() }];
    for (index, drop) in conservation.drops.iter().enumerate() {
        let class = format!("d{}", index % 4 + 1);
        parts.push(BarPart { place: &drop.place, counter: &drop.counter, n: signed(drop.n_dropped), class });
    }
    let class = "unexplained".to_owned();
    parts.push(BarPart { place: "unexplained", counter: "no counter", n: conservation.n_unexplained, class });
    parts
}

/// A part with its place in a bar.
struct PlacedPart<'a> {
    part: &'a BarPart<'a>,
    left: f64,
    width: f64,
}

/// Places each part of a bar. Parts that are not positive are omitted.
fn laid_out<'a>(parts: &'a [BarPart<'a>], total: f64) -> Vec<PlacedPart<'a>> {
    let mut left = 0.0;
    let mut all = Vec::new();
    for part in parts.iter().filter(|part| part.n > 0) {
        let width = approximate(part.n.unsigned_abs()) / total * WIDTH;
        all.push(PlacedPart { part, left, width });
        left += width;
    }
    all
}

/// Draws both bars, or only the first if nothing was lost.
pub(crate) fn balance(conservation: &Conservation) -> Plot {
    let parts = parts(conservation);
    let sum =
        |parts: &[BarPart]| parts.iter().filter(|part| part.n > 0).map(|part| approximate(part.n.unsigned_abs())).sum();
    let total: f64 = sum(&parts);
    if total <= 0.0 {
        return Err("Nothing was sent, so nothing could be lost.");
    }
    let lost: f64 = sum(&parts[1..]);
    let received = WIDTH * (1.0 - lost / total);
    let height = if lost > 0.0 { 2.0 * BAR + GAP } else { BAR };
    Ok(html! {
        svg.plot viewBox={ "0 0 " (px(WIDTH)) " " (px(height)) } role="img" aria-label={ "where the " (conservation.what) " went" } {
            (bar(&laid_out(&parts, total), 0.0))
            @if lost > 0.0 {
                // At least two pixels, so that a small loss is visible.
                @let edge = received.min(WIDTH - 2.0);
                rect.lost x=(px(edge)) y="0" width=(px(WIDTH - edge)) height=(px(BAR)) {}
                path.zoom d=(format!("M{} {}L0 {}H{}V{}z", px(edge), px(BAR), px(BAR + GAP), px(WIDTH), px(BAR))) {}
                text.tick x=(px(WIDTH - 12.0)) y=(px(BAR + GAP - 8.0)) text-anchor="end" { "the lost part, enlarged" }
                (bar(&laid_out(&parts[1..], lost), BAR + GAP))
            }
        }
    })
}

fn bar(parts: &[PlacedPart<'_>], top: f64) -> Markup {
    html! {
        @for PlacedPart { part, left, width } in parts {
            rect class={ "part " (part.class) } x=(px(*left)) y=(px(top)) width=(px(*width)) height=(px(BAR)) {
                title { (part.place) ": " (part.n) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::summary::Drops;

    use super::*;

    fn lossy(n_unexplained: i64) -> Conservation {
        let drops = vec![Drops { place: "socket".to_owned(), counter: "b udp".to_owned(), n_dropped: 25 }];
        Conservation {
            what: "datagrams".to_owned(),
            n_intended: None,
            n_sent: 100,
            n_received: 75,
            drops,
            n_unexplained,
        }
    }

    #[test]
    fn the_parts_of_a_bar_fill_it_exactly() {
        let conservation = lossy(0);
        let parts = parts(&conservation);
        let laid = laid_out(&parts, 100.0);
        assert_eq!(laid.iter().map(|placed| placed.part.place).collect::<Vec<_>>(), ["received", "socket"]);
        assert!((laid[1].left + laid[1].width - WIDTH).abs() < 1e-9);
    }

    #[test]
    fn more_arrivals_than_sent_are_listed_but_take_no_room() {
        assert_eq!(parts(&lossy(-3)).last().map(|part| part.n), Some(-3));
        assert!(balance(&lossy(-3)).is_ok());
        let nothing = Conservation { n_sent: 0, n_received: 0, drops: Vec::new(), ..lossy(0) };
        assert!(balance(&nothing).is_err());
    }
}
