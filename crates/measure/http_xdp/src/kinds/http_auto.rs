//! Requests by an XDP program if it can do all that the test asks for, and over sockets otherwise.

use std::sync::LazyLock;

use fathom_engine::{CommandDoc, Error, NamedTarget, Test, TestKind, TrialContext};
use fathom_http::{HttpClosed, HttpOpen};
use fathom_model::{Endpoints, Layer, Metric, Note, OptionDoc, Record, Role, Settings, names::distribution};
use fathom_sys::policy::Policy;

use super::{
    http_xdp::{HttpXdp, LoadTest},
    record::LARGE,
};

/// Requests by either engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HttpAuto {
    /// Each answer is followed by the next request.
    Closed,
    /// Requests start on a schedule.
    Open,
}

static OF_CLOSED: LazyLock<Vec<OptionDoc>> = LazyLock::new(|| options_of_both(HttpAuto::Closed));
static OF_OPEN: LazyLock<Vec<OptionDoc>> = LazyLock::new(|| options_of_both(HttpAuto::Open));

fn options_of_both(load: HttpAuto) -> Vec<OptionDoc> {
    let mut all = load.sockets().options().to_vec();
    for option in load.xdp().options() {
        if !all.iter().any(|other| other.name == option.name) {
            all.push(*option);
        }
    }
    all
}

impl HttpAuto {
    /// The kind with sockets.
    fn sockets(self) -> &'static dyn TestKind {
        match self {
            Self::Closed => &HttpClosed,
            Self::Open => &HttpOpen,
        }
    }

    /// The kind without sockets.
    const fn xdp(self) -> HttpXdp {
        match self {
            Self::Closed => HttpXdp::Closed,
            Self::Open => HttpXdp::Open,
        }
    }
}

impl TestKind for HttpAuto {
    fn name(&self) -> &'static str {
        match self {
            Self::Closed => "http_auto",
            Self::Open => "http_auto_open",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::Closed => {
                "HTTP/1.1 requests by an XDP program if it can do what the test asks for, otherwise over sockets; a note says which, and why"
            }
            Self::Open => {
                "HTTP/1.1 requests at a rate, by an XDP program if it can do what the test asks for, otherwise over sockets"
            }
        }
    }

    fn layer(&self) -> Layer {
        Layer::Http
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        fathom_http::target::destinations(settings)
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        settings.text("url").is_none()
    }

    fn title(&self, settings: &Settings) -> String {
        format!("{}, engine auto", self.sockets().title(settings))
    }

    fn options(&self) -> &'static [OptionDoc] {
        match self {
            Self::Closed => &OF_CLOSED,
            Self::Open => &OF_OPEN,
        }
    }

    fn responder_options(&self) -> &'static [OptionDoc] {
        self.sockets().responder_options()
    }

    fn metrics(&self) -> &'static [Metric] {
        self.xdp().metrics()
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        if self.is_two_sided(settings) {
            // The other side has to choose its responder before this side can know which engine will ask it.
            return Err(Error::BadRequest {
                what: "--engine auto needs the URL of a server: it asks the server before it chooses".to_owned(),
                hint: Some("give a URL, or between two hosts --engine xdp or --engine sockets".to_owned()),
            });
        }
        self.sockets().check(&part(settings, self.sockets().options())?)
    }

    fn command(&self) -> Option<CommandDoc> {
        let doc = CommandDoc::engine("auto");
        Some(match self {
            Self::Closed => doc,
            Self::Open => doc.implied_by(&["rate", "profile", "find-limit"]),
        })
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        let why = match self.without_sockets(role, policy) {
            Ok(test) => return Ok(test),
            Err(why) => why,
        };
        let settings = part(&role.settings, self.sockets().options())?;
        let test = self.sockets().prepare(&Role { settings, ..role.clone() }, policy)?;
        Ok(Box::new(BySockets { test, why }))
    }
}

/// Only the settings that these options have.
fn part(settings: &Settings, options: &[OptionDoc]) -> Result<Settings, Error> {
    let values = options.iter().filter_map(|option| Some((option.name, settings.text(option.name)?)));
    let part = values.fold(Settings::default(), |part, (name, text)| part.with(name, text));
    Ok(part.complete(options)?)
}

impl HttpAuto {
    /// The load without sockets, or the reason why it needs them.
    fn without_sockets(self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, String> {
        let role = self.role_without_sockets(role)?;
        Ok(Box::new(LoadTest::prepare(self.xdp().name(), &role, policy, Some(LARGE)).map_err(in_one_line)?))
    }

    /// The role with the options of a load without sockets, or the reason why it needs them.
    fn role_without_sockets(self, role: &Role) -> Result<Role, String> {
        if let Some(option) = self.option_of_sockets(&role.settings) {
            return Err(format!("the XDP program has no option `{option}`"));
        }
        let settings = part(&role.settings, self.xdp().options()).map_err(in_one_line)?;
        Ok(Role { settings, ..role.clone() })
    }

    /// The first option that is set and that the XDP program does not have.
    fn option_of_sockets(self, settings: &Settings) -> Option<&'static str> {
        let defaults = Settings::default().complete(self.options()).unwrap_or_default();
        let is_set = |option: &&OptionDoc| settings.text(option.name) != defaults.text(option.name);
        let of_both = |option: &&OptionDoc| self.xdp().options().iter().any(|other| other.name == option.name);
        self.options().iter().filter(|option| !of_both(option)).find(is_set).map(|option| option.name)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a conversion of an error")]
fn in_one_line(error: Error) -> String {
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The load with sockets.
struct BySockets {
    test: Box<dyn Test>,
    why: String,
}

impl Test for BySockets {
    fn endpoints(&self) -> Endpoints {
        self.test.endpoints()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let Self { test, why } = *self;
        let mut record = test.run(context)?;
        record.notes.push(Note::new("http-engine", format!("over sockets: {why}")));
        // A request of a closed load is due when it is sent.
        if let Some(times) = record.distributions.get(distribution::SERVICE_TIME).cloned() {
            record.distributions.entry(distribution::RESPONSE_TIME.to_owned()).or_insert(times);
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(load: HttpAuto, values: &[(&str, &str)]) -> Settings {
        let settings = values.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value));
        settings.complete(load.options()).unwrap()
    }

    #[test]
    fn every_option_stands_once() {
        for load in [HttpAuto::Closed, HttpAuto::Open] {
            let mut names: Vec<&str> = load.options().iter().map(|option| option.name).collect();
            names.sort_unstable();
            let n = names.len();
            names.dedup();
            assert_eq!(names.len(), n, "{load:?}");
        }
    }

    #[test]
    fn an_option_of_sockets_is_found_by_its_value() {
        let found = |values: &[(&str, &str)]| HttpAuto::Closed.option_of_sockets(&given(HttpAuto::Closed, values));
        assert_eq!(found(&[("connections", "7")]), None);
        assert_eq!(found(&[("pipeline", "1")]), None, "its default");
        assert_eq!(found(&[("pipeline", "4")]), Some("pipeline"));
        assert_eq!(found(&[("insecure", "true")]), Some("insecure"));
    }

    #[test]
    fn a_schedule_is_checked_as_that_of_sockets() {
        let url = ("url", "http://192.0.2.1/");
        HttpAuto::Open.check(&given(HttpAuto::Open, &[url, ("rate", "1k")])).unwrap();
        HttpAuto::Open.check(&given(HttpAuto::Open, &[url])).unwrap_err();
        HttpAuto::Closed.check(&given(HttpAuto::Closed, &[url])).unwrap();
        HttpAuto::Closed.check(&given(HttpAuto::Closed, &[])).unwrap_err();
    }
}
