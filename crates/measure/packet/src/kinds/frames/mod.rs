//! Frames per second from one device to another, with every lost frame accounted for.
//!
//! The initiator sends numbered frames with the best backend that works. The responder counts and drops them in an XDP program,
//! before its network stack sees them. This kind knows nothing of searches: it runs one load for one period of time.

mod clock_id;
mod counter;
mod device;
mod frame_options;
mod learning;
mod metrics;
mod options;
mod receiver;
mod sender;
mod user_counter;

use fathom_engine::{CeilingSetup, CommandDoc, DataDirection, Error, EvaluationRow, MethodSupport, Test, TestKind};
use fathom_model::{Layer, Metric, OptionDoc, Role, Settings, Side, Unit, benchmark::TrafficUnit, units::Bytes};
use fathom_sys::policy::Policy;

pub use device::neighbour_towards;
pub use learning::LEARNING_FRAMES;
use metrics::METRICS;
pub use options::{LEARNING, LEARNING_WAIT, SEND_TIME_NS, STEP_AT, STEP_RATE};
use options::{NAME, OPTIONS, PORT, endpoint, n_workers};
use receiver::FramesReceiver;
pub use receiver::{RECOVERY_NS, VARIATION};
use sender::FramesSender;

use crate::craft;

/// Sends frames at a rate or flat out, and counts them where they end.
#[derive(Debug, Clone, Copy)]
pub struct FramesTest;

impl TestKind for FramesTest {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "frames per second from one device to another, and where lost ones went"
    }

    fn layer(&self) -> Layer {
        Layer::Frames
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn device_owners(&self, settings: &Settings) -> &'static [Side] {
        // A queue of a device has one socket of AF_XDP.
        if settings.text("backend").as_deref() == Some("xsk") { &[Side::Initiator] } else { &[] }
    }

    fn title(&self, settings: &Settings) -> String {
        let flows = settings.count(craft::FLOWS.name).filter(|n| *n > 1).map(|n| format!("{n} flows"));
        let shown = |name: &str| settings.rate(name).map(|rate| Unit::FramesPerSec.show(rate.get()));
        let rate = shown("rate").map(|rate| match (shown(STEP_RATE), settings.span(STEP_AT)) {
            (Some(then), Some(at)) => format!(" at {rate}, after {at} at {then}"),
            _ => format!(" at {rate}"),
        });
        let flows = flows.map(|flows| format!(", {flows}")).unwrap_or_default();
        format!("{}{}{flows}", craft::title(settings), rate.unwrap_or_default())
    }

    fn options(&self) -> &'static [OptionDoc] {
        OPTIONS
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc::test("frames").direction(DataDirection::ByHosts))
    }

    fn evaluation(&self) -> &'static [EvaluationRow] {
        &[
            EvaluationRow { name: "frames", options: &[("size", "64")], is_optional: false },
            EvaluationRow { name: "frames_1518", options: &[("size", "1518")], is_optional: false },
            EvaluationRow { name: "frames_paced", options: &[("size", "64"), ("rate", "50k")], is_optional: false },
        ]
    }

    fn ceilings(&self) -> &'static [CeilingSetup] {
        &[CeilingSetup { options: &[("size", "64")], needs_lab: true }]
    }

    fn methods(&self) -> Option<MethodSupport> {
        // A small, a medium and a large Ethernet frame show which results depend on the size.
        let sizes = &[64, 512, 1518];
        let (unit, rate) = (TrafficUnit::Frames, "rate");
        Some(MethodSupport { only: &[], unit, rate, sizes, frame_overhead: Bytes(0) })
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        Ok(match role.side {
            Side::Initiator => Box::new(FramesSender::prepare(role, policy)?),
            Side::Responder => Box::new(FramesReceiver::prepare(role, policy)?),
        })
    }
}
