//! What users may say of connections and requests: rows for the tables of the kinds.

use fathom_model::{OptionDoc, ValueKind};

/// What is asked.
pub const REQUEST: [OptionDoc; 12] = [
    OptionDoc {
        name: "url",
        value: ValueKind::Destination,
        default: None,
        help: "any server, as [WEIGHT ]http[s]://[user:password@]host[:port]/path; several on a line each; without it a responder of ours",
    },
    OptionDoc {
        name: "path",
        value: ValueKind::Text,
        default: Some("/"),
        help: "path and query, where the URL has none",
    },
    OptionDoc {
        name: "method",
        value: ValueKind::Text,
        default: None,
        help: "any method, such as HEAD or PUT; GET unless given, or POST with a body",
    },
    OptionDoc {
        name: "header",
        value: ValueKind::Fields,
        default: None,
        help: "header fields of the form Name: value, a line each; one takes the place of ours, `Name:` alone leaves ours out",
    },
    OptionDoc { name: "body", value: ValueKind::Text, default: None, help: "body of each request" },
    OptionDoc {
        name: "body-file",
        value: ValueKind::File,
        default: None,
        help: "file that holds the body of each request",
    },
    OptionDoc {
        name: "accept-encoding",
        value: ValueKind::Text,
        default: None,
        help: "encodings to ask for, such as gzip, br; answers are counted as they come and not unpacked",
    },
    OptionDoc {
        name: "user",
        value: ValueKind::Secret,
        default: None,
        help: "name:password for basic authentication; goes before the URL's",
    },
    OptionDoc { name: "cookie", value: ValueKind::Secret, default: None, help: "cookies, such as a=1; b=2" },
    OptionDoc {
        name: "host",
        value: ValueKind::Text,
        default: None,
        help: "value of Host instead of the URL's; TLS still uses the URL's host, or the option sni",
    },
    OptionDoc {
        name: "http",
        value: ValueKind::Choice(&["1.1", "1.0", "0.9"]),
        default: Some("1.1"),
        help: "version that requests speak; 1.0 asks to keep the connection unless per-connection is 1",
    },
    OptionDoc {
        name: "per-connection",
        value: ValueKind::Count(1, u64::MAX),
        default: None,
        help: "requests on a connection before a new one is opened; 1 turns keep-alive off; no bound unless given",
    },
];

/// Where connections go, and how.
pub const CONNECTING: [OptionDoc; 8] = [
    OptionDoc {
        name: "connect-to",
        value: ValueKind::Destination,
        default: None,
        help: "host:port or address:port to connect to, whatever the URL's host is",
    },
    OptionDoc {
        name: "proxy",
        value: ValueKind::Destination,
        default: None,
        help: "HTTP proxy, as http://[user:password@]host:port; https goes through CONNECT",
    },
    OptionDoc {
        name: "proxy-protocol",
        value: ValueKind::Choice(&["v1", "v2"]),
        default: None,
        help: "begin each connection with a PROXY protocol header of this version",
    },
    OptionDoc { name: "unix", value: ValueKind::File, default: None, help: "path of a unix socket to connect to" },
    OptionDoc {
        name: "source",
        value: ValueKind::Text,
        default: None,
        help: "addresses and networks (CIDR) to send from in turn, comma separated; for more than some 28,000 connections",
    },
    OptionDoc {
        name: "dns",
        value: ValueKind::Text,
        default: Some("once"),
        help: "when names are looked up: once, connection (for each), or how long an answer is good, such as 30s",
    },
    OptionDoc {
        name: "ip",
        value: ValueKind::Choice(&["any", "4", "6"]),
        default: Some("any"),
        help: "version of IP; any takes the first family of the name's addresses that takes a connection",
    },
    OptionDoc {
        name: "max-head",
        value: ValueKind::Size,
        default: Some("300KiB"),
        help: "longest status line and header fields of an answer, together",
    },
];

/// What is asked of TLS.
pub const TLS: [OptionDoc; 8] = [
    OptionDoc {
        name: "insecure",
        value: ValueKind::Flag,
        default: None,
        help: "do not verify certificates (noted in the result)",
    },
    OptionDoc {
        name: "tls",
        value: ValueKind::Choice(&["1.2", "1.3"]),
        default: None,
        help: "only this version of TLS; the best that the server knows unless given",
    },
    OptionDoc {
        name: "alpn",
        value: ValueKind::Text,
        default: Some("http/1.1"),
        help: "protocols to offer, comma separated, or none",
    },
    OptionDoc {
        name: "sni",
        value: ValueKind::Text,
        default: None,
        help: "name to ask for and to verify instead of the URL's host",
    },
    OptionDoc {
        name: "resumption",
        value: ValueKind::Choice(&["on", "off"]),
        default: Some("on"),
        help: "whether new connections resume the sessions of earlier ones",
    },
    OptionDoc {
        name: "client-cert",
        value: ValueKind::File,
        default: None,
        help: "PEM file with the certificate to show to the server, then its issuers",
    },
    OptionDoc {
        name: "client-key",
        value: ValueKind::File,
        default: None,
        help: "PEM file with the key of client-cert, if not in the same file",
    },
    OptionDoc {
        name: "ca",
        value: ValueKind::File,
        default: None,
        help: "PEM file with the issuers, or the certificates of servers, to trust instead of the system's",
    },
];
