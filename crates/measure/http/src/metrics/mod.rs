//! What engines count while they work, and the record that becomes of it.

mod record;
mod recorder;
mod request_totals;
mod results;

pub(crate) use self::{
    record::{pacing_note, record},
    recorder::LoadRecorder,
    request_totals::{RecorderConfig, RequestSample, TotalsRecorder},
    results::{CLOSED_COUNTERS, COUNTERS, LoadCounter, LoadResults},
};
