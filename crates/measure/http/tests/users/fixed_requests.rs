//! Constant requests, which the engine recognizes.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use fathom_engine::TrialContext;
use fathom_http::users::{
    AnswerDetail, BodyFraming, MeasurePhase, UserAction, UserAnswer, UserFailure, UserRequest, UserSlot, Users,
};
use fathom_model::{names::count, units::Nanos};
use fathom_sys::clock;

use crate::{
    common::over_both,
    harness::{LONG, answering_server, ok, population, target, url, virtual_users},
    scripted_users::get,
};

over_both! {
    a_literal_request_is_followed_like_any_other
}

/// The number of requests; every tenth differs.
const N: usize = 200;

/// A user that sends the same bytes from the same address many times, with other requests in between.
struct RepeatingUser {
    usual: Vec<u8>,
    other: Vec<u8>,
    n_answers: usize,
    n_wrong: usize,
}

impl RepeatingUser {
    fn is_usual(&self) -> bool {
        self.n_answers % 10 < 9
    }
}

impl Users for RepeatingUser {
    type Outcome = usize;

    fn arrive(&mut self, _: UserSlot, _: Nanos, _: Nanos) {}

    fn next_action(&mut self, _: UserSlot, _: Nanos) -> UserAction<'_> {
        if self.n_answers == N {
            return UserAction::Leave;
        }
        UserAction::Send(UserRequest {
            bytes: if self.is_usual() { &self.usual } else { &self.other },
            n_requests: 1,
            server: 0,
            framing: BodyFraming::Body,
            detail: AnswerDetail::Message,
            timeout: Nanos::from_secs(20),
            may_repeat: true,
        })
    }

    fn answered(&mut self, _: UserSlot, answer: &UserAnswer<'_>) {
        let expected: &[u8] = if self.is_usual() { b"/usual" } else { b"/other" };
        self.n_wrong += usize::from(!answer.message.ends_with(expected));
        self.n_answers += 1;
    }

    fn failed(&mut self, _: UserSlot, failed: &UserFailure<'_>) {
        panic!("{failed:?}");
    }

    fn on_phase(&mut self, _: MeasurePhase, _: Nanos) {}

    fn finish(self, _: Nanos) -> usize {
        self.n_wrong
    }
}

fn a_literal_request_is_followed_like_any_other() {
    let seen = Arc::new(Mutex::new(0));
    let address = answering_server({
        let seen = Arc::clone(&seen);
        move |stream, request| {
            *seen.lock().unwrap() += usize::from(target(request) == "/usual");
            stream.write_all(ok(target(request)).as_bytes())
        }
    });
    let [usual, other] = ["/usual", "/other"].map(|target| get(target).text.into_bytes());
    let n_bytes = N * 9 / 10 * usual.len() + N / 10 * other.len();
    let session = TrialContext::new(clock::now(), LONG);
    let make = |_: &_| Ok(RepeatingUser { usual: usual.clone(), other: other.clone(), n_answers: 0, n_wrong: 0 });
    let (record, n_wrong) = virtual_users(&url(address), &[], population(1)).run(&session, make).unwrap();
    assert_eq!((n_wrong, *seen.lock().unwrap()), (vec![0], N * 9 / 10));
    assert_eq!(record.totals[count::BYTES_SENT], n_bytes as u64);
}
