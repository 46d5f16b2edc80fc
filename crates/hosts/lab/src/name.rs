//! Names of labs, hosts and runs that are safe in a path and on a command line.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The maximum length, so that `lab-NAME.json` and a host name stay within all system limits.
const LENGTH_MAX: usize = 48;

/// A name of letters, digits, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabName(String);

impl LabName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LabName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let begins_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if begins_well && text.len() <= LENGTH_MAX && text.bytes().all(is_plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::BadName(text.to_owned()))
        }
    }
}

impl TryFrom<String> for LabName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<LabName> for String {
    fn from(name: LabName) -> Self {
        name.0
    }
}

impl fmt::Display for LabName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_lead_astray_are_refused_with_a_hint() {
        for bad in ["", ".", "..", "-rf", "a/b", "a b", "a.json", "ä", &"x".repeat(49)] {
            let error = bad.parse::<LabName>().unwrap_err();
            assert!(error.hint().unwrap().contains("1 to 48"), "{bad:?}");
        }
        for good in ["a", "lab-2", "2026_11", &"x".repeat(48)] {
            assert_eq!(good.parse::<LabName>().unwrap().as_str(), good);
        }
    }
}
