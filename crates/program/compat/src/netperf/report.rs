//! The values of a test that was run once or several times: means, intervals, service demand.

use fathom_interop::netperf::{CpuPercents, DataPattern, NetperfOutcome, TestSpec};
use fathom_model::units::approximate;
use fathom_statistics::{mean, mean_interval};

use super::{
    options::{Options, Repetition},
    units::ThroughputUnit,
};

/// The value of something that was not measured, as netperf prints it.
pub(super) const UNMEASURED: f64 = -1.0;

/// The CPU of one end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CpuCost {
    /// In percent of all CPUs of the host.
    pub(super) busy: f64,
    /// CPU time in microseconds per KiB or per transaction.
    pub(super) service_demand: f64,
}

/// The width of the confidence intervals in percent of the means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct IntervalWidths {
    pub(super) throughput: f64,
    pub(super) local_cpu: f64,
    pub(super) remote_cpu: f64,
}

/// The values of one iteration.
#[derive(Debug, Clone, Copy)]
struct Iteration {
    seconds: f64,
    throughput: f64,
    local: CpuCost,
    remote: CpuCost,
}

/// The values of all iterations so far.
#[derive(Debug)]
pub(super) struct TestReport {
    pub(super) spec: TestSpec,
    pub(super) unit: ThroughputUnit,
    repetition: Repetition,
    iterations: Vec<Iteration>,
    /// The last iteration.
    pub(super) last: NetperfOutcome,
}

impl TestReport {
    /// Creates the report of the first iteration.
    pub(super) fn new(options: &Options, first: NetperfOutcome) -> Self {
        let mut report = Self {
            spec: options.spec.clone(),
            unit: options.unit,
            repetition: options.repetition,
            iterations: Vec::new(),
            last: first,
        };
        report.count_last();
        report
    }

    /// Adds another iteration.
    pub(super) fn add(&mut self, outcome: NetperfOutcome) {
        self.last = outcome;
        self.count_last();
    }

    fn count_last(&mut self) {
        let outcome = &self.last;
        let (local, remote) = (&outcome.local, &outcome.remote);
        let own_bytes = local.bytes_sent + local.bytes_received;
        let units = match (self.unit, self.spec.pattern) {
            (ThroughputUnit::Transactions, _) => local.transactions,
            (_, DataPattern::Down) => own_bytes,
            // What arrived counts, not what was sent.
            _ => remote.bytes_received + remote.bytes_sent,
        };
        let cost = |cpu: Option<CpuPercents>| self.cost(cpu, own_bytes);
        let iteration = Iteration {
            seconds: outcome.seconds,
            throughput: self.unit.per_second(units, outcome.seconds),
            local: cost(local.cpu),
            remote: cost(remote.cpu),
        };
        self.iterations.push(iteration);
    }

    /// The service demand: CPU time over the work that it paid for (`calc_service_demand` of netperf).
    fn cost(&self, cpu: Option<CpuPercents>, own_bytes: u64) -> CpuCost {
        let Some(cpu) = cpu else { return CpuCost { busy: UNMEASURED, service_demand: UNMEASURED } };
        let work = match self.unit {
            ThroughputUnit::Transactions => approximate(self.last.local.transactions),
            _ => approximate(own_bytes) / 1024.0,
        };
        let cpu_micros = f64::from(cpu.busy) * 1e4 * f64::from(cpu.n_cpus) * self.last.seconds;
        CpuCost { busy: cpu.busy.into(), service_demand: if work > 0.0 { cpu_micros / work } else { 0.0 } }
    }

    fn mean_of(&self, value: impl Fn(&Iteration) -> f64) -> f64 {
        mean(&self.iterations.iter().map(value).collect::<Vec<_>>()).unwrap_or(0.0)
    }

    pub(super) fn n_iterations(&self) -> usize {
        self.iterations.len()
    }

    /// The mean length of the test.
    pub(super) fn seconds(&self) -> f64 {
        self.mean_of(|iteration| iteration.seconds)
    }

    /// The mean throughput in the unit of the report.
    pub(super) fn throughput(&self) -> f64 {
        self.mean_of(|iteration| iteration.throughput)
    }

    pub(super) fn local_cpu(&self) -> CpuCost {
        CpuCost {
            busy: self.mean_of(|iteration| iteration.local.busy),
            service_demand: self.mean_of(|iteration| iteration.local.service_demand),
        }
    }

    pub(super) fn remote_cpu(&self) -> CpuCost {
        CpuCost {
            busy: self.mean_of(|iteration| iteration.remote.busy),
            service_demand: self.mean_of(|iteration| iteration.remote.service_demand),
        }
    }

    /// Transactions per second of the last iteration.
    pub(super) fn transaction_rate(&self) -> f64 {
        ThroughputUnit::Transactions.per_second(self.last.local.transactions, self.last.seconds)
    }

    /// The round trip time that the rate of transactions implies, in microseconds.
    pub(super) fn round_trip_micros(&self) -> f64 {
        let rate = self.transaction_rate();
        let in_flight = if self.spec.is_connection_each { 1.0 } else { 1.0 + f64::from(self.spec.burst) };
        if rate > 0.0 { 1e6 / rate * in_flight } else { 0.0 }
    }

    /// A throughput of bytes of the last iteration.
    pub(super) fn bytes_per_second(&self, bytes: u64) -> f64 {
        self.unit.of_bytes().per_second(bytes, self.last.seconds)
    }

    /// The widths of the intervals; `None` after one iteration.
    pub(super) fn widths(&self) -> Option<IntervalWidths> {
        let level = f64::from(self.repetition.level) / 100.0;
        let width = |value: fn(&Iteration) -> f64| {
            let values: Vec<f64> = self.iterations.iter().map(value).collect();
            let interval = mean_interval(&values, level)?;
            let mean = mean(&values)?;
            Some(if mean == 0.0 { 0.0 } else { (interval.high - interval.low) / mean.abs() * 100.0 })
        };
        Some(IntervalWidths {
            throughput: width(|iteration| iteration.throughput)?,
            local_cpu: width(|iteration| iteration.local.busy)?,
            remote_cpu: width(|iteration| iteration.remote.busy)?,
        })
    }

    /// Whether another iteration is due.
    pub(super) fn needs_more(&self) -> bool {
        let n = u32::try_from(self.n_iterations()).unwrap_or(u32::MAX);
        n < self.repetition.n_min || (n < self.repetition.n_max && self.is_too_wide())
    }

    /// Whether an interval was requested and is wider than that.
    pub(super) fn is_too_wide(&self) -> bool {
        if self.repetition.n_max <= 1 {
            return false;
        }
        let most = self.repetition.width * 100.0;
        self.widths().is_none_or(|widths| {
            let cpus = [widths.local_cpu, widths.remote_cpu].into_iter().filter(|_| !self.repetition.is_result_only);
            cpus.chain([widths.throughput]).any(|width| width > most)
        })
    }

    /// The requested level and width, in percent.
    pub(super) fn requested(&self) -> (u32, f64) {
        (self.repetition.level, self.repetition.width * 100.0)
    }
}
