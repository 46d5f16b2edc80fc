//! The interface between a test kind and its probe driver.

use fathom_engine::Error;
use fathom_model::{Record, units::Nanos};

use crate::ProbeTemplate;

/// A driver that produces a record.
pub(super) trait RecordingDriver: crate::ProbeDriver + Send {
    /// Adapts the probes to the driver's needs beyond the options, once the path is known.
    fn adapt_template(&mut self, conversation: &mut ProbeTemplate, device_mtu: u16) -> Result<(), Error>;

    /// Sets the start of the trial, and the time after which nothing more is sent.
    fn set_times(&mut self, start: Nanos, end: Nanos);

    /// Returns the number of sent probes, for a live view.
    fn n_sent(&self) -> u64;

    /// Writes the results to the record.
    fn record(&mut self, now: Nanos, record: &mut Record);
}
