//! Preludes: the PROXY protocol and tunnels, one after the other and before TLS.

use std::mem::size_of;

use fathom_http::dial::{Channel, Desk, Ends, Fault, Opened, ProxyFault, Step};
use fathom_model::units::Nanos;

use crate::server::{Issuer, Pair, dialer, settings};

const NOW: Nanos = Nanos(5);

fn ends() -> Ends {
    Ends { local: "10.0.0.1:1025".parse().unwrap(), peer: "10.0.0.2:80".parse().unwrap() }
}

#[test]
fn a_plain_connection_has_nothing_between() {
    let dialer = dialer(&settings(&[("url", "http://127.0.0.1:1/")]));
    let (mut channel, mut desk) = (dialer.channel(0).unwrap(), Desk::default());
    assert!(channel.is_plain() && !channel.wants_ends());
    assert_eq!(channel.opened(None, NOW, &mut desk), Ok(Step::Ready(Opened::default())));
    assert!(desk.out.is_empty() && channel.cut().is_none());
    // It stands in every connection of tens of thousands.
    assert!(size_of::<Channel>() <= size_of::<usize>());
}

#[test]
fn a_header_of_the_proxy_protocol_goes_first_and_then_nothing_is_between() {
    let dialer = dialer(&settings(&[("url", "http://127.0.0.1:1/"), ("proxy-protocol", "v1")]));
    let (mut channel, mut desk) = (dialer.channel(0).unwrap(), Desk::default());
    assert!(!channel.is_plain() && channel.wants_ends());
    assert_eq!(channel.opened(Some(ends()), NOW, &mut desk), Ok(Step::Ready(Opened::default())));
    assert_eq!(desk.out, b"PROXY TCP4 10.0.0.1 10.0.0.2 1025 80\r\n");
    assert!(channel.is_plain());
}

#[test]
fn header_tunnel_and_tls_come_in_this_order() {
    let issuer = Issuer::new();
    let options = [("ca", issuer.ca()), ("proxy-protocol", "v2".to_owned())];
    let mut settings = settings(&options.each_ref().map(|(name, value)| (*name, value.as_str())));
    settings.0.remove("connect-to");
    let dialer = dialer(&settings.with("proxy", "http://me:pw@127.0.0.1:3128"));
    let mut pair = Pair::new(dialer.channel(0).unwrap(), &issuer.server("server.example").config());
    assert_eq!(pair.channel.opened(Some(ends()), NOW, &mut pair.desk), Ok(Step::Opening));
    let out = std::mem::take(&mut pair.desk.out);
    assert_eq!(&out[..16], b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c");
    let asked =
        "CONNECT server.example:443 HTTP/1.1\r\nHost: server.example:443\r\nProxy-Authorization: Basic bWU6cHc=\r\n";
    assert!(out[28..].starts_with(asked.as_bytes()), "{}", out.escape_ascii());
    assert_eq!(pair.channel.cut(), Some(Fault::Proxy(ProxyFault::Closed)));
    for piece in [&b"HTTP/1.1 200 Conn"[..], b"ection established\r\nVia: x\r\n\r"] {
        assert_eq!(pair.channel.take(piece, NOW, &mut pair.desk), Ok(Step::Opening));
        assert!(pair.desk.out.is_empty());
    }
    assert_eq!(pair.channel.take(b"\n", Nanos(9), &mut pair.desk), Ok(Step::Opening));
    assert_eq!(pair.desk.out[..2], [0x16, 3], "a client hello follows");
    pair.now = Nanos(20);
    let steps = pair.exchange().unwrap();
    let opened =
        steps.iter().find_map(|step| if let Step::Ready(opened) = step { Some(opened) } else { None }).unwrap();
    assert_eq!((opened.proxied_at, opened.secured_at), (Some(Nanos(9)), Some(Nanos(21))));
    pair.channel.seal(b"GET / HTTP/1.1\r\n\r\n", &mut pair.desk).unwrap();
    pair.exchange().unwrap();
    assert_eq!(pair.heard, b"GET / HTTP/1.1\r\n\r\n");
}

#[test]
fn a_proxy_that_makes_no_tunnel_is_named_by_what_it_did() {
    let cases: [(&[u8], &str); 5] = [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "no tunnel: status 407"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nno\n", "no tunnel: status 502"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", "bytes after the answer that made the tunnel"),
        (b"\x15\x03\x01\0\x02\x02\x46", "no tunnel: not HTTP/1"),
        (b"HTTP/1.1 20", "closed before the tunnel was there"),
    ];
    let mut settings = settings(&[("insecure", "true"), ("proxy", "http://127.0.0.1:3128")]);
    settings.0.remove("connect-to");
    let dialer = dialer(&settings);
    for (answer, expected) in cases {
        let (mut channel, mut desk) = (dialer.channel(0).unwrap(), Desk::default());
        assert_eq!(channel.opened(None, NOW, &mut desk), Ok(Step::Opening));
        let found = channel.take(answer, NOW, &mut desk).err().or_else(|| channel.cut()).unwrap();
        assert_eq!((found.to_string().as_str(), found.stage().name()), (expected, "proxy"));
    }
}
