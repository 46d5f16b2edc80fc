//! What a controller and an agent say to each other.
//!
//! Plain messages in [`frame`]s, without I/O and without a clock. A conversation: both greet; the controller probes the clock;
//! for each trial it prepares roles, starts them at an instant of the agent's own clock, and takes their outcomes. Each side
//! says something at least twice a second, and takes the other for lost when it hears nothing for 3 s.

pub mod clock_offset;
mod frame;

use fathom_engine::LiveProgress;
use fathom_model::{Endpoints, Environment, HostRecord, PeerClock, Record, Role, units::Nanos};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use frame::{Decoder, Frame, FrameError, HEADER_LEN, encode};

use crate::AgentFailure;

/// The major version of the protocol: the first byte of each frame.
pub const VERSION: u8 = 2;
/// The most that an agent reads as one message: roles and heartbeats are small.
pub const TO_AGENT_MAX: usize = 1 << 20;
/// The most that a controller reads as one message: records of many flows are large.
pub const FROM_AGENT_MAX: usize = 64 << 20;
/// A side that has nothing to say sends a heartbeat this often: twice a second.
pub const HEARTBEAT_EVERY: Nanos = Nanos::from_millis(500);
/// A side that was not heard for this long is lost: five heartbeats, so that one late wake-up is no loss.
pub const SILENCE_MAX: Nanos = Nanos::from_secs(3);

/// One prepared role at one agent; the controller numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RoleId(pub u64);

/// Who speaks. Its name `hello` and its field `tool` stay the same in all versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The program: `fathom 0.1.0`.
    pub tool: String,
    /// What the host is; the controller tells nothing of itself.
    #[serde(default)]
    pub facts: HostFacts,
}

/// What an agent says of its host before anything is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Its own name, as in `/proc/sys/kernel/hostname`.
    pub hostname: Option<String>,
    /// Tells whether two hosts are one machine, as in `/proc/sys/kernel/random/boot_id`.
    pub boot_id: Option<String>,
    /// Names its monotonic clock: hosts that tell the same name read the same clock.
    pub clock: Option<String>,
    /// The number of cores that the agent may use.
    pub cores: Option<usize>,
}

/// What a controller says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToAgent {
    /// The first message.
    Hello(Hello),
    /// Asks for the agent's clock.
    Clock {
        /// The controller's clock when it asked.
        t0: Nanos,
    },
    /// Asks what the host is.
    Environment {
        /// The interfaces on paths under test.
        interfaces: Vec<String>,
    },
    /// Asks to make a role ready.
    Prepare {
        /// Its number from now on.
        ticket: RoleId,
        /// What to play.
        role: Box<Role>,
        /// Whether to watch the host's counters beside it, and on which interfaces.
        watch: Option<Vec<String>>,
    },
    /// Sets the instant of the start.
    Start {
        /// Which role.
        ticket: RoleId,
        /// On the agent's own monotonic clock.
        at: Nanos,
        /// The clock of the host at the other end, if there is one such host.
        #[serde(default)]
        peer_clock: Option<PeerClock>,
    },
    /// Tells a responder that its initiator has finished.
    Finish {
        /// Which role.
        ticket: RoleId,
    },
    /// Ends a role at once; what it measured is still told.
    Abort {
        /// Which role.
        ticket: RoleId,
    },
    /// Nothing but a sign of life.
    Heartbeat,
    /// The last message.
    Bye,
}

/// What an agent says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FromAgent {
    /// The first message.
    Hello(Hello),
    /// Answers a probe of the clock.
    Clock {
        /// The controller's clock when it asked.
        t0: Nanos,
        /// The agent's clock when the question came.
        t1: Nanos,
        /// The agent's clock when it answered.
        t2: Nanos,
    },
    /// What the host is.
    Environment(Environment),
    /// A role is ready to start.
    Ready {
        /// Which.
        ticket: RoleId,
        /// What the other side needs to know.
        endpoints: Endpoints,
    },
    /// How a running role fares, at most twice a second.
    Interval {
        /// Which.
        ticket: RoleId,
        /// What a live view shows.
        progress: RoleProgress,
    },
    /// What a role left behind; the last that is heard of it.
    Outcome {
        /// Which.
        ticket: RoleId,
        /// What it recorded.
        outcome: Box<RoleOutcome>,
    },
    /// Why a role, or an answer where no role is named, cannot be given; the last that is heard of it.
    Failed {
        /// Which.
        ticket: Option<RoleId>,
        /// Why.
        failure: AgentFailure,
    },
    /// Nothing but a sign of life.
    Heartbeat,
    /// The last message.
    Bye,
}

/// What a role left behind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoleOutcome {
    /// What its test recorded.
    pub record: Record,
    /// What the host's counters showed, if they were watched.
    pub host: Option<HostRecord>,
    /// What could not be observed, in sentences.
    pub losses: Vec<String>,
}

/// How far a running role has come: [`LiveProgress`] as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleProgress {
    /// The time since the start.
    pub elapsed_ns: Nanos,
    /// What the first counter grew by since the last of these.
    pub growth: u64,
    /// The time since the last of these.
    pub span_ns: Nanos,
    /// Whether the warm-up is over.
    pub measuring: bool,
    /// The latency that one in a hundred exceeded since the last of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<Nanos>,
}

impl From<LiveProgress> for RoleProgress {
    fn from(live: LiveProgress) -> Self {
        Self {
            elapsed_ns: live.elapsed,
            growth: live.growth,
            span_ns: live.span,
            measuring: live.measuring,
            p99_ns: live.p99,
        }
    }
}

impl From<RoleProgress> for LiveProgress {
    fn from(progress: RoleProgress) -> Self {
        Self {
            elapsed: progress.elapsed_ns,
            growth: progress.growth,
            span: progress.span_ns,
            measuring: progress.measuring,
            p99: progress.p99_ns,
        }
    }
}

/// What one side says to the other.
pub trait Message: Serialize + DeserializeOwned + Send + 'static {
    /// The most bytes that one of them may take.
    const MAX: usize;

    /// The sign of life.
    fn heartbeat() -> Self;

    /// Whether it says nothing more than that.
    fn is_heartbeat(&self) -> bool;

    /// Whether nothing is said behind it.
    fn is_last(&self) -> bool;
}

impl Message for ToAgent {
    const MAX: usize = TO_AGENT_MAX;

    fn heartbeat() -> Self {
        Self::Heartbeat
    }

    fn is_heartbeat(&self) -> bool {
        matches!(self, Self::Heartbeat)
    }

    fn is_last(&self) -> bool {
        matches!(self, Self::Bye)
    }
}

impl Message for FromAgent {
    const MAX: usize = FROM_AGENT_MAX;

    fn heartbeat() -> Self {
        Self::Heartbeat
    }

    fn is_heartbeat(&self) -> bool {
        matches!(self, Self::Heartbeat)
    }

    fn is_last(&self) -> bool {
        matches!(self, Self::Bye)
    }
}

/// The bytes of a message.
///
/// # Errors
/// When it is larger than its receiver would read.
///
/// # Panics
/// Never: every message has a serialised form.
pub fn write<M: Message>(message: &M) -> Result<Vec<u8>, FrameError> {
    let payload = serde_json::to_vec(message).expect("messages have string keys and finite numbers");
    encode(VERSION, &payload, M::MAX)
}

/// The message of a frame.
///
/// # Errors
/// When the frame is of another version, or its payload is no such message.
pub fn read<M: Message>(frame: &Frame) -> Result<M, FrameError> {
    if frame.version != VERSION {
        return Err(FrameError::Version { theirs: frame.version, tool: tool_of_hello(&frame.payload) });
    }
    serde_json::from_slice(&frame.payload).map_err(|cause| FrameError::Message(cause.to_string()))
}

/// The program that a greeting of any version names.
fn tool_of_hello(payload: &[u8]) -> String {
    let greeting: Option<serde_json::Value> = serde_json::from_slice(payload).ok();
    let tool = greeting.as_ref().and_then(|greeting| greeting.pointer("/hello/tool")?.as_str());
    // It is printed, and comes from a stranger.
    tool.unwrap_or("another fathom").chars().filter(|letter| !letter.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(bytes: &[u8], limit: usize) -> Result<Vec<Frame>, FrameError> {
        let mut decoder = Decoder::new(limit);
        decoder.push(bytes);
        std::iter::from_fn(|| decoder.frame().transpose()).collect()
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let messages = [
            ToAgent::Hello(Hello { tool: "fathom 0.1.0".to_owned(), facts: HostFacts::default() }),
            ToAgent::Clock { t0: Nanos(7) },
            ToAgent::Start { ticket: RoleId(3), at: Nanos::MAX, peer_clock: Some(PeerClock::default()) },
            ToAgent::Heartbeat,
            ToAgent::Bye,
        ];
        let bytes: Vec<u8> = messages.iter().flat_map(|message| write(message).unwrap()).collect();
        let again: Vec<ToAgent> =
            frames(&bytes, TO_AGENT_MAX).unwrap().iter().map(|frame| read(frame).unwrap()).collect();
        assert_eq!(again, messages);
    }

    #[test]
    fn a_message_longer_than_its_receiver_reads_is_not_written() {
        let long = ToAgent::Environment { interfaces: vec!["x".repeat(TO_AGENT_MAX)] };
        assert!(matches!(write(&long), Err(FrameError::TooLong { .. })));
    }

    #[test]
    fn a_greeting_of_another_version_is_understood_as_far_as_its_name() {
        let payload = br#"{"hello":{"tool":"fathom 9.1","colour":"blue"}}"#;
        let frame = Frame { version: 9, payload: payload.to_vec() };
        let error = read::<FromAgent>(&frame).unwrap_err();
        assert_eq!(error, FrameError::Version { theirs: 9, tool: "fathom 9.1".to_owned() });
    }

    #[test]
    fn a_payload_that_is_no_message_is_an_error() {
        for payload in ["", "{}", "nonsense", "{\"start\":{}}", "\"heartbeat\"x"] {
            let frame = Frame { version: VERSION, payload: payload.as_bytes().to_vec() };
            assert!(matches!(read::<ToAgent>(&frame), Err(FrameError::Message(_))), "{payload}");
        }
    }
}
