//! The configuration of one side of request and response: sizes, flows, schedule.

use fathom_engine::{
    Error, IoBackend,
    pace::{ArrivalProcess, Profile},
};
use fathom_model::{OptionDoc, Role, Settings, ValueKind, units::PerSec};

use super::sizes::MessageSizes;
use crate::{
    flow_layout::FlowLayout,
    options::{SocketOptions, invalid_value},
};

/// The rate of transactions.
pub(crate) const RATE: OptionDoc = OptionDoc {
    name: "rate",
    value: ValueKind::Rate,
    default: None,
    help: "transactions started per second, whether earlier ones are answered or not",
};
/// The distribution of their starts over time.
pub(crate) const ARRIVALS: OptionDoc = OptionDoc {
    name: "arrivals",
    value: ValueKind::Choice(&["constant", "poisson"]),
    default: Some("constant"),
    help: "constant: evenly spaced; poisson: random, like independent users",
};

/// One transaction every 100 ns is more than any machine starts.
const RATE_MAX: f64 = 1e7;

/// The schedule of transactions of all workers together.
#[derive(Debug, Clone)]
pub(crate) struct OpenLoad {
    pub(crate) profile: Profile,
    pub(crate) process: ArrivalProcess,
}

impl OpenLoad {
    /// Reads the settings of an open load.
    ///
    /// # Errors
    /// There is no rate, or one that no machine can keep.
    pub(crate) fn of(settings: &Settings, seed: u64) -> Result<Self, Error> {
        let rate = settings.rate(RATE.name).ok_or_else(Error::no_rate)?;
        let profile = Profile::steady(rate)
            .ok_or_else(|| invalid_value(RATE.name, "the transactions per second to start", &rate))?;
        if profile.peak() > PerSec::new(RATE_MAX).unwrap_or_default() {
            return Err(invalid_value(RATE.name, "at most 10M transactions per second", &profile.peak()));
        }
        let process = match settings.text(ARRIVALS.name).as_deref() {
            Some("poisson") => ArrivalProcess::Poisson { seed },
            _ => ArrivalProcess::Constant,
        };
        Ok(Self { profile, process })
    }
}

/// The configuration of a side before it opens anything.
#[derive(Debug)]
pub(crate) struct RrConfig {
    pub(crate) role: Role,
    pub(crate) sizes: MessageSizes,
    pub(crate) spread: FlowLayout,
    pub(crate) burst: usize,
    pub(crate) open_load: Option<OpenLoad>,
    pub(crate) io_backend: IoBackend,
    pub(crate) options: SocketOptions,
}
