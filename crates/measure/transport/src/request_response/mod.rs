//! Request and response over TCP connections that stay open.
//!
//! A worker with one flow holds it with blocking calls ([`blocking`]); one with many, with bursts or with a schedule serves them over a
//! reactor: [`initiator`] on the initiator's side, [`responder`] on the responder's. Connections are opened while the trial is
//! prepared, each on the thread of its worker, which has a table of descriptors of its own when one would not hold all flows.

mod blocking;
pub(crate) mod connection;
mod initiator;
mod multiplexed;
pub(crate) mod peer_timeout;
mod recorder;
mod responder;
mod results;
pub(crate) mod sizes;
pub(crate) mod udp;

use fathom_engine::{
    Error, IoBackend, LoadModel, Test,
    pace::{ArrivalProcess, Profile},
};
use fathom_model::{OptionDoc, Role, Settings, ValueKind, units::PerSec};
use fathom_sys::{policy::Policy, process::limits};

use crate::options::{self, SocketOptions, WORKERS, count, invalid_value};
pub(crate) use results::NOT_STARTED;
use sizes::{MessageSizes, SizeBounds};

/// The number of connections.
pub(crate) const FLOWS: OptionDoc = OptionDoc {
    name: "flows",
    value: ValueKind::Count(1, 1_000_000),
    default: Some("1"),
    help: "number of parallel flows",
};
/// How many requests are under way on each flow.
pub(crate) const BURST: OptionDoc = OptionDoc {
    name: "burst",
    value: ValueKind::Count(1, 1024),
    default: Some("1"),
    help: "requests in flight per flow",
};
/// Whether to look for answers all the time.
pub(crate) const SPIN: OptionDoc = OptionDoc {
    name: "spin",
    value: ValueKind::Flag,
    default: None,
    help: "busy-wait for messages instead of sleeping; only with one flow per thread",
};
/// The kernel's way.
pub(crate) const REACTOR: OptionDoc = OptionDoc {
    name: "reactor",
    value: ValueKind::Choice(&["auto", "io_uring", "epoll"]),
    default: Some("auto"),
    help: "how the kernel serves many connections; auto: io_uring if available, else epoll",
};
/// How many transactions are started.
pub(crate) const RATE: OptionDoc = OptionDoc {
    name: "rate",
    value: ValueKind::Rate,
    default: None,
    help: "transactions started per second, whether earlier ones are answered or not",
};
/// How they are spread over time.
pub(crate) const ARRIVALS: OptionDoc = OptionDoc {
    name: "arrivals",
    value: ValueKind::Choice(&["constant", "poisson"]),
    default: Some("constant"),
    help: "constant: evenly spaced; poisson: random, like independent users",
};

/// Descriptors of a table beside those of flows: a ring or an epoll, listeners, standard streams and files.
const DESCRIPTORS_MORE: u64 = 128;
/// Of that many flows the conductor samples `TCP_INFO`, at a descriptor and some microseconds each: they show what the others do.
const WATCHED_MAX: usize = 64;
/// A transaction every 100 ns is more than any machine starts.
const RATE_MAX: f64 = 1e7;

/// A schedule of transactions, all workers together.
#[derive(Debug, Clone)]
pub(crate) struct OpenLoad {
    pub(crate) profile: Profile,
    pub(crate) process: ArrivalProcess,
}

impl OpenLoad {
    /// What settings of an open load ask for.
    ///
    /// # Errors
    /// No rate, or one that no machine keeps.
    pub(crate) fn of(settings: &Settings, seed: u64) -> Result<Self, Error> {
        let rate = settings.rate(RATE.name);
        let profile = Profile::steady(rate.unwrap_or_default()).ok_or_else(|| {
            let given = rate.map_or("nothing".to_owned(), |rate| rate.to_string());
            invalid_value(RATE.name, "the transactions per second that are to be started", &given)
        })?;
        if profile.peak() > PerSec::new(RATE_MAX).unwrap_or_default() {
            return Err(invalid_value(RATE.name, "at most 10M transactions per second", &profile.peak()));
        }
        let process = match settings.text(ARRIVALS.name).as_deref() {
            Some("poisson") => ArrivalProcess::Poisson { seed },
            _ => ArrivalProcess::Constant,
        };
        Ok(Self { profile, process })
    }
}

/// Whether the workers of a side share the process's table of descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DescriptorTables {
    /// One table holds all flows.
    Shared,
    /// Each worker has one of its own.
    PerWorker,
}

/// How the flows of a side are spread over its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowLayout {
    pub(crate) n_flows: usize,
    pub(crate) n_workers: usize,
    pub(crate) tables: DescriptorTables,
}

impl FlowLayout {
    /// As many workers as were asked for, or as there are cores; more when their tables would not hold the flows.
    ///
    /// # Errors
    /// The tables of the workers that were asked for do not hold the flows.
    pub(crate) fn of(role: &Role) -> Result<Self, Error> {
        let cannot = |cause| Error::System { what: "read the limit of open descriptors".to_owned(), cause };
        let per_table = limits::descriptors_max().map_err(cannot)?.saturating_sub(DESCRIPTORS_MORE).max(1);
        Self::with_table_size(role, usize::try_from(per_table).unwrap_or(usize::MAX))
    }

    fn with_table_size(role: &Role, per_table: usize) -> Result<Self, Error> {
        let (n_flows, usual) = options::flows_and_workers(role);
        if n_flows.saturating_add(WATCHED_MAX.min(n_flows)) <= per_table {
            return Ok(Self { n_flows, n_workers: usual, tables: DescriptorTables::Shared });
        }
        let needed = n_flows.div_ceil(per_table);
        match count(&role.settings, &WORKERS) {
            Some(asked) if asked < needed => Err(Error::Unsupported {
                what: format!(
                    "{n_flows} flows are more than {asked} workers may have open, as each may have {per_table}"
                ),
                hint: Some(format!(
                    "set --threads {needed} or more, raise the limit (ulimit -n), or ask for fewer flows"
                )),
            }),
            _ => Ok(Self { n_flows, n_workers: usual.max(needed), tables: DescriptorTables::PerWorker }),
        }
    }

    /// The numbers of the flows of a worker.
    pub(crate) fn flows_of(self, worker: usize) -> impl ExactSizeIterator<Item = usize> {
        (worker..self.n_flows).step_by(self.n_workers)
    }
}

/// What a side knows before it opens anything.
#[derive(Debug)]
pub(crate) struct RrConfig {
    pub(crate) role: Role,
    pub(crate) sizes: MessageSizes,
    pub(crate) spread: FlowLayout,
    pub(crate) burst: usize,
    pub(crate) open_load: Option<OpenLoad>,
    pub(crate) io_backend: IoBackend,
    pub(crate) options: SocketOptions,
}

/// Whether the sizes and the options of sockets can be.
///
/// # Errors
/// Names the option.
pub(crate) fn check(settings: &Settings) -> Result<(), Error> {
    MessageSizes::of(settings, 0, SizeBounds::STREAM)?;
    SocketOptions::check(settings)
}

/// Makes a side ready; without a schedule the load is closed.
///
/// # Errors
/// Says what of the role cannot be done.
pub(crate) fn prepare(
    kind: &'static str,
    (role, policy): (&Role, &Policy),
    schedule: Option<OpenLoad>,
) -> Result<Box<dyn Test>, Error> {
    let sizes = MessageSizes::of(&role.settings, role.seed, SizeBounds::STREAM)?;
    let spread = FlowLayout::of(role)?;
    let burst = count(&role.settings, &BURST).unwrap_or(1);
    let has_one_each = spread.n_flows <= spread.n_workers && burst == 1 && schedule.is_none();
    let spins = role.settings.flag(SPIN.name);
    if spins && !has_one_each {
        return Err(Error::Unsupported {
            what: "to look for messages all the time takes a worker for each flow".to_owned(),
            hint: Some(format!("set --threads {} without --burst and --rate, or leave out --spin", spread.n_flows)),
        });
    }
    if has_one_each {
        return blocking::prepare(kind, role, (sizes, &SocketOptions::of(role, policy)));
    }
    let model = if schedule.is_some() { LoadModel::Open } else { LoadModel::Closed };
    let way = select_backend(role, spread, model)?;
    let options = SocketOptions::of(role, policy);
    multiplexed::prepare(
        kind,
        RrConfig { role: role.clone(), sizes, spread, burst, open_load: schedule, io_backend: way, options },
    )
}

/// The reactor that was asked for; of itself epoll where flows are too many for one table, as `io_uring` takes longer than a
/// trial to end the waiting receives of a hundred thousand sockets.
fn select_backend(role: &Role, spread: FlowLayout, model: LoadModel) -> Result<IoBackend, Error> {
    let is_chosen = role.settings.text(REACTOR.name).is_some_and(|word| word != "auto");
    if is_chosen || spread.tables == DescriptorTables::Shared {
        return IoBackend::of(&role.settings, model);
    }
    let mut way = IoBackend::of(&role.settings.clone().with(REACTOR.name, "epoll"), model)?;
    "epoll, as io_uring is slow to let go of that many flows".clone_into(&mut way.note.text);
    Ok(way)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_flows_that_tables_are_split_are_served_by_epoll_unless_asked_otherwise() {
        let role = sizes::tests::role("1", "1");
        let split = FlowLayout { n_flows: 100_000, n_workers: 6, tables: DescriptorTables::PerWorker };
        assert_eq!(select_backend(&role, split, LoadModel::Closed).unwrap().reactor, fathom_engine::ReactorKind::Epoll);
    }

    fn spread(flows: &str, workers: Option<&str>) -> Result<FlowLayout, Error> {
        let mut role = sizes::tests::role("1", "1");
        role.cores = vec![0, 1];
        role.settings.set("flows", flows);
        if let Some(workers) = workers {
            role.settings.set("threads", workers);
        }
        FlowLayout::with_table_size(&role, 10_000)
    }

    #[test]
    fn flows_that_one_table_does_not_hold_get_as_many_workers_as_their_tables_take() {
        let shared = FlowLayout { n_flows: 9_000, n_workers: 2, tables: DescriptorTables::Shared };
        assert_eq!(spread("9000", None).unwrap(), shared);
        let own = |n_flows, n_workers| FlowLayout { n_flows, n_workers, tables: DescriptorTables::PerWorker };
        assert_eq!(spread("9950", None).unwrap(), own(9_950, 2));
        assert_eq!(spread("100000", None).unwrap(), own(100_000, 10));
        assert_eq!(spread("100000", Some("20")).unwrap(), own(100_000, 20));
    }

    #[test]
    fn too_few_workers_are_refused_with_how_many_it_takes() {
        let refused = spread("100000", Some("4")).unwrap_err();
        assert!(refused.hint().unwrap().starts_with("set --threads 10 or more"), "{refused}");
    }

    #[test]
    fn every_flow_has_one_worker() {
        let spread = FlowLayout { n_flows: 7, n_workers: 3, tables: DescriptorTables::Shared };
        let mut all: Vec<usize> = (0..3).flat_map(|worker| spread.flows_of(worker)).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..7));
    }
}
