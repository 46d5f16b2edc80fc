//! The options of connections and requests: rows for the tables of the kinds.

use fathom_model::{OptionDoc, ValueKind};

/// The options of requests.
pub const REQUEST: [OptionDoc; 12] = [
    OptionDoc {
        name: "url",
        value: ValueKind::Destination,
        default: None,
        help: "target as [WEIGHT ]http[s]://[user:password@]host[:port]/path, one per line; default: our own responder",
    },
    OptionDoc { name: "path", value: ValueKind::Text, default: Some("/"), help: "path and query, if the URL has none" },
    OptionDoc {
        name: "method",
        value: ValueKind::Text,
        default: None,
        help: "request method; default: GET, or POST with a body",
    },
    OptionDoc {
        name: "header",
        value: ValueKind::Fields,
        default: None,
        help: "a header field, `Name: value`; repeatable; replaces a default field, `Name:` alone removes it",
    },
    OptionDoc { name: "body", value: ValueKind::Text, default: None, help: "request body" },
    OptionDoc { name: "body-file", value: ValueKind::File, default: None, help: "file with the request body" },
    OptionDoc {
        name: "accept-encoding",
        value: ValueKind::Text,
        default: None,
        help: "value of Accept-Encoding, such as gzip, br; responses are not decompressed",
    },
    OptionDoc {
        name: "user",
        value: ValueKind::Secret,
        default: None,
        help: "name:password for basic authentication; overrides the URL's",
    },
    OptionDoc { name: "cookie", value: ValueKind::Secret, default: None, help: "cookies to send, such as a=1; b=2" },
    OptionDoc {
        name: "host",
        value: ValueKind::Text,
        default: None,
        help: "value of the Host field; TLS still uses the URL's host, or --sni",
    },
    OptionDoc {
        name: "http",
        value: ValueKind::Choice(&["1.1", "1.0", "0.9"]),
        default: Some("1.1"),
        help: "HTTP version of requests; 1.0 asks for keep-alive unless --per-connection is 1",
    },
    OptionDoc {
        name: "per-connection",
        value: ValueKind::Count(1, u64::MAX),
        default: None,
        help: "requests per connection; 1 turns keep-alive off; default: no limit",
    },
];

/// The options of connecting.
pub const CONNECTING: [OptionDoc; 8] = [
    OptionDoc {
        name: "connect-to",
        value: ValueKind::Destination,
        default: None,
        help: "connect to this host:port instead of the URL's",
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
        help: "source addresses or networks (CIDR), used in turn, comma separated; needed above about 28,000 connections",
    },
    OptionDoc {
        name: "dns",
        value: ValueKind::Text,
        default: Some("once"),
        help: "when to resolve names: once, per connection, or again after a time such as 30s",
    },
    OptionDoc {
        name: "ip",
        value: ValueKind::Choice(&["any", "4", "6"]),
        default: Some("any"),
        help: "IP version; any: the first address that accepts a connection",
    },
    OptionDoc {
        name: "max-head",
        value: ValueKind::Size,
        default: Some("300KiB"),
        help: "maximum size of a response's status line and header fields",
    },
];

/// The options of TLS.
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
        help: "use only this TLS version; default: the highest that both sides support",
    },
    OptionDoc {
        name: "alpn",
        value: ValueKind::Text,
        default: Some("http/1.1"),
        help: "ALPN protocols to offer, comma separated, or none",
    },
    OptionDoc {
        name: "sni",
        value: ValueKind::Text,
        default: None,
        help: "server name for SNI and certificate verification; default: the URL's host",
    },
    OptionDoc {
        name: "resumption",
        value: ValueKind::Choice(&["on", "off"]),
        default: Some("on"),
        help: "resume earlier TLS sessions on new connections",
    },
    OptionDoc {
        name: "client-cert",
        value: ValueKind::File,
        default: None,
        help: "PEM file with the client certificate, followed by its issuers",
    },
    OptionDoc {
        name: "client-key",
        value: ValueKind::File,
        default: None,
        help: "PEM file with the key of --client-cert, if it is in another file",
    },
    OptionDoc {
        name: "ca",
        value: ValueKind::File,
        default: None,
        help: "PEM file with trusted issuers or server certificates, instead of the system's",
    },
];
