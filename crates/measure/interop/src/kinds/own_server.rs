//! Our own server of another tool, as the responder of a test in a lab.

use std::{net::SocketAddr, panic::resume_unwind, thread::JoinHandle};

use fathom_engine::{EndCondition, Error, StopFlag, Test, TrialContext, WorkerPool};
use fathom_model::{Endpoints, Note, Record, Role, units::Nanos};
use fathom_sys::{clock, process::threads};
use fathom_transport::connection_setup;

/// How soon the end of the other side is noticed.
const POLL_INTERVAL: Nanos = Nanos::from_millis(20);

/// A server that serves from the preparation on, because its client connects during its own.
pub(super) struct OwnServer {
    role: Role,
    address: SocketAddr,
    stop: StopFlag,
    /// Returns the number of tests that clients brought to an end.
    server: Option<JoinHandle<Result<u64, Error>>>,
}

impl OwnServer {
    /// Starts a server that listens at `address`; `serve` runs it until its flag is set, and returns the number of finished tests.
    pub(super) fn start(
        role: &Role,
        address: SocketAddr,
        serve: impl FnOnce(&StopFlag) -> Result<u64, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let stop = StopFlag::default();
        let flag = stop.clone();
        let server = threads::start("server", move || serve(&flag)).map_err(|cause| Error::System {
            what: format!("start a thread for the server of {}", role.kind),
            cause,
        })?;
        Ok(Self { role: role.clone(), address, stop, server: Some(server) })
    }

    /// Ends the server, which takes only moments.
    fn end(&mut self) -> Option<Result<u64, Error>> {
        self.stop.finish();
        let served = self.server.take()?.join();
        Some(served.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // The count is not needed here; only the server must end.
        let _ = self.end();
    }
}

impl Test for OwnServer {
    fn endpoints(&self) -> Endpoints {
        connection_setup::endpoint(self.address)
    }

    fn run(mut self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let pool = WorkerPool { states: vec![()], counters: &["tests"], cores: &[], until: EndCondition::PeerFinished };
        let trial_results = pool.run(context, &mut (), |worker, ()| {
            while !worker.is_over() {
                clock::sleep_until(clock::now() + POLL_INTERVAL);
            }
            Ok(())
        })?;
        let mut record = trial_results.record(self.role.side);
        let n_finished = self.end().transpose()?.unwrap_or(0);
        record.totals.insert("tests".to_owned(), n_finished);
        if n_finished == 0 {
            record.notes.push(Note::new("no-test", "no client brought its test to an end"));
        }
        Ok(record)
    }
}
