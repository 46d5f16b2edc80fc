//! Some probes of a series had no answer, between others that had one.

use fathom_model::{
    Finding, NextStep, Record, Severity,
    names::count::{SENT, TRANSACTIONS_LOST},
    probe::{OutageRecord, ProbeRecord},
    units::{Nanos, approximate, grouped, percent, ratio},
};

use super::{
    FindingRule,
    drops::BACKLOG_OVERFLOW,
    host_drops::{BAD_IP_CHECKSUMS, CONNTRACK_FULL, CONNTRACK_REFUSED, NEIGHBOR_UNRESOLVED, of_packets},
    packet_filter::{PacketFilter, filter_of_datagrams},
    unexplained_loss::{LOSS, RATE_LIMIT},
};
use crate::evidence::{TestEvidence, counter_evidence};

/// One lost probe is told, and no more: the first of a series may wait for a neighbor, and any network loses a packet at times.
const MATTERS: u64 = 2;
/// At one probe in a thousand and above, loss matters.
const HOLDS_BACK: f64 = 1e-3;
/// So many probes in a row are lost by chance in fewer than one series of a hundred.
const CHANCE: f64 = 0.01;
/// The notes of a series whose loss says nothing: a host that limits how many it answers, and answers that found no room here.
const NO_LOSS: [&str; 2] = ["answers-limited", "probe-unheard"];
/// The probes that an ICMP error refused, which counts them as lost too and is told with the errors.
const REFUSED: &str = "refused";

/// Looks at the probes that were lost one by one. Those that were lost in a row are an outage, which has a finding of its own.
pub(crate) struct LostProbes;

/// Returns the outages of a series that are none by chance: some of many scattered losses are in a row.
pub(super) fn outages<'a>(record: &Record, probe: &'a ProbeRecord) -> impl Iterator<Item = &'a OutageRecord> {
    let (n_sent, n_lost) = (total(record, SENT), total(record, TRANSACTIONS_LOST));
    probe.outages.iter().filter(move |outage| {
        // Of all others, this share was lost.
        let share = ratio(n_lost.saturating_sub(outage.n_probes), n_sent).unwrap_or(0.0).min(1.0);
        let length = i32::try_from(outage.n_probes).unwrap_or(i32::MAX);
        approximate(n_sent) * share.powi(length) < CHANCE
    })
}

fn total(record: &Record, name: &str) -> u64 {
    record.totals.get(name).copied().unwrap_or(0)
}

/// The series of probes from a host to a target in a trial.
struct ScatteredLoss<'a> {
    from: &'a str,
    target: &'a str,
    n_sent: u64,
    n_scattered: u64,
    limit: Option<AnswerLimit>,
}

/// Probes that were lost at equal distances, as something answers or passes a number of them per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AnswerLimit {
    /// The probes between two that are answered.
    n_in_a_row: u64,
    /// The mean time from one answer to the next.
    interval: Nanos,
    /// All that were lost.
    n_lost: u64,
}

impl AnswerLimit {
    fn of(record: &Record, probe: &ProbeRecord) -> Option<Self> {
        // Fewer may be alike by chance.
        const RUNS_MIN: usize = 8;
        // A late probe or answer moves the end of a run.
        const MOST: f64 = 0.8;
        let mut runs: Vec<u64> = probe.outages.iter().map(|outage| outage.n_probes).collect();
        runs.sort_unstable();
        let usual = *runs.get(runs.len() / 2).filter(|_| runs.len() >= RUNS_MIN)?;
        let alike = || runs.iter().filter(|run| run.abs_diff(usual) <= 1);
        let n_lost = total(record, TRANSACTIONS_LOST);
        let is_most = |n: u64, of: u64| ratio(n, of).is_some_and(|share| share >= MOST);
        let is_even = is_most(alike().count() as u64, runs.len() as u64) && is_most(alike().sum(), n_lost);
        let n_answered = total(record, SENT).saturating_sub(n_lost);
        // One probe is answered at a time, apart from a burst at the beginning.
        let is_even = is_even && n_answered <= 2 * runs.len() as u64;
        let lasted = record.measured_ns.1 - record.measured_ns.0;
        is_even.then_some(Self { n_in_a_row: usual, interval: Nanos(lasted.0.checked_div(n_answered)?), n_lost })
    }

    /// Suggests to probe more slowly than the limit allows.
    fn next(self, seen: &TestEvidence<'_>) -> Option<NextStep> {
        let slow = Nanos::from_millis((2 * self.interval.0).div_ceil(1_000_000));
        let command = seen.repeat_test_command(&format!("--interval {}ms", slow.0 / 1_000_000))?;
        Some(NextStep::new(command).expected("lose nothing if the limit is the reason and not the path"))
    }
}

/// Returns the series that lost most probes one by one, while others were answered.
fn worst_series<'a>(seen: &TestEvidence<'a>) -> Option<ScatteredLoss<'a>> {
    let of_series = |(from, record, probe): (&'a str, &'a Record, &'a ProbeRecord)| {
        let says_nothing = record.notes.iter().any(|note| NO_LOSS.contains(&note.id.as_str()));
        let (n_sent, n_lost) = (total(record, SENT), total(record, TRANSACTIONS_LOST));
        let in_outages: u64 = outages(record, probe).map(|outage| outage.n_probes).sum();
        let n_scattered = n_lost.saturating_sub(in_outages).saturating_sub(total(record, REFUSED));
        let limit = AnswerLimit::of(record, probe);
        let loss = ScatteredLoss { from, target: &probe.target, n_sent, n_scattered, limit };
        (n_lost < n_sent && n_scattered > 0 && !says_nothing).then_some(loss)
    };
    seen.series().filter_map(of_series).max_by_key(|loss| loss.n_scattered)
}

impl FindingRule for LostProbes {
    fn id(&self) -> &'static str {
        LOSS
    }

    fn effect_of(&self) -> &'static [&'static str] {
        // A place that counts about as many drops tells more.
        &[
            "filter-drops",
            "ingress-filter-drops",
            "reverse-path-filter",
            "no-route",
            "martian-packets",
            "other-mac",
            "device-receive-drops",
            "device-send-drops",
            "qdisc-drops",
            BACKLOG_OVERFLOW,
            BAD_IP_CHECKSUMS,
            CONNTRACK_FULL,
            CONNTRACK_REFUSED,
            NEIGHBOR_UNRESOLVED,
        ]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(worst) = worst_series(seen) else { return Vec::new() };
        let ScatteredLoss { from, target, n_sent, n_scattered, limit } = worst;
        let filter = filter_of_datagrams(seen, n_scattered);
        let n = filter.as_ref().map_or(n_scattered, |filter| n_scattered.min(filter.n_dropped));
        let share = ratio(n, n_sent).unwrap_or(0.0);
        let of_pair = if seen.test.links.is_empty() { String::new() } else { format!(" of {from} to {target}") };
        let of = format!("{} of {} probes{of_pair} ({})", grouped(n), grouped(n_sent), percent(share));
        let place = place_of(seen, n);
        let title = match (&filter, &place, seen.hosts().count()) {
            (Some(filter), ..) => format!("a packet filter on {} dropped {of}, scattered", filter.host),
            (None, Some((place, _)), _) => format!("{of} were lost, scattered: {place}"),
            (None, None, 1) => format!("{of} had no answer, scattered; only the counters of {from} were read"),
            (None, None, _) => format!("{of} were lost, scattered, where no counter of these hosts shows it"),
        };
        let evidence = [(SENT, n_sent), ("without an answer, scattered", n_scattered)];
        let evidence = evidence.map(|(name, n)| counter_evidence(from, name, n));
        let route = NextStep::new(format!("fathom probe {target} --test route --allow {target}"))
            .on(from)
            .expected("show the hop from which on packets are lost");
        if let (Some(limit), None, None) = (limit, &filter, &place) {
            let AnswerLimit { n_in_a_row, interval, n_lost } = limit;
            let share = percent(ratio(n_lost, n_sent).unwrap_or(0.0));
            let title = format!(
                "{target} or a device on the way limits the answers to one every {interval}: {} of {} probes{of_pair} ({share}) had none, about \
                 {n_in_a_row} in a row each time",
                grouped(n_lost),
                grouped(n_sent)
            );
            let found = seen.finding(RATE_LIMIT, Severity::HoldsBack, "answer limit", title);
            return vec![found.evidence(evidence).next(limit.next(seen))];
        }
        let severity = if n >= MATTERS && share >= HOLDS_BACK { Severity::HoldsBack } else { Severity::Remark };
        vec![
            seen.finding(self.id(), severity, "lost probes", title)
                .next(filter.as_ref().map(PacketFilter::next).or(place.map(|(_, next)| next)).unwrap_or(route))
                .evidence(evidence.into_iter().chain(filter.map(|filter| filter.evidence()))),
        ]
    }
}

/// Returns the place, of the hosts or of a device between them, that dropped most nearly as many packets as a test lost probes, and the next step
/// there; `None` if that is less than half of them or more than twice as many.
fn place_of(seen: &TestEvidence<'_>, n_lost: u64) -> Option<(String, NextStep)> {
    let drops = seen.hosts().chain(seen.via()).flat_map(|host| of_packets(seen, host));
    let about_as_many = drops.filter(|(_, n, _)| (n_lost / 2..=n_lost.saturating_mul(2)).contains(n));
    about_as_many.min_by_key(|(_, n, _)| n.abs_diff(n_lost)).map(|(place, _, next)| (place, next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::{
        Note,
        names::host::{IP_IN_DELIVERS, IP_IN_RECEIVES, NFT_DROPPED},
        probe::{OutageRecord, ProbeRecord},
    };

    fn series(sent_and_answered: (u64, u64), in_a_row: &[u64]) -> RunBuilder {
        let outage = |n: &u64| OutageRecord {
            from_ns: Nanos::ZERO,
            from: "2026-01-01T00:00:00Z".to_owned(),
            length_ns: Some(Nanos::from_millis(30)),
            n_probes: *n,
        };
        let outages = in_a_row.iter().map(outage).collect();
        let mut builder = RunBuilder::new();
        builder.probed(
            sent_and_answered,
            ProbeRecord { target: "198.18.0.2".to_owned(), outages, ..ProbeRecord::default() },
        );
        builder
    }

    /// The findings above a remark.
    fn said(builder: &RunBuilder) -> Vec<String> {
        let found = builder.analyzed().findings.into_iter();
        found.filter(|found| found.severity >= Severity::HoldsBack).map(|found| found.id).collect()
    }

    #[test]
    fn single_probes_are_lost_and_many_in_a_row_are_an_outage() {
        let finding = series((200, 180), &[3]).finding(LOSS).unwrap();
        assert_eq!(
            finding.title,
            "20 of 200 probes (10 %) were lost, scattered, where no counter of these hosts shows it"
        );
        assert_eq!(said(&series((200, 180), &[3])), [LOSS], "three in a row happen by chance");
        assert_eq!(said(&series((200, 180), &[20])), ["outage"]);
        assert_eq!(said(&series((200, 180), &[15])), ["outage", LOSS], "and five beside it");
        assert_eq!(said(&series((200, 197), &[3])), ["outage"], "three in a row and no other");
        assert_eq!(said(&series((200, 199), &[])), Vec::<String>::new(), "a single one is a remark");
        assert_eq!(series((200, 200), &[]).finding(LOSS), None);
        assert_eq!(series((200, 0), &[]).finding(LOSS), None, "which is told otherwise");
    }

    #[test]
    fn probes_that_are_lost_at_equal_distances_meet_a_limit_of_answers() {
        let finding = series((200, 44), &[4; 39]).finding(RATE_LIMIT).unwrap();
        let told = "198.18.0.2 or a device on the way limits the answers to one every 22.7 ms: 156 of 200 probes (78 %) had none, about 4 in a row each time";
        assert_eq!(finding.title, told);
        assert!(series((200, 44), &[4, 9, 3, 6, 14, 3, 5, 8, 12, 3, 20]).finding(RATE_LIMIT).is_none());
    }

    #[test]
    fn probes_that_are_not_lost_on_the_path_are_no_loss() {
        let with = |note: Option<&str>, n_refused: u64| {
            let mut builder = series((200, 150), &[]);
            builder.total("client", REFUSED, n_refused);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.notes.extend(note.map(|id| Note::new(id, "so many were not answered")));
            builder.finding(LOSS).is_some()
        };
        assert!(with(None, 0));
        assert!(!with(Some("answers-limited"), 0));
        assert!(!with(Some("probe-unheard"), 0));
        assert!(!with(None, 50), "a router said so");
    }

    #[test]
    fn drops_of_others_are_not_why_probes_are_lost() {
        for (lost, dropped) in [(2, 12), (100, 12), (1, 1)] {
            let mut builder = series((200, 200 - lost), &[]);
            builder.host_counter("client", (NFT_DROPPED, "filter in 4"), dropped);
            assert!(!said(&builder).contains(&"filter-drops".to_owned()), "{lost} lost, {dropped} dropped");
        }
    }

    #[test]
    fn a_place_that_counts_its_drops_leads() {
        let mut builder = series((200, 196), &[]);
        builder.host_counter("target", (NFT_DROPPED, "filter in 4"), 4);
        assert_eq!(said(&builder), ["filter-drops"], "a series is short");
        let mut builder = series((200, 180), &[]);
        builder.host_counter("target", (NFT_DROPPED, "filter in 4"), 20);
        assert_eq!(said(&builder), ["filter-drops"]);
        let mut builder = series((200, 180), &[]);
        builder.host_counter("target", (IP_IN_RECEIVES, ""), 220);
        builder.host_counter("target", (IP_IN_DELIVERS, ""), 200);
        let title = builder.finding(LOSS).unwrap().title;
        assert!(title.starts_with("a packet filter on target dropped 20 of 200 probes"), "{title}");
    }
}
