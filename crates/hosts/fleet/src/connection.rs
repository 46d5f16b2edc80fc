//! A byte stream with two threads: one writes, one reads.
//!
//! Both sides use it. It converts between messages and bytes and does not know the meaning of messages, except that silence counts as a
//! disconnect.

use std::{
    io::{self, Read, Write},
    marker::PhantomData,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::JoinHandle,
};

use fathom_model::units::Nanos;
use fathom_sys::clock;

use crate::{
    error::Disconnected,
    launcher::{Liveness, Opening},
    protocol::{self, Decoder, FrameError, HEARTBEAT_EVERY, Message, Preamble, SILENCE_MAX},
    threads,
};

/// The size of one read.
const CHUNK: usize = 64 << 10;
/// The maximum number of messages in the queue: more than 4096 running tests send in 3 s.
const SEND_QUEUE_MAX: usize = 1 << 15;
/// The maximum number of bytes in the queue: the records of a thousand roles that end together, and less than a host would miss.
const SEND_QUEUE_BYTES_MAX: usize = 128 << 20;
/// A process that wakes up this much later than requested was suspended, for example by a paused machine or heavy swapping.
const SUSPEND_MIN: Nanos = Nanos::from_secs(1);

/// The extra time beyond its deadline for a message that has begun to arrive: a record of a megabyte at 75 kbit/s.
const ARRIVAL_MAX: Nanos = Nanos::from_secs(120);

/// An event from the reading thread.
#[derive(Debug)]
pub(crate) enum ReaderEvent<M> {
    Message(M),
    /// The last event.
    Disconnected(Disconnected),
}

/// The time of the last sign of life from the other side, and whether its silence counts.
#[derive(Debug, Clone)]
pub(crate) struct PeerActivity {
    last: Arc<AtomicU64>,
    is_amid_message: Arc<AtomicBool>,
    liveness: Liveness,
    /// Whether its silence counts: a login over `ssh` takes as long as it takes, so not before the first frame.
    has_begun: Arc<AtomicBool>,
    /// What the other side printed before its first frame.
    printed: Arc<Mutex<String>>,
}

impl PeerActivity {
    pub(crate) fn new(liveness: Liveness, opening: Opening) -> Self {
        Self {
            last: Arc::new(AtomicU64::new(clock::now().0)),
            is_amid_message: Arc::default(),
            liveness,
            has_begun: Arc::new(AtomicBool::new(opening == Opening::Frame)),
            printed: Arc::default(),
        }
    }

    /// The activity of a host behind this one: its head tells its end, and a message from it may be under way on the same stream.
    pub(crate) fn of_member(&self) -> Self {
        Self { liveness: Liveness::EndOfStream, ..self.clone() }
    }

    /// Returns what the other side printed, if its first frame has not come yet.
    pub(crate) fn printed(&self) -> String {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record_printed(&self, text: String) {
        *self.printed.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// Returns the effective deadline: later while a slow path is still carrying a message.
    pub(crate) fn deadline(&self, deadline: Nanos) -> Nanos {
        if self.is_amid_message.load(Ordering::Relaxed) { deadline + ARRIVAL_MAX } else { deadline }
    }

    /// Records a sign of life, or resets the deadline because this side could not listen.
    pub(crate) fn record_activity(&self, now: Nanos) {
        self.last.store(now.0, Ordering::Relaxed);
    }

    /// Returns whether the other side counts as disconnected.
    pub(crate) fn has_timed_out(&self, now: Nanos) -> bool {
        let deadline = Nanos(self.last.load(Ordering::Relaxed)) + SILENCE_MAX;
        self.liveness == Liveness::Heartbeats && now >= deadline && self.has_begun.load(Ordering::Relaxed)
    }
}

/// Detects that this process itself was suspended, so that it does not blame the other side for its own silence.
#[derive(Debug)]
pub(crate) struct SuspendDetector {
    /// The time by which this side intends to check again.
    due: Nanos,
}

impl SuspendDetector {
    pub(crate) fn new(now: Nanos, turn: Nanos) -> Self {
        Self { due: now + turn }
    }

    /// Returns whether it overslept by more than a second; the next check is due within `turn`.
    pub(crate) fn was_suspended(&mut self, now: Nanos, turn: Nanos) -> bool {
        let late = now.since(self.due);
        self.due = now + turn;
        late > SUSPEND_MIN
    }
}

/// Whether the writing thread ends after a message.
type IsLast = bool;

/// What waits in a queue. It is no bounded channel, because one for many messages has memory for all of them from the beginning.
#[derive(Debug, Default)]
struct QueueLoad {
    n_messages: AtomicUsize,
    n_bytes: AtomicUsize,
    is_full: AtomicBool,
}

impl QueueLoad {
    /// Counts a frame, unless the queue is full. A frame of any length fits into an empty queue.
    fn take(&self, len: usize) -> bool {
        let is_over = self.n_messages.load(Ordering::Relaxed) >= SEND_QUEUE_MAX
            || self.n_bytes.load(Ordering::Relaxed) >= SEND_QUEUE_BYTES_MAX;
        if is_over {
            self.is_full.store(true, Ordering::Relaxed);
            return false;
        }
        self.n_messages.fetch_add(1, Ordering::Relaxed);
        self.n_bytes.fetch_add(len, Ordering::Relaxed);
        true
    }

    fn release(&self, len: usize) {
        self.n_messages.fetch_sub(1, Ordering::Relaxed);
        self.n_bytes.fetch_sub(len, Ordering::Relaxed);
    }
}

/// A queue of messages to send, in order.
#[derive(Debug)]
pub(crate) struct SendQueue<M> {
    frames: Sender<(Vec<u8>, IsLast)>,
    load: Arc<QueueLoad>,
    of: PhantomData<fn(M)>,
}

impl<M> Clone for SendQueue<M> {
    fn clone(&self) -> Self {
        Self { frames: self.frames.clone(), load: Arc::clone(&self.load), of: PhantomData }
    }
}

impl<M: Message> SendQueue<M> {
    /// Queues a message; a broken stream is reported by the reading thread.
    pub(crate) fn send(&self, message: &M) -> Result<(), FrameError> {
        let frame = protocol::write(message)?;
        if self.load.take(frame.len()) {
            // The receiver is gone if the stream is broken.
            let _ = self.frames.send((frame, message.is_last()));
        }
        Ok(())
    }

    /// Returns whether a message was dropped because the other side does not read: it then counts as disconnected.
    pub(crate) fn is_full(&self) -> bool {
        self.load.is_full.load(Ordering::Relaxed)
    }
}

/// Starts the thread that writes queued messages, and heartbeats when the queue is empty.
///
/// It ends after the last message, when all senders are dropped, or when the stream breaks.
pub(crate) fn start_writer<M: Message>(
    mut output: impl Write + Send + 'static,
) -> io::Result<(SendQueue<M>, JoinHandle<()>)> {
    let (frames, queue) = mpsc::channel();
    let load: Arc<QueueLoad> = Arc::default();
    let queued = Arc::clone(&load);
    let thread = threads::start("writer", move || {
        // The reading thread sees the same error and reports it.
        let _ = write_messages::<M>(&mut output, &queue, &queued);
    })?;
    Ok((SendQueue { frames, load, of: PhantomData }, thread))
}

fn write_messages<M: Message>(
    output: &mut impl Write,
    queue: &Receiver<(Vec<u8>, IsLast)>,
    load: &QueueLoad,
) -> io::Result<()> {
    let heartbeat = protocol::write(&M::heartbeat()).expect("a heartbeat is short");
    loop {
        let is_last = match queue.recv_timeout(HEARTBEAT_EVERY.as_duration()) {
            Ok((frame, is_last)) => {
                output.write_all(&frame)?;
                load.release(frame.len());
                is_last
            }
            Err(RecvTimeoutError::Timeout) => {
                output.write_all(&heartbeat)?;
                false
            }
            Err(RecvTimeoutError::Disconnected) => true,
        };
        output.flush()?;
        if is_last {
            return Ok(());
        }
    }
}

/// Starts the thread that reads, and reports each message with its receive time.
///
/// Heartbeats are not reported; they and everything else count as signs of life. After a disconnect nothing more is reported.
pub(crate) fn start_reader<M: Message>(
    mut input: impl Read + Send + 'static,
    pulse: PeerActivity,
    opening: Opening,
    mut tell: impl FnMut(Nanos, ReaderEvent<M>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    threads::start("reader", move || {
        let loss = read_messages(&mut input, &pulse, opening, |at, message| tell(at, ReaderEvent::Message(message)));
        tell(clock::now(), ReaderEvent::Disconnected(loss));
    })
}

fn read_messages<M: Message>(
    input: &mut impl Read,
    pulse: &PeerActivity,
    opening: Opening,
    mut tell: impl FnMut(Nanos, M),
) -> Disconnected {
    let mut decoder = Decoder::new(M::MAX);
    let mut preamble = (opening == Opening::TextThenFrame).then(Preamble::default);
    let mut chunk = vec![0; CHUNK];
    loop {
        let n = match input.read(&mut chunk) {
            Ok(0) => return Disconnected::Closed,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // A Unix socket reports this if it was closed with unread data.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Disconnected::Closed,
            Err(error) => return Disconnected::Io(error),
        };
        let at = clock::now();
        pulse.record_activity(at);
        if let Some(text) = &mut preamble {
            let rest = match text.push(&chunk[..n]) {
                Ok(rest) => rest,
                Err(error) => return Disconnected::Protocol(error),
            };
            pulse.record_printed(if rest.is_some() { String::new() } else { text.text() });
            let Some(rest) = rest else { continue };
            pulse.has_begun.store(true, Ordering::Relaxed);
            decoder.push(&rest);
            preamble = None;
        } else {
            decoder.push(&chunk[..n]);
        }
        loop {
            let message = decoder.frame().and_then(|frame| frame.map(|frame| protocol::read(&frame)).transpose());
            match message {
                Ok(None) => {
                    pulse.is_amid_message.store(!decoder.is_empty(), Ordering::Relaxed);
                    break;
                }
                Ok(Some(message)) if M::is_heartbeat(&message) => {}
                Ok(Some(message)) => tell(at, message),
                Err(error) => return Disconnected::Protocol(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::protocol::{FromAgent, Hello, HostFacts, ToAgent};

    const TURN: Nanos = Nanos::from_millis(100);

    #[test]
    fn who_slept_for_more_than_a_second_does_not_blame_the_other_side() {
        let begin = Nanos::from_secs(10);
        let mut wakefulness = SuspendDetector::new(begin, TURN);
        let looks = [(100, false), (250, false), (1_300, false), (2_500, true), (2_600, false)];
        for (at, slept) in looks {
            let now = begin + Nanos::from_millis(at);
            assert_eq!(wakefulness.was_suspended(now, TURN), slept, "{at} ms");
        }
    }

    #[test]
    fn silence_is_a_loss_over_a_network_and_nothing_between_processes() {
        for (liveness, is_loss) in [(Liveness::Heartbeats, true), (Liveness::EndOfStream, false)] {
            let pulse = PeerActivity::new(liveness, Opening::Frame);
            let now = clock::now();
            pulse.record_activity(now);
            assert!(!pulse.has_timed_out(now + Nanos::from_millis(2_900)));
            assert_eq!(pulse.has_timed_out(now + SILENCE_MAX), is_loss, "{liveness:?}");
        }
    }

    #[test]
    fn silence_before_the_first_frame_is_a_login_that_takes_long() {
        let pulse = PeerActivity::new(Liveness::Heartbeats, Opening::TextThenFrame);
        let long = clock::now() + SILENCE_MAX * 4;
        assert!(!pulse.has_timed_out(long));
        let greeting = protocol::encode(protocol::VERSION, br#"{"hello":{"tool":"fathom 0.1.0"}}"#, 100).unwrap();
        let bytes = [b"Welcome\n", greeting.as_slice()].concat();
        let mut n_messages = 0;
        read_messages(&mut &bytes[..], &pulse, Opening::TextThenFrame, |_, _: FromAgent| n_messages += 1);
        assert_eq!((n_messages, pulse.printed()), (1, String::new()));
        assert!(pulse.has_timed_out(long));
    }

    #[test]
    fn a_message_that_has_begun_to_arrive_is_not_late() {
        let due = Nanos::from_secs(10);
        let long = protocol::write(&FromAgent::Bye).unwrap();
        for (n_arrived, expected) in [(0, due), (3, due + ARRIVAL_MAX), (long.len(), due)] {
            let pulse = PeerActivity::new(Liveness::Heartbeats, Opening::Frame);
            read_messages(&mut &long[..n_arrived], &pulse, Opening::Frame, |_, _: FromAgent| {});
            assert_eq!(pulse.deadline(due), expected, "{n_arrived} bytes of {}", long.len());
        }
    }

    #[test]
    fn an_outbox_that_nobody_empties_is_full_instead_of_growing() {
        let (near, _far) = UnixStream::pair().unwrap();
        let (outbox, _thread) = start_writer::<ToAgent>(near).unwrap();
        let many = |message: &ToAgent, outbox: &SendQueue<ToAgent>| {
            (0..100_000).take_while(|_| outbox.send(message).is_ok() && !outbox.is_full()).count()
        };
        let n_long = SEND_QUEUE_BYTES_MAX / 1_000_000;
        let n_taken = many(
            &ToAgent::Hello(Hello { tool: "x".repeat(1_000_000), facts: HostFacts::default(), run: None }),
            &outbox,
        );
        assert!((n_long..n_long + 4).contains(&n_taken), "{n_taken}");

        let (near, _far) = UnixStream::pair().unwrap();
        let (outbox, _thread) = start_writer::<ToAgent>(near).unwrap();
        let n_taken = many(&ToAgent::Counters, &outbox);
        assert!((SEND_QUEUE_MAX..2 * SEND_QUEUE_MAX).contains(&n_taken), "{n_taken}");
    }
}
