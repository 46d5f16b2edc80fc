//! Options of a kind of test as data: one table provides parsing, help, man page and validation.

use std::{collections::BTreeMap, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::units::{self, BitsPerSec, Bytes, Nanos, PerSec, UnitError};

/// The value that an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A whole number between these bounds, both included: `20000`, `20k`.
    Count(u64, u64),
    /// A whole number between these bounds, or this word, which selects a number that the host determines.
    CountOr(u64, u64, &'static str),
    /// A duration: `250us`, `10s`.
    Span,
    /// A volume: `1400`, `64KiB`.
    Size,
    /// Bits per second: `10G`.
    BitRate,
    /// Events per second: `20k`, `1.5Mpps`.
    Rate,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// A credential, such as a password; it appears in no result.
    Secret,
    /// Lines that may contain header fields; fields with credentials appear in no result.
    Fields,
    /// A destination of traffic: addresses, names, networks or URLs.
    Destination,
    /// The source of a host's traffic: its own addresses or one of its interfaces. It is not a destination.
    Source,
    /// The content of frames: checked by the bytes that would be sent, not as text.
    Frames,
    /// The path of a file or socket on the host that runs the test; a served agent opens none for others.
    File,
    /// Present or not.
    Flag,
}

/// One option of a kind of test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionDoc {
    /// The option name after the two dashes, and the key in a plan.
    pub name: &'static str,
    /// The value that the option takes.
    pub value: ValueKind,
    /// The default value; without a default, the setting is absent if it is not given.
    pub default: Option<&'static str>,
    /// One line for the help. It starts in lower case and has no full stop.
    pub help: &'static str,
}

/// Former option names with their current names; plans and scripts may keep the old ones.
///
/// If a test has an option with the old name, that option is meant.
pub const FORMER_NAMES: &[(&str, &str)] = &[
    ("workers", "threads"),
    ("requests", "count"),
    ("way", "direction"),
    ("load", "direction"),
    ("seats", "max-users"),
    ("concurrent", "concurrency"),
];

/// The option that holds a rate in packets per second where `rate` holds bits per second. `rate = "20kpps"` sets it.
///
/// It has no word of its own in a help; plans and scripts may use it.
pub const PACKET_RATE: &str = "pps";

/// Why a setting cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// There is no option with this name.
    #[error("there is no option `{name}`{}", nearest.as_ref().map_or(String::new(), |near| format!("; did you mean `{near}`?")))]
    Unknown {
        /// The given name.
        name: String,
        /// The most similar known name.
        nearest: Option<String>,
    },
    /// The text is not a valid quantity in the option's unit.
    #[error("option `{name}`: {cause}")]
    Unit {
        /// The option.
        name: String,
        /// The parse error.
        cause: UnitError,
    },
    /// The value has the right type but is not allowed.
    #[error("option `{name}` takes {expected}, not `{given}`")]
    NotAllowed {
        /// The option.
        name: String,
        /// The allowed values.
        expected: String,
        /// The given value.
        given: String,
    },
}

/// One value as stored in a plan; quantities are text with their unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum Setting {
    /// A flag.
    Flag(bool),
    /// A count.
    Count(u64),
    /// A quantity with its unit, a word, or free text.
    Text(String),
}

impl Setting {
    fn text(&self) -> String {
        match self {
            Self::Flag(flag) => flag.to_string(),
            Self::Count(count) => count.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// The options of one test by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Settings(pub BTreeMap<String, Setting>);

impl Settings {
    /// Sets one option from its text, without checking it; [`Settings::complete`] does that.
    pub fn set(&mut self, name: &str, text: impl Into<String>) {
        self.0.insert(name.to_owned(), Setting::Text(text.into()));
    }

    /// Returns these settings with `name` set to `text`.
    #[must_use]
    pub fn with(mut self, name: &str, text: impl Into<String>) -> Self {
        self.set(name, text);
        self
    }

    /// Checks every setting against its option, converts it to its exact form, and fills in the defaults.
    ///
    /// # Errors
    /// Names the first setting that is unknown, not a quantity in its unit, or not allowed.
    pub fn complete(&self, options: &[OptionDoc]) -> Result<Self, SettingError> {
        let mut given: BTreeMap<&str, &Setting> = BTreeMap::new();
        for (name, setting) in &self.0 {
            let named = find_option(options, name).map(|option| by_unit(options, option, setting));
            let option = named.filter(|option| !given.contains_key(option.name));
            let unknown = || SettingError::Unknown {
                name: name.clone(),
                nearest: nearest(name, options.iter().map(|option| option.name)),
            };
            given.insert(option.ok_or_else(unknown)?.name, setting);
        }
        let mut complete = BTreeMap::new();
        for option in options {
            let given = given.get(option.name).map(|setting| setting.text());
            let Some(text) = given.or_else(|| option.default.map(str::to_owned)) else { continue };
            complete.insert(option.name.to_owned(), option.exact(&text)?);
        }
        Ok(Self(complete))
    }

    /// Returns a count; `None` if it is not set.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u64> {
        units::whole(&self.0.get(name)?.text()).ok()
    }

    /// Returns a duration.
    #[must_use]
    pub fn span(&self, name: &str) -> Option<Nanos> {
        self.parsed(name)
    }

    /// Returns a volume.
    #[must_use]
    pub fn size(&self, name: &str) -> Option<Bytes> {
        self.parsed(name)
    }

    /// Returns a rate in bits per second.
    #[must_use]
    pub fn bit_rate(&self, name: &str) -> Option<BitsPerSec> {
        self.parsed(name)
    }

    /// Returns a rate in events per second.
    #[must_use]
    pub fn rate(&self, name: &str) -> Option<PerSec> {
        self.parsed(name)
    }

    /// Returns a word or free text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).map(Setting::text)
    }

    /// Returns whether a flag is set.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.parsed(name).unwrap_or(false)
    }

    fn parsed<T: FromStr>(&self, name: &str) -> Option<T> {
        self.0.get(name)?.text().parse().ok()
    }
}

/// Finds the option with this current or former name.
fn find_option<'a>(options: &'a [OptionDoc], name: &str) -> Option<&'a OptionDoc> {
    let find = |name: &str| options.iter().find(|option| option.name == name);
    let now = || FORMER_NAMES.iter().filter(|(former, _)| *former == name).find_map(|(_, now)| find(now));
    find(name).or_else(now)
}

/// The option that a rate sets: that of bits per second, or the one of packets per second beside it, by the unit of the text.
fn by_unit<'a>(options: &'a [OptionDoc], option: &'a OptionDoc, setting: &Setting) -> &'a OptionDoc {
    let packet_rate = options.iter().find(|other| other.name == PACKET_RATE);
    packet_rate.filter(|_| option.value == ValueKind::BitRate && is_packet_rate(&setting.text())).unwrap_or(option)
}

/// Whether a rate is one of packets and not of bits: `20kpps`, `20k/s`.
#[must_use]
pub fn is_packet_rate(text: &str) -> bool {
    text.parse::<BitsPerSec>().is_err() && text.parse::<PerSec>().is_ok()
}

/// The candidate that differs least from `word`, if it differs little.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let distance = |other: &str| {
        let mut row: Vec<usize> = (0..=other.chars().count()).collect();
        for (i, a) in word.chars().enumerate() {
            let mut diagonal = row[0];
            row[0] = i + 1;
            for (j, b) in other.chars().enumerate() {
                let substituted = diagonal + usize::from(a != b);
                diagonal = row[j + 1];
                row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
            }
        }
        row[row.len() - 1]
    };
    let best = candidates.into_iter().map(|other| (distance(other), other)).min()?;
    (best.0 <= 1 + word.len() / 4).then(|| best.1.to_owned())
}

impl OptionDoc {
    /// Checks a text and converts it to the form that parses back to exactly the same value.
    ///
    /// # Errors
    /// States what the option takes.
    pub fn exact(&self, text: &str) -> Result<Setting, SettingError> {
        let unit = |cause| SettingError::Unit { name: self.name.to_owned(), cause };
        let not_allowed = |expected: String| SettingError::NotAllowed {
            name: self.name.to_owned(),
            expected,
            given: text.to_owned(),
        };
        Ok(match self.value {
            ValueKind::Count(low, high) => match units::whole(text) {
                Ok(count) if (low..=high).contains(&count) => Setting::Count(count),
                Err(cause @ UnitError::UnknownUnit { .. }) => return Err(unit(cause)),
                _ if high == u64::MAX => return Err(not_allowed(format!("a whole number from {low}"))),
                _ => return Err(not_allowed(format!("a whole number from {low} to {high}"))),
            },
            ValueKind::CountOr(_, _, word) if text == word => Setting::Text(word.to_owned()),
            ValueKind::CountOr(low, high, word) => match units::whole(text) {
                Ok(count) if (low..=high).contains(&count) => Setting::Count(count),
                Err(cause @ UnitError::UnknownUnit { .. }) => return Err(unit(cause)),
                _ => return Err(not_allowed(format!("a whole number from {low} to {high}, or {word}"))),
            },
            ValueKind::Span => Setting::Text(text.parse::<Nanos>().map_err(unit)?.exact()),
            ValueKind::Size => Setting::Text(text.parse::<Bytes>().map_err(unit)?.exact()),
            ValueKind::BitRate => Setting::Text(text.parse::<BitsPerSec>().map_err(unit)?.exact()),
            ValueKind::Rate => Setting::Text(text.parse::<PerSec>().map_err(unit)?.exact()),
            ValueKind::Choice(words) if words.contains(&text) => Setting::Text(text.to_owned()),
            ValueKind::Choice(words) => return Err(not_allowed(format!("one of {}", words.join(", ")))),
            ValueKind::Text
            | ValueKind::Destination
            | ValueKind::Secret
            | ValueKind::Fields
            | ValueKind::Source
            | ValueKind::Frames
            | ValueKind::File => Setting::Text(text.to_owned()),
            ValueKind::Flag => Setting::Flag(text.parse().map_err(|_| not_allowed("true or false".to_owned()))?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &[OptionDoc] = &[
        OptionDoc { name: "flows", value: ValueKind::Count(1, 100), default: Some("1"), help: "flows" },
        OptionDoc { name: "rate", value: ValueKind::BitRate, default: None, help: "rate" },
        OptionDoc { name: "size", value: ValueKind::Size, default: Some("64KiB"), help: "size" },
        OptionDoc { name: "streams", value: ValueKind::CountOr(1, 9, "queues"), default: None, help: "streams" },
        OptionDoc { name: "direction", value: ValueKind::Choice(&["up", "down"]), default: Some("up"), help: "way" },
    ];

    #[test]
    fn what_was_parsed_is_echoed_exactly_and_defaults_are_filled_in() {
        let settings = Settings::default().with("rate", "1.2345G").with("flows", "8").complete(OPTIONS).unwrap();
        assert_eq!(settings.text("rate").as_deref(), Some("1234500kbit/s"));
        assert_eq!((settings.count("flows"), settings.size("size")), (Some(8), Some(Bytes(65_536))));
        assert_eq!(settings.complete(OPTIONS), Ok(settings.clone()), "a complete setting stays as it is");
    }

    #[test]
    fn an_option_is_known_by_its_former_name_once() {
        let former = Settings::default().with("way", "down");
        assert_eq!(former.complete(OPTIONS).unwrap().text("direction").as_deref(), Some("down"));
        let twice = former.with("direction", "up").complete(OPTIONS).unwrap_err().to_string();
        assert_eq!(twice, "there is no option `way`");
        assert!(Settings::default().with("workers", "2").complete(OPTIONS).is_err(), "no test option `threads`");
    }

    #[test]
    fn a_rate_in_packets_sets_the_option_of_packets() {
        let options = [
            OptionDoc { name: "rate", value: ValueKind::BitRate, default: None, help: "bits" },
            OptionDoc { name: PACKET_RATE, value: ValueKind::Rate, default: None, help: "packets" },
        ];
        let complete = |text: &str| Settings::default().with("rate", text).complete(&options);
        for text in ["20kpps", "20k/s"] {
            let settings = complete(text).unwrap();
            assert_eq!((settings.text("rate"), settings.text(PACKET_RATE).as_deref()), (None, Some("20k/s")), "{text}");
            assert_eq!(settings.complete(&options), Ok(settings.clone()));
        }
        for text in ["20k", "20kbit", "1.2GB/s"] {
            assert!(complete(text).unwrap().bit_rate("rate").is_some(), "{text} is of bits");
        }
        assert!(complete("20 parsec").is_err());
        assert!(Settings::default().with("rate", "20kpps").complete(&options[..1]).is_err(), "bits alone");
    }

    #[test]
    fn a_count_may_have_the_prefix_of_a_rate_where_it_is_whole() {
        const COUNT: OptionDoc =
            OptionDoc { name: "count", value: ValueKind::Count(1, u64::MAX), default: None, help: "frames" };
        let count = |text: &str| Settings::default().with("count", text).complete(&[COUNT]);
        assert_eq!(count("10k").unwrap().0["count"], Setting::Count(10_000));
        assert_eq!(count("1.5M").unwrap().count("count"), Some(1_500_000));
        let refused = |text: &str| count(text).unwrap_err().to_string();
        assert_eq!(refused("1.0001k"), "option `count` takes a whole number from 1, not `1.0001k`");
        assert_eq!(refused("10kpps"), "option `count`: `10kpps` has an unknown unit: write a number alone, 20k, 1.5M");
    }

    #[test]
    fn a_word_may_stand_for_a_count() {
        let streams = |text: &str| Settings::default().with("streams", text).complete(OPTIONS);
        assert_eq!(streams("9").unwrap().count("streams"), Some(9));
        let by_word = streams("queues").unwrap();
        assert_eq!((by_word.count("streams"), by_word.text("streams").as_deref()), (None, Some("queues")));
        let refused = streams("10").unwrap_err().to_string();
        assert_eq!(refused, "option `streams` takes a whole number from 1 to 9, or queues, not `10`");
    }

    #[test]
    fn a_wrong_setting_is_named_with_what_would_be_right() {
        let refused =
            |name: &str, text: &str| Settings::default().with(name, text).complete(OPTIONS).unwrap_err().to_string();
        assert_eq!(refused("flow", "1"), "there is no option `flow`; did you mean `flows`?");
        assert_eq!(refused("flows", "0"), "option `flows` takes a whole number from 1 to 100, not `0`");
        assert_eq!(refused("direction", "left"), "option `direction` takes one of up, down, not `left`");
        assert!(refused("rate", "10GB").contains("unknown unit"));
    }
}
