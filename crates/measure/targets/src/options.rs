//! The options of the tests of targets.

use std::collections::BTreeMap;

use fathom_engine::Error;
use fathom_model::{OptionDoc, Settings, ValueKind, units::Bytes};
use fathom_transport::options::invalid_value;

use crate::{
    dialect::Dialect,
    message::{HEADER, LENGTH_MAX},
};

pub(crate) const HOST: OptionDoc = OptionDoc {
    name: "host",
    value: ValueKind::Destination,
    default: None,
    help: "address that the targets share, HOST or HOST:PORT",
};
pub(crate) const CONNECTIONS: OptionDoc = OptionDoc {
    name: "connections",
    value: ValueKind::Count(1, 100_000_000),
    default: Some("1000"),
    help: "connections to open, or datagrams to send each from a port of its own",
};
pub(crate) const CONCURRENCY: OptionDoc = OptionDoc {
    name: "concurrency",
    value: ValueKind::Count(1, 4096),
    default: Some("64"),
    help: "connections that wait for their answer at once",
};
pub(crate) const FLOWS: OptionDoc =
    OptionDoc { name: "flows", value: ValueKind::Count(1, 20_000), default: Some("100"), help: "flows that stay open" };
pub(crate) const RATE: OptionDoc = OptionDoc {
    name: "rate",
    value: ValueKind::Rate,
    default: Some("5k/s"),
    help: "messages per second of all flows together; the time between two of a flow is the resolution of its outages",
};
pub(crate) const SIZE: OptionDoc =
    OptionDoc { name: "size", value: ValueKind::Size, default: Some("128"), help: "bytes of a message, 96 to 16384" };
pub(crate) const TIMEOUT: OptionDoc = OptionDoc {
    name: "timeout",
    value: ValueKind::Span,
    default: Some("1s"),
    help: "how long an answer is waited for; one that comes later is late",
};
/// Shorter, so that a pause of the device is an outage, although TCP sends again what it lost in it.
pub(crate) const FLOW_TIMEOUT: OptionDoc = OptionDoc {
    default: Some("200ms"),
    help: "how long an answer is waited for; a message that is answered later is late, and part of an outage",
    ..TIMEOUT
};
pub(crate) const GIVE_UP: OptionDoc = OptionDoc {
    name: "give-up",
    value: ValueKind::Span,
    default: Some("1s"),
    help: "a TCP connection without any answer for so long is closed and opened anew",
};
pub(crate) const ONCE: OptionDoc = OptionDoc {
    name: "once",
    value: ValueKind::Flag,
    default: None,
    help: "a TCP connection that broke is not opened again: its outage lasts until the end",
};
pub(crate) const BUCKET: OptionDoc = OptionDoc {
    name: "bucket",
    value: ValueKind::Span,
    default: Some("10ms"),
    help: "resolution of the timeline, 1ms to 1s",
};
pub(crate) const SERVER: OptionDoc = OptionDoc {
    name: "server",
    value: ValueKind::Choice(Dialect::WORDS),
    default: Some("fathom"),
    help: "program on the targets: fathom serve --identity, ctraffic or mconnect",
};
pub(crate) const ECHO_SERVER: OptionDoc = OptionDoc { value: ValueKind::Choice(Dialect::ECHO_WORDS), ..SERVER };
pub(crate) const TARGETS: OptionDoc = OptionDoc {
    name: "targets",
    value: ValueKind::Text,
    default: None,
    help: "expected targets: their number, or their names with commas between them",
};
pub(crate) const WEIGHTS: OptionDoc = OptionDoc {
    name: "weights",
    value: ValueKind::Text,
    default: None,
    help: "expected targets with their shares, such as t1=2,t2=1",
};
pub(crate) const LOCAL_SOURCES: OptionDoc = OptionDoc {
    name: "local-sources",
    value: ValueKind::Flag,
    default: None,
    help: "make all addresses of --source belong to this host during the test (a local route; needs CAP_NET_ADMIN)",
};
pub(crate) const SOURCE_ORDER: OptionDoc = OptionDoc {
    name: "source-order",
    value: ValueKind::Choice(&["in-turn", "random"]),
    default: Some("in-turn"),
    help: "how the addresses of --source are chosen; random is by --seed",
};

/// The targets that a test expects.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ExpectedTargets {
    /// By name; empty if they are not named.
    pub(crate) weights: BTreeMap<String, f64>,
    /// Their number, if it is known.
    pub(crate) n: Option<u64>,
}

/// Returns the expected targets.
///
/// # Errors
/// A name stands there twice, a weight is none, or both options are given.
pub(crate) fn expected(settings: &Settings) -> Result<ExpectedTargets, Error> {
    match (settings.text(TARGETS.name), settings.text(WEIGHTS.name)) {
        (None, None) => Ok(ExpectedTargets::default()),
        (Some(_), Some(_)) => Err(Error::BadRequest {
            what: "`targets` and `weights` both name the expected targets".to_owned(),
            hint: Some("--weights t1=2,t2=1".to_owned()),
        }),
        (Some(targets), None) => {
            if let Ok(n) = targets.trim().parse::<u64>() {
                let what = "a number from 1, or names";
                return if n == 0 {
                    Err(invalid_value(TARGETS.name, what, &n))
                } else {
                    Ok(ExpectedTargets { n: Some(n), ..ExpectedTargets::default() })
                };
            }
            named(&TARGETS, targets.split(',').map(|name| Some((name.trim(), 1.0))), &targets)
        }
        (None, Some(weights)) => {
            let pair = |word: &'_ str| -> Option<(String, f64)> {
                let (name, weight) = word.split_once('=')?;
                let weight = weight.trim().parse().ok().filter(|weight: &f64| weight.is_finite() && *weight > 0.0)?;
                Some((name.trim().to_owned(), weight))
            };
            let pairs: Vec<Option<(String, f64)>> = weights.split(',').map(pair).collect();
            named(
                &WEIGHTS,
                pairs.iter().map(|pair| pair.as_ref().map(|(name, weight)| (name.as_str(), *weight))),
                &weights,
            )
        }
    }
}

fn named<'a>(
    option: &OptionDoc,
    pairs: impl Iterator<Item = Option<(&'a str, f64)>>,
    text: &str,
) -> Result<ExpectedTargets, Error> {
    let form = if option.name == WEIGHTS.name {
        "names with shares above 0, such as t1=2,t2=1"
    } else {
        "names, such as t1,t2"
    };
    let mut weights = BTreeMap::new();
    for pair in pairs {
        let (name, weight) =
            pair.filter(|(name, _)| !name.is_empty()).ok_or_else(|| invalid_value(option.name, form, &text))?;
        if weights.insert(name.to_owned(), weight).is_some() {
            return Err(invalid_value(option.name, "each name once", &name));
        }
    }
    let n = u64::try_from(weights.len()).ok();
    Ok(ExpectedTargets { weights, n })
}

/// Returns a count as the size of a data structure; the option's bounds keep it small.
pub(crate) fn count(settings: &Settings, option: &OptionDoc) -> usize {
    fathom_transport::options::count(settings, option).unwrap_or(1)
}

/// Returns the length of a message.
///
/// # Errors
/// It is too short for what a message says, or too long.
pub(crate) fn message_length(settings: &Settings) -> Result<usize, Error> {
    let size = settings.size(SIZE.name).unwrap_or(Bytes(128));
    let fits = |length: &usize| (HEADER..=LENGTH_MAX).contains(length);
    usize::try_from(size.0).ok().filter(fits).ok_or_else(|| invalid_value(SIZE.name, "96 B to 16384 B", &size))
}

/// Returns the protocol of the servers.
pub(crate) fn dialect(settings: &Settings) -> Dialect {
    settings.text(SERVER.name).and_then(|word| Dialect::of(&word)).unwrap_or(Dialect::Fathom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> Result<ExpectedTargets, String> {
        expected(&Settings::default().with(name, text)).map_err(|error| error.to_string())
    }

    #[test]
    fn targets_are_a_number_or_names_each_once() {
        assert_eq!(of("targets", "10").unwrap(), ExpectedTargets { n: Some(10), ..ExpectedTargets::default() });
        let two = of("targets", "t1, t2").unwrap();
        assert_eq!((two.n, two.weights["t2"]), (Some(2), 1.0));
        assert_eq!(of("targets", "t1,t2,t1").unwrap_err(), "option `targets` takes each name once, not `t1`");
        assert!(of("targets", "0").is_err() && of("targets", "t1,").is_err());
    }

    #[test]
    fn weights_are_shares_above_zero() {
        let weights = of("weights", "t1=2,t2=0.5").unwrap();
        assert_eq!((weights.n, weights.weights["t1"], weights.weights["t2"]), (Some(2), 2.0, 0.5));
        for wrong in ["t1", "t1=0", "t1=-1", "=1", "t1=x", "t1=inf"] {
            assert!(of("weights", wrong).unwrap_err().contains("t1=2,t2=1"), "{wrong}");
        }
        assert!(expected(&Settings::default().with("weights", "a=1").with("targets", "a")).is_err());
    }
}
