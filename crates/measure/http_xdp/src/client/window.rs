//! What changed in the measured window.

use fathom_engine::Error;
use fathom_model::Histogram;

use super::{rows, slow::SlowPath};
use crate::program::{LoadProgram, Times};

/// The books of a closed load at the start of the measured window.
pub(super) struct Window {
    times: Times,
    n_answered: Vec<u32>,
}

/// What the window held.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Of what happened; the connects of connections that stay are of the time before.
    pub(crate) times: Times,
    /// Connections without an answer, in a closed load.
    pub(crate) n_starved: Option<u64>,
}

impl Measured {
    /// What an open load has measured: its program takes the times of nothing else.
    pub(super) fn of_open(program: &LoadProgram, slow: &SlowPath) -> Result<Self, Error> {
        Ok(Self { times: slow.times(program)?, n_starved: None })
    }
}

impl Window {
    pub(super) fn begin(program: &LoadProgram, slow: &SlowPath) -> Result<Self, Error> {
        Ok(Self { times: slow.times(program)?, n_answered: answered(program).collect() })
    }

    pub(super) fn end(self, program: &LoadProgram, slow: &SlowPath, closes: bool) -> Result<Measured, Error> {
        let (now, before) = (slow.times(program)?, self.times);
        let pairs = answered(program).zip(&self.n_answered);
        Ok(Measured {
            times: Times {
                first_byte: growth(&now.first_byte, &before.first_byte),
                last_byte: growth(&now.last_byte, &before.last_byte),
                // Connections that stay were opened before.
                connect: if closes { growth(&now.connect, &before.connect) } else { now.connect },
            },
            n_starved: Some(pairs.filter(|(now, before)| now == *before).count() as u64),
        })
    }
}

fn answered(program: &LoadProgram) -> impl Iterator<Item = u32> {
    (0..program.rows.n_rows()).map(|slot| rows::read(program.rows.row(slot)).n_answered)
}

/// The values that came since an earlier moment.
fn growth(now: &Histogram, before: &Histogram) -> Histogram {
    let mut earlier = before.buckets().peekable();
    let mut growth = Histogram::new();
    for (low, high, count) in now.buckets() {
        let seen = earlier.next_if(|(other, ..)| *other == low).map_or(0, |(.., seen)| seen);
        growth.record_n(low.midpoint(high), count.saturating_sub(seen));
    }
    growth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_does_not_count() {
        let mut before = Histogram::new();
        before.record_n(1_000, 3);
        let mut now = before.clone();
        now.record_n(1_000, 2);
        now.record_n(50, 1);
        now.record_n(9_000_000, 4);
        let growth = growth(&now, &before);
        let near = |value: Option<u64>, of: u64| value.unwrap().abs_diff(of) <= of / 256;
        assert_eq!(growth.count(), 7);
        assert!(near(growth.min(), 50) && near(growth.quantile(0.4), 1_000) && near(growth.max(), 9_000_000));
    }
}
