//! The defects that can be switched on, as text and as values.
//!
//! Those of the decision (`mis-hash`, `ignore-ports` and so on) are applied by the balancer; the data path reads the others.

use std::{fmt, num::NonZeroU32, str::FromStr};

use fathom_model::units::Nanos;
use fathom_statistics::splitmix;

use crate::maglev::{TableSize, TableSizeError};

/// One in this many, drawn at random from a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneIn(pub NonZeroU32);

/// The kinds of defects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Defect {
    /// Packets vanish in the data path.
    Drop,
    /// Packets are forwarded twice.
    Duplicate,
    /// Packets are forwarded later.
    Delay,
    /// Packets are overtaken by the next one.
    Reorder,
    /// Packets go to another target than their flow.
    MisHash,
    /// The hash has no ports.
    IgnorePorts,
    /// The hash of fragments has no ports.
    FragmentsWithoutPorts,
    /// The table is empty while it is built.
    InPlaceRebuild,
    /// The fragment table forgets datagrams.
    ForgetFragment,
    /// Answers have the address of the device.
    WrongSource,
    /// The packets of one target vanish.
    Blackhole,
    /// The Maglev table has few places.
    TinyTable,
    /// Memory is never freed.
    Leak,
    /// The queue copies too few bytes.
    CopyRange,
    /// The queue does not take packets that are cut later.
    NoGso,
}

/// A defect as it is written, and what it does.
#[derive(Debug, Clone, Copy)]
pub struct DefectDoc {
    /// The defect.
    pub defect: Defect,
    /// Its word.
    pub word: &'static str,
    /// An example with its value.
    pub example: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
}

const fn doc(defect: Defect, word: &'static str, example: &'static str, about: &'static str) -> DefectDoc {
    DefectDoc { defect, word, example, about }
}

/// All defects, in the order of the documentation.
pub const DEFECTS: [DefectDoc; 15] = [
    doc(Defect::Drop, "drop", "drop=1/100", "drops one packet in this many"),
    doc(Defect::Duplicate, "duplicate", "duplicate=1/100", "forwards one in this many twice"),
    doc(Defect::Delay, "delay", "delay=1/10@5ms", "forwards one in this many so much later"),
    doc(Defect::Reorder, "reorder", "reorder=1/100", "lets the next packet overtake one in this many"),
    doc(
        Defect::MisHash,
        "mis-hash",
        "mis-hash=1/1000",
        "sends one packet in this many to another target than its flow",
    ),
    doc(Defect::IgnorePorts, "ignore-ports", "ignore-ports", "hashes addresses alone"),
    doc(
        Defect::FragmentsWithoutPorts,
        "fragments-without-ports",
        "fragments-without-ports",
        "hashes fragmented datagrams by their addresses, whole ones with ports",
    ),
    doc(
        Defect::InPlaceRebuild,
        "in-place-rebuild",
        "in-place-rebuild",
        "empties the table before it builds it anew, so that packets find no target meanwhile",
    ),
    doc(
        Defect::ForgetFragment,
        "forget-fragment",
        "forget-fragment=1/20",
        "forgets where the later fragments of one datagram in this many go",
    ),
    doc(Defect::WrongSource, "wrong-source", "wrong-source", "lets answers leave with the device's address"),
    doc(Defect::Blackhole, "blackhole", "blackhole=t3", "drops every packet for this target"),
    doc(Defect::TinyTable, "tiny-table", "tiny-table=7", "builds tables of so many places"),
    doc(Defect::Leak, "leak", "leak=1/100", "keeps 256 bytes for ever for one packet in this many"),
    doc(Defect::CopyRange, "copy-range", "copy-range=22", "has the queue copy so many bytes of a packet"),
    doc(Defect::NoGso, "no-gso", "no-gso", "has packets cut into segments before the queue"),
];

impl Defect {
    /// The word that it is written with.
    #[must_use]
    pub fn word(self) -> &'static str {
        DEFECTS.iter().find(|doc| doc.defect == self).map_or("", |doc| doc.word)
    }
}

impl OneIn {
    /// Returns whether the event with this number has the defect. The same seed repeats the draw; each defect has draws of its own.
    #[must_use]
    pub fn hits(self, defect: Defect, seed: u64, number: u64) -> bool {
        let own_seed = splitmix(seed, 1 + u64::from(defect as u8));
        splitmix(own_seed, number).is_multiple_of(u64::from(self.0.get()))
    }
}

impl fmt::Display for OneIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1/{}", self.0)
    }
}

/// What the balancer does wrong on purpose; by default nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each of them is a switch of its own")]
pub struct Defects {
    /// Data path: packets that are dropped.
    pub drop: Option<OneIn>,
    /// Data path: packets that are forwarded twice.
    pub duplicate: Option<OneIn>,
    /// Data path: packets that are forwarded later, and how much later.
    pub delay: Option<(OneIn, Nanos)>,
    /// Data path: packets that the next one of their queue overtakes.
    pub reorder: Option<OneIn>,
    /// Packets that go to another target than their flow.
    pub mis_hash: Option<OneIn>,
    /// Ports do not take part in the hash.
    pub ignore_ports: bool,
    /// Fragments are hashed without ports, whole packets with them.
    pub fragments_without_ports: bool,
    /// The table is emptied before it is built anew.
    pub in_place_rebuild: bool,
    /// Datagrams whose entry in the fragment table is not written.
    pub forget_fragment: Option<OneIn>,
    /// Data path: answers of targets leave with the address of the device.
    pub wrong_source: bool,
    /// The target whose packets are dropped.
    pub blackhole: Option<String>,
    /// The size of the Maglev tables in place of the configured one.
    pub tiny_table: Option<TableSize>,
    /// Forwarded packets for each of which memory is kept for ever.
    pub leak: Option<OneIn>,
    /// Data path: the number of bytes of a packet that the queue copies to the balancer.
    pub copy_range: Option<u32>,
    /// Data path: packets are cut into segments before the queue instead of behind it.
    pub no_gso: bool,
}

/// Why a text is no list of defects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefectsError {
    /// A word that is no defect.
    #[error("defect `{0}` is not known: {list}", list = words())]
    Unknown(String),
    /// A value that the defect does not take.
    #[error("defect `{given}`: write {example}")]
    Value {
        /// The part as it was given.
        given: String,
        /// How it is written.
        example: &'static str,
    },
    /// A size that no table has.
    #[error("defect tiny-table: {0}")]
    TableSize(TableSizeError),
    /// A defect that is given twice.
    #[error("defect {0} is given twice")]
    Twice(&'static str),
}

fn words() -> String {
    DEFECTS.map(|doc| doc.word).join(", ")
}

/// The size of the tiny table if none is given: fewer places than the ten targets of the usual test have.
const TINY: u32 = 7;

/// Parses `1/100`.
fn one_in(text: &str) -> Option<OneIn> {
    text.strip_prefix("1/")?.parse().ok().map(OneIn)
}

impl FromStr for Defects {
    type Err = DefectsError;

    /// Parses a list such as `mis-hash=1/100,ignore-ports`.
    fn from_str(text: &str) -> Result<Self, DefectsError> {
        let mut defects = Self::default();
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (word, value) = part.split_once('=').map_or((part, None), |(word, value)| (word, Some(value)));
            let doc = DEFECTS.iter().find(|doc| doc.word == word);
            let doc = doc.ok_or_else(|| DefectsError::Unknown(word.to_owned()))?;
            if seen.contains(&doc.defect) {
                return Err(DefectsError::Twice(doc.word));
            }
            seen.push(doc.defect);
            let wrong = || DefectsError::Value { given: part.to_owned(), example: doc.example };
            if doc.defect == Defect::TinyTable {
                let size = value.map_or(Some(TINY), |value| value.parse().ok()).ok_or_else(wrong)?;
                defects.tiny_table = Some(TableSize::new(size).map_err(DefectsError::TableSize)?);
            } else {
                defects.set(doc.defect, value).ok_or_else(wrong)?;
            }
        }
        Ok(defects)
    }
}

impl Defects {
    /// Sets a defect; `None` if it does not take the value.
    fn set(&mut self, defect: Defect, value: Option<&str>) -> Option<()> {
        let flag = || value.is_none().then_some(true);
        match defect {
            Defect::Drop => self.drop = Some(one_in(value?)?),
            Defect::Duplicate => self.duplicate = Some(one_in(value?)?),
            Defect::Delay => {
                let (share, time) = value?.split_once('@')?;
                self.delay = Some((one_in(share)?, time.parse().ok().filter(|time| *time > Nanos::ZERO)?));
            }
            Defect::Reorder => self.reorder = Some(one_in(value?)?),
            Defect::MisHash => self.mis_hash = Some(one_in(value?)?),
            Defect::IgnorePorts => self.ignore_ports = flag()?,
            Defect::FragmentsWithoutPorts => self.fragments_without_ports = flag()?,
            Defect::InPlaceRebuild => self.in_place_rebuild = flag()?,
            Defect::ForgetFragment => self.forget_fragment = Some(one_in(value?)?),
            Defect::WrongSource => self.wrong_source = flag()?,
            Defect::Blackhole => self.blackhole = Some(value.filter(|name| !name.is_empty())?.to_owned()),
            Defect::TinyTable => self.tiny_table = Some(value?.parse().ok()?),
            Defect::Leak => self.leak = Some(one_in(value?)?),
            Defect::CopyRange => self.copy_range = Some(value?.parse().ok().filter(|bytes| *bytes > 0)?),
            Defect::NoGso => self.no_gso = flag()?,
        }
        Some(())
    }

    /// Those of the decision among targets, which a balancer without any cannot have; `None` if there are none.
    #[must_use]
    pub fn of_targets(&self) -> Option<Self> {
        let of_targets = Self { drop: None, duplicate: None, delay: None, reorder: None, ..self.clone() };
        let of_targets = Self { copy_range: None, no_gso: false, tiny_table: None, ..of_targets };
        (of_targets != Self::default()).then_some(of_targets)
    }

    /// Those that a data path with only the table cannot have; `None` if there are none.
    #[must_use]
    pub fn beside_table(&self) -> Option<Self> {
        let others = Self { tiny_table: None, ..self.clone() };
        (others != Self::default()).then_some(others)
    }

    /// The value of a defect as it is written; `None` if it is off, empty if it has none.
    fn value(&self, defect: Defect) -> Option<String> {
        let share = |one_in: Option<OneIn>| one_in.map(|one_in| one_in.to_string());
        let flag = |is_on: bool| is_on.then(String::new);
        match defect {
            Defect::Drop => share(self.drop),
            Defect::Duplicate => share(self.duplicate),
            Defect::Delay => self.delay.map(|(one_in, time)| format!("{one_in}@{}", time.exact())),
            Defect::Reorder => share(self.reorder),
            Defect::MisHash => share(self.mis_hash),
            Defect::IgnorePorts => flag(self.ignore_ports),
            Defect::FragmentsWithoutPorts => flag(self.fragments_without_ports),
            Defect::InPlaceRebuild => flag(self.in_place_rebuild),
            Defect::ForgetFragment => share(self.forget_fragment),
            Defect::WrongSource => flag(self.wrong_source),
            Defect::Blackhole => self.blackhole.clone(),
            Defect::TinyTable => self.tiny_table.map(|size| size.get().to_string()),
            Defect::Leak => share(self.leak),
            Defect::CopyRange => self.copy_range.map(|bytes| bytes.to_string()),
            Defect::NoGso => flag(self.no_gso),
        }
    }
}

impl fmt::Display for Defects {
    /// Writes the list that parses back to these defects; empty without any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = DEFECTS.iter().filter_map(|doc| {
            let value = self.value(doc.defect)?;
            Some(if value.is_empty() { doc.word.to_owned() } else { format!("{}={value}", doc.word) })
        });
        f.write_str(&given.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_defect_is_read_from_its_example_and_written_back() {
        for doc in DEFECTS {
            let defects: Defects = doc.example.parse().unwrap();
            assert_ne!(defects, Defects::default(), "{}", doc.example);
            assert_eq!(defects.to_string(), doc.example);
            assert_eq!(doc.defect.word(), doc.word);
        }
        let all = DEFECTS.map(|doc| doc.example).join(",");
        assert_eq!(all.parse::<Defects>().unwrap().to_string(), all);
        assert_eq!("".parse(), Ok(Defects::default()));
        assert_eq!("tiny-table".parse::<Defects>().unwrap().tiny_table.map(TableSize::get), Some(7));
    }

    #[test]
    fn what_is_no_defect_is_refused_with_how_it_is_written() {
        let error = |text: &str| text.parse::<Defects>().unwrap_err();
        assert!(error("dorp=1/2").to_string().starts_with("defect `dorp` is not known: drop, duplicate"));
        let value = |given: &str, example| DefectsError::Value { given: given.to_owned(), example };
        for text in ["drop", "drop=0.1", "drop=1/0", "drop=2/3", "drop=1/-1"] {
            assert_eq!(error(text), value(text, "drop=1/100"));
        }
        for text in ["delay=1/2", "delay=5ms", "delay=1/2@0ms", "delay=1/2@5x"] {
            assert_eq!(error(text), value(text, "delay=1/10@5ms"));
        }
        assert_eq!(error("no-gso=1"), value("no-gso=1", "no-gso"));
        assert_eq!(error("blackhole="), value("blackhole=", "blackhole=t3"));
        assert_eq!(error("no-gso,no-gso"), DefectsError::Twice("no-gso"));
        assert!(matches!(error("tiny-table=8"), DefectsError::TableSize(_)));
    }

    #[test]
    fn one_in_n_is_drawn_so_often_and_differently_for_each_defect() {
        let one_in = OneIn(NonZeroU32::new(10).unwrap());
        let n_hits = |defect| (0..100_000).filter(|number| one_in.hits(defect, 1, *number)).count();
        // 10000 with a standard deviation of 95: five of them.
        assert!((9525..10_475).contains(&n_hits(Defect::Drop)), "{}", n_hits(Defect::Drop));
        let both = |number: &u64| one_in.hits(Defect::Drop, 1, *number) && one_in.hits(Defect::Leak, 1, *number);
        let n_both = (0..100_000).filter(both).count();
        assert!((840..1160).contains(&n_both), "{n_both}");
    }
}
