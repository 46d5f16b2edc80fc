//! The messages between a controller and an agent.
//!
//! The module has plain messages in [`frame`]s, without I/O and without a clock. In a conversation both sides send a greeting, the
//! controller probes the clock, and for each trial it prepares roles, starts them at an instant of the agent's own clock, and collects
//! their outcomes. Between trials it may ask for the environment and the counters of the host. An agent may be the head of others: then
//! their messages travel through its stream, each with the place of its member. Each side sends a message at least twice a second, and considers the other disconnected after 3 s of silence.

pub mod clock_offset;
mod frame;

use fathom_engine::LiveProgress;
use std::{net::IpAddr, path::PathBuf};

use fathom_model::{
    Endpoints, Environment, HostRecord, PeerClock, Record, Role, plan::HostReach, record::CounterChanges, units::Nanos,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use frame::{Decoder, Frame, FrameError, HEADER_LEN, Preamble, encode};

use self::clock_offset::ClockOffset;
use crate::AgentFailure;

/// The major version of the protocol: the first byte of each frame.
pub const VERSION: u8 = 6;
/// The maximum size of a message to an agent: roles and heartbeats are small.
pub const TO_AGENT_MAX: usize = 1 << 20;
/// The maximum size of a message to a controller: records with many flows are large.
pub const FROM_AGENT_MAX: usize = 64 << 20;
/// The interval of heartbeats from an idle side: twice a second.
pub const HEARTBEAT_EVERY: Nanos = Nanos::from_millis(500);
/// The silence after which a side counts as disconnected: six heartbeat intervals, so that one late wake-up does no harm.
pub const SILENCE_MAX: Nanos = Nanos::from_secs(3);

/// The id of a prepared role on an agent, assigned by the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RoleId(pub u64);

/// A greeting. Its name `hello` and its field `tool` stay the same in all versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The program, such as `fathom 0.1.0`.
    pub tool: String,
    /// The facts about the host; the controller sends none about itself.
    #[serde(default)]
    pub facts: HostFacts,
    /// The run that wants the host for itself, in words for people; an agent on a host of another run refuses it. A controller sends it in a
    /// second greeting. Agents send none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

/// The facts that an agent reports about its host in the greeting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The host name, as in `/proc/sys/kernel/hostname`.
    pub hostname: Option<String>,
    /// Shows whether two hosts are the same machine, as in `/proc/sys/kernel/random/boot_id`.
    pub boot_id: Option<String>,
    /// The name of its monotonic clock: hosts with the same name read the same clock.
    pub clock: Option<String>,
    /// The number of cores that the agent may use.
    pub cores: Option<usize>,
    /// The run that has the host for itself, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// The addresses of its interfaces; absent if the kernel does not tell them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<IpAddr>>,
}

/// A host whose agent is started by the agent of its head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name in the run.
    pub name: String,
    /// How the head reaches it.
    pub reach: MemberReach,
    /// The run that wants the host for itself, as in a greeting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

/// How a head reaches a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberReach {
    /// A network namespace of the head's own machine, such as `/proc/PID/fd/N`.
    Namespace {
        /// The file of the namespace.
        net: PathBuf,
        /// How it is shown.
        reached: String,
    },
    /// As a controller reaches a host: ssh, a command, TLS or the head's own machine.
    Host(HostReach),
}

/// The place of a member in the list that its head was given.
pub type MemberIndex = u32;

/// A message from a controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToAgent {
    /// The first message.
    Hello(Hello),
    /// Requests the agent's clock.
    Clock {
        /// The controller's clock when the request was sent.
        t0: Nanos,
    },
    /// Requests the environment of the host.
    Environment,
    /// Requests the counters of the host as they are now.
    Counters,
    /// Requests the preparation of a role.
    Prepare {
        /// The id of the role.
        role_id: RoleId,
        /// The role.
        role: Box<Role>,
        /// Whether the host's counters are read while the role runs.
        watch: bool,
        /// Whether the first agent on the way keeps the outcome to merge it with others, and sends on a row of it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keep: bool,
    },
    /// Requests the agents of these hosts, which are reached through this one from now on.
    Lead {
        /// The hosts.
        members: Vec<Member>,
    },
    /// A message for the agent of a member.
    Member {
        /// The member.
        member: MemberIndex,
        /// The message.
        message: Box<ToAgent>,
    },
    /// Requests the offsets of the clocks of all members from that of this agent.
    Clocks,
    /// Requests the kept records of roles, each list merged to one record, and forgets all that are kept.
    Merge {
        /// The roles whose records become one.
        parts: Vec<Vec<RoleId>>,
    },
    /// Sets the start time.
    Start {
        /// The role.
        role_id: RoleId,
        /// The start, on the agent's own monotonic clock.
        at: Nanos,
        /// The clock of the host at the other end, if there is a single one.
        #[serde(default)]
        peer_clock: Option<PeerClock>,
    },
    /// Tells a responder that its initiator has finished.
    Finish {
        /// The role.
        role_id: RoleId,
    },
    /// Ends a role at once; its measurements are still reported.
    Abort {
        /// The role.
        role_id: RoleId,
    },
    /// A sign of life only.
    Heartbeat,
    /// The last message.
    Bye,
}

/// A message from an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FromAgent {
    /// The first message.
    Hello(Hello),
    /// The reply to a clock probe.
    Clock {
        /// The controller's clock when the request was sent.
        t0: Nanos,
        /// The agent's clock when the request arrived.
        t1: Nanos,
        /// The agent's clock when the reply was sent.
        t2: Nanos,
    },
    /// The environment of the host.
    Environment(Environment),
    /// The counters of the host, as changes to the last reply of this agent.
    Counters(CounterChanges),
    /// A role is ready to start.
    Ready {
        /// The role.
        role_id: RoleId,
        /// The information that the other side needs.
        endpoints: Endpoints,
    },
    /// The progress of a running role, at most twice a second.
    Interval {
        /// The role.
        role_id: RoleId,
        /// The progress for a live view.
        progress: RoleProgress,
    },
    /// The outcome of a role; the last message about it.
    Outcome {
        /// The role.
        role_id: RoleId,
        /// The outcome.
        outcome: Box<RoleOutcome>,
    },
    /// The counters of the host while a role waited for its start, if that took long; the failure of the role follows.
    Waited {
        /// The role.
        role_id: RoleId,
        /// The counters.
        host: Box<HostRecord>,
    },
    /// The failure of a role, or of another request if no role is given; the last message about it.
    Failed {
        /// The role.
        role_id: Option<RoleId>,
        /// The reason.
        failure: AgentFailure,
    },
    /// A message from the agent of a member.
    Member {
        /// The member.
        member: MemberIndex,
        /// The message.
        message: Box<FromAgent>,
    },
    /// The last message about a member: its agent could not be started, or is gone.
    Lost {
        /// The member.
        member: MemberIndex,
        /// The reason.
        failure: AgentFailure,
    },
    /// The clock of each member relative to that of this agent, on which all times of merged records are; absent for a member that is gone.
    Clocks(Vec<Option<ClockOffset>>),
    /// The merged records in the order of the request, on the clock of this agent; absent where nothing was kept.
    Merged(Vec<Option<Record>>),
    /// A sign of life only.
    Heartbeat,
    /// The last message.
    Bye,
}

/// The outcome of a role.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoleOutcome {
    /// The record of its test.
    pub record: Record,
    /// The host's counters, if they were watched.
    pub host: Option<HostRecord>,
    /// The data that could not be collected, as sentences.
    #[serde(rename = "losses")]
    pub unavailable: Vec<String>,
}

/// The progress of a running role: [`LiveProgress`] in transfer form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleProgress {
    /// The time since the start.
    pub elapsed_ns: Nanos,
    /// The growth of the first counter since the last update.
    pub growth: u64,
    /// The time since the last update.
    pub span_ns: Nanos,
    /// Whether the warm-up is over.
    pub measuring: bool,
    /// The p99 latency since the last update.
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

/// A message from one side to the other.
pub trait Message: Serialize + DeserializeOwned + Send + 'static {
    /// The maximum size of a message in bytes.
    const MAX: usize;

    /// The heartbeat message.
    fn heartbeat() -> Self;

    /// Returns whether this is a heartbeat.
    fn is_heartbeat(&self) -> bool;

    /// Returns whether this is the last message.
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

/// Encodes a message.
///
/// # Errors
/// If it is larger than its receiver accepts.
///
/// # Panics
/// Never: every message can be serialized.
pub fn write<M: Message>(message: &M) -> Result<Vec<u8>, FrameError> {
    let mut payload = serde_json::to_vec(message).expect("messages have string keys and finite numbers");
    // Some launchers carry whole lines only: `srun` keeps a line until it ends. To the reader this is white space of JSON.
    payload.push(b'\n');
    encode(VERSION, &payload, M::MAX)
}

/// Decodes a message from a frame.
///
/// # Errors
/// If the frame has a different version, or if its payload is not a valid message.
pub fn read<M: Message>(frame: &Frame) -> Result<M, FrameError> {
    if frame.version != VERSION {
        return Err(FrameError::Version { theirs: frame.version, tool: tool_of_hello(&frame.payload) });
    }
    serde_json::from_slice(&frame.payload).map_err(|cause| FrameError::Message(cause.to_string()))
}

/// Returns the program named in a greeting of any version.
fn tool_of_hello(payload: &[u8]) -> String {
    let greeting: Option<serde_json::Value> = serde_json::from_slice(payload).ok();
    let tool = greeting.as_ref().and_then(|greeting| greeting.pointer("/hello/tool")?.as_str());
    printable(tool.unwrap_or("another fathom"))
}

/// Returns the name of a program for an error: it comes from an untrusted peer.
pub(crate) fn printable(tool: &str) -> String {
    tool.chars().filter(|letter| !letter.is_control()).take(80).collect()
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
            ToAgent::Hello(Hello { tool: "fathom 0.1.0".to_owned(), facts: HostFacts::default(), run: None }),
            ToAgent::Clock { t0: Nanos(7) },
            ToAgent::Start { role_id: RoleId(3), at: Nanos::MAX, peer_clock: Some(PeerClock::default()) },
            ToAgent::Lead {
                members: vec![Member {
                    name: "c2".to_owned(),
                    reach: MemberReach::Host(HostReach::This),
                    run: Some("run x".to_owned()),
                }],
            },
            ToAgent::Member { member: 7, message: Box::new(ToAgent::Abort { role_id: RoleId(4) }) },
            ToAgent::Merge { parts: vec![vec![RoleId(1)], Vec::new()] },
            ToAgent::Heartbeat,
            ToAgent::Bye,
        ];
        let bytes: Vec<u8> = messages.iter().flat_map(|message| write(message).unwrap()).collect();
        let again: Vec<ToAgent> =
            frames(&bytes, TO_AGENT_MAX).unwrap().iter().map(|frame| read(frame).unwrap()).collect();
        assert_eq!(again, messages);
    }

    #[test]
    fn a_message_ends_a_line_so_that_launchers_carry_it_at_once() {
        assert!(write(&ToAgent::Heartbeat).unwrap().ends_with(b"\"heartbeat\"\n"));
        let frame = Frame { version: VERSION, payload: b"\"heartbeat\"".to_vec() };
        assert_eq!(read::<ToAgent>(&frame).unwrap(), ToAgent::Heartbeat, "older programs end no line");
    }

    #[test]
    fn a_message_longer_than_its_receiver_reads_is_not_written() {
        let long = ToAgent::Hello(Hello { tool: "x".repeat(TO_AGENT_MAX), facts: HostFacts::default(), run: None });
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
