//! The requests of a recording that will be sent: when each is due, and which one follows it on its connection.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io,
    sync::Arc,
};

use fathom_model::units::{Nanos, PerSec};

use super::{
    choice::Choice,
    rewrite::Rewrite,
    spool::{SpoolPlace, SpoolReader, SpoolWriter},
    timing::{Timing, rate_time},
};
use crate::RecordedExchange;

/// The last request of a connection has none behind it.
const NO_NEXT: u32 = u32::MAX;

/// A request that will be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct DueRequest {
    /// Since the start.
    pub(super) due: Nanos,
    pub(super) place: SpoolPlace,
    next: u32,
}

/// The number of a request in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestNumber(u32);

/// What is to be sent. 16 bytes of each request are in memory, the others on disk.
#[derive(Debug)]
pub(super) struct Recording {
    file: Arc<File>,
    requests: Vec<DueRequest>,
    /// The first request of each connection, by the time at which they are due.
    sessions: Vec<RequestNumber>,
    /// The time from the first request to the last in the recording.
    pub(super) span: Nanos,
    /// The requests that are not sent, by the reason.
    pub(super) left_out: BTreeMap<&'static str, u64>,
}

impl Recording {
    pub(super) fn request(&self, number: RequestNumber) -> &DueRequest {
        &self.requests[number.0 as usize]
    }

    /// The request after this one on its connection.
    pub(super) fn next(&self, number: RequestNumber) -> Option<RequestNumber> {
        Some(RequestNumber(self.request(number).next)).filter(|next| next.0 != NO_NEXT)
    }

    /// The first requests of all connections.
    pub(super) fn sessions(&self) -> &[RequestNumber] {
        &self.sessions
    }

    pub(super) fn n_requests(&self) -> u64 {
        self.requests.len() as u64
    }

    pub(super) fn reader(&self) -> SpoolReader {
        SpoolReader::new(Arc::clone(&self.file))
    }
}

/// Collects the requests of a recording, in any order of connections.
#[derive(Debug)]
pub(super) struct RecordingBuilder {
    choice: Choice,
    rewrite: Rewrite,
    timing: Timing,
    writer: SpoolWriter,
    /// Due at their time in the recording, until all are known.
    requests: Vec<DueRequest>,
    sessions: Vec<RequestNumber>,
    /// The last request of each connection.
    last_of: HashMap<u64, RequestNumber>,
    left_out: BTreeMap<&'static str, u64>,
    /// What went wrong first; nothing is kept after it.
    error: Option<io::Error>,
}

impl RecordingBuilder {
    /// Begins with nothing. Answers are kept if they will be compared.
    ///
    /// # Errors
    /// There is no place for the requests.
    pub(super) fn new(choice: Choice, rewrite: Rewrite, timing: Timing, keeps_answers: bool) -> io::Result<Self> {
        Ok(Self {
            choice,
            rewrite,
            timing,
            writer: SpoolWriter::new(keeps_answers)?,
            requests: Vec::new(),
            sessions: Vec::new(),
            last_of: HashMap::new(),
            left_out: BTreeMap::new(),
            error: None,
        })
    }

    /// Adds a whole request, unless it is not to be sent. Those of a connection come in their order.
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
        let number = u32::try_from(self.requests.len()).ok().filter(|number| *number != NO_NEXT);
        let number = RequestNumber(number.ok_or(io::ErrorKind::FileTooLarge)?);
        let place = self.writer.add(exchange)?;
        self.requests.push(DueRequest { due: exchange.first_byte, place, next: NO_NEXT });
        match self.last_of.insert(exchange.connection, number) {
            Some(before) => self.requests[before.0 as usize].next = number.0,
            None => self.sessions.push(number),
        }
        Ok(())
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
        let first = self.requests.iter().map(|request| request.due).min().unwrap_or_default();
        let last = self.requests.iter().map(|request| request.due).max().unwrap_or_default();
        match self.timing {
            Timing::Rate(rate) => self.spread(rate),
            timing => self.requests.iter_mut().for_each(|request| request.due = timing.due(request.due.since(first))),
        }
        let Self { requests, mut sessions, writer, left_out, .. } = self;
        sessions.sort_by_key(|session| requests[session.0 as usize].due);
        Ok(Recording { file: writer.finish()?, requests, sessions, span: last.since(first), left_out })
    }

    /// Makes requests due at a rate, in the order of their times.
    fn spread(&mut self, rate: PerSec) {
        let mut order: Vec<u32> = (0..).take(self.requests.len()).collect();
        order.sort_unstable_by_key(|number| (self.requests[*number as usize].due, *number));
        for (place, number) in order.into_iter().enumerate() {
            self.requests[number as usize].due = rate_time(rate, place as u64);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use fathom_model::Settings;

    use super::*;
    use crate::sending::spool::tests::exchange;

    /// A recording of these requests, with answers to compare.
    pub(in crate::sending) fn recording(timing: Timing, exchanges: Vec<RecordedExchange>) -> Recording {
        let choice = Choice::of(&Settings::default(), 0).unwrap();
        let mut builder = RecordingBuilder::new(choice, Rewrite::default(), timing, true).unwrap();
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
            let mut reader = recording.reader();
            let mut sent = Vec::new();
            for session in recording.sessions() {
                let mut number = Some(*session);
                while let Some(this) = number {
                    let request = recording.request(this);
                    let text = String::from_utf8_lossy(reader.read(request.place).unwrap().request).into_owned();
                    sent.push((text.split(' ').nth(1).unwrap().to_owned(), request.due));
                    number = recording.next(this);
                }
            }
            let wanted = wanted.map(|(path, due)| (path.to_owned(), Nanos::from_millis(due)));
            assert_eq!(sent, wanted, "{timing:?}");
            assert_eq!(recording.span, Nanos::from_millis(40));
        }
    }

    #[test]
    fn requests_that_are_left_out_are_counted_by_their_reason() {
        let choice = Choice::of(&Settings::default().with("methods", "GET"), 0).unwrap();
        let timing = Timing::AsAnswered;
        let mut builder = RecordingBuilder::new(choice, Rewrite::default(), timing, false).unwrap();
        builder.add(exchange(0, 0, "POST / HTTP/1.1\r\n\r\n"));
        builder.add(exchange(1, 0, "GET / HTTP/1.1\r\n\r\n"));
        let recording = builder.finish([("malformed", 2)]).unwrap();
        assert_eq!(recording.left_out, BTreeMap::from([("malformed", 2), ("of other methods than --methods", 1)]));
        assert_eq!((recording.n_requests(), recording.sessions().len()), (1, 1));
    }
}
