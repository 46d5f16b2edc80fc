//! The connections that are open before a load starts.

use fathom_engine::Error;
use fathom_model::units::Nanos;
use fathom_sys::clock;

use super::{
    claim::Claim,
    outbox::Outbox,
    scan::{Aim, Scan},
    slow::SlowPath,
};

/// How long it may take. What is not open by then opens while the load runs.
const OPENING_MAX: Nanos = Nanos::from_secs(15);
/// The time from one look at the connections to the next.
const STEP: Nanos = Nanos::from_millis(1);

/// Opens all connections. Each has its first answer then, and rests.
pub(super) fn run(
    mut scan: Scan<'_>,
    slow: &mut SlowPath,
    claim: &mut Option<Claim>,
    outbox: &mut Outbox,
) -> Result<(), Error> {
    let deadline = clock::now() + OPENING_MAX;
    loop {
        let census = scan.look_at_all(Aim::Open, outbox)?;
        let now = clock::now();
        if census.n_idle == scan.n_slots() || now >= deadline {
            return Ok(());
        }
        claim.as_mut().map_or(Ok(()), |claim| claim.answer(outbox))?;
        slow.tend_until(now + STEP, (scan.program, scan.setup), outbox)?;
    }
}
