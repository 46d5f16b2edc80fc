//! Sends a stream: the same payload repeatedly, or a file once.

use std::{fs::File, io::Read as _, sync::Arc};

use fathom_model::units::Nanos;
use fathom_sys::{
    Error, Result, clock,
    socket::{
        self, Socket, Wait,
        zero_copy::{self, FilePart, MemoryFile, ZeroCopyCompletion, ZeroCopyResult},
    },
};

use super::{ByteSchedule, StreamControl};
use crate::{connection_setup::BLOCKING_TIMEOUT, payload::Payload};

/// How long the last completions of zero-copy sends are awaited; acknowledgements that take longer are not counted.
const COMPLETIONS_MAX: Nanos = Nanos::from_secs(1);

/// The data of a stream, shared by all flows of a side.
#[derive(Debug)]
pub enum SendSource {
    /// Copied by the kernel on every call.
    Buffer(Payload),
    /// Never copied: `sendfile` passes on the pages of a file in memory.
    MemoryFile(MemoryFile),
    /// Not copied if the path allows it: the program's own pages (`MSG_ZEROCOPY`).
    ZeroCopy(Payload),
    /// A file on disk from its current position to its end, for one flow: read into a buffer, or sent by `sendfile`.
    FileOnDisk(Arc<File>, FileReadMethod),
}

/// How a file on disk gets to the socket.
#[derive(Debug)]
pub enum FileReadMethod {
    /// Through a buffer, in blocks of this length.
    Copied(usize),
    /// By `sendfile`, in blocks of this length.
    Sendfile(usize),
}

/// How one flow sends from the source.
#[derive(Debug)]
pub enum SendMethod<'a> {
    Copy(&'a [u8]),
    MemoryFile { file: &'a MemoryFile, offset: usize },
    ZeroCopy(ZeroCopySender<'a>),
    Disk(FileReader<'a>),
    Sendfile { file: &'a File, has_ended: bool },
}

/// A file that is read block by block, with the unsent rest of the last block.
#[derive(Debug)]
pub struct FileReader<'a> {
    file: &'a File,
    block: Vec<u8>,
    rest: std::ops::Range<usize>,
    has_ended: bool,
}

/// Zero-copy sends and their completions.
#[derive(Debug)]
pub struct ZeroCopySender<'a> {
    bytes: &'a [u8],
    /// Sends whose pages the kernel still holds.
    n_pending: u64,
    n_completed: u64,
    n_copied: u64,
}

impl SendSource {
    fn length(&self) -> usize {
        match self {
            Self::Buffer(payload) | Self::ZeroCopy(payload) => payload.bytes().len(),
            Self::MemoryFile(file) => file.length(),
            Self::FileOnDisk(_, FileReadMethod::Copied(length) | FileReadMethod::Sendfile(length)) => *length,
        }
    }

    /// Prepares a connected socket for this way of sending.
    ///
    /// # Errors
    /// `setsockopt(SO_ZEROCOPY)`, if this kernel or this protocol does not support zero copy.
    pub fn prepare(&self, socket: &Socket) -> Result<SendMethod<'_>> {
        Ok(match self {
            Self::Buffer(payload) => SendMethod::Copy(payload.bytes()),
            Self::MemoryFile(file) => SendMethod::MemoryFile { file, offset: 0 },
            Self::ZeroCopy(payload) => {
                zero_copy::allow_zerocopy(socket)?;
                SendMethod::ZeroCopy(ZeroCopySender {
                    bytes: payload.bytes(),
                    n_pending: 0,
                    n_completed: 0,
                    n_copied: 0,
                })
            }
            Self::FileOnDisk(file, FileReadMethod::Sendfile(_)) => SendMethod::Sendfile { file, has_ended: false },
            Self::FileOnDisk(file, FileReadMethod::Copied(length)) => {
                SendMethod::Disk(FileReader { file, block: vec![0; *length], rest: 0..0, has_ended: false })
            }
        })
    }
}

impl SendMethod<'_> {
    /// Hands at most `at_most` bytes to the kernel; `None` means not now.
    fn send(&mut self, socket: &Socket, at_most: usize) -> Result<Option<usize>> {
        match self {
            Self::Copy(bytes) => socket::send(socket, &bytes[..at_most.min(bytes.len())], Wait::Block),
            Self::MemoryFile { file, offset } => {
                let length = (file.length() - *offset).min(at_most);
                let sent = file.send(socket, FilePart { offset: *offset, length })?;
                *offset = (*offset + sent.unwrap_or(0)) % file.length();
                Ok(sent)
            }
            Self::ZeroCopy(uncopying) => uncopying.send(socket, at_most),
            Self::Disk(reading) => reading.send(socket, at_most),
            Self::Sendfile { file, has_ended } => {
                let sent = zero_copy::send_next(socket, file, at_most)?;
                *has_ended = sent == Some(0);
                Ok(sent)
            }
        }
    }

    /// Whether the data has ended; only a file ends.
    fn has_ended(&self) -> bool {
        match self {
            Self::Copy(_) | Self::MemoryFile { .. } | Self::ZeroCopy(_) => false,
            Self::Disk(FileReader { has_ended, .. }) | Self::Sendfile { has_ended, .. } => *has_ended,
        }
    }
}

impl FileReader<'_> {
    fn send(&mut self, socket: &Socket, at_most: usize) -> Result<Option<usize>> {
        if self.rest.is_empty() {
            let count = self.file.read(&mut self.block).map_err(|error| Error::new(super::READ, error))?;
            self.rest = 0..count;
            self.has_ended = count == 0;
            if self.has_ended {
                return Ok(Some(0));
            }
        }
        let end = self.rest.end.min(self.rest.start.saturating_add(at_most));
        let sent = socket::send(socket, &self.block[self.rest.start..end], Wait::Block)?;
        self.rest.start += sent.unwrap_or(0);
        Ok(sent)
    }
}

impl ZeroCopySender<'_> {
    fn send(&mut self, socket: &Socket, at_most: usize) -> Result<Option<usize>> {
        let bytes = &self.bytes[..at_most.min(self.bytes.len())];
        let outcome = zero_copy::send_uncopied(socket, bytes)?;
        if let ZeroCopyResult::Sent(_) = outcome {
            self.n_pending += 1;
        }
        self.read_completions(socket)?;
        match outcome {
            ZeroCopyResult::Sent(count) => Ok(Some(count)),
            ZeroCopyResult::WouldBlock => Ok(None),
            ZeroCopyResult::NoBuffers => {
                zero_copy::wait_for_completion(socket, BLOCKING_TIMEOUT)?;
                self.read_completions(socket)?;
                Ok(None)
            }
        }
    }

    /// Reads the available completions.
    fn read_completions(&mut self, socket: &Socket) -> Result<()> {
        while let Some(ZeroCopyCompletion { n_sends, was_copied }) = zero_copy::completion(socket)? {
            let n_sends = u64::from(n_sends);
            self.n_pending = self.n_pending.saturating_sub(n_sends);
            self.n_completed += n_sends;
            self.n_copied += if was_copied { n_sends } else { 0 };
        }
        Ok(())
    }

    /// Waits for the outstanding completions, which depend on the peer's acknowledgements.
    fn wait_for_completions(&mut self, socket: &Socket) -> Result<()> {
        let deadline = clock::now() + COMPLETIONS_MAX;
        while self.n_pending > 0 && clock::now() < deadline {
            zero_copy::wait_for_completion(socket, BLOCKING_TIMEOUT)?;
            self.read_completions(socket)?;
        }
        Ok(())
    }
}

/// The number of completed zero-copy sends, and the number of those that the kernel copied after all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZeroCopyCounts {
    pub n_completed: u64,
    pub n_copied: u64,
}

impl ZeroCopyCounts {
    /// The sum of two flows.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self { n_completed: self.n_completed + other.n_completed, n_copied: self.n_copied + other.n_copied }
    }
}

/// One flow that sends.
#[derive(Debug)]
pub struct StreamSender<'a> {
    socket: &'a Socket,
    method: SendMethod<'a>,
    length: usize,
    /// When bytes are due; `None` means at once.
    pub schedule: Option<ByteSchedule>,
    /// The bytes that may still be sent; `None` means no limit but time.
    pub budget: Option<u64>,
}

impl<'a> StreamSender<'a> {
    /// Creates a sender that passes all of `source` in each call, as fast as the socket takes it and without an end of its own.
    ///
    /// The socket blocks, with the timeout of `socket::set_timeout`.
    ///
    /// # Errors
    /// As [`SendSource::prepare`].
    pub fn new(socket: &'a Socket, source: &'a SendSource) -> Result<Self> {
        Ok(Self { socket, method: source.prepare(socket)?, length: source.length(), schedule: None, budget: None })
    }

    /// Sends until the control ends it, the budget is spent or the file ends.
    ///
    /// # Errors
    /// The call that failed: the peer reset the connection or has gone.
    pub fn run(&mut self, account: &impl StreamControl) -> Result<()> {
        while !account.is_over() && !self.method.has_ended() {
            let length = self.next_length();
            if length == 0 {
                break;
            }
            if !self.wait_until_due(account) {
                continue;
            }
            let Some(sent) = self.method.send(self.socket, length)? else {
                account.on_wait();
                continue;
            };
            let sent = u64::try_from(sent).unwrap_or(u64::MAX);
            account.count(sent);
            if let Some(pace) = &mut self.schedule {
                pace.advance(sent);
            }
            if let Some(budget) = &mut self.budget {
                *budget -= sent;
            }
        }
        Ok(())
    }

    /// Whether all of a file has been sent.
    pub fn has_sent_all(&self) -> bool {
        self.method.has_ended()
    }

    fn next_length(&self) -> usize {
        let budget = self.budget.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        self.length.min(budget)
    }

    /// Waits until the next bytes are due, for at most one blocking timeout.
    fn wait_until_due(&mut self, account: &impl StreamControl) -> bool {
        let Some(pace) = &mut self.schedule else { return true };
        let now = clock::now();
        let due = pace.next_due(now);
        if due <= now {
            return true;
        }
        let is_soon = due - now <= BLOCKING_TIMEOUT;
        clock::sleep_until(if is_soon { due } else { now + BLOCKING_TIMEOUT });
        account.on_wait();
        is_soon
    }

    /// The completions of zero-copy sends, after waiting for the outstanding ones; `None` for other ways of sending.
    ///
    /// # Errors
    /// `recvmsg(MSG_ERRQUEUE)` or `poll`.
    pub fn zero_copy_counts(&mut self) -> Result<Option<ZeroCopyCounts>> {
        let SendMethod::ZeroCopy(uncopying) = &mut self.method else { return Ok(None) };
        uncopying.wait_for_completions(self.socket)?;
        Ok(Some(ZeroCopyCounts { n_completed: uncopying.n_completed, n_copied: uncopying.n_copied }))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Shutdown, thread};

    use fathom_model::units::{BitsPerSec, Bytes};

    use super::*;
    use crate::stream::{
        ReceiveSink, StreamReceiver,
        tests::{ByteLimit, pair},
    };

    const LENGTH: usize = 40_000;

    fn sources() -> [SendSource; 3] {
        [
            SendSource::Buffer(Payload::random(LENGTH, 1)),
            SendSource::MemoryFile(MemoryFile::of(Payload::random(LENGTH, 1).bytes()).unwrap()),
            SendSource::ZeroCopy(Payload::random(LENGTH, 1)),
        ]
    }

    #[test]
    fn every_way_of_sending_keeps_to_its_budget_and_sends_the_payload_again_and_again() {
        const BUDGET: usize = 100_001;
        for source in sources() {
            let (near, far) = pair();
            let got = thread::scope(|scope| {
                let receiver = scope.spawn(|| {
                    let (mut room, mut got) = (vec![0; 7_777], Vec::new());
                    while let Some(n) = socket::recv(&far, &mut room, Wait::Block).unwrap().filter(|n| *n > 0) {
                        got.extend_from_slice(&room[..n]);
                    }
                    got
                });
                let account = ByteLimit::at(u64::MAX);
                let mut sending = StreamSender::new(&near, &source).unwrap();
                sending.budget = Some(BUDGET.try_into().unwrap());
                sending.run(&account).unwrap();
                assert_eq!(account.counted.get(), 100_001);
                near.shutdown(Shutdown::Write).unwrap();
                let uncopied = sending.zero_copy_counts().unwrap();
                assert_eq!(uncopied.is_some(), matches!(source, SendSource::ZeroCopy(_)));
                let all_completed =
                    |sends: ZeroCopyCounts| sends.n_completed >= 3 && sends.n_copied == sends.n_completed;
                assert!(uncopied.is_none_or(all_completed), "{uncopied:?}");
                receiver.join().unwrap()
            });
            let payload = Payload::random(LENGTH, 1);
            assert_eq!(got.len(), BUDGET);
            if matches!(source, SendSource::MemoryFile(_)) {
                // The memory file is sent to its end and then again from the start, because a partial send may stop anywhere.
                assert!(got.chunks(LENGTH).all(|chunk| chunk == &payload.bytes()[..chunk.len()]));
            }
        }
    }

    #[test]
    fn a_file_on_a_disk_is_sent_once_and_written_as_it_was() {
        let payload = Payload::random(100_001, 7);
        let from = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(from.path(), payload.bytes()).unwrap();
        for read in [FileReadMethod::Copied(LENGTH), FileReadMethod::Sendfile(LENGTH)] {
            let (near, far) = pair();
            let to = tempfile::NamedTempFile::new().unwrap();
            let into = Arc::new(zero_copy::open_sink(to.path()).unwrap());
            thread::scope(|scope| {
                let receiver = scope.spawn(move || {
                    let inlet = ReceiveSink::Disk(Payload::random(7_777, 1), into);
                    StreamReceiver::new(&far, inlet).run(&ByteLimit::at(u64::MAX)).unwrap()
                });
                let source = SendSource::FileOnDisk(Arc::new(zero_copy::open_source(from.path()).unwrap()), read);
                let mut sending = StreamSender::new(&near, &source).unwrap();
                let account = ByteLimit::at(u64::MAX);
                // Blocks are cut by the budget and continue where they were cut.
                sending.budget = Some(50_000);
                sending.run(&account).unwrap();
                assert!(!sending.has_sent_all() && account.counted.get() == 50_000);
                sending.budget = None;
                sending.run(&account).unwrap();
                assert!(sending.has_sent_all() && account.counted.get() == 100_001);
                near.shutdown(Shutdown::Write).unwrap();
                receiver.join().unwrap();
            });
            assert!(std::fs::read(to.path()).unwrap() == payload.bytes());
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_from_a_connection_that_broke() {
        let (near, far) = pair();
        let source = SendSource::FileOnDisk(
            Arc::new(zero_copy::open_source("/".as_ref()).unwrap()),
            FileReadMethod::Copied(LENGTH),
        );
        let error = StreamSender::new(&near, &source).unwrap().run(&ByteLimit::at(u64::MAX)).unwrap_err();
        assert!(crate::stream::is_file_error(&error), "{error}");
        drop(far);
        let source = SendSource::Buffer(Payload::random(LENGTH, 1));
        let error = StreamSender::new(&near, &source).unwrap().run(&ByteLimit::at(u64::MAX)).unwrap_err();
        assert!(!crate::stream::is_file_error(&error), "{error}");
    }

    #[test]
    fn a_paced_stream_keeps_its_rate_and_is_told_to_stop_while_it_waits() {
        let (near, far) = pair();
        let source = SendSource::Buffer(Payload::random(1_000, 1));
        let begin = clock::now();
        let mut sending = StreamSender::new(&near, &source).unwrap();
        sending.schedule = ByteSchedule::new(BitsPerSec::new(1.6e6).unwrap(), begin);
        let account = ByteLimit::at(20_001);
        sending.run(&account).unwrap();
        // The first of 21 kB is sent at once and the last after 20 kB at 200 kB/s.
        assert!(clock::now() - begin >= Nanos::from_millis(100), "{}", clock::now() - begin);
        assert_eq!(account.counted.get(), 21_000);
        sending.schedule = ByteSchedule::new(BitsPerSec::new(8.0).unwrap(), clock::now());
        let brief = ByteLimit { deadline: clock::now() + Nanos::from_millis(120), ..ByteLimit::at(u64::MAX) };
        sending.run(&brief).unwrap();
        assert_eq!(brief.counted.get(), 1_000, "the next 1000 bytes are due in a thousand seconds");
        drop(far);
    }

    #[test]
    fn a_peer_that_reads_nothing_does_not_keep_the_sender_from_its_end() {
        for source in sources() {
            let (near, _far) = pair();
            let account = ByteLimit { deadline: clock::now() + Nanos::from_millis(200), ..ByteLimit::at(u64::MAX) };
            StreamSender::new(&near, &source).unwrap().run(&account).unwrap();
            assert!(clock::now() - account.deadline < Nanos::from_millis(500));
        }
    }

    #[test]
    fn a_peer_that_goes_is_an_error_that_names_the_call() {
        for (source, call) in sources().into_iter().zip(["send", "sendfile", "send(MSG_ZEROCOPY)"]) {
            let (near, far) = pair();
            drop(far);
            let error = StreamSender::new(&near, &source).unwrap().run(&ByteLimit::at(u64::MAX)).unwrap_err();
            assert_eq!(error.call, call);
        }
    }

    #[test]
    fn what_is_truncated_is_counted_as_what_is_copied() {
        for truncates in [false, true] {
            let (near, far) = pair();
            let source = SendSource::Buffer(Payload::random(LENGTH, 1));
            thread::scope(|scope| {
                let receiver = scope.spawn(move || {
                    let account = ByteLimit::at(u64::MAX);
                    let inlet = if truncates {
                        ReceiveSink::Truncate(Bytes(9_000))
                    } else {
                        ReceiveSink::Copy(Payload::random(9_000, 1))
                    };
                    StreamReceiver::new(&far, inlet).run(&account).unwrap();
                    account.counted.get()
                });
                let mut sending = StreamSender::new(&near, &source).unwrap();
                sending.budget = Some(1_000_000);
                sending.run(&ByteLimit::at(u64::MAX)).unwrap();
                near.shutdown(Shutdown::Write).unwrap();
                assert_eq!(receiver.join().unwrap(), 1_000_000);
            });
        }
    }
}
