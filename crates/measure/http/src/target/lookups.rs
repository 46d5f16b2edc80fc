//! Looks names up on separate threads while the load runs, because the resolver of the C library blocks.

use std::{
    io::{self, Write as _},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    policy::{Destination as Permitted, Policy},
    socket::Socket,
};

use super::{HostPort, TargetConfigError};

/// The number of concurrent lookups of one worker; a nearby resolver answers each within some 100 µs.
const THREADS: usize = 4;

/// A lookup: its owner and the name.
type LookupQuestion = (LookupOwner, HostPort);

/// The recipient of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LookupOwner {
    /// A connection of this route, by its token.
    Connection(u32, usize),
    /// A route whose addresses have expired.
    Route(usize),
}

/// The result of a lookup.
#[derive(Debug)]
pub(super) struct LookupAnswer {
    pub(super) owner: LookupOwner,
    pub(super) found: io::Result<Vec<Permitted>>,
    pub(super) took: Nanos,
}

/// The lookup threads of one worker; they end when this is dropped.
#[derive(Debug)]
pub(super) struct LookupThreads {
    questions: Sender<LookupQuestion>,
    answers: Receiver<LookupAnswer>,
    waker: Option<UnixStream>,
}

impl LookupThreads {
    pub(super) fn start(policy: &Policy) -> Result<Self, TargetConfigError> {
        let (questions, asked) = mpsc::channel::<LookupQuestion>();
        let (answer, answers) = mpsc::channel();
        let (waker, waker_writer) = UnixStream::pair().map_err(TargetConfigError::Lookups)?;
        // A pending wake-up needs no second one, and must not block a thread.
        waker_writer.set_nonblocking(true).map_err(TargetConfigError::Lookups)?;
        waker.set_nonblocking(true).map_err(TargetConfigError::Lookups)?;
        let (asked, waker_writer) = (Arc::new(Mutex::new(asked)), Arc::new(waker_writer));
        for _ in 0..THREADS {
            let (asked, waker_writer, answer) = (Arc::clone(&asked), Arc::clone(&waker_writer), answer.clone());
            let policy = policy.clone();
            let thread = thread::Builder::new().name("lookup".to_owned());
            thread
                .spawn(move || run_lookups(&asked, &policy, (&waker_writer, &answer)))
                .map_err(TargetConfigError::Lookups)?;
        }
        Ok(Self { questions, answers, waker: Some(waker) })
    }

    pub(super) fn ask(&self, asker: LookupOwner, name: HostPort) {
        // The threads live as long as this end of their channel.
        self.questions.send((asker, name)).expect("lookup threads wait for questions");
    }

    /// Returns, once, a socket that becomes readable when results are available. The bytes read from it have no meaning.
    pub(super) fn take_waker(&mut self) -> Option<Socket> {
        self.waker.take().map(|waker| Socket::from(OwnedFd::from(waker)))
    }

    pub(super) fn next(&self) -> Option<LookupAnswer> {
        self.answers.try_recv().ok()
    }
}

fn run_lookups(
    asked: &Mutex<Receiver<LookupQuestion>>,
    policy: &Policy,
    (waker_writer, answer): (&UnixStream, &Sender<LookupAnswer>),
) {
    loop {
        let question = asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((asker, name)) = question else { return };
        let begun_at = clock::now();
        let found = name.look_up(policy);
        let took = clock::now().since(begun_at);
        if answer.send(LookupAnswer { owner: asker, found, took }).is_err() {
            return;
        }
        // If the socket is full, a wake-up is already pending; if its other end is closed, nobody waits for it.
        let _ = (&*waker_writer).write(&[1]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::{super::ConnectFault, *};

    #[test]
    fn answers_come_to_those_who_asked_and_the_bell_rings() {
        let mut lookups = LookupThreads::start(&Policy::anything()).unwrap();
        let mut waker = UnixStream::from(OwnedFd::from(lookups.take_waker().unwrap()));
        assert!(lookups.take_waker().is_none());
        waker.set_nonblocking(false).unwrap();
        let name = |host: &str| HostPort { host: host.to_owned(), port: 7 };
        lookups.ask(LookupOwner::Connection(3, 0), name("127.0.0.1"));
        lookups.ask(LookupOwner::Route(1), name("nowhere.invalid"));
        let mut heard = Vec::new();
        while heard.len() < 2 {
            waker.read_exact(&mut [0]).unwrap();
            heard.extend(std::iter::from_fn(|| lookups.next()));
        }
        heard.sort_by_key(|answer| answer.owner == LookupOwner::Route(1));
        assert_eq!(heard[0].owner, LookupOwner::Connection(3, 0));
        assert_eq!(heard[0].found.as_ref().unwrap()[0].to_string(), "127.0.0.1:7");
        assert!(heard[1].found.is_err());
    }

    #[test]
    fn an_answer_that_nobody_has_allowed_is_no_answer() {
        let lookups = LookupThreads::start(&Policy::own(Vec::new())).unwrap();
        lookups.ask(LookupOwner::Connection(3, 0), HostPort { host: "localhost".to_owned(), port: 7 });
        let answer = lookups.answers.recv().unwrap();
        assert_eq!(ConnectFault::of_lookup(&answer.found.unwrap_err()), ConnectFault::NotAllowed);
    }
}
