//! `--sweep NAME=VALUES`: the values of an option of the test, or of a command that sets the device.

use std::net::IpAddr;

use clap::ArgMatches;
use fathom_analyze::sweep_number;
use fathom_balancer::device::DeviceSettings;
use fathom_engine::TestKind;
use fathom_lab::{Device, preset};
use fathom_model::{ComparisonPlan, Layer, OptionDoc, Settings, SweepPoint, settings::PACKET_RATE};

use super::{Work, has_option, usage};
use crate::command::measurement::TestHosts;
use fathom_run::{
    exit::{Exit, UserError},
    registry,
};
use ipnet::IpNet;

/// The sweep of the queues that a balancer uses.
pub(super) const QUEUES: &str = "queues";
/// The sweep of the addresses that flows come from, and the options of a test that it sets.
const SOURCES: &str = "sources";
const SOURCE: &str = "source";
const FLOWS: &str = "flows";
/// Each address is named to the test.
const N_SOURCES_MAX: u64 = 4096;
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
    /// Returns the only point of a comparison without a sweep.
    pub(super) fn only(options: &Settings) -> Self {
        Self { at: None, set: None, options: options.clone() }
    }

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
pub(super) fn sweep_points(
    matches: &ArgMatches,
    work: &Work,
    layer: Option<Layer>,
    through: Option<(&Device, &TestHosts)>,
) -> Result<Vec<Swept>, UserError> {
    let options = &work.options;
    let Some(text) = matches.get_one::<String>("sweep") else {
        return Ok(vec![Swept::only(options)]);
    };
    let (name, values) = parse(text)?;
    let command = matches.get_one::<String>("set");
    let place = format!("{{{name}}}");
    let is_set = command.is_some_and(|command| command.contains(&place));
    let is_known = has_option(work.kind, &name);
    if !is_set && !is_known && name == QUEUES && through.is_some() {
        return queue_points(values, options);
    }
    if !is_set && !is_known && name == SOURCES && has_option(work.kind, SOURCE) {
        return source_points(values, options, has_client_sources(through), work.kind);
    }
    if !is_set && command.is_some() {
        return Err(usage(format!("--set has no {place}, the value of --sweep"))
            .with_line("use", format!("--set './set.sh {place}'")));
    }
    if !is_set && !is_known {
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

/// Returns whether the initiator is the client of a lab whose targets answer all of its addresses straight. Behind a device that translates, answers
/// go back through it on both paths.
fn has_client_sources(through: Option<(&Device, &TestHosts)>) -> bool {
    through.is_some_and(|(device, ends)| !device.translates() && ends.to() == preset::FIRST_TARGET)
}

/// Returns the points of a sweep of the queues of a balancer, which fathom itself sets on it.
fn queue_points(values: Vec<String>, options: &Settings) -> Result<Vec<Swept>, UserError> {
    let program = std::env::current_exe().map_err(|error| UserError::from_error(Exit::Preflight, &error.into()))?;
    let program = format!("'{}'", program.display().to_string().replace('\'', r"'\''"));
    let point = |value: String| {
        let n_queues = whole(QUEUES, &value, DeviceSettings::N_QUEUES_MAX.into())?;
        Ok(Swept {
            set: Some(format!("{program} balancer queues {n_queues}")),
            options: options.clone(),
            at: Some(SweepPoint { parameter: QUEUES.to_owned(), value }),
        })
    };
    values.into_iter().map(point).collect()
}

/// Returns the points of a sweep of source addresses: the first so many of the given networks, or of those that the client of a lab has. There are at
/// least as many flows at each point, so that only the sources differ.
fn source_points(
    values: Vec<String>,
    options: &Settings,
    is_in_targets: bool,
    kind: &str,
) -> Result<Vec<Swept>, UserError> {
    let counts = values.iter().map(|value| whole(SOURCES, value, N_SOURCES_MAX));
    let counts = counts.collect::<Result<Vec<u64>, _>>()?;
    let given = options.text(SOURCE);
    let pool = given.clone().or_else(|| is_in_targets.then(|| preset::CLIENT_SOURCES.join(",")));
    let pool = pool.ok_or_else(|| {
        usage("--sweep sources needs the networks that they are from")
            .with_line("use", "--source NETWORK, whose addresses all belong to the initiator")
            .with_line("or", "--device balancer: the client of such a lab has as many as it takes")
    })?;
    let most = counts.iter().copied().max().unwrap_or(1);
    let mut options = options.clone();
    if has_option(kind, FLOWS) && options.text(FLOWS).is_none() {
        options.set(FLOWS, most.to_string());
    }
    if let Some(n_flows) = options.count(FLOWS).filter(|n_flows| *n_flows < most) {
        return Err(usage(format!("--sweep sources: {n_flows} flows cannot come from {most} addresses"))
            .with_line("use", format!("--flows {most} or more")));
    }
    let point = |(value, n): (String, u64)| {
        let source = first_sources(&pool, n).ok_or_else(|| {
            usage(format!("--sweep sources: {pool} has no {n} addresses")).with_line("use", "a larger network")
        })?;
        let at = Some(SweepPoint { parameter: SOURCES.to_owned(), value });
        Ok(Swept { at, set: None, options: options.clone().with(SOURCE, source) })
    };
    values.into_iter().zip(counts).map(point).collect()
}

/// Returns the first addresses of some networks, of each IP version, as text.
fn first_sources(pool: &str, n: u64) -> Option<String> {
    let n = usize::try_from(n).ok()?;
    let networks = pool.split(',').map(|part| {
        let part = part.trim();
        part.parse::<IpNet>().ok().or_else(|| part.parse::<IpAddr>().ok().map(IpNet::from))
    });
    let networks = networks.collect::<Option<Vec<IpNet>>>()?;
    let of_version = |is_v4: bool| {
        let fitting = networks.iter().filter(|network| network.addr().is_ipv4() == is_v4);
        let found: Vec<String> = fitting.flat_map(IpNet::hosts).take(n).map(|address| address.to_string()).collect();
        (found.len() == n).then(|| found.join(","))
    };
    let found: Vec<String> = [true, false].into_iter().filter_map(of_version).collect();
    (!found.is_empty()).then(|| found.join(","))
}

/// Reads a value of a sweep as a whole number.
fn whole(name: &str, value: &str, most: u64) -> Result<u64, UserError> {
    let number = value.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| {
        usage(format!("--sweep {name}: `{value}` is not a number from 1 to {most}"))
            .with_line("use", format!("--sweep {name}=1,2,4"))
    })
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
    fn a_sweep_of_sources_has_the_first_addresses_of_each_ip_version() {
        assert_eq!(first_sources("10.0.0.0/24", 2).unwrap(), "10.0.0.1,10.0.0.2");
        assert_eq!(first_sources("10.0.0.9, 10.0.1.0/30", 3).unwrap(), "10.0.0.9,10.0.1.1,10.0.1.2");
        assert_eq!(first_sources("10.0.0.0/30,2001:db8::/64", 3).unwrap().split(',').count(), 3, "IPv4 has too few");
        assert_eq!((first_sources("10.0.0.0/30", 3), first_sources("eth0", 1)), (None, None));
        let points = |values: &[&str], flows: Option<&str>| {
            let options = flows.iter().fold(Settings::default(), |options, flows| options.with("flows", *flows));
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            source_points(values, &options, true, "tcp_stream").map_err(|error| error.to_string())
        };
        let swept = points(&["1", "16"], None).unwrap();
        let of = |idx: usize, name: &str| swept[idx].options.text(name).unwrap();
        assert_eq!((of(0, "flows"), of(1, "flows")), ("16".to_owned(), "16".to_owned()));
        assert_eq!((of(0, "source").split(',').count(), of(1, "source").split(',').count()), (2, 32));
        let error = points(&["1", "16"], Some("4")).map(|_| ()).unwrap_err();
        assert!(error.contains("4 flows cannot come from 16 addresses"), "{error}");
        let error = points(&["0", "1"], None).map(|_| ()).unwrap_err();
        assert!(error.contains("`0` is not a number from 1 to 4096"), "{error}");
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
