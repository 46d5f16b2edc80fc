//! Benchmarking methods over trials of frames or datagrams. Each test of a plan covers one size.
//!
//! Crate `fathom_rfc2544` implements the methods. This module runs their trials in the order of the plan and writes the results into
//! the run. A method that needs the throughput measures it first if the plan did not.

mod results;
mod tester;
mod tool_maximum;

use std::collections::BTreeMap;

use fathom_engine::search::{LoadLevel, mlr::SearchGoal};
use fathom_fleet::Error;
use fathom_model::{
    Benchmark, TestRun,
    benchmark::{BenchmarkResult, OwnMaximum, Reference, TrafficUnit},
    run::Host,
    units::{BitsPerSec, Bytes, Nanos, percent},
};
use fathom_rfc2544 as methods;
use fathom_rfc2544::{LossCurve, MethodResult, OverloadLimit, StopReason, ThroughputOptions};
use fathom_wire::{FrameSize, line_rate};

pub(super) use tool_maximum::{ToolMaxima, measure as own_maxima};

use super::{
    benchmark_spec::{BenchmarkMethod, BenchmarkSpec},
    checked_plan::{CheckedPlan, CheckedTest},
    trial_executor::RunExecutor,
};
use crate::{
    exit::{Exit, UserError},
    hosts::Hosts,
};
use tester::FrameTrials;

/// The remark for a benchmark with both directions at once: it explains the rates and counts.
const BOTH_WAYS: &str = "frames went in both directions at once (RFC 2544 section 14): a rate is offered in each direction, and the counts of \
                         lost and forwarded frames are for both together";

/// How much longer the header of IPv6 is than that of IPv4, in bytes (RFC 8200 section 3).
const IPV6_HEADER_MORE: u64 = 20;

/// The outcome of a method: an error is the reason why it ended early.
type MethodCompletion = Result<(), StopReason<Error>>;

/// The benchmark of one frame size.
struct FrameSizeBenchmark<'a, 'b, 'c> {
    spec: &'a BenchmarkSpec,
    trials: FrameTrials<'b, 'c>,
    results: Benchmark,
    /// The highest rate without loss, once it is known.
    throughput: Option<f64>,
    /// True once the throughput was searched for. A search that found nothing is not repeated.
    is_searched: bool,
}

impl RunExecutor<'_> {
    /// Runs the methods of a test and writes the results into the first of the runs that run together. Returns the error that ended the
    /// benchmark early.
    pub(super) fn benchmark(
        &self,
        mut into: Vec<&mut TestRun>,
        test: &CheckedTest,
        wanted: &BenchmarkSpec,
        known: &BTreeMap<String, Host>,
        hosts: &mut Hosts,
    ) -> anyhow::Result<Option<Error>> {
        let own = self.own_maximum(wanted.size_bytes);
        let is_ipv6 = test.to.as_ref().is_some_and(|to| hosts.at(to, None).address.is_ipv6());
        let mut begun = new_benchmark(frame_size(wanted, is_ipv6)?, wanted, own, known.get(&test.from))?;
        if into.len() > 1 {
            begun.remarks.push(BOTH_WAYS.to_owned());
        }
        let trials = FrameTrials {
            executor: self,
            test,
            rate_option: wanted.support.rate,
            title: into.first().map_or(String::new(), |run| run.title.clone()),
            hosts,
            n_directions: u32::try_from(into.len()).unwrap_or(u32::MAX),
            pause: wanted.pause,
            method: "",
            trials: Vec::new(),
            trials_by_rate: BTreeMap::new(),
        };
        let mut bench =
            FrameSizeBenchmark { spec: wanted, trials, results: begun, throughput: None, is_searched: false };
        let mut error = None;
        for method in &wanted.methods {
            bench.trials.method = method.name;
            match bench.run(method.id) {
                Ok(()) => {}
                Err(cut) => {
                    let why = results::cut_short_text(method.name, &cut, ToString::to_string);
                    bench.results.cut =
                        Some(bench.results.cut.take().map_or(why.clone(), |before| format!("{before}; {why}")));
                    if let StopReason::Failed(failed) = cut {
                        error = Some(failed);
                        break;
                    }
                }
            }
        }
        let FrameSizeBenchmark { mut trials, results: mut found, throughput, .. } = bench;
        found.trials = std::mem::take(&mut trials.trials);
        for (at, run) in into.iter_mut().enumerate() {
            run.beyond = throughput.and_then(|rate| trials.beyond(&run.options, rate, at));
        }
        // The trials at the throughput show the state of the hosts. Without them, use the trials at the lowest rate.
        let shown = throughput.and_then(|rate| trials.trials_by_rate.remove(&tester::rate_key(rate)));
        let shown = shown.or_else(|| trials.trials_by_rate.pop_first().map(|(_, shown)| shown)).unwrap_or_default();
        for (run, trial) in into.iter_mut().zip(shown) {
            run.trials.push(trial);
        }
        into[0].benchmark = Some(found);
        Ok(error)
    }
}

/// Creates the benchmark before its first trial: determines the rate that is 100 % and whether it can be offered.
fn new_benchmark(
    size: Option<FrameSize>,
    wanted: &BenchmarkSpec,
    own: Option<OwnMaximum>,
    from: Option<&Host>,
) -> Result<Benchmark, UserError> {
    let link = from.and_then(|host| {
        let fact = |name: &str| host.environment.get(host.interface.as_deref()?, name);
        fact("speed_bps").filter(|_| fact("line_rate") == Some("real"))?.parse::<BitsPerSec>().ok()
    });
    let line = link.zip(size).map(|(link, size)| line_rate(link, size).get());
    let mut remarks: Vec<String> = wanted.remark().into_iter().chain(wanted.learning()).collect();
    let own_rate = own.map(|own| own.rate);
    let (max_rate, reference) = match (wanted.max_rate, line, own_rate) {
        (Some(asked), ..) => (asked, Reference::Asked),
        (None, Some(line), Some(own)) if line > own => {
            remarks.push(
                "the link carries more than fathom sends: a throughput above its own maximum is not seen".to_owned(),
            );
            (own, Reference::OwnMaximum)
        }
        (None, Some(line), _) => (line, Reference::LineRate),
        (None, None, Some(own)) => (own, Reference::OwnMaximum),
        (None, None, None) => {
            let what =
                "the maximum rate is unknown: the device has no line rate, and fathom's own maximum was not measured";
            return Err(UserError::new(Exit::Preflight, what).with_line("use", "--max-rate 100k"));
        }
    };
    if line.is_none() {
        remarks.push("a virtual device has no line rate".to_owned());
    }
    if let Some(own) = own.filter(|own| !tool_maximum::is_sustained(own)) {
        remarks.push(format!(
            "fathom itself did not keep even {}: {} of it was not sent, and a frame left {} late, so others use this machine too",
            fathom_model::Unit::FramesPerSec.show(own.rate),
            percent(own.unsent_ratio),
            own.lag_ns
        ));
    }
    if own.is_none() {
        remarks.push(
            "fathom's own maximum could not be measured, so it is not known whether a limit is its own".to_owned(),
        );
    }
    Ok(Benchmark {
        unit: wanted.support.unit,
        size_bytes: wanted.size_bytes,
        max_rate,
        reference,
        line_rate: line,
        own,
        results: Vec::new(),
        loss: Vec::new(),
        searched: Vec::new(),
        remarks,
        cut: None,
        trials: Vec::new(),
    })
}

/// Returns the frame size on a wire. `None` for a datagram that no single frame carries: it has no line rate.
fn frame_size(wanted: &BenchmarkSpec, is_ipv6: bool) -> Result<Option<FrameSize>, UserError> {
    // The size of a frame does not depend on the protocol in it; that of a frame around a datagram does.
    let more = if is_ipv6 && wanted.support.unit == TrafficUnit::Datagrams { IPV6_HEADER_MORE } else { 0 };
    let size = Bytes(wanted.size_bytes + wanted.support.frame_overhead.0 + more);
    match (FrameSize::new(size), wanted.support.unit) {
        (Ok(size), _) => Ok(Some(size)),
        (Err(_), TrafficUnit::Datagrams) => Ok(None),
        (Err(error), TrafficUnit::Frames) => Err(UserError::new(Exit::Usage, error.to_string())),
    }
}

/// Rejects a maximum rate above the tool's own maximum, before anything is touched.
pub(super) fn check(plan: &CheckedPlan, own: &ToolMaxima) -> Result<(), UserError> {
    for spec in plan.tests.iter().filter_map(CheckedTest::benchmark) {
        if let (Some(asked), Some(own)) = (spec.max_rate, own.get(&spec.size_bytes))
            && asked > own.rate
        {
            let show = |rate| fathom_model::Unit::FramesPerSec.show(rate);
            let what = format!("{} of {} B are more than fathom itself sends here", show(asked), spec.size_bytes);
            let why = format!(
                "into a sink that loses nothing, fathom keeps its schedule up to {} and reaches {} flat out: \
                 a higher limit would be its own",
                show(own.rate),
                show(own.flat_out)
            );
            return Err(UserError::new(Exit::Preflight, what)
                .with_line("why", why)
                .with_line("use", format!("--max-rate {:.0}", own.rate)));
        }
    }
    Ok(())
}

impl FrameSizeBenchmark<'_, '_, '_> {
    fn run(&mut self, method: BenchmarkMethod) -> MethodCompletion {
        match method {
            BenchmarkMethod::Throughput => self.throughput(),
            BenchmarkMethod::MlrSearch => self.mlrsearch(),
            BenchmarkMethod::Latency => self.latency(),
            BenchmarkMethod::Loss => self.loss(),
            BenchmarkMethod::BackToBack => self.back_to_back(),
            BenchmarkMethod::Recovery => self.recovery(),
            BenchmarkMethod::Forwarding => self.forwarding(),
            BenchmarkMethod::Reset => self.reset(),
        }
    }

    fn rates(&self) -> (LoadLevel, LoadLevel) {
        let load = |rate: f64| LoadLevel::new(rate).expect("rates above zero were asked for");
        let min = self.spec.min_rate.min(self.results.max_rate / 2.0);
        (load(min), load(self.results.max_rate))
    }

    /// Adds the results of a method. Returns an error if it ended early.
    fn add_results(&mut self, rows: Vec<BenchmarkResult>, cut: Option<StopReason<Error>>) -> MethodCompletion {
        self.results.results.extend(rows);
        cut.map_or(Ok(()), Err)
    }

    fn throughput(&mut self) -> MethodCompletion {
        let wanted = self.spec;
        let goal = if wanted.conform { SearchGoal::rfc2544(wanted.trial) } else { SearchGoal::tst009(wanted.trial) };
        let goals = vec![SearchGoal { width: wanted.width, ..goal }];
        let input = ThroughputOptions { goals, rates: self.rates(), time: wanted.search_time };
        self.is_searched = true;
        let MethodResult { result: found, stopped: cut } = methods::throughput(&input, &mut self.trials);
        self.throughput = found.goals[0].lower.map(LoadLevel::get);
        self.results.searched = results::points(&found);
        self.note_void_trials(found.n_repeated);
        self.add_results(results::throughput(&found), cut)
    }

    fn mlrsearch(&mut self) -> MethodCompletion {
        let (names, goals): (Vec<String>, Vec<SearchGoal>) = self.spec.goals.iter().cloned().unzip();
        let input = ThroughputOptions { goals, rates: self.rates(), time: self.spec.search_time };
        let MethodResult { result: found, stopped: cut } = methods::throughput(&input, &mut self.trials);
        let is_lossless = |goal: &SearchGoal| goal.loss_ratio <= 0.0;
        let lossless = found.goals.iter().find(|result| is_lossless(&result.goal)).and_then(|result| result.lower);
        self.throughput = self.throughput.or(lossless.map(LoadLevel::get));
        self.results.searched = results::points(&found);
        self.note_void_trials(found.n_repeated);
        self.add_results(results::goals(&names, &found), cut)
    }

    fn note_void_trials(&mut self, n_void: u32) {
        if n_void > 0 {
            let what = format!("{n_void} trials were repeated, because fathom did not send all frames on time");
            self.results.remarks.push(what);
        }
    }

    /// Returns the throughput, and measures it first if no method did. Returns none if no throughput was found.
    fn known_throughput(&mut self) -> Result<Option<f64>, StopReason<Error>> {
        if self.throughput.is_none() && !self.is_searched {
            let method = std::mem::replace(&mut self.trials.method, "throughput");
            let ended = self.throughput();
            self.trials.method = method;
            if let Err(cut) = ended {
                if self.throughput.is_none() || matches!(cut, StopReason::Failed(_)) {
                    return Err(cut);
                }
                self.results.remarks.push(results::cut_short_text("throughput", &cut, ToString::to_string));
            }
        }
        if self.throughput.is_none() {
            let what = format!("{} was not measured, because no throughput is known", self.trials.method);
            self.results.remarks.push(what);
        }
        Ok(self.throughput)
    }

    fn curve(&self) -> LossCurve {
        let BenchmarkSpec { loss_step: step, trial: duration, .. } = *self.spec;
        LossCurve { max_rate: self.results.max_rate, step, duration }
    }

    fn loss(&mut self) -> MethodCompletion {
        let MethodResult { result: found, stopped: cut } = methods::loss(&self.curve(), &mut self.trials);
        self.results.loss = results::loss_points(&found);
        self.add_results(results::loss(&found), cut)
    }

    fn forwarding(&mut self) -> MethodCompletion {
        let MethodResult { result: found, stopped: cut } = methods::forwarding(&self.curve(), &mut self.trials);
        self.add_results(found.iter().flat_map(results::forwarding).collect(), cut)
    }

    fn latency(&mut self) -> MethodCompletion {
        let Some(rate) = self.known_throughput()? else { return Ok(()) };
        let BenchmarkSpec { latency_trial: duration, latency_runs: n, .. } = *self.spec;
        let runs = methods::LatencyOptions { rate, duration, n };
        let MethodResult { result: found, stopped: cut } = methods::latency(&runs, &mut self.trials);
        self.add_results(results::latency(found.as_ref()), cut)
    }

    fn back_to_back(&mut self) -> MethodCompletion {
        let (Some(throughput), max_rate) = (self.known_throughput()?, self.results.max_rate) else { return Ok(()) };
        if throughput >= max_rate {
            return self.add_results(results::no_buffer(), None);
        }
        let asked = methods::BackToBackOptions {
            max_rate,
            throughput,
            burst_max: self.spec.burst_max,
            step: self.spec.burst_step,
            max_repeat: 2,
            n_searches: self.spec.burst_searches,
        };
        let MethodResult { result: found, stopped: cut } = methods::back_to_back(&asked, &mut self.trials);
        self.add_results(found.iter().flat_map(|found| results::back_to_back(found, asked.step)).collect(), cut)
    }

    fn recovery(&mut self) -> MethodCompletion {
        let Some(throughput) = self.known_throughput()? else { return Ok(()) };
        let (most, reference) = (self.results.max_rate, self.results.reference);
        let bound =
            if reference == Reference::LineRate { OverloadLimit::Media(most) } else { OverloadLimit::Tester(most) };
        let Some(overload) = methods::overload(throughput, bound) else {
            return self.add_results(results::no_overload(throughput, most, reference), None);
        };
        let BenchmarkSpec { trial: duration, recovery_runs: n, .. } = *self.spec;
        let asked = methods::RecoveryOptions { overload, duration, n };
        let MethodResult { result: found, stopped: cut } = methods::recovery(&asked, &mut self.trials);
        self.add_results(results::recovery(found.as_ref(), overload, duration), cut)
    }

    fn reset(&mut self) -> MethodCompletion {
        let Some(rate) = self.known_throughput()? else { return Ok(()) };
        let duration: Nanos = self.spec.reset_trial;
        eprintln!("frames are sent for {duration}: reset the device now");
        let MethodResult { result: found, stopped: cut } = methods::reset(rate, duration, &mut self.trials);
        self.add_results(found.iter().flat_map(results::reset).collect(), cut)
    }
}
