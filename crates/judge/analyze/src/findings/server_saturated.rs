//! The tested server uses a whole core and no more.

use fathom_model::{
    Finding, NextStep, Severity,
    record::ProgramTime,
    units::{Nanos, percent},
};

use super::FindingRule;
use crate::evidence::TestEvidence;

/// From this share of a core on, a thread has no time left; its CPU time is counted in hundredths of a second.
const FULL_CORE: f64 = 0.93;
/// A program that used more has had other threads, which ended before they could be counted.
const ONE_CORE: f64 = 1.02;

/// Looks at the CPU time of the process that listens on the tested port. It must run on a host of this run.
pub(crate) struct ServerSaturated;

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
        let server = seen
            .server()
            .filter(|(_, server)| has_one_thread(server.program) && (FULL_CORE..=ONE_CORE).contains(&server.cores));
        let Some((host, server)) = server.filter(|_| !seen.reached_target()) else { return Vec::new() };
        let name = &server.program.name;
        let title = format!(
            "the server {name} (pid {}) has one thread, and it used {} of a core",
            server.program.pid,
            percent(server.cores)
        );
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "server cpu", title).evidence([server.evidence(host)]).next(
                NextStep::new(format!("top -H -p {}", server.program.pid))
                    .on(host)
                    .expected("show its busy thread; give the server more workers"),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{Severity, record::ProgramTime, units::Nanos};

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
        assert_eq!(found.severity, Severity::HoldsBack);
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

    #[test]
    fn a_server_with_time_left_or_with_several_threads_and_another_program_are_not() {
        assert_eq!(with_server(Nanos(span().0 / 2), 1, 8080).finding("server-saturated"), None);
        assert_eq!(with_server(span(), 2, 8080).finding("server-saturated"), None);
        assert_eq!(with_server(span(), 1, 8081).finding("server-saturated"), None);
    }
}
