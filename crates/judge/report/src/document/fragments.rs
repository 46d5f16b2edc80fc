//! The results of a test with fragments: a row per order.

use fathom_model::{
    probe::{FragmentOrderRecord, FragmentsRecord, OrderOutcome},
    units::grouped,
};

use super::block::{Block, Column, Fact, Row, Table, columns};
use crate::words::{MISSING, Mark};

/// The maximum number of targets that are named.
const TARGETS_MAX: usize = 8;

/// Returns the targets, and the table of orders.
pub(super) fn blocks<'a>(fragments: &FragmentsRecord) -> Vec<Block<'a>> {
    let titles = ["order", "sent", "fragments", "answered", "lost", "elsewhere", "twice"];
    let columns = columns(titles).into_iter().chain([Column::text("")]).collect();
    let rows = fragments.orders.iter().map(|order| row(order, fragments.answers.len() > 1)).collect();
    let table = Table { columns, rows, ..Table::default() };
    vec![Block::sentence(targets(fragments)), Block::Table(table)]
}

fn targets(fragments: &FragmentsRecord) -> String {
    let mut by_answers: Vec<(&String, &u64)> = fragments.answers.iter().collect();
    by_answers.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    let named: Vec<String> =
        by_answers.iter().take(TARGETS_MAX).map(|(target, n)| format!("{target} ({})", grouped(**n))).collect();
    let n_more = by_answers.len().saturating_sub(TARGETS_MAX);
    let more = if n_more > 0 { format!(" and {n_more} more") } else { String::new() };
    format!(
        "{} flows over IPv{}, packets of {} B in fragments of at most {} B; answered by {}{more}",
        grouped(fragments.n_flows),
        fragments.ip_version,
        grouped(fragments.size_bytes),
        grouped(fragments.mtu_bytes),
        named.join(", ")
    )
}

/// One target is no choice, so it shows nothing about flows.
fn row(order: &FragmentOrderRecord, has_choice: bool) -> Row {
    let is_whole = order.order == FragmentOrderRecord::WHOLE;
    let lost = if order.outcome == OrderOutcome::Answered { grouped(order.n_lost()) } else { MISSING.to_owned() };
    let elsewhere = if is_whole || !has_choice || order.n_answered == order.n_unjudged {
        MISSING.to_owned()
    } else {
        grouped(order.n_elsewhere)
    };
    let (remark, mark) = judged(order);
    Row::new([
        order.order.clone(),
        grouped(order.n_sent),
        grouped(order.n_fragments),
        grouped(order.n_answered),
        lost,
        elsewhere,
        grouped(order.n_duplicates),
        remark.to_owned(),
    ])
    .marked(mark)
}

/// Says whether the answers to an order are right.
fn judged(order: &FragmentOrderRecord) -> (&'static str, Mark) {
    match (order.outcome, order.n_answered) {
        _ if order.n_elsewhere > 0 => ("at another target", Mark::Broken),
        (OrderOutcome::Answered, 0) => ("none arrived", Mark::Broken),
        (OrderOutcome::Answered, _) if order.n_lost() > 0 => ("", Mark::Open),
        (OrderOutcome::Answered, _) => ("", Mark::Plain),
        (OrderOutcome::Dropped, 0) => ("rightly not answered", Mark::Plain),
        (OrderOutcome::Dropped, _) => ("must not be answered", Mark::Broken),
        (OrderOutcome::Either, 0) => ("dropped, as usual", Mark::Plain),
        (OrderOutcome::Either, _) => ("RFC 791 allows it", Mark::Plain),
    }
}

/// Returns the short answer of a test.
pub(super) fn answer(fragments: &FragmentsRecord) -> Fact {
    let sum = |of: fn(&FragmentOrderRecord) -> u64| fragments.orders.iter().map(of).sum::<u64>();
    let due = |order: &&FragmentOrderRecord| order.outcome == OrderOutcome::Answered;
    let n_sent: u64 = fragments.orders.iter().filter(due).map(|order| order.n_sent).sum();
    let (n_lost, n_elsewhere) = (sum(FragmentOrderRecord::n_lost), sum(|order| order.n_elsewhere));
    let n_unexpected = sum(FragmentOrderRecord::n_unexpected);
    let mut parts = vec![format!("{} of {} datagrams lost", grouped(n_lost), grouped(n_sent))];
    if fragments.answers.len() > 1 {
        parts.push(format!("{} at another target than their flow", grouped(n_elsewhere)));
    }
    if n_unexpected > 0 {
        parts.push(format!("{} answered that must not be", grouped(n_unexpected)));
    }
    let mark = match (n_elsewhere + n_unexpected, n_lost) {
        (0, 0) => Mark::Kept,
        (0, _) => Mark::Open,
        _ => Mark::Broken,
    };
    Fact { name: "fragments", text: parts.join(", "), mark }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(order: &str, outcome: OrderOutcome, [n_sent, n_answered, n_elsewhere]: [u64; 3]) -> FragmentOrderRecord {
        FragmentOrderRecord {
            order: order.to_owned(),
            outcome,
            n_sent,
            n_answered,
            n_elsewhere,
            ..FragmentOrderRecord::default()
        }
    }

    #[test]
    fn an_answer_is_right_or_wrong_by_its_order() {
        let marks = [
            (of("forward", OrderOutcome::Answered, [10, 10, 0]), Mark::Plain),
            (of("forward", OrderOutcome::Answered, [10, 9, 0]), Mark::Open),
            (of("forward", OrderOutcome::Answered, [10, 0, 0]), Mark::Broken),
            (of("forward", OrderOutcome::Answered, [10, 10, 1]), Mark::Broken),
            (of("last-missing", OrderOutcome::Dropped, [10, 0, 0]), Mark::Plain),
            (of("last-missing", OrderOutcome::Dropped, [10, 1, 0]), Mark::Broken),
            (of("overlapping", OrderOutcome::Either, [10, 10, 0]), Mark::Plain),
        ];
        for (order, mark) in marks {
            assert_eq!(judged(&order).1, mark, "{order:?}");
        }
    }

    #[test]
    fn the_short_answer_counts_only_what_is_due() {
        let orders = vec![
            of("forward", OrderOutcome::Answered, [10, 8, 1]),
            of("last-missing", OrderOutcome::Dropped, [5, 0, 0]),
        ];
        let answers = [("t1#1".to_owned(), 4), ("t2#1".to_owned(), 4)].into();
        let fragments = FragmentsRecord { orders, answers, ..FragmentsRecord::default() };
        let fact = answer(&fragments);
        assert_eq!(
            (fact.text.as_str(), fact.mark),
            ("2 of 10 datagrams lost, 1 at another target than their flow", Mark::Broken)
        );
    }
}
