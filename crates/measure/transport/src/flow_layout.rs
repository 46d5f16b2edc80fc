//! Distributes the flows of a side over its workers and their descriptor tables.

use fathom_engine::Error;
use fathom_model::Role;
use fathom_sys::process::limits;

use crate::options::{self, WORKERS, count};

/// Descriptors of a table besides those of flows: a ring or an epoll, listeners, standard streams and files.
const DESCRIPTORS_MORE: u64 = 128;
/// The most flows whose `TCP_INFO` is sampled, at a descriptor and some microseconds each: they are representative of the rest.
pub(crate) const WATCHED_MAX: usize = 64;

/// Whether the workers of a side share the descriptor table of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DescriptorTables {
    /// One table holds all flows.
    Shared,
    /// Each worker has its own.
    PerWorker,
}

/// The distribution of the flows of a side over its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowLayout {
    pub(crate) n_flows: usize,
    pub(crate) n_workers: usize,
    pub(crate) tables: DescriptorTables,
}

impl FlowLayout {
    /// Uses the requested number of workers, or one per core; more if their tables would not hold the flows.
    ///
    /// # Errors
    /// The tables of the requested workers do not hold the flows.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_response::sizes;

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
