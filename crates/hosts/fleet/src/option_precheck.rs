//! An early check for requests that a served agent would refuse later, for a better error message.
//!
//! It is not a security check: the [`Policy`] checks each file and destination at the moment when a role opens it or sends to it. This
//! check covers the targets that the kind reports, options of kind [`ValueKind::File`], and the addresses from the responder.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use fathom_engine::NamedTarget;
use fathom_model::{OptionDoc, Role, ValueKind};
use fathom_sys::policy::{Network, Policy, Refused};

use crate::{AgentFailure, ErrorClass};

/// Checks that everything a role names is allowed, as far as this is known in advance.
///
/// # Errors
/// A preflight failure that states what the owner of the host would have to allow.
pub(crate) fn check(
    policy: &Policy,
    role: &Role,
    options: &[OptionDoc],
    targets: &[NamedTarget],
) -> Result<(), AgentFailure> {
    if !policy.is_for_others() {
        return Ok(());
    }
    let is_file = |option: &&OptionDoc| option.value == ValueKind::File;
    // An empty path means that the other side has a file.
    let has_path = |option: &&OptionDoc| role.settings.text(option.name).is_some_and(|path| !path.is_empty());
    if let Some(option) = options.iter().filter(is_file).find(has_path) {
        let message = format!("`{}` is refused: an agent that is served opens no files for others", option.name);
        return Err(AgentFailure::new(ErrorClass::Preflight, message));
    }
    for target in targets {
        check_value(policy, ("target", &target.host), networks_of(&target.host).into_iter())?;
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

/// Parses an address with or without a port.
fn address(word: &str) -> Option<Network> {
    let with_port = word.parse::<SocketAddr>().map(|address| address.ip());
    with_port.or_else(|_| word.parse::<IpAddr>()).ok().map(Network::from)
}

/// Resolves a network, an address or a name now; empty if that fails.
fn networks_of(host: &str) -> Vec<Network> {
    if let Ok(network) = host.parse() {
        return vec![network];
    }
    let found = (host, 0).to_socket_addrs().into_iter().flatten();
    found.map(|address| Network::from(address.ip())).collect()
}

#[cfg(test)]
mod tests {
    use fathom_engine::Consent;
    use fathom_model::{Phases, Settings, Side, units::Nanos};

    use super::*;

    const OPTIONS: &[OptionDoc] = &[
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

    fn judge(role: &Role, hosts: &[&str]) -> Result<(), AgentFailure> {
        let allowed = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let target = |host: &&str| NamedTarget { host: (*host).to_owned(), port: None, consent: Consent::AllowList };
        let targets: Vec<_> = hosts.iter().map(target).collect();
        check(&Policy::served("198.18.0.1".parse().unwrap(), allowed), role, OPTIONS, &targets)
    }

    #[test]
    fn files_of_the_owner_are_not_opened_for_whoever_has_the_key() {
        let role = role(Settings::default().with("log", "/tmp/log"), &[]);
        let failure = judge(&role, &[]).unwrap_err();
        assert!(failure.class == ErrorClass::Preflight && failure.message.contains("`log` is refused"));
        assert!(check(&Policy::anything(), &role, OPTIONS, &[]).is_ok());
    }

    #[test]
    fn a_destination_outside_is_told_before_anything_is_opened() {
        let peers = ["203.0.113.1:80", "203.0.113.1", "[2001:db8::1]:80", "10.0.0.1:1,203.0.113.1:2"];
        for peer in peers {
            let failure = judge(&role(Settings::default(), &[("anything", peer)]), &[]).unwrap_err();
            assert_eq!(failure.class, ErrorClass::Preflight, "{peer}");
            assert!(failure.hint.unwrap().contains("--allow"));
        }
        for host in ["203.0.113.1", "2001:db8::1", "localhost", "10.0.0.0/7", "0.0.0.0/0", "::/0"] {
            let failure = judge(&role(Settings::default(), &[]), &["10.0.0.1", host]).unwrap_err();
            assert!(failure.message.contains("is refused") && failure.hint.unwrap().contains("--allow"), "{host}");
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
        let settings = Settings::default().with("body", "see https://shop.test/ 203.0.113.1");
        let hosts = ["::ffff:198.18.0.1", "198.18.0.1", "10.2.0.0/16"];
        assert_eq!(judge(&role(settings, &peers), &hosts), Ok(()));
    }
}
