//! Hosts that a user names, with their subdomains.

/// Hosts with their subdomains; all hosts if none is named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNames(Vec<String>);

impl HostNames {
    /// Takes names and addresses as a user writes them: `shop.test`, `*.shop.test`, `[::1]`.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let plain = |name: &str| bare(name.strip_prefix("*.").unwrap_or(name)).to_ascii_lowercase();
        Self(names.into_iter().map(plain).collect())
    }

    /// Whether a host, as it stands in a URL, is one of them.
    #[must_use]
    pub fn contain(&self, host: &str) -> bool {
        let host = bare(host).to_ascii_lowercase();
        let is_below = |name: &String| host.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.'));
        self.0.is_empty() || self.0.iter().any(|name| *name == host || is_below(name))
    }
}

/// A host without the brackets of an IPv6 address and without the dot at the end of a full name.
#[must_use]
pub fn bare(host: &str) -> &str {
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.unwrap_or_else(|| host.strip_suffix('.').unwrap_or(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_itself_and_its_subdomains() {
        let hosts = HostNames::new(["Shop.test", "*.b.test", "[::1]"]);
        for host in ["shop.test", "API.shop.test", "b.test", "a.b.test", "[::1]", "::1", "shop.test."] {
            assert!(hosts.contain(host), "{host}");
        }
        for host in ["myshop.test", "shop.test.evil", "[::2]", ""] {
            assert!(!hosts.contain(host), "{host}");
        }
        assert!(HostNames::default().contain("any.test"));
    }
}
