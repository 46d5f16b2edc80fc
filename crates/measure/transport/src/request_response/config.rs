//! What a side of request and response knows before it opens anything: its sizes, its flows, its schedule.

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

/// How many transactions are started.
pub(crate) const RATE: OptionDoc = OptionDoc {
    name: "rate",
    value: ValueKind::Rate,
    default: None,
    help: "transactions started per second, whether earlier ones are answered or not",
};
/// How they are spread over time.
pub(crate) const ARRIVALS: OptionDoc = OptionDoc {
    name: "arrivals",
    value: ValueKind::Choice(&["constant", "poisson"]),
    default: Some("constant"),
    help: "constant: evenly spaced; poisson: random, like independent users",
};

/// A transaction every 100 ns is more than any machine starts.
const RATE_MAX: f64 = 1e7;

/// A schedule of transactions, all workers together.
#[derive(Debug, Clone)]
pub(crate) struct OpenLoad {
    pub(crate) profile: Profile,
    pub(crate) process: ArrivalProcess,
}

impl OpenLoad {
    /// What settings of an open load ask for.
    ///
    /// # Errors
    /// No rate, or one that no machine keeps.
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

/// What a side knows before it opens anything.
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
