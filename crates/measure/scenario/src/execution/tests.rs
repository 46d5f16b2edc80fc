//! Whole scenarios in virtual time: a small engine drives users, and a closure answers.

use std::{cmp::Reverse, collections::BinaryHeap, fs, sync::Arc};

use fathom_engine::TestKind as _;
use fathom_http::users::{
    BatchPosition, MeasurePhase, UserAction, UserAnswer, UserFailure, UserFailureStage, UserSlot, Users as _,
};
use fathom_model::{
    Endpoints, PeerAddresses, Phases, Role, Settings, Side,
    steps::{StepKind, StepRecord},
    units::Nanos,
};

use fathom_sys::policy::Policy;

use super::{
    kind::AppScenario,
    loaded_scenario::LoadedScenario,
    scenario_users::{RunSettings, ScenarioResults, ScenarioUsers, ScenarioWorkerSpec, SharedState, ThinkMode},
    step_recorder,
    trace::Trace,
};

/// The time of every answer of the server.
const SERVICE: Nanos = Nanos::from_millis(10);

/// The next event.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    Turn,
    /// The server and the request.
    Answer(u16, String),
}

/// The parameters of a run.
struct ScenarioRun<'a> {
    text: &'a str,
    n_users: u32,
    until: Nanos,
    think_mode: ThinkMode,
    /// The interval between the arrivals of users.
    spacing: Nanos,
    files: &'a [(&'a str, &'a str)],
}

impl<'a> ScenarioRun<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            text,
            n_users: 1,
            until: Nanos::from_secs(1),
            think_mode: ThinkMode::Timed,
            spacing: Nanos::ZERO,
            files: &[],
        }
    }

    fn run_settings(&self, script: &LoadedScenario) -> RunSettings {
        let settings = Settings::default();
        let arrivals = script.arrivals(&settings, 1);
        RunSettings {
            iterations: script.iterations(&settings),
            think_mode: self.think_mode,
            is_population: matches!(arrivals, Ok(fathom_http::users::UserArrivals::Population { .. })),
            timeout: Nanos::from_secs(5),
        }
    }

    /// Runs it; `server` receives the index of the server and the request, and returns an answer or a failure.
    fn play(&self, mut server: impl FnMut(u16, &str) -> Result<String, &'static str>) -> ScenarioRunResult {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in self.files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let script = LoadedScenario::read(self.text.to_owned(), "test".to_owned(), Some(folder.path().to_owned()));
        let script = script.unwrap_or_else(|unsound| panic!("{}", unsound.shown));
        let program = script.compile(&script.urls(Some("http://h/")).unwrap(), &Policy::anything()).unwrap().0;
        let shared = Arc::new(SharedState::new(Arc::new(program), self.run_settings(&script)));
        let wall_ahead = Nanos::from_secs(1_700_000_000);
        let standing = ScenarioWorkerSpec {
            idx: 0,
            n_workers: 1,
            n_slots: self.n_users,
            start: Nanos::ZERO,
            wall_clock_offset: wall_ahead,
            seed: 7,
        };
        let trace = (self.think_mode == ThinkMode::Immediate).then(Trace::default);
        let mut users = ScenarioUsers::new(&shared, standing, trace);
        users.on_phase(MeasurePhase::Measured, Nanos::ZERO);
        let mut played = ScenarioRunResult { shared, requests: Vec::new(), left: Vec::new(), results: None };
        let mut events = BinaryHeap::new();
        for slot in 0..self.n_users {
            events.push(Reverse((Nanos(self.spacing.0 * u64::from(slot)), slot, Event::Arrival)));
        }
        let mut waits: Vec<u32> = Vec::new();
        let mut now = Nanos::ZERO;
        while !users.is_over() {
            while let Some(slot) = users.next_woken(now) {
                waits.retain(|waiting| *waiting != slot.0);
                events.push(Reverse((now, slot.0, Event::Turn)));
            }
            // Waiting users are polled every 10 ms, as in the engine.
            let idle = if waits.is_empty() { None } else { Some(now + Nanos::from_millis(10)) };
            let due = events.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = due.into_iter().chain(idle).min() else { break };
            now = next;
            if now > self.until {
                break;
            }
            if due.is_none_or(|due| due > now) {
                continue;
            }
            let Some(Reverse((_, slot, event))) = events.pop() else { continue };
            let place = UserSlot(slot);
            match event {
                Event::Arrival => users.arrive(place, now, Nanos::ZERO),
                Event::Turn => {}
                Event::Answer(of, request) => match server(of, &request) {
                    Ok(message) => users.answered(place, &answer(&message, now)),
                    Err(cause) => users.failed(place, &failure(cause, now)),
                },
            }
            match users.next_action(place, now) {
                UserAction::Send(ask) => {
                    let request = String::from_utf8_lossy(ask.bytes).into_owned();
                    played.requests.push((now, slot, request.clone()));
                    events.push(Reverse((now + SERVICE, slot, Event::Answer(ask.server, request))));
                }
                UserAction::Sleep { until } => events.push(Reverse((until, slot, Event::Turn))),
                UserAction::Wait => waits.push(slot),
                UserAction::Leave => played.left.push((now, slot)),
                UserAction::CloseConnection => panic!("no scenario says so"),
            }
        }
        played.results = Some(users.finish(now));
        played
    }
}

fn failure(cause: &str, now: Nanos) -> UserFailure<'_> {
    let stage = if cause.starts_with("connect") { UserFailureStage::Connect } else { UserFailureStage::Read };
    UserFailure { cause, stage, sent_at: now.since(SERVICE), ended_at: now }
}

fn answer(message: &str, now: Nanos) -> UserAnswer<'_> {
    UserAnswer {
        status: message[9..12].parse().unwrap(),
        message: message.as_bytes(),
        body_bytes: 0,
        sent_at: now.since(SERVICE),
        first_byte_at: now,
        ended_at: now,
        position: BatchPosition::Last,
        connection_number: 0,
    }
}

struct ScenarioRunResult {
    shared: Arc<SharedState>,
    requests: Vec<(Nanos, u32, String)>,
    left: Vec<(Nanos, u32)>,
    results: Option<ScenarioResults>,
}

impl ScenarioRunResult {
    fn results(&self) -> &ScenarioResults {
        self.results.as_ref().unwrap()
    }

    fn steps(&mut self) -> Vec<StepRecord> {
        let tallies = std::mem::take(&mut self.results.as_mut().unwrap().step_recorders);
        step_recorder::records(&self.shared.program.names, vec![tallies])
    }

    /// The first lines of the requests, without the version.
    fn lines(&self) -> Vec<&str> {
        self.requests.iter().map(|(_, _, request)| request.split(" HTTP/1.1").next().unwrap()).collect()
    }

    /// When requests were sent, in milliseconds.
    fn times(&self) -> Vec<u64> {
        self.requests.iter().map(|(at, ..)| at.0 / 1_000_000).collect()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it stands where servers fail, too")]
fn ok(fields: &str, body: &str) -> Result<String, &'static str> {
    Ok(format!("HTTP/1.1 200 OK\r\n{fields}\r\n{body}"))
}

fn counts(step: &StepRecord) -> (&str, u64, u64) {
    (&step.name, step.n_reached, step.n_passed)
}

const LOGIN: &str = r#"
closed 2 repeat 2
data accounts from accounts.csv

step login
  POST /login
  json {"user": "${accounts.user}", "password": "${accounts.password}"}
  expect 200
  take token = json $.token

step account
  GET /account/${accounts.user}
  Authorization: Bearer ${token}
  expect 200
  expect json $.user == "${accounts.user}"
"#;

const ACCOUNTS: [(&str, &str); 1] = [("accounts.csv", "user,password\nann,hush-1\nb b,\"hush\"\"2\"\n")];

fn shop(request: &str) -> Result<String, &'static str> {
    let user = if request.contains("ann") { "ann" } else { "b b" };
    match request.split(' ').nth(1).unwrap() {
        "/login" => ok("Content-Type: application/json\r\n", &format!(r#"{{"token":"t-{user}"}}"#)),
        path if path.starts_with("/account/") => ok("", &format!(r#"{{"user":"{user}"}}"#)),
        _ => Ok("HTTP/1.1 404 Not Found\r\n\r\n".to_owned()),
    }
}

#[test]
fn users_log_in_with_their_data_and_carry_what_they_took() {
    let mut played =
        ScenarioRun { n_users: 2, files: &ACCOUNTS, ..ScenarioRun::of(LOGIN) }.play(|_, request| shop(request));
    let ann: Vec<&str> =
        played.requests.iter().map(|(.., request)| request.as_str()).filter(|r| r.contains("ann")).collect();
    let body = r#"{"user": "ann", "password": "hush-1"}"#;
    let login = ann[0];
    assert!(
        login.starts_with(
            "POST /login HTTP/1.1\r\nHost: h\r\nUser-Agent: fathom\r\nContent-Type: application/json\r\nContent-Length:"
        ),
        "{login}"
    );
    assert!(login.ends_with(&format!(" {}\r\n\r\n{body}", body.len())), "{login}");
    assert!(ann[1].starts_with("GET /account/ann HTTP/1.1\r\n") && ann[1].contains("Authorization: Bearer t-ann\r\n"));
    let other = played.requests.iter().find(|(.., request)| request.contains("b b")).unwrap();
    assert!(other.2.contains(r#""password": "hush\"2""#), "{}", other.2);
    let walked = played.results();
    assert_eq!((walked.n_started, walked.measured.n_begun, walked.measured.n_finished), (2, 4, 4));
    assert_eq!(played.shared.n_present_max(), 2);
    let steps = played.steps();
    assert_eq!(steps.iter().map(counts).collect::<Vec<_>>(), [("login", 4, 4), ("account", 4, 4)]);
    assert_eq!(steps[0].times.max(), Some(SERVICE.0));
    assert_eq!(played.left.len(), 2);
}

#[test]
fn a_failure_is_counted_by_its_cause_with_an_example_that_tells_no_secret() {
    let mut played = ScenarioRun { n_users: 2, files: &ACCOUNTS, ..ScenarioRun::of(LOGIN) }.play(|_, request| {
        if request.contains("/account/ann") {
            return Ok("HTTP/1.1 500 No\r\nSet-Cookie: sid=abcd\r\n\r\nsorry, hush-1 t-ann".to_owned());
        }
        shop(request)
    });
    assert_eq!(played.results().measured.n_gave_up, 2);
    let steps = played.steps();
    assert_eq!(counts(&steps[1]), ("account", 4, 2));
    assert_eq!(
        steps[1].errors.iter().map(|(cause, n)| (cause.as_str(), *n)).collect::<Vec<_>>(),
        [("status 500, expected 200", 2)]
    );
    let [example] = steps[1].examples.as_slice() else { panic!("one example: {:?}", steps[1].examples) };
    assert!(example.request.starts_with("GET /account/ann HTTP/1.1\r\n"), "{example:?}");
    assert!(example.request.contains("Authorization: ***\r\n"), "{example:?}");
    assert_eq!(example.answer, "HTTP/1.1 500 No\r\nSet-Cookie: ***\r\n\r\nsorry, *** ***");
}

#[test]
fn what_was_not_found_and_what_does_not_hold_are_causes() {
    let mut played =
        ScenarioRun { n_users: 2, files: &ACCOUNTS, ..ScenarioRun::of(LOGIN) }.play(|_, request| match request {
            _ if request.contains("ann") && request.contains("/login") => ok("", "<html>"),
            _ if request.contains("/account/") => ok("", r#"{"user":"someone"}"#),
            _ => shop(request),
        });
    let steps = played.steps();
    assert_eq!(steps[0].errors.keys().collect::<Vec<_>>(), ["take token: json $.token finds nothing"]);
    assert_eq!(steps[1].errors.keys().collect::<Vec<_>>(), [r#"json $.user == "${accounts.user}" does not hold"#]);
}

#[test]
fn unique_rows_are_used_once_and_then_users_leave() {
    let text = LOGIN.replace("accounts.csv", "accounts.csv unique then stop").replace("closed 2 repeat 2", "closed 3");
    let played =
        ScenarioRun { n_users: 3, files: &ACCOUNTS, ..ScenarioRun::of(&text) }.play(|_, request| shop(request));
    assert_eq!((played.results().measured.n_finished, played.requests.len(), played.left.len()), (2, 4, 3));
    assert!(played.shared.is_exhausted());
    let text = text.replace("then stop", "then error");
    let played =
        ScenarioRun { n_users: 3, files: &ACCOUNTS, ..ScenarioRun::of(&text) }.play(|_, request| shop(request));
    assert_eq!(played.shared.failed_data_set(), Some(0));
}

#[test]
fn cookies_and_redirects_are_followed_as_browsers_do() {
    let text = "closed 1 repeat 1\nredirects 3\nstep login\n  POST /login\n  form\n    user = a b&c\n    n = 1\nstep next\n  GET http://other:81/x\n";
    let mut played = ScenarioRun::of(text).play(|server, request| {
        let line = request.split(" HTTP").next().unwrap();
        match (server, line) {
            (0, "POST /login") => {
                assert!(request.ends_with("Content-Length: 17\r\n\r\nuser=a+b%26c&n=1") || request.ends_with("user=a+b%26c&n=1"), "{request}");
                Ok("HTTP/1.1 302 F\r\nSet-Cookie: sid=1; Path=/\r\nSet-Cookie: deep=2; Path=/deep\r\nLocation: home?x\r\n\r\n".to_owned())
            }
            (0, "GET /home?x") => {
                assert!(request.contains("\r\nCookie: sid=1\r\n"), "{request}");
                Ok("HTTP/1.1 301 M\r\nLocation: http://other:81/y\r\n\r\n".to_owned())
            }
            (1, "GET /y") => {
                assert!(!request.contains("Cookie"), "{request}");
                assert!(request.contains("Host: other:81\r\n"), "{request}");
                ok("", "")
            }
            (1, "GET /x") => ok("", ""),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(played.lines(), ["POST /login", "GET /home?x", "GET /y", "GET /x"]);
    let steps = played.steps();
    assert_eq!(counts(&steps[0]), ("login", 1, 1));
    assert_eq!(steps[0].times.max(), Some(3 * SERVICE.0), "redirects belong to their step");
}

#[test]
fn a_redirect_that_never_ends_and_one_to_a_stranger_are_failures() {
    for (location, cause) in [
        ("/again", "more redirects than are followed"),
        ("http://stranger/", "a redirect to a server that the scenario does not name"),
    ] {
        let text = "closed 1 repeat 1\nredirects 2\nstep one\n  GET /\n";
        let mut played =
            ScenarioRun::of(text).play(|_, _| Ok(format!("HTTP/1.1 302 F\r\nLocation: {location}\r\n\r\n")));
        assert_eq!(played.steps()[0].errors.keys().collect::<Vec<_>>(), [cause]);
    }
}

#[test]
fn think_time_is_no_part_of_a_transaction_and_pace_counts_from_the_begin() {
    let text = "\
closed 1
user one
  pace 200ms
  transaction both
    step a
      GET /a
    think 50ms
    step b
      GET /b
";
    let mut played = ScenarioRun::of(text).play(|_, _| ok("", ""));
    assert_eq!(played.times()[..6], [0, 60, 200, 260, 400, 460]);
    let steps = played.steps();
    let kinds: Vec<_> = steps.iter().map(|step| (step.name.as_str(), step.kind, step.n_passed)).collect();
    assert_eq!(kinds[0], ("both", StepKind::Transaction, 5));
    assert_eq!(kinds[1..], [("a", StepKind::Step, 5), ("b", StepKind::Step, 5)]);
    assert_eq!(steps[0].times.max(), Some(2 * SERVICE.0));
}

#[test]
fn a_transaction_in_which_a_step_fails_has_failed() {
    let text = "closed 1 repeat 1\non failure continue\ntransaction both\n  step a\n    GET /a\n  step b\n    GET /b\n";
    let mut played = ScenarioRun::of(text)
        .play(|_, request| if request.contains("/a") { Err("reset by the server") } else { ok("", "") });
    let steps = played.steps();
    assert_eq!(steps.iter().map(counts).collect::<Vec<_>>(), [("both", 1, 0), ("a", 1, 0), ("b", 1, 1)]);
    assert_eq!(steps[0].errors.keys().collect::<Vec<_>>(), ["step a failed"]);
    assert_eq!(steps[1].errors.keys().collect::<Vec<_>>(), ["reset by the server"]);
}

#[test]
fn loops_conditions_and_parts_lead_where_they_say() {
    let text = "\
closed 1 repeat 1
part ask
  step ask
    GET /ask/${round}
    take state = json $.state
let state = \"new\"
user one
  repeat 2
    do ask
  while ${state} != \"done\" max 5
    pace 100ms
    do ask
  if ${state} == \"done\" and ${state} exists
    step yes
      GET /yes
  else
    step no
      GET /no
  if ${state} == \"open\"
    step never
      GET /never
  chance 100%
    step always
      GET /always
  else
    step other
      GET /other
";
    let mut n = 0;
    let mut played = ScenarioRun::of(text).play(|_, _| {
        n += 1;
        ok("", if n >= 5 { r#"{"state":"done"}"# } else { r#"{"state":"open"}"# })
    });
    let lines = ["/ask/1", "/ask/2", "/ask/1", "/ask/2", "/ask/3", "/yes", "/always"].map(|path| format!("GET {path}"));
    assert_eq!(played.lines(), lines);
    assert_eq!(played.times()[2..5], [20, 120, 220]);
    assert_eq!(counts(&played.steps()[0]), ("ask", 5, 5));
}

#[test]
fn setup_and_teardown_are_done_once_whatever_happens_between() {
    let text = "\
closed 1 repeat 2
user one
  on failure leave
  setup
    step in
      GET /in
  step work
    GET /work
  teardown
    step out
      GET /out
";
    let played = ScenarioRun::of(text).play(|_, _| ok("", ""));
    assert_eq!(played.lines(), ["GET /in", "GET /work", "GET /work", "GET /out"]);
    let played = ScenarioRun::of(text)
        .play(|_, request| if request.contains("work") { Err("no answer in time") } else { ok("", "") });
    assert_eq!(played.lines(), ["GET /in", "GET /work", "GET /out"]);
    let played = ScenarioRun::of(text).play(|_, _| Err("no answer in time"));
    assert_eq!(played.lines(), ["GET /in", "GET /out"], "what fails at leaving leads nowhere else");
    assert_eq!(played.results().all.n_gave_up, 2);
}

#[test]
fn who_meets_goes_on_together_and_one_that_never_fills_goes_on_after_its_time() {
    let text = "closed 3 repeat 1\nmeet 3 within 100ms\nstep go\n  GET /\n";
    let played =
        ScenarioRun { n_users: 3, spacing: Nanos::from_millis(20), ..ScenarioRun::of(text) }.play(|_, _| ok("", ""));
    assert_eq!(played.times(), [40, 40, 40]);
    let played =
        ScenarioRun { n_users: 3, spacing: Nanos::from_millis(70), ..ScenarioRun::of(text) }.play(|_, _| ok("", ""));
    assert_eq!(played.times(), [100, 100, 240], "two wait for a third in vain, who waits for others");
    assert_eq!(played.shared.program.meeting_points[0].n_unfilled(), 2);
}

#[test]
fn a_server_that_is_not_there_is_not_asked_in_a_busy_loop() {
    let text = "closed 1\nstep one\n  GET /\n";
    let mut played = ScenarioRun::of(text).play(|_, _| Err("connect: connection refused"));
    assert!(played.requests.len() <= 10, "{}", played.requests.len());
    assert_eq!(played.steps()[0].errors.keys().collect::<Vec<_>>(), ["connect: connection refused"]);
}

#[test]
fn a_loop_that_never_asks_holds_up_nobody() {
    let text = "closed 1\nlet x = \"a\"\nwhile ${x} == \"a\"\n  let y = \"b\"\n";
    if LoadedScenario::read(text.to_owned(), "test".to_owned(), None).is_ok() {
        let played = ScenarioRun { until: Nanos::from_millis(5), ..ScenarioRun::of(text) }.play(|_, _| ok("", ""));
        assert!(played.requests.is_empty());
    }
}

const ONCE: &str = "\
closed 1 repeat 3
if ${iteration} == 1
  step login
    POST /login
    take token = json $.token
step work
  GET /task/${iteration}
  Authorization: Bearer ${token}
";

#[test]
fn what_was_taken_in_one_iteration_is_there_in_the_next() {
    let played = ScenarioRun::of(ONCE).play(|_, request| {
        assert!(request.starts_with("POST") || request.contains("\r\nAuthorization: Bearer t1\r\n"), "{request}");
        ok("", r#"{"token":"t1"}"#)
    });
    assert_eq!(played.lines(), ["POST /login", "GET /task/1", "GET /task/2", "GET /task/3"]);
}

#[test]
fn tests_and_variables_know_the_user_the_iteration_and_the_round_of_now() {
    let text = "\
closed 2 repeat 2
let who = \"${user}-${iteration}\"
repeat 2
  let nth = \"${round}\"
  if ${iteration} == 2 and ${round} == 1
    step second
      GET /${who}/${user}/${nth}
";
    let played = ScenarioRun { n_users: 2, ..ScenarioRun::of(text) }.play(|_, _| ok("", ""));
    assert_eq!(played.lines(), ["GET /1-0/1/1", "GET /2-0/2/1"]);
}

#[test]
fn a_request_whose_variable_has_no_value_is_not_sent_and_its_step_has_failed() {
    let mut played = ScenarioRun::of(ONCE).play(|_, _| Ok("HTTP/1.1 500 No\r\n\r\n".to_owned()));
    assert_eq!(played.lines(), ["POST /login"]);
    let steps = played.steps();
    assert_eq!(counts(&steps[1]), ("work", 2, 0));
    assert_eq!(steps[1].errors.keys().collect::<Vec<_>>(), ["the variable token has no value"]);
    let played = ScenarioRun { think_mode: ThinkMode::Immediate, ..ScenarioRun::of(ONCE) }
        .play(|_, _| Ok("HTTP/1.1 500 No\r\n\r\n".to_owned()));
    let trace = &played.results().trace.as_ref().unwrap().0;
    let told: Vec<_> = trace.iter().map(|one| (one.step.as_str(), one.request.is_empty(), one.is_failed())).collect();
    assert_eq!(told, [("login", false, true), ("work", true, true), ("work", true, true)]);
    let until = ONCE.replace("${iteration} == 1", "${token} not exists");
    let mut n = 0;
    let played = ScenarioRun::of(&until).play(|_, _| {
        n += 1;
        if n == 1 { Err("no answer in time") } else { ok("", r#"{"token":"t1"}"#) }
    });
    assert_eq!(played.lines(), ["POST /login", "POST /login", "GET /task/2", "GET /task/3"]);
}

#[test]
fn kinds_of_users_come_by_their_shares() {
    let text = "closed 100 repeat 1\nuser a 75%\n  step a\n    GET /a\nuser b 25%\n  step b\n    GET /b\n";
    let mut played = ScenarioRun { n_users: 100, ..ScenarioRun::of(text) }.play(|_, _| ok("", ""));
    assert_eq!(played.steps().iter().map(counts).collect::<Vec<_>>(), [("a", 75, 75), ("b", 25, 25)]);
}

#[test]
fn every_finder_finds_its_value() {
    let text = "\
closed 1 repeat 1
step one
  GET /one
  take h = header X-Id
  take r = regex /id=(\\d+)/ last
  take b = between \"<b>\" \"</b>\" nth 2
  take c = cookie sid
  take s = status
  take d = json $.none or \"usual\"
step two
  GET /${h}/${r}/${b}/${c}/${s}/${d}/${user}/${iteration}/${seq from 5 width 3}
";
    let played = ScenarioRun::of(text).play(|_, request| {
        if request.contains("/one") {
            return ok("X-Id: 7\r\nSet-Cookie: sid=s1; Path=/\r\n", "id=1 <b>x</b> id=22 <b>y</b> id=");
        }
        ok("", "")
    });
    assert_eq!(played.lines()[1], "GET /7/22/y/s1/200/usual/1/1/005");
}

#[test]
fn a_body_that_cannot_be_unpacked_fails_the_steps_that_look_at_it_and_no_others() {
    let text = "closed 1 repeat 1\nstep one\n  GET /\n  Accept-Encoding: gzip\n  expect body contains \"x\"\n";
    let mut played = ScenarioRun::of(text).play(|_, _| ok("Content-Encoding: gzip\r\n", "\u{1f}x"));
    let causes = played.steps().remove(0).errors;
    assert_eq!(causes.keys().collect::<Vec<_>>(), ["the body does not match its content-encoding"]);
    let text = text.replace("expect body contains \"x\"", "expect header Content-Encoding == gzip");
    let mut played = ScenarioRun::of(&text).play(|_, _| ok("Content-Encoding: gzip\r\n", "\u{1f}x"));
    assert_eq!(counts(&played.steps()[0]), ("one", 1, 1));
}

#[test]
fn multipart_bodies_have_their_files_and_a_boundary_that_is_in_none() {
    let text = "closed 1 repeat 1\nstep up\n  POST /up\n  multipart\n    title = A ${user}\n    picture from p.txt type text/plain\n";
    let played = ScenarioRun { files: &[("p.txt", "PICTURE")], ..ScenarioRun::of(text) }.play(|_, _| ok("", ""));
    let request = &played.requests[0].2;
    let boundary = request.split("boundary=").nth(1).unwrap().split("\r\n").next().unwrap();
    let body = request.split_once("\r\n\r\n").unwrap().1;
    let expected = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\nA 1\r\n--{boundary}\r\nContent-Disposition: form-data; name=\"picture\"; filename=\"p.txt\"\r\nContent-Type: text/plain\r\n\r\nPICTURE\r\n--{boundary}--\r\n"
    );
    assert_eq!(body, expected);
    let length: usize =
        request.split("Content-Length:").nth(1).unwrap().split("\r\n").next().unwrap().trim().parse().unwrap();
    assert_eq!(length, body.len());
}

#[test]
fn a_rehearsal_does_not_think_and_tells_everything() {
    let text = LOGIN.replace("closed 2 repeat 2", "closed 2 repeat 1\nmeet 5 within 10s\nthink 10s\n");
    let mut played = ScenarioRun { think_mode: ThinkMode::Immediate, files: &ACCOUNTS, ..ScenarioRun::of(&text) }
        .play(|_, request| shop(request));
    assert_eq!(played.times(), [0, 10]);
    let trace = played.results.take().unwrap().trace.unwrap().0;
    assert_eq!((trace[0].step.as_str(), trace[0].is_failed()), ("login", false));
    assert_eq!(trace[0].values, [("token".to_owned(), b"t-ann".to_vec())]);
    assert_eq!(trace[0].expectations, [("status 200".to_owned(), None)]);
    assert_eq!(trace[1].expectations[1].0, r#"json $.user == "${accounts.user}""#);
}

#[test]
fn a_path_that_an_answer_named_must_be_one() {
    let text = "closed 1 repeat 1\nstep one\n  GET /\n  take next = header X-Next\nstep two\n  GET ${next}\n";
    let mut played = ScenarioRun::of(text).play(|_, _| ok("X-Next: /n?a=1\r\n", ""));
    assert_eq!(played.lines(), ["GET /", "GET /n?a=1"]);
    assert_eq!(counts(&played.steps()[1]), ("two", 1, 1));
    let mut played = ScenarioRun::of(text).play(|_, _| ok("X-Next: javascript:x\r\n", ""));
    assert_eq!(played.lines(), ["GET /"]);
    assert_eq!(played.steps()[1].errors.len(), 1);
}

#[test]
fn what_ends_in_the_warm_up_does_not_count() {
    let script =
        LoadedScenario::read("closed 1 repeat 1\nstep one\n  GET /\n".to_owned(), "test".to_owned(), None).unwrap();
    let program = script.compile(&script.urls(Some("http://h/base/")).unwrap(), &Policy::anything()).unwrap().0;
    let manner = RunSettings { iterations: None, think_mode: ThinkMode::Timed, is_population: true, timeout: SERVICE };
    let shared = Arc::new(SharedState::new(Arc::new(program), manner));
    let (start, wall_ahead) = (Nanos::ZERO, Nanos::ZERO);
    let mut users = ScenarioUsers::new(
        &shared,
        ScenarioWorkerSpec { idx: 0, n_workers: 1, n_slots: 1, start, wall_clock_offset: wall_ahead, seed: 1 },
        None,
    );
    users.arrive(UserSlot(0), Nanos::ZERO, Nanos::ZERO);
    for (at, window) in [(0, MeasurePhase::WarmUp), (20, MeasurePhase::Measured)] {
        users.on_phase(window, Nanos(at));
        let UserAction::Send(ask) = users.next_action(UserSlot(0), Nanos(at)) else { panic!("it asks") };
        assert!(ask.bytes.starts_with(b"GET /base/ HTTP/1.1\r\n"));
        users.answered(UserSlot(0), &answer("HTTP/1.1 204 No\r\n\r\n", SERVICE));
    }
    let walked = users.finish(Nanos(40));
    let steps = step_recorder::records(&shared.program.names, vec![walked.step_recorders]);
    assert_eq!(counts(&steps[0]), ("one", 1, 1));
}

#[test]
fn the_most_who_are_there_at_once_are_counted_over_all_workers() {
    let script =
        LoadedScenario::read("closed 1 repeat 1\nstep one\n  GET /\n".to_owned(), "test".to_owned(), None).unwrap();
    let program = script.compile(&script.urls(Some("http://h/")).unwrap(), &Policy::anything()).unwrap().0;
    let manner =
        RunSettings { iterations: Some(1), think_mode: ThinkMode::Timed, is_population: false, timeout: SERVICE };
    let shared = Arc::new(SharedState::new(Arc::new(program), manner));
    let (start, wall_ahead) = (Nanos::ZERO, Nanos::ZERO);
    let worker = |idx| {
        ScenarioUsers::new(
            &shared,
            ScenarioWorkerSpec { idx, n_workers: 2, n_slots: 3, start, wall_clock_offset: wall_ahead, seed: 1 },
            None,
        )
    };
    let mut workers = [worker(0), worker(1)];
    let come_and_go = |users: &mut ScenarioUsers, n: u32| {
        for slot in (0..n).map(UserSlot) {
            users.arrive(slot, start, Nanos::ZERO);
            assert!(matches!(users.next_action(slot, start), UserAction::Send(_)));
        }
        for slot in (0..n).map(UserSlot) {
            users.answered(slot, &answer("HTTP/1.1 204 No\r\n\r\n", SERVICE));
            assert!(matches!(users.next_action(slot, SERVICE), UserAction::Leave));
        }
    };
    come_and_go(&mut workers[0], 3);
    come_and_go(&mut workers[1], 2);
    assert_eq!(shared.n_present_max(), 3, "the two came when the three had gone");
    let (one, other) = workers.split_at_mut(1);
    one[0].arrive(UserSlot(0), start, Nanos::ZERO);
    one[0].arrive(UserSlot(1), start, Nanos::ZERO);
    come_and_go(&mut other[0], 2);
    assert_eq!(shared.n_present_max(), 4);
}

#[test]
fn a_path_may_hold_a_url() {
    let text = "closed 1 repeat 1\nredirects 1\nstep a\n  GET /login?back=http://elsewhere/\n";
    let played = ScenarioRun::of(text).play(|_, request| {
        if request.starts_with("GET /login") {
            return Ok("HTTP/1.1 302 Found\r\nLocation: next?u=https://elsewhere/x\r\n\r\n".to_owned());
        }
        ok("", "")
    });
    assert_eq!(played.lines(), ["GET /login?back=http://elsewhere/", "GET /next?u=https://elsewhere/x"]);
}

#[test]
fn a_scenario_reads_nothing_of_a_host_that_serves_others() {
    let role = |text: &str, options: &[(&str, &str)]| {
        let settings = Settings::default().with("script", text).with("url", "https://127.0.0.1:9/");
        let settings = options.iter().fold(settings, |all, (name, value)| all.with(name, *value));
        Role {
            test: "users".to_owned(),
            kind: AppScenario.name().to_owned(),
            side: Side::Initiator,
            settings: settings.complete(AppScenario.options()).unwrap(),
            phases: Phases {
                warmup_max_ns: Nanos::ZERO,
                is_warmup_whole: false,
                measure_ns: SERVICE,
                interval_ns: SERVICE,
            },
            address: None,
            interface: None,
            peer: Endpoints::new(),
            meeting: PeerAddresses::default(),
            cores: Vec::new(),
            seed: 1,
        }
    };
    let served = Policy::served([127, 0, 0, 1].into(), Vec::new());
    let refused = |text: &str, options: &[(&str, &str)]| {
        let error = AppScenario.prepare(&role(text, options), &served).err().unwrap();
        let mut told = error.to_string();
        let mut next = std::error::Error::source(&error);
        while let Some(cause) = next {
            told = format!("{told}: {cause}");
            next = cause.source();
        }
        told
    };
    let plain = "closed 1 repeat 1\nstep a\n  GET /\n";
    // The answer is the same whether the file exists or not.
    for (line, what) in [
        ("ca /etc/hostname", "opening /etc/hostname is refused"),
        ("ca /nonexistent", "opening /nonexistent is refused"),
        ("client-cert /etc/hostname", "opening /etc/hostname is refused"),
    ] {
        let told = refused(&plain.replace("step", &format!("{line}\nstep")), &[]);
        assert!(told.contains(what), "{line}: {told}");
    }
    for name in ["PATH", "NO_SUCH_VARIABLE"] {
        let told = refused(&plain.replace("GET /", &format!("GET /?${{env {name}}}")), &[]);
        assert!(told.contains(&format!("the environment variable {name} is refused")), "{told}");
    }
    for text in
        [plain.replace("GET /", "GET /\n  body from /etc/hostname"), format!("data a from /etc/hostname\n{plain}")]
    {
        for options in [&[][..], &[("file", "/etc/x.scenario")]] {
            let told = refused(&text, options);
            assert!(told.contains("cannot name files") || told.contains("is refused"), "{text}: {told}");
        }
    }
    assert!(AppScenario.prepare(&role(plain, &[]), &served).is_ok());
}

#[test]
fn a_body_that_a_path_would_go_through_too_often_fails_its_step() {
    let text = "closed 1 repeat 1\nstep a\n  GET /\n  take t = json $..a..a..a..a..a\n";
    let body = format!("{}1{}", r#"{"a":"#.repeat(100), "}".repeat(100));
    let mut played = ScenarioRun::of(text).play(|_, _| ok("", &body));
    let steps = played.steps();
    assert_eq!(
        steps[0].errors.keys().collect::<Vec<_>>(),
        ["the JSON path would visit more than 1,000,000 values of the body"]
    );
}
