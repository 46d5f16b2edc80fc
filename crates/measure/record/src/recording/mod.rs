//! What the proxy has seen: a HAR log of bounded size, counts, and what the user should be told.

mod captured;
mod exchange;
mod facts;
mod har;
mod pages;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use fathom_model::units::Nanos;

pub(crate) use exchange::ExchangeBody;
pub use exchange::{Direction, OpenExchange};
pub use facts::RequestHead;
use pages::PageBook;

use crate::verification::Verification;

/// The most bytes of entries: an import takes 64 MiB, and the pages need less than the rest.
const LOG_BYTES_MAX: usize = 60 << 20;
/// Different notices of one recording: a user reads no more.
const NOTICES_MAX: usize = 200;
/// Hosts that are counted apart.
const HOSTS_MAX: usize = 10_000;

/// The requests and answers of a recording, shared by all connections of a proxy.
#[derive(Debug, Default)]
pub struct Recording {
    state: Mutex<RecordingState>,
}

#[derive(Debug, Default)]
struct RecordingState {
    /// By the time at which they began, as JSON.
    entries: BTreeMap<(Nanos, u64), String>,
    pages: PageBook,
    /// The bytes of the entries, and of the bodies that still arrive.
    n_bytes: usize,
    hosts: HashSet<String>,
    counts: RecordingCounts,
    notices: Vec<String>,
    told: HashSet<String>,
    last_traffic: Option<Nanos>,
    /// The monotonic and the wall time of the first request.
    first: Option<(Nanos, Nanos)>,
}

/// What a recording has counted. Every request has one place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordingCounts {
    /// With an answer, in the log.
    pub n_requests: u64,
    /// In the log, without an answer.
    pub n_failed: u64,
    /// Not in the log, because it is full.
    pub n_unrecorded: u64,
    /// Of hosts that the user did not name.
    pub n_of_other_hosts: u64,
    /// Bodies that were too long to be kept whole.
    pub n_cut_bodies: u64,
    /// Connections that became `WebSocket`s or other protocols by an upgrade.
    pub n_upgrades: u64,
    /// Tunnels whose bytes were passed on unseen.
    pub n_passed_tunnels: u64,
    /// Tunnels that failed before their first request.
    pub n_failed_tunnels: u64,
    /// Connections that were closed at once.
    pub n_turned_away: u64,
    /// Different hosts of the requests in the log.
    pub n_hosts: u64,
}

impl Recording {
    fn state(&self) -> MutexGuard<'_, RecordingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers up to now.
    #[must_use]
    pub fn counts(&self) -> RecordingCounts {
        let state = self.state();
        RecordingCounts { n_hosts: state.hosts.len() as u64, ..state.counts }
    }

    /// When a request or an answer began or ended last, by the monotonic clock.
    #[must_use]
    pub fn last_traffic(&self) -> Option<Nanos> {
        self.state().last_traffic
    }

    /// What the user has not been told yet; each text comes once.
    #[must_use]
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.state().notices)
    }

    /// The HAR 1.2 log of the finished requests.
    #[must_use]
    pub fn har(&self, verification: Verification) -> String {
        let state = self.state();
        har::log(&state.pages, state.entries.values(), verification)
    }

    /// Changes the counts.
    pub(crate) fn count(&self, change: impl FnOnce(&mut RecordingCounts)) {
        change(&mut self.state().counts);
    }

    /// Tells the user something, once.
    pub(crate) fn tell(&self, notice: String) {
        let mut state = self.state();
        if state.told.len() < NOTICES_MAX && state.told.insert(notice.clone()) {
            state.notices.push(notice);
        }
    }

    /// The wall time of a request that begins at `now`: as far from that of the first one as the monotonic clock says, so that a
    /// date that is set during a recording changes no pause.
    fn wall_at(&self, now: Nanos, wall_now: impl FnOnce() -> Nanos) -> Nanos {
        let (first, wall) = *self.state().first.get_or_insert_with(|| (now, wall_now()));
        wall + now.since(first)
    }

    /// The page that a request belongs to.
    fn page_of(&self, head: &RequestHead, now: Nanos, begin_wall: Nanos) -> String {
        let mut state = self.state();
        let quiet = state.last_traffic.map(|last| now.since(last));
        state.pages.page_of(head, quiet, begin_wall)
    }

    fn saw_traffic(&self, now: Nanos) {
        self.state().last_traffic = Some(now);
    }

    /// Takes room for bytes of a body; whether there is any.
    fn reserve(&self, n_bytes: usize) -> bool {
        let mut state = self.state();
        let fits = state.n_bytes + n_bytes <= LOG_BYTES_MAX;
        state.n_bytes += if fits { n_bytes } else { 0 };
        fits
    }

    /// Gives back what was taken for bodies.
    fn release(&self, n_bytes: usize) {
        self.state().n_bytes -= n_bytes;
    }

    /// Replaces the room of two bodies by an entry, if it fits.
    fn add(&self, begin: Nanos, host: &str, entry: String, n_reserved: usize) -> bool {
        let mut state = self.state();
        state.n_bytes -= n_reserved;
        if state.n_bytes + entry.len() > LOG_BYTES_MAX {
            return false;
        }
        state.n_bytes += entry.len();
        if state.hosts.len() < HOSTS_MAX {
            state.hosts.insert(host.to_owned());
        }
        let number = state.entries.len() as u64;
        state.entries.insert((begin, number), entry);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_that_is_set_during_a_recording_changes_no_pause() {
        let recording = Recording::default();
        let at = |now: u64, wall: u64| recording.wall_at(Nanos(now), || Nanos(wall));
        assert_eq!([at(10, 1000), at(15, 9000), at(30, 0)], [Nanos(1000), Nanos(1005), Nanos(1020)]);
    }

    #[test]
    fn the_log_has_a_limit_that_bodies_on_their_way_count_towards() {
        let recording = Recording::default();
        assert!(recording.reserve(LOG_BYTES_MAX - 1));
        assert!(!recording.reserve(2));
        assert!(!recording.add(Nanos(0), "a.test", "{}".to_owned(), 0), "it is full");
        assert!(recording.add(Nanos(0), "a.test", "{}".to_owned(), 2), "the body becomes the entry");
        assert_eq!(recording.counts().n_hosts, 1);
    }

    #[test]
    fn a_notice_comes_once_and_their_number_is_bounded() {
        let recording = Recording::default();
        for n in (0..2 * NOTICES_MAX).chain(0..2) {
            recording.tell(format!("notice {n}"));
        }
        assert_eq!(recording.take_notices().len(), NOTICES_MAX);
        assert!(recording.take_notices().is_empty());
    }
}
