//! Requests on a schedule: they are sent at their rate whether the server keeps up or not, like independently arriving users.
//!
//! The clock of a request starts when it was due, so a stall delays every request that was due meanwhile.

use fathom_engine::{CommandDoc, NamedTarget};
use fathom_engine::{
    Error, Test, TestKind,
    pace::{ArrivalProcess, Profile},
};
use fathom_model::{Layer, Metric, OptionDoc, Role, Settings, Side, settings::SettingError, units::PerSec};
use fathom_sys::policy::Policy;

use super::{closed::LoadTest, metric_definitions, options, responder_test::ResponderTest};
use crate::{
    load::{HttpLoad, RequestSchedule},
    responder,
};

/// One request every 100 ns is more than any machine sends, and each request that is due but never sent is counted individually.
const RATE_MAX: f64 = 1e7;

#[derive(Debug, Clone, Copy)]
pub struct HttpOpen;

impl TestKind for HttpOpen {
    fn name(&self) -> &'static str {
        "http_open"
    }

    fn about(&self) -> &'static str {
        "HTTP/1.1 requests at a rate, whether the server keeps up or not; latency from the intended start"
    }

    fn layer(&self) -> Layer {
        Layer::Http
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        crate::target::destinations(settings)
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        settings.text("url").is_none()
    }

    fn title(&self, settings: &Settings) -> String {
        let arrivals = settings.text("arrivals").filter(|word| word != "constant");
        let arrivals = arrivals.map_or_else(String::new, |word| format!(", {word}"));
        match (settings.text("profile"), settings.rate("rate")) {
            (Some(profile), _) => format!("requests at {profile}{arrivals}"),
            (None, Some(rate)) => format!("requests at {rate}{arrivals}"),
            (None, None) => format!("requests at a rate{arrivals}"),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        options::OF_OPEN
    }

    fn responder_options(&self) -> &'static [OptionDoc] {
        &responder::OPTIONS
    }

    fn metrics(&self) -> &'static [Metric] {
        metric_definitions::OPEN
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        schedule(settings, 0).map(drop)
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc::test("open").implied_by(&["rate", "profile", "find-limit"]))
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        Ok(match role.side {
            Side::Initiator => Box::new(LoadTest(HttpLoad::prepare(
                self.name(),
                role,
                policy,
                Some(schedule(&role.settings, role.seed)?),
            )?)),
            Side::Responder => Box::new(ResponderTest::prepare(role, policy)?),
        })
    }
}

fn schedule(settings: &Settings, seed: u64) -> Result<RequestSchedule, Error> {
    let refused = |name: &str, expected: &str, given: String| SettingError::NotAllowed {
        name: name.to_owned(),
        expected: expected.to_owned(),
        given,
    };
    let (name, profile) = match (settings.text("profile"), settings.rate("rate")) {
        (Some(_), Some(rate)) => {
            return Err(refused(
                "rate",
                "no value together with a profile, because a profile has its own rates",
                rate.to_string(),
            )
            .into());
        }
        (Some(text), None) => {
            let profile: Profile = text
                .parse()
                .map_err(|error| refused("profile", "steps 10k:10s and ramps 0-20k:30s", format!("{text}: {error}")))?;
            ("profile", profile)
        }
        (None, Some(rate)) => {
            let profile = Profile::steady(rate)
                .ok_or_else(|| refused("rate", "the requests per second to start", rate.to_string()))?;
            ("rate", profile)
        }
        (None, None) => return Err(Error::no_rate()),
    };
    if profile.peak() > PerSec::new(RATE_MAX).unwrap_or_default() {
        return Err(refused(name, "at most 10M requests per second", profile.peak().to_string()).into());
    }
    let process = match settings.text("arrivals").as_deref() {
        Some("poisson") => ArrivalProcess::Poisson { seed },
        _ => ArrivalProcess::Constant,
    };
    Ok(RequestSchedule { profile, process, pacing: options::pacing(settings) })
}
