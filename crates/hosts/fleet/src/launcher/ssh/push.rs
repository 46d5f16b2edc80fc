//! Copies this program to a host that lacks it, over the connection that then carries the agent.
//!
//! A shell script on the host says which program it has, and reads this one from its standard input. Nothing else is sent before it has
//! said that the copy is complete, so no reader on the way can take bytes of the protocol.

use std::{
    env, fs,
    io::{self, Read, Write as _},
    path::Path,
    time::Duration,
};

use fathom_model::reach::{PushedBinary, SshHost};

use super::{program, sudo};
use crate::{AgentStream, Disconnected, Error, Opening, ProcessEnd, launcher::END_TIMEOUT};

/// Marks the lines of the script among those of a login shell.
const MARK: &str = "fathom-push ";
/// The most that a login shell and the script may print.
const TEXT_MAX: usize = 64 << 10;
/// The wait for the next byte of the script, and for the host to take the next bytes of the program.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// This program, to be copied.
pub(super) struct OwnBinary {
    bytes: Vec<u8>,
    /// The beginning of its SHA-256 in hexadecimal digits: the name of a copy that is kept.
    digest: String,
}

impl OwnBinary {
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let cannot = |cause| Error::System { what: format!("read this program from {}", path.display()), cause };
        let bytes = fs::read(path).map_err(cannot)?;
        let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
        Ok(Self { digest: data_encoding::HEXLOWER.encode(&digest.as_ref()[..8]), bytes })
    }
}

/// Returns the script for the host, as one word of a login shell. It has no single quotes and no line breaks, which shells treat
/// differently.
pub(super) fn script(host: &SshHost, kept: PushedBinary, binary: &OwnBinary) -> String {
    let (sudo, program, digest) = (sudo(host), program(host).replace('\'', "\""), &binary.digest);
    let version = env!("CARGO_PKG_VERSION");
    let found = format!(
        "if [ \"$({program} --version 2>/dev/null)\" = \"fathom {version}\" ]; then echo {MARK}here; exec {sudo}{program} agent --stdio; fi; "
    );
    let ask = format!("echo {MARK}needs $(uname -s) $(uname -m); read -r n || exit 1; umask 077; ");
    let receive = "head -c \"$n\" >\"$f\" && [ $(wc -c <\"$f\") -eq \"$n\" ] && chmod 700 \"$f\"";
    let rest = match kept {
        PushedBinary::Remove => format!(
            "d=$(mktemp -d \"${{TMPDIR:-/tmp}}/fathom-push.XXXXXX\") || {{ echo {MARK}failed; exit 1; }}; f=\"$d/fathom\"; \
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
    let kept_one = match kept {
        PushedBinary::Remove => String::new(),
        PushedBinary::Keep => format!(
            "k=\"${{XDG_CACHE_HOME:-$HOME/.cache}}/fathom/pushed-{digest}\"; \
             if [ -x \"$k/fathom\" ]; then echo {MARK}here; exec {sudo}\"$k/fathom\" agent --stdio; fi; "
        ),
    };
    format!("exec sh -c '{found}{kept_one}{ask}{rest}'")
}

/// Talks to the script until the agent starts, and returns the stream to the agent.
pub(super) fn push(mut link: AgentStream, reached: &str, binary: &OwnBinary) -> Result<AgentStream, Error> {
    match converse(&mut link, reached, binary) {
        Ok(()) => Ok(AgentStream { opening: Opening::TextThenFrame, ..link }),
        Err(PushProblem::Refused(error)) => {
            drop(link.stream);
            Err(error)
        }
        Err(PushProblem::Ended { cause, printed, has_asked }) => {
            drop(link.stream);
            let (exit, stderr) = link.process.as_mut().map(|process| process.end(END_TIMEOUT)).unzip();
            let stderr = stderr.unwrap_or_default();
            if has_asked {
                return Err(copy_error(reached, binary, &stderr));
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

fn converse(link: &mut AgentStream, reached: &str, binary: &OwnBinary) -> Result<(), PushProblem> {
    let mut printed = String::new();
    let mut has_asked = false;
    let stream = &mut link.stream;
    let mut talk = || -> io::Result<Option<Error>> {
        stream.set_read_timeout(Some(STEP_TIMEOUT))?;
        stream.set_write_timeout(Some(STEP_TIMEOUT))?;
        loop {
            let line = next_line(&mut *stream, &mut printed)?;
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
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None).map(|()| None)
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
    Some(Error::Push {
        reached: reached.to_owned(),
        reason: format!("it is {system} on {machine}, and this program is for Linux on {here}"),
        hint: format!(
            "cargo build --release --target {machine}-unknown-linux-musl, then scp target/{machine}-unknown-linux-musl/release/fathom there, to its PATH"
        ),
    })
}

/// Returns the error of a copy that did not become complete.
fn copy_error(reached: &str, binary: &OwnBinary, stderr: &str) -> Error {
    let size = fathom_model::units::Bytes(u64::try_from(binary.bytes.len()).unwrap_or(u64::MAX));
    let last = stderr.trim().lines().last().unwrap_or("the connection ended");
    let hint = if stderr.contains("No space left") || stderr.contains("quota") {
        format!("free {size} there in /tmp, or with --push-binary=keep in ~/.cache")
    } else {
        "--push-binary=keep copies it to ~/.cache; program = \"…\" names one that is there".to_owned()
    };
    Error::Push { reached: reached.to_owned(), reason: last.to_owned(), hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_one_word_of_any_shell() {
        let binary = OwnBinary { bytes: Vec::new(), digest: "00ff".to_owned() };
        for kept in [PushedBinary::Remove, PushedBinary::Keep] {
            for program in [None, Some("/opt/two words/fathom"), Some("~/bin/fathom")] {
                let host = SshHost { program: program.map(str::to_owned), ..SshHost::default() };
                let script = script(&host, kept, &binary);
                let inner = script.strip_prefix("exec sh -c '").unwrap().strip_suffix('\'').unwrap();
                assert!(!inner.contains(['\'', '\n', '!']), "{inner}");
            }
        }
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
        assert!(unlike("b", "Darwin", env::consts::ARCH).is_some());
        assert!(unlike("b", "Linux", env::consts::ARCH).is_none());
    }
}
