//! Whose connections are followed.

use std::net::{IpAddr, SocketAddr};

use fathom_engine::Error;
use fathom_model::{Settings, settings::SettingError};

/// The servers whose connections are followed: ports, some of them only at an address.
#[derive(Debug, Clone, Default)]
pub(crate) struct FollowedServers(Vec<(Option<IpAddr>, u16)>);

impl FollowedServers {
    /// Reads the option `ports`.
    ///
    /// # Errors
    /// Names the part that is wrong.
    pub(crate) fn of(settings: &Settings) -> Result<Self, Error> {
        let text = settings.text("ports").unwrap_or_default();
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let server = |word: &str| {
            let with_address = || word.parse::<SocketAddr>().ok().map(|at| (Some(at.ip()), at.port()));
            word.parse().ok().map(|port| (None, port)).or_else(with_address).ok_or_else(|| SettingError::NotAllowed {
                name: "ports".to_owned(),
                expected: "ports with commas between them, such as 80,8080 or 192.0.2.9:80".to_owned(),
                given: word.to_owned(),
            })
        };
        Ok(Self(words.map(server).collect::<Result<_, _>>()?))
    }

    /// Returns true if all servers are followed.
    pub(crate) fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if a connection between two ends is followed.
    pub(crate) fn has(&self, one: SocketAddr, other: SocketAddr) -> bool {
        let is_server = |end: SocketAddr| {
            let is_at = |address: &Option<IpAddr>| address.is_none_or(|address| address == end.ip());
            self.0.iter().any(|(address, port)| *port == end.port() && is_at(address))
        };
        self.is_all() || is_server(one) || is_server(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(text: &str) -> Result<FollowedServers, Error> {
        FollowedServers::of(&Settings::default().with("ports", text))
    }

    #[test]
    fn connections_are_followed_by_the_port_and_the_address_of_one_end() {
        let has = |text: &str, one: &str, other: &str| {
            servers(text).unwrap().has(one.parse().unwrap(), other.parse().unwrap())
        };
        let (client, web, other) = ("10.0.0.1:50000", "10.0.0.2:80", "10.0.0.3:80");
        for (text, of_web, of_other) in
            [("", true, true), ("80", true, true), ("10.0.0.2:80, 443", true, false), ("8080", false, false)]
        {
            assert_eq!((has(text, client, web), has(text, other, client)), (of_web, of_other), "{text}");
        }
        assert!(has("[::1]:8080", "[::1]:8080", "[::1]:4000"));
    }

    #[test]
    fn a_wrong_part_is_named() {
        for part in ["http", "65536", "10.0.0.1", "::1"] {
            let error = servers(&format!("80,{part}")).unwrap_err().to_string();
            assert!(error.contains("ports") && error.contains(part), "{error}");
        }
    }
}
