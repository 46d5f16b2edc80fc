//! Many connections or datagrams, each of which asks once who answers.

mod worker;

use std::collections::BTreeMap;

use fathom_engine::{EndCondition, Error, Test, TrialContext, WorkerPool};
use fathom_model::{
    Endpoints, Note, Record, Role, TargetsRecord,
    names::{
        count,
        distribution::{CONNECT_TIME, SERVICE_TIME},
    },
    units::{Nanos, grouped},
};
use fathom_sys::policy::Policy;

use self::worker::{Caller, SpreadConfig};
use crate::{
    ask,
    carrier::Carrier,
    names::counter,
    options::{self, CONCURRENCY, CONNECTIONS, TIMEOUT},
    sources::Sources,
    target,
};

/// The counters of a worker, in the order of their indices.
const COUNTERS: &[&str] = &[count::CONNECTIONS, counter::ATTEMPTS, counter::FAILED];
const ANSWERED: usize = 0;
const ATTEMPTS: usize = 1;
const FAILED: usize = 2;

/// A test of spread, ready to start.
pub(crate) struct SpreadTest {
    role: Role,
    config: SpreadConfig,
    expected: options::ExpectedTargets,
    sources: Sources,
}

/// Checks the options of a test of spread.
///
/// # Errors
/// Names the option.
pub(crate) fn check(settings: &fathom_model::Settings) -> Result<(), Error> {
    options::expected(settings)?;
    crate::sources::check(settings)?;
    let timeout = settings.span(TIMEOUT.name).unwrap_or_default();
    if timeout < Nanos::from_millis(1) {
        return Err(fathom_transport::options::invalid_value(TIMEOUT.name, "1ms or more", &timeout));
    }
    Ok(())
}

/// Makes a test ready: the address is known, and somebody there has told who it is.
///
/// # Errors
/// Nobody tells who it is.
pub(crate) fn prepare(carrier: Carrier, role: &Role, policy: &Policy) -> Result<SpreadTest, Error> {
    let settings = &role.settings;
    let to = target::destination(role, policy)?;
    let config = SpreadConfig {
        carrier,
        dialect: options::dialect(settings),
        n_connections: settings.count(CONNECTIONS.name).unwrap_or(1),
        n_concurrent: options::count(settings, &CONCURRENCY),
        timeout: settings.span(TIMEOUT.name).unwrap_or(Nanos::from_secs(1)),
        to,
    };
    let mut sources = Sources::of(role, policy, &config.to)?;
    ask::ask((carrier, config.dialect), &config.to, &mut sources)?;
    Ok(SpreadTest { role: role.clone(), config, expected: options::expected(settings)?, sources })
}

impl Test for SpreadTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let Self { role, config, expected, sources } = *self;
        let note = sources.note();
        let pool = WorkerPool {
            states: vec![sources],
            counters: COUNTERS,
            cores: &role.cores,
            until: EndCondition::PhasesOver,
        };
        let mut trial_results = pool.run(context, &mut (), |worker, sources| {
            let caller = Caller::new(&worker, &config, sources);
            caller.run(context).map_err(|cause| Error::System { what: "open many connections".to_owned(), cause })
        })?;
        let results = std::mem::take(&mut trial_results.workers);
        let mut record = trial_results.record(role.side);
        // A test that is counted has no steady state to wait for.
        record.notes.retain(|note| note.id != "no-steady-state");
        let mut answers: BTreeMap<String, u64> = BTreeMap::new();
        for tally in results {
            for (identity, n) in tally.answers {
                *answers.entry(identity.to_string()).or_default() += n;
            }
            record.errors.extend(tally.errors);
            let of_connects = (CONNECT_TIME, &tally.connect);
            let connects = Some(of_connects).filter(|_| config.carrier == Carrier::Tcp);
            for (name, histogram) in std::iter::once((SERVICE_TIME, &tally.service)).chain(connects) {
                record.distributions.entry(name.to_owned()).or_default().merge(histogram);
            }
            if tally.n_ended == config.n_connections {
                record.measure_until(tally.ended);
            } else {
                record.notes.push(Note::new("cut-short", cut_short(tally.n_ended, config.n_connections)));
            }
        }
        let address = config.to.address().map_or_else(String::new, |to| to.to_string());
        record.targets = Some(TargetsRecord {
            address,
            answers,
            weights: expected.weights,
            n_expected: expected.n,
            ..TargetsRecord::default()
        });
        record.notes.extend(note);
        Ok(record)
    }
}

/// Says that the time was over before all connections were made.
fn cut_short(n_ended: u64, n_wanted: u64) -> String {
    format!(
        "{} of {} connections were made when the time was over: give a longer --duration",
        grouped(n_ended),
        grouped(n_wanted)
    )
}
