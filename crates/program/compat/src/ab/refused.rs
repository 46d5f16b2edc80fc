//! `-r` with a port where nothing listens: ab continues until all its requests have failed.
//!
//! No engine runs for this, because there is nothing to measure except the refusals.

use std::net::{SocketAddr, TcpStream};

use fathom_model::units::Nanos;
use fathom_sys::clock;

use super::{
    options::Options,
    table::RequestTimes,
    text::{AbResult, FailedRequests},
};

/// Connects once for each request until the time is over. Returns `None` as soon as a connection is accepted.
pub(super) fn outcome(options: &Options, address: SocketAddr) -> Option<AbResult> {
    let began = clock::now();
    let most = options.time.map_or(Nanos::MAX, Nanos::from_secs);
    let mut times = RequestTimes::default();
    let mut n_refused = 0;
    let mut now = began;
    while n_refused < options.requests && now - began < most {
        TcpStream::connect(address).err()?;
        let ended = clock::now();
        // ab treats a refused connection as a response that could not be received.
        times.connect.record(0);
        times.processing.record((ended - now).0);
        times.waiting.record(0);
        times.total.record((ended - now).0);
        (n_refused, now) = (n_refused + 1, ended);
    }
    let failed = FailedRequests { receive: n_refused, ..FailedRequests::default() };
    Some(AbResult { took: now - began, n_complete: n_refused, failed, times, ..AbResult::default() })
}
