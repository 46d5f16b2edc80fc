//! What engines count while they work, and the record that becomes of it.

mod accounts;
mod ledger;
mod outcome;
mod record;

pub(crate) use self::{
    accounts::Accounts,
    ledger::{Bookkeeping, Entry, Ledger},
    outcome::{CLOSED_COUNTERS, COUNTERS, Counter, Outcome},
    record::{pacing_note, record},
};
