//! Tests every format with the sample run, read as its consumer reads it.

use std::{collections::BTreeMap, io};

use fathom_model::{
    ComparedArm, Comparison, Confidence, CostOutcome, Effect, Estimate, EventRecord, Histogram, Intervention,
    InterventionAim, Layer, Limit, LimitKind, PairedValue, Proof, ProofOutcome, Run, Severity, Sweep, SweepCurve,
    SweepPoint, SweptValue, TestRun, Trial, Unit, Verdict,
    probe::{OutageRecord, ProbeRecord},
    record::Series,
    run::Completeness,
    search::Ending,
    units::Nanos,
};
use fathom_report::{
    FORMATS, Format, find_format,
    formats::{Colour, Csv, Html, Json, Ndjson, TextFormat, TextStyle},
};

mod sample;

fn written(format: &dyn Format, run: &Run) -> String {
    let mut bytes = Vec::new();
    format.write(run, &mut bytes).expect("memory takes all");
    String::from_utf8(bytes).expect("every format is text")
}

/// Returns a run without any optional part.
fn bare() -> Run {
    let mut run = sample::run();
    run.findings.clear();
    run.verdict.reasons.clear();
    run.completeness = Completeness::Complete;
    for host in run.hosts.values_mut() {
        *host = fathom_model::run::Host::default();
    }
    for (index, test) in run.tests.iter_mut().enumerate() {
        test.limits.clear();
        test.conservation = None;
        test.to = None;
        for summary in &mut test.summaries {
            (summary.value, summary.confidence, summary.n_samples) = (None, None, None);
            summary.trials.clear();
        }
        for trial in &mut test.trials {
            for record in trial.records.values_mut() {
                record.timeline = fathom_model::Timeline::default();
                record.distributions.clear();
            }
            trial.hosts.values_mut().for_each(|host| *host = fathom_model::HostRecord::default());
        }
        if index % 2 == 1 {
            test.trials = vec![Trial::default()];
            test.summaries.clear();
        }
    }
    run
}

const EVALUATION: &str = "\
fathom evaluate 10.0.0.2 --expect 'udp_stream.loss_ratio <= 0'
  client: gen-1 (8 cores, ens5 25.0 Gbit/s)   target: web-1 (8 cores, ens5 25.0 Gbit/s)

  INCOMPLETE  tcp_crr: web-1 did not answer in rounds 4 and 5; what was measured is kept

  TCP is held back by the target's core 0: softirq 97 % there, 11 % on the others; all frames arrive
  in 1 of 8 queues.
  next:  ethtool -L ens5 combined 8
         # on web-1: expected to lift TCP from 9.1 to about 24 Gbit/s

  udp 1,400 B at 5 Gbit/s: UDP loses 0.30 % at the receiver's socket: its buffer of 208 KiB holds
  0.3 ms at 5 Gbit/s.
  next:  sysctl -w net.core.rmem_max=8388608
         # on web-1: expected to end the loss at this rate

  open  tcp connect + request/response: no counter shows what limits it; its one flow waits 26.3 µs
        for an answer, so more of them may carry more; ruled out: cores (the busiest, cpu1 of
        target, is busy 60 %), drops (0); not seen: the cores of client

  layer   test                 result       95 % interval  limit                used   held back by
  http    GET /, 100 conn.     182 k req/s  ± 0.40 %       ceiling 610 k req/s  30 %   ◂ one queue
          p50 · p99 · p99.9    510 µs · 1.89 ms · –
  tcp     stream, 8 flows      9.10 Gbit/s  ± 0.40 %       line 23.5 Gbit/s     39 %   ◂ one queue
          rr                   48.2 µs p50  47.9 – 48.5
          p99 · p99.9          178 µs · –
          connect + rr         38.0 k/s     ± 0.40 %                                   ◂ not found
          p50 · p99 · p99.9    151 · 559 µs · –
          3 of 5 rounds
  udp     1,400 B at 5 Gbit/s  loss 0.31 %  0.29 – 0.33    <= 0 %               ✗      ◂ socket full
          goodput              4.99 Gbit/s  ± 0.40 %       asked 5 Gbit/s       100 %
  frames  64 B                 3.10 Mpps    ± 0.40 %       ceiling 3.40 Mpps    91 %
          1518 B               –  needs CAP_NET_RAW

  sent 31,248,112 datagrams = received 31,151,998 + socket buffer 93,114 + softnet backlog 2,880 +
  unexplained 120

  tcp request/response, 1 flow: 62 % of a usual transaction (20.9 µs of 33.6 µs) is spent on hosts
  web-1 and gen-1, from a packet's arrival to the program that waits for it

  note  web-1: the driver's own counters could not be read: ethtool -S is not permitted
  note  – too few samples for http GET /, 100 connections: p99.9 (30,000 of 100,000); tcp
        request/response, 1 flow: p99.9 (30,000 of 100,000); tcp connect + request/response: p99.9
        (30,000 of 100,000)
  note  tcp connect + request/response: the rate was not steady after 400 ms of warm-up; the
        interval is wider than it had to be

  remark  gen-1 runs with the powersave governor; rates may vary with its clock.

verdict  INCOMPLETE      run 2026-11-21-0923-a1f3   92.0 s
         tcp_crr: web-1 did not answer in rounds 4 and 5; what was measured is kept
";

#[test]
fn an_evaluation_tells_the_finding_first_and_the_verdict_last() {
    let text = written(&TextFormat(TextStyle::PLAIN), &sample::run());
    assert_eq!(text, EVALUATION, "\n{text}");
}

#[test]
fn a_head_says_how_many_rows_cannot_be_trusted() {
    let mut run = sample::run();
    run.verdict = Verdict { invalid: vec!["frames_64".to_owned()], ..Verdict::default() };
    let words = format!("MEASURED, 1 of {} rows INVALID", run.tests.len());
    let text = written(&TextFormat(TextStyle::PLAIN), &run);
    assert!(text.lines().take(5).any(|line| line.trim() == words), "{text}");
    assert!(text.contains(&format!("verdict  {words}  ")), "{text}");
    let html = written(&Html, &run);
    assert!(
        html.contains(&format!("<section class=\"verdict open\" aria-label=\"verdict\"><p class=\"word\">{words}<"))
    );
    assert!(written(&Json, &run).contains("\"invalid\": [\n      \"frames_64\""));
}

#[test]
fn the_value_that_a_test_is_about_stands_first_in_its_table_and_among_all_results() {
    for (mut run, row) in [(sample::run(), "udp  "), (sample::run_of("udp_stream"), "value ")] {
        for headline in [None, Some("received_per_sec")] {
            let test = run.tests.iter_mut().find(|test| test.name == "udp_stream").unwrap();
            let mut packets = test.summaries[0].clone();
            packets.metric.name = "received_per_sec".into();
            packets.metric.unit = Unit::FramesPerSec;
            packets.value = Some(123_000.0);
            test.summaries.truncate(1);
            test.summaries.push(packets);
            test.headline = headline.map(str::to_owned);
            let text = written(&TextFormat(TextStyle { colour: Colour::Never, width: 140 }), &run);
            let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with(row));
            // The titles of the table stand above its first row.
            let line = if row == "value " { lines.nth(1) } else { lines.next() };
            assert_eq!(line.unwrap().contains("123 kpps"), headline.is_some(), "{line:?}");
        }
    }
}

#[test]
fn no_line_is_wider_than_the_screen() {
    for width in [60, 80, 100, 140] {
        let style = TextStyle { colour: Colour::Never, width };
        for run in [
            sample::run(),
            sample::run_of("tcp_stream"),
            sample::run_of("udp_stream"),
            sample::searched(),
            bare(),
            sample::benchmarked(),
        ]
        .into_iter()
        .chain([sample::scripted(), sample::with_script()])
        {
            for line in written(&TextFormat(style), &run).lines() {
                assert!(line.chars().count() <= width, "{width} columns: {line}");
            }
        }
    }
}

#[test]
fn on_a_narrow_screen_limits_and_marks_stand_whole_below_their_rows() {
    for (width, limit) in [(80, "ceiling         30 %"), (60, "\n          limit: line 23.5 Gbit/s\n")] {
        let text = written(&TextFormat(TextStyle { colour: Colour::Never, width }), &sample::run());
        assert!(text.contains("\n          ◂ socket full\n") && text.contains(limit), "{width} columns:\n{text}");
        assert!(text.contains("9.10 Gbit/s  ± 0.40 %"), "{text}");
    }
}

#[test]
fn colours_only_repeat_what_the_words_say() {
    let coloured = written(&TextFormat(TextStyle { colour: Colour::Ansi, width: 100 }), &sample::run());
    assert!(coloured.contains("\u{1b}[33mINCOMPLETE\u{1b}[0m"));
    let mut plain = String::new();
    for (index, piece) in coloured.split('\u{1b}').enumerate() {
        plain.push_str(if index == 0 { piece } else { piece.split_once('m').unwrap().1 });
    }
    assert_eq!(plain, EVALUATION);
}

/// The sample with a disturbance of one of its tests.
fn disturbed(test: &str) -> Run {
    let mut run = sample::run();
    let mut finding = run.findings[0].clone();
    finding.severity = Severity::Disturbs;
    "others' cpu".clone_into(&mut finding.short);
    finding.tests = vec![test.to_owned()];
    run.findings = vec![finding];
    run
}

#[test]
fn a_disturbed_test_breaks_no_promise_in_its_row_its_rung_and_its_section() {
    let text = written(&TextFormat(TextStyle::PLAIN), &disturbed("udp_stream"));
    assert!(text.contains("<= 0 %             unclear  ◂ others' cpu"), "{text}");
    for (run, word) in [(disturbed("udp_stream"), "class=\"open\">unclear"), (sample::run(), "class=\"broken\">✗")] {
        let html = written(&Html, &run);
        let promise = format!("<span class=\"promise\">loss 0.31\u{a0}%, promised &lt;= 0\u{a0}%: <b {word}</b>");
        assert!(html.contains(&promise), "{promise}");
    }
}

#[test]
fn a_mark_of_the_table_is_on_the_ladder_too() {
    let html = written(&Html, &sample::run());
    let ladder = html.split("id=\"table\"").next().and_then(|before| before.split("id=\"ladder\"").nth(1)).unwrap();
    for mark in ["◂ one queue", "◂ socket full", "◂ not found", "A bar is orange if"] {
        assert!(ladder.contains(mark), "{mark}");
    }
}

#[test]
fn a_layer_that_lacks_is_none_without_sockets_and_may_be_disturbed() {
    let mut run = disturbed("http");
    let below = Limit {
        kind: LimitKind::LayerBelow,
        metric: "requests_per_sec".to_owned(),
        value: 1e6,
        text: "tcp rr 1.00 M/s".to_owned(),
        used: Some(0.18),
    };
    run.tests.iter_mut().find(|test| test.name == "http").unwrap().limits = vec![below];
    let says =
        |run: &Run, words: &str| written(&TextFormat(TextStyle::PLAIN), run).replace("\n  ", " ").contains(words);
    assert!(says(&run, "reaches 18 % of tcp rr 1.00 M/s; the first layer to lack is http (others' cpu)"));
    let http = run.tests.iter_mut().find(|test| test.name == "http").unwrap();
    http.options.set("xdp", "udp");
    assert!(!says(&run, "the first layer to lack"));
}

#[test]
fn a_single_test_is_told_in_detail() {
    let text = written(&TextFormat(TextStyle::PLAIN), &sample::run_of("http"));
    for part in ["round 5", "p99.99", "30,000", "error", "connection reset by peer", "too few samples for p99.9"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let text = written(&TextFormat(TextStyle::PLAIN), &sample::run_of("tcp_stream"));
    assert!(text.contains("10.0.0.1:51000") && text.contains("8,949 B"), "{text}");
    let text = written(&TextFormat(TextStyle::PLAIN), &sample::run_of("frames_1518"));
    assert!(text.contains("–  needs CAP_NET_RAW"), "{text}");
}

#[test]
fn every_test_tells_its_events() {
    let mut run = sample::run_of("http");
    let missed = EventRecord {
        event: "4s touch x".to_owned(),
        due_ns: Nanos::from_secs(4),
        began_ns: None,
        n_runs: None,
        took_ns: None,
        status: None,
        failure: Some("the trial was over before it was due".to_owned()),
    };
    let (began_ns, took_ns) = (Some(Nanos::from_millis(1500)), Some(Nanos::from_millis(20)));
    let done = EventRecord {
        event: "1500ms true".to_owned(),
        began_ns,
        took_ns,
        status: Some(0),
        failure: None,
        ..missed.clone()
    };
    run.tests[0].trials[1].events = vec![done, missed];
    let rows = [
        "began   took      result                                event",
        "1.50 s  20.0 ms   done                                  round 2: 1500ms true",
        "–       –         the trial was over before it was due  round 2: 4s touch x",
    ];
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = words(&written(&TextFormat(TextStyle::PLAIN), &run));
    for row in rows {
        assert!(text.contains(&words(row)), "{row} is missing in\n{text}");
    }
    let page = written(&Html, &run);
    assert!(page.contains("1500ms true") && page.contains(">began<"), "the page has no events");
    // The sample's rounds are drawn over the same time, so the mark of the second one has a place in its own panel.
    assert_eq!(page.matches("data-event=\"1.50 s  true\"").count(), 1, "the mark of the event is in one panel");
    assert!(page.contains(">true</text>"), "the mark has its label");
    assert!(!page.contains("data-event=\"4"), "what did not happen has no mark");
}

/// A search on a screen, with the figures of the sample.
const CURVE: &str = "\
  offered           achieved      p99  median latency  trials            p99 < 2ms
  4.00 k req/s  4.00 k req/s   100 µs         15.1 µs  3 of 3                 kept
  8.00 k req/s  8.00 k req/s   110 µs         16.5 µs  3 of 3                 kept
  16.0 k req/s  16.0 k req/s   135 µs         20.4 µs  3 of 3                 kept
  24.0 k req/s  24.0 k req/s   177 µs         26.7 µs  3 of 3                 kept   ◂ knee
  32.0 k req/s  32.0 k req/s   256 µs         38.5 µs  3 of 3                 kept
";

/// Returns the sample run after interventions: one proved a cause, one refuted a cause, one was cut short, and one asked for a cause.
fn proven() -> Run {
    let mut run = sample::run();
    let trial = run.tests[0].trials[0].clone();
    let intervention = |test: &TestRun, cause: Option<&str>, effect: Option<(ProofOutcome, &str)>| Intervention {
        cause: cause.map(str::to_owned),
        option: "buffer".to_owned(),
        from: Some("4KiB".to_owned()),
        to: "4MiB".to_owned(),
        metric: test.summaries[0].metric.name.to_string(),
        effect_min: 0.5,
        aim: InterventionAim::Verdict,
        unchanged: vec![trial.clone(), Trial { round: 3, ..trial.clone() }],
        changed: vec![Trial { round: 1, ..trial.clone() }, Trial { round: 2, ..trial.clone() }],
        cut: effect.is_none().then(|| "interrupted by ctrl-C".to_owned()),
        effect: effect.map(|(outcome, text)| Effect {
            outcome,
            unchanged: test.summaries[0].clone(),
            changed: test.summaries[0].clone(),
            text: text.to_owned(),
        }),
    };
    let effects = [
        (
            4,
            Some("socket-buffer"),
            Some((ProofOutcome::Proven, "with `--buffer 4MiB` the loss is gone (0 against 1.9 ± 0.2 %)")),
        ),
        (1, Some("one-queue"), None),
        (3, None, Some((ProofOutcome::NoEffect, "`--flows 2` instead of 1 changed nothing (1 against 1 k/s)"))),
    ];
    for (idx, cause, effect) in effects {
        let tried = intervention(&run.tests[idx], cause, effect);
        run.tests[idx].interventions.push(tried);
    }
    let proof = |outcome, text: &str| {
        let (test, change, text) = ("udp_stream".to_owned(), "--buffer 4MiB".to_owned(), text.to_owned());
        Some(Proof { outcome, test, change, text })
    };
    run.findings[1].proof =
        proof(ProofOutcome::Proven, "with `--buffer 4MiB` the loss is gone (0 against 1.9 ± 0.2 %)");
    run.findings[2].proof = proof(ProofOutcome::Refuted, "`--buffer 4MiB` changed nothing: this is not the cause");
    run
}

#[test]
fn a_cause_that_was_proven_or_refuted_says_so_in_text_and_on_the_page() {
    let run = proven();
    let text = written(&TextFormat(TextStyle::PLAIN), &run);
    assert!(
        text.contains("  proven:  with `--buffer 4MiB` the loss is gone (0 against 1.9 ± 0.2 %)\n  next:"),
        "{text}"
    );
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for told in [
        "rates may vary with its clock.; refuted: `--buffer 4MiB` changed nothing: this is not the cause",
        "more of them may carry more; `--flows 2` instead of 1 changed nothing (1 against 1 k/s); ruled out",
        "--buffer 4MiB was not tried to the end: interrupted by ctrl-C",
    ] {
        assert!(flat.contains(told), "{told} is missing in\n{text}");
    }
    let page = written(&Html, &run);
    well_formed(&page);
    assert!(page.contains("<p class=\"proof\"><b class=\"kept\">proven</b> with `--buffer 4MiB` the loss is gone"));
    assert!(page.contains("--buffer 4KiB → 4MiB") && page.contains("not known"));
}

#[test]
fn each_trial_of_an_intervention_is_an_event_in_the_order_in_which_it_was_made() {
    let events = written(&Ndjson, &proven());
    let of_udp = events.lines().filter(|line| line.starts_with("{\"event\":\"intervention\",\"test\":\"udp_stream\""));
    let changed: Vec<bool> = of_udp
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["changed"].as_bool().unwrap())
        .collect();
    assert_eq!(changed, [false, true, true, false]);
}

#[test]
fn of_frames_it_is_told_who_sends_whichever_way_they_go() {
    let mut run = sample::run();
    run.tests.retain(|test| test.layer == Layer::Frames);
    run.tests.truncate(1);
    let test = &mut run.tests[0];
    (test.from, test.to) = ("web-1".to_owned(), Some("gen-1".to_owned()));
    let text = written(&TextFormat(TextStyle::PLAIN), &run);
    assert!(text.contains("  sender: web-1 (") && text.contains("   receiver: gen-1 ("), "{text}");
    // If both directions ran at once, both hosts send.
    let back = TestRun { from: "gen-1".to_owned(), to: Some("web-1".to_owned()), ..run.tests[0].clone() };
    let both = Run { tests: vec![run.tests[0].clone(), back], ..run.clone() };
    let text = written(&TextFormat(TextStyle::PLAIN), &both);
    assert!(text.contains("  client: web-1 (") && text.contains("   target: gen-1 ("), "{text}");
    // A host whose name is its role needs no further label.
    run.tests[0].layer = Layer::Udp;
    run.tests[0].from = "client".to_owned();
    let text = written(&TextFormat(TextStyle::PLAIN), &run);
    assert!(text.contains("  client   target: gen-1 ("), "{text}");
}

#[test]
fn what_several_hosts_cannot_do_is_told_once() {
    let mut run = sample::run();
    run.tests.truncate(1);
    for host in run.hosts.values_mut() {
        host.unavailable = vec!["no threads".to_owned()];
    }
    let (first, last) = (run.hosts.keys().next().unwrap().clone(), run.hosts.keys().last().unwrap().clone());
    run.hosts.get_mut(&last).unwrap().unavailable.push("no room".to_owned());
    let text = written(&TextFormat(TextStyle::PLAIN), &run);
    assert!(text.contains(&format!("note  {first}, ")) && text.contains(&format!("note  {last}: no room")), "{text}");
    assert_eq!(text.matches("no threads").count(), 1, "{text}");
}

#[test]
fn a_value_that_cannot_be_is_not_told_as_missing() {
    let mut run = sample::run();
    run.tests.truncate(1);
    let summary = run.tests[0].summaries.last_mut().unwrap();
    let (title, why) = (summary.metric.title.clone(), "none was due");
    (summary.value, summary.confidence, summary.note) = (None, None, Some(why.to_owned()));
    summary.trials.clear();
    run.tests[0].limits.clear();
    let page = |run: &Run| written(find_format("html").unwrap(), run);
    let told = [written(&TextFormat(TextStyle::PLAIN), &run), page(&run)];
    assert!(told.iter().all(|text| text.contains(&*title) && text.contains(why)), "{told:?}");
    run.tests[0].summaries.last_mut().unwrap().metric.inapplicable = Some(why.into());
    let told = [written(&TextFormat(TextStyle::PLAIN), &run), page(&run)];
    assert!(told.iter().all(|text| !text.contains(why)), "{told:?}");
    assert!(written(find_format("json").unwrap(), &run).contains(why), "the document says why");
}

#[test]
fn a_search_is_told_as_its_limit_and_its_curve() {
    let run = sample::searched();
    let text = written(&TextFormat(TextStyle::PLAIN), &run);
    assert!(text.contains(CURVE), "{text}");
    assert!(text.contains("limit         47.6 k req/s    47.6 – 48.2") && text.contains("◂ limit"), "{text}");
    assert!(text.contains("broken: fell behind") && text.contains("undecided"), "{text}");
    let mut stopped = run.clone();
    stopped.tests[0].curve.as_mut().unwrap().ending = Ending::OutOfBudget;
    assert!(written(&TextFormat(TextStyle::PLAIN), &stopped).contains("ran out before the ends were sure"));
}

#[test]
fn a_search_is_drawn_with_its_limit_and_its_knee() {
    let html = written(&Html, &sample::searched());
    well_formed(&html);
    for part in ["aria-label=\"load curve\"", "the limit lies here", ">knee<", "as much as offered", "p99 &lt; 2ms"] {
        assert!(html.contains(part), "{part}");
    }
    let mut nothing = sample::searched();
    nothing.tests[0].curve.as_mut().unwrap().points.clear();
    assert!(written(&Html, &nothing).contains("One rate makes no curve; see the table."));
}

#[test]
fn a_search_has_a_row_of_csv_and_an_event_per_rate() {
    let run = sample::searched();
    let text = written(&Csv, &run);
    let row = text.lines().find(|row| row.contains("achieved") && row.ends_with(",64000,,")).unwrap();
    assert!(row.contains(",50000,") && row.contains("broken: fell-behind"), "{row}");
    let lines = written(&Ndjson, &run);
    assert!(serde_json::from_str::<Run>(lines.lines().last().unwrap()).unwrap() == run);
    let steps: Vec<&str> = lines.lines().filter(|line| line.starts_with("{\"event\":\"step\"")).collect();
    let first: serde_json::Value = serde_json::from_str(steps[0]).unwrap();
    assert_eq!(steps.len(), 36);
    assert_eq!((first["offered"].as_f64(), first["vote"].as_str()), (Some(4000.0), Some("kept")), "{first}");
}

/// Benchmarks on a screen, with the figures of the sample.
const BENCHMARKS: &str = "\
  size         value     result                            bounds  theoretical  share
  64 B    throughput  50.0 kpps             50.0 kpps – 50.2 kpps     250 kpps   20 %
  1518 B  throughput  40.0 kpps  irregular  40.0 kpps – 60.0 kpps     250 kpps   16 %

  size   load    offered  lost
  64 B  100 %   250 kpps  80 %
";

#[test]
fn benchmarks_are_told_as_a_table_of_all_frame_sizes_with_what_is_100_percent() {
    let text = written(&TextFormat(TextStyle::PLAIN), &sample::benchmarked());
    assert!(text.contains(BENCHMARKS), "{text}");
    for part in
        ["64 B: 100 % are 250 kpps, fathom's own maximum", "flat out 300 kpps", "not finished: throughput: interrupted"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.matches("a virtual device has no line rate").count(), 1, "{text}");
}

#[test]
fn benchmarks_are_drawn_by_load_and_by_frame_size() {
    let html = written(&Html, &sample::benchmarked());
    well_formed(&html);
    for part in ["rates by size", "loss", ">1518 B<", "theoretical", "irregular", "RFC"] {
        assert!(html.contains(part), "{part}");
    }
    let mut nothing = sample::benchmarked();
    for test in &mut nothing.tests {
        let found = test.benchmark.as_mut().unwrap();
        (found.results, found.loss, found.searched) = (Vec::new(), Vec::new(), Vec::new());
    }
    let html = written(&Html, &nothing);
    assert!(html.contains("No loss was measured at any load.") && html.contains("No rate was found."));
}

#[test]
fn a_loss_curve_has_a_row_of_csv_per_load() {
    let text = written(&Csv, &sample::benchmarked());
    let rows: Vec<&str> =
        text.lines().filter(|row| row.contains(",loss_ratio,ratio,") && row.contains("64 B")).collect();
    assert!(rows.iter().any(|row| row.contains(",0.8,") && row.ends_with(",250000,,")), "{rows:#?}");
}

/// Scripted users on a screen, with the figures of the sample.
const STEPS: &str = "\
  step                  reached  share  errors      p50      p99           promised           margin
  home                    8,904   99 %     0 %  1.10 ms  2.98 ms         p99 < 40ms       ok    93 %
  search for a product   21,527  239 %  0.20 %  6.30 ms  16.1 ms        p99 < 300ms       ok    95 %
                                                                        errors < 1%       ok    80 %
  login                   5,561   62 %   6.4 %  4.17 ms  10.6 ms      errors < 0.1%        ✗  63.7 ×
                                                                         p99.9 < 1s  unclear    97 %
  Σ buying                4,943   55 %   1.2 %  31.0 ms  77.5 ms        p90 < 150ms       ok    73 %
  cart                    4,960   55 %     0 %  2.89 ms  7.46 ms
  checkout                4,821   53 %   1.2 %  23.8 ms  64.8 ms         p99 < 50ms        ✗   −30 %
  all steps              45,773         0.99 %  5.50 ms  31.6 ms     users/s > 1000       ok    50 %
                                                                  requests/s > 500k        ✗   −64 %
";

#[test]
fn users_of_a_script_are_told_step_by_step_with_their_promises() {
    let text = written(&TextFormat(TextStyle::PLAIN), &sample::scripted());
    assert!(text.contains(STEPS), "{text}");
    for part in [
        "6.9 % of the users gave up before the end of the script, most of them at step `login`",
        "status 500, expected 200\n                                          POST /login → HTTP/1.1 500 Internal Server Error",
        "verdict  BROKEN",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let mut few = sample::scripted();
    let p99 = &mut few.tests[0].users.as_mut().unwrap().steps[0].summaries[2];
    p99.note = Some("too few samples (900 of 1,000)".to_owned());
    let text = written(&TextFormat(TextStyle::PLAIN), &few);
    assert!(text.contains("(2.98 ms)") && text.contains("( ) from too few samples"), "{text}");
    let narrow = written(&TextFormat(TextStyle { colour: Colour::Never, width: 80 }), &sample::scripted());
    assert!(narrow.contains("p99 < 50ms") && narrow.contains("−30 %"), "a promise gives way last\n{narrow}");
}

#[test]
fn an_interval_that_says_nothing_takes_no_room_among_the_steps() {
    let mut run = sample::scripted();
    assert!(!written(&Html, &run).contains("not known"));
    let p99 = &mut run.tests[0].users.as_mut().unwrap().steps[0].summaries[2];
    let high = 20.0 * p99.value.expect("it was measured");
    p99.confidence = Some(Confidence { low: 1.0, high, level: 0.95, n_trials: 2 });
    assert!(written(&Html, &run).contains("<span class=\"interval\">not known</span>"));
}

#[test]
fn a_time_that_was_none_is_not_drawn() {
    let mut run = sample::run();
    let mut took = |ns: u64| {
        for record in
            run.tests.iter_mut().flat_map(|test| &mut test.trials).flat_map(|trial| trial.records.values_mut())
        {
            let mut histogram = Histogram::new();
            histogram.record(ns);
            record.distributions.insert("waiting_time_ns".to_owned(), histogram);
        }
        written(&Html, &run).matches("data-name=\"waiting time\"").count()
    };
    assert_eq!(took(0), 0, "a line at nothing would stretch the axis down to a nanosecond");
    assert!(took(50_000) > 0);
}

#[test]
fn of_a_long_script_the_first_steps_and_all_together_are_told() {
    let mut run = sample::scripted();
    let users = run.tests[0].users.as_mut().unwrap();
    let step = users.steps[0].clone();
    users.steps = (0..200).map(|n| fathom_model::StepSummary { name: format!("page {n}"), ..step.clone() }).collect();
    let text = written(&TextFormat(TextStyle::PLAIN), &run);
    assert!(text.contains("  page 38 ") && !text.contains("  page 39 "), "{text}");
    assert!(text.contains("  all steps ") && text.contains("… and 161 more steps"), "{text}");
    let html = written(&Html, &run);
    assert!(html.contains("the first 40 steps, 160 more below") && html.contains("page 199"), "the table has them all");
}

#[test]
fn the_row_of_users_stands_above_all_others_with_what_was_promised() {
    let text = written(&TextFormat(TextStyle::PLAIN), &sample::with_script());
    let app = text.find("\n  app ").expect("a row of the users");
    assert!(app < text.find("\n  http ").unwrap(), "{text}");
    let broken = text.lines().find(|line| line.contains("checkout p99  ")).unwrap();
    assert!(broken.contains("< 50ms") && broken.contains('✗'), "{broken}");
    assert!(text.contains("4 more promises"), "those that were kept are counted\n{text}");
}

#[test]
fn the_time_of_a_stream_is_a_row_and_a_bar_for_each_owner() {
    let run = sample::run_of("tcp_stream");
    let text = written(&TextFormat(TextStyle::PLAIN), &run);
    for line in [
        "  sending threads, gen-1         on a core 41 %    wait for a core 52 %    wait to send 7.0 %",
        "  connections, gen-1        data in flight 37 %  send buffer full 1.8 %  nothing to send 61 %",
        "  receiving threads, web-1       on a core 33 %  wait for a core 0.20 %    wait for data 67 %",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let html = written(&Html, &run);
    for owner in ["sending threads, gen-1", "connections, gen-1", "receiving threads, web-1"] {
        assert_eq!(html.matches(&format!("aria-label=\"parts of the time, {owner}\"")).count(), 1, "{owner}");
    }
    let legend = "<span class=\"key s6\"></span><span class=\"number\">2</span>wait for a core 52 %";
    assert!(html.contains(legend), "the legend has the shares");
}

#[test]
fn steps_are_drawn_as_a_funnel_beside_their_times_and_examples_are_only_text() {
    let mut run = sample::scripted();
    let html = written(&Html, &run);
    well_formed(&html);
    for label in ["how many users came to each step", "how long the steps took"] {
        assert_eq!(html.matches(&format!("aria-label=\"{label}\"")).count(), 1, "{label}");
    }
    assert!(html.contains("class=\"bound lost\"") && html.contains("class=\"bound\""), "kept and broken");
    assert!(html.contains("&lt;script&gt;alert(1)"), "what a server answered is shown");
    assert_eq!(html.matches("<script>").count(), 1, "and nothing of it is markup");
    let users = run.tests[0].users.as_mut().unwrap();
    let evil = "\u{1b}[2J<img src=x onerror=alert(1)>\u{202e}\"'";
    evil.clone_into(&mut users.steps[2].name);
    evil.clone_into(&mut users.steps[2].promises[0].text);
    users.steps[2].errors.insert(evil.to_owned(), 900);
    for format in FORMATS.iter().filter(|format| !["json", "ndjson"].contains(&format.name())) {
        let text = written(*format, &run);
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{}", format.name());
    }
    let html = written(&Html, &run);
    well_formed(&html);
    assert!(!html.contains("<img"));
}

#[test]
fn users_of_whom_nothing_came_break_no_format() {
    let mut run = sample::scripted();
    let users = run.tests[0].users.as_mut().unwrap();
    for step in &mut users.steps {
        *step = fathom_model::StepSummary { name: step.name.clone(), ..fathom_model::StepSummary::default() };
    }
    for format in FORMATS {
        assert!(!written(*format, &run).is_empty(), "{}", format.name());
    }
    assert!(written(&Html, &run).contains("No user came to a step in the measured part."));
    assert!(!written(&TextFormat(TextStyle::PLAIN), &run).contains("NaN"));
    run.tests[0].users = Some(fathom_model::UsersSummary::default());
    for format in FORMATS {
        assert!(!written(*format, &run).is_empty(), "{}", format.name());
    }
}

#[test]
fn steps_have_rows_of_csv_and_an_event_each() {
    let run = sample::scripted();
    let text = written(&Csv, &run);
    let mut rows = csv::Reader::from_reader(text.as_bytes());
    let header = rows.headers().unwrap().clone();
    let cell = |record: &csv::StringRecord, column: &str| {
        record.get(header.iter().position(|name| name == column).unwrap()).unwrap().to_owned()
    };
    let records: Vec<csv::StringRecord> = rows.records().map(Result::unwrap).collect();
    let of = |step: &str, metric: &str| {
        let found = records.iter().find(|row| cell(row, "step") == step && cell(row, "metric") == metric);
        found.unwrap_or_else(|| panic!("{step} {metric}"))
    };
    assert_eq!(cell(of("checkout", "time_ns_p99"), "limit_value"), "50000000");
    assert_eq!(cell(of("checkout", "time_ns_p99"), "limit_kind"), "promise");
    assert_eq!(cell(of("checkout", "time_ns_p50"), "limit_kind"), "");
    let users = run.tests[0].users.as_ref().unwrap();
    assert_eq!(cell(of("login", "reached"), "value"), users.steps[2].n_reached.to_string());
    assert_eq!(cell(of("all steps", "users_per_sec"), "limit_value"), "1000");
    let lines = written(&Ndjson, &run);
    let events: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<&serde_json::Value> = events.iter().filter(|event| event["event"] == "users-step").collect();
    assert_eq!(steps.len(), users.steps.len());
    assert_eq!(steps[5]["promises"][0]["outcome"], "broken");
    assert!(serde_json::from_str::<Run>(lines.lines().last().unwrap()).unwrap() == run);
}

/// Returns a run with a single probe test, in which the host answered `n_received` of ten probes.
fn probed(n_received: u64, outages: &[OutageRecord]) -> Run {
    let mut run = sample::run();
    run.findings.clear();
    run.tests.truncate(1);
    let test = &mut run.tests[0];
    test.to = None;
    test.trials.truncate(1);
    for record in test.trials[0].records.values_mut() {
        record.totals.insert("sent".to_owned(), 10);
        record.totals.insert("received".to_owned(), n_received);
        record.probe =
            Some(ProbeRecord { target: "192.0.2.7".to_owned(), outages: outages.to_owned(), ..ProbeRecord::default() });
    }
    test.trials[0].records.retain(|name, _| *name == test.from);
    let from = test.from.clone();
    run.hosts.retain(|name, _| *name == from);
    run
}

#[test]
fn a_run_of_probes_says_first_what_was_asked_and_names_whom_it_asked() {
    let text = written(&TextFormat(TextStyle::PLAIN), &probed(10, &[]));
    let top = text.lines().take(8).collect::<Vec<_>>().join("\n");
    for words in ["target: 192.0.2.7", "reachable  yes: 10 of 10 probes answered", "outages    none", "by ens5"] {
        assert!(top.contains(words), "{words} is missing in\n{text}");
    }
    let outage = |length_ns| OutageRecord {
        from_ns: Nanos::from_secs(1),
        from: "2027-01-31T18:00:00.000Z".to_owned(),
        length_ns,
        n_probes: 4,
    };
    let outages = vec![outage(Some(Nanos::from_secs(3))), outage(None)];
    let page = written(&Html, &probed(6, &outages));
    for words in [
        "yes, with losses: 6 of 10 probes answered",
        "2, the longest 3.00 s, one from 2027-01-31T18:00:00.000Z to the end",
    ] {
        assert!(page.contains(words), "{words} is missing");
    }
    let silent = written(&TextFormat(TextStyle::PLAIN), &probed(0, &outages));
    assert!(silent.contains("reachable  no: 0 of 10 probes answered"), "{silent}");

    // A run that also did something else has no single answer.
    let mut mixed = probed(10, &[]);
    mixed.tests.extend(sample::run().tests);
    assert!(!written(&TextFormat(TextStyle::PLAIN), &mixed).contains("reachable"));
}

#[test]
fn a_page_draws_nothing_that_says_nothing() {
    let mut run = sample::run();
    assert!(written(&Html, &run).contains("The layers against their limits"));
    for test in &mut run.tests {
        test.limits.clear();
        for record in test.trials.iter_mut().flat_map(|trial| trial.records.values_mut()) {
            record.timeline.end_ns.truncate(1);
        }
    }
    run.tests[0].title = "http without its name twice".to_owned();
    let html = written(&Html, &run);
    well_formed(&html);
    assert!(!html.contains("The layers against their limits") && html.contains("<table class=\"results\">"));
    assert!(html.contains("One interval makes no line; see the table."));
    assert!(html.contains("<h2>http without its name twice</h2>"));
}

#[test]
fn what_is_absent_is_never_a_zero_and_breaks_no_format() {
    for format in FORMATS {
        assert!(!written(*format, &bare()).is_empty(), "{}", format.name());
    }
    let text = written(&TextFormat(TextStyle::PLAIN), &bare());
    assert!(text.contains("–  not measured") && text.contains("no round was completed"), "{text}");
    let nothing = Run { tests: Vec::new(), hosts: BTreeMap::new(), ..bare() };
    for format in FORMATS {
        assert!(!written(*format, &nothing).is_empty(), "{}", format.name());
    }
}

#[test]
fn a_hostile_host_can_neither_move_the_cursor_nor_add_markup() {
    let mut run = sample::run();
    let evil = "\u{1b}[2J\u{202e}<script>alert(1)</script>\"'\r\nnext";
    run.findings[0].title = evil.to_owned();
    run.findings[0].id = evil.to_owned();
    run.tests[0].findings = vec![evil.to_owned()];
    run.tests[1].title = evil.to_owned();
    run.tests[1].trials[0].records.values_mut().for_each(|record| {
        record.errors.add(evil, 3);
    });
    let host = run.hosts.remove("web-1").unwrap();
    run.hosts.insert(evil.to_owned(), host);
    run.tests[2].to = Some(evil.to_owned());
    run.verdict.reasons.push(evil.to_owned());

    let text = written(&TextFormat(TextStyle::PLAIN), &run);
    assert!(!text.contains(['\u{1b}', '\u{202e}', '\r']), "{text:?}");
    let html = written(&Html, &run);
    assert!(!html.contains("<script>alert") && !html.contains(['\u{1b}', '\u{202e}', '\r']));
    assert_eq!(html.matches("<script>").count(), 1);
    well_formed(&html);
}

/// Checks that every opened tag is closed, in order.
fn well_formed(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html.strip_prefix("<!DOCTYPE html>").expect("a document type");
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '\n']).next().expect("a tag has a name");
        match tag.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed), "before {}", &rest[..rest.len().min(80)]),
            None if name == "meta" => {}
            None => open.push(name),
        }
        if name == "script" || name == "style" {
            rest = &rest[rest.find(&format!("</{name}>")).unwrap_or(0)..];
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn the_page_is_one_file_that_needs_nothing_else() {
    let html = written(&Html, &sample::run());
    well_formed(&html);
    assert!(html.len() < 600_000, "{} bytes", html.len());
    assert!(include_str!("../assets/report.js").len() < 10_000);
    assert!(html.contains("default-src 'none'") && html.contains("style-src 'sha256-"));
    for outside in ["src=", "href=\"http", "url(", "@import", " style=\"", "onclick"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn every_link_of_the_page_leads_somewhere() {
    for run in [sample::run(), sample::run_of("tcp_stream"), sample::with_script(), bare()] {
        let html = written(&Html, &run);
        for target in html.split("href=\"#").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(html.contains(&format!("id=\"{target}\"")), "#{target}");
        }
    }
}

#[test]
fn a_page_about_large_hosts_and_long_rounds_stays_small() {
    let mut run = sample::run();
    for trial in run.tests.iter_mut().flat_map(|test| &mut test.trials) {
        for host in trial.hosts.values_mut() {
            let eight = std::mem::take(&mut host.series);
            for (index, core) in (0..128).map(|core| (core % 8, core)) {
                let of = format!("cpu{index}");
                let copies = eight.iter().filter(|series| series.of == of).cloned();
                host.series.extend(copies.map(|series| Series { of: format!("cpu{core}"), ..series }));
            }
        }
        for record in trial.records.values_mut() {
            record.timeline.end_ns = (1..=512).map(|interval| Nanos::from_millis(interval * 100)).collect();
            record.timeline.counters.values_mut().for_each(|column| *column = (0..512).map(|n| 90 + n % 17).collect());
        }
    }
    let html = written(&Html, &run);
    well_formed(&html);
    assert!(html.len() < 1_200_000, "{} bytes", html.len());
    assert!(html.contains("the 32 busiest of 128 cores"));
}

#[test]
fn the_page_tells_everything_in_order() {
    let html = written(&Html, &sample::run());
    let order = [
        "INCOMPLETE",
        "What holds it back",
        "The layers against their limits",
        "All results",
        "What else was seen",
        "powersave governor",
        "id=\"test-http\"",
        "id=\"test-frames-1518\"",
        "Differences",
        "Repeat it",
    ];
    let places: Vec<usize> = order.iter().map(|part| html.find(part).unwrap_or_else(|| panic!("{part}"))).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(html.matches("<svg class=\"plot wide\"").count(), 6, "one line plot per measured test");
    assert_eq!(html.matches("<svg class=\"plot heat\"").count(), 12, "both hosts of each measured test");
    assert!(html.contains("the lost part, enlarged") && html.contains("3 of 5 rounds"));
}

#[test]
fn hosts_that_differ_by_their_addresses_alone_do_not_differ() {
    let differing = |fact: &str| {
        let mut run = sample::run();
        let common = run.hosts.values().next().unwrap().environment.clone();
        for (index, host) in run.hosts.values_mut().enumerate() {
            host.environment = common.clone();
            host.environment.note("ens5", fact, index.to_string());
        }
        written(&Html, &run).contains("Differences")
    };
    assert!(!differing("mac") && !differing("addresses"));
    assert!(differing("driver"));
}

#[test]
fn a_row_of_csv_is_a_value_with_its_unit_and_absent_numbers_are_empty() {
    let text = written(&Csv, &sample::run());
    let mut rows = csv::Reader::from_reader(text.as_bytes());
    let header = rows.headers().unwrap().clone();
    let row = |record: &csv::StringRecord, column: &str| {
        record.get(header.iter().position(|name| name == column).unwrap()).unwrap().to_owned()
    };
    let records: Vec<csv::StringRecord> = rows.records().map(Result::unwrap).collect();
    let values: usize = sample::run().tests.iter().map(|test| test.summaries.len().max(1)).sum();
    assert_eq!(records.len(), values);
    let stream = records.iter().find(|record| row(record, "test") == "tcp_stream").unwrap();
    assert_eq!(
        ["metric", "unit", "value", "limit_kind"].map(|c| row(stream, c)),
        ["throughput_bps", "bits_per_sec", "9100000000", "line-rate"]
    );
    let none = records.last().unwrap();
    assert_eq!(["metric", "value", "note"].map(|c| row(none, c)), ["", "", "needs CAP_NET_RAW"]);
}

#[test]
fn the_documents_are_read_back_as_they_were() {
    let run = sample::run();
    let json = written(&Json, &run);
    assert!(serde_json::from_str::<Run>(&json).unwrap() == run);
    let lines = written(&Ndjson, &run);
    assert!(serde_json::from_str::<Run>(lines.lines().last().unwrap()).unwrap() == run);
    let events: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let n_trials: usize = run.tests.iter().map(|test| test.trials.len()).sum();
    assert_eq!(events.iter().filter(|event| event["event"] == "trial").count(), n_trials);
    assert_eq!(events.iter().filter(|event| event["event"] == "test").count(), run.tests.len());
}

#[test]
fn a_reader_that_leaves_is_told_by_the_kind_of_the_error() {
    /// A writer whose reader is gone.
    struct ClosedPipe;
    impl io::Write for ClosedPipe {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut long = sample::run();
    long.tests = vec![long.tests[0].clone(); 200];
    for (format, run) in FORMATS.iter().flat_map(|format| [(format, sample::run()), (format, long.clone())]) {
        let error = format.write(&run, &mut ClosedPipe).expect_err("nothing is taken");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{}", format.name());
    }
}

#[test]
fn every_format_is_found_by_its_name() {
    for format in FORMATS {
        assert_eq!(fathom_report::find_format(format.name()).unwrap().extension(), format.extension());
    }
    assert!(fathom_report::find_format("pdf").is_none());
}

#[test]
fn the_rates_of_a_curve_are_never_cut_and_a_limit_that_is_not_sure_has_its_ends() {
    let mut run = sample::searched();
    let curve = run.tests[0].curve.as_mut().unwrap();
    let (kept, broken) = (curve.kept.unwrap(), curve.broken.unwrap());
    let ends = [kept, broken].map(|rate| curve.unit.show(rate).split(' ').next().unwrap().to_owned()).join(" – ");
    run.tests[0].summaries[0].confidence = None;
    for width in [60, 80, 100] {
        let text = written(&TextFormat(TextStyle { colour: Colour::Never, width }), &run);
        let rates = text.lines().skip_while(|line| !line.contains("offered")).skip(1);
        let rates: Vec<&str> = rates.take_while(|line| !line.trim().is_empty()).collect();
        assert!(!rates.is_empty() && rates.iter().all(|line| !line.contains("req…") && !line.contains("k…")), "{text}");
        assert!(text.contains(&ends), "{ends} is missing in\n{text}");
    }
    run.tests[0].curve.as_mut().unwrap().broken = None;
    assert!(written(&TextFormat(TextStyle::PLAIN), &run).contains("  ≥ 47.6"), "the search ended below its limit");
}

/// Returns a run whose first two tests are compared, at three values of a sweep or at none.
fn compared(parameter: Option<&str>) -> Run {
    let run = sample::run();
    let metric = run.tests[0].summaries[0].metric.name.to_string();
    let confidence = |low, high| Some(Confidence { low, high, level: 0.95, n_trials: 6 });
    let ratio = Some(Estimate { value: 0.62, confidence: confidence(0.6, 0.64) });
    let value = |text: &str, outcome, ratio| PairedValue {
        metric: metric.clone(),
        reference: 182_000.0,
        value: 112_840.0,
        ratio,
        difference: Some(Estimate { value: -69_160.0, confidence: confidence(-72_000.0, -66_000.0) }),
        outcome,
        text: text.to_owned(),
    };
    let arm = |path: &str, is_null, value| ComparedArm {
        path: path.to_owned(),
        test: run.tests[1].name.clone(),
        is_null,
        n_pairs: 6,
        values: vec![value],
    };
    let null = Some(Estimate { value: 1.001, confidence: confidence(0.99, 1.012) });
    let arms = vec![
        arm("via", false, value("costs 38.0 ± 2.00 %", CostOutcome::Costs, ratio)),
        arm("direct", true, value("no difference beyond noise (within ± 1.2 %)", CostOutcome::NoDifference, null)),
    ];
    let comparison = |name: &str, at: Option<&str>| Comparison {
        name: name.to_owned(),
        reference: "direct".to_owned(),
        test: run.tests[0].name.clone(),
        at: parameter
            .zip(at)
            .map(|(parameter, at)| SweepPoint { parameter: parameter.to_owned(), value: at.to_owned() }),
        arms: arms.clone(),
        void: None,
    };
    let point = |at: f64, value: f64, ratio| SweptValue {
        at: at.to_string(),
        number: at,
        test: run.tests[0].name.clone(),
        value,
        confidence: confidence(value * 0.9, value * 1.1),
        ratio,
    };
    let curve = |path: &str, values: [f64; 3], knee: Option<&str>, ratio| SweepCurve {
        path: path.to_owned(),
        points: [1.0, 100.0, 2000.0].into_iter().zip(values).map(|(at, value)| point(at, value, ratio)).collect(),
        knee: knee.map(str::to_owned),
        loss_bounds: Vec::new(),
    };
    let void = Comparison {
        arms: Vec::new(),
        void: Some("both paths go through dut".to_owned()),
        ..comparison("stream", Some("1"))
    };
    let sweep = |parameter: &str| Sweep {
        parameter: parameter.to_owned(),
        kind: run.tests[0].kind.clone(),
        metric: metric.clone(),
        curves: vec![
            curve("direct", [182e3, 181e3, 183e3], None, None),
            curve("via", [180e3, 178e3, 90e3], Some("100"), ratio),
        ],
    };
    let (comparisons, sweeps) = (vec![comparison("http", Some("1")), void], parameter.map(sweep).into_iter().collect());
    Run { comparisons, sweeps, ..run }
}

#[test]
fn paths_that_are_compared_stand_side_by_side_with_what_one_costs() {
    let run = compared(None);
    let text = written(&TextFormat(TextStyle { width: 140, colour: Colour::Never }), &run);
    for words in ["what via does", "direct against itself", "costs 38.0 ± 2.00 %", "within ± 1.2 %", "182 k req/s"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.contains("stream: no number: both paths go through dut"), "{text}");
    let page = written(&Html, &run);
    assert!(page.contains("What the paths cost") && page.contains("values as parts of the reference"));
    assert!(page.contains("× 0.620 (0.600 – 0.640)"), "the drawing tells its numbers");
    let rows = written(&Csv, &run);
    let of_costs: Vec<&str> = rows.lines().filter(|row| row.contains("costs 38.0")).collect();
    assert_eq!(of_costs.len(), 2, "one of the ratio, one of the difference: {of_costs:?}");
    assert!(of_costs[0].contains("ratio,0.62,0.6,0.64,0.95,6"), "{}", of_costs[0]);
}

#[test]
fn a_sweep_is_a_table_on_a_terminal_and_a_drawing_on_a_page() {
    let run = compared(Some("rules"));
    let text = written(&TextFormat(TextStyle { width: 140, colour: Colour::Never }), &run);
    assert!(text.contains("◂ knee of via") && text.contains("× 0.620"), "{text}");
    let page = written(&Html, &run);
    assert!(page.contains("over rules") && page.contains("knee of via"));
    let rows = written(&Csv, &run);
    let mut read = csv::Reader::from_reader(rows.as_bytes());
    let header = read.headers().unwrap().clone();
    let compared = read.records().map(Result::unwrap).find(|row| row.iter().any(|cell| cell.contains("costs 38.0")));
    let cell = |name: &str| header.iter().position(|one| one == name).and_then(|place| compared.as_ref()?.get(place));
    assert_eq!((cell("at"), cell("offered")), (Some("1"), Some("")), "a value of a sweep is no offered rate");
}

#[test]
fn each_of_three_paths_has_its_name_and_its_part_of_the_reference() {
    let third = |mut run: Run| {
        for comparison in &mut run.comparisons {
            let Some(mut arm) = comparison.arms.first().cloned() else { continue };
            (arm.path, arm.test) = ("detour".to_owned(), run.tests[0].name.clone());
            arm.values[0].text = "costs 70.0 ± 2.00 %".to_owned();
            comparison.arms.insert(1, arm);
        }
        for sweep in &mut run.sweeps {
            let mut curve = sweep.curves[1].clone();
            curve.path = "detour".to_owned();
            for point in &mut curve.points {
                point.ratio = Some(Estimate { value: 0.3, confidence: None });
            }
            sweep.curves.push(curve);
        }
        run
    };
    let style = TextStyle { width: 260, colour: Colour::Never };
    let text = written(&TextFormat(style), &third(compared(None)));
    let line =
        |words: &str| text.lines().position(|line| line.contains(words)).unwrap_or_else(|| panic!("{words}: {text}"));
    assert!(text.contains("what path does") && !text.contains("what via does"), "{text}");
    let lines = ["http, via", "costs 38.0", "http, detour", "costs 70.0"].map(line);
    assert!(lines.is_sorted(), "{lines:?}: {text}");
    let text = written(&TextFormat(style), &third(compared(Some("rules"))));
    assert_eq!(text.lines().find(|line| line.contains("as a part")).unwrap().matches("as a part").count(), 2, "{text}");
    assert!(text.contains("× 0.620") && text.contains("× 0.300"), "{text}");
}
