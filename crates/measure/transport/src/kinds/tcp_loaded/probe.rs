//! Probes over a separate connection, sent on a schedule whether earlier ones are answered or not.
//!
//! A probe never waits for another one, so a path with a long queue is probed as often as an idle one, and every time counts from
//! the scheduled send. This module knows nothing of the load.

use std::collections::VecDeque;

use fathom_engine::{
    Error, Phase, Stop, TrialContext, WorkerHandle,
    pace::{ConstantRate, Pace as _},
};
use fathom_model::{FailureCounts, Histogram, units::Nanos};
use fathom_sys::{
    Result, clock,
    reactor::epoll_wait::{Epoll, Interest, ReadyList},
    socket::{self, Socket, Wait},
};

use crate::{
    connection_setup::BLOCKING_TIMEOUT,
    request_response::{connection::UNEXPECTED_MESSAGE, peer_timeout::PEER_CLOSED},
};

/// The bytes of a probe and of its answer: a number, and as much padding for alignment in a packet capture.
const PROBE: usize = 16;
/// The number of unanswered probes at which sending stops: a minute at a thousand per second.
const UNANSWERED_MAX: usize = 1 << 16;
/// The size of a receive.
const ROOM: usize = 4096;
/// The delay before a probe that the kernel did not take is retried.
const BLOCKED: Nanos = Nanos::from_millis(1);
/// How long the last answers may take after the load has ended, while its queue drains.
const DRAIN_MAX: Nanos = Nanos::from_secs(3);

/// The results of the probes of one trial.
#[derive(Debug, Default)]
pub(super) struct ProbeResults {
    /// From the scheduled start to the whole answer.
    pub(super) response: Histogram,
    /// From the scheduled start to the send.
    pub(super) lag: Histogram,
    pub(super) errors: FailureCounts,
    /// Probes of the measured part that had no answer at the very end, or were never sent.
    pub(super) n_unanswered: u64,
}

/// A probe in flight.
#[derive(Debug, Clone, Copy)]
struct PendingProbe {
    due: Nanos,
    is_measured: bool,
}

/// Why a probe connection is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeFailure {
    Closed,
    UnexpectedAnswer,
}

/// The initiator of probes.
pub(super) struct ProbeSender<'a> {
    worker: WorkerHandle<'a>,
    context: &'a TrialContext,
    /// The index of the counter of answers.
    counter: usize,
    schedule: ConstantRate,
    socket: &'a Socket,
    pending: VecDeque<PendingProbe>,
    n_sent: u64,
    /// When the measured part was first seen.
    measured_from: Option<Nanos>,
    /// The part of the last probe that the kernel has not taken.
    unsent: ([u8; PROBE], usize),
    answers: AnswerReader,
    results: ProbeResults,
}

impl<'a> ProbeSender<'a> {
    pub(super) fn new(
        worker: WorkerHandle<'a>,
        counter: usize,
        context: &'a TrialContext,
        of: (&'a Socket, ConstantRate),
    ) -> Self {
        Self {
            worker,
            context,
            counter,
            schedule: of.1,
            socket: of.0,
            pending: VecDeque::with_capacity(UNANSWERED_MAX),
            n_sent: 0,
            measured_from: None,
            unsent: ([0; PROBE], PROBE),
            answers: AnswerReader::default(),
            results: ProbeResults::default(),
        }
    }

    /// Sends probes until the trial is over and all are answered, or for a limited time longer.
    ///
    /// # Errors
    /// The wait itself fails: `epoll_pwait2`.
    pub(super) fn run(mut self) -> std::result::Result<ProbeResults, Error> {
        let cannot = |cause| Error::System { what: "wait for the answers to probes".to_owned(), cause };
        let (epoll, mut events) = (Epoll::new().map_err(cannot)?, ReadyList::with_capacity(1));
        epoll.add(self.socket, 0, Interest::READ).map_err(cannot)?;
        let mut over_since = None;
        loop {
            match self.receive() {
                Ok(None) => {}
                Ok(Some(left)) => {
                    self.results.errors.count(if left == ProbeFailure::Closed {
                        PEER_CLOSED
                    } else {
                        UNEXPECTED_MESSAGE
                    });
                    break;
                }
                Err(error) => {
                    self.results.errors.count(&error);
                    break;
                }
            }
            let now = clock::now();
            if self.worker.is_over() {
                let since = *over_since.get_or_insert(now);
                let is_all = self.pending.iter().all(|asked| !asked.is_measured);
                if is_all || now - since > DRAIN_MAX || self.context.stop.state() == Stop::Abort {
                    break;
                }
            } else if let Err(error) = self.send_due(now) {
                self.results.errors.count(&error);
                break;
            }
            let longest = if over_since.is_some() { BLOCKING_TIMEOUT } else { self.longest_wait() };
            epoll.wait(&mut events, Some(longest)).map_err(cannot)?;
        }
        Ok(self.finish())
    }

    /// When the next probe is due.
    fn due(&self) -> Nanos {
        self.worker.start + self.schedule.at(self.n_sent)
    }

    fn longest_wait(&self) -> Nanos {
        if self.unsent.1 < PROBE || self.pending.len() == UNANSWERED_MAX {
            return BLOCKED;
        }
        self.due().since(clock::now()).min(BLOCKING_TIMEOUT)
    }

    fn send_due(&mut self, now: Nanos) -> Result<()> {
        if !self.send_rest()? {
            return Ok(());
        }
        while self.due() <= now && self.pending.len() < UNANSWERED_MAX {
            let due = self.due();
            let is_measured = self.worker.phase() == Phase::Measure;
            if is_measured && self.measured_from.is_none() {
                self.measured_from = Some(now);
            }
            self.unsent = (probe(self.n_sent), 0);
            self.pending.push_back(PendingProbe { due, is_measured });
            self.n_sent += 1;
            if is_measured {
                self.results.lag.record((clock::now() - due).0);
            }
            if !self.send_rest()? {
                break;
            }
        }
        Ok(())
    }

    /// Sends the rest of the last probe. Returns whether the kernel has taken all of it.
    fn send_rest(&mut self) -> Result<bool> {
        while self.unsent.1 < PROBE {
            match socket::send(self.socket, &self.unsent.0[self.unsent.1..], Wait::Never)? {
                Some(count) => self.unsent.1 += count,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Reads all available answers.
    fn receive(&mut self) -> Result<Option<ProbeFailure>> {
        let mut room = [0; ROOM];
        while let Some(count) = socket::recv(self.socket, &mut room, Wait::Never)? {
            let now = clock::now();
            if count == 0 {
                return Ok(Some(ProbeFailure::Closed));
            }
            let Some(n_answers) = self.answers.take(&room[..count]) else {
                return Ok(Some(ProbeFailure::UnexpectedAnswer));
            };
            for _ in 0..n_answers {
                let Some(asked) = self.pending.pop_front() else { return Ok(Some(ProbeFailure::UnexpectedAnswer)) };
                self.worker.add(self.counter, 1);
                self.worker.show_latency(now - asked.due);
                if asked.is_measured {
                    self.results.response.record((now - asked.due).0);
                }
            }
        }
        Ok(None)
    }

    /// Records probes that were never answered, or never sent because this host was too slow, with the time until now.
    fn finish(mut self) -> ProbeResults {
        let now = clock::now();
        let gap = self.schedule.at(1);
        // The end of the measured part is noticed up to one probe late, so the last probe before it does not count as missed.
        let end = self.measured_from.map_or(Nanos::ZERO, |from| from + self.context.phases.measure_ns).since(gap);
        while self.context.stop.state() != Stop::Abort && self.due() < end {
            self.results.lag.record((now - self.due()).0);
            self.pending.push_back(PendingProbe { due: self.due(), is_measured: true });
            self.n_sent += 1;
        }
        for asked in self.pending.iter().filter(|asked| asked.is_measured) {
            self.results.response.record((now - asked.due).0);
            self.results.n_unanswered += 1;
        }
        self.results
    }
}

fn probe(number: u64) -> [u8; PROBE] {
    let mut bytes = [0; PROBE];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Reads the stream of answers, which arrive in the order of the probes.
#[derive(Debug, Default)]
struct AnswerReader {
    n_whole: u64,
    part: [u8; PROBE],
    n_part: usize,
}

impl AnswerReader {
    /// Returns how many answers are now complete; `None` if one of them is not the expected one.
    fn take(&mut self, bytes: &[u8]) -> Option<u64> {
        let (before, mut rest) = (self.n_whole, bytes);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(PROBE - self.n_part));
            self.part[self.n_part..][..now.len()].copy_from_slice(now);
            self.n_part += now.len();
            rest = later;
            if self.n_part == PROBE {
                if self.part != probe(self.n_whole) {
                    return None;
                }
                self.n_whole += 1;
                self.n_part = 0;
            }
        }
        Some(self.n_whole - before)
    }
}

/// Echoes received bytes until the initiator ends or the trial is over.
pub(super) fn respond(worker: WorkerHandle<'_>, counter: usize, socket: &Socket) -> ProbeResults {
    let mut probes = ProbeResults::default();
    if let Err(error) = echo(worker, counter, socket)
        // An initiator that leaves before its last answers, as at the end of a trial, counts them itself.
        && !error.is_abandoned()
    {
        probes.errors.count(&error);
    }
    probes
}

fn echo(worker: WorkerHandle<'_>, counter: usize, socket: &Socket) -> Result<()> {
    let (mut room, mut n_bytes) = ([0; ROOM], 0);
    loop {
        let count = match socket::recv(socket, &mut room, Wait::Block)? {
            Some(0) => return Ok(()),
            Some(count) => count,
            None if worker.is_over() => return Ok(()),
            None => continue,
        };
        let mut n_sent = 0;
        while n_sent < count {
            match socket::send(socket, &room[n_sent..count], Wait::Block)? {
                Some(count) => n_sent += count,
                None if worker.is_over() => return Ok(()),
                None => {}
            }
        }
        n_bytes += count;
        worker.add(counter, u64::try_from(n_bytes / PROBE).unwrap_or(0));
        n_bytes %= PROBE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_however_they_are_cut_into_pieces() {
        let stream: Vec<u8> = (0..5).flat_map(probe).collect();
        for cut in 1..=stream.len() {
            let mut answers = AnswerReader::default();
            let n: u64 = stream.chunks(cut).map(|piece| answers.take(piece).unwrap()).sum();
            assert_eq!(n, 5, "pieces of {cut}");
        }
    }

    #[test]
    fn an_answer_to_another_probe_is_wrong() {
        let mut answers = AnswerReader::default();
        assert_eq!(answers.take(&probe(0)), Some(1));
        assert_eq!(answers.take(&probe(2)), None);
        assert_eq!(AnswerReader::default().take(b"HTTP/1.1 200 OK\r\n"), None);
    }
}
