//! Samples as a file: a line with the host, then a line per sample with what changed.
//!
//! Values are kept as the kernel told them, so that a replay shows everything that a live view would have shown.

use std::io::{self, BufRead, Write};

use fathom_model::{Environment, record::CounterChanges, units::Nanos};
use serde::{Deserialize, Serialize};

use crate::{
    changes::{ChangeFinder, ChangeReader},
    samples::Samples,
    stream::{RecordingError, SampleStream},
};

/// The version of the file.
const SCHEMA: &str = "fathom.watch-recording/1";
/// A line with the counters of a host with 512 cores and 1,000 interfaces, at 100 bytes each.
const LINE_MAX: u64 = 8 << 20;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    schema: String,
    host: String,
    environment: Environment,
}

/// A sample: new keys, then the values that differ from the sample before, by place.
#[derive(Debug, Serialize, Deserialize)]
struct Change {
    /// The number of the sample, from 1; absent in the files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n: Option<u64>,
    at_ns: Nanos,
    at: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<(String, String)>,
    values: Vec<(usize, Option<u64>)>,
    /// Whether slow counters are those of an earlier sample.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_carried: bool,
    /// What could not be read, a sentence each; absent if it is the same as in the sample before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    losses: Option<Vec<String>>,
}

/// Writes samples to a file.
pub struct Recorder<W: Write> {
    out: W,
    changes: ChangeFinder,
    n_written: u64,
    /// Those of the sample before.
    losses: Vec<String>,
}

impl<W: Write> Recorder<W> {
    /// Begins a file with the name and the properties of the host.
    ///
    /// # Errors
    /// Those of the file.
    pub fn new(mut out: W, host: &str, environment: &Environment) -> io::Result<Self> {
        let head = Head { schema: SCHEMA.to_owned(), host: host.to_owned(), environment: environment.clone() };
        write_line(&mut out, &head)?;
        Ok(Self { out, changes: ChangeFinder::default(), n_written: 0, losses: Vec::new() })
    }

    /// Appends the newest sample; `at` is its time for people, RFC 3339, and `losses` is what could not be read.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write(&mut self, samples: &Samples, at: &str, losses: Vec<String>) -> io::Result<()> {
        let Some(changes) = self.changes.newest(samples) else { return Ok(()) };
        let CounterChanges { at_ns, keys, values, is_carried, .. } = changes;
        self.n_written += 1;
        let is_changed = losses != self.losses;
        self.losses.clone_from(&losses);
        let (n, losses) = (Some(self.n_written), is_changed.then_some(losses));
        write_line(&mut self.out, &Change { n, at_ns, at: at.to_owned(), keys, values, is_carried, losses })
    }
}

/// Writes a line whole, so that a recording that is cut off ends after a sample.
fn write_line(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    out.write_all(&text)?;
    out.flush()
}

/// What is wrong with a line; the parser's own number of the line is always 1.
fn told(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    format!("column {}: {what}", error.column())
}

/// Reads samples from a file.
pub(crate) struct Replay<R: BufRead> {
    input: R,
    line: usize,
    n_samples: u64,
    changes: ChangeReader,
    losses: Vec<String>,
    host: String,
    environment: Environment,
}

impl<R: BufRead> Replay<R> {
    /// Reads the first line.
    pub(crate) fn new(input: R) -> Result<Self, RecordingError> {
        let mut replay = Self {
            input,
            line: 0,
            n_samples: 0,
            changes: ChangeReader::default(),
            losses: Vec::new(),
            host: String::new(),
            environment: Environment::default(),
        };
        let no_recording =
            |why: String| RecordingError::new("line 1", format!("it is no recording of fathom watch{why}"));
        let Some(text) = replay.next_line()? else { return Err(no_recording(": it has no whole line".to_owned())) };
        let head: Head = serde_json::from_slice(&text).map_err(|error| no_recording(format!(": {}", told(&error))))?;
        if head.schema != SCHEMA {
            return Err(no_recording(format!(": its schema is {}, and {SCHEMA} is known", head.schema)));
        }
        (replay.host, replay.environment) = (head.host, head.environment);
        Ok(replay)
    }

    fn next_line(&mut self) -> Result<Option<Vec<u8>>, RecordingError> {
        use io::Read as _;
        self.line += 1;
        let line = self.line;
        let mut text = Vec::new();
        let failed = |what: String| RecordingError::new(format!("line {line}"), what);
        let read = self.input.by_ref().take(LINE_MAX).read_until(b'\n', &mut text);
        read.map_err(|error| failed(error.to_string()))?;
        match text.last() {
            Some(b'\n') => Ok(Some(text)),
            Some(_) if u64::try_from(text.len()).is_ok_and(|length| length >= LINE_MAX) => {
                Err(failed(format!("it is longer than {LINE_MAX} bytes")))
            }
            _ => Ok(None),
        }
    }
}

impl<R: BufRead> SampleStream for Replay<R> {
    fn host(&self) -> &str {
        &self.host
    }

    fn environment(&self) -> &Environment {
        &self.environment
    }

    fn losses(&self) -> Vec<String> {
        self.losses.clone()
    }

    /// A last line without its end was cut off while it was written, and is the end.
    fn next(&mut self, samples: &mut Samples) -> Result<Option<String>, RecordingError> {
        let Some(text) = self.next_line()? else { return Ok(None) };
        let damaged = |what: String| RecordingError::new(format!("line {}", self.line), what);
        let change: Change = serde_json::from_slice(&text).map_err(|error| damaged(told(&error)))?;
        let Change { n, at_ns, at, keys, values, is_carried, losses } = change;
        self.n_samples += 1;
        if let Some(n) = n.filter(|n| *n != self.n_samples) {
            let expected = self.n_samples;
            return Err(damaged(format!(
                "it has sample {n} in the place of {expected}: a line is missing or repeated"
            )));
        }
        if let Some(before) = samples.rows().back().filter(|before| at_ns <= before.at) {
            return Err(damaged(format!("its time {} is not after that of the line before, {}", at_ns.0, before.at.0)));
        }
        if let Some(losses) = losses {
            self.losses = losses;
        }
        let changes = CounterChanges { at_ns, keys, values, is_carried, ..CounterChanges::default() };
        self.changes
            .add(changes, samples)
            .map_err(|error| RecordingError::new(format!("line {}", self.line), error.to_string()))?;
        Ok(Some(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Key;

    fn sample(samples: &mut Samples, second: u64, values: &[(&str, u64)]) {
        samples.begin(Nanos::from_secs(second));
        for (of, value) in values {
            let place = samples.place(Key { name: "dev_rx_bytes".to_owned(), of: (*of).to_owned() });
            samples.set(place, Some(*value));
        }
    }

    fn recorded() -> (Samples, Vec<u8>) {
        let mut samples = Samples::new(10);
        let mut file = Vec::new();
        let mut recorder = Recorder::new(&mut file, "gen-1", &Environment::default()).unwrap();
        for (second, values) in [(1, &[("eth0", 5)][..]), (2, &[("eth0", 9), ("eth1", 1)]), (3, &[("eth1", 1)])] {
            sample(&mut samples, second, values);
            let losses = if second == 2 { vec!["nft: not permitted".to_owned()] } else { Vec::new() };
            recorder.write(&samples, &format!("2026-11-23T10:00:0{second}Z"), losses).unwrap();
        }
        (samples, file)
    }

    fn replayed(file: &[u8]) -> Result<(Samples, Vec<String>), RecordingError> {
        let mut replay = Replay::new(file)?;
        assert_eq!(replay.host, "gen-1");
        let (mut samples, mut times) = (Samples::new(10), Vec::new());
        while let Some(at) = replay.next(&mut samples)? {
            times.push(at);
        }
        Ok((samples, times))
    }

    #[test]
    fn a_replay_has_the_samples_of_the_recording() {
        let (samples, file) = recorded();
        let (again, times) = replayed(&file).unwrap();
        assert_eq!(
            again.rows().iter().map(|row| row.at).collect::<Vec<_>>(),
            samples.rows().iter().map(|row| row.at).collect::<Vec<_>>()
        );
        let known = |samples: &Samples| {
            samples
                .rows()
                .iter()
                .map(|row| row.values.iter().flatten().copied().collect::<Vec<_>>())
                .collect::<Vec<_>>()
        };
        assert_eq!(known(&again), known(&samples));
        assert_eq!(times[2], "2026-11-23T10:00:03Z");
    }

    #[test]
    fn a_replay_has_what_could_not_be_read_at_its_time() {
        let (_, file) = recorded();
        let mut replay = Replay::new(&file[..]).unwrap();
        let (mut samples, mut losses) = (Samples::new(10), Vec::new());
        while replay.next(&mut samples).unwrap().is_some() {
            losses.push(replay.losses());
        }
        assert_eq!(losses, [vec![], vec!["nft: not permitted".to_owned()], vec![]]);
    }

    #[test]
    fn a_line_that_is_missing_or_repeated_and_a_time_that_goes_back_are_refused() {
        let (_, file) = recorded();
        let text = String::from_utf8(file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let told = |lines: &[&str]| replayed((lines.join("\n") + "\n").as_bytes()).unwrap_err().to_string();
        let wrong = |line, n, expected| {
            format!("line {line}: it has sample {n} in the place of {expected}: a line is missing or repeated")
        };
        assert_eq!(told(&[lines[0], lines[1], lines[3]]), wrong(3, 3, 2));
        assert_eq!(told(&[lines[0], lines[1], lines[1]]), wrong(3, 1, 2));
        let back = text.replace("\"at_ns\":3000000000", "\"at_ns\":1500000000");
        let told = replayed(back.as_bytes()).unwrap_err().to_string();
        assert_eq!(told, "line 4: its time 1500000000 is not after that of the line before, 2000000000");
    }

    #[test]
    fn a_recording_that_was_cut_off_ends_at_its_last_whole_sample() {
        let (_, file) = recorded();
        let (samples, _) = replayed(&file[..file.len() - 9]).unwrap();
        assert_eq!(samples.rows().len(), 2);
    }

    #[test]
    fn a_damaged_recording_is_refused_with_its_line() {
        let of = |text: &str| replayed(text.as_bytes()).unwrap_err().to_string();
        let (_, file) = recorded();
        let text = String::from_utf8(file).unwrap();
        assert!(of("").starts_with("line 1: it is no recording"));
        assert!(of("{}\n").starts_with("line 1: it is no recording"));
        assert!(of(&text.replace("recording/1", "recording/2")).contains("recording/2"));
        assert_eq!(of(&text.replace("[[0,5]]", "[[7,5]]")), "line 2: there is no counter 7");
        assert!(of(&text.replace("\"at_ns\":3", "\"at_ns\":x")).starts_with("line 4: "), "{}", text);
    }
}
