//! Draws the account of all sent packets as a bar, with the lost part enlarged below.

use fathom_model::{Conservation, units::approximate};
use maud::{Markup, html};

use super::{Key, Plot, STRIPED, is_striped, px};

const WIDTH: f64 = 510.0;
const BAR: f64 = 30.0;
/// The room above a bar for the numbers of its parts.
const NUMBERS: f64 = 16.0;
const GAP: f64 = 44.0;
/// A thinner part has no room for its number.
const NUMBERED_MIN: f64 = 12.0;
/// The number of colors of places.
const N_COLOURS: usize = 4;

/// One part of the sent packets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BarPart<'a> {
    /// The place where they went.
    pub(crate) place: &'a str,
    /// The counter of the place.
    pub(crate) counter: &'a str,
    /// The number of packets; negative for packets that arrived more often than they were sent.
    pub(crate) n: i64,
    pub(crate) key: Key,
}

/// Returns the received packets, then each place that dropped some, then the packets that no counter explains, if any.
pub(crate) fn parts(conservation: &Conservation) -> Vec<BarPart<'_>> {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let dropped = conservation.drops.iter().filter(|drop| drop.n_dropped > 0).enumerate().map(|(index, drop)| {
        let stripes = if index / N_COLOURS % 2 == 1 { STRIPED } else { "" };
        let class = format!("d{}{stripes}", index % N_COLOURS + 1);
        (drop.place.as_str(), drop.counter.as_str(), signed(drop.n_dropped), class)
    });
    let unexplained = ("unexplained", "no counter", conservation.n_unexplained, "unexplained".to_owned());
    std::iter::once(("received", "", signed(conservation.n_received), "s1".to_owned()))
        .chain(dropped)
        .chain((conservation.n_unexplained != 0).then_some(unexplained))
        .zip(1..)
        .map(|((place, counter, n, class), number)| BarPart { place, counter, n, key: Key { class, number } })
        .collect()
}

/// A part with its place in a bar.
struct PlacedPart<'a> {
    part: &'a BarPart<'a>,
    left: f64,
    width: f64,
}

/// Places each part of a bar between its ends. Parts that are not positive are omitted.
fn laid_out<'a>(parts: &'a [BarPart<'a>], (from, to): (f64, f64)) -> Vec<PlacedPart<'a>> {
    let total = sum(parts);
    let mut left = from;
    let mut all = Vec::new();
    for part in parts.iter().filter(|part| part.n > 0) {
        let width = approximate(part.n.unsigned_abs()) / total * (to - from);
        all.push(PlacedPart { part, left, width });
        left += width;
    }
    all
}

fn sum(parts: &[BarPart<'_>]) -> f64 {
    parts.iter().filter(|part| part.n > 0).map(|part| approximate(part.n.unsigned_abs())).sum()
}

/// Draws all that was sent, and below it the lost part enlarged, if that is a small one.
pub(crate) fn balance(conservation: &Conservation) -> Plot {
    let parts = parts(conservation);
    let total = sum(&parts);
    if total <= 0.0 {
        return Err("Nothing was sent, so nothing could be lost.");
    }
    let (received, lost) = parts.split_at(1);
    let n_lost = sum(lost);
    // At least two pixels, so that a small loss is visible.
    let edge = if n_lost > 0.0 { (WIDTH * (1.0 - n_lost / total)).min(WIDTH - 2.0) } else { WIDTH };
    let is_enlarged = n_lost > 0.0 && n_lost < total / 2.0;
    let bottom = NUMBERS + BAR;
    let height = if is_enlarged { bottom + GAP + BAR } else { bottom };
    Ok(html! {
        svg.plot viewBox={ "0 0 " (px(WIDTH)) " " (px(height)) } role="img" aria-label={ "where the " (conservation.what) " went" } {
            @if is_enlarged {
                path.zoom d=(format!("M{} {}L0 {}H{}V{}z", px(edge), px(bottom), px(bottom + GAP), px(WIDTH), px(bottom))) {}
                text.tick x=(px(WIDTH - 12.0)) y=(px(bottom + 18.0)) text-anchor="end" { "the lost part, enlarged" }
                (bar(&laid_out(lost, (0.0, WIDTH)), bottom + GAP))
            }
            (bar(&laid_out(received, (0.0, edge)), NUMBERS))
            (bar(&laid_out(lost, (edge, WIDTH)), NUMBERS))
        }
    })
}

fn bar(parts: &[PlacedPart<'_>], top: f64) -> Markup {
    const STRIPE: f64 = 2.0;
    html! {
        @for PlacedPart { part, left, width } in parts {
            @if *width >= NUMBERED_MIN {
                text.tick x=(px(left + width / 2.0)) y=(px(top - 5.0)) text-anchor="middle" { (part.key.number) }
            }
            rect class={ "part " (part.key.class) } x=(px(*left)) y=(px(top)) width=(px(*width)) height=(px(BAR)) {
                title { (part.place) ": " (part.n) }
            }
            @if is_striped(&part.key.class) {
                @for third in [1.0, 2.0] {
                    rect.stripe x=(px(*left)) y=(px(top + BAR * third / 3.0 - STRIPE / 2.0)) width=(px(*width)) height=(px(STRIPE)) {}
                }
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
        let laid = laid_out(&parts, (0.0, WIDTH));
        assert_eq!(laid.iter().map(|placed| placed.part.place).collect::<Vec<_>>(), ["received", "socket"]);
        assert!((laid[1].left + laid[1].width - WIDTH).abs() < 1e-9);
    }

    #[test]
    fn the_lost_part_of_the_first_bar_has_the_colors_of_its_parts() {
        let drawn = |n_received, n_unexplained| {
            let conservation = Conservation { drops: Vec::new(), n_received, ..lossy(n_unexplained) };
            balance(&conservation).unwrap().into_string()
        };
        assert_eq!(drawn(90, 10).matches("part unexplained").count(), 2, "as it is, and enlarged");
        assert_eq!(drawn(0, 100).matches("part unexplained").count(), 1, "all is lost: nothing is to be enlarged");
    }

    #[test]
    fn no_two_of_eight_places_look_alike() {
        let drops = (1..=8).map(|n| Drops { place: n.to_string(), counter: String::new(), n_dropped: n }).collect();
        let conservation = Conservation { drops, ..lossy(0) };
        let mut classes: Vec<String> = parts(&conservation).into_iter().map(|part| part.key.class).collect();
        classes.sort_unstable();
        classes.dedup();
        assert_eq!(classes.len(), 9, "{classes:?}");
    }

    #[test]
    fn more_arrivals_than_sent_are_listed_but_take_no_room() {
        assert_eq!(parts(&lossy(-3)).last().map(|part| part.n), Some(-3));
        assert!(balance(&lossy(-3)).is_ok());
        assert!(parts(&lossy(0)).iter().all(|part| part.place != "unexplained"));
        let nothing = Conservation { n_sent: 0, n_received: 0, drops: Vec::new(), ..lossy(0) };
        assert!(balance(&nothing).is_err());
    }
}
