//! Selects the reactor of a load and its way of collecting answers, and writes the note about it for the result.

use fathom_model::{Note, Settings, units::Nanos};
use fathom_sys::reactor::{
    Adaptive, Batch,
    uring::{self, WaitMode},
};

use crate::Error;

/// A reactor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReactorKind {
    /// `io_uring`.
    Uring,
    /// `epoll(7)`.
    Epoll,
    /// `epoll(7)` with the kernel's timestamps.
    Stamped,
}

/// The number of answers to wait for at once.
#[derive(Debug, Clone, Copy)]
pub enum Batching {
    /// Take each answer as it arrives.
    One,
    /// Wait for this many answers, or for all outstanding requests if there are fewer.
    Fixed(Batch),
    /// Wait for a number that adapts to the answer times.
    Adaptive(Adaptive),
}

impl Batching {
    /// Returns the batch to wait for while `n_asking` requests are outstanding.
    #[must_use]
    pub fn batch(&self, n_asking: u64) -> Option<Batch> {
        let n_asking = u32::try_from(n_asking).unwrap_or(u32::MAX);
        match self {
            Self::One => None,
            Self::Fixed(batch) => Some(Batch { n: batch.n.min(n_asking), ..*batch }).filter(|batch| batch.n > 1),
            Self::Adaptive(rule) => rule.batch(n_asking),
        }
    }

    /// Learns from the service time of an answer.
    #[inline]
    pub fn observe(&mut self, service_time: Nanos) {
        if let Self::Adaptive(rule) = self {
            rule.observe(service_time);
        }
    }
}

/// The load model, which decides how answers can be collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadModel {
    /// Each answer triggers the next request.
    Closed,
    /// Requests follow a schedule.
    Open,
}

/// The I/O path of a load.
#[derive(Debug, Clone)]
pub struct IoBackend {
    /// The reactor.
    pub reactor: ReactorKind,
    /// The number of answers taken at once.
    pub batching: Batching,
    /// The description of this I/O path for the report.
    pub note: Note,
}

impl IoBackend {
    /// Chooses the I/O path that `reactor`, `batch` and `batch-wait` ask for, as far as the kernel supports it.
    ///
    /// Only a closed load can wait for several answers; in an open load, waiting would delay starts.
    ///
    /// # Errors
    /// The settings name `io_uring` and it is not available, or they ask for batches over epoll.
    pub fn of(settings: &Settings, model: LoadModel) -> Result<Self, Error> {
        let asked = settings.text("reactor").unwrap_or_default();
        let batch = settings.count("batch");
        if asked == "epoll" {
            return match batch {
                Some(_) => {
                    Err(refused("answers are collected in batches over io_uring only", "leave out batch or reactor"))
                }
                None => Ok(Self::epoll("epoll".to_owned())),
            };
        }
        match uring::is_allowed() {
            Ok(_) if model == LoadModel::Open => Ok(Self::uring(Batching::One, "io_uring".to_owned())),
            Ok(WaitMode::OneCompletion) => {
                let text = "io_uring; each answer was taken when it came, as waits for several need Linux 6.12";
                Ok(Self::uring(Batching::One, text.to_owned()))
            }
            Ok(WaitMode::SeveralCompletions) => Ok(Self::in_batches(settings)),
            Err(error) if asked == "io_uring" => {
                let what = format!("io_uring is not available here: {error}: {}", error.source);
                Err(Error::Unsupported { what, hint: Some("leave out reactor, or set it to epoll".to_owned()) })
            }
            Err(error) => {
                Ok(Self::epoll(format!("epoll, as io_uring is not available here: {error}: {}", error.source)))
            }
        }
    }

    fn uring(batching: Batching, text: String) -> Self {
        Self { reactor: ReactorKind::Uring, batching, note: note(text) }
    }

    fn in_batches(settings: &Settings) -> Self {
        let within = settings.span("batch-wait").unwrap_or(Nanos::from_micros(100));
        let n = settings.count("batch").and_then(|n| u32::try_from(n).ok());
        let (batching, text) = match n {
            Some(0 | 1) => (Batching::One, "io_uring; each answer was taken when it came".to_owned()),
            Some(n) => {
                let text =
                    format!("io_uring; answers were collected in batches of up to {n}, waiting at most {within}");
                (Batching::Fixed(Batch { n, within }), text)
            }
            None => {
                let text = format!(
                    "io_uring; answers were collected in batches, waiting at most {within} and 5 % of a typical answer's time"
                );
                (Batching::Adaptive(Adaptive::new(within)), text)
            }
        };
        Self::uring(batching, text)
    }

    fn epoll(text: String) -> Self {
        Self { reactor: ReactorKind::Epoll, batching: Batching::One, note: note(text) }
    }
}

fn note(text: String) -> Note {
    Note::new("reactor", text)
}

fn refused(what: &str, hint: &str) -> Error {
    Error::Unsupported { what: what.to_owned(), hint: Some(hint.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_batch_waits_for_no_more_than_is_under_way() {
        let batch = Batch { n: 32, within: Nanos::from_micros(100) };
        let batching = Batching::Fixed(batch);
        assert_eq!(batching.batch(100), Some(batch));
        assert_eq!(batching.batch(5).map(|batch| batch.n), Some(5));
        assert_eq!((batching.batch(1), batching.batch(0)), (None, None));
    }

    #[test]
    fn batches_over_epoll_are_refused_and_epoll_is_always_to_be_had() {
        let epoll = Settings::default().with("reactor", "epoll");
        assert_eq!(IoBackend::of(&epoll, LoadModel::Closed).unwrap().reactor, ReactorKind::Epoll);
        assert!(IoBackend::of(&epoll.with("batch", "8"), LoadModel::Closed).is_err());
    }

    #[test]
    fn an_open_load_takes_each_answer_when_it_comes() {
        let way = IoBackend::of(&Settings::default(), LoadModel::Open).unwrap();
        assert!(matches!(way.batching, Batching::One), "{way:?}");
    }
}
