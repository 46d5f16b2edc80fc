//! The hosts that tests can run on, by name, with their groups; and the names that stand for several hosts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::HostReach;

/// The version of the inventory format that this build reads.
pub const SCHEMA: &str = "fathom.hosts/1";

/// The most names that a text with ranges may stand for.
const NAMES_MAX: usize = 4096;

/// What a host is in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HostRole {
    /// The system under test.
    Sut,
    /// A host that loads it, or answers it.
    Companion,
}

/// A host of an inventory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct InventoryHost {
    /// How to reach it, and its address on the path under test.
    pub reach: HostReach,
    /// What it is in tests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<HostRole>,
}

/// All hosts that are at hand. Every name is expanded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Inventory {
    /// The hosts by name.
    pub hosts: BTreeMap<String, InventoryHost>,
    /// The hosts of each group in their order, each once.
    pub groups: BTreeMap<String, Vec<String>>,
}

/// A name that is neither a host nor a group, or a text that is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Neither a host nor a group.
    #[error("there is no host or group `{0}`")]
    Unknown(String),
    /// A range that cannot be read.
    #[error(transparent)]
    Range(#[from] RangeError),
}

impl Inventory {
    /// Returns the hosts that a text names, in its order, each once: hosts, groups and ranges, separated by commas.
    ///
    /// # Errors
    /// For a name that is neither a host nor a group.
    pub fn select(&self, text: &str) -> Result<Vec<String>, NameError> {
        select(text, &self.groups, |name| self.hosts.contains_key(name))
    }

    /// Returns the hosts with a role, by name.
    #[must_use]
    pub fn with_role(&self, role: HostRole) -> Vec<&str> {
        let has_it = |host: &InventoryHost| host.roles.contains(&role);
        self.hosts.iter().filter(|(_, host)| has_it(host)).map(|(name, _)| name.as_str()).collect()
    }
}

/// Returns the hosts that a text names, in its order, each once: hosts, groups and ranges, separated by commas.
///
/// # Errors
/// For a name that is neither a host nor a group.
pub fn select(
    text: &str,
    groups: &BTreeMap<String, Vec<String>>,
    is_host: impl Fn(&str) -> bool,
) -> Result<Vec<String>, NameError> {
    let mut selected = Vec::new();
    for word in split_words(text) {
        for name in expand(word)? {
            let hosts = match groups.get(&name) {
                Some(members) => members.clone(),
                None if is_host(&name) => vec![name],
                None => return Err(NameError::Unknown(name)),
            };
            for host in hosts {
                push_once(&mut selected, host);
            }
        }
    }
    Ok(selected)
}

/// Adds a name to a list that does not have it yet.
fn push_once(names: &mut Vec<String>, name: String) {
    if !names.contains(&name) {
        names.push(name);
    }
}

/// A text with ranges that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a range of names: {reason}")]
pub struct RangeError {
    /// The text.
    pub text: String,
    /// The problem.
    pub reason: &'static str,
}

/// Splits a list at its commas, except those in brackets.
fn split_words(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    let at_comma = move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(at_comma).map(str::trim).filter(|word| !word.is_empty())
}

/// Returns the names that a text stands for: `b[1-3]` is `b1`, `b2`, `b3`, and `n[08-10,12]` is `n08`, `n09`, `n10`, `n12`.
///
/// A text may have several ranges; the last one counts fastest. A text without brackets stands for itself.
///
/// # Errors
/// If a bracket has no partner, a range runs backwards or has no number, or if there are more than 4096 names.
pub fn expand(text: &str) -> Result<Vec<String>, RangeError> {
    let wrong = |reason| RangeError { text: text.to_owned(), reason };
    let mut names = vec![String::new()];
    let mut rest = text;
    while let Some((before, range)) = rest.split_once('[') {
        let (range, after) = range.split_once(']').ok_or_else(|| wrong("`[` has no `]`"))?;
        if before.contains(']') {
            return Err(wrong("`]` has no `[`"));
        }
        let numbers = numbers_of(range).map_err(wrong)?;
        if names.len() * numbers.len() > NAMES_MAX {
            return Err(wrong("it stands for more than 4096 names"));
        }
        let with_numbers =
            |name: &String| numbers.iter().map(|number| format!("{name}{before}{number}")).collect::<Vec<_>>();
        names = names.iter().flat_map(with_numbers).collect();
        rest = after;
    }
    if rest.contains(']') {
        return Err(wrong("`]` has no `[`"));
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

/// Returns the numbers of a range as text: those of `08-10` have two digits.
fn numbers_of(range: &str) -> Result<Vec<String>, &'static str> {
    let mut numbers = Vec::new();
    for part in range.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim(), last.trim());
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse::<u32>().ok()).flatten()
        };
        let is_long = |text: &str| text.len() > 9 && text.bytes().all(|byte| byte.is_ascii_digit());
        if number(first).is_some() && is_long(last) {
            return Err("it stands for more than 4096 names");
        }
        let (Some(low), Some(high)) = (number(first), number(last)) else {
            return Err("write numbers in the brackets, such as [1-8] or [1,3,5]");
        };
        if low > high {
            return Err("it runs backwards; write the smaller number first");
        }
        if usize::try_from(high - low).unwrap_or(usize::MAX) >= NAMES_MAX {
            return Err("it stands for more than 4096 names");
        }
        // Leading zeros of the first number set the width of all.
        let width = if first.starts_with('0') { first.len() } else { 1 };
        numbers.extend((low..=high).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_stands_for_its_names() {
        let cases: &[(&str, &[&str])] = &[
            ("sut", &["sut"]),
            ("b[1-3]", &["b1", "b2", "b3"]),
            ("10.0.0.[2-4]", &["10.0.0.2", "10.0.0.3", "10.0.0.4"]),
            ("n[08-10,12]", &["n08", "n09", "n10", "n12"]),
            ("r[1-2]n[1,3].x", &["r1n1.x", "r1n3.x", "r2n1.x", "r2n3.x"]),
            ("fd00::[9-10]", &["fd00::9", "fd00::10"]),
            ("n[000-001]", &["n000", "n001"]),
        ];
        for (text, expected) in cases {
            assert_eq!(expand(text).unwrap(), *expected, "{text}");
        }
    }

    #[test]
    fn a_text_that_is_no_range_is_refused() {
        for text in ["b[1-", "b1]", "b]1[", "b[]", "b[a-c]", "b[3-1]", "b[1-2-3]", "b[-1]", "b[1-99999]", "b[1,]"] {
            assert!(expand(text).is_err(), "{text}");
        }
        for text in ["[1-100][1-100]", "h[1-1000000000]"] {
            assert!(expand(text).unwrap_err().to_string().contains("more than 4096"), "{text}");
        }
    }

    fn inventory() -> Inventory {
        let host = |roles: &[HostRole]| InventoryHost { reach: HostReach::This, roles: roles.to_vec() };
        let hosts = ["b1", "b2", "b10"].map(|name| (name.to_owned(), host(&[HostRole::Companion])));
        let groups = [("all".to_owned(), ["sut", "b1", "b2", "b10"].map(str::to_owned).to_vec())];
        let sut = [("sut".to_owned(), host(&[HostRole::Sut]))];
        Inventory { hosts: hosts.into_iter().chain(sut).collect(), groups: groups.into() }
    }

    #[test]
    fn hosts_groups_and_ranges_are_selected_in_order_and_once() {
        let inventory = inventory();
        assert_eq!(inventory.select("b10, b[1-2]").unwrap(), ["b10", "b1", "b2"]);
        assert_eq!(inventory.select("b[1,2],all").unwrap(), ["b1", "b2", "sut", "b10"]);
        assert_eq!(inventory.select("b3").unwrap_err(), NameError::Unknown("b3".to_owned()));
        assert_eq!(inventory.with_role(HostRole::Sut), ["sut"]);
        assert_eq!(inventory.with_role(HostRole::Companion), ["b1", "b10", "b2"]);
    }
}
