//! What an impairment did, counted, and told to whoever asks in its network namespace.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    net::Shutdown,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use fathom_model::names::host;
use fathom_sys::socket::SockRef;

/// The names of the two directions: from the first host of the lab to the last, and back.
pub(super) const DIRECTIONS: [&str; 2] = ["forward", "back"];
/// An asker that does not read its answer within this time gets none.
const ANSWER_MAX: Duration = Duration::from_millis(200);

/// The counts of one direction; only its thread adds to them.
#[derive(Debug, Default)]
pub(super) struct HopCounters([AtomicU64; host::OF_IMPAIRMENTS.len()]);

impl HopCounters {
    /// Adds one to a counter, which is one of [`host::OF_IMPAIRMENTS`].
    pub(super) fn add(&self, counter: &str) {
        self.add_all(counter, 1);
    }

    /// Adds a number to a counter, which is one of [`host::OF_IMPAIRMENTS`].
    pub(super) fn add_all(&self, counter: &str, n: u64) {
        let place = host::OF_IMPAIRMENTS.iter().position(|name| *name == counter);
        self.0[place.expect("a counter of impairments")].fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the value of a counter.
    #[cfg(test)]
    pub(super) fn value(&self, counter: &str) -> u64 {
        let place = host::OF_IMPAIRMENTS.iter().position(|name| *name == counter).unwrap();
        self.0[place].load(Ordering::Relaxed)
    }
}

/// The lines of all counters of both directions.
fn lines(counters: &[Arc<HopCounters>; 2]) -> String {
    let mut text = String::new();
    for (direction, counters) in DIRECTIONS.iter().zip(counters) {
        for (name, value) in host::OF_IMPAIRMENTS.iter().zip(&counters.0) {
            let value = value.load(Ordering::Relaxed);
            writeln!(text, "{name} {direction} {value}").expect("a text takes everything");
        }
    }
    text
}

/// The thread that tells the counters; dropping this ends it.
#[derive(Debug)]
pub(super) struct CounterServer {
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

/// Opens the socket in the calling thread's network namespace: abstract names belong to it (unix(7)).
pub(super) fn listen() -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(host::IMPAIRMENT_SOCKET)?)
}

impl CounterServer {
    pub(super) fn start(listener: UnixListener, counters: [Arc<HopCounters>; 2]) -> io::Result<Self> {
        let server = listener.try_clone()?;
        let thread = thread::Builder::new().name("fathom-counts".to_owned());
        let thread = thread.spawn(move || {
            // Accepting fails once the socket is shut down.
            for mut stream in server.incoming().map_while(Result::ok) {
                let _ = stream.set_write_timeout(Some(ANSWER_MAX));
                // Whoever asks may be gone.
                let _ = stream.write_all(lines(&counters).as_bytes());
            }
        })?;
        Ok(Self { listener, thread: Some(thread) })
    }
}

impl Drop for CounterServer {
    fn drop(&mut self) {
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_both_directions_has_a_line() {
        let counters: [Arc<HopCounters>; 2] = Default::default();
        counters[1].add(host::IMPAIR_RESET);
        counters[1].add(host::IMPAIR_RESET);
        let text = lines(&counters);
        assert_eq!(text.lines().count(), 2 * host::OF_IMPAIRMENTS.len());
        assert!(text.contains("impair_reset back 2\n") && text.contains("impair_reset forward 0\n"), "{text}");
    }
}
