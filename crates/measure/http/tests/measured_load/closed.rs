//! The kind `http_closed` over loopback, against fathom's responder and against servers that misbehave.

use std::{
    io::{ErrorKind, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    thread,
};

use crate::{
    common::{over_both, read_request},
    harness::{self, PHASES, role, server, server_of},
};
use fathom_engine::{Error, TestKind};
use fathom_http::{HttpClosed, names};
use fathom_model::{
    Derivation, Phases, Record, Side,
    names::{count, distribution},
    units::Nanos,
};
use fathom_sys::{clock, policy::Policy};

fn both(options: &[(&str, &str)]) -> (Record, Record) {
    harness::run_both_sides(&HttpClosed, options)
}

/// Runs the initiator against any server.
fn against(address: SocketAddr, options: &[(&str, &str)]) -> Result<Record, Error> {
    harness::run_against(&HttpClosed, PHASES, address, options)
}

/// The same, with a given measurement time.
fn against_for(measure_ns: Nanos, address: SocketAddr, options: &[(&str, &str)]) -> Result<Record, Error> {
    harness::run_against(&HttpClosed, Phases { measure_ns, ..PHASES }, address, options)
}

over_both! {
    both_sides_count_the_same_requests
    every_metric_follows_from_what_is_recorded
    a_number_of_requests_is_kept_exactly
    head_gets_no_body_and_headers_are_sent
    every_framing_of_an_answer_is_understood
    an_answer_that_comes_byte_by_byte_is_put_together
    a_server_that_closes_after_each_answer_is_connected_to_again
    a_pipeline_keeps_several_requests_under_way_and_counts_each_once
    what_was_sent_behind_the_last_answer_of_a_connection_is_asked_again
    a_connection_is_closed_after_the_number_of_requests_that_it_may_have
    what_is_not_http_is_counted_as_an_error_by_its_name
    an_answer_that_breaks_off_is_an_error_and_the_others_go_on
    answers_other_than_2xx_count_and_are_told
    a_server_that_never_answers_times_out
    a_server_that_dies_in_the_middle_leaves_a_record_with_its_errors
    a_target_that_takes_no_connection_ends_the_trial_at_once
    what_cannot_be_asked_is_refused_before_the_start
    the_connections_of_a_trial_leave_no_port_in_time_wait
}

fn the_connections_of_a_trial_leave_no_port_in_time_wait() {
    let (told, ends) = mpsc::channel();
    let address = server(move |stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
        // Either another request or the end: the number of requests per connection is random.
        match stream.peek(&mut [0]) {
            Ok(1..) => Ok(()),
            end => {
                let _ = told.send(end.map_err(|error| error.kind()));
                Err(ErrorKind::BrokenPipe.into())
            }
        }
    });
    against(address, &[("connections", "3"), ("count", "6")]).unwrap();
    assert_eq!(ends.recv(), Ok(Err(ErrorKind::ConnectionReset)));
    assert!(ends.try_iter().all(|end| end == Err(ErrorKind::ConnectionReset)));
}

fn both_sides_count_the_same_requests() {
    let (asked, answered) = both(&[("connections", "8"), ("threads", "2")]);
    let requests = asked.totals[count::REQUESTS];
    let possible = requests..=requests + asked.totals[names::UNFINISHED];
    assert!(requests > 0 && possible.contains(&answered.totals[count::REQUESTS]), "{possible:?}");
    assert_eq!(asked.totals[count::CONNECTIONS], 8);
    assert_eq!((asked.totals[names::ERRORS], asked.totals[names::STATUS[0]]), (0, requests));
    assert!(asked.complete && answered.complete && asked.errors.is_empty());
    let service = &asked.distributions[distribution::SERVICE_TIME];
    let first_byte = &asked.distributions[distribution::FIRST_BYTE];
    assert!(service.count() > 0 && service.count() == first_byte.count());
    assert!(service.quantile(0.5) >= first_byte.quantile(0.5));
}

fn every_metric_follows_from_what_is_recorded() {
    let (asked, _) = both(&[("count", "10")]);
    let counted = |counter: &str| asked.totals.contains_key(counter) && asked.timeline.counters.contains_key(counter);
    for metric in HttpClosed.metrics() {
        let is_recorded = match &metric.from {
            Derivation::Quantile { distribution, .. } => asked.distributions.contains_key(&**distribution),
            Derivation::Rate { counter, .. } | Derivation::Total { counter, .. } | Derivation::Cost { counter, .. } => {
                counted(counter)
            }
            Derivation::Share { part, whole } => counted(&part.1) && counted(&whole.1),
            Derivation::Missing { sent, arrived } => counted(&sent.1) && counted(&arrived.1),
            other => panic!("nothing about requests follows by {other:?}"),
        };
        assert!(is_recorded, "{}", metric.name);
    }
}

fn a_number_of_requests_is_kept_exactly() {
    let options = [("count", "1001"), ("connections", "3"), ("threads", "2"), ("size", "100KiB")];
    let (asked, answered) = both(&options);
    assert_eq!((asked.totals[count::REQUESTS], answered.totals[count::REQUESTS]), (1001, 1001));
    assert_eq!(asked.distributions[distribution::SERVICE_TIME].count(), 1001);
    let span = asked.whole_span().expect("all of it is measured");
    assert_ne!(span.0 % PHASES.interval_ns.0, 0, "the window ends with the last answer and not with an interval");
    assert_eq!(asked.distributions[distribution::CONNECT_TIME].count(), 3);
    assert!(asked.totals[count::BYTES_RECEIVED] > 1001 * 100 * 1024);
    assert_eq!(asked.totals[count::BYTES_RECEIVED], answered.totals[count::BYTES_SENT]);
    assert_eq!((asked.totals[count::CONNECTIONS], answered.totals[count::CONNECTIONS]), (3, 3));
}

fn head_gets_no_body_and_headers_are_sent() {
    let (asked, answered) = both(&[("method", "HEAD"), ("count", "50"), ("header", "X-A: b\nConnection: close")]);
    assert_eq!((asked.totals[count::REQUESTS], answered.totals[count::REQUESTS]), (50, 50));
    assert!(asked.totals[count::BYTES_RECEIVED] < 50 * 300);
    assert_eq!((asked.totals[names::CLOSED_BY_SERVER], asked.totals[count::CONNECTIONS]), (50, 50));
}

fn every_framing_of_an_answer_is_understood() {
    let texts = [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ];
    for text in texts {
        let address = server_of(text.as_bytes());
        let record = against(address, &[("connections", "2"), ("count", "20")]).unwrap();
        assert_eq!((record.totals[count::REQUESTS], record.totals[names::ERRORS]), (20, 0), "{text}");
        assert_eq!(record.totals[count::BYTES_RECEIVED], 20 * text.len() as u64, "{text}");
        assert_eq!(record.totals[count::CONNECTIONS], 2, "{text}");
    }
}

fn an_answer_that_comes_byte_by_byte_is_put_together() {
    let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n";
    let address = server(move |stream| {
        stream.set_nodelay(true)?;
        text.bytes().try_for_each(|byte| stream.write_all(&[byte]))
    });
    let record = against(address, &[("connections", "2"), ("count", "20")]).unwrap();
    assert_eq!((record.totals[count::REQUESTS], record.totals[names::ERRORS]), (20, 0));
    let median = |name: &str| record.distributions[name].quantile(0.5);
    assert!(median(distribution::FIRST_BYTE) < median(distribution::SERVICE_TIME));
}

fn a_server_that_closes_after_each_answer_is_connected_to_again() {
    for text in
        ["HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.0 200 OK\r\n\r\nhello"]
    {
        let address = server(move |stream| {
            stream.write_all(text.as_bytes())?;
            Err(std::io::ErrorKind::Other.into())
        });
        let record = against(address, &[("connections", "3"), ("count", "30")]).unwrap();
        assert_eq!((record.totals[count::REQUESTS], record.totals[names::ERRORS]), (30, 0), "{text}");
        assert_eq!((record.totals[count::CONNECTIONS], record.totals[names::CLOSED_BY_SERVER]), (30, 30), "{text}");
    }
}

fn a_pipeline_keeps_several_requests_under_way_and_counts_each_once() {
    let (asked, answered) = both(&[("pipeline", "7"), ("count", "1000"), ("connections", "3")]);
    assert_eq!((asked.totals[count::REQUESTS], answered.totals[count::REQUESTS]), (1000, 1000));
    assert_eq!(asked.distributions[distribution::SERVICE_TIME].count(), 1000);
    assert_eq!((asked.totals[names::ERRORS], asked.totals[count::CONNECTIONS]), (0, 3));
}

fn what_was_sent_behind_the_last_answer_of_a_connection_is_asked_again() {
    let address = server(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
        read_request(stream).ok_or(std::io::ErrorKind::UnexpectedEof)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")?;
        // A close with unread requests would be a reset, which may overtake the answers (RFC 9112 section 9.6).
        stream.shutdown(std::net::Shutdown::Write)?;
        while read_request(stream).is_some() {}
        Err(std::io::ErrorKind::Other.into())
    });
    let record = against(address, &[("pipeline", "4"), ("count", "20"), ("connections", "1")]).unwrap();
    assert_eq!((record.totals[count::REQUESTS], record.totals[names::ERRORS]), (20, 0), "{:?}", record.errors);
    assert_eq!((record.totals[count::CONNECTIONS], record.totals[names::CLOSED_BY_SERVER]), (10, 10));
    assert!(record.totals[names::RESENT] >= 9);
}

fn a_connection_is_closed_after_the_number_of_requests_that_it_may_have() {
    for (per_connection, pipeline, n_connections) in [("1", "1", 60), ("4", "1", 15), ("4", "3", 15), ("3", "8", 20)] {
        let options = [("per-connection", per_connection), ("pipeline", pipeline), ("count", "60")];
        let (asked, answered) = both(&[&options[..], &[("connections", "1")]].concat());
        assert_eq!((asked.totals[count::REQUESTS], asked.totals[names::ERRORS]), (60, 0));
        assert_eq!(asked.totals[count::CONNECTIONS], n_connections, "{options:?}");
        assert_eq!(answered.totals[count::REQUESTS], 60);
    }
}

fn what_is_not_http_is_counted_as_an_error_by_its_name() {
    let cases = [
        ("SSH-2.0-OpenSSH_9.2\r\n", "parse: not HTTP/1"),
        ("HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n", "parse: malformed content length"),
    ];
    for (text, error) in cases {
        let address = server(move |stream| stream.write_all(text.as_bytes()));
        let record = against(address, &[("connections", "2")]).unwrap();
        assert_eq!(record.totals[count::REQUESTS], 0);
        assert!(record.errors[error] > 0 && record.errors.len() == 1, "{:?}", record.errors);
        assert_eq!(record.totals[names::ERRORS], record.errors[error]);
        assert!(record.errors[error] < 100, "a server that is broken is asked less and less: {:?}", record.errors);
    }
}

fn an_answer_that_breaks_off_is_an_error_and_the_others_go_on() {
    let address = server(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")?;
        if read_request(stream).is_some() {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx")?;
        }
        Err(std::io::ErrorKind::Other.into())
    });
    let record = against(address, &[("connections", "1"), ("count", "20")]).unwrap();
    assert_eq!((record.totals[count::REQUESTS], record.totals[names::ERRORS]), (10, 10));
    assert_eq!(record.errors["read: closed within the answer"], 10);
}

fn answers_other_than_2xx_count_and_are_told() {
    let address = server(|stream| stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"));
    let record = against(address, &[("connections", "1"), ("count", "5")]).unwrap();
    let counted = [count::REQUESTS, count::REFUSED_REQUESTS, "status_404"].map(|name| record.totals[name]);
    assert_eq!(counted, [5; 3]);
    assert!(record.notes.iter().any(|note| note.id == "http-status" && note.text.contains("5 × 404")));
}

fn a_server_that_never_answers_times_out() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = [("connections", "2"), ("timeout", "30ms")];
    let record = against_for(Nanos::from_millis(600), silent.local_addr().unwrap(), &options).unwrap();
    assert_eq!(record.totals[count::REQUESTS], 0);
    assert!(record.complete && record.errors["read: timeout"] >= 2, "{:?}", record.errors);
}

fn a_server_that_dies_in_the_middle_leaves_a_record_with_its_errors() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let dying = thread::spawn(move || {
        let mut streams: Vec<TcpStream> = listener.incoming().take(2).map(Result::unwrap).collect();
        for _ in 0..10 {
            for stream in &mut streams {
                read_request(stream).unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            }
        }
    });
    let record = against_for(Nanos::from_millis(600), address, &[("connections", "2")]).unwrap();
    dying.join().unwrap();
    assert_eq!(record.totals[count::REQUESTS], 20);
    assert!(record.complete && record.errors["connect: connection refused"] > 0, "{:?}", record.errors);
    assert!(record.totals[names::ERRORS] < 100, "{:?}", record.errors);
}

fn a_target_that_takes_no_connection_ends_the_trial_at_once() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let begin = clock::now();
    let error = against_for(Nanos::from_secs(60), address, &[("connections", "4"), ("threads", "2")]).unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot connect to http://{address}")), "{error}");
    let cause = std::error::Error::source(&error).and_then(std::error::Error::source).unwrap();
    assert!(cause.to_string().contains("refused"), "{cause}");
    assert!(clock::now() - begin < Nanos::from_secs(20), "it does not wait for the end of its phases");
}

fn what_cannot_be_asked_is_refused_before_the_start() {
    let refused = |options: &[(&str, &str)]| {
        let outcome = HttpClosed.prepare(&role(&HttpClosed, Side::Initiator, options), &Policy::anything());
        outcome.err().map(|error| (error.to_string(), error.hint().map(str::to_owned))).unwrap()
    };
    let (text, hint) = refused(&[("url", "ftp://a")]);
    assert!(text.contains("`ftp://a` does not begin with http://") && hint.is_some(), "{text}");
    let (text, hint) = refused(&[("url", "http://a:b")]);
    assert!(text.contains("has a port that is not a number") && hint.is_some(), "{text}");
    let to = ("url", "http://127.0.0.1");
    assert!(refused(&[to, ("header", "nonsense")]).0.contains("`nonsense` is not a header field"));
    assert!(refused(&[to, ("path", "a b")]).0.contains("`a b`"), "{:?}", refused(&[to, ("path", "a b")]));
    assert!(refused(&[]).0.contains("`address` from the other side"));
}
