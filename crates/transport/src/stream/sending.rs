//! Sends a stream: the same payload again and again, or a file once.

use std::{fs::File, io::Read as _, sync::Arc};

use fathom_model::units::Nanos;
use fathom_sys::{
    Error, Result, clock,
    socket::{self, Socket, Wait},
    transmit::{self, Completion, MemoryFile, Part, Uncopied},
};

use super::{Account, Pace};
use crate::{link::PATIENCE, payload::Payload};

/// How long the last completions of sends without a copy are waited for; an acknowledgement that takes longer comes for nobody.
const COMPLETIONS_MAX: Nanos = Nanos::from_secs(1);

/// What a stream consists of, shared by all flows of a side.
#[derive(Debug)]
pub(crate) enum Source {
    /// Copied by the kernel on every call.
    Buffer(Payload),
    /// Never copied: `sendfile` hands out the pages of a file in memory.
    File(MemoryFile),
    /// Never copied where the path allows it: the program's own pages (`MSG_ZEROCOPY`).
    Pages(Payload),
    /// A file on a disk from where it stands to its end, for one flow: read into this room, or by `sendfile`.
    Disk(Arc<File>, DiskRead),
}

/// How what is on a disk gets to the socket.
#[derive(Debug)]
pub(crate) enum DiskRead {
    /// Through a buffer, in blocks of this length.
    Copied(usize),
    /// By `sendfile`, in blocks of this length.
    Uncopied(usize),
}

/// How one flow takes from the source.
#[derive(Debug)]
pub(crate) enum Outlet<'a> {
    Copy(&'a [u8]),
    File { file: &'a MemoryFile, offset: usize },
    Uncopied(Uncopying<'a>),
    Disk(Reading<'a>),
    DiskUncopied { file: &'a File, has_ended: bool },
}

/// A file that is read block by block, and what of the last one is still to be sent.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    file: &'a File,
    block: Vec<u8>,
    rest: std::ops::Range<usize>,
    has_ended: bool,
}

/// Sends without a copy, and what is known of them.
#[derive(Debug)]
pub(crate) struct Uncopying<'a> {
    bytes: &'a [u8],
    /// Sends whose pages the kernel still holds.
    n_pending: u64,
    n_completed: u64,
    n_copied: u64,
}

impl Source {
    fn length(&self) -> usize {
        match self {
            Self::Buffer(payload) | Self::Pages(payload) => payload.bytes().len(),
            Self::File(file) => file.length(),
            Self::Disk(_, DiskRead::Copied(length) | DiskRead::Uncopied(length)) => *length,
        }
    }

    /// Makes a connected socket ready for this way of sending.
    ///
    /// # Errors
    /// `setsockopt(SO_ZEROCOPY)`, when this kernel or this protocol cannot send without a copy.
    pub(crate) fn outlet(&self, socket: &Socket) -> Result<Outlet<'_>> {
        Ok(match self {
            Self::Buffer(payload) => Outlet::Copy(payload.bytes()),
            Self::File(file) => Outlet::File { file, offset: 0 },
            Self::Pages(payload) => {
                transmit::allow_zerocopy(socket)?;
                Outlet::Uncopied(Uncopying { bytes: payload.bytes(), n_pending: 0, n_completed: 0, n_copied: 0 })
            }
            Self::Disk(file, DiskRead::Uncopied(_)) => Outlet::DiskUncopied { file, has_ended: false },
            Self::Disk(file, DiskRead::Copied(length)) => {
                Outlet::Disk(Reading { file, block: vec![0; *length], rest: 0..0, has_ended: false })
            }
        })
    }
}

impl Outlet<'_> {
    /// Hands at most `at_most` bytes to the kernel; nothing means not now.
    fn send(&mut self, socket: &Socket, at_most: usize) -> Result<Option<usize>> {
        match self {
            Self::Copy(bytes) => socket::send(socket, &bytes[..at_most.min(bytes.len())], Wait::Block),
            Self::File { file, offset } => {
                let length = (file.length() - *offset).min(at_most);
                let sent = file.send(socket, Part { offset: *offset, length })?;
                *offset = (*offset + sent.unwrap_or(0)) % file.length();
                Ok(sent)
            }
            Self::Uncopied(uncopying) => uncopying.send(socket, at_most),
            Self::Disk(reading) => reading.send(socket, at_most),
            Self::DiskUncopied { file, has_ended } => {
                let sent = transmit::send_next(socket, file, at_most)?;
                *has_ended = sent == Some(0);
                Ok(sent)
            }
        }
    }

    /// Whether there is no more to be sent; only a file comes to an end.
    fn has_ended(&self) -> bool {
        match self {
            Self::Copy(_) | Self::File { .. } | Self::Uncopied(_) => false,
            Self::Disk(Reading { has_ended, .. }) | Self::DiskUncopied { has_ended, .. } => *has_ended,
        }
    }
}

impl Reading<'_> {
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

impl Uncopying<'_> {
    fn send(&mut self, socket: &Socket, at_most: usize) -> Result<Option<usize>> {
        let bytes = &self.bytes[..at_most.min(self.bytes.len())];
        let outcome = transmit::send_uncopied(socket, bytes)?;
        if let Uncopied::Sent(_) = outcome {
            self.n_pending += 1;
        }
        self.fetch(socket)?;
        match outcome {
            Uncopied::Sent(count) => Ok(Some(count)),
            Uncopied::WouldBlock => Ok(None),
            Uncopied::NoBuffers => {
                transmit::wait_for_completion(socket, PATIENCE)?;
                self.fetch(socket)?;
                Ok(None)
            }
        }
    }

    /// Takes the completions that are there.
    fn fetch(&mut self, socket: &Socket) -> Result<()> {
        while let Some(Completion { n_sends, was_copied }) = transmit::completion(socket)? {
            let n_sends = u64::from(n_sends);
            self.n_pending = self.n_pending.saturating_sub(n_sends);
            self.n_completed += n_sends;
            self.n_copied += if was_copied { n_sends } else { 0 };
        }
        Ok(())
    }

    /// Waits for what is still to be completed, which is what the peer has yet to acknowledge.
    fn finish(&mut self, socket: &Socket) -> Result<()> {
        let deadline = clock::now() + COMPLETIONS_MAX;
        while self.n_pending > 0 && clock::now() < deadline {
            transmit::wait_for_completion(socket, PATIENCE)?;
            self.fetch(socket)?;
        }
        Ok(())
    }
}

/// Sends without a copy: how many are completed, and how many of them the kernel copied all the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UncopiedSends {
    pub(crate) n_completed: u64,
    pub(crate) n_copied: u64,
}

impl UncopiedSends {
    /// Those of two flows together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { n_completed: self.n_completed + other.n_completed, n_copied: self.n_copied + other.n_copied }
    }
}

/// One flow that sends.
#[derive(Debug)]
pub(crate) struct Sending<'a> {
    socket: &'a Socket,
    outlet: Outlet<'a>,
    length: usize,
    /// When bytes are due; without it at once.
    pub(crate) pace: Option<Pace>,
    /// How many bytes may yet be sent; without it as many as there is time for.
    pub(crate) budget: Option<u64>,
}

impl<'a> Sending<'a> {
    /// Everything that `source` holds in each call, as fast as the socket takes it and without an end of its own.
    ///
    /// The socket blocks, for as long as a wait may last (`socket::set_timeout`).
    ///
    /// # Errors
    /// As [`Source::outlet`].
    pub(crate) fn new(socket: &'a Socket, source: &'a Source) -> Result<Self> {
        Ok(Self { socket, outlet: source.outlet(socket)?, length: source.length(), pace: None, budget: None })
    }

    /// Sends until the account is closed, the budget is spent or the file is at its end.
    ///
    /// # Errors
    /// The call that failed: the peer reset the connection or has gone.
    pub(crate) fn run(&mut self, account: &impl Account) -> Result<()> {
        while !account.is_over() && !self.outlet.has_ended() {
            let length = self.next_length();
            if length == 0 {
                break;
            }
            if !self.is_due(account) {
                continue;
            }
            let Some(sent) = self.outlet.send(self.socket, length)? else {
                account.waited();
                continue;
            };
            let sent = u64::try_from(sent).unwrap_or(u64::MAX);
            account.count(sent);
            if let Some(pace) = &mut self.pace {
                pace.sent(sent);
            }
            if let Some(budget) = &mut self.budget {
                *budget -= sent;
            }
        }
        Ok(())
    }

    /// Whether all of a file has been sent.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.outlet.has_ended()
    }

    fn next_length(&self) -> usize {
        let budget = self.budget.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        self.length.min(budget)
    }

    /// Waits for the next bytes to be due, but not for longer than anyone may be kept waiting.
    fn is_due(&mut self, account: &impl Account) -> bool {
        let Some(pace) = &mut self.pace else { return true };
        let now = clock::now();
        let due = pace.due(now);
        if due <= now {
            return true;
        }
        let is_soon = due - now <= PATIENCE;
        clock::sleep_until(if is_soon { due } else { now + PATIENCE });
        account.waited();
        is_soon
    }

    /// What became of sends without a copy, once the rest of them has been waited for; nothing for other ways of sending.
    ///
    /// # Errors
    /// `recvmsg(MSG_ERRQUEUE)` or `poll`.
    pub(crate) fn uncopied(&mut self) -> Result<Option<UncopiedSends>> {
        let Outlet::Uncopied(uncopying) = &mut self.outlet else { return Ok(None) };
        uncopying.finish(self.socket)?;
        Ok(Some(UncopiedSends { n_completed: uncopying.n_completed, n_copied: uncopying.n_copied }))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Shutdown, thread};

    use fathom_model::units::{BitsPerSec, Bytes};

    use super::*;
    use crate::stream::{
        Inlet, Receiving,
        tests::{Enough, pair},
    };

    const LENGTH: usize = 40_000;

    fn sources() -> [Source; 3] {
        [
            Source::Buffer(Payload::random(LENGTH, 1)),
            Source::File(MemoryFile::of(Payload::random(LENGTH, 1).bytes()).unwrap()),
            Source::Pages(Payload::random(LENGTH, 1)),
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
                let account = Enough::at(u64::MAX);
                let mut sending = Sending::new(&near, &source).unwrap();
                sending.budget = Some(BUDGET.try_into().unwrap());
                sending.run(&account).unwrap();
                assert_eq!(account.counted.get(), 100_001);
                near.shutdown(Shutdown::Write).unwrap();
                let uncopied = sending.uncopied().unwrap();
                assert_eq!(uncopied.is_some(), matches!(source, Source::Pages(_)));
                let all_completed =
                    |sends: UncopiedSends| sends.n_completed >= 3 && sends.n_copied == sends.n_completed;
                assert!(uncopied.is_none_or(all_completed), "{uncopied:?}");
                receiver.join().unwrap()
            });
            let payload = Payload::random(LENGTH, 1);
            assert_eq!(got.len(), BUDGET);
            if matches!(source, Source::File(_)) {
                // A file is gone through to its end and then begun again, as a partial send of a file leaves off anywhere.
                assert!(got.chunks(LENGTH).all(|chunk| chunk == &payload.bytes()[..chunk.len()]));
            }
        }
    }

    #[test]
    fn a_file_on_a_disk_is_sent_once_and_written_as_it_was() {
        let payload = Payload::random(100_001, 7);
        let from = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(from.path(), payload.bytes()).unwrap();
        for read in [DiskRead::Copied(LENGTH), DiskRead::Uncopied(LENGTH)] {
            let (near, far) = pair();
            let to = tempfile::NamedTempFile::new().unwrap();
            let into = Arc::new(transmit::open_sink(to.path()).unwrap());
            thread::scope(|scope| {
                let receiver = scope.spawn(move || {
                    let inlet = Inlet::Disk(Payload::random(7_777, 1), into);
                    Receiving::new(&far, inlet).run(&Enough::at(u64::MAX)).unwrap()
                });
                let source = Source::Disk(Arc::new(transmit::open_source(from.path()).unwrap()), read);
                let mut sending = Sending::new(&near, &source).unwrap();
                let account = Enough::at(u64::MAX);
                // Blocks are cut by the budget and go on where they were cut.
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
        let source = Source::Disk(Arc::new(transmit::open_source("/".as_ref()).unwrap()), DiskRead::Copied(LENGTH));
        let error = Sending::new(&near, &source).unwrap().run(&Enough::at(u64::MAX)).unwrap_err();
        assert!(crate::stream::is_of_file(&error), "{error}");
        drop(far);
        let source = Source::Buffer(Payload::random(LENGTH, 1));
        let error = Sending::new(&near, &source).unwrap().run(&Enough::at(u64::MAX)).unwrap_err();
        assert!(!crate::stream::is_of_file(&error), "{error}");
    }

    #[test]
    fn a_paced_stream_keeps_its_rate_and_is_told_to_stop_while_it_waits() {
        let (near, far) = pair();
        let source = Source::Buffer(Payload::random(1_000, 1));
        let begin = clock::now();
        let mut sending = Sending::new(&near, &source).unwrap();
        sending.pace = Pace::new(BitsPerSec::new(1.6e6).unwrap(), begin);
        let account = Enough::at(20_001);
        sending.run(&account).unwrap();
        // The first of 21 kB leaves at once and the last after 20 kB at 200 kB/s.
        assert!(clock::now() - begin >= Nanos::from_millis(100), "{}", clock::now() - begin);
        assert_eq!(account.counted.get(), 21_000);
        sending.pace = Pace::new(BitsPerSec::new(8.0).unwrap(), clock::now());
        let brief = Enough { deadline: clock::now() + Nanos::from_millis(120), ..Enough::at(u64::MAX) };
        sending.run(&brief).unwrap();
        assert_eq!(brief.counted.get(), 1_000, "the next 1000 bytes are due in a thousand seconds");
        drop(far);
    }

    #[test]
    fn a_peer_that_reads_nothing_does_not_keep_the_sender_from_its_end() {
        for source in sources() {
            let (near, _far) = pair();
            let account = Enough { deadline: clock::now() + Nanos::from_millis(200), ..Enough::at(u64::MAX) };
            Sending::new(&near, &source).unwrap().run(&account).unwrap();
            assert!(clock::now() - account.deadline < Nanos::from_millis(500));
        }
    }

    #[test]
    fn a_peer_that_goes_is_an_error_that_names_the_call() {
        for (source, call) in sources().into_iter().zip(["send", "sendfile", "send(MSG_ZEROCOPY)"]) {
            let (near, far) = pair();
            drop(far);
            let error = Sending::new(&near, &source).unwrap().run(&Enough::at(u64::MAX)).unwrap_err();
            assert_eq!(error.call, call);
        }
    }

    #[test]
    fn what_is_truncated_is_counted_as_what_is_copied() {
        for truncates in [false, true] {
            let (near, far) = pair();
            let source = Source::Buffer(Payload::random(LENGTH, 1));
            thread::scope(|scope| {
                let receiver = scope.spawn(move || {
                    let account = Enough::at(u64::MAX);
                    let inlet =
                        if truncates { Inlet::Truncate(Bytes(9_000)) } else { Inlet::Copy(Payload::random(9_000, 1)) };
                    Receiving::new(&far, inlet).run(&account).unwrap();
                    account.counted.get()
                });
                let mut sending = Sending::new(&near, &source).unwrap();
                sending.budget = Some(1_000_000);
                sending.run(&Enough::at(u64::MAX)).unwrap();
                near.shutdown(Shutdown::Write).unwrap();
                assert_eq!(receiver.join().unwrap(), 1_000_000);
            });
        }
    }
}
