//! The messages of a capture that will be sent, and what will not be.

use std::{fs::File, io, sync::Arc};

use super::{
    message::{self, RecordedMessage},
    turns::MessageSink,
};
use crate::{
    schedule::{Schedule, ScheduleBuilder},
    session_share::{LEFT_OUT, SessionShare},
    spool::{SpoolReader, SpoolWriter},
    timing::Timing,
};

/// What is to be sent: when, and the file with what it is.
#[derive(Debug)]
pub(super) struct RawRecording {
    file: Arc<File>,
    pub(super) schedule: Schedule,
    /// The messages that are not sent because their connections were not chosen.
    pub(super) n_not_chosen: u64,
}

impl RawRecording {
    pub(super) fn reader(&self, n_flows: usize) -> SpoolReader {
        SpoolReader::new(Arc::clone(&self.file), n_flows)
    }

    /// Why messages are not sent, with their number.
    pub(super) fn not_chosen(&self) -> Option<(&'static str, u64)> {
        (self.n_not_chosen > 0).then_some((LEFT_OUT, self.n_not_chosen))
    }
}

/// Collects messages, in any order of connections.
#[derive(Debug)]
pub(super) struct RawRecordingBuilder {
    sessions: SessionShare,
    spool: SpoolWriter,
    schedule: ScheduleBuilder<u64>,
    n_not_chosen: u64,
    /// What went wrong first; nothing is kept after it.
    error: Option<io::Error>,
}

impl RawRecordingBuilder {
    /// Begins with nothing.
    ///
    /// # Errors
    /// There is no place for the messages.
    pub(super) fn new(sessions: SessionShare, timing: Timing) -> io::Result<Self> {
        let (spool, schedule) = (SpoolWriter::new()?, ScheduleBuilder::new(timing));
        Ok(Self { sessions, spool, schedule, n_not_chosen: 0, error: None })
    }

    fn keep(&mut self, message: &RecordedMessage) -> io::Result<()> {
        let place = message::add(&mut self.spool, message)?;
        self.schedule.add(message.connection, message.time, place)
    }

    /// Returns the recording once all messages are known.
    ///
    /// # Errors
    /// The messages could not be kept.
    pub(super) fn finish(self) -> io::Result<RawRecording> {
        let Self { spool, schedule, n_not_chosen, error, .. } = self;
        match error {
            Some(error) => Err(error),
            None => Ok(RawRecording { file: spool.finish()?, schedule: schedule.finish(), n_not_chosen }),
        }
    }
}

impl MessageSink for RawRecordingBuilder {
    fn take(&mut self, message: RecordedMessage) {
        if !self.sessions.has(message.connection) {
            self.n_not_chosen += 1;
        } else if self.error.is_none() {
            self.error = self.keep(&message).err();
        }
    }

    fn end(&mut self, connection: u64) {
        self.schedule.end(&connection);
    }
}
