//! A quota of a control group stopped a host of the test.

use fathom_model::{
    Finding, Layer, NextStep, Severity, Side, Trial,
    names::{distribution, host},
    record::ProgramQuota,
    units::{Nanos, approximate, percent, ratio, rounded},
};

use super::{FindingRule, server_time::is_scheduled};
use crate::{
    evidence::{Program, TestEvidence, counter_evidence, ratio_evidence, text_evidence},
    gap,
    window::host_records,
};

/// A quota that takes less than this share of the time holds nothing back.
const HOLDS_BACK: f64 = 0.05;

/// Compares the time that quotas took with the measured time.
pub(crate) struct CpuQuota;

impl FindingRule for CpuQuota {
    fn id(&self) -> &'static str {
        "cpu-quota"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if (seen.reached_target() && !are_answers_late(seen)) || seen.test.layer == Layer::Path {
            return Vec::new();
        }
        let mut stopped: Vec<(&str, f64)> =
            seen.hosts_of_fathom().filter_map(|host| Some((host, stopped_time(seen, host)?))).collect();
        // Both ends of one machine may be in the same group.
        stopped.sort_by(|a, b| b.1.total_cmp(&a.1));
        stopped.truncate(if seen.is_one_machine() { 1 } else { usize::MAX });
        let of_fathom = stopped.into_iter().map(|(host, share)| self.on_host(seen, host, share));
        StoppedServer::of(seen).map(|server| server.finding(self.id(), seen)).into_iter().chain(of_fathom).collect()
    }
}

/// Returns true for a schedule that is kept although its answers wait for the next period of a quota (100 ms, unless its owner set another one).
fn are_answers_late(seen: &TestEvidence<'_>) -> bool {
    const LATE: Nanos = Nanos::from_millis(10);
    let times = seen.distribution(Side::Initiator, distribution::RESPONSE_TIME);
    // On a long path all answers take long.
    let usual_and_late = times.quantile(0.5).zip(times.quantile(0.99));
    is_scheduled(seen) && usual_and_late.is_some_and(|(usual, late)| Nanos(late.saturating_sub(usual)) >= LATE)
}

/// Returns the share of the measured time in which quotas stopped a host, at most, if that holds a test back.
fn stopped_time(seen: &TestEvidence<'_>, host: &str) -> Option<f64> {
    let lost = approximate(seen.growth(host, host::CGROUP_THROTTLED_NS, None)) / cores_at_once(used_cores(seen, host));
    // The kernel sums the stops of all cores. Until a quota is used up, the group runs for the quota divided by the cores at least.
    let ran = match (quota_cores(seen, host).and_then(|cores| cores.parse::<f64>().ok()), seen.cores(host).len()) {
        (Some(quota), n_cores @ 1..) => quota / approximate(n_cores as u64),
        _ => 0.0,
    };
    let share = (lost / approximate(seen.sampled_time(host)?.0)).min((1.0 - ran).max(0.0));
    (share >= HOLDS_BACK).then_some(share)
}

/// Returns the cores that all threads of the test on a host used together.
fn used_cores(seen: &TestEvidence<'_>, host: &str) -> f64 {
    let records = seen.trials().iter().flat_map(|trial| host_records(trial)).filter(|(of, _)| *of == host);
    let used: u64 = records.flat_map(|(_, record)| record.cpu_ns_by_core.values()).map(|spent| spent.0).sum();
    ratio(used, seen.measured_time().0).unwrap_or(0.0)
}

/// Returns on how many cores at once a group runs at least that used so many. The kernel sums the stops of the cores on which it runs
/// (`throttled_clock` of kernel/sched/fair.c), so that the time in which it stood still is that part of the sum at most.
fn cores_at_once(used: f64) -> f64 {
    // The time of a thread is exact, and the end of the measured part is not.
    (used - 0.05).ceil().max(1.0)
}

/// Returns the quota of a host's control group in cores.
fn quota_cores<'a>(seen: &TestEvidence<'a>, host: &str) -> Option<&'a str> {
    seen.environment(host)?.get("cpu", "cgroup_limit_cores").filter(|limit| *limit != "none")
}

impl CpuQuota {
    fn on_host(&self, seen: &TestEvidence<'_>, host: &str, share: f64) -> Finding {
        let cores = quota_cores(seen, host).map_or_else(String::new, |limit| format!(" of {limit} cores"));
        let at_most = if seen.cores(host).len() > 1 { "up to " } else { "" };
        let title = format!(
            "the CPU quota{cores} of its control group stopped fathom on {host} {at_most}{} of the time",
            percent(share)
        );
        let group = seen.environment(host).and_then(|facts| facts.get("cpu", "cgroup_limit_group"));
        let shown = |group| format!("cat {group}/cpu.stat");
        let next = NextStep::new(group.map_or_else(|| "cat /proc/self/cgroup".to_owned(), shown));
        let expected = match group {
            Some(_) => "show how often its quota stopped it; raise it (CPU limit of the container or unit)",
            None => "show the group, whose quota is in its cpu.max; raise it (CPU limit of the container or unit)",
        };
        seen.finding(self.id(), Severity::HoldsBack, "cpu quota", title)
            .evidence([ratio_evidence(host, host::CGROUP_THROTTLED_NS, share)])
            .explains(gap::explained_by_time(seen, share))
            .next(next.on(host).expected(expected))
    }
}

/// A server that is not fathom's, and the quota that stopped it.
struct StoppedServer<'a> {
    host: &'a str,
    server: Program<'a>,
    /// The quota, with its counts of all trials.
    quota: ProgramQuota,
    /// The share of the time in which the quota stopped it, at most.
    share: f64,
}

impl<'a> StoppedServer<'a> {
    /// Returns the server if a quota of its group, which fathom is not in, held the test back.
    fn of(seen: &TestEvidence<'a>) -> Option<Self> {
        let (host, server) = seen.server()?;
        // A program that listens on the same port at another address is not tested.
        if seen.is_tested_address(server.program) != Some(true) {
            return None;
        }
        // An agent in the same group tells no quota of it; that of another host of the machine does.
        let hosts: Vec<&str> = if seen.is_one_machine() { seen.hosts().collect() } else { vec![host] };
        let quota_at = |trial: &'a Trial, host: &str| {
            let programs = &trial.hosts.get(host)?.programs;
            programs.iter().find(|program| program.pid == server.program.pid)?.quota.clone()
        };
        let quotas = seen.trials().iter().filter_map(|trial| hosts.iter().find_map(|host| quota_at(trial, host)));
        let quota = quotas.reduce(|all, one| ProgramQuota {
            n_throttled: all.n_throttled + one.n_throttled,
            throttled_ns: all.throttled_ns + one.throttled_ns,
            ..all
        })?;
        let stopped = longest_stop(&quota, server.cores, seen.cores(host).len()).0.saturating_mul(quota.n_throttled);
        let share = ratio(stopped, seen.sampled_time(host)?.0).map(|share| share.min(1.0))?;
        let found = Self { host, server, quota, share };
        (share >= HOLDS_BACK && found.is_waited_for(seen)).then_some(found)
    }

    /// Returns true if a request took as long as most of a stop: the group may have been stopped for the work of another program.
    fn is_waited_for(&self, seen: &TestEvidence<'_>) -> bool {
        let stop = longest_stop(&self.quota, self.server.cores, seen.cores(self.host).len()).0;
        let longest = seen.distribution(Side::Initiator, distribution::SERVICE_TIME).quantile(1.0);
        longest.is_some_and(|longest| longest.saturating_mul(2) >= stop)
    }

    fn finding(&self, id: &str, seen: &TestEvidence<'_>) -> Finding {
        let (quota, program) = (&self.quota, self.server.program);
        let cores =
            ratio(quota.quota_ns.0, quota.period_ns.0).map_or_else(String::new, |n| format!(" of {n:.2} cores"));
        let title = format!(
            "the CPU quota{cores} of its control group stopped the server {} (pid {}) up to {} of the time",
            program.name,
            program.pid,
            percent(self.share)
        );
        let next = NextStep::new(format!("cat /proc/{}/cgroup; cat {}/cpu.stat", program.pid, quota.group));
        seen.finding(id, Severity::HoldsBack, "cpu quota", title)
            .evidence([
                ratio_evidence(self.host, "stopped by the quota", self.share),
                counter_evidence(self.host, "nr_throttled", quota.n_throttled),
                text_evidence(self.host, "control group", &quota.group),
                self.server.evidence(self.host),
            ])
            .explains(gap::explained_by_time(seen, self.share))
            .next(
                next.on(self.host)
                    .expected("show how often it was stopped; raise the quota (CPU limit of its container or unit)"),
            )
    }
}

/// Returns how long a usual stop of a server was at most that used so many cores.
///
/// In a period whose quota was used up, the group ran for the quota divided by the cores of the host at least.
fn longest_stop(quota: &ProgramQuota, used: f64, n_cores: usize) -> Nanos {
    let n_cores = u64::try_from(n_cores).unwrap_or(u64::MAX);
    let ran = quota.quota_ns.0.checked_div(n_cores).unwrap_or(0);
    let sum = ratio(quota.throttled_ns.0, quota.n_throttled).unwrap_or(0.0);
    let mean = rounded(sum / cores_at_once(used));
    Nanos(mean.min(quota.period_ns.0.saturating_sub(ran)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::{Histogram, names::fact, record::ProgramTime};

    /// A test of `http://10.0.0.7/` in one second, whose server was stopped for this long.
    fn with_server(url: &str, address: &str, throttled: Nanos, longest: Nanos) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1000, 10);
        let test = &mut builder.run.tests[0];
        test.to = None;
        test.options.set("url", url);
        let trial = &mut test.trials[0];
        let mut times = Histogram::new();
        times.record(longest.0);
        trial.records.get_mut("client").unwrap().distributions.insert(distribution::SERVICE_TIME.to_owned(), times);
        let host = trial.hosts.get_mut("client").unwrap();
        let n_throttled = throttled.0.div_ceil(Nanos::from_millis(80).0);
        let quota = ProgramQuota {
            group: "/sys/fs/cgroup/cpu/web".to_owned(),
            quota_ns: Nanos::from_millis(20),
            period_ns: Nanos::from_millis(100),
            n_throttled,
            throttled_ns: throttled,
        };
        host.programs = vec![ProgramTime {
            name: "nginx".to_owned(),
            pid: 4711,
            listens: vec![80],
            addresses: vec![address.parse().unwrap()],
            quota: Some(quota),
            ..ProgramTime::default()
        }];
        builder
    }

    #[test]
    fn the_quota_of_an_agent_that_only_looks_stops_no_test() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 10);
        builder.host_counter("target", (host::CGROUP_THROTTLED_NS, ""), Nanos::from_millis(400).0);
        assert!(builder.finding("cpu-quota").is_some());
        let test = &mut builder.run.tests[0];
        (test.to, test.server) = (None, Some("target".to_owned()));
        assert_eq!(builder.finding("cpu-quota"), None);
    }

    #[test]
    fn the_quota_of_the_group_of_a_tested_server_is_named() {
        let (url, address, stop) = ("http://10.0.0.7/", "10.0.0.7", Nanos::from_millis(80));
        let found = with_server(url, address, Nanos::from_millis(640), stop).finding("cpu-quota").unwrap();
        let words = "the CPU quota of 0.20 cores of its control group stopped the server nginx (pid 4711) ";
        assert!(found.title.starts_with(words), "{}", found.title);
        assert_eq!(found.severity, Severity::HoldsBack);
        let none = |url, address, throttled, longest| {
            assert_eq!(with_server(url, address, throttled, longest).finding("cpu-quota"), None, "{url} {address}");
        };
        let long = Nanos::from_millis(640);
        none(url, address, Nanos::from_millis(8), stop);
        none(url, "10.0.0.8", long, stop);
        none("http://web.example/", address, long, stop);
        none("http://127.0.0.1/", address, long, stop);
        // A name leads to the address that its first connection reached.
        let mut by_name = with_server("http://web.example/", address, long, stop);
        let trial = &mut by_name.run.tests[0].trials[0];
        trial.records.get_mut("client").unwrap().facts.insert(fact::REACHED_ADDRESS.to_owned(), address.to_owned());
        assert!(by_name.finding("cpu-quota").is_some());
        by_name.run.tests[0].options.set("proxy", "http://10.0.0.7:3128");
        assert_eq!(by_name.finding("cpu-quota"), None, "it is the address of the proxy");
        // Its group was stopped for the work of another program: no request waited for that.
        none(url, address, long, Nanos::from_millis(3));
    }

    #[test]
    fn the_stops_of_several_cores_are_no_longer_than_a_period_without_the_time_that_the_group_ran() {
        let stop = |quota, throttled, used, n_cores| {
            let [quota_ns, period_ns, throttled_ns] = [quota, 100, throttled].map(Nanos::from_millis);
            let quota = ProgramQuota { quota_ns, period_ns, n_throttled: 10, throttled_ns, group: String::new() };
            longest_stop(&quota, used, n_cores)
        };
        assert_eq!(stop(20, 800, 0.2, 1), Nanos::from_millis(80));
        assert_eq!(stop(20, 1_120, 0.2, 2), Nanos::from_millis(90), "it ran for 10 ms on both");
        assert_eq!(stop(20, 800, 0.2, 64), Nanos::from_millis(80), "on one core of many");
        assert_eq!(stop(20, 1_120, 0.2, 0), Nanos::from_millis(100), "the cores are not known");
        assert_eq!(stop(1_600, 4_000, 15.9, 64), Nanos::from_millis(25), "16 cores of 64 stopped for 25 ms each");
        assert_eq!(stop(6_336, 640, 63.3, 64), Nanos::from_millis(1), "64 cores stopped for a millisecond each");
    }

    #[test]
    fn a_quota_that_stopped_the_target_two_thirds_of_the_time_is_named() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000]);
        builder.host_counter("target", (host::CGROUP_THROTTLED_NS, ""), 800_000_000);
        builder.run.hosts.get_mut("target").unwrap().environment.note("cpu", "cgroup_limit_cores", "0.10");
        let finding = builder.finding("cpu-quota").unwrap();
        assert!(finding.title.starts_with("the CPU quota of 0.10 cores of its control group stopped fathom on target"));
        assert!(finding.explains.is_some_and(|share| share >= 0.5), "{finding:?}");
        assert_eq!(finding.next.unwrap().command, "cat /proc/self/cgroup");
        let target = &mut builder.run.hosts.get_mut("target").unwrap().environment;
        target.note("cpu", "cgroup_limit_group", "/sys/fs/cgroup/unit");
        let next = builder.finding("cpu-quota").unwrap().next.unwrap();
        assert_eq!(next.command, "cat /sys/fs/cgroup/unit/cpu.stat");
        for core in ["cpu0", "cpu1"] {
            builder.host_counter("target", (host::CPU_IDLE_NS, core), 500_000_000);
        }
        builder.host_counter("target", (host::CGROUP_THROTTLED_NS, ""), 1_900_000_000);
        let title = builder.finding("cpu-quota").unwrap().title;
        assert!(
            title.ends_with("up to 95 % of the time"),
            "a twentieth of the time is that of 0.1 cores on both: {title}"
        );
        builder.one_machine();
        assert!(builder.finding("cpu-quota").is_some(), "the second host of one machine has a group of its own");
        builder.host_counter("target", (host::CGROUP_THROTTLED_NS, ""), 1_000_000);
        assert_eq!(builder.finding("cpu-quota"), None);
    }
}
