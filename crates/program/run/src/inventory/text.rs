//! An inventory as it is written, with the places of its values.

use std::{collections::BTreeMap, ops::Range, path::Path};

use fathom_model::{HostRole, kubernetes::KubernetesCluster, reach::PushedBinary};
use serde::Deserialize;
use toml::Spanned;

use crate::exit::{Exit, UserError};

/// The group of all hosts.
pub(super) const ALL: &str = "all";

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InventoryText {
    pub(super) schema: Option<Spanned<String>>,
    /// What holds for every host that does not say otherwise.
    #[serde(default)]
    pub(super) defaults: HostText,
    #[serde(default)]
    pub(super) hosts: BTreeMap<Spanned<String>, HostText>,
    #[serde(default)]
    pub(super) groups: BTreeMap<Spanned<String>, GroupText>,
    /// The cluster of the hosts that are pods.
    pub(super) kubernetes: Option<Spanned<KubernetesCluster>>,
}

/// The keys of a host, or of a range of hosts.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostText {
    pub(super) control: Option<Spanned<String>>,
    pub(super) data: Option<Spanned<String>>,
    pub(super) user: Option<Spanned<String>>,
    pub(super) port: Option<Spanned<u16>>,
    pub(super) jump: Option<Spanned<String>>,
    pub(super) launcher: Option<Spanned<LauncherText>>,
    pub(super) roles: Option<Vec<HostRole>>,
    pub(super) program: Option<Spanned<String>>,
    pub(super) sudo: Option<Spanned<bool>>,
    pub(super) push: Option<Spanned<PushedBinary>>,
    pub(super) identity: Option<Spanned<String>>,
    pub(super) ssh_config: Option<Spanned<String>>,
    pub(super) key: Option<Spanned<String>>,
    pub(super) key_file: Option<Spanned<String>>,
    pub(super) lab: Option<Spanned<String>>,
}

/// A launcher: its word, or a command.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum LauncherText {
    Word(String),
    Command(Vec<String>),
}

/// The members of a group: one text, or a list.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum GroupText {
    One(String),
    Several(Vec<String>),
}

impl GroupText {
    pub(super) fn members(&self) -> &[String] {
        match self {
            Self::One(member) => std::slice::from_ref(member),
            Self::Several(members) => members,
        }
    }
}

impl HostText {
    /// Returns the keys of a host, with those of the defaults that it does not have.
    pub(super) fn with_defaults(&self, defaults: &Self) -> Self {
        let (own, usual) = (self.clone(), defaults.clone());
        // A key in a file and a key are the same thing.
        let has_key = own.key.is_some() || own.key_file.is_some();
        Self {
            control: own.control.or(usual.control),
            data: own.data.or(usual.data),
            user: own.user.or(usual.user),
            port: own.port.or(usual.port),
            jump: own.jump.or(usual.jump),
            launcher: own.launcher.or(usual.launcher),
            roles: own.roles.or(usual.roles),
            program: own.program.or(usual.program),
            sudo: own.sudo.or(usual.sudo),
            push: own.push.or(usual.push),
            identity: own.identity.or(usual.identity),
            ssh_config: own.ssh_config.or(usual.ssh_config),
            key: own.key.or_else(|| usual.key.filter(|_| !has_key)),
            key_file: own.key_file.or_else(|| usual.key_file.filter(|_| !has_key)),
            lab: own.lab.or(usual.lab),
        }
    }
}

/// The text of an inventory, to name places in it.
pub(super) struct SourceText<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl SourceText<'_> {
    /// Returns an error at a place: `hosts.toml:3: …`.
    pub(super) fn error(&self, span: &Range<usize>, what: impl std::fmt::Display) -> UserError {
        UserError::new(Exit::Usage, format!("{}:{}: {what}", self.path.display(), self.line(span.start)))
    }

    /// Returns the number of the line of a byte.
    pub(super) fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }
}

/// Returns a key as TOML writes it: in quotes unless it is a bare word.
pub(super) fn key(name: &str) -> String {
    let is_bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if is_bare && !name.starts_with('-') { name.to_owned() } else { quoted(name) }
}

/// Returns a text as a basic string of TOML, on one line.
pub(super) fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}
