//! Pairs of small recordings, and the scenarios that they become.

use fathom_import::Assets;
use fathom_scenario as scenario;
use serde_json::{Value, json};

use super::*;

mod planted;
mod values;

/// One exchange of a recording: method, URL, and more by the methods below.
#[derive(Debug, Clone)]
pub(super) struct Exchange(Value);

impl Exchange {
    pub(super) fn new(method: &str, path: &str) -> Self {
        Self(json!({
            "time": 10.0,
            "request": { "method": method, "url": format!("http://shop.test{path}"), "headers": [] },
            "response": { "status": 200, "headers": [], "content": { "mimeType": "text/html", "text": "" } },
        }))
    }

    fn add_header(mut self, side: &str, name: &str, value: &str) -> Self {
        let headers = self.0[side]["headers"].as_array_mut().unwrap();
        headers.push(json!({ "name": name, "value": value }));
        self
    }

    pub(super) fn header(self, name: &str, value: &str) -> Self {
        self.add_header("request", name, value)
    }

    pub(super) fn body(mut self, media: &str, text: &str) -> Self {
        self.0["request"]["postData"] = json!({ "mimeType": media, "text": text });
        self.header("Content-Type", media)
    }

    pub(super) fn form(self, text: &str) -> Self {
        self.body("application/x-www-form-urlencoded", text)
    }

    pub(super) fn json(self, value: &Value) -> Self {
        self.body("application/json", &value.to_string())
    }

    pub(super) fn answers(mut self, status: u16, media: &str, text: &str) -> Self {
        self.0["response"]["status"] = json!(status);
        self.0["response"]["content"] = json!({ "mimeType": media, "text": text });
        self
    }

    pub(super) fn html(self, text: &str) -> Self {
        self.answers(200, "text/html", text)
    }

    pub(super) fn answers_json(self, value: &Value) -> Self {
        self.answers(200, "application/json", &value.to_string())
    }

    pub(super) fn sets(self, name: &str, value: &str) -> Self {
        self.add_header("response", name, value)
    }

    pub(super) fn redirects(self, to: &str) -> Self {
        self.answers(302, "text/html", "").sets("Location", to)
    }

    /// Changes the entry itself.
    pub(super) fn with(mut self, pointer: &str, value: Value) -> Self {
        *self.0.pointer_mut(pointer).unwrap() = value;
        self
    }
}

/// A recording whose exchanges begin a second apart, from this hour on.
pub(super) fn recording(hour: u8, exchanges: &[Exchange]) -> String {
    let entries: Vec<Value> = exchanges
        .iter()
        .enumerate()
        .map(|(n, exchange)| {
            let mut entry = exchange.0.clone();
            entry["startedDateTime"] = json!(format!("2026-11-26T{hour:02}:{:02}:{:02}.000Z", n / 60, n % 60));
            entry
        })
        .collect();
    json!({ "log": { "version": "1.2", "entries": entries } }).to_string()
}

pub(super) fn correlated(first: &[Exchange], second: &[Exchange]) -> Result<Correlation, Error> {
    let (one, two) = (recording(10, first), recording(11, second));
    let options = CorrelateOptions { assets: Assets::Kept, data_file: "typed.csv" };
    let correlation = correlate(
        RecordingText { name: "one.har", text: &one },
        RecordingText { name: "two.har", text: &two },
        options,
    )?;
    assert_is_sound(&correlation);
    Ok(correlation)
}

/// What `fathom app check` would say.
fn assert_is_sound(correlation: &Correlation) {
    let tree = scenario::parse(&correlation.scenario).unwrap();
    let folder = tempfile::tempdir().unwrap();
    if let Some(typed) = &correlation.typed {
        std::fs::write(folder.path().join("typed.csv"), &typed.csv).unwrap();
    }
    let found = scenario::check(&tree, folder.path());
    assert!(found.is_empty(), "{}\n{}", scenario::render(&found, "it", &correlation.scenario), correlation.scenario);
}

/// The lines of a scenario without comments, think times and what every scenario has.
pub(super) fn lines(correlation: &Correlation) -> Vec<String> {
    let is_shown = |line: &&str| {
        !line.is_empty()
            && !["#", "base ", "closed ", "cookies ", "step ", "think ", "expect "]
                .iter()
                .any(|start| line.starts_with(start))
    };
    correlation.scenario.lines().map(str::trim).filter(is_shown).map(str::to_owned).collect()
}

/// The lines of two recordings that a function makes of each side's values.
pub(super) fn lines_of(session: impl Fn(&[&str]) -> Vec<Exchange>, one: &[&str], two: &[&str]) -> Vec<String> {
    lines(&correlated(&session(one), &session(two)).unwrap())
}
