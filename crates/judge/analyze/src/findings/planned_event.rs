//! An event that the plan asked for cut the rate: no counter has to explain that.

use fathom_model::{
    Derivation, EventRecord, Evidence, Finding, Record, Severity, Trial,
    targets::EventSpan,
    units::{Nanos, approximate, percent},
};
use fathom_statistics::median;

use super::FindingRule;
use crate::{
    evidence::TestEvidence,
    summaries::main_rate,
    window::{MeasuredWindow, record_of},
};

/// The id of these findings.
pub(super) const PLANNED_EVENT: &str = "planned-event";
/// An event that leaves more than this part of the rate is not what holds a test back.
const CUT: f64 = 0.5;

/// Compares the rate during each event of a trial with the rate of the rest of the trial.
pub(crate) struct PlannedEvent;

/// An event that cut the rate of a trial.
struct RateCut<'a> {
    event: &'a EventRecord,
    from: Nanos,
    until: Nanos,
    /// When something was counted again; absent if nothing was in the measured time.
    recovered: Option<Nanos>,
    /// The rate during the event as a part of the usual one.
    left: f64,
    /// What is missing of the count of the trial, as a part of what was counted.
    missing: f64,
}

impl FindingRule for PlannedEvent {
    fn id(&self) -> &'static str {
        PLANNED_EVENT
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Tests about targets tell for each flow what an event did.
        let cuts = if seen.test.targets.is_some() { Vec::new() } else { cuts(seen) };
        let Some(worst) = cuts.iter().min_by(|a, b| a.left.total_cmp(&b.left)) else { return Vec::new() };
        let n_cuts = cuts.iter().filter(|cut| cut.event.event == worst.event.event).count();
        let rounds = match seen.trials().len() {
            1 => String::new(),
            n => format!(", in {n_cuts} of {n} rounds"),
        };
        let silence = match worst.recovered {
            None => ", and nothing got through after it".to_owned(),
            Some(recovered) if recovered > worst.until => format!(", and nothing got through until {recovered}"),
            Some(_) => String::new(),
        };
        let title = format!(
            "the planned event `{}` cut the rate: from {} to {} it was {} of the usual one{silence}{rounds}",
            worst.event.event,
            worst.from,
            worst.until,
            percent(worst.left)
        );
        let host = seen.test.from.clone();
        let evidence = cuts.iter().map(|cut| Evidence {
            host: host.clone(),
            counter: cut.event.event.clone(),
            value: format!("{} of the usual rate", percent(cut.left)),
        });
        vec![seen.finding(PLANNED_EVENT, Severity::HoldsBack, "planned event", title).evidence(evidence.take(8))]
    }
}

/// Returns how much the planned events of a test took, as a part of what was counted, over all trials.
pub(super) fn missing_share(seen: &TestEvidence<'_>) -> f64 {
    cuts(seen).iter().map(|cut| cut.missing).sum::<f64>() / approximate(seen.trials().len().max(1) as u64)
}

fn cuts<'a>(seen: &TestEvidence<'a>) -> Vec<RateCut<'a>> {
    let Some(Derivation::Rate { side, counter }) = main_rate(seen.test).map(|summary| &summary.metric.from) else {
        return Vec::new();
    };
    let of_trial = |trial: &&'a Trial| {
        let (host, record) = record_of(trial, *side)?;
        // A receiver measures until the sender's last bytes have come, which may take seconds after an event.
        let (_, until) = MeasuredWindow::common(trial, &seen.run.hosts)?.in_record(&seen.run.hosts, host, record);
        Some(cuts_of(trial, record, counter, until))
    };
    seen.trials().iter().filter_map(of_trial).flatten().collect()
}

/// An interval of a timeline: its begin, its end, and its count.
type Interval = (Nanos, Nanos, u64);

fn cuts_of<'a>(trial: &'a Trial, record: &Record, counter: &str, measured_until: Nanos) -> Vec<RateCut<'a>> {
    let Some(growth) = record.timeline.counters.get(counter).filter(|_| !trial.events.is_empty()) else {
        return Vec::new();
    };
    let ends = &record.timeline.end_ns;
    let begins = std::iter::once(&Nanos::ZERO).chain(ends);
    let all: Vec<Interval> = begins.zip(ends).zip(growth).map(|((from, to), n)| (*from, *to, *n)).collect();
    let spans = EventSpan::all(&trial.events);
    let end_of = |span: &EventSpan<'_>| span.until.unwrap_or(measured_until).min(measured_until);
    let recoveries: Vec<_> = spans.iter().map(|span| recovered(&all, end_of(span), measured_until)).collect();
    let effects = || spans.iter().zip(&recoveries).map(|(span, end)| (span, end.unwrap_or(measured_until)));
    let touches = |one: &Interval| effects().any(|(span, until)| one.0 < until && one.1 > span.from);
    let rate = |(from, to, n): &Interval| approximate(*n) / (*to - *from).as_secs_f64();
    let outside: Vec<f64> = all.iter().filter(|one| one.1 <= measured_until && !touches(one)).map(rate).collect();
    let Some(usual) = median(&outside).filter(|usual| *usual > 0.0) else { return Vec::new() };
    let counted = approximate(growth.iter().sum::<u64>().max(1));
    let sum = |from: Nanos, until: Nanos| {
        let inside: Vec<&Interval> = all.iter().filter(|one| one.0 >= from && one.1 <= until).collect();
        let time = inside.last()?.1 - inside.first()?.0;
        Some((approximate(inside.iter().map(|one| one.2).sum()), usual * time.as_secs_f64()))
    };
    let of_span = |((span, until), recovered): ((&EventSpan<'a>, Nanos), &Option<Nanos>)| {
        let (from, ended) = (span.from, end_of(span));
        let ((n, expected), (n_in_all, expected_in_all)) = (sum(from, ended)?, sum(from, until)?);
        let (left, missing) = (n / expected, (expected_in_all - n_in_all) / counted);
        (left < CUT).then_some(RateCut { event: span.event, from, until: ended, recovered: *recovered, left, missing })
    };
    effects().zip(&recoveries).filter_map(of_span).collect()
}

/// Returns when something was counted again after an event that ended then, or `None` if nothing was in the measured time: TCP doubles
/// its time to a retransmission with each that is lost (RFC 6298, section 5.5), so its silence outlasts an outage.
fn recovered(all: &[Interval], ended: Nanos, measured_until: Nanos) -> Option<Nanos> {
    if ended >= measured_until {
        return Some(measured_until);
    }
    let first_with = all.iter().find(|(from, to, n)| *to > ended && *from < measured_until && *n > 0);
    first_with.map(|(from, ..)| (*from).max(ended))
}

#[cfg(test)]
mod tests {
    use fathom_model::{VerdictState, names::count, record::Timeline};

    use super::*;
    use crate::run_builder::RunBuilder;

    const MS: u64 = 1_000_000;

    fn event(text: &str, began_ms: u64) -> EventRecord {
        let began = Nanos(began_ms * MS);
        EventRecord {
            event: text.to_owned(),
            due_ns: began,
            began_ns: Some(began),
            n_runs: None,
            took_ns: Some(Nanos(MS)),
            status: Some(0),
            failure: None,
        }
    }

    /// A stream of datagrams of a second, of which these intervals of 100 ms receive nothing.
    fn with(events: Vec<EventRecord>, silent: std::ops::Range<usize>) -> RunBuilder {
        let mut builder = RunBuilder::new();
        let n_lost = 100 * silent.len() as u64;
        builder.udp_stream(&[(1_000, 1_000 - n_lost)]);
        let trial = &mut builder.run.tests[0].trials[0];
        trial.events = events;
        let receiver = trial.records.get_mut("target").unwrap();
        let mut timeline = Timeline::of(&[count::RECEIVED]);
        for n in 0..10 {
            let received = if silent.contains(&n) { 0 } else { 100 };
            timeline.push(Nanos((n as u64 + 1) * 100 * MS), &[count::RECEIVED], &[received]);
        }
        (receiver.timeline, receiver.measured_ns) = (timeline, (Nanos::ZERO, Nanos(1_000 * MS)));
        builder
    }

    #[test]
    fn a_planned_outage_is_the_cause_and_the_loss_its_effect() {
        let planned =
            || vec![event("0.3s-0.5s black-hole=target", 300), event("end of 0.3s-0.5s black-hole=target", 500)];
        let run = with(planned(), 3..5).analyzed();
        let title = &run.findings[0].title;
        assert!(
            title.starts_with(
                "the planned event `0.3s-0.5s black-hole=target` cut the rate: from 300 ms to 500 ms it was 0 %"
            ),
            "{title}"
        );
        let others: Vec<_> = run.findings[1..].iter().filter(|finding| finding.severity > Severity::Remark).collect();
        assert!(others.is_empty(), "{others:?}");
        assert_ne!(run.verdict.state, VerdictState::Invalid);
        // Elsewhere in the trial it explains nothing.
        assert!(with(planned(), 6..8).finding(PLANNED_EVENT).is_none());
        assert!(with(Vec::new(), 3..5).finding(PLANNED_EVENT).is_none());
    }

    #[test]
    fn the_silence_after_an_outage_is_no_usual_rate() {
        let planned = vec![event("0.3s-0.5s black-hole=target", 300), event("end of 0.3s-0.5s black-hole=target", 500)];
        let run = with(planned, 3..10).analyzed();
        assert!(run.findings[0].title.ends_with("0 % of the usual one, and nothing got through after it"));
        let causes: Vec<_> = run.findings.iter().filter(|it| it.severity > Severity::Remark).map(|it| &it.id).collect();
        assert_eq!(causes, [PLANNED_EVENT]);
        let ends = [event("0.3s-0.5s black-hole=target", 300), event("end of 0.3s-0.5s black-hole=target", 500)];
        let title = with(ends.into(), 3..8).finding(PLANNED_EVENT).unwrap().title;
        assert!(title.ends_with("0 % of the usual one, and nothing got through until 800 ms"), "{title}");
    }

    #[test]
    fn what_a_receiver_gets_after_the_sender_has_ended_is_no_usual_rate() {
        let planned = vec![event("0.3s-0.5s black-hole=target", 300), event("end of 0.3s-0.5s black-hole=target", 500)];
        let mut builder = with(planned, 3..10);
        let receiver = builder.run.tests[0].trials[0].records.get_mut("target").unwrap();
        for n in 10..30 {
            receiver.timeline.push(Nanos((n + 1) * 100 * MS), &[count::RECEIVED], &[u64::from(n == 12)]);
        }
        receiver.measured_ns.1 = Nanos(3_000 * MS);
        let title = builder.finding(PLANNED_EVENT).unwrap().title;
        assert!(title.ends_with("0 % of the usual one, and nothing got through after it"), "{title}");
    }

    #[test]
    fn an_event_that_is_not_undone_lasts_to_the_end_and_a_failed_one_does_nothing() {
        let run = with(vec![event("0.6s ip link set eth0 down", 600)], 6..10).analyzed();
        let title = &run.findings[0].title;
        assert!(title.ends_with("from 600 ms to 1.00 s it was 0 % of the usual one"), "{title}");
        let failed = EventRecord { failure: Some("exit status 1".to_owned()), ..event("0.6s false", 600) };
        assert!(with(vec![failed], 6..10).finding(PLANNED_EVENT).is_none());
    }

    #[test]
    fn a_loss_that_is_much_more_than_the_event_took_stands_beside_it() {
        let planned = vec![event("0.3s-0.4s black-hole=target", 300), event("end of 0.3s-0.4s black-hole=target", 400)];
        let mut builder = with(planned, 3..4);
        builder.total("client", count::SENT, 2_000);
        let run = builder.analyzed();
        let holds_back = run.findings.iter().filter(|finding| finding.severity == Severity::HoldsBack);
        assert_eq!(holds_back.map(|finding| finding.id.as_str()).collect::<Vec<_>>().len(), 2, "{:?}", run.findings);
    }
}
