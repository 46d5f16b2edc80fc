//! Which requests of a recording are sent.

use fathom_engine::Error;
use fathom_model::{Settings, settings::SettingError};
use regex::bytes::Regex;

use super::request;
use crate::{
    RecordedExchange,
    session_share::{LEFT_OUT, SessionShare},
};

/// The requests that are sent, as the options choose them.
#[derive(Debug)]
pub(super) struct Choice {
    /// Empty for all.
    methods: Vec<String>,
    only: Option<Regex>,
    skip: Option<Regex>,
    sessions: SessionShare,
}

impl Choice {
    /// Reads the options `methods`, `only`, `skip` and `sessions`.
    ///
    /// # Errors
    /// Names the option that is wrong.
    pub(super) fn of(settings: &Settings, seed: u64) -> Result<Self, Error> {
        let methods = settings.text("methods").unwrap_or_default();
        let methods = methods.split(',').map(|word| word.trim().to_ascii_uppercase()).filter(|word| !word.is_empty());
        Ok(Self {
            methods: methods.collect(),
            only: pattern(settings, "only")?,
            skip: pattern(settings, "skip")?,
            sessions: SessionShare::of(settings, seed)?,
        })
    }

    /// Says why a request is not sent; `None` if it is.
    pub(super) fn refuses(&self, exchange: &RecordedExchange) -> Option<&'static str> {
        let (method, target) = request::line(&exchange.request);
        if !self.methods.is_empty() && !self.methods.iter().any(|chosen| chosen.as_bytes() == method) {
            return Some("of other methods than --methods");
        }
        if self.only.as_ref().is_some_and(|only| !only.is_match(target)) {
            return Some("not matched by --only");
        }
        if self.skip.as_ref().is_some_and(|skip| skip.is_match(target)) {
            return Some("matched by --skip");
        }
        (!self.sessions.has(exchange.connection)).then_some(LEFT_OUT)
    }
}

fn pattern(settings: &Settings, name: &str) -> Result<Option<Regex>, Error> {
    let Some(text) = settings.text(name) else { return Ok(None) };
    Regex::new(&text).map(Some).map_err(|_| {
        let expected = "a regular expression for targets such as '^/api/'".to_owned();
        SettingError::NotAllowed { name: name.to_owned(), expected, given: text }.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sending::spooled_exchange::tests::exchange;

    fn choice(options: &[(&str, &str)]) -> Result<Choice, Error> {
        let settings = options.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value));
        Choice::of(&settings, 1)
    }

    #[test]
    fn requests_are_chosen_by_method_and_target() {
        let chosen = choice(&[("methods", "get, head"), ("only", "^/api/"), ("skip", "secret")]).unwrap();
        let refused = |line: &str| chosen.refuses(&exchange(0, 0, &format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n")));
        assert_eq!(refused("GET /api/orders"), None);
        assert_eq!(refused("POST /api/orders"), Some("of other methods than --methods"));
        assert_eq!(refused("GET /"), Some("not matched by --only"));
        assert_eq!(refused("HEAD /api/secret"), Some("matched by --skip"));
    }

    #[test]
    fn a_wrong_option_is_named() {
        for (name, value) in [("only", "("), ("skip", "["), ("sessions", "ten")] {
            let error = choice(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
