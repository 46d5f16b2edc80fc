//! A small HTTP server for one document: the newest exposition.
//!
//! It answers one scraper after another, waits at most a second for the request of each and another for it to take the answer, and reads no more than a request's head.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The longest time for one scraper, so that a silent one does not keep others out.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest head of a request.
const HEAD_MAX: usize = 8 << 10;
/// The type that scrapers expect (`OpenMetrics` 1.0, section Exposition).
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An address at which the newest exposition is served until the process ends.
pub struct ScrapeEndpoint {
    newest: Arc<Mutex<String>>,
    /// The address, with the port that the kernel chose.
    pub address: SocketAddr,
}

impl ScrapeEndpoint {
    /// Listens on an address and begins to answer.
    ///
    /// # Errors
    /// Those of the listening socket.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let newest = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&newest);
        thread::Builder::new().name("scrapes".to_owned()).spawn(move || {
            for scraper in listener.incoming() {
                // Without descriptors, the next one fails at once too.
                let Ok(scraper) = scraper else {
                    thread::sleep(PATIENCE);
                    continue;
                };
                let text = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // A scraper that is gone or says nothing gets no answer; the next one does.
                let _ = answer(scraper, &text);
            }
        })?;
        Ok(Self { newest, address })
    }

    /// Replaces the exposition.
    pub fn show(&self, text: String) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

fn answer(mut scraper: TcpStream, text: &str) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        scraper.set_read_timeout(Some(left(until)?))?;
        let n = scraper.read(&mut piece)?;
        if n == 0 || head.len() > HEAD_MAX {
            return Ok(());
        }
        head.extend_from_slice(&piece[..n]);
    }
    let mut words = head.split(|byte| *byte == b' ');
    let (status, body) = match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => ("200 OK", text),
        (Some(b"GET"), _) => ("404 Not Found", "the counters are at /metrics\n"),
        _ => ("405 Method Not Allowed", "only GET is answered\n"),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let (mut rest, until) = (answer.as_bytes(), Instant::now() + PATIENCE);
    while !rest.is_empty() {
        scraper.set_write_timeout(Some(left(until)?))?;
        let n = scraper.write(rest)?;
        rest = &rest[n..];
    }
    Ok(())
}

/// Returns the time that is left for all of a request, or of an answer, however few bytes go at once.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(address: SocketAddr, request: &str) -> String {
        let mut scraper = TcpStream::connect(address).unwrap();
        scraper.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        scraper.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_scraper_that_sends_a_byte_at_a_time_does_not_keep_others_out() {
        let endpoint = ScrapeEndpoint::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut slow = TcpStream::connect(endpoint.address).unwrap();
        slow.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let begin = Instant::now();
        // It is at most closed when its time is over.
        while slow.write_all(b"G").is_ok() && !matches!(slow.read(&mut [0]), Ok(0)) {
            assert!(begin.elapsed() < 20 * PATIENCE, "it is still served");
        }
        endpoint.show("# EOF\n".to_owned());
        assert!(asked(endpoint.address, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("# EOF\n"));
    }

    #[test]
    fn the_newest_text_is_answered_and_nothing_else() {
        let endpoint = ScrapeEndpoint::open("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.show("# EOF\n".to_owned());
        let answer = asked(endpoint.address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n# EOF\n"), "{answer}");
        assert!(asked(endpoint.address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(asked(endpoint.address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    }
}
