//! Recognizes requests that never change by the address of their bytes.
//!
//! A constant request is built once and stays in place, so a user that sends it passes the same bytes at the same address again
//! and again. Such bytes are registered with the reactor, which then sends them at lower cost. The bytes are compared each time,
//! because an address alone proves nothing.

use fathom_sys::reactor::FixedBuffer;

/// The same address and length must occur this often in a row before the bytes are registered: it does not pay off for a few requests.
const REPEATS_MIN: u8 = 16;
/// Longer requests gain nothing: their cost is in sending, not in handing them over.
const LENGTH_MAX: usize = 4096;
/// The number of tracked buffers, four for each constant request of a typical script.
const BUFFERS_TRACKED: usize = 256;
/// Registered buffers are never released, so their number is limited.
const FIXED_MAX: usize = 64;

#[derive(Debug, Clone, Default)]
enum BufferEntry {
    #[default]
    Unknown,
    /// Seen `n` times.
    Seen {
        at: usize,
        length: usize,
        n: u8,
    },
    Fixed {
        at: usize,
        bytes: Box<[u8]>,
        fixed: FixedBuffer,
    },
    /// The bytes at this address change.
    Varying,
}

/// The constant requests of one worker.
#[derive(Debug)]
pub(super) struct FixedRequests {
    entries: Box<[BufferEntry]>,
    n: usize,
}

impl Default for FixedRequests {
    fn default() -> Self {
        Self { entries: vec![BufferEntry::default(); BUFFERS_TRACKED].into(), n: 0 }
    }
}

impl FixedRequests {
    /// Returns the registered buffer of these bytes if they are constant; `fix` registers them.
    pub(super) fn find(&mut self, bytes: &[u8], fix: impl FnOnce(Vec<u8>) -> FixedBuffer) -> Option<FixedBuffer> {
        if bytes.len() > LENGTH_MAX {
            return None;
        }
        let at = bytes.as_ptr().addr();
        // Allocations begin at multiples of 16.
        let place = &mut self.entries[((at >> 4) ^ (at >> 12) ^ bytes.len()) % BUFFERS_TRACKED];
        match place {
            BufferEntry::Fixed { at: known, bytes: literal, fixed } if *known == at => {
                if **literal == *bytes {
                    return Some(*fixed);
                }
                *place = BufferEntry::Varying;
            }
            BufferEntry::Fixed { .. } | BufferEntry::Varying => {}
            BufferEntry::Seen { at: known, length, n } if (*known, *length) == (at, bytes.len()) => {
                *n += 1;
                if *n == REPEATS_MIN && self.n < FIXED_MAX {
                    self.n += 1;
                    let fixed = fix(bytes.to_vec());
                    *place = BufferEntry::Fixed { at, bytes: bytes.into(), fixed };
                    return Some(fixed);
                }
                *n = (*n).min(REPEATS_MIN - 1);
            }
            BufferEntry::Unknown | BufferEntry::Seen { .. } => {
                *place = BufferEntry::Seen { at, length: bytes.len(), n: 1 }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use fathom_sys::reactor::{Epoll, Reactor};

    use super::*;

    #[test]
    fn bytes_that_stay_the_same_are_given_to_the_reactor_once() {
        let (mut fixed_requests, mut reactor) = (FixedRequests::default(), Epoll::<false>::new(1).unwrap());
        let (request, mut n_fixed) = (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 0);
        let found = (0..100).filter(|_| {
            let fixed = fixed_requests.find(&request, |bytes| {
                n_fixed += 1;
                reactor.fix(bytes)
            });
            fixed.is_some()
        });
        assert_eq!(found.count(), 101 - usize::from(REPEATS_MIN));
        assert_eq!(n_fixed, 1);
    }

    #[test]
    fn bytes_that_change_are_never_taken_for_those_that_lay_there() {
        let (mut fixed_requests, mut reactor) = (FixedRequests::default(), Epoll::<false>::new(1).unwrap());
        let mut request = b"GET /0 HTTP/1.1\r\n\r\n".to_vec();
        for _ in 0..REPEATS_MIN {
            fixed_requests.find(&request, |bytes| reactor.fix(bytes));
        }
        assert!(fixed_requests.find(&request, |bytes| reactor.fix(bytes)).is_some());
        request[5] = b'1';
        assert!((0..100).all(|_| fixed_requests.find(&request, |bytes| reactor.fix(bytes)).is_none()));
    }

    #[test]
    fn a_reactor_is_given_few_literals() {
        let (mut fixed_requests, mut reactor, mut n_fixed) =
            (FixedRequests::default(), Epoll::<false>::new(1).unwrap(), 0);
        let requests: Vec<Vec<u8>> = (0..1_000).map(|n| format!("GET /{n} HTTP/1.1\r\n\r\n").into_bytes()).collect();
        for request in requests.iter().flat_map(|request| std::iter::repeat_n(request, usize::from(REPEATS_MIN))) {
            fixed_requests.find(request, |bytes| {
                n_fixed += 1;
                reactor.fix(bytes)
            });
        }
        assert_eq!(n_fixed, FIXED_MAX);
    }
}
