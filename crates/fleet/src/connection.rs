//! Two threads for a byte stream: one says, one listens.
//!
//! Used by both sides. It knows how messages become bytes, and nothing of what they mean, except that silence is a loss.

use std::{
    io::{self, Read, Write},
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
};

use fathom_model::units::Nanos;
use fathom_sys::clock;

use crate::{
    error::Loss,
    protocol::{self, Decoder, FrameError, HEARTBEAT_EVERY, Message, SILENCE_MAX},
};

/// What is read at once.
const CHUNK: usize = 64 << 10;

/// What the listening thread has to tell.
#[derive(Debug)]
pub(crate) enum Heard<M> {
    Message(M),
    /// The last that is heard.
    Lost(Loss),
}

/// When the other side was last heard.
#[derive(Debug, Clone)]
pub(crate) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(clock::now().0)))
    }

    fn beat(&self, now: Nanos) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// When the other side is to be taken for lost, unless it is heard before.
    pub(crate) fn deadline(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed)) + SILENCE_MAX
    }
}

/// Whether the speaking thread ends behind a message.
type IsLast = bool;

/// Where messages are put to be sent, in order.
#[derive(Debug)]
pub(crate) struct Outbox<M> {
    frames: Sender<(Vec<u8>, IsLast)>,
    of: PhantomData<fn(M)>,
}

impl<M> Clone for Outbox<M> {
    fn clone(&self) -> Self {
        Self { frames: self.frames.clone(), of: PhantomData }
    }
}

impl<M: Message> Outbox<M> {
    /// Puts a message behind the others; that the stream is broken is for the listening thread to tell.
    pub(crate) fn send(&self, message: &M) -> Result<(), FrameError> {
        let frame = protocol::write(message)?;
        // The receiver is gone when the stream is broken.
        let _ = self.frames.send((frame, message.is_last()));
        Ok(())
    }
}

/// Starts the thread that says what is put into the outbox, and a heartbeat when there is nothing to say.
///
/// It ends behind the last message, when all outboxes are gone, or when the stream breaks.
pub(crate) fn speak<M: Message>(mut output: impl Write + Send + 'static) -> (Outbox<M>, JoinHandle<()>) {
    let (frames, queue) = mpsc::channel();
    let thread = thread::spawn(move || {
        // The listening thread sees the same break, and tells it.
        let _ = say::<M>(&mut output, &queue);
    });
    (Outbox { frames, of: PhantomData }, thread)
}

fn say<M: Message>(output: &mut impl Write, queue: &Receiver<(Vec<u8>, IsLast)>) -> io::Result<()> {
    let heartbeat = protocol::write(&M::heartbeat()).expect("a heartbeat is short");
    loop {
        let is_last = match queue.recv_timeout(HEARTBEAT_EVERY.as_duration()) {
            Ok((frame, is_last)) => {
                output.write_all(&frame)?;
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

/// Starts the thread that listens, and tells each message with the time at which it came.
///
/// Heartbeats are not told; they and everything else move the pulse. After a loss nothing more is told.
pub(crate) fn listen<M: Message>(
    mut input: impl Read + Send + 'static,
    pulse: Pulse,
    mut tell: impl FnMut(Nanos, Heard<M>) + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let loss = hear(&mut input, &pulse, |at, message| tell(at, Heard::Message(message)));
        tell(clock::now(), Heard::Lost(loss));
    })
}

fn hear<M: Message>(input: &mut impl Read, pulse: &Pulse, mut tell: impl FnMut(Nanos, M)) -> Loss {
    let mut decoder = Decoder::new(M::MAX);
    let mut chunk = vec![0; CHUNK];
    loop {
        let n = match input.read(&mut chunk) {
            Ok(0) => return Loss::Closed,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // How a Unix socket says that it was closed while something was unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Loss::Closed,
            Err(error) => return Loss::Broken(error),
        };
        let at = clock::now();
        pulse.beat(at);
        decoder.push(&chunk[..n]);
        loop {
            let message = decoder.frame().and_then(|frame| frame.map(|frame| protocol::read(&frame)).transpose());
            match message {
                Ok(None) => break,
                Ok(Some(message)) if M::is_heartbeat(&message) => {}
                Ok(Some(message)) => tell(at, message),
                Err(error) => return Loss::Garbled(error),
            }
        }
    }
}
