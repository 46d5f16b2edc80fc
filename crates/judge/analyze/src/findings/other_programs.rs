//! Other programs used the CPU during the test.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    units::{approximate, percent},
};
use fathom_statistics::mean;

use super::FindingRule;
use crate::{
    cores::CoreLoad,
    evidence::{CoreWait, Program, TestEvidence, ratio_evidence},
};

/// The id of the finding.
pub(super) const OTHER_PROGRAMS: &str = "other-programs";

/// At this share of all cores and above, other programs are reported.
const REPORT_MIN: f64 = 0.2;
/// At this share and above, the results describe a machine that other programs were using.
const DISTURBS: f64 = 0.5;
/// At most this many programs are named, and none that used less than this share of a core.
const NAMED_MAX: usize = 3;
const NAMED_MIN: f64 = 0.05;
/// Below this wait for a core, other programs took nothing from the test, however much they used.
const WAIT_MIN: f64 = 0.01;

/// A tested server that uses this part of a core and more has less of it if others use the cores.
const SERVER_MIN: f64 = 0.3;

/// Compares the CPU time of the test with the busy time of its machines.
pub(crate) struct OtherPrograms;

impl FindingRule for OtherPrograms {
    fn id(&self) -> &'static str {
        OTHER_PROGRAMS
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Single packets need no core.
        if seen.test.layer == Layer::Path {
            return Vec::new();
        }
        let of_hosts = seen.hosts().filter_map(|host| OthersOnHost::of(seen, host));
        let most = of_hosts.max_by(|a, b| a.share.total_cmp(&b.share)).filter(OthersOnHost::is_worth_a_finding);
        most.map(|most| most.finding(self.id(), seen)).into_iter().collect()
    }
}

/// The use of a host's cores by other programs.
struct OthersOnHost<'a> {
    host: &'a str,
    cores: Vec<CoreLoad>,
    programs: Vec<Program<'a>>,
    /// The share of all cores that they used.
    share: f64,
    /// The same without programs that may serve the test: their time is reported, and disturbs nothing.
    strangers: f64,
    /// The wait of the test's own threads for a core.
    wait: Option<CoreWait>,
    /// The time of others on the cores to which all threads of the test are bound, in cores; `None` if one is not.
    beside_threads: Option<f64>,
}

impl<'a> OthersOnHost<'a> {
    /// `None` where the cores, or the part of the test in them, are unknown.
    fn of(seen: &TestEvidence<'a>, host: &'a str) -> Option<Self> {
        let cores = seen.cores(host);
        if cores.is_empty() {
            return None;
        }
        let share = share_of_others(seen, host, &cores)?;
        let programs = seen.programs(host);
        let serving: f64 = programs.iter().filter(|other| may_serve(seen, host, other)).map(|other| other.cores).sum();
        let strangers = (share - serving / n_cores(&cores)).max(0.0);
        let beside_threads =
            seen.via().is_none().then(|| seen.bound_to(host)).flatten().map(|bound| {
                cores.iter().filter(|core| bound.contains(&core.core.as_str())).map(CoreLoad::others).sum()
            });
        Some(Self { host, cores, programs, share, strangers, wait: seen.core_wait(host), beside_threads })
    }

    /// Returns the wait that others can have caused who used this share of all cores: where the test's threads are bound to cores, those beside
    /// them.
    fn wait_for(&self, share: f64) -> Option<f64> {
        let used = share * n_cores(&self.cores);
        self.wait.map(|wait| wait.of_others(self.beside_threads.map_or(used, |beside| beside.min(used))))
    }

    /// The share of the time that the test waited for cores on which these programs ran.
    fn wait_for_others(&self) -> Option<f64> {
        self.wait_for(self.strangers)
    }

    fn is_worth_a_finding(&self) -> bool {
        self.share >= REPORT_MIN || self.wait_for_others().is_some_and(|wait| wait >= CoreWait::DISTURBS)
    }

    fn disturbs(&self, seen: &TestEvidence<'_>) -> bool {
        // The wait is that of the test's own threads. A server that runs here waits too, if it needs the cores.
        let server_needs_cores = || seen.server_beside(self.host).is_some_and(|server| server.cores >= SERVER_MIN);
        match self.wait_for_others() {
            Some(wait) if wait >= CoreWait::DISTURBS => true,
            Some(wait) if wait < WAIT_MIN && !server_needs_cores() => false,
            _ => self.strangers >= DISTURBS,
        }
    }

    fn finding(&self, id: &str, seen: &TestEvidence<'_>) -> Finding {
        let (host, share) = (self.host, self.share);
        // If packets do not leave the machine, a target that fathom did not start may be one of these programs.
        let may_be_target = seen.has_unseen_server() && seen.is_memory(host);
        let whose = if seen.is_one_machine() || may_be_target { "this machine".to_owned() } else { host.to_owned() };
        let disturbs = self.disturbs(seen);
        let (who, end) = match (may_be_target, disturbs) {
            (true, _) => ("other programs, the target among them if it runs here,", ""),
            (false, true) => ("other programs", ": results are disturbed"),
            (false, false) => ("other programs", ""),
        };
        let is_named = |other: &&Program<'_>| !is_server(seen, other) && other.cores >= NAMED_MIN;
        let others: Vec<Program<'_>> = self.programs.iter().filter(is_named).take(NAMED_MAX).copied().collect();
        let of = if self.cores.len() == 1 { "core".to_owned() } else { format!("{} cores", self.cores.len()) };
        let severity = if disturbs && !may_be_target { Severity::Disturbs } else { Severity::Remark };
        let (named, waited) = (names(seen, host, &others), self.waited_text());
        let title = format!("{who} used {} of the {of} of {whose}{named}{waited}{end}", percent(share));
        // The device's work on a core is not that of others.
        let by_core = self.cores.iter().filter(|_| seen.via().is_none()).flat_map(|core| {
            let shares = [("others on", core.others()), ("busy", core.busy())];
            shares.map(|(word, share)| ratio_evidence(host, format!("{word} {}", core.core), share))
        });
        seen.finding(id, severity, "others' cpu", title)
            .evidence(by_core.chain(others.iter().map(|other| other.evidence(host))))
            .next(NextStep::new("top").on(host).expected("show which programs; end them or use a quiet machine"))
    }

    /// Returns the words for how long the test waited for a core. Others cannot have taken more than they used: threads of the test wait for
    /// each other too.
    fn waited_text(&self) -> String {
        match self.wait.filter(|_| self.wait_for_others().is_some_and(|wait| wait >= WAIT_MIN)) {
            None => String::new(),
            Some(wait) if self.wait_for(self.share).is_some_and(|most| wait.share > most) => {
                "; the test waited for cores longer than they can explain, as its own threads share them".to_owned()
            }
            Some(wait) => format!("; the test waited for a core {} of the time", percent(wait.share)),
        }
    }
}

fn n_cores(cores: &[CoreLoad]) -> f64 {
    approximate(u64::try_from(cores.len()).unwrap_or(0))
}

/// Returns the share of the cores of a host that programs used which are neither the test nor its server. A server on this machine takes its
/// cores, but the test is of it.
fn share_of_others(seen: &TestEvidence<'_>, host: &str, cores: &[CoreLoad]) -> Option<f64> {
    if seen.via().is_some() {
        return of_named_programs(seen.programs(host).into_iter().filter(|other| !is_server(seen, other)), cores.len());
    }
    // On a machine of its own, the server counts as the test's work already.
    let is_here = seen.server_beside(host).is_some() && !seen.runs_server_alone(host);
    let of_server: f64 = seen.server_processes().iter().filter(|_| is_here).map(|process| process.cores).sum();
    let others = mean(&cores.iter().map(CoreLoad::others).collect::<Vec<_>>())?;
    // Kernel threads may work for the test. Those of frames are its own already.
    let of_kernel = if seen.test.layer == Layer::Frames { 0.0 } else { seen.kernel_threads(host) };
    let of_none = of_server + of_kernel;
    Some((others - of_none / approximate(u64::try_from(cores.len()).ok()?)).max(0.0))
}

fn is_server(seen: &TestEvidence<'_>, other: &Program<'_>) -> bool {
    seen.server_processes().iter().any(|process| process.program.pid == other.program.pid)
}

/// Returns true if a program beside the tested server may be one that it asks, as a proxy asks the servers behind it: it listens on a port.
fn may_serve(seen: &TestEvidence<'_>, host: &str, other: &Program<'_>) -> bool {
    let is_here = seen.server_beside(host).is_some();
    is_here && !is_server(seen, other) && !other.program.listens.is_empty()
}

/// Returns the names of programs with their time, in parentheses, and which of them may be no others.
fn names(seen: &TestEvidence<'_>, host: &str, others: &[Program<'_>]) -> String {
    let named: Vec<String> =
        others.iter().map(|other| format!("{} {}", other.program.name, percent(other.cores))).collect();
    let mut serving: Vec<&str> =
        others.iter().filter(|other| may_serve(seen, host, other)).map(|other| other.program.name.as_str()).collect();
    serving.dedup();
    let serving = match serving.as_slice() {
        [] => String::new(),
        names => format!("; {} may belong to the tested service", names.join(" and ")),
    };
    if named.is_empty() { String::new() } else { format!(" ({} of a core{serving})", named.join(", ")) }
}

/// Returns the share of all cores that other programs used by name. With a device in between, the kernel's work for it belongs to the test,
/// so that the time of the cores does not show what others used.
fn of_named_programs<'a>(programs: impl Iterator<Item = Program<'a>>, n_cores: usize) -> Option<f64> {
    let used: f64 = programs.map(|program| program.cores).sum();
    Some(used / approximate(u64::try_from(n_cores).ok()?))
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;
    use fathom_model::{Severity, names::host as counter, plan::HostReach, record::ProgramTime, units::Nanos};

    /// A stream of this machine, whose threads have 300 ms of a core with these shares of its time.
    fn streamed_beside(cpu0: [u64; 4]) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.run.plan.hosts.insert("client".to_owned(), HostReach::This);
        builder.cpu("client", "cpu0", cpu0);
        builder.own_cpu("client", &[("cpu0", 300)]);
        builder.own_cpu("target", &[("cpu1", 300)]);
        builder
    }

    #[test]
    fn a_target_that_is_not_ours_may_be_what_uses_the_cores() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 10);
        builder.cpu("client", "cpu0", [40, 50, 5, 0]);
        builder.own_cpu("client", &[("cpu0", 200)]);
        let test = &mut builder.run.tests[0];
        test.to = None;
        test.trials[0].records.remove("target");
        let found = builder.finding("other-programs").unwrap();
        assert_eq!(found.title, "other programs used 70 % of the core of client: results are disturbed");
        builder.driver("veth");
        let found = builder.finding("other-programs").unwrap();
        assert!(found.title.starts_with("other programs, the target among them"), "{}", found.title);
        assert_eq!(found.severity, Severity::Remark);
    }

    #[test]
    fn what_others_used_disturbs_a_test_that_waited_for_a_core() {
        let mut builder = streamed_beside([60, 25, 5, 0]);
        let mut waited = |client_ms: u64| {
            for trial in builder.run.tests.iter_mut().flat_map(|test| &mut test.trials) {
                for (key, record) in &mut trial.records {
                    record.run_delay_ns = Some(Nanos::from_millis(if key.contains("client") { client_ms } else { 0 }));
                }
            }
            builder.finding("other-programs").unwrap()
        };
        assert_eq!(waited(5).severity, Severity::Remark, "they took nothing from the test");
        let disturbed = waited(100);
        assert_eq!(disturbed.severity, Severity::Disturbs);
        assert!(disturbed.title.contains("the test waited for a core 10 % of the time"), "{}", disturbed.title);
    }

    /// Requests to a server on the client's machine, whose core is full, and the time that the client's threads waited for it.
    fn tested_server(waited: Nanos) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1000, 10);
        builder.cpu("client", "cpu0", [60, 35, 5, 0]);
        builder.own_cpu("client", &[("cpu0", 20)]);
        let test = &mut builder.run.tests[0];
        test.options.set("url", "http://127.0.0.1:8080/");
        test.trials[0].records.values_mut().for_each(|record| record.run_delay_ns = Some(waited));
        builder
    }

    #[test]
    fn a_server_that_needs_a_core_and_shares_it_with_others_is_disturbed_although_the_client_never_waits() {
        let severity = |server_ms| {
            let mut builder = tested_server(Nanos::ZERO);
            let trial = &mut builder.run.tests[0].trials[0];
            let server = ProgramTime {
                name: "python3".to_owned(),
                cpu_ns: Nanos::from_millis(server_ms),
                listens: vec![8080],
                ..ProgramTime::default()
            };
            trial.hosts.get_mut("client").unwrap().programs = vec![server];
            builder.finding("other-programs").unwrap().severity
        };
        assert_eq!(severity(400), Severity::Disturbs);
        assert_eq!(severity(100), Severity::Remark, "it hardly needs one");
    }

    #[test]
    fn all_processes_of_the_tested_server_belong_to_it() {
        let found = |listens: [u16; 2]| {
            let mut builder = tested_server(Nanos::from_millis(100));
            let trial = &mut builder.run.tests[0].trials[0];
            let span = trial.hosts["client"].span();
            let worker = |(pid, port): (u32, u16)| ProgramTime {
                name: "nginx".to_owned(),
                cpu_ns: Nanos(span.0 * 12 / 25),
                pid,
                listens: vec![port],
                ..ProgramTime::default()
            };
            trial.hosts.get_mut("client").unwrap().programs = (1..).zip(listens).map(worker).collect();
            builder.finding("other-programs").map(|finding| finding.severity)
        };
        assert_eq!(found([8080, 8080]), None);
        assert!(found([8080, 0]).is_some(), "another one is none of them");
    }

    #[test]
    fn a_program_behind_the_tested_server_may_belong_to_the_service_and_disturbs_nothing() {
        let found = |listens: Vec<u16>| {
            let mut builder = tested_server(Nanos::from_millis(100));
            let trial = &mut builder.run.tests[0].trials[0];
            let program = |name: &str, millis, listens: &[u16]| ProgramTime {
                name: name.to_owned(),
                cpu_ns: Nanos::from_millis(millis),
                pid: u32::try_from(name.len()).unwrap(),
                listens: listens.to_vec(),
                ..ProgramTime::default()
            };
            trial.hosts.get_mut("client").unwrap().programs =
                vec![program("python3", 1_100, &listens), program("nginx", 60, &[8080])];
            builder.finding("other-programs").unwrap()
        };
        let behind = found(vec![9000]);
        assert_eq!(behind.severity, Severity::Remark);
        assert!(behind.title.contains("of a core; python3 may belong to the tested service)"), "{}", behind.title);
        assert_eq!(found(vec![]).severity, Severity::Disturbs);
    }

    #[test]
    fn a_wait_that_others_cannot_have_caused_alone_is_no_number_of_theirs() {
        let mut builder = streamed_beside([40, 10, 5, 0]);
        let records = &mut builder.run.tests[0].trials[0].records;
        for record in records.values_mut() {
            record.run_delay_ns = Some(Nanos::from_millis(600));
        }
        let title = builder.finding("other-programs").unwrap().title;
        let words = "other programs used 20 % of the core of client; the test waited for cores longer than they can explain, as its own threads share them: results are disturbed";
        assert_eq!(title, words);
    }

    #[test]
    fn threads_that_are_bound_to_cores_wait_for_no_program_on_other_cores() {
        let mut builder = streamed_beside([20, 10, 5, 0]);
        for core in ["cpu1", "cpu2", "cpu3"] {
            builder.cpu("client", core, [70, 10, 0, 0]);
        }
        for record in builder.run.tests[0].trials[0].records.values_mut() {
            record.run_delay_ns = Some(Nanos::from_millis(100));
        }
        builder.own_cpu("client", &[("", 300)]);
        assert_eq!(builder.finding("other-programs").unwrap().severity, Severity::Disturbs);
        builder.own_cpu("client", &[("cpu0", 300)]);
        let finding = builder.finding("other-programs").unwrap();
        assert!(!finding.title.contains("waited"), "{}", finding.title);
        assert_eq!(finding.severity, Severity::Remark);
    }

    #[test]
    fn beside_a_device_only_programs_that_are_named_count_as_others() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 9_900)]);
        builder.device_between("hop");
        builder.one_machine();
        builder.cpu("client", "cpu0", [20, 70, 5, 0]);
        builder.own_cpu("client", &[("cpu0", 100)]);
        builder.own_cpu("target", &[("cpu0", 100)]);
        builder.host_counter("target", (counter::UDP_RCVBUF_ERRORS, ""), 100);
        for record in builder.run.tests[0].trials[0].records.values_mut() {
            record.run_delay_ns = Some(Nanos::from_millis(150));
        }
        assert_eq!(builder.finding("other-programs"), None, "the rest is the work of the device");
        let busy = ProgramTime {
            name: "sh".to_owned(),
            pid: 7,
            cpu_ns: Nanos::from_millis(720),
            n_threads: 1,
            ..ProgramTime::default()
        };
        for record in builder.run.tests[0].trials[0].hosts.values_mut() {
            record.programs = vec![busy.clone()];
        }
        let found = builder.finding("other-programs").unwrap();
        assert!(
            found.title.starts_with("other programs used 60 % of the core of this machine (sh 60 %"),
            "{}",
            found.title
        );
        assert_eq!(found.severity, Severity::Disturbs);
        let overflow = builder.finding("udp-receive-buffer").unwrap();
        assert_eq!(overflow.severity, Severity::Remark, "its reader waited for a core");
    }

    #[test]
    fn where_a_side_does_not_know_its_own_part_nothing_is_said_of_others() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.run.plan.hosts.insert("client".to_owned(), HostReach::This);
        builder.cpu("client", "cpu0", [60, 35, 4, 0]);
        assert_eq!(builder.finding("other-programs"), None);
        assert!(builder.finding("core-saturated").is_some());
    }
}
