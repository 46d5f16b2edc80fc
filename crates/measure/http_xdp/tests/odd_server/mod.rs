//! A server that sends one text to whoever asks, and counts.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// What it sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answers<'a> {
    pub(crate) text: &'a str,
    /// Each connection gets one answer and is closed.
    pub(crate) closes: bool,
    /// So many requests are answered, and no later one.
    pub(crate) n_max: u64,
}

/// Answers until it is told to stop; returns the number of requests.
pub(crate) fn serve(listener: &TcpListener, answers: Answers<'_>, stops: &AtomicBool) -> u64 {
    let n_requests = AtomicU64::new(0);
    listener.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        while !stops.load(Relaxed) {
            match listener.accept() {
                Ok((connection, _)) => {
                    let n_requests = &n_requests;
                    scope.spawn(move || answer_all(connection, answers, n_requests));
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    });
    n_requests.into_inner()
}

fn answer_all(mut connection: TcpStream, answers: Answers<'_>, n_requests: &AtomicU64) {
    connection.set_nonblocking(false).unwrap();
    // Whoever has gone without a word is not waited for.
    connection.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let (mut asked, mut piece) = (Vec::new(), [0; 512]);
    while let Ok(n @ 1..) = connection.read(&mut piece) {
        asked.extend_from_slice(&piece[..n]);
        if !asked.ends_with(b"\r\n\r\n") {
            continue;
        }
        asked.clear();
        if n_requests.fetch_add(1, Relaxed) >= answers.n_max {
            continue;
        }
        if connection.write_all(answers.text.as_bytes()).is_err() || answers.closes {
            return;
        }
    }
}
