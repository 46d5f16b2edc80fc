//! The tested server uses a whole core and no more.

use fathom_model::{
    Finding, NextStep, Severity,
    record::ProgramTime,
    units::{Nanos, percent, ratio},
};

use super::{
    FindingRule,
    server_time::{MOST, RequestTimes},
};
use crate::evidence::{Program, TestEvidence, text_evidence};

/// From this share of a core on, a thread has no time left; its CPU time is counted in hundredths of a second.
const FULL_CORE: f64 = 0.93;
/// From this share on, requests wait for the one thread of a server that takes most of their time: it always has work, and the rest are its own
/// waits, as for a core.
const NEARLY_FULL: f64 = 0.85;
/// A program that used more has had other threads, which ended before they could be counted.
const ONE_CORE: f64 = 1.02;

/// With so much of a core idle, a server with several threads would have used it.
const IDLE_MIN: f64 = 0.5;

/// Looks at the CPU time of the process that listens on the tested port. It must run on a host of this run.
pub(crate) struct ServerSaturated;

/// A process of a server that uses less of a core does not work.
const BUSY_PROCESS: f64 = 0.05;
/// The share of a server's CPU time that its other threads and its children may have had, at most.
const OTHERS_MAX: f64 = 0.07;

/// Returns true if a program's one thread did its work. One thread may be all that is left of many, such as those of a server with a thread
/// for each connection: what others have used since the program began may have been during the test.
fn has_one_thread(program: &ProgramTime) -> bool {
    let is_alone = |others: Nanos| others.as_secs_f64() < program.cpu_ns.as_secs_f64() * OTHERS_MAX;
    program.n_threads == 1 && program.others_ns.is_none_or(is_alone)
}

impl FindingRule for ServerSaturated {
    fn id(&self) -> &'static str {
        "server-saturated"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // What a full thread explains of requests that do not wait for it is not known.
        let waited_for = RequestTimes::of(seen).map(|times| times.server_share()).filter(|share| *share >= MOST);
        let is_waited_for = waited_for.is_some();
        let full = if is_waited_for { NEARLY_FULL } else { FULL_CORE };
        let is_full = |(host, server): &(&str, Program<'_>)| {
            (full..=ONE_CORE).contains(&server.cores) || first_thread(seen, host, server).is_some()
        };
        let server = seen.server().filter(is_full);
        let Some((host, server)) = server.filter(|_| !seen.reached_target()) else { return Vec::new() };
        let (name, pid, used) = (&server.program.name, server.program.pid, percent(server.cores.min(1.0)));
        let program = format!("the server {name} (pid {pid})");
        let mut evidence = vec![server.evidence(host)];
        let processes = seen.server_processes();
        let n_working = processes.iter().filter(|process| process.cores >= BUSY_PROCESS).count();
        let first = first_thread(seen, host, &server).filter(|_| is_waited_for && n_working <= 1);
        let title = if let Some(used) = first {
            format!(
                "{program} has several threads, and its first one used {} of a core at least: it does the work",
                percent(used.min(1.0))
            )
        } else if server.cores > ONE_CORE {
            return Vec::new();
        } else if n_working > 1 {
            // With no core to spare, more of them would gain nothing.
            let Some(idle) = idle_cores(seen, host) else { return Vec::new() };
            evidence.push(text_evidence(host, "idle cores", format!("{idle:.2}")));
            let used: f64 = processes.iter().map(|process| process.cores).sum();
            format!(
                "the server {name} has {n_working} processes that work, and the busiest (pid {pid}) used {} of a core while other cores were idle: together \
                 they used {used:.1} cores",
                percent(server.cores.min(1.0))
            )
        } else if has_one_thread(server.program) {
            format!("{program} has one thread, and it used {used} of a core")
        } else if let Some(idle) = idle_cores(seen, host).filter(|_| is_waited_for && server.cores >= FULL_CORE) {
            evidence.push(text_evidence(host, "idle cores", format!("{idle:.2}")));
            format!(
                "{program} has several threads, but used {used} of one core and no more while others were idle, as if one thread did the work, or a \
                 lock let one run at a time"
            )
        } else {
            return Vec::new();
        };
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "server cpu", title)
                .evidence(evidence)
                // Requests to other processes wait for those.
                .explains(waited_for.filter(|_| n_working <= 1))
                .next(
                    NextStep::new(format!("top -H -p {pid}"))
                        .on(host)
                        .expected("show its busy thread; give the server more workers"),
                ),
        ]
    }
}

/// Returns the least share of a core that the first thread of a program with others used, if that is all of one.
///
/// The others are known by their time since the program began, which is more than that of the test, and by its growth from the first trial to the last,
/// which has the time between trials too.
fn first_thread(seen: &TestEvidence<'_>, host: &str, server: &Program<'_>) -> Option<f64> {
    let records = seen.trials().iter().filter_map(|trial| trial.hosts.get(host));
    let programs = records.flat_map(|record| &record.programs).filter(|program| program.pid == server.program.pid);
    let since_begin = ratio(programs.filter_map(|program| program.others_ns).max()?.0, seen.sampled_time(host)?.0)?;
    let later = seen.growth_between_trials(host, server, |program| program.others_ns);
    let used = server.cores - later.map_or(since_begin, |later| later.min(since_begin));
    (server.program.n_threads > 1 && (FULL_CORE..=ONE_CORE).contains(&used)).then_some(used)
}

/// Returns how many cores of a host were idle, if that is most of one and a program could have used it.
fn idle_cores(seen: &TestEvidence<'_>, host: &str) -> Option<f64> {
    let cores = seen.cores(host);
    let idle: f64 = cores.iter().map(|core| 1.0 - core.busy()).sum();
    (cores.len() > 1 && idle >= IDLE_MIN).then_some(idle)
}

#[cfg(test)]
mod tests {
    use fathom_model::{Histogram, Severity, names::distribution, record::ProgramTime, units::Nanos};

    use crate::run_builder::RunBuilder;

    fn with_server(cpu: Nanos, n_threads: u32, listens: u16) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1000, 10);
        let test = &mut builder.run.tests[0];
        test.to = None;
        test.options.set("url", "http://user:secret@127.0.0.1:8080/a?b=c:d");
        for trial in &mut test.trials {
            let host = trial.hosts.get_mut("client").unwrap();
            let programs = [("python3", 4711, cpu, listens), ("yes", 9, Nanos(host.span().0 / 2), 22)];
            host.programs = programs
                .map(|(name, pid, cpu_ns, port)| ProgramTime {
                    name: name.to_owned(),
                    pid,
                    cpu_ns,
                    n_threads,
                    listens: vec![port],
                    ..ProgramTime::default()
                })
                .into();
        }
        builder
    }

    fn span() -> Nanos {
        let mut builder = RunBuilder::new();
        builder.http(1000, 10);
        builder.run.tests[0].trials[0].hosts["client"].span()
    }

    #[test]
    fn a_server_that_uses_one_whole_core_is_the_limit() {
        let found = with_server(span(), 1, 8080).finding("server-saturated").unwrap();
        assert_eq!((found.severity, found.explains), (Severity::HoldsBack, None));
        assert!(found.title.starts_with("the server python3 (pid 4711) has one thread"), "{}", found.title);
    }

    #[test]
    fn threads_that_ended_with_their_connections_are_no_lack_of_threads() {
        let is_found = |others_percent: u64| {
            let mut builder = with_server(span(), 1, 8080);
            for trial in &mut builder.run.tests[0].trials {
                let server = &mut trial.hosts.get_mut("client").unwrap().programs[0];
                server.others_ns = Some(Nanos(server.cpu_ns.0 / 100 * others_percent));
            }
            builder.finding("server-saturated").is_some()
        };
        assert!(is_found(0) && is_found(5), "helpers at the start");
        assert!(!is_found(60) && !is_found(700), "others may have done it");
    }

    /// Makes nearly all of the time of requests that of the server.
    fn wait_for_server(builder: &mut RunBuilder) {
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let times = [
            (distribution::CONNECT_TIME, 100),
            (distribution::FIRST_BYTE, 20_000),
            (distribution::DOWNLOAD_TIME, 10),
            (distribution::SERVICE_TIME, 20_010),
        ];
        for (name, micros) in times {
            let mut times = Histogram::new();
            times.record_n(Nanos::from_micros(micros).0, 100);
            record.distributions.insert(name.to_owned(), times);
        }
    }

    #[test]
    fn a_thread_that_requests_wait_for_is_the_limit_even_if_it_waits_a_little_itself() {
        let mut builder = with_server(Nanos(span().0 / 100 * 88), 1, 8080);
        assert_eq!(builder.finding("server-saturated"), None);
        wait_for_server(&mut builder);
        let finding = builder.finding("server-saturated").unwrap();
        assert!(finding.title.ends_with("and it used 88 % of a core"), "{}", finding.title);
        assert!(finding.explains.is_some_and(|share| share > 0.98), "nearly all of the time is the server's");
    }

    #[test]
    fn several_threads_that_use_one_core_while_others_are_idle_run_one_at_a_time() {
        let finding = |idle_of_second_core: u64| {
            let mut builder = with_server(span(), 12, 8080);
            builder.cpu("client", "cpu0", [90, 10, 0, 0]);
            builder.cpu("client", "cpu1", [100 - idle_of_second_core, 0, 0, 0]);
            wait_for_server(&mut builder);
            builder.finding("server-saturated")
        };
        let title = finding(80).unwrap().title;
        assert!(
            title.starts_with(
                "the server python3 (pid 4711) has several threads, but used 100 % of one core and no more"
            ),
            "{title}"
        );
        assert_eq!(finding(20), None, "nothing was left");
    }

    #[test]
    fn a_server_with_time_left_or_with_several_threads_and_another_program_are_not() {
        assert_eq!(with_server(Nanos(span().0 / 2), 1, 8080).finding("server-saturated"), None);
        assert_eq!(with_server(span(), 2, 8080).finding("server-saturated"), None);
        assert_eq!(with_server(span(), 1, 8081).finding("server-saturated"), None);
    }

    #[test]
    fn a_first_thread_that_fills_a_core_beside_helpers_does_the_work() {
        let title = |others_percent: u64| {
            let mut builder = with_server(Nanos(span().0 / 100 * 107), 12, 8080);
            wait_for_server(&mut builder);
            for trial in &mut builder.run.tests[0].trials {
                let server = &mut trial.hosts.get_mut("client").unwrap().programs[0];
                server.others_ns = Some(Nanos(span().0 / 100 * others_percent));
            }
            builder.finding("server-saturated").map(|finding| finding.title)
        };
        assert!(title(8).unwrap().contains("and its first one used 99 % of a core at least"), "{:?}", title(8));
        assert_eq!(title(60), None, "others may have done the work");
    }

    #[test]
    fn helpers_of_a_server_that_has_run_for_long_are_known_from_trial_to_trial() {
        let is_found = |later_percent: u64| {
            let mut builder = with_server(Nanos(span().0 / 100 * 107), 12, 8080);
            wait_for_server(&mut builder);
            let trials = &mut builder.run.tests[0].trials;
            trials.push(trials[0].clone());
            for (trial, more) in trials.iter_mut().zip([0, later_percent]) {
                let server = &mut trial.hosts.get_mut("client").unwrap().programs[0];
                server.others_ns = Some(Nanos(span().0 / 100 * (900 + more)));
            }
            builder.finding("server-saturated").is_some()
        };
        assert!(is_found(8) && !is_found(60));
    }

    #[test]
    fn requests_without_an_answer_at_a_full_server_are_its_effect_and_cut_answers_are_not() {
        let severity = |error: &str| {
            let mut builder = with_server(span(), 1, 8080);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add(error, 50);
            builder.finding("errors").unwrap().severity
        };
        let errors = ["read: unanswered", "read: closed within the answer"];
        assert_eq!(errors.map(severity), [Severity::Remark, Severity::HoldsBack]);
    }
}
