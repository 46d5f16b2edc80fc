//! A whole recording as a report shows it: series in constant memory, and the findings that a live view would have shown.

use std::collections::BTreeSet;

use fathom_model::{
    Finding, Unit,
    names::host::{
        CPU_IDLE_NS, CPU_IRQ_NS, CPU_SOFTIRQ_NS, CPU_SYSTEM_NS, CPU_USER_NS, DEV_RX_BYTES, DEV_RX_DROPPED,
        DEV_TX_BYTES, DEV_TX_DROPPED, QDISC_DROPPED, QDISC_IN_DROPPED, SOCK_TCP_IN_USE, SOCK_TCP_TIME_WAIT,
        TCP_IN_SEGMENTS, TCP_LISTEN_OVERFLOWS, TCP_OUT_RESETS, TCP_OUT_SEGMENTS, TCP_RETRANS_SEGMENTS, TCP_SYN_RETRANS,
        TCP_TIMEOUTS, UDP_IN_DATAGRAMS, UDP_NO_PORTS, UDP_OUT_DATAGRAMS, UDP_RCVBUF_ERRORS,
    },
    units::{Nanos, approximate},
};
use fathom_monitor::is_slow;
use fathom_report::{Chart, ChartLine, HostHistory, SeenFinding};

use crate::{
    samples::{Key, Row, Samples},
    stream::{RecordingError, SampleStream},
    tables::{CORE_TIME, Quantity},
    view::{JUDGED, Viewer},
};

/// The row limit at which every second row is removed: enough for a plot that is a thousand pixels wide.
const ROWS_MAX: usize = 480;
/// The lines of a chart, one for each color of a page.
const LINES_MAX: usize = 5;
/// The shortest interval of a recording.
const INTERVAL_MIN: Nanos = Nanos::from_millis(100);
/// Findings that are seen again within this time, or in the next interval, are the same stretch: they are looked for each second.
const STRETCH_GAP: Nanos = Nanos::from_secs(3);

/// How the lines of a chart follow from counters.
#[derive(Clone, Copy)]
enum ChartShape {
    /// A line for each instance of a counter.
    OfRows(&'static str, Quantity),
    /// A line for each of these quantities of the whole host.
    OfHost(&'static [(&'static str, Quantity)]),
}

/// The states of a core that are work.
const BUSY: &[&str] = &[CPU_USER_NS, CPU_SYSTEM_NS, CPU_SOFTIRQ_NS, CPU_IRQ_NS];
/// Every counter of packets that an interface or its queue dropped.
const DROPPED: &[&str] = &[DEV_RX_DROPPED, DEV_TX_DROPPED, QDISC_DROPPED, QDISC_IN_DROPPED];

/// The charts in their order.
const CHARTS: [(&str, Unit, ChartShape); 9] = [
    ("received, by interface", Unit::BitsPerSec, ChartShape::OfRows(DEV_RX_BYTES, Quantity::BitRate(DEV_RX_BYTES))),
    ("sent, by interface", Unit::BitsPerSec, ChartShape::OfRows(DEV_RX_BYTES, Quantity::BitRate(DEV_TX_BYTES))),
    ("packets dropped, by interface", Unit::PerSec, ChartShape::OfRows(DEV_RX_BYTES, Quantity::Rate(DROPPED))),
    ("busy, by core", Unit::Ratio, ChartShape::OfRows(CPU_IDLE_NS, Quantity::Share(BUSY, CORE_TIME))),
    (
        "TCP segments",
        Unit::PerSec,
        ChartShape::OfHost(&[
            ("sent", Quantity::Rate(&[TCP_OUT_SEGMENTS])),
            ("received", Quantity::Rate(&[TCP_IN_SEGMENTS])),
        ]),
    ),
    (
        "TCP segments sent again",
        Unit::Ratio,
        ChartShape::OfHost(&[("share of those sent", Quantity::Share(&[TCP_RETRANS_SEGMENTS], &[TCP_OUT_SEGMENTS]))]),
    ),
    (
        "TCP events",
        Unit::PerSec,
        ChartShape::OfHost(&[
            ("retransmission timeouts", Quantity::Rate(&[TCP_TIMEOUTS])),
            ("SYNs sent again", Quantity::Rate(&[TCP_SYN_RETRANS])),
            ("accept queue full", Quantity::Rate(&[TCP_LISTEN_OVERFLOWS])),
            ("resets sent", Quantity::Rate(&[TCP_OUT_RESETS])),
        ]),
    ),
    (
        "TCP sockets",
        Unit::Count,
        ChartShape::OfHost(&[
            ("open", Quantity::Count(SOCK_TCP_IN_USE)),
            ("in TIME-WAIT", Quantity::Count(SOCK_TCP_TIME_WAIT)),
        ]),
    ),
    (
        "UDP datagrams",
        Unit::PerSec,
        ChartShape::OfHost(&[
            ("sent", Quantity::Rate(&[UDP_OUT_DATAGRAMS])),
            ("delivered", Quantity::Rate(&[UDP_IN_DATAGRAMS])),
            ("buffer full", Quantity::Rate(&[UDP_RCVBUF_ERRORS])),
            ("no listener", Quantity::Rate(&[UDP_NO_PORTS])),
        ]),
    ),
];

/// Reads a recording to its end; `command` and `tool` are those that write the report.
///
/// # Errors
/// If the recording is damaged, or has fewer than two samples.
pub fn history(stream: &mut dyn SampleStream, command: &str, tool: &str) -> Result<HostHistory, RecordingError> {
    let mut viewer = Viewer::new(stream.host(), stream.environment().clone());
    let mut samples = Samples::new(usize::try_from(JUDGED.0 / INTERVAL_MIN.0).unwrap_or(0) + 1);
    let (mut kept, mut seen) = (KeptRows::default(), Vec::new());
    let mut ends: Option<(String, String)> = None;
    let mut losses = BTreeSet::new();
    while let Some(at) = stream.next(&mut samples)? {
        samples.keep(JUDGED);
        losses.extend(stream.losses());
        let Some(row) = samples.rows().back() else { continue };
        kept.take(row);
        if let Some(view) = viewer.view(&samples, None, at.clone()) {
            let span = samples.rows().front().map_or(Nanos::ZERO, |first| row.at.since(first.at));
            let sight = Sight { now: row.at, interval: view.interval_ns, span, at: &at };
            view.findings.iter().for_each(|finding| note(&mut seen, finding, sight));
            losses.extend(view.losses);
        }
        let from = ends.take().map_or_else(|| at.clone(), |(from, _)| from);
        ends = Some((from, at));
    }
    let n_samples = kept.n_taken;
    let rows = kept.finish();
    let span = rows.last().zip(rows.first()).map_or(Nanos::ZERO, |(last, first)| last.at.since(first.at));
    let Some((from, to)) = ends.filter(|_| span > Nanos::ZERO) else {
        return Err(RecordingError::new("the recording", "it has fewer than two samples"));
    };
    if CHARTS.iter().all(|(.., shape)| lines(samples.keys(), &rows, *shape).is_empty()) {
        let why = losses.into_iter().next().unwrap_or_else(|| "it has no counters".to_owned());
        return Err(RecordingError::new("the recording", format!("there is nothing to report: {why}")));
    }
    let (charts, mut notes) = charts(samples.keys(), &rows);
    notes.extend(losses);
    seen.sort_by_key(|seen: &SeenSince| std::cmp::Reverse(seen.shown.finding.severity));
    Ok(HostHistory {
        command: command.to_owned(),
        tool: tool.to_owned(),
        host: stream.host().to_owned(),
        environment: stream.environment().clone(),
        from,
        to,
        span,
        n_samples,
        charts,
        notes,
        findings: seen.into_iter().map(SeenSince::told).collect(),
    })
}

/// Rows of the whole time in constant memory: when they are full, every second one is removed.
#[derive(Default)]
struct KeptRows {
    rows: Vec<Row>,
    newest: Option<Row>,
    n_taken: u64,
    stride: u64,
}

impl KeptRows {
    fn take(&mut self, row: &Row) {
        self.stride = self.stride.max(1);
        if self.n_taken.is_multiple_of(self.stride) {
            self.rows.push(row.clone());
            self.newest = None;
        } else {
            self.newest = Some(row.clone());
        }
        self.n_taken += 1;
        if self.rows.len() > ROWS_MAX {
            let mut is_kept = false;
            self.rows.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.stride *= 2;
        }
    }

    /// The first and the last sample are always among them.
    fn finish(mut self) -> Vec<Row> {
        self.rows.extend(self.newest);
        self.rows
    }
}

/// A finding with the time at which it was seen last, in its numbers at the worst time.
struct SeenSince {
    shown: SeenFinding,
    last: Nanos,
    n_seen: u64,
    /// The first number of its evidence.
    number: f64,
    /// The time that these numbers are about, and its end for people.
    span: Nanos,
    at: String,
}

impl SeenSince {
    fn told(mut self) -> SeenFinding {
        if self.n_seen > 1 {
            let clock = self.at.get(11..19).unwrap_or(&self.at);
            let worst = format!(" in the worst {}, until {clock}", self.span);
            self.shown.finding.title.push_str(&worst);
        }
        self.shown
    }
}

/// When a finding is seen.
#[derive(Clone, Copy)]
struct Sight<'a> {
    now: Nanos,
    interval: Nanos,
    /// The time that its numbers are about.
    span: Nanos,
    at: &'a str,
}

/// Adds a finding that is seen at a time. One with the same cause and place was seen before if its numbers differ only.
fn note(seen: &mut Vec<SeenSince>, finding: &Finding, sight: Sight<'_>) {
    let Sight { now, interval, span, at } = sight;
    let place = |finding: &Finding| finding.evidence.first().map(|proof| (proof.host.clone(), proof.counter.clone()));
    let is_same =
        |known: &&mut SeenSince| known.shown.finding.id == finding.id && place(&known.shown.finding) == place(finding);
    let number = number_of(finding);
    if let Some(known) = seen.iter_mut().find(is_same) {
        match known.shown.stretches.last_mut().filter(|_| now.since(known.last) <= STRETCH_GAP.max(interval)) {
            Some(stretch) => at.clone_into(&mut stretch.1),
            None => known.shown.stretches.push((at.to_owned(), at.to_owned())),
        }
        (known.last, known.n_seen) = (now, known.n_seen + 1);
        let severity = known.shown.finding.severity;
        if finding.severity > severity || finding.severity == severity && number > known.number {
            known.shown.finding = finding.clone();
            (known.number, known.span, known.at) = (number, span, at.to_owned());
        }
        return;
    }
    let shown = SeenFinding { finding: finding.clone(), stretches: vec![(at.to_owned(), at.to_owned())] };
    seen.push(SeenSince { shown, last: now, n_seen: 1, number, span, at: at.to_owned() });
}

/// Returns the first number of the evidence of a finding, such as 1200 of `1,200 dropped`; 0 without one.
fn number_of(finding: &Finding) -> f64 {
    let value = finding.evidence.first().map(|proof| proof.value.as_str()).unwrap_or_default();
    let number = value.chars().take_while(|c| c.is_ascii_digit() || matches!(c, '.' | ','));
    number.filter(|c| *c != ',').collect::<String>().parse().unwrap_or(0.0)
}

/// Returns the charts that show anything, and sentences about the others.
fn charts(keys: &[Key], rows: &[Row]) -> (Vec<Chart>, Vec<String>) {
    let (mut charts, mut quiet, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for (title, unit, shape) in CHARTS {
        let lines = lines(keys, rows, shape);
        let n_all = lines.len();
        let mut busy: Vec<ChartLine> = lines.into_iter().filter(|line| line.highest > 0.0).collect();
        if n_all == 0 {
            unknown.push(title);
            continue;
        }
        if busy.is_empty() {
            quiet.push(title);
            continue;
        }
        let n_busy = busy.len();
        if matches!(shape, ChartShape::OfRows(..)) {
            busy.sort_by(|a, b| b.mean.total_cmp(&a.mean));
            busy.truncate(LINES_MAX);
        }
        let about = match n_busy.saturating_sub(busy.len()) {
            0 => "mean of each interval".to_owned(),
            n => format!("mean of each interval; the {LINES_MAX} with most, and {n} more are not drawn"),
        };
        charts.push(Chart { title: title.to_owned(), about, unit, lines: busy });
    }
    let sentence =
        |before: &str, titles: Vec<&str>| (!titles.is_empty()).then(|| format!("{before}: {}", titles.join("; ")));
    let notes = [sentence("nothing was counted", quiet), sentence("the recording does not have", unknown)];
    (charts, notes.into_iter().flatten().collect())
}

fn lines(keys: &[Key], rows: &[Row], shape: ChartShape) -> Vec<ChartLine> {
    match shape {
        ChartShape::OfRows(counter, quantity) => {
            let instances = keys.iter().filter(|key| key.name == counter).map(|key| key.of.as_str());
            instances.filter_map(|of| line(keys, rows, of, of, quantity)).collect()
        }
        ChartShape::OfHost(all) => {
            all.iter().filter_map(|(name, quantity)| line(keys, rows, "", name, *quantity)).collect()
        }
    }
}

/// Returns a quantity of an instance over time; `None` if it is never known.
fn line(keys: &[Key], rows: &[Row], of: &str, name: &str, quantity: Quantity) -> Option<ChartLine> {
    let places = |names: &[&str]| -> Vec<usize> {
        let place = |name: &&str| keys.iter().position(|key| key.name == **name && key.of == of);
        names.iter().filter_map(place).collect()
    };
    let has_slow_counters = match quantity {
        Quantity::BitRate(name) | Quantity::Count(name) | Quantity::Bytes(name) => is_slow(name),
        Quantity::Rate(names) => names.iter().any(|name| is_slow(name)),
        Quantity::Share(part, whole) => part.iter().chain(whole).any(|name| is_slow(name)),
    };
    let quantity = match quantity {
        Quantity::BitRate(name) => PlacedQuantity::Rate(places(&[name]), 8.0),
        Quantity::Rate(names) => PlacedQuantity::Rate(places(names), 1.0),
        Quantity::Share(part, whole) => PlacedQuantity::Share(places(part), places(whole)),
        Quantity::Count(name) | Quantity::Bytes(name) => PlacedQuantity::Gauge(places(&[name])),
    };
    let first = rows.first()?.at;
    // A slow counter grows between the samples in which it was read.
    let rows: Vec<&Row> = rows.iter().filter(|row| !row.is_carried || !has_slow_counters).collect();
    let mut line =
        ChartLine { name: name.to_owned(), points: Vec::new(), mean: 0.0, highest: 0.0, highest_at: Nanos::ZERO };
    let (mut sum, mut known) = (0.0, 0.0);
    for pair in rows.windows(2) {
        let (at, seconds) = (pair[1].at.since(first), pair[1].at.since(pair[0].at).as_secs_f64());
        let value = quantity.between(pair[0], pair[1], seconds).filter(|_| seconds > 0.0);
        line.points.push((at, value));
        let Some(value) = value else { continue };
        (sum, known) = (sum + value * seconds, known + seconds);
        if value > line.highest {
            (line.highest, line.highest_at) = (value, at);
        }
    }
    line.mean = sum / known;
    (known > 0.0).then_some(line)
}

/// A quantity with the places of its counters.
enum PlacedQuantity {
    Rate(Vec<usize>, f64),
    Share(Vec<usize>, Vec<usize>),
    Gauge(Vec<usize>),
}

impl PlacedQuantity {
    /// Returns the mean between two samples; `None` if a counter is missing in one of them or restarted.
    fn between(&self, before: &Row, after: &Row, seconds: f64) -> Option<f64> {
        let growth = |places: &[usize]| {
            let one = |place: &usize| after.value(*place)?.checked_sub(before.value(*place)?);
            let all: Option<Vec<u64>> = places.iter().map(one).collect();
            all.filter(|all| !all.is_empty()).map(|all| approximate(all.into_iter().sum()))
        };
        match self {
            Self::Rate(places, factor) => Some(growth(places)? * factor / seconds),
            Self::Share(part, whole) => {
                let whole = growth(whole)?;
                Some(if whole > 0.0 { growth(part)? / whole } else { 0.0 })
            }
            Self::Gauge(places) => Some(approximate(after.value(*places.first()?)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use fathom_model::{Environment, Evidence, Severity};

    use super::*;

    /// A host with one interface that comes after the third sample, and a core that is busy all the time.
    struct Invented {
        seconds: VecDeque<u64>,
        host: String,
        environment: Environment,
    }

    impl SampleStream for Invented {
        fn host(&self) -> &str {
            &self.host
        }

        fn environment(&self) -> &Environment {
            &self.environment
        }

        fn losses(&self) -> Vec<String> {
            vec!["nft: not permitted".to_owned()]
        }

        fn next(&mut self, samples: &mut Samples) -> Result<Option<String>, RecordingError> {
            let Some(second) = self.seconds.pop_front() else { return Ok(None) };
            samples.begin(Nanos::from_secs(second));
            let mut set = |name: &str, of: &str, value: u64| {
                let place = samples.place(Key { name: name.to_owned(), of: of.to_owned() });
                samples.set(place, Some(value));
            };
            // Busy for half a minute, and again from the 300th second on.
            let busy = second.min(30) + second.saturating_sub(300);
            set(CPU_USER_NS, "cpu0", busy * 1_000_000_000);
            set(CPU_IDLE_NS, "cpu0", (second - busy) * 1_000_000_000);
            set(TCP_OUT_SEGMENTS, "", 7);
            if second > 3 {
                set(DEV_RX_BYTES, "eth0", second * 1000);
            }
            Ok(Some(format!("2026-11-25T10:00:{:02}Z", second % 60)))
        }
    }

    fn told(seconds: impl Iterator<Item = u64>) -> Result<HostHistory, RecordingError> {
        let environment = Environment::default();
        let mut invented = Invented { seconds: seconds.collect(), host: "gen-1".to_owned(), environment };
        history(&mut invented, "fathom report x", "fathom")
    }

    #[test]
    fn a_series_begins_with_its_instance_and_what_was_quiet_is_named() {
        let history = told(1..=8).unwrap();
        let titles: Vec<&str> = history.charts.iter().map(|chart| chart.title.as_str()).collect();
        assert_eq!(titles, ["received, by interface", "busy, by core"]);
        let received = &history.charts[0].lines[0];
        let known: Vec<bool> = received.points.iter().map(|(_, value)| value.is_some()).collect();
        assert_eq!(known, [false, false, false, true, true, true, true]);
        assert!((received.mean - 8000.0).abs() < 1e-6 && (received.highest - 8000.0).abs() < 1e-6, "{received:?}");
        let [quiet, unknown, loss] = &history.notes[..] else { panic!("{:?}", history.notes) };
        assert_eq!(loss, "nft: not permitted");
        assert!(quiet.starts_with("nothing was counted: TCP segments"), "{quiet}");
        assert!(unknown.contains("UDP datagrams") && unknown.contains("sent, by interface"), "{unknown}");
        assert_eq!((history.span, history.n_samples), (Nanos::from_secs(7), 8));
    }

    #[test]
    fn a_finding_that_stays_is_one_with_the_time_of_its_stretch() {
        let history = told(1..=330).unwrap();
        let full: Vec<_> = history.findings.iter().filter(|seen| seen.finding.id == "core-full").collect();
        assert_eq!(full.len(), 1, "{:?}", history.findings);
        assert_eq!(full[0].finding.severity, Severity::HoldsBack);
        let [first, second] = &full[0].stretches[..] else { panic!("{:?}", full[0].stretches) };
        assert_eq!(first.0, "2026-11-25T10:00:02Z");
        assert!(first.1.as_str() <= "2026-11-25T10:00:33Z", "{first:?}");
        assert_eq!(second.1, "2026-11-25T10:00:30Z");
    }

    #[test]
    fn a_finding_has_the_numbers_of_its_worst_time() {
        let finding = |n: &str| Finding {
            id: "accept-queue-full".to_owned(),
            short: String::new(),
            title: format!("{n} dropped"),
            severity: Severity::HoldsBack,
            tests: Vec::new(),
            evidence: vec![Evidence {
                host: "a".to_owned(),
                counter: "tcp_listen_overflows".to_owned(),
                value: n.to_owned(),
            }],
            explains: None,
            proof: None,
            next: None,
        };
        let mut seen = Vec::new();
        for (second, n) in (10..).zip(["3", "1,204", "21"]) {
            let (now, at) = (Nanos::from_secs(second), format!("2026-11-25T10:00:{second}Z"));
            let sight = Sight { now, interval: Nanos::from_secs(1), span: JUDGED, at: &at };
            note(&mut seen, &finding(n), sight);
        }
        let [told] = &seen.into_iter().map(SeenSince::told).collect::<Vec<_>>()[..] else {
            panic!("it is one finding")
        };
        assert_eq!(told.finding.title, "1,204 dropped in the worst 10.0 s, until 10:00:11");
        assert_eq!(told.stretches.len(), 1);
    }

    #[test]
    fn the_rows_of_a_long_recording_are_thinned_and_keep_its_ends() {
        let history = told(1..=5000).unwrap();
        let points = &history.charts[0].lines[0].points;
        assert!((ROWS_MAX / 2..=ROWS_MAX + 1).contains(&points.len()), "{}", points.len());
        assert_eq!((history.span, points.last().unwrap().0), (Nanos::from_secs(4999), Nanos::from_secs(4999)));
        assert_eq!(history.n_samples, 5000);
    }

    #[test]
    fn a_recording_in_which_nothing_could_be_looked_at_is_refused_with_the_reason() {
        let bare = r#"{"sysstat": {"hosts": [{"statistics": [
            {"timestamp": {"date": "2026-11-25", "time": "08:46:04", "interval": 1}, "disk": []},
            {"timestamp": {"date": "2026-11-25", "time": "08:46:05", "interval": 1}, "disk": []}]}]}}"#;
        let mut stream = crate::recording(bare.as_bytes()).unwrap();
        let told = history(stream.as_mut(), "fathom report x", "fathom").unwrap_err().to_string();
        assert!(
            told.starts_with("the recording: there is nothing to report: the file does not have cpu-load"),
            "{told}"
        );
    }

    #[test]
    fn a_recording_of_one_sample_is_refused() {
        assert_eq!(told(1..=1).unwrap_err().to_string(), "the recording: it has fewer than two samples");
    }
}
