//! The input for judging one test: its summed records, its hosts, its cores and its path.
//!
//! This module collects and counts. It does not judge.

use std::{cell::OnceCell, cmp::Reverse, collections::BTreeMap, fmt::Display, net::IpAddr};

use fathom_model::{
    Derivation, Environment, Evidence, Finding, Histogram, HostRecord, Layer, Limit, LimitKind, Record, Run, Severity,
    Side, Trial,
    host_port::{port_number, split_host_port},
    names::{count, fact, host as counter},
    plan::HostReach,
    probe::ProbeRecord,
    record::{Flow, FlowSample, ProgramTime},
    run::TestRun,
    units::{Nanos, approximate, grouped, percent, ratio},
};

use crate::{
    conservation,
    context::{AnalysisContext, lead_test},
    cores::{CPU_STATES, CoreLoad, attribute_core_work},
    effect::NOT_GRANTED,
    limits::{KEPT, REACHED, n_wholes},
    path::{self, hosts_of, place_on_path},
    path_check::device_of,
    repeat_command,
    summaries::main_rate,
    window::{
        MeasuredWindow, flow_samples, host_records, measured_part, members, rates, record_of, samples_within,
        usable_trials,
    },
};

/// The note of a test whose threads poll for messages all the time.
const POLLS: &str = "spin";
/// Other programs that use so much of a core may have made a server wait.
const COMPANY: f64 = 0.1;

/// One test with everything that a finding rule may read.
pub struct TestEvidence<'a> {
    pub run: &'a Run,
    /// The test that is judged.
    pub test: &'a TestRun,
    /// Input of the analysis that is not in the records.
    pub context: &'a AnalysisContext,
    trials: Vec<&'a Trial>,
    /// The hosts of the test, the initiating ones first. Rules ask for them again and again, and there may be hundreds.
    hosts: Vec<&'a str>,
    is_one_machine: OnceCell<bool>,
    is_server_elsewhere: OnceCell<bool>,
}

/// Returns true if the probed host answered.
pub(crate) fn has_answers(record: &Record) -> bool {
    record.totals.get(count::RECEIVED).is_some_and(|n| *n > 0)
}

impl<'a> TestEvidence<'a> {
    /// Returns the probe results of each trial and pair of hosts, with the host that sent the probes.
    pub(crate) fn probes(&self) -> impl Iterator<Item = (&'a str, &'a Record, &'a ProbeRecord)> {
        let records = self.test.trials.iter().flat_map(host_records);
        records.filter_map(|(host, record)| Some((host, record, record.probe.as_ref()?)))
    }
}

/// A program beside the test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program<'a> {
    /// Its CPU time in cores: 1.5 is all of one core and half of another.
    pub(crate) cores: f64,
    pub(crate) program: &'a ProgramTime,
}

impl Program<'_> {
    /// Its name and number, and the CPU time that it used.
    pub(crate) fn evidence(&self, host: &str) -> Evidence {
        let counter = format!("{} (pid {})", self.program.name, self.program.pid);
        text_evidence(host, counter, format!("{} of a core", percent(self.cores)))
    }
}

/// Transactions of datagrams without an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransactionLoss {
    pub(crate) n: u64,
    /// The share of the time of their flows that passed until their timeouts: 0 for a load with a rate, which does not wait.
    pub(crate) waited: f64,
}

impl TransactionLoss {
    /// Returns true if the flows waited so long that they did markedly less.
    pub(crate) fn holds_back(&self) -> bool {
        const MATTERS: f64 = 0.05;
        self.waited >= MATTERS
    }
}

/// The time in which threads of a test had work and no core to run on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CoreWait {
    /// Its share of the measured time of the cores that the test uses.
    pub(crate) share: f64,
    /// The number of those cores.
    n_cores: f64,
}

impl CoreWait {
    /// From this share on, the test lost so much time that its values are those of a disturbed machine.
    pub(crate) const DISTURBS: f64 = 0.05;

    /// Returns the most of the share that others can have caused who used so many cores: threads of the test wait for each other too.
    pub(crate) fn of_others(self, others_cores: f64) -> f64 {
        self.share.min(others_cores / self.n_cores.max(f64::EPSILON))
    }
}

/// The load that a sender with a schedule really sent.
pub(crate) struct OfferedLoad<'a> {
    pub(crate) host: &'a str,
    pub(crate) side: Side,
    pub(crate) sent: u64,
    pub(crate) intended: u64,
    /// Sent divided by intended.
    pub(crate) share: f64,
}

impl<'a> TestEvidence<'a> {
    pub(crate) fn new(run: &'a Run, test: &'a TestRun, context: &'a AnalysisContext) -> Self {
        let (trials, hosts) = (usable_trials(&test.trials), hosts_of(test).collect());
        let (is_one_machine, is_server_elsewhere) = (OnceCell::new(), OnceCell::new());
        Self { run, test, context, trials, hosts, is_one_machine, is_server_elsewhere }
    }

    /// Returns a finding about this test, to which its evidence and the next step are added.
    pub(crate) fn finding(
        &self,
        id: impl Into<String>,
        severity: Severity,
        short: impl Into<String>,
        title: impl Into<String>,
    ) -> Finding {
        Finding {
            id: id.into(),
            short: short.into(),
            title: title.into(),
            severity,
            tests: vec![self.test.name.clone()],
            evidence: Vec::new(),
            explains: None,
            proof: None,
            next: None,
        }
    }

    /// Returns the hosts of the test, the initiating host first.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &'a str> {
        self.hosts.iter().copied()
    }

    /// Returns true for the host of a server that is not fathom's.
    pub(crate) fn is_of_server(&self, host: &str) -> bool {
        self.test.server.as_deref() == Some(host)
    }

    /// Returns the hosts on which fathom does the work of the test: where a server of another program does, its agent only looks.
    pub(crate) fn hosts_of_fathom(&self) -> impl Iterator<Item = &'a str> {
        self.hosts().filter(|host| !self.is_of_server(host))
    }

    /// Returns the hosts whose TCP counters are those of the test. A server may have other clients: its host then receives more than these send.
    pub(crate) fn hosts_of_tcp(&self) -> impl Iterator<Item = &'a str> {
        const TIMES_MAX: u64 = 2;
        const FEW: u64 = 1000;
        // A receiver counts segments that it joined as one, a sender never.
        let sent: u64 = self.hosts_of_fathom().map(|host| self.growth(host, counter::TCP_OUT_SEGMENTS, None)).sum();
        // The TCP of a host that passes its packets on, to a container or by IPVS, sees none of them. Requests that wait for their answers come in a
        // segment each.
        let is_one_by_one = self.test.options.count("pipeline").is_none_or(|depth| depth <= 1);
        let requests = if is_one_by_one { self.total(Side::Initiator, count::REQUESTS) } else { 0 };
        let is_of_test = move |host: &&str| {
            let received = self.growth(host, counter::TCP_IN_SEGMENTS, None);
            !self.is_of_server(host) || (requests / 2..=TIMES_MAX * sent + FEW).contains(&received)
        };
        self.hosts().filter(is_of_test)
    }

    /// Returns the host at the other end of what a host did.
    pub(crate) fn other_end(&self, host: &str) -> Option<&'a str> {
        let answering = self.test.answering();
        let is_answering = |other: &&str| Some(*other) == answering;
        let others = || self.hosts().filter(|other| *other != host);
        others().find(is_answering).or_else(|| others().next())
    }

    /// Returns one host of each machine of the test: what belongs to the kernel is the same for all hosts of one machine.
    pub(crate) fn machines(&self) -> impl Iterator<Item = &'a str> {
        self.hosts().take(if self.is_one_machine() { 1 } else { usize::MAX })
    }

    /// Returns the command that repeats the whole run with other options.
    pub(crate) fn repeat_run_command(&self, options: &str) -> Option<String> {
        repeat_command::repeat_run_command(self.run, options)
    }

    /// Returns the command that repeats this test with other options of its kind.
    pub(crate) fn repeat_test_command(&self, options: &str) -> Option<String> {
        repeat_command::repeat_test_command(self.run, self.test, options)
    }

    /// Returns the device between the hosts, if there is one.
    pub(crate) fn via(&self) -> Option<&'a str> {
        device_of(self.run, self.test)
    }

    /// Returns true if the interface drops of a host are accounted for at the device in between, because its wires are memory.
    pub(crate) fn is_of_device(&self, host: &str) -> bool {
        let lead = lead_test(self.run, self.test).unwrap_or(self.test);
        self.via().is_some() && lead.conservation.is_some() && self.is_memory(host)
    }

    /// Returns the trials that the test is judged by.
    pub(crate) fn trials(&self) -> &[&'a Trial] {
        &self.trials
    }

    /// Returns the record of one side in each trial.
    pub(crate) fn records(&self, side: Side) -> impl Iterator<Item = &'a Record> {
        self.trials.iter().filter_map(move |trial| Some(record_of(trial, side)?.1))
    }

    /// Returns the connections of one side with their samples of the measured part.
    pub(crate) fn measured_flows(&self, side: Side) -> impl Iterator<Item = (&'a Flow, &'a [FlowSample])> {
        let of_side = self.trials.iter().filter_map(move |trial| {
            let (host, record) = record_of(trial, side)?;
            Some((record, measured_part(trial, &self.run.hosts, host, record)))
        });
        of_side.flat_map(|(record, span)| record.flows.iter().map(move |flow| (flow, flow_samples(flow, span))))
    }

    /// Returns a distribution of one side over all trials; empty if it was not recorded.
    pub(crate) fn distribution(&self, side: Side, name: &str) -> Histogram {
        let of_trials = self.records(side).filter_map(|record| record.distributions.get(name));
        of_trials.fold(Histogram::new(), |mut all, one| {
            all.merge(one);
            all
        })
    }

    /// Returns a total of one side, summed over the trials.
    pub(crate) fn total(&self, side: Side, counter: &str) -> u64 {
        self.records(side).filter_map(|record| record.totals.get(counter)).sum()
    }

    /// Returns the growth of a host's counter over all trials, for all of its instances or for one.
    pub(crate) fn growth(&self, host: &str, counter: &str, of: Option<&str>) -> u64 {
        conservation::host_growth(&self.trials, host, counter, of)
    }

    /// Returns the packets that IP of a host received and that went nowhere; `None` if it does not count that.
    pub(crate) fn undelivered(&self, host: &str) -> Option<u64> {
        conservation::undelivered(&self.trials, host)
    }

    /// Returns true if a counter of a host was sampled: a growth of zero of any other one says nothing.
    pub(crate) fn has_counter(&self, host: &str, counter: &str) -> bool {
        let hosts = |trial: &'a Trial| members(trial, host).into_iter().filter_map(|host| trial.hosts.get(host));
        self.trials.iter().any(|trial| hosts(trial).any(|record| record.series_of(counter).next().is_some()))
    }

    /// Returns true if a counter of a host was sampled for this instance, whether it grew or not.
    pub(crate) fn has_counter_of(&self, host: &str, counter: &str, of: &str) -> bool {
        let records = || self.trials.iter().filter_map(|trial| trial.hosts.get(host));
        records().any(|record| record.series_of(counter).any(|series| series.of == of))
    }

    /// Returns the instances of a host's counter that grew, with their growth, the largest first.
    pub(crate) fn growth_by_instance(&self, host: &str, counter: &str) -> Vec<(&'a str, u64)> {
        growth_by_instance(&self.trials, host, counter)
    }

    /// Returns the cores of a host for which a counter grew, with its growth, the largest first, in the trials by which cores are judged.
    pub(crate) fn growth_by_core(&self, host: &str, counter: &str) -> Vec<(&'a str, u64)> {
        growth_by_instance(&self.trials_of_cores(host), host, counter)
    }

    /// Returns the share of the measured time in which a counter of a host grew, by its samples.
    pub(crate) fn growing_time(&self, host: &str, counter: &str, of: &str) -> Option<f64> {
        let (mut grew, mut all) = (Nanos::ZERO, Nanos::ZERO);
        for trial in &self.trials {
            let Some((record, (first, last))) = self.measured_samples(trial, host) else { continue };
            let series = record.series_of(counter).find(|series| series.of == of)?;
            for sample in first..last {
                let span = record.at_ns[sample + 1] - record.at_ns[sample];
                all += span;
                if series.at(sample + 1) > series.at(sample) {
                    grew += span;
                }
            }
        }
        ratio(grew.0, all.0)
    }

    /// Returns the time that the samples of a host span, over all trials.
    pub(crate) fn sampled_time(&self, host: &str) -> Option<Nanos> {
        let spans = self.trials.iter().filter_map(|trial| Some(trial.hosts.get(host)?.span()));
        spans.reduce(|all, one| all + one).filter(|span| *span > Nanos::ZERO)
    }

    /// Returns the newest value of a gauge of the whole host.
    pub(crate) fn last_value(&self, host: &str, gauge: &str) -> Option<u64> {
        let record = self.trials.iter().rev().find_map(|trial| trial.hosts.get(host))?;
        record.series_of(gauge).next()?.values.last().copied()
    }

    /// Returns the highest value of a gauge of the whole host in any sample.
    pub(crate) fn highest_value(&self, host: &str, gauge: &str) -> Option<u64> {
        let records = self.trials.iter().filter_map(|trial| trial.hosts.get(host));
        records.flat_map(|record| record.series_of(gauge)).flat_map(|series| &series.values).max().copied()
    }

    /// Returns the newest value of a gauge of one instance.
    pub(crate) fn last_value_of(&self, host: &str, gauge: &str, of: &str) -> Option<u64> {
        let record = self.trials.iter().rev().find_map(|trial| trial.hosts.get(host))?;
        record.series_of(gauge).find(|series| series.of == of)?.values.last().copied()
    }

    /// Returns the highest sum of gauges of the whole host in any sample; `None` if one of them was not sampled.
    pub(crate) fn highest_sum(&self, host: &str, gauges: &[&str]) -> Option<u64> {
        let records = self.trials.iter().filter_map(|trial| trial.hosts.get(host));
        let in_record = |record: &HostRecord| {
            let sums = (0..record.at_ns.len()).map(|row| {
                gauges.iter().try_fold(0_u64, |sum, gauge| sum.checked_add(record.series_of(gauge).next()?.at(row)?))
            });
            sums.flatten().max()
        };
        records.filter_map(in_record).max()
    }

    /// Returns the mean of a gauge over the measured time.
    pub(crate) fn mean_value(&self, host: &str, gauge: &str, of: &str) -> Option<u64> {
        self.mean_in_trials(&self.trials, host, gauge, of)
    }

    /// Returns the mean of a gauge of a core, in the trials by which the cores of a host are judged.
    pub(crate) fn mean_of_core(&self, host: &str, gauge: &str, core: &str) -> Option<u64> {
        self.mean_in_trials(&self.trials_of_cores(host), host, gauge, core)
    }

    fn mean_in_trials(&self, trials: &[&'a Trial], host: &str, gauge: &str, of: &str) -> Option<u64> {
        let of_trial = |trial: &&'a Trial| {
            let (record, (first, last)) = self.measured_samples(trial, host)?;
            let series = record.series_of(gauge).find(|series| series.of == of)?;
            Some((first..=last).filter_map(|sample| series.at(sample)).map(approximate).collect::<Vec<_>>())
        };
        let values: Vec<f64> = trials.iter().filter_map(of_trial).flatten().collect();
        fathom_statistics::mean(&values).map(fathom_model::units::rounded)
    }

    /// Returns the trials by which the cores of a host are judged: all of them, or the median one by the load of its busiest core, where another
    /// core of more than two is the busiest in each. Connections of another trial come from other ports, so that RSS may give them to another core;
    /// a mean of trials would hide that one was full in each.
    pub(crate) fn trials_of_cores(&self, host: &str) -> Vec<&'a Trial> {
        if self.trials.len() < 2 {
            return self.trials.clone();
        }
        let busiest = |trial: &'a Trial| {
            let loads = self.core_loads(host, &[trial]);
            let busiest = loads.first().filter(|_| loads.len() > 2)?;
            Some((busiest.busy(), busiest.core.clone(), trial))
        };
        let mut of_trials: Vec<_> = self.trials.iter().copied().filter_map(busiest).collect();
        of_trials.sort_by(|a, b| a.0.total_cmp(&b.0));
        match of_trials.get(of_trials.len().saturating_sub(1) / 2) {
            Some((.., median)) if of_trials.iter().any(|(_, core, _)| *core != of_trials[0].1) => vec![*median],
            _ => self.trials.clone(),
        }
    }

    /// Returns how the cores of a host spent the measured time, the busiest first.
    pub(crate) fn cores(&self, host: &str) -> Vec<CoreLoad> {
        self.core_loads(host, &self.trials_of_cores(host))
    }

    fn core_loads(&self, host: &str, trials: &[&'a Trial]) -> Vec<CoreLoad> {
        let mut spent: BTreeMap<&str, BTreeMap<&'static str, u64>> = BTreeMap::new();
        for trial in trials {
            let Some((record, (first, last))) = self.measured_samples(trial, host) else { continue };
            for counter in CPU_STATES {
                for series in record.series.iter().filter(|series| series.name == counter) {
                    let grown = series.at(last).unwrap_or(0).saturating_sub(series.at(first).unwrap_or(0));
                    *spent.entry(&series.of).or_default().entry(counter).or_default() += grown;
                }
            }
        }
        let mut cores: Vec<CoreLoad> =
            spent.into_iter().filter_map(|(core, states)| CoreLoad::of(core, &states)).collect();
        // A host without counters has no cores to divide.
        if cores.is_empty() {
            return cores;
        }
        if let Some(own) = self.own_cpu(host, trials) {
            attribute_core_work(&mut cores, &own);
            // In a test of frames, kernel threads may work for the test. Only user time of other programs is certainly not its
            // own.
            for core in cores.iter_mut().filter(|_| self.test.layer == Layer::Frames) {
                core.own = core.busy() - core.others().min(core.share(counter::CPU_USER_NS));
            }
        }
        cores.sort_by(|a, b| b.busy().total_cmp(&a.busy()));
        cores
    }

    /// Returns the programs of a host beside the test with the most CPU time, the greatest first.
    pub(crate) fn programs(&self, host: &str) -> Vec<Program<'a>> {
        let mut all: BTreeMap<u32, (Nanos, &'a ProgramTime)> = BTreeMap::new();
        for program in self.trials.iter().filter_map(|trial| trial.hosts.get(host)).flat_map(|record| &record.programs)
        {
            all.entry(program.pid).or_insert((Nanos::ZERO, program)).0 += program.cpu_ns;
        }
        let span = self.sampled_time(host).unwrap_or(Nanos::ZERO);
        let program =
            |(cpu, program): (Nanos, &'a ProgramTime)| Some(Program { cores: ratio(cpu.0, span.0)?, program });
        let mut all: Vec<_> = all.into_values().filter_map(program).collect();
        all.sort_by(|a, b| b.cores.total_cmp(&a.cores));
        all
    }

    /// Returns the CPU time of the kernel threads of a host, in cores, without those of softirqs; 0 where it does not tell.
    pub(crate) fn kernel_threads(&self, host: &str) -> f64 {
        let records = self.trials.iter().filter_map(|trial| trial.hosts.get(host));
        let spent: u64 = records.filter_map(|record| record.kernel_threads_ns).map(|spent| spent.0).sum();
        self.sampled_time(host).and_then(|span| ratio(spent, span.0)).unwrap_or(0.0)
    }

    /// Returns the TCP port to which a test connects that names a server: that of its URL, unless it connects to another address or a proxy.
    pub(crate) fn server_port(&self) -> Option<u16> {
        let option = |name| self.test.options.text(name);
        let port_of = |text: &str| split_host_port(text)?.1.and_then(port_number);
        if let Some(text) = option("connect-to") {
            return port_of(&text);
        }
        if let Some(proxy) = option("proxy") {
            return port_of(authority(&proxy)?);
        }
        let Some(url) = option("url") else { return port_of(&option("host")?) };
        let default = if url.starts_with("https:") { 443 } else { 80 };
        split_host_port(authority(&url)?)?.1.map_or(Some(default), port_number)
    }

    /// Returns true if the server that a test names by a URL is at an address of the loopback device.
    pub(crate) fn is_server_here(&self) -> bool {
        let url = self.test.options.text("url");
        let host = url.as_deref().and_then(authority).and_then(split_host_port).map(|(host, _)| host);
        host == Some("localhost") || self.server_address().is_some_and(|address| address.is_loopback())
    }

    /// Returns the address of the server that a test names by a URL: that in the URL, or that which connections to its name reached. Through a
    /// proxy they reach the proxy.
    fn server_address(&self) -> Option<IpAddr> {
        let url = self.test.options.text("url")?;
        let host = split_host_port(authority(&url)?)?.0.trim_matches(['[', ']']);
        let reached = || {
            let records = self.trials.iter().flat_map(|trial| trial.records.values());
            records.filter_map(|record| record.facts.get(fact::REACHED_ADDRESS)).find_map(|text| text.parse().ok())
        };
        let is_direct = self.test.options.text("proxy").is_none();
        host.parse().ok().or_else(|| reached().filter(|_| is_direct))
    }

    /// Returns the program that listens on the port of the tested server, with its host, if it runs on a host of this run.
    pub(crate) fn server(&self) -> Option<(&'a str, Program<'a>)> {
        let port = self.server_port()?;
        let known = self.test.server.as_deref();
        let hosts = self.hosts().filter(|host| known.is_none_or(|server| server == *host));
        let programs = hosts.flat_map(|host| self.programs(host).into_iter().map(move |program| (host, program)));
        programs
            .filter(|(_, program)| program.program.listens.contains(&port))
            .filter(|(_, program)| self.is_tested_address(program.program).unwrap_or(true))
            .max_by(|a, b| a.1.cores.total_cmp(&b.1.cores))
    }

    /// Returns the growth of a time of a program from the end of the first trial to that of the last, as a share of the measured time of all but the
    /// first; `None` if there is one trial, or if one does not tell it. The time between trials counts too. Where the time is that of threads that
    /// are left, it can also shrink, which is 0.
    pub(crate) fn growth_between_trials(
        &self,
        host: &str,
        program: &Program<'_>,
        time: impl Fn(&ProgramTime) -> Option<Nanos>,
    ) -> Option<f64> {
        let records = self.trials().iter().filter_map(|trial| trial.hosts.get(host));
        let same = records.flat_map(|record| &record.programs).filter(|other| other.pid == program.program.pid);
        let totals: Vec<u64> = same.filter_map(time).map(|total| total.0).collect();
        let (first, last, n) = (totals.first()?, totals.last()?, totals.len() as u64);
        let growth = ratio(last.saturating_sub(*first), self.sampled_time(host)?.0 / n * (n - 1));
        growth.filter(|_| totals.len() == self.trials().len())
    }

    /// Returns the program of the tested server, if it runs on the machine of a host.
    pub(crate) fn server_beside(&self, host: &str) -> Option<Program<'a>> {
        let is_here = |at: &str| at == host || self.is_one_machine();
        self.server().filter(|(at, _)| is_here(at)).map(|(_, server)| server)
    }

    /// Returns true if the target is a server that fathom did not start, and no host of this run shows its program.
    pub(crate) fn has_unseen_server(&self) -> bool {
        self.test.to.is_none() && self.server().is_none()
    }

    /// Returns true if nobody read the network counters of the tested server's host. Its process may be seen all the same: a machine shows those of
    /// all its network namespaces.
    pub(crate) fn is_server_host_unread(&self) -> bool {
        if self.test.server.is_some() {
            return false;
        }
        match self.server_address() {
            Some(address) => self.test.to.is_none() && !self.is_server_here() && !self.is_address_of_host(address),
            None => self.has_unseen_server(),
        }
    }

    /// Returns the programs that listen on the port of the tested server on its host: a server may have many processes.
    pub(crate) fn server_processes(&self) -> Vec<Program<'a>> {
        let Some((host, server)) = self.server() else { return Vec::new() };
        let port = self.server_port();
        let serves = |program: &Program<'_>| {
            program.program.pid == server.program.pid
                || port.is_some_and(|port| program.program.listens.contains(&port))
                    && self.is_tested_address(program.program).unwrap_or(true)
        };
        self.programs(host).into_iter().filter(serves).collect()
    }

    /// Returns true if threads of the test waited so long for a core of a host that its values are those of a disturbed machine.
    pub(crate) fn waits_for_core(&self, host: &str) -> bool {
        self.core_wait(host).is_some_and(|wait| wait.share >= CoreWait::DISTURBS)
    }

    /// Returns the most time that the tested server can have used on the cores of this run's hosts, in cores: that of the programs that listen on
    /// its port; else that of one that listens on another port, as a container whose port is published, or of one that used too little to be named.
    /// `None` if a host may not see the sockets of all programs.
    pub(crate) fn server_cores_max(&self) -> Option<f64> {
        let port = self.server_port();
        let of_host = |host| {
            let programs = self.programs(host);
            let listens = |program: &&Program<'_>| port.is_some_and(|port| program.program.listens.contains(&port));
            let named: f64 = programs.iter().filter(listens).map(|program| program.cores).sum();
            let least = programs.last().filter(|_| programs.len() >= HostRecord::PROGRAMS_MAX);
            let capabilities = self.environment(host).and_then(|facts| facts.get("tool", "capabilities"));
            let sees_all = capabilities.is_some_and(|all| all.split(' ').any(|one| one == "sys_admin"));
            let listening = programs.iter().filter(|program| !program.program.listens.is_empty());
            let of_others = listening.map(|program| program.cores).fold(0.0, f64::max);
            match named {
                0.0 => sees_all.then(|| least.map_or(0.0, |program| program.cores).max(of_others)),
                named => Some(named),
            }
        };
        self.hosts().map(of_host).try_fold(0.0_f64, |most, cores| Some(most.max(cores?)))
    }

    /// Returns true if a program has the address of the tested server; `None` if one of both is not known, as that of a name.
    pub(crate) fn is_tested_address(&self, program: &ProgramTime) -> Option<bool> {
        let elsewhere = ["connect-to", "proxy", "unix"];
        if elsewhere.iter().any(|option| self.test.options.text(option).is_some()) {
            return None;
        }
        let loopback = || program.addresses.iter().any(IpAddr::is_loopback);
        if self.is_server_here() {
            return (!program.addresses.is_empty()).then(loopback);
        }
        let address = self.server_address()?;
        (!program.addresses.is_empty()).then(|| program.addresses.contains(&address))
    }

    /// Returns the wait for a core of the test's threads on a host; on a machine that all hosts share, of all threads. `None` if a side does not
    /// tell it.
    pub(crate) fn core_wait(&self, host: &str) -> Option<CoreWait> {
        let one_machine = self.is_one_machine();
        let (mut waited, mut measured, mut of_cores) = (Nanos::ZERO, Nanos::ZERO, 0);
        for trial in &self.trials {
            let span = MeasuredWindow::common(trial, &self.run.hosts)?.span();
            measured += span;
            for (_, record) in host_records(trial).filter(|(of, _)| one_machine || *of == host) {
                waited += record.run_delay_ns?;
                of_cores += span.0.saturating_mul(u64::try_from(record.cpu_ns_by_core.len()).unwrap_or(u64::MAX));
            }
        }
        ratio(waited.0, of_cores).map(|share| CoreWait { share, n_cores: ratio(of_cores, measured.0).unwrap_or(0.0) })
    }

    /// Returns the time that the threads of both ends had work and no core to run on, together, as a share of the measured time: no
    /// request waited longer for that. `None` if an end does not tell it, such as a server that is not fathom's and may be on this machine;
    /// what uses the cores of this machine takes no time of a server on another one.
    pub(crate) fn time_waited_for_core(&self) -> Option<f64> {
        let (mut waited, mut measured) = (Nanos::ZERO, Nanos::ZERO);
        for trial in &self.trials {
            measured += MeasuredWindow::common(trial, &self.run.hosts)?.span();
            for record in trial.records.values() {
                waited += record.run_delay_ns?;
            }
        }
        // On its machine, the server may wait for others.
        let has_company = |server: &str| self.cores(server).iter().map(CoreLoad::others).sum::<f64>() >= COMPANY;
        let is_elsewhere = || {
            !self.is_server_here()
                && !self.is_memory(&self.test.from)
                && self.server_beside(&self.test.from).is_none()
                && !self.test.server.as_deref().is_some_and(has_company)
        };
        ratio(waited.0, measured.0).filter(|_| self.test.to.is_some() || is_elsewhere())
    }

    /// Returns true for the host of a server on a machine of its own, where its work is all work of the test.
    pub(crate) fn runs_server_alone(&self, host: &str) -> bool {
        self.is_of_server(host) && !self.is_one_machine()
    }

    /// Returns true for such a host whose server is not known among its programs: what uses its cores may be the server or others.
    pub(crate) fn hides_server(&self, host: &str) -> bool {
        self.runs_server_alone(host) && self.server().is_none()
    }

    /// Returns the share of each core's time that the threads of the test used, on one host or on a machine that all hosts
    /// share.
    ///
    /// `None` if a side does not know it. Time without a fixed core is stored under an empty name.
    fn own_cpu(&self, host: &str, trials: &[&'a Trial]) -> Option<BTreeMap<&'a str, f64>> {
        if self.runs_server_alone(host) {
            let processes = self.server_processes();
            let cores = processes.iter().map(|process| process.cores).sum();
            return (!processes.is_empty()).then(|| [("", cores)].into());
        }
        let one_machine = self.is_one_machine();
        let mut own: BTreeMap<&str, f64> = BTreeMap::new();
        // A round that ended before its measured part has no share.
        let is_measured =
            |trial: &&&Trial| trial.records.values().all(|record| record.measured_ns.1 > record.measured_ns.0);
        let measured: Vec<_> = trials.iter().filter(is_measured).collect();
        for trial in &measured {
            for (_, record) in host_records(trial).filter(|(of, _)| one_machine || *of == host) {
                if record.cpu_ns_by_core.is_empty() {
                    return None;
                }
                let (from, to) = record.measured_ns;
                for (core, spent) in &record.cpu_ns_by_core {
                    *own.entry(core).or_default() += ratio(spent.0, (to - from).0)?;
                }
            }
        }
        let n_trials = approximate(u64::try_from(measured.len()).ok()?);
        for share in own.values_mut() {
            *share /= n_trials;
        }
        (!own.is_empty()).then_some(own)
    }

    /// Returns the cores to which the threads of the test on a host are bound; `None` if one is bound to none, or if that is not known.
    pub(crate) fn bound_to(&self, host: &str) -> Option<Vec<&'a str>> {
        let own = self.own_cpu(host, &self.trials_of_cores(host))?;
        (!own.contains_key("")).then(|| own.into_keys().collect())
    }

    /// Returns true if the hosts reach each other by IPv6.
    pub(crate) fn is_ipv6(&self) -> bool {
        let address = || self.hosts().find_map(|host| self.address_of(host));
        self.reached_address().or_else(address).is_some_and(|address| address.is_ipv6())
    }

    /// Returns the address that the test is sent to, if it is known.
    pub(crate) fn reached_address(&self) -> Option<IpAddr> {
        self.test.to.as_deref().and_then(|host| self.address_of(host)).or_else(|| self.server_address())
    }

    /// Returns the address of a host on the path of the test.
    fn address_of(&self, host: &str) -> Option<IpAddr> {
        place_on_path(self.run, self.test, host).0?.parse().ok()
    }

    /// Returns the time that both ends measured, summed over the trials.
    pub(crate) fn measured_time(&self) -> Nanos {
        let spans = self.trials.iter().filter_map(|trial| Some(MeasuredWindow::common(trial, &self.run.hosts)?.span()));
        spans.fold(Nanos::ZERO, |sum, span| sum + span)
    }

    /// Returns the host counters of one trial and the samples that bound the measured part.
    pub(crate) fn measured_samples(&self, trial: &'a Trial, host: &str) -> Option<(&'a HostRecord, (usize, usize))> {
        let record = trial.hosts.get(host)?;
        let window = MeasuredWindow::common(trial, &self.run.hosts)?.on_host(&self.run.hosts, host);
        Some((record, samples_within(record, window)?))
    }

    /// Returns the congestion control of a host's connections: that of the test, or the host's own; `None` if it is unknown.
    pub(crate) fn congestion_control(&self, host: &str) -> Option<String> {
        let asked = self.test.options.text("congestion");
        asked.or_else(|| Some(self.environment(host)?.get("tcp", "congestion_control")?.trim().to_owned()))
    }

    /// Returns the growth of a time of one instance as a share of the measured time; `None` if it was not sampled.
    pub(crate) fn measured_share(&self, host: &str, counter: &str, of: &str) -> Option<f64> {
        let (mut spent, mut all) = (0, Nanos::ZERO);
        for trial in &self.trials {
            let Some((record, (first, last))) = self.measured_samples(trial, host) else { continue };
            let Some(series) = record.series_of(counter).find(|series| series.of == of) else { continue };
            spent += series.at(last)?.saturating_sub(series.at(first)?);
            all += record.at_ns[last] - record.at_ns[first];
        }
        ratio(spent, all.0)
    }

    /// Returns the known facts about a host.
    pub(crate) fn environment(&self, host: &str) -> Option<&'a Environment> {
        self.run.hosts.get(host).map(|host| &host.environment)
    }

    /// Returns the interface that a host was tested on, or a placeholder for use in a command.
    pub(crate) fn interface(&self, host: &str) -> &'a str {
        place_on_path(self.run, self.test, host).1.unwrap_or("IFACE")
    }

    /// Returns the interface that a host was tested on and all devices below it, from the top.
    pub(crate) fn devices(&self, host: &str) -> Vec<&'a str> {
        let interface = self.interface(host);
        self.environment(host).map_or_else(|| vec![interface], |facts| path::devices(facts, interface))
    }

    /// Returns the devices that queue what a host receives of the test.
    pub(crate) fn redirects(&self, host: &str) -> Vec<&'a str> {
        self.environment(host).map_or_else(Vec::new, |facts| conservation::redirects(&self.trials, host, facts))
    }

    /// Returns the cards that carry the frames of a host's interface, the one that received most of them first: what is told of rings and queues
    /// is told of these.
    pub(crate) fn cards(&self, host: &str) -> Vec<&'a str> {
        let interface = self.interface(host);
        let mut cards = self.environment(host).map_or_else(|| vec![interface], |facts| path::cards(facts, interface));
        cards.sort_by_key(|card| Reverse(self.growth(host, counter::DEV_RX_FRAMES, Some(card))));
        cards
    }

    /// Returns the card of a host that received most of the test's frames.
    pub(crate) fn card(&self, host: &str) -> &'a str {
        self.cards(host).first().copied().unwrap_or_default()
    }

    /// Returns the command of the run with another value of an option, if the command belongs to the layer of this test.
    pub(crate) fn repeat_with_option(&self, option: &str, value: &str) -> Option<String> {
        let is_of_layer = self.run.command.split(' ').nth(1) == Some(self.test.layer.name());
        is_of_layer.then(|| repeat_command::with(&self.run.command, &format!("--{option} {value}")))
    }

    /// Returns true if the cores of one machine are all that is between the hosts, and a host's busiest one has little time left: what passes is
    /// about what they give.
    pub(crate) fn is_limited_by_cores_of_machine(&self, host: &str) -> bool {
        const LITTLE_TIME: f64 = 0.75;
        let is_busy = || self.cores(host).first().is_some_and(|core| core.busy() >= LITTLE_TIME);
        self.is_between_cores(host) && is_busy()
    }

    /// Returns true if the cores of one machine are all that is between the hosts.
    pub(crate) fn is_between_cores(&self, host: &str) -> bool {
        self.is_one_machine() && self.via().is_none() && self.is_memory(host)
    }

    /// Returns true if the host's device passes packets within one machine. The device of a container does, and leads to a server elsewhere.
    pub(crate) fn is_memory(&self, host: &str) -> bool {
        path::is_memory(&self.run.hosts, host) && !*self.is_server_elsewhere.get_or_init(|| self.has_server_elsewhere())
    }

    /// Returns true if a server that fathom did not start is at an address that no host of the run has, nor any program of their machines, nor a
    /// neighbor in the network of the client, as another container is.
    fn has_server_elsewhere(&self) -> bool {
        let is_neighbor = |server: IpAddr| match (self.address_of(&self.test.from), server) {
            (Some(IpAddr::V4(own)), IpAddr::V4(server)) => own.octets()[..2] == server.octets()[..2],
            (Some(IpAddr::V6(own)), IpAddr::V6(server)) => own.octets()[..8] == server.octets()[..8],
            _ => false,
        };
        let is_away =
            |server: IpAddr| !server.is_loopback() && !self.is_address_of_host(server) && !is_neighbor(server);
        self.has_unseen_server() && self.server_address().is_some_and(is_away)
    }

    /// Returns true if an interface of a host of the run, or of the device, has an address.
    fn is_address_of_host(&self, address: IpAddr) -> bool {
        let environments = self.hosts().chain(self.via()).filter_map(|host| self.environment(host));
        let mut facts = environments.flat_map(|environment| environment.0.values());
        facts.any(|facts| {
            let addresses = facts.get("addresses").map_or("", String::as_str);
            addresses.split(' ').any(|one| one.parse() == Ok(address))
        })
    }

    /// Returns true if all hosts of the test are one machine, so that both ends share the cores.
    pub(crate) fn is_one_machine(&self) -> bool {
        *self.is_one_machine.get_or_init(|| self.are_one_machine())
    }

    fn are_one_machine(&self) -> bool {
        if self.test.answering().is_none() {
            return false;
        }
        let hosts: Vec<&str> = self.hosts().collect();
        hosts.iter().all(|host| self.share_a_machine(hosts[0], host))
    }

    /// Returns true if two hosts are one machine, as far as is known.
    pub(crate) fn share_a_machine(&self, one: &str, other: &str) -> bool {
        let is_here = |host: &str| self.run.plan.hosts.get(host).is_some_and(HostReach::is_on_this_machine);
        let boot = |host: &str| self.environment(host).and_then(|facts| facts.get("kernel", "boot_id"));
        one == other || (is_here(one) && is_here(other)) || boot(one).is_some_and(|id| boot(other) == Some(id))
    }

    /// Returns true if threads of the test polled for messages all the time (`--spin`), which takes a whole core at any load.
    pub(crate) fn polls_all_the_time(&self) -> bool {
        let mut records = self.trials.iter().flat_map(|trial| trial.records.values());
        records.any(|record| record.notes.iter().any(|note| note.id == POLLS))
    }

    /// Returns true if both ends run on the same cores and those have no idle time left.
    pub(crate) fn shares_full_cores(&self) -> bool {
        let cores = self.hosts().next().map_or_else(Vec::new, |host| self.cores(host));
        self.is_one_machine() && !cores.is_empty() && cores.iter().all(CoreLoad::is_full_of_own_work)
    }

    /// Returns the sending side and the receiving side if all traffic goes one way.
    pub(crate) fn one_way(&self) -> Option<(Side, Side)> {
        let ways = [(count::SENT, count::RECEIVED), (count::BYTES_SENT, count::BYTES_RECEIVED)];
        ways.into_iter().find_map(|(sent, received)| conservation::one_way(self.test, sent, received))
    }

    /// Returns the host of one side.
    pub(crate) fn host_of(&self, side: Side) -> Option<&'a str> {
        self.trials.iter().find_map(|trial| Some(record_of(trial, side)?.0))
    }

    /// Returns the word for the host's part in this test: sender and receiver, or client and target.
    pub(crate) fn role_of(&self, host: &str) -> &'static str {
        let initiates = match self.test.links.as_slice() {
            [] => self.host_of(Side::Initiator).unwrap_or(&self.test.from) == host,
            links => links.iter().any(|link| link.from == host),
        };
        let sends = self.one_way().map(|(from, _)| (from == Side::Initiator) == initiates);
        match (sends, initiates) {
            (Some(true), _) => "sender",
            (Some(false), _) => "receiver",
            (None, true) => "client",
            (None, false) => "target",
        }
    }

    /// Returns the offered load and the load that the schedule intended, or `None` without a schedule.
    pub(crate) fn offered(&self) -> Option<OfferedLoad<'a>> {
        let (side, _) = self.one_way()?;
        let (sent, intended) = (self.total(side, count::SENT), self.total(side, count::INTENDED));
        Some(OfferedLoad { host: self.host_of(side)?, side, sent, intended, share: ratio(sent, intended)? })
    }

    /// Returns true if the test lacks none of its packets: datagrams and probes by their count, segments because none had to be sent again.
    pub(crate) fn lost_nothing(&self) -> bool {
        let resent = [counter::TCP_RETRANS_SEGMENTS, counter::TCP_SYN_RETRANS];
        let is_counted = || self.hosts().all(|host| resent.iter().all(|c| self.has_counter(host, c)));
        match self.test.layer {
            Layer::Udp | Layer::Frames | Layer::Path => self.packets_lost() == Some(0),
            _ if self.test.answering().is_none() => false,
            _ => is_counted() && self.hosts_of_tcp().all(|host| resent.iter().all(|c| self.growth(host, c, None) == 0)),
        }
    }

    /// Returns the records of a series of probes, of each pair of hosts; none for other tests. Those of the route, of sizes and of ports provoke
    /// losses on purpose, and count no answers out of order.
    pub(crate) fn series(&self) -> impl Iterator<Item = (&'a str, &'a Record, &'a ProbeRecord)> {
        let records = self.trials.iter().copied().flat_map(host_records);
        let probes = records.filter_map(|(host, record)| Some((host, record, record.probe.as_ref()?)));
        probes.filter(|(_, record, _)| record.totals.contains_key(count::REORDERED))
    }

    /// Returns the probes of series that had no answer at all; `None` for other tests.
    pub(crate) fn probes_lost(&self) -> Option<u64> {
        let lost =
            self.series().map(|(_, record, _)| record.totals.get(count::TRANSACTIONS_LOST).copied().unwrap_or(0));
        lost.reduce(u64::saturating_add)
    }

    /// Returns true for a test whose packets are lost or refused on purpose, so that no counter of drops says anything.
    pub(crate) fn provokes_losses(&self) -> bool {
        self.test.layer == Layer::Path && self.probes_lost().is_none()
    }

    /// Returns true if nothing of a test arrived, or if no probe was answered.
    pub(crate) fn got_nothing_through(&self) -> bool {
        match self.probes_lost() {
            Some(lost) => {
                let sent = self.series().filter_map(|(_, record, _)| record.totals.get(count::SENT));
                lost > 0 && lost == sent.sum::<u64>()
            }
            None => main_rate(self.test).is_some_and(|rate| rate.value == Some(0.0)),
        }
    }

    /// Returns the number of datagrams or frames that did not arrive, if all traffic goes one way, or of probes without an answer.
    pub(crate) fn packets_lost(&self) -> Option<u64> {
        if let Some(lost) = self.probes_lost() {
            return Some(lost);
        }
        // A schedule of requests counts what it sent too, of which nothing arrives but the answers.
        let (from, to) = self.one_way().filter(|_| matches!(self.test.layer, Layer::Udp | Layer::Frames))?;
        Some(self.total(from, count::SENT).saturating_sub(self.total(to, count::RECEIVED)))
    }

    /// Returns the transactions of datagrams that had no answer, if there were any.
    pub(crate) fn transaction_loss(&self) -> Option<TransactionLoss> {
        let n = self.total(Side::Initiator, count::TRANSACTIONS_LOST);
        let is_of_datagrams = self.test.layer == Layer::Udp && n > 0;
        is_of_datagrams.then(|| TransactionLoss { n, waited: self.waited_in_vain(n).unwrap_or(0.0) })
    }

    /// The share of the time of all flows that passed until the timeouts of so many requests. A load with a rate does not wait.
    fn waited_in_vain(&self, n: u64) -> Option<f64> {
        let options = &self.test.options;
        let flows = options.count("flows").filter(|_| options.text("rate").is_none())?;
        // The pairs share the flows, or each has as many.
        let flows = flows.saturating_mul(n_wholes(self.run, self.test)).max(u64::try_from(self.test.links.len()).ok()?);
        let waited = options.span("timeout")?.0.saturating_mul(n);
        Some(ratio(waited, flows.saturating_mul(self.measured_time().0))?.min(1.0))
    }

    /// Returns true if the work went at the rate that was asked for, which is steady whatever carries it.
    pub(crate) fn keeps_asked_rate(&self) -> bool {
        let is_kept = |limit: &Limit| limit.kind == LimitKind::Asked && limit.used.is_some_and(|used| used >= KEPT);
        self.test.limits.iter().any(is_kept)
    }

    /// Returns true if the test reached the requested rate, the line rate or the ideal of its window, and lost nothing, so that nothing holds
    /// it back.
    pub(crate) fn reached_target(&self) -> bool {
        let full = |limit: &Limit| {
            let least = match limit.kind {
                LimitKind::Asked | LimitKind::LineRate => KEPT,
                // It follows from a round trip and a bandwidth that vary.
                LimitKind::Ideal => REACHED,
                _ => return false,
            };
            limit.used.is_some_and(|used| used >= least)
        };
        // A schedule of requests that is kept says nothing about their times.
        let is_of_times = matches!(self.test.layer, Layer::App | Layer::Http) && self.offered().is_some();
        !is_of_times && self.test.limits.iter().any(full) && self.packets_lost().unwrap_or(0) == 0
    }

    /// Returns the main rate of each trial in every interval of its measured part, and the counter that it is of.
    pub(crate) fn rates_over_time(&self) -> Option<(Vec<Vec<f64>>, &'a str)> {
        let Derivation::Rate { side, counter } = &main_rate(self.test)?.metric.from else { return None };
        let in_trial = |trial: &&'a Trial| {
            let (host, record) = record_of(trial, *side)?;
            let window = MeasuredWindow::common(trial, &self.run.hosts)?.in_record(&self.run.hosts, host, record);
            Some(rates(&record.timeline, counter, window))
        };
        Some((self.trials.iter().filter_map(in_trial).collect(), counter))
    }

    /// Returns true if the window of the test is part of its question, as of those around the bandwidth-delay product: none is too small, if the
    /// kernels granted it.
    pub(crate) fn has_planned_window(&self) -> bool {
        let mut records = self.trials().iter().flat_map(|trial| trial.records.values());
        let is_asked = self.test.options.size("buffer").is_some();
        is_asked
            && self.test.limits.iter().any(|limit| limit.kind == LimitKind::Ideal)
            && !records.any(|record| record.notes.iter().any(|note| NOT_GRANTED.contains(&note.id.as_str())))
    }

    /// Returns the value of the test as a share of its nearest limit.
    pub(crate) fn limit_utilization(&self) -> Option<f64> {
        self.test.limits.iter().find_map(|limit| limit.used)
    }
}

/// Builds evidence from a counter that grew.
pub(crate) fn counter_evidence(host: &str, counter: impl Into<String>, n: u64) -> Evidence {
    text_evidence(host, counter, grouped(n))
}

/// Builds evidence from a share.
pub(crate) fn ratio_evidence(host: &str, counter: impl Into<String>, share: f64) -> Evidence {
    text_evidence(host, counter, percent(share))
}

/// Builds evidence from a value with its unit.
pub(crate) fn text_evidence(host: &str, counter: impl Into<String>, value: impl Display) -> Evidence {
    Evidence { host: host.to_owned(), counter: counter.into(), value: value.to_string() }
}

/// Returns the part of a loss that a number of drops explains, at most 1.
pub(crate) fn explained_ratio(n_dropped: u64, n_lost: Option<u64>) -> Option<f64> {
    n_lost.filter(|lost| *lost > 0).map(|lost| (approximate(n_dropped) / approximate(lost)).min(1.0))
}
/// Returns the host of a URL with its port, without the user.
fn authority(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?', ' ', ',']).next()?;
    Some(authority.rsplit_once('@').map_or(authority, |(_, host)| host))
}
/// The instances of a host's counter that grew in these trials, with their growth, the largest first.
fn growth_by_instance<'a>(trials: &[&'a Trial], host: &str, counter: &str) -> Vec<(&'a str, u64)> {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for record in trials.iter().filter_map(|trial| trial.hosts.get(host)) {
        for series in record.series.iter().filter(|series| series.name == counter) {
            *all.entry(&series.of).or_default() += series.growth();
        }
    }
    let mut all: Vec<_> = all.into_iter().filter(|(_, growth)| *growth > 0).collect();
    all.sort_by_key(|(_, growth)| Reverse(*growth));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_core_that_is_full_in_each_trial_is_seen_although_it_is_another_one_each_time() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000, 1000]);
        for (core, percent) in [("cpu0", [5, 25, 68, 0]), ("cpu1", [2, 2, 0, 0]), ("cpu2", [3, 2, 0, 0])] {
            builder.cpu("target", core, percent);
        }
        let busiest = |builder: &RunBuilder| {
            let run = builder.analyzed();
            let cores = TestEvidence::new(&run, &run.tests[0], &builder.context).cores("target");
            (cores[0].core.clone(), cores[0].busy())
        };
        assert_eq!(busiest(&builder).0, "cpu0");
        for (round, trial) in builder.run.tests[0].trials.iter_mut().enumerate() {
            let host = trial.hosts.get_mut("target").unwrap();
            let other = format!("cpu{round}");
            for series in &mut host.series {
                let swapped = if series.of == "cpu0" { Some(&*other) } else { (series.of == other).then_some("cpu0") };
                if let Some(swapped) = swapped {
                    series.of = swapped.to_owned();
                }
            }
        }
        let (_, busy) = busiest(&builder);
        assert!(busy > 0.95, "{busy}");
    }

    #[test]
    fn the_host_of_a_server_that_is_not_ours_is_one_of_the_test() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 10);
        let test = &mut builder.run.tests[0];
        test.to = None;
        test.options.set("url", "http://192.0.2.1:8080/");
        let trial = &mut test.trials[0];
        trial.records.remove("target");
        for host in trial.hosts.values_mut() {
            // Each namespace of a machine shows all its programs.
            host.programs = vec![ProgramTime { pid: 7, listens: vec![8080], ..ProgramTime::default() }];
        }
        let seen = |builder: &RunBuilder| {
            let run = builder.analyzed();
            let seen = TestEvidence::new(&run, &run.tests[0], &builder.context);
            let hosts: Vec<String> = seen.hosts().map(str::to_owned).collect();
            (hosts, seen.server().map(|(at, _)| at.to_owned()), seen.is_server_host_unread())
        };
        let client = || "client".to_owned();
        assert_eq!(seen(&builder), (vec![client()], Some(client()), true));
        builder.run.tests[0].server = Some("target".to_owned());
        builder.run.hosts.get_mut("target").unwrap().environment.note("eth0", "addresses", "192.0.2.1");
        let target = || "target".to_owned();
        assert_eq!(seen(&builder), (vec![client(), target()], Some(target()), false));
    }

    /// Requests to a server that is not fathom's, on a machine of its own.
    fn requests_to_machine() -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1000, 10);
        let test = &mut builder.run.tests[0];
        (test.to, test.server) = (None, Some("target".to_owned()));
        test.options.set("url", "http://192.0.2.1:8080/");
        test.trials[0].records.remove("target");
        for (name, host) in &mut builder.run.hosts {
            host.environment.note("kernel", "boot_id", name.clone());
        }
        builder
    }

    #[test]
    fn segments_of_a_server_with_many_other_clients_are_not_those_of_the_test() {
        let hosts = |n_received: u64| {
            let mut builder = requests_to_machine();
            builder.host_counter("client", (counter::TCP_OUT_SEGMENTS, ""), 10_000);
            // Joined ones count once, so that a client receives few.
            builder.host_counter("client", (counter::TCP_IN_SEGMENTS, ""), 1_000);
            builder.host_counter("target", (counter::TCP_OUT_SEGMENTS, ""), 45_000);
            builder.host_counter("target", (counter::TCP_IN_SEGMENTS, ""), n_received);
            let run = builder.analyzed();
            TestEvidence::new(&run, &run.tests[0], &builder.context).hosts_of_tcp().count()
        };
        assert_eq!((hosts(9_000), hosts(90_000)), (2, 1));
    }

    #[test]
    fn on_a_machine_of_its_own_the_server_is_the_work_of_the_test_and_the_rest_is_that_of_others() {
        let others = |port: u16| {
            let mut builder = requests_to_machine();
            builder.cpu("target", "cpu0", [60, 40, 0, 0]);
            let host = builder.run.tests[0].trials[0].hosts.get_mut("target").unwrap();
            let cpu_ns = host.span() * 3 / 10;
            host.programs = vec![ProgramTime { pid: 7, cpu_ns, listens: vec![port], ..ProgramTime::default() }];
            let run = builder.analyzed();
            let seen = TestEvidence::new(&run, &run.tests[0], &builder.context);
            (seen.cores("target")[0].others(), seen.hides_server("target"))
        };
        let (by_others, is_hidden) = others(8080);
        assert!((by_others - 0.7).abs() < 0.05 && !is_hidden, "{by_others}");
        let (by_others, is_hidden) = others(22);
        assert!(by_others.abs() < 1e-9 && is_hidden, "{by_others}");
    }
}
