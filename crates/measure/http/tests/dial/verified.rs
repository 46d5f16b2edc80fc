//! TLS: split anywhere, resumed or not, and refused for the right reason.

use std::io::Write;

use fathom_http::target::{ChannelState, ConnectFault, RequestStage, TlsFault};
use rustls::HandshakeKind;

use crate::server::{BOTH, ChannelAndServer, Issuer, NEW, OLD, Server, Validity, resolver, settings};

#[test]
fn a_connection_is_the_same_wherever_the_network_cuts_it() {
    let issuer = Issuer::new();
    let config = issuer.server("server.example").config();
    let body: Vec<u8> = (0..100_000u32).map(|number| number.to_le_bytes()[0]).collect();
    for version in ["1.2", "1.3"] {
        let dialer = resolver(&settings(&[("ca", &issuer.ca()), ("tls", version)]));
        for piece in [1, 2, 3, 5, 7, 64, 1_000, 16_000, 17_000, usize::MAX] {
            let mut pair = ChannelAndServer::new(dialer.channel(0).unwrap(), &config);
            pair.piece = piece;
            assert!(!pair.channel.is_plain() && pair.channel.tls_parameters().is_none());
            let opened = pair.open().unwrap().unwrap();
            assert!(opened.tls_ready_at.is_some_and(|at| at <= pair.now) && opened.tunnel_ready_at.is_none());
            assert_eq!(pair.channel.tls_parameters().unwrap().version, format!("TLSv{version}"));
            for n in [10, 40_000] {
                pair.channel.encrypt(&body[..n], &mut pair.tls_buffers).unwrap();
                pair.exchange().unwrap();
                assert_eq!(pair.received.split_off(0), &body[..n]);
            }
            for part in body.chunks(33_000) {
                pair.server.writer().write_all(part).unwrap();
                let steps = pair.exchange().unwrap();
                assert!(steps.iter().all(|step| *step == ChannelState::Data), "{steps:?}");
            }
            assert!(pair.plain == body, "TLS {version} in pieces of {piece}");
            assert_eq!(pair.channel.fault_if_closed(), None);
            pair.server.send_close_notify();
            assert_eq!(pair.exchange().unwrap().last(), Some(&ChannelState::Ended));
        }
    }
}

#[test]
fn a_farewell_is_heard_as_one() {
    let issuer = Issuer::new();
    let dialer = resolver(&settings(&[("ca", &issuer.ca())]));
    let mut pair = ChannelAndServer::new(dialer.channel(0).unwrap(), &issuer.server("server.example").config());
    pair.open().unwrap().unwrap();
    pair.channel.close_notify(&mut pair.tls_buffers);
    let mut out = pair.tls_buffers.out.as_slice();
    pair.server.read_tls(&mut out).unwrap();
    assert!(pair.server.process_new_packets().unwrap().peer_has_closed());
}

#[test]
fn sessions_are_resumed_if_that_is_wanted() {
    let issuer = Issuer::new();
    let config = issuer.server("server.example").config();
    for version in ["1.2", "1.3"] {
        for (resumption, expected) in [("on", [false, true, true]), ("off", [false; 3])] {
            let options = [("ca", issuer.ca()), ("tls", version.to_owned()), ("resumption", resumption.to_owned())];
            let dialer = resolver(&settings(&options.each_ref().map(|(name, value)| (*name, value.as_str()))));
            let resumed = expected.map(|is_resumed| {
                let mut pair = ChannelAndServer::new(dialer.channel(0).unwrap(), &config);
                let opened = pair.open().unwrap().unwrap();
                assert_eq!(pair.server.handshake_kind() == Some(HandshakeKind::Resumed), is_resumed);
                opened.is_resumed
            });
            assert_eq!(resumed, expected, "TLS {version}, resumption {resumption}");
        }
    }
}

#[test]
fn many_connections_at_once_are_resumed_too() {
    let issuer = Issuer::new();
    let config = issuer.server("server.example").config();
    let dialer = resolver(&settings(&[("ca", &issuer.ca())]));
    let n_resumed = |n: usize| {
        let mut pairs: Vec<ChannelAndServer> =
            (0..n).map(|_| ChannelAndServer::new(dialer.channel(0).unwrap(), &config)).collect();
        // All of them send their hello before any has received an answer.
        for pair in &mut pairs {
            assert_eq!(
                pair.channel.on_connected(None, pair.now, &mut pair.tls_buffers).unwrap(),
                ChannelState::Opening
            );
        }
        let ready = pairs.iter_mut().flat_map(|pair| pair.exchange().unwrap());
        ready.filter(|step| matches!(step, ChannelState::Ready(opened) if opened.is_resumed)).count()
    };
    assert_eq!(n_resumed(50), 0);
    assert_eq!(n_resumed(50), 50);
    assert_eq!(n_resumed(50), 50);
}

/// The fault of a client with these options. Also checks that the server receives the alert.
fn fault(server: &Server<'_>, options: &[(&str, &str)]) -> Option<ConnectFault> {
    let config = server.config();
    let dialer = resolver(&settings(options));
    let mut pair = ChannelAndServer::new(dialer.channel(0).unwrap(), &config);
    match pair.open() {
        Ok(Some(_)) => {
            // With TLS 1.3 a server rejects the client's certificate only when the client is already ready.
            pair.channel.encrypt(b"GET", &mut pair.tls_buffers).and_then(|()| pair.exchange()).err()
        }
        Ok(None) => panic!("neither ready nor refused"),
        Err(fault) => {
            if !matches!(fault, ConnectFault::Tls(TlsFault::Alert(_))) {
                let mut alert = pair.tls_buffers.out.as_slice();
                assert!(!alert.is_empty(), "{fault}: the server is not told");
                pair.server.read_tls(&mut alert).unwrap();
                assert!(pair.server.process_new_packets().is_err(), "{fault}: the server heard no alert");
            }
            Some(fault)
        }
    }
}

#[test]
fn a_certificate_that_does_not_verify_is_refused_for_the_reason_that_it_is() {
    let (issuer, other, namesake) = (Issuer::new(), Issuer::named("another"), Issuer::new());
    let (ca, others, namesakes) = (issuer.ca(), other.ca(), namesake.ca());
    for versions in [OLD, NEW] {
        let of = |host: &str, validity| Server { validity, versions, ..issuer.server(host) };
        let cases = [
            (of("server.example", Validity::Now), &ca, None),
            (of("other.example", Validity::Now), &ca, Some("the certificate is for another name")),
            (of("issuer.example", Validity::Now), &ca, Some("the certificate is an issuer's and not a server's")),
            (of("server.example", Validity::Over), &ca, Some("the certificate has expired")),
            (of("server.example", Validity::ToCome), &ca, Some("the certificate is not valid yet")),
            (of("server.example", Validity::Now), &others, Some("the certificate comes from an unknown issuer")),
            (
                of("server.example", Validity::Now),
                &namesakes,
                Some("the certificate is not signed by the issuer that it names"),
            ),
        ];
        for (server, ca, expected) in cases {
            let found = fault(&server, &[("ca", ca)]);
            assert_eq!(found.map(|fault| fault.to_string()).as_deref(), expected);
            assert_eq!(found.map(fathom_http::target::ConnectFault::stage), expected.map(|_| RequestStage::Tls));
            assert!(found.is_none_or(|fault| fault.hint().is_some()));
            assert_eq!(fault(&server, &[("insecure", "true")]), None);
        }
    }
}

#[test]
fn a_certificate_that_vouches_for_itself_is_trusted_when_it_is_the_one_that_was_given() {
    let issuer = Issuer::new();
    let (own, others) = (issuer.path("self.pem").display().to_string(), issuer.ca());
    let cases = [
        (Validity::Now, "self.example", &own, None),
        (Validity::Now, "server.example", &own, Some("the certificate is for another name")),
        (Validity::Over, "self.example", &own, Some("the certificate has expired")),
        (Validity::ToCome, "self.example", &own, Some("the certificate is not valid yet")),
        (Validity::Now, "self.example", &others, Some("the certificate is an issuer's and not a server's")),
    ];
    for (validity, name, ca, expected) in cases {
        let server = Server { validity, ..issuer.server("self.example") };
        let found = fault(&server, &[("ca", ca), ("sni", name)]);
        assert_eq!(found.map(|fault| fault.to_string()).as_deref(), expected);
    }
}

#[test]
fn another_name_can_be_asked_for_and_is_verified() {
    let issuer = Issuer::new();
    let dialer = resolver(&settings(&[("ca", &issuer.ca()), ("sni", "other.example")]));
    let mut pair = ChannelAndServer::new(dialer.channel(0).unwrap(), &issuer.server("other.example").config());
    assert!(pair.open().unwrap().is_some());
    assert_eq!(pair.server.server_name(), Some("other.example"));
}

#[test]
fn a_client_shows_its_certificate_to_a_server_that_asks() {
    let issuer = Issuer::new();
    let (ca, [certificate, key]) = (issuer.ca(), issuer.client());
    for versions in [OLD, NEW] {
        let server = Server { asks: true, versions, ..issuer.server("server.example") };
        assert_eq!(fault(&server, &[("ca", &ca), ("client-cert", &certificate), ("client-key", &key)]), None);
        let refused = fault(&server, &[("ca", &ca)]).unwrap();
        let alert = if versions == NEW { "certificate_required" } else { "handshake_failure" };
        assert!(
            refused.to_string() == format!("the server sent the alert {alert}")
                || refused.to_string() == "the server sent the alert certificate_required",
            "{refused}"
        );
    }
}

#[test]
fn what_both_sides_do_not_have_in_common_is_said() {
    let issuer = Issuer::new();
    let ca = issuer.ca();
    let new = Server { versions: NEW, ..issuer.server("server.example") };
    let found = fault(&new, &[("ca", &ca), ("tls", "1.2")]).unwrap();
    assert_eq!(found.to_string(), "the server sent the alert protocol_version");
    let two = Server { alpn: "h2", ..issuer.server("server.example") };
    let found = fault(&two, &[("ca", &ca)]).unwrap();
    assert_eq!(found.to_string(), "the server sent the alert no_application_protocol");
    assert_eq!(fault(&two, &[("ca", &ca), ("alpn", "none")]), None);
    let server = Server { alpn: "http/1.1", versions: BOTH, ..issuer.server("server.example") };
    assert_eq!(fault(&server, &[("ca", &ca), ("alpn", "h2, http/1.1")]), None);
}

#[test]
fn a_server_that_takes_another_protocol_is_refused() {
    let issuer = Issuer::new();
    let dialer = resolver(&settings(&[("ca", &issuer.ca()), ("alpn", "h2,http/1.1")]));
    let server = Server { alpn: "h2", ..issuer.server("server.example") };
    let mut pair = ChannelAndServer::new(dialer.channel(0).unwrap(), &server.config());
    assert_eq!(pair.open().unwrap_err(), ConnectFault::Tls(TlsFault::OtherProtocol));
}

#[test]
fn a_server_without_tls_and_one_that_hangs_up_are_told_apart() {
    let dialer = resolver(&settings(&[("insecure", "true")]));
    let mut pair = ChannelAndServer::new(dialer.channel(0).unwrap(), &Issuer::new().server("a").config());
    pair.channel.on_connected(None, pair.now, &mut pair.tls_buffers).unwrap();
    assert_eq!(pair.channel.fault_if_closed(), Some(ConnectFault::Tls(TlsFault::Closed)));
    let answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    let found = pair.channel.receive(answer, pair.now, &mut pair.tls_buffers).unwrap_err();
    assert_eq!(found.to_string(), "the server does not speak TLS");
}
