//! Prints flows as they report, in the order in which they do.

use std::sync::{Mutex, PoisonError};

use fathom_interop::iperf2::{Error, FlowInfo, FlowInterval, FlowObserver, FlowOutcome, ServerReport};

use super::text::{DisplayStyle, TextReport};
use crate::closed_loop;

/// The printer of a process.
pub(super) struct FlowPrinter(Mutex<TextReport>);

impl FlowPrinter {
    pub(super) fn new(style: DisplayStyle) -> Self {
        Self(Mutex::new(TextReport::new(style)))
    }

    fn print(&self, lines: impl FnOnce(&mut TextReport) -> Vec<String>) {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = lines(&mut text);
        if !lines.is_empty() {
            // If the reader is gone, there is nobody to report the error to, and the test goes on.
            let _ = closed_loop::print_now(&(lines.join("\n") + "\n"));
        }
    }
}

impl FlowObserver for FlowPrinter {
    fn on_flow(&self, flow: &FlowInfo) {
        self.print(|text| text.flow(flow));
    }

    fn on_interval(&self, flow: &FlowInfo, interval: &FlowInterval) {
        self.print(|text| text.interval(flow, interval));
    }

    fn on_end(&self, flow: &FlowInfo, outcome: &FlowOutcome) {
        self.print(|text| text.end(flow, outcome));
    }

    fn on_server_report(&self, flow: &FlowInfo, report: &ServerReport) {
        self.print(|text| text.server_report(flow, report));
    }

    fn on_failure(&self, flow: Option<&FlowInfo>, error: &Error) {
        match (flow, error) {
            (_, Error::Interrupted) => {}
            (Some(flow), Error::NoReport { .. }) => eprintln!("[{:3}] WARNING: {error}.", flow.id),
            (Some(flow), _) => eprintln!("[{:3}] {error}", flow.id),
            (None, _) => eprintln!("{error}"),
        }
    }
}
