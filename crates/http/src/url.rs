//! Addresses of the form `http://host[:port][/path][?query]` (RFC 3986, RFC 9110 section 4.2).
//!
//! Knows no other scheme, no user information and no fragments; names are resolved by the system.

use std::{
    net::{Ipv6Addr, SocketAddr, ToSocketAddrs},
    str::FromStr,
};

/// The port of `http` without one (RFC 9110 section 4.2.1).
const DEFAULT_PORT: u16 = 80;

/// Why a URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// It begins with another scheme, or with none.
    #[error("`{0}` does not begin with http://")]
    Scheme(String),
    /// It asks for TLS.
    #[error("`{0}` asks for TLS, which is not there yet")]
    Tls(String),
    /// There is no usable host in it.
    #[error("`{0}` names no host that can be used")]
    Host(String),
    /// The port is not a number from 1 to 65535.
    #[error("`{0}` has a port that is not a number from 1 to 65535")]
    Port(String),
    /// The path or the query holds what a request line cannot.
    #[error("`{0}` has a character in its path that must be percent-encoded")]
    Target(String),
    /// The name has no address.
    #[error("cannot find the address of `{host}`")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver answered.
        #[source]
        cause: std::io::Error,
    },
}

/// A target of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// A name, an IPv4 address, or an IPv6 address without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path and the query; `/` when there is neither.
    pub target: String,
}

impl Url {
    /// The value of `Host`: the port is left out where it is the usual one.
    #[must_use]
    pub fn host_field(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == DEFAULT_PORT { host } else { format!("{host}:{}", self.port) }
    }

    /// The first address of the host.
    ///
    /// # Errors
    /// [`UrlError::Resolve`], when the name has none.
    pub fn resolve(&self) -> Result<SocketAddr, UrlError> {
        let failed = |cause| UrlError::Resolve { host: self.host.clone(), cause };
        let mut addresses = (self.host.as_str(), self.port).to_socket_addrs().map_err(failed)?;
        addresses.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        match scheme.to_ascii_lowercase().as_str() {
            "http" => {}
            "https" => return Err(UrlError::Tls(text.to_owned())),
            _ => return Err(UrlError::Scheme(text.to_owned())),
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (host, port) = host_and_port(authority).ok_or_else(|| UrlError::Host(text.to_owned()))?;
        let port = match port {
            None | Some("") => DEFAULT_PORT,
            Some(port) => number(port).ok_or_else(|| UrlError::Port(text.to_owned()))?,
        };
        if !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UrlError::Target(text.to_owned()));
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(Self { host: host.to_owned(), port, target: format!("{slash}{target}") })
    }
}

fn number(port: &str) -> Option<u16> {
    port.parse().ok().filter(|&number| number != 0 && !port.starts_with('+'))
}

fn host_and_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        host.parse::<Ipv6Addr>().ok()?;
        (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
    } else {
        authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)))
    };
    let of_a_host = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    (!host.is_empty() && host.chars().all(of_a_host)).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart_and_its_host_field_put_together() {
        let cases = [
            ("http://example.org", "example.org", 80, "/", "example.org"),
            ("HTTP://example.org:8080/a?b=c#d", "example.org", 8080, "/a?b=c", "example.org:8080"),
            ("http://10.0.0.1?q", "10.0.0.1", 80, "/?q", "10.0.0.1"),
            ("http://[::1]:8080/", "::1", 8080, "/", "[::1]:8080"),
            ("http://[2001:db8::1]", "2001:db8::1", 80, "/", "[2001:db8::1]"),
        ];
        for (text, host, port, target, field) in cases {
            let url: Url = text.parse().unwrap();
            assert_eq!((url.host.as_str(), url.port, url.target.as_str()), (host, port, target), "{text}");
            assert_eq!(url.host_field(), field);
        }
    }

    #[test]
    fn what_is_wrong_with_a_url_is_named() {
        let cases = [
            ("example.org", "`example.org` does not begin with http://"),
            ("ftp://a", "`ftp://a` does not begin with http://"),
            ("https://a", "`https://a` asks for TLS, which is not there yet"),
            ("http://", "`http://` names no host that can be used"),
            ("http://me@a/", "`http://me@a/` names no host that can be used"),
            ("http://[::1", "`http://[::1` names no host that can be used"),
            ("http://[a]/", "`http://[a]/` names no host that can be used"),
            ("http://a:x/", "`http://a:x/` has a port that is not a number from 1 to 65535"),
            ("http://a:0", "`http://a:0` has a port that is not a number from 1 to 65535"),
            ("http://a/b c", "`http://a/b c` has a character in its path that must be percent-encoded"),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<Url>().unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn addresses_need_no_resolver() {
        for text in ["http://127.0.0.1:1", "http://[::1]:1"] {
            let url: Url = text.parse().unwrap();
            assert!(url.resolve().unwrap().ip().is_loopback());
        }
    }
}
