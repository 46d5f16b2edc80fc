//! Command lines and the requests that they send.

use super::*;
use crate::import_tree::{ImportedBody, RedirectHandling};

fn requests(text: &str) -> Vec<ImportedRequest> {
    let builder = read(text).unwrap();
    let acts = builder.kinds.into_iter().flat_map(|kind| kind.acts);
    acts.filter_map(|act| if let ImportAction::Request(request) = act { Some(*request) } else { None }).collect()
}

/// Method, URL, headers and body, one per line.
fn shown(text: &str) -> String {
    let shown = requests(text).into_iter().map(|request| {
        let headers =
            request.headers.iter().fold(String::new(), |all, (name, value)| format!("{all}{name}: {value}\n"));
        let body = match request.body {
            ImportedBody::None => String::new(),
            ImportedBody::Text(text) => format!("\n{text}\n"),
            other => format!("\n{other:?}\n"),
        };
        format!("{} {}\n{headers}{body}", request.method, request.url)
    });
    shown.collect::<Vec<_>>().join("---\n")
}

#[test]
fn what_chromium_copies_is_one_request() {
    let copied = r#"curl 'http://shop.test/cart?x=\[1\]' \
  -X 'PATCH' \
  -H 'accept: application/json' \
  -H 'content-type: application/json' \
  -b 'session=1; theme=dark' \
  --data-raw $'{"name":"it\'s \u0021"}' \
  --insecure"#;
    assert_eq!(
        shown(copied),
        "PATCH http://shop.test/cart?x=[1]\nCookie: session=1; theme=dark\naccept: application/json\n\
         content-type: application/json\n\n{\"name\":\"it's !\"}\n"
    );
    assert!(read(copied).unwrap().kinds[0].insecure);
}

#[test]
fn what_firefox_copies_is_one_request_per_command() {
    let copied = "curl 'http://shop.test/' --compressed -H 'User-Agent: Mozilla/5.0' -H 'Accept: */*';\ncurl 'http://shop.test/b' -X HEAD";
    assert_eq!(
        shown(copied),
        "GET http://shop.test/\nAccept-Encoding: deflate, gzip, br, zstd\nUser-Agent: Mozilla/5.0\nAccept: */*\n---\n\
         HEAD http://shop.test/b\nAccept: */*\n"
    );
}

#[test]
fn methods_follow_from_the_options() {
    for (options, method) in [
        ("", "GET"),
        ("-I", "HEAD"),
        ("-d a", "POST"),
        ("-F a=b", "POST"),
        ("--json {}", "POST"),
        ("-G -d a", "GET"),
        ("-XDELETE -d a", "DELETE"),
        ("-T file", "PUT"),
        ("-sSX PUT", "PUT"),
    ] {
        assert_eq!(requests(&format!("curl {options} http://a.test/"))[0].method, method, "{options}");
    }
}

#[test]
fn data_goes_into_the_body_or_with_get_into_the_url() {
    let sent = requests("curl http://a.test/ -d a=1 --data-urlencode 'b=x y' --data-raw @c");
    assert_eq!(sent[0].body, ImportedBody::Text("a=1&b=x+y&@c".into()));
    assert_eq!(sent[0].header("content-type").unwrap().to_string(), "application/x-www-form-urlencoded");
    let asked = requests("curl -G 'http://a.test/?z=0' -d a=1 --data-urlencode 'b=x y'");
    assert_eq!(
        (asked[0].url.to_string().as_str(), &asked[0].body),
        ("http://a.test/?z=0&a=1&b=x+y", &ImportedBody::None)
    );
}

#[test]
fn a_colon_without_a_value_takes_a_header_away_and_a_semicolon_sends_it_empty() {
    assert_eq!(shown("curl a.test -H Accept: -H 'X-Empty;'"), "GET http://a.test\nX-Empty: \n");
}

#[test]
fn names_and_passwords_become_a_header() {
    for line in ["curl -u me:secret http://a.test/", "curl http://me:secret@a.test/"] {
        assert_eq!(shown(line), "GET http://a.test/\nAuthorization: Basic bWU6c2VjcmV0\nAccept: */*\n", "{line}");
    }
}

#[test]
fn forms_have_their_parts() {
    let sent = requests(
        "curl a.test -F 'a=b;type=text/x' -F 'f=@dir/pic.png' -F 'g=<note.txt' -F 'h=\"x;y\"' --form-string i=@j",
    );
    let ImportedBody::Multipart(parts) = &sent[0].body else { panic!("{:?}", sent[0].body) };
    let shown: Vec<_> = parts
        .iter()
        .map(|part| format!("{} {:?} {:?} {:?}", part.name, part.content, part.media_type, part.file_name))
        .collect();
    let text = |text: &str| format!("Text(ImportText([Literal({text:?})]))");
    let file = |text: &str| format!("File(ImportText([Literal({text:?})]))");
    assert_eq!(shown[0], format!("a {} Some(\"text/x\") None", text("b")));
    assert_eq!(
        shown[1],
        format!("f {} Some(\"image/png\") Some({})", file("dir/pic.png"), "ImportText([Literal(\"pic.png\")])")
    );
    assert_eq!(shown[2], format!("g {} None None", file("note.txt")));
    assert_eq!(shown[3], format!("h {} None None", text("x;y")));
    assert_eq!(shown[4], format!("i {} None None", text("@j")));
}

#[test]
fn variables_of_the_shell_stay_variables() {
    let builder = read("HOST=http://a.test\ncurl -H \"Authorization: Bearer $TOKEN\" \"$HOST/x\"").unwrap();
    let names: Vec<_> = builder.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(names, ["HOST=http://a.test", "TOKEN="]);
    assert_eq!(builder.notes.len(), 1, "{:?}", builder.notes);
    assert_eq!(shown("curl $HOST/x"), "GET ${HOST}/x\nAccept: */*\n");
}

#[test]
fn what_has_no_place_is_told_with_its_line() {
    let builder =
        read("curl http://a.test/\n\ncurl --digest -x http://p:1 --wonder http://b.test/ | jq .\ncurl $(cat url)")
            .unwrap();
    let notes = builder.kinds[0].acts.iter().flat_map(|act| match act {
        ImportAction::Request(request) => request.left_out.clone(),
        ImportAction::LeftOut(note) => vec![note.clone()],
        other => panic!("{other:?}"),
    });
    assert_eq!(
        notes.map(|note| note.to_string()).collect::<Vec<_>>(),
        [
            "line 3: --digest: a scenario has nothing like it: the name and the password are not sent",
            "line 3: --proxy http://p:1: a scenario has nothing like it",
            "line 3: the option --wonder is not known",
            "line 3: the command jq is left out",
            "line 4: the output of another command is not known here: the command is left out",
        ]
    );
    assert_eq!(requests("curl http://a.test/ -L")[0].redirects, RedirectHandling::Followed);
}

#[test]
fn several_urls_and_sets_are_several_requests() {
    let sent = requests("curl -d a http://a.test/ http://b.test/ --next -I c.test");
    let lines: Vec<_> = sent.iter().map(|request| format!("{} {}", request.method, request.url)).collect();
    assert_eq!(lines, ["POST http://a.test/", "POST http://b.test/", "HEAD http://c.test"]);
}

#[test]
fn no_option_is_listed_twice() {
    for (idx, opt) in options::OPTIONS.iter().enumerate() {
        let rest = &options::OPTIONS[idx + 1..];
        assert!(rest.iter().all(|other| other.long != opt.long), "--{}", opt.long);
        assert!(opt.short.is_none() || rest.iter().all(|other| other.short != opt.short), "-{:?}", opt.short);
    }
}

#[test]
fn lines_become_the_requests_that_curl_sends() {
    let first_lines = |line: &str| {
        let all = requests(line).into_iter().map(|request| format!("{} {}", request.method, request.url));
        all.collect::<Vec<_>>().join(", ")
    };
    for (line, sent) in [
        ("curl --url-query a=b http://h/1 http://h/2", "GET http://h/1?a=b, GET http://h/2?a=b"),
        ("curl -G -d a=b http://h/1 http://h/2", "GET http://h/1?a=b, GET http://h/2?a=b"),
        ("curl -T 'dir/my file.txt' http://h", "PUT http://h/my%20file.txt"),
        ("curl -T file.txt http://h/", "PUT http://h/file.txt"),
        ("curl -T file.txt http://h/other", "PUT http://h/other"),
        ("curl -T - http://h", "PUT http://h"),
        ("curl http://h/a/../b?c=/../d", "GET http://h/b?c=/../d"),
        ("curl h/x?u=http://a/../b", "GET http://h/x?u=http://a/../b"),
        ("curl --path-as-is http://h/a/../b", "GET http://h/a/../b"),
    ] {
        assert_eq!(first_lines(line), sent, "{line}");
    }
    for (range, field) in [("600", "bytes=600-"), ("0-99", "bytes=0-99"), ("-5", "bytes=-5")] {
        let sent = requests(&format!("curl -r {range} http://h/"));
        assert_eq!(sent[0].header("Range").unwrap().to_string(), field);
    }
    assert!(requests("curl --digest -u a:b http://h/")[0].header("Authorization").is_none());
}

#[test]
fn what_only_a_shell_can_send_is_told() {
    for (line, told) in [
        ("curl -d @- http://h/", "standard input"),
        ("curl --data-binary @- http://h/ <<< x", "standard input"),
        ("curl -T - http://h/x", "standard input"),
        ("curl -F a=@- -F b=c http://h/", "standard input"),
        ("curl -F 'a=<f.txt' http://h/", "sent as a file"),
    ] {
        let sent = requests(line);
        assert!(sent[0].left_out.iter().any(|note| note.what.contains(told)), "{line}: {:?}", sent[0].left_out);
        assert!(!matches!(&sent[0].body, ImportedBody::File(_)), "{line}");
    }
}
