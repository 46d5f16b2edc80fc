//! Where the time of a request passes: in the server, or in a response that waits for an acknowledgment.
//!
//! A response that stops for about 40 ms waits for an acknowledgment only if this host sent one late in nearly each of them
//! (`TcpExt: DelayedACKs`). If it did not, the server pauses by itself.

use fathom_model::{
    Anatomy, Evidence, Finding, Layer, NextStep, Part, Severity, Side,
    names::{count, distribution, host},
    units::{Bytes, Nanos, approximate, grouped, percent, ratio},
};

use super::{
    FindingRule,
    other_programs::OtherPrograms,
    rule::{DEVICE_CORE_FULL, FIRST_FLIGHT},
};
use crate::{
    evidence::{TestEvidence, counter_evidence, text_evidence},
    groups::Groups,
};

/// A shorter response time is not slow for a server, whatever the network takes.
pub(super) const SLOW: Nanos = Nanos::from_millis(2);
/// The first byte comes at least this many round trips after the request before the server is said to be slow.
pub(super) const ROUND_TRIPS_MIN: u64 = 5;
/// The server's part of the time of a request from which on it is the reason.
pub(super) const MOST: f64 = 0.5;
/// The time for which Linux delays an acknowledgment in a conversation (`TCP_DELACK_MIN`), with what wake-ups add to it.
const DELAYED_ACK: std::ops::RangeInclusive<Nanos> = Nanos::from_millis(36)..=Nanos::from_millis(50);
/// At this number of delayed acknowledgments per request and above, nearly each response waited for one. A measured server with Nagle's
/// algorithm has 0.96.
const ACKS_PER_REQUEST: f64 = 0.8;
/// A timer that ends later than this does so at a clock tick of 4 or 10 ms, and then the times differ by more than `TICK_SPREAD`.
const WITHIN_TICK: Nanos = Nanos::from_millis(42);
/// The least distance between the 10 % shortest and the 10 % longest times that such a tick makes.
const TICK_SPREAD: Nanos = Nanos::from_millis(1);
/// A server that waited for cores for so much of the time was held up by what used them.
const WAITED_MIN: f64 = 0.2;
/// A server that uses less than this part of a core does not lack one.
const FEW_CORES: f64 = 0.3;
/// A longer response takes that long for its own length on many paths.
const SHORT_RESPONSE: u64 = 64 << 10;

/// With fewer segments sent again per request, the median is that of a request without any.
pub(super) const RESENT_MAX: f64 = 0.25;

/// The handshakes that show the network.
pub(super) const FASTEST: f64 = 0.25;

/// The parts of a request's time, at the median. The parts of one request add up to its whole; medians do so only roughly.
pub(super) struct RequestTimes {
    /// From the request to the end of the response.
    pub(super) service: Nanos,
    /// From the request to the first byte of the response.
    pub(super) first_byte: Nanos,
    /// From the first byte to the last.
    pub(super) download: Nanos,
    /// The handshake of TCP: a round trip that no server program takes part in. That of the fastest quarter, because waits for a core and
    /// lost segments only add to it.
    pub(super) connect: Nanos,
}

impl RequestTimes {
    pub(super) fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        let quantile = |name, q| seen.distribution(Side::Initiator, name).quantile(q).map(Nanos);
        let median = |name| quantile(name, 0.5);
        Some(Self {
            service: median(distribution::SERVICE_TIME)?,
            first_byte: median(distribution::FIRST_BYTE)?,
            download: median(distribution::DOWNLOAD_TIME)?,
            connect: quantile(distribution::CONNECT_TIME, FASTEST)?,
        })
    }

    /// The time from the request to the first byte without that of the network.
    fn of_server(&self) -> Nanos {
        self.first_byte - self.connect
    }

    /// The share of the time of a request that the server takes.
    pub(super) fn server_share(&self) -> f64 {
        ratio(self.of_server().0, self.service.0).unwrap_or(0.0).min(1.0)
    }

    fn evidence(&self, host: &str) -> Vec<Evidence> {
        let parts = [
            (distribution::CONNECT_TIME, "p25", self.connect),
            (distribution::FIRST_BYTE, "p50", self.first_byte),
            (distribution::DOWNLOAD_TIME, "p50", self.download),
            (distribution::SERVICE_TIME, "p50", self.service),
        ];
        parts.map(|(name, q, time)| text_evidence(host, format!("{name} {q}"), time)).into()
    }
}

/// The program of the other end in the anatomy of a transaction: its time at the median, without any wait for a core.
struct ResponderTime<'a> {
    anatomy: &'a Anatomy,
    own: Nanos,
    share: f64,
}

impl<'a> ResponderTime<'a> {
    /// Returns the time of the program if it is most of a usual transaction.
    fn of(seen: &TestEvidence<'a>) -> Option<Self> {
        let anatomy = seen.test.anatomy.as_ref().filter(|_| !seen.reached_target())?;
        let is_its = |part: Part, side: Option<Side>| part == Part::Program && side == Some(Side::Responder);
        let own = anatomy.parts.iter().find(|part| is_its(part.part, part.side))?.median_ns;
        let share = ratio(own.0, anatomy.median().0).filter(|share| *share >= MOST)?;
        Some(Self { anatomy, own, share })
    }

    fn finding(&self, seen: &TestEvidence<'_>) -> Finding {
        let host = seen.host_of(Side::Responder).unwrap_or_default();
        let whole = self.anatomy.median();
        let title = format!(
            "the program on {host} takes {} of the {whole} of a usual transaction ({})",
            self.own,
            percent(self.share)
        );
        let sampled = text_evidence(host, "transactions sampled", grouped(self.anatomy.n_units));
        seen.finding(ServerTime.id(), Severity::HoldsBack, "server time", title)
            .evidence([text_evidence(host, "between a request and its answer, median", self.own), sampled])
            .explains(self.share)
    }
}

/// Compares the time to the first byte with the round trip of the network, and the time in the program of the other end with the whole.
pub(crate) struct ServerTime;

impl FindingRule for ServerTime {
    fn id(&self) -> &'static str {
        "server-time"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "overload",
            "slow-answers",
            "server-saturated",
            "core-saturated",
            DEVICE_CORE_FULL,
            "generator-limited",
            "other-programs",
            "local-shaper",
            "path-full",
            "cpu-quota",
            "connect-delays",
            "steal",
        ]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        if cause == "slow-answers" {
            // Of two groups, the median is that of one.
            return groups(seen).is_none();
        }
        // While a thread waits for a core, all of its requests wait: that part of the time is not the server's.
        let own = |waited| RequestTimes::of(seen).is_some_and(|times| times.server_share() - waited >= MOST);
        let is_own = || match seen.time_waited_for_core() {
            _ if ResponderTime::of(seen).is_some() => true,
            Some(waited) => own(waited),
            None => uses_few_cores(seen) && takes_long_always(seen),
        };
        cause == OtherPrograms.id() && !has_server_waited_for_core(seen) && is_own()
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if let Some(program) = ResponderTime::of(seen) {
            return vec![program.finding(seen)];
        }
        if let Some(own) = own_pause(seen) {
            return vec![own];
        }
        let times = (is_of_requests(seen) && !seen.reached_target()).then(|| RequestTimes::of(seen)).flatten();
        let Some(times) = times else { return Vec::new() };
        // On a schedule, slow answers are the tail of a load that is answered, and the median says only how many they are.
        if is_scheduled(seen) && groups(seen).is_some_and(|groups| groups.fast < SLOW) {
            return Vec::new();
        }
        let (own, share) = (times.of_server(), times.server_share());
        let is_slow = times.first_byte >= SLOW && times.first_byte >= times.connect * ROUND_TRIPS_MIN;
        if !is_slow || share < MOST || resent_per_request(seen) >= RESENT_MAX {
            return Vec::new();
        }
        let many = load_option(seen).filter(|(_, n)| *n > 1);
        let alone = many.and_then(|(option, _)| seen.repeat_with_option(option, "1")).map(|command| {
            NextStep::new(command)
                .expected("tell work from waiting: a server that is as slow for one of them is slow itself")
        });
        // Handshakes before the load met queues that were empty, and sent little.
        let sent = request_bytes(seen).filter(|bytes| *bytes > SHORT_RESPONSE);
        // Through a proxy, the handshakes are with it.
        let has_proxy = seen.test.options.text("proxy").is_some();
        let server = if has_proxy { "the proxy or the server behind it" } else { "the server" };
        let place = match (sent, many.is_some()) {
            (Some(bytes), _) => format!("sending the request of {}, or {server},", Bytes(bytes)),
            (None, true) => format!("{server}, or a queue on the way that this load fills,"),
            (None, false) => server.to_owned(),
        };
        let next = if sent.is_some() { Some(while_sending(seen)) } else { alone };
        let title = format!(
            "{place} takes {own} of the {} of a request ({}), and the network {}",
            times.service,
            percent(share),
            times.connect
        );
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "server time", title)
                .evidence(times.evidence(&seen.test.from))
                .explains(share)
                .next(next),
        ]
    }
}

/// Returns the bytes of a request, mean.
fn request_bytes(seen: &TestEvidence<'_>) -> Option<u64> {
    let total = |counter| seen.total(Side::Initiator, counter);
    total(count::BYTES_SENT).checked_div(total(count::REQUESTS))
}

/// Suggests to look at connections that send a long request.
fn while_sending(seen: &TestEvidence<'_>) -> NextStep {
    NextStep::new("ss -tin state established").on(&seen.test.from).expected(
        "show what its connections wait for while they send: rwnd_limited if the server reads slowly, sndbuf_limited, retrans, or else the path",
    )
}

/// Returns true if requests became due by a schedule.
pub(super) fn is_scheduled(seen: &TestEvidence<'_>) -> bool {
    seen.distribution(Side::Initiator, distribution::SCHEDULE_LAG).max().is_some()
}

/// Returns the two groups of the times to the first byte, if there are two.
pub(super) fn groups(seen: &TestEvidence<'_>) -> Option<Groups> {
    Groups::of(&seen.distribution(Side::Initiator, distribution::FIRST_BYTE))
}

/// Returns true if the tested server is known to have used so little of the cores of this run that it waits for something else.
pub(super) fn uses_few_cores(seen: &TestEvidence<'_>) -> bool {
    seen.server_cores_max().is_some_and(|cores| cores <= FEW_CORES)
}

/// Returns true if the threads of the tested server had work and no core for longer than they ran, from the first trial to the last: another server
/// that uses as little waits for something else.
fn has_server_waited_for_core(seen: &TestEvidence<'_>) -> bool {
    let Some((host, server)) = seen.server() else { return false };
    let Some(waited) = seen.growth_between_trials(host, &server, |program| program.waited_ns) else { return false };
    waited >= server.cores && waited >= WAITED_MIN
}

/// Returns true if also the fastest tenth of the requests, which waited for no core, took most of a usual request's time in the server.
fn takes_long_always(seen: &TestEvidence<'_>) -> bool {
    let fastest = seen.distribution(Side::Initiator, distribution::FIRST_BYTE).quantile(0.1).map(Nanos);
    let own = |times: RequestTimes| ratio(fastest?.since(times.connect).0, times.service.0);
    RequestTimes::of(seen).and_then(own).is_some_and(|share| share >= MOST)
}

/// Returns true if the rate of a test depends on the time that requests take: an HTTP test, or users of a script who spend most of their time on
/// requests and not on pauses.
pub(super) fn is_of_requests(seen: &TestEvidence<'_>) -> bool {
    let waited = || {
        let times = seen.distribution(Side::Initiator, distribution::SERVICE_TIME);
        let users = load_option(seen)?.1;
        Some(times.mean()? * approximate(times.count()) / (approximate(users) * approximate(seen.measured_time().0)))
    };
    match seen.test.layer {
        Layer::Http => true,
        Layer::App => waited().is_some_and(|share| share >= MOST),
        _ => false,
    }
}

/// Returns what tcpdump selects the segments to and from the server by: all of TCP, if its port is not known.
pub(super) fn server_filter(seen: &TestEvidence<'_>) -> String {
    seen.server_port().map_or_else(|| "tcp".to_owned(), |port| format!("tcp port {port}"))
}

/// Returns the option that has the number of connections or users of a closed load, and the number.
pub(super) fn load_option(seen: &TestEvidence<'_>) -> Option<(&'static str, u64)> {
    ["connections", "users"].into_iter().find_map(|option| Some((option, seen.test.options.count(option)?)))
}

/// The segments that both hosts sent again, per request.
pub(super) fn resent_per_request(seen: &TestEvidence<'_>) -> f64 {
    let resent = seen.hosts_of_tcp().map(|host| seen.growth(host, host::TCP_RETRANS_SEGMENTS, None)).sum();
    ratio(resent, seen.total(Side::Initiator, count::REQUESTS)).unwrap_or(0.0)
}

/// What a response waits for after its first part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PauseCause {
    /// An acknowledgment that the client's host delays.
    DelayedAck,
    /// The server's own work.
    Server,
    /// One of both: no counter, or no time, tells them apart.
    Either,
}

/// Responses that are short, begin early, and end as late as a delayed acknowledgment.
struct Pause {
    times: RequestTimes,
    cause: PauseCause,
    /// Delayed acknowledgments of the client's host, if its kernel counts them.
    n_acks: Option<u64>,
}

impl Pause {
    fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        let times = is_of_requests(seen).then(|| RequestTimes::of(seen)).flatten()?;
        let total = |counter| seen.total(Side::Initiator, counter);
        let n_requests = total(count::REQUESTS);
        let bytes = total(count::BYTES_RECEIVED).checked_div(n_requests)?;
        // A delayed acknowledgment and what follows it are under way for a round trip.
        let after_trip = times.download.since(times.connect);
        let is_delayed = [times.download, after_trip].iter().any(|time| DELAYED_ACK.contains(time));
        (bytes <= SHORT_RESPONSE && is_delayed && times.download > times.first_byte).then_some(())?;
        // Requests without sockets are acknowledged by a program, and not by the kernel.
        let of_kernel = seen.growth(&seen.test.from, host::TCP_OUT_SEGMENTS, None) >= n_requests;
        let n_acks = (of_kernel && seen.has_counter(&seen.test.from, host::TCP_DELAYED_ACKS))
            .then(|| seen.growth(&seen.test.from, host::TCP_DELAYED_ACKS, None));
        let cause = match n_acks.and_then(|n| ratio(n, n_requests)) {
            // What needs several round trips, or time on a slow path, has that instead.
            Some(share) if share < ACKS_PER_REQUEST => {
                let comes_at_once = approximate(bytes) <= FIRST_FLIGHT && DELAYED_ACK.contains(&times.download);
                comes_at_once.then_some(PauseCause::Server)?
            }
            // An acknowledgment is late by itself too, if a server works for a little longer than its delay.
            Some(_) if is_spread(seen) || times.download <= WITHIN_TICK + times.connect => PauseCause::DelayedAck,
            _ => PauseCause::Either,
        };
        Some(Self { times, cause, n_acks })
    }

    fn finding(&self, seen: &TestEvidence<'_>, (id, short): (&str, &str), title: String) -> Finding {
        let from = &seen.test.from;
        let acks = self.n_acks.map(|n| counter_evidence(from, host::TCP_DELAYED_ACKS, n));
        let requests = seen.total(Side::Initiator, count::REQUESTS);
        let requests = acks.is_some().then(|| counter_evidence(from, count::REQUESTS, requests));
        seen.finding(id, Severity::HoldsBack, short, title)
            .evidence(self.times.evidence(from).into_iter().chain(acks).chain(requests))
            .explains(ratio(self.times.download.0, self.times.service.0).map(|share| share.min(1.0)))
    }
}

/// Returns true if the times from the first byte to the last differ as those do that a clock tick ends.
fn is_spread(seen: &TestEvidence<'_>) -> bool {
    let times = seen.distribution(Side::Initiator, distribution::DOWNLOAD_TIME);
    let spread = times.quantile(0.9).zip(times.quantile(0.1)).map(|(long, short)| Nanos(long).since(Nanos(short)));
    spread.is_some_and(|spread| spread >= TICK_SPREAD)
}

/// Returns true if responses end as late as a delayed acknowledgment, whatever they wait for.
pub(super) fn is_pause(seen: &TestEvidence<'_>) -> bool {
    Pause::of(seen).is_some()
}

/// Reports a server that pauses within its responses, while this host delays no acknowledgment.
fn own_pause(seen: &TestEvidence<'_>) -> Option<Finding> {
    let pause = Pause::of(seen).filter(|pause| pause.cause == PauseCause::Server && !seen.reached_target())?;
    // The rest of a response may have been lost instead.
    (resent_per_request(seen) < RESENT_MAX).then_some(())?;
    let title = format!(
        "the server pauses for {} within its response, of the {} of a request: it waits for no delayed ACK, so this is its own work",
        pause.times.download, pause.times.service
    );
    Some(pause.finding(seen, (ServerTime.id(), "server time"), title))
}

/// Looks for responses whose first byte comes early and whose last byte comes as late as a delayed acknowledgment.
pub(crate) struct DelayedAck;

impl FindingRule for DelayedAck {
    fn id(&self) -> &'static str {
        "delayed-ack"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(pause) = Pause::of(seen) else { return Vec::new() };
        let why = match pause.cause {
            PauseCause::DelayedAck => "the server waits for its ACK, which this host delays (Nagle's algorithm)",
            PauseCause::Either => {
                "the server waits for its ACK, which this host delays (Nagle's algorithm), or works for that long"
            }
            PauseCause::Server => return Vec::new(),
        };
        let title = format!("responses stop for {} after their first part: {why}", pause.times.download);
        let next = NextStep::new(format!("tcpdump -ni any {}", server_filter(seen))).on(&seen.test.from).expected(
            "show whether the rest follows the ACK at once; then set TCP_NODELAY in the server, or let it write head and body at once",
        );
        vec![pause.finding(seen, (self.id(), "delayed ack"), title).next(next)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::{AnatomyPart, record::ProgramTime, units::rounded};

    /// A closed load whose requests have these times in microseconds: connect, first byte, download.
    fn with_times(connect: u64, first_byte: u64, download: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1000, 10);
        builder.total("client", count::BYTES_RECEIVED, 500 * 1000);
        let micros = |time: u64| Nanos::from_micros(time).0;
        for record in builder.run.tests[0].trials.iter_mut().filter_map(|trial| trial.records.get_mut("client")) {
            for (name, time) in [
                (distribution::CONNECT_TIME, connect),
                (distribution::FIRST_BYTE, first_byte),
                (distribution::DOWNLOAD_TIME, download),
                (distribution::SERVICE_TIME, first_byte + download),
            ] {
                let mut times = fathom_model::Histogram::new();
                (0..100).for_each(|_| times.record(micros(time)));
                record.distributions.insert(name.to_owned(), times);
            }
        }
        builder
    }

    #[test]
    fn a_server_that_takes_most_of_the_time_is_named_with_its_share() {
        let finding = with_times(100, 20_000, 100).finding("server-time").unwrap();
        assert!(
            finding
                .title
                .starts_with("the server, or a queue on the way that this load fills, takes 19.9 ms of the 20.1"),
            "{}",
            finding.title
        );
    }

    #[test]
    fn a_long_request_may_be_on_its_way_for_most_of_the_time() {
        let mut builder = with_times(100, 200_000, 100);
        builder.total("client", count::REQUESTS, 1_000);
        builder.total("client", count::BYTES_SENT, 3 << 30);
        let finding = builder.finding("server-time").unwrap();
        assert!(
            finding.title.starts_with("sending the request of 3.07 MiB, or the server, takes 200 ms of the 200 ms"),
            "{}",
            finding.title
        );
        assert_eq!(finding.next.unwrap().command, "ss -tin state established");
    }

    #[test]
    fn users_who_wait_for_answers_all_the_time_are_held_back_by_a_slow_server_and_those_who_pause_are_not() {
        let with_users = |n: u64| {
            let mut builder = with_times(100, 20_000, 100);
            let test = &mut builder.run.tests[0];
            test.layer = Layer::App;
            test.options = fathom_model::Settings::default();
            test.options.set("users", n.to_string());
            builder.finding("server-time")
        };
        assert!(with_users(2).is_some(), "100 requests of 20 ms in a second of two users");
        assert_eq!(with_users(100), None);
    }

    #[test]
    fn a_server_that_is_slow_by_itself_stands_beside_other_programs() {
        let severity = |waited_ms| {
            let mut builder = with_times(100, 20_000, 100);
            for host in ["client", "target"] {
                builder.cpu(host, "cpu0", [60, 30, 5, 0]);
                builder.own_cpu(host, &[("cpu0", 100)]);
            }
            for record in builder.run.tests[0].trials[0].records.values_mut() {
                record.run_delay_ns = Some(Nanos::from_millis(waited_ms));
            }
            assert_eq!(builder.finding("other-programs").unwrap().severity, Severity::Disturbs);
            builder.finding("server-time").unwrap().severity
        };
        assert_eq!(severity(100), Severity::HoldsBack, "the threads waited a fifth of the time at most");
        assert_eq!(severity(300), Severity::Remark);
    }

    #[test]
    fn a_server_without_an_agent_that_hardly_uses_a_core_and_is_always_slow_stands_beside_other_programs() {
        let severity_of = |server_cores: f64, n_fast: u64, waited: f64| {
            let mut builder = with_times(100, 20_000, 100);
            let test = &mut builder.run.tests[0];
            test.to = None;
            test.options.set("url", "http://127.0.0.1:8080/");
            let trial = &mut test.trials[0];
            trial.records.remove("target");
            let first =
                trial.records.get_mut("client").unwrap().distributions.get_mut(distribution::FIRST_BYTE).unwrap();
            first.record_n(Nanos::from_micros(200).0, n_fast);
            let host = trial.hosts.get_mut("client").unwrap();
            let cpu_ns = |cores: f64| Nanos(rounded(cores * approximate(host.span().0)));
            let program = |pid, cores, listens: &[u16]| ProgramTime {
                pid,
                cpu_ns: cpu_ns(cores),
                listens: listens.to_vec(),
                ..ProgramTime::default()
            };
            let later = Nanos::from_secs(9) + cpu_ns(waited);
            host.programs = vec![program(7, 0.6, &[]), program(8, server_cores, &[8080])];
            builder.cpu("client", "cpu0", [60, 30, 5, 0]);
            builder.own_cpu("client", &[("cpu0", 20)]);
            let trials = &mut builder.run.tests[0].trials;
            trials.push(trials[0].clone());
            for (trial, waited_ns) in trials.iter_mut().zip([Nanos::from_secs(9), later]) {
                trial.hosts.get_mut("client").unwrap().programs[1].waited_ns = Some(waited_ns);
            }
            assert_eq!(builder.finding("other-programs").unwrap().severity, Severity::Disturbs);
            builder.finding("server-time").unwrap().severity
        };
        let severity = |server_cores, n_fast| severity_of(server_cores, n_fast, 0.05);
        assert_eq!(severity(0.1, 0), Severity::HoldsBack);
        assert_eq!(severity(0.1, 30), Severity::Remark, "some are fast: the others may have waited for a core");
        assert_eq!(severity(0.35, 0), Severity::Remark, "it needs a core");
        assert_eq!(severity_of(0.25, 0, 0.7), Severity::Remark, "it waits for a core");
    }

    #[test]
    fn the_program_of_the_other_end_is_named_if_it_is_most_of_a_usual_transaction() {
        let with_program = |micros: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_rr(1000, 1);
            let part =
                |part, side, median| AnatomyPart { part, side, median_ns: Nanos::from_micros(median), slow_ns: None };
            let (near, far) = (Some(Side::Initiator), Some(Side::Responder));
            let parts = vec![
                part(Part::Path, None, 10),
                part(Part::WakeUp, far, 15),
                part(Part::Program, far, micros),
                part(Part::WakeUp, near, 15),
            ];
            builder.run.tests[0].anatomy = Some(Anatomy { n_units: 900, parts, all_median_ns: None });
            builder.finding("server-time")
        };
        let found = with_program(60).unwrap();
        let words = "the program on target takes 60.0 µs of the 100 µs of a usual transaction (60 %)";
        assert!(found.title.starts_with(words), "{}", found.title);
        assert_eq!((found.severity, found.explains), (Severity::HoldsBack, Some(0.6)));
        assert_eq!(with_program(30), None);
    }

    #[test]
    fn a_fast_server_and_one_behind_a_long_path_are_not_slow() {
        assert_eq!(with_times(100, 1_500, 100).finding("server-time"), None);
        assert_eq!(with_times(20_000, 40_000, 100).finding("server-time"), None);
        assert_eq!(with_times(100, 5_000, 50_000).finding("server-time"), None, "most of the time is the download");
    }

    #[test]
    fn handshakes_that_waited_for_a_core_do_not_hide_a_slow_server() {
        let mut builder = with_times(100, 20_000, 100);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let mut connects = fathom_model::Histogram::new();
        (0..4).for_each(|_| connects.record(Nanos::from_micros(300).0));
        (0..6).for_each(|_| connects.record(Nanos::from_millis(7).0));
        record.distributions.insert(distribution::CONNECT_TIME.to_owned(), connects);
        let finding = builder.finding("server-time").unwrap();
        assert!(finding.title.ends_with("and the network 300 µs"), "{}", finding.title);
    }

    #[test]
    fn segments_that_a_quarter_of_the_requests_lost_may_be_what_takes_the_time() {
        for (resent, is_named) in [(20, true), (600, false)] {
            let mut builder = with_times(100, 20_000, 100);
            builder.total("client", count::REQUESTS, 1000);
            builder.host_counter("target", (host::TCP_RETRANS_SEGMENTS, ""), resent);
            assert_eq!(builder.finding("server-time").is_some(), is_named, "{resent}");
        }
    }

    /// As `with_times`, at a client whose kernel sent this many delayed acknowledgments for a thousand requests.
    fn with_acks(download: u64, n_acks: u64) -> RunBuilder {
        let mut builder = with_times(100, 500, download);
        builder.host_counter("client", (host::TCP_OUT_SEGMENTS, ""), 2_000);
        builder.host_counter("client", (host::TCP_DELAYED_ACKS, ""), n_acks);
        builder
    }

    #[test]
    fn a_response_that_waits_for_an_acknowledgment_is_told_by_its_forty_milliseconds_and_the_late_acks() {
        let finding = with_acks(40_500, 960).finding("delayed-ack").unwrap();
        let words = "responses stop for 40.5 ms after their first part: the server waits for its ACK, which this host delays (Nagle's algorithm)";
        assert_eq!(finding.title, words);
        assert_eq!(with_acks(30_000, 960).finding("delayed-ack"), None);
        assert_eq!(with_acks(60_000, 960).finding("delayed-ack"), None);
        let mut long = with_acks(40_500, 960);
        long.total("client", count::BYTES_RECEIVED, 1_000_000_000);
        assert_eq!(long.finding("delayed-ack"), None);
    }

    #[test]
    fn a_server_that_works_for_as_long_as_an_ack_is_delayed_is_not_accused_of_waiting_for_one() {
        let builder = with_acks(37_000, 3);
        assert_eq!(builder.finding("delayed-ack"), None);
        let finding = builder.finding("server-time").unwrap();
        assert!(finding.title.starts_with("the server pauses for 37.0 ms within its response"), "{}", finding.title);
        assert_eq!(with_acks(37_000, 900).finding("server-time"), None);
    }

    #[test]
    fn a_pause_that_no_counter_and_no_time_tells_from_work_may_be_either() {
        let is_either = |builder: RunBuilder| {
            let title = builder.finding("delayed-ack").unwrap().title;
            title.ends_with("or works for that long")
        };
        assert!(is_either(with_times(100, 500, 40_500)), "without the counter");
        assert!(is_either(with_acks(44_000, 1_000)), "work of 44 ms makes ACKs late too");
        let mut spread = with_acks(44_000, 1_000);
        let record = spread.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let downloads = record.distributions.get_mut(distribution::DOWNLOAD_TIME).unwrap();
        (0..40).for_each(|_| downloads.record(Nanos::from_millis(48).0));
        assert!(!is_either(spread), "a clock tick ends it");
        let mut without_sockets = with_acks(40_500, 0);
        without_sockets.host_counter("client", (host::TCP_OUT_SEGMENTS, ""), 10);
        assert!(is_either(without_sockets));
    }

    #[test]
    fn an_answer_that_takes_long_for_its_length_is_no_pause_of_the_server() {
        let found = |bytes: u64, download: u64| {
            let mut builder = with_times(15_000, 15_000, download);
            builder.total("client", count::BYTES_RECEIVED, bytes * 1_000);
            builder.total("client", count::REQUESTS, 1_000);
            builder.host_counter("client", (host::TCP_OUT_SEGMENTS, ""), 3_000);
            builder.host_counter("client", (host::TCP_DELAYED_ACKS, ""), 10);
            builder.finding("server-time").map(|finding| finding.title)
        };
        assert!(found(1_000, 40_000).unwrap().starts_with("the server pauses for 40.0 ms within its response"));
        assert_eq!(found(50_000, 40_000), None, "on a slow path");
    }

    #[test]
    fn a_delayed_acknowledgment_takes_a_round_trip_more_on_a_long_path() {
        let found = |n_acks: u64| {
            let mut builder = with_times(30_000, 31_000, 71_000);
            builder.total("client", count::BYTES_RECEIVED, 600 * 1_000);
            builder.total("client", count::REQUESTS, 1_000);
            builder.host_counter("client", (host::TCP_OUT_SEGMENTS, ""), 3_000);
            builder.host_counter("client", (host::TCP_DELAYED_ACKS, ""), n_acks);
            builder.finding("delayed-ack").map(|finding| finding.title)
        };
        assert!(found(980).unwrap().starts_with("responses stop for 71.0 ms after their first part"));
        assert_eq!(found(10), None, "they came at once");
    }
}
