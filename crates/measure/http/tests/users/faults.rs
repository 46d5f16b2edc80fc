//! Servers that close, abort and keep silent: users learn what matters to them, and continue.

use std::{
    io::{Read, Write},
    net::TcpListener,
    time::Duration,
};

use fathom_http::{
    names,
    users::{AnswerDetail, UserFailureStage},
};
use fathom_model::{
    Phases,
    names::{count, distribution},
    units::Nanos,
};
use fathom_sys::socket::SockRef;

use crate::{
    common::{over_both, read_request},
    harness::{LONG, answering_server, ok, population, run, run_for, server, target, url, virtual_users},
    scripted_users::{EventLog, ScriptedAction, ScriptedRequest, UserEvent, answers, failures, get},
};

over_both! {
    a_server_that_closes_between_requests_is_no_failure
    what_a_closed_connection_swallowed_is_asked_once_more
    a_first_request_is_never_asked_again
    an_answer_that_is_cut_off_is_a_failure_and_the_user_goes_on
    a_reset_is_a_failure
    a_server_that_keeps_silent_is_given_up
    a_server_that_keeps_silent_to_the_end_is_an_error
    a_pipeline_that_is_broken_off_fails_once
    an_answer_that_is_too_large_to_keep_is_a_failure_unless_its_beginning_is_enough
    bytes_that_nobody_asked_for_end_the_connection
    an_answer_may_end_with_its_connection
    a_server_that_refuses_is_not_stormed
    nobody_there_ends_the_trial
}

/// Sends requests until `n` have ended, whether answered or failed.
fn ask_until(
    n: usize,
    plea: fn() -> ScriptedRequest,
) -> impl Fn(fathom_http::users::UserSlot, &EventLog) -> ScriptedAction + Clone + Sync {
    move |_, memory| {
        if answers(memory).len() + failures(memory).len() < n {
            ScriptedAction::Send(plea())
        } else {
            ScriptedAction::Leave
        }
    }
}

fn page() -> ScriptedRequest {
    get("/")
}

fn a_server_that_closes_between_requests_is_no_failure() {
    // With an announcement of the close, and without one.
    for text in [
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ] {
        let address = server(move |mut stream, _| {
            read_request(&mut stream);
            stream.write_all(text.as_bytes()).unwrap();
        });
        let (record, memories) =
            run(&virtual_users(&url(address), &[], population(1)), |_, memory| match &memory[..] {
                // Long enough for the close to be noticed.
                [.., UserEvent::Answered(_), UserEvent::NextAction { .. }] => {
                    ScriptedAction::Sleep(Nanos::from_millis(30))
                }
                _ if answers(memory).len() == 4 => ScriptedAction::Leave,
                _ => ScriptedAction::Send(get("/")),
            })
            .unwrap();
        let connections: Vec<u32> = answers(memories.first()).iter().map(|heard| heard.nth_connection).collect();
        assert_eq!((connections, failures(memories.first())), (vec![0, 1, 2, 3], vec![]));
        assert_eq!((record.totals[names::CLOSED_BY_SERVER], record.totals[names::ERRORS]), (4, 0));
        assert_eq!(record.distributions[distribution::CONNECT_TIME].count(), 4);
    }
}

fn what_a_closed_connection_swallowed_is_asked_once_more() {
    // The second request on each connection is read but not answered; the server closes.
    let address = server(|mut stream, _| {
        read_request(&mut stream);
        stream.write_all(ok("").as_bytes()).unwrap();
        read_request(&mut stream);
    });
    let (record, memories) = run(&virtual_users(&url(address), &[], population(1)), ask_until(4, page)).unwrap();
    let connections: Vec<u32> = answers(memories.first()).iter().map(|heard| heard.nth_connection).collect();
    assert_eq!((connections, failures(memories.first())), (vec![0, 1, 2, 3], vec![]));
    assert_eq!((record.totals[names::RESENT], record.totals[names::ERRORS]), (3, 0));
    assert_eq!(record.totals[count::BYTES_SENT], 7 * get("/").text.len() as u64);
    // There is only one retry: from the second connection on, this server answers nothing.
    let address = server(|mut stream, nth| {
        if nth == 0 {
            read_request(&mut stream);
            stream.write_all(ok("").as_bytes()).unwrap();
        }
        read_request(&mut stream);
    });
    let (record, memories) = run(&virtual_users(&url(address), &[], population(1)), ask_until(2, page)).unwrap();
    assert_eq!(failures(memories.first()), [("read: closed before the answer", UserFailureStage::Read)]);
    assert_eq!((record.totals[names::RESENT], record.totals[names::ERRORS]), (1, 1));
}

fn a_first_request_is_never_asked_again() {
    let address = server(|mut stream, nth| {
        read_request(&mut stream);
        if nth == 1 {
            stream.write_all(ok("").as_bytes()).unwrap();
        }
    });
    let (record, memories) = run(&virtual_users(&url(address), &[], population(1)), ask_until(2, page)).unwrap();
    assert_eq!(failures(memories.first()), [("read: closed before the answer", UserFailureStage::Read)]);
    assert_eq!((answers(memories.first()).len(), record.totals[names::RESENT]), (1, 0));
}

fn an_answer_that_is_cut_off_is_a_failure_and_the_user_goes_on() {
    for cut in ["HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", "HTTP/1.1 200 OK\r\nContent-"] {
        let address = server(move |mut stream, nth| {
            while read_request(&mut stream).is_some() {
                if nth == 0 {
                    return stream.write_all(cut.as_bytes()).unwrap();
                }
                stream.write_all(ok("hello").as_bytes()).unwrap();
            }
        });
        let (record, memories) = run(&virtual_users(&url(address), &[], population(1)), ask_until(3, page)).unwrap();
        assert_eq!(failures(memories.first()), [("read: closed within the answer", UserFailureStage::Read)]);
        assert!(answers(memories.first()).iter().all(|heard| heard.message == ok("hello")));
        assert_eq!((record.totals[names::ATTEMPTS], record.totals[names::ERRORS]), (3, 1));
        assert_eq!(record.errors["read: closed within the answer"], 1);
    }
}

fn a_reset_is_a_failure() {
    let address = server(|mut stream, nth| {
        while read_request(&mut stream).is_some() {
            stream.write_all(&ok("hello").as_bytes()[..if nth == 0 { 10 } else { ok("hello").len() }]).unwrap();
            if nth == 0 {
                return SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
    });
    let (_, memories) = run(&virtual_users(&url(address), &[], population(1)), ask_until(2, page)).unwrap();
    assert_eq!(failures(memories.first()), [("read: connection reset by peer", UserFailureStage::Read)]);
}

fn a_server_that_keeps_silent_is_given_up() {
    let address = answering_server(|stream, request| match target(request) {
        "/silent" => Ok(()),
        _ => stream.write_all(ok("").as_bytes()),
    });
    let (record, memories) = run(&virtual_users(&url(address), &[], population(1)).count_everything(), |_, memory| {
        match (answers(memory).len(), failures(memory).len()) {
            (1, 0) => ScriptedAction::Send(ScriptedRequest { timeout: Nanos::from_millis(40), ..get("/silent") }),
            (2, _) => ScriptedAction::Leave,
            _ => ScriptedAction::Send(get("/")),
        }
    })
    .unwrap();
    assert_eq!(failures(memories.first()), [("read: timeout", UserFailureStage::Timeout)]);
    let waited = memories.first().iter().find_map(|told| match told {
        UserEvent::Failed { sent_at, ended_at, .. } => Some(*ended_at - *sent_at),
        _ => None,
    });
    assert!(waited.unwrap() >= Nanos::from_millis(40), "{waited:?}");
    // The time of the unsuccessful wait is among the times.
    assert_eq!(record.distributions[distribution::SERVICE_TIME].count(), 3);
    assert!(record.notes.iter().any(|note| note.id == "waited-in-vain"));
}

fn a_server_that_keeps_silent_to_the_end_is_an_error() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let crowd = virtual_users(&url(silent.local_addr().unwrap()), &[], population(2));
    let phases = Phases { measure_ns: Nanos::from_secs(2), ..LONG };
    let (record, _) = run_for(phases, &crowd, |_, _| ScriptedAction::Send(page())).unwrap();
    assert_eq!(record.errors, [("read: unanswered", 2)].into_iter().collect());
    assert_eq!((record.totals[names::ERRORS], record.totals[names::UNFINISHED]), (2, 0));
}

fn a_pipeline_that_is_broken_off_fails_once() {
    let address = server(|mut stream, nth| {
        let text = if nth == 0 { "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" } else { &ok("") };
        while read_request(&mut stream).is_some() {
            if stream.write_all(text.as_bytes()).is_err() || nth == 0 {
                // Everything sent is read, so that the close is not a reset.
                SockRef::from(&stream).shutdown(std::net::Shutdown::Write).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
                return;
            }
        }
    });
    let (record, memories) = run(&virtual_users(&url(address), &[], population(1)), |_, memory| {
        if answers(memory).len() >= 4 {
            return ScriptedAction::Leave;
        }
        ScriptedAction::Send(ScriptedRequest { text: get("/").text.repeat(3), n_requests: 3, ..get("/") })
    })
    .unwrap();
    assert_eq!(failures(memories.first()), [("read: closed before the answer", UserFailureStage::Read)]);
    assert_eq!((record.totals[count::REQUESTS], record.totals[names::ERRORS]), (4, 1));
}

fn an_answer_that_is_too_large_to_keep_is_a_failure_unless_its_beginning_is_enough() {
    let address = answering_server(|stream, _| {
        let length = 20 << 20;
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes())?;
        stream.write_all(&vec![b'x'; length])
    });
    let (_, memories) = run(&virtual_users(&url(address), &[], population(1)), |_, memory| match memory.len() {
        2 => ScriptedAction::Send(get("/")),
        // An answer that nobody reads may have any size.
        4 => ScriptedAction::Send(ScriptedRequest { detail: AnswerDetail::Status, ..get("/") }),
        6 => ScriptedAction::Send(ScriptedRequest { detail: AnswerDetail::Beginning, ..get("/") }),
        _ => ScriptedAction::Leave,
    })
    .unwrap();
    let words = "read: the answer is larger than the 16 MiB that are kept of one";
    assert_eq!(failures(memories.first()), [(words, UserFailureStage::Read)]);
    let [status, beginning] = answers(memories.first())[..] else { panic!("two are no failures") };
    assert_eq!((status.body_bytes, beginning.body_bytes), (20 << 20, 20 << 20));
    assert_eq!((status.message.len(), beginning.message.len()), (0, 512 << 10), "the head is in the beginning");
    assert!(beginning.message.starts_with("HTTP/1.1 200 OK\r\n"));
}

fn bytes_that_nobody_asked_for_end_the_connection() {
    let address = answering_server(|stream, _| stream.write_all([ok("a"), ok("b")].concat().as_bytes()));
    let (record, memories) = run(&virtual_users(&url(address), &[], population(1)), ask_until(3, page)).unwrap();
    let connections: Vec<u32> = answers(memories.first()).iter().map(|heard| heard.nth_connection).collect();
    assert_eq!((connections, failures(memories.first())), (vec![0, 1, 2], vec![]));
    assert!(record.errors["parse: bytes after the end of the response"] >= 2, "{:?}", record.errors);
}

fn an_answer_may_end_with_its_connection() {
    // The connection ends even if the head promised otherwise.
    let address = answering_server(|stream, _| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\nuntil the end")?;
        Err(std::io::ErrorKind::ConnectionAborted.into())
    });
    let (record, memories) = run(&virtual_users(&url(address), &[], population(1)), ask_until(3, page)).unwrap();
    assert!(answers(memories.first()).iter().all(|heard| heard.message.ends_with("\r\n\r\nuntil the end")));
    assert_eq!((answers(memories.first()).len(), record.totals[names::ERRORS]), (3, 0));
}

fn a_server_that_refuses_is_not_stormed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // One answer, then the listener is closed.
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        read_request(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").unwrap();
    });
    let (_, memories) = run(&virtual_users(&url(address), &[], population(1)), ask_until(4, page)).unwrap();
    assert_eq!(failures(memories.first()), [("connect: connection refused", UserFailureStage::Connect); 3]);
    let ends = memories.first().iter().filter_map(|told| match told {
        UserEvent::Failed { ended_at, .. } => Some(*ended_at),
        _ => None,
    });
    let ends: Vec<Nanos> = ends.collect();
    assert!(ends[1] - ends[0] >= Nanos::from_millis(10) && ends[2] - ends[1] >= Nanos::from_millis(20), "{ends:?}");
}

fn nobody_there_ends_the_trial() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let outcome = run(&virtual_users(&url(address), &[], population(2)), |_, _| ScriptedAction::Send(get("/")));
    let error = outcome.map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot connect to http://{address}: ")), "{error}");
}
