//! Who a target is.

use std::fmt;

/// The longest name in bytes, as that of a host (`HOST_NAME_MAX` of Linux).
pub const NAME_MAX: usize = 64;

/// The name of a target, and a number that no other one has.
///
/// Namespaces of one host share its name, and two targets may be given the same; a token is drawn when a server starts. Servers of other
/// tools have a name alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    name: String,
    /// 0 for a server that has none.
    token: u64,
}

impl Identity {
    /// Creates the identity of a server; characters of the name that are no printable ASCII are replaced, and it is cut after 64 bytes.
    #[must_use]
    pub fn new(name: &str, token: u64) -> Self {
        let is_kept = |c: char| c.is_ascii_graphic() && c != '#';
        let name = name.chars().take(NAME_MAX).map(|c| if is_kept(c) { c } else { '?' }).collect();
        Self { name, token }
    }

    /// Reads the name of a server from bytes that may end with zeros; `None` without a name.
    pub(crate) fn from_bytes(bytes: &[u8], token: u64) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let name = String::from_utf8_lossy(&bytes[..end]);
        let name = name.trim_end();
        (!name.is_empty()).then(|| Self::new(name, token))
    }

    /// The name alone.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn token(&self) -> u64 {
        self.token
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.token {
            0 => f.write_str(&self.name),
            token => write!(f, "{}#{token:016x}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_outside_is_printable_and_short() {
        let identity = Identity::new(&format!("a b\u{1b}#ü{}", "x".repeat(100)), 255);
        assert_eq!(identity.name().len(), NAME_MAX);
        assert!(identity.to_string().starts_with("a?b???xx") && identity.to_string().ends_with("#00000000000000ff"));
    }

    #[test]
    fn a_name_ends_at_the_first_zero() {
        let of = |bytes: &[u8]| Identity::from_bytes(bytes, 0).map(|identity| identity.to_string());
        assert_eq!(of(b"t1\0\0rest").as_deref(), Some("t1"));
        assert_eq!(of(b"t1\n").as_deref(), Some("t1"));
        assert_eq!((of(b"\0\0"), of(b"")), (None, None));
    }
}
