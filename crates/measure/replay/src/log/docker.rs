//! Lines of programs as Docker's driver json-file writes them: each in an object of JSON, with the stream and the time. A line of more than
//! 16 KiB is in several objects, of which only the last one has its end (`copier.go` and `jsonfilelog.go` of moby).

use std::{borrow::Cow, mem};

use serde::Deserialize;

use super::{
    counts::LineFate,
    lines::{LINE_MAX, Line},
};

/// A line of Docker's file.
#[derive(Deserialize)]
struct DockerLine<'a> {
    #[serde(borrow)]
    log: Cow<'a, str>,
    stream: Stream,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stream {
    Stdout,
    Stderr,
}

/// Whether the lines of a log stand in objects of Docker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Wrapping {
    #[default]
    Bare,
    Docker,
}

impl Wrapping {
    /// That of most of the lines.
    pub(super) fn of<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut n_docker, mut n_bare) = (0, 0);
        for line in lines {
            *(if docker_line(line).is_some() { &mut n_docker } else { &mut n_bare }) += 1;
        }
        if n_docker > n_bare { Self::Docker } else { Self::Bare }
    }

    /// Whether bytes of the program were replaced, which cannot be told any more: Docker writes those that are not UTF-8 as U+FFFD.
    pub(super) fn has_replaced(self, line: &[u8]) -> bool {
        self == Self::Docker && memchr::memmem::find(line, "\u{FFFD}".as_bytes()).is_some()
    }
}

fn docker_line(line: &[u8]) -> Option<DockerLine<'_>> {
    serde_json::from_slice(line).ok()
}

/// A line as the program wrote it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProgramLine<'a> {
    /// Its text without its end, or why it has none.
    pub(super) text: Result<Cow<'a, [u8]>, LineFate>,
    /// The lines of the file with a part of it, besides the last one.
    pub(super) n_parts: u64,
}

/// A line of which the end has not come.
#[derive(Debug, Default)]
struct BegunLine {
    text: Vec<u8>,
    is_too_long: bool,
    n_objects: u64,
}

impl BegunLine {
    fn add(&mut self, part: &str) {
        self.n_objects += 1;
        self.is_too_long |= self.text.len() + part.len() > LINE_MAX;
        if self.is_too_long {
            self.text = Vec::new();
        } else {
            self.text.extend_from_slice(part.as_bytes());
        }
    }

    fn finish(self) -> ProgramLine<'static> {
        let text = String::from_utf8(self.text).map(|text| without_end(Cow::Owned(text)));
        let text = text.expect("it was put together from texts");
        ProgramLine {
            text: if self.is_too_long { Err(LineFate::TooLong) } else { Ok(text) },
            n_parts: self.n_objects - 1,
        }
    }
}

/// Takes the lines of programs out of the lines of a file.
#[derive(Debug)]
pub(super) struct Unwrapper {
    wrapping: Wrapping,
    /// By the stream.
    begun: [Option<BegunLine>; 2],
}

impl Unwrapper {
    pub(super) fn new(wrapping: Wrapping) -> Self {
        Self { wrapping, begun: [None, None] }
    }

    /// The line that ends with this line of the file; `None` if it goes on in a later one.
    pub(super) fn take<'a>(&mut self, kind: Line, line: &'a [u8]) -> Option<ProgramLine<'a>> {
        let alone = |text| Some(ProgramLine { text, n_parts: 0 });
        match (kind, self.wrapping) {
            (Line::TooLong, _) => return alone(Err(LineFate::TooLong)),
            (Line::Whole, Wrapping::Bare) => return alone(Ok(Cow::Borrowed(line))),
            (Line::Whole, Wrapping::Docker) if line.is_empty() => return alone(Err(LineFate::Empty)),
            (Line::Whole, Wrapping::Docker) => {}
        }
        let Some(DockerLine { log, stream }) = docker_line(line) else { return alone(Err(LineFate::OtherFormat)) };
        let begun = &mut self.begun[stream as usize];
        let is_end = log.ends_with('\n');
        if is_end && begun.is_none() {
            return alone(Ok(without_end(log)));
        }
        begun.get_or_insert_default().add(&log);
        if is_end { begun.take().map(BegunLine::finish) } else { None }
    }

    /// The lines whose ends never came.
    pub(super) fn finish(&mut self) -> impl Iterator<Item = ProgramLine<'static>> + use<> {
        mem::take(&mut self.begun).into_iter().flatten().map(BegunLine::finish)
    }
}

fn without_end(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    let end = |text: &str| text.trim_end_matches(['\r', '\n']).len();
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text.as_bytes()[..end(text)]),
        Cow::Owned(mut text) => {
            text.truncate(end(&text));
            Cow::Owned(text.into_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(log: &str, stream: &str) -> Vec<u8> {
        let log = serde_json::to_string(log).unwrap();
        format!(r#"{{"log":{log},"stream":"{stream}","time":"2026-11-26T09:51:48.620001002Z"}}"#).into_bytes()
    }

    /// The lines of a program as text or with what became of them, and the number of their further parts.
    fn unwrapped(objects: &[Vec<u8>]) -> Vec<(Result<String, LineFate>, u64)> {
        let mut unwrapper = Unwrapper::new(Wrapping::Docker);
        let shown =
            |line: ProgramLine<'_>| (line.text.map(|text| String::from_utf8(text.into()).unwrap()), line.n_parts);
        let mut lines: Vec<_> =
            objects.iter().filter_map(|line| unwrapper.take(Line::Whole, line)).map(shown).collect();
        lines.extend(unwrapper.finish().map(shown));
        lines
    }

    #[test]
    fn the_line_of_a_program_is_taken_out_of_its_object() {
        let line = object("1.2.3.4 \"GET /\" ok\r\n", "stdout");
        let of_server = br#"{"log":"access","method":"GET","uri":"/"}"#;
        let lines = unwrapped(&[line.clone(), of_server.to_vec(), Vec::new()]);
        let wanted = [Ok(r#"1.2.3.4 "GET /" ok"#.to_owned()), Err(LineFate::OtherFormat), Err(LineFate::Empty)];
        assert_eq!(lines, wanted.map(|text| (text, 0)));
        assert_eq!(Wrapping::of([&line[..], &line, of_server].into_iter()), Wrapping::Docker);
        assert_eq!(Wrapping::of([&line[..], of_server].into_iter()), Wrapping::Bare);
    }

    #[test]
    fn a_line_in_several_objects_is_put_together_within_its_stream() {
        let lines = unwrapped(&[
            object("a1", "stdout"),
            object("b1", "stderr"),
            object("a2", "stdout"),
            object("b2\n", "stderr"),
            object("a3\n", "stdout"),
            object("c\n", "stdout"),
            object("d", "stdout"),
        ]);
        let wanted = [("b1b2", 1), ("a1a2a3", 2), ("c", 0), ("d", 0)];
        assert_eq!(lines, wanted.map(|(text, n)| (Ok(text.to_owned()), n)));
    }

    #[test]
    fn a_line_without_end_takes_no_more_room_than_any_other() {
        let part = object(&"x".repeat(LINE_MAX / 4), "stdout");
        let mut unwrapper = Unwrapper::new(Wrapping::Docker);
        for n in 1..=9 {
            assert_eq!(unwrapper.take(Line::Whole, &part), None);
            let begun = unwrapper.begun[0].as_ref().unwrap();
            assert_eq!((begun.text.len(), begun.is_too_long), (if n <= 4 { n * LINE_MAX / 4 } else { 0 }, n > 4));
        }
        let end =
            unwrapper.take(Line::Whole, &object("\n", "stdout").clone()).map(|line| (line.text.is_err(), line.n_parts));
        assert_eq!(end, Some((true, 9)));
    }
}
