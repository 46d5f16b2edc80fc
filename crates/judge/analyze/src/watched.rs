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

/// A host at work, which is judged again and again.
pub struct WatchedHost {
    /// A run of this host with one test, which is the time itself, so that the rules can judge it.
    run: Run,
}

impl WatchedHost {
    /// Creates a host with its name in sentences and its properties.
    #[must_use]
    pub fn new(name: impl Into<String>, environment: Environment) -> Self {
        let name = name.into();
        let host = Host { environment, ..Host::default() };
        // The rules about connections look at this layer.
        let time = TestRun { from: name.clone(), ..TestRun::new(Layer::Tcp, "watch") };
        let plan = Run::new(Plan::new("", Vec::new()));
        Self { run: Run { hosts: [(name, host)].into(), tests: vec![time], ..plan } }
    }

    /// The name of the host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.run.tests[0].from
    }

    /// Returns the findings about the host, the most important first; none from fewer than two samples. The record has its counters in the time that
    /// is judged; the interfaces are those with traffic, the busiest first: a finding about the whole host has the numbers of that.
    #[must_use]
    pub fn judge(&mut self, record: HostRecord, interfaces: Vec<String>) -> Vec<Finding> {
        if record.at_ns.len() < 2 {
            return Vec::new();
        }
        let (name, context) = (self.host().to_owned(), AnalysisContext::default());
        self.run.took_ns = record.span();
        self.run.hosts.values_mut().for_each(|host| host.interface = None);
        self.run.tests[0].trials = vec![trial_of(&name, record)];
        let mut found = full_cores(&TestEvidence::new(&self.run, &self.run.tests[0], &context), &name);
        // A rule looks at one interface of a host; without traffic there is still the host.
        let alone = interfaces.is_empty().then_some(None);
        for interface in interfaces.into_iter().map(Some).chain(alone) {
            self.run.hosts.values_mut().for_each(|host| host.interface.clone_from(&interface));
            let seen = TestEvidence::new(&self.run, &self.run.tests[0], &context);
            let by_rule =
                HOST_RULES.iter().flat_map(|rule| rule.evaluate(&seen).into_iter().map(|found| (*rule, found)));
            for finding in with_effects_as_remarks(by_rule.collect(), &seen) {
                match found.iter_mut().find(|known| is_same(known, &finding)) {
                    // The most severe one is that of the interface with the drops.
                    Some(known) if finding.severity > known.severity => *known = finding,
                    Some(_) => {}
                    None => found.push(finding),
                }
            }
        }
        found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        for finding in &mut found {
            finding.tests.clear();
        }
        found
    }
}

/// Returns true if two findings are about the same counter, whichever interface it was compared with.
fn is_same(one: &Finding, other: &Finding) -> bool {
    let place = |finding: &Finding| finding.evidence.first().map(|proof| (proof.host.clone(), proof.counter.clone()));
    one.title == other.title || one.id == other.id && place(one).is_some() && place(one) == place(other)
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

/// The time as a trial.
fn trial_of(name: &str, record: HostRecord) -> Trial {
    Trial {
        records: [(name.to_owned(), time_of(&record))].into(),
        hosts: [(name.to_owned(), record)].into(),
        ..Trial::default()
    }
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
        let record = HostRecord { at_ns, series, ..HostRecord::default() };
        let interfaces = ["eth0", "eth1"].map(str::to_owned).to_vec();
        WatchedHost::new("gen-1", Environment::default()).judge(record, interfaces)
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
            ..HostRecord::default()
        };
        let found = WatchedHost::new("gen-1", Environment::default()).judge(record, Vec::new());
        let full = found.iter().find(|finding| finding.id == "core-full").unwrap();
        assert!(full.title.ends_with("; busiest programs: yes 75 %, make 20 % of a core"), "{}", full.title);
        assert_eq!(full.evidence[0].counter, "yes (pid 8)");
    }

    #[test]
    fn a_finding_about_the_whole_host_is_told_once_whichever_interface_has_traffic() {
        let found = found(vec![
            series(counter::TCP_LISTEN_OVERFLOWS, "", &[0, 7, 15]),
            series(counter::DEV_RX_FRAMES, "eth0", &[0, 20, 43]),
            series(counter::DEV_RX_FRAMES, "eth1", &[0, 20, 27]),
        ]);
        let full: Vec<&str> = found
            .iter()
            .filter(|finding| finding.id == "accept-queue-full")
            .map(|found| found.title.as_str())
            .collect();
        assert!(full.len() == 1 && full[0].contains("15 dropped of 43"), "{full:?}");
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
