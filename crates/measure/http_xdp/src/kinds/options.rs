//! The options of requests without sockets, and the load that they ask for.

use fathom_engine::{
    Error,
    pace::{ArrivalProcess, Profile},
};
use fathom_http::{
    responder,
    target::options::{CONNECTING, REQUEST},
    users::concat_options,
};
use fathom_model::{OptionDoc, Settings, ValueKind, settings::SettingError, units::Nanos};

use crate::{
    client::{LoadOptions, sources::SourceNetwork},
    responder::{self as xdp_responder, MODE},
};

/// As many connections as fit into 16 GiB of the kernel's memory, 64 bytes for each.
const CONNECTIONS_MAX: u64 = 1 << 24;

/// As with sockets: each request that is due is counted by itself.
const RATE_MAX: f64 = 1e7;

const LOAD: [OptionDoc; 3] = [
    OptionDoc {
        name: "connections",
        value: ValueKind::Count(1, CONNECTIONS_MAX),
        default: Some("32"),
        help: "number of connections kept busy; with a rate, the number that are open for it",
    },
    OptionDoc {
        name: "timeout",
        value: ValueKind::Span,
        default: Some("5s"),
        help: "timeout of a connect and of each response",
    },
    OptionDoc {
        name: "source",
        value: ValueKind::Text,
        default: None,
        help: "a network (CIDR) of addresses that nobody has: the test answers for them; default: the address of the device",
    },
];

/// The options of requests at a rate.
const RATE: [OptionDoc; 2] = [
    OptionDoc {
        name: "rate",
        value: ValueKind::Rate,
        default: None,
        help: "requests started per second, whether earlier ones are answered or not",
    },
    OptionDoc {
        name: "arrivals",
        value: ValueKind::Choice(&["constant", "poisson"]),
        default: Some("constant"),
        help: "constant: evenly spaced; poisson: random, like independent users",
    },
];

/// Of the options of connecting, where to and by which IP version; the others are matters of sockets.
const DESTINATION: [OptionDoc; 2] = [CONNECTING[0], CONNECTING[6]];

/// Where programs run, and of the options of fathom's own responder what an XDP program can do.
const RESPONDER: [OptionDoc; 3] = [MODE, responder::SIZE, responder::PORT];
/// Those that a client does not have.
pub(super) const RESPONDER_ONLY: [OptionDoc; 2] = [responder::SIZE, responder::PORT];

const OF_CLOSED: [OptionDoc; LOAD.len() + REQUEST.len() + DESTINATION.len() + RESPONDER.len()] =
    concat_options(&[&LOAD, &REQUEST, &DESTINATION, &RESPONDER]);
const OF_OPEN: [OptionDoc; OF_CLOSED.len() + RATE.len()] = concat_options(&[&OF_CLOSED, &RATE]);
pub(super) const CLOSED: &[OptionDoc] = &OF_CLOSED;
pub(super) const OPEN: &[OptionDoc] = &OF_OPEN;

/// The load that these options ask for.
///
/// # Errors
/// Names the option that has no meaning here.
pub(super) fn load(settings: &Settings, seed: u64) -> Result<LoadOptions, Error> {
    let refused = |name: &str, expected: &str, given: String| SettingError::NotAllowed {
        name: name.to_owned(),
        expected: expected.to_owned(),
        given,
    };
    if let Some(n) = settings.count("per-connection").filter(|n| *n != 1) {
        return Err(refused("per-connection", "1, or no value for connections that stay open", n.to_string()).into());
    }
    let schedule = settings.rate("rate").map(|rate| {
        if settings.count("per-connection").is_some() {
            let what =
                "with `per-connection 1`, each connection begins when the one before has ended, and not at a rate";
            return Err(Error::BadRequest {
                what: what.to_owned(),
                hint: Some("leave out --rate, or use --engine sockets".to_owned()),
            });
        }
        let profile = Profile::steady(rate).filter(|_| rate.get() <= RATE_MAX);
        let profile = profile.ok_or_else(|| refused("rate", "from 1 to 10M requests per second", rate.to_string()))?;
        let process = match settings.text("arrivals").as_deref() {
            Some("poisson") => ArrivalProcess::Poisson { seed },
            _ => ArrivalProcess::Constant,
        };
        Ok((profile, process))
    });
    Ok(LoadOptions {
        n_connections: settings.count("connections").and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
        timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
        sources: settings.text("source").map(|text| SourceNetwork::parse(&text)).transpose()?,
        schedule: schedule.transpose()?,
        mode: xdp_responder::mode(settings),
        answer_max: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_sockets_are_taken_over_by_name() {
        assert_eq!(DESTINATION.map(|option| option.name), ["connect-to", "ip"]);
        assert_eq!(RESPONDER.map(|option| option.name), ["xdp", "size", "port"]);
    }

    #[test]
    fn what_has_no_meaning_without_sockets_is_refused() {
        let load = |given: &[(&str, &str)]| {
            let settings = given.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value));
            load(&settings.complete(OPEN).unwrap(), 7).map_err(|error| error.to_string())
        };
        assert!(load(&[("per-connection", "1")]).unwrap().schedule.is_none());
        assert_eq!(load(&[("rate", "20k"), ("connections", "1M")]).unwrap().n_connections, 1_000_000);
        for (given, name) in [
            (&[("per-connection", "2")][..], "per-connection"),
            (&[("per-connection", "1"), ("rate", "1k")], "per-connection"),
            (&[("rate", "20M")], "rate"),
            (&[("source", "here")], "source"),
        ] {
            assert!(load(given).unwrap_err().contains(name), "{given:?}");
        }
    }
}
