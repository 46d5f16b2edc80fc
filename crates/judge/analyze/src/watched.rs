//! A host without a test: what its counters say by themselves.

use fathom_model::{
    Environment, Evidence, Finding, HostRecord, Layer, Plan, Record, Run, Severity, Side, Trial,
    run::{Host, TestRun},
    units::{Nanos, percent},
};

use crate::{
    context::AnalysisContext,
    evidence::{Program, TestEvidence},
    findings::{HOST_RULES, with_effects_as_remarks},
};

/// A host at work, and what was seen of it.
pub struct WatchedHost<'a> {
    /// Its name in sentences.
    pub name: &'a str,
    /// Its interfaces with traffic.
    pub interfaces: Vec<String>,
    /// Its properties.
    pub environment: &'a Environment,
    /// Its counters in the time that is judged.
    pub record: HostRecord,
}

/// Returns the findings about a host, the most important first; none from fewer than two samples.
#[must_use]
pub fn watched(host: WatchedHost<'_>) -> Vec<Finding> {
    let WatchedHost { name, interfaces, environment, record } = host;
    if record.at_ns.len() < 2 {
        return Vec::new();
    }
    let context = AnalysisContext::default();
    let mut run = run_of(name, environment, record);
    let mut found = full_cores(&TestEvidence::new(&run, &run.tests[0], &context), name);
    // A rule looks at one interface of a host; without traffic there is still the host.
    let alone = interfaces.is_empty().then_some(None);
    for interface in interfaces.into_iter().map(Some).chain(alone) {
        run.hosts.values_mut().for_each(|host| host.interface.clone_from(&interface));
        let seen = TestEvidence::new(&run, &run.tests[0], &context);
        let by_rule = HOST_RULES.iter().flat_map(|rule| rule.evaluate(&seen).into_iter().map(|found| (*rule, found)));
        for finding in with_effects_as_remarks(by_rule.collect(), &seen) {
            if !found.iter().any(|known| known.title == finding.title) {
                found.push(finding);
            }
        }
    }
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    for finding in &mut found {
        finding.tests.clear();
    }
    found
}

/// Returns the cores without idle time, with the programs that used most CPU time.
fn full_cores(seen: &TestEvidence<'_>, host: &str) -> Vec<Finding> {
    let cores = seen.cores(host);
    let mut full: Vec<_> = cores.iter().filter(|core| core.is_full()).collect();
    let Some(first) = full.first() else { return Vec::new() };
    let (_, word, share) = first.main_state();
    let mostly = format!("{word} {}", percent(share));
    let programs = seen.programs(host);
    let evidence: Vec<Evidence> = programs.iter().map(|program| program.evidence(host)).collect();
    let used = |program: &Program<'_>| format!("{} {}", program.program.name, percent(program.cores));
    let used: Vec<String> = programs.iter().map(used).collect();
    let used =
        if used.is_empty() { String::new() } else { format!("; busiest programs: {} of a core", used.join(", ")) };
    full.sort_unstable_by(|a, b| a.core.cmp(&b.core));
    let names: Vec<&str> = full.iter().map(|core| core.core.as_str()).collect();
    let (names, are) = (names.join(" and "), if names.len() > 1 { "have" } else { "has" });
    let title = format!("{names} of {host} {are} no idle time left ({mostly}){used}");
    vec![seen.finding("core-full", Severity::HoldsBack, "core full", title).evidence(evidence)]
}

/// Makes a run of what was seen, so that the rules can judge it: one host, and no test but the time itself.
fn run_of(name: &str, environment: &Environment, record: HostRecord) -> Run {
    let (name, span) = (name.to_owned(), record.span());
    let of_host = Host { environment: environment.clone(), ..Host::default() };
    let trial = Trial {
        records: [(name.clone(), time_of(&record))].into(),
        hosts: [(name.clone(), record)].into(),
        ..Trial::default()
    };
    Run {
        took_ns: span,
        hosts: [(name.clone(), of_host)].into(),
        tests: vec![test_of(name, trial)],
        ..Run::new(Plan::new("", Vec::new()))
    }
}

fn test_of(host: String, trial: Trial) -> TestRun {
    // The rules about connections look at this layer.
    TestRun { from: host, trials: vec![trial], ..TestRun::new(Layer::Tcp, "watch") }
}

/// A record that measured during all samples and counted nothing itself.
fn time_of(host: &HostRecord) -> Record {
    Record { start_ns: host.at_ns[0], measured_ns: (Nanos::ZERO, host.span()), ..Record::empty(Side::Initiator) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fathom_model::{
        names::host as counter,
        record::{ProgramTime, Series},
    };

    fn series(name: &str, of: &str, values: &[u64]) -> Series {
        Series { name: name.to_owned(), of: of.to_owned(), values: values.to_vec() }
    }

    fn found(series: Vec<Series>) -> Vec<Finding> {
        let at_ns = (0..3).map(Nanos::from_secs).collect();
        let record = HostRecord { at_ns, series, programs: Vec::new(), sampling_cpu_ns: None };
        let environment = Environment::default();
        let interfaces = ["eth0", "eth1"].map(str::to_owned).to_vec();
        watched(WatchedHost { name: "gen-1", interfaces, environment: &environment, record })
    }

    #[test]
    fn a_host_at_rest_has_no_finding() {
        let idle = [0, 1_000_000_000, 2_000_000_000];
        assert_eq!(
            found(vec![series(counter::CPU_IDLE_NS, "cpu0", &idle), series(counter::TCP_OUT_SEGMENTS, "", &[5])]),
            []
        );
    }

    #[test]
    fn a_full_core_names_the_programs_that_used_most_cpu_time() {
        let program = |name: &str, pid, millis| ProgramTime {
            name: name.to_owned(),
            pid,
            cpu_ns: Nanos::from_millis(millis),
            n_threads: 1,
            ..ProgramTime::default()
        };
        let record = HostRecord {
            at_ns: (0..3).map(Nanos::from_secs).collect(),
            series: vec![series(counter::CPU_USER_NS, "cpu0", &[0, 1_000_000_000, 2_000_000_000])],
            programs: vec![program("make", 7, 400), program("yes", 8, 1_500)],
            sampling_cpu_ns: None,
        };
        let environment = Environment::default();
        let host = WatchedHost { name: "gen-1", interfaces: Vec::new(), environment: &environment, record };
        let found = watched(host);
        let full = found.iter().find(|finding| finding.id == "core-full").unwrap();
        assert!(full.title.ends_with("; busiest programs: yes 75 %, make 20 % of a core"), "{}", full.title);
        assert_eq!(full.evidence[0].counter, "yes (pid 8)");
    }

    #[test]
    fn drops_and_full_cores_are_told_without_a_test() {
        let busy = [0, 1_000_000_000, 2_000_000_000];
        let found = found(vec![
            series(counter::CPU_SOFTIRQ_NS, "cpu0", &busy),
            series(counter::UDP_RCVBUF_ERRORS, "", &[0, 50, 100]),
            series(counter::QDISC_DROPPED, "eth1", &[0, 20, 40]),
        ]);
        let titles: Vec<&str> = found.iter().map(|finding| finding.title.as_str()).collect();
        assert!(
            titles.iter().any(|title| title.contains("cpu0 of gen-1 has no idle time left (softirq 100 %)")),
            "{titles:?}"
        );
        let is_told = |words: &str| titles.iter().filter(|title| title.contains(words)).count() == 1;
        assert!(is_told("a UDP socket on gen-1 was full: 100 dropped"), "{titles:?}");
        assert!(is_told("eth1 on gen-1 dropped outgoing packets: 40 dropped"), "{titles:?}");
        assert!(titles.iter().all(|title| !title.contains("test")), "{titles:?}");
    }
}
