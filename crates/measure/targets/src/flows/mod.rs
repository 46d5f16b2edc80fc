//! Flows that stay open and send on a schedule, whatever comes back.
//!
//! The load loop of the engine is not used: a message belongs to a flow and not to any that is free, is due whether earlier ones are
//! answered or not, and a flow that lost its connection opens another while its messages go on being due.

mod drive;
mod track;

use std::collections::BTreeMap;

use fathom_engine::{EndCondition, Error, Test, TrialContext, WorkerPool};
use fathom_model::{
    Endpoints, FailureCounts, FateBuckets, Histogram, Note, Record, Role, TargetFlow, TargetsRecord,
    names::{
        count,
        distribution::{CONNECT_TIME, RESPONSE_TIME},
    },
    units::{Nanos, PerSec, grouped},
};
use fathom_sys::policy::{Destination, Policy};
use fathom_transport::options::invalid_value;

use self::{
    drive::{DriveConfig, DriveResults, FlowDriver},
    track::{FinishedFlow, FlowSchedule, FlowTrack},
};
use crate::{
    carrier::Carrier,
    dialect::Dialect,
    names::{counter, distribution},
    options::{self, BUCKET, FLOWS, GIVE_UP, ONCE, RATE, TIMEOUT},
    sources::Sources,
    target,
};

/// The most flows without an incident that a record lists.
const UNEVENTFUL_LISTED: usize = 2000;
/// The most buckets of a timeline.
const BUCKETS_MAX: u64 = 100_000;
/// The most messages per second: each is a system call of one thread, and none takes less than half a microsecond.
const RATE_MAX: f64 = 2e6;

/// Messages that were taken up later than this are told.
const LAG_TOLD: Nanos = Nanos::from_millis(10);

/// The counters of a worker, in the order of their indices.
pub(crate) const COUNTERS: &[&str] = &[count::RECEIVED, count::SENT, count::INTENDED];
const RECEIVED: usize = 0;
const SENT: usize = 1;
const INTENDED: usize = 2;

/// A test with flows, ready to start: all are connected.
pub(crate) struct FlowsTest {
    role: Role,
    config: DriveConfig,
    expected: options::ExpectedTargets,
    bucket: Nanos,
    driver: FlowDriver,
}

/// Checks the options of flows.
///
/// # Errors
/// Names the option.
pub(crate) fn check(settings: &fathom_model::Settings) -> Result<(), Error> {
    options::message_length(settings)?;
    options::expected(settings)?;
    crate::sources::check(settings)?;
    interval(settings)?;
    let span = |option: &fathom_model::OptionDoc| settings.span(option.name).unwrap_or_default();
    for option in [&TIMEOUT, &GIVE_UP] {
        if span(option) < Nanos::from_millis(1) {
            return Err(invalid_value(option.name, "1ms or more", &span(option)));
        }
    }
    if !(Nanos::from_millis(1)..=Nanos::from_secs(1)).contains(&span(&BUCKET)) {
        return Err(invalid_value(BUCKET.name, "1ms to 1s", &span(&BUCKET)));
    }
    Ok(())
}

/// Returns the time between two messages of a flow.
fn interval(settings: &fathom_model::Settings) -> Result<Nanos, Error> {
    let n_flows = settings.count(FLOWS.name).unwrap_or(1);
    let rate = settings.rate(RATE.name).map_or(0.0, PerSec::get);
    let per_flow = rate / fathom_model::units::approximate(n_flows);
    // Less than one in ten seconds is no flow that shows an outage.
    if per_flow < 0.1 || !per_flow.is_finite() {
        let given = settings.text(RATE.name).unwrap_or_default();
        return Err(invalid_value(RATE.name, "at least one message of each flow in 10 s", &given));
    }
    if rate > RATE_MAX {
        let most = "2M/s at most, which is more than one thread can send";
        return Err(invalid_value(RATE.name, most, &settings.text(RATE.name).unwrap_or_default()));
    }
    Ok(Nanos::from_secs_f64(1.0 / per_flow).max(Nanos(1)))
}

/// Makes a test ready: its flows are connected, and one message was answered.
///
/// # Errors
/// Nobody tells who it is, or a flow cannot be connected.
pub(crate) fn prepare(carrier: Carrier, role: &Role, policy: &Policy) -> Result<FlowsTest, Error> {
    let settings = &role.settings;
    let to: Destination = target::destination(role, policy)?;
    let dialect: Dialect = options::dialect(settings);
    let timeout = settings.span(TIMEOUT.name).unwrap_or(Nanos::from_secs(1));
    let config = DriveConfig {
        carrier,
        length: options::message_length(settings)?,
        give_up: settings.span(GIVE_UP.name).unwrap_or(Nanos::from_secs(1)),
        is_once: settings.flag(ONCE.name),
        timeout,
    };
    let (n_flows, interval) = (options::count(settings, &FLOWS), interval(settings)?);
    // Flows begin at random within their interval, so that they do not all send at once.
    let mut random = fastrand::Rng::with_seed(role.seed);
    let mut firsts: Vec<Nanos> = (0..n_flows).map(|_| Nanos(random.u64(0..interval.0.max(1)))).collect();
    firsts.sort_unstable();
    let tracks = firsts.into_iter().map(|first| FlowTrack::new(FlowSchedule { first, interval, timeout }));
    let sources = Sources::of(role, policy, &to)?;
    let driver = FlowDriver::connect(&config, to, sources, tracks.collect(), dialect)?;
    let bucket = settings.span(BUCKET.name).unwrap_or(Nanos::from_millis(10));
    Ok(FlowsTest { role: role.clone(), config, expected: options::expected(settings)?, bucket, driver })
}

impl Test for FlowsTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let Self { role, config, expected, bucket, driver } = *self;
        let (address, note) = (driver.address(), driver.note());
        let pool = WorkerPool {
            states: vec![driver],
            counters: COUNTERS,
            cores: &role.cores,
            until: EndCondition::PhasesOver,
        };
        let mut trial_results = pool.run(context, &mut (), |worker, driver| driver.run(&worker, &config, context))?;
        let results = std::mem::take(&mut trial_results.workers);
        let mut record = trial_results.record(role.side);
        // A schedule has no steady state to wait for.
        record.notes.retain(|note| note.id != "no-steady-state");
        let Some(DriveResults { tracks, response, connect, errors, behind, n_left }) = results.into_iter().next()
        else {
            return Ok(record);
        };
        add_outcome(&mut record, tracks, (bucket, context.phases.longest()));
        let targets = record.targets.get_or_insert_default();
        (targets.address, targets.weights, targets.n_expected) = (address, expected.weights, expected.n);
        record.distributions.insert(RESPONSE_TIME.to_owned(), response);
        if config.carrier == Carrier::Tcp {
            record.distributions.insert(CONNECT_TIME.to_owned(), connect);
        }
        record.totals.insert(count::SCHEDULE_LAG_NS_MAX.to_owned(), behind.0);
        let errors: FailureCounts = errors;
        record.errors.extend(errors);
        record.notes.extend(note);
        if behind > LAG_TOLD {
            record.notes.push(Note::new("sent-late", sent_late(behind, n_left)));
        }
        Ok(record)
    }
}

/// Says that this host did not keep to the schedule.
fn sent_late(behind: Nanos, n_left: u64) -> String {
    let late =
        format!("this host sent messages up to {behind} after they were due, so its own delays are among the times");
    match n_left {
        0 => late,
        n => format!("{late}; {} messages were due at the end and were not sent: give a lower --rate", grouped(n)),
    }
}

/// Adds what became of all flows to the record.
fn add_outcome(record: &mut Record, tracks: Vec<FlowTrack>, (bucket, span): (Nanos, Nanos)) {
    let mut buckets = EmptyBuckets::new(bucket, span);
    let (mut eventful, mut uneventful) = (Vec::new(), Vec::new());
    let mut answers: BTreeMap<String, u64> = BTreeMap::new();
    let mut outages = Histogram::new();
    let n_flows = u64::try_from(tracks.len()).unwrap_or(u64::MAX);
    for track in tracks {
        let schedule = track.schedule();
        let FinishedFlow { flow, answers: of_flow, lost_due, late_due } = track.finish();
        for number in 0..flow.n_due {
            buckets.add(schedule.due(number), |all| &mut all.due);
        }
        for due in lost_due {
            buckets.add(due, |all| &mut all.lost);
        }
        for due in late_due {
            buckets.add(due, |all| &mut all.late);
        }
        for (target, n) in of_flow {
            *answers.entry(target).or_default() += n;
        }
        for outage in &flow.outages {
            let end = outage.to_ns.unwrap_or_else(|| schedule.due(flow.n_due));
            outages.record(end.since(outage.from_ns).0);
        }
        let is_eventful = !flow.outages.is_empty() || flow.spells.len() > 1 || flow.n_broken() > 0;
        if is_eventful { eventful.push(flow) } else { uneventful.push(flow) }
    }
    add_totals(record, eventful.iter().chain(&uneventful), n_flows);
    let n_unlisted = uneventful.len().saturating_sub(UNEVENTFUL_LISTED);
    uneventful.truncate(UNEVENTFUL_LISTED);
    eventful.append(&mut uneventful);
    record.distributions.insert(distribution::OUTAGE.to_owned(), outages);
    record.targets = Some(TargetsRecord {
        answers,
        flows: eventful,
        n_flows_unlisted: u64::try_from(n_unlisted).unwrap_or(u64::MAX),
        buckets: Some(buckets.finish()),
        ..TargetsRecord::default()
    });
}

fn add_totals<'a>(record: &mut Record, flows: impl Iterator<Item = &'a TargetFlow>, n_flows: u64) {
    let mut totals: BTreeMap<&str, u64> = BTreeMap::from([(counter::FLOWS, n_flows)]);
    let mut add = |name: &'static str, n: u64| *totals.entry(name).or_default() += n;
    for flow in flows {
        let n_moves = u64::try_from(flow.moves().count()).unwrap_or(u64::MAX);
        add(counter::DUE, flow.n_due);
        add(counter::ANSWERED, flow.n_answered + flow.n_late);
        add(counter::LATE, flow.n_late);
        add(counter::LOST, flow.n_lost);
        add(count::UNSENT, flow.n_unsent);
        add(count::DUPLICATES, flow.n_duplicates);
        add(count::REORDERED, flow.n_reordered);
        add(counter::MOVES, n_moves);
        add(counter::MOVED_FLOWS, u64::from(n_moves > 0));
        add(counter::BROKEN, flow.n_broken());
        add(counter::FLOWS_WITH_OUTAGE, u64::from(!flow.outages.is_empty()));
    }
    record.totals.extend(totals.into_iter().map(|(name, n)| (name.to_owned(), n)));
}

/// A timeline that is being filled.
struct EmptyBuckets(FateBuckets);

impl EmptyBuckets {
    fn new(width: Nanos, span: Nanos) -> Self {
        let n = (span.0 / width.0.max(1) + 1).min(BUCKETS_MAX);
        let column = vec![0; usize::try_from(n).expect("it is bounded")];
        Self(FateBuckets {
            width_ns: width,
            due: column.clone(),
            answered: column.clone(),
            late: column.clone(),
            lost: column,
        })
    }

    fn add(&mut self, due: Nanos, column: impl FnOnce(&mut FateBuckets) -> &mut Vec<u64>) {
        let place = usize::try_from(due.0 / self.0.width_ns.0.max(1)).unwrap_or(usize::MAX);
        if let Some(n) = column(&mut self.0).get_mut(place) {
            *n += 1;
        }
    }

    /// Ends after the last bucket in which a message was due; what is neither late nor lost was answered.
    fn finish(self) -> FateBuckets {
        let mut all = self.0;
        let n = all.due.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
        for column in [&mut all.due, &mut all.late, &mut all.lost, &mut all.answered] {
            column.truncate(n);
        }
        for (place, answered) in all.answered.iter_mut().enumerate() {
            *answered = all.due[place] - all.late[place] - all.lost[place];
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{Settings, Side};

    use super::*;

    #[test]
    fn each_message_is_in_one_bucket_with_one_fate() {
        let ms = Nanos::from_millis;
        let schedule = FlowSchedule { first: ms(0), interval: ms(4), timeout: ms(50) };
        let mut track = FlowTrack::new(schedule);
        track.connected(Nanos::ZERO, "a");
        for number in 0..10 {
            track.take_due();
            if number < 5 {
                track.answered(number, None, schedule.due(number));
            }
        }
        let mut record = Record::empty(Side::Initiator);
        add_outcome(&mut record, vec![track], (ms(10), ms(100)));
        let targets = record.targets.unwrap();
        let buckets = targets.buckets.unwrap();
        assert_eq!(buckets.due, [3, 2, 3, 2]);
        assert_eq!((buckets.answered, buckets.lost), (vec![3, 2, 0, 0], vec![0, 0, 3, 2]));
        assert_eq!((record.totals[counter::DUE], record.totals[counter::LOST]), (10, 5));
        assert_eq!(record.distributions[distribution::OUTAGE].max(), Some(20_000_000));
    }

    #[test]
    fn the_rate_is_that_of_all_flows() {
        let of = |flows: &str, rate: &str| {
            interval(&Settings::default().with("flows", flows).with("rate", rate)).map_err(|error| error.to_string())
        };
        assert_eq!(of("100", "10k/s"), Ok(Nanos::from_millis(10)));
        assert_eq!(of("1", "2M/s"), Ok(Nanos(500)));
        let too_fast = of("100", "1G/s").unwrap_err();
        assert!(too_fast.contains("2M/s at most") && too_fast.contains("one thread"), "{too_fast}");
        assert!(of("100", "1/s").unwrap_err().contains("at least one message of each flow in 10 s"));
    }
}
