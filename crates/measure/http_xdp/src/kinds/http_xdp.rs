//! Requests whose segments an XDP program sends and takes, in a closed loop or at a rate.

use fathom_engine::{CeilingSetup, CommandDoc, Error, EvaluationRow, NamedTarget, Test, TestKind, TrialContext};
use fathom_model::{Endpoints, Layer, Metric, OptionDoc, Record, Role, Settings, Side, units::counted};
use fathom_sys::policy::Policy;

use super::{metrics, options, record};
use crate::{
    client::{LoadOptions, PreparedLoad},
    responder::ResponderTest,
};

/// Requests without sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpXdp {
    /// Each answer is followed by the next request.
    Closed,
    /// Requests start at a rate.
    Open,
}

impl TestKind for HttpXdp {
    fn name(&self) -> &'static str {
        match self {
            Self::Closed => "http_xdp",
            Self::Open => "http_xdp_open",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::Closed => {
                "one HTTP/1.1 request, repeated without sockets: an XDP program in the driver opens the connections and sends the requests"
            }
            Self::Open => {
                "one HTTP/1.1 request, repeated at a rate without sockets, by an XDP program in the driver; latency from the intended start"
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

    fn device_owners(&self, _settings: &Settings) -> &'static [Side] {
        &[Side::Initiator, Side::Responder]
    }

    fn title(&self, settings: &Settings) -> String {
        let connections = counted(settings.count("connections").unwrap_or(1), "connection");
        let each = if settings.count("per-connection").is_some() { ", a new one for each request" } else { "" };
        match settings.rate("rate") {
            Some(rate) => format!("requests at {rate} without sockets, {connections}"),
            None => format!("requests without sockets, {connections}{each}"),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        match self {
            Self::Closed => options::CLOSED,
            Self::Open => options::OPEN,
        }
    }

    fn responder_options(&self) -> &'static [OptionDoc] {
        &options::RESPONDER_ONLY
    }

    fn metrics(&self) -> &'static [Metric] {
        match self {
            Self::Closed => metrics::CLOSED,
            Self::Open => metrics::OPEN,
        }
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        match (self, options::load(settings, 0)?.schedule) {
            (Self::Open, None) => Err(Error::no_rate()),
            _ => Ok(()),
        }
    }

    fn command(&self) -> Option<CommandDoc> {
        let doc = CommandDoc::engine("xdp");
        Some(match self {
            Self::Closed => doc,
            Self::Open => doc.implied_by(&["rate", "find-limit"]),
        })
    }

    fn evaluation(&self) -> &'static [EvaluationRow] {
        match self {
            Self::Closed => &[EvaluationRow { name: "http_xdp", options: &[("connections", "32")], is_optional: true }],
            Self::Open => &[],
        }
    }

    fn ceilings(&self) -> &'static [CeilingSetup] {
        match self {
            // A connection for each request is other work.
            Self::Closed => &[
                CeilingSetup { options: &[("connections", "32")], needs_lab: true },
                CeilingSetup { options: &[("connections", "32"), ("per-connection", "1")], needs_lab: true },
            ],
            Self::Open => &[],
        }
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        match role.side {
            Side::Initiator => Ok(Box::new(LoadTest::prepare(self.name(), role, policy, None)?)),
            Side::Responder => Ok(Box::new(ResponderTest::prepare(role, policy)?)),
        }
    }
}

/// The initiator, ready to start.
pub(super) struct LoadTest(PreparedLoad);

impl LoadTest {
    /// Prepares a load whose answers have at most `answer_max` bytes.
    pub(super) fn prepare(
        kind: &'static str,
        role: &Role,
        policy: &Policy,
        answer_max: Option<u32>,
    ) -> Result<Self, Error> {
        let options = LoadOptions { answer_max, ..options::load(&role.settings, role.seed)? };
        PreparedLoad::prepare(kind, role, policy, options).map(Self)
    }
}

impl Test for LoadTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        record::record(self.0.run(context)?, context)
    }
}
