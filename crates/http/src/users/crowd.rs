//! A crowd of users, from the settings to the record.

use fathom_engine::{Error, Session};
use fathom_model::{Record, Role, units::Nanos};

use super::{Coming, Users};

/// Users who are ready to come, and where their connections go.
#[derive(Debug)]
pub struct Crowd {
    n_workers: u64,
}

/// The seats of one worker: what those who make its [`Users`] have to know.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The number of the worker, from 0.
    pub idx: usize,
    /// How many workers there are.
    pub n_workers: usize,
    /// Seats are numbered from 0 to one less than this.
    pub n_seats: u32,
    /// When the trial starts, on the monotonic clock.
    pub start: Nanos,
}

impl Crowd {
    /// Reads what a role says of servers, connections and threads; the servers are those of its `url`, several on a line each.
    ///
    /// A kind of scripted users has the rows of [`OPTIONS`](super::OPTIONS) among its options.
    ///
    /// # Errors
    /// Says what of the role cannot be done.
    pub fn prepare(kind: &'static str, role: &Role, coming: Coming) -> Result<Self, Error> {
        let _ = (kind, role, coming);
        Ok(Self { n_workers: 1 })
    }

    /// Counts everything from the start to the end, whatever the phases: for users who come to an end by themselves.
    #[must_use]
    pub fn counted(self) -> Self {
        self
    }

    /// How many threads the users are dealt out to.
    #[must_use]
    pub fn n_workers(&self) -> usize {
        usize::try_from(self.n_workers).unwrap_or(usize::MAX)
    }

    /// Runs the users through the phases of a session: the record of their requests, and what each worker's users bring home.
    ///
    /// `make` is called on each worker's own thread, before the start.
    ///
    /// # Errors
    /// When nothing could be recorded, or users could not be made.
    pub fn run<U: Users>(
        &self,
        session: &Session,
        make: impl Fn(&Row) -> Result<U, Error> + Sync,
    ) -> Result<(Record, Vec<U::Outcome>), Error> {
        let _ = (session, make);
        Err(Error::Unsupported { what: "users cannot come yet".to_owned(), hint: None })
    }
}
