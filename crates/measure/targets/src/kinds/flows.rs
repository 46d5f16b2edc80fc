//! Whether flows stay with their target, and what they lose when something fails.

use fathom_engine::{CommandDoc, Error, NamedTarget, Test, TestKind};
use fathom_model::{Layer, Metric, OptionDoc, Role, Settings, units::Nanos};
use fathom_sys::policy::Policy;
use fathom_transport::options::SOURCE;

use super::metrics;
use crate::{
    carrier::Carrier,
    flows,
    options::{
        BUCKET, ECHO_SERVER, FLOW_TIMEOUT, FLOWS, GIVE_UP, HOST, LOCAL_SOURCES, ONCE, RATE, SIZE, SOURCE_ORDER,
        TARGETS, WEIGHTS,
    },
    target,
};

/// The measured time, unless it is given.
const USUAL: Nanos = Nanos::from_secs(10);

/// A test with flows that stay open.
pub(crate) struct FlowTest {
    name: &'static str,
    about: &'static str,
    word: &'static str,
    carrier: Carrier,
    metrics: &'static [Metric],
}

pub(crate) const TCP_CONSISTENCY: FlowTest = FlowTest {
    name: "tcp_consistency",
    about: "whether each TCP connection stays with its target and lasts",
    word: "consistency",
    carrier: Carrier::Tcp,
    metrics: metrics::OF_CONSISTENCY,
};
pub(crate) const UDP_CONSISTENCY: FlowTest = FlowTest {
    name: "udp_consistency",
    about: "whether the datagrams of each flow reach the same target",
    carrier: Carrier::Udp,
    ..TCP_CONSISTENCY
};
pub(crate) const TCP_CONTINUITY: FlowTest = FlowTest {
    name: "tcp_continuity",
    about: "what TCP connections lose, and for how long, when a target, a link or the device fails",
    word: "continuity",
    carrier: Carrier::Tcp,
    metrics: metrics::OF_CONTINUITY,
};
pub(crate) const UDP_CONTINUITY: FlowTest = FlowTest {
    name: "udp_continuity",
    about: "what flows of datagrams lose, and for how long, when a target, a link or the device fails",
    carrier: Carrier::Udp,
    ..TCP_CONTINUITY
};

impl TestKind for FlowTest {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn layer(&self) -> Layer {
        self.carrier.layer()
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        false
    }

    fn title(&self, settings: &Settings) -> String {
        match settings.count(FLOWS.name).unwrap_or(1) {
            1 => format!("{} of 1 flow", self.word),
            n => format!("{} of {n} flows", self.word),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[
            HOST,
            FLOWS,
            RATE,
            SIZE,
            FLOW_TIMEOUT,
            GIVE_UP,
            ONCE,
            BUCKET,
            ECHO_SERVER,
            TARGETS,
            WEIGHTS,
            SOURCE,
            SOURCE_ORDER,
            LOCAL_SOURCES,
        ]
    }

    fn metrics(&self) -> &'static [Metric] {
        self.metrics
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        target::host_and_port(settings)?;
        flows::check(settings)
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        target::named(settings)
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc { single_round: Some(USUAL), ..CommandDoc::test(self.word) })
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        Ok(Box::new(flows::prepare(self.carrier, role, policy)?))
    }
}
