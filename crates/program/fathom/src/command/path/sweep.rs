//! `--sweep NAME=VALUES`: the values of an option of the test, or of a command that sets the device.

use clap::ArgMatches;
use fathom_analyze::sweep_number;
use fathom_engine::TestKind;
use fathom_model::{ComparisonPlan, Layer, OptionDoc, Settings, SweepPoint, settings::PACKET_RATE};

use super::{Work, has_option, usage};
use fathom_run::{exit::UserError, registry};

/// The most points of a sweep. More would take too long.
const POINTS_MAX: usize = 64;

/// A point of a sweep, or the only one of a comparison without it.
pub(super) struct Swept {
    at: Option<SweepPoint>,
    set: Option<String>,
    /// The options of the tests at this point.
    pub(super) options: Settings,
}

impl Swept {
    /// Returns the comparison at this point.
    pub(super) fn comparison(&self, work: &str) -> ComparisonPlan {
        let name = match &self.at {
            Some(at) => format!("{work} {}={}", at.parameter, at.value),
            None => work.to_owned(),
        };
        ComparisonPlan { name, at: self.at.clone(), set: self.set.clone() }
    }
}

/// Returns the points of the sweep that the command line asks for.
///
/// # Errors
/// If the sweep cannot be read, or its name is neither an option of the kind nor in the command of `--set`.
pub(super) fn sweep_points(matches: &ArgMatches, work: &Work, layer: Option<Layer>) -> Result<Vec<Swept>, UserError> {
    let options = &work.options;
    let Some(text) = matches.get_one::<String>("sweep") else {
        return Ok(vec![Swept { at: None, set: None, options: options.clone() }]);
    };
    let (name, values) = parse(text)?;
    let command = matches.get_one::<String>("set");
    let place = format!("{{{name}}}");
    let is_set = command.is_some_and(|command| command.contains(&place));
    if !is_set && command.is_some() {
        return Err(usage(format!("--set has no {place}, the value of --sweep"))
            .with_line("use", format!("--set './set.sh {place}'")));
    }
    if !is_set && !has_option(work.kind, &name) {
        let instead = match layer {
            Some(_) => format!("--sweep NAME=… of {}", swept_options(work.kind).join(", ")),
            None => format!("fathom path tcp --sweep {text}        # the tests of one layer have more options"),
        };
        return Err(usage(format!("--sweep {text}: the test `{}` has no option `{name}`", work.name))
            .with_line("use", instead)
            .with_line("or", format!("--set './set.sh {place}'")));
    }
    if !is_set && options.text(&name).is_some() {
        return Err(
            usage(format!("--sweep {text}: {name} has a value already")).with_line("use", format!("no --{name}"))
        );
    }
    let point = |value: String| Swept {
        set: command.map(|command| command.replace(&place, &value)),
        options: if is_set { options.clone() } else { options.clone().with(&name, value.clone()) },
        at: Some(SweepPoint { parameter: name.clone(), value }),
    };
    Ok(values.into_iter().map(point).collect())
}

/// Returns the options of a kind whose values are numbers.
fn swept_options(kind: &str) -> Vec<&'static str> {
    use fathom_model::ValueKind::{BitRate, Count, CountOr, Rate, Size, Span};
    let options = registry::kind(kind).map(TestKind::options).unwrap_or_default();
    let is_number =
        |option: &&OptionDoc| matches!(option.value, Count(..) | CountOr(..) | Span | Size | BitRate | Rate);
    options.iter().filter(is_number).map(|option| option.name).filter(|name| *name != PACKET_RATE).collect()
}

/// Parses a sweep: `flows=1,2,4` or `rules=0..2000:500`.
fn parse(text: &str) -> Result<(String, Vec<String>), UserError> {
    let wrong = |why: &str| {
        usage(format!("--sweep {text}: {why}")).with_line("use", "--sweep flows=1,2,4,8 or --sweep rules=0..2000:500")
    };
    let (name, list) = text.split_once('=').ok_or_else(|| wrong("a name and its values are needed"))?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if !is_name {
        return Err(wrong("a name has letters, digits, - and _"));
    }
    let values = match list.split_once("..") {
        Some((from, rest)) => {
            range(from, rest).ok_or_else(|| wrong("a range is FROM..TO or FROM..TO:STEP, of whole numbers"))?
        }
        None => list.split(',').map(|value| value.trim().to_owned()).collect(),
    };
    if let Some(value) = values.iter().find(|value| sweep_number(value).is_none()) {
        return Err(wrong(&format!("`{value}` is no number")));
    }
    let is_same = |one: &str, other: &str| sweep_number(one) == sweep_number(other);
    let earlier = |place: usize| values[..place].iter().find(|earlier| is_same(earlier, &values[place]));
    if let Some((place, first)) = (0..values.len()).find_map(|place| Some((place, earlier(place)?))) {
        return Err(wrong(&format!("{first} and {} are the same value", values[place])));
    }
    if !(2..=POINTS_MAX).contains(&values.len()) {
        return Err(wrong(&format!("{} values; a sweep has 2 to {POINTS_MAX}", values.len())));
    }
    Ok((name.to_owned(), values))
}

fn range(from: &str, rest: &str) -> Option<Vec<String>> {
    let (to, step) = rest.split_once(':').unwrap_or((rest, "1"));
    let [from, to, step] = [from, to, step].map(|text| text.trim().parse::<u64>().ok());
    let (from, to, step) = (from?, to?, step.filter(|step| *step > 0)?);
    let all = (from..=to).step_by(usize::try_from(step).ok()?);
    // One more than allowed is enough to tell that there are too many.
    Some(all.take(POINTS_MAX + 1).map(|value| value.to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_a_sweep_are_a_list_or_a_range() {
        let of = |text: &str| parse(text).unwrap().1;
        assert_eq!(of("flows=1,2, 8"), ["1", "2", "8"]);
        assert_eq!(of("rules=0..2000:500"), ["0", "500", "1000", "1500", "2000"]);
        assert_eq!(of("size=64,1KiB"), ["64", "1KiB"]);
        assert_eq!(of("n=1..3"), ["1", "2", "3"]);
        assert_eq!(of("rate=1kpps,10kpps"), ["1kpps", "10kpps"]);
        assert_eq!(of("rate=10Mbit,1Gbit"), ["10Mbit", "1Gbit"]);
        assert_eq!(of("think=1ms,20us"), ["1ms", "20us"]);
    }

    #[test]
    fn what_is_wrong_with_a_sweep_is_named() {
        let cases = [
            ("flows", "a name and its values"),
            ("=1,2", "a name has letters"),
            ("a b=1,2", "a name has letters"),
            ("flows=1", "1 values; a sweep has 2 to 64"),
            ("flows=1..1000", "65 values"),
            ("flows=1,1", "1 and 1 are the same value"),
            ("flows=1,2,1.0", "1 and 1.0 are the same value"),
            ("rate=1Mbit,2Mbit,1000kbit", "1Mbit and 1000kbit are the same value"),
            ("rules=1,many", "`many` is no number"),
            ("rules=1..9:0", "FROM..TO:STEP"),
            ("rules=9..1", "0 values"),
            ("rules=1;reboot,2", "is no number"),
        ];
        for (text, named) in cases {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
