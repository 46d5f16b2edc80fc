//! The counters of the engines, and the record built from them.

mod record;
mod recorder;
mod request_totals;
mod results;

pub use self::record::lower_bounds_note;
pub(crate) use self::{
    record::{pacing_note, record},
    recorder::LoadRecorder,
    request_totals::{RecorderConfig, RequestSample, TotalsRecorder},
    results::{CLOSED_COUNTERS, COUNTERS, LOAD_COUNTERS, LoadCounter, LoadResults},
};
