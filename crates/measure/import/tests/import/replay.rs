//! Compares the requests of a recording, a plan and command lines with those of the imported scenario, one by one.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use fathom_import::{ImportOptions, import};
use serde_json::Value;

use super::{
    folder, imported,
    recorder::{Answer, Recorder, Request, assert_alike, lay_out},
};

/// The number of iterations of the plan's only user.
const N_ROUNDS: u32 = 3;

/// A shop that tracks logins.
fn shop() -> Recorder {
    let mut n_polls = 0;
    Recorder::start(move |request| {
        let (method, target) = request.line.split_once(' ').unwrap();
        let path = target.split('?').next().unwrap();
        match (method, path) {
            ("POST", "/login") => Answer::new(
                200,
                &[("Set-Cookie", "sid=s1; Path=/; HttpOnly"), ("Set-Cookie", "seen=orders; Path=/orders")],
                r#"{"token": "t-1", "role": "customer"}"#,
            ),
            (_, "/search") => Answer::new(200, &[], r#"{"items": [{"id":"i-7"}, {"id":"i-8"}]}"#),
            (_, "/items/i-7") => Answer::new(200, &[("Set-Cookie", "last=i-7; Path=/")], r#"{"price": 5}"#),
            ("POST", "/orders") => Answer::new(201, &[], ""),
            (_, "/old") => Answer::new(302, &[("Location", "/new?from=old")], ""),
            ("POST", "/logout") => Answer::new(200, &[("Set-Cookie", "last=; Path=/; Max-Age=0")], ""),
            _ if path.starts_with("/jobs/") => {
                n_polls += 1;
                Answer::new(200, &[], if n_polls % 3 == 0 { r#"{"state": "made"}"# } else { r#"{"state": "busy"}"# })
            }
            _ => Answer::fine(),
        }
    })
}

/// The requests that JMeter sends for the plan; `None` without JMeter 5.6.3.
fn jmeter(plan: &Path) -> Option<String> {
    let here = tempfile::tempdir().unwrap();
    // It writes a log of each run to its working directory.
    let version =
        Command::new("jmeter").arg("--version").current_dir(here.path()).stderr(Stdio::null()).output().ok()?;
    if !String::from_utf8_lossy(&version.stdout).contains("5.6.3") {
        return None;
    }
    let recorder = shop();
    lay_out(&["accounts.csv", "words.csv", "note.txt"], here.path());
    let text = fs::read_to_string(plan).unwrap().replace("8123", &recorder.address.port().to_string());
    let text = text.replace("num_threads\">2<", "num_threads\">1<");
    fs::write(here.path().join("plan.jmx"), text).unwrap();
    let status = Command::new("jmeter")
        .args(["-n", "-t", "plan.jmx", "-l", "samples.csv"])
        .current_dir(here.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    Some(recorder.written())
}

/// The requests that JMeter 5.6.3 sent for the plan; `BLESS=1` records them again.
fn expected() -> PathBuf {
    folder().join("shop.requests")
}

#[test]
fn what_is_expected_of_a_plan_is_what_jmeter_sends() {
    let Some(sent) = jmeter(&folder().join("shop.jmx")) else {
        // Also in CI, which compares the scenario with the requests that JMeter sent when the file was recorded.
        return fathom_testkit::skip_everywhere("there is no JMeter 5.6.3");
    };
    if std::env::var_os("BLESS").is_some() {
        fs::write(expected(), &sent).unwrap();
    }
    assert_alike(&sent, &fs::read_to_string(expected()).unwrap());
}

/// Removes the fields that JMeter writes into each part of a form and a scenario cannot; servers read the parts the same without them.
fn without_fields_of_parts(requests: &str) -> String {
    let is_kept = |line: &&str| {
        !line.starts_with("  | Content-Transfer-Encoding: ")
            && !line.starts_with("  | Content-Type: text/plain; charset=")
    };
    requests.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn a_scenario_from_a_plan_sends_what_jmeter_sends() {
    let recorder = shop();
    let here = tempfile::tempdir().unwrap();
    lay_out(&["accounts.csv", "words.csv", "note.txt"], here.path());
    let file = here.path().join("shop.scenario");
    fs::write(&file, imported("shop.jmx", &ImportOptions::default()).text).unwrap();
    let users = recorder.play(&file, N_ROUNDS);
    assert_alike(&recorder.written(), &without_fields_of_parts(&fs::read_to_string(expected()).unwrap()));
    assert_eq!((users.n_started, users.n_finished, users.n_gave_up), (1, N_ROUNDS.into(), 0));
}

/// The requests of a recording as sent, with their answers.
fn recorded(file: &str) -> Vec<(Request, Answer)> {
    let archive: Value = serde_json::from_slice(&fs::read(folder().join(file)).unwrap()).unwrap();
    let pairs = |message: &Value| -> Vec<(String, String)> {
        let pairs = message["headers"].as_array().unwrap().iter();
        pairs.map(|pair| [&pair["name"], &pair["value"]].map(|text| text.as_str().unwrap().to_owned()).into()).collect()
    };
    let entry = |entry: &Value| {
        let (asked, answered) = (&entry["request"], &entry["response"]);
        let url = asked["url"].as_str().unwrap().strip_prefix("http://127.0.0.1:8125").unwrap();
        let mut headers: Vec<_> = pairs(asked).into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
        // What a browser says about itself is left out of scenarios.
        let is_own = |name: &str| name.starts_with("sec-") || ["upgrade-insecure-requests", "priority"].contains(&name);
        headers.retain(|(name, _)| !is_own(name));
        let body = asked["postData"]["text"].as_str();
        if body.is_none() {
            // The import reports that it could not convert a body that was not recorded.
            headers.retain(|(name, _)| name != "content-type");
        }
        let request = Request {
            line: format!("{} {url}", asked["method"].as_str().unwrap()),
            headers,
            body: body.unwrap_or_default().to_owned(),
        };
        let mut fields = pairs(answered);
        fields.retain(|(name, _)| ["set-cookie", "location", "content-type"].contains(&name.to_lowercase().as_str()));
        let status = u16::try_from(answered["status"].as_u64().unwrap()).unwrap();
        (request.compared(), Answer { status, headers: fields, body: String::new() })
    };
    archive["log"]["entries"].as_array().unwrap().iter().map(entry).collect()
}

#[test]
fn a_scenario_from_a_recording_sends_what_the_browser_sent() {
    let recorded = recorded("visit.har");
    let sent: String = recorded.iter().map(|(request, _)| request.written()).collect();
    let mut answers: HashMap<String, VecDeque<Answer>> = HashMap::new();
    for (request, answer) in recorded {
        answers.entry(request.line).or_default().push_back(answer);
    }
    let recorder = Recorder::start(move |request| {
        let answer = answers.get_mut(&request.line).and_then(VecDeque::pop_front);
        answer.unwrap_or_else(|| Answer::new(404, &[], "the browser did not ask for this"))
    });
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("visit.scenario");
    fs::write(&file, imported("visit.har", &ImportOptions::default()).text).unwrap();
    let users = recorder.play(&file, 1);
    assert_alike(&recorder.written(), &sent);
    assert_eq!((users.n_started, users.n_finished, users.n_gave_up), (1, 1, 0));
}

#[test]
fn a_scenario_from_curl_sends_what_curl_sends() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        return fathom_testkit::skip("there is no curl");
    }
    let here = tempfile::tempdir().unwrap();
    lay_out(&["note.txt"], here.path());
    let (theirs, ours) = (Recorder::start(|_| Answer::fine()), Recorder::start(|_| Answer::fine()));
    let text = fs::read_to_string(folder().join("commands.curl")).unwrap();
    // The same lines in a real shell; no configuration file of the person who runs the test may change the requests.
    let shell = Command::new("bash")
        .args(["-c", &text.replace("127.0.0.1:8126", &theirs.address.to_string())])
        .current_dir(here.path())
        .env("CURL_HOME", here.path())
        .env_remove("http_proxy")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(shell.unwrap().success());
    let imported = import(text.as_bytes(), &ImportOptions::default(), "commands").unwrap();
    let file = here.path().join("commands.scenario");
    fs::write(&file, imported.text).unwrap();
    let users = ours.play(&file, 1);
    // Each sends its own user agent.
    let nameless = |requests: &str| -> String {
        let is_kept =
            |line: &&str| !["curl/", "fathom"].iter().any(|name| line.starts_with(&format!("  user-agent: {name}")));
        requests.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect()
    };
    assert_alike(&nameless(&ours.written()), &nameless(&theirs.written()));
    assert_eq!((users.n_finished, users.n_gave_up), (1, 0));
}
