//! Which reactor a load runs over, how it collects answers, and what has to be said of that beside the result.

use fathom_engine::Error;
use fathom_model::{Note, Settings, units::Nanos};
use fathom_sys::reactor::{
    Adaptive, Batch,
    uring::{self, Waits},
};

/// The reactors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// `io_uring`.
    Uring,
    /// `epoll(7)`.
    Epoll,
    /// The same, with the kernel's timestamps.
    Stamped,
}

/// How many answers are waited for at once.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Batching {
    /// The first one is taken.
    One,
    /// So many, or as many as are under way.
    Fixed(Batch),
    /// As many as a rule says.
    Adaptive(Adaptive),
}

impl Batching {
    /// What to wait for while so many requests are under way.
    pub(crate) fn batch(&self, n_asking: u64) -> Option<Batch> {
        let n_asking = u32::try_from(n_asking).unwrap_or(u32::MAX);
        match self {
            Self::One => None,
            Self::Fixed(batch) => Some(Batch { n: batch.n.min(n_asking), ..*batch }).filter(|batch| batch.n > 1),
            Self::Adaptive(rule) => rule.batch(n_asking),
        }
    }

    /// Learns from the time of an answer.
    #[inline]
    pub(crate) fn observe(&mut self, service_time: Nanos) {
        if let Self::Adaptive(rule) = self {
            rule.observe(service_time);
        }
    }
}

/// The way a load goes.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    pub(crate) which: Which,
    pub(crate) batching: Batching,
    /// Which way it is, for people.
    pub(crate) note: Note,
}

impl Way {
    /// What the settings ask for, as far as the kernel gives it; only a load without a schedule can wait for several answers.
    pub(crate) fn of(settings: &Settings, is_closed: bool) -> Result<Self, Error> {
        let asked = settings.text("reactor").unwrap_or_default();
        if settings.text("timestamps").as_deref() == Some("kernel") {
            return Self::stamped(settings, &asked);
        }
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
            Ok(_) if !is_closed => Ok(Self::uring(Batching::One, "io_uring".to_owned())),
            Ok(Waits::ForOne) => {
                let text = "io_uring; each answer was taken when it came, as waits for several need Linux 6.12";
                Ok(Self::uring(Batching::One, text.to_owned()))
            }
            Ok(Waits::ForSeveral) => Ok(Self::in_batches(settings)),
            Err(error) if asked == "io_uring" => {
                let what = format!("io_uring is not to be had here: {error}: {}", error.source);
                Err(Error::Unsupported { what, hint: Some("leave out reactor, or set it to epoll".to_owned()) })
            }
            Err(error) => {
                Ok(Self::epoll(format!("epoll, as io_uring is not to be had here: {error}: {}", error.source)))
            }
        }
    }

    fn uring(batching: Batching, text: String) -> Self {
        Self { which: Which::Uring, batching, note: note(text) }
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
        Self { which: Which::Epoll, batching: Batching::One, note: note(text) }
    }

    fn stamped(settings: &Settings, asked: &str) -> Result<Self, Error> {
        if asked == "io_uring" {
            return Err(refused("the kernel's timestamps are read over epoll only", "leave out timestamps or reactor"));
        }
        if settings.count("pipeline").is_some_and(|depth| depth > 1) {
            return Err(refused(
                "the kernel's timestamps are for one request at a time",
                "leave out timestamps or pipeline",
            ));
        }
        if settings.text("unix").is_some() {
            return Err(refused("the kernel stamps no bytes of unix sockets", "leave out timestamps or unix"));
        }
        let text = "epoll, with the kernel's timestamps: times are those at which bytes left and arrived".to_owned();
        Ok(Self { which: Which::Stamped, ..Self::epoll(text) })
    }
}

fn note(text: String) -> Note {
    Note { id: "reactor".to_owned(), text }
}

fn refused(what: &str, hint: &str) -> Error {
    Error::Unsupported { what: what.to_owned(), hint: Some(hint.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(options: &[(&str, &str)]) -> Result<Way, String> {
        let settings = options.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value));
        Way::of(&settings, true).map_err(|error| error.to_string())
    }

    #[test]
    fn a_fixed_batch_waits_for_no_more_than_is_under_way() {
        let batch = Batch { n: 32, within: Nanos::from_micros(100) };
        let batching = Batching::Fixed(batch);
        assert_eq!(batching.batch(100), Some(batch));
        assert_eq!(batching.batch(5).map(|batch| batch.n), Some(5));
        assert_eq!((batching.batch(1), batching.batch(0)), (None, None));
    }

    #[test]
    fn what_cannot_go_together_is_refused() {
        for options in [
            [("reactor", "epoll"), ("batch", "8")],
            [("reactor", "io_uring"), ("timestamps", "kernel")],
            [("pipeline", "2"), ("timestamps", "kernel")],
            [("unix", "/tmp/s"), ("timestamps", "kernel")],
        ] {
            assert!(way(&options).is_err(), "{options:?}");
        }
        let way = way(&[("timestamps", "kernel"), ("pipeline", "1")]).unwrap();
        assert!(way.which == Which::Stamped && way.note.text.contains("the kernel's timestamps"));
    }
}
