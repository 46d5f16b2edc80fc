//! Requests in a closed loop: each connection sends, waits for the whole answer, and sends again.
//!
//! Reports *service time*, from the actual send to the last byte. A server that stalls gets fewer requests meanwhile, so this is
//! not what independently arriving users would see; the open kind measures that.

use fathom_engine::{CeilingSetup, CommandDoc, Error, EvaluationRow, NamedTarget, Test, TestKind, TrialContext};
use fathom_model::{Endpoints, Layer, Metric, OptionDoc, Record, Role, Settings, Side, units::counted};
use fathom_sys::policy::Policy;

use super::{metric_definitions, options, responder_test::ResponderTest};
use crate::{load::HttpLoad, responder};

#[derive(Debug, Clone, Copy)]
pub struct HttpClosed;

impl TestKind for HttpClosed {
    fn name(&self) -> &'static str {
        "http_closed"
    }

    fn about(&self) -> &'static str {
        "HTTP/1.1 requests in a closed loop: that many connections, each waiting for its answer"
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
        let connections = settings.count("connections").unwrap_or(1);
        format!("requests, {}", counted(connections, "connection"))
    }

    fn options(&self) -> &'static [OptionDoc] {
        options::OF_CLOSED
    }

    fn responder_options(&self) -> &'static [OptionDoc] {
        &responder::OPTIONS
    }

    fn metrics(&self) -> &'static [Metric] {
        metric_definitions::CLOSED
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc::test("closed"))
    }

    fn evaluation(&self) -> &'static [EvaluationRow] {
        &[EvaluationRow { name: "http", options: &[("connections", "32")], is_optional: false }]
    }

    fn ceilings(&self) -> &'static [CeilingSetup] {
        &[CeilingSetup { options: &[("connections", "32")], needs_lab: false }]
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        Ok(match role.side {
            Side::Initiator => Box::new(LoadTest(HttpLoad::prepare(self.name(), role, policy, None)?)),
            Side::Responder => Box::new(ResponderTest::prepare(role, policy)?),
        })
    }
}

/// The initiator, ready to start.
pub(super) struct LoadTest(pub(super) HttpLoad);

impl Test for LoadTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        self.0.run(context)
    }
}
