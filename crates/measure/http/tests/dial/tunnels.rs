//! The steps before TLS: the PROXY protocol and tunnels, one after the other.

use std::mem::size_of;

use fathom_http::target::{
    Channel, ChannelSetup, ChannelState, ConnectFault, ConnectionAddresses, ProxyFault, RequestStage, TlsBuffers,
};
use fathom_model::units::Nanos;

use crate::server::{ChannelAndServer, Issuer, resolver, settings};

const NOW: Nanos = Nanos(5);

fn ends() -> ConnectionAddresses {
    ConnectionAddresses { local: "10.0.0.1:1025".parse().unwrap(), peer: "10.0.0.2:80".parse().unwrap() }
}

#[test]
fn a_plain_connection_has_nothing_between() {
    let dialer = resolver(&settings(&[("url", "http://127.0.0.1:1/")]));
    let (mut channel, mut desk) = (dialer.channel(0).unwrap(), TlsBuffers::default());
    assert!(channel.is_plain() && !channel.needs_addresses());
    assert_eq!(channel.on_connected(None, NOW, &mut desk), Ok(ChannelState::Ready(ChannelSetup::default())));
    assert!(desk.out.is_empty() && channel.fault_if_closed().is_none());
    // Each of tens of thousands of connections contains one.
    assert!(size_of::<Channel>() <= size_of::<usize>());
}

#[test]
fn a_header_of_the_proxy_protocol_goes_first_and_then_nothing_is_between() {
    let dialer = resolver(&settings(&[("url", "http://127.0.0.1:1/"), ("proxy-protocol", "v1")]));
    let (mut channel, mut desk) = (dialer.channel(0).unwrap(), TlsBuffers::default());
    assert!(!channel.is_plain() && channel.needs_addresses());
    assert_eq!(channel.on_connected(Some(ends()), NOW, &mut desk), Ok(ChannelState::Ready(ChannelSetup::default())));
    assert_eq!(desk.out, b"PROXY TCP4 10.0.0.1 10.0.0.2 1025 80\r\n");
    assert!(channel.is_plain());
}

#[test]
fn header_tunnel_and_tls_come_in_this_order() {
    let issuer = Issuer::new();
    let options = [("ca", issuer.ca()), ("proxy-protocol", "v2".to_owned())];
    let mut settings = settings(&options.each_ref().map(|(name, value)| (*name, value.as_str())));
    settings.0.remove("connect-to");
    let dialer = resolver(&settings.with("proxy", "http://me:pw@127.0.0.1:3128"));
    let mut pair = ChannelAndServer::new(dialer.channel(0).unwrap(), &issuer.server("server.example").config());
    assert_eq!(pair.channel.on_connected(Some(ends()), NOW, &mut pair.tls_buffers), Ok(ChannelState::Opening));
    let out = std::mem::take(&mut pair.tls_buffers.out);
    assert_eq!(&out[..16], b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c");
    let asked =
        "CONNECT server.example:443 HTTP/1.1\r\nHost: server.example:443\r\nProxy-Authorization: Basic bWU6cHc=\r\n";
    assert!(out[28..].starts_with(asked.as_bytes()), "{}", out.escape_ascii());
    assert_eq!(pair.channel.fault_if_closed(), Some(ConnectFault::Proxy(ProxyFault::Closed)));
    for piece in [&b"HTTP/1.1 200 Conn"[..], b"ection established\r\nVia: x\r\n\r"] {
        assert_eq!(pair.channel.receive(piece, NOW, &mut pair.tls_buffers), Ok(ChannelState::Opening));
        assert!(pair.tls_buffers.out.is_empty());
    }
    assert_eq!(pair.channel.receive(b"\n", Nanos(9), &mut pair.tls_buffers), Ok(ChannelState::Opening));
    assert_eq!(pair.tls_buffers.out[..2], [0x16, 3], "a client hello follows");
    pair.now = Nanos(20);
    let steps = pair.exchange().unwrap();
    let opened =
        steps.iter().find_map(|step| if let ChannelState::Ready(opened) = step { Some(opened) } else { None }).unwrap();
    assert_eq!((opened.tunnel_ready_at, opened.tls_ready_at), (Some(Nanos(9)), Some(Nanos(21))));
    pair.channel.encrypt(b"GET / HTTP/1.1\r\n\r\n", &mut pair.tls_buffers).unwrap();
    pair.exchange().unwrap();
    assert_eq!(pair.received, b"GET / HTTP/1.1\r\n\r\n");
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
    let dialer = resolver(&settings);
    for (answer, expected) in cases {
        let (mut channel, mut desk) = (dialer.channel(0).unwrap(), TlsBuffers::default());
        assert_eq!(channel.on_connected(None, NOW, &mut desk), Ok(ChannelState::Opening));
        let found = channel.receive(answer, NOW, &mut desk).err().or_else(|| channel.fault_if_closed()).unwrap();
        assert_eq!((found.to_string().as_str(), found.stage()), (expected, RequestStage::Proxy));
    }
}
