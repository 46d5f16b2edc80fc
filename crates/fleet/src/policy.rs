//! What an agent may be made to do: where it sends, and for how long.
//!
//! It knows no kinds of tests, so it reads every endpoint and every free text among a role's settings: whatever is an address, a
//! URL or a host with a port in there must lie within what is allowed. A kind that takes the bare name of a host calls the option
//! by one of [`DESTINATIONS`].

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    str::FromStr,
};

use fathom_model::{OptionDoc, Role, ValueKind, units::Nanos};

use crate::{Class, Error, Failure};

/// Settings and endpoints by these names hold a destination, even when it looks like any other word.
const DESTINATIONS: &[&str] = &["address", "host", "target", "url"];
/// The longest trial of an agent that the controller started itself: a day.
const OWN_LONGEST: Nanos = Nanos::from_secs(24 * 3600);

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u32,
}

impl Network {
    /// This machine, by version 4.
    pub const LOOPBACK_V4: Self = Self { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 };
    /// This machine, by version 6.
    pub const LOOPBACK_V6: Self = Self { address: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix: 128 };

    /// Whether all of another range lies within.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }

    /// Whether an address lies within.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(32 - self.prefix).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(128 - self.prefix).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self { address, prefix: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Network {
    type Err = Error;

    /// Reads `10.0.0.0/8`, `fd00::/8`, or a single address.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Network(text.to_owned());
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address = address.parse::<IpAddr>().map_err(|_| wrong())?.to_canonical();
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(longest), str::parse).map_err(|_| wrong())?;
        if prefix > longest { Err(wrong()) } else { Ok(Self { address, prefix }) }
    }
}

/// Where an agent may send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destinations {
    /// Wherever the controller says: for agents that it started itself, which asks its user before.
    Anything,
    /// Only to the controller and to what the owner of the host has named: for agents behind `fathom serve`.
    Only {
        /// The address that the controller came from.
        controller: IpAddr,
        /// What else is allowed.
        allowed: Vec<Network>,
    },
}

/// What an agent may be made to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Where it may send.
    pub destinations: Destinations,
    /// The longest trial, warm-up included.
    pub longest: Nanos,
}

impl Policy {
    /// For an agent that the controller started itself.
    #[must_use]
    pub const fn own() -> Self {
        Self { destinations: Destinations::Anything, longest: OWN_LONGEST }
    }

    /// Whether a role may be played.
    ///
    /// # Errors
    /// A preflight failure that says what the owner of the host would have to allow.
    pub fn check(&self, role: &Role, options: &[OptionDoc]) -> Result<(), Failure> {
        if role.phases.longest() > self.longest {
            let text = format!("a trial of {} is refused: {} is the longest here", role.phases.longest(), self.longest);
            return Err(Failure::new(Class::Preflight, text));
        }
        let Destinations::Only { controller, allowed } = &self.destinations else { return Ok(()) };
        let names_file =
            |name: &&String| options.iter().any(|option| option.name == **name && option.value == ValueKind::File);
        if let Some(name) = role.settings.0.keys().find(names_file) {
            let message = format!("`{name}` is refused: an agent that is served opens no files for others");
            return Err(Failure::new(Class::Preflight, message));
        }
        let is_allowed = |address: IpAddr| {
            address.to_canonical() == controller.to_canonical() || allowed.iter().any(|range| range.contains(address))
        };
        let is_within = |network: &Network| {
            let single = Network::from(controller.to_canonical());
            single.covers(network) || allowed.iter().any(|range| range.covers(network))
        };
        for said in texts(role, options) {
            let Said { name, value: text, .. } = &said;
            if let Some(network) = said.networks().find(|network| !is_within(network)) {
                let message = format!("sending to {network} is refused (from `{name}` = `{text}`)");
                let hint = format!("start the server there with --allow {network}");
                return Err(Failure { hint: Some(hint), ..Failure::new(Class::Preflight, message) });
            }
            let unclear = || Failure::new(Class::Preflight, format!("it is not clear where `{name}` = `{text}` leads"));
            let addresses = said.addresses().ok_or_else(unclear)?;
            if let Some(address) = addresses.into_iter().find(|address| !is_allowed(*address)) {
                let message = format!("sending to {address} is refused (from `{name}` = `{text}`)");
                let hint = format!("start the server there with --allow {address}");
                return Err(Failure { hint: Some(hint), ..Failure::new(Class::Preflight, message) });
            }
        }
        Ok(())
    }
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
    use fathom_model::{Phases, Settings, Side};

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
            seed: 0,
        }
    }

    fn policy() -> Policy {
        let destinations = Destinations::Only {
            controller: "198.18.0.1".parse().unwrap(),
            allowed: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
        };
        Policy { destinations, longest: Nanos::from_secs(60) }
    }

    #[test]
    fn ranges_contain_what_shares_their_prefix() {
        let cases = [
            ("10.0.0.0/8", "10.255.1.2", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "10.0.0.1", false),
            ("::/0", "2001:db8::1", true),
        ];
        for (range, address, expected) in cases {
            let range: Network = range.parse().unwrap();
            assert_eq!(range.contains(address.parse().unwrap()), expected, "{range:?} {address}");
        }
        for text in ["10.0.0.0/33", "10/8", "", "10.0.0.0/", "x", "fd00::/129"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn files_of_the_owner_are_not_opened_for_whoever_has_the_key() {
        let role = role(Settings::default().with("log", "/tmp/log"), &[]);
        let failure = policy().check(&role, OPTIONS).unwrap_err();
        assert!(failure.class == Class::Preflight && failure.message.contains("`log` is refused"));
        assert!(Policy::own().check(&role, OPTIONS).is_ok());
    }

    #[test]
    fn whatever_looks_like_a_destination_outside_is_refused() {
        let peers =
            ["203.0.113.1:80", "203.0.113.1", "[2001:db8::1]:80", "255.255.255.255:9", "10.0.0.1:1,203.0.113.1:2"];
        for peer in peers {
            let failure = policy().check(&role(Settings::default(), &[("anything", peer)]), OPTIONS).unwrap_err();
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
            assert!(policy().check(&role(settings, &[]), OPTIONS).is_err(), "{url}");
        }
        for url in
            ["http://%32%30/", "http://198.18.0.1\\@203.0.113.1/", "http://203.0.113.1\\@198.18.0.1/", "-", "http://"]
        {
            let settings = Settings::default().with("url", url);
            let failure = policy().check(&role(settings, &[]), OPTIONS).unwrap_err();
            assert!(failure.message.contains("not clear"), "{url}: {}", failure.message);
        }
        let settings = Settings::default().with("algorithm", "203.0.113.1");
        assert!(policy().check(&role(settings, &[]), OPTIONS).is_err(), "under any name");
    }

    #[test]
    fn a_range_must_lie_within_what_is_allowed_as_a_whole() {
        let check = |range: &str| policy().check(&role(Settings::default().with("algorithm", range), &[]), OPTIONS);
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
        assert_eq!(policy().check(&role(settings, &peers), OPTIONS), Ok(()));
        let weighted = Settings::default().with("url", "70 http://198.18.0.1/a\n30 http://198.18.0.1/b");
        assert_eq!(policy().check(&role(weighted, &[]), OPTIONS), Ok(()));
    }

    #[test]
    fn a_trial_beyond_the_longest_is_refused_everywhere() {
        let mut long = role(Settings::default(), &[]);
        long.phases.measure_ns = Nanos::MAX;
        assert!(policy().check(&long, OPTIONS).is_err());
        assert!(Policy::own().check(&long, OPTIONS).is_err());
    }
}
