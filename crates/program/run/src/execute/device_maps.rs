//! The maps of a device's eBPF programs that are counters.

use std::{collections::BTreeMap, str::FromStr};

use fathom_sys::bpf::{ForeignMap, MapName};

use crate::exit::{Exit, UserError};

/// A map, and the names of those of its numbers that are wanted.
///
/// As text: the path of a pinned map, its id or its name; after a colon the wanted keys with their names, such as
/// `xdp_stats:1=dropped,2.0=passed_packets,2.1=passed_bytes`. The number behind the dot is that of a word of the value, by default the first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMap {
    map: String,
    /// Empty for all of them.
    names: BTreeMap<(u64, usize), String>,
}

impl FromStr for DeviceMap {
    type Err = UserError;

    fn from_str(text: &str) -> Result<Self, UserError> {
        // A path may have a colon, and names follow the last one.
        let (map, keys) = text.rsplit_once(':').filter(|(_, keys)| keys.contains('=')).unwrap_or((text, ""));
        let key = |part: &str| {
            let (place, name) = part.split_once('=')?;
            let (key, word) = place.split_once('.').unwrap_or((place, "0"));
            let is_named = !name.trim().is_empty();
            is_named.then_some(((key.trim().parse().ok()?, word.trim().parse().ok()?), name.trim().to_owned()))
        };
        let names = keys.split(',').filter(|part| !part.is_empty()).map(key).collect::<Option<_>>();
        let names = names.filter(|_| !map.is_empty() && !map.ends_with(':'));
        names.map(|names| Self { map: map.to_owned(), names }).ok_or_else(|| {
            UserError::new(
                Exit::Usage,
                format!("`{text}` is not a map: give a pinned path, an id or a name, and names of keys after a colon"),
            )
            .with_line("such as", "xdp_stats:1=dropped,2.1=passed_bytes")
        })
    }
}

impl DeviceMap {
    /// Returns the counts of now by name; counts of 0 that nobody named are left out.
    ///
    /// # Errors
    /// As [`ForeignMap::open`] and [`ForeignMap::rows`].
    pub(super) fn counts(&self) -> fathom_sys::Result<BTreeMap<String, u64>> {
        // By name or path each time: a program that was loaded again has other maps.
        let rows = ForeignMap::open(&MapName::of(&self.map))?.rows()?;
        Ok(self.named(&rows))
    }

    fn named(&self, rows: &BTreeMap<u64, Vec<u64>>) -> BTreeMap<String, u64> {
        let short = self.map.rsplit('/').next().unwrap_or(&self.map);
        let words = rows.iter().flat_map(|(key, words)| {
            let name = move |word: usize| {
                if words.len() == 1 { format!("{short}[{key}]") } else { format!("{short}[{key}].{word}") }
            };
            words.iter().enumerate().map(move |(word, count)| (*key, word, name(word), *count))
        });
        if self.names.is_empty() {
            return words.map(|(_, _, name, count)| (name, count)).collect();
        }
        // A key that is not there yet has counted nothing. Several keys may share a name.
        let mut counts: BTreeMap<String, u64> = self.names.values().map(|name| (name.clone(), 0)).collect();
        for (key, word, _, count) in words {
            if let Some(name) = self.names.get(&(key, word)) {
                *counts.entry(name.clone()).or_default() += count;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> DeviceMap {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn counts(text: &str, rows: &BTreeMap<u64, Vec<u64>>) -> Vec<(String, u64)> {
        map(text).named(rows).into_iter().collect()
    }

    #[test]
    fn numbers_have_the_names_that_were_given_or_those_of_their_places() {
        let rows = [(1, vec![7, 700]), (2, vec![5, 500])].into();
        let named = |name: &str, count| (name.to_owned(), count);
        let all = [named("s[1].0", 7), named("s[1].1", 700), named("s[2].0", 5), named("s[2].1", 500)];
        assert_eq!(counts("/sys/fs/bpf/s", &rows), all);
        assert_eq!(
            counts("s:1=dropped,2.1=bytes,9=late", &rows),
            [named("bytes", 500), named("dropped", 7), named("late", 0)]
        );
        assert_eq!(counts("s:1=lost,2=lost", &rows), [named("lost", 12)]);
        assert_eq!(counts("17", &[(3, vec![1])].into()), [named("17[3]", 1)]);
    }

    #[test]
    fn a_text_that_names_no_map_is_refused_with_the_form() {
        assert_eq!(map("/sys/fs/bpf/a:b:1=x").map, "/sys/fs/bpf/a:b");
        for text in ["", ":1=dropped", "stats:1=", "stats:x=dropped", "stats:1.a=dropped", "stats:1=a,2"] {
            assert!(text.parse::<DeviceMap>().unwrap_err().to_string().contains("is not a map"), "{text}");
        }
    }
}
