//! How the time of a stream divides, at both ends.

use fathom_model::{Layer, TestRun, TimeDivision, TimeOwner, TimeShare, TimeUse, units::percent};

use super::block::{Block, Figure, Row, Table, columns};
use crate::plot::anatomy::{TimeBar, time_bars};

/// Returns the division as one row per owner, and on a page as one bar per owner.
pub(super) fn block(test: &TestRun) -> Option<Block<'_>> {
    let divisions = test.time.as_slice();
    if divisions.is_empty() {
        return None;
    }
    let bar = |division: &TimeDivision| TimeBar {
        owner: owner(test, division),
        shares: division.shares.iter().map(|one| (one.to, words(test, division, one.to), one.share)).collect(),
    };
    let bars: Vec<TimeBar> = divisions.iter().map(bar).collect();
    let figure = Figure {
        is_wide: true,
        table: Some(table(test, divisions)),
        on_screen: true,
        ..Figure::new(
            "How the time divides",
            "from the run delay of the threads and the kernel's own division for TCP",
            move || Ok(time_bars(&bars)),
        )
    };
    Some(Block::Figure(figure))
}

/// Returns the name of the end at a host, if the ends of the test ask and answer: of them, either may send more bytes.
fn end(test: &TestRun, host: &str) -> Option<&'static str> {
    let is_from = test.from == host || test.links.iter().any(|link| link.from == host);
    let is_to = |to: &Option<String>| to.as_deref() == Some(host);
    let is_to = is_to(&test.to) || test.links.iter().any(|link| is_to(&link.to));
    match (test.layer, is_from, is_to) {
        (Layer::App | Layer::Http, true, false) => Some("client"),
        (Layer::App | Layer::Http, false, true) => Some("server"),
        _ => None,
    }
}

fn owner(test: &TestRun, division: &TimeDivision) -> String {
    let what = match division.owner {
        TimeOwner::Connections => "connections",
        TimeOwner::SendingThreads => end(test, &division.host).unwrap_or("sending threads"),
        TimeOwner::ReceivingThreads => end(test, &division.host).unwrap_or("receiving threads"),
    };
    format!("{what}, {}", division.host)
}

fn words(test: &TestRun, division: &TimeDivision, to: TimeUse) -> &'static str {
    match (to, division.owner) {
        (TimeUse::OnCore, _) => "on a core",
        (TimeUse::CoreWait, _) => "wait for a core",
        (TimeUse::Asleep, _) if end(test, &division.host).is_some() => "wait for the other end",
        (TimeUse::Asleep, TimeOwner::ReceivingThreads) => "wait for data",
        (TimeUse::Asleep, _) => "wait to send",
        (TimeUse::Network, _) => "data in flight",
        (TimeUse::ReceiveWindow, _) => "receive window full",
        (TimeUse::SendBuffer, _) => "send buffer full",
        (TimeUse::NoData, _) => "nothing to send",
    }
}

fn table(test: &TestRun, divisions: &[TimeDivision]) -> Table {
    let share = |division: &TimeDivision, share: &TimeShare| {
        format!("{} {}", words(test, division, share.to), percent(share.share))
    };
    let row = |division: &TimeDivision| {
        Row::new(std::iter::once(owner(test, division)).chain(division.shares.iter().map(|one| share(division, one))))
    };
    let n_shares = divisions.iter().map(|division| division.shares.len()).max().unwrap_or(0);
    let columns = columns(std::iter::once("time of").chain(std::iter::repeat_n("", n_shares)));
    Table { columns, rows: divisions.iter().map(row).collect(), ..Table::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_requests_are_client_and_server_whichever_sends_more() {
        let owners = |layer, to: &str| {
            let test = TestRun { from: "a".to_owned(), to: Some(to.to_owned()), ..TestRun::new(layer, "any") };
            [(TimeOwner::SendingThreads, to), (TimeOwner::ReceivingThreads, "a")].map(|(owner_of, host)| {
                owner(&test, &TimeDivision { owner: owner_of, host: host.to_owned(), shares: Vec::new() })
            })
        };
        assert_eq!(owners(Layer::Http, "b"), ["server, b", "client, a"]);
        assert_eq!(owners(Layer::Http, "a"), ["sending threads, a", "receiving threads, a"], "one host is both");
        assert_eq!(owners(Layer::Tcp, "b"), ["sending threads, b", "receiving threads, a"]);
    }
}
