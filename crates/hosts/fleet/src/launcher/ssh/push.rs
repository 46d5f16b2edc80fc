//! Copies this program to a host that lacks it, over the connection that then carries the agent.
//!
//! A shell script on the host says which program it has, and reads this one from its standard input. Nothing else is sent before it has
//! said that the copy is complete, so no reader on the way can take bytes of the protocol.

use std::{
    env, fs,
    io::{self, Read, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

use fathom_engine::{Stop, StopFlag};
use fathom_model::{
    reach::{PushedBinary, SshHost},
    units::Nanos,
};
use fathom_sys::clock;

use super::{COPY_FOLDER, KEPT_FOLDER, program, sudo};
use crate::{AgentStream, Disconnected, Error, Opening, ProcessEnd, launcher::END_TIMEOUT};

/// Marks the lines of the script among those of a login shell.
const MARK: &str = "fathom-push ";
/// The most that a login shell and the script may print.
const TEXT_MAX: usize = 64 << 10;
/// The wait for the next byte of the script, and for the host to take the next bytes of the program.
const STEP_TIMEOUT: Nanos = Nanos::from_secs(20);
/// The most bytes of one write.
const WRITE_MAX: usize = 64 << 10;
/// The interval for checking whether the copy is still wanted.
const STOP_CHECK_EVERY: Nanos = Nanos::from_millis(100);

/// This program, to be copied.
pub(super) struct OwnBinary {
    bytes: Vec<u8>,
    /// The beginning of its SHA-256 in hexadecimal digits: the name of a copy that is kept.
    digest: String,
    /// How long the copy stays.
    kept: PushedBinary,
}

impl OwnBinary {
    pub(super) fn read(path: &Path, kept: PushedBinary) -> Result<Self, Error> {
        let cannot = |cause| Error::System { what: format!("read this program from {}", path.display()), cause };
        let bytes = fs::read(path).map_err(cannot)?;
        let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
        Ok(Self { digest: data_encoding::HEXLOWER.encode(&digest.as_ref()[..8]), bytes, kept })
    }
}

/// Returns the script for the host, as one word of a login shell. It has no single quotes and no line breaks, which shells treat
/// differently.
pub(super) fn script(host: &SshHost, binary: &OwnBinary) -> String {
    let (sudo, program, digest) = (sudo(host), program(host).replace('\'', "\""), &binary.digest);
    let version = env!("CARGO_PKG_VERSION");
    let found = format!(
        "if [ \"$({program} --version 2>/dev/null)\" = \"fathom {version}\" ]; then echo {MARK}here; exec {sudo}{program} agent --stdio; fi; "
    );
    let ask = format!("echo {MARK}needs $(uname -s) $(uname -m); read -r n || exit 1; umask 077; ");
    let receive = "head -c \"$n\" >\"$f\" && [ $(wc -c <\"$f\") -eq \"$n\" ] && chmod 700 \"$f\"";
    let rest = match binary.kept {
        PushedBinary::Remove => format!(
            "d=$(mktemp -d \"${{TMPDIR:-/tmp}}/{COPY_FOLDER}XXXXXX\") || {{ echo {MARK}failed; exit 1; }}; f=\"$d/fathom\"; \
             trap \"rm -rf \\\"$d\\\"\" EXIT HUP INT TERM; \
             if {receive}; then echo {MARK}done; else echo {MARK}failed; exit 1; fi; \
             {sudo}\"$f\" agent --stdio --unlink"
        ),
        PushedBinary::Keep => format!(
            "f=\"$k/part.$$\"; trap \"rm -f \\\"$f\\\"\" EXIT HUP INT TERM; \
             if mkdir -p \"$k\" && {receive} && mv \"$f\" \"$k/fathom\"; then echo {MARK}done; else echo {MARK}failed; exit 1; fi; \
             exec {sudo}\"$k/fathom\" agent --stdio"
        ),
    };
    let kept_one = match binary.kept {
        PushedBinary::Remove => String::new(),
        PushedBinary::Keep => format!(
            "k=\"${{XDG_CACHE_HOME:-$HOME/.cache}}/{KEPT_FOLDER}{digest}\"; \
             if [ -x \"$k/fathom\" ]; then echo {MARK}here; exec {sudo}\"$k/fathom\" agent --stdio; fi; "
        ),
    };
    format!("exec sh -c '{found}{kept_one}{ask}{rest}'")
}

/// Talks to the script until the agent starts, and returns the stream to the agent.
pub(super) fn push(
    mut link: AgentStream,
    reached: &str,
    binary: &OwnBinary,
    stop: &StopFlag,
) -> Result<AgentStream, Error> {
    match converse(&mut link, reached, binary, stop) {
        Ok(()) => Ok(AgentStream { opening: Opening::TextThenFrame, ..link }),
        Err(_) if stop.state() != Stop::Continue => {
            link.give_up();
            Err(Error::Interrupted)
        }
        Err(PushProblem::Refused(error)) => {
            drop(link.stream);
            Err(error)
        }
        Err(PushProblem::Ended { cause, printed, has_asked }) => {
            drop(link.stream);
            let (exit, stderr) = link.process.as_mut().map(|process| process.end(END_TIMEOUT)).unwrap_or_default();
            if has_asked {
                return Err(copy_error(reached, binary, &stderr, cause.as_ref()));
            }
            let loss = cause.map_or(Disconnected::Closed, Disconnected::Io);
            let end = Box::new(ProcessEnd { exit, stderr, printed });
            Err(Error::NoAgent { host: reached.to_owned(), loss, end })
        }
    }
}

/// Why the conversation ended without an agent.
enum PushProblem {
    Refused(Error),
    /// The host closed the stream or said nothing more.
    Ended {
        cause: Option<io::Error>,
        printed: String,
        has_asked: bool,
    },
}

/// A stream on which each step has a time limit and can be stopped.
struct StepStream<'a> {
    stream: &'a UnixStream,
    stop: &'a StopFlag,
}

impl StepStream<'_> {
    /// Repeats a step that the stream refuses for now, until its time limit.
    fn step<T>(&mut self, mut attempt: impl FnMut(&mut &UnixStream) -> io::Result<T>) -> io::Result<T> {
        let deadline = clock::now() + STEP_TIMEOUT;
        loop {
            match attempt(&mut self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if self.stop.state() != Stop::Continue {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if clock::now() >= deadline {
                let what = format!("the host did nothing for {STEP_TIMEOUT}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
        }
    }
}

impl Read for StepStream<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.step(|stream| stream.read(bytes))
    }
}

impl io::Write for StepStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A long block would be written for as long as the host takes some of it, without a look at the flag.
        self.step(|stream| stream.write(&bytes[..bytes.len().min(WRITE_MAX)]))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn converse(link: &mut AgentStream, reached: &str, binary: &OwnBinary, stop: &StopFlag) -> Result<(), PushProblem> {
    let mut printed = String::new();
    let mut has_asked = false;
    let mut talk = || -> io::Result<Option<Error>> {
        link.stream.set_read_timeout(Some(STOP_CHECK_EVERY.as_duration()))?;
        link.stream.set_write_timeout(Some(STOP_CHECK_EVERY.as_duration()))?;
        let mut stream = StepStream { stream: &link.stream, stop };
        loop {
            let line = next_line(&mut stream, &mut printed)?;
            let mut words = line.split(' ');
            match words.next() {
                Some("here" | "done") => break,
                Some("needs") => {
                    let (system, machine) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                    if let Some(refusal) = unlike(reached, system, machine) {
                        return Ok(Some(refusal));
                    }
                    has_asked = true;
                    writeln!(stream, "{}", binary.bytes.len())?;
                    stream.write_all(&binary.bytes)?;
                }
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        link.stream.set_read_timeout(None)?;
        link.stream.set_write_timeout(None).map(|()| None)
    };
    match talk() {
        Ok(None) => Ok(()),
        Ok(Some(refusal)) => Err(PushProblem::Refused(refusal)),
        Err(cause) => {
            let is_end = matches!(cause.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe);
            Err(PushProblem::Ended { cause: (!is_end).then_some(cause), printed, has_asked })
        }
    }
}

/// Returns the next line of the script without its mark; other lines are collected in `printed`.
fn next_line(stream: &mut impl Read, printed: &mut String) -> io::Result<String> {
    let mut n_read = 0;
    loop {
        let mut line = Vec::new();
        // Byte by byte: the agent's first frame may follow at once, and belongs to the reader of frames.
        let mut byte = [0];
        while !line.ends_with(b"\n") {
            stream.read_exact(&mut byte)?;
            line.push(byte[0]);
            n_read += 1;
            if n_read > TEXT_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        // A shell may print its prompt on the same line.
        if let Some(at) = line.find(MARK) {
            return Ok(line[at + MARK.len()..].to_owned());
        }
        if printed.len() < 400 {
            printed.extend(line.chars().filter(|c| !c.is_control()).chain([' ']));
        }
    }
}

/// Returns the refusal for a host on which this program cannot run.
fn unlike(reached: &str, system: &str, machine: &str) -> Option<Error> {
    let here = env::consts::ARCH;
    let there = if machine == "arm64" { "aarch64" } else { machine };
    if system == "Linux" && there == here {
        return None;
    }
    let show = |word: &str| word.chars().filter(char::is_ascii_graphic).take(20).collect::<String>();
    let (system, machine) = (show(system), show(machine));
    let hint = if system == "Linux" {
        format!(
            "cargo build --release --target {machine}-unknown-linux-musl, then scp target/{machine}-unknown-linux-musl/release/fathom there, to its PATH"
        )
    } else {
        "take a host with Linux; fathom runs on no other system".to_owned()
    };
    let reason = format!("it is {system} on {machine}, and this program is for Linux on {here}");
    Some(Error::Push { reached: reached.to_owned(), reason, hint })
}

/// Returns the error of a copy that did not become complete.
fn copy_error(reached: &str, binary: &OwnBinary, stderr: &str, cause: Option<&io::Error>) -> Error {
    let size = fathom_model::units::Bytes(u64::try_from(binary.bytes.len()).unwrap_or(u64::MAX));
    let of_stream = cause.map_or_else(|| "the connection ended".to_owned(), io::Error::to_string);
    let last = stderr.trim().lines().last().map_or(of_stream, str::to_owned);
    let is_full = ["No space left", "quota", "File size limit"].iter().any(|words| stderr.contains(words));
    let hint = match (binary.kept, is_full) {
        (PushedBinary::Remove, true) => format!("free {size} there in /tmp; --push-binary=keep copies it to ~/.cache"),
        (PushedBinary::Keep, true) => format!("free {size} there in ~/.cache; --push-binary copies it to /tmp"),
        (PushedBinary::Remove, false) => {
            "--push-binary=keep copies it to ~/.cache; program = \"…\" names one that is there".to_owned()
        }
        (PushedBinary::Keep, false) => {
            "--push-binary copies it to /tmp; program = \"…\" names one that is there".to_owned()
        }
    };
    Error::Push { reached: reached.to_owned(), reason: last, hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_one_word_of_any_shell() {
        for kept in [PushedBinary::Remove, PushedBinary::Keep] {
            let binary = OwnBinary { bytes: Vec::new(), digest: "00ff".to_owned(), kept };
            for program in [None, Some("/opt/two words/fathom"), Some("~/bin/fathom"), Some("/opt/#1 (a);b/fathom")] {
                let host =
                    SshHost { address: "b".to_owned(), program: program.map(str::to_owned), ..SshHost::default() };
                assert!(host.check_words().is_ok());
                let script = script(&host, &binary);
                let inner = script.strip_prefix("exec sh -c '").unwrap().strip_suffix('\'').unwrap();
                assert!(!inner.contains(['\'', '\n', '!']), "{inner}");
            }
        }
    }

    #[test]
    fn a_host_that_takes_nothing_is_told_from_a_connection_that_ended() {
        let binary = OwnBinary { bytes: vec![0; 10], digest: "00ff".to_owned(), kept: PushedBinary::Remove };
        let slow = io::Error::new(io::ErrorKind::TimedOut, "the host did nothing for 20 s");
        assert!(copy_error("b", &binary, "", Some(&slow)).to_string().ends_with("the host did nothing for 20 s"));
        assert!(copy_error("b", &binary, "", None).to_string().ends_with("the connection ended"));
    }

    #[test]
    fn a_copy_that_is_stopped_ends_at_once() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut link = AgentStream {
            stream: near,
            reached: "b".to_owned(),
            process: None,
            liveness: crate::Liveness::Heartbeats,
            opening: Opening::Frame,
        };
        // A host that asks for the program, and then reads none of it.
        (&far).write_all(format!("{MARK}needs Linux {}\n", env::consts::ARCH).as_bytes()).unwrap();
        let binary = OwnBinary { bytes: vec![0; 8 << 20], digest: "00ff".to_owned(), kept: PushedBinary::Remove };
        let stop = StopFlag::default();
        stop.abort();
        let begin = clock::now();
        let problem = converse(&mut link, "b", &binary, &stop).unwrap_err();
        assert!(matches!(problem, PushProblem::Ended { has_asked: true, .. }));
        assert!(clock::now() - begin < Nanos::from_secs(10), "before its time limit");
    }

    #[test]
    fn lines_of_a_login_shell_are_skipped_and_kept_for_an_error() {
        let mut printed = String::new();
        let mut stream = &b"Welcome\r\nnews\n$ fathom-push needs Linux x86_64\nrest"[..];
        assert_eq!(next_line(&mut stream, &mut printed).unwrap(), "needs Linux x86_64");
        assert_eq!((printed.as_str(), stream), ("Welcome news ", &b"rest"[..]));
        assert!(next_line(&mut stream, &mut printed).is_err());
    }

    #[test]
    fn a_host_of_another_kind_is_refused_with_a_command() {
        let error = unlike("b", "Linux", "riscv64").unwrap();
        assert!(error.to_string().contains("it is Linux on riscv64"), "{error}");
        assert!(error.hint().unwrap().contains("--target riscv64-unknown-linux-musl"));
        let darwin = unlike("b", "Darwin", env::consts::ARCH).unwrap();
        assert!(!darwin.hint().unwrap().contains("linux-musl"), "{darwin}");
        assert!(unlike("b", "Linux", env::consts::ARCH).is_none());
    }
}
