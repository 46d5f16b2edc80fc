//! Small archives, and the users that they become.

use data_encoding::BASE64;

use crate::Assets;
use fathom_http::host_names::HostNames;
use serde_json::{Value, json};

use fathom_model::units::Nanos;
use jiff::Timestamp;

use super::{url::resolved, *};
use crate::{
    Format, ImportOptions, import,
    import_tree::{
        FormPartContent, ImportAction, ImportText, ImportedBody, ImportedExpect, ImportedRequest, ThinkTime,
    },
};

fn entry(second: f64, method: &str, url: &str) -> Value {
    let begin = Timestamp::UNIX_EPOCH + std::time::Duration::from_secs_f64(second);
    json!({
        "startedDateTime": begin.to_string(), "time": 100.0,
        "request": { "method": method, "url": url, "headers": [], "httpVersion": "h2" },
        "response": { "status": 200, "headers": [], "content": { "mimeType": "text/html" } },
    })
}

fn archive(pages: &[Value], entries: &[Value]) -> String {
    json!({ "log": { "version": "1.2", "pages": pages, "entries": entries } }).to_string()
}

fn with(mut entry: Value, pointer: &str, value: Value) -> Value {
    *entry.pointer_mut(pointer).unwrap() = value;
    entry
}

fn acts(entries: &[Value]) -> Vec<ImportAction> {
    read(&archive(&[], entries), &RecordingFilter::default()).unwrap().kinds.remove(0).acts
}

fn requests(entries: &[Value]) -> Vec<ImportedRequest> {
    acts(entries)
        .into_iter()
        .filter_map(|act| if let ImportAction::Request(request) = act { Some(*request) } else { None })
        .collect()
}

#[test]
fn entries_come_in_the_order_in_which_they_began_with_pauses_between() {
    let acts = acts(&[
        entry(3.35, "GET", "http://a.test/2"),
        entry(0.0, "GET", "http://a.test/1"),
        entry(3.5, "GET", "http://a.test/3"),
    ]);
    let ImportAction::Request(first) = &acts[0] else { panic!("{acts:?}") };
    assert_eq!(first.url.to_string(), "http://a.test/1");
    // From 0.1 s, when the first answer was complete, to 3.35 s.
    assert_eq!(acts[1], ImportAction::Think(ThinkTime::Fixed(Nanos::from_millis(3300))));
    assert_eq!(acts.len(), 4);
}

#[test]
fn pages_become_transactions() {
    let pages =
        [json!({ "id": "page_1", "title": "http://a.test/home?x" }), json!({ "id": "page_2", "title": "Cart" })];
    let on = |page: &str, entry: Value| {
        let mut entry = entry;
        entry["pageref"] = json!(page);
        entry
    };
    let entries = [
        on("page_1", entry(0.0, "GET", "http://a.test/1")),
        on("page_1", entry(2.0, "GET", "http://a.test/2")),
        on("page_2", entry(4.0, "GET", "http://a.test/3")),
        entry(4.2, "GET", "http://a.test/4"),
    ];
    let acts = read(&archive(&pages, &entries), &RecordingFilter::default()).unwrap().kinds.remove(0).acts;
    let names: Vec<_> = acts
        .iter()
        .map(|act| match act {
            ImportAction::Transaction { name, acts } => format!("{name} {}", acts.len()),
            ImportAction::Think(_) => "think".to_owned(),
            _ => "request".to_owned(),
        })
        .collect();
    assert_eq!(names, ["/home?x 3", "think", "request", "request"]);
}

#[test]
fn what_a_browser_adds_by_itself_is_dropped() {
    let headers = json!([
        { "name": ":path", "value": "/" }, { "name": "Host", "value": "a" }, { "name": "connection", "value": "keep-alive" },
        { "name": "If-None-Match", "value": "1" }, { "name": "content-length", "value": "2" }, { "name": "X-Kept", "value": "1" },
    ]);
    let asked = with(entry(0.0, "GET", "http://a.test/#top"), "/request/headers", headers);
    let sent = requests(&[with(asked, "/response/status", json!(304))]);
    assert_eq!(sent[0].headers, [("X-Kept".to_owned(), ImportText::literal("1"))]);
    assert_eq!(sent[0].url.to_string(), "http://a.test/");
    assert_eq!(sent[0].expects, [ImportedExpect::Status(vec![200])], "without the condition the whole comes");
}

#[test]
fn cookies_that_the_server_set_are_left_to_the_user() {
    let cookie = |value: &str| json!([{ "name": "cookie", "value": value }]);
    let set = json!([{ "name": "Set-Cookie", "value": "sid=1; Path=/\nlang=en; Domain=.a.test" }]);
    let sent = requests(&[
        with(
            with(entry(0.0, "GET", "http://www.a.test/"), "/request/headers", cookie("old=1")),
            "/response/headers",
            set,
        ),
        with(entry(0.2, "GET", "http://www.a.test/"), "/request/headers", cookie("sid=1; old=1; lang=en")),
        with(entry(0.3, "GET", "http://b.a.test/"), "/request/headers", cookie("sid=2; lang=en")),
        with(entry(0.4, "GET", "http://www.a.test/"), "/request/headers", cookie("sid=1")),
    ]);
    let cookies: Vec<_> = sent.iter().map(|request| request.header("cookie").map(ToString::to_string)).collect();
    assert_eq!(cookies, [Some("old=1".into()), Some("old=1".into()), Some("sid=2".into()), None]);
}

#[test]
fn redirects_are_folded_into_the_request_that_led_there() {
    let redirect = |entry: Value, to: &str| {
        with(
            with(entry, "/response/status", json!(302)),
            "/response/headers",
            json!([{ "name": "Location", "value": to }]),
        )
    };
    let sent = requests(&[
        redirect(entry(0.0, "POST", "http://a.test/login"), "/hop"),
        redirect(entry(0.2, "GET", "http://a.test/hop"), "https://b.test/home"),
        with(entry(0.4, "GET", "https://b.test/home"), "/response/status", json!(201)),
        redirect(entry(0.6, "GET", "http://a.test/x/y"), "z"),
    ]);
    let lines: Vec<_> =
        sent.iter().map(|request| format!("{} {:?} {:?}", request.url, request.redirects, request.expects)).collect();
    assert_eq!(lines, ["http://a.test/login Followed [Status([201])]", "http://a.test/x/y Taken [Status([302])]",]);
    assert_eq!(resolved("http://a.test/x/y?q", "z"), "http://a.test/x/z");
    assert_eq!(resolved("http://a.test", "?z"), "http://a.test?z");
    assert_eq!(resolved("https://a.test/x", "//b.test/"), "https://b.test/");
}

#[test]
fn bodies_are_sent_as_they_were() {
    let body = |data: Value| {
        let mut entry = entry(0.0, "POST", "http://a.test/");
        entry["request"]["postData"] = data;
        requests(&[entry]).remove(0).body
    };
    assert_eq!(body(json!({ "mimeType": "application/json", "text": "{}" })), ImportedBody::Text("{}".into()));
    assert_eq!(
        body(json!({ "mimeType": "application/x-www-form-urlencoded", "params": [{ "name": "a", "value": "b c" }] })),
        ImportedBody::Form(vec![("a".into(), "b c".into())])
    );
    assert_eq!(
        body(json!({ "mimeType": "x", "text": "/wA=", "encoding": "base64" })),
        ImportedBody::Bytes(vec![255, 0])
    );
    let text = "--q\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n2\r\n--q\r\nContent-Disposition: form-data; \
                name=\"f\"; filename=\"p.png\"\r\nContent-Type: image/png\r\n\r\n\r\n--q--\r\n";
    let ImportedBody::Multipart(parts) = body(json!({ "mimeType": "multipart/form-data; boundary=q", "text": text }))
    else {
        panic!("it is multipart")
    };
    assert_eq!(parts[0].content, FormPartContent::Text("1\r\n2".into()));
    assert_eq!(
        (&parts[1].content, &parts[1].media_type),
        (&FormPartContent::File("p.png".into()), &Some("image/png".into()))
    );
}

#[test]
fn assets_are_left_out_on_request() {
    let typed = |url: &str, kind: &str| {
        let mut entry = entry(0.0, "GET", url);
        entry["_resourceType"] = json!(kind);
        entry
    };
    let media = with(entry(0.0, "GET", "http://a.test/logo"), "/response/content/mimeType", json!("image/png"));
    let entries = [
        typed("http://a.test/", "document"),
        typed("http://a.test/x.js?v=1", "fetch"),
        typed("http://a.test/a", "script"),
        media,
        entry(0.0, "GET", "http://a.test/app.CSS?v=2"),
    ];
    let left =
        read(&archive(&[], &entries), &RecordingFilter { assets: Assets::LeftOut, ..RecordingFilter::default() })
            .unwrap()
            .kinds
            .remove(0)
            .acts;
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn what_was_no_request_is_left_out_and_told() {
    let mut cached = entry(0.0, "GET", "http://a.test/c");
    cached["_fromCache"] = json!("disk");
    let entries = [
        entry(0.0, "GET", "http://a.test/"),
        cached,
        with(entry(0.0, "GET", "http://a.test/b"), "/response/status", json!(0)),
        entry(0.0, "GET", "wss://a.test/s"),
        entry(0.0, "GET", "data:text/plain,x"),
    ];
    let builder = read(&archive(&[], &entries), &RecordingFilter::default()).unwrap();
    let acts = &builder.kinds[0].acts;
    assert_eq!(acts.len(), 4, "{acts:?}");
    let ImportAction::LeftOut(note) = &acts[1] else { panic!("{acts:?}") };
    assert!(note.to_string().starts_with("entry 2, GET http://a.test/c: "));
}

#[test]
fn what_is_no_archive_is_an_error() {
    for text in ["", "{", "[]", "{\"log\":{}}", &"[".repeat(100_000)] {
        assert!(matches!(read(text, &RecordingFilter::default()), Err(Error::Har(_))), "{text:.20}");
    }
    let wanted = ImportOptions::default();
    assert!(matches!(
        import(archive(&[], &[]).as_bytes(), &wanted, "x"),
        Err(Error::Empty { format: Format::Har, .. })
    ));
}

#[test]
fn what_tools_leave_out_or_write_as_null_is_not_needed() {
    let bare = json!({ "request": { "method": "GET", "url": "http://a.test/bare" } });
    let nulls = json!({
        "pageref": null, "startedDateTime": null, "time": null, "_resourceType": null, "_fromCache": null,
        "request": {
            "method": "POST", "url": "http://a.test/nulls", "headers": null, "bodySize": null,
            "postData": { "mimeType": null, "text": null, "params": null },
        },
        "response": {
            "status": 404, "headers": [{ "name": "X", "value": null }], "redirectURL": null, "content": { "mimeType": null },
        },
    });
    let text = json!({ "log": { "pages": null, "entries": [bare, nulls] } }).to_string();
    let builder = read(&text, &RecordingFilter { assets: Assets::LeftOut, ..RecordingFilter::default() }).unwrap();
    let requests = builder.requests();
    let expects: Vec<_> = requests.iter().map(|request| (request.method.as_str(), request.expects.clone())).collect();
    assert_eq!(expects, [("GET", vec![]), ("POST", vec![ImportedExpect::Status(vec![404])])]);
}

#[test]
fn a_long_recording_of_many_hosts_and_alike_paths_is_read_in_one_pass() {
    // Any comparison of each entry with all others takes minutes here.
    let entries: Vec<_> = (0..12_000).map(|n| entry(0.0, "GET", &format!("http://h{n}.test/x"))).collect();
    let imported = import(archive(&[], &entries).as_bytes(), &ImportOptions::default(), "x").unwrap();
    assert_eq!(imported.text.matches("\nstep ").count(), 12_000);
    assert!(imported.text.contains("\nbase http://h0.test\n") && imported.text.contains("\nstep GET /x 12000\n"));
}

#[test]
fn what_was_left_out_of_one_host_for_one_reason_is_told_once() {
    let failed = |url: &str| with(entry(0.0, "GET", url), "/response/status", json!(0));
    let entries = [
        entry(0.0, "GET", "http://a.test/"),
        failed("http://b.test/1"),
        failed("http://c.test/1"),
        failed("http://b.test/2"),
        failed("http://b.test/3"),
    ];
    let notes: Vec<_> = acts(&entries)[1..].iter().map(|act| format!("{act:?}")).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("left out, and 2 more to b.test") && !notes[1].contains("more"), "{notes:?}");
}

#[test]
fn hosts_and_paths_are_filtered() {
    let urls = ["http://a.test/", "http://a.test/cart/1?x", "http://api.a.test/cart", "http://b.test/cart"];
    let entries: Vec<_> = urls.iter().map(|url| entry(0.0, "GET", url)).collect();
    let kept = |filter: &RecordingFilter| read(&archive(&[], &entries), filter).unwrap().requests().len();
    let hosts = HostNames::new(["a.test"]);
    assert_eq!(kept(&RecordingFilter { hosts: hosts.clone(), ..RecordingFilter::default() }), 3);
    assert_eq!(kept(&RecordingFilter { hosts, paths: vec!["/cart".to_owned()], ..RecordingFilter::default() }), 2);
}

#[test]
fn a_form_is_read_as_fields_if_it_is_sent_as_it_was() {
    let body = |text: &str| {
        let mut entry = entry(0.0, "POST", "http://a.test/");
        let data = json!({ "mimeType": "application/x-www-form-urlencoded; charset=UTF-8", "text": text });
        entry["request"]["postData"] = data;
        requests(&[entry]).remove(0).body
    };
    let fields = [("user", "ann b"), ("pass", "a&b=ü"), ("empty", "")].map(|(name, value)| (name.into(), value.into()));
    assert_eq!(body("user=ann+b&pass=a%26b%3D%C3%BC&empty="), ImportedBody::Form(fields.to_vec()));
    for other in ["a=b%20c", "a=%zz", "a", "a=1&&b=2", "a=%26;"] {
        assert_eq!(body(other), ImportedBody::Text(other.into()), "{other}");
    }
}

#[test]
fn a_form_with_a_file_keeps_its_fields_and_names_the_file() {
    let bytes = b"--q\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--q\r\nContent-Disposition: form-data; name=\"f\"; \
        filename=\"p.png\"\r\nContent-Type: image/png\r\n\r\n\x89PNG\xff\r\n--q--\r\n";
    let mut entry = entry(0.0, "POST", "http://a.test/");
    entry["request"]["postData"] = json!({
        "mimeType": "multipart/form-data; boundary=q", "text": BASE64.encode(bytes), "_encoding": "base64",
    });
    let request = requests(&[entry]).remove(0);
    let ImportedBody::Multipart(parts) = &request.body else { panic!("{request:?}") };
    assert_eq!(parts[0].content, FormPartContent::Text("1".into()));
    assert_eq!(parts[1].content, FormPartContent::File("p.png".into()));
    assert_eq!(request.left_out.len(), 1, "where the file is expected is told");
}

#[test]
fn a_recording_of_unverified_servers_is_insecure() {
    let text = json!({ "log": { "_insecure": true, "entries": [entry(0.0, "GET", "https://a.test/")] } }).to_string();
    let imported = import(text.as_bytes(), &ImportOptions::default(), "x").unwrap();
    assert!(imported.text.contains("\ninsecure\n"), "{}", imported.text);
}
