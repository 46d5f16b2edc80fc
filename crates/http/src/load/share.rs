//! The arrivals of a worker that are for one of its servers.

use std::iter::Take;

use fathom_engine::pace::Arrivals;
use fathom_model::units::Nanos;

use crate::dial::Rota;

/// Those arrivals of a worker that are for one of its servers.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) arrivals: Take<Arrivals>,
    /// Whose turn it is among the servers, and which of them is meant.
    pub(crate) rota: Rota,
    pub(crate) lane: usize,
}

impl Iterator for Share {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        loop {
            let at = self.arrivals.next()?;
            if self.rota.turn() == self.lane {
                return Some(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fathom_engine::pace::{self, Process, Profile};
    use fathom_model::units::PerSec;

    use super::*;

    #[test]
    fn each_request_is_for_one_server_by_its_weight() {
        let micros = Nanos::from_micros;
        let profile = Profile::steady(PerSec::new(10_000.0).unwrap()).unwrap();
        let arrivals = Arrivals::new(profile, Process::Constant, pace::Share { idx: 0, of: 1 });
        let [mut seldom, often] =
            [0, 1].map(|lane| Share { arrivals: arrivals.clone().take(40), rota: Rota::new(&[1, 3]).unwrap(), lane });
        let mut all: Vec<Nanos> = often.clone().chain(seldom.clone()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq((0..40).map(|n| micros(100 * n))));
        assert_eq!((seldom.by_ref().count(), often.count()), (10, 30));
    }
}
