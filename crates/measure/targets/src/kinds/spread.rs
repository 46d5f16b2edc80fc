//! Who answers many connections or datagrams, and whether that follows the weights.

use fathom_engine::{CommandDoc, Error, NamedTarget, Test, TestKind};
use fathom_model::{
    Layer, Metric, OptionDoc, Role, Settings,
    units::{Nanos, grouped},
};
use fathom_sys::policy::Policy;
use fathom_transport::options::SOURCE;

use super::metrics;
use crate::{
    carrier::Carrier,
    options::{CONCURRENCY, CONNECTIONS, HOST, LOCAL_SOURCES, SERVER, SOURCE_ORDER, TARGETS, TIMEOUT, WEIGHTS},
    spread, target,
};

/// Many connections.
pub(crate) const TCP: Spread = Spread(Carrier::Tcp);
/// Many datagrams.
pub(crate) const UDP: Spread = Spread(Carrier::Udp);

/// The most time that the connections may take.
const LONGEST: Nanos = Nanos::from_secs(60);

pub(crate) struct Spread(Carrier);

impl TestKind for Spread {
    fn name(&self) -> &'static str {
        match self.0 {
            Carrier::Tcp => "tcp_spread",
            Carrier::Udp => "udp_spread",
        }
    }

    fn about(&self) -> &'static str {
        "which target behind one address answers each connection or datagram, and whether that follows the weights"
    }

    fn layer(&self) -> Layer {
        self.0.layer()
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        false
    }

    fn title(&self, settings: &Settings) -> String {
        let n = grouped(settings.count(CONNECTIONS.name).unwrap_or(1));
        match self.0 {
            Carrier::Tcp => format!("spread of {n} connections"),
            Carrier::Udp => format!("spread of {n} datagrams"),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[HOST, CONNECTIONS, CONCURRENCY, TIMEOUT, SERVER, TARGETS, WEIGHTS, SOURCE, SOURCE_ORDER, LOCAL_SOURCES]
    }

    fn metrics(&self) -> &'static [Metric] {
        match self.0 {
            Carrier::Tcp => metrics::SPREAD_TCP,
            Carrier::Udp => metrics::SPREAD_UDP,
        }
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        target::host_and_port(settings)?;
        spread::check(settings)
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        target::named(settings)
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc { single_round: Some(LONGEST), ..CommandDoc::test("spread") })
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        Ok(Box::new(spread::prepare(self.0, role, policy)?))
    }
}
