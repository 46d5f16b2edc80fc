//! One role in its own thread, from its preparation to its outcome.

use std::sync::mpsc::Receiver;

use fathom_engine::{LiveProgress, Observer, StopFlag, Test, TestKind, TrialContext, find};
use fathom_model::{
    HostRecord, Layer, Note, Record, Role,
    names::{count, host},
    record::Series,
};
use fathom_sys::{
    clock,
    policy::{Policy, Unfiltered},
};

use super::{
    AgentConfig, RoleLog, StartTime,
    host_sampler::{HostSampler, WaitSampler},
    kept_outcomes::KeptOutcomes,
    observer_role::{self, ObserverRole},
    role_log::LoggedRole,
    send_or_report_size,
};
use crate::{
    AgentFailure, ErrorClass,
    agent_failure::HasStarted,
    connection::SendQueue,
    option_precheck,
    protocol::{FromAgent, RoleId, RoleOutcome, clock_offset::ClockOffset},
    threads::catch_panic,
};

/// A role with everything that its thread needs.
pub(super) struct RoleTask {
    pub(super) role_id: RoleId,
    pub(super) role: Role,
    /// Whether the host's counters are read meanwhile.
    pub(super) watch: bool,
    /// Where its record waits to be merged with others, if that is wanted.
    pub(super) kept: Option<KeptOutcomes>,
    /// Receives the start time, or is closed if there is no start.
    pub(super) start: Receiver<StartTime>,
    pub(super) stop: StopFlag,
}

impl RoleTask {
    /// Runs the role and returns the last message about it.
    pub(super) fn run(self, config: &AgentConfig, outbox: &SendQueue<FromAgent>) -> FromAgent {
        let role_id = self.role_id;
        let kind = self.role.kind.clone();
        let kept = self.kept.clone();
        let outcome = catch_panic(|| self.run_test(config, outbox));
        let outcome = outcome.unwrap_or_else(|text| {
            Err(AgentFailure::new(ErrorClass::Failed, format!("the test `{kind}` has a bug and panicked: {text}")))
        });
        match outcome {
            Ok(outcome) => {
                let outcome = match kept {
                    Some(kept) => kept.keep(role_id, outcome, ClockOffset::default()),
                    None => outcome,
                };
                FromAgent::Outcome { role_id, outcome: Box::new(outcome) }
            }
            Err(failure) => FromAgent::Failed { role_id: Some(role_id), failure },
        }
    }

    fn run_test(self, config: &AgentConfig, outbox: &SendQueue<FromAgent>) -> Result<RoleOutcome, AgentFailure> {
        let waiting = self.watch.then(|| WaitSampler::start(config.observer));
        let ready = self.get_ready(config, outbox);
        // After the order to start there is no time to wait for the end of a thread.
        let waited = waiting.filter(|_| ready.is_err()).and_then(WaitSampler::finish);
        if let Some(host) = waited {
            send_or_report_size(outbox, &FromAgent::Waited { role_id: self.role_id, host: Box::new(host) });
        }
        let ReadyRole { kind, test, policy, observer, entered, start: StartTime { at: start, peer_clock } } = ready?;
        let Self { role_id, role, kept, stop, .. } = self;
        let live_outbox = outbox.clone();
        let side = role.side;
        let live = move |live: LiveProgress| {
            let progress = live.into();
            let message = match &kept {
                Some(kept) => kept.add_progress(clock::now(), (role_id, side), progress),
                None => Some(FromAgent::Interval { role_id, progress }),
            };
            if let Some(message) = message {
                send_or_report_size(&live_outbox, &message);
            }
        };
        let context = TrialContext { start, phases: role.phases, stop, live: Some(Box::new(live)), peer_clock };
        let watch = observer.map(|observer| HostSampler::start(observer, start));
        let record = test.run(&context);
        // Before the last sample of the host's counters, which so have every drop of a full queue that is in this count.
        let n_dropped = policy.n_dropped();
        let (host, unavailable) = watch.map_or((None, Vec::new()), HostSampler::finish);
        let mut record = record.map_err(|error| AgentFailure::of_engine(&error, HasStarted::Yes))?;
        record.notes.extend(entered.and_then(|entered| entered.note()));
        let known = host.as_ref().filter(|_| kind.layer() == Layer::Udp).and_then(dropped_by_udp);
        record_dropped(&mut record, n_dropped, known);
        if let Some(why) = policy.unfiltered() {
            record_reset(&mut record, why, policy.n_reset().unwrap_or(0));
        }
        Ok(RoleOutcome { record, host, unavailable })
    }

    /// Prepares the test and waits for the order to start.
    fn get_ready(&self, config: &AgentConfig, outbox: &SendQueue<FromAgent>) -> Result<ReadyRole, AgentFailure> {
        let (role_id, role) = (self.role_id, &self.role);
        let before_start = |error| AgentFailure::of_engine(&error, HasStarted::No);
        let kind: &dyn TestKind = match role.kind.as_str() {
            observer_role::NAME => &ObserverRole,
            name => *find(config.kinds, name).map_err(before_start)?,
        };
        if role.phases.longest() > config.trial_max {
            let text =
                format!("a trial of {} is refused: {} is the longest here", role.phases.longest(), config.trial_max);
            return Err(AgentFailure::new(ErrorClass::Preflight, text));
        }
        let entered = config.role_log.as_ref().map(RoleLog::log_start).transpose();
        let entered =
            entered.map_err(|cause| AgentFailure::new(ErrorClass::Failed, format!("cannot log the role: {cause}")))?;
        let targets = kind.destinations(&role.settings).map_err(before_start)?;
        option_precheck::check(&config.policy, role, kind.options(), &targets)?;
        let observer = self.watch.then(config.observer);
        let policy = config
            .policy
            .within(role.meeting.within.as_deref())
            .map_err(|error| AgentFailure::new(ErrorClass::Usage, error.to_string()))?
            .of_one_role(role.meeting.resolved.clone());
        let test = kind.prepare(role, &policy).map_err(before_start)?;
        send_or_report_size(outbox, &FromAgent::Ready { role_id, endpoints: test.endpoints() });
        match self.start.recv() {
            Ok(start) => Ok(ReadyRole { kind, test, policy, observer, entered, start }),
            Err(_) => Err(AgentFailure::new(ErrorClass::Incomplete, "aborted before the start")),
        }
    }
}

/// A role that has the order to start.
struct ReadyRole {
    kind: &'static dyn TestKind,
    test: Box<dyn Test>,
    policy: Policy,
    /// What reads the host's counters meanwhile, if that is wanted.
    observer: Option<Box<dyn Observer>>,
    entered: Option<LoggedRole>,
    start: StartTime,
}

/// Returns the datagrams that all UDP sockets of a host dropped for another reason than a filter, if its counters were read: their
/// buffers were full, there was no memory, or the datagrams were damaged.
///
/// What a filter drops is in `InErrors` alone of the host's counters (`udp_queue_rcv_one_skb` of Linux 6.18).
fn dropped_by_udp(host: &HostRecord) -> Option<u64> {
    host.series_of(host::UDP_RCVBUF_ERRORS).next()?;
    let counters = [host::UDP_RCVBUF_ERRORS, host::UDP_MEM_ERRORS, host::UDP_IN_CSUM_ERRORS];
    Some(counters.into_iter().flat_map(|counter| host.series_of(counter)).map(Series::growth).sum())
}

/// Records the packets dropped at guarded sockets, beyond the drops that the test itself knows of.
///
/// A socket has one count for the packets of strangers and for those that found its queue full, so a test of datagrams took the
/// first for the second. `known` has the second alone: what is above it came from strangers.
fn record_dropped(record: &mut Record, n_dropped: u64, known: Option<u64>) {
    let own = record.totals.get(count::SOCKET_DROPPED).copied();
    let n_strange = n_dropped.saturating_sub(known.or(own).unwrap_or(0));
    if n_strange == 0 {
        return;
    }
    if let (Some(known), Some(own)) = (known, own) {
        // The kernel counts a super-buffer once and the test its datagrams, so the rest of its count may be above `known`.
        let n_full = own.min(known.max(own.saturating_sub(n_strange)));
        record.totals.insert(count::SOCKET_DROPPED.to_owned(), n_full);
    }
    record.totals.insert(count::PORT_DROPPED.to_owned(), n_strange);
    let packets = if n_strange == 1 { "1 packet was".to_owned() } else { format!("{n_strange} packets were") };
    let or_full = if known.is_some() { "" } else { ", or the queue of the port was full" };
    let text = format!("{packets} dropped at the ports of this test: the source was another address{or_full}");
    record.notes.push(Note { id: "port-dropped".to_owned(), text });
}

/// Records why the kernel kept no strangers from the ports of the test, and the connections that were reset for that.
fn record_reset(record: &mut Record, why: Unfiltered, n_reset: u64) {
    let why = match why {
        Unfiltered::Privilege => "the kernel filters the ports of TCP only for CAP_NET_ADMIN",
        Unfiltered::Multipath => "the kernel does not filter ports of MPTCP",
    };
    let (id, came) = match n_reset {
        // That something could have happened is no remark on the numbers.
        0 => ("port-unfiltered", "no connection of a stranger came to the ports of this test".to_owned()),
        1 => ("port-reset", "1 connection of a stranger was reset before a byte was read or written".to_owned()),
        n => ("port-reset", format!("{n} connections of strangers were reset before a byte was read or written")),
    };
    if n_reset > 0 {
        record.totals.insert(count::PORT_RESET.to_owned(), n_reset);
    }
    record.notes.push(Note::new(id, format!("{came}; {why}")));
}

#[cfg(test)]
mod tests {
    use fathom_model::Side;

    use super::*;

    fn counted(counters: &[(&str, u64)]) -> HostRecord {
        let series = counters.iter().map(|(name, n)| Series {
            name: (*name).to_owned(),
            of: String::new(),
            values: vec![7, 7 + *n],
        });
        HostRecord { series: series.collect(), ..HostRecord::default() }
    }

    #[test]
    fn what_the_filter_of_a_port_dropped_is_not_taken_for_a_full_buffer() {
        /// The counters of the host, and the drops of the test and of all its sockets.
        type Counted<'a> = (&'a [(&'a str, u64)], u64, u64);
        let cases: [(Counted<'_>, (u64, Option<u64>)); 9] = [
            ((&[(host::UDP_RCVBUF_ERRORS, 0), (host::UDP_IN_CSUM_ERRORS, 0)], 100, 100), (0, Some(100))),
            ((&[(host::UDP_RCVBUF_ERRORS, 60), (host::UDP_IN_CSUM_ERRORS, 5)], 100, 100), (65, Some(35))),
            ((&[(host::UDP_RCVBUF_ERRORS, 0), (host::UDP_MEM_ERRORS, 100)], 100, 100), (100, None)),
            // Other sockets of the host were full too, or this one after its last datagram was read.
            ((&[(host::UDP_RCVBUF_ERRORS, 500)], 100, 100), (100, None)),
            ((&[(host::UDP_RCVBUF_ERRORS, 100)], 90, 100), (90, None)),
            ((&[(host::UDP_RCVBUF_ERRORS, 65)], 100, 130), (65, Some(65))),
            // Datagrams in super-buffers, which the kernel counts.
            ((&[(host::UDP_RCVBUF_ERRORS, 10)], 600, 10), (600, None)),
            ((&[(host::UDP_RCVBUF_ERRORS, 10)], 605, 15), (600, Some(5))),
            // The counters of the host were not read.
            ((&[], 100, 130), (100, Some(30))),
        ];
        for ((counters, n_own, n_dropped), expected) in cases {
            let mut record = Record::empty(Side::Responder);
            record.totals.insert(count::SOCKET_DROPPED.to_owned(), n_own);
            record_dropped(&mut record, n_dropped, dropped_by_udp(&counted(counters)));
            let strange = record.totals.get(count::PORT_DROPPED).copied();
            assert_eq!((record.totals[count::SOCKET_DROPPED], strange), expected, "{counters:?}");
            let is_unsure = record.notes.iter().any(|note| note.text.contains("queue of the port"));
            assert_eq!(is_unsure, counters.is_empty(), "{counters:?}");
        }
    }

    #[test]
    fn a_port_without_a_filter_is_told_with_its_one_reason_and_with_who_came() {
        let told = |why, n| {
            let mut record = Record::empty(Side::Responder);
            record_reset(&mut record, why, n);
            let Note { id, text } = record.notes.remove(0);
            (id, text, record.totals.get(count::PORT_RESET).copied())
        };
        let (id, text, n) = told(Unfiltered::Privilege, 0);
        assert_eq!((id.as_str(), n), ("port-unfiltered", None));
        assert!(text.starts_with("no connection of a stranger came") && text.contains("CAP_NET_ADMIN"), "{text}");
        assert!(!text.contains("MPTCP"), "{text}");
        let (id, text, n) = told(Unfiltered::Multipath, 2);
        assert_eq!((id.as_str(), n), ("port-reset", Some(2)));
        assert!(text.starts_with("2 connections of strangers were reset") && text.contains("MPTCP"), "{text}");
        assert!(!text.contains("CAP_NET_ADMIN"), "{text}");
    }
}
