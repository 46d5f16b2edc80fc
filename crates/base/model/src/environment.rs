//! The properties of a host that affect the results.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Facts of a host by topic (`kernel`, `cpu`, `eth0`, `sysctl`, …) and name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Environment(pub BTreeMap<String, BTreeMap<String, String>>);

/// A fact that differs between two times or two hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The topic.
    pub topic: String,
    /// The fact's name.
    pub name: String,
    /// The first value, if there was one.
    pub left: Option<String>,
    /// The second value, if there is one.
    pub right: Option<String>,
}

impl Environment {
    /// Records a fact.
    pub fn note(&mut self, topic: &str, name: &str, value: impl Into<String>) {
        self.0.entry(topic.to_owned()).or_default().insert(name.to_owned(), value.into());
    }

    /// Returns a fact, if it is known.
    #[must_use]
    pub fn get(&self, topic: &str, name: &str) -> Option<&str> {
        self.0.get(topic)?.get(name).map(String::as_str)
    }

    /// Returns the facts that differ between two environments.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<Difference> {
        let keys = |environment: &Self| -> Vec<(String, String)> {
            let facts = environment.0.iter();
            facts.flat_map(|(topic, facts)| facts.keys().map(|name| (topic.clone(), name.clone()))).collect()
        };
        let mut all = keys(self);
        all.extend(keys(other));
        all.sort();
        all.dedup();
        let sides = |(topic, name): (String, String)| {
            let (left, right) = (self.get(&topic, &name), other.get(&topic, &name));
            (left != right).then(|| Difference {
                left: left.map(str::to_owned),
                right: right.map(str::to_owned),
                topic,
                name,
            })
        };
        all.into_iter().filter_map(sides).collect()
    }
}
