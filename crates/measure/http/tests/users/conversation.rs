//! Requests and answers of users without faults.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use fathom_engine::{
    TestKind, TrialContext,
    pace::{ArrivalProcess, Profile},
};
use fathom_http::{
    HttpClosed, names,
    users::{AnswerDetail, BatchPosition, BodyFraming, MeasurePhase, UserArrivals},
};
use fathom_model::{
    Endpoints, Phases, Role, Settings, Side,
    names::{count, distribution},
    units::{Nanos, PerSec},
};
use fathom_sys::{clock, policy::Policy};

use crate::{
    common::{over_both, read_request},
    harness::{LONG, answering_server, ok, population, run, run_for, server, target, url, virtual_users},
    scripted_users::{ScriptedAction, ScriptedRequest, ScriptedUsers, UserEvent, answers, get},
};

over_both! {
    what_is_asked_next_depends_on_the_answer
    a_message_comes_whole_in_however_many_pieces
    a_large_body_is_given_whole_or_thrown_away
    an_answer_to_head_has_no_body
    answers_to_a_pipeline_come_in_order_and_the_last_ends_it
    a_user_goes_from_server_to_server
    a_connection_is_closed_when_the_user_hangs_up
    a_conversation_over_tls
    users_who_wait_are_woken
    the_window_is_told_at_its_changes
    the_record_counts_as_the_closed_load_does
}

fn what_is_asked_next_depends_on_the_answer() {
    let address = answering_server(|stream, request| match target(request) {
        "/login" => stream.write_all(ok("token-17").as_bytes()),
        "/item/token-17" => stream.write_all(ok("the item").as_bytes()),
        _ => stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
    });
    let (record, memories) =
        run(&virtual_users(&url(address), &[], population(3)), |_, memory| match answers(memory)[..] {
            [] => ScriptedAction::Send(get("/login")),
            [login] => ScriptedAction::Send(get(&format!("/item/{}", login.message.split("\r\n\r\n").nth(1).unwrap()))),
            _ => ScriptedAction::Leave,
        })
        .unwrap();
    for users in memories.by_slot.values() {
        let heard: Vec<&str> = answers(&users[0]).iter().map(|heard| heard.message.as_str()).collect();
        assert_eq!(heard, [ok("token-17"), ok("the item")]);
    }
    assert_eq!((memories.by_slot.len(), record.totals[count::REQUESTS]), (3, 6));
    assert_eq!(record.totals[count::CONNECTIONS], 3);
}

fn a_message_comes_whole_in_however_many_pieces() {
    const INTERIM: &str = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    const FINAL: &str =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x\r\nlo\r\n0\r\nTrailer: t\r\n\r\n";
    let address = answering_server(|stream, request| match target(request) {
        "/whole" => stream.write_all([INTERIM, FINAL].concat().as_bytes()),
        _ => [INTERIM, FINAL].concat().as_bytes().iter().try_for_each(|byte| stream.write_all(&[*byte])),
    });
    let (_, memories) =
        run(&virtual_users(&url(address), &[], population(1)), |_, memory| match answers(memory).len() {
            0 => ScriptedAction::Send(get("/whole")),
            1..=5 => ScriptedAction::Send(get("/pieces")),
            _ => ScriptedAction::Leave,
        })
        .unwrap();
    let heard = answers(memories.first());
    assert_eq!(heard.len(), 6);
    for heard in heard {
        assert_eq!((heard.message.as_str(), heard.nth_connection), (FINAL, 0));
        assert_eq!(heard.body_bytes, FINAL.split_once("\r\n\r\n").unwrap().1.len() as u64);
        let [sent, first, ended] = heard.times;
        assert!(sent <= first && first <= ended && ended > sent, "{:?}", heard.times);
    }
}

fn a_large_body_is_given_whole_or_thrown_away() {
    let body: String = (0..60_000_u32).map(|n| char::from(b'a' + u8::try_from(n % 26).unwrap())).collect();
    let answer = ok(&body);
    let address = answering_server({
        let answer = answer.clone();
        move |stream, _| stream.write_all(answer.as_bytes())
    });
    let (record, memories) =
        run(&virtual_users(&url(address), &[], population(1)), |_, memory| match answers(memory).len() {
            0 | 2 => ScriptedAction::Send(get("/")),
            1 | 3 => ScriptedAction::Send(ScriptedRequest { detail: AnswerDetail::Status, ..get("/") }),
            _ => ScriptedAction::Leave,
        })
        .unwrap();
    let heard = answers(memories.first());
    assert!(heard.iter().all(|heard| heard.body_bytes == body.len() as u64));
    let is_whole: Vec<bool> = heard.iter().map(|heard| heard.message == answer).collect();
    assert_eq!(is_whole, [true, false, true, false]);
    assert!(heard[1].message.is_empty());
    assert_eq!(record.totals[count::BYTES_RECEIVED], 4 * answer.len() as u64);
}

fn an_answer_to_head_has_no_body() {
    let address = answering_server(|stream, request| {
        let body = if request.starts_with("HEAD") { "" } else { "hello" };
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{body}").as_bytes())
    });
    let (record, memories) =
        run(&virtual_users(&url(address), &[], population(1)), |_, memory| match answers(memory).len() {
            0 | 2 => ScriptedAction::Send(ScriptedRequest {
                text: "HEAD / HTTP/1.1\r\nHost: here\r\n\r\n".to_owned(),
                framing: BodyFraming::NoBody,
                ..get("/")
            }),
            1 => ScriptedAction::Send(get("/")),
            _ => ScriptedAction::Leave,
        })
        .unwrap();
    let bodies: Vec<u64> = answers(memories.first()).iter().map(|heard| heard.body_bytes).collect();
    assert_eq!((bodies, record.totals[names::ERRORS]), (vec![0, 5, 0], 0));
}

fn answers_to_a_pipeline_come_in_order_and_the_last_ends_it() {
    let address = answering_server(|stream, request| stream.write_all(ok(target(request)).as_bytes()));
    let (record, memories) = run(&virtual_users(&url(address), &[], population(1)), |_, memory| {
        let begin = answers(memory).len();
        let text: String = (begin..begin + 3).map(|n| get(&format!("/{n}")).text).collect();
        if begin < 6 {
            ScriptedAction::Send(ScriptedRequest { text, n_requests: 3, ..get("/") })
        } else {
            ScriptedAction::Leave
        }
    })
    .unwrap();
    let heard: Vec<(String, BatchPosition)> =
        answers(memories.first()).iter().map(|heard| (heard.message.clone(), heard.place)).collect();
    let expected =
        (0..6).map(|n| (ok(&format!("/{n}")), if n % 3 == 2 { BatchPosition::Last } else { BatchPosition::Within }));
    assert_eq!(heard, expected.collect::<Vec<_>>());
    assert_eq!((record.totals[count::CONNECTIONS], record.totals[count::REQUESTS]), (1, 6));
}

fn a_user_goes_from_server_to_server() {
    let [one, two] =
        ["one", "two"].map(|name| answering_server(move |stream, _| stream.write_all(ok(name).as_bytes())));
    // The third URL is another page of the first server.
    let urls = format!("http://{one}/\nhttp://{two}/\nhttp://{one}/page");
    let (_, memories) =
        run(&virtual_users(&urls, &[], population(1)), |_, memory| match [0, 2, 1, 1, 0].get(answers(memory).len()) {
            Some(server) => ScriptedAction::Send(ScriptedRequest { server: *server, ..get("/") }),
            None => ScriptedAction::Leave,
        })
        .unwrap();
    let heard: Vec<(u32, &str)> = answers(memories.first())
        .iter()
        .map(|heard| (heard.nth_connection, heard.message.rsplit("\r\n").next().unwrap()))
        .collect();
    assert_eq!(heard, [(0, "one"), (0, "one"), (1, "two"), (1, "two"), (2, "one")]);
}

fn a_connection_is_closed_when_the_user_hangs_up() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let address = server({
        let seen = Arc::clone(&seen);
        move |mut stream, nth| {
            while read_request(&mut stream).is_some() {
                seen.lock().unwrap().push(nth);
                stream.write_all(ok("").as_bytes()).unwrap();
            }
        }
    });
    let (record, memories) = run(&virtual_users(&url(address), &[], population(1)), |_, memory| {
        let hung_up = matches!(memory[..], [.., UserEvent::NextAction { .. }, UserEvent::NextAction { .. }]);
        match answers(memory).len() {
            2 | 4 if !hung_up => ScriptedAction::CloseConnection,
            6 => ScriptedAction::Leave,
            _ => ScriptedAction::Send(get("/")),
        }
    })
    .unwrap();
    let connections: Vec<u32> = answers(memories.first()).iter().map(|heard| heard.nth_connection).collect();
    assert_eq!((connections, seen.lock().unwrap().as_slice()), (vec![0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2].as_slice()));
    assert_eq!((record.totals[count::CONNECTIONS], record.totals[names::CLOSED_BY_SERVER]), (3, 0));
}

fn a_conversation_over_tls() {
    let settings = Settings::default().with("scheme", "https").with("size", "100000");
    let role = Role {
        test: "users".to_owned(),
        kind: HttpClosed.name().to_owned(),
        side: Side::Responder,
        settings: settings.complete(HttpClosed.options()).unwrap(),
        phases: LONG,
        address: None,
        interface: None,
        peer: Endpoints::new(),
        cores: Vec::new(),
        meeting: fathom_model::PeerAddresses::default(),
        seed: 1,
    };
    let responder = HttpClosed.prepare(&role, &Policy::anything()).unwrap();
    let urls = format!("https://{}", responder.endpoints()["address"]);
    let there = TrialContext::new(clock::now(), LONG);
    let stop = there.stop.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || responder.run(&there).unwrap());
        let outcome = run(&virtual_users(&urls, &[("insecure", "true")], population(2)), |_, memory| {
            match answers(memory).len() {
                0..3 => ScriptedAction::Send(get("/")),
                3 => ScriptedAction::Send(ScriptedRequest { detail: AnswerDetail::Status, ..get("/") }),
                _ => ScriptedAction::Leave,
            }
        });
        stop.finish();
        let (record, memories) = outcome.unwrap();
        let heard = answers(memories.first());
        for heard in &heard[..3] {
            let body = heard.message.split_once("\r\n\r\n").unwrap().1;
            assert_eq!((body.len(), heard.body_bytes), (100_000, 100_000));
        }
        assert_eq!((heard[3].message.as_str(), heard[3].body_bytes), ("", 100_000));
        assert_eq!((record.totals[count::REQUESTS], record.totals[names::ERRORS]), (8, 0), "{:?}", record.errors);
        assert_eq!(record.distributions[distribution::TLS_TIME].count(), 2);
        assert_eq!(record.facts[names::facts::TLS_VERSION], "TLSv1.3");
    });
}

fn users_who_wait_are_woken() {
    let address = answering_server(|stream, _| stream.write_all(ok("").as_bytes()));
    let (_, memories) = run(&virtual_users(&url(address), &[], population(4)), |_, memory| match &memory[..] {
        [.., UserEvent::Answered(_), UserEvent::NextAction { .. }] => ScriptedAction::Wait,
        _ if answers(memory).len() == 2 => ScriptedAction::Leave,
        _ => ScriptedAction::Send(get("/")),
    })
    .unwrap();
    for users in memories.by_slot.values() {
        let turns = users[0].iter().filter(|told| matches!(told, UserEvent::NextAction { .. })).count();
        assert_eq!((turns, answers(&users[0]).len()), (5, 2), "{:?}", users[0]);
    }
}

fn the_window_is_told_at_its_changes() {
    let address = answering_server(|stream, _| stream.write_all(ok("").as_bytes()));
    let phases = Phases { warmup_max_ns: Nanos::from_millis(40), measure_ns: Nanos::from_millis(60), ..LONG };
    let (_, memories) =
        run_for(phases, &virtual_users(&url(address), &[], population(2)), |_, _| ScriptedAction::Send(get("/")))
            .unwrap();
    assert_eq!(memories.phases, [MeasurePhase::WarmUp, MeasurePhase::Measured, MeasurePhase::Over]);
    // Users who decide to stop end the trial of their worker early.
    let session = TrialContext::new(clock::now(), LONG);
    let leaving = |_, memory: &Vec<UserEvent>| {
        if answers(memory).is_empty() { ScriptedAction::Send(get("/")) } else { ScriptedAction::Leave }
    };
    let arrivals = UserArrivals::Arrivals {
        profile: Profile::steady(PerSec::new(1_000.0).unwrap()).unwrap(),
        process: ArrivalProcess::Constant,
        n_slots: 4,
    };
    let outcome = virtual_users(&url(address), &[], arrivals)
        .run(&session, |row| Ok(ScriptedUsers::new(row, &leaving).ending_after(20)));
    let (record, memories) = outcome.unwrap();
    assert_eq!(memories[0].phases, [MeasurePhase::Measured, MeasurePhase::Over]);
    assert!(memories[0].finished_at < memories[0].start + Nanos::from_secs(10) && record.complete);
}

fn the_record_counts_as_the_closed_load_does() {
    let address = answering_server(|stream, request| match target(request) {
        "/bad" => stream.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno"),
        _ => stream.write_all(ok("hello").as_bytes()),
    });
    let (record, _) = run(&virtual_users(&url(address), &[], population(2)).count_everything(), |_, memory| {
        match answers(memory).len() {
            3 => ScriptedAction::Send(get("/bad")),
            5 => ScriptedAction::Leave,
            _ => ScriptedAction::Send(get("/")),
        }
    })
    .unwrap();
    let total = |name: &str| record.totals[name];
    assert_eq!((total(names::STATUS[0]), total(names::STATUS[3]), total(count::REQUESTS)), (8, 2, 10));
    assert_eq!((total(names::ATTEMPTS), total(names::ERRORS), total(names::UNFINISHED)), (10, 0, 0));
    assert_eq!((total(names::BODY_BYTES), total(names::LENGTH_MISMATCHES)), (44, 2));
    for name in [distribution::SERVICE_TIME, distribution::FIRST_BYTE, distribution::DOWNLOAD_TIME, names::TOTAL_TIME] {
        assert_eq!(record.distributions[name].count(), 10, "{name}");
    }
    assert_eq!(record.distributions[distribution::CONNECT_TIME].count(), 2);
    assert!(record.facts[names::facts::HEAD].starts_with("HTTP/1.1 "));
    assert!(["http-status", "reactor"].iter().all(|id| record.notes.iter().any(|note| note.id == *id)));
    assert_eq!(record.measured_ns.0, Nanos::ZERO);
}
