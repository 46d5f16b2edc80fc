//! Logs of servers as they write them, and what became of every line.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

use std::io::Write as _;

use fathom_model::units::Nanos;
use fathom_replay::{
    AnswerFate, BodiesNotLogged, LineFate, LogContents, LogError, LogFormatError, LogOptions, RecordedExchange,
    read_log,
};
use flate2::{Compression, write::GzEncoder};

/// Two days after the lines here.
const NOW: Nanos = Nanos(1_795_859_508_000_000_000);
const USUAL: LogOptions = LogOptions { format: None, bodies: BodiesNotLogged::LeaveOut, now: NOW };

fn read(bytes: &[u8], options: &LogOptions) -> Result<(LogContents, Vec<RecordedExchange>), LogError> {
    let mut exchanges = Vec::new();
    let contents = read_log(bytes, options, |exchange| {
        exchanges.push(exchange);
        Ok::<_, LogError>(())
    })?;
    Ok((contents, exchanges))
}

fn in_format(format: &str) -> LogOptions {
    LogOptions { format: Some(format.parse().unwrap()), ..USUAL }
}

/// A line with the request and the answer that are expected of it.
struct Case {
    line: &'static str,
    request: &'static str,
    /// Status, bytes and microseconds.
    answer: (u16, Option<u64>, Option<u64>),
    /// Milliseconds after 2026-11-26T09:51:48Z.
    begin: u64,
}

/// Of nginx 1.22, Apache 2.4 and the pages of Envoy, Istio, Traefik and Caddy about their logs.
const CASES: &[Case] = &[
    Case {
        line: r#"127.0.0.1 - - [26/Nov/2026:09:51:48 +0000] "GET /a?b=c HTTP/1.1" 200 6"#,
        request: "GET /a?b=c HTTP/1.1\r\n\r\n",
        answer: (200, Some(6), None),
        begin: 0,
    },
    Case {
        line: r#"::1 - bob [26/Nov/2026:11:51:48 +0200] "GET /q?x=\x22y\x22&\xC3\xBC HTTP/2.0" 200 6 "http://x/\x22r\x22" "a \x22b\x22 \x5C c\x09d""#,
        request: "GET /q?x=\"y\"&ü HTTP/1.1\r\nReferer: http://x/\"r\"\r\nUser-Agent: a \"b\" \\ c\td\r\n\r\n",
        answer: (200, Some(6), None),
        begin: 0,
    },
    Case {
        line: r#"127.0.0.1 - - [26/Nov/2026:09:51:48 +0000] "HEAD / HTTP/1.0" 304 0 "-" "curl/7.88.1" "10.1.2.3, 1.2.3.4""#,
        request: "HEAD / HTTP/1.1\r\nUser-Agent: curl/7.88.1\r\nX-Forwarded-For: 10.1.2.3, 1.2.3.4\r\n\r\n",
        answer: (304, Some(0), None),
        begin: 0,
    },
    Case {
        line: r#"127.0.0.1 - - [26/Nov/2026:09:51:50 +0000] "GET / HTTP/1.1" 200 6 "-" "-" 2.004"#,
        request: "GET / HTTP/1.1\r\n\r\n",
        answer: (200, Some(6), Some(2_004_000)),
        begin: 0,
    },
    Case {
        line: r#"127.0.0.1 - - [26/Nov/2026:09:51:50 +0000] "GET / HTTP/1.1" 200 - "-" "say \"hi\"" 2004"#,
        request: "GET / HTTP/1.1\r\nUser-Agent: say \"hi\"\r\n\r\n",
        answer: (200, None, Some(2004)),
        begin: 2000,
    },
    Case {
        line: r#"shop.example:80 10.0.0.1 - - [26/Nov/2026:09:51:48 +0000] "GET / HTTP/1.1" 200 245 "-" "say \"hi\"""#,
        request: "GET / HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: say \"hi\"\r\n\r\n",
        answer: (200, Some(245), None),
        begin: 0,
    },
    Case {
        line: r#"shop.example ::1 - - [26/Nov/2026:09:51:48 +0000] "GET /i HTTP/1.1" 200 245 1234 more"#,
        request: "GET /i HTTP/1.1\r\nHost: shop.example\r\n\r\n",
        answer: (200, Some(245), None),
        begin: 0,
    },
    Case {
        line: r#"[2026-11-26T09:51:48.310Z] "POST /api/v1/locations HTTP/2" 204 - 0 0 226 100 "10.0.35.28" "nsq2http" "cc21d9b0" "locations" "tcp://10.0.2.1:80""#,
        request: "POST /api/v1/locations HTTP/1.1\r\nHost: locations\r\nUser-Agent: nsq2http\r\nContent-Length: 0\r\n\r\n",
        answer: (204, Some(0), Some(226_000)),
        begin: 310,
    },
    Case {
        line: r#"[2026-11-26T09:51:48.054Z] "GET / HTTP/2" 302 UAEX ext_authz_denied - "-" 0 387 16 - "192.168.0.24" "Mozilla/5.0" "1d3e" "a.example" "-" outbound|80||b.c.svc - 10.0.0.196:8443 192.168.0.24:41604 a.example -"#,
        request: "GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: Mozilla/5.0\r\n\r\n",
        answer: (302, Some(387), Some(16_000)),
        begin: 54,
    },
    Case {
        line: r#"192.168.1.1 - - [26/Nov/2026:09:51:48 +0000] "GET /x HTTP/1.1" 200 5 "-" "curl/8" 7 "web@docker" "http://172.18.0.2:80" 3ms"#,
        request: "GET /x HTTP/1.1\r\nUser-Agent: curl/8\r\n\r\n",
        answer: (200, Some(5), Some(3000)),
        begin: 0,
    },
    Case {
        line: r#"{"time":"2026-11-26T09:51:48+00:00","msec":1795686708.644,"remote_addr":"::1","host":"a:81","method":"POST","uri":"/p","status":200,"bytes":6,"request_time":0.004,"http_user_agent":"c","http_referer":"","request_body":"{\"a\":\"b\"}"}"#,
        request: "POST /p HTTP/1.1\r\nHost: a:81\r\nUser-Agent: c\r\nContent-Length: 9\r\n\r\n{\"a\":\"b\"}",
        answer: (200, Some(6), Some(4000)),
        begin: 640,
    },
    Case {
        line: r#"{"time_local":"26/Nov/2026:09:51:48 +0000","request":"GET /q?x=\"y\" HTTP/1.1","status": "200","body_bytes_sent":"6","request_time":"0.000"}"#,
        request: "GET /q?x=\"y\" HTTP/1.1\r\n\r\n",
        answer: (200, Some(6), Some(0)),
        begin: 0,
    },
    Case {
        line: r#"{"level":"info","ts":1795686708.25,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"127.0.0.1","remote_port":"41342","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/?a","headers":{"User-Agent":["curl/7.82.0"],"Accept":["*/*"],"Cookie":["REDACTED"],"Connection":["close"]},"tls":{"proto":"h2"}},"bytes_read":0,"user_id":"","duration":0.125,"size":10900,"status":200,"resp_headers":{"Server":["Caddy"]}}"#,
        request: "GET /?a HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/7.82.0\r\nAccept: */*\r\n\r\n",
        answer: (200, Some(10900), Some(125_000)),
        begin: 125,
    },
    Case {
        line: r#"{"ClientAddr":"10.0.0.5:1234","ClientHost":"10.0.0.5","DownstreamContentSize":512,"DownstreamStatus":502,"OriginStatus":0,"Duration":12500000,"RequestAddr":"w.example:81","RequestContentSize":0,"RequestHost":"w.example","RequestMethod":"GET","RequestPath":"/api?x=1","RequestProtocol":"HTTP/1.1","StartUTC":"2026-11-26T09:51:48.5Z","level":"info","request_User-Agent":"t","time":"2026-11-26T09:51:49Z"}"#,
        request: "GET /api?x=1 HTTP/1.1\r\nHost: w.example:81\r\nUser-Agent: t\r\n\r\n",
        answer: (502, Some(512), Some(12_500)),
        begin: 500,
    },
    Case {
        line: r#"{"start_time":"2026-11-26T09:51:48.100Z","method":"GET","path":"/e","protocol":"HTTP/1.1","response_code":200,"bytes_sent":5,"bytes_received":0,"duration":7,"authority":"e.example","user_agent":"u","x_forwarded_for":"10.0.0.1"}"#,
        request: "GET /e HTTP/1.1\r\nHost: e.example\r\nUser-Agent: u\r\n\r\n",
        answer: (200, Some(5), Some(7000)),
        begin: 100,
    },
    Case {
        line: r#"{"@timestamp":"2026-11-26T09:51:48.100Z","client":{"ip":"10.0.0.1","port":4321},"event":{"duration":7000000,"outcome":"success"},"http":{"version":"1.1","request":{"method":"GET","referrer":"http://r/","body":{"bytes":0}},"response":{"status_code":200,"body":{"bytes":5}}},"url":{"domain":"e.example","path":"/e","query":"a=b"},"user_agent":{"original":"u"},"ecs":{"version":"8.11.0"}}"#,
        request: "GET /e?a=b HTTP/1.1\r\nHost: e.example\r\nReferer: http://r/\r\nUser-Agent: u\r\n\r\n",
        answer: (200, Some(5), Some(7000)),
        begin: 100,
    },
    Case {
        line: r#"{"@timestamp":"2026-11-26T09:51:48.100Z","source.ip":"10.0.0.1","http.request.method":"GET","http.response.status_code":404,"url.original":"/e?a=b"}"#,
        request: "GET /e?a=b HTTP/1.1\r\n\r\n",
        answer: (404, None, None),
        begin: 100,
    },
    Case {
        line: r#"{"log":"127.0.0.1 - - [26/Nov/2026:09:51:48 +0000] \"GET /a?b=c HTTP/1.1\" 200 6\n","stream":"stdout","time":"2026-11-26T09:51:48.620001002Z"}"#,
        request: "GET /a?b=c HTTP/1.1\r\n\r\n",
        answer: (200, Some(6), None),
        begin: 0,
    },
];

const SECOND: Nanos = Nanos(1_795_686_708_000_000_000);

#[test]
fn the_formats_of_servers_are_recognised_and_their_requests_rebuilt() {
    for Case { line, request, answer: (status, content_bytes, took), begin } in CASES {
        let (contents, exchanges) = read(line.as_bytes(), &USUAL).unwrap_or_else(|error| panic!("{error}: {line}"));
        let [exchange] = &exchanges[..] else { panic!("{:?}: {line}", contents.counts) };
        assert_eq!(String::from_utf8_lossy(&exchange.request), *request, "{line}");
        assert_eq!(exchange.first_byte, SECOND + Nanos::from_millis(*begin), "{line}");
        let logged = exchange.logged.unwrap();
        let answer = (logged.status, logged.content_bytes, logged.took);
        assert_eq!(answer, (*status, *content_bytes, took.map(Nanos::from_micros)), "{line}");
        assert_eq!(exchange.answer_fate, AnswerFate::Logged);
    }
}

const COMMON: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent"#;

#[test]
fn every_line_has_one_fate() {
    let cases = [
        ("GET / HTTP/1.1", LineFate::Whole),
        ("GET /old", LineFate::Whole),
        ("OPTIONS * HTTP/1.1", LineFate::Whole),
        ("GET http://a/b HTTP/1.1", LineFate::Whole),
        ("DELETE /x HTTP/1.1", LineFate::Whole),
        ("POST / HTTP/1.1", LineFate::BodyNotLogged),
        ("PUT / HTTP/2.0", LineFate::BodyNotLogged),
        ("-", LineFate::NoRequest),
        ("", LineFate::NoRequest),
        ("- - HTTP/1.1", LineFate::NoRequest),
        (r"\x16\x03\x01\x00\xEE\x01", LineFate::OtherProtocol),
        (r"\xFF\xFE", LineFate::OtherProtocol),
        ("PRI * HTTP/2.0", LineFate::OtherProtocol),
        ("GET /a b HTTP/1.1", LineFate::Malformed),
        (r"GET /x\x7F HTTP/1.1", LineFate::Malformed),
        (r"GET /x\x0d\x0aA:b HTTP/1.1", LineFate::Malformed),
        ("GET", LineFate::Malformed),
        ("G(T / HTTP/1.1", LineFate::Malformed),
        ("CONNECT a:443 HTTP/1.1", LineFate::Tunnel),
    ];
    for (request, fate) in cases {
        let line = format!(r#"127.0.0.1 - - [26/Nov/2026:09:51:48 +0000] "{request}" 200 6"#);
        let (contents, exchanges) = read(line.as_bytes(), &in_format(COMMON)).unwrap();
        assert_eq!(contents.counts.lines, [(fate, 1)].into(), "{line}");
        assert_eq!(exchanges.len(), usize::from(fate == LineFate::Whole), "{line}");
    }
    let whole = r#"127.0.0.1 - - [26/Nov/2026:09:51:48 +0000] "GET / HTTP/1.1" 200 6"#;
    let lines = [
        whole.to_owned(),
        whole.replace("200", "101"),
        whole.replace("26/Nov", "36/Nov"),
        whole.replace("200 6", "200"),
        whole.replace("GET /", &format!("GET /{}", "a".repeat(1 << 20))),
        String::new(),
    ];
    let (contents, _) = read(lines.join("\n").as_bytes(), &in_format(COMMON)).unwrap();
    assert_eq!(contents.counts.n_lines(), 5, "the last line has no end and no character: it is none");
    let (contents, _) = read((lines.join("\n") + "\n").as_bytes(), &in_format(COMMON)).unwrap();
    let fates = [
        LineFate::Whole,
        LineFate::Upgrade,
        LineFate::NoTime,
        LineFate::OtherFormat,
        LineFate::TooLong,
        LineFate::Empty,
    ];
    assert_eq!(contents.counts.lines, fates.map(|fate| (fate, 1)).into());
}

/// Lines of the common format with these times after 09:51, in seconds, each with its number as the target.
fn lines(seconds: impl IntoIterator<Item = u32>) -> String {
    let line = |(number, second)| {
        let (minute, second) = (51 + second / 60, second % 60);
        format!(r#"::1 - - [26/Nov/2026:09:{minute}:{second:02} +0000] "GET /{number} HTTP/1.1" 200 6"#) + "\n"
    };
    (0..).zip(seconds).map(line).collect()
}

/// The numbers of the requests and their times in milliseconds after 09:51.
fn order(exchanges: &[RecordedExchange]) -> Vec<(u32, u64)> {
    let minute = SECOND - Nanos::from_secs(48);
    let number = |exchange: &RecordedExchange| {
        let request = String::from_utf8_lossy(&exchange.request).into_owned();
        request.split(['/', ' ']).nth(2).unwrap().parse().unwrap()
    };
    exchanges.iter().map(|exchange| (number(exchange), exchange.first_byte.since(minute).0 / 1_000_000)).collect()
}

#[test]
fn requests_of_a_second_are_spread_over_it_and_late_lines_come_in_their_place() {
    // The eighth line of more than a minute later makes the first two seconds leave.
    let seconds = [3, 3, 4, 3, 3, 65, 4, 66, 67, 68, 69, 70, 71, 72, 3, 73, 5];
    let (contents, exchanges) = read(lines(seconds).as_bytes(), &USUAL).unwrap();
    let first = [(0, 3000), (1, 3250), (3, 3500), (4, 3750), (2, 4000), (6, 4500), (16, 5000), (5, 65_000)];
    let then = (7..14).map(|number| (number, u64::from(number) * 1000 + 59_000));
    let expected: Vec<(u32, u64)> = first.into_iter().chain(then).chain([(15, 73_000)]).collect();
    assert_eq!(order(&exchanges), expected);
    assert_eq!(contents.counts.lines, [(LineFate::Whole, 16), (LineFate::OutOfOrder, 1)].into());
}

#[test]
fn finer_times_are_spread_over_their_own_step_even_if_zeros_are_left_out() {
    let line = |time: &str, number: u32| format!(r#"{{"time":"{time}","method":"GET","path":"/{number}"}}"#) + "\n";
    let times = ["2026-11-26T09:51:03Z", "2026-11-26T09:51:03Z", "2026-11-26T09:51:03.01Z", "2026-11-26T09:51:03Z"];
    let text: String = (0..).zip(times).map(|(number, time)| line(time, number)).collect();
    let (contents, exchanges) = read(text.as_bytes(), &USUAL).unwrap();
    assert_eq!(order(&exchanges), [(0, 3000), (1, 3003), (3, 3006), (2, 3010)]);
    assert_eq!(contents.counts.answers, [(AnswerFate::Absent, 4)].into());
}

#[test]
fn bodies_are_sent_if_they_are_logged_whole_and_left_out_or_empty_else() {
    let format = r#"$time_iso8601 $request_method $request_uri "$request_body" $content_length"#;
    let fate = |line: &str, bodies| {
        let options = LogOptions { bodies, ..in_format(format) };
        let (contents, exchanges) = read(format!("2026-11-26T09:51:03Z {line}").as_bytes(), &options).unwrap();
        let (fate, _) = contents.counts.lines.first_key_value().unwrap();
        let body = exchanges.first().map(|exchange| exchange.request[exchange.head_length..].to_vec());
        (*fate, body.map(|body| String::from_utf8(body).unwrap()))
    };
    let whole = |body: &str| (LineFate::Whole, Some(body.to_owned()));
    let left_out = (LineFate::BodyNotLogged, None);
    let cases = [
        (r#"POST / "a=\x22b\x22" -"#, whole("a=\"b\""), whole("a=\"b\"")),
        (r#"POST / "a=b" 3"#, whole("a=b"), whole("a=b")),
        (r#"POST / "a=b" 4"#, left_out.clone(), whole("")),
        (r#"POST / "-" 4"#, left_out.clone(), whole("")),
        (r#"POST / "-" -"#, left_out.clone(), whole("")),
        (r#"POST / "-" 0"#, whole(""), whole("")),
        (r#"GET / "-" 4"#, left_out, whole("")),
        (r#"GET / "-" -"#, whole(""), whole("")),
    ];
    for (line, usual, empty) in cases {
        assert_eq!(fate(line, BodiesNotLogged::LeaveOut), usual, "{line}");
        assert_eq!(fate(line, BodiesNotLogged::Empty), empty, "{line}");
    }
}

#[test]
fn connections_follow_from_client_port_and_pause() {
    let format = "$time_iso8601 $remote_addr $remote_port $request_method $request_uri $http_user_agent";
    let lines = [
        "2026-11-26T09:51:00Z ::1 7 GET / a",
        "2026-11-26T09:51:01Z ::1 8 GET / a",
        "2026-11-26T09:51:02Z ::1 7 GET / b",
        "2026-11-26T09:51:03Z ::1 7 GET / a",
        "2026-11-26T09:52:04Z ::1 7 GET / a",
    ];
    let (contents, exchanges) = read(lines.join("\n").as_bytes(), &in_format(format)).unwrap();
    let connections: Vec<_> = exchanges.iter().map(|exchange| exchange.connection).collect();
    assert_eq!((connections, contents.counts.n_connections), (vec![0, 1, 2, 0, 3], 4));
    assert_eq!(exchanges[3].opened, exchanges[0].first_byte);
}

#[test]
fn a_compressed_log_of_several_members_is_read_and_a_cut_one_up_to_there() {
    let compressed = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let file = [compressed(&lines([1, 2])), compressed(&lines(3..103))].concat();
    assert_eq!(read(&file, &USUAL).unwrap().1.len(), 102);
    let (contents, exchanges) = read(&file[..file.len() - 20], &USUAL).unwrap();
    let place = format!("after line {}: ", exchanges.len());
    assert!(contents.damage.as_ref().is_some_and(|damage| damage.contains(&place)), "{contents:?}");
    assert!((3..102).contains(&exchanges.len()));
}

#[test]
fn a_line_with_a_time_in_the_future_is_counted_and_does_not_move_the_others() {
    let line = |year: u32, second: u32, path: &str| {
        format!("127.0.0.1 - - [26/Nov/{year}:09:51:{second:02} +0000] \"GET /{path} HTTP/1.1\" 200 6\n")
    };
    let text = line(2026, 48, "a") + &line(2099, 0, "x") + &line(2026, 52, "c") + &line(2026, 49, "b");
    let (contents, exchanges) = read(text.as_bytes(), &USUAL).unwrap();
    assert_eq!((contents.counts.lines[&LineFate::Future], contents.counts.lines[&LineFate::Whole]), (1, 3));
    let paths: Vec<_> = exchanges.iter().map(|exchange| char::from(exchange.request[5])).collect();
    assert_eq!(paths, ['a', 'b', 'c']);
}

#[test]
fn lines_of_docker_are_read_with_a_format_too_and_others_among_them_are_counted() {
    let access = r#"{"log":"[26/Nov/2026:09:51:48 +0000] \"GET / HTTP/1.1\"\n","stream":"stdout","time":"2026-11-26T09:51:48Z"}"#;
    let error = r#"{"log":"upstream is down\n","stream":"stderr","time":"2026-11-26T09:51:48Z"}"#;
    let text = [access, error, access].join("\n");
    let (contents, exchanges) = read(text.as_bytes(), &in_format(r#"[$time_local] "$request""#)).unwrap();
    assert_eq!((exchanges.len(), contents.counts.lines[&LineFate::OtherFormat]), (2, 1));
    assert!(contents.format.to_string().ends_with("Docker's json-file"), "{}", contents.format);
}

#[test]
fn a_line_that_docker_divided_is_one_request() {
    let path = "x".repeat(20_000);
    let line = format!("1.2.3.4 - - [26/Nov/2026:09:51:48 +0000] \\\"GET /{path} HTTP/1.1\\\" 200 5\\n");
    let object =
        |log: &str, stream: &str| format!(r#"{{"log":"{log}","stream":"{stream}","time":"2026-11-26T09:51:48Z"}}"#);
    let (first, second) = line.split_at(16_384);
    let text = [object(first, "stdout"), object("down\\n", "stderr"), object(second, "stdout")].join("\n");
    let (contents, exchanges) =
        read(text.as_bytes(), &in_format(r#"$remote_addr - - [$time_local] "$request" $status $body_bytes_sent"#))
            .unwrap();
    assert!(exchanges[0].request.starts_with(format!("GET /{path} HTTP/1.1\r\n").as_bytes()), "the request is whole");
    let fates = [(LineFate::Whole, 1), (LineFate::OtherFormat, 1), (LineFate::Part, 1)];
    assert_eq!(contents.counts.lines, fates.into());
}

#[test]
fn what_is_no_log_is_refused() {
    let refusal = |bytes: &[u8]| read(bytes, &USUAL).unwrap_err();
    assert_eq!(refusal(b""), LogError::Empty);
    assert_eq!(refusal(b"some\nother\ntext"), LogError::Unknown);
    let other = read(lines([1]).as_bytes(), &in_format("$remote_addr|$time_local|$request")).unwrap_err();
    assert_eq!(other, LogError::OtherFormat);
    assert_eq!(refusal(br#"{"level":"info","msg":"no request"}"#), LogError::Unknown);
    assert!(matches!(refusal(b"\x1f\x8bno gzip"), LogError::Unreadable(_)));
}

#[test]
fn a_format_without_a_request_or_a_time_is_refused() {
    let refusal = |text: &str| text.parse::<fathom_replay::LogFormat>().unwrap_err();
    assert_eq!(refusal("$time_local $status"), LogFormatError::NoRequest);
    assert_eq!(refusal("$request_method $request_uri"), LogFormatError::NoTime);
    assert_eq!(refusal("$time_local$request"), LogFormatError::Adjacent("$request".to_owned()));
    assert_eq!(refusal("$time_local $ $request"), LogFormatError::Unnamed(" ".to_owned()));
    assert_eq!(refusal("log_format a '$time_local $request"), LogFormatError::Quotes);
    let directive = "log_format main escape=json '$time_local|'\n   '${request}|$status';";
    assert_eq!(in_format(directive).format.unwrap().to_string(), "$time_local|${request}|$status");
}
