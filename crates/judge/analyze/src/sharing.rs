//! The values of each pair of hosts of a test, and how evenly hosts and flows share the work.

use std::collections::BTreeMap;

use fathom_model::{Layer, Link, LinkTrial, Metric, Sharing, Summary, TestRun, Trial, run::Host, units::Nanos};
use fathom_statistics::spread;

use crate::{
    summaries::{is_main_rate, main_rate, summary_of},
    window::{MeasuredWindow, host_of, usable_trials},
};

/// Fills in the values of all pairs of a test, over the time in which all of them measured.
pub(crate) fn fill_in_links(test: &mut TestRun, hosts: &BTreeMap<String, Host>) {
    let metrics: Vec<Metric> = test.summaries.iter().map(|summary| summary.metric.clone()).collect();
    let main = shared_rate(test).map(|summary| summary.metric.clone());
    let usable: Vec<TrialOfPairs<'_>> = usable_trials(&test.trials)
        .into_iter()
        .filter_map(|trial| TrialOfPairs::of(trial, test.layer, hosts))
        .collect();
    let of_link = |link: &Link| {
        let trials: Vec<Trial> = usable.iter().filter_map(|trial| trial.of_pair(link, hosts)).collect();
        if trials.is_empty() {
            return (BTreeMap::new(), Vec::new());
        }
        let value = |metric: &Metric| Some((metric.name.to_string(), summary_of(&trials, hosts, metric).value?));
        let rates = main.as_ref().map(|metric| summary_of(&trials, hosts, metric).trials);
        (metrics.iter().filter_map(value).collect(), rates.unwrap_or_default())
    };
    let of_links: Vec<_> = test.links.iter().map(of_link).collect();
    for (link, (values, trials)) in test.links.iter_mut().zip(of_links) {
        (link.values, link.trials) = (values, trials);
    }
}

/// A trial with the records of its pairs at hand.
struct TrialOfPairs<'a> {
    round: u32,
    /// The time in which all pairs measured. Probes have none: each pair has its own time.
    common: Option<MeasuredWindow>,
    pairs: BTreeMap<(&'a str, Option<&'a str>), &'a LinkTrial>,
}

impl<'a> TrialOfPairs<'a> {
    /// Returns `None` if there is no time in which all pairs measured.
    fn of(trial: &'a Trial, layer: Layer, hosts: &BTreeMap<String, Host>) -> Option<Self> {
        let common = match layer {
            Layer::Path => None,
            _ => Some(MeasuredWindow::common(trial, hosts)?),
        };
        let pairs = trial.links.iter().map(|link| ((link.from.as_str(), link.to.as_deref()), link)).collect();
        Some(Self { round: trial.round, common, pairs })
    }

    /// Returns the trial of one pair, measured while all pairs measured; `None` if one of its hosts was lost.
    fn of_pair(&self, link: &Link, hosts: &BTreeMap<String, Host>) -> Option<Trial> {
        let of_link = self.pairs.get(&(link.from.as_str(), link.to.as_deref())).filter(|link| link.is_whole())?;
        let mut records = of_link.records.clone();
        // A trial that a count ended is divided by its own time.
        for (key, record) in records.iter_mut().filter(|(_, record)| record.whole_span().is_none()) {
            if let Some(common) = self.common {
                let (from, to) = common.in_record(hosts, host_of(key), record);
                record.measured_ns = (from, to.max(from + Nanos(1)));
            }
        }
        Some(Trial { round: self.round, records, ..Trial::default() })
    }
}

/// Returns the rate that the hosts of a test share. Probes go at their own pace and share nothing.
fn shared_rate(test: &TestRun) -> Option<&Summary> {
    let told = test.first_value().filter(|first| is_main_rate(&first.metric));
    told.or_else(|| main_rate(test)).filter(|_| test.layer != Layer::Path)
}

/// Returns how the main rate of a test divides; `None` for a test of one pair, or without a rate.
pub(crate) fn sharing(test: &TestRun) -> Option<Sharing> {
    let metric = shared_rate(test)?.metric.name.to_string();
    let differs = differing_end(test)?;
    let mut by_host: BTreeMap<String, f64> = BTreeMap::new();
    for link in &test.links {
        if let Some((host, rate)) = differs(link).zip(link.values.get(&metric)) {
            *by_host.entry(host.to_owned()).or_default() += rate;
        }
    }
    let flows: Vec<f64> = test.flows.iter().map(|flow| flow.acknowledged_bps).collect();
    let mut lost: Vec<String> = test.trials.iter().flat_map(|trial| trial.lost.iter().cloned()).collect();
    lost.sort_unstable();
    lost.dedup();
    let hosts = spread(&by_host.values().copied().collect::<Vec<_>>());
    Some(Sharing { metric, by_host, hosts, flows: spread(&flows), lost, tested: None, growth: None })
}

/// The end of a pair at which the pairs of a test differ: the responding one if only one host initiates. `None` without pairs.
pub(crate) fn differing_end(test: &TestRun) -> Option<fn(&Link) -> Option<&str>> {
    let first = test.links.first()?;
    let is_one_initiator = test.links.iter().all(|link| link.from == first.from);
    Some(if is_one_initiator { |link| link.to.as_deref() } else { |link| Some(&link.from) })
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;

    #[test]
    fn each_pair_has_its_values_and_the_spread_is_that_of_the_hosts() {
        let mut builder = RunBuilder::new();
        builder.star(&[("c1", &[1_000, 1_000]), ("c2", &[1_000, 1_000]), ("c3", &[4_000, 2_000])]);
        let run = builder.analyzed();
        let test = &run.tests[0];
        let rates: Vec<f64> = test.links.iter().map(|link| link.values["throughput_bps"]).collect();
        assert_eq!(rates, [8_000.0, 8_000.0, 24_000.0]);
        assert_eq!(test.summaries[0].trials, [48_000.0, 32_000.0], "the sum of all pairs in each round");
        let sharing = test.sharing.as_ref().unwrap();
        let hosts = sharing.hosts.unwrap();
        assert_eq!((hosts.n, hosts.min, hosts.median, hosts.max), (3, 8_000.0, 8_000.0, 24_000.0));
        assert!((hosts.jain - 40.0 * 40.0 / (3.0 * (64.0 + 64.0 + 576.0))).abs() < 1e-9, "{hosts:?}");
        assert_eq!((sharing.metric.as_str(), sharing.lost.len()), ("throughput_bps", 0));
    }

    #[test]
    fn a_lost_host_has_no_value_in_the_rounds_without_it() {
        let mut builder = RunBuilder::new();
        builder.star(&[("c1", &[1_000, 1_000]), ("c2", &[1_000, 1_000])]);
        builder.lose("c2", 1);
        let run = builder.analyzed();
        let test = &run.tests[0];
        assert_eq!(test.links[1].values.get("throughput_bps"), Some(&8_000.0), "of the round in which it was there");
        assert_eq!(test.sharing.as_ref().unwrap().lost, ["c2"]);
        assert_eq!(test.summaries[0].trials, [16_000.0, 8_000.0]);
    }

    #[test]
    fn a_test_of_two_hosts_shares_nothing() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000]);
        assert_eq!(builder.analyzed().tests[0].sharing, None);
    }
}
