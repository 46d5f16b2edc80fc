//! The queues of one interface: channels, rings, coalescing, offloads, and the share of each queue.

use std::collections::BTreeMap;

use fathom_model::units::{Nanos, PerSec, approximate, grouped, percent, ratio};
use fathom_sys::netlink::ethtool::{Channels, Coalescing, Device, Feature, Queues, Rings};

use crate::{
    lines::{Line, Tone, Width, aligned, shortened, wrapped},
    queue_names::{Direction, queue_of},
};

/// What the driver tells of an interface at one time (`ethtool -l -g -c -k -S`).
#[derive(Debug)]
pub struct QueueReading {
    at: Nanos,
    channels: Option<Channels>,
    rings: Option<Rings>,
    coalescing: Option<Coalescing>,
    features: Vec<Feature>,
    statistics: Vec<(String, u64)>,
}

impl QueueReading {
    /// Reads an interface; `now` is the monotonic clock.
    ///
    /// # Errors
    /// If there is no such interface. What its driver does not tell is missing.
    pub fn read(interface: &str, now: Nanos) -> fathom_sys::Result<Self> {
        let device = Device::open(interface)?;
        device.driver()?;
        Ok(Self {
            at: now,
            channels: device.channels().ok().flatten(),
            rings: device.rings().ok().flatten(),
            coalescing: device.coalescing().ok().flatten(),
            features: device.features().unwrap_or_default(),
            statistics: device.statistics().unwrap_or_default(),
        })
    }
}

/// Returns the queues of an interface at the later of two readings, and the share of each between them.
#[must_use]
pub fn queue_lines(interface: &str, earlier: &QueueReading, later: &QueueReading, width: Width) -> Vec<Line> {
    let head = format!("fathom watch   queues of {interface}");
    let mut lines = vec![Line::new(shortened(&head, width), Tone::Plain)];
    let facts = [
        ("channels", later.channels.map(channels)),
        ("rings", later.rings.map(|r| format!("rx {} of {}, tx {} of {}", r.rx, r.rx_max, r.tx, r.tx_max))),
        ("coalescing", later.coalescing.map(coalescing)),
        ("features on", features(&later.features, |feature| feature.changeable && feature.active)),
        ("features off", features(&later.features, |feature| feature.changeable && !feature.active)),
        ("features fixed", fixed(&later.features)),
    ];
    for (name, fact) in facts {
        let fact = fact.unwrap_or_else(|| "the driver does not tell".to_owned());
        lines.extend(wrapped(&format!("{name:<15}"), &fact, Tone::Plain, width));
    }
    let cells = shares(earlier, later);
    lines.push(Line::new("", Tone::Plain));
    if cells.len() < 2 {
        lines.extend(wrapped("", "the driver does not count packets by queue", Tone::Faint, width));
    } else {
        lines.extend(table(&cells, width));
    }
    lines.extend(others(earlier, later, width));
    lines
}

/// Returns cells as lines, of which the first has the titles.
fn table(cells: &[Vec<String>], width: Width) -> impl Iterator<Item = Line> {
    let tone = |row: usize| if row == 0 { Tone::Title } else { Tone::Plain };
    aligned(cells).into_iter().enumerate().map(move |(row, text)| Line::new(shortened(&text, width), tone(row)))
}

fn channels(channels: Channels) -> String {
    let purpose = |name: &str, of: fn(&Queues) -> u32| {
        (of(&channels.max) > 0).then(|| format!("{name} {} of {}", of(&channels.current), of(&channels.max)))
    };
    let all = [purpose("rx", |q| q.rx), purpose("tx", |q| q.tx), purpose("combined", |q| q.combined)];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn coalescing(set: Coalescing) -> String {
    let adaptive = |is: bool| if is { ", adaptive" } else { ", not adaptive" };
    format!(
        "rx {} µs or {} frames{}; tx {} µs or {} frames{}",
        set.rx_usecs,
        set.rx_frames,
        adaptive(set.rx_adaptive),
        set.tx_usecs,
        set.tx_frames,
        adaptive(set.tx_adaptive)
    )
}

/// Returns the features of a kind by their names; `None` if the driver tells none at all.
fn features(all: &[Feature], is_of_kind: fn(&Feature) -> bool) -> Option<String> {
    let names: Vec<&str> = all.iter().filter(|one| is_of_kind(one)).map(|feature| feature.name.as_str()).collect();
    let told = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    (!all.is_empty()).then_some(told)
}

/// Returns how many features nobody can switch.
fn fixed(all: &[Feature]) -> Option<String> {
    let count = |active| all.iter().filter(|feature| !feature.changeable && feature.active == active).count();
    (!all.is_empty()).then(|| format!("{} on, {} off", count(true), count(false)))
}

/// Returns the packets of each queue per second and its share of its direction, under a row of titles.
fn shares(earlier: &QueueReading, later: &QueueReading) -> Vec<Vec<String>> {
    let seconds = later.at.since(earlier.at).as_secs_f64();
    let growth = packets_by_queue(earlier, later);
    let mut cells = vec![["queue", "packets", "share"].map(str::to_owned).to_vec()];
    for direction in [Direction::Rx, Direction::Tx] {
        let word = direction.word();
        let of_way = || growth.iter().filter(|((way, _), _)| *way == direction);
        let all: u64 = of_way().map(|(_, n)| n).sum();
        cells.extend(of_way().map(|((_, queue), n)| {
            let rate = PerSec::new(approximate(*n) / seconds).map_or_else(String::new, |rate| rate.to_string());
            vec![format!("{word} {queue}"), rate, ratio(*n, all).map_or_else(|| "–".to_owned(), percent)]
        }));
    }
    cells
}

fn packets_by_queue(earlier: &QueueReading, later: &QueueReading) -> BTreeMap<(Direction, u32), u64> {
    let before: BTreeMap<&str, u64> = earlier.statistics.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let growth = |(name, value): &(String, u64)| {
        let known = before.get(name.as_str()).copied().unwrap_or(*value);
        Some((queue_of(name)?, value.saturating_sub(known)))
    };
    later.statistics.iter().filter_map(growth).collect()
}

/// The most further counters that are shown.
const OTHERS_MAX: usize = 20;

/// Returns the other counters of the driver: those that grew, then as many of the others as there is room for.
fn others(earlier: &QueueReading, later: &QueueReading, width: Width) -> Vec<Line> {
    let before: BTreeMap<&str, u64> = earlier.statistics.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let known = later.statistics.iter().filter(|(name, _)| queue_of(name).is_none());
    let mut all: Vec<(u64, &str, u64)> = known
        .map(|(name, value)| {
            let past = before.get(name.as_str()).copied().unwrap_or(*value);
            (value.saturating_sub(past), name.trim(), *value)
        })
        .collect();
    if all.is_empty() {
        return Vec::new();
    }
    all.sort_by_key(|(grew, ..)| *grew == 0);
    let beyond = all.len().saturating_sub(OTHERS_MAX);
    let titles = ["other counters", "value", "grew by"].map(str::to_owned).to_vec();
    let row = |(grew, name, value): &(u64, &str, u64)| vec![(*name).to_owned(), grouped(*value), grouped(*grew)];
    let cells: Vec<Vec<String>> = std::iter::once(titles).chain(all.iter().take(OTHERS_MAX).map(row)).collect();
    let more = (beyond > 0).then(|| Line::new(format!("and {beyond} more"), Tone::Faint));
    std::iter::once(Line::new("", Tone::Plain)).chain(table(&cells, width)).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(second: u64, counted: u64) -> QueueReading {
        let feature = |name: &str, active, changeable| Feature { name: name.to_owned(), active, changeable };
        QueueReading {
            at: Nanos::from_secs(second),
            channels: None,
            rings: None,
            coalescing: Some(Coalescing {
                rx_usecs: 8,
                rx_frames: 0,
                tx_usecs: 8,
                tx_frames: 0,
                rx_adaptive: false,
                tx_adaptive: true,
            }),
            features: vec![
                feature("rx-gro", true, true),
                feature("rx-lro", false, true),
                feature("netns-local", true, false),
                feature("tx-lockless", false, false),
                feature("fcoe-mtu", false, false),
            ],
            statistics: vec![
                ("rx_queue_0_drops".to_owned(), 0),
                ("rx_queue_0_xdp_packets".to_owned(), counted),
                ("peer_ifindex".to_owned(), 7),
            ],
        }
    }

    #[test]
    fn features_have_their_state_and_counters_that_are_not_of_packets_by_queue_are_listed() {
        let lines: Vec<String> = queue_lines("vv0", &reading(1, 1_000), &reading(2, 1_900), Width::Any)
            .into_iter()
            .map(|line| line.text)
            .collect();
        assert_eq!(
            lines,
            [
                "fathom watch   queues of vv0",
                "channels       the driver does not tell",
                "rings          the driver does not tell",
                "coalescing     rx 8 µs or 0 frames, not adaptive; tx 8 µs or 0 frames, adaptive",
                "features on    rx-gro",
                "features off   rx-lro",
                "features fixed 1 on, 2 off",
                "",
                "the driver does not count packets by queue",
                "",
                "other counters          value  grew by",
                "rx_queue_0_xdp_packets  1,900      900",
                "rx_queue_0_drops            0        0",
                "peer_ifindex                7        0",
            ]
        );
    }

    #[test]
    fn every_line_fits_on_a_terminal() {
        for width in 20..100 {
            let lines = queue_lines("vv0", &reading(1, 0), &reading(2, 5), Width::Columns(width));
            assert!(lines.iter().all(|line| line.text.chars().count() <= width), "at {width}: {lines:?}");
        }
    }
}
