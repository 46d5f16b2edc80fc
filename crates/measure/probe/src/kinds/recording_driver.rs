//! What a kind asks of the probes that it sends.

use fathom_engine::Error;
use fathom_model::{Record, units::Nanos};

use crate::ProbeTemplate;

/// A course of probes that ends in a record.
pub(super) trait RecordingDriver: crate::ProbeDriver + Send {
    /// Makes probes what the course needs beyond what the options say, once the way is known.
    fn adapt_template(&mut self, conversation: &mut ProbeTemplate, device_mtu: u16) -> Result<(), Error>;

    /// When the trial begins, and when nothing more is to be sent.
    fn set_times(&mut self, start: Nanos, end: Nanos);

    /// How many probes were sent, for a view of a running test.
    fn n_sent(&self) -> u64;

    /// Writes down what came of it.
    fn record(&mut self, now: Nanos, record: &mut Record);
}
