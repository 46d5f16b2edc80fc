//! The results that both sides exchange at the end.

use serde_json::{Map, Value, json};

use super::Error;

/// One stream as counted by one side.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StreamResult {
    /// Its ID: 1, 3, 4, 5, …
    pub id: u32,
    /// Bytes sent or received, without the omitted part.
    pub bytes: u64,
    /// Retransmitted segments; `None` from a receiver.
    pub retransmits: Option<u64>,
    /// RFC 3550 jitter in seconds.
    pub jitter_secs: f64,
    /// Lost datagrams, including the omitted part.
    pub lost: u64,
    /// Datagrams sent, or the highest number received, including the omitted part.
    pub packets: u64,
    /// The counts of the omitted part; peers before 3.14 do not send them.
    pub omitted: Option<Omitted>,
    /// The duration of the stream in seconds.
    pub seconds: f64,
}

/// Datagrams of the omitted part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Omitted {
    /// Lost datagrams.
    pub lost: u64,
    /// Datagrams sent, or the highest number received.
    pub packets: u64,
}

/// The output of a server, if the client requested it.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerOutput {
    Text(String),
    Json(Value),
}

/// Processor time as a share of the test, in percent of one core.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CpuUse {
    /// User and system time together.
    pub total: f64,
    /// User time.
    pub user: f64,
    /// System time.
    pub system: f64,
}

/// The results of one side.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Results {
    /// Its processor time.
    pub cpu: CpuUse,
    /// Whether it knows retransmissions; `None` from a side that sends nothing.
    pub knows_retransmits: Option<bool>,
    /// The congestion control of its sockets.
    pub congestion: Option<String>,
    /// Its streams, in the order of their IDs.
    pub streams: Vec<StreamResult>,
    /// Its own output.
    pub output: Option<ServerOutput>,
}

/// The most streams that are parsed: 128 in each direction.
const STREAMS_MAX: usize = 256;

/// The largest plausible count: 2^53 is a day at 800 Gbit/s, and sums of 256 such counts still fit.
const COUNT_MAX: u64 = 1 << 53;

fn malformed(why: impl Into<String>) -> Error {
    Error::Malformed { what: "results", why: why.into() }
}

fn float(object: &Map<String, Value>, key: &str) -> Option<f64> {
    object.get(key)?.as_f64().filter(|number| number.is_finite())
}

/// Parses a count; `None` for -1, which means that there is no such count. Some versions write -1 as an unsigned number.
fn count(object: &Map<String, Value>, key: &str) -> Option<u64> {
    let number = float(object, key)?;
    // Counts above 2^53 are integers in JSON, so they are read as such.
    let count = object.get(key)?.as_u64().or_else(|| (number >= 0.0).then(|| fathom_model::units::rounded(number)))?;
    (count <= COUNT_MAX).then_some(count)
}

impl StreamResult {
    fn read(value: &Value) -> Result<Self, Error> {
        let object = value.as_object().ok_or_else(|| malformed("a stream is not an object"))?;
        let required = |key: &'static str| malformed(format!("a stream has no `{key}`"));
        let id = count(object, "id").and_then(|id| u32::try_from(id).ok()).ok_or_else(|| required("id"))?;
        let omitted = count(object, "omitted_errors").zip(count(object, "omitted_packets"));
        let span = float(object, "end_time").unwrap_or(0.0) - float(object, "start_time").unwrap_or(0.0);
        Ok(Self {
            id,
            bytes: count(object, "bytes").ok_or_else(|| required("bytes"))?,
            retransmits: count(object, "retransmits"),
            jitter_secs: float(object, "jitter").ok_or_else(|| required("jitter"))?.max(0.0),
            lost: count(object, "errors").unwrap_or(0),
            packets: count(object, "packets").ok_or_else(|| required("packets"))?,
            omitted: omitted.map(|(lost, packets)| Omitted { lost, packets }),
            seconds: span.max(0.0),
        })
    }

    fn write(&self) -> Value {
        let omitted = self.omitted.unwrap_or_default();
        json!({
            "id": self.id,
            "bytes": self.bytes,
            "retransmits": self.retransmits.map_or(-1, |count| i64::try_from(count).unwrap_or(i64::MAX)),
            "jitter": self.jitter_secs,
            "errors": self.lost,
            "omitted_errors": omitted.lost,
            "packets": self.packets,
            "omitted_packets": omitted.packets,
            "start_time": 0,
            "end_time": self.seconds,
        })
    }
}

impl Results {
    /// Parses the JSON of the other side.
    ///
    /// # Errors
    /// If a required key is missing or of another type, or if there are more streams than a test can have.
    pub fn read(value: &Value) -> Result<Self, Error> {
        let object = value.as_object().ok_or_else(|| malformed("they are not an object"))?;
        let percent = |key: &'static str| float(object, key).ok_or_else(|| malformed(format!("there is no `{key}`")));
        let cpu = CpuUse {
            total: percent("cpu_util_total")?,
            user: percent("cpu_util_user")?,
            system: percent("cpu_util_system")?,
        };
        let knows = percent("sender_has_retransmits")?;
        let streams =
            object.get("streams").and_then(Value::as_array).ok_or_else(|| malformed("there is no `streams`"))?;
        if streams.len() > STREAMS_MAX {
            return Err(malformed(format!("{} streams are more than {STREAMS_MAX}", streams.len())));
        }
        let text = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
        let document = object.get("server_output_json").filter(|value| value.is_object()).cloned();
        Ok(Self {
            cpu,
            knows_retransmits: (knows >= 0.0).then_some(knows > 0.0),
            congestion: text("congestion_used"),
            streams: streams.iter().map(StreamResult::read).collect::<Result<_, _>>()?,
            output: document.map(ServerOutput::Json).or_else(|| text("server_output_text").map(ServerOutput::Text)),
        })
    }

    /// Returns the JSON to send.
    #[must_use]
    pub fn write(&self) -> Value {
        let mut value = json!({
            "cpu_util_total": self.cpu.total,
            "cpu_util_user": self.cpu.user,
            "cpu_util_system": self.cpu.system,
            "sender_has_retransmits": self.knows_retransmits.map_or(-1, i32::from),
            "streams": self.streams.iter().map(StreamResult::write).collect::<Vec<_>>(),
        });
        if let Some(name) = &self.congestion {
            value["congestion_used"] = json!(name);
        }
        match &self.output {
            Some(ServerOutput::Text(text)) => value["server_output_text"] = json!(text),
            Some(ServerOutput::Json(document)) => value["server_output_json"] = document.clone(),
            None => {}
        }
        value
    }

    /// Finds the stream with this ID.
    #[must_use]
    pub fn stream(&self, id: u32) -> Option<&StreamResult> {
        self.streams.iter().find(|stream| stream.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let stream = StreamResult {
            id: 1,
            bytes: COUNT_MAX,
            retransmits: Some(7),
            jitter_secs: 1.5e-5,
            lost: 2,
            packets: 1 << 40,
            omitted: Some(Omitted { lost: 1, packets: 9 }),
            seconds: 10.5,
        };
        let cpu = CpuUse { total: 3.5, user: 1.0, system: 2.5 };
        let results = Results {
            cpu,
            knows_retransmits: Some(true),
            congestion: Some("bbr".to_owned()),
            streams: vec![stream, StreamResult { id: 3, retransmits: None, ..stream }],
            output: Some(ServerOutput::Text("text".to_owned())),
        };
        assert_eq!(Results::read(&results.write()).unwrap(), results);
        let other = Results { knows_retransmits: None, output: Some(ServerOutput::Json(json!({}))), ..results };
        assert_eq!(Results::read(&other.write()).unwrap(), other);
    }

    #[test]
    fn results_of_an_old_version_have_no_times_and_nothing_omitted() {
        let old = json!({
            "cpu_util_total": 1, "cpu_util_user": 0.5, "cpu_util_system": 0.5, "sender_has_retransmits": -1,
            "streams": [{"id": 1, "bytes": 10, "retransmits": -1, "jitter": 0, "errors": 0, "packets": 0}],
        });
        let read = Results::read(&old).unwrap();
        assert_eq!((read.streams[0].omitted, read.streams[0].retransmits, read.congestion), (None, None, None));
    }

    #[test]
    fn a_count_that_there_is_none_of_is_none_with_and_without_its_sign() {
        for none in [json!(-1), json!(u64::MAX), json!(1.8e19)] {
            let mut value = Results { streams: vec![StreamResult::default()], ..Results::default() }.write();
            value["streams"][0]["retransmits"] = none.clone();
            assert_eq!(Results::read(&value).unwrap().streams[0].retransmits, None, "{none}");
        }
    }

    #[test]
    fn what_lacks_a_number_is_not_taken() {
        let whole = Results { streams: vec![StreamResult { id: 1, ..StreamResult::default() }], ..Results::default() };
        for key in ["cpu_util_total", "cpu_util_user", "cpu_util_system", "sender_has_retransmits", "streams"] {
            for wrong in [None, Some(json!("7")), Some(json!({}))] {
                let mut value = whole.write();
                let object = value.as_object_mut().unwrap();
                object.remove(key);
                object.extend(wrong.clone().map(|wrong| (key.to_owned(), wrong)));
                assert!(Results::read(&value).is_err(), "{key} {wrong:?}");
            }
        }
        for key in ["id", "bytes", "jitter", "packets"] {
            let mut value = whole.write();
            value["streams"][0].as_object_mut().unwrap().remove(key);
            assert!(Results::read(&value).is_err(), "{key}");
        }
        let mut many = whole.write();
        many["streams"] = json!(vec![many["streams"][0].clone(); STREAMS_MAX + 1]);
        assert!(Results::read(&many).is_err());
    }
}
