//! One host from the controller's point of view.

use std::{net::Shutdown, os::unix::net::UnixStream, process::ExitStatus, thread::JoinHandle};

use fathom_model::units::Nanos;

use super::HostIndex;
use crate::{
    AgentStream, Disconnected, Error, HostLink, ProcessEnd,
    connection::{self, PeerActivity, ReaderEvent, SendQueue},
    launcher::{AgentProcess, END_TIMEOUT},
    protocol::{
        FrameError, FromAgent, Hello, HostFacts, MemberIndex, SILENCE_MAX, ToAgent, clock_offset::ClockOffset,
        printable,
    },
};

/// A connected host; dropping it says goodbye and ends the agent's process.
pub(super) struct ConnectedHost {
    pub(super) name: String,
    /// Its program, such as `fathom 0.1.0`; empty before its greeting.
    pub(super) tool: String,
    pub(super) reached: String,
    pub(super) facts: HostFacts,
    /// The run that wants the host for itself.
    run: Option<String>,
    pub(super) clock: ClockOffset,
    /// The time of the clock comparison, on our clock.
    pub(super) clock_compared_at: Nanos,
    pub(super) activity: PeerActivity,
    send_queue: SendQueue<ToAgent>,
    way: Way,
    lost: Option<DisconnectedHost>,
    is_given_up: bool,
}

/// How messages get to a host.
enum Way {
    /// Through a stream of its own.
    Stream { stream: UnixStream, writer: Option<JoinHandle<()>>, process: Option<AgentProcess> },
    /// Through the stream of its head.
    Behind { head: HostIndex, member: MemberIndex },
}

/// The state of a disconnected host.
struct DisconnectedHost {
    /// Taken by the first error that reports it.
    reason: Option<Disconnected>,
    exit: Option<ExitStatus>,
    stderr: String,
}

impl ConnectedHost {
    /// Starts the writing and reading threads, and sends the greeting.
    pub(super) fn greet(
        HostLink { name, stream: link, run }: HostLink,
        tool: &str,
        tell: impl FnMut(Nanos, ReaderEvent<FromAgent>) + Send + 'static,
    ) -> Result<Self, Error> {
        let AgentStream { stream, reached, process, liveness, opening } = link;
        let system = |cause| Error::System { what: format!("use the connection to host `{name}`"), cause };
        // An agent that does not read counts as disconnected, like a silent one.
        stream.set_write_timeout(Some(SILENCE_MAX.as_duration())).map_err(system)?;
        let pulse = PeerActivity::new(liveness, opening);
        let (outbox, speaker) = connection::start_writer(stream.try_clone().map_err(system)?).map_err(system)?;
        connection::start_reader(stream.try_clone().map_err(system)?, pulse.clone(), opening, tell).map_err(system)?;
        let host = Self {
            name,
            tool: String::new(),
            run,
            reached,
            facts: HostFacts::default(),
            clock: ClockOffset::default(),
            clock_compared_at: Nanos::ZERO,
            activity: pulse,
            send_queue: outbox,
            way: Way::Stream { stream, writer: Some(speaker), process },
            lost: None,
            is_given_up: false,
        };
        host.send(&ToAgent::Hello(Hello { tool: tool.to_owned(), facts: HostFacts::default(), run: None }))?;
        Ok(host)
    }

    /// A host behind this one, whose agent the head has been asked for.
    pub(super) fn behind(&self, (head, member): (HostIndex, MemberIndex), name: String, reached: String) -> Self {
        Self {
            name,
            tool: String::new(),
            run: None,
            reached,
            facts: HostFacts::default(),
            clock: ClockOffset::default(),
            clock_compared_at: Nanos::ZERO,
            activity: self.activity.of_member(),
            send_queue: self.send_queue.clone(),
            way: Way::Behind { head, member },
            lost: None,
            is_given_up: false,
        }
    }

    /// Takes the greeting of the agent. Another version of the program is given up: its tests may differ from ours.
    pub(super) fn meet(&mut self, Hello { tool, facts, .. }: Hello, ours: &str) -> Result<(), Error> {
        if tool != ours {
            self.disconnect(Disconnected::Closed);
            let (host, theirs_tool, ours_tool) = (self.name.clone(), printable(&tool), ours.to_owned());
            return Err(Error::OtherProgram { host, theirs_tool, ours_tool });
        }
        (self.tool, self.facts) = (tool, facts);
        Ok(())
    }

    /// The head of this host, if it has one.
    pub(super) fn head(&self) -> Option<HostIndex> {
        match self.way {
            Way::Stream { .. } => None,
            Way::Behind { head, .. } => Some(head),
        }
    }

    /// The place of this host behind its head.
    pub(super) fn member(&self) -> Option<MemberIndex> {
        match self.way {
            Way::Stream { .. } => None,
            Way::Behind { member, .. } => Some(member),
        }
    }

    /// Asks for the host, for the run that wants it. A refusal comes before the reply to any later request.
    pub(super) fn claim(&self, tool: &str) -> Result<(), Error> {
        let Some(run) = self.run.clone() else { return Ok(()) };
        self.send(&ToAgent::Hello(Hello { tool: tool.to_owned(), facts: HostFacts::default(), run: Some(run) }))
    }

    pub(super) fn send(&self, message: &ToAgent) -> Result<(), Error> {
        let garbled = |cause: FrameError| Error::System {
            what: format!("tell host `{}` its role", self.name),
            cause: std::io::Error::other(cause),
        };
        match self.way {
            Way::Stream { .. } => self.send_queue.send(message),
            Way::Behind { member, .. } => {
                self.send_queue.send(&ToAgent::Member { member, message: Box::new(message.clone()) })
            }
        }
        .map_err(garbled)
    }

    /// Says goodbye, unless the host is already disconnected.
    pub(super) fn send_bye(&self) {
        // A head says goodbye to its members.
        if !self.is_disconnected() && self.head().is_none() {
            // A stream that breaks now breaks at its end anyway.
            let _ = self.send(&ToAgent::Bye);
        }
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.lost.is_some()
    }

    /// Gives the host up: closes its stream, so that its agent exits, and records how it exited. Only the first disconnect counts.
    pub(super) fn disconnect(&mut self, loss: Disconnected) {
        // A hung agent does not exit on its own, and before the greeting there is no agent.
        let cause = if let Disconnected::Head { loss, .. } = &loss { loss } else { &loss };
        let is_hung = matches!(cause, Disconnected::HeartbeatTimeout)
            || self.tool.is_empty() && matches!(cause, Disconnected::StepTimeout(_));
        self.end(loss, if is_hung { Nanos::ZERO } else { END_TIMEOUT });
    }

    /// Gives up a host that has not greeted, because nobody wants it any more.
    pub(super) fn give_up(&mut self) {
        self.is_given_up = true;
        self.end(Disconnected::Closed, Nanos::ZERO);
    }

    fn end(&mut self, loss: Disconnected, patience: Nanos) {
        if self.is_disconnected() {
            return;
        }
        let Way::Stream { stream, process, .. } = &mut self.way else {
            // The head ends its agent, unless that is what the head has just told.
            if !matches!(loss, Disconnected::ToldByHead { .. } | Disconnected::WithHead { .. }) {
                let _ = self.send(&ToAgent::Bye);
            }
            self.lost = Some(DisconnectedHost { reason: Some(loss), exit: None, stderr: String::new() });
            return;
        };
        // The stream may already be closed.
        let _ = stream.shutdown(Shutdown::Both);
        let (exit, stderr) = process.as_mut().map(|process| process.end(patience)).unwrap_or_default();
        self.lost = Some(DisconnectedHost { reason: Some(loss), exit, stderr });
    }

    /// Returns the error of a disconnected host.
    pub(super) fn disconnect_error(&mut self) -> Error {
        if self.is_given_up {
            return Error::Interrupted;
        }
        let lost = self.lost.as_mut().expect("only a lost host is asked how");
        Error::Disconnected {
            host: self.name.clone(),
            loss: lost.reason.take().unwrap_or(Disconnected::Closed),
            exit: lost.exit,
            stderr: lost.stderr.clone(),
        }
    }

    /// Converts a disconnect before the host was ready: nothing was started, and the other end may not be an agent at all.
    pub(super) fn error_before_start(&self, error: Error, tool: &str) -> Error {
        match error {
            Error::Disconnected {
                host,
                loss: Disconnected::Protocol(FrameError::Version { theirs, tool: theirs_tool }),
                ..
            } => Error::Version { host, theirs, theirs_tool, ours_tool: tool.to_owned() },
            Error::Disconnected { host, loss, exit, stderr } => {
                let end = Box::new(ProcessEnd { exit, stderr, printed: self.activity.printed() });
                Error::NoAgent { host, loss, end }
            }
            other => other,
        }
    }
}

impl Drop for ConnectedHost {
    fn drop(&mut self) {
        let is_disconnected = self.is_disconnected();
        self.send_bye();
        let Way::Stream { stream, writer, process } = &mut self.way else { return };
        if !is_disconnected {
            if let Some(speaker) = writer.take() {
                let _ = speaker.join();
            }
            let _ = stream.shutdown(Shutdown::Write);
            // Waits for the agent to exit, or ends it.
            drop(process.take());
        }
        // Ends the reading thread.
        let _ = stream.shutdown(Shutdown::Read);
    }
}
