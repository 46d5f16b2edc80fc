//! What an agent may be made to do: where it sends, and for how long.
//!
//! It knows no kinds of tests, so it reads every endpoint and every free text among a role's settings: whatever is an address, a
//! URL or a host with a port in there must lie within what is allowed. A kind that takes the bare name of a host calls the option
//! by one of [`DESTINATIONS`].

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use fathom_model::{OptionDoc, Role, ValueKind};
use fathom_sys::policy::{Network, Policy, Refused};

use crate::{Class, Failure};

/// Settings and endpoints by these names hold a destination, even when it looks like any other word.
const DESTINATIONS: &[&str] = &["address", "host", "target", "url"];

/// Whether everything in a role that could name a destination is allowed, for a good word before anything is opened.
///
/// # Errors
/// A preflight failure that says what the owner of the host would have to allow.
pub(crate) fn check(policy: &Policy, role: &Role, options: &[OptionDoc]) -> Result<(), Failure> {
    if !policy.is_for_others() {
        return Ok(());
    }
    // One without a path says that the other side has a file.
    let names_file = |name: &&String| {
        let is_file = options.iter().any(|option| option.name == **name && option.value == ValueKind::File);
        is_file && role.settings.text(name).as_deref() != Some("")
    };
    if let Some(name) = role.settings.0.keys().find(names_file) {
        let message = format!("`{name}` is refused: an agent that is served opens no files for others");
        return Err(Failure::new(Class::Preflight, message));
    }
    for said in texts(role, options) {
        let Said { name, value: text, .. } = &said;
        let refused = |refused: Refused| {
            let message = format!("{refused} (from `{name}` = `{text}`)");
            Failure { hint: refused.hint, ..Failure::new(Class::Preflight, message) }
        };
        said.networks().try_for_each(|network| policy.judge(network)).map_err(refused)?;
        let unclear = || Failure::new(Class::Preflight, format!("it is not clear where `{name}` = `{text}` leads"));
        let addresses = said.addresses().ok_or_else(unclear)?;
        addresses.into_iter().try_for_each(|address| policy.judge(address.into())).map_err(refused)?;
    }
    Ok(())
}

/// Something in a role that could name a destination.
struct Said {
    name: String,
    value: String,
    /// What the responder told, and not an option; there a word with a point in it is the name of a host.
    is_endpoint: bool,
}

/// All endpoints, and the settings that take free text.
fn texts(role: &Role, options: &[OptionDoc]) -> Vec<Said> {
    let is_free = |name: &str| {
        options.iter().find(|option| option.name == name).is_none_or(|option| option.value == ValueKind::Text)
    };
    let names = role.settings.0.keys().filter(|name| is_free(name));
    let settings = names.filter_map(|name| {
        let text = role.settings.text(name)?;
        Some(Said { name: name.clone(), value: text, is_endpoint: false })
    });
    let endpoints = role.peer.iter();
    let endpoints = endpoints.map(|(name, text)| Said { name: name.clone(), value: text.clone(), is_endpoint: true });
    settings.chain(endpoints).collect()
}

impl Said {
    /// The ranges of addresses in it, of which an option may say that any may be chosen.
    fn networks(&self) -> impl Iterator<Item = Network> + '_ {
        let words = self.value.split([',', ' ', '\n']).filter(|word| word.contains('/'));
        words.filter_map(|word| word.parse().ok())
    }

    /// The addresses that it stands for: an empty list when it is no destination, nothing when it is one that cannot be judged.
    fn addresses(&self) -> Option<Vec<IpAddr>> {
        let words: Vec<&str> = self.value.split([',', ' ', '\n']).filter(|word| !word.is_empty()).collect();
        // A number in front of a URL says how often it is asked for.
        let is_weight = |idx: usize, word: &str| {
            word.bytes().all(|byte| byte.is_ascii_digit())
                && words.get(idx + 1).is_some_and(|next| next.contains("://"))
        };
        let destinations = words.iter().enumerate().filter(|(idx, word)| !is_weight(*idx, word));
        let found: Option<Vec<_>> = destinations.map(|(_, word)| self.addresses_of(word)).collect();
        found.map(|found| found.concat())
    }

    fn addresses_of(&self, word: &str) -> Option<Vec<IpAddr>> {
        let is_url = word.contains("://");
        let behind_scheme = word.split_once("://").map_or(word, |(_, rest)| rest);
        let authority = behind_scheme.split(['/', '?', '#']).next().unwrap_or(behind_scheme);
        let authority = authority.rsplit('@').next().unwrap_or(authority);
        if is_url && word.contains('\\') {
            // Some parsers of URLs take it for a slash.
            return None;
        }
        if let Ok(address) = authority.parse::<SocketAddr>() {
            return Some(vec![address.ip()]);
        }
        let bare = authority.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.split('%').next().unwrap_or(bare).parse::<IpAddr>() {
            return Some(vec![address]);
        }
        let (host, has_port) = match authority.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, true),
            _ => (authority, false),
        };
        let is_meant = is_url || DESTINATIONS.contains(&self.name.as_str());
        let is_name =
            !host.is_empty() && host.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter));
        if !is_name || !(is_meant || has_port || (self.is_endpoint && host.contains('.'))) {
            return if is_meant { None } else { Some(Vec::new()) };
        }
        match (host, 0).to_socket_addrs() {
            Ok(found) => Some(found.map(|address| address.ip()).collect()),
            // A name that has no address now may have one later; the name of a file has none ever.
            Err(_) if is_meant => None,
            Err(_) => Some(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{Phases, Settings, Side, units::Nanos};

    use super::*;

    const OPTIONS: &[OptionDoc] = &[
        OptionDoc { name: "url", value: ValueKind::Text, default: None, help: "where" },
        OptionDoc { name: "algorithm", value: ValueKind::Text, default: None, help: "how" },
        OptionDoc { name: "size", value: ValueKind::Size, default: None, help: "how much" },
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
            meeting: fathom_model::Meeting::default(),
            seed: 0,
        }
    }

    fn judge(role: &Role) -> Result<(), Failure> {
        let allowed = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        check(&Policy::served("198.18.0.1".parse().unwrap(), allowed), role, OPTIONS)
    }

    #[test]
    fn files_of_the_owner_are_not_opened_for_whoever_has_the_key() {
        let role = role(Settings::default().with("log", "/tmp/log"), &[]);
        let failure = judge(&role).unwrap_err();
        assert!(failure.class == Class::Preflight && failure.message.contains("`log` is refused"));
        assert!(check(&Policy::anything(), &role, OPTIONS).is_ok());
        let elsewhere = self::role(Settings::default().with("log", ""), &[]);
        assert_eq!(judge(&elsewhere), Ok(()), "a file of the controller's");
    }

    #[test]
    fn whatever_looks_like_a_destination_outside_is_refused() {
        let peers =
            ["203.0.113.1:80", "203.0.113.1", "[2001:db8::1]:80", "255.255.255.255:9", "10.0.0.1:1,203.0.113.1:2"];
        for peer in peers {
            let failure = judge(&role(Settings::default(), &[("anything", peer)])).unwrap_err();
            assert_eq!(failure.class, Class::Preflight, "{peer}");
            assert!(failure.hint.unwrap().contains("--allow"));
        }
        for url in [
            "http://203.0.113.1/x",
            "http://me:secret@203.0.113.1:81?x=1",
            "http://localhost:8080/",
            "localhost",
            "3405803777",
            "3 http://198.18.0.1/\n1 http://203.0.113.1/",
        ] {
            let settings = Settings::default().with("url", url);
            assert!(judge(&role(settings, &[])).is_err(), "{url}");
        }
        for url in
            ["http://%32%30/", "http://198.18.0.1\\@203.0.113.1/", "http://203.0.113.1\\@198.18.0.1/", "-", "http://"]
        {
            let settings = Settings::default().with("url", url);
            let failure = judge(&role(settings, &[])).unwrap_err();
            assert!(failure.message.contains("not clear"), "{url}: {}", failure.message);
        }
        let settings = Settings::default().with("algorithm", "203.0.113.1");
        assert!(judge(&role(settings, &[])).is_err(), "under any name");
    }

    #[test]
    fn a_range_must_lie_within_what_is_allowed_as_a_whole() {
        let check = |range: &str| judge(&role(Settings::default().with("algorithm", range), &[]));
        for range in ["10.0.0.0/8", "10.2.0.0/16, fd00:1::/32", "198.18.0.1/32"] {
            assert_eq!(check(range), Ok(()), "{range}");
        }
        for range in ["10.0.0.0/7", "0.0.0.0/0", "198.18.0.0/24", "10.0.0.0/8 ::/0"] {
            let failure = check(range).unwrap_err();
            assert!(failure.message.contains("is refused") && failure.hint.unwrap().contains("--allow"), "{range}");
        }
    }

    #[test]
    fn the_controller_and_what_is_allowed_may_be_sent_to() {
        let peers = [
            ("address", "198.18.0.1:40123"),
            ("more", "10.1.2.3:1"),
            ("six", "[fd00::1]:5"),
            ("mac", "02:00:00:00:00:05"),
        ];
        let settings = Settings::default()
            .with("url", "http://[::ffff:198.18.0.1]:80/")
            .with("algorithm", "Accept: */*;q=0.8 Version: 1.2");
        assert_eq!(judge(&role(settings, &peers)), Ok(()));
        let weighted = Settings::default().with("url", "70 http://198.18.0.1/a\n30 http://198.18.0.1/b");
        assert_eq!(judge(&role(weighted, &[])), Ok(()));
    }
}
