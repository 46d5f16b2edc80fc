//! Command lines as Go's package `flag` reads them: `-name value`, `-name=value`, with one dash or two.

use std::collections::BTreeMap;

use fathom_model::units::Nanos;
use fathom_run::exit::Exit;

/// What a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GoValue {
    Text,
    /// A whole number.
    Number,
    /// A number with a fraction.
    Real,
    /// `1m30s`.
    Span,
    /// Present or not, or `=true` and `=false`.
    Flag,
}

/// A flag of a tool.
pub(crate) struct GoFlag {
    pub(crate) name: &'static str,
    pub(crate) value: GoValue,
    /// Empty for a flag that is not set.
    pub(crate) default: &'static str,
    pub(crate) about: &'static str,
}

/// The flags of a tool.
pub(crate) struct GoFlags {
    pub(crate) program: &'static str,
    /// The text before the flags.
    pub(crate) help: &'static str,
    /// In the order of their names.
    pub(crate) flags: &'static [GoFlag],
}

/// A command line that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GivenFlags {
    values: BTreeMap<&'static str, String>,
    given: Vec<&'static str>,
}

/// What reading led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadFlags {
    Given(GivenFlags),
    /// The help was printed, or an error.
    Ended(Exit),
}

/// Go's exit code for a wrong command line.
const WRONG: Exit = Exit::Code(2);

impl GoFlags {
    /// Reads a command line. Without any words, the help is printed, as by these tools.
    pub(crate) fn read(&self, words: &[String]) -> ReadFlags {
        if words.is_empty() {
            self.usage();
            return ReadFlags::Ended(Exit::Pass);
        }
        match self.parse(words) {
            Ok(Some(flags)) => ReadFlags::Given(flags),
            Ok(None) => {
                self.usage();
                ReadFlags::Ended(Exit::Pass)
            }
            Err(why) => {
                eprintln!("{why}");
                self.usage();
                ReadFlags::Ended(WRONG)
            }
        }
    }

    /// Says why a command line cannot be used.
    pub(crate) fn refuse(&self, why: &str) -> Exit {
        eprintln!("{}: {why}", self.program);
        WRONG
    }

    fn parse(&self, words: &[String]) -> Result<Option<GivenFlags>, String> {
        let defaults = self.flags.iter().filter(|flag| !flag.default.is_empty());
        let values = defaults.map(|flag| (flag.name, flag.default.to_owned())).collect();
        let mut flags = GivenFlags { values, given: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            // The first word that is no flag ends them, and so does `--`.
            let Some(rest) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else { break };
            let rest = rest.strip_prefix('-').unwrap_or(rest);
            if rest.is_empty() {
                break;
            }
            let (name, value) = rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value)));
            if name.is_empty() || name.starts_with('-') {
                return Err(format!("bad flag syntax: {word}"));
            }
            let Some(flag) = self.flags.iter().find(|flag| flag.name == name) else {
                return if ["h", "help"].contains(&name) {
                    Ok(None)
                } else {
                    Err(format!("flag provided but not defined: -{name}"))
                };
            };
            let value = match (flag.value, value) {
                (_, Some(value)) => value.to_owned(),
                (GoValue::Flag, None) => "true".to_owned(),
                (_, None) => words.next().cloned().ok_or_else(|| format!("flag needs an argument: -{name}"))?,
            };
            if !flag.value.takes(&value) {
                return Err(format!("invalid value {value:?} for flag -{name}: parse error"));
            }
            flags.values.insert(flag.name, value);
            flags.given.push(flag.name);
        }
        Ok(Some(flags))
    }

    fn usage(&self) {
        eprintln!("{}", self.help);
        for flag in self.flags {
            let value = match flag.value {
                GoValue::Text => " string",
                GoValue::Number => " int",
                GoValue::Real => " float",
                GoValue::Span => " duration",
                GoValue::Flag => "",
            };
            let default = match (flag.value, flag.default) {
                (_, "") => String::new(),
                (GoValue::Text, default) => format!(" (default {default:?})"),
                (_, default) => format!(" (default {default})"),
            };
            eprintln!("  -{}{value}\n    \t{}{default}", flag.name, flag.about);
        }
    }
}

impl GoValue {
    fn takes(self, text: &str) -> bool {
        match self {
            Self::Text => true,
            Self::Number => text.parse::<i64>().is_ok(),
            Self::Real => text.parse::<f64>().is_ok_and(f64::is_finite),
            Self::Span => go_span(text).is_some(),
            Self::Flag => go_flag(text).is_some(),
        }
    }
}

/// Reads a truth as Go does.
fn go_flag(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Reads a span as Go does: numbers with a unit each, such as `1h15m30.5s`.
fn go_span(text: &str) -> Option<Nanos> {
    const UNITS: [(&str, f64); 8] =
        [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];
    if text == "0" {
        return Some(Nanos::ZERO);
    }
    let (mut rest, mut total) = (text, 0.0);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|at| *at > 0)?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit_end =
            rest[digits..].find(|c: char| c.is_ascii_digit() || c == '.').map_or(rest.len(), |at| digits + at);
        let (_, scale) = UNITS.iter().find(|(unit, _)| *unit == &rest[digits..unit_end])?;
        total += number * scale;
        rest = &rest[unit_end..];
    }
    Some(Nanos::from_secs_f64(total / 1e9))
}

impl GivenFlags {
    /// Whether the command line has a flag.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        self.given.contains(&name)
    }

    fn value(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.value(name).to_owned()
    }

    pub(crate) fn number(&self, name: &str) -> i64 {
        self.value(name).parse().unwrap_or(0)
    }

    pub(crate) fn real(&self, name: &str) -> f64 {
        self.value(name).parse().unwrap_or(0.0)
    }

    pub(crate) fn span(&self, name: &str) -> Nanos {
        go_span(self.value(name)).unwrap_or(Nanos::ZERO)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        go_flag(self.value(name)).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: GoFlags = GoFlags {
        program: "t",
        help: "",
        flags: &[
            GoFlag { name: "n", value: GoValue::Number, default: "1", about: "" },
            GoFlag { name: "t", value: GoValue::Span, default: "10s", about: "" },
            GoFlag { name: "udp", value: GoValue::Flag, default: "", about: "" },
        ],
    };

    fn parsed(line: &str) -> Result<Option<GivenFlags>, String> {
        FLAGS.parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_read_in_all_forms_of_go() {
        let flags = parsed("-n 5 --t=1m30s -udp rest -n 7").unwrap().unwrap();
        assert_eq!((flags.number("n"), flags.span("t"), flags.flag("udp")), (5, Nanos::from_secs(90), true));
        assert!(flags.is_given("n") && !flags.is_given("x"));
        let defaults = parsed("-udp=false").unwrap().unwrap();
        assert_eq!((defaults.number("n"), defaults.flag("udp"), defaults.is_given("n")), (1, false, false));
        assert_eq!(parsed("-h"), Ok(None));
    }

    #[test]
    fn wrong_flags_are_named_in_the_words_of_go() {
        assert_eq!(parsed("-x").unwrap_err(), "flag provided but not defined: -x");
        assert_eq!(parsed("-n").unwrap_err(), "flag needs an argument: -n");
        assert_eq!(parsed("-n x").unwrap_err(), "invalid value \"x\" for flag -n: parse error");
        assert_eq!(parsed("---n 1").unwrap_err(), "bad flag syntax: ---n");
    }

    #[test]
    fn spans_are_sums_with_units() {
        assert_eq!(go_span("1.5s"), Some(Nanos::from_millis(1500)));
        assert_eq!(go_span("2m10ms"), Some(Nanos::from_secs(120) + Nanos::from_millis(10)));
        for wrong in ["", "5", "s", "5x", "1.2.3s"] {
            assert_eq!(go_span(wrong), None, "{wrong}");
        }
    }
}
