//! URLs of the form `http[s]://[user[:password]@]host[:port][/path][?query]` (RFC 3986, RFC 9110 section 4.2).
//!
//! Supports no other scheme and drops fragments, which are never sent (RFC 9110 section 4.2.3). The path and the query are kept
//! byte for byte and never normalized: the measured URL is the written one. This module knows no resolver.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use fathom_model::host_port::{bracketed, port_number, split_host_port};
use percent_encoding::percent_decode_str;

/// The layer between HTTP and the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// No TLS.
    Http,
    /// TLS.
    Https,
}

impl Scheme {
    /// The port of a URL that names none (RFC 9110 section 4.2.1 and 4.2.2).
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    /// The text before `://`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Why a URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// It begins with another scheme, or with none.
    #[error("`{0}` does not begin with http:// or https://")]
    Scheme(String),
    /// It has no usable host.
    #[error("`{0}` names no host that can be used")]
    Host(String),
    /// The host contains non-ASCII letters.
    #[error("`{0}` has a host that is not ASCII")]
    International(String),
    /// The port is not a number from 1 to 65535.
    #[error("`{0}` has a port that is not a number from 1 to 65535")]
    Port(String),
    /// The user or the password is not text.
    #[error("`{0}` has a user or a password that is not percent-encoded UTF-8 without control characters")]
    User(String),
    /// The path or the query contains a byte that a request line cannot carry.
    #[error("`{0}` has a character in its path that must be percent-encoded")]
    Target(String),
}

impl UrlError {
    /// A hint at the correct form.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Scheme(_) | Self::Host(_) | Self::Port(_) => "write it as http://host:port/path or https://…",
            Self::International(_) => "write the host in its ASCII form, which begins with xn--",
            Self::User(_) => "percent-encode it, or give it by the option user",
            Self::Target(_) => "percent-encode it: a space is %20",
        }
    }
}

/// The URL of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    pub scheme: Scheme,
    /// A name, an IPv4 address, or an IPv6 address without its brackets.
    pub host: String,
    pub port: u16,
    /// The path and the query; `/` if there is neither.
    pub target: String,
    /// `name:password`, decoded, if the URL has a user.
    pub user: Option<String>,
}

impl Url {
    /// The value of `Host`: the default port is omitted.
    #[must_use]
    pub fn host_field(&self) -> String {
        if self.port == self.scheme.default_port() { bracketed(&self.host) } else { self.authority() }
    }

    /// Host and port, the form of `CONNECT` (RFC 9110 section 9.3.6).
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", bracketed(&self.host), self.port)
    }
}

/// The URL without its user, the form of a request through a proxy (RFC 9112 section 3.2.2).
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme.name(), self.host_field(), self.target)
    }
}

/// The offset of the authority of an absolute URL; `None` for a path, even if its query contains a URL.
#[must_use]
pub fn authority_at(text: &str) -> Option<usize> {
    let (scheme, _) = text.split_once("://")?;
    // RFC 3986 section 3.1.
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme.then_some(scheme.len() + 3)
}

/// Splits an absolute URL after its authority; `None` if there is none.
#[must_use]
pub fn split_origin(text: &str) -> Option<(&str, &str)> {
    let authority = authority_at(text)?;
    let end = text[authority..].find(['/', '?', '#']).map_or(text.len(), |at| authority + at);
    Some(text.split_at(end))
}

/// Removes `.` and `..` from a path (RFC 3986 section 5.2.4).
#[must_use]
pub fn without_dots(target: &str) -> String {
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}{query}", kept.join("/"))
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(UrlError::Scheme(text.to_owned())),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, authority) = match authority.rsplit_once('@') {
            Some((user, rest)) => (Some(decode_user(user).ok_or_else(|| UrlError::User(text.to_owned()))?), rest),
            None => (None, authority),
        };
        if !authority.is_ascii() {
            return Err(UrlError::International(text.to_owned()));
        }
        let (host, port) = host_and_port(authority).ok_or_else(|| UrlError::Host(text.to_owned()))?;
        let port = match port {
            None | Some("") => scheme.default_port(),
            Some(port) => port_number(port).ok_or_else(|| UrlError::Port(text.to_owned()))?,
        };
        if !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UrlError::Target(text.to_owned()));
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(Self { scheme, host: host.to_owned(), port, target: format!("{slash}{target}"), user })
    }
}

/// Decodes the text before the `@` into `name:password`; a missing password becomes an empty one.
fn decode_user(user: &str) -> Option<String> {
    let part = |text: &str| percent_decode_str(text).decode_utf8().ok().map(String::from);
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let (name, password) = (part(name)?, part(password)?);
    // A colon in the name would begin the password (RFC 7617 section 2).
    let is_sound = !name.contains(':') && !(name.chars().chain(password.chars())).any(char::is_control);
    is_sound.then(|| format!("{name}:{password}"))
}

/// Splits `host[:port]`; an IPv6 address must be in brackets.
pub(crate) fn host_and_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let of_a_host = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    let is_sound =
        |host: &str| if authority.starts_with('[') { host.parse::<Ipv6Addr>().is_ok() } else { !host.contains(':') };
    split_host_port(authority).filter(|(host, _)| host.chars().all(of_a_host) && is_sound(host))
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
            ("https://a", "a", 443, "/", "a"),
            ("https://a:80/", "a", 80, "/", "a:80"),
            ("https://a:443/x/../y?%zz", "a", 443, "/x/../y?%zz", "a"),
        ];
        for (text, host, port, target, field) in cases {
            let url: Url = text.parse().unwrap();
            assert_eq!((url.host.as_str(), url.port, url.target.as_str()), (host, port, target), "{text}");
            assert_eq!(url.host_field(), field);
            assert_eq!((url.scheme == Scheme::Https, url.user), (text.starts_with("https"), None), "{text}");
        }
    }

    #[test]
    fn a_url_within_a_path_makes_no_absolute_url_of_it() {
        for path in ["/x?u=http://a/b", "next?u=http://a/b", "?u=https://a", "http%3A//a", "://a", "1http://a", ""] {
            assert_eq!(split_origin(path), None, "{path}");
        }
        let cases = [
            ("http://h:1/x?u=http://a/b", "http://h:1", "/x?u=http://a/b"),
            ("HTTPS://h?u=http://a", "HTTPS://h", "?u=http://a"),
            ("http://h", "http://h", ""),
        ];
        for (url, origin, behind) in cases {
            assert_eq!(split_origin(url), Some((origin, behind)));
        }
    }

    #[test]
    fn a_user_is_decoded_and_never_written_into_a_request_line() {
        let cases = [
            ("http://me:se%3Acret@a/x", "me:se:cret", "http://a/x"),
            ("https://me@a:8443", "me:", "https://a:8443/"),
            ("http://a%40b:p%20q@[::1]:81/", "a@b:p q", "http://[::1]:81/"),
            ("http://:p@a", ":p", "http://a/"),
        ];
        for (text, user, without) in cases {
            let url: Url = text.parse().unwrap();
            assert_eq!((url.user.as_deref(), url.to_string().as_str()), (Some(user), without), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_url_is_named() {
        let cases = [
            ("example.org", "`example.org` does not begin with http:// or https://"),
            ("ftp://a", "`ftp://a` does not begin with http:// or https://"),
            ("http://", "`http://` names no host that can be used"),
            ("http://me@", "`http://me@` names no host that can be used"),
            (
                "http://a%3Ab:c@d",
                "`http://a%3Ab:c@d` has a user or a password that is not percent-encoded UTF-8 without control characters",
            ),
            (
                "http://%ff@d",
                "`http://%ff@d` has a user or a password that is not percent-encoded UTF-8 without control characters",
            ),
            ("http://ä/", "`http://ä/` has a host that is not ASCII"),
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
}
