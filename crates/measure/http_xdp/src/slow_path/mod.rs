//! Answers that the program cannot follow, followed in user space by the machine and the parser of the `http` crate, without I/O.
//!
//! The program gives the segments of such a connection to user space, from the first one of the answer on. When the answer has ended, the
//! program goes on with the connection; one that closes stays here until another one has taken its place.

mod frame;
#[cfg(test)]
mod tests;

use fathom_http::h1::{HeadReader, Method, Persistence, ResponseProgress, ResponseReader};
use fathom_model::units::Bytes;
pub(crate) use frame::ReceivedSegment;

use crate::machine::{Conditions, Connection, Event, HEAD_DUE, Head, Segment, State, Step, flag, is_after};

/// The longest head. Each connection of the slow path keeps as much of an incomplete one.
const HEAD_MAX: Bytes = Bytes(64 << 10);

/// A reader of the heads of answers to requests of this method.
pub(crate) fn heads(method: Method) -> HeadReader {
    HeadReader::new(method).bounded(HEAD_MAX)
}

/// What the bytes that a segment brings are to the answer.
enum Part {
    /// There are none, or they do not come next.
    Nothing,
    /// More of it follows.
    Partial,
    /// It ends with so many of them.
    End { used: u32, status: u16, is_last: bool },
    /// It ends with the connection, which this segment closes.
    EndsAtClose { status: u16 },
    /// They are no answer.
    Malformed,
}

/// Answers a segment of a connection that is away, which may be back in the program then.
pub(crate) fn follow(
    connection: &mut Connection,
    (reader, heads): (&mut ResponseReader, &mut HeadReader),
    (segment, payload): (&Segment, &[u8]),
    at: &Conditions,
) -> Step {
    connection.is_away = false;
    // Bytes that come early are not kept, since the reader needs them in order: the server sends them again.
    forget_early(connection);
    let next = bytes_in_order(connection, segment, payload);
    let part = read(connection, (reader, heads), segment, next);
    let mut taken = *segment;
    if let Some(next) = next {
        (taken.sequence, taken.length) = (connection.receive_next, length(next));
    }
    let mut step = step(connection, &part, &taken, at);
    if let Part::End { status, .. } | Part::EndsAtClose { status } = part
        && step.events.has(Event::Answered)
        && !(200..300).contains(&status)
    {
        step.events.add(Event::NotSuccess);
    }
    forget_early(connection);
    step.sack = (0, 0);
    connection.is_away = !is_back(connection);
    step
}

fn forget_early(connection: &mut Connection) {
    (connection.early_from, connection.early_to, connection.is_early_end) = (0, 0, false);
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a segment is short")
}

/// The program can go on: nothing of an answer has arrived, or there is no connection.
const fn is_back(connection: &Connection) -> bool {
    match connection.state {
        State::Closed | State::SynSent | State::Idle => true,
        State::Waiting => connection.left == HEAD_DUE,
        State::AnswerEnded | State::LastAck => false,
    }
}

/// The bytes that come next of an answer, maybe none; `None` if the machine will take no bytes of this segment.
fn bytes_in_order<'a>(connection: &Connection, segment: &Segment, payload: &'a [u8]) -> Option<&'a [u8]> {
    let behind = connection.receive_next.wrapping_sub(segment.sequence);
    let is_refused = connection.state != State::Waiting
        || segment.flags & (flag::RST | flag::SYN) != 0
        || is_after(segment.acknowledgement, connection.send_next)
        || is_after(segment.sequence, connection.receive_next)
        || (behind > 0 && connection.left == HEAD_DUE);
    // A FIN counts as a byte: what ends before it is old.
    let has_fin = segment.flags & flag::FIN != 0;
    if is_refused || behind >= segment.length + u32::from(has_fin) {
        return None;
    }
    payload.get(behind as usize..)
}

fn read(
    connection: &Connection,
    (reader, heads): (&mut ResponseReader, &mut HeadReader),
    segment: &Segment,
    next: Option<&[u8]>,
) -> Part {
    let Some(next) = next else { return Part::Nothing };
    if connection.left == HEAD_DUE {
        reader.reset();
    }
    let progress = if next.is_empty() { Ok(ResponseProgress::Partial) } else { reader.take(next, heads) };
    match progress {
        Err(_) => Part::Malformed,
        Ok(ResponseProgress::Complete { used, answer }) => Part::End {
            used: length(&next[..used]),
            status: answer.status,
            is_last: answer.persistence == Persistence::Closes,
        },
        Ok(ResponseProgress::Partial) => match reader.finish_at_close() {
            Some(answer) if segment.flags & flag::FIN != 0 => Part::EndsAtClose { status: answer.status },
            _ if next.is_empty() => Part::Nothing,
            _ => Part::Partial,
        },
    }
}

/// What the machine does, which is told how much of the answer is left.
fn step(connection: &mut Connection, part: &Part, segment: &Segment, at: &Conditions) -> Step {
    let (left, is_last) = match part {
        Part::Nothing => return connection.on_segment(segment, Head::Malformed, at),
        Part::EndsAtClose { .. } if segment.length == 0 => return connection.on_end_of_answer(at),
        Part::Malformed => {
            connection.left = HEAD_DUE;
            return connection.on_segment(segment, Head::Malformed, at);
        }
        // What is left is not known. It is more than this, since neither is the end.
        Part::Partial => (segment.length + 1, false),
        Part::End { used, is_last, .. } => (*used, *is_last),
        Part::EndsAtClose { .. } => (segment.length, true),
    };
    if connection.left != HEAD_DUE {
        (connection.left, connection.is_last) = (left, is_last);
    }
    connection.on_segment(segment, Head::Answer { length: left, is_success: true, closes: is_last }, at)
}
