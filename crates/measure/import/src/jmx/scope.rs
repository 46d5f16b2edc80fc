//! The settings for all requests at a place of the tree and below: defaults, headers, timers, checks.
//!
//! The rules are those of JMeter: such an element applies to its siblings, whether before or after it, and to everything below them.

use fathom_model::units::Nanos;

use super::super::{
    encode,
    import_tree::{Extraction, ImportText, ImportedExpect, OnError, ThinkTime},
};
use super::element::Properties;

/// All settings in effect at one place.
#[derive(Debug, Clone, Default)]
pub(super) struct JmxScope<'a> {
    /// Defaults of requests, the nearest last.
    pub(super) defaults: Vec<&'a Properties>,
    pub(super) headers: Vec<(String, ImportText)>,
    pub(super) logins: Vec<Login>,
    pub(super) thinks: Vec<ThinkTime>,
    pub(super) meetings: Vec<super::super::import_tree::ImportedMeeting>,
    pub(super) expects: Vec<ImportedExpect>,
    pub(super) takes: Vec<Extraction>,
    pub(super) on_error: Option<OnError>,
}

/// A name and a password for all URLs with the same beginning.
#[derive(Debug, Clone)]
pub(super) struct Login {
    pub(super) url: String,
    pub(super) header: ImportText,
}

impl<'a> JmxScope<'a> {
    /// Sets a header; the nearer one takes precedence.
    pub(super) fn set_header(&mut self, name: String, value: ImportText) {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
        self.headers.push((name, value));
    }

    /// A property of a request: its own, or that of the nearest defaults.
    pub(super) fn property(&self, own: &'a Properties, name: &str) -> Option<&'a str> {
        own.text(name).or_else(|| self.defaults.iter().rev().find_map(|defaults| defaults.text(name)))
    }

    /// The header of the last login that matches this URL.
    pub(super) fn login(&self, url: &str) -> Option<&ImportText> {
        self.logins.iter().rev().find(|login| url.starts_with(&login.url)).map(|login| &login.header)
    }
}

impl Login {
    /// Reads one line of an authorization manager; the error is the reason why it cannot be converted.
    pub(super) fn of(line: &Properties, text: &mut dyn FnMut(&str) -> ImportText) -> Result<Self, String> {
        let url = line.text("Authorization.url").unwrap_or_default().to_owned();
        let mechanism = line.text("Authorization.mechanism").unwrap_or("BASIC");
        if !mechanism.starts_with("BASIC") {
            return Err(format!("the mechanism {mechanism} for {url}"));
        }
        let mut part = |name| text(line.text(name).unwrap_or_default());
        let (name, password) = (part("Authorization.username"), part("Authorization.password"));
        match encode::basic(&name, &password) {
            Some(header) => Ok(Self { url, header }),
            None => Err(format!("the variables in the name or the password for {url}")),
        }
    }
}

/// Milliseconds of JMeter, which may have a fraction.
pub(super) fn millis(text: &str) -> Option<Nanos> {
    let millis: f64 = text.trim().parse().ok()?;
    (0.0..1e12).contains(&millis).then(|| Nanos::from_secs_f64(millis / 1e3))
}
