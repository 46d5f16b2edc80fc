//! The requests of a recording that will be sent, and those that will not.

use std::{collections::BTreeMap, fs::File, io, sync::Arc};

use super::{
    choice::Choice,
    rewrite::Rewrite,
    spooled_exchange::{self, RecordedAnswers},
};
use crate::{
    RecordedExchange,
    schedule::{Schedule, ScheduleBuilder},
    spool::{SpoolReader, SpoolWriter},
    timing::Timing,
};

/// What is to be sent: when, and the file with what it is.
#[derive(Debug)]
pub(super) struct Recording {
    file: Arc<File>,
    pub(super) schedule: Schedule,
    /// The requests that are not sent, by the reason.
    pub(super) left_out: BTreeMap<&'static str, u64>,
    /// The requests that were recorded over HTTP/2.
    pub(super) n_over_http2: u64,
    /// The connections of which a part was not decrypted, so that its requests are in no count, by the reason.
    pub(super) undecrypted: BTreeMap<&'static str, u64>,
}

impl Recording {
    /// A reader for one worker with so many users.
    pub(super) fn reader(&self, n_users: usize) -> SpoolReader {
        SpoolReader::new(Arc::clone(&self.file), n_users)
    }
}

/// Collects the requests of a recording, in any order of connections.
#[derive(Debug)]
pub(super) struct RecordingBuilder {
    choice: Choice,
    rewrite: Rewrite,
    answers: RecordedAnswers,
    writer: SpoolWriter,
    /// By connection and lane.
    schedule: ScheduleBuilder<(u64, Option<u32>)>,
    left_out: BTreeMap<&'static str, u64>,
    n_over_http2: u64,
    /// What went wrong first; nothing is kept after it.
    error: Option<io::Error>,
}

impl RecordingBuilder {
    /// Begins with nothing.
    ///
    /// # Errors
    /// There is no place for the requests.
    pub(super) fn new(choice: Choice, rewrite: Rewrite, timing: Timing, answers: RecordedAnswers) -> io::Result<Self> {
        Ok(Self {
            choice,
            rewrite,
            answers,
            writer: SpoolWriter::new()?,
            schedule: ScheduleBuilder::new(timing),
            left_out: BTreeMap::new(),
            n_over_http2: 0,
            error: None,
        })
    }

    /// Adds a whole request, unless it is not to be sent. Those of a lane of a connection come in their order.
    pub(super) fn add(&mut self, mut exchange: RecordedExchange) {
        if let Some(why) = self.choice.refuses(&exchange) {
            *self.left_out.entry(why).or_default() += 1;
            return;
        }
        if self.error.is_some() {
            return;
        }
        self.rewrite.apply(&mut exchange);
        match self.keep(&exchange) {
            Ok(()) => {}
            Err(error) => self.error = Some(error),
        }
    }

    fn keep(&mut self, exchange: &RecordedExchange) -> io::Result<()> {
        let place = spooled_exchange::add(&mut self.writer, exchange, self.answers)?;
        self.n_over_http2 += u64::from(exchange.lane.is_some());
        self.schedule.add((exchange.connection, exchange.lane), exchange.first_byte, place)
    }

    /// Returns the recording once all its requests are known. `left_out` are those that are not whole, by the reason.
    ///
    /// # Errors
    /// The requests could not be kept.
    pub(super) fn finish(mut self, left_out: impl IntoIterator<Item = (&'static str, u64)>) -> io::Result<Recording> {
        if let Some(error) = self.error {
            return Err(error);
        }
        for (why, n) in left_out {
            *self.left_out.entry(why).or_default() += n;
        }
        Ok(Recording {
            file: self.writer.finish()?,
            schedule: self.schedule.finish(),
            left_out: self.left_out,
            n_over_http2: self.n_over_http2,
            undecrypted: BTreeMap::new(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use fathom_model::{Settings, units::Nanos};

    use super::*;
    use crate::sending::spooled_exchange::{SpooledExchange, tests::exchange};

    /// A recording of these requests, with answers to compare.
    pub(in crate::sending) fn recording(timing: Timing, exchanges: Vec<RecordedExchange>) -> Recording {
        let choice = Choice::of(&Settings::default(), 0).unwrap();
        let mut builder = RecordingBuilder::new(choice, Rewrite::default(), timing, RecordedAnswers::Kept).unwrap();
        for exchange in exchanges {
            builder.add(exchange);
        }
        builder.finish([]).unwrap()
    }

    #[test]
    fn requests_of_a_connection_follow_each_other_and_are_due_by_the_timing() {
        let get = |connection, at, path: &str| exchange(connection, at, &format!("GET {path} HTTP/1.1\r\n\r\n"));
        let requests = || vec![get(7, 1030, "/c"), get(3, 1000, "/a"), get(3, 1010, "/b"), get(7, 1040, "/d")];
        for (timing, wanted) in [
            (Timing::Recorded { speed: 1.0 }, [("/a", 0), ("/b", 10), ("/c", 30), ("/d", 40)]),
            (Timing::Recorded { speed: 10.0 }, [("/a", 0), ("/b", 1), ("/c", 3), ("/d", 4)]),
            (
                Timing::Rate(fathom_model::units::PerSec::new(500.0).unwrap()),
                [("/a", 0), ("/b", 2), ("/c", 4), ("/d", 6)],
            ),
        ] {
            let recording = recording(timing, requests());
            let mut reader = recording.reader(1);
            let mut sent = Vec::new();
            let schedule = &recording.schedule;
            for session in schedule.sessions() {
                let mut number = Some(*session);
                while let Some(this) = number {
                    let request = schedule.request(this);
                    let exchange = SpooledExchange::of(reader.read(request.place).unwrap()).unwrap();
                    let text = String::from_utf8_lossy(exchange.request).into_owned();
                    sent.push((text.split(' ').nth(1).unwrap().to_owned(), request.due));
                    number = schedule.next(this);
                }
            }
            let wanted = wanted.map(|(path, due)| (path.to_owned(), Nanos::from_millis(due)));
            assert_eq!(sent, wanted, "{timing:?}");
            assert_eq!(schedule.span, Nanos::from_millis(40));
        }
    }

    #[test]
    fn requests_that_are_left_out_are_counted_by_their_reason() {
        let choice = Choice::of(&Settings::default().with("methods", "GET"), 0).unwrap();
        let timing = Timing::AsAnswered;
        let mut builder = RecordingBuilder::new(choice, Rewrite::default(), timing, RecordedAnswers::Dropped).unwrap();
        builder.add(exchange(0, 0, "POST / HTTP/1.1\r\n\r\n"));
        builder.add(exchange(1, 0, "GET / HTTP/1.1\r\n\r\n"));
        let recording = builder.finish([("malformed", 2)]).unwrap();
        assert_eq!(recording.left_out, BTreeMap::from([("malformed", 2), ("of other methods than --methods", 1)]));
        assert_eq!((recording.schedule.n_requests(), recording.schedule.sessions().len()), (1, 1));
    }
}
