//! A good word before anything is opened, where a served agent would be refused later.
//!
//! It guards nothing: what a role sends to and opens is judged by the [`Policy`] where that happens. Here only options whose kind
//! is [`ValueKind::Destination`] or [`ValueKind::File`] are looked at, and the addresses that the responder told.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use fathom_model::{OptionDoc, Role, ValueKind};
use fathom_sys::policy::{Network, Policy, Refused};

use crate::{AgentFailure, ErrorClass};

/// Whether all that a role names is allowed, as far as that can be told before.
///
/// # Errors
/// A preflight failure that says what the owner of the host would have to allow.
pub(crate) fn check(policy: &Policy, role: &Role, options: &[OptionDoc]) -> Result<(), AgentFailure> {
    if !policy.is_for_others() {
        return Ok(());
    }
    for option in options {
        let Some(text) = role.settings.text(option.name) else { continue };
        match option.value {
            // One without a path says that the other side has a file.
            ValueKind::File if !text.is_empty() => {
                let message =
                    format!("`{}` is refused: an agent that is served opens no files for others", option.name);
                return Err(AgentFailure::new(ErrorClass::Preflight, message));
            }
            ValueKind::Destination => check_value(policy, (option.name, &text), words(&text).flat_map(networks_of))?,
            _ => {}
        }
    }
    role.peer.iter().try_for_each(|(name, text)| check_value(policy, (name, text), words(text).filter_map(address)))
}

fn check_value(
    policy: &Policy,
    (name, text): (&str, &str),
    mut networks: impl Iterator<Item = Network>,
) -> Result<(), AgentFailure> {
    let refused = |refused: Refused| {
        let message = format!("{refused} (from `{name}` = `{text}`)");
        AgentFailure { hint: refused.hint, ..AgentFailure::new(ErrorClass::Preflight, message) }
    };
    networks.try_for_each(|network| policy.judge(network)).map_err(refused)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ' ', '\n']).filter(|word| !word.is_empty())
}

/// An address, with a port or without.
fn address(word: &str) -> Option<Network> {
    let with_port = word.parse::<SocketAddr>().map(|address| address.ip());
    with_port.or_else(|_| word.parse::<IpAddr>()).ok().map(Network::from)
}

/// What a URL, a network, an address or a name with or without a port stands for now; nothing when that cannot be told.
fn networks_of(word: &str) -> Vec<Network> {
    if let Ok(network) = word.parse() {
        return vec![network];
    }
    let behind_scheme = word.split_once("://").map_or(word, |(_, rest)| rest);
    let authority = behind_scheme.split(['/', '?', '#']).next().unwrap_or(behind_scheme);
    let authority = authority.rsplit('@').next().unwrap_or(authority);
    if let Some(address) = address(authority.trim_start_matches('[').trim_end_matches(']')).or(address(authority)) {
        return vec![address];
    }
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    // A number in front of a URL says how often it is asked for.
    if host.bytes().all(|byte| byte.is_ascii_digit()) {
        return Vec::new();
    }
    let found = (host, 0).to_socket_addrs().into_iter().flatten();
    found.map(|address| Network::from(address.ip())).collect()
}

#[cfg(test)]
mod tests {
    use fathom_model::{Phases, Settings, Side, units::Nanos};

    use super::*;

    const OPTIONS: &[OptionDoc] = &[
        OptionDoc { name: "url", value: ValueKind::Destination, default: None, help: "where" },
        OptionDoc { name: "body", value: ValueKind::Text, default: None, help: "what" },
        OptionDoc { name: "log", value: ValueKind::File, default: None, help: "what happened" },
    ];

    fn role(settings: Settings, peer: &[(&str, &str)]) -> Role {
        Role {
            test: "t".to_owned(),
            kind: "k".to_owned(),
            side: Side::Initiator,
            settings,
            phases: Phases {
                warmup_max_ns: Nanos::ZERO,
                is_warmup_whole: false,
                measure_ns: Nanos::from_secs(1),
                interval_ns: Nanos::from_millis(100),
            },
            address: None,
            interface: None,
            peer: peer.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
            cores: Vec::new(),
            meeting: fathom_model::PeerAddresses::default(),
            seed: 0,
        }
    }

    fn judge(role: &Role) -> Result<(), AgentFailure> {
        let allowed = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        check(&Policy::served("198.18.0.1".parse().unwrap(), allowed), role, OPTIONS)
    }

    #[test]
    fn files_of_the_owner_are_not_opened_for_whoever_has_the_key() {
        let role = role(Settings::default().with("log", "/tmp/log"), &[]);
        let failure = judge(&role).unwrap_err();
        assert!(failure.class == ErrorClass::Preflight && failure.message.contains("`log` is refused"));
        assert!(check(&Policy::anything(), &role, OPTIONS).is_ok());
    }

    #[test]
    fn a_destination_outside_is_told_before_anything_is_opened() {
        let peers = ["203.0.113.1:80", "203.0.113.1", "[2001:db8::1]:80", "10.0.0.1:1,203.0.113.1:2"];
        for peer in peers {
            let failure = judge(&role(Settings::default(), &[("anything", peer)])).unwrap_err();
            assert_eq!(failure.class, ErrorClass::Preflight, "{peer}");
            assert!(failure.hint.unwrap().contains("--allow"));
        }
        for url in [
            "http://203.0.113.1/x",
            "http://me:secret@203.0.113.1:81?x=1",
            "http://[2001:db8::1]/",
            "http://localhost:8080/",
            "localhost",
            "3 http://198.18.0.1/\n1 http://203.0.113.1/",
            "10.0.0.0/7",
            "0.0.0.0/0",
            "10.0.0.0/8 ::/0",
        ] {
            let failure = judge(&role(Settings::default().with("url", url), &[])).unwrap_err();
            assert!(failure.message.contains("is refused") && failure.hint.unwrap().contains("--allow"), "{url}");
        }
    }

    #[test]
    fn what_is_allowed_and_what_is_no_destination_passes() {
        let peers = [
            ("address", "198.18.0.1:40123"),
            ("more", "10.1.2.3:1"),
            ("six", "[fd00::1]:5"),
            ("mac", "02:00:00:00:00:05"),
        ];
        for url in ["http://[::ffff:198.18.0.1]:80/", "70 http://198.18.0.1/a\n30 http://198.18.0.1/b", "10.2.0.0/16"] {
            let settings = Settings::default().with("url", url).with("body", "see https://shop.test/ 203.0.113.1");
            assert_eq!(judge(&role(settings, &peers)), Ok(()), "{url}");
        }
    }
}
