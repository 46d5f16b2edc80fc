//! Requests that never change, which the engine knows again.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use fathom_engine::Session;
use fathom_http::users::{Answered, Ask, Failed, Framing, Seat, Turn, Users, Wants, Window};
use fathom_model::{names::count, units::Nanos};
use fathom_sys::clock;

use crate::{
    cast::get,
    common::over_both,
    stage::{LONG, answering, crowd, ok, population, target, url},
};

over_both! {
    a_literal_request_is_followed_like_any_other
}

/// So many requests, of which every tenth is another one.
const N: usize = 200;

/// A user who sends the same bytes from the same place, many times, with others in between.
struct Stubborn {
    usual: Vec<u8>,
    other: Vec<u8>,
    n_answers: usize,
    n_wrong: usize,
}

impl Stubborn {
    fn is_usual(&self) -> bool {
        self.n_answers % 10 < 9
    }
}

impl Users for Stubborn {
    type Outcome = usize;

    fn arrive(&mut self, _: Seat, _: Nanos, _: Nanos) {}

    fn turn(&mut self, _: Seat, _: Nanos) -> Turn<'_> {
        if self.n_answers == N {
            return Turn::Leave;
        }
        Turn::Ask(Ask {
            bytes: if self.is_usual() { &self.usual } else { &self.other },
            n_requests: 1,
            server: 0,
            framing: Framing::Body,
            wants: Wants::Message,
            timeout: Nanos::from_secs(20),
        })
    }

    fn answered(&mut self, _: Seat, answer: &Answered<'_>) {
        let expected: &[u8] = if self.is_usual() { b"/usual" } else { b"/other" };
        self.n_wrong += usize::from(!answer.message.ends_with(expected));
        self.n_answers += 1;
    }

    fn failed(&mut self, _: Seat, failed: &Failed<'_>) {
        panic!("{failed:?}");
    }

    fn window(&mut self, _: Window, _: Nanos) {}

    fn conclude(self, _: Nanos) -> usize {
        self.n_wrong
    }
}

fn a_literal_request_is_followed_like_any_other() {
    let seen = Arc::new(Mutex::new(0));
    let address = answering({
        let seen = Arc::clone(&seen);
        move |stream, request| {
            *seen.lock().unwrap() += usize::from(target(request) == "/usual");
            stream.write_all(ok(target(request)).as_bytes())
        }
    });
    let [usual, other] = ["/usual", "/other"].map(|target| get(target).text.into_bytes());
    let n_bytes = N * 9 / 10 * usual.len() + N / 10 * other.len();
    let session = Session::new(clock::now(), LONG);
    let make = |_: &_| Ok(Stubborn { usual: usual.clone(), other: other.clone(), n_answers: 0, n_wrong: 0 });
    let (record, n_wrong) = crowd(&url(address), &[], population(1)).run(&session, make).unwrap();
    assert_eq!((n_wrong, *seen.lock().unwrap()), (vec![0], N * 9 / 10));
    assert_eq!(record.totals[count::BYTES_SENT], n_bytes as u64);
}
