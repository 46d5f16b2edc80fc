//! The output of wrk, built from the record. Pure functions.

use std::fmt::Write as _;

use fathom_http::{
    failures_by_stage::FailuresByStage,
    names::{STATUS, WORKER_RATE},
};
use fathom_lua::BATCH_TIME;
use fathom_model::{
    Histogram, Record,
    names::{count, distribution},
    units::{Nanos, approximate, rounded},
};

use super::{
    options::Options,
    units::{binary, column, metric, time_s, time_us},
};
use crate::closed_loop;

/// A row of the table of threads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ThreadStats {
    pub(super) mean: f64,
    pub(super) stdev: f64,
    pub(super) max: f64,
    /// The share of values within one standard deviation of the mean. NaN if there is no value.
    pub(super) within: f64,
}

impl ThreadStats {
    /// Computes a row from values. One printed unit is `per_unit` recorded units.
    fn of(values: &Histogram, per_unit: f64) -> Self {
        // If all values are zero, the row is empty, because wrk takes no samples of a thread that has done nothing.
        let Some((mean, max)) = values.mean().zip(values.max()).filter(|(_, max)| *max > 0) else {
            return Self { within: f64::NAN, ..Self::default() };
        };
        let stdev = values.stdev().unwrap_or(0.0);
        let within = values.share_within(mean - stdev, mean + stdev).unwrap_or(f64::NAN);
        Self { mean: mean / per_unit, stdev: stdev / per_unit, max: (approximate(max) / per_unit).trunc(), within }
    }

    fn row(&self, name: &str, show: fn(f64) -> String) -> String {
        let [mean, stdev, max] =
            [(self.mean, 8), (self.stdev, 10), (self.max, 9)].map(|(value, width)| column(&show(value), width));
        format!("    {name:<10}{mean}{stdev}{max}{}%\n", share(self.within))
    }
}

/// Formats a share in percent. NaN is printed as in C.
fn share(share: f64) -> String {
    if share.is_nan() { format!("{:>8}", "-nan") } else { format!("{:8.2}", share * 100.0) }
}

/// The result of a wrk run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WrkResult {
    /// In microseconds.
    pub(super) latency: ThreadStats,
    /// The rate of one thread per second.
    pub(super) rate: ThreadStats,
    /// Percent and microseconds.
    pub(super) percentiles: Vec<(f64, f64)>,
    pub(super) n_requests: u64,
    pub(super) n_bytes: u64,
    pub(super) span: Nanos,
    pub(super) failures: FailuresByStage,
    /// Responses with a status above 399.
    pub(super) n_refused: u64,
}

const NANOS_PER_MICRO: f64 = 1000.0;

impl WrkResult {
    pub(super) fn of(record: &Record, options: &Options) -> Self {
        let none = Histogram::new();
        let named = |name: &str| record.distributions.get(name).unwrap_or(&none);
        // wrk takes one time for all requests that were sent together.
        let latency = record.distributions.get(BATCH_TIME).unwrap_or_else(|| named(distribution::SERVICE_TIME));
        let percentile = |percent: f64| {
            let rank = rounded((percent / 100.0 * approximate(latency.count()) + 0.5).round());
            let ns = latency.value_at_rank(rank.min(latency.count())).unwrap_or(0);
            (percent, (approximate(ns) / NANOS_PER_MICRO).trunc())
        };
        let within = |counter| closed_loop::measured_growth(record, counter);
        let (n_requests, span) = within(count::REQUESTS);
        Self {
            latency: ThreadStats::of(latency, NANOS_PER_MICRO),
            rate: ThreadStats::of(named(WORKER_RATE), approximate(options.threads) / approximate(options.workers())),
            percentiles: [50.0, 75.0, 90.0, 99.0].map(percentile).to_vec(),
            n_requests,
            n_bytes: within(count::BYTES_RECEIVED).0,
            span,
            failures: FailuresByStage::of(&record.errors),
            n_refused: STATUS[2..].iter().map(|name| within(name).0).sum(),
        }
    }
}

/// Returns the text before the run.
pub(super) fn head(options: &Options) -> String {
    format!(
        "Running {} test @ {}\n  {} threads and {} connections\n",
        time_s(options.duration),
        options.url,
        options.threads,
        options.connections
    )
}

/// Returns the text after the run.
pub(super) fn body(outcome: &WrkResult, options: &Options) -> String {
    let mut text = format!("  Thread Stats{:>6}{:>11}{:>8}{:>12}\n", "Avg", "Stdev", "Max", "+/- Stdev");
    text += &outcome.latency.row("Latency", time_us);
    text += &outcome.rate.row("Req/Sec", metric);
    if options.latency {
        text += "  Latency Distribution\n";
        for (percent, us) in &outcome.percentiles {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{percent:7.0}%{}", column(&time_us(*us), 10));
        }
    }
    let span_us = approximate(outcome.span.0) / NANOS_PER_MICRO;
    let bytes = binary(approximate(outcome.n_bytes));
    let _ = writeln!(text, "  {} requests in {}, {bytes}B read", outcome.n_requests, time_us(span_us));
    let FailuresByStage { connect, receive, send, timeout, .. } = outcome.failures;
    if connect + receive + send + timeout > 0 {
        let _ = writeln!(text, "  Socket errors: connect {connect}, read {receive}, write {send}, timeout {timeout}");
    }
    if outcome.n_refused > 0 {
        let _ = writeln!(text, "  Non-2xx or 3xx responses: {}", outcome.n_refused);
    }
    let per_second = |number: u64| closed_loop::per_second(number, outcome.span);
    let _ = writeln!(text, "Requests/sec: {:9.2}", per_second(outcome.n_requests));
    let _ = writeln!(text, "Transfer/sec: {:>10}B", binary(per_second(outcome.n_bytes)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(latency: bool) -> Options {
        Options {
            connections: 10,
            threads: 2,
            duration: 2,
            timeout: 2,
            headers: Vec::new(),
            latency,
            script: None,
            url: "http://127.0.0.1:18480/".to_owned(),
            args: Vec::new(),
        }
    }

    /// The values behind an output of wrk 4.1.0 against nginx, as far as they can be derived from it.
    fn outcome() -> WrkResult {
        WrkResult {
            latency: ThreadStats { mean: 739.63, stdev: 1_270.0, max: 9_540.0, within: 0.8599 },
            rate: ThreadStats { mean: 19_750.0, stdev: 6_600.0, max: 29_080.0, within: 0.45 },
            percentiles: vec![(50.0, 122.0), (75.0, 750.0), (90.0, 2_620.0), (99.0, 5_760.0)],
            n_requests: 78_978,
            n_bytes: 67_130_000,
            span: Nanos(2_007_809_452),
            failures: FailuresByStage::default(),
            n_refused: 0,
        }
    }

    const WRITTEN_BY_WRK: &str = "\
Running 2s test @ http://127.0.0.1:18480/
  2 threads and 10 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   739.63us    1.27ms   9.54ms   85.99%
    Req/Sec    19.75k     6.60k   29.08k    45.00%
  Latency Distribution
     50%  122.00us
     75%  750.00us
     90%    2.62ms
     99%    5.76ms
  78978 requests in 2.01s, 64.02MB read
Requests/sec:  39335.41
Transfer/sec:     31.89MB
";

    #[test]
    fn the_numbers_of_a_run_of_wrk_give_the_lines_of_wrk() {
        let options = options(true);
        assert_eq!(head(&options) + &body(&outcome(), &options), WRITTEN_BY_WRK);
    }

    #[test]
    fn failures_have_lines_of_their_own_and_nothing_is_no_number() {
        let nothing = WrkResult {
            latency: ThreadStats::of(&Histogram::new(), 1.0),
            rate: ThreadStats::of(&Histogram::new(), 1.0),
            n_requests: 0,
            n_bytes: 0,
            failures: FailuresByStage { receive: 13_726, ..FailuresByStage::default() },
            n_refused: 3,
            ..outcome()
        };
        let written = "  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     0.00us    0.00us   0.00us    -nan%
    Req/Sec     0.00      0.00     0.00      -nan%
  0 requests in 2.01s, 0.00B read
  Socket errors: connect 0, read 13726, write 0, timeout 0
  Non-2xx or 3xx responses: 3
Requests/sec:      0.00
Transfer/sec:       0.00B
";
        assert_eq!(body(&nothing, &options(false)), written);
    }
}
