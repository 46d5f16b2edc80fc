//! Reads the host's counters in a thread of their own, so that a slow file does not delay a stop request.

use std::{
    io,
    sync::mpsc::{self, SyncSender},
};

use fathom_engine::CounterFeed;
use fathom_sys::clock;

use super::send_or_report_size;
use crate::{
    AgentFailure, ErrorClass,
    connection::SendQueue,
    protocol::FromAgent,
    threads::{self, catch_panic},
};

/// Requests that may wait. A controller asks again only after a reply, so more come from something else.
const WAITING_MAX: usize = 1;

/// The thread; it ends when this is dropped.
pub(super) struct CounterReader {
    requests: SyncSender<()>,
}

impl CounterReader {
    /// Starts the thread, which sends the counters after each request.
    pub(super) fn start(feed: fn() -> Box<dyn CounterFeed>, outbox: SendQueue<FromAgent>) -> io::Result<Self> {
        let (requests, asked) = mpsc::sync_channel(WAITING_MAX);
        threads::start("counters", move || {
            let mut feed = feed();
            while asked.recv().is_ok() {
                let answer = match catch_panic(|| feed.changes(clock::now())) {
                    Ok(changes) => FromAgent::Counters(changes),
                    Err(text) => {
                        let failure =
                            AgentFailure::new(ErrorClass::Failed, format!("the counters cannot be read: {text}"));
                        FromAgent::Failed { role_id: None, failure }
                    }
                };
                send_or_report_size(&outbox, &answer);
            }
        })?;
        Ok(Self { requests })
    }

    /// Requests a reading. Returns false if too many requests wait already.
    pub(super) fn read(&self) -> bool {
        self.requests.try_send(()).is_ok()
    }
}
