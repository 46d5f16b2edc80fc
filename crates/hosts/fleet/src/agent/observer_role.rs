//! The role of a host that only observes: a device under test, whose counters are read in addition to those of the two ends.

use fathom_engine::{Error, Stop, Test, TestKind, TrialContext};
use fathom_model::{Endpoints, Layer, Metric, OptionDoc, Record, Role, Settings, Side, units::Nanos};
use fathom_sys::{clock, policy::Policy};

/// Observes until the trial is over. It is not a test kind: a plan cannot use it by this name.
pub(crate) struct ObserverRole;

/// The name under which a controller assigns this role.
pub(crate) const NAME: &str = "observer";
/// How quickly the end of a trial is noticed: sooner than the next reading of its counters.
const STOP_CHECK_EVERY: Nanos = Nanos::from_millis(20);

impl TestKind for ObserverRole {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "a host between the two ends, whose counters are read"
    }

    fn layer(&self) -> Layer {
        Layer::Frames
    }

    fn is_two_sided(&self, _: &Settings) -> bool {
        false
    }

    fn title(&self, _: &Settings) -> String {
        NAME.to_owned()
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[]
    }

    fn prepare(&self, _: &Role, _: &Policy) -> Result<Box<dyn Test>, Error> {
        Ok(Box::new(ObserverTest))
    }
}

/// Only waits for the end.
struct ObserverTest;

impl Test for ObserverTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        while context.stop.state() == Stop::Continue {
            clock::sleep_until(clock::now() + STOP_CHECK_EVERY);
        }
        Ok(Record {
            start_ns: context.start,
            measured_ns: (Nanos::ZERO, clock::now() - context.start),
            complete: context.stop.state() == Stop::Finish,
            ..Record::empty(Side::Responder)
        })
    }
}
