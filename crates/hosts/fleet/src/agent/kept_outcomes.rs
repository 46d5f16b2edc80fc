//! Outcomes of many roles that leave this agent as one: their records wait here until the controller asks for the merged ones.
//!
//! Of each outcome a row goes on at once: the counts over time and the totals, without distributions and samples of connections. The
//! progress of these roles is added up, too. How records are merged is given by the binary.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fathom_model::{Note, Record, Side, probe::ProbeRecord, units::Nanos};

use crate::protocol::{FromAgent, RoleId, RoleOutcome, RoleProgress, clock_offset::ClockOffset};

/// Merges records, each with the offset of its clock from that of the result in nanoseconds.
pub type MergeRecords = fn(&[(Record, i64)]) -> Option<Record>;

/// Agents report their progress twice a second, and so does their sum.
const PROGRESS_EVERY: Nanos = Nanos::from_millis(500);

/// The kept outcomes of an agent, its own and those of its members.
#[derive(Clone, Default)]
pub(crate) struct KeptOutcomes(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    records: BTreeMap<RoleId, (Record, ClockOffset)>,
    initiators: Option<SideProgress>,
    responders: Option<SideProgress>,
}

/// The progress of all kept roles of a side since the last report.
struct SideProgress {
    /// The role that the report is about, for all.
    role: RoleId,
    growth: u64,
    since: Nanos,
}

impl KeptOutcomes {
    /// Keeps the record of an outcome, whose host has a clock with this offset, and returns the row of it.
    pub(crate) fn keep(&self, role_id: RoleId, outcome: RoleOutcome, offset: ClockOffset) -> RoleOutcome {
        let RoleOutcome { record, host, unavailable } = outcome;
        let row = row_of(&record);
        self.lock().records.insert(role_id, (record, offset));
        RoleOutcome { record: row, host, unavailable }
    }

    /// Adds the progress of a role; returns the message with that of all if it is due.
    pub(crate) fn add_progress(
        &self,
        now: Nanos,
        (role_id, side): (RoleId, Side),
        progress: RoleProgress,
    ) -> Option<FromAgent> {
        let mut kept = self.lock();
        let all = match side {
            Side::Initiator => &mut kept.initiators,
            Side::Responder => &mut kept.responders,
        };
        let since = now.since(progress.span_ns);
        let all = all.get_or_insert(SideProgress { role: role_id, growth: 0, since });
        all.growth += progress.growth;
        let span = now - all.since;
        if span < PROGRESS_EVERY {
            return None;
        }
        let progress = RoleProgress { growth: all.growth, span_ns: span, p99_ns: None, ..progress };
        (all.growth, all.since) = (0, now);
        Some(FromAgent::Interval { role_id: all.role, progress })
    }

    /// Merges the records of each list of roles, and forgets everything.
    pub(crate) fn merge(&self, parts: &[Vec<RoleId>], merge: MergeRecords) -> Vec<Option<Record>> {
        let mut records = std::mem::take(&mut *self.lock()).records;
        let of_part = |roles: &Vec<RoleId>| {
            let kept = roles.iter().filter_map(|role| records.remove(role));
            merge(&kept.map(|(record, offset)| (record, offset.ns)).collect::<Vec<_>>())
        };
        parts.iter().map(of_part).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most outages of a pair that its row has.
const OUTAGES_MAX: usize = 64;

/// Returns what is told of a record beside the merged one: everything of bounded size. What probes found of a path is about that path alone,
/// so they keep it, with their round trips; a list of ports may be long.
fn row_of(record: &Record) -> Record {
    let probe = record.probe.as_ref().map(|probe| {
        let outages = probe.outages.iter().take(OUTAGES_MAX).cloned().collect();
        ProbeRecord { ports: Vec::new(), outages, ..probe.clone() }
    });
    let is_cut = record.probe.as_ref().is_some_and(|probe| probe.outages.len() > OUTAGES_MAX);
    let cut =
        is_cut.then(|| Note::new("outages-cut", format!("of each pair the first {OUTAGES_MAX} outages are kept")));
    Record {
        notes: record.notes.iter().cloned().chain(cut).collect(),
        distributions: if probe.is_some() { record.distributions.clone() } else { BTreeMap::new() },
        flows: Vec::new(),
        sampled: Vec::new(),
        users: None,
        probe,
        ..record.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fathom_model::Histogram;

    fn outcome(n: u64) -> RoleOutcome {
        let mut times = Histogram::new();
        times.record(n);
        let record = Record {
            totals: [("sent".to_owned(), n)].into(),
            distributions: [("rtt_ns".to_owned(), times)].into(),
            ..Record::empty(Side::Initiator)
        };
        RoleOutcome { record, host: None, unavailable: Vec::new() }
    }

    #[test]
    fn a_row_has_the_totals_and_the_merged_record_has_the_distributions_of_all_that_were_asked_for() {
        let kept = KeptOutcomes::default();
        let rows: Vec<RoleOutcome> = (1..=3)
            .map(|n| kept.keep(RoleId(n), outcome(n), ClockOffset { ns: 5, ..ClockOffset::default() }))
            .collect();
        assert!(rows.iter().all(|row| row.record.distributions.is_empty() && row.record.totals.contains_key("sent")));
        let merge: MergeRecords = |parts| {
            let mut all = parts.first()?.0.clone();
            all.totals.insert("n".to_owned(), u64::try_from(parts.len()).unwrap());
            all.totals.insert("ahead".to_owned(), parts.iter().map(|(_, ns)| ns.unsigned_abs()).sum());
            Some(all)
        };
        let merged = kept.merge(&[vec![RoleId(1), RoleId(3), RoleId(9)], vec![RoleId(9)]], merge);
        let first = merged[0].as_ref().unwrap();
        assert_eq!((first.totals["n"], first.totals["ahead"], first.distributions.len()), (2, 10, 1));
        assert_eq!(merged[1], None);
        assert_eq!(kept.merge(&[vec![RoleId(2)]], merge), [None], "the rest is forgotten");
    }

    #[test]
    fn a_row_of_probes_keeps_what_they_found_of_its_path() {
        let mut probed = outcome(7);
        probed.record.probe = Some(ProbeRecord { target: "192.0.2.7".to_owned(), ..ProbeRecord::default() });
        let row = KeptOutcomes::default().keep(RoleId(1), probed, ClockOffset::default()).record;
        assert_eq!(row.probe.map(|probe| probe.target).as_deref(), Some("192.0.2.7"));
        assert_eq!(row.distributions["rtt_ns"].count(), 1);
    }

    #[test]
    fn progress_of_many_roles_is_one_report_with_their_sum() {
        let kept = KeptOutcomes::default();
        let millis = Nanos::from_millis;
        let of = |growth| RoleProgress {
            elapsed_ns: millis(900),
            growth,
            span_ns: millis(100),
            measuring: true,
            p99_ns: None,
        };
        let add = |at: u64, role| kept.add_progress(millis(at), (RoleId(role), Side::Responder), of(10));
        assert!((1..=100).all(|role| add(1_000 + role, role).is_none()), "half a second is not over");
        let Some(FromAgent::Interval { role_id, progress }) = add(1_401, 101) else { panic!("it is over") };
        // The first report was about the 100 ms before it.
        assert_eq!((role_id, progress.growth, progress.span_ns), (RoleId(1), 1_010, millis(500)));
        assert!(add(1_402, 1).is_none());
    }
}
