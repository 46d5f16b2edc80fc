//! One role, in a thread of its own, from its preparation to its outcome.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::Receiver,
};

use fathom_engine::{Live, Session, StopFlag, TestKind, find};
use fathom_model::{Note, Record, Role, names::count};

use super::{
    Equipment, Roster, Start,
    bystander::{self, Bystander},
    say,
    watch::Watch,
};
use crate::{
    Class, Failure,
    connection::Outbox,
    error::HasStarted,
    policy,
    protocol::{FromAgent, Outcome, Ticket},
};

/// A role with all that its thread needs.
pub(super) struct Part {
    pub(super) ticket: Ticket,
    pub(super) role: Role,
    pub(super) watch: Option<Vec<String>>,
    /// Tells the start, or is closed when there will be none.
    pub(super) started: Receiver<Start>,
    pub(super) stop: StopFlag,
}

impl Part {
    /// Plays the role; the last message about it.
    pub(super) fn play(self, equipment: &Equipment, outbox: &Outbox<FromAgent>) -> FromAgent {
        let ticket = self.ticket;
        let kind = self.role.kind.clone();
        let played = without_panic(|| self.perform(equipment, outbox));
        let played = played.unwrap_or_else(|text| {
            Err(Failure::new(Class::Failed, format!("the test `{kind}` has a bug and panicked: {text}")))
        });
        match played {
            Ok(outcome) => FromAgent::Outcome { ticket, outcome: Box::new(outcome) },
            Err(failure) => FromAgent::Failed { ticket: Some(ticket), failure },
        }
    }

    fn perform(self, equipment: &Equipment, outbox: &Outbox<FromAgent>) -> Result<Outcome, Failure> {
        let Self { ticket, role, watch, started, stop } = self;
        let wanting = |error| Failure::of_engine(&error, HasStarted::No);
        let kind: &dyn TestKind = match role.kind.as_str() {
            bystander::NAME => &Bystander,
            name => *find(equipment.kinds, name).map_err(wanting)?,
        };
        if role.phases.longest() > equipment.longest {
            let text =
                format!("a trial of {} is refused: {} is the longest here", role.phases.longest(), equipment.longest);
            return Err(Failure::new(Class::Preflight, text));
        }
        let entered = equipment.roster.as_ref().map(Roster::enter).transpose();
        let entered =
            entered.map_err(|cause| Failure::new(Class::Failed, format!("cannot enter the roster: {cause}")))?;
        policy::check(&equipment.policy, &role, kind.options())?;
        let observer = watch.map(|interfaces| (equipment.observer)(&interfaces));
        let policy = equipment
            .policy
            .within(role.meeting.within.as_deref())
            .map_err(|error| Failure::new(Class::Usage, error.to_string()))?
            .of_one_role();
        let test = kind.prepare(&role, &policy).map_err(wanting)?;
        say(outbox, &FromAgent::Ready { ticket, endpoints: test.endpoints() });

        let Ok(Start { at: start, peer_clock }) = started.recv() else {
            return Err(Failure::new(Class::Incomplete, "aborted before the start"));
        };
        let live_outbox = outbox.clone();
        let live = move |live: Live| say(&live_outbox, &FromAgent::Interval { ticket, progress: live.into() });
        let session = Session { start, phases: role.phases, stop, live: Some(Box::new(live)), peer_clock };
        let watch = observer.map(|observer| Watch::begin(observer, start));
        let record = test.run(&session);
        let (host, losses) = watch.map_or((None, Vec::new()), Watch::end);
        let mut record = record.map_err(|error| Failure::of_engine(&error, HasStarted::Yes))?;
        record.notes.extend(entered.and_then(|entered| entered.note()));
        tell_dropped(&mut record, policy.n_dropped());
        Ok(Outcome { record, host, losses })
    }
}

/// Counts what was dropped at guarded sockets, beyond what the test itself knows of their buffers.
fn tell_dropped(record: &mut Record, n_dropped: u64) {
    let n_known = record.totals.get(count::SOCKET_DROPPED).copied().unwrap_or(0);
    let n_strange = n_dropped.saturating_sub(n_known);
    if n_strange == 0 {
        return;
    }
    record.totals.insert(count::PORT_DROPPED.to_owned(), n_strange);
    let text = format!(
        "{n_strange} packets were dropped at the ports of this test: they came from other addresses, or the queue of the \
         port was full"
    );
    record.notes.push(Note { id: "port-dropped".to_owned(), text });
}

/// The value, or the text of a panic on the way to it.
pub(super) fn without_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // Whatever the work had in hand is dropped with it, so nothing half-done is seen afterwards.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(panic.as_ref()))
}

pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}
