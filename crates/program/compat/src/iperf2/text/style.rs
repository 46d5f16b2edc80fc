//! How reports look.

use fathom_model::units::Nanos;
use jiff::{Timestamp, tz::TimeZone};

use crate::iperf2::{options::TextRelease, units::NumberFormat};

/// The side that prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::iperf2) enum ReportSide {
    Client,
    Server,
}

/// How reports look.
#[derive(Debug, Clone)]
pub(in crate::iperf2) struct DisplayStyle {
    pub(in crate::iperf2) side: ReportSide,
    pub(in crate::iperf2) release: TextRelease,
    pub(in crate::iperf2) format: NumberFormat,
    pub(in crate::iperf2) is_enhanced: bool,
    pub(in crate::iperf2) is_csv: bool,
    /// Whether only sums of parallel flows are shown.
    pub(in crate::iperf2) is_sum_only: bool,
}

/// Formats a time on the wall clock as the tool does.
pub(in crate::iperf2) fn wall_text(wall: Nanos, format: &str) -> String {
    let time = Timestamp::from_nanosecond(i128::from(wall.0)).unwrap_or_default();
    time.to_zoned(TimeZone::system()).strftime(format).to_string()
}
