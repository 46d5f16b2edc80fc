//! The queues of one interface: channels, rings, coalescing, offloads, and the share of each queue.

use std::collections::BTreeMap;

use fathom_model::units::{Nanos, PerSec, approximate, percent, ratio};
use fathom_sys::netlink::ethtool::{Channels, Coalescing, Device, Queues, Rings};

use crate::{
    lines::{Line, Tone, aligned},
    queue_names::{Direction, queue_of},
};

/// Features whose state people ask for first, under the kernel's names.
const FEATURES: [&str; 7] =
    ["rx-gro", "rx-gro-hw", "rx-lro", "rx-checksum", "rx-hashing", "tx-tcp-segmentation", "tx-generic-segmentation"];

/// What the driver tells of an interface at one time (`ethtool -l -g -c -k -S`).
#[derive(Debug)]
pub struct QueueReading {
    at: Nanos,
    channels: Option<Channels>,
    rings: Option<Rings>,
    coalescing: Option<Coalescing>,
    features: Vec<(String, bool)>,
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
        let features = device.features().unwrap_or_default();
        Ok(Self {
            at: now,
            channels: device.channels().ok().flatten(),
            rings: device.rings().ok().flatten(),
            coalescing: device.coalescing().ok().flatten(),
            features: features.into_iter().map(|feature| (feature.name, feature.active)).collect(),
            statistics: device.statistics().unwrap_or_default(),
        })
    }
}

/// Returns the queues of an interface at the later of two readings, and the share of each between them.
#[must_use]
pub fn queue_lines(interface: &str, earlier: &QueueReading, later: &QueueReading) -> Vec<Line> {
    let mut lines = vec![Line::new(format!("fathom watch   queues of {interface}"), Tone::Plain)];
    let facts = [
        ("channels", later.channels.map(channels)),
        ("rings", later.rings.map(|r| format!("rx {} of {}, tx {} of {}", r.rx, r.rx_max, r.tx, r.tx_max))),
        ("coalescing", later.coalescing.map(coalescing)),
        ("offloads", offloads(&later.features)),
    ];
    for (name, fact) in facts {
        let fact = fact.unwrap_or_else(|| "the driver does not tell".to_owned());
        lines.push(Line::new(format!("{name:<11} {fact}"), Tone::Plain));
    }
    let cells = shares(earlier, later);
    lines.push(Line::new("", Tone::Plain));
    if cells.len() < 2 {
        lines.push(Line::new("the driver has no counters per queue", Tone::Faint));
    }
    let tone = |row: usize| if row == 0 { Tone::Title } else { Tone::Plain };
    lines.extend(
        aligned(&cells)
            .into_iter()
            .enumerate()
            .skip_while(|_| cells.len() < 2)
            .map(|(row, text)| Line::new(text, tone(row))),
    );
    lines.extend(others(earlier, later));
    lines
}

fn channels(channels: Channels) -> String {
    let purpose = |name: &str, of: fn(&Queues) -> u32| {
        (of(&channels.max) > 0).then(|| format!("{name} {} of {}", of(&channels.current), of(&channels.max)))
    };
    let all = [purpose("rx", |q| q.rx), purpose("tx", |q| q.tx), purpose("combined", |q| q.combined)];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn coalescing(set: Coalescing) -> String {
    let adaptive = |is: bool| if is { ", adaptive" } else { "" };
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

fn offloads(features: &[(String, bool)]) -> Option<String> {
    let state = |name: &&str| {
        let (_, active) = features.iter().find(|(known, _)| known == name)?;
        Some(format!("{name} {}", if *active { "on" } else { "off" }))
    };
    let all: Vec<String> = FEATURES.iter().filter_map(state).collect();
    (!all.is_empty()).then(|| all.join(", "))
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

/// Returns the other counters of the driver that grew.
fn others(earlier: &QueueReading, later: &QueueReading) -> Vec<Line> {
    let before: BTreeMap<&str, u64> = earlier.statistics.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let grown = later.statistics.iter().filter_map(|(name, value)| {
        let n = value.saturating_sub(*before.get(name.as_str())?);
        (n > 0 && queue_of(name).is_none()).then(|| vec![name.trim().to_owned(), fathom_model::units::grouped(n)])
    });
    let mut cells = vec![vec!["other counters that grew".to_owned(), "by".to_owned()]];
    cells.extend(grown);
    let beyond = cells.len().saturating_sub(1 + OTHERS_MAX);
    cells.truncate(1 + OTHERS_MAX);
    if cells.len() == 1 {
        return Vec::new();
    }
    let tone = |row: usize| if row == 0 { Tone::Title } else { Tone::Plain };
    let lines = aligned(&cells).into_iter().enumerate().map(|(row, text)| Line::new(text, tone(row)));
    let more = (beyond > 0).then(|| Line::new(format!("and {beyond} more"), Tone::Faint));
    std::iter::once(Line::new("", Tone::Plain)).chain(lines).chain(more).collect()
}
