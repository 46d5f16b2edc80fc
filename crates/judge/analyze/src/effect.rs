//! What an intervention did: its value with and without the change, and whether that proves a cause.
//!
//! An effect is said only if the intervals of the two values do not overlap. A cause is refuted only if the intervals exclude an
//! effect as large as it predicts.

use std::collections::BTreeMap;

use fathom_model::{
    Better, Derivation, Effect, Finding, Intervention, InterventionAim, Metric, Proof, ProofOutcome, Severity, Summary,
    TestRun, Trial, Unit,
    names::tcp,
    run::Host,
    units::{Bytes, approximate, grouped, percent, rounded, significant},
};

use crate::summaries::summary_of;

/// A loss of at most this share of the unchanged one is gone.
const GONE: f64 = 0.01;
/// Notes that say that the kernel did not grant the change.
pub(crate) const NOT_GRANTED: [&str; 2] = ["receive-buffer-smaller", "send-buffer-smaller"];

/// The id of the cause that a peer's window is too small.
const RECEIVE_WINDOW: &str = "receive-window";
/// A window that grows by less than a tenth did not follow its buffer, which grows fourfold or more.
const WIDER: f64 = 1.1;

/// What a change means beyond proof and refutation: the option, and the meaning of an effect and of none.
const MEANINGS: [(&str, &str, &str); 5] = [
    ("flows", "the path carries more than these flows get", "all flows share one limit"),
    ("connections", "more requests at once get more answers", "all connections share one limit"),
    ("rate", "it comes with the rate", "it does not come from the rate"),
    ("pps", "it comes with the rate", "it does not come from the rate"),
    ("buffer", "the size of the buffer limits it", "the size of the buffer does not limit it"),
];

/// Returns the effect of an intervention. `None` before there are two trials with and two without the change.
#[must_use]
pub fn effect(intervention: &Intervention, metric: &Metric, hosts: &BTreeMap<String, Host>) -> Option<Effect> {
    let unchanged = summary_of(&intervention.unchanged, hosts, metric);
    let changed = summary_of(&intervention.changed, hosts, metric);
    let comparison = Comparison::of(&unchanged, &changed)?;
    let (outcome, text) = if not_granted(intervention) {
        (ProofOutcome::Open, format!("`{}` was not granted by the kernel of a host", intervention.change()))
    } else if let Some(window) = window_that_stayed(intervention) {
        let change = intervention.change();
        (
            ProofOutcome::Open,
            format!("`{change}` did not widen the window, which was {window} at most: that shows nothing"),
        )
    } else {
        let outcome = comparison.outcome(intervention);
        (outcome, text(intervention, outcome, &comparison))
    };
    Some(Effect { outcome, unchanged, changed, text })
}

/// Returns true if a host of the changed trials had to do with less than was asked.
fn not_granted(intervention: &Intervention) -> bool {
    let records = intervention.changed.iter().flat_map(|trial| trial.records.values());
    records.flat_map(|record| &record.notes).any(|note| NOT_GRANTED.contains(&note.id.as_str()))
}

/// Returns the window of a test whose cause is a small one, if a larger buffer left it as small as it was: something else holds it.
fn window_that_stayed(intervention: &Intervention) -> Option<Bytes> {
    let is_about = intervention.cause.as_deref() == Some(RECEIVE_WINDOW) && intervention.option == "buffer";
    let widest = |trials: &[Trial]| {
        let flows = trials.iter().flat_map(|trial| trial.records.values()).flat_map(|record| &record.flows);
        let samples = flows.flat_map(|flow| &flow.samples);
        samples.filter_map(|sample| sample.values.get(tcp::SND_WND_BYTES).copied()).max()
    };
    let (before, after) = (widest(&intervention.unchanged)?, widest(&intervention.changed)?);
    (is_about && approximate(after) < WIDER * approximate(before)).then_some(Bytes(after))
}

/// The two values of an intervention with their intervals.
struct Comparison<'a> {
    unchanged: &'a Summary,
    changed: &'a Summary,
    /// Low end, value and high end.
    a: [f64; 3],
    b: [f64; 3],
}

impl<'a> Comparison<'a> {
    fn of(unchanged: &'a Summary, changed: &'a Summary) -> Option<Self> {
        let ends = |summary: &Summary| {
            let interval = summary.confidence?;
            Some([interval.low, summary.value?, interval.high])
        };
        Some(Self { unchanged, changed, a: ends(unchanged)?, b: ends(changed)? })
    }

    fn is_higher_better(&self) -> bool {
        self.unchanged.metric.better == Better::Higher
    }

    /// The relative improvement from one value to another: 0.5 for a rate that grows, or a loss that falls, by half.
    fn gain(&self, from: f64, to: f64) -> f64 {
        match (self.is_higher_better(), from > 0.0) {
            (true, true) => to / from - 1.0,
            (true, false) if to > 0.0 => f64::INFINITY,
            (false, true) => 1.0 - to / from,
            (true | false, false) => 0.0,
        }
    }

    fn is_apart(&self) -> bool {
        self.b[0] > self.a[2] || self.b[2] < self.a[0]
    }

    /// The largest improvement that the intervals allow.
    fn gain_max(&self) -> f64 {
        if self.is_higher_better() { self.gain(self.a[0], self.b[2]) } else { self.gain(self.a[2], self.b[0]) }
    }

    /// Returns true if there is nothing to improve: what the test suffered from did not come back.
    fn is_gone_by_itself(&self) -> bool {
        !self.is_higher_better() && self.a[1] <= 0.0
    }

    fn outcome(&self, intervention: &Intervention) -> ProofOutcome {
        let has_effect = self.is_apart() && self.gain(self.a[1], self.b[1]) >= intervention.effect_min;
        let has_none = self.gain_max() < intervention.effect_min;
        match (has_effect, has_none, intervention.aim) {
            _ if self.is_gone_by_itself() => ProofOutcome::Open,
            (true, _, InterventionAim::Clue) => ProofOutcome::Effect,
            (true, ..) => ProofOutcome::Proven,
            (false, true, InterventionAim::Verdict) => ProofOutcome::Refuted,
            (false, true, _) => ProofOutcome::NoEffect,
            (false, false, _) => ProofOutcome::Open,
        }
    }
}

/// Returns the sentence about an effect, which can follow a colon or stand alone.
fn text(intervention: &Intervention, outcome: ProofOutcome, found: &Comparison<'_>) -> String {
    let metric = &found.unchanged.metric;
    let values = values(found);
    let change = match &intervention.from {
        Some(from) => format!("`{}` instead of {from}", intervention.change()),
        None => format!("`{}`", intervention.change()),
    };
    let meaning = MEANINGS.iter().find(|(option, ..)| *option == intervention.option);
    let (of_effect, of_none) = meaning.map(|(_, of_effect, of_none)| (*of_effect, *of_none)).unwrap_or_default();
    let gain = found.gain(found.a[1], found.b[1]);
    match outcome {
        ProofOutcome::Proven => format!("with {change} {} ({values})", improvement(metric, gain, found.a[1])),
        ProofOutcome::Effect => {
            format!("with {change} {} ({values}): {of_effect}", improvement(metric, gain, found.a[1]))
        }
        ProofOutcome::Refuted | ProofOutcome::NoEffect => {
            let did = match (found.is_apart(), gain > 0.0) {
                (false, _) => "changed nothing",
                (true, true) => "changed little",
                (true, false) => "made it worse",
            };
            let end = if outcome == ProofOutcome::Refuted { "this is not the cause" } else { of_none };
            format!("{change} {did} ({values}): {end}")
        }
        ProofOutcome::Open if found.is_gone_by_itself() => {
            format!("{} did not come again in the trials with and without {change}", name(metric))
        }
        ProofOutcome::Open if found.is_apart() => {
            format!("{change} changed something, but too little to tell ({values})")
        }
        ProofOutcome::Open => format!("the effect of {change} is not distinguishable from chance ({values})"),
    }
}

/// Returns the word for what a metric measures, with its article.
fn name(metric: &Metric) -> String {
    match metric.from {
        Derivation::Missing { .. } => "the loss".to_owned(),
        _ if metric.name.starts_with("retransmitted") => "the share of retransmissions".to_owned(),
        Derivation::Rate { .. } | Derivation::RateOfBoth { .. } => "the rate".to_owned(),
        _ => format!("the {}", metric.title),
    }
}

/// Describes an improvement: `the loss is gone`, `the rate is 1.9 times as high`.
fn improvement(metric: &Metric, gain: f64, before: f64) -> String {
    let name = name(metric);
    match metric.better {
        Better::Higher if before > 0.0 => format!("{name} is {} times as high", factor(1.0 + gain)),
        Better::Higher => format!("{name} is no longer zero"),
        _ if metric.unit == Unit::Ratio && gain >= 1.0 - GONE => format!("{name} is gone"),
        _ if metric.unit == Unit::Nanos => format!("{name} is {} times shorter", factor(1.0 / (1.0 - gain))),
        _ => format!("{name} falls by {}", percent(gain)),
    }
}

/// Formats a factor with two or three digits, and one beyond all measure as a bound.
fn factor(factor: f64) -> String {
    const MOST: f64 = 1e6;
    let decimals = match factor {
        factor if factor > MOST => return "over a million".to_owned(),
        factor if factor >= 1000.0 => return grouped(rounded(factor)),
        factor if factor >= 9.95 => 0,
        factor if factor >= 1.95 => 1,
        _ => 2,
    };
    format!("{factor:.decimals$}")
}

/// Formats both values, the changed one first: `188 ± 2.1 against 94.0 ± 0.9 Mbit/s`.
fn values(found: &Comparison<'_>) -> String {
    let (changed, changed_unit) = with_interval(found.changed, found.b);
    let (unchanged, unit) = with_interval(found.unchanged, found.a);
    if changed_unit == unit {
        format!("{changed} against {unchanged}{unit}")
    } else {
        format!("{changed}{changed_unit} against {unchanged}{unit}")
    }
}

/// Formats a value with its interval, and its unit with the space before it.
fn with_interval(summary: &Summary, [low, value, high]: [f64; 3]) -> (String, String) {
    let shown = summary.metric.show(value);
    let (number, unit) = shown.split_at(shown.find(' ').unwrap_or(shown.len()));
    let scale = number.parse::<f64>().ok().filter(|number| *number > 0.0).map(|number| value / number);
    let (below, above) = (value - low, high - value);
    let number = match scale.filter(|_| above.max(below) > 0.0 && !summary.is_vague()) {
        // An interval of factors is not symmetric.
        Some(scale) if below.min(above) * 2.0 < below.max(above) => {
            format!("{number} [{} – {}]", significant(low / scale), significant(high / scale))
        }
        Some(scale) => format!("{number} ± {}", two_digits(below.max(above) / scale)),
        None => number.to_owned(),
    };
    (number, unit.to_owned())
}

/// Formats half of an interval with two digits, and at most three decimals.
fn two_digits(half: f64) -> String {
    let decimals = match half {
        half if half >= 9.95 => 0,
        half if half >= 0.995 => 1,
        half if half >= 0.0995 => 2,
        _ => 3,
    };
    format!("{half:.decimals$}")
}

/// Adds the outcome of an intervention to the cause that it tested, and makes a refuted cause a remark.
pub(crate) fn with_proof(finding: Finding, test: &TestRun) -> Finding {
    let is_about = |tried: &&Intervention| tried.cause.as_ref() == Some(&finding.id);
    let tried = test.interventions.iter().find(is_about).and_then(|tried| Some((tried, tried.effect.as_ref()?)));
    let Some((tried, effect)) = tried else { return finding };
    let (outcome, text) = (effect.outcome, effect.text.clone());
    let proof = Some(Proof { outcome, test: test.name.clone(), change: tried.change(), text });
    if outcome == ProofOutcome::Refuted && finding.severity == Severity::HoldsBack {
        return Finding { severity: Severity::Remark, next: None, explains: None, proof, ..finding };
    }
    Finding { proof, ..finding }
}

#[cfg(test)]
mod tests {
    use fathom_model::{NoCause, Run, names::host, units::Nanos};

    use super::*;
    use crate::run_builder::{RunBuilder, loss, throughput};

    fn datagrams(trials: &[(u64, u64)]) -> Vec<Trial> {
        let mut builder = RunBuilder::new();
        builder.udp_stream(trials);
        builder.run.tests.remove(0).trials
    }

    fn stream(bytes_per_sec: &[u64]) -> Vec<Trial> {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(bytes_per_sec);
        builder.run.tests.remove(0).trials
    }

    fn tried(change: (&str, &str), metric: &Metric, trials: (Vec<Trial>, Vec<Trial>)) -> Intervention {
        Intervention {
            cause: Some("udp-receive-buffer".to_owned()),
            option: change.0.to_owned(),
            from: Some("4KiB".to_owned()),
            to: change.1.to_owned(),
            metric: metric.name.to_string(),
            effect_min: if metric.better == Better::Higher { 0.2 } else { 0.5 },
            aim: InterventionAim::Verdict,
            unchanged: trials.0,
            changed: trials.1,
            cut: None,
            effect: None,
        }
    }

    fn told(tried: &Intervention, metric: &Metric) -> (ProofOutcome, String) {
        let found = effect(tried, metric, &RunBuilder::new().run.hosts).unwrap();
        (found.outcome, found.text)
    }

    const BUFFER: (&str, &str) = ("buffer", "4MiB");

    #[test]
    fn a_loss_that_a_change_ends_is_proven_with_both_values() {
        let trials = (datagrams(&[(10_000, 9_800), (10_000, 9_810)]), datagrams(&[(10_000, 10_000), (10_000, 10_000)]));
        let (outcome, text) = told(&tried(BUFFER, &loss(), trials), &loss());
        assert_eq!(outcome, ProofOutcome::Proven);
        assert_eq!(text, "with `--buffer 4MiB` instead of 4KiB the loss is gone (0 against 1.9 ± 0.62 %)");
    }

    #[test]
    fn a_rate_that_a_change_does_not_move_refutes_the_cause() {
        let trials = (stream(&[11_750_000, 11_760_000]), stream(&[11_870_000, 11_880_000]));
        let (outcome, text) = told(&tried(BUFFER, &throughput(), trials), &throughput());
        assert_eq!(outcome, ProofOutcome::Refuted);
        let expected = "`--buffer 4MiB` instead of 4KiB changed nothing (95.0 ± 0.51 against 94.0 ± 0.51 Mbit/s): this is not the cause";
        assert_eq!(text, expected);
        let trials = (stream(&[11_750_000, 11_751_000]), stream(&[11_870_000, 11_871_000]));
        let (_, text) = told(&tried(BUFFER, &throughput(), trials), &throughput());
        assert!(text.contains("changed little"), "the intervals do not overlap: {text}");
        let trials = (stream(&[11_750_000, 11_760_000]), stream(&[5_000_000, 5_010_000]));
        let (outcome, text) = told(&tried(BUFFER, &throughput(), trials), &throughput());
        assert!(outcome == ProofOutcome::Refuted && text.contains("made it worse"), "{text}");
    }

    #[test]
    fn what_overlaps_or_does_not_come_again_is_left_open() {
        let noisy = (stream(&[5_000_000, 10_000_000]), stream(&[9_000_000, 16_000_000]));
        let (outcome, text) = told(&tried(BUFFER, &throughput(), noisy), &throughput());
        assert_eq!(outcome, ProofOutcome::Open);
        assert!(
            text.starts_with("the effect of `--buffer 4MiB` instead of 4KiB is not distinguishable from chance"),
            "{text}"
        );
        let quiet = (datagrams(&[(1_000, 1_000), (1_000, 1_000)]), datagrams(&[(1_000, 1_000), (1_000, 1_000)]));
        let (outcome, text) = told(&tried(BUFFER, &loss(), quiet), &loss());
        assert_eq!(outcome, ProofOutcome::Open);
        assert!(text.starts_with("the loss did not come again"), "{text}");
        let mut clear = tried(BUFFER, &throughput(), (stream(&[1_000, 1_001]), stream(&[9_000, 9_001])));
        assert_eq!(told(&clear, &throughput()).0, ProofOutcome::Proven);
        let note = fathom_model::Note { id: NOT_GRANTED[0].to_owned(), text: String::new() };
        clear.changed[0].records.get_mut("target").unwrap().notes.push(note);
        assert_eq!(told(&clear, &throughput()).0, ProofOutcome::Open, "a change that was not granted shows nothing");
    }

    #[test]
    fn a_larger_buffer_that_left_the_window_as_it_was_refutes_nothing() {
        let with_window = |bytes: u64| {
            let mut trials = stream(&[11_750_000, 11_760_000]);
            for record in trials.iter_mut().filter_map(|trial| trial.records.get_mut("client")) {
                let values = [(tcp::SND_WND_BYTES.to_owned(), bytes)].into();
                let sample = fathom_model::record::FlowSample { at_ns: Nanos(1), values };
                record.flows = vec![fathom_model::record::Flow { id: "a:1 b:2".to_owned(), samples: vec![sample] }];
            }
            trials
        };
        let of = |cause: &str, after: u64| {
            let trials = (with_window(65_536), with_window(after));
            told(&Intervention { cause: Some(cause.to_owned()), ..tried(BUFFER, &throughput(), trials) }, &throughput())
        };
        let (outcome, text) = of(RECEIVE_WINDOW, 65_536);
        assert_eq!(outcome, ProofOutcome::Open);
        let words = "`--buffer 4MiB` did not widen the window, which was 64 KiB at most: that shows nothing";
        assert_eq!(text, words);
        assert_eq!(of(RECEIVE_WINDOW, 4 << 20).0, ProofOutcome::Refuted);
        assert_eq!(of("send-buffer", 65_536).0, ProofOutcome::Refuted, "its buffer is another one");
    }

    #[test]
    fn a_small_effect_beyond_chance_is_neither_proof_nor_refutation_unless_it_is_surely_small() {
        let of = |b: &[u64]| told(&tried(BUFFER, &throughput(), (stream(&[1_000, 1_000]), stream(b))), &throughput()).0;
        assert_eq!(of(&[1_150, 1_160]), ProofOutcome::Open, "it may be as much as a fifth");
        assert_eq!(of(&[1_150, 1_150]), ProofOutcome::Refuted);
        assert_eq!(of(&[1_250, 1_250]), ProofOutcome::Proven);
    }

    #[test]
    fn a_stream_of_which_nothing_got_through_gains_more_than_any_share() {
        let (outcome, text) =
            told(&tried(("mss", "500"), &throughput(), (stream(&[0, 0]), stream(&[9_000, 9_001]))), &throughput());
        assert_eq!(outcome, ProofOutcome::Proven);
        assert!(text.contains("the rate is no longer zero"), "{text}");
    }

    #[test]
    fn one_trial_on_a_side_is_no_effect() {
        let one = tried(BUFFER, &throughput(), (stream(&[1_000]), stream(&[9_000, 9_001])));
        assert_eq!(effect(&one, &throughput(), &RunBuilder::new().run.hosts), None);
    }

    /// Returns the analyzed run of a test that lost a third of its datagrams at a small buffer, after this intervention.
    fn after(changed: &[(u64, u64)], aim: InterventionAim) -> Run {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 7_000), (10_000, 7_010)]);
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 3_000);
        builder.run.tests[0].options.set("buffer", "4KiB");
        let trials = (datagrams(&[(10_000, 7_000), (10_000, 7_010)]), datagrams(changed));
        let tried = Intervention { aim, ..tried(BUFFER, &loss(), trials) };
        builder.run.tests[0].interventions.push(tried);
        builder.analyzed()
    }

    #[test]
    fn a_proven_cause_says_so_and_a_refuted_one_is_no_cause_any_more() {
        let proven = after(&[(10_000, 10_000), (10_000, 10_000)], InterventionAim::Verdict);
        let finding = &proven.findings[0];
        let proof = finding.proof.as_ref().unwrap();
        assert_eq!((finding.severity, proof.outcome), (Severity::HoldsBack, ProofOutcome::Proven));
        assert_eq!((proof.test.as_str(), proof.change.as_str()), ("udp_stream", "--buffer 4MiB"));
        let refuted = after(&[(10_000, 7_005), (10_000, 7_005)], InterventionAim::Verdict);
        let finding = refuted.findings.iter().find(|finding| finding.id == "udp-receive-buffer").unwrap();
        assert_eq!((finding.severity, finding.next.as_ref()), (Severity::Remark, None));
        assert!(matches!(&refuted.tests[0].no_cause, Some(NoCause { .. })), "the row has no cause now");
        let asked = after(&[(10_000, 7_005), (10_000, 7_005)], InterventionAim::ProofOnly);
        assert_eq!(asked.findings[0].severity, Severity::HoldsBack, "another explanation is left");
        let proof = asked.findings[0].proof.as_ref().unwrap();
        assert_eq!(proof.outcome, ProofOutcome::NoEffect);
        assert!(proof.text.ends_with("the size of the buffer does not limit it"), "{}", proof.text);
    }

    #[test]
    fn what_was_taken_for_the_effect_of_a_refuted_cause_stands_for_itself_again() {
        for (changed, severity) in
            [([11_750_000, 11_760_000], Severity::HoldsBack), ([30_000_000; 2], Severity::Remark)]
        {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[11_750_000, 11_760_000]);
            builder.cpu("target", "cpu0", [1, 2, 97, 0]);
            builder.host_counter("target", (host::CGROUP_THROTTLED_NS, ""), 800_000_000);
            let trials = (stream(&[11_750_000, 11_760_000]), stream(&changed));
            let tried = Intervention { cause: Some("cpu-quota".to_owned()), ..tried(BUFFER, &throughput(), trials) };
            builder.run.tests[0].interventions.push(tried);
            assert_eq!(builder.finding("core-saturated").unwrap().severity, severity);
        }
    }

    #[test]
    fn a_run_with_interventions_comes_out_the_same_when_it_is_analyzed_again() {
        let once = after(&[(10_000, 10_000), (10_000, 10_000)], InterventionAim::Verdict);
        let mut again = once.clone();
        crate::analyze(&mut again, &crate::AnalysisContext::default());
        assert_eq!(again, once);
    }
}
