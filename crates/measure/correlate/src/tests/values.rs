//! Where values come from, a case each.

use super::*;

const ONE: &str = "kT9xQ2mZ7vLw";
const TWO: &str = "pR4nB8cYsD1f";
const ONE_TOO: &str = "Wq5tU3yH6jFa";
const TWO_TOO: &str = "Ej2gM9kP4bXs";

/// A GET whose answer has a body, and a request that sends something of it.
fn delivered(media: &'static str, body: impl Fn(&str) -> String, send: impl Fn(&str) -> Exchange) -> Vec<String> {
    let session = |v: &[&str]| vec![Exchange::new("GET", "/start").answers(200, media, &body(v[0])), send(v[0])];
    lines_of(session, &[ONE], &[TWO])
}

fn form(value: &str) -> Exchange {
    Exchange::new("POST", "/next").form(&format!("csrf={value}"))
}

#[test]
fn a_hidden_field_is_taken_by_its_name() {
    let lines = delivered(
        "text/html",
        |v| format!("<form><input type=\"hidden\" name=\"csrf\" value=\"{v}\"></form>"),
        |v| Exchange::new("POST", "/login").form(&format!("csrf={v}&next=home")),
    );
    assert_eq!(
        lines,
        [
            "GET /start",
            "take csrf = regex /<input\\b[^>]*?\\sname=\"csrf\"[^>]*?\\svalue=\"([^\"]+)/",
            "POST /login",
            "form",
            "csrf = ${csrf}",
            "next = home",
        ]
    );
}

#[test]
fn each_place_of_an_answer_has_its_extractor() {
    type Body = fn(&str) -> String;
    let cases: [(&'static str, Body, &str); 11] = [
        ("application/json", |v| format!("{{\"a\":{{\"token\":\"{v}\"}}}}"), "json $.a.token"),
        ("application/json", |v| format!("{{\"a-b\":\"{v}\"}}"), "json $['a-b']"),
        ("application/json", |v| format!("[1,{{\"t\":\"{v}\"}}]"), "json $[1].t"),
        (
            "text/html",
            |v| format!("<meta content='{v}' name='csrf-token'>"),
            r"regex /<meta\b[^>]*?\scontent='([^']+)[^>]*?\sname='csrf\-token'/",
        ),
        (
            "text/html",
            |v| format!("<a href=\"/logout?t={v}&x=1\">"),
            r#"regex /<a\b[^>]*?\shref="\/logout\?t=([^\&]+)/"#,
        ),
        (
            "text/html",
            |v| format!("<input name=csrf value={v}>"),
            r"regex /<input\b[^>]*?\sname=csrf[^>]*?\svalue=([^>]+)/",
        ),
        ("text/html", |v| format!("<script>var csrf = '{v}';</script>"), r"regex /csrf\s+=\s+'([^']+)/"),
        ("text/html", |v| format!("{{broken json \"key\": \"{v}\"}}"), r#"regex /key":\s+"([^"]+)/"#),
        ("text/plain", |v| format!("token={v}"), r"regex /token=([^\r\n]+)/"),
        ("text/xml", |v| format!("<token>{v}</token>"), "regex /token>([^<]+)/"),
        ("text/html", |v| format!("<p>ü {v}\n"), r"regex /ü\s+([^\s]+)/"),
    ];
    for (media, body, expected) in cases {
        let lines = delivered(media, body, form);
        assert_eq!(lines[1], format!("take csrf = {expected}"), "{lines:?}");
    }
}

#[test]
fn headers_and_cookies_are_taken_as_a_whole_or_in_part() {
    type Header = (&'static str, fn(&str) -> String);
    let cases: [(Header, &str); 5] = [
        (("X-Token", str::to_owned), "header X-Token"),
        (("Set-Cookie", |v| format!("xsrf={v}; Path=/")), "cookie xsrf"),
        (("X-Where", |v| format!("/a/{v}/b")), r"regex /(?im)^X\-Where: *\/a\/([^\/]+)/ in headers"),
        (("X-Where", |v| format!("id=7;t={v}")), r"regex /(?im)^X\-Where: *id=7;t=([^\r\n]+)/ in headers"),
        (("Set-Cookie", |v| format!("xsrf={v}|{v}9; Path=/")), r"regex /(?im)^Set\-Cookie: *xsrf=([^\|]+)/ in headers"),
    ];
    for ((name, value), expected) in cases {
        let session = |v: &[&str]| {
            vec![
                Exchange::new("GET", "/start").sets(name, &value(v[0])),
                Exchange::new("GET", "/next").header("X-CSRF", v[0]),
            ]
        };
        let lines = lines_of(session, &[ONE], &[TWO]);
        assert_eq!(lines[1], format!("take X_CSRF = {expected}"), "{lines:?}");
    }
}

#[test]
fn a_value_is_found_in_whatever_form_an_answer_has_it() {
    let cases = [
        ("a/b=kT9xQ2", "a/b=pR4nB8", "a&#x2F;b&#x3D;", "csrf = ${csrf|unhtml}"),
        ("a/b=kT9xQ2", "a/b=pR4nB8", "a\\/b=", "csrf = ${csrf|unjson}"),
        ("a/b=kT9xQ2", "a/b=pR4nB8", "a%2Fb%3D", "csrf = ${csrf|unurl}"),
    ];
    for (one, two, start, expected) in cases {
        let session = |v: &[&str]| {
            let end = &v[0]["a/b=".len()..];
            vec![
                Exchange::new("GET", "/start").html(&format!("<script>t = '{start}{end}'")),
                Exchange::new("POST", "/next").form(&format!("csrf={}", v[0].replace('/', "%2F").replace('=', "%3D"))),
            ]
        };
        let lines = lines_of(session, &[one], &[two]);
        assert_eq!(lines.last().unwrap(), expected, "{lines:?}");
    }
    let base64 = |v: &str| fathom_import::write::coded(v, fathom_import::import_tree::TextCoding::Base64).unwrap();
    let lines = delivered("text/html", |v| format!("<script>t = '{}'", base64(v)), form);
    assert_eq!(lines.last().unwrap(), "csrf = ${csrf|unbase64}");
    let lines = delivered(
        "application/json",
        |v| format!("{{\"user\":\"{v}\"}}"),
        |v| Exchange::new("GET", "/next").header("Authorization", &format!("Basic {}", base64(v))),
    );
    assert_eq!(lines.last().unwrap(), "Authorization: Basic ${Authorization|base64}");
    let lines = delivered(
        "application/json",
        |v| format!("{{\"place\":\"a b/{v}\"}}"),
        |v| Exchange::new("GET", &format!("/next?to=a+b%2F{v}")),
    );
    assert_eq!(lines, ["GET /start", "take to = json $.place", "GET /next?to=${to|form}"]);
}

#[test]
fn a_token_within_a_longer_value_is_found() {
    let session = |v: &[&str]| {
        vec![
            Exchange::new("POST", "/login").answers_json(&json!({ "access": v[0], "sig": v[1] })),
            Exchange::new("GET", "/me").header("Authorization", &format!("Bearer {}", v[0])),
            Exchange::new("GET", "/more").header("X-Auth", &format!("id={};sig={}", v[0], v[1])),
        ]
    };
    assert_eq!(
        lines_of(session, &[ONE, ONE_TOO], &[TWO, TWO_TOO]),
        [
            "POST /login",
            "take Authorization = json $.access",
            "take X_Auth = json $.sig",
            "GET /me",
            "Authorization: Bearer ${Authorization}",
            "GET /more",
            "X-Auth: id=${Authorization};sig=${X_Auth}",
        ]
    );
}

#[test]
fn values_go_to_the_path_the_query_json_parts_and_plain_bodies() {
    let session = |v: &[&str]| {
        let t = v[0];
        let parts = format!(
            "--B\r\nContent-Disposition: form-data; name=\"t\"\r\n\r\n{t}\r\n--B\r\nContent-Disposition: form-data; name=\"u\"\r\n\r\n1\r\n--B--\r\n"
        );
        vec![
            Exchange::new("GET", "/start").answers_json(&json!({ "cart": t })),
            Exchange::new("GET", &format!("/carts/{t}/items?cart={t}&x=1")),
            Exchange::new("POST", "/json").json(&json!({ "a": [{ "cart": t }], "n": 1 })),
            Exchange::new("POST", "/other").body("application/vnd.api+json", &format!("{{ \"c\": \"{t}\" }}")),
            Exchange::new("POST", "/parts").body("multipart/form-data; boundary=B", &parts),
            Exchange::new("POST", "/plain").body("text/plain", &format!("cart {t} is mine")),
            // No browser encodes like this, so the form stays a text.
            Exchange::new("POST", "/script").form(&format!("a=%2f&cart={t}")),
        ]
    };
    assert_eq!(
        lines_of(session, &[ONE], &[TWO]),
        [
            "GET /start",
            "take cart = json $.cart",
            "GET /carts/${cart}/items?cart=${cart}&x=1",
            "POST /json",
            "json {\"a\":[{\"cart\":\"${cart}\"}],\"n\":1}",
            "POST /other",
            "Content-Type: application/vnd.api+json",
            "body { \"c\": \"${cart|json}\" }",
            "POST /parts",
            "multipart",
            "t = ${cart}",
            "u = 1",
            "POST /plain",
            "Content-Type: text/plain",
            "body cart ${cart} is mine",
            "POST /script",
            "Content-Type: application/x-www-form-urlencoded",
            "body a=%2f&cart=${cart}",
        ]
    );
}

#[test]
fn a_token_that_changes_on_every_page_is_taken_from_every_page() {
    let session = |v: &[&str]| {
        let page = |t: &str| format!("<input name=\"csrf\" value=\"{t}\">");
        vec![
            Exchange::new("GET", "/a").html(&page(v[0])),
            Exchange::new("POST", "/b").form(&format!("csrf={}", v[0])).html(&page(v[1])),
            Exchange::new("POST", "/c").form(&format!("csrf={}", v[1])),
        ]
    };
    let lines = lines_of(session, &[ONE, ONE_TOO], &[TWO, TWO_TOO]);
    let takes: Vec<_> = lines.iter().filter(|line| line.starts_with("take ") || line.starts_with("csrf ")).collect();
    assert!(takes[0].starts_with("take csrf = ") && takes[2].starts_with("take csrf_2 = "), "{lines:?}");
    assert_eq!((takes[1].as_str(), takes[3].as_str()), ("csrf = ${csrf}", "csrf = ${csrf_2}"));
}

#[test]
fn two_forms_of_one_page_have_their_own_tokens() {
    let session = |v: &[&str]| {
        let form =
            |action: &str, t: &str| format!("<form action=\"{action}\"><input name=\"csrf\" value=\"{t}\"></form>");
        vec![
            Exchange::new("GET", "/a").html(&format!("{}{}", form("/search", v[0]), form("/buy", v[1]))),
            Exchange::new("POST", "/buy").form(&format!("csrf={}", v[1])),
            Exchange::new("POST", "/search").form(&format!("csrf={}", v[0])),
        ]
    };
    let lines = lines_of(session, &[ONE, ONE_TOO], &[TWO, TWO_TOO]);
    assert!(lines[1].contains("action=\"\\/buy\""), "{lines:?}");
    assert!(lines[2].starts_with("take csrf_2 = regex /<input"), "{lines:?}");
    assert_eq!(lines[5..], ["csrf = ${csrf}", "POST /search", "form", "csrf = ${csrf_2}"]);
}

#[test]
fn values_that_swap_are_not_confused() {
    let session = |v: &[&str]| {
        vec![
            Exchange::new("GET", "/a").answers_json(&json!({ "first": v[0], "second": v[1] })),
            Exchange::new("POST", "/b").json(&json!({ "x": v[0], "y": v[1] })),
        ]
    };
    let lines = lines_of(session, &[ONE, TWO], &[TWO, ONE]);
    assert_eq!(lines[1..3], ["take x = json $.first", "take y = json $.second"]);
    assert_eq!(lines[4], "json {\"x\":\"${x}\",\"y\":\"${y}\"}");
}

#[test]
fn a_list_that_has_grown_is_asked_for_its_last_element() {
    let session = |v: &[&str], n: usize| {
        let mut items: Vec<_> = (0..n).map(|n| json!({ "id": format!("old-{n}-item") })).collect();
        items.push(json!({ "id": v[0] }));
        vec![
            Exchange::new("GET", "/items").answers_json(&json!({ "items": items })),
            Exchange::new("DELETE", &format!("/items/{}", v[0])),
        ]
    };
    let lines = lines(&correlated(&session(&[ONE], 2), &session(&[TWO], 3)).unwrap());
    assert_eq!(lines[1..], ["take id = json $.items[-1].id", "DELETE /items/${id}"]);
}

#[test]
fn short_values_need_more_than_their_digits() {
    let session = |v: &[&str]| {
        let noise = format!("<p>{0} of {0}, page {0}</p><input name=\"count\" value=\"{0}\">", v[0]);
        vec![
            Exchange::new("GET", "/list").html(&noise).sets("X-Count", v[0]),
            Exchange::new("GET", "/more").answers_json(&json!({ "count": v[0].parse::<u32>().unwrap() })),
            Exchange::new("POST", "/buy").form(&format!("quantity={}&plain=1", v[0])),
            Exchange::new("GET", &format!("/page/{}", v[0])),
        ]
    };
    let correlation = correlated(&session(&["3"]), &session(&["7"])).unwrap();
    assert_eq!(correlation.counts.n_taken, 0, "{}", correlation.scenario);
    assert_eq!(correlation.typed.unwrap().csv, "quantity\n3\n7\n");
    assert_eq!(correlation.counts.n_unexplained, 1);
}

#[test]
fn short_values_are_found_by_their_names() {
    let session = |v: &[&str]| {
        let id: u32 = v[0].parse().unwrap();
        vec![
            Exchange::new("POST", "/orders").answers_json(&json!({ "id": id, "count": id })),
            Exchange::new("GET", &format!("/orders/{id}"))
                .html(&format!("<input name=\"line\" value=\"{id}\"><a href=\"/orders/{id}/edit\">{id}</a>")),
            Exchange::new("POST", "/lines").form(&format!("line={id}")),
        ]
    };
    let lines = lines_of(session, &["5"], &["6"]);
    assert_eq!(
        lines,
        [
            "POST /orders",
            "take id = json $.id",
            "GET /orders/${id}",
            "take line = regex /<input\\b[^>]*?\\sname=\"line\"[^>]*?\\svalue=\"([^\"]+)/",
            "POST /lines",
            "form",
            "line = ${line}",
        ]
    );
    let session = |v: &[&str]| {
        vec![
            Exchange::new("GET", "/").html(&format!("<a href=\"/admin/group/{}/change/?x=1\">it</a>", v[0])),
            Exchange::new("GET", &format!("/admin/group/{}/change/", v[0])),
        ]
    };
    let lines = lines_of(session, &["5"], &["6"]);
    assert_eq!(lines.last().unwrap(), "GET /admin/group/${group}/change/");
}

#[test]
fn the_same_short_number_of_another_thing_is_another_value() {
    let session = |v: &[&str]| {
        vec![
            Exchange::new("POST", "/orders").answers_json(&json!({ "id": v[0].parse::<u32>().unwrap() })),
            Exchange::new("GET", &format!("/orders/{}", v[0])),
            Exchange::new("GET", &format!("/months/{}", v[0]))
                .header("Referer", &format!("http://shop.test/orders/{}", v[0])),
        ]
    };
    let lines = lines_of(session, &["5"], &["6"]);
    let expected = ["GET /orders/${id}", "GET /months/5", "Referer: http://shop.test/orders/${id}"];
    assert_eq!(lines[2..], expected);
}

#[test]
fn what_was_typed_becomes_columns() {
    let session = |v: &[&str]| {
        vec![
            Exchange::new("POST", "/login").form(&format!("user={}&password={}&again={}", v[0], v[1], v[1])),
            Exchange::new("POST", "/note").json(&json!({ "text": v[2], "n": v[3].parse::<u32>().unwrap() })),
            Exchange::new("GET", &format!("/search?q={}", v[4])),
            Exchange::new("GET", &format!("/users/{}", v[0])),
        ]
    };
    let one = ["anna", "aB3dE5fG7hI9jK1l", "said \"hi\"", "12", "red+hat"];
    let two = ["robert", "zY8xW6vU4tS2rQ0p", "a\tb, c", "3", "blue+shoe"];
    let correlation = correlated(&session(&one), &session(&two)).unwrap();
    let typed = correlation.typed.clone().unwrap();
    assert_eq!(typed.secret_columns, ["password"]);
    assert_eq!(
        typed.csv,
        "user,password,n,text,q\nanna,aB3dE5fG7hI9jK1l,12,\"said \"\"hi\"\"\",red hat\nrobert,zY8xW6vU4tS2rQ0p,3,\"a\tb, c\",blue shoe\n"
    );
    assert_eq!(
        lines(&correlation),
        [
            "data typed from typed.csv sequential",
            "POST /login",
            "form",
            "user = ${typed.user}",
            "password = ${typed.password}",
            "again = ${typed.password}",
            "POST /note",
            "json {\"n\":${typed.n},\"text\":\"${typed.text}\"}",
            "GET /search?q=${typed.q|form}",
            "GET /users/${typed.user|url}",
        ]
    );
}

#[test]
fn a_value_that_was_typed_and_then_shown_stays_typed() {
    let session = |v: &[&str]| {
        vec![
            Exchange::new("POST", "/login")
                .form(&format!("user={}", v[0]))
                .html(&format!("<input name=user value=\"{}\">", v[0])),
            Exchange::new("POST", "/profile").form(&format!("user={}", v[0])),
        ]
    };
    let correlation = correlated(&session(&["anna"]), &session(&["robert"])).unwrap();
    assert_eq!(correlation.counts.n_taken, 0);
    assert_eq!(lines(&correlation).iter().filter(|line| *line == "user = ${typed.user}").count(), 2);
}

#[test]
fn the_time_and_random_values_are_made_anew() {
    let session = |v: &[&str]| {
        vec![
            Exchange::new("GET", &format!("/poll?_={}", v[0])),
            Exchange::new("POST", "/event").json(&json!({ "id": v[1], "at": v[2] })),
        ]
    };
    // 10:00:00 and 11:00:00, when the recordings begin.
    let one = ["1795687200123", "3f2b8c1e-7d4a-4f6b-9a0c-1e2d3c4b5a69", "2026-11-26T10:00:01.123Z"];
    let two = ["1795690800456", "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d", "2026-11-26T11:00:01.456Z"];
    let lines = lines_of(session, &one, &two);
    assert_eq!(lines, ["GET /poll?_=${now ms}", "POST /event", "json {\"at\":\"${now iso}\",\"id\":\"${uuid}\"}"]);
}

#[test]
fn what_no_answer_delivered_is_told_and_left() {
    let session = |v: &[&str]| {
        vec![
            Exchange::new("GET", "/"),
            Exchange::new("POST", "/pay").form(&format!("csrf_token={}", v[0])).header("X-Sig", v[1]),
        ]
    };
    let one = ["aB3dE5fG7hI9jK1l", "4f6b9a0c1e2d3c4b"];
    let correlation = correlated(&session(&one), &session(&["zY8xW6vU4tS2rQ0p", "0a1b2c3d4e5f4a6b"])).unwrap();
    let notes: Vec<_> = correlation.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "entry 2, POST http://shop.test/pay: the header X-Sig differs, and no answer delivered it: it stays as in the first recording",
            "entry 2, POST http://shop.test/pay: the field csrf_token differs, and no answer delivered it: it stays as in the first recording",
        ]
    );
    assert!(correlation.scenario.contains("csrf_token = aB3dE5fG7hI9jK1l"));
    assert_eq!(correlation.counts.n_unexplained, 2);
}

#[test]
fn values_in_different_places_of_the_answers_are_not_taken() {
    let session = |v: &[&str], idx: usize| {
        let mut items = vec!["item-a", "item-b", "item-c"];
        items[idx] = v[0];
        vec![
            Exchange::new("GET", "/items").answers_json(&json!({ "items": items })),
            Exchange::new("GET", &format!("/items/{}", v[0])),
        ]
    };
    let correlation = correlated(&session(&["item-x1"], 0), &session(&["item-y2"], 1)).unwrap();
    assert_eq!(correlation.counts.n_taken, 0, "{}", correlation.scenario);
    assert!(correlation.notes[0].what.contains("an answer has it"), "{:?}", correlation.notes);
}

#[test]
fn a_redirect_is_followed_unless_its_answer_is_needed() {
    let session = |v: &[&str]| {
        vec![
            Exchange::new("POST", "/login").redirects(&format!("/home?session={}", v[0])),
            Exchange::new("GET", &format!("/home?session={}", v[0])).html("welcome"),
            Exchange::new("GET", "/bye"),
        ]
    };
    // The client follows by itself, and nothing else needs the value.
    assert_eq!(lines_of(session, &[ONE], &[TWO]), ["POST /login", "redirects 20", "GET /bye"]);
    let session = |v: &[&str]| {
        let mut all = session(v);
        all.push(Exchange::new("POST", "/next").form(&format!("session={}", v[0])));
        all
    };
    assert_eq!(
        lines_of(session, &[ONE], &[TWO]),
        [
            "POST /login",
            "take session = regex /(?im)^Location: *\\/home\\?session=([^\\r\\n]+)/ in headers",
            "GET /home?session=${session}",
            "GET /bye",
            "POST /next",
            "form",
            "session = ${session}",
        ]
    );
}

#[test]
fn a_token_of_both_recordings_is_a_suspect() {
    let session = |_: &[&str]| {
        vec![
            Exchange::new("GET", "/")
                .html("<input name=csrf value=\"aB3dE5fG7hI9jK1l\"> <a href=\"/app.aB3dE5fG7hI9.js\">"),
            Exchange::new("POST", "/next").form("csrf=aB3dE5fG7hI9jK1l&other=Zz3dE5fG7hI9jK1l"),
        ]
    };
    let correlation = correlated(&session(&[]), &session(&[])).unwrap();
    let suspects: Vec<_> = correlation.suspects.iter().map(ToString::to_string).collect();
    assert_eq!(
        suspects,
        [
            "entry 2, POST http://shop.test/next: the field csrf is a token that an answer delivered, and is the same in both recordings"
        ]
    );
}

#[test]
fn requests_without_a_counterpart_are_told() {
    let session = |v: &[&str], extra: &[&str]| {
        let mut all = vec![Exchange::new("GET", "/").html(&format!("<input name=\"csrf\" value=\"{}\">", v[0]))];
        all.extend(extra.iter().map(|path| Exchange::new("GET", path)));
        all.push(Exchange::new("POST", "/next").form(&format!("csrf={}", v[0])));
        all
    };
    let correlation =
        correlated(&session(&[ONE], &["/a", "/banner"]), &session(&[TWO], &["/a", "/other/news"])).unwrap();
    assert_eq!(correlation.counts.n_taken, 1);
    let notes: Vec<_> = correlation.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "two.har, entry 3, GET http://shop.test/other/news: it has no counterpart in one.har, and is left out",
            "entry 3, GET http://shop.test/banner: it has no counterpart in two.har: its values are those of one.har",
        ]
    );
}

#[test]
fn recordings_of_other_clicks_are_refused() {
    let session = |paths: &[&str]| paths.iter().map(|path| Exchange::new("GET", path)).collect::<Vec<_>>();
    let error = correlated(&session(&["/", "/a", "/b/c"]), &session(&["/", "/x", "/y/z/0", "/y/z/1"])).unwrap_err();
    assert_eq!(error.to_string(), "they are not of the same clicks: they have 3 and 4 requests, and only 1 in common");
    assert!(matches!(correlated(&[], &session(&["/"])), Err(Error::Empty { name }) if name == "one.har"));
}

#[test]
fn what_is_missing_or_no_text_explains_nothing_and_breaks_nothing() {
    let session = |v: &[&str]| {
        let answer = |pointer: &str, value: Value| Exchange::new("GET", "/start").with(pointer, value);
        vec![
            answer("/response/content", json!({ "mimeType": "text/html" })),
            answer("/response/content", Value::Null),
            answer("/response", json!({ "status": 304, "headers": [] })),
            answer("/response/content", json!({ "text": "//79", "encoding": "base64" })),
            answer("/response/content", json!({ "text": "not base64", "encoding": "base64" })),
            answer("/response/content", json!({ "text": v[1], "encoding": "base64" }))
                .sets("Content-Encoding", "gzip")
                .sets("Transfer-Encoding", "chunked"),
            Exchange::new("POST", "/empty").form(""),
            Exchange::new("POST", "/binary").with(
                "/request",
                json!({ "method": "POST", "url": "http://shop.test/binary", "headers": [],
                        "postData": { "text": "//79", "encoding": "base64" } }),
            ),
            Exchange::new("POST", "/next").json(&json!({ "t": v[0] })),
        ]
    };
    // `{"t":"…"}`
    let body = |v: &str| {
        fathom_import::write::coded(&format!("{{\"t\":\"{v}\"}}"), fathom_import::import_tree::TextCoding::Base64)
            .unwrap()
    };
    let lines = lines_of(session, &[ONE, &body(ONE)], &[TWO, &body(TWO)]);
    assert_eq!(lines[6], "take t = json $.t", "{lines:?}");
    assert_eq!(lines.last().unwrap(), "json {\"t\":\"${t}\"}");
}

#[test]
fn secrets_are_not_in_the_comments() {
    let session = |v: &[&str]| {
        vec![
            Exchange::new("GET", "/start").answers_json(&json!({ "csrf": v[0], "cart": v[1] })),
            Exchange::new("POST", "/next").json(&json!({ "csrf": v[0], "cart": v[1] })),
        ]
    };
    let correlation = correlated(&session(&[ONE, ONE_TOO]), &session(&[TWO, TWO_TOO])).unwrap();
    assert!(!correlation.scenario.contains(ONE) && !correlation.scenario.contains(TWO), "{}", correlation.scenario);
    let comment = "# \"Wq5tU3yH6jFa\" and \"Ej2gM9kP4bXs\": $.cart in the JSON of POST /next";
    assert!(correlation.scenario.contains(comment), "{}", correlation.scenario);
}

#[test]
fn what_a_script_encoded_in_its_own_way_is_not_encoded_again() {
    let session = |v: &[&str]| vec![Exchange::new("GET", &format!("/find?text={}", v[0]))];
    let correlation = correlated(&session(&["a%2fb"]), &session(&["c%2fd"])).unwrap();
    assert_eq!(correlation.typed.clone().unwrap().csv, "text\na%2fb\nc%2fd\n");
    assert_eq!(lines(&correlation)[1], "GET /find?text=${typed.text}");
}

#[test]
fn a_text_of_which_one_word_was_typed_before_is_typed_as_a_whole() {
    let session = |v: &[&str]| {
        let name = v[0];
        vec![
            Exchange::new("POST", "/add").form(&format!("name={name}")),
            Exchange::new("POST", "/change").form(&format!("name={}+{name}", v[1])),
        ]
    };
    let correlation = correlated(&session(&["editors", "senior"]), &session(&["writers", "junior"])).unwrap();
    assert_eq!(correlation.typed.unwrap().csv, "name,name_2\neditors,senior editors\nwriters,junior writers\n");
}

#[test]
fn long_values_are_taken_and_long_recordings_refused() {
    let long = |c: &str| format!("{}{}", "0123456789abcdef".repeat(20), c.repeat(100_000));
    let lines = lines_of(
        |v: &[&str]| {
            vec![
                Exchange::new("GET", "/a").html(&format!("<input name=\"state\" value=\"{}\">", v[0])),
                Exchange::new("POST", "/b").form(&format!("state={}", v[0])),
            ]
        },
        &[&long("a")],
        &[&long("b")],
    );
    assert_eq!(lines.last().unwrap(), "state = ${state}");
    let many: Vec<_> = (0..20_001).map(|_| Exchange::new("GET", "/")).collect();
    assert!(matches!(correlated(&many, &many), Err(Error::TooLong { n: 20_001, .. })));
}

#[test]
fn a_page_is_expected_by_its_title_if_both_recordings_have_the_same() {
    let session = |v: &[&str]| {
        vec![
            Exchange::new("GET", "/").html("<title>The \"shop\"</title>"),
            Exchange::new("GET", "/me").html(&format!("<title>Hello {}</title>", v[0])),
        ]
    };
    let correlation = correlated(&session(&["ann"]), &session(&["bob"])).unwrap();
    assert_eq!(correlation.scenario.matches("expect body contains").count(), 1);
    assert!(correlation.scenario.contains(r#"expect body contains "<title>The \"shop\"</title>""#));
}

#[test]
fn a_password_that_the_scenario_holds_is_told() {
    let session = |_: &[&str]| {
        vec![
            Exchange::new("POST", "/login").form("user=ann&password=hush"),
            Exchange::new("GET", "/me").header("Authorization", "Basic YW5uOmh1c2g="),
        ]
    };
    let correlation = correlated(&session(&[]), &session(&[])).unwrap();
    let told: Vec<_> = correlation.notes.iter().map(|note| note.what.as_str()).collect();
    assert_eq!(
        told,
        [
            "the field password is the same in both recordings: the scenario holds it as it is",
            "the header Authorization is the same in both recordings: the scenario holds it as it is",
        ]
    );
}
