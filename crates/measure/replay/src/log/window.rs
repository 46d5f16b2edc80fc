//! Requests in the order of their times, out of lines that are nearly so.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use fathom_model::units::Nanos;

use super::{request::LoggedRequest, time::LoggedTime};

/// How long requests wait for earlier ones. Servers write a line when its request is over, and from buffers, but with the time of its
/// begin; longer requests than this are rare.
const WAIT: Nanos = Nanos::from_secs(60);
/// Requests that wait at most: more than servers answer in a second, which have the same time in most logs.
const REQUESTS_MAX: usize = 1 << 18;
/// The bytes of requests that wait at most.
const BYTES_MAX: usize = 64 << 20;

/// So many lines have to be as late as the time that requests are measured against: fewer with a wrong time do not make others leave.
const N_NEWEST: usize = 8;

/// The latest times of all lines.
#[derive(Debug, Default)]
struct NewestTimes(BinaryHeap<Reverse<Nanos>>);

impl NewestTimes {
    fn add(&mut self, at: Nanos) {
        self.0.push(Reverse(at));
        if self.0.len() > N_NEWEST {
            self.0.pop();
        }
    }

    /// The earliest of them.
    fn get(&self) -> Nanos {
        self.0.peek().map_or(Nanos::ZERO, |Reverse(at)| *at)
    }
}

/// The requests that wait.
#[derive(Debug)]
pub(super) struct Window {
    /// By their times, and of the same time in the order of the lines.
    requests: BTreeMap<Nanos, Vec<LoggedRequest>>,
    n_requests: usize,
    n_bytes: usize,
    newest: NewestTimes,
    /// The finest step of all times: a time without digits after the point may be one of a server that leaves out zeros.
    resolution: Nanos,
    /// The time of the request that left last.
    last: Nanos,
    /// The time of its line.
    last_logged: Nanos,
}

/// A request that comes after others that have left.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutOfOrder;

impl Window {
    pub(super) fn new() -> Self {
        Self {
            requests: BTreeMap::new(),
            n_requests: 0,
            n_bytes: 0,
            newest: NewestTimes::default(),
            resolution: Nanos::MAX,
            last: Nanos::ZERO,
            last_logged: Nanos::ZERO,
        }
    }

    pub(super) fn add(&mut self, request: LoggedRequest) -> Result<(), OutOfOrder> {
        let LoggedTime { at, resolution } = request.time;
        if at < self.last_logged {
            return Err(OutOfOrder);
        }
        self.newest.add(at);
        self.resolution = self.resolution.min(resolution);
        self.n_requests += 1;
        self.n_bytes += request.bytes.len();
        self.requests.entry(at).or_default().push(request);
        Ok(())
    }

    /// Takes out the requests of the first time if they need not wait longer, each with its own time: those of the same second,
    /// or of the same step of a finer time, are spread evenly over it.
    pub(super) fn next(&mut self, is_end: bool) -> Option<impl Iterator<Item = (Nanos, LoggedRequest)> + use<>> {
        let is_full = self.n_requests > REQUESTS_MAX || self.n_bytes > BYTES_MAX;
        let first = self.requests.first_entry()?;
        let at = *first.key();
        if !is_end && !is_full && at + WAIT >= self.newest.get() {
            return None;
        }
        let requests = first.remove();
        self.n_requests -= requests.len();
        self.n_bytes -= requests.iter().map(|request| request.bytes.len()).sum::<usize>();
        let next = self.requests.first_key_value().map_or(Nanos::MAX, |(next, _)| *next);
        let step = self.resolution.min(next.since(at)).0;
        let (last, n) = (self.last, requests.len() as u64);
        self.last_logged = at;
        self.last = last.max(at + Nanos(spread(step, n - 1, n)));
        Some((0..).zip(requests).map(move |(place, request)| (last.max(at + Nanos(spread(step, place, n))), request)))
    }
}

/// Where in a step one of several requests is.
const fn spread(step: u64, place: u64, n: u64) -> u64 {
    // Neither overflows: the quotient is less than the step, and a step is a second at most, or there is one request.
    step / n * place + step % n * place / n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::AnswerFate;

    fn request(at: Nanos) -> LoggedRequest {
        LoggedRequest {
            bytes: Vec::new(),
            head_length: 0,
            time: LoggedTime { at, resolution: Nanos::from_secs(1) },
            client: None,
            answer_fate: AnswerFate::Absent,
            answer: None,
        }
    }

    #[test]
    fn a_full_window_lets_its_first_second_go_and_what_comes_later_of_it_is_behind() {
        let mut window = Window::new();
        let second = Nanos::from_secs(7);
        let (mut n, mut last) = (0, Nanos::ZERO);
        for _ in 0..REQUESTS_MAX * 2 {
            window.add(request(second)).unwrap();
            for (time, _) in window.next(false).into_iter().flatten() {
                assert!(last <= time && (second..second + Nanos::from_secs(1)).contains(&time));
                (n, last) = (n + 1, time);
            }
        }
        assert_eq!((n, window.n_requests), (REQUESTS_MAX + 1, REQUESTS_MAX - 1));
        assert_eq!(window.add(request(Nanos::from_secs(6))), Err(OutOfOrder));
        assert!(window.next(true).unwrap().all(|(time, _)| time == last));
    }

    #[test]
    fn a_few_wrong_times_do_not_make_others_leave_before_earlier_ones_come() {
        let mut window = Window::new();
        for second in [1000, 9000, 1002, 9001, 1001, 1003] {
            window.add(request(Nanos::from_secs(second))).unwrap();
            assert!(window.next(false).is_none());
        }
        let mut left = Vec::new();
        while let Some(requests) = window.next(true) {
            left.extend(requests.map(|(_, request)| request.time.at.0 / 1_000_000_000));
        }
        assert_eq!(left, [1000, 1001, 1002, 1003, 9000, 9001]);
    }
}
