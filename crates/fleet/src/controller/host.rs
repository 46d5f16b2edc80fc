//! One host as its controller sees it.

use std::{net::Shutdown, os::unix::net::UnixStream, thread::JoinHandle};

use fathom_model::units::Nanos;

use crate::{
    Error, Link, Loss,
    connection::{self, Heard, Outbox, Pulse},
    launcher::{AgentProcess, END_PATIENCE},
    protocol::{Facts, FrameError, FromAgent, Greeting, SILENCE_MAX, ToAgent, offset::Offset},
};

/// A connected host; dropped, it says goodbye and ends the agent's process.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) reached: String,
    pub(super) facts: Facts,
    pub(super) clock: Offset,
    /// When the clocks were compared, on ours.
    pub(super) compared: Nanos,
    pub(super) pulse: Pulse,
    stream: UnixStream,
    outbox: Outbox<ToAgent>,
    speaker: Option<JoinHandle<()>>,
    process: Option<AgentProcess>,
    lost: Option<Lost>,
}

/// What is known of a host that was lost.
struct Lost {
    /// Taken by the first error that tells it.
    loss: Option<Loss>,
    exit: Option<String>,
    stderr: String,
}

impl Host {
    /// Starts the threads that speak and listen, and greets.
    pub(super) fn begin(
        name: &str,
        link: Link,
        tool: &str,
        tell: impl FnMut(Nanos, Heard<FromAgent>) + Send + 'static,
    ) -> Result<Self, Error> {
        let Link { stream, reached, process, liveness } = link;
        let system = |cause| Error::System { what: format!("use the connection to host `{name}`"), cause };
        // An agent that takes nothing in is as lost as one that says nothing.
        stream.set_write_timeout(Some(SILENCE_MAX.as_duration())).map_err(system)?;
        let pulse = Pulse::new(liveness);
        let (outbox, speaker) = connection::speak(stream.try_clone().map_err(system)?).map_err(system)?;
        connection::listen(stream.try_clone().map_err(system)?, pulse.clone(), tell).map_err(system)?;
        let host = Self {
            name: name.to_owned(),
            reached,
            facts: Facts::default(),
            clock: Offset::default(),
            compared: Nanos::ZERO,
            pulse,
            stream,
            outbox,
            speaker: Some(speaker),
            process,
            lost: None,
        };
        host.say(&ToAgent::Hello(Greeting { tool: tool.to_owned(), facts: Facts::default() }))?;
        Ok(host)
    }

    pub(super) fn say(&self, message: &ToAgent) -> Result<(), Error> {
        let garbled = |cause: FrameError| Error::System {
            what: format!("tell host `{}` its role", self.name),
            cause: std::io::Error::other(cause),
        };
        self.outbox.send(message).map_err(garbled)
    }

    /// Says goodbye, if there is anyone left to hear it.
    pub(super) fn part(&self) {
        if !self.is_lost() {
            // A stream that breaks now breaks at its end.
            let _ = self.say(&ToAgent::Bye);
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Gives the host up: closes its stream, so that its agent ends, and sees how it ended. Only the first loss counts.
    pub(super) fn lose(&mut self, loss: Loss) {
        if self.is_lost() {
            return;
        }
        // A stream that is closed already is what was wanted.
        let _ = self.stream.shutdown(Shutdown::Both);
        // An agent that hangs does not end by itself.
        let patience = if matches!(loss, Loss::Silent) { Nanos::ZERO } else { END_PATIENCE };
        let (exit, stderr) = self.process.as_mut().map(|process| process.end(patience)).unzip();
        self.lost = Some(Lost { loss: Some(loss), exit, stderr: stderr.unwrap_or_default() });
    }

    /// The error of a host that was given up.
    pub(super) fn lost(&mut self) -> Error {
        let lost = self.lost.as_mut().expect("only a lost host is asked how");
        Error::Lost {
            host: self.name.clone(),
            loss: lost.loss.take().unwrap_or(Loss::Closed),
            exit: lost.exit.clone(),
            stderr: lost.stderr.clone(),
        }
    }

    /// A loss before the greeting: nothing was started, and perhaps it is no agent at all.
    pub(super) fn not_greeted(error: Error, tool: &str) -> Error {
        match error {
            Error::Lost { host, loss: Loss::Garbled(FrameError::Version { theirs, tool: theirs_tool }), .. } => {
                Error::Version { host, theirs, theirs_tool, ours_tool: tool.to_owned() }
            }
            Error::Lost { host, loss, exit, stderr } => Error::NoAgent { host, loss, exit, stderr },
            other => other,
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.is_lost() {
            self.part();
            if let Some(speaker) = self.speaker.take() {
                let _ = speaker.join();
            }
            let _ = self.stream.shutdown(Shutdown::Write);
            // Waits for the agent's end, or ends it.
            drop(self.process.take());
        }
        // Ends the listening thread.
        let _ = self.stream.shutdown(Shutdown::Read);
    }
}
