//! How the time of a stream divides, at both ends.

use fathom_model::{TestRun, TimeDivision, TimeOwner, TimeShare, TimeUse, units::percent};

use super::block::{Block, Figure, Row, Table, columns};
use crate::plot::anatomy::{TimeBar, time_bars};

/// Returns the division as one row per owner, and on a page as one bar per owner.
pub(super) fn block(test: &TestRun) -> Option<Block<'_>> {
    let divisions = test.time.as_slice();
    if divisions.is_empty() {
        return None;
    }
    let bar = |division: &TimeDivision| TimeBar {
        owner: owner(division),
        shares: division.shares.iter().map(|one| (one.to, words(division.owner, one.to), one.share)).collect(),
    };
    let bars: Vec<TimeBar> = divisions.iter().map(bar).collect();
    let figure = Figure {
        is_wide: true,
        table: Some(table(divisions)),
        on_screen: true,
        ..Figure::new(
            "How the time divides",
            "from the run delay of the threads and the kernel's own division for TCP",
            move || Ok(time_bars(&bars)),
        )
    };
    Some(Block::Figure(figure))
}

fn owner(division: &TimeDivision) -> String {
    let what = match division.owner {
        TimeOwner::SendingThreads => "sending threads",
        TimeOwner::Connections => "connections",
        TimeOwner::ReceivingThreads => "receiving threads",
    };
    format!("{what}, {}", division.host)
}

const fn words(owner: TimeOwner, to: TimeUse) -> &'static str {
    match (to, owner) {
        (TimeUse::OnCore, _) => "on a core",
        (TimeUse::CoreWait, _) => "wait for a core",
        (TimeUse::Asleep, TimeOwner::ReceivingThreads) => "wait for data",
        (TimeUse::Asleep, _) => "wait to send",
        (TimeUse::Network, _) => "data in flight",
        (TimeUse::ReceiveWindow, _) => "receive window full",
        (TimeUse::SendBuffer, _) => "send buffer full",
        (TimeUse::NoData, _) => "nothing to send",
    }
}

fn table(divisions: &[TimeDivision]) -> Table {
    let share = |division: &TimeDivision, share: &TimeShare| {
        format!("{} {}", words(division.owner, share.to), percent(share.share))
    };
    let row = |division: &TimeDivision| {
        Row::new(std::iter::once(owner(division)).chain(division.shares.iter().map(|one| share(division, one))))
    };
    let n_shares = divisions.iter().map(|division| division.shares.len()).max().unwrap_or(0);
    let columns = columns(std::iter::once("time of").chain(std::iter::repeat_n("", n_shares)));
    Table { columns, rows: divisions.iter().map(row).collect(), ..Table::default() }
}
