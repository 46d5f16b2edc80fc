//! One role in its own thread, from its preparation to its outcome.

use std::sync::mpsc::Receiver;

use fathom_engine::{LiveProgress, StopFlag, TestKind, TrialContext, find};
use fathom_model::{Note, Record, Role, names::count};
use fathom_sys::clock;

use super::{
    AgentConfig, RoleLog, StartTime,
    host_sampler::HostSampler,
    kept_outcomes::KeptOutcomes,
    observer_role::{self, ObserverRole},
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
    pub(super) watched_interfaces: Option<Vec<String>>,
    /// Where its record waits to be merged with others, if that is wanted.
    pub(super) kept: Option<KeptOutcomes>,
    /// Receives the start time, or is closed if there is no start.
    pub(super) start: Receiver<StartTime>,
    pub(super) stop: StopFlag,
}

impl RoleTask {
    /// Runs the role and returns the last message about it.
    pub(super) fn run(self, equipment: &AgentConfig, outbox: &SendQueue<FromAgent>) -> FromAgent {
        let ticket = self.role_id;
        let kind = self.role.kind.clone();
        let kept = self.kept.clone();
        let played = catch_panic(|| self.run_test(equipment, outbox));
        let played = played.unwrap_or_else(|text| {
            Err(AgentFailure::new(ErrorClass::Failed, format!("the test `{kind}` has a bug and panicked: {text}")))
        });
        match played {
            Ok(outcome) => {
                let outcome = match kept {
                    Some(kept) => kept.keep(ticket, outcome, ClockOffset::default()),
                    None => outcome,
                };
                FromAgent::Outcome { ticket, outcome: Box::new(outcome) }
            }
            Err(failure) => FromAgent::Failed { ticket: Some(ticket), failure },
        }
    }

    fn run_test(self, equipment: &AgentConfig, outbox: &SendQueue<FromAgent>) -> Result<RoleOutcome, AgentFailure> {
        let Self { role_id: ticket, role, watched_interfaces: watch, kept, start: started, stop } = self;
        let wanting = |error| AgentFailure::of_engine(&error, HasStarted::No);
        let kind: &dyn TestKind = match role.kind.as_str() {
            observer_role::NAME => &ObserverRole,
            name => *find(equipment.kinds, name).map_err(wanting)?,
        };
        if role.phases.longest() > equipment.trial_max {
            let text =
                format!("a trial of {} is refused: {} is the longest here", role.phases.longest(), equipment.trial_max);
            return Err(AgentFailure::new(ErrorClass::Preflight, text));
        }
        let entered = equipment.role_log.as_ref().map(RoleLog::log_start).transpose();
        let entered =
            entered.map_err(|cause| AgentFailure::new(ErrorClass::Failed, format!("cannot log the role: {cause}")))?;
        let targets = kind.destinations(&role.settings).map_err(wanting)?;
        option_precheck::check(&equipment.policy, &role, kind.options(), &targets)?;
        let observer = watch.map(|interfaces| (equipment.observer)(&interfaces));
        let policy = equipment
            .policy
            .within(role.meeting.within.as_deref())
            .map_err(|error| AgentFailure::new(ErrorClass::Usage, error.to_string()))?
            .of_one_role(role.meeting.resolved.clone());
        let test = kind.prepare(&role, &policy).map_err(wanting)?;
        send_or_report_size(outbox, &FromAgent::Ready { ticket, endpoints: test.endpoints() });

        let Ok(StartTime { at: start, peer_clock }) = started.recv() else {
            return Err(AgentFailure::new(ErrorClass::Incomplete, "aborted before the start"));
        };
        let live_outbox = outbox.clone();
        let side = role.side;
        let live = move |live: LiveProgress| {
            let progress = live.into();
            let message = match &kept {
                Some(kept) => kept.add_progress(clock::now(), (ticket, side), progress),
                None => Some(FromAgent::Interval { ticket, progress }),
            };
            if let Some(message) = message {
                send_or_report_size(&live_outbox, &message);
            }
        };
        let session = TrialContext { start, phases: role.phases, stop, live: Some(Box::new(live)), peer_clock };
        let watch = observer.map(|observer| HostSampler::start(observer, start));
        let record = test.run(&session);
        let (host, unavailable) = watch.map_or((None, Vec::new()), HostSampler::finish);
        let mut record = record.map_err(|error| AgentFailure::of_engine(&error, HasStarted::Yes))?;
        record.notes.extend(entered.and_then(|entered| entered.note()));
        record_dropped(&mut record, policy.n_dropped());
        record_reset(&mut record, policy.n_reset());
        Ok(RoleOutcome { record, host, unavailable })
    }
}

/// Records the packets dropped at guarded sockets, beyond the drops that the test itself knows of.
fn record_dropped(record: &mut Record, n_dropped: u64) {
    let n_known = record.totals.get(count::SOCKET_DROPPED).copied().unwrap_or(0);
    let n_strange = n_dropped.saturating_sub(n_known);
    if n_strange == 0 {
        return;
    }
    record.totals.insert(count::PORT_DROPPED.to_owned(), n_strange);
    let packets = if n_strange == 1 { "1 packet was".to_owned() } else { format!("{n_strange} packets were") };
    let text = format!(
        "{packets} dropped at the ports of this test: the source was another address, or the queue of the port was full"
    );
    record.notes.push(Note { id: "port-dropped".to_owned(), text });
}

/// Records that the kernel kept no strangers from the TCP ports of the test, and the connections that were reset for that.
fn record_reset(record: &mut Record, n_reset: Option<u64>) {
    let Some(n_reset) = n_reset else { return };
    if n_reset > 0 {
        record.totals.insert(count::PORT_RESET.to_owned(), n_reset);
    }
    let came = match n_reset {
        0 => "none came".to_owned(),
        n => format!("{n} came"),
    };
    let text = format!(
        "the kernel does not filter the ports of this test (TCP: that takes CAP_NET_ADMIN, MPTCP: it has no filter), so connections of strangers are accepted and reset before a byte is read or written; {came}"
    );
    record.notes.push(Note { id: "port-reset".to_owned(), text });
}
