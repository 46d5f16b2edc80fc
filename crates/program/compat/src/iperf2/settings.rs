//! What both roles print before a test, and how they end.

use fathom_interop::iperf2::TransportProtocol;
use fathom_model::units::Bytes;
use fathom_run::exit::Exit;

use super::{
    options::{Flag, Options},
    text::{DisplayStyle, ReportSide},
    units,
};

/// iperf's exit code for whatever goes wrong.
pub(super) const FAILED: Exit = Exit::Code(1);
/// The line around settings.
pub(super) const RULE: &str = "------------------------------------------------------------";

/// Returns how the reports of a role look.
pub(super) fn style(options: &Options, side: ReportSide) -> DisplayStyle {
    DisplayStyle {
        side,
        release: options.release,
        format: options.format,
        is_enhanced: options.is_enhanced(),
        is_csv: options.flags.has(Flag::Csv),
        is_sum_only: options.flags.has(Flag::SumOnly),
    }
}

/// iperf's words for a protocol and its socket buffer.
pub(super) fn words(protocol: TransportProtocol) -> (&'static str, &'static str) {
    match protocol {
        TransportProtocol::Tcp => ("TCP", "TCP window size"),
        TransportProtocol::Udp => ("UDP", "UDP buffer size"),
    }
}

/// Returns the line on a socket buffer.
pub(super) fn window_text(name: &str, window: Option<Bytes>, options: &Options) -> String {
    let size = window.map_or_else(|| "unknown".to_owned(), |size| units::buffer(size.0));
    match options.setup.window {
        None => format!("{name}: {size} (default)"),
        Some(requested) if window == Some(requested) => format!("{name}: {size}"),
        Some(requested) => format!("{name}: {size} (WARNING: requested {})", units::buffer(requested.0)),
    }
}
