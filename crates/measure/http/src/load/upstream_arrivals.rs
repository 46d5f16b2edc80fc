//! The arrivals of a worker for one of its servers.

use std::iter::Take;

use fathom_engine::pace::Arrivals;
use fathom_model::units::Nanos;

use crate::target::WeightedOrder;

#[derive(Debug, Clone)]
pub(crate) struct UpstreamArrivals {
    pub(crate) arrivals: Take<Arrivals>,
    /// The rotation of the servers, and the index of this one.
    pub(crate) upstream_order: WeightedOrder,
    pub(crate) upstream: usize,
}

impl Iterator for UpstreamArrivals {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        loop {
            let at = self.arrivals.next()?;
            if self.upstream_order.next_index() == self.upstream {
                return Some(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fathom_engine::pace::{self, ArrivalProcess, Profile};
    use fathom_model::units::PerSec;

    use super::*;

    #[test]
    fn each_request_is_for_one_server_by_its_weight() {
        let micros = Nanos::from_micros;
        let profile = Profile::steady(PerSec::new(10_000.0).unwrap()).unwrap();
        let arrivals = Arrivals::new(profile, ArrivalProcess::Constant, pace::WorkShare { idx: 0, of: 1 });
        let [mut seldom, often] = [0, 1].map(|upstream| UpstreamArrivals {
            arrivals: arrivals.clone().take(40),
            upstream_order: WeightedOrder::new(&[1, 3]).unwrap(),
            upstream,
        });
        let mut all: Vec<Nanos> = often.clone().chain(seldom.clone()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq((0..40).map(|n| micros(100 * n))));
        assert_eq!((seldom.by_ref().count(), often.count()), (10, 30));
    }
}
